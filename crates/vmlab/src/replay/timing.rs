//! The time of an index for the calls of a replay.
//!
//! The calls were recorded once; here only they run, on a fresh index, round after round. What it costs to walk over
//! the recorded calls without an index is measured the same way and subtracted, for every index alike.

use super::Call;
use std::hint::black_box;
use std::time::{Duration, Instant};
use va_base::AllocError;
use va_tree::FreeIndex;

/// Nanoseconds a call, harness subtracted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PerCall {
    /// Median round.
    pub median: f64,
    /// Fastest round.
    pub min: f64,
    /// Rounds that were run.
    pub rounds: u32,
}

/// Rounds that are enough, and the time after which fewer are.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Most rounds.
    pub rounds: u32,
    /// No new round begins after this.
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
/// Whatever `make` refuses.
pub fn per_call<I: FreeIndex>(
    make: impl Fn() -> Result<I, AllocError>,
    calls: &[Call],
    budget: Budget,
) -> Result<PerCall, AllocError> {
    let begun = Instant::now();
    let (mut rounds, mut idle) = (Vec::new(), Vec::new());
    // A short trace is run several times within a round, or the clock would be most of what is measured.
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

/// Nanoseconds of each call on its own, the cost of reading the clock subtracted.
///
/// # Errors
/// Whatever `make` refuses.
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
