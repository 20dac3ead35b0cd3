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
//! (`results.rs`). Whether a figure suffices is for the reader to judge: `results/README.md` states the goals. A slow
//! allocator runs fewer operations in its time, and by chance others than a fast one. So memory is also averaged over
//! operations that are the same for all. Each allocator runs them at the end, with the memory that it has cached until
//! then.

pub mod child;
#[doc(hidden)]
pub mod contenders;
#[doc(hidden)]
pub mod driver;
#[doc(hidden)]
pub mod measure;
#[doc(hidden)]
pub mod ops;
#[doc(hidden)]
pub mod print;
#[doc(hidden)]
pub mod results;
#[doc(hidden)]
pub mod sys;
#[doc(hidden)]
pub mod task;

use crate::harness::{Run, folder, turns};
use anyhow::{Result, bail};
pub use contenders::Named;
use contenders::Wanted;
use measure::Failure;
use results::{Results, Row, Stopped};
use std::path::PathBuf;
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
    /// The workloads of several threads alone, each with these numbers of threads
    pub threads: Vec<u32>,
    /// Only this peer beside ours (glibc, mmap, jemalloc, ...), or any library with a malloc; may be repeated
    pub peer: Vec<Named>,
    /// Transparent huge pages on, for peers that have an option for it
    pub thp: bool,
    /// One short round, without the peers' other settings
    pub quick: bool,
    /// Folder for CSV, tables and SVG: results/, unless the run is a part (--quick, --filter, --threads, --peer), which
    /// writes no files by default
    pub out: Option<PathBuf>,
}

/// Rounds of a full run.
pub const ROUNDS: u32 = 5;
/// Milliseconds of each measurement of a full run.
pub const MS: u64 = 60;
const QUICK_MS: u64 = 15;

/// Runs the benchmark.
///
/// # Errors
/// If a named peer is not found, a child crashes, or results cannot be written. A crash is reported after the other
/// measurements and the files.
pub fn run(options: &Options, out: &mut dyn Output) -> Result<()> {
    let Options { filter, thp, quick, .. } = options;
    let (rounds, ms) = if *quick { (1, QUICK_MS) } else { (options.rounds as usize, options.ms) };
    let stem = if *thp { "memory-thp" } else { "memory" };
    let is_part = *quick || filter.is_some() || !options.threads.is_empty() || !options.peer.is_empty();
    let dir = folder(options.out.as_deref(), is_part);
    let mut run = Run::begin(filter.as_deref(), dir, &format!("{stem}.csv"), out)?;
    let mut specs = if options.threads.is_empty() { task::all() } else { task::of_threads(&options.threads) };
    specs.retain(|spec| run.wants(&spec.name));
    run.check_found(!specs.is_empty(), "workload's")?;
    let (contenders, missing) = contenders::all(&Wanted { peers: &options.peer, huge: *thp, quick: *quick })?;
    for family in &missing {
        run.out.note(&format!("{family} is not here, and is left out"));
    }
    let results = Results { specs, contenders, missing, rows: Vec::new(), broken: Vec::new() };
    let results = measure_all(results, rounds, ms, &mut run);
    let report = print::report(&results, *thp, stem, print::header(&run.header, rounds, ms));
    run.end([report])?;
    match &results.broken[..] {
        [] => Ok(()),
        [one] => bail!("{one}"),
        [first, more @ ..] => bail!("{first} (and {} more)", more.len()),
    }
}

/// Measures every workload on every contender that runs it, in turn.
fn measure_all(mut results: Results, rounds: usize, ms: u64, run: &mut Run<'_>) -> Results {
    for (at, spec) in results.specs.iter().enumerate() {
        run.progress(&spec.name);
        let runs = |&contender: &usize| results.contenders[contender].runs(spec);
        let row = |contender| Row { spec: at, contender, rounds: Vec::new(), stopped: None };
        let mut rows: Vec<Row> = (0..results.contenders.len()).filter(runs).map(row).collect();
        for (round, at) in turns(rounds.min(spec.rounds_max), rows.len()) {
            let row = &mut rows[at];
            if row.stopped.is_some() {
                continue;
            }
            match measure::run(&results.contenders[row.contender], spec, ms, round as u64) {
                Ok(sample) => row.rounds.push(sample),
                Err(Failure::AllocFailed) => row.stopped = Some(Stopped::AllocFailed),
                Err(Failure::InvariantViolation(error)) => {
                    let message = format!("{error:#}");
                    run.out.note(&message);
                    results.broken.push(message);
                    row.stopped = Some(Stopped::Crashed);
                }
            }
        }
        results.rows.extend(rows);
    }
    results
}
