//! A call that stops before a lock, while others run: the interleavings of a preemption, one at a time.
//!
//! A stress test meets a fault between two steps of a call once in a million, if at all. Here a call stops at the place
//! that the test names, as a preemption would stop it there. For example, "before it takes `records` for the second
//! time". The test runs other calls to their end meanwhile, and then lets the first one go on.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use va_base::{HeapMachine, LockClass, Watch};

/// A machine whose calls can be stopped.
pub type PausingMachine = HeapMachine<parking_lot::RawMutex, Pause>;

thread_local! {
    /// The lock before which this thread stops, and how often it takes that lock before.
    static STOPS: Cell<Option<(LockClass, u32)>> = const { Cell::new(None) };
}

/// Stops a call before a lock, for a machine that is watched by this.
#[derive(Debug, Default)]
pub struct Pause {
    stopped: AtomicBool,
    goes_on: AtomicBool,
}

impl Pause {
    /// Returns a machine with `cpus` CPUs.
    #[must_use]
    pub fn machine(cpus: u32) -> PausingMachine {
        HeapMachine::watched(cpus, Self::default())
    }

    /// Calls `first`, which stops before it takes a lock of `class` for the `nth` time, from 0 on. Calls `meanwhile` then,
    /// or when `first` has ended without that. Returns what both return.
    ///
    /// # Panics
    /// If `first` panics.
    pub fn beside<T: Send, U>(
        &self,
        class: LockClass,
        nth: u32,
        first: impl FnOnce() -> T + Send,
        meanwhile: impl FnOnce() -> U,
    ) -> (T, U) {
        self.stopped.store(false, Ordering::SeqCst);
        self.goes_on.store(false, Ordering::SeqCst);
        thread::scope(|scope| {
            let first = scope.spawn(|| {
                STOPS.set(Some((class, nth)));
                let got = first();
                STOPS.set(None);
                got
            });
            while !self.stopped.load(Ordering::SeqCst) && !first.is_finished() {
                thread::yield_now();
            }
            let beside = meanwhile();
            self.goes_on.store(true, Ordering::SeqCst);
            let got = first.join();
            (got.unwrap_or_else(|panic| std::panic::resume_unwind(panic)), beside)
        })
    }
}

impl Watch for Pause {
    fn locking(&self, class: LockClass) {
        let Some((_, before)) = STOPS.get().filter(|&(stops_at, _)| stops_at == class) else { return };
        match before.checked_sub(1) {
            Some(left) => STOPS.set(Some((class, left))),
            None => {
                STOPS.set(None);
                self.stopped.store(true, Ordering::SeqCst);
                while !self.goes_on.load(Ordering::SeqCst) {
                    thread::yield_now();
                }
            }
        }
    }
}
