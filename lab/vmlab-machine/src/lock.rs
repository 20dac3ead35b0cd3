//! A lock that counts contentions, their wait times and their code locations, by class, as a kernel's `lock_stat` does.
//!
//! # Theory
//! A space reports the class of a lock just before it acquires it ([`Machine::locking`](va_base::Machine::locking)).
//! The machine stores the class and the code location for the thread, and the next lock that is acquired reads both.
//! Each thread counts for itself, so that counting shares nothing; [`take`] returns its counts.
//!
//! The columns are the kernel's. A *contention* is an acquisition that found the lock held. It *bounces* if the last
//! holder was on another CPU, and so does an acquisition. A contention counts at two code locations: the one that
//! waited, and the one that held the lock. A failed `try_lock` is not counted, as in the kernel.
//!
//! A kernel's spin lock uses its CPU while it waits, which a profile shows. [`WatchedSpin`] does so too, and its wait
//! is also reported in CPU time; [`WatchedLock`] parks, as locks of a process do.
//!
//! Each acquisition reads clocks, so do not compare times of a space under these locks with others.

use super::lock_stat::{ContendedAt, LockStats, NOTHING, Places};
use super::spin::SpinLock;
use rustix::thread::sched_getcpu;
use rustix::time::{ClockId, clock_gettime};
use std::cell::{Cell, RefCell};
use std::panic::Location;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Instant;
use va_base::LockClass;
use va_base::sync::RawMutex;

/// A lock that accepts its class.
pub trait Watch: RawMutex + Send + Sync + 'static {
    /// Reports the class of the lock that this thread acquires next, and the code location.
    fn announce(class: LockClass, at: &'static Location<'static>);
}

impl Watch for parking_lot::RawMutex {
    #[inline(always)]
    fn announce(_: LockClass, _: &'static Location<'static>) {}
}

impl Watch for SpinLock {
    #[inline(always)]
    fn announce(_: LockClass, _: &'static Location<'static>) {}
}

/// Marks a lock without a reported class.
const UNTOLD: usize = LockClass::COUNT;
/// The last CPU of a lock that was never acquired.
const NO_CPU: u32 = u32::MAX;

thread_local! {
    static NEXT: Cell<(usize, Option<&'static Location<'static>>)> = const { Cell::new((UNTOLD, None)) };
    static SEEN: RefCell<(LockStats, Places)> = const { RefCell::new((NOTHING, Places::NONE)) };
    static STANDS_FOR: Cell<Option<u32>> = const { Cell::new(None) };
}

/// Returns the counts of this thread since the last call.
pub fn take() -> LockStats {
    SEEN.with_borrow_mut(|(seen, _)| std::mem::replace(seen, NOTHING))
}

/// Returns the code locations where this thread waited since the last call, and those that held the locks it waited
/// for.
pub fn take_contended() -> Vec<ContendedAt> {
    SEEN.with_borrow_mut(|(_, places)| places.take())
}

/// Returns the CPU time of this thread in nanoseconds.
pub fn thread_cpu_ns() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Makes this thread count as if it ran on `cpu`, so that one thread can count exactly which locks CPUs share.
pub fn stand_for(cpu: u32) {
    STANDS_FOR.set(Some(cpu));
}

fn this_cpu() -> u32 {
    STANDS_FOR.get().unwrap_or_else(|| sched_getcpu() as u32)
}

