//! The thread that lets time pass, where one is wanted: memory that no caller needs for about a
//! second goes back to the system, also while the program calls nothing.
//!
//! # Theory
//! ```text
//!   none --much is kept--> starting --> awake <--something is kept-- asleep
//!                                         |  ----nothing is kept--->   |
//!                                         +---- stopped, by the owner -+
//! ```
//! Sixteen times in the decay time it raises the epoch of both zones and releases the dirty blocks
//! that are older than three quarters of that time. It also makes dirty what is in magazines that
//! served no caller for a quarter of it. When nothing is cached it sleeps until a thread frees
//! something large.
//!
//! It is not there before 16 MiB are cached, and never in a process that caches less. A thread that
//! finds so much cached starts it, in the slow part of a free, under no lock. It tries again a
//! while later if the system was short of threads or memory. After a failure for another reason (a
//! seccomp profile) there is none, in children neither. A child of a fork has no such thread, and
//! starts its own in the same way.
//!
//! # Invariants
//! - **WK1 no-lost-wake** the thread sleeps without an end only if it first stored that state and
//!   then looked, under the locks, at all that may be cached. A thread that caches something loads
//!   that state after it had the lock. A small run that found its place in front empty does not:
//!   that is the fast path of a free and loads nothing for this. While the thread sleeps, one such
//!   run a CPU, of less than 2 MiB, stays until a thread frees something large, or something that
//!   finds its place taken.
//!
//! # Locking
//! It holds `purge` for 64 runs at a time, so that a fork waits no longer than that, and what a purge holds.
//! # Source
//! Our own; jemalloc has background threads, by default off; Linux gives vmalloc pages back at once.

use super::Heap;
use super::time::{DIRTY_TURNS, MAGAZINE_TURNS};
use crate::arena::ZONES;
use crate::os::{Errno, Os, Span, futex_wait, futex_wait_for, futex_wake};
use core::ffi::c_void;
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Pages kept from which there is a thread: 16 MiB.
const START_PAGES: u64 = 4096;
/// Slow frees without another attempt after the system had no thread, or no memory for one.
const PAUSE: u32 = 64;
/// Bytes of its stack, of which it touches a few pages; libc puts thread-local variables there as well.
const STACK_BYTES: usize = 256 << 10;
/// Below it, without access: whoever needs more of it faults, and writes on nobody.
const GUARD_BYTES: usize = crate::PAGE_BYTES;
/// Pages that go back under one hold of `purge`.
const PART_PAGES: u64 = 64 * 512;

const NONE: u32 = 0;
const STARTING: u32 = 1;
const AWAKE: u32 = 2;
const ASLEEP: u32 = 3;
const STOPPED: u32 = 4;
/// There is to be none, or the system never gives one.
const OFF: u32 = 5;

/// The thread of a heap.
pub(super) struct Worker {
    // Atomic. Of all who find `NONE` one changes it, and then has the others.
    state: AtomicU32,
    thread: AtomicUsize,
    /// The address of its stack's mapping, which begins with the guard.
    stack: AtomicUsize,
    pause: AtomicU32,
}

impl Worker {
    /// One that never is there.
    pub(super) const fn off() -> Self {
        Self {
            state: AtomicU32::new(OFF),
            thread: AtomicUsize::new(0),
            stack: AtomicUsize::new(0),
            pause: AtomicU32::new(0),
        }
    }

    /// One that is not there yet.
    pub(super) fn new() -> Self {
        Self { state: AtomicU32::new(NONE), ..Self::off() }
    }

    /// Returns whether it is there; then no call has time pass.
    pub(super) fn is_there(&self) -> bool {
        matches!(self.state.load(Ordering::Relaxed), AWAKE | ASLEEP)
    }

    /// Forgets the thread in a child, which has none.
    pub(super) fn forget(&self) {
        if self.state.load(Ordering::Relaxed) != OFF {
            self.state.store(NONE, Ordering::Relaxed);
            self.pause.store(0, Ordering::Relaxed);
        }
    }

    /// There is none now. Where the system was short of something, there may be one later.
    fn refused(&self, errno: Errno) {
        let passes = matches!(errno.0, libc::EAGAIN | libc::ENOMEM | libc::EINTR);
        self.pause.store(PAUSE, Ordering::Relaxed);
        self.state.store(if passes { NONE } else { OFF }, Ordering::Release);
    }

    fn change(&self, from: u32, to: u32) -> bool {
        // Both: what the one who changed it before did comes before, and this before the next one.
        self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }
}

impl<O: Os> Heap<O> {
    /// Wakes the thread if it sleeps: what was kept is so elsewhere. Called as [`poke`](Self::poke).
    #[inline]
    pub(super) fn wake(&self) {
        if self.worker.state.load(Ordering::Relaxed) == ASLEEP && self.worker.change(ASLEEP, AWAKE) {
            futex_wake(&self.worker.state);
        }
    }

    /// Tells the thread that something is kept. Called under no lock, after the one under which it was kept.
    #[inline]
    pub(super) fn poke(&self) {
        match self.worker.state.load(Ordering::Relaxed) {
            NONE if self.kept_hint() >= START_PAGES => self.start_worker(),
            ASLEEP if self.worker.change(ASLEEP, AWAKE) => futex_wake(&self.worker.state),
            _ => {}
        }
    }

