//! Compares targets on the kernel's test suite: ratios, latencies, locks, and the figures of the original patches and
//! talk.
//!
//! | module | content |
//! |---|---|
//! | `scenario` | the default tests, workers and targets |
//! | `measure` | alternating rounds, and the observed runs |
//! | `observe` | a target whose calls are timed or whose locks are counted |
//! | `ratio` | the ratio of two figures, unless it lies within their spread |
//! | `tables`, `locks` | times, latencies, `lock_stat` |
//! | `origins` | the figures of the patches and the talk, and those measured here |
//! | `charts` | the time of each test on each worker: before, after, both |
//! | `files` | the page, the CSV, the charts |

mod charts;
mod files;
#[doc(hidden)]
pub mod locks;
#[doc(hidden)]
pub mod measure;
#[doc(hidden)]
pub mod observe;
#[doc(hidden)]
pub mod origins;
#[doc(hidden)]
pub mod ratio;
#[doc(hidden)]
pub mod scenario;
mod tables;

use crate::harness::{Header, check_names, prepare};
use crate::suite::params::Params;
use crate::suite::target::{Entry, Setup};
use anyhow::Result;
use measure::{Measured, Ways};
use origins::Hints;
use scenario::Scenario;
use std::path::Path;
use std::time::Duration;
use vmlab_base::output::Output;

/// A scenario with its measurements.
struct Part {
    scenario: Scenario,
    measured: Vec<Measured>,
}

impl Part {
    fn of(&self, target: &str) -> Option<&Measured> {
        self.measured.iter().find(|measured| measured.target == target)
    }
}

/// All measurements.
struct Compared {
    parts: Vec<Part>,
    /// The workload of the per-CPU series on its engines; `None` if only parameters of the user were compared.
    hints: Option<Hints>,
    cpus: u32,
    /// Nanoseconds that reading the clock adds to each latency.
    clock_ns: u64,
}

/// The comparison to run.
pub struct Wanted<'a> {
    /// The targets; if empty, the default ones.
    pub names: &'a [String],
    /// Parameters of each run.
    pub params: Params,
    /// Rounds of each target, of which the fastest counts.
    pub rounds: u64,
    /// Seconds after which a run is stopped, and its time a lower bound.
    pub limit_s: u64,
    /// Seed of random sizes and orders.
    pub seed: u64,
    /// Set-up of the targets; its CPUs are those of the machine.
    pub setup: Setup,
    /// All targets.
    pub entries: &'a [Entry],
    /// Folder for files.
    pub dir: Option<&'a Path>,
}

/// Compares targets.
///
/// # Errors
/// If a target is unknown, cannot be created or fails a test, or results cannot be written.
pub fn run(wanted: &Wanted<'_>, out: &mut dyn Output) -> Result<()> {
    let Wanted { names, params, rounds, limit_s, seed, setup, entries, dir } = wanted;
    let rounds = *rounds;
    check_names("target", names, &entries.iter().map(|entry| entry.name).collect::<Vec<_>>())?;
    let header = files::about(&Header::read(&out.command()), rounds, *limit_s, setup.cpus);
    if let Some(dir) = dir {
        prepare(dir, &format!("{}.csv", files::STEM))?;
    }
    let (cpus, limit) = (setup.cpus, Duration::from_secs(*limit_s));
    let (setup, entries) = (setup.clone(), entries.to_vec());
    let ways = Ways { rounds, limit, cpus, seed: *seed, setup, entries };
    // Before any measurement, so that an error costs no time.
    let scenarios = scenario::all(params, cpus, names).into_iter();
    let scenarios = scenarios.map(|one| measure::common(one, &ways, out));
    let scenarios = scenarios.collect::<Result<Vec<_>>>()?;
    let mut compared = Compared { parts: Vec::new(), hints: None, cpus, clock_ns: observe::clock_ns() };
    for scenario in scenarios {
        out.note(&format!("{}: {} ...", scenario.name, scenario.params));
        let measured = measure::measure(&scenario, &ways, out)?;
        compared.parts.push(Part { scenario, measured });
    }
    if scenario::is_usual(params) {
        out.note("per-CPU objects of traffic control ...");
        compared.hints = Some(Hints::measure(params, rounds.min(3) as usize)?);
    }
    let report = files::report(&compared, header);
    report.show(out)?;
    match dir {
        Some(dir) => report.write(dir, out),
        None => out.line("no files are written: --out DIR writes them"),
    }
}
