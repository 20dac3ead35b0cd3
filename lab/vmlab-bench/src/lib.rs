//! Benchmarks of the allocators `va-*` and `vmalloc` beside their peers, and the kernel's test suite of vmalloc.
//!
//! | module | content |
//! |---|---|
//! | [`index`], [`mod@space`], [`percpu`], [`memory`] | benchmarks of indexes, spaces, per-CPU memory and allocators |
//! | [`suite`] | the kernel's test suite of vmalloc, on any allocator |
//! | [`compare`] | tables of many of its runs |
//! | [`counts`] | the programs whose instructions are counted |
//! | [`indexes`] | indexes for comparison only |
//! | [`mod@print`] | the common content of pages of results |
//!
//! A benchmark measures side by side: one process, the same operations for all, in alternating rounds.
//!
//! # Method
//! A workload is a stream of operations generated once from a fixed seed, so that every contender runs exactly the
//! same. The stream is cut into rounds. Each round runs on every contender before the next begins, so that a
//! disturbance of the machine affects all. A contender that does nothing (`null`) runs in the same rotation. Its time
//! is that of the harness (the stream, the table of live areas), and its fastest round is subtracted from every
//! other's. Exact indexes must return the same addresses; otherwise the run fails.

#![deny(clippy::print_stdout, clippy::print_stderr)]

pub mod compare;
mod contender;
pub mod counts;
pub mod index;
pub mod indexes;
pub mod memory;
pub mod percpu;
pub mod print;
pub mod space;
pub mod suite;
mod workload;

use indexes::Drained;
/// The example of the README compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

use anyhow::{Result, bail};
use contender::{Contender, Home, Runner};
use std::time::{Duration, Instant};
use vmlab_base::output::Output;
use workload::Workload;

/// The measurements of one contender on one workload.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    pub(crate) workload: String,
    pub(crate) contender: &'static str,
    /// Nanoseconds for each pair, without the harness: mean, median and fastest round.
    pub(crate) mean: f64,
    pub(crate) median: f64,
    pub(crate) min: f64,
    /// The fastest round with the harness, and the harness.
    pub(crate) raw_min: f64,
    pub(crate) harness: f64,
    pub(crate) rounds: usize,
    pub(crate) memory: Option<(va_tree::IndexMemory, u64)>,
    /// The purges in all rounds.
    pub(crate) drained: Option<Drained>,
}

/// A running contender on one workload.
struct Running<'a> {
    contender: &'a Contender,
    runner: Box<dyn Runner + 'a>,
    /// The purges before the first round.
    before: Option<Drained>,
    times: Vec<Duration>,
    spent: Duration,
}

/// The streams of all rounds are generated before the first begins: a thousand take half a gigabyte.
pub const ROUNDS_MAX: u64 = 1000;
/// The longest time to fill the space before a contender is excluded from a workload.
const SETUP_BUDGET: Duration = Duration::from_secs(4);
/// The longest time of all rounds of one contender on one workload; two rounds always run.
const ROUNDS_BUDGET: Duration = Duration::from_secs(4);

/// Pins this thread to one core. A failure only makes the figures noisier.
fn pin() {
    if let Some(core) = core_affinity::get_core_ids().and_then(|cores| cores.last().copied()) {
        core_affinity::set_for_current(core);
    }
}

/// Pins this thread to another core, if there is one.
fn pin_apart() {
    if let Some(core) = core_affinity::get_core_ids().and_then(|cores| cores.first().copied()) {
        core_affinity::set_for_current(core);
    }
}

/// Measures all contenders on one workload. A contender that is excluded is noted.
fn measure(
    workload: &Workload,
    contenders: &[Contender],
    rounds: usize,
    out: &mut dyn Output,
) -> Result<Vec<Cell>> {
    let mut null = contender::null(workload);
    null.setup(workload, Instant::now() + SETUP_BUDGET);
    // Declared before the runners that borrow from them.
    let homes: Vec<Home> = contenders.iter().map(|_| Home::default()).collect();
    let mut running: Vec<Running<'_>> = Vec::new();
    for (contender, home) in contenders.iter().zip(&homes) {
        if workload.aligned && !contender.aligns || workload.window.is_some() && !contender.windows {
            continue;
        }
        let Some(mut runner) = contender.make.make(workload, home) else { continue };
        if runner.setup(workload, Instant::now() + SETUP_BUDGET) {
            let before = runner.drained();
            running.push(Running { contender, runner, before, times: Vec::new(), spent: Duration::ZERO });
        } else {
            let why = format!("filling the space takes over {SETUP_BUDGET:?}");
            out.note(&format!("{} without {}: {why}", workload.name, contender.name));
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
        .map(|Running { contender, runner, before, mut times, spent }| {
            times.sort_unstable();
            let (median, min) = (per_pair(times[times.len() / 2]), per_pair(times[0]));
            let mean = per_pair(spent) / times.len() as f64;
            Cell {
                workload: workload.name.clone(),
                contender: contender.name,
                mean: (mean - harness).max(0.1),
                median: (median - harness).max(0.1),
                min: (min - harness).max(0.1),
                raw_min: min,
                harness,
                rounds: times.len(),
                memory: runner.memory(),
                drained: runner.drained().zip(before).map(|(after, before)| after.since(before)),
            }
        })
        .collect())
}
