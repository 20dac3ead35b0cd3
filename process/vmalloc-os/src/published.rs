//! A pointer that is published once, to a value that is never dropped after that.

use core::fmt;
use core::marker::PhantomData;
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicPtr, Ordering};

/// An atomic pointer: the machine's, or one of a model.
pub trait Pointer<T> {
    /// Loads it.
    fn load(&self, order: Ordering) -> *mut T;

    /// Replaces null. Returns the present pointer if there is one.
    fn replace_null(&self, new: *mut T, success: Ordering, failure: Ordering) -> Result<(), *mut T>;
}

impl<T> Pointer<T> for AtomicPtr<T> {
    #[inline(always)]
    fn load(&self, order: Ordering) -> *mut T {
        Self::load(self, order)
    }

    #[inline]
    fn replace_null(&self, new: *mut T, success: Ordering, failure: Ordering) -> Result<(), *mut T> {
        self.compare_exchange(null_mut(), new, success, failure).map(|_null| ())
    }
}

/// A pointer to a value that one thread makes, and that all use. Protocol PR-PUBLISH.
pub struct Published<T, P = AtomicPtr<T>>(P, PhantomData<fn() -> *mut T>);

impl<T> Published<T> {
    /// Creates the value without a pointer.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "it is made for statics alone")]
    pub const fn new() -> Self {
        Self(AtomicPtr::new(null_mut()), PhantomData)
    }
}

impl<T, P: Pointer<T>> Published<T, P> {
    /// Creates the value in a place without a pointer.
    #[cfg(all(test, loom))]
    pub(crate) fn at(place: P) -> Self {
        Self(place, PhantomData)
    }

    /// Returns the pointer, once it is published. The value that it points to was written before.
    #[inline(always)]
    pub fn get(&self) -> Option<NonNull<T>> {
        // Acquire pairs with the release of `publish`.
        NonNull::new(self.0.load(Ordering::Acquire))
    }

    /// Publishes a pointer to a value that the caller has written.
    ///
    /// # Errors
    /// Another thread was faster: its pointer. The caller's value is not shared.
    #[inline]
    pub fn publish(&self, made: NonNull<T>) -> Result<(), NonNull<T>> {
        // Release: a thread that gets the pointer sees the value. Acquire: so does the caller that was slower.
        let published = self.0.replace_null(made.as_ptr(), Ordering::Release, Ordering::Acquire);
        published.map_err(|other| NonNull::new(other).unwrap_or(made))
    }
}

impl<T, P> fmt::Debug for Published<T, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Published").finish_non_exhaustive()
    }
}