fn now_ns() -> u64 {
    static BEGIN: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    BEGIN.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

/// A counting wrapper of a lock of type `I`.
#[derive(Debug)]
pub struct Watched<I> {
    inner: I,
    // Written by the holder alone.
    /// The CPU that holds it, or held it last.
    cpu: AtomicU32,
    /// Number of the code location that acquired it; 0 if none was reported.
    place: AtomicU32,
    /// The time of the acquisition, in nanoseconds of this process.
    since_ns: AtomicU64,
    class: AtomicU32,
}

/// A lock that parks, and counts.
pub type WatchedLock = Watched<parking_lot::RawMutex>;
/// A lock that spins, and counts.
pub type WatchedSpin = Watched<SpinLock>;

/// State of a thread that found a lock held.
struct Wait {
    bounced: bool,
    begun_ns: u64,
    begun_cpu_ns: u64,
    /// Number of the code location that held the lock.
    held_at: u32,
}

impl<I> Watched<I> {
    fn taken(&self, class: usize, at: Option<&'static Location<'static>>, wait: Option<Wait>) {
        let cpu = this_cpu();
        let bounced = self.cpu.swap(cpu, Ordering::Relaxed) != cpu;
        self.class.store(class as u32, Ordering::Relaxed);
        let since = now_ns();
        self.since_ns.store(since, Ordering::Relaxed);
        SEEN.with_borrow_mut(|(seen, places)| {
            let place = at.map_or(0, |at| places.number(at));
            self.place.store(place, Ordering::Relaxed);
            let Some(seen) = seen.get_mut(class) else { return };
            seen.acquisitions += 1;
            seen.acq_bounces += u64::from(bounced);
            if let Some(wait) = wait {
                let cpu_ns = thread_cpu_ns() - wait.begun_cpu_ns;
                seen.waited(since - wait.begun_ns, cpu_ns, wait.bounced);
                places.contended(class, place, wait.held_at);
            }
        });
    }
}

// SAFETY: the inner lock provides exclusion. Each acquisition and each release is the inner lock's, without exception.
unsafe impl<I: RawMutex> RawMutex for Watched<I> {
    const INIT: Self = Self {
        inner: I::INIT,
        cpu: AtomicU32::new(NO_CPU),
        place: AtomicU32::new(0),
        since_ns: AtomicU64::new(0),
        class: AtomicU32::new(UNTOLD as u32),
    };
    type GuardMarker = I::GuardMarker;

    fn lock(&self) {
        let (class, at) = NEXT.replace((UNTOLD, None));
        if self.inner.try_lock() {
            return self.taken(class, at, None);
        }
        let wait = Wait {
            bounced: self.cpu.load(Ordering::Relaxed) != this_cpu(),
            held_at: self.place.load(Ordering::Relaxed),
            begun_ns: now_ns(),
            begun_cpu_ns: thread_cpu_ns(),
        };
        self.inner.lock();
        self.taken(class, at, Some(wait));
    }

    fn try_lock(&self) -> bool {
        let (class, at) = NEXT.replace((UNTOLD, None));
        let got = self.inner.try_lock();
        if got {
            self.taken(class, at, None);
        }
        got
    }

    unsafe fn unlock(&self) {
        let held = now_ns() - self.since_ns.load(Ordering::Relaxed);
        SEEN.with_borrow_mut(|(seen, _)| {
            if let Some(seen) = seen.get_mut(self.class.load(Ordering::Relaxed) as usize) {
                seen.hold_total_ns += held;
                seen.hold_max_ns = seen.hold_max_ns.max(held);
            }
        });
        // SAFETY: the caller holds this lock by the contract of this function, and so the inner one.
        unsafe { self.inner.unlock() };
    }
}

impl<I: RawMutex + Send + Sync + 'static> Watch for Watched<I> {
    #[inline]
    fn announce(class: LockClass, at: &'static Location<'static>) {
        NEXT.set((class as usize, Some(at)));
    }
}

#[cfg(test)]
mod tests {
    use super::super::lock_stat::LockStat;
    use super::*;
    use std::sync::atomic::AtomicBool;
    use va_base::sync::Mutex;

    /// A parking lock that reports when a thread begins to wait.
    struct Gate(parking_lot::RawMutex, AtomicBool);

    // SAFETY: exclusion is the inner lock's.
    unsafe impl RawMutex for Gate {
        const INIT: Self = Self(parking_lot::RawMutex::INIT, AtomicBool::new(false));
        type GuardMarker = <parking_lot::RawMutex as RawMutex>::GuardMarker;
        fn lock(&self) {
            self.1.store(true, Ordering::SeqCst);
            self.0.lock();
        }
        fn try_lock(&self) -> bool {
            self.0.try_lock()
        }
        unsafe fn unlock(&self) {
            // SAFETY: the caller holds it.
            unsafe { self.0.unlock() };
        }
    }

