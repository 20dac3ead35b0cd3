//! Storage for a space in a static: a call before the space is created gets a typed error, not a crash.
//!
//! A kernel declares its space in a static long before its memory is known. [`EarlySpace::new`] is a constant without a
//! space. [`EarlySpace::init`] copies an empty one there, also a constant, and sets machine and extent in place. Areas
//! that exist by then are imported as busy. Until then every use is an error.
//!
//! # Locking
//! One atomic reference, set once. The lock of the storage is taken by the first `init` and held while there is a
//! space, so that no other call changes it.
//! # Source
//! Linux `mm/vmalloc.c` (6.12: `vmap_initialized`, `vm_area_add_early`, `vmalloc_init`).

use crate::config::{Config, Standard};
use crate::error::SpaceError;
use crate::space::VmapSpace;
use va_base::sync::{Mutex, MutexGuard, OnceRef};
use va_base::{Machine, Place, VaRange};

/// Storage for a space, for a static.
///
/// ```
/// use va_base::{HeapMachine, Request, VaRange};
/// use va_space::{EarlySpace, SpaceError, config};
///
/// type Machine = HeapMachine<parking_lot::RawMutex>; // feature `alloc`, for tests: a kernel has its own
/// static MACHINE: Machine = Machine::new(2);
/// static SPACE: EarlySpace<&Machine> = EarlySpace::new();
///
/// assert_eq!(SPACE.get().err(), Some(SpaceError::NotReady));
/// let window = VaRange::from_pages(0x1000, 0x9000).unwrap();
/// let boot = [VaRange::from_pages(0x1000, 0x1004).unwrap()];
/// SPACE.init(window, window, &MACHINE, &boot)?;
/// assert_eq!(SPACE.get()?.alloc(0, &Request::pages(1).unwrap())?.start().page_floor(), 0x1004);
/// # Ok::<(), SpaceError>(())
/// ```
pub struct EarlySpace<P: Machine + Clone + 'static, C: Config = Standard> {
    space: OnceRef<'static, VmapSpace<P, C>>,
    place: Mutex<P::Lock, Place<VmapSpace<P, C>>>,
}

impl<P: Machine + Clone, C: Config> core::fmt::Debug for EarlySpace<P, C> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("EarlySpace").finish_non_exhaustive()
    }
}

impl<P: Machine + Clone + 'static, C: Config> EarlySpace<P, C> {
    va_base::const_fn! {
        /// Creates storage without a space.
        pub fn new() -> Self {
            Self { space: OnceRef::new(), place: Mutex::new(Place::Empty) }
        }
    }

    /// Creates a space here, for good, in which `busy` is allocated already; see [`VmapSpace::with_busy`].
    ///
    /// # Errors
    /// [`SpaceError::AlreadyReady`] if there is a space, or another thread creates it. Else the errors of
    /// [`VmapSpace::with_busy`], after which another call may succeed.
    /// # Locks
    /// The lock of the storage, by `try_lock`. Stack: less than 4 KiB in release builds.
    pub fn init(
        &'static self,
        extent: VaRange,
        default_window: VaRange,
        machine: P,
        busy: &[VaRange],
    ) -> Result<&'static VmapSpace<P, C>, SpaceError> {
        let mut place = self.place.try_lock().ok_or(SpaceError::AlreadyReady)?;
        if self.space.get().is_some() {
            return Err(SpaceError::AlreadyReady);
        }
        // A constant; machine, tables and extent are added in place.
        *place = va_base::constant!(Place::Full(VmapSpace::empty()));
        let space = place.get_mut().ok_or(SpaceError::NotReady)?;
        if let Err(error) = space.init_with_busy(extent, default_window, machine, busy) {
            *place = Place::Empty;
            return Err(error);
        }
        let space: &'static _ = MutexGuard::leak(place).get().ok_or(SpaceError::NotReady)?;
        self.ready(space).map(|()| space)
    }

    /// Stores a space here that was created elsewhere, for good.
    ///
    /// # Errors
    /// [`SpaceError::AlreadyReady`] if there is a space.
    pub fn ready(&self, space: &'static VmapSpace<P, C>) -> Result<(), SpaceError> {
        self.space.set(space).map_err(|()| SpaceError::AlreadyReady)
    }

    /// Returns the space.
    ///
    /// # Errors
    /// [`SpaceError::NotReady`] before [`init`](Self::init) or [`ready`](Self::ready). Cost: one load.
    #[inline]
    pub fn get(&self) -> Result<&'static VmapSpace<P, C>, SpaceError> {
        self.space.get().ok_or(SpaceError::NotReady)
    }
}

impl<P: Machine + Clone + 'static, C: Config> Default for EarlySpace<P, C> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::config::Linux69;
    use crate::testing::TestMachine;
    use std::boxed::Box;
    use va_base::{Request, VaRange};

    #[test]
    fn a_space_fails_before_it_is_ready_and_is_set_once() {
        let early = EarlySpace::<&'static TestMachine, Linux69>::default();
        assert_eq!(early.get().err(), Some(SpaceError::NotReady));
        let machine: &'static TestMachine = Box::leak(Box::new(TestMachine::default()));
        let all = VaRange::from_pages(16, 64).unwrap();
        let spaces = [0, 1].map(|_| &*Box::leak(Box::new(VmapSpace::new(all, all, machine).unwrap())));
        assert_eq!(early.ready(spaces[0]), Ok(()));
        assert_eq!(early.ready(spaces[1]), Err(SpaceError::AlreadyReady));
        assert!(core::ptr::eq(early.get().unwrap(), spaces[0]));
        let area = early.get().unwrap().alloc(0, &Request::pages(2).unwrap()).unwrap();
        assert_eq!((area.start().page_floor(), spaces[1].stats().areas), (16, 0));
    }

    #[test]
    fn a_space_is_made_in_its_place_once() {
        static EARLY: EarlySpace<&'static TestMachine, Linux69> = EarlySpace::new();
        let machine: &'static TestMachine = Box::leak(Box::new(TestMachine::default()));
        let all = VaRange::from_pages(16, 64).unwrap();
        let outside = VaRange::from_pages(60, 70).unwrap();
        assert!(matches!(EARLY.init(all, all, machine, &[outside]), Err(SpaceError::Index(_))));
        assert_eq!(EARLY.get().err(), Some(SpaceError::NotReady), "another call may try again");
        let boot = VaRange::from_pages(16, 20).unwrap();
        let space = EARLY.init(all, all, machine, &[boot]).unwrap();
        assert!(core::ptr::eq(EARLY.get().unwrap(), space));
        assert_eq!(EARLY.init(all, all, machine, &[]).err(), Some(SpaceError::AlreadyReady));
        assert_eq!(space.find(boot.start()).map(|seen| seen.range), Some(boot));
    }
}
