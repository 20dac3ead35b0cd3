//! A lock with one owner, which takes it with a store and a load; any other thread executes the barriers for both.
//!
//! # Theory
//! Two flags, as in Dekker's algorithm: the owner sets `active` and then reads `other`; another thread sets `other` and
//! then reads `active`. Each needs a full barrier between its store and its load, which is a locked instruction. But
//! the other thread can run that barrier for both: with `membarrier` every CPU that runs a thread of this process
//! executes one.
//!
//! ```text
//!   owner   active = 1 ; other == 0 ? ------------------> holds it       no locked operation
//!   other   other 0 -> ASKS ; membarrier ; active == 0 ? -> HOLDS        else it fails
//! ```
//! If the owner's load precedes the barrier, the other thread sees the owner's store after it. If the load follows the
//! barrier, the owner sees `ASKS`, clears `active` and waits.
//!
//! On a system that denies `membarrier` the lock stays without `LIGHT`, as it begins: the owner executes a fence of its
//! own. The first owner of the process tests whether the call works. If so, every lock becomes light at its first
//! section, and later sections of the owner have no extra cost. A new lock is all zeros, so a table that contains one
//! needs only zeroed memory, without a copy.
//!
//! # Source
//! D. Dice, H. Huang, M. Yang, "Asymmetric Dekker synchronization"; Linux `kernel/sched/membarrier.c`.

#[cfg(not(loom))]
use core::sync::atomic::compiler_fence;
use va_base::sync::atomic::{AtomicU8, Ordering, fence};
use va_base::sync::spin_loop;

/// Another thread requests the lock, or holds it.
const ASKS: u8 = 1;
/// Another thread holds the lock.
const HOLDS: u8 = 2;
/// The owner executes no fence: another thread runs one for both.
const LIGHT: u8 = 4;
/// The number of times that another thread checks whether the owner is still in its section.
#[cfg(not(loom))]
const LOOKS: u32 = 200;
#[cfg(loom)]
const LOOKS: u32 = 1;
/// The number of spins of the owner before it yields its CPU.
const SPINS: u32 = 100;

/// The lock of a cache with one owner: a process's [`va_base::Machine::OwnerLock`].
///
/// `lock` is for the owner, one thread at a time. Every other caller uses `try_lock`, which makes a system call. It
/// fails if the owner does not leave its section soon, or if another thread holds or requests the lock.
pub struct OwnerLock {
    /// Written only by the owner. Protocol PR-OWNER.
    active: AtomicU8,
    /// Written by other threads, except for `LIGHT`, which the owner sets. Protocol PR-OWNER.
    other: AtomicU8,
}

impl core::fmt::Debug for OwnerLock {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("OwnerLock").finish_non_exhaustive()
    }
}

impl OwnerLock {
    #[cfg(loom)]
    pub(crate) fn new() -> Self {
        Self { active: AtomicU8::new(0), other: AtomicU8::new(0) }
    }

    #[inline(always)]
    pub(crate) fn lock_as_owner(&self) {
        self.active.store(1, Ordering::Relaxed);
        light_fence();
        // Acquire pairs with the release of `unlock`.
        if self.other.load(Ordering::Acquire) != LIGHT {
            self.lock_slowly();
        }
    }

