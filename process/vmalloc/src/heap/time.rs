//! Decay by the calls that the program makes in any case: unused memory is released without a thread.
//!
//! # Theory
//! ```text
//!   a free that finds its slot taken, an area that shrinks, one alloc in 128 ---> the clock
//!      the turn is over?   all zones age by the turns that passed, and magazines are to be visited;
//!                          twice a second at most, the available memory is read (`purge.rs`)
//!      some magazines      those unused for a quarter of the time: their contents are made dirty
//!      something is old?   8 MiB of dirty blocks older than three quarters of the time are released
//! ```
//! The decay time is sixteen turns. Each call does a bounded part: some magazines, and 8 MiB, which take about as long
//! as 1 MiB of page faults. So no call waits for a cache of hundreds of megabytes. Each of these calls does another
//! part until nothing old is left. Then none does so before the next turn.
//!
//! The clock is the coarse one, which the C library reads in the kernel's page without a system
//! call. That costs about ten nanoseconds, in paths that take a hundred or more, and a fraction of
//! one in a cached pair.
//!
//! A free advances the time before it caches its run, and an allocation after it has one. So a program that was idle
//! first takes cached memory, and the rest of its cache is released. The preload also calls this once in a thousand
//! small allocations of a thread ([`Vmalloc::decay`](crate::Vmalloc::decay)). A program that makes no call keeps its
//! cache; the thread (`worker.rs`) is for such programs. While that runs, no call advances the time.
//!
//! # Locking
//! Called under no lock. Takes those of the zones and of magazines, one at a time; `purge` only if it is free.
//! # Source
//! Our own; jemalloc ticks in its calls, too, and releases everything that is due at once.

use super::{Heap, VISITS};
use core::time::Duration;
use va_base::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use vmalloc_os::fork::Hold;
use vmalloc_os::os::Os;

/// Turns in the decay time.
const TURNS: u32 = 16;
/// Turns after which dirty blocks are released, and after which magazines may be unused.
pub(super) const DIRTY_TURNS: u64 = 12;
pub(super) const MAGAZINE_TURNS: u64 = 4;
/// Pages that a call releases: 8 MiB.
pub(super) const SLICE_PAGES: u64 = 2048;
/// Time between two readings of the available memory, which cost a tenth of a millisecond: half a second.
const ASK_NANOS: u64 = 500_000_000;

/// The passage of time in a heap.
pub(crate) struct Time {
    // Constant after `new`.
    /// 0 if the time does not pass.
    turn_nanos: u64,
    // Atomic, each alone.
    /// The end of the turn. Of all threads that find the turn over, one changes it. 0 before the first reading of the
    /// clock. Protocol PR-TURN.
    due: AtomicU64,
    /// Turns that ever passed. Protocol PR-TURN.
    turns: AtomicU64,
    /// Magazines not visited in this turn; approximate. Protocol PR-HINT.
    unseen: AtomicUsize,
    /// The next one of them, in round-robin order. Protocol PR-HINT.
    next: AtomicUsize,
    /// True if dirty blocks may be old. Protocol PR-HINT.
    behind: AtomicBool,
    /// The time of the next reading of the available memory; written by the thread that ends a turn. Protocol PR-HINT.
    ask: AtomicU64,
}

/// The length of a turn.
fn turn_nanos(decay: Duration) -> u64 {
    let nanos = u64::try_from((decay / TURNS).as_nanos()).unwrap_or(u64::MAX);
    // Not shorter than a microsecond, so that a thread does not spin.
    nanos.max(1000)
}

impl Time {
    va_base::const_fn! {
        /// Time that never passes.
        pub(super) fn off() -> Self {
            Self {
                turn_nanos: 0,
                due: AtomicU64::new(0),
                turns: AtomicU64::new(0),
                unseen: AtomicUsize::new(0),
                next: AtomicUsize::new(0),
                behind: AtomicBool::new(false),
                ask: AtomicU64::new(0),
            }
        }
    }

    /// Returns a time at turn 0. Without a decay time it never passes.
    pub(crate) fn new(decay: Option<Duration>) -> Self {
        Self { turn_nanos: decay.map_or(0, turn_nanos), ..Self::off() }
    }

