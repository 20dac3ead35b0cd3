//! A front slot of a magazine: one item, or none, in a word that changes by one atomic operation.

use super::Item;
use va_base::sync::atomic::{AtomicU64, Ordering};

/// The slot: an item, or 0. The thread that removes an item owns its area. Protocol PR-FRONT.
pub(crate) struct Front(AtomicU64);

impl Front {
    #[cfg(all(test, loom))]
    pub(crate) fn empty() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Returns the item, or 0. Another thread may remove it at any moment.
    #[inline(always)]
    pub(crate) fn get(&self) -> Item {
        self.0.load(Ordering::Relaxed)
    }

    /// Removes an item that was found in the slot. Returns `false` if it is not there any more.
    #[inline(always)]
    pub(crate) fn take(&self, found: Item) -> bool {
        // Acquire pairs with the release of `put`: the accesses of the previous owner happen before. The same item may
        // have been removed and put again since the load, which is harmless (no ABA problem): the slot contains it now.
        self.0.compare_exchange(found, 0, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Puts an item, if the slot is empty. Returns `false` if it is not.
    #[inline(always)]
    pub(crate) fn put(&self, item: Item) -> bool {
        // Release pairs with `take` and `take_any`.
        self.0.compare_exchange(0, item, Ordering::Release, Ordering::Relaxed).is_ok()
    }

    /// Removes the item that is there. Returns 0 if there is none.
    #[inline(always)]
    pub(crate) fn take_any(&self) -> Item {
        self.0.swap(0, Ordering::Acquire)
    }
}