    #[cold]
    #[inline(never)]
    fn lock_slowly(&self) {
        let mut spins = 0;
        loop {
            fence(Ordering::SeqCst);
            let other = self.other.load(Ordering::Acquire);
            if other & (ASKS | HOLDS) == 0 {
                if other == 0 && others_can_fence() {
                    // From here on other threads fence for both. Fails if one requests the lock at this moment.
                    let _light = self.other.compare_exchange(0, LIGHT, Ordering::Relaxed, Ordering::Relaxed);
                }
                return;
            }
            self.active.store(0, Ordering::Release);
            while self.other.load(Ordering::Relaxed) & (ASKS | HOLDS) != 0 {
                spins += 1;
                wait(spins);
            }
            self.active.store(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn try_lock_as_other(&self) -> bool {
        let mode = self.other.load(Ordering::Relaxed);
        // Acquire pairs with the release of the previous holder.
        if mode & (ASKS | HOLDS) != 0
            || self.other.compare_exchange(mode, mode | ASKS, Ordering::Acquire, Ordering::Relaxed).is_err()
        {
            return false;
        }
        // For an owner that fences, too.
        fence(Ordering::SeqCst);
        if mode == 0 || heavy_fence() {
            for _ in 0..LOOKS {
                // Acquire pairs with the release of the owner's `unlock`.
                if self.active.load(Ordering::Acquire) == 0 {
                    self.other.store(mode | ASKS | HOLDS, Ordering::Relaxed);
                    return true;
                }
                spin_loop();
            }
        }
        self.other.store(mode, Ordering::Release);
        false
    }

    /// Ends a section of the owner or of another thread.
    #[inline(always)]
    pub(crate) fn end(&self) {
        // While the owner is in its section, no other thread sets `HOLDS`.
        let other = self.other.load(Ordering::Relaxed);
        if other & HOLDS == 0 {
            self.active.store(0, Ordering::Release);
        } else {
            self.other.store(other & LIGHT, Ordering::Release);
        }
    }
}

// SAFETY: the owner is in its section only if it saw neither `ASKS` nor `HOLDS` after it set `active`; another thread
// only if it set `ASKS` by a compare-exchange and then, after a barrier on all CPUs, saw `active` clear. So at least
// one of the two sees the other.
#[cfg(not(loom))]
unsafe impl lock_api::RawMutex for OwnerLock {
    const INIT: Self = Self { active: AtomicU8::new(0), other: AtomicU8::new(0) };
    type GuardMarker = lock_api::GuardSend;

    #[inline(always)]
    fn lock(&self) {
        self.lock_as_owner();
    }

    #[inline]
    fn try_lock(&self) -> bool {
        self.try_lock_as_other()
    }

    #[inline(always)]
    unsafe fn unlock(&self) {
        self.end();
    }
}

/// Prevents the compiler from moving the owner's load before its store; the other thread executes the CPU's barrier.
#[cfg(not(loom))]
#[inline(always)]
fn light_fence() {
    compiler_fence(Ordering::SeqCst);
}

/// Models the barrier that the other thread executes on this CPU.
#[cfg(loom)]
fn light_fence() {
    fence(Ordering::SeqCst);
}

/// Executes a full barrier on every CPU that runs a thread of this process. Returns `false` if the system denies it.
#[cfg(not(loom))]
fn heavy_fence() -> bool {
    crate::os::fence_all()
}

/// Returns true if [`heavy_fence`] worked at the process's first call.
///
/// A later failure is safe: `try_lock` fails then.
#[cfg(not(loom))]
fn others_can_fence() -> bool {
    const YES: u8 = 1;
    const NO: u8 = 2;
    /// The answer, as it was found. Protocol PR-ONCE.
    static ANSWER: AtomicU8 = AtomicU8::new(0);
    match ANSWER.load(Ordering::Relaxed) {
        0 => {
            let can = heavy_fence();
            ANSWER.store(if can { YES } else { NO }, Ordering::Relaxed);
            can
        }
        answer => answer == YES,
    }
}

#[cfg(loom)]
fn others_can_fence() -> bool {
    heavy_fence()
}

#[cfg(loom)]
fn heavy_fence() -> bool {
    fence(Ordering::SeqCst);
    true
}

#[cfg(not(loom))]
fn wait(spins: u32) {
    if spins.is_multiple_of(SPINS) {
        crate::os::yield_now();
    } else {
        spin_loop();
    }
}

#[cfg(loom)]
fn wait(_: u32) {
    let _ = SPINS;
    // In a model, lets other threads run.
    spin_loop();
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use lock_api::RawMutex as _;
    use std::time::{Duration, Instant};

    #[test]
    fn a_lock_begins_as_zeros_and_is_light_after_its_first_section() {
        let lock = OwnerLock::INIT;
        let bytes = || [&lock.active, &lock.other].map(|byte| byte.load(Ordering::Relaxed));
        assert_eq!((bytes(), size_of::<OwnerLock>()), ([0, 0], 2));
        lock.lock_as_owner();
        lock.end();
        assert_eq!(bytes(), [0, if others_can_fence() { LIGHT } else { 0 }]);
        assert!(lock.try_lock_as_other());
        lock.end();
        assert_eq!(bytes(), [0, if others_can_fence() { LIGHT } else { 0 }]);
    }

    #[test]
    fn an_owner_and_threads_that_try_count_without_a_loss() {
        let count = lock_api::Mutex::<OwnerLock, u64>::new(0);
        let (rounds, tries) = if cfg!(miri) { (500u64, 2) } else { (400_000, 3) };
        let millis = if cfg!(miri) { 3 } else { 300 };
        let taken: u64 = std::thread::scope(|scope| {
            let others: Vec<_> = (0..tries)
                .map(|_| {
                    scope.spawn(|| {
                        let (mut taken, end) = (0, Instant::now() + Duration::from_millis(millis));
                        while Instant::now() < end {
                            if let Some(mut held) = count.try_lock() {
                                let before = *held;
                                if taken % 16 == 0 {
                                    std::thread::yield_now();
                                }
                                *held = before + 1;
                                taken += 1;
                            }
                        }
                        taken
                    })
                })
                .collect();
            for _ in 0..rounds {
                let mut held = count.lock();
                let before = *held;
                *held = before + 1;
            }
            others.into_iter().map(|other| other.join().unwrap()).sum()
        });
        assert_eq!(*count.lock(), rounds + taken);
        // In a few milliseconds of Miri another thread may not run at all.
        assert!(taken > 0 || cfg!(miri));
    }

    #[test]
    fn it_is_held_by_one_at_a_time() {
        let lock = OwnerLock::INIT;
        assert!(lock.try_lock() && !lock.try_lock());
        // SAFETY: taken above.
        unsafe { lock.unlock() };
        lock.lock();
        assert!(!lock.try_lock());
        // SAFETY: taken above.
        unsafe { lock.unlock() };
        assert!(lock.try_lock());
    }
}
