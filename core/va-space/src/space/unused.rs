//! The free of an area that nothing was mapped in.
//!
//! # Theory
//! A freed area waits for a flush, since a CPU may translate its addresses by what was mapped there. In an area whose
//! caller mapped nothing there is nothing to flush: it was flushed before it was allocated. So it goes to the index at
//! once, and is not lazy.
//! # Source
//! Linux `mm/vmalloc.c` (6.12: `free_vmap_area`, by which `new_vmap_block` frees an area that gets no record).

use super::{Release, VmapSpace};
use crate::area::{Area, range_of};
use crate::config::Config;
use crate::error::ReleaseError;
use crate::list::{Unflushed, UnlinkedArea};
use crate::lookup::Lookup;
use va_base::{Context, Machine, Va};

impl<P: Machine + Clone, C: Config> VmapSpace<P, C> {
    /// Frees an area that was not used: since it was allocated, nothing was mapped in it. It needs no flush, and is
    /// allocated again at once. For a caller that lacks something else for the area. Any context.
    ///
    /// ```
    /// # use va_base::{HeapMachine, Request, VaRange};
    /// # use va_space::{VmapSpace, config::Standard};
    /// # let (window, machine) = (VaRange::from_pages(16, 64).unwrap(), HeapMachine::<parking_lot::RawMutex>::new(1));
    /// let space = VmapSpace::<_, Standard>::new(window, window, &machine)?;
    /// let area = space.alloc(0, &Request::pages(3)?)?;
    /// space.free_unused(area)?;
    /// assert_eq!(space.lazy_pages().get(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`free`](Self::free).
    /// # Locks
    /// `free`; and before it, where the policy finds areas by trees, `busy` of one node. Cost: that of a free in the
    /// index, O(log holes).
    pub fn free_unused(&self, area: Area) -> Result<(), ReleaseError> {
        self.free_as(Release::Unused(area), Context::Sleeping).map(|_| ())
    }

    /// Frees in the index an area in which nothing was mapped.
    pub(super) fn return_unused(&self, unused: UnlinkedArea<Unflushed>) {
        let mut heap = self.lock_free();
        self.map.end(&mut heap.marker, unused.page);
        self.lookup.release(Va::from_page(unused.page));
        self.put_back(&mut heap, range_of(unused.page, unused.pages));
        drop(heap);
        self.note_return();
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::SpaceError;
    use crate::config::{Linux69, OneLock52, Standard};
    use crate::testing::TestMachine;
    use va_base::sync::atomic::Ordering;
    use va_base::{Pages, Request, VaRange};

    fn returns_at_once<C: Config>() {
        let machine = TestMachine::default();
        let all = VaRange::from_pages(16, 80).unwrap();
        let space = VmapSpace::<_, C>::new(all, all, &machine).unwrap();
        let lives = space.alloc(0, &Request::pages(2).unwrap()).unwrap();
        let rest = Request::pages(62).unwrap().context(Context::Atomic);
        space.free_unused(space.alloc(0, &Request::pages(62).unwrap()).unwrap()).unwrap();
        let mut last = None;
        for _ in 0..100 {
            let area = space.alloc(0, &rest).unwrap();
            let again = Area { ..area };
            assert_eq!((area.start(), space.free_unused(area)), (Va::from_page(18), Ok(())));
            assert_eq!((space.lazy_pages(), space.validate()), (Pages::new(0), Ok(())));
            last = Some(again);
        }
        // Of two frees one fails, also after the address was allocated again.
        let freed = last.unwrap();
        let copy = Area { ..freed };
        assert!(matches!(space.free_unused(freed), Err(ReleaseError::NoArea { .. })));
        let next = space.alloc(0, &rest).unwrap();
        assert!(space.free_unused(copy).is_err());
        let one = Request::pages(1).unwrap();
        assert!(matches!(space.alloc(0, &one), Err(SpaceError::NoSpace { .. })));
        // The failure is remembered, and then forgotten.
        assert!(!C::FAIL_FAST || space.failed_before(&one).is_some());
        space.free_unused(next).unwrap();
        assert_eq!(space.failed_before(&one), None);
        let flushes = machine.flushes.load(Ordering::Relaxed);
        space.free_unused(space.alloc(0, &one).unwrap()).unwrap();
        assert_eq!(machine.flushes.load(Ordering::Relaxed), flushes);
        space.free_unused(lives).unwrap();
        assert!(space.alloc(0, &Request::pages(64).unwrap()).is_ok(), "one hole");
    }

    #[test]
    fn an_unused_area_is_allocated_again_without_a_flush() {
        returns_at_once::<Standard>();
        returns_at_once::<Linux69>();
        returns_at_once::<OneLock52>();
    }
}
