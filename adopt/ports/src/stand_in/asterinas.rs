//! The lock of Asterinas, `ostd/src/sync/spin.rs`.

use core::fmt;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};

/// The guardian of a lock that disables preemption while it is held.
#[derive(Debug)]
pub struct PreemptDisabled;

/// A lock that spins.
pub struct SpinLock<T>(lock_api::Mutex<super::lock::Spin, T>);

impl<T> SpinLock<T> {
    /// Wraps a value.
    pub const fn new(value: T) -> Self {
        Self(lock_api::Mutex::new(value))
    }

    /// Locks it.
    pub fn lock(&self) -> SpinLockGuard<'_, T, PreemptDisabled> {
        SpinLockGuard(self.0.lock(), PhantomData)
    }
}

impl<T> fmt::Debug for SpinLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SpinLock").finish_non_exhaustive()
    }
}

/// The value of a lock that is held.
#[derive(Debug)]
pub struct SpinLockGuard<'a, T, G>(lock_api::MutexGuard<'a, super::lock::Spin, T>, PhantomData<G>);

impl<T, G> Deref for SpinLockGuard<'_, T, G> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T, G> DerefMut for SpinLockGuard<'_, T, G> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}
