//! Compares targets on the kernel's test suite: ratios, latencies, locks, and the figures of the original patches and
//! talk.
//!
//! | module | content |
//! |---|---|
//! | `scenario` | the default tests, workers and targets |
//! | `measure` | alternating rounds, and the observed runs |
//! | `observe` | a target whose calls are timed or whose locks are counted |
//! | `tables`, `locks` | times, latencies, `lock_stat` |
//! | `origins` | the figures of the patches and the talk, and those measured here |
//! | `charts` | the time of each test on each worker: before, after, both |
//! | `files` | the page, the CSV, the charts |

mod charts;
mod files;
mod locks;
mod measure;
mod observe;
mod origins;
mod scenario;
mod tables;

use crate::bench::print::{header, prepare, tables_to_terminal};
use crate::cli::{out, print_note};
use crate::suite::params::Params;
use crate::suite::target::{Entry, Setup};
use anyhow::{Result, bail};
use clap::builder::RangedU64ValueParser;
use measure::{Measured, Ways};
use origins::Hints;
use scenario::Scenario;
use std::path::Path;
use std::time::Duration;

/// Options of `vmlab test --compare`.
#[derive(clap::Args, Debug, Clone)]
#[group(id = "comparison")]
pub struct Args {
    /// Compare targets side by side, ratios to the first; the figures of the patches beside them (default: list,
    /// one-lock, hashed, nodes, space). With parameters that select tests or workers, on these alone
    #[arg(long, value_name = "NAME", value_delimiter = ',', num_args = 0..=1, group = "page",
        conflicts_with = "target")]
    compare: Option<Vec<String>>,
    /// Rounds of each target, of which the fastest counts, 1 to 1000
    #[arg(long, value_name = "N", default_value_t = 3, requires = "compare",
        value_parser = RangedU64ValueParser::<u64>::new().range(1..=1000))]
    rounds: u64,
    /// Seconds after which a run is stopped, and its time a lower bound
    #[arg(long, value_name = "SECONDS", default_value_t = 60, requires = "compare",
        value_parser = RangedU64ValueParser::<u64>::new().range(1..=86_400))]
    limit: u64,
}

impl Args {
    /// Returns the names and the parameters among the arguments, if targets are to be compared.
    pub fn wanted(&self) -> Option<(Vec<String>, Vec<String>)> {
        let given = self.compare.as_ref()?;
        // An optional value also consumes an argument that is a parameter.
        let is_parameter =
            |text: &String| text.contains('=') || ["performance", "stress", "smoke"].contains(&text.as_str());
        Some(given.iter().filter(|text| !text.is_empty()).cloned().partition(|text| !is_parameter(text)))
    }
}

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
pub fn run(args: &Args, wanted: &Wanted<'_>) -> Result<()> {
    let Wanted { names, params, seed, setup, entries, dir } = wanted;
    if let Some(unknown) = names.iter().find(|name| entries.iter().all(|entry| entry.name != name.as_str())) {
        let known: Vec<_> = entries.iter().map(|entry| entry.name).collect();
        bail!("no target is called {unknown} (there are {})", known.join(", "));
    }
    let header = files::about(&header(args.rounds as usize), args);
    if let Some(dir) = dir {
        prepare(dir, files::CSV)?;
    }
    let (cpus, limit) = (setup.cpus, Duration::from_secs(args.limit));
    let (setup, entries) = (setup.clone(), entries.to_vec());
    let ways = Ways { rounds: args.rounds, limit, cpus, seed: *seed, setup, entries };
    // Before any measurement, so that an error costs no time.
    let scenarios = scenario::all(params, cpus, names).into_iter().map(|one| measure::common(one, &ways));
    let scenarios = scenarios.collect::<Result<Vec<_>>>()?;
    let mut compared = Compared { parts: Vec::new(), hints: None, cpus, clock_ns: observe::clock_ns() };
    for scenario in scenarios {
        print_note(&format!("{}: {} ...", scenario.name, scenario.params));
        let measured = measure::measure(&scenario, &ways)?;
        compared.parts.push(Part { scenario, measured });
    }
    if scenario::is_usual(params) {
        print_note("per-CPU objects of traffic control ...");
        compared.hints = Some(Hints::measure(params, args.rounds.min(3) as usize)?);
    }
    tables_to_terminal(tables::all(&compared))?;
    for text in locks::all(&compared) {
        out(&text)?;
    }
    match dir {
        Some(dir) => files::write(&compared, dir, &header),
        None => out("no files are written: --out DIR writes them"),
    }
}
