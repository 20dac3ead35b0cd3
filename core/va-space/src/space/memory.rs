//! The memory of the free index, allocated outside the `free` lock and freed again, and the leaves of the page map.
//!
//! # Theory
//! The index requests memory from the machine in the middle of an operation, under `free`. A caller that allocates
//! metadata before it takes locks of its own calls [`supply`](VmapSpace::supply). That checks under the lock what is
//! missing, allocates it with no lock held, and adds the memory, until nothing is missing (`va_tree::Supplied`). A
//! machine may then fail every request under a spin lock: without a row of its alignment, a request takes longer, and
//! its result is the same. A request that may block does this itself, once, when the index has no memory.
//!
//! Where busy areas are found by trees (`lookup`), a tree needs a record as well, which is known only once the place of
//! an area is. A request that may block allocates it with no lock held, whether `supply` was called or not. One that
//! may not block asks the machine under the lock of the tree, and fails if it has none.

use super::VmapSpace;
use super::take::Placement;
use crate::area::Area;
use crate::config::Config;
use crate::error::SpaceError;
use crate::map::{Mid, Sheet, Step};
use va_base::{AllocError, Machine, PAGE_SIZE, Request};
use va_tree::{FreeIndex, Supplied};

/// No record of an index has fewer bytes.
const RECORD_BYTES_MIN: usize = 32;

/// Steps of shrinking under one hold of `free`, of the index and of the page map: each is some hundred instructions, or
/// a thousand.
const STEPS: usize = 32;
const MAP_STEPS: usize = 8;

impl<P: Machine + Clone, C: Config> VmapSpace<P, C> {
    /// Allocates the index memory that `areas` more areas need, so that taking them requests none under a lock, unless
    /// other callers use it up. This includes rows that earlier requests lacked.
    ///
    /// It does not include the records of policies that find busy areas by trees, such as `Linux69`. A request that may
    /// block allocates those with no lock held, and one that may not under the lock of a tree.
    ///
    /// A request that may not block and is the first to need the row of its alignment still asks the machine for the
    /// memory under `free`. If that fails, it searches longer, and the next call of this allocates the memory.
    ///
    /// # Errors
    /// [`AllocError::NoMeta`] if the machine has none, or if there are not as many pages. Memory that the index already
    /// has remains.
    /// # Locks
    /// `free`, for O(log n) at a time; none while the machine is called.
    pub fn supply(&self, areas: u64) -> Result<(), SpaceError> {
        if areas > self.extent.len_bytes() / PAGE_SIZE {
            return Err(AllocError::NoMeta { records: usize::try_from(areas).unwrap_or(usize::MAX) }.into());
        }
        loop {
            let Some(wanted) = self.lock_free().index.wanted(areas) else { return Ok(()) };
            let Some(supply) = C::Index::<P>::alloc_supply(wanted, &self.machine) else {
                return Err(AllocError::NoMeta { records: 1 }.into());
            };
            let unused = self.lock_free().index.donate(supply).err();
            if let Some(unused) = unused {
                C::Index::<P>::free_supply(unused, &self.machine);
            }
        }
    }

    /// Tries a request again that may block and found no memory under `free`: the missing memory is allocated with no
    /// lock held, once. Returns `failure` if that fails too.
    #[cold]
    pub(super) fn alloc_supplied<F: Placement>(
        &self,
        request: &Request,
        owner: Option<u32>,
        failure: SpaceError,
    ) -> Result<Area, SpaceError> {
        self.supply(1).map_err(|_| failure)?;
        self.take_from_index::<F>(request, owner)
    }

    /// Returns the result, unless a second attempt may do better ([`alloc_supplied`](Self::alloc_supplied)).
    #[inline(always)]
    pub(super) fn or_supplied<F: Placement>(
        &self,
        request: &Request,
        owner: Option<u32>,
        got: Result<Area, SpaceError>,
    ) -> Result<Area, SpaceError> {
        match got {
            Err(failure @ SpaceError::Index(AllocError::NoMeta { .. })) if request.waits() => {
                self.alloc_supplied::<F>(request, owner, failure)
            }
            got => got,
        }
    }

