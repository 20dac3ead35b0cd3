//! The optional thread that advances the time: memory that is unused for about a second is released to the system, even
//! while the program makes no call.
//!
//! # Theory
//! ```text
//!   none --much is cached--> starting --> awake <--something is cached-- asleep
//!                                           |  ----nothing is cached--->   |
//!                                           +---- stopped, by the owner ---+
//! ```
//! Sixteen times in the decay time it raises the epoch of all zones and releases the dirty blocks that are older than
//! three quarters of that time. It also makes the contents of magazines dirty that were unused for a quarter of it.
//! When nothing is cached it sleeps until a thread frees something large.
//!
//! It is not started before 16 MiB are cached, so a process that caches less never has one. A thread that finds so much
//! cached starts it, in the slow path of a free, under no lock. If the system was short of threads or memory, a later
//! free tries again. After a failure for another reason (a seccomp profile) none is started, nor in children. A child
//! of a fork has no such thread, and starts its own in the same way.
//!
//! # Invariants
//! - **WK1 no-lost-wake** the thread sleeps without a timeout only after it stored that state and then looked, under
//!   the locks, at all lists of cached memory. A thread that caches something loads that state after it held the lock.
//!   A small run that is cached in an empty front slot is the exception: that is the fast path of a free and loads
//!   nothing for this. While the thread sleeps, one such run per CPU, of less than 2 MiB, stays until a thread frees
//!   something large, or something that finds its slot taken.
//!
//! # Locking
//! It holds `purge` for 64 runs at a time, so that a fork waits no longer than that. Under it, it takes the locks that
//! a purge takes.
//! # Source
//! Our own; jemalloc has background threads, by default off; Linux releases the pages of vmalloc areas at once.

use super::Heap;
use super::time::{DIRTY_TURNS, MAGAZINE_TURNS};
use core::ffi::c_void;
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::AtomicUsize;
use va_base::sync::atomic::{AtomicU32, Ordering};
use vmalloc_os::os::{Errno, Os, Span};
#[cfg(not(loom))]
use vmalloc_os::os::{futex_wait, futex_wait_for, futex_wake};

/// Cached pages from which the thread is started: 16 MiB.
const START_PAGES: u64 = 4096;
/// Slow frees without another attempt after the system was short of threads or memory.
const PAUSE: u32 = 64;
/// Bytes of its stack, of which it touches a few pages; libc places thread-local variables there as well.
const STACK_BYTES: usize = 256 << 10;
/// The guard below the stack, without access: a stack overflow faults instead of writing to other memory.
const GUARD_BYTES: usize = crate::PAGE_BYTES;
/// Pages released under one acquisition of `purge`.
const PART_PAGES: u64 = 64 * 512;

const NONE: u32 = 0;
const STARTING: u32 = 1;
const AWAKE: u32 = 2;
const ASLEEP: u32 = 3;
const STOPPED: u32 = 4;
/// The thread is not wanted, or the system can never start one.
const OFF: u32 = 5;

/// The thread of a heap.
pub(crate) struct Worker {
    // Atomic. Of all threads that find `NONE`, the one that changes it owns the other fields.
    /// The progress of the thread. Protocol PR-WORKER.
    state: AtomicU32,
    /// The thread, once there is one. Protocol PR-WORKER.
    thread: AtomicUsize,
    /// The address of its stack's mapping, which begins with the guard. Protocol PR-WORKER.
    stack: AtomicUsize,
    /// Requests until it is started, after a failure. Protocol PR-WORKER.
    pause: AtomicU32,
}

impl Worker {
    va_base::const_fn! {
        /// Returns the state of a heap that never has the thread.
        pub(super) fn off() -> Self {
            Self {
                state: AtomicU32::new(OFF),
                thread: AtomicUsize::new(0),
                stack: AtomicUsize::new(0),
                pause: AtomicU32::new(0),
            }
        }
    }

    /// Returns the state of a heap whose thread is not started yet.
    pub(super) fn new() -> Self {
        Self { state: AtomicU32::new(NONE), ..Self::off() }
    }

    /// Returns true if the thread exists; then no call advances the time.
    pub(super) fn is_there(&self) -> bool {
        matches!(self.state.load(Ordering::Relaxed), AWAKE | ASLEEP)
    }

    /// Forgets the thread in a child of a fork, which has none.
    pub(super) fn forget(&self) {
        if self.state.load(Ordering::Relaxed) != OFF {
            self.state.store(NONE, Ordering::Relaxed);
            self.pause.store(0, Ordering::Relaxed);
        }
    }

    /// Records that the thread was not started. Where the system was short of something, it may be started later.
    fn failed(&self, errno: Errno) {
        let passes = matches!(errno.0, libc::EAGAIN | libc::ENOMEM | libc::EINTR);
        self.pause.store(PAUSE, Ordering::Relaxed);
        self.state.store(if passes { NONE } else { OFF }, Ordering::Release);
    }

