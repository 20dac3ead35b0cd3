//! Storage for per-CPU memory in a static: a call before it is created gets a typed error.
//!
//! A kernel declares its per-CPU memory in a static long before the size of its units is known. [`EarlyPercpu::new`] is
//! a constant without a space, all zeros; [`EarlyPercpu::init`] creates one there.
//!
//! # Locking
//! One atomic reference, set once. The lock of the storage is taken by the first `init` that succeeds and never
//! released.

use crate::backend::Backend;
use crate::config::{Config, Standard};
use crate::error::NewError;
use crate::geometry::Geometry;
use crate::space::PercpuSpace;
use va_base::sync::{Mutex, MutexGuard, OnceRef};
use va_base::{Machine, Place};

/// Storage for per-CPU memory, for a static.
///
/// ```
/// use va_base::{HeapMachine, Va};
/// use va_percpu::km::{Blocks, KmChunks};
/// use va_percpu::{BackendError, EarlyPercpu, Geometry, NewError, Request, Sizes, config};
///
/// struct NoMore; // no memory at all: addresses are numbers here
/// impl Blocks for NoMore {
///     fn alloc(&self, _bytes: u64) -> Result<Va, BackendError> {
///         Err(BackendError)
///     }
///     fn free(&self, _at: Va, _bytes: u64) {}
///     fn zero(&self, _at: Va, _bytes: u64) {}
/// }
///
/// type Machine = HeapMachine<parking_lot::RawMutex>; // feature `alloc`, for tests: a kernel has its own
/// static MACHINE: Machine = Machine::new(4);
/// static SPACE: EarlyPercpu<&Machine, KmChunks<NoMore>> = EarlyPercpu::new();
///
/// assert!(SPACE.get().is_err());
/// let sizes = Sizes { unit: 65_536, fixed: 0, reserved: 0, dynamic: 20_480, atom: 4096, alloc: 262_144, units: 4 };
/// let geometry = Geometry::new(sizes, Va::new(1 << 36)).unwrap();
/// SPACE.init(geometry, &MACHINE, KmChunks(NoMore))?;
/// assert_eq!(SPACE.init(geometry, &MACHINE, KmChunks(NoMore)).err(), Some(NewError::AlreadyReady));
/// assert!(SPACE.get()?.alloc(&Request::new(8, 8)).is_ok());
/// # Ok::<(), NewError>(())
/// ```
pub struct EarlyPercpu<P: Machine + 'static, B: Backend + 'static, C: Config = Standard> {
    space: OnceRef<'static, PercpuSpace<P, B, C>>,
    place: Mutex<P::Lock, Place<PercpuSpace<P, B, C>>>,
}

impl<P: Machine, B: Backend, C: Config> core::fmt::Debug for EarlyPercpu<P, B, C> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("EarlyPercpu").finish_non_exhaustive()
    }
}

impl<P: Machine + 'static, B: Backend + 'static, C: Config> EarlyPercpu<P, B, C> {
    va_base::const_fn! {
        /// Creates storage without a space.
        pub fn new() -> Self {
            Self { space: OnceRef::new(), place: Mutex::new(Place::Empty) }
        }
    }

    /// Creates a space here, for good; see [`PercpuSpace::new`].
    ///
    /// # Errors
    /// [`NewError::AlreadyReady`] if there is a space, or another thread creates it. [`NewError::Placement`] and
    /// [`NewError::NoMeta`] as for [`PercpuSpace::new`], after which another call may succeed.
    /// # Locks
    /// The lock of the storage, by `try_lock`; the platform is called under it. Stack: less than 4 KiB in release builds.
    pub fn init(
        &'static self,
        geometry: Geometry,
        machine: P,
        backend: B,
    ) -> Result<&'static PercpuSpace<P, B, C>, NewError> {
        let mut place = self.place.try_lock().ok_or(NewError::AlreadyReady)?;
        if self.space.get().is_some() {
            return Err(NewError::AlreadyReady);
        }
        if let Err(error) = place.put(PercpuSpace::unbegun(geometry, machine, backend)).begin() {
            *place = Place::Empty;
            return Err(error);
        }
        let space: &'static _ = MutexGuard::leak(place).get().ok_or(NewError::NotReady)?;
        self.space.set(space).map_err(|()| NewError::AlreadyReady)?;
        Ok(space)
    }

    /// Returns the space.
    ///
    /// # Errors
    /// [`NewError::NotReady`] before [`init`](Self::init). Cost: one load.
    #[inline]
    pub fn get(&self) -> Result<&'static PercpuSpace<P, B, C>, NewError> {
        self.space.get().ok_or(NewError::NotReady)
    }
}

impl<P: Machine + 'static, B: Backend + 'static, C: Config> Default for EarlyPercpu<P, B, C> {
    fn default() -> Self {
        Self::new()
    }
}
