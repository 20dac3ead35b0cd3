//! Runs the suite on a target: workers, order, counts and times, as the kernel's module does.
//!
//! # Theory
//! All workers wait until the last of them is ready, and then start at once. They wait by yielding: a thread that slept
//! at a barrier would begin only when the thread that wakes it gets its turn. Each runs the selected tests in its own
//! random order, and repeats each as often as configured. Workers are not bound to CPUs; worker `i` stands for CPU `i`,
//! modulo the CPUs.
//!
//! Where workers are more than CPUs, they meet only if each runs for longer than the system lets a thread run at a
//! time. For example, 64 workers of 1 ms each on 2 CPUs run one after the other. None of them waits for a lock then,
//! and each has a CPU to itself. So a worker counts those that had begun when it ended ([`Found::met`]). A figure about
//! contention is good only if that is all of them.
//!
//! # Source
//! Linux `lib/test_vmalloc.c` (6.12, 7.1: `do_concurrent_test`, `test_func`, `shuffle_array`).

use super::body::{Body, Ended};
use super::case::Case;
use super::params::Params;
use super::rcu::Epochs;
use super::target::{Target, Unsettled};
use crate::memory::sys;
use anyhow::{Context as _, Result, bail};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::Builder;
use std::time::{Duration, Instant};
use va_sim::op::Rng;

/// The results of one worker in one test.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Executions that passed, that failed, and that failed as expected.
    pub passed: u32,
    /// See [`passed`](Self::passed).
    pub failed: u32,
    /// See [`passed`](Self::passed).
    pub xfailed: u32,
    /// The time of all executions.
    pub time: Duration,
}

impl Counts {
    /// Returns the number of executions.
    pub fn executions(&self) -> u32 {
        self.passed + self.failed + self.xfailed
    }

    /// Returns the mean time of an execution in whole microseconds.
    pub fn average_us(&self) -> u64 {
        (self.time.as_micros() / u128::from(self.executions().max(1))) as u64
    }
}

/// The results of one worker.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// The counts of each test, by [`Case::index`].
    pub counts: [Counts; Case::ALL.len()],
    /// Cycles of all tests: of the time stamp counter, or nanoseconds if there is none.
    pub cycles: u64,
    /// Workers that had begun when this one ended, itself among them.
    pub met: u32,
}

/// The results of a run.
#[derive(Debug)]
pub struct Ran {
    /// The executed parameters: the mask without the tests that the target cannot run.
    pub params: Params,
    /// The results of each worker.
    pub workers: Vec<Found>,
    /// True if it was interrupted.
    pub interrupted: bool,
    /// The target's report after everything was freed.
    pub settled: Result<(), Unsettled>,
}

impl Ran {
    /// Returns the workers that had begun when the first one ended: all of them, if they met.
    pub fn met(&self) -> u32 {
        self.workers.iter().map(|worker| worker.met).min().unwrap_or(0)
    }

    /// Returns the executions that failed unexpectedly. Failures that a suite expects, but has no column for, are
    /// excluded.
    pub fn failures(&self) -> u64 {
        let of = |found: &Found| -> u64 {
            let unexpected = |case: &Case| self.params.suite.xfails() || !case.may_fail();
            let cases = self.params.cases().filter(unexpected);
            cases.map(|case| u64::from(found.counts[case.index()].failed)).sum()
        };
        self.workers.iter().map(of).sum()
    }
}

/// Returns true if cycles are those of a time stamp counter.
pub fn has_cycles() -> bool {
    sys::cycles().is_some()
}

/// Returns the current time, in cycles.
fn cycles(begun: Instant) -> u64 {
    sys::cycles().unwrap_or_else(|| begun.elapsed().as_nanos() as u64)
}

/// Checks that a target can have as many workers as `params` requests.
///
/// # Errors
/// If it cannot.
pub fn admit(target: &dyn Target, params: &Params) -> Result<()> {
    match (target.workers_max(), params.nr_threads) {
        (most, workers) if workers > most => bail!("at most {most} workers (nr_threads), not {workers}"),
        _ => Ok(()),
    }
}

