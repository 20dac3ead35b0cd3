//! The end of the memory that was made accessible.
//!
//! A thread makes pages accessible under a lock, and moves the frontier above them. All others read the frontier without
//! a lock, and access what is below.

use core::sync::atomic::{AtomicU64, Ordering};

/// An atomic number: the machine's, or one of a model.
pub(crate) trait Number {
    fn load(&self, order: Ordering) -> u64;

    fn store(&self, value: u64, order: Ordering);
}

impl Number for AtomicU64 {
    #[inline(always)]
    fn load(&self, order: Ordering) -> u64 {
        Self::load(self, order)
    }

    #[inline(always)]
    fn store(&self, value: u64, order: Ordering) {
        Self::store(self, value, order);
    }
}

/// The number of pages that are accessible, from the first. Protocol PR-READY.
pub(crate) struct Frontier<N = AtomicU64>(N);

impl Frontier {
    /// A frontier below all pages.
    pub(crate) const fn none() -> Self {
        Self(AtomicU64::new(0))
    }
}

impl<N: Number> Frontier<N> {
    /// Creates a frontier from its number.
    #[cfg(all(test, loom))]
    pub(crate) fn at(pages: N) -> Self {
        Self(pages)
    }

    /// Returns the number of pages below it, which the caller may access.
    #[inline(always)]
    pub(crate) fn pages(&self) -> u64 {
        // Acquire pairs with the store of `advance`.
        self.0.load(Ordering::Acquire)
    }

    /// Moves it to `to` pages, after `open` has made them accessible. Called under a lock.
    ///
    /// # Errors
    /// That of `open`. The frontier is unchanged.
    pub(crate) fn advance<E>(&self, to: u64, open: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        open()?;
        // Release pairs with the load of `pages`. Checks AR1.
        self.0.store(to, Ordering::Release);
        Ok(())
    }
}
