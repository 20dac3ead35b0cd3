//! The links of a block in its lists ([`Ring`](crate::ring::Ring)).

use va_base::sync::atomic::{AtomicU32, Ordering};

/// The links of a block in one kind of list. Written under the lock that guards the list. Protocol PR-LOCK.
pub(crate) struct Link {
    pub(crate) next: AtomicU32,
    pub(crate) prev: AtomicU32,
}

impl Link {
    va_base::const_fn! {
        pub(crate) fn new() -> Self {
            Self { next: AtomicU32::new(0), prev: AtomicU32::new(0) }
        }
    }

    pub(crate) fn next(&self) -> u32 {
        self.next.load(Ordering::Relaxed)
    }

    pub(crate) fn prev(&self) -> u32 {
        self.prev.load(Ordering::Relaxed)
    }
}
