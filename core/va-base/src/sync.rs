//! The atomics and locks of the core: the machine's, or loom's under `--cfg loom`.
//!
//! Every crate of the core imports its atomics from here, so that loom can model any protocol without a change of its
//! code. `cargo xtask tidy` rejects `core::sync` elsewhere. The names are the same on both sides. The index of holes
//! takes `&mut self` and needs none of them; they are for the layers that share.
//!
//! [`Mutex`] is lock_api's. The machine supplies the lock as a [`RawMutex`]: one that spins with interrupts off, one
//! that parks, a futex. This crate has no lock of its own. [`OnceRef`] holds a reference that is set once. Loom does
//! not model it, so races to set one are not under loom. [`AtomicRef`] holds a reference that changes.

pub use crate::lock::{Mutex, MutexGuard};
pub use lock_api::{GuardNoSend, RawMutex};
pub use once_cell::race::OnceRef;

#[cfg(loom)]
pub use loom::{hint::spin_loop, sync::atomic};

#[cfg(not(loom))]
pub use core::{hint::spin_loop, sync::atomic};

/// A number that no protocol reads: a statistic. It is no step of a model, so loom does not see it. A counter.
#[cfg(all(any(feature = "alloc", test), target_has_atomic = "64"))]
#[derive(Debug)]
pub(crate) struct Count(core::sync::atomic::AtomicU64);

#[cfg(all(any(feature = "alloc", test), target_has_atomic = "64"))]
impl Count {
    pub(crate) const fn new(count: u64) -> Self {
        Self(core::sync::atomic::AtomicU64::new(count))
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(core::sync::atomic::Ordering::Relaxed)
    }

    pub(crate) fn set(&self, to: u64) {
        self.0.store(to, core::sync::atomic::Ordering::Relaxed);
    }

    /// Adds, and returns the count before.
    pub(crate) fn add(&self, more: u64) -> u64 {
        self.0.fetch_add(more, core::sync::atomic::Ordering::Relaxed)
    }

    pub(crate) fn sub(&self, less: u64) {
        self.0.fetch_sub(less, core::sync::atomic::Ordering::Relaxed);
    }
}

/// A reference to a table, or none: set and read by many threads.
///
/// The table lives as long as the space. So a reader that got the reference a moment before it changed still reads a
/// table, which may be in use for another purpose by then. Protocol PR-REF.
#[cfg(not(loom))]
pub struct AtomicRef<T: 'static>(atomic_ref::AtomicRef<'static, T>);

impl<T> core::fmt::Debug for AtomicRef<T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("AtomicRef").finish_non_exhaustive()
    }
}

#[cfg(not(loom))]
impl<T: Send + Sync> AtomicRef<T> {
    /// No reference; all bytes are zero.
    #[must_use]
    pub const fn new() -> Self {
        Self(atomic_ref::AtomicRef::new(None))
    }

    /// Loads the reference, with acquire order: writes before the store are visible.
    #[inline(always)]
    pub fn load(&self) -> Option<&'static T> {
        self.0.load(atomic::Ordering::Acquire)
    }

    /// Stores a reference or none, with release order.
    #[inline(always)]
    pub fn store(&self, to: Option<&'static T>) {
        self.0.store(to, atomic::Ordering::Release);
    }

    /// Stores a reference if there is none, with release order.
    ///
    /// # Errors
    /// `to`, if there is one already.
    #[inline]
    pub fn set(&self, to: &'static T) -> Result<(), &'static T> {
        let (done, failed) = (atomic::Ordering::Release, atomic::Ordering::Relaxed);
        self.0.compare_exchange(None, Some(to), done, failed).map(drop).map_err(|_| to)
    }
}

#[cfg(not(loom))]
impl<T: Send + Sync> Default for AtomicRef<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(loom)]
pub use modelled::AtomicRef;

/// The same for loom: it models a number, and the number stands for a reference.
#[cfg(loom)]
mod modelled {
    extern crate std;
    use super::atomic::{AtomicUsize, Ordering};
    use core::any::{Any, TypeId};
    use core::marker::PhantomData;
    use std::collections::BTreeMap;
    use std::sync::{Mutex, PoisonError};

    /// Every reference that was ever stored, by address and type. Not a lock of the model: no operation of the model
    /// happens under it.
    static STORED: Mutex<BTreeMap<(usize, TypeId), &'static (dyn Any + Send + Sync)>> =
        Mutex::new(BTreeMap::new());

    /// A reference to a table, or none: set and read by many threads. Protocol PR-REF.
    pub struct AtomicRef<T: 'static>(AtomicUsize, PhantomData<&'static T>);

    impl<T: Send + Sync> AtomicRef<T> {
        /// No reference.
        pub fn new() -> Self {
            Self(AtomicUsize::new(0), PhantomData)
        }

        /// Loads the reference, with acquire order: writes before the store are visible.
        pub fn load(&self) -> Option<&'static T> {
            let key = (self.0.load(Ordering::Acquire), TypeId::of::<T>());
            STORED.lock().unwrap_or_else(PoisonError::into_inner).get(&key)?.downcast_ref()
        }

        /// Returns the number that stands for a reference from now on.
        fn number(to: &'static T) -> usize {
            let address = core::ptr::from_ref(to).addr();
            let mut stored = STORED.lock().unwrap_or_else(PoisonError::into_inner);
            stored.insert((address, TypeId::of::<T>()), to);
            address
        }

        /// Stores a reference or none, with release order.
        pub fn store(&self, to: Option<&'static T>) {
            self.0.store(to.map_or(0, Self::number), Ordering::Release);
        }

        /// Stores a reference if there is none, with release order.
        pub fn set(&self, to: &'static T) -> Result<(), &'static T> {
            let done = self.0.compare_exchange(0, Self::number(to), Ordering::Release, Ordering::Relaxed);
            done.map(drop).map_err(|_| to)
        }
    }

    impl<T: Send + Sync> Default for AtomicRef<T> {
        fn default() -> Self {
            Self::new()
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::AtomicRef;
    use super::atomic::{AtomicU64, Ordering};

    #[test]
    fn a_reference_is_replaced_and_taken_out() {
        static TABLES: [u8; 2] = [1, 2];
        let cell = AtomicRef::new();
        assert_eq!(cell.load(), None);
        for table in &TABLES {
            cell.store(Some(table));
            assert_eq!(cell.load(), Some(table));
        }
        assert_eq!(cell.set(&TABLES[0]), Err(&TABLES[0]));
        cell.store(None);
        assert_eq!(cell.load(), None);
        assert_eq!((cell.set(&TABLES[0]), cell.load()), (Ok(()), Some(&TABLES[0])));
    }

    #[test]
    fn the_facade_is_the_machines_own_atomics() {
        let count = AtomicU64::new(1);
        assert_eq!(count.fetch_add(2, Ordering::Relaxed), 1);
        assert_eq!(count.into_inner(), 3);
    }
}
