//! Storage for a map in a static: a call before it is created gets a typed error.
//!
//! A kernel declares its map in a static long before its memory is known. [`EarlyMap::new`] is a constant without a
//! map, all zeros; [`EarlyMap::init`] creates one there, as [`EarlySpace`](va_space::EarlySpace) does for a space.
//! Areas that exist by then are imported as busy.
//!
//! # Locking
//! One atomic reference, set once. The lock of the storage is taken by the first `init` that succeeds and never
//! released.
//! # Source
//! Linux `mm/vmalloc.c` (6.12: `vmap_initialized`, `vm_area_add_early`, `vmalloc_init`).

use crate::machine::PageTable;
use crate::space::MapSpace;
use va_base::sync::{Mutex, MutexGuard, OnceRef};
use va_base::{Machine, Place, VaRange};
use va_block::config::Standard;
use va_block::{BlockError, Config};
use va_space::SpaceError;

/// Storage for a map, for a static.
///
/// ```
/// // `Pages` is the table and the source of pages in the example of `MapSpace`.
/// # use std::collections::BTreeMap;
/// # use std::sync::Mutex;
/// # use va_base::{HeapMachine, Va, VaRange};
/// # use va_map::{AreaRequest, EarlyMap, Entries, Leaf, PageRequest, PageSource, PageTable, Run, Stopped};
/// # /// The page that is mapped at each address, and the free pages.
/// # struct Pages {
/// #     mapped: Mutex<BTreeMap<u64, u64>>,
/// #     free: Mutex<Vec<u64>>,
/// # }
/// # impl PageTable for Pages {
/// #     const LEAF_SIZES: &'static [u32] = &[0];
/// #     fn map(&self, at: Va, Entries { run, .. }: Entries) -> Result<(), Stopped> {
/// #         let pages = (0..run.pages).map(|nth| (at.page_floor() + nth, run.first + nth));
/// #         self.mapped.lock().unwrap().extend(pages);
/// #         Ok(())
/// #     }
/// #     fn unmap(&self, range: VaRange, gone: &mut dyn FnMut(Leaf)) {
/// #         let (first, end) = range.whole_pages();
/// #         for at in first..end {
/// #             let page = self.mapped.lock().unwrap().remove(&at);
/// #             page.map(|first| gone(Leaf { first, pages_log2: 0 }));
/// #         }
/// #     }
/// #     fn leaf(&self, at: Va) -> Option<Leaf> {
/// #         self.mapped.lock().unwrap().get(&at.page_floor()).map(|&first| Leaf { first, pages_log2: 0 })
/// #     }
/// # }
/// # impl PageSource for Pages {
/// #     fn alloc(&self, frames: &mut [u64], _request: PageRequest) -> usize {
/// #         let free = std::iter::from_fn(|| self.free.lock().unwrap().pop());
/// #         frames.iter_mut().zip(free).map(|(frame, page)| *frame = page).count()
/// #     }
/// #     fn alloc_run(&self, _pages_log2: u32, _request: PageRequest) -> Option<u64> {
/// #         None
/// #     }
/// #     fn free(&self, run: Run) {
/// #         self.free.lock().unwrap().extend(run.first..run.first + run.pages);
/// #     }
/// #     fn clear(&self, _page: u64, _from: u64, _to: u64) {}
/// # }
/// type Machine = HeapMachine<parking_lot::RawMutex>; // feature `alloc`, for tests: a kernel has its own
/// static MACHINE: Machine = Machine::new(2);
/// static MAP: EarlyMap<&Machine, Pages> = EarlyMap::new();
///
/// assert!(MAP.get().is_err());
/// let pages = Pages { mapped: Mutex::default(), free: Mutex::new((0..100).collect()) };
/// let window = VaRange::from_pages(0x1000, 0x9000).unwrap();
/// let boot = [VaRange::from_pages(0x1000, 0x1004).unwrap()];
/// MAP.init(window, &MACHINE, pages, &boot)?;
/// assert_eq!(MAP.get()?.vmalloc(0, &AreaRequest::new(1)).unwrap().page_floor(), 0x1004);
/// # Ok::<(), va_block::BlockError>(())
/// ```
pub struct EarlyMap<P: Machine + Clone + 'static, T: 'static, C: Config + 'static = Standard> {
    map: OnceRef<'static, MapSpace<P, T, C>>,
    place: Mutex<P::Lock, Place<MapSpace<P, T, C>>>,
}

impl<P: Machine + Clone, T, C: Config> core::fmt::Debug for EarlyMap<P, T, C> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("EarlyMap").finish_non_exhaustive()
    }
}

impl<P: Machine + Clone + 'static, T: PageTable + 'static, C: Config + 'static> EarlyMap<P, T, C> {
    va_base::const_fn! {
        /// Creates storage without a map.
        pub fn new() -> Self {
            Self { map: OnceRef::new(), place: Mutex::new(Place::Empty) }
        }
    }

    /// Creates a map here, for good, over the whole pages of `extent`, of which `busy` is allocated already; see
    /// [`MapSpace::init`].
    ///
    /// # Errors
    /// [`SpaceError::AlreadyReady`] if there is a map, or another thread creates it. Else the errors of
    /// [`MapSpace::init`], after which another call may succeed.
    /// # Locks
    /// The lock of the storage, by `try_lock`. Stack: less than 4 KiB in release builds.
    pub fn init(
        &'static self,
        extent: VaRange,
        machine: P,
        table: T,
        busy: &[VaRange],
    ) -> Result<&'static MapSpace<P, T, C>, BlockError> {
        let there = SpaceError::AlreadyReady;
        let mut place = self.place.try_lock().ok_or(there)?;
        if self.map.get().is_some() {
            return Err(there.into());
        }
        // A constant; machine, space and tables are added in place.
        *place = va_base::constant!(Place::Full(MapSpace::empty()));
        let map = place.get_mut().ok_or(SpaceError::NotReady)?;
        if let Err(error) = map.init(extent, machine, table, busy) {
            *place = Place::Empty;
            return Err(error);
        }
        let map: &'static _ = MutexGuard::leak(place).get().ok_or(SpaceError::NotReady)?;
        self.map.set(map).map_err(|()| there)?;
        Ok(map)
    }

    /// Returns the map.
    ///
    /// # Errors
    /// [`SpaceError::NotReady`] before [`init`](Self::init). Cost: one load.
    #[inline]
    pub fn get(&self) -> Result<&'static MapSpace<P, T, C>, BlockError> {
        Ok(self.map.get().ok_or(SpaceError::NotReady)?)
    }
}

impl<P: Machine + Clone + 'static, T: PageTable + 'static, C: Config + 'static> Default
    for EarlyMap<P, T, C>
{
    fn default() -> Self {
        Self::new()
    }
}