    #[cold]
    fn start_worker(&self) {
        let worker = &self.worker;
        if !worker.change(NONE, STARTING) {
            return;
        }
        let pause = worker.pause.load(Ordering::Relaxed);
        if pause > 0 {
            worker.pause.store(pause - 1, Ordering::Relaxed);
            return worker.state.store(NONE, Ordering::Release);
        }
        let os = self.host.os();
        if worker.stack.load(Ordering::Relaxed) == 0 {
            match os.map(GUARD_BYTES + STACK_BYTES) {
                Ok(at) => {
                    // SAFETY: mapped a moment ago. Refused, it is a stack without a guard, as all are in some systems.
                    let _refused = unsafe { os.forbid(Span { at, bytes: GUARD_BYTES }) };
                    worker.stack.store(at, Ordering::Relaxed);
                }
                Err(errno) => return worker.refused(errno),
            }
        }
        let stack = Span { at: worker.stack.load(Ordering::Relaxed) + GUARD_BYTES, bytes: STACK_BYTES };
        // Before it is there, so that it finds this, and whoever stops it does.
        worker.state.store(AWAKE, Ordering::Release);
        let heap = (&raw const *self).cast_mut().cast::<c_void>();
        // SAFETY: the stack is used by this thread alone, of which there is one at a time; the heap stays until it was
        // joined.
        match unsafe { os.spawn(stack, run::<O>, heap) } {
            Ok(thread) => worker.thread.store(thread, Ordering::Release),
            Err(errno) => worker.refused(errno),
        }
    }

    /// Ends the thread. Called by the owner, when nobody else calls any more.
    pub(super) fn stop_worker(&self) {
        let worker = &self.worker;
        let before = worker.state.swap(STOPPED, Ordering::AcqRel);
        if matches!(before, AWAKE | ASLEEP) {
            futex_wake(&worker.state);
            // SAFETY: made by `start_worker` in this process: a child has forgotten its parent's.
            unsafe { self.host.os().join(worker.thread.load(Ordering::Acquire)) };
        }
        let at = worker.stack.swap(0, Ordering::Relaxed);
        if at != 0 {
            // SAFETY: mapped by `start_worker`; nobody runs on it any more.
            unsafe { self.host.os().unmap(Span { at, bytes: GUARD_BYTES + STACK_BYTES }) };
        }
    }

    /// Returns the name of its state, for tests.
    #[cfg(test)]
    pub(super) fn worker_state(&self) -> &'static str {
        ["none", "starting", "awake", "asleep", "stopped", "off"]
            [self.worker.state.load(Ordering::Relaxed) as usize]
    }

    /// Runs as the thread, until the owner stops it.
    fn work(&self) {
        let worker = &self.worker;
        loop {
            match worker.state.load(Ordering::Acquire) {
                AWAKE => {
                    futex_wait_for(&worker.state, AWAKE, self.time.turn_nanos());
                    // Checks WK1: it says so first, and looks under the locks then.
                    if !self.turn() && worker.change(AWAKE, ASLEEP) && self.keeps_something() {
                        worker.change(ASLEEP, AWAKE);
                    }
                }
                ASLEEP => futex_wait(&worker.state, ASLEEP),
                _ => return,
            }
        }
    }

    /// Lets a sixteenth of the decay time pass. Tells whether something is kept still.
    pub(super) fn turn(&self) -> bool {
        if let Some(now) = self.host.os().now() {
            self.ask_by_time(now);
        }
        let now = self.time.pass(1);
        for (cpu, magazine) in self.magazines.iter().enumerate() {
            let Some(_moves) = self.begin_refill() else { break };
            for kinds in magazine.unused(MAGAZINE_TURNS, now).into_iter().flatten() {
                self.drain(cpu, kinds);
            }
        }
        for zone in 0..ZONES {
            let mut central = self.zone(zone);
            central.cold.pass(1);
            let until = central.cold.epoch().saturating_sub(DIRTY_TURNS);
            drop(central);
            loop {
                let _alone = self.purge.lock();
                if self.purge_alone(zone, PART_PAGES, until) < PART_PAGES {
                    break;
                }
            }
        }
        self.keeps_something()
    }

    /// Tells whether something is kept that time may give back.
    fn keeps_something(&self) -> bool {
        // What a purge or a refill has in its hands may come back.
        let kept = |zone| {
            let central = self.zone(zone);
            central.cold.len() > 0 || central.leaving > 0
        };
        (0..ZONES).any(kept)
            || self.big.pages() > 0
            || self.magazines.iter().any(|magazine| magazine.held().items > 0)
    }
}

extern "C" fn run<O: Os>(heap: *mut c_void) -> *mut c_void {
    if let Some(heap) = NonNull::new(heap.cast::<Heap<O>>()) {
        // SAFETY: the heap that started it, which joins it before it goes.
        unsafe { heap.as_ref() }.work();
    }
    null_mut()
}
