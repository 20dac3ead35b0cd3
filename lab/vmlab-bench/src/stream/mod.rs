//! Contenders that run one stream of operations.
//!
//! | module | content |
//! |---|---|
//! | [`workload`] | streams of operations |
//! | [`contender`] | contenders, and the run of a stream on one |
//!
//! # Method
//! A workload is a stream of operations generated once from a fixed seed, so that every contender runs exactly the
//! same. The stream is cut into rounds. Each round runs on every contender before the next begins, so that a
//! disturbance of the machine affects all. A contender that does nothing (`null`) runs in the same rotation. Its time
//! is that of the harness (the stream, the table of live areas), and its fastest round is subtracted from every
//! other's. Exact indexes must return the same addresses; otherwise the run fails.

pub mod contender;
pub mod workload;

use crate::harness::{Summary, turns};
use crate::indexes::Drained;
use anyhow::{Result, bail};
use contender::{Contender, Home, Runner};
use std::time::{Duration, Instant};
use vmlab_base::output::Output;
use workload::Workload;

/// The measurements of one contender on one workload.
#[derive(Clone, Debug)]
pub struct Cell {
    pub workload: String,
    pub contender: &'static str,
    /// Nanoseconds for each pair, without the harness.
    pub ns: Summary,
    /// The fastest round with the harness, and the harness.
    pub raw_min: f64,
    pub harness: f64,
    pub memory: Option<(va_tree::IndexMemory, u64)>,
    /// The purges in all rounds.
    pub drained: Option<Drained>,
}

/// Returns the cell of a contender on a workload.
pub(crate) fn find<'a>(cells: &'a [Cell], workload: &str, contender: &str) -> Option<&'a Cell> {
    cells.iter().find(|cell| cell.workload == workload && cell.contender == contender)
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

/// Measures all contenders on one workload. A contender that is excluded is noted.
///
/// # Errors
/// If two exact contenders return different addresses.
pub fn measure(
    workload: &Workload,
    contenders: &[Contender],
    rounds: usize,
    out: &mut dyn Output,
) -> Result<Vec<Cell>> {
    let null = contender::null();
    let all = || std::iter::once(&null).chain(contenders);
    // Declared before the runners that borrow from them.
    let homes: Vec<Home> = all().map(|_| Home::default()).collect();
    let mut running: Vec<Running<'_>> = Vec::new();
    for (contender, home) in all().zip(&homes) {
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
    for (round, at) in turns(rounds, running.len()) {
        let running = &mut running[at];
        if running.times.len() < 2 || running.spent < ROUNDS_BUDGET {
            let time = running.runner.round(workload, &workload.rounds[round]);
            running.spent += time;
            running.times.push(time);
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
    let per_pair = |time: &Duration| time.as_nanos() as f64 / workload.pairs as f64;
    let raw = |running: &Running<'_>| Summary::of(running.times.iter().map(per_pair));
    let is_null = |running: &Running<'_>| running.contender.name == null.name;
    let harness = running.iter().find(|one| is_null(one)).and_then(raw).map_or(0.0, |times| times.min);
    let cell = |running: Running<'_>| {
        let raw = raw(&running)?;
        let Running { contender, runner, before, .. } = running;
        Some(Cell {
            workload: workload.name.clone(),
            contender: contender.name,
            ns: raw.without(harness),
            raw_min: raw.min,
            harness,
            memory: runner.memory(),
            drained: runner.drained().zip(before).map(|(after, before)| after.since(before)),
        })
    };
    Ok(running.into_iter().filter(|one| !is_null(one)).filter_map(cell).collect())
}