    /// Calls `attempt`, and once more if it found no memory under `free`: what `areas` more areas need is allocated in
    /// between, with no lock held.
    pub(super) fn twice<T>(
        &self,
        areas: u64,
        mut attempt: impl FnMut() -> Result<T, AllocError>,
    ) -> Result<T, AllocError> {
        match attempt() {
            Err(failure @ AllocError::NoMeta { .. }) => {
                self.supply(areas).map_err(|_| failure)?;
                attempt()
            }
            got => got,
        }
    }

    /// Frees all index memory that is not needed, as [`shrink_index`](Self::shrink_index) does.
    pub(super) fn shrink_index_wholly(&self) {
        loop {
            // A step moves a record or frees a slab, so these are enough to move all; then the last slabs are freed.
            let allocated = self.lock_free().index.memory().allocated_bytes;
            if self.shrink_index(allocated / RECORD_BYTES_MIN) == 0 {
                return;
            }
        }
    }

    /// Frees leaves and tables of the page map in which no area starts, a page of leaves or a table a step, in at most
    /// `steps` steps; returns the bytes. A pass looks at each, and a call continues where the last one stopped.
    ///
    /// Lookups read the map without a lock, so only a machine that waits for them gets any of it back
    /// ([`Machine::RETIRES`]); with others this does nothing. Leaves in which no area starts are reused elsewhere, so
    /// there are as many as were needed at a time. The tables above those of leaves remain: 17 KiB for each 128 GiB that
    /// were ever in use, with pages of 4 KiB.
    ///
    /// # Locks
    /// `free`, for 8 steps at a time, or for one with a table: each is some thousand instructions. The machine's
    /// `retire_table` is called under it.
    pub fn shrink_map(&self, steps: usize) -> usize {
        let (mut freed, mut left) = (0, if P::RETIRES { steps } else { 0 });
        while left > 0 {
            let mut heap = self.lock_free();
            for _ in 0..MAP_STEPS.min(left) {
                left -= 1;
                match self.map.retire(&mut heap.marker) {
                    Step::Leaves(leaves) => {
                        freed += size_of::<Sheet>();
                        self.machine.retire_table(leaves);
                    }
                    Step::Table(table) => {
                        freed += size_of::<Mid>();
                        self.machine.retire_table(table);
                        break;
                    }
                    Step::LeavesInUse => {}
                    Step::NoTable => break,
                    Step::End => return freed,
                }
            }
        }
        freed
    }

