//! The two locks of a space. Both spin; which one a section needs depends on whether it flushes (see `shootdown`).

use crate::cpus::Cpus;
use core::hint::spin_loop;
use core::marker::PhantomData;
use core::sync::atomic::{AtomicBool, Ordering};
use va_base::sync::{GuardNoSend, RawMutex};

/// `Machine::Lock`: interrupts are disabled while it is held, and are as the caller has them while it is awaited.
/// The field `1` is the holder's: it had interrupts enabled.
pub struct IrqLock<C>(AtomicBool, AtomicBool, PhantomData<fn() -> C>);

// SAFETY: of all callers that exchange `false` for `true` one succeeds, and the next does so after the store in
// `unlock`. Acquire pairs with release, so it sees what the holder wrote.
unsafe impl<C: Cpus> RawMutex for IrqLock<C> {
    // All bytes are zero, so that an empty table is zero, too.
    const INIT: Self = Self(AtomicBool::new(false), AtomicBool::new(false), PhantomData);
    type GuardMarker = GuardNoSend;

    fn lock(&self) {
        while !self.try_lock() {
            while self.0.load(Ordering::Relaxed) {
                spin_loop();
            }
        }
    }

    fn try_lock(&self) -> bool {
        // Before the exchange: an interrupt between the two could wait for this lock for ever.
        let were_enabled = C::disable_interrupts();
        let taken = !self.0.swap(true, Ordering::Acquire);
        if taken {
            self.1.store(were_enabled, Ordering::Relaxed);
        } else if were_enabled {
            C::enable_interrupts();
        }
        taken
    }

    unsafe fn unlock(&self) {
        let were_enabled = self.1.load(Ordering::Relaxed);
        self.0.store(false, Ordering::Release);
        if were_enabled {
            C::enable_interrupts();
        }
    }
}

/// `Machine::PurgeLock`: interrupts stay enabled, since its holder flushes. Where threads can sleep, use one that does.
pub struct WaitLock(AtomicBool);

// SAFETY: as above.
unsafe impl RawMutex for WaitLock {
    const INIT: Self = Self(AtomicBool::new(false));
    type GuardMarker = GuardNoSend;

    fn lock(&self) {
        while !self.try_lock() {
            spin_loop();
        }
    }

    fn try_lock(&self) -> bool {
        !self.0.swap(true, Ordering::Acquire)
    }

    unsafe fn unlock(&self) {
        self.0.store(false, Ordering::Release);
    }
}