/// Runs the tests that `params` selects, on `cpus` CPUs. `seed` determines the random numbers. Ends early when `stop`
/// is set.
///
/// # Errors
/// If the target cannot have so many workers, or the system cannot create the threads. No test ran in that case.
pub fn run(target: &dyn Target, params: &Params, cpus: u32, seed: u64, stop: &AtomicBool) -> Result<Ran> {
    admit(target, params)?;
    let epochs = Epochs::new(params.nr_threads as usize);
    let begun = Instant::now();
    let aborted = AtomicBool::new(false);
    let (ready_workers, begun_workers) = (AtomicU32::new(0), AtomicU32::new(0));
    let work = |number: u32| -> Found {
        let _others = OnPanic(&aborted);
        let mut worker = target.worker(number % cpus);
        // Similar seeds would give similar sequences.
        let mut rng = Rng::new(Rng::new(seed ^ u64::from(number) << 32).next_u64());
        let order = order(params, &mut rng);
        let deferred = epochs.deferred(number as usize);
        let mut body = Body { worker: &mut *worker, deferred, rng, params, cpus, stop };
        let mut counts = [Counts::default(); Case::ALL.len()];
        ready_workers.fetch_add(1, Ordering::Relaxed);
        while ready_workers.load(Ordering::Relaxed) < params.nr_threads && !aborted.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
        begun_workers.fetch_add(1, Ordering::Relaxed);
        let start = cycles(begun);
        if !aborted.load(Ordering::Relaxed) {
            for case in order {
                counts[case.index()] = repeat(&mut body, case);
            }
        }
        // Counters of two CPUs may differ.
        let cycles = cycles(begun).saturating_sub(start);
        let met = begun_workers.load(Ordering::Relaxed);
        body.end();
        Found { counts, cycles, met }
    };
    let workers = std::thread::scope(|scope| {
        let mut handles = Vec::new();
        for number in 0..params.nr_threads {
            let (work, name) = (&work, format!("vmalloc_test/{number}"));
            match Builder::new().name(name).spawn_scoped(scope, move || work(number)) {
                Ok(handle) => handles.push(handle),
                Err(error) => {
                    aborted.store(true, Ordering::Relaxed);
                    return Err(error).with_context(|| format!("cannot start worker {number}"));
                }
            }
        }
        let join = |handle: std::thread::ScopedJoinHandle<'_, Found>| match handle.join() {
            Ok(found) => found,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        Ok(handles.into_iter().map(join).collect())
    })?;
    let interrupted = stop.load(Ordering::Relaxed);
    Ok(Ran { params: *params, workers, interrupted, settled: target.settle() })
}

/// Ends the wait of the other workers if this one panics before it is ready.
struct OnPanic<'a>(&'a AtomicBool);

impl Drop for OnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

/// Executes one test on the calling thread, which stands for CPU 0 of `cpus`. Returns true if it passed.
pub fn once(target: &dyn Target, params: &Params, case: Case, cpus: u32, seed: u64) -> bool {
    let (epochs, stop) = (Epochs::new(1), AtomicBool::new(false));
    let mut worker = target.worker(0);
    let (deferred, rng) = (epochs.deferred(0), Rng::new(seed));
    let mut body = Body { worker: &mut *worker, deferred, rng, params, cpus, stop: &stop };
    let ended = body.execute(case);
    body.end();
    ended == Ended::Well || case.may_fail()
}

/// Returns the tests in the order of one worker. A shuffle moves every test.
#[doc(hidden)]
pub fn order(params: &Params, rng: &mut Rng) -> Vec<Case> {
    let mut order = params.suite.cases().to_vec();
    if !params.sequential_test_order {
        for last in (1..order.len()).rev() {
            order.swap(last, rng.below(last as u64) as usize);
        }
    }
    order.retain(|case| params.run_test_mask & case.bit() != 0);
    order
}

/// Executes a test as often as configured.
fn repeat(body: &mut Body<'_>, case: Case) -> Counts {
    let mut counts = Counts::default();
    let begun = Instant::now();
    for _ in 0..body.params.test_repeat_count {
        match body.execute(case) {
            Ended::Well => counts.passed += 1,
            Ended::Badly if case.may_fail() && body.params.suite.xfails() => counts.xfailed += 1,
            Ended::Badly => counts.failed += 1,
            Ended::Early => break,
        }
        counts.time = begun.elapsed();
    }
    counts
}
