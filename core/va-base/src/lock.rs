//! The lock of the workspace: lock_api's over the machine's raw lock, loom's under `--cfg loom`.
//!
//! Both have the same names and the same signatures, so loom models a structure over `Mutex<R, T>` without a change.
//! Under loom `R` only names the class of the lock.

#[cfg(not(loom))]
pub use lock_api::{Mutex, MutexGuard};

#[cfg(loom)]
pub use model::{Mutex, MutexGuard};

#[cfg(loom)]
mod model {
    use core::marker::PhantomData;
    use core::ops::{Deref, DerefMut};
    use std::sync::PoisonError;

    /// Loom's mutex with lock_api's interface.
    pub struct Mutex<R, T> {
        inner: loom::sync::Mutex<T>,
        raw: PhantomData<fn() -> R>,
    }

    impl<R, T> Mutex<R, T> {
        /// Wraps a value.
        pub fn new(value: T) -> Self {
            Self { inner: loom::sync::Mutex::new(value), raw: PhantomData }
        }

        /// Waits for the lock.
        pub fn lock(&self) -> MutexGuard<'_, R, T> {
            let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
            MutexGuard { inner, raw: PhantomData }
        }

        /// Takes the lock if it is free.
        pub fn try_lock(&self) -> Option<MutexGuard<'_, R, T>> {
            self.inner.try_lock().ok().map(|inner| MutexGuard { inner, raw: PhantomData })
        }

        /// Returns the value, which no other thread has.
        pub fn get_mut(&mut self) -> &mut T {
            self.inner.get_mut().unwrap_or_else(PoisonError::into_inner)
        }
    }

    /// Holds the lock while it lives.
    pub struct MutexGuard<'a, R, T> {
        inner: loom::sync::MutexGuard<'a, T>,
        raw: PhantomData<fn() -> R>,
    }

    impl<'a, R: 'a, T: 'a> MutexGuard<'a, R, T> {
        /// Leaves the lock taken for good, and returns the guarded value.
        pub fn leak(guard: Self) -> &'a mut T {
            // A box that is never freed, as models are: the guard stays alive in it.
            &mut **std::boxed::Box::leak(std::boxed::Box::new(guard))
        }
    }

    impl<R, T> Deref for MutexGuard<'_, R, T> {
        type Target = T;
        fn deref(&self) -> &T {
            &self.inner
        }
    }

    impl<R, T> DerefMut for MutexGuard<'_, R, T> {
        fn deref_mut(&mut self) -> &mut T {
            &mut self.inner
        }
    }
}
