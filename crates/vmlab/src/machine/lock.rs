//! A lock that says how often it was waited for, and for how long, by class: what a kernel's `lock_stat` tells.
//!
//! # Theory
//! A space tells its machine the class of a lock just before it takes it ([`Machine::locking`](va_base::Machine::locking)).
//! The machine notes it for the thread, and the lock that is taken next reads the note. Each thread counts for itself, so
//! that counting shares nothing; [`take`] hands out what it counted.
//!
//! The columns are the kernel's: a *contention* is a taking that found the lock held; it *bounces* if another thread had
//! it last, and so does an acquisition. A failed attempt to take without waiting counts nowhere, as there.
//!
//! Clocks are read at each taking, so times of a space under these locks are not to be compared with others.

use parking_lot::RawMutex as Inner;
use std::cell::{Cell, RefCell};
use std::time::Instant;
use va_base::LockClass;
use va_base::sync::RawMutex;
use va_base::sync::atomic::{AtomicU64, Ordering};

/// A lock that may be told what it is.
pub trait Watch: RawMutex + Send + Sync + 'static {
    /// Says of which class the lock is that this thread takes next.
    fn announce(class: LockClass);
}

impl Watch for Inner {
    #[inline(always)]
    fn announce(_: LockClass) {}
}

/// What was seen of the locks of one class.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LockStat {
    /// Contentions by whoever was not the last holder.
    pub con_bounces: u64,
    /// Takings that had to wait.
    pub contentions: u64,
    /// Nanoseconds waited: all, and most at a time.
    pub wait_total_ns: u64,
    /// The longest wait.
    pub wait_max_ns: u64,
    /// Takings by whoever was not the last holder.
    pub acq_bounces: u64,
    /// Takings.
    pub acquisitions: u64,
    /// Nanoseconds held.
    pub hold_total_ns: u64,
    /// The longest hold.
    pub hold_max_ns: u64,
}

impl LockStat {
    /// Adds what another thread saw.
    pub fn add(&mut self, other: &Self) {
        self.con_bounces += other.con_bounces;
        self.contentions += other.contentions;
        self.wait_total_ns += other.wait_total_ns;
        self.wait_max_ns = self.wait_max_ns.max(other.wait_max_ns);
        self.acq_bounces += other.acq_bounces;
        self.acquisitions += other.acquisitions;
        self.hold_total_ns += other.hold_total_ns;
        self.hold_max_ns = self.hold_max_ns.max(other.hold_max_ns);
    }
}

/// Of each class, in the order of [`LockClass`].
pub type LockStats = [LockStat; LockClass::COUNT];

/// Marks a lock whose class nobody told.
const UNTOLD: usize = LockClass::COUNT;

thread_local! {
    static NEXT: Cell<usize> = const { Cell::new(UNTOLD) };
    static SEEN: RefCell<LockStats> = RefCell::new(LockStats::default());
    /// Tells threads apart: no two that live have it at one address.
    static SELF: u8 = const { 0 };
}

/// What this thread counted since it was asked last.
pub fn take() -> LockStats {
    SEEN.take()
}

/// A parking lock that counts.
pub struct WatchedLock {
    inner: Inner,
    // Written by the holder alone.
    /// Who holds it, or held it last; 0 for nobody.
    holder: AtomicU64,
    /// When it was taken, in nanoseconds of this process.
    since_ns: AtomicU64,
    class: AtomicU64,
}

impl WatchedLock {
    fn taken(&self, class: usize, waited_ns: Option<u64>) {
        let me = SELF.with(|here| std::ptr::from_ref(here).addr() as u64);
        let bounced = self.holder.swap(me, Ordering::Relaxed) != me;
        self.class.store(class as u64, Ordering::Relaxed);
        self.since_ns.store(now_ns(), Ordering::Relaxed);
        with(class, |seen| {
            seen.acquisitions += 1;
            seen.acq_bounces += u64::from(bounced);
            if let Some(waited) = waited_ns {
                seen.contentions += 1;
                seen.con_bounces += u64::from(bounced);
                seen.wait_total_ns += waited;
                seen.wait_max_ns = seen.wait_max_ns.max(waited);
            }
        });
    }
}

