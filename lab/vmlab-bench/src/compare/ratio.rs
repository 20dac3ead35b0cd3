//! Ratios of two targets' figures, and the reasons not to print one.
//!
//! # Theory
//! A ratio of two fastest rounds always exists, even if it says nothing. For example, one target took 0.98 to 1.05 s in
//! three rounds, and the other 1.01 to 1.06 s. Their fastest rounds differ by 3 %, but a fourth round may turn that
//! round. So a ratio is printed only if all rounds of one target are faster than each round of the other.
//!
//! A stopped run has a lower bound in place of a time, and no upper one.
//!
//! Workers that never met measured a machine to itself each, and no contention: their times have no ratio either. See
//! [`Found::met`](crate::suite::driver::Found::met).

/// A figure of a target over its rounds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Figure {
    /// The figure that tables show.
    pub shown: f64,
    /// The least of all rounds.
    pub least: f64,
    /// The most of all rounds; infinite if the run was stopped.
    pub most: f64,
}

impl Figure {
    /// Returns a figure of which `rounds` are the values in each round.
    pub fn new(shown: f64, rounds: impl IntoIterator<Item = f64>) -> Self {
        let one = Self { shown, least: shown, most: shown };
        rounds.into_iter().fold(one, |sum, round| Self {
            least: sum.least.min(round),
            most: sum.most.max(round),
            ..sum
        })
    }

    /// Returns the figure of a run that was stopped when it had reached `least`.
    pub fn at_least(least: f64) -> Self {
        Self { shown: least, least, most: f64::INFINITY }
    }

    fn is_bound(&self) -> bool {
        self.most.is_infinite()
    }

    /// Returns true if a round of one may equal a round of the other.
    pub fn meets(&self, other: &Self) -> bool {
        self.least <= other.most && other.least <= self.most
    }
}

/// Printed in place of a ratio that the rounds do not support.
pub const WITHIN: &str = "within the spread";
/// Printed in place of a ratio of workers that ran one after the other.
pub const UNMET: &str = "did not meet";

/// The ratio of two figures.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Ratio {
    /// Of two times.
    Times(f64),
    /// The first run was stopped.
    AtLeast(f64),
    /// The second run was stopped.
    AtMost(f64),
    /// Both have rounds that the other may have, too.
    Within,
    /// Both runs were stopped.
    Unknown,
    /// Workers ran one after the other.
    Unmet,
}

impl Ratio {
    /// Returns the ratio of `of` by `by`.
    pub fn new(of: &Figure, by: &Figure) -> Self {
        let times = of.shown / by.shown.max(1e-9);
        match (of.is_bound(), by.is_bound()) {
            (true, true) => Self::Unknown,
            _ if of.meets(by) => Self::Within,
            (true, false) => Self::AtLeast(times),
            (false, true) => Self::AtMost(times),
            (false, false) => Self::Times(times),
        }
    }

    /// Returns the ratio if `met` workers of `workers` met.
    #[must_use]
    pub fn of_workers(self, met: u32, workers: u32) -> Self {
        if met < workers { Self::Unmet } else { self }
    }

    /// Formats the ratio, a number by `number`.
    pub fn text(self, number: impl Fn(f64) -> String) -> String {
        match self {
            Self::Times(times) => number(times),
            Self::AtLeast(times) => format!("> {}", number(times)),
            Self::AtMost(times) => format!("< {}", number(times)),
            Self::Within => WITHIN.to_string(),
            Self::Unknown => "-".to_string(),
            Self::Unmet => UNMET.to_string(),
        }
    }
}
