//! A word that threads share and may wait for: the machine's, or one of a model.

use super::{futex_wait_for, futex_wake};
use core::sync::atomic::{AtomicU32, Ordering};

/// The operations of such a word, which are those of an atomic, and of the kernel's futexes.
pub(crate) trait Word {
    fn load(&self, order: Ordering) -> u32;

    fn store(&self, value: u32, order: Ordering);

    fn swap(&self, value: u32, order: Ordering) -> u32;

    fn add(&self, value: u32, order: Ordering) -> u32;

    /// Replaces `from`. Returns true if the word was that.
    fn replace(&self, from: u32, to: u32, success: Ordering) -> bool;

    /// Waits until the word is woken, if it is `seen`; at most that time.
    fn wait(&self, seen: u32, nanos: u64);

    /// Wakes one thread that waits.
    fn wake(&self);
}

impl Word for AtomicU32 {
    #[inline(always)]
    fn load(&self, order: Ordering) -> u32 {
        Self::load(self, order)
    }

    #[inline(always)]
    fn store(&self, value: u32, order: Ordering) {
        Self::store(self, value, order);
    }

    #[inline(always)]
    fn swap(&self, value: u32, order: Ordering) -> u32 {
        Self::swap(self, value, order)
    }

    #[inline(always)]
    fn add(&self, value: u32, order: Ordering) -> u32 {
        Self::fetch_add(self, value, order)
    }

    #[inline(always)]
    fn replace(&self, from: u32, to: u32, success: Ordering) -> bool {
        self.compare_exchange(from, to, success, Ordering::Relaxed).is_ok()
    }

    #[inline(always)]
    fn wait(&self, seen: u32, nanos: u64) {
        futex_wait_for(self, seen, nanos);
    }

    #[inline(always)]
    fn wake(&self) {
        futex_wake(self);
    }
}
