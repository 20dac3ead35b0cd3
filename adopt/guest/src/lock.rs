//! A lock that spins, with interrupts disabled or not. Which one a section needs depends on whether it flushes (see
//! `shootdown`).

use crate::cpus::Cpus;
use core::hint::spin_loop;
use core::marker::PhantomData;
use core::sync::atomic::{AtomicBool, Ordering};
use va_base::sync::{GuardNoSend, RawMutex};

/// `Machine::Lock`: interrupts are disabled while it is held, and are as the caller has them while it is awaited.
pub type IrqLock<C> = Spin<C, true>;
/// `Machine::PurgeLock`: interrupts stay enabled, since its holder flushes. Where threads can sleep, use one that does.
pub type WaitLock<C> = Spin<C, false>;

/// Both locks: the first field is set while it is held, and the second if the holder had interrupts enabled.
pub struct Spin<C, const DISABLE: bool>(AtomicBool, AtomicBool, PhantomData<fn() -> C>);

// SAFETY: of all callers that exchange `false` for `true` one succeeds, and the next does so after the store in
// `unlock`. Acquire pairs with release, so it sees what the holder wrote.
unsafe impl<C: Cpus, const DISABLE: bool> RawMutex for Spin<C, DISABLE> {
    // All bytes are zero, so that an empty table is zero, too.
    const INIT: Self = Self(AtomicBool::new(false), AtomicBool::new(false), PhantomData);
    type GuardMarker = GuardNoSend;

    fn lock(&self) {
        while !self.try_lock() {
            spin_loop();
        }
    }
    fn try_lock(&self) -> bool {
        // Before the exchange: an interrupt between the two could wait for this lock for ever.
        let were_enabled = DISABLE && C::disable_interrupts();
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
