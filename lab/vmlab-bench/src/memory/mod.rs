//! Measures allocators of a process, each in a process of its own.
//!
//! # Method
//! This program runs itself again for each allocator, each workload and each round. The peer is loaded before the C
//! library (`LD_PRELOAD`). Ours is called directly, through `LargeAlloc`, and with several budgets. Rounds alternate
//! between allocators, so that a disturbance of the machine affects all, and a round has the same seed for all. The
//! child reports the CPU time of the whole process (background threads are a cost, too), the wall time, page faults and
//! the 99th percentile. Resident memory is read from outside, every half millisecond, so that the child is not
//! disturbed. The harness (a loop, a random number) is not subtracted.
//!
//! Cost alone shows little: an allocator that never releases memory is fast. So each allocator is a line of points,
//! cost over mean RSS. A peer is compared with the cheapest of our points that has no more memory than the peer
//! (`results.rs`). Whether a figure suffices is for the reader to judge: `results/README.md` states the goals. A slow allocator runs fewer operations in its time, and by chance others than a fast one. So memory
//! is also averaged over operations that are the same for all. Each allocator runs them at the end, with the memory
//! that it has cached until then.

pub mod child;
mod contenders;
pub(crate) mod driver;
mod measure;
mod ops;
mod print;
mod results;
pub(crate) mod sys;
mod task;

use super::print::{prepare, show};
use anyhow::{Result, bail};
pub use contenders::Named;
use contenders::Wanted;
use measure::Failure;
use results::{Results, Row, Stopped};
use std::path::{Path, PathBuf};
use vmlab_base::output::Output;

/// Options of `vmlab bench memory`.
#[derive(Debug, Clone)]
pub struct Options {
    /// Only workloads whose name contains this
    pub filter: Option<String>,
    /// Rounds, 1 to 100 (some workloads take no more than two or three)
    pub rounds: u32,
    /// Milliseconds that each is measured in a round, 1 to 10000 (mixes four times that)
    pub ms: u64,
    /// Only this peer beside ours (glibc, mmap, jemalloc, ...), or any library with a malloc; may be repeated
    pub peer: Vec<Named>,
    /// Transparent huge pages on, for peers that have an option for it
    pub thp: bool,
    /// One short round, without the peers' other settings
    pub quick: bool,
    /// Folder for CSV, tables and SVG: results/, unless the run is a part (--quick, --filter, --peer), which writes
    /// no files by default
    pub out: Option<PathBuf>,
}

/// Rounds of a full run.
pub const ROUNDS: u32 = 5;
/// Milliseconds of each measurement of a full run.
pub const MS: u64 = 60;
const QUICK_MS: u64 = 15;

impl Options {
    /// Returns the folder for files. A partial run must not replace the files of a full one.
    fn files(&self) -> Option<&Path> {
        let part = self.quick || self.filter.is_some() || !self.peer.is_empty();
        self.out.as_deref().or((!part).then_some(Path::new("results")))
    }

    /// Returns the prefix of the names of files.
    fn stem(&self) -> &'static str {
        if self.thp { "memory-thp" } else { "memory" }
    }
}

/// Runs the benchmark.
///
/// # Errors
/// If a named peer is not found, a child crashes, or results cannot be written. A crash is reported after the other
/// measurements and the files.
pub fn run(options: &Options, out: &mut dyn Output) -> Result<()> {
    let (rounds, ms) = if options.quick { (1, QUICK_MS) } else { (options.rounds as usize, options.ms) };
    let mut specs = task::all();
    specs.retain(|spec| options.filter.as_ref().is_none_or(|text| spec.name.contains(text.as_str())));
    if specs.is_empty() {
        bail!("no workload's name contains {:?}", options.filter.as_deref().unwrap_or_default());
    }
    if let Some(dir) = options.files() {
        prepare(dir, &format!("{}.csv", options.stem()))?;
    }
    let header = print::header(rounds, ms);
    let (contenders, missing) =
        contenders::all(&Wanted { peers: &options.peer, huge: options.thp, quick: options.quick })?;
    for family in &missing {
        out.note(&format!("{family} is not here, and is left out"));
    }
    let results = measure_all(
        Results { specs, contenders, missing, rows: Vec::new(), broken: Vec::new() },
        rounds,
        ms,
        out,
    );
    show(print::tables(&results), out)?;
    match options.files() {
        Some(dir) => print::files(&results, dir, options.stem(), &header, out)?,
        None => out.line("no files are written of a part of the measurements: --out DIR writes them")?,
    }
    match &results.broken[..] {
        [] => Ok(()),
        [one] => bail!("{one}"),
        [first, more @ ..] => bail!("{first} (and {} more)", more.len()),
    }
}

/// Measures every workload on every contender that runs it, in alternating rounds.
fn measure_all(mut results: Results, rounds: usize, ms: u64, out: &mut dyn Output) -> Results {
    for (at, spec) in results.specs.iter().enumerate() {
        out.note(&format!("{} ...", spec.name));
        let runs = |&contender: &usize| results.contenders[contender].runs(spec);
        let row = |contender| Row { spec: at, contender, rounds: Vec::new(), stopped: None };
        let mut rows: Vec<Row> = (0..results.contenders.len()).filter(runs).map(row).collect();
        for round in 0..rounds.min(spec.rounds_max) {
            for row in rows.iter_mut().filter(|row| row.stopped.is_none()) {
                match measure::run(&results.contenders[row.contender], spec, ms, round as u64) {
                    Ok(sample) => row.rounds.push(sample),
                    Err(Failure::AllocFailed) => row.stopped = Some(Stopped::AllocFailed),
                    Err(Failure::InvariantViolation(error)) => {
                        let message = format!("{error:#}");
                        out.note(&message);
                        results.broken.push(message);
                        row.stopped = Some(Stopped::Crashed);
                    }
                }
            }
        }
        results.rows.extend(rows);
    }
    results
}
