//! Times an index with the calls of a replay.
//!
//! The calls were recorded once; only they run here, on a fresh index, round after round. The cost of a loop over the
//! recorded calls without an index is measured in the same way, and subtracted for every index.

use crate::index::Call;
use std::hint::black_box;
use std::time::{Duration, Instant};
use va_base::AllocError;
use va_tree::FreeIndex;

/// Nanoseconds for each call, without the harness.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PerCall {
    /// Median round.
    pub median: f64,
    /// Fastest round.
    pub min: f64,
    /// Rounds that were run.
    pub rounds: u32,
}

/// The number of rounds, and a time limit that may reduce it.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// The most rounds.
    pub rounds: u32,
    /// No new round begins after this time.
    pub time: Duration,
}

impl Default for Budget {
    fn default() -> Self {
        Self { rounds: 31, time: Duration::from_millis(700) }
    }
}

/// Runs one call.
#[inline(always)]
fn call<I: FreeIndex>(index: &mut I, call: &Call) {
    match call {
        Call::Alloc(request) => {
            let _ = black_box(index.alloc(request));
        }
        Call::Take(range) => {
            let _ = black_box(index.take(*range));
        }
        Call::Free(range) => {
            let _ = black_box(index.free(*range));
        }
    }
}

/// Measures `calls` on fresh indexes.
///
/// # Errors
/// Those of `make`.
pub fn per_call<I: FreeIndex>(
    make: impl Fn() -> Result<I, AllocError>,
    calls: &[Call],
    budget: Budget,
) -> Result<PerCall, AllocError> {
    let begun = Instant::now();
    let (mut rounds, mut idle) = (Vec::new(), Vec::new());
    // A short trace is repeated within a round; otherwise most of the measured time would be the clock's.
    let repeats = (20_000 / calls.len().max(1)).max(1);
    while rounds.len() < budget.rounds as usize && (rounds.len() < 2 || begun.elapsed() < budget.time) {
        let mut indexes = (0..repeats).map(|_| make()).collect::<Result<Vec<_>, _>>()?;
        let start = Instant::now();
        for index in &mut indexes {
            for recorded in calls {
                call(index, recorded);
            }
        }
        rounds.push(start.elapsed());
        let start = Instant::now();
        for _ in 0..repeats {
            for recorded in calls {
                black_box(recorded);
            }
        }
        idle.push(start.elapsed());
    }
    rounds.sort_unstable();
    idle.sort_unstable();
    let count = (calls.len().max(1) * repeats) as f64;
    let harness = idle[0].as_nanos() as f64;
    let ns = |time: Duration| (time.as_nanos() as f64 - harness).max(0.0) / count;
    Ok(PerCall { median: ns(rounds[rounds.len() / 2]), min: ns(rounds[0]), rounds: rounds.len() as u32 })
}

/// Returns the nanoseconds of each single call, without the cost of reading the clock.
///
/// # Errors
/// Those of `make`.
pub fn each_call<I: FreeIndex>(
    make: impl Fn() -> Result<I, AllocError>,
    calls: &[Call],
) -> Result<Vec<u32>, AllocError> {
    let mut clock: Vec<u128> = (0..1001)
        .map(|_| {
            let start = Instant::now();
            start.elapsed().as_nanos()
        })
        .collect();
    clock.sort_unstable();
    let clock = clock[clock.len() / 2];
    let mut index = make()?;
    Ok(calls
        .iter()
        .map(|recorded| {
            let start = Instant::now();
            call(&mut index, recorded);
            start.elapsed().as_nanos().saturating_sub(clock).min(u128::from(u32::MAX)) as u32
        })
        .collect())
}
