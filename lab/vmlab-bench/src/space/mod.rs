//! Measures whole spaces: ours under three policies, and C libraries of a kernel's.

mod cases;
pub(super) mod contenders;
pub(crate) mod kernel_lib;
mod ours;
pub(super) mod patterns;
mod print;
pub(crate) mod subject;
mod threads;

use super::print::{header, prepare, show};
use super::{Cell, measure, pin};
use anyhow::{Result, bail};
use contenders::SpaceContender;
pub(super) use ours::window;
use std::path::{Path, PathBuf};
use std::time::Duration;
use subject::Setup;
use threads::Crowd;
use vmlab_base::output::Output;

/// Options of `vmlab bench space`.
#[derive(Debug, Clone)]
pub struct Options {
    /// Only patterns and cases whose name contains this; those of many threads are called threads-PATTERN
    pub filter: Option<String>,
    /// Only these contenders (see the first table's head for their names)
    pub contenders: Vec<String>,
    /// Nodes of the spaces that one thread measures
    pub nodes: Vec<u32>,
    /// Numbers of threads
    pub threads: Vec<u32>,
    /// Rounds, 1 to 1000
    pub rounds: usize,
    /// Two nodes, one and two threads, three rounds
    pub quick: bool,
    /// Folder for CSV, tables and SVG: results/, unless the run is a part (--quick, --filter, --contenders, --nodes,
    /// --threads), which writes no files by default
    pub out: Option<PathBuf>,
    /// A shared library with the C functions kv_init, kv_alloc, kv_free and so on, measured as `kern`
    pub kern: Option<PathBuf>,
    /// The same library, built to count its locks, measured as `kern-count`
    pub kern_count: Option<PathBuf>,
}

/// The numbers of nodes of a full run.
pub const NODES: [u32; 4] = [1, 2, 4, 128];
/// The numbers of threads of a full run.
pub const THREADS: [u32; 6] = [1, 2, 4, 8, 16, 64];
/// The most threads of one measurement.
pub const THREADS_MAX: i64 = 256;
/// The time of a crowd in one round.
const CROWD_TIME: Duration = Duration::from_millis(100);
/// The most rounds of a crowd, and of a case: each begins with a fresh space.
const FRESH_ROUNDS_MAX: usize = 5;

impl Options {
    /// Returns the folder for files. A partial run must not replace the files of a full one.
    fn files(&self) -> Option<&Path> {
        let narrow = self.nodes != NODES || self.threads != THREADS;
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
pub fn run(options: &Options, out: &mut dyn Output) -> Result<()> {
    let rounds = if options.quick { 3 } else { options.rounds };
    let fresh = if options.quick { 1 } else { rounds.min(FRESH_ROUNDS_MAX) };
    let header = header(rounds);
    if let Some(dir) = options.files() {
        prepare(dir, &print::csv_name())?;
    }
    let libraries = [("kern", options.kern.clone()), ("kern-count", options.kern_count.clone())];
    let mut contenders = SpaceContender::all(&libraries)?;
    if let Some(unknown) = options
        .contenders
        .iter()
        .find(|name| contenders.iter().all(|contender| contender.name() != name.as_str()))
    {
        bail!("no contender is called {unknown}");
    }
    contenders.retain(|contender| {
        options.contenders.is_empty() || options.contenders.iter().any(|name| name == contender.name())
    });
    let (nodes, threads) =
        if options.quick { (&[2][..], &[1, 2][..]) } else { (&options.nodes[..], &options.threads[..]) };
    let mut measured = Measured::default();
    // First, while this thread and its children are not yet pinned.
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    for pattern in 0..patterns::shared(0).len() {
        let name = format!("threads-{}", threads::name(pattern));
        if !options.wants(&name) {
            continue;
        }
        out.note(&format!("{name} ..."));
        for &threads in threads {
            let time = if options.quick { CROWD_TIME / 5 } else { CROWD_TIME };
            let crowd = Crowd { pattern, threads, time, cores: &cores };
            measured.shared.extend(threads::measure(crowd, &contenders, fresh)?);
        }
    }
    pin();
    for &nodes in nodes {
        let streams: Vec<_> =
            contenders.iter().map(|contender| contender.contender(Setup::alone(nodes))).collect();
        for spec in patterns::all(u64::from(nodes)).iter().filter(|spec| options.wants(spec.name)) {
            out.note(&format!("{}, {nodes} nodes ...", spec.name));
            let cells = measure(&patterns::make(spec, patterns::WARM_UP, rounds), &streams, rounds, out)?;
            measured.rows.extend(cells.into_iter().map(|cell| Row { nodes, cell }));
        }
    }
    for case in cases::ALL.iter().filter(|case| options.wants(case.name)) {
        out.note(&format!("{} ...", case.name));
        measured.cases.extend(cases::measure(case, &contenders, fresh)?);
    }
    if measured.rows.is_empty() && measured.cases.is_empty() && measured.shared.is_empty() {
        bail!("no pattern's or case's name contains {:?}", options.filter.as_deref().unwrap_or_default());
    }
    show(print::tables(&measured), out)?;
    match options.files() {
        Some(dir) => print::files(&measured, dir, &header, out),
        None => out.line("no files are written of a part of the measurements: --out DIR writes them"),
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
            let cells = measure(&patterns::make(&spec, 1, 1), &streams, 1, &mut Vec::new()).unwrap();
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
