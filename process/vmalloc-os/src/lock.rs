//! A lock that parks waiting threads: one word, and a futex call if it is contended.
//!
//! # Theory
//! ```text
//!   0 free  --lock-->  holder's name, 0  --a thread waits-->  holder's name, 1: the unlock wakes one waiter
//! ```
//! Locks of other crates record their waiters in memory of the global allocator, which may be this very allocator. A
//! waiter spins a few rounds first: critical sections are short, except around a system call.
//!
//! **Forks.** The word of a lock names its holder, because a signal handler may fork while the interrupted thread holds
//! locks. Such locks stay held, in the parent and in the child, where the same thread continues with them. A thread
//! that holds a lock waits for another only briefly ([`Fork::hold`]): the holder of the other may wait for the first.
//! # Source
//! U. Drepper, "Futexes Are Tricky", mutex 3.

use crate::os::{Word, thread_name};
use core::sync::atomic::{AtomicU32, Ordering};
use lock_api::{GuardSend, RawMutex};

const FREE: u32 = 0;
/// The bit beside the holder's name that records that a thread waits.
const AWAITED: u32 = 1;
/// A model tries the waits alone.
const SPINS: u32 = if cfg!(loom) { 0 } else { 40 };

/// A parking lock. An unlocked one is all zeros.
#[derive(Debug)]
pub struct Futex {
    /// [`FREE`], or the name of the holder and [`AWAITED`]. Protocol PR-FUTEX.
    word: AtomicU32,
    /// Set if the current fork did not take this lock. The forking thread writes it, under the lock of the list of
    /// allocators. Protocol PR-FORK.
    left: AtomicU32,
}

/// Returns the name of the calling thread: not [`FREE`], and without [`AWAITED`]. It has bits of libc's thread pointer,
/// unique among threads within 128 GiB. If two threads farther apart have the same name, a fork in one does not wait
/// for a lock of the other.
#[inline(always)]
fn me() -> u32 {
    ((thread_name() >> 5) as u32 & !AWAITED).max(2)
}

/// The number of times that a fork waits for a lock whose holder may be waiting for it, and the time of each.
const PATIENCE: u32 = 100;
const PATIENCE_NANOS: u64 = 1_000_000;
/// The time after which a waiting thread looks again by itself.
const LOST_WAKE_NANOS: u64 = 100_000_000;

/// A value protected by a [`Futex`].
pub type Mutex<T> = lock_api::Mutex<Futex, T>;

/// The operations of a fork on a lock.
pub trait Fork {
    /// Returns true if the calling thread holds the lock, which means that the caller is a signal handler.
    fn is_mine(&self) -> bool;

    /// Returns true if [`hold`](Self::hold) did not take the lock.
    fn is_left(&self) -> bool;

    /// Releases the lock in a child if another thread held it, which the child does not have. What it protects must be
    /// valid at any moment.
    fn free_in_child(&self);

    /// Takes the lock for a fork, unless this thread holds it. If the thread was `interrupted` with another lock held,
    /// it stops trying after a while.
    fn hold(&self, interrupted: bool);

    /// Releases the lock if [`hold`](Self::hold) took it, in the parent or in the child.
    ///
    /// # Safety
    /// The caller, or in a child the thread it was forked from, called [`hold`](Self::hold).
    unsafe fn release(&self);
}

impl<T> Fork for Mutex<T> {
    fn is_mine(&self) -> bool {
        // SAFETY: this does not unlock it.
        unsafe { self.raw() }.is_mine()
    }

    fn is_left(&self) -> bool {
        // SAFETY: this does not unlock it.
        unsafe { self.raw() }.left.load(Ordering::Relaxed) != 0
    }

    fn free_in_child(&self) {
        // SAFETY: a child calls this, in which no other thread has the lock or waits for it.
        let raw = unsafe { self.raw() };
        if !raw.is_mine() {
            raw.left.store(0, Ordering::Relaxed);
            raw.word.store(FREE, Ordering::Relaxed);
        }
    }

    fn hold(&self, interrupted: bool) {
        // SAFETY: `release` unlocks it if this locks it.
        unsafe { self.raw() }.hold(interrupted);
    }

    unsafe fn release(&self) {
        // SAFETY: as in `hold`.
        let raw = unsafe { self.raw() };
        // SAFETY: this function's contract.
        unsafe { raw.let_go() };
    }
}