    fn change(&self, from: u32, to: u32) -> bool {
        // Acquire and release: after the last change by another thread, and before the next one.
        self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Wakes the thread if it sleeps, after memory was cached.
    #[inline]
    pub(crate) fn wake(&self) {
        if self.state.load(Ordering::Relaxed) == ASLEEP && self.change(ASLEEP, AWAKE) {
            futex_wake(&self.state);
        }
    }

    /// Makes the thread sleep from now on, unless something is cached. Called by the thread, which is awake. Checks WK1:
    /// the state is stored first, and the lists are read under their locks afterwards.
    pub(crate) fn sleep_unless(&self, has_cached: impl FnOnce() -> bool) {
        if self.change(AWAKE, ASLEEP) && has_cached() {
            self.change(ASLEEP, AWAKE);
        }
    }

    /// Returns the state of a heap whose thread is awake.
    #[cfg(all(test, loom))]
    pub(crate) fn awake() -> Self {
        Self { state: AtomicU32::new(AWAKE), ..Self::off() }
    }

    /// Returns true if the thread sleeps.
    #[cfg(all(test, loom))]
    pub(crate) fn is_asleep(&self) -> bool {
        self.state.load(Ordering::Relaxed) == ASLEEP
    }
}

/// The waits of a program under loom, whose models have none.
#[cfg(loom)]
mod futex {
    use va_base::sync::atomic::AtomicU32;

    pub(super) fn futex_wait(_: &AtomicU32, _: u32) {}

    pub(super) fn futex_wait_for(_: &AtomicU32, _: u32, _: u64) {}

    pub(super) fn futex_wake(_: &AtomicU32) {}
}
#[cfg(loom)]
use futex::{futex_wait, futex_wait_for, futex_wake};

impl<O: Os> Heap<O> {
    /// Wakes the thread if it sleeps, when cached memory has moved to another list. Called as [`poke`](Self::poke).
    #[inline]
    pub(super) fn wake(&self) {
        self.worker.wake();
    }

    /// Notifies the thread that memory was cached. Called under no lock, after the lock of that list was released.
    #[inline]
    pub(super) fn poke(&self) {
        match self.worker.state.load(Ordering::Relaxed) {
            NONE if self.cached_hint() >= START_PAGES => self.start_worker(),
            ASLEEP => self.worker.wake(),
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
                    // SAFETY: mapped just above. If it fails, the stack has no guard, as on some systems.
                    let _failed = unsafe { os.forbid(Span { at, bytes: GUARD_BYTES }) };
                    worker.stack.store(at, Ordering::Relaxed);
                }
                Err(errno) => return worker.failed(errno),
            }
        }
        let stack = Span { at: worker.stack.load(Ordering::Relaxed) + GUARD_BYTES, bytes: STACK_BYTES };
        // Before the thread starts, so that it finds this state, and so does the owner that stops it.
        worker.state.store(AWAKE, Ordering::Release);
        let heap = (&raw const *self).cast_mut().cast::<c_void>();
        // SAFETY: the stack is used by this thread alone, of which there is one at a time; the heap outlives it,
        // because it is joined first.
        match unsafe { os.spawn(stack, run::<O>, heap) } {
            Ok(thread) => worker.thread.store(thread, Ordering::Release),
            Err(errno) => worker.failed(errno),
        }
    }

    /// Stops the thread. Called by the owner, when no other call is in progress or follows.
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
            // SAFETY: mapped by `start_worker`; the thread that ran on it has ended.
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
                    if !self.turn() {
                        worker.sleep_unless(|| self.has_cached());
                    }
                }
                ASLEEP => futex_wait(&worker.state, ASLEEP),
                _ => return,
            }
        }
    }

    /// Advances the time by a sixteenth of the decay time. Returns true if anything is still cached.
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
        for zone in self.zones() {
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
        self.has_cached()
    }

    /// Returns true if anything is cached that decay may release.
    pub(super) fn has_cached(&self) -> bool {
        // Runs that a purge or a refill has detached may become dirty again.
        let cached = |zone| {
            let central = self.zone(zone);
            central.cold.len() > 0 || central.leaving > 0
        };
        self.zones().any(cached)
            || self.big.pages() > 0
            || self.magazines.iter().any(|magazine| magazine.held().items > 0)
    }
}

extern "C" fn run<O: Os>(heap: *mut c_void) -> *mut c_void {
    if let Some(heap) = NonNull::new(heap.cast::<Heap<O>>()) {
        // SAFETY: the heap that started it, which joins the thread before it is dropped.
        unsafe { heap.as_ref() }.work();
    }
    null_mut()
}
