//! The budgets of all magazines together: each bounds the pages of one kind of items.

use va_base::sync::atomic::{AtomicU64, Ordering};

/// The budgets of all magazines together, for small items and big ones.
pub(crate) struct Big {
    max: u64,
    /// Pages reserved for big items. Protocol PR-BUDGET.
    pages: AtomicU64,
    small_max: u64,
    /// Pages reserved for small items. Protocol PR-BUDGET.
    small: AtomicU64,
}

/// Adds pages to a count, unless the sum would exceed `max`.
#[inline]
fn enter(count: &AtomicU64, max: u64, pages: u64) -> bool {
    // While the budget is used up, CPUs only read the cache line, so that it does not move between them.
    if count.load(Ordering::Relaxed) + pages > max {
        return false;
    }
    let before = count.fetch_add(pages, Ordering::Relaxed);
    if before + pages <= max {
        return true;
    }
    count.fetch_sub(pages, Ordering::Relaxed);
    false
}

impl Big {
    va_base::const_fn! {
        /// Returns budgets without pages.
        pub(crate) fn nothing() -> Self {
            Self { max: 0, pages: AtomicU64::new(0), small_max: 0, small: AtomicU64::new(0) }
        }
    }

    pub(crate) fn new(max: u64, small_max: u64) -> Self {
        Self { max, small_max, ..Self::nothing() }
    }

    #[inline]
    pub(super) fn enter_small(&self, pages: u64) -> bool {
        enter(&self.small, self.small_max, pages)
    }

    /// Returns pages of small items to the budget.
    pub(super) fn leave_small(&self, pages: u64) {
        self.small.fetch_sub(pages, Ordering::Relaxed);
    }

    /// Returns the pages reserved for small items.
    pub(crate) fn small_pages(&self) -> u64 {
        self.small.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn enter(&self, pages: u64) -> bool {
        enter(&self.pages, self.max, pages)
    }

    /// Returns true if that many more pages would fit in the budget now.
    pub(crate) fn has_room(&self, pages: u64) -> bool {
        self.pages.load(Ordering::Relaxed) + pages <= self.max
    }

    /// Returns the pages reserved for big items.
    pub(crate) fn pages(&self) -> u64 {
        self.pages.load(Ordering::Relaxed)
    }

    #[inline]
    pub(super) fn leave(&self, pages: u64) {
        self.pages.fetch_sub(pages, Ordering::Relaxed);
    }
}
