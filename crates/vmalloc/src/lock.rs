//! A lock that parks: one word, a futex where it is contended.
//!
//! # Theory
//! ```text
//!   0 free  --lock-->  1 held  --somebody waits-->  2 held, and whoever unlocks wakes one
//! ```
//! Locks of other crates keep their waiters in memory of the global allocator, which may be this very allocator. A few
//! rounds of spinning come first: sections are short, except under a system call.
//! # Source
//! U. Drepper, "Futexes Are Tricky", mutex 3.

use crate::os::{futex_wait, futex_wake};
use core::sync::atomic::{AtomicU32, Ordering};
use lock_api::{GuardSend, RawMutex};

const FREE: u32 = 0;
const HELD: u32 = 1;
const AWAITED: u32 = 2;
const SPINS: u32 = 40;

/// The lock.
pub(crate) struct Futex(AtomicU32);

/// A value under it.
pub(crate) type Mutex<T> = lock_api::Mutex<Futex, T>;

impl Futex {
    #[cold]
    fn wait(&self) {
        for _ in 0..SPINS {
            core::hint::spin_loop();
            if self.0.load(Ordering::Relaxed) == FREE && self.try_lock() {
                return;
            }
        }
        // Acquire pairs with the release of `unlock`. Who took it so leaves word that there may be others.
        while self.0.swap(AWAITED, Ordering::Acquire) != FREE {
            futex_wait(&self.0, AWAITED);
        }
    }
}

// SAFETY: of all who find `FREE` one changes it, and only the holder changes it back.
unsafe impl RawMutex for Futex {
    const INIT: Self = Self(AtomicU32::new(FREE));
    type GuardMarker = GuardSend;

    #[inline(always)]
    fn lock(&self) {
        if !self.try_lock() {
            self.wait();
        }
    }

    #[inline(always)]
    fn try_lock(&self) -> bool {
        // Acquire pairs with the release of `unlock`.
        self.0.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[inline(always)]
    unsafe fn unlock(&self) {
        if self.0.swap(FREE, Ordering::Release) == AWAITED {
            futex_wake(&self.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_threads_count_without_a_loss() {
        let count = Mutex::new(0u64);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for round in 0..2000 {
                        let mut held = count.lock();
                        let before = *held;
                        if round % 64 == 0 {
                            // Holds it long enough for others to park.
                            std::thread::yield_now();
                        }
                        *held = before + 1;
                    }
                });
            }
        });
        assert_eq!(count.into_inner(), 16_000);
        let lock = Futex::INIT;
        assert!(lock.try_lock() && !lock.try_lock());
    }
}
