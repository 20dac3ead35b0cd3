//! Decay by the calls that the program makes anyhow: what nobody needs for a while goes back without a thread.
//!
//! # Theory
//! ```text
//!   a free that finds its place taken, an area that shrinks, one take of 128 ---> the clock
//!      the turn is over?   both zones are older by the turns that passed, and magazines are to be looked at;
//!                          twice a second at most, the system is asked how much memory there is (`purge.rs`)
//!      some magazines      those that served nobody for a quarter of the time: what they have is made dirty
//!      something is old?   8 MiB of dirty blocks older than three quarters of the time go back
//! ```
//! The decay time is sixteen turns. Each call does a bounded part: some magazines, and 8 MiB, which take
//! about as long as 1 MiB of page faults. So no call waits for a cache of hundreds of megabytes. The part is
//! looked for again in each of these calls until nothing old is left; then not before the next turn.
//!
//! The clock is the coarse one, which the C library reads in the kernel's page without a system
//! call. That costs about ten nanoseconds, in paths that take a hundred or more, and a fraction of
//! one in a cached pair.
//!
//! A free passes the time before it caches its run, and an allocation after it has one. So a
//! program that was idle first takes cached memory, and the rest of its cache goes. A program that
//! makes no call keeps its cache; for it there is the thread (`worker.rs`). While that runs, no
//! call passes the time.
//!
//! # Locking
//! Called under no lock. Those of the zones and of magazines, one at a time; `purge` only if nobody has it.
//! # Source
//! Our own; jemalloc ticks in its calls, too, and gives all at once back that is due.

use super::{Heap, VISITS};
use crate::arena::{HUGE, SMALL, ZONES};
use crate::os::Os;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use core::time::Duration;

/// Turns in the decay time.
const TURNS: u32 = 16;
/// Turns after which dirty blocks go back, and for which magazines may be of no use.
pub(super) const DIRTY_TURNS: u64 = 12;
pub(super) const MAGAZINE_TURNS: u64 = 4;
/// Pages that a call releases: 8 MiB.
pub(super) const SLICE_PAGES: u64 = 2048;
/// Time between two looks at what the system has left, which cost a tenth of a millisecond: half a second.
const ASK_NANOS: u64 = 500_000_000;

/// The passage of time in a heap.
pub(super) struct Time {
    // Constant after `new`.
    /// 0: it does not.
    turn_nanos: u64,
    // Atomic, each alone.
    /// When the turn is over; of all who find that it is, one changes it. 0: nobody has looked at the clock yet.
    due: AtomicU64,
    /// Turns that passed, ever.
    turns: AtomicU64,
    /// Magazines that nobody looked at in this turn; about.
    unseen: AtomicUsize,
    /// The next one of them, counted round and round.
    next: AtomicUsize,
    /// Dirty blocks may be old.
    behind: AtomicBool,
    /// When the system is asked again how much memory there is; written by who ends a turn.
    ask: AtomicU64,
}

/// The length of a turn.
fn turn_nanos(decay: Duration) -> u64 {
    let nanos = u64::try_from((decay / TURNS).as_nanos()).unwrap_or(u64::MAX);
    // Not shorter than a microsecond, so that a thread does not spin.
    nanos.max(1000)
}

impl Time {
    /// Time that never passes.
    pub(super) const fn off() -> Self {
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

    /// Time of which nothing has passed; it never does without a decay.
    pub(super) fn new(decay: Option<Duration>) -> Self {
        Self { turn_nanos: decay.map_or(0, turn_nanos), ..Self::off() }
    }

    /// The length of a turn; 0 if time does not pass.
    pub(super) fn turn_nanos(&self) -> u64 {
        self.turn_nanos
    }

    /// Lets so many turns pass; how many passed ever.
    pub(super) fn pass(&self, turns: u64) -> u64 {
        self.turns.fetch_add(turns, Ordering::Relaxed) + turns
    }

    /// Turns that are over by now, and begins a new one: 0 for all callers but one.
    fn turns_over(&self, now: u64) -> u64 {
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
    /// Does a part of what is due by the clock, unless a thread does. Called under no lock.
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
            (0..ZONES).for_each(|zone| self.zone(zone).cold.pass(turns));
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

    /// Asks the system how much memory there is, if it was not asked for half a second. Called under no lock.
    pub(super) fn ask_by_time(&self, now: u64) {
        let ask = &self.time.ask;
        if now >= ask.load(Ordering::Relaxed) {
            ask.store(now.saturating_add(ASK_NANOS), Ordering::Relaxed);
            self.look_again();
        }
    }

    /// Makes dirty what some magazines have and nobody uses.
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

    /// Gives back a slice of the dirty blocks that are old.
    fn purge_old(&self) {
        let Some(_alone) = self.purge.try_lock() else { return };
        let mut left = SLICE_PAGES;
        for zone in [HUGE, SMALL] {
            let until = self.zone(zone).cold.epoch().saturating_sub(DIRTY_TURNS);
            left = left.saturating_sub(self.purge_alone(zone, left, until));
        }
        if left > 0 {
            self.time.behind.store(false, Ordering::Relaxed);
        }
    }
}
