//! Storage for blocks in a static: a call before they are created gets a typed error.
//!
//! A kernel declares its blocks in a static long before its memory is known. [`EarlyBlocks::new`] is a constant without
//! blocks, all zeros. [`EarlyBlocks::init`] creates them there, over a space of their own, as
//! [`EarlySpace`](va_space::EarlySpace) does for a space.
//!
//! # Locking
//! One atomic reference, set once. The lock of the storage is taken by the first `init` that succeeds and is never
//! released.

use crate::blocks::Blocks;
use crate::config::{Config, Standard};
use crate::error::BlockError;
use va_base::sync::{Mutex, MutexGuard, OnceRef};
use va_base::{Machine, Place, VaRange};
use va_space::SpaceError;

/// Storage for blocks, for a static.
///
/// ```
/// use va_base::{HeapMachine, VaRange};
/// use va_block::{EarlyBlocks, config};
///
/// type Machine = HeapMachine<parking_lot::RawMutex>; // feature `alloc`, for tests: a kernel has its own
/// static MACHINE: Machine = Machine::new(2);
/// static BLOCKS: EarlyBlocks<&Machine> = EarlyBlocks::new();
///
/// assert!(BLOCKS.get().is_err());
/// let window = VaRange::from_pages(0x1000, 0x9000).unwrap();
/// let boot = [VaRange::from_pages(0x1000, 0x1004).unwrap()];
/// BLOCKS.init(window, &MACHINE, &boot)?;
/// assert!(BLOCKS.init(window, &MACHINE, &boot).is_err());
/// assert!(BLOCKS.get()?.alloc(0, 3)?.page_floor() > 0x1004);
/// # Ok::<(), va_block::BlockError>(())
/// ```
pub struct EarlyBlocks<P: Machine + Clone + 'static, C: Config = Standard> {
    blocks: OnceRef<'static, Blocks<P, C>>,
    place: Mutex<P::Lock, Place<Blocks<P, C>>>,
}

impl<P: Machine + Clone, C: Config> core::fmt::Debug for EarlyBlocks<P, C> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("EarlyBlocks").finish_non_exhaustive()
    }
}

impl<P: Machine + Clone + 'static, C: Config> EarlyBlocks<P, C> {
    va_base::const_fn! {
        /// Creates storage without blocks.
        pub fn new() -> Self {
            Self { blocks: OnceRef::new(), place: Mutex::new(Place::Empty) }
        }
    }

    /// Creates blocks here, for good, in a space over the whole pages of `extent`, of which `busy` is allocated
    /// already; see [`Blocks::init`].
    ///
    /// # Errors
    /// [`SpaceError::AlreadyReady`] if there are blocks, or another thread creates them. Else the errors of
    /// [`Blocks::init`], after which another call may succeed.
    /// # Locks
    /// The lock of the storage, by `try_lock`. Stack: less than 4 KiB in release builds.
    pub fn init(
        &'static self,
        extent: VaRange,
        machine: P,
        busy: &[VaRange],
    ) -> Result<&'static Blocks<P, C>, BlockError> {
        let there = SpaceError::AlreadyReady;
        let mut place = self.place.try_lock().ok_or(there)?;
        if self.blocks.get().is_some() {
            return Err(there.into());
        }
        // A constant; machine, space and tables are added in place.
        *place = va_base::constant!(Place::Full(Blocks::empty()));
        let blocks = place.get_mut().ok_or(SpaceError::NotReady)?;
        if let Err(error) = blocks.init(extent, machine, busy) {
            *place = Place::Empty;
            return Err(error);
        }
        let blocks: &'static _ = MutexGuard::leak(place).get().ok_or(SpaceError::NotReady)?;
        self.blocks.set(blocks).map_err(|()| there)?;
        Ok(blocks)
    }

    /// Returns the blocks.
    ///
    /// # Errors
    /// [`SpaceError::NotReady`] before [`init`](Self::init). Cost: one load.
    #[inline]
    pub fn get(&self) -> Result<&'static Blocks<P, C>, BlockError> {
        Ok(self.blocks.get().ok_or(SpaceError::NotReady)?)
    }
}

impl<P: Machine + Clone + 'static, C: Config> Default for EarlyBlocks<P, C> {
    fn default() -> Self {
        Self::new()
    }
}
