//! A space before there is one: whoever comes too early gets a typed error, not a crash.
//!
//! A kernel names its space in a static long before it knows its memory. Areas that exist by then are imported when the
//! space is made ([`VmapSpace::with_busy`]); until [`EarlySpace::ready`] says that it is, every use is refused.
//!
//! # Locking
//! None: one atomic reference, set once.
//! # Source
//! Linux `mm/vmalloc.c` (6.12: `vmap_initialized`, `vm_area_add_early`, `vmalloc_init`).

use crate::config::Config;
use crate::error::SpaceError;
use crate::space::VmapSpace;
use va_base::Machine;
use va_base::sync::OnceRef;

/// A place for a space, for a static.
///
/// ```
/// use va_base::{Request, VaRange};
/// use va_sim::machine::SimMachine;
/// use va_space::{EarlySpace, SpaceError, VmapSpace, config};
///
/// static SPACE: EarlySpace<&'static SimMachine, config::Default> = EarlySpace::new();
///
/// assert_eq!(SPACE.get().err(), Some(SpaceError::NotReady));
/// let machine: &'static SimMachine = Box::leak(Box::new(SimMachine::new(2)));
/// let window = VaRange::from_pages(0x1000, 0x9000).unwrap();
/// let boot = [VaRange::from_pages(0x1000, 0x1004).unwrap()];
/// let space = VmapSpace::with_busy(window, window, machine, &boot)?;
/// SPACE.ready(Box::leak(Box::new(space)))?;
/// assert_eq!(SPACE.get()?.alloc(0, &Request::pages(1).unwrap())?.start().page_floor(), 0x1004);
/// # Ok::<(), SpaceError>(())
/// ```
pub struct EarlySpace<P: Machine + Clone + 'static, C: Config> {
    space: OnceRef<'static, VmapSpace<P, C>>,
}

impl<P: Machine + Clone + 'static, C: Config> EarlySpace<P, C> {
    /// A place without a space.
    pub const fn new() -> Self {
        Self { space: OnceRef::new() }
    }

    /// Puts the space there, for good.
    ///
    /// # Errors
    /// [`SpaceError::AlreadyReady`] if one is there; it stays.
    pub fn ready(&self, space: &'static VmapSpace<P, C>) -> Result<(), SpaceError> {
        self.space.set(space).map_err(|()| SpaceError::AlreadyReady)
    }

    /// The space.
    ///
    /// # Errors
    /// [`SpaceError::NotReady`] before [`ready`](Self::ready). Cost: one load.
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
    fn a_space_is_refused_before_it_is_ready_and_set_once() {
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
}
