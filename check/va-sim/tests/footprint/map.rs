//! The calls of a map.

use crate::arena::{Arena, fine, pages};
use crate::depths::Depths;
use crate::space::Space;
use va_base::{Va, VaRange};
use va_block::Config;
use va_map::{
    AreaRequest, DirectMap, EarlyMap, Entries, Fill, Leaf, Leaves, MapSpace, PageRequest, PageSource,
    PageTable, Protection, Run, Stopped,
};

/// A page table that maps nothing: its own stack is not the core's.
pub(crate) struct Nothing;

impl PageTable for Nothing {
    const LEAF_SIZES: &'static [u32] = &[0, 4, 9, 18];

    fn map(&self, _at: Va, _entries: Entries) -> Result<(), Stopped> {
        Ok(())
    }

    fn unmap(&self, range: VaRange, gone: &mut dyn FnMut(Leaf)) {
        let (first, end) = range.whole_pages();
        (first..end).for_each(|page| gone(Leaf { first: page, pages_log2: 0 }));
    }

    fn leaf(&self, at: Va) -> Option<Leaf> {
        Some(Leaf { first: at.page_floor(), pages_log2: 0 })
    }
}

impl PageSource for Nothing {
    const RESETS: bool = true;

    fn alloc(&self, frames: &mut [u64], _request: PageRequest) -> usize {
        frames.fill(1);
        frames.len()
    }

    fn alloc_run(&self, _pages_log2: u32, _request: PageRequest) -> Option<u64> {
        None
    }

    fn free(&self, _run: Run) {}

    fn clear(&self, _frame: u64, _from: u64, _to: u64) {}
}

type Map<C> = MapSpace<&'static Arena, Nothing, C>;

pub(crate) fn rows<C: Config>(table: &mut Depths) {
    let arena = Arena::leaked();
    let all = pages(16, 1 << 28);
    let place: &'static EarlyMap<&'static Arena, Nothing, C> = Box::leak(Box::new(EarlyMap::new()));
    table.row("EarlyMap::init", || assert!(place.init(all, arena, Nothing, &[]).is_ok()));
    let mut empty = Map::<C>::empty();
    table.row("MapSpace::init", || fine(empty.init(all, arena, Nothing, &[])));
    let mut space = Space::<C::Space>::new(all, all, arena).ok();
    let mut made = None;
    // By value.
    table.row_within("MapSpace::new", 64 << 10, || {
        let space = space.take().unwrap_or_else(|| panic!("no space"));
        made = Map::<C>::new(space, arena, Nothing).ok();
    });
    let mut made = made.map(Box::new);
    table.row("MapSpace::drop", || drop(made.take()));
    let map: &'static Map<C> = fine(place.get());
    let large = AreaRequest::new(700 << 12).leaves(Leaves::LargeWherePossible);
    let reset = large.direct_map(DirectMap::ResetOnFree);
    let mut at = [Va::ZERO; 3];
    table.row("MapSpace::vmalloc", || at[0] = fine(map.vmalloc(0, &large)));
    table.row("MapSpace::vrealloc, grows", || at[0] = fine(map.vrealloc(0, at[0], 900 << 12, Fill::Zeros)));
    let _above = fine(map.vmap(0, [7].as_slice(), Protection(0), 0));
    table.row("MapSpace::vrealloc, moves", || at[0] = fine(map.vrealloc(0, at[0], 1900 << 12, Fill::Zeros)));
    table.row("MapSpace::vrealloc, shrinks", || at[0] = fine(map.vrealloc(0, at[0], 9 << 12, Fill::Any)));
    table.row("MapSpace::reset_on_free", || fine(map.reset_on_free(at[0])));
    table.row("MapSpace::vmap", || at[1] = fine(map.vmap(0, [1, 2, 3].as_slice(), Protection(0), 0)));
    table
        .row("MapSpace::vm_map_ram", || at[2] = fine(map.vm_map_ram(0, [1, 2, 3].as_slice(), Protection(0))));
    table.row("MapSpace::info", || assert!(map.info(at[1]).is_some()));
    table.row("MapSpace::areas", || assert!(map.areas().count() > 2));
    table.row("MapSpace::read", || assert!(map.read(pages(16, 4000), |_| ()) > 0));
    table.row("MapSpace::vm_unmap_ram", || fine(map.vm_unmap_ram(0, at[2], 3)));
    table.row("MapSpace::vunmap", || fine(map.vunmap(at[1])));
    table.row("MapSpace::vfree", || fine(map.vfree(at[0])));
    at = [0, 1, 2].map(|_| fine(map.vmalloc(0, &reset)));
    table.row("MapSpace::vfree, reset", || fine(map.vfree(at[0])));
    table.row("MapSpace::vfree_atomic", || _ = fine(map.vfree_atomic(at[1])));
    table.row("MapSpace::run_deferred", || assert_eq!(map.run_deferred(), 1));
    table.row("MapSpace::stats", || _ = map.stats());
    table.row("MapSpace::validate", || {
        assert!(empty.validate().is_ok());
        // To the first guard page: the table reports every page as mapped.
        assert!(map.validate().is_err());
    });
    table.row("MapSpace::unmap_aliases", || _ = map.unmap_aliases());
    table.row("MapSpace::purge", || _ = map.purge());
    table.row("MapSpace::shrink", || _ = map.shrink());
}
