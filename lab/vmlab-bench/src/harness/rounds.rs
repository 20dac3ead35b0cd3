//! Rounds: their order, and the statistics of their figures.

use anyhow::Result;

/// Returns the turns of a measurement, each the number of a round and of a contender.
///
/// In each round every contender runs once, so that a disturbance of the machine affects all. Every second round is
/// backwards: a contender that runs after one with other memory finds cold caches, and should not do so in each round.
pub fn turns(rounds: usize, contenders: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..rounds).flat_map(move |round| {
        (0..contenders).map(move |at| (round, if round % 2 == 0 { at } else { contenders - 1 - at }))
    })
}

/// Runs all contenders in [`turns`]. Returns the results of each, in the order of rounds; `None` is left out.
///
/// # Errors
/// The first error of `run`.
pub fn in_turn<C, T>(
    rounds: usize,
    contenders: &[C],
    mut run: impl FnMut(usize, &C) -> Result<Option<T>>,
) -> Result<Vec<Vec<T>>> {
    let mut results: Vec<Vec<T>> = contenders.iter().map(|_| Vec::new()).collect();
    for (round, at) in turns(rounds, contenders.len()) {
        results[at].extend(run(round, &contenders[at])?);
    }
    Ok(results)
}

/// The statistics of a figure over rounds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Summary {
    /// Number of rounds, at least 1.
    pub count: usize,
    /// The smallest figure.
    pub min: f64,
    /// The middle figure, or the mean of the two in the middle.
    pub median: f64,
    /// The mean.
    pub mean: f64,
    /// The largest figure.
    pub max: f64,
}

impl Summary {
    /// Returns the statistics of figures; `None` if there are none.
    pub fn of(figures: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = figures.into_iter().collect();
        sorted.sort_unstable_by(f64::total_cmp);
        let count = sorted.len();
        let (&min, &max) = sorted.first().zip(sorted.last())?;
        let median = f64::midpoint(sorted[(count - 1) / 2], sorted[count / 2]);
        Some(Self { count, min, median, mean: sorted.iter().sum::<f64>() / count as f64, max })
    }

    /// Returns the same without a part of each figure, which is the cost of measuring. A tenth is left of any.
    #[must_use]
    pub fn without(self, part: f64) -> Self {
        let Self { count, min, median, mean, max } = self;
        let [min, median, mean, max] = [min, median, mean, max].map(|figure| (figure - part).max(0.1));
        Self { count, min, median, mean, max }
    }
}
