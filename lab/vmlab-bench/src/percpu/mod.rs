//! Measures per-CPU memory: ours under its policies, a C library of a kernel's, and per-CPU data of a process.

#[doc(hidden)]
pub mod clock;
#[doc(hidden)]
pub mod kernel_lib;
mod print;
#[doc(hidden)]
pub mod process;
mod recorded;
#[doc(hidden)]
pub mod seed;
mod steps;
pub(crate) mod subject;
#[doc(hidden)]
pub mod tail;
#[doc(hidden)]
pub mod threads;
mod workloads;
mod zero;

use crate::harness::{Run, Summary, folder, in_turn, pin};
use anyhow::{Result, bail};
use kernel_lib::KernelLib;
use std::path::PathBuf;
use subject::{Counts, Shape, Standard};
pub use threads::THREADS;
use va_percpu::config::{Linux612, Runs, Scan, Standard as Slabs};
use vmlab_base::output::Output;
use workloads::{Round, Workload};

/// Options of `vmlab bench percpu`.
#[derive(Debug, Clone)]
pub struct Options {
    /// Only workloads whose name contains this; what the hints are worth is called seed, zeroing zero, many
    /// threads threads, the longest pairs tail, per-CPU data of a process process
    pub filter: Option<String>,
    /// Numbers of threads
    pub threads: Vec<u32>,
    /// Rounds, 1 to 1000
    pub rounds: usize,
    /// One round, without the workloads that take longest
    pub quick: bool,
    /// Folder for tables and CSV: results/, unless the run is a part (--quick, --filter, --threads), which
    /// writes no files by default
    pub out: Option<PathBuf>,
    /// A shared library with the C functions kp_init, kp_alloc_fast, kp_free and so on, measured as `kern`
    pub kern: Option<PathBuf>,
}

/// A contender.
#[derive(Clone)]
enum PercpuContender {
    /// Exact runs, small objects from slabs, and a magazine.
    Cached,
    /// The same without a magazine.
    Standard,
    /// Exact runs alone.
    Runs,
    /// Linux's hints, corrected.
    Scan,
    /// Linux's hints.
    Linux612,
    /// A C library.
    KernelLib(KernelLib),
}

impl PercpuContender {
    fn name(&self) -> &'static str {
        match self {
            Self::Cached => "cached",
            Self::Standard => "ours",
            Self::Runs => "runs",
            Self::Scan => "scan",
            Self::Linux612 => "linux612",
            Self::KernelLib(_) => "kern",
        }
    }

    fn round(&self, workload: &Workload) -> Result<Round> {
        let shape: Shape = workload.shape;
        Ok(match self {
            Self::Cached => workload.round(&Standard::<Slabs>::new(shape)?.cached(0)?),
            Self::Standard => workload.round(&Standard::<Slabs>::new(shape)?),
            Self::Runs => workload.round(&Standard::<Runs>::new(shape)?),
            Self::Scan => workload.round(&Standard::<Scan>::new(shape)?),
            Self::Linux612 => workload.round(&Standard::<Linux612>::new(shape)?),
            Self::KernelLib(kernel_lib) => {
                let kernel_lib = kernel_lib.begin(shape, subject::UNITS)?;
                kernel_lib.stand_for(0);
                workload.round(&kernel_lib)
            }
        })
    }
}

/// The cost of one contender on one workload, in nanoseconds: of a call to alloc or a pair, and of a call to free if it
/// is measured separately.
struct Taken {
    contender: &'static str,
    ns: [Option<Summary>; 2],
    counts: Counts,
}

/// All measurements.
#[derive(Default)]
struct Measured {
    rows: Vec<(&'static Workload, Vec<Taken>)>,
    threads: Vec<threads::Threaded>,
    tail: Vec<tail::Tail>,
    seed: Vec<seed::Ran>,
    zero: Vec<zero::Zeroed>,
    process: Option<process::InProcess>,
}

/// Measures one workload on all contenders, each time in a fresh space.
fn measure(workload: &'static Workload, contenders: &[PercpuContender], rounds: usize) -> Result<Vec<Taken>> {
    let taken = in_turn(rounds, contenders, |_, contender| {
        let ran = contender.round(workload)?;
        if ran.failed > 0 {
            bail!("{}: {} failed {} requests", workload.name, contender.name(), ran.failed);
        }
        Ok(Some(ran))
    })?;
    let of = |(contender, rounds): (&PercpuContender, Vec<Round>)| Taken {
        contender: contender.name(),
        ns: [0, 1].map(|nth| Summary::of(rounds.iter().filter_map(|round| round.ns[nth]))),
        counts: rounds.last().map_or(Counts::default(), |round| round.counts),
    };
    Ok(contenders.iter().zip(taken).map(of).collect())
}

/// Actions of the workload of Linux's series.
const ACTIONS: usize = 1_000_000;

/// Runs the benchmark.
///
/// # Errors
/// If a library cannot be loaded, a space cannot be created, a request fails, or results cannot be written.
pub fn run(options: &Options, out: &mut dyn Output) -> Result<()> {
    let Options { filter, quick, .. } = options;
    let rounds = if *quick { 1 } else { options.rounds };
    let dir = folder(options.out.as_deref(), *quick || filter.is_some() || options.threads != THREADS);
    let mut run = Run::begin(filter.as_deref(), dir, &format!("{}.csv", print::STEM), out)?;
    let kernel_lib = options.kern.as_deref().map(KernelLib::load).transpose()?;
    let mut contenders = vec![
        PercpuContender::Cached,
        PercpuContender::Standard,
        PercpuContender::Runs,
        PercpuContender::Scan,
        PercpuContender::Linux612,
    ];
    contenders.extend(kernel_lib.clone().map(PercpuContender::KernelLib));
    let mut measured = Measured::default();
    // Before this thread, and so its children, are pinned to one CPU.
    if run.wants("process") {
        run.progress("process");
        let (rounds, calls) = if *quick { (3, 40_000) } else { (21, 400_000) };
        measured.process = Some(process::measure(rounds, calls)?);
    }
    kernel_lib::cache_freed_memory();
    if run.wants("threads") {
        run.progress("threads");
        let pairs = if *quick { 2_000 } else { 200_000 };
        measured.threads = threads::measure(&options.threads, pairs, rounds, kernel_lib.as_ref())?;
    }
    pin();
    static LONG: [Workload; 1] = [workloads::CHUNKS];
    static ALL: [Workload; 14] = workloads::ALL;
    for workload in ALL.iter().chain(LONG.iter().filter(|_| !quick)) {
        if run.wants(workload.name) {
            run.progress(workload.name);
            measured.rows.push((workload, measure(workload, &contenders, rounds)?));
        }
    }
    if run.wants("tail") {
        run.progress("tail");
        measured.tail = tail::measure(if *quick { 40 } else { 3000 })?;
    }
    if run.wants("seed") {
        run.progress("seed");
        let actions = if *quick { ACTIONS / 20 } else { ACTIONS };
        measured.seed = seed::measure(actions, rounds.min(3), kernel_lib.as_ref())?;
    }
    if run.wants("zero") {
        measured.zero = zero::measure(rounds);
    }
    let reports = print::reports(&measured, &run.header, rounds);
    run.check_found(!reports.is_empty(), "workload's")?;
    run.end(reports)
}