fn with(class: usize, see: impl FnOnce(&mut LockStat)) {
    SEEN.with_borrow_mut(|seen| seen.get_mut(class).map(see));
}

fn now_ns() -> u64 {
    static BEGIN: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    BEGIN.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

// SAFETY: exclusion is the inner lock's, which is asked for each taking and each release, and nothing else decides.
unsafe impl RawMutex for WatchedLock {
    const INIT: Self = Self {
        inner: Inner::INIT,
        holder: AtomicU64::new(0),
        since_ns: AtomicU64::new(0),
        class: AtomicU64::new(UNTOLD as u64),
    };
    type GuardMarker = <Inner as RawMutex>::GuardMarker;

    fn lock(&self) {
        let class = NEXT.replace(UNTOLD);
        if self.inner.try_lock() {
            return self.taken(class, None);
        }
        let begun = now_ns();
        self.inner.lock();
        self.taken(class, Some(now_ns() - begun));
    }

    fn try_lock(&self) -> bool {
        let class = NEXT.replace(UNTOLD);
        let got = self.inner.try_lock();
        if got {
            self.taken(class, None);
        }
        got
    }

    unsafe fn unlock(&self) {
        let held = now_ns() - self.since_ns.load(Ordering::Relaxed);
        with(self.class.load(Ordering::Relaxed) as usize, |seen| {
            seen.hold_total_ns += held;
            seen.hold_max_ns = seen.hold_max_ns.max(held);
        });
        // SAFETY: the caller holds this lock by the contract of this function, and so the inner one.
        unsafe { self.inner.unlock() };
    }
}

impl Watch for WatchedLock {
    #[inline]
    fn announce(class: LockClass) {
        NEXT.set(class as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use va_base::sync::Mutex;

    /// What this thread saw of the pools' locks.
    fn pool() -> LockStat {
        take()[LockClass::Pool as usize]
    }

    /// What two threads saw of a lock that the first holds while the second asks for it; `None` if the second came too late to
    /// wait, as it may on a machine under load.
    fn waited_for() -> Option<(LockStat, LockStat)> {
        let lock: Mutex<WatchedLock, ()> = Mutex::new(());
        let arrived = std::sync::Barrier::new(2);
        take();
        WatchedLock::announce(LockClass::Pool);
        let guard = lock.lock();
        let theirs = std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                assert!(lock.try_lock().is_none());
                WatchedLock::announce(LockClass::Pool);
                arrived.wait();
                drop(lock.lock());
                pool()
            });
            arrived.wait();
            std::thread::sleep(Duration::from_millis(30));
            drop(guard);
            waiter.join().unwrap()
        });
        (theirs.contentions > 0).then(|| (theirs, pool()))
    }

    #[test]
    fn who_waits_is_counted_with_how_long_and_who_does_not_is_not() {
        let (seen, ours) = (0..100).find_map(|_| waited_for()).unwrap();
        assert_eq!((seen.acquisitions, seen.contentions, seen.con_bounces, seen.acq_bounces), (1, 1, 1, 1));
        assert!(seen.wait_max_ns > 0 && seen.wait_total_ns == seen.wait_max_ns);
        assert_eq!((ours.acquisitions, ours.contentions), (1, 0));
        assert!(ours.hold_max_ns >= 30_000_000 && ours.hold_total_ns >= ours.hold_max_ns);
    }

    #[test]
    fn only_the_lock_that_was_told_is_counted() {
        let lock: Mutex<WatchedLock, ()> = Mutex::new(());
        take();
        WatchedLock::announce(LockClass::Pool);
        drop(lock.lock());
        drop(lock.lock());
        assert_eq!((pool().acquisitions, take()), (1, LockStats::default()));
    }

    #[test]
    fn what_threads_saw_adds_up() {
        let one = LockStat {
            contentions: 1,
            wait_total_ns: 5,
            wait_max_ns: 5,
            hold_max_ns: 2,
            ..LockStat::default()
        };
        let mut sum = LockStat { contentions: 2, wait_total_ns: 4, wait_max_ns: 3, hold_max_ns: 7, ..one };
        sum.add(&one);
        assert_eq!((sum.contentions, sum.wait_total_ns, sum.wait_max_ns, sum.hold_max_ns), (3, 9, 5, 7));
    }
}
