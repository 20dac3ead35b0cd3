//! Scenarios, and their measurement: the targets alternate in rounds, each time starting empty.
//!
//! # Method
//! Rounds are timed with the usual locks and without observation; a target's figure is its fastest round. Then each
//! target runs once with every call timed, and once with spin locks that count. All runs of a round have the same
//! random numbers.
//!
//! A run that exceeds the limit is stopped. It shows only that the whole takes longer than the limit. So its time is a
//! lower bound, and it is not run again in later rounds.

use super::observe::{Look, Observed, Seen};
use super::ratio::{Figure, Ratio};
use crate::harness::turns;
use crate::suite::case::Case;
use crate::suite::driver::{self, Ran};
use crate::suite::params::Params;
use crate::suite::print::mean_ns;
use crate::suite::target::{Entry, Setup, Target};
use anyhow::{Context as _, Result, bail};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;
use va_space::NODES_LIMIT;
use vmlab_base::output::Output;
use vmlab_targets::Era;

/// The subject of a comparison.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// A short name.
    pub name: &'static str,
    pub params: Params,
    /// The targets, by name, in the order of the tables; ratios are to the first.
    pub targets: Vec<String>,
}

/// The options of measurement.
#[derive(Clone, Debug)]
pub struct Ways {
    pub rounds: u64,
    /// Time limit of one run.
    pub limit: Duration,
    /// CPUs of the machine.
    pub cpus: u32,
    /// Seed of random sizes and orders.
    pub seed: u64,
    /// The set-up of targets.
    pub setup: Setup,
    pub entries: Vec<Entry>,
}

/// One target in one scenario.
pub struct Measured {
    pub(super) target: String,
    /// The fastest round.
    pub ran: Ran,
    /// The time of that round, or the limit if it was stopped.
    time: Duration,
    /// All rounds. A stopped one took the limit at least.
    pub(super) rounds: Vec<Round>,
    /// The run in which each call was timed; `None` if it was stopped.
    pub(super) clocked: Option<Seen>,
    /// The run in which locks were counted; `None` if it was stopped or the target's locks do not count.
    pub(super) counted: Option<Seen>,
}

/// The figures of one round.
pub(super) struct Round {
    pub(super) time: Duration,
    /// Nanoseconds of a loop, by [`Case::index`].
    loop_ns: [Option<f64>; Case::ALL.len()],
    /// Workers that had begun when the first one ended.
    met: u32,
}

impl Round {
    fn new(ran: &Ran, time: Duration) -> Self {
        let mut loop_ns = [None; Case::ALL.len()];
        ran.params.cases().for_each(|case| loop_ns[case.index()] = loop_ns_of(ran, case));
        Self { time, loop_ns, met: ran.met() }
    }
}

/// Returns the nanoseconds of a loop of a test, the mean of all workers; `None` if not all completed the test.
fn loop_ns_of(ran: &Ran, case: Case) -> Option<f64> {
    let whole =
        |worker: &driver::Found| worker.counts[case.index()].executions() == ran.params.test_repeat_count;
    ran.workers.iter().all(whole).then(|| mean_ns(ran, case))?
}

impl Measured {
    /// Returns the longest of the workers' times: a lower bound, if the run was stopped.
    pub(super) fn wall(&self) -> Duration {
        self.time
    }

    /// Returns true if it was stopped, so that its time is a lower bound.
    pub(super) fn is_bound(&self) -> bool {
        self.ran.interrupted
    }

    /// Returns the seconds of all rounds.
    pub(super) fn seconds(&self) -> Figure {
        let least = self.time.as_secs_f64();
        if self.is_bound() {
            return Figure::at_least(least);
        }
        Figure::new(least, self.rounds.iter().map(|round| round.time.as_secs_f64()))
    }

    /// Returns the nanoseconds of a loop of a test in the fastest round; `None` if not all workers completed the test.
    pub(super) fn loop_ns(&self, case: Case) -> Option<Figure> {
        let shown = loop_ns_of(&self.ran, case)?;
        Some(Figure::new(shown, self.rounds.iter().filter_map(|round| round.loop_ns[case.index()])))
    }

    /// Returns the least number of workers that had begun when the first one ended, of all rounds.
    pub(super) fn met(&self) -> u32 {
        self.rounds.iter().map(|round| round.met).min().unwrap_or(0)
    }

    /// Returns the ratio of a figure of this target to one of `by`, if the workers of each round met.
    pub(super) fn ratio(&self, by: &Self, figures: [&Figure; 2]) -> Ratio {
        let workers = self.ran.params.nr_threads;
        Ratio::new(figures[0], figures[1]).of_workers(self.met().min(by.met()), workers)
    }
}

fn wall(ran: &Ran) -> Duration {
    let of = |worker: &driver::Found| -> Duration { worker.counts.iter().map(|counts| counts.time).sum() };
    ran.workers.iter().map(of).max().unwrap_or_default()
}

