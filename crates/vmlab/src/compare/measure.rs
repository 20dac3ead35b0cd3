//! Scenarios, and their measurement: targets in turn, round by round, each time on an empty target.
//!
//! # Method
//! Rounds are timed with the usual locks and with nothing looked at; a target's figure is its fastest round. Then each target runs
//! once with every call clocked, and once with spin locks that count. All runs of a round have the same random numbers.
//!
//! A run that does not end in time is stopped. What it did until then says nothing of the whole but that it takes longer than it was
//! given: its time is a lower bound, and it is not run again in later rounds.

use super::observe::{Look, Observed, Seen};
use crate::machine::WatchedSpin;
use crate::suite::case::Case;
use crate::suite::driver::{self, Ran};
use crate::suite::history::Era;
use crate::suite::params::Params;
use crate::suite::print::mean_ns;
use crate::suite::target::{Entry, Setup, Target};
use anyhow::{Result, bail};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// What targets are compared on.
#[derive(Clone, Debug)]
pub(super) struct Scenario {
    /// A short name.
    pub(super) name: &'static str,
    pub(super) params: Params,
    /// The targets, by name, in the order of the tables; ratios are to the first.
    pub(super) targets: Vec<String>,
}

/// How it is measured.
#[derive(Clone, Debug)]
pub(super) struct Ways {
    pub(super) rounds: u64,
    /// What one run is given.
    pub(super) limit: Duration,
    /// Processors of the machine.
    pub(super) cpus: u32,
    /// Of targets.
    pub(super) setup: Setup,
    pub(super) entries: Vec<Entry>,
}

/// One target in one scenario.
pub(super) struct Measured {
    pub(super) target: String,
    /// The fastest round.
    pub(super) ran: Ran,
    /// Its time: what it was given, if it was stopped.
    time: Duration,
    /// The time of each round that ended.
    pub(super) rounds: Vec<Duration>,
    /// The run in which each call was clocked; `None` if it did not end.
    pub(super) clocked: Option<Seen>,
    /// The run in which locks were counted; `None` if it did not end or the target's locks do not count.
    pub(super) counted: Option<Seen>,
}

impl Measured {
    /// From when workers were let go to when the last had ended: at least that, if the run was stopped.
    pub(super) fn wall(&self) -> Duration {
        self.time
    }

    /// Whether it was stopped.
    pub(super) fn is_bound(&self) -> bool {
        self.ran.interrupted
    }

    /// Nanoseconds of a loop of a test in the mean of all workers; `None` if not all executed it to its end.
    pub(super) fn loop_ns(&self, case: Case) -> Option<f64> {
        let repeats = self.ran.params.test_repeat_count;
        let whole = |worker: &driver::Found| worker.counts[case.index()].executions() == repeats;
        self.ran.workers.iter().all(whole).then(|| mean_ns(&self.ran, case))?
    }
}

fn wall(ran: &Ran) -> Duration {
    let of = |worker: &driver::Found| -> Duration { worker.counts.iter().map(|counts| counts.time).sum() };
    ran.workers.iter().map(of).max().unwrap_or_default()
}

/// Measures a scenario on all of its targets.
///
/// # Errors
/// If a target cannot be made or has a test fail, or is not in order when all is freed.
pub(super) fn measure(scenario: &Scenario, ways: &Ways) -> Result<Vec<Measured>> {
    let mut all: Vec<Option<Measured>> = scenario.targets.iter().map(|_| None).collect();
    for round in 0..ways.rounds {
        for (name, measured) in scenario.targets.iter().zip(&mut all) {
            if measured.as_ref().is_some_and(Measured::is_bound) {
                continue;
            }
            let Some((ran, _)) = run(scenario, name, ways, Look::Nothing, round)? else { continue };
            // Of a test that was stopped nobody counts the time.
            let time = if ran.interrupted { ways.limit } else { wall(&ran) };
            match measured {
                None => {
                    let rounds = if ran.interrupted { vec![] } else { vec![time] };
                    let target = name.clone();
                    *measured = Some(Measured { target, ran, time, rounds, clocked: None, counted: None });
                }
                // A round that is stopped says less than one that ended.
                Some(_) if ran.interrupted => {}
                Some(best) => {
                    best.rounds.push(time);
                    if time < best.wall() {
                        (best.ran, best.time) = (ran, time);
                    }
                }
            }
        }
    }
    for (name, measured) in scenario.targets.iter().zip(&mut all) {
        let Some(measured) = measured.as_mut().filter(|measured| !measured.is_bound()) else { continue };
        for look in [Look::Calls, Look::Locks] {
            let looked = run(scenario, name, ways, look, 0)?;
            let seen = looked.filter(|(ran, _)| !ran.interrupted).map(|(_, seen)| seen);
            match look {
                Look::Locks => measured.counted = seen,
                _ => measured.clocked = seen,
            }
        }
    }
    Ok(all.into_iter().flatten().collect())
}

/// Makes a target; `None` if its locks were to count and do not.
fn make(name: &str, entries: &[Entry], setup: &Setup, how: Look) -> Result<Option<Box<dyn Target>>> {
    let Some(entry) = entries.iter().find(|entry| entry.name == name) else {
        let names: Vec<_> = entries.iter().map(|entry| entry.name).collect();
        bail!("no target is called {name} (there are {})", names.join(", "));
    };
    if how == Look::Locks {
        let era = Era::ALL.into_iter().find(|era| era.name() == name);
        return era.map(|era| era.make::<WatchedSpin>(setup)).transpose();
    }
    (entry.make)(setup).map(Some)
}

/// One run of one target; `None` if it cannot be looked at so.
fn run(scenario: &Scenario, name: &str, ways: &Ways, how: Look, seed: u64) -> Result<Option<(Ran, Seen)>> {
    // A CPU for each worker: as many as the kernel's machine had for the same threads.
    let cpus = scenario.params.nr_threads.max(ways.cpus);
    let setup = Setup { cpus, ..ways.setup.clone() };
    let Some(target) = make(name, &ways.entries, &setup, how)? else { return Ok(None) };
    let mut params = scenario.params;
    params.run_test_mask = params.cases().filter(|&case| target.supports(case)).map(Case::bit).sum();
    if params.run_test_mask == 0 {
        return Ok(None);
    }
    let observed = Observed::new(&*target, cpus, how);
    let ran = in_time(&observed, &params, ways, seed)?;
    let seen = observed.seen();
    if let Err(unsettled) = &ran.settled {
        bail!("{name}, {}: {unsettled}", scenario.name);
    }
    if ran.failures() > 0 {
        bail!("{name}, {}: {} executions of tests failed", scenario.name, ran.failures());
    }
    Ok(Some((ran, seen)))
}

/// Runs the suite and stops it when its time is over.
fn in_time(target: &dyn Target, params: &Params, ways: &Ways, seed: u64) -> Result<Ran> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (done, wait) = channel::<()>();
        let stop = &stop;
        scope.spawn(move || {
            // Its sender going away is how it learns that the run has ended.
            if wait.recv_timeout(ways.limit) == Err(RecvTimeoutError::Timeout) {
                stop.store(true, Ordering::Relaxed);
            }
        });
        // Workers stand for CPUs of their own; what a test makes of the number of CPUs is that of the machine.
        let ran = driver::run(target, params, ways.cpus, seed, stop);
        drop(done);
        ran
    })
}