    /// Returns the length of a turn, or 0 if time does not pass.
    pub(super) fn turn_nanos(&self) -> u64 {
        self.turn_nanos
    }

    /// Advances the time by this many turns. Returns how many ever passed.
    pub(super) fn pass(&self, turns: u64) -> u64 {
        self.turns.fetch_add(turns, Ordering::Relaxed) + turns
    }

    /// Returns how many turns are over by now, and begins a new one. Returns 0 to all callers but one.
    pub(crate) fn turns_over(&self, now: u64) -> u64 {
        let due = self.due.load(Ordering::Relaxed);
        if now < due {
            return 0;
        }
        let next = now.saturating_add(self.turn_nanos);
        let mine = self.due.compare_exchange(due, next, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if mine && due > 0 { 1 + (now - due) / self.turn_nanos } else { 0 }
    }
}

impl<O: Os> Heap<O> {
    /// Does the same as [`pass_time`](Self::pass_time), for a caller whose thread may hold locks of this heap: then it
    /// does nothing.
    #[cold]
    pub(crate) fn pass_time_anywhere(&self) {
        let time = &self.time;
        let is_busy = || time.behind.load(Ordering::Relaxed) || time.unseen.load(Ordering::Relaxed) > 0;
        let is_due = |now| now >= time.due.load(Ordering::Relaxed) || is_busy();
        // To ask whether the thread holds a lock reads a cache line for each CPU, so the clock comes first.
        if time.turn_nanos > 0 && self.host.os().now().is_some_and(is_due) && !self.is_mine() {
            self.pass_time();
        }
    }

    /// Does a part of the work that is due by the clock, unless there is a thread for it. Called under no lock.
    #[cold]
    pub(super) fn pass_time(&self) {
        let time = &self.time;
        if time.turn_nanos == 0 || self.worker.is_there() {
            return;
        }
        let Some(now) = self.host.os().now() else { return };
        let turns = time.turns_over(now);
        if turns > 0 {
            time.pass(turns);
            self.zones().for_each(|zone| self.zone(zone).cold.pass(turns));
            time.unseen.store(self.magazines.len(), Ordering::Relaxed);
            time.behind.store(true, Ordering::Relaxed);
            self.ask_by_time(now);
        }
        if time.unseen.load(Ordering::Relaxed) > 0 {
            self.visit_magazines();
        }
        if time.behind.load(Ordering::Relaxed) {
            self.purge_old();
        }
    }

    /// Reads the available memory, if the last reading is at least half a second old. Called under no lock.
    pub(super) fn ask_by_time(&self, now: u64) {
        let ask = &self.time.ask;
        if now >= ask.load(Ordering::Relaxed) {
            ask.store(now.saturating_add(ASK_NANOS), Ordering::Relaxed);
            self.look_again();
        }
    }

    /// Makes the contents of some unused magazines dirty.
    fn visit_magazines(&self) {
        let time = &self.time;
        let Some(_moves) = self.begin_refill() else { return };
        for _ in 0..VISITS {
            let less = |unseen: usize| unseen.checked_sub(1);
            if time.unseen.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_err() {
                return;
            }
            let next = time.next.fetch_add(1, Ordering::Relaxed) % self.magazines.len();
            let unused = self.magazines[next].unused(MAGAZINE_TURNS, time.turns.load(Ordering::Relaxed));
            let drained: u64 = unused.into_iter().flatten().map(|kinds| self.drain(next, kinds)).sum();
            if drained > 0 {
                return;
            }
        }
    }

    /// Releases a slice of the old dirty blocks.
    fn purge_old(&self) {
        let Some(_alone) = self.purge.try_lock() else { return };
        let mut left = SLICE_PAGES;
        for zone in self.zones().rev() {
            let until = self.zone(zone).cold.epoch().saturating_sub(DIRTY_TURNS);
            left = left.saturating_sub(self.purge_alone(zone, left, until));
        }
        if left > 0 {
            self.time.behind.store(false, Ordering::Relaxed);
        }
    }
}