/// Returns the scenario with the tests that each of its targets can run; notes the omitted tests.
///
/// # Errors
/// If a target cannot be created or cannot have so many workers, or no test is left.
pub fn common(scenario: Scenario, ways: &Ways, out: &mut dyn Output) -> Result<Scenario> {
    let mut mask = scenario.params.run_test_mask;
    for name in &scenario.targets {
        let Some(target) = make(name, &ways.entries, &ways.setup, Look::Nothing)? else { continue };
        driver::admit(&*target, &scenario.params).with_context(|| format!("{}: {name}", scenario.name))?;
        for case in scenario.params.cases().filter(|&case| !target.supports(case)) {
            let test = case.name();
            out.note(&format!("{}: {name} has nothing for {test}, which is left out for all", scenario.name));
            mask &= !case.bit();
        }
    }
    let params = Params { run_test_mask: mask, ..scenario.params };
    if params.cases().next().is_none() {
        let all = scenario.params.run_test_mask;
        bail!(
            "{}: the targets have none of the tests that run_test_mask={all} selects in common",
            scenario.name
        );
    }
    Ok(Scenario { params, ..scenario })
}

/// Measures a scenario on all of its targets, each of which can run all of its tests.
///
/// # Errors
/// If a target cannot be created, fails a test, or is not empty when everything is freed.
pub fn measure(scenario: &Scenario, ways: &Ways, out: &mut dyn Output) -> Result<Vec<Measured>> {
    let mut all: Vec<Option<Measured>> = scenario.targets.iter().map(|_| None).collect();
    for (round, at) in turns(ways.rounds as usize, all.len()) {
        let (name, measured) = (&scenario.targets[at], &mut all[at]);
        if measured.as_ref().is_some_and(Measured::is_bound) {
            continue;
        }
        let Some((ran, _)) = run(scenario, name, ways, Look::Nothing, round as u64)? else { continue };
        // The workers' times of a stopped run are not complete.
        let time = if ran.interrupted { ways.limit } else { wall(&ran) };
        match measured {
            None => {
                let rounds = vec![Round::new(&ran, time)];
                let target = name.clone();
                *measured = Some(Measured { target, ran, time, rounds, clocked: None, counted: None });
            }
            Some(best) => {
                best.rounds.push(Round::new(&ran, time));
                // A stopped round has less information than one that ended.
                if !ran.interrupted && time < best.wall() {
                    (best.ran, best.time) = (ran, time);
                }
            }
        }
    }
    for (name, measured) in scenario.targets.iter().zip(&mut all) {
        let Some(measured) = measured.as_mut().filter(|measured| !measured.is_bound()) else { continue };
        for look in [Look::Calls, Look::Locks] {
            let looked = run(scenario, name, ways, look, 0)?;
            if looked.as_ref().is_some_and(|(ran, _)| ran.interrupted) {
                let what = if look == Look::Locks { "locks counted" } else { "calls clocked" };
                out.note(&format!(
                    "{}: {name}: the run with {what} was stopped, so it is not shown",
                    scenario.name
                ));
            }
            let seen = looked.filter(|(ran, _)| !ran.interrupted).map(|(_, seen)| seen);
            match look {
                Look::Locks => measured.counted = seen,
                _ => measured.clocked = seen,
            }
        }
    }
    Ok(all.into_iter().flatten().collect())
}

/// Creates a target; `None` if its locks should count and cannot.
fn make(name: &str, entries: &[Entry], setup: &Setup, how: Look) -> Result<Option<Box<dyn Target>>> {
    let entry = entries.iter().find(|entry| entry.name == name);
    let entry = entry.with_context(|| format!("no target is called {name}"))?;
    if how == Look::Locks {
        let era = Era::ALL.into_iter().find(|era| era.name() == name);
        return era.map(|era| era.make_watched(setup)).transpose();
    }
    (entry.make)(setup).map(Some)
}

/// Runs one target once; `None` if it cannot be observed in this way.
fn run(scenario: &Scenario, name: &str, ways: &Ways, how: Look, round: u64) -> Result<Option<(Ran, Seen)>> {
    // A CPU for each worker, as the kernel's machine had for the same threads; beyond the limit workers share.
    let cpus = scenario.params.nr_threads.max(ways.cpus).min(NODES_LIMIT);
    let setup = Setup { cpus, ..ways.setup.clone() };
    let Some(target) = make(name, &ways.entries, &setup, how)? else { return Ok(None) };
    let observed = Observed::new(&*target, cpus, how);
    let ran = in_time(&observed, &scenario.params, ways, ways.seed ^ round)?;
    let seen = observed.seen();
    if let Err(unsettled) = &ran.settled {
        bail!("{name}, {}: {unsettled}", scenario.name);
    }
    if ran.failures() > 0 {
        bail!("{name}, {}: {} executions of tests failed", scenario.name, ran.failures());
    }
    Ok(Some((ran, seen)))
}

/// Runs the suite and stops it after the time limit.
fn in_time(target: &dyn Target, params: &Params, ways: &Ways, seed: u64) -> Result<Ran> {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (done, wait) = channel::<()>();
        let stop = &stop;
        scope.spawn(move || {
            // When the run ends, its sender is dropped, which ends this wait.
            if wait.recv_timeout(ways.limit) == Err(RecvTimeoutError::Timeout) {
                stop.store(true, Ordering::Relaxed);
            }
        });
        // Each worker stands for its own CPU. Tests that depend on the number of CPUs use the machine's.
        let ran = driver::run(target, params, ways.cpus, seed, stop);
        drop(done);
        ran
    })
}
