//! A lock that spins: what a kernel has, less the interrupts that it would turn off.

use core::hint::spin_loop;
use core::sync::atomic::{AtomicBool, Ordering};
use va_base::sync::RawMutex;

/// Set while it is held.
pub(crate) struct Spin(AtomicBool);

// SAFETY: of all who exchange `false` for `true` one succeeds, and the next does after the store in `unlock`: it sees what
// the holder wrote, since acquire pairs with release.
unsafe impl RawMutex for Spin {
    const INIT: Self = Self(AtomicBool::new(false));
    type GuardMarker = va_base::sync::GuardNoSend;

    fn lock(&self) {
        while !self.try_lock() {
            spin_loop();
        }
    }

    fn try_lock(&self) -> bool {
        self.0.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    unsafe fn unlock(&self) {
        self.0.store(false, Ordering::Release);
    }
}
