//! A lock that parks: one word, a futex where it is contended.
//!
//! # Theory
//! ```text
//!   0 free  --lock-->  name of the holder, 0  --somebody waits-->  name of the holder, 1: whoever unlocks wakes one
//! ```
//! Locks of other crates keep their waiters in memory of the global allocator, which may be this very allocator. A few
//! rounds of spinning come first: sections are short, except under a system call.
//!
//! **Forks.** A lock tells which thread has it, in the word by which it is taken: a handler of a signal may fork while the thread that it interrupted holds some. Those
//! are left as they are, in the parent and in the child, where the same thread goes on with them. A thread that holds one waits for
//! another a while only ([`Fork::hold`]): whoever has that may wait for the first.
//! # Source
//! U. Drepper, "Futexes Are Tricky", mutex 3.

use crate::os::{futex_wait, futex_wait_for, futex_wake, thread_name};
use core::sync::atomic::{AtomicU32, Ordering};
use lock_api::{GuardSend, RawMutex};

const FREE: u32 = 0;
/// Beside the name of the holder.
const AWAITED: u32 = 1;
const SPINS: u32 = 40;

/// The lock. Free, it is all zeros.
pub(crate) struct Futex {
    word: AtomicU32,
    /// A fork that is under way has not taken it: written by who forks, under the lock of the list of allocators.
    left: AtomicU32,
}

/// The calling thread in a word, without [`AWAITED`], and not [`FREE`]: bits of what libc calls it, an address that no other thread within
/// 128 GiB has. Of two farther apart that are alike, one that forks in the moment in which the other holds a lock does not wait for it.
#[inline(always)]
fn me() -> u32 {
    ((thread_name() >> 6) as u32 & u32::MAX >> 1).max(1) << 1
}

/// Waits of a fork for a lock whose holder may be waiting for it, and the time of each.
const PATIENCE: u32 = 100;
const PATIENCE_NANOS: u64 = 1_000_000;

/// A value under it.
pub(crate) type Mutex<T> = lock_api::Mutex<Futex, T>;

/// A lock around a fork.
pub(crate) trait Fork {
    /// Tells whether the calling thread has it: then a handler of a signal is what asks.
    fn is_mine(&self) -> bool;

    /// Tells whether [`hold`](Self::hold) did not take it.
    fn is_left(&self) -> bool;

    /// Takes it for a fork, unless this thread has it; after a while not at all if `interrupted` says that it has another.
    fn hold(&self, interrupted: bool);

    /// Gives it back if [`hold`](Self::hold) took it, in the parent or in the child.
    ///
    /// # Safety
    /// The caller, or in a child the thread it was forked from, called [`hold`](Self::hold).
    unsafe fn release(&self);
}

impl<T> Fork for Mutex<T> {
    fn is_mine(&self) -> bool {
        // SAFETY: it is not given back by this.
        unsafe { self.raw() }.word.load(Ordering::Relaxed) & !AWAITED == me()
    }

    fn is_left(&self) -> bool {
        // SAFETY: it is not given back by this.
        unsafe { self.raw() }.left.load(Ordering::Relaxed) != 0
    }

    fn hold(&self, interrupted: bool) {
        // SAFETY: what is taken here is given back by `release`.
        let raw = unsafe { self.raw() };
        if self.is_mine() || interrupted && !raw.lock_for_a_while() {
            raw.left.store(1, Ordering::Relaxed);
        } else if !interrupted {
            raw.lock();
        }
    }

    unsafe fn release(&self) {
        // SAFETY: as in `hold`.
        let raw = unsafe { self.raw() };
        if raw.left.swap(0, Ordering::Relaxed) == 0 {
            // SAFETY: taken by `hold`, by this function's contract.
            unsafe { raw.unlock() };
        }
    }
}

impl Futex {
    #[cold]
    fn lock_for_a_while(&self) -> bool {
        (0..PATIENCE).any(|_| {
            let taken = self.try_lock();
            let seen = self.word.load(Ordering::Relaxed);
            if !taken && seen != FREE {
                futex_wait_for(&self.word, seen, PATIENCE_NANOS);
            }
            taken
        })
    }

    #[cold]
    fn wait(&self) {
        for _ in 0..SPINS {
            core::hint::spin_loop();
            if self.word.load(Ordering::Relaxed) == FREE && self.try_lock() {
                return;
            }
        }
        loop {
            let seen = self.word.load(Ordering::Relaxed);
            // Who takes it so leaves word that there may be others.
            let want = if seen == FREE { me() | AWAITED } else { seen | AWAITED };
            // Acquire pairs with the release of `unlock`.
            if seen != want
                && self.word.compare_exchange(seen, want, Ordering::Acquire, Ordering::Relaxed).is_err()
            {
                continue;
            }
            if seen == FREE {
                return;
            }
            futex_wait(&self.word, want);
        }
    }
}

// SAFETY: of all who find `FREE` one changes it, and only the holder changes it back.
unsafe impl RawMutex for Futex {
    const INIT: Self = Self { word: AtomicU32::new(FREE), left: AtomicU32::new(0) };
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
        self.word.compare_exchange(FREE, me(), Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[inline(always)]
    unsafe fn unlock(&self) {
        if self.word.swap(FREE, Ordering::Release) & AWAITED != 0 {
            futex_wake(&self.word);
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
