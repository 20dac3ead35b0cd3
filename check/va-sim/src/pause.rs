//! A call that stops before a lock or a table, while others run: the interleavings of a preemption, one at a time.
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
    /// The place before which this thread stops, and how often it passes that before.
    static STOPS: Cell<Option<(Stop, u32)>> = const { Cell::new(None) };
}

/// The place before which a call stops.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// It takes a lock.
    Lock(LockClass),
    /// It requests a table.
    Table,
}

impl From<LockClass> for Stop {
    fn from(class: LockClass) -> Self {
        Self::Lock(class)
    }
}

/// Stops a call, for a machine that is watched by this.
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

    /// Calls `first`, which stops before the place for the `nth` time, from 0 on. Calls `meanwhile` then, or when `first`
    /// has ended without that. Returns what both return.
    ///
    /// # Panics
    /// If `first` panics.
    pub fn beside<T: Send, U>(
        &self,
        stop: impl Into<Stop>,
        nth: u32,
        first: impl FnOnce() -> T + Send,
        meanwhile: impl FnOnce() -> U,
    ) -> (T, U) {
        let stop = stop.into();
        self.stopped.store(false, Ordering::SeqCst);
        self.goes_on.store(false, Ordering::SeqCst);
        thread::scope(|scope| {
            let first = scope.spawn(|| {
                STOPS.set(Some((stop, nth)));
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

impl Pause {
    /// Stops a thread that passes a place, if it is to stop there.
    fn pass(&self, place: Stop) {
        let Some((_, before)) = STOPS.get().filter(|&(stop, _)| stop == place) else { return };
        match before.checked_sub(1) {
            Some(left) => STOPS.set(Some((place, left))),
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

impl Watch for Pause {
    fn locking(&self, class: LockClass) {
        self.pass(class.into());
    }

    fn admits_table(&self, bytes: usize) -> bool {
        self.pass(Stop::Table);
        self.admits(bytes)
    }
}
