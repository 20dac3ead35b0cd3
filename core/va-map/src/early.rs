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
use va_block::{BlockError, Config};
use va_space::SpaceError;

/// Storage for a map, for a static.
///
/// ```
/// use va_base::VaRange;
/// use va_map::{AreaRequest, EarlyMap};
/// use va_sim::{machine::SimMachine, pages::SimPages};
///
/// static MAP: EarlyMap<&SimMachine, va_block::config::Standard, &SimPages<'static>> = EarlyMap::new();
///
/// assert!(MAP.get().is_err());
/// let machine: &'static SimMachine = Box::leak(Box::new(SimMachine::new(2)));
/// let pages = Box::leak(Box::new(SimPages::new(machine, 100)));
/// let window = VaRange::from_pages(0x1000, 0x9000).unwrap();
/// let boot = [VaRange::from_pages(0x1000, 0x1004).unwrap()];
/// MAP.init(window, machine, pages, &boot)?;
/// assert_eq!(MAP.get()?.vmalloc(0, &AreaRequest::new(1)).unwrap().page_floor(), 0x1004);
/// # Ok::<(), va_block::BlockError>(())
/// ```
pub struct EarlyMap<P: Machine + Clone + 'static, C: Config + 'static, T: 'static> {
    map: OnceRef<'static, MapSpace<P, C, T>>,
    place: Mutex<P::Lock, Place<MapSpace<P, C, T>>>,
}

impl<P: Machine + Clone, C: Config, T> core::fmt::Debug for EarlyMap<P, C, T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("EarlyMap").finish_non_exhaustive()
    }
}

impl<P: Machine + Clone + 'static, C: Config + 'static, T: PageTable + 'static> EarlyMap<P, C, T> {
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
    ) -> Result<&'static MapSpace<P, C, T>, BlockError> {
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
    pub fn get(&self) -> Result<&'static MapSpace<P, C, T>, BlockError> {
        Ok(self.map.get().ok_or(SpaceError::NotReady)?)
    }
}

impl<P: Machine + Clone + 'static, C: Config + 'static, T: PageTable + 'static> Default
    for EarlyMap<P, C, T>
{
    fn default() -> Self {
        Self::new()
    }
}
