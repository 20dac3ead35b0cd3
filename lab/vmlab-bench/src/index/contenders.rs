//! The list of measured indexes.

use super::peers::{OffsetPeer, RangePeer, VmPeer};
use crate::indexes::Holes;
use crate::indexes::first_fit::FirstFit;
use crate::indexes::splay::Splay;
use crate::indexes::treap::{Cached, Eager, Lazy, Treap};
use crate::stream::contender::{Contender, Exactness, Runner, Work, bare};
use crate::stream::workload::Workload;
use va_base::{Align, PAGE_SHIFT, Request, VaRange};
use va_sim::platform::HeapPlatform;
use va_tree::rb::{Exact, Linux};
use va_tree::{BTreeIndex, BTreeIndex32, FreeIndex, IndexMemory, RbIndex};
use vmlab_machine::list::ListIndex;

/// An index of the library behind the minimal interface of holes.
struct OnIndex<I> {
    index: I,
    /// The default window, in pages.
    whole: (u64, u64),
}

impl<I: FreeIndex> Holes for OnIndex<I> {
    #[inline(always)]
    fn alloc(&mut self, size: u64, align_log2: u32, window: (u64, u64)) -> Option<u64> {
        let align = Align::from_log2(align_log2 + PAGE_SHIFT)?;
        let mut request = Request::pages(size).ok()?.aligned(align);
        if window != self.whole {
            request = request.within(VaRange::from_pages(window.0, window.1)?);
        }
        self.index.alloc(&request).ok().map(va_base::Va::page_floor)
    }

    #[inline(always)]
    fn free(&mut self, start: u64, size: u64) {
        let back = VaRange::from_pages(start, start + size).map(|range| self.index.free(range));
        debug_assert!(matches!(back, Some(Ok(()))), "{back:?}");
    }

    fn memory(&self) -> Option<(IndexMemory, u64)> {
        Some((self.index.memory(), self.index.hole_count()))
    }
}

fn index<I: FreeIndex + 'static>(
    name: &'static str,
    exactness: Exactness,
    make: fn(VaRange, HeapPlatform) -> Option<I>,
) -> Contender {
    let make = move |workload: &Workload| -> Option<Box<dyn Runner>> {
        let space = VaRange::from_pages(0, workload.pages)?;
        let index = OnIndex { index: make(space, HeapPlatform::default())?, whole: (0, workload.pages) };
        Some(Box::new(Work::new(index, workload)))
    };
    Contender { name, aligns: true, windows: true, exactness, make: Box::new(make) }
}

/// Returns all of them, in the order of the tables.
pub fn all() -> Vec<Contender> {
    use Exactness::{Always, Never, UpToPage};
    vec![
        index("rb-linux", UpToPage, |space, heap| RbIndex::<Linux, _>::new(space, space, heap).ok()),
        index("rb-exact", Always, |space, heap| RbIndex::<Exact, _>::new(space, space, heap).ok()),
        index("btree", Always, |space, heap| BTreeIndex::new(space, space, heap).ok()),
        index("btree32", Always, |space, heap| BTreeIndex32::new(space, space, heap).ok()),
        index("list", Never, |space, _| ListIndex::new(space, space).ok()),
        bare("first-fit", (true, true), Always, |pages| Some(FirstFit::new(pages))),
        bare("treap", (true, true), Always, |pages| Some(Treap::<Eager>::new(pages))),
        bare("treap-lazy", (true, true), Always, |pages| Some(Treap::<Lazy>::new(pages))),
        bare("treap-cached", (true, true), Always, |pages| Some(Treap::<Cached>::new(pages))),
        bare("splay", (true, true), Always, |pages| Some(Splay::new(pages))),
        // The peers support less: none supports a window, and only one an alignment.
        bare("range-alloc", (false, false), Never, |pages| Some(RangePeer::new(pages))),
        bare("vm-allocator", (true, false), Never, VmPeer::new),
        bare("offset-allocator", (false, false), Never, OffsetPeer::new),
    ]
}
