//! A spin lock: one exchange to take it, one store to let it go, as a kernel's is when nobody waits.
//!
//! For figures beside a library whose locks are made so: a lock that parks pays a second exchange.

use super::lock::Watch;
use std::panic::Location;
use std::thread::yield_now;
use va_base::LockClass;
use va_base::sync::atomic::{AtomicBool, Ordering};
use va_base::sync::{GuardNoSend, RawMutex, spin_loop};

/// Looks before others are let run.
const SPINS: u32 = 256;

/// The lock.
#[derive(Debug)]
pub struct SpinLock(AtomicBool);

// SAFETY: whoever takes the lock is the one whose exchange found it free, and it is free again only by the holder's
// store.
unsafe impl RawMutex for SpinLock {
    const INIT: Self = Self(AtomicBool::new(false));
    type GuardMarker = GuardNoSend;

    #[inline(always)]
    fn lock(&self) {
        if !self.try_lock() {
            self.wait();
        }
    }

    #[inline(always)]
    fn try_lock(&self) -> bool {
        // Acquire pairs with the store of `unlock`.
        self.0.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[inline(always)]
    unsafe fn unlock(&self) {
        self.0.store(false, Ordering::Release);
    }
}

impl SpinLock {
    #[cold]
    fn wait(&self) {
        let mut looks = 0;
        while !self.try_lock() {
            while self.0.load(Ordering::Relaxed) {
                looks += 1;
                if looks % SPINS == 0 { yield_now() } else { spin_loop() }
            }
        }
    }
}

impl Watch for SpinLock {
    #[inline(always)]
    fn announce(_: LockClass, _: &'static Location<'static>) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use va_base::sync::Mutex;

    #[test]
    fn threads_exclude_each_other() {
        let count = Mutex::<SpinLock, u64>::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..10_000).for_each(|_| *count.lock() += 1));
            }
        });
        assert_eq!(*count.lock(), 40_000);
    }
}
