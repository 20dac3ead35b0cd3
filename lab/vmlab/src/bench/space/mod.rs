//! Measures whole spaces: ours under three policies, and C libraries of a kernel's.

mod cases;
pub(super) mod contenders;
pub(crate) mod kernel_lib;
mod ours;
pub(super) mod patterns;
mod print;
pub(crate) mod subject;
mod threads;

use super::print::{header, prepare, tables_to_terminal};
use super::{Cell, ROUNDS_MAX, measure, pin};
use crate::cli::{out, print_note};
use anyhow::{Result, bail};
use clap::builder::RangedU64ValueParser;
use contenders::SpaceContender;
pub(super) use ours::window;
use std::path::{Path, PathBuf};
use std::time::Duration;
use subject::Setup;
use threads::Crowd;
use va_space::NODES_LIMIT;

/// Options of `vmlab bench space`.
#[derive(clap::Args, Debug, Clone)]
pub struct Args {
    /// Only patterns and cases whose name contains this; those of many threads are called threads-PATTERN
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Only these contenders (see the first table's head for their names)
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    contenders: Vec<String>,
    /// Nodes of the spaces that one thread measures
    #[arg(long, value_delimiter = ',', value_name = "N", default_values_t = [1, 2, 4, 128],
        value_parser = clap::value_parser!(u32).range(1..=i64::from(NODES_LIMIT)))]
    nodes: Vec<u32>,
    /// Numbers of threads
    #[arg(long, value_delimiter = ',', value_name = "N", default_values_t = [1, 2, 4, 8, 16, 64],
        value_parser = clap::value_parser!(u32).range(1..=THREADS_MAX))]
    threads: Vec<u32>,
    /// Rounds, 1 to 1000
    #[arg(long, default_value_t = 15, value_parser = RangedU64ValueParser::<usize>::new().range(1..=ROUNDS_MAX))]
    rounds: usize,
    /// Two nodes, one and two threads, three rounds
    #[arg(long, conflicts_with_all = ["rounds", "nodes", "threads"])]
    quick: bool,
    /// Folder for CSV, tables and SVG: results/, unless the run is a part (--quick, --filter, --contenders, --nodes,
    /// --threads), which writes no files by default
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// A shared library with the C functions kv_init, kv_alloc, kv_free and so on, measured as `kern`
    #[arg(long, value_name = "FILE")]
    kern: Option<PathBuf>,
    /// The same library, built to count its locks, measured as `kern-count`
    #[arg(long, value_name = "FILE")]
    kern_count: Option<PathBuf>,
}

/// The most threads of one measurement.
const THREADS_MAX: i64 = 256;
/// The time of a crowd in one round.
const CROWD_TIME: Duration = Duration::from_millis(100);
/// The most rounds of a crowd, and of a case: each begins with a fresh space.
const FRESH_ROUNDS_MAX: usize = 5;

impl Args {
    /// Returns the folder for files. A partial run must not replace the files of a full one.
    fn files(&self) -> Option<&Path> {
        let narrow = self.nodes != [1, 2, 4, 128] || self.threads != [1, 2, 4, 8, 16, 64];
        let part = self.quick || narrow || self.filter.is_some() || !self.contenders.is_empty();
        self.out.as_deref().or((!part).then_some(Path::new("results")))
    }

    fn wants(&self, name: &str) -> bool {
        self.filter.as_ref().is_none_or(|text| name.contains(text.as_str()))
    }
}

/// A row of one thread: the nodes, and the measurement.
struct Row {
    nodes: u32,
    cell: Cell,
}

/// All measurements.
#[derive(Default)]
struct Measured {
    rows: Vec<Row>,
    cases: Vec<cases::Taken>,
    shared: Vec<threads::Shared>,
}

/// Runs the benchmark.
///
/// # Errors
/// If a library cannot be loaded, a space cannot be created, or results cannot be written.
pub fn run(args: &Args) -> Result<()> {
    let rounds = if args.quick { 3 } else { args.rounds };
    let fresh = if args.quick { 1 } else { rounds.min(FRESH_ROUNDS_MAX) };
    let header = header(rounds);
    if let Some(dir) = args.files() {
        prepare(dir, &print::csv_name())?;
    }
    let libraries = [("kern", args.kern.clone()), ("kern-count", args.kern_count.clone())];
    let mut contenders = SpaceContender::all(&libraries)?;
    if let Some(unknown) = args
        .contenders
        .iter()
        .find(|name| contenders.iter().all(|contender| contender.name() != name.as_str()))
    {
        bail!("no contender is called {unknown}");
    }
    contenders.retain(|contender| {
        args.contenders.is_empty() || args.contenders.iter().any(|name| name == contender.name())
    });
    let (nodes, threads) =
        if args.quick { (&[2][..], &[1, 2][..]) } else { (&args.nodes[..], &args.threads[..]) };
    let mut measured = Measured::default();
    // First, while this thread and its children are not yet pinned.
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    for pattern in 0..patterns::shared(0).len() {
        let name = format!("threads-{}", threads::name(pattern));
        if !args.wants(&name) {
            continue;
        }
        print_note(&format!("{name} ..."));
        for &threads in threads {
            let time = if args.quick { CROWD_TIME / 5 } else { CROWD_TIME };
            let crowd = Crowd { pattern, threads, time, cores: &cores };
            measured.shared.extend(threads::measure(crowd, &contenders, fresh)?);
        }
    }
    pin();
    for &nodes in nodes {
        let streams: Vec<_> =
            contenders.iter().map(|contender| contender.contender(Setup::alone(nodes))).collect();
        for spec in patterns::all(u64::from(nodes)).iter().filter(|spec| args.wants(spec.name)) {
            print_note(&format!("{}, {nodes} nodes ...", spec.name));
            let cells = measure(&patterns::make(spec, patterns::WARM_UP, rounds), &streams, rounds)?;
            measured.rows.extend(cells.into_iter().map(|cell| Row { nodes, cell }));
        }
    }
    for case in cases::ALL.iter().filter(|case| args.wants(case.name)) {
        print_note(&format!("{} ...", case.name));
        measured.cases.extend(cases::measure(case, &contenders, fresh)?);
    }
    if measured.rows.is_empty() && measured.cases.is_empty() && measured.shared.is_empty() {
        bail!("no pattern's or case's name contains {:?}", args.filter.as_deref().unwrap_or_default());
    }
    tables_to_terminal(print::tables(&measured))?;
    match args.files() {
        Some(dir) => print::files(&measured, dir, &header),
        None => out("no files are written of a part of the measurements: --out DIR writes them"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_policy_runs_every_pattern_and_says_how_often_it_purged() {
        let contenders = SpaceContender::all(&[]).unwrap();
        let streams: Vec<_> =
            contenders.iter().map(|contender| contender.contender(Setup::alone(2))).collect();
        for spec in patterns::all(2) {
            let cells = measure(&patterns::make(&spec, 1, 1), &streams, 1).unwrap();
            let names: Vec<_> = cells.iter().map(|cell| cell.contender).collect();
            assert_eq!(names, ["ours", "ours-bare", "linux69", "onelock52"], "{}", spec.name);
            for cell in &cells {
                let drained = cell.drained.unwrap();
                assert!(
                    drained.purges > 0 && drained.flushes <= drained.purges,
                    "{}: {drained:?}",
                    spec.name
                );
                assert!(cell.min <= cell.median && cell.mean.is_finite());
            }
        }
    }
}
