//! A spin lock: one exchange to acquire it, one store to release it, as an uncontended spin lock of a kernel.
//!
//! For figures beside a library with such locks: a lock that parks costs a second exchange.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::yield_now;
use va_base::sync::{GuardNoSend, RawMutex};

/// Attempts before the thread yields.
const SPINS: u32 = 256;

/// The lock.
#[derive(Debug)]
pub struct SpinLock(AtomicBool);

// SAFETY: a thread holds the lock only if its exchange found it free, and only the holder's store frees it.
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