/// Returns true if a thread waits for the lock, in the kernel.
#[cfg(any(test, feature = "testing"))]
pub fn is_awaited<T>(lock: &Mutex<T>) -> bool {
    // SAFETY: this does not unlock it.
    unsafe { lock.raw() }.word.load(Ordering::Relaxed) & AWAITED != 0
}

impl Futex {
    fn is_mine(&self) -> bool {
        self.word.load(Ordering::Relaxed) & !AWAITED == me()
    }

    /// [`Fork::hold`], once for locks of all types.
    #[cold]
    #[inline(never)]
    fn hold(&self, interrupted: bool) {
        if self.is_mine() || interrupted && !self.lock_for_a_while() {
            self.left.store(1, Ordering::Relaxed);
        } else if !interrupted {
            self.lock();
        }
    }

    /// [`Fork::release`], once for locks of all types.
    ///
    /// # Safety
    /// As of that function.
    #[cold]
    #[inline(never)]
    unsafe fn let_go(&self) {
        if self.left.swap(0, Ordering::Relaxed) == 0 {
            // SAFETY: taken by `hold`, by this function's contract.
            unsafe { self.unlock() };
        }
    }

    #[cold]
    fn lock_for_a_while(&self) -> bool {
        (0..PATIENCE).any(|_| {
            let taken = self.try_lock();
            let seen = self.word.load(Ordering::Relaxed);
            if !taken && seen != FREE {
                self.word.wait(seen, PATIENCE_NANOS);
            }
            taken
        })
    }
}

/// Takes a free lock for the thread of a name.
#[inline(always)]
pub(crate) fn try_lock(word: &impl Word, me: u32) -> bool {
    // Acquire pairs with the release of `unlock`.
    word.replace(FREE, me, Ordering::Acquire)
}

/// Takes a lock that was not free.
#[cold]
pub(crate) fn lock_slowly(word: &impl Word, me: u32) {
    for _ in 0..SPINS {
        core::hint::spin_loop();
        if word.load(Ordering::Relaxed) == FREE && try_lock(word, me) {
            return;
        }
    }
    loop {
        let seen = word.load(Ordering::Relaxed);
        // A thread that takes the lock after a wait sets AWAITED, since other threads may still wait.
        let want = if seen == FREE { me | AWAITED } else { seen | AWAITED };
        // Acquire pairs with the release of `unlock`.
        if seen != want && !word.replace(seen, want, Ordering::Acquire) {
            continue;
        }
        if seen == FREE {
            return;
        }
        // A handler of a signal may interrupt `unlock` between its two steps, and fork. The fork waits for all locks.
        word.wait(want, LOST_WAKE_NANOS);
    }
}

/// Frees a lock, and wakes a thread that waits for it.
#[inline(always)]
pub(crate) fn unlock(word: &impl Word) {
    if word.swap(FREE, Ordering::Release) & AWAITED != 0 {
        word.wake();
    }
}

// SAFETY: one of the threads that find `FREE` changes it, and only the holder changes it back.
unsafe impl RawMutex for Futex {
    const INIT: Self = Self { word: AtomicU32::new(FREE), left: AtomicU32::new(0) };
    type GuardMarker = GuardSend;

    #[inline(always)]
    fn lock(&self) {
        let me = me();
        if !try_lock(&self.word, me) {
            lock_slowly(&self.word, me);
        }
    }

    #[inline(always)]
    fn try_lock(&self) -> bool {
        try_lock(&self.word, me())
    }

    #[inline(always)]
    unsafe fn unlock(&self) {
        unlock(&self.word);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_threads_count_without_a_loss() {
        let count = Mutex::new(0u64);
        let (threads, rounds) = if cfg!(miri) { (3, 70) } else { (8, 2000) };
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    for round in 0..rounds {
                        let mut held = count.lock();
                        let before = *held;
                        if round % 64 == 0 {
                            // Holds the lock long enough for other threads to park.
                            std::thread::yield_now();
                        }
                        *held = before + 1;
                    }
                });
            }
        });
        assert_eq!(count.into_inner(), threads * rounds);
        let lock = Futex::INIT;
        assert!(lock.try_lock() && !lock.try_lock());
    }
}
