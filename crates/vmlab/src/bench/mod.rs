//! Measures indexes side by side: one process, the same operations for all, round by round in turn.
//!
//! # Method
//! A workload is a stream of operations made once from a fixed seed, so that every contender does exactly the same. The
//! stream is cut into rounds; each round runs on every contender before the next begins, so that what disturbs the
//! machine disturbs all. A contender that does nothing (`null`) runs in the same turn: what it takes is the harness (the
//! stream, the table of what is out), and the fastest round of it is subtracted from every other's. Exact indexes must
//! give the same addresses, or the run is an error.

mod contenders;
mod kern;
mod peers;
mod print;
mod workloads;

use crate::cli::{out, say};
use anyhow::{Result, bail};
use clap::builder::RangedU64ValueParser;
use contenders::{Contender, Runner};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use workloads::Workload;

/// Options of `vmlab bench index`.
#[derive(clap::Args, Debug, Clone)]
pub struct Args {
    /// Only workloads whose name contains this
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Only these contenders (see the first table's head for their names)
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    indexes: Vec<String>,
    /// Rounds, 1 to 1000
    #[arg(long, default_value_t = 15, value_parser = RangedU64ValueParser::<usize>::new().range(1..=ROUNDS_MAX))]
    rounds: usize,
    /// Fewer and smaller workloads, three rounds
    #[arg(long, conflicts_with = "rounds")]
    quick: bool,
    /// Where CSV, tables and SVG go: results/, unless the run is a part (--quick, --filter, --indexes), which writes
    /// files only if told where
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// A shared library with the C functions ki_init, ki_alloc and ki_free, measured as `kern`
    #[arg(long, value_name = "FILE")]
    kern: Option<PathBuf>,
}

impl Args {
    /// Where files go. A part of the measurements must not take the place of all.
    fn files(&self) -> Option<&Path> {
        let part = self.quick || self.filter.is_some() || !self.indexes.is_empty();
        self.out.as_deref().or((!part).then_some(Path::new("results")))
    }
}

/// What was measured of one contender on one workload.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    pub(crate) workload: String,
    pub(crate) contender: &'static str,
    /// Nanoseconds a pair, harness subtracted: median and fastest round.
    pub(crate) median: f64,
    pub(crate) min: f64,
    /// The fastest round with the harness, and the harness.
    pub(crate) raw_min: f64,
    pub(crate) harness: f64,
    pub(crate) rounds: usize,
    pub(crate) memory: Option<(va_tree::IndexMemory, u64)>,
}

/// A contender at work on one workload.
struct Running<'a> {
    contender: &'a Contender,
    runner: Box<dyn Runner>,
    times: Vec<Duration>,
    spent: Duration,
}

/// The streams of all rounds are made before the first begins: a thousand are half a gigabyte.
const ROUNDS_MAX: u64 = 1000;
/// The longest that filling the space may take before a contender is left out of a workload.
const SETUP_BUDGET: Duration = Duration::from_secs(4);
/// The longest that all rounds of one contender may take on one workload; two rounds are run in any case.
const ROUNDS_BUDGET: Duration = Duration::from_secs(4);

/// Runs the benchmark.
///
/// # Errors
/// If two exact indexes disagree, a library cannot be loaded, or results cannot be written.
pub fn run(args: &Args) -> Result<()> {
    let rounds = if args.quick { 3 } else { args.rounds };
    // The run takes minutes: what it ran on is asked for before somebody commits or edits, and before it is pinned.
    let header = print::header(rounds);
    if let Some(dir) = args.files() {
        print::prepare(dir)?;
    }
    if let Some(core) = core_affinity::get_core_ids().and_then(|cores| cores.last().copied()) {
        // Not being allowed to pin only makes the figures noisier.
        core_affinity::set_for_current(core);
    }
    let mut contenders = contenders::all();
    if let Some(path) = &args.kern {
        contenders.push(kern::contender(path)?);
    }
    if let Some(unknown) = args.indexes.iter().find(|name| contenders.iter().all(|c| c.name != name.as_str()))
    {
        bail!("no contender is called {unknown}");
    }
    contenders.retain(|c| args.indexes.is_empty() || args.indexes.iter().any(|name| name == c.name));
    let workloads: Vec<&workloads::Spec> = workloads::ALL
        .iter()
        .filter(|spec| args.filter.as_ref().is_none_or(|text| spec.name.contains(text.as_str())))
        .filter(|spec| !args.quick || spec.quick)
        .collect();
    if workloads.is_empty() {
        bail!("no workload's name contains {:?}", args.filter.as_deref().unwrap_or_default());
    }
    let mut cells = Vec::new();
    for spec in workloads {
        let workload = spec.make(rounds);
        say(&format!("{} ...", workload.name));
        cells.extend(measure(&workload, &contenders, rounds)?);
    }
    print::tables_to_terminal(&cells)?;
    match args.files() {
        Some(dir) => print::files(&cells, dir, &header),
        None => out("no files are written of a part of the measurements: --out DIR writes them"),
    }
}

