//! The run of `vmlab bench space`.

use super::contenders::SpaceContender;
use super::subject::Setup;
use super::threads::{self, Crowd};
use super::{cases, patterns, print};
use crate::harness::{Run, folder, pin, select};
use crate::stream::{Cell, measure};
use anyhow::Result;
use std::path::PathBuf;
use std::time::Duration;
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

/// A row of one thread: the nodes, and the measurement.
pub(super) struct Row {
    pub(super) nodes: u32,
    pub(super) cell: Cell,
}

/// All measurements.
#[derive(Default)]
pub(super) struct Measured {
    pub(super) rows: Vec<Row>,
    pub(super) cases: Vec<cases::Taken>,
    pub(super) shared: Vec<threads::Shared>,
}

/// Runs the benchmark.
///
/// # Errors
/// If a library cannot be loaded, a space cannot be created, or results cannot be written.
pub fn run(options: &Options, out: &mut dyn Output) -> Result<()> {
    let Options { filter, quick, .. } = options;
    let rounds = if *quick { 3 } else { options.rounds };
    let fresh = if *quick { 1 } else { rounds.min(FRESH_ROUNDS_MAX) };
    let narrow = options.nodes != NODES || options.threads != THREADS;
    let is_part = *quick || narrow || filter.is_some() || !options.contenders.is_empty();
    let dir = folder(options.out.as_deref(), is_part);
    let mut run = Run::begin(filter.as_deref(), dir, &format!("{}.csv", print::stem()), out)?;
    let libraries = [("kern", options.kern.clone()), ("kern-count", options.kern_count.clone())];
    let mut contenders = SpaceContender::all(&libraries)?;
    select(&mut contenders, &options.contenders, SpaceContender::name)?;
    let (nodes, threads) =
        if *quick { (&[2][..], &[1, 2][..]) } else { (&options.nodes[..], &options.threads[..]) };
    let mut measured = Measured::default();
    // First, while this thread and its children are not yet pinned.
    let cores = core_affinity::get_core_ids().unwrap_or_default();
    for pattern in 0..patterns::shared(0).len() {
        let name = format!("threads-{}", threads::name(pattern));
        if !run.wants(&name) {
            continue;
        }
        run.progress(&name);
        for &threads in threads {
            let time = if *quick { CROWD_TIME / 5 } else { CROWD_TIME };
            let crowd = Crowd { pattern, threads, time, cores: &cores };
            measured.shared.extend(threads::measure(crowd, &contenders, fresh)?);
        }
    }
    pin();
    for &nodes in nodes {
        let streams: Vec<_> =
            contenders.iter().map(|contender| contender.contender(Setup::alone(nodes))).collect();
        for spec in patterns::all(u64::from(nodes)) {
            if !run.wants(spec.name) {
                continue;
            }
            run.progress(&format!("{}, {nodes} nodes", spec.name));
            let workload = patterns::make(&spec, patterns::WARM_UP, rounds);
            let cells = measure(&workload, &streams, rounds, run.out)?;
            measured.rows.extend(cells.into_iter().map(|cell| Row { nodes, cell }));
        }
    }
    for case in &cases::ALL {
        if !run.wants(case.name) {
            continue;
        }
        run.progress(case.name);
        measured.cases.extend(cases::measure(case, &contenders, fresh)?);
    }
    let Measured { rows, cases, shared } = &measured;
    let found = !(rows.is_empty() && cases.is_empty() && shared.is_empty());
    run.check_found(found, "pattern's or case's")?;
    let report = print::report(&measured, run.header.pinned(rounds));
    run.end([report])
}