    /// Frees index memory that is not needed, in at most `steps` steps of O(log n); returns the bytes. For a shrinker,
    /// which repeats it: one call may prepare what a later one frees. It ends early once no step is left to do.
    ///
    /// # Locks
    /// `free`, for 32 steps at a time, and once where there is nothing to free. The machine's `free_meta` is called
    /// under it. An index that is a red-black tree also calls `alloc_meta`, and copies up to 3 MiB in one step
    /// ([`Supplied::shrink`]).
    pub fn shrink_index(&self, steps: usize) -> usize {
        let (mut freed, mut left) = (0, steps);
        while left > 0 {
            let mut undone = STEPS.min(left);
            left -= undone;
            freed += self.lock_free().index.shrink_counted(&mut undone);
            if undone > 0 {
                break;
            }
        }
        freed
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::config::{Linux69, OneLock52, Standard, WithBestFit, WithTrees};
    use crate::lookup::Lookup;
    use core::sync::atomic::{AtomicU64, Ordering};
    use std::boxed::Box;
    use std::sync::OnceLock;
    use std::vec::Vec;
    use va_base::{Context, HeapMachine, VaRange, Watch};

    /// Fails every request for memory while `free` or a lock of the lookup is held, and counts those.
    #[derive(Default)]
    struct Strict {
        is_locked: OnceLock<Box<dyn Fn() -> bool + Send + Sync>>,
        failed: AtomicU64,
    }

    impl Watch for Strict {
        fn admits(&self, _bytes: usize) -> bool {
            let fails = self.is_locked.get().is_some_and(|is_locked| is_locked());
            self.failed.fetch_add(u64::from(fails), Ordering::Relaxed);
            !fails
        }
    }

    type Strictly = HeapMachine<parking_lot::RawMutex, Strict>;

    fn space<C: Config>() -> (&'static VmapSpace<&'static Strictly, C>, &'static Strict) {
        let machine: &'static Strictly = Box::leak(Box::new(HeapMachine::watched(4, Strict::default())));
        let all = VaRange::from_pages(16, 1 << 24).unwrap();
        let space: &'static _ = Box::leak(Box::new(VmapSpace::<_, C>::new(all, all, machine).unwrap()));
        let is_locked = || space.free.try_lock().is_none() || space.lookup.is_locked();
        assert!(machine.watcher.is_locked.set(Box::new(is_locked)).is_ok());
        (space, &machine.watcher)
    }

    #[test]
    fn a_machine_without_memory_under_a_lock_serves_each_policy() {
        fn check<C: Config>() {
            for is_supplied in [true, false] {
                let (space, strict) = space::<C>();
                let failed = || strict.failed.load(Ordering::Relaxed);
                if is_supplied {
                    space.supply(2500).unwrap();
                }
                let size = |n: u64| Request::pages(2 + n % 7).unwrap();
                let mut areas: Vec<_> = (0..2000).map(|n| space.alloc(0, &size(n)).unwrap()).collect();
                for area in areas.iter().step_by(4) {
                    let (_, high) =
                        space.split(va_base::Va::from_page(area.start().page_floor() + 1)).unwrap();
                    space.free_at(high.start()).unwrap();
                }
                assert!(!is_supplied || failed() == 0, "{} requests under a lock", failed());
                // Without a wait it is the memory at hand that serves, and what fails has changed nothing.
                let atomic = |n| space.alloc(0, &size(n).context(Context::Atomic));
                areas.extend((0..3000).filter_map(|n| atomic(n).ok()));
                space.validate().unwrap();
                assert!(areas.len() < 5000, "a failure of an atomic request");
                for area in areas {
                    space.free_at(area.start()).unwrap();
                }
                space.validate().unwrap();
            }
        }
        check::<Standard>();
        check::<Linux69>();
        check::<OneLock52>();
        check::<WithTrees<Standard>>();
        check::<WithBestFit<Linux69>>();
    }

    #[test]
    fn the_memory_of_a_row_is_allocated_with_no_lock_held() {
        let (space, strict) = space::<Standard>();
        // Holes of two pages that start at odd pages: only a row excludes them.
        for n in 0..3_000 {
            let _kept = space.alloc_at(VaRange::from_pages(16 + 4 * n, 17 + 4 * n).unwrap()).unwrap();
            let _kept = space.alloc_at(VaRange::from_pages(19 + 4 * n, 20 + 4 * n).unwrap()).unwrap();
        }
        let two = Request::pages(2).unwrap().aligned(va_base::Align::new(2 << 12).unwrap());
        let before = strict.failed.load(Ordering::Relaxed);
        let area = space.alloc(0, &two).unwrap();
        assert_eq!(area.start().page_floor(), 16 + 4 * 3_000);
        assert_eq!(strict.failed.load(Ordering::Relaxed), before);
        assert!(space.lock_free().index.memory().row_bytes > 0);
        space.validate().unwrap();
    }

    #[test]
    fn a_request_that_purges_allocates_records_with_no_lock_held() {
        let (space, strict) = space::<Standard>();
        for n in 0..500 {
            let got = space.overflow::<crate::space::take::Lowest>(&Request::pages(1 + n % 7).unwrap(), None);
            assert!(got.is_ok(), "{n}: {got:?}");
        }
        assert!(strict.failed.load(Ordering::Relaxed) > 0);
    }
}