/// Measures all contenders on one workload.
fn measure(workload: &Workload, contenders: &[Contender], rounds: usize) -> Result<Vec<Cell>> {
    let mut null = contenders::null(workload);
    null.setup(workload, Instant::now() + SETUP_BUDGET);
    let mut running: Vec<Running<'_>> = Vec::new();
    for contender in contenders {
        if workload.aligned && !contender.aligns || workload.window.is_some() && !contender.windows {
            continue;
        }
        let Some(mut runner) = (contender.make)(workload) else { continue };
        if runner.setup(workload, Instant::now() + SETUP_BUDGET) {
            running.push(Running { contender, runner, times: Vec::new(), spent: Duration::ZERO });
        } else {
            let why = format!("filling the space takes over {SETUP_BUDGET:?}");
            say(&format!("{} without {}: {why}", workload.name, contender.name));
        }
    }
    let mut harness = Duration::MAX;
    for round in &workload.rounds {
        harness = harness.min(null.round(workload, round));
        for running in &mut running {
            if running.times.len() < 2 || running.spent < ROUNDS_BUDGET {
                let time = running.runner.round(workload, round);
                running.spent += time;
                running.times.push(time);
            }
        }
    }
    let exact: Vec<_> = running
        .iter()
        .filter(|running| running.times.len() == rounds && running.contender.exact(workload))
        .map(|running| (running.contender.name, running.runner.hash()))
        .collect();
    if let Some(odd) = exact.iter().find(|(_, hash)| *hash != exact[0].1) {
        bail!("{}: {} and {} are exact and give different addresses", workload.name, exact[0].0, odd.0);
    }
    let per_pair = |time: Duration| time.as_nanos() as f64 / workload.pairs as f64;
    let harness = per_pair(harness);
    Ok(running
        .into_iter()
        .map(|Running { contender, runner, mut times, .. }| {
            times.sort_unstable();
            let (median, min) = (per_pair(times[times.len() / 2]), per_pair(times[0]));
            Cell {
                workload: workload.name.clone(),
                contender: contender.name,
                median: (median - harness).max(0.1),
                min: (min - harness).max(0.1),
                raw_min: min,
                harness,
                rounds: times.len(),
                memory: runner.memory(),
            }
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUNDS: usize = 2;

    #[test]
    fn exact_indexes_agree_on_every_quick_workload() {
        for spec in workloads::ALL.iter().filter(|spec| spec.quick) {
            let workload = spec.make(ROUNDS);
            // The others are not held to addresses, and some take seconds for what these do in milliseconds.
            let exact: Vec<_> = contenders::all().into_iter().filter(|c| c.exact(&workload)).collect();
            assert!(exact.iter().any(|c| c.name == "btree") && exact.len() >= 8, "{}", workload.name);
            let cells = measure(&workload, &exact, ROUNDS).unwrap();
            // Only who ran every round was compared.
            assert_eq!(cells.len(), exact.len(), "{}", workload.name);
            assert!(cells.iter().all(|cell| cell.rounds == ROUNDS), "{}", workload.name);
            assert!(cells.iter().all(|cell| cell.min.is_finite() && cell.min <= cell.median));
        }
    }

    #[test]
    fn every_contender_runs_on_the_small_workloads() {
        let contenders = contenders::all();
        for spec in workloads::ALL.iter().filter(|spec| spec.n <= 100) {
            let workload = spec.make(ROUNDS);
            let cells = measure(&workload, &contenders, ROUNDS).unwrap();
            let able = contenders.iter().filter(|c| c.aligns || !workload.aligned).count();
            assert_eq!(cells.len(), able, "{}", workload.name);
            assert!(cells.iter().all(|cell| cell.min.is_finite() && cell.min <= cell.median));
        }
    }
}
