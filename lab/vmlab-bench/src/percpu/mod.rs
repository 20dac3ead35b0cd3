//! Measures per-CPU memory: ours under its policies, a C library of a kernel's, and per-CPU data of a process.

mod clock;
pub(crate) mod kernel_lib;
mod print;
mod process;
pub(crate) mod seed;
pub(crate) mod subject;
mod workloads;
mod zero;

use super::pin;
use super::print::{header, prepare, show};
use anyhow::{Result, bail};
use kernel_lib::KernelLib;
use std::path::{Path, PathBuf};
use subject::{Counts, Shape, Standard};
use va_percpu::config::{Linux612, Runs, Scan, Standard as Slabs};
use vmlab_base::output::Output;
use workloads::{Round, Workload};

/// Options of `vmlab bench percpu`.
#[derive(Debug, Clone)]
pub struct Options {
    /// Only workloads whose name contains this; what the hints are worth is called seed, zeroing zero, per-CPU data of
    /// a process process
    pub filter: Option<String>,
    /// Rounds, 1 to 1000
    pub rounds: usize,
    /// One round, without the workloads that take longest
    pub quick: bool,
    /// Folder for tables and CSV: results/, unless the run is a part (--quick, --filter), which writes no
    /// files by default
    pub out: Option<PathBuf>,
    /// A shared library with the C functions kp_init, kp_alloc_fast, kp_free and so on, measured as `kern`
    pub kern: Option<PathBuf>,
}

impl Options {
    /// Returns the folder for files. A partial run must not replace the files of a full one.
    fn files(&self) -> Option<&Path> {
        let part = self.quick || self.filter.is_some();
        self.out.as_deref().or((!part).then_some(Path::new("results")))
    }

    fn wants(&self, name: &str) -> bool {
        self.filter.as_ref().is_none_or(|text| name.contains(text.as_str()))
    }
}

/// A contender.
#[derive(Clone)]
enum PercpuContender {
    /// Exact runs, small objects from slabs.
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

/// The cost of one contender on one workload: the fastest and the median round of each figure.
struct Taken {
    contender: &'static str,
    min: [Option<f64>; 2],
    median: [Option<f64>; 2],
    counts: Counts,
}

/// All measurements.
#[derive(Default)]
struct Measured {
    rows: Vec<(&'static Workload, Vec<Taken>)>,
    seed: Vec<seed::Ran>,
    zero: Vec<zero::Zeroed>,
    process: Option<process::InProcess>,
}

/// Measures one workload on all contenders in alternating rounds, each time in a fresh space. Every second round
/// reverses the order: a contender that runs after one with other memory finds cold caches, and should not do so in
/// each round.
fn measure(workload: &'static Workload, contenders: &[PercpuContender], rounds: usize) -> Result<Vec<Taken>> {
    let mut taken: Vec<Vec<Round>> = vec![Vec::new(); contenders.len()];
    for round in 0..rounds {
        for at in 0..contenders.len() {
            let at = if round % 2 == 0 { at } else { contenders.len() - 1 - at };
            let (contender, ran) = (&contenders[at], contenders[at].round(workload)?);
            if ran.failed > 0 {
                bail!("{}: {} failed {} requests", workload.name, contender.name(), ran.failed);
            }
            taken[at].push(ran);
        }
    }
    let of = |(contender, rounds): (&PercpuContender, Vec<Round>)| {
        let figure = |nth: usize| -> Option<(f64, f64)> {
            let mut ns: Vec<f64> = rounds.iter().filter_map(|round| round.ns[nth]).collect();
            ns.sort_by(f64::total_cmp);
            Some((*ns.first()?, ns[ns.len() / 2]))
        };
        let both = [figure(0), figure(1)];
        let counts = rounds.last().map_or(Counts::default(), |round| round.counts);
        Taken {
            contender: contender.name(),
            min: both.map(|figure| figure.map(|(min, _)| min)),
            median: both.map(|figure| figure.map(|(_, median)| median)),
            counts,
        }
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
    let rounds = if options.quick { 1 } else { options.rounds };
    let header = header(rounds);
    if let Some(dir) = options.files() {
        prepare(dir, print::CSV)?;
    }
    let mut contenders = vec![
        PercpuContender::Standard,
        PercpuContender::Runs,
        PercpuContender::Scan,
        PercpuContender::Linux612,
    ];
    if let Some(path) = &options.kern {
        contenders.push(PercpuContender::KernelLib(KernelLib::load(path)?));
    }
    let mut measured = Measured::default();
    // Before this thread, and so its children, are pinned to one CPU.
    if options.wants("process") {
        out.note("process ...");
        let (rounds, calls) = if options.quick { (3, 40_000) } else { (21, 400_000) };
        measured.process = Some(process::measure(rounds, calls)?);
    }
    pin();
    kernel_lib::cache_freed_memory();
    static LONG: [Workload; 1] = [workloads::CHUNKS];
    static ALL: [Workload; 14] = workloads::ALL;
    for workload in
        ALL.iter().chain(LONG.iter().filter(|_| !options.quick)).filter(|row| options.wants(row.name))
    {
        out.note(&format!("{} ...", workload.name));
        measured.rows.push((workload, measure(workload, &contenders, rounds)?));
    }
    if options.wants("seed") {
        out.note("seed ...");
        let kernel_lib = contenders.iter().find_map(|contender| match contender {
            PercpuContender::KernelLib(kernel_lib) => Some(kernel_lib),
            PercpuContender::Standard
            | PercpuContender::Runs
            | PercpuContender::Scan
            | PercpuContender::Linux612 => None,
        });
        measured.seed =
            seed::measure(if options.quick { ACTIONS / 20 } else { ACTIONS }, rounds.min(3), kernel_lib)?;
    }
    if options.wants("zero") {
        measured.zero = zero::measure(rounds);
    }
    let is_part = measured.rows.is_empty() && measured.seed.is_empty() && measured.zero.is_empty();
    if is_part && measured.process.is_none() {
        bail!("no workload's name contains {:?}", options.filter.as_deref().unwrap_or_default());
    }
    show(print::tables(&measured), out)?;
    match options.files() {
        Some(dir) => print::files(&measured, dir, &header, out),
        None => out.line("no files are written of a part of the measurements: --out DIR writes them"),
    }
}
