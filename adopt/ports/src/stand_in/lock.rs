//! A lock that spins: it stands in for locks that disable interrupts or preemption.

use core::hint::spin_loop;
use core::sync::atomic::{AtomicBool, Ordering};
use lock_api::{GuardSend, RawMutex};

/// The lock without its value.
#[derive(Debug)]
pub struct Spin(AtomicBool);

// SAFETY: of two calls of `try_lock` without `unlock` between them, the second finds the flag set and returns false.
unsafe impl RawMutex for Spin {
    const INIT: Self = Self(AtomicBool::new(false));
    type GuardMarker = GuardSend;

    fn lock(&self) {
        while !self.try_lock() {
            spin_loop();
        }
    }

    fn try_lock(&self) -> bool {
        // Acquire: pairs with the release of `unlock`.
        self.0.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    unsafe fn unlock(&self) {
        // Release: the next `try_lock` sees the writes of this owner.
        self.0.store(false, Ordering::Release);
    }
}
