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
//! (`results.rs`). A slow allocator runs fewer operations in its time, and by chance others than a fast one. So memory
//! is also averaged over operations that are the same for all. Each allocator runs them at the end, with the memory
//! that it has cached until then.

pub(crate) mod child;
mod contenders;
pub(crate) mod driver;
mod goals;
mod measure;
mod ops;
mod print;
mod results;
pub(crate) mod sys;
mod task;

use super::print::{prepare, tables_to_terminal};
use crate::cli::{out, print_note};
use anyhow::{Result, bail};
use contenders::{Named, Wanted};
use measure::Failure;
use results::{Results, Row, Stopped};
use std::path::{Path, PathBuf};

/// Options of `vmlab bench memory`.
#[derive(clap::Args, Debug, Clone)]
pub struct Args {
    /// Only workloads whose name contains this
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Rounds, 1 to 100 (some workloads take no more than two or three)
    #[arg(long, default_value_t = ROUNDS, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Milliseconds that each is measured in a round, 1 to 10000 (mixes four times that)
    #[arg(long, default_value_t = MS, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    ms: u64,
    /// Only this peer beside ours (glibc, mmap, jemalloc, ...), or any library with a malloc; may be repeated
    #[arg(long, value_name = "NAME[=PATH]")]
    peer: Vec<Named>,
    /// Transparent huge pages on, for peers that have an option for it
    #[arg(long)]
    thp: bool,
    /// One short round, without the peers' other settings
    #[arg(long, conflicts_with_all = ["rounds", "ms"])]
    quick: bool,
    /// Folder for CSV, tables and SVG: results/, unless the run is a part (--quick, --filter, --peer), which writes
    /// no files by default
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

const ROUNDS: u32 = 5;
const MS: u64 = 60;
const QUICK_MS: u64 = 15;

impl Args {
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
pub fn run(args: &Args) -> Result<()> {
    let (rounds, ms) = if args.quick { (1, QUICK_MS) } else { (args.rounds as usize, args.ms) };
    let mut specs = task::all();
    specs.retain(|spec| args.filter.as_ref().is_none_or(|text| spec.name.contains(text.as_str())));
    if specs.is_empty() {
        bail!("no workload's name contains {:?}", args.filter.as_deref().unwrap_or_default());
    }
    if let Some(dir) = args.files() {
        prepare(dir, &format!("{}.csv", args.stem()))?;
    }
    let header = print::header(rounds, ms);
    let (contenders, missing) =
        contenders::all(&Wanted { peers: &args.peer, huge: args.thp, quick: args.quick })?;
    for family in &missing {
        print_note(&format!("{family} is not here, and is left out"));
    }
    let results =
        measure_all(Results { specs, contenders, missing, rows: Vec::new(), broken: Vec::new() }, rounds, ms);
    tables_to_terminal(print::tables(&results))?;
    match args.files() {
        Some(dir) => print::files(&results, dir, args.stem(), &header)?,
        None => out("no files are written of a part of the measurements: --out DIR writes them")?,
    }
    match &results.broken[..] {
        [] => Ok(()),
        [one] => bail!("{one}"),
        [first, more @ ..] => bail!("{first} (and {} more)", more.len()),
    }
}

/// Measures every workload on every contender that runs it, in alternating rounds.
fn measure_all(mut results: Results, rounds: usize, ms: u64) -> Results {
    for (at, spec) in results.specs.iter().enumerate() {
        print_note(&format!("{} ...", spec.name));
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
                        print_note(&message);
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