    type Gated = Watched<Gate>;

    impl Gated {
        /// Acquires the lock, and returns the code location.
        #[track_caller]
        fn take_as_pool(&self) -> &'static Location<'static> {
            Self::announce(LockClass::Pool, Location::caller());
            self.lock();
            Location::caller()
        }

        fn drop_it(&self) {
            // SAFETY: the caller has acquired it.
            unsafe { self.unlock() };
        }
    }

    /// Returns this thread's statistics of the pools' locks.
    fn pool() -> LockStat {
        take()[LockClass::Pool as usize]
    }

    const WAIT_NS: u64 = 2_000_000;

    /// Holds a lock on CPU 2 until a second thread, on CPU `waiter`, has waited for it for [`WAIT_NS`]. Returns both
    /// threads' statistics, the waiter's locations, and the two code locations.
    fn one_waits(waiter: u32) -> (LockStat, LockStat, Vec<ContendedAt>, [&'static Location<'static>; 2]) {
        let lock = Gated::INIT;
        stand_for(2);
        take();
        let held = lock.take_as_pool();
        let (seen, places, wanted) = std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                stand_for(waiter);
                let wanted = lock.take_as_pool();
                lock.drop_it();
                (pool(), take_contended(), wanted)
            });
            while !lock.inner.1.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            let seen_at = now_ns();
            while now_ns() < seen_at + WAIT_NS {
                std::thread::yield_now();
            }
            lock.drop_it();
            waiter.join().unwrap()
        });
        (pool(), seen, places, [wanted, held])
    }

    #[test]
    fn only_waits_are_counted_with_their_time() {
        let (holder, waiter, _, _) = one_waits(3);
        assert_eq!((holder.acquisitions, holder.contentions, holder.con_bounces), (1, 0, 0));
        assert!(holder.hold_max_ns >= WAIT_NS && holder.hold_total_ns == holder.hold_max_ns);
        assert_eq!(
            (waiter.acquisitions, waiter.contentions, waiter.con_bounces, waiter.acq_bounces),
            (1, 1, 1, 1)
        );
        assert!(waiter.wait_min_ns >= WAIT_NS, "{waiter:?}");
        assert_eq!((waiter.wait_min_ns, waiter.wait_total_ns), (waiter.wait_max_ns, waiter.wait_max_ns));
    }

    #[test]
    fn a_contention_on_the_cpu_of_the_holder_does_not_bounce() {
        let (_, waiter, _, _) = one_waits(2);
        assert_eq!((waiter.contentions, waiter.con_bounces, waiter.acq_bounces), (1, 0, 0));
    }

    #[test]
    fn a_contention_counts_where_the_lock_was_wanted_and_where_it_was_held() {
        take_contended();
        let (_, _, places, [wanted, held]) = one_waits(3);
        let class = LockClass::Pool as usize;
        let one = |place, waited, held| ContendedAt { class, place, waited, held };
        assert_eq!(places, [one(held, 0, 1), one(wanted, 1, 0)]);
        // The holder did not wait anywhere.
        assert_eq!(take_contended(), []);
    }

    #[test]
    fn only_the_requested_lock_is_counted() {
        let lock: Mutex<WatchedLock, ()> = Mutex::new(());
        take();
        WatchedLock::announce(LockClass::Pool, Location::caller());
        drop(lock.lock());
        drop(lock.lock());
        assert_eq!((pool().acquisitions, take()), (1, NOTHING));
    }

    #[test]
    fn a_failed_attempt_counts_nowhere() {
        let lock: Mutex<WatchedSpin, ()> = Mutex::new(());
        let _held = lock.lock();
        take();
        WatchedSpin::announce(LockClass::Pool, Location::caller());
        assert!(lock.try_lock().is_none());
        assert_eq!(pool(), LockStat::default());
    }
}
