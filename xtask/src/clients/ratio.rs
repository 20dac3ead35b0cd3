//! A ratio of times, and its bounds.
//!
//! # Theory
//! Two programs take turns, and the times of one trial make one ratio: a disturbance of a minute affects both of a
//! trial. Ratios multiply, so their logarithms add and have a symmetric spread. The mean of the logarithms is the
//! logarithm of the ratio. Student's t with the spread of the logarithms gives the bounds: 95 of 100 such intervals
//! contain the ratio.

/// A ratio and the bounds of its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Ratio {
    pub(crate) middle: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

/// The least number of pairs for a verdict.
pub(crate) const PAIRS_MIN: usize = 15;

/// The least ratio at which a program is called faster than the plain one.
const FASTER: f64 = 1.05;
const SLOWER: f64 = 1.0 / 1.03;

/// The conclusion from a ratio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// By at least 5 %.
    Faster,
    /// By less than 5 %, or by not more than 3 % slower.
    Same,
    /// By more than 3 %.
    Slower,
    /// The interval contains a limit.
    Unclear,
    /// Too few pairs.
    TooFew,
}

impl Verdict {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Verdict::Faster => "faster",
            Verdict::Same => "same",
            Verdict::Slower => "SLOWER",
            Verdict::Unclear => "unclear",
            Verdict::TooFew => "too few pairs",
        }
    }
}

impl Ratio {
    /// Returns the ratio of `base` to `other`, pair by pair: above 1, `other` is faster. Returns `None` without two
    /// pairs of times above zero.
    pub(crate) fn of(base: &[f64], other: &[f64]) -> Option<Self> {
        let logs: Vec<f64> = base
            .iter()
            .zip(other)
            .filter(|(base, other)| **base > 0.0 && **other > 0.0)
            .map(|(base, other)| (base / other).ln())
            .collect();
        let count = logs.len();
        if count < 2 {
            return None;
        }
        let number = count as f64;
        let mean = logs.iter().sum::<f64>() / number;
        let spread = logs.iter().map(|log| (log - mean).powi(2)).sum::<f64>() / (number - 1.0);
        let half = student(count - 1) * (spread / number).sqrt();
        Some(Self { middle: mean.exp(), low: (mean - half).exp(), high: (mean + half).exp() })
    }

    /// Returns the verdict, if enough pairs were run.
    pub(crate) fn verdict(self, pairs: usize) -> Verdict {
        if pairs < PAIRS_MIN {
            Verdict::TooFew
        } else if self.low > FASTER {
            Verdict::Faster
        } else if self.high < SLOWER {
            Verdict::Slower
        } else if self.low > SLOWER {
            Verdict::Same
        } else {
            Verdict::Unclear
        }
    }
}

/// Returns the middle value, or the mean of the two in the middle; 0 of no values.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    match (sorted.get(sorted.len().wrapping_sub(1) / 2), sorted.get(sorted.len() / 2)) {
        (Some(low), Some(high)) => f64::midpoint(*low, *high),
        _ => 0.0,
    }
}

/// Returns the 97.5 % point of Student's t. Beyond the table, the first terms of its series around the normal
/// distribution's.
fn student(freedom: usize) -> f64 {
    const TABLE: [f64; 10] = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228];
    const NORMAL: f64 = 1.959_964;
    if let Some(&point) = freedom.checked_sub(1).and_then(|at| TABLE.get(at)) {
        return point;
    }
    let freedom = freedom as f64;
    let (cube, fifth, seventh) = (NORMAL.powi(3), NORMAL.powi(5), NORMAL.powi(7));
    NORMAL
        + (cube + NORMAL) / (4.0 * freedom)
        + (5.0 * fifth + 16.0 * cube + 3.0 * NORMAL) / (96.0 * freedom.powi(2))
        + (3.0 * seventh + 19.0 * fifth + 17.0 * cube - 15.0 * NORMAL) / (384.0 * freedom.powi(3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn students_points_are_those_of_the_tables() {
        for (freedom, point) in
            [(1, 12.706), (10, 2.228), (11, 2.201), (14, 2.145), (29, 2.045), (120, 1.980)]
        {
            assert!((student(freedom) - point).abs() < 0.002, "{freedom}: {}", student(freedom));
        }
    }

    #[test]
    fn a_ratio_of_pairs_does_not_see_what_slows_both_down() {
        let base = [1.0, 2.0, 8.0, 3.0];
        let other = [0.5, 1.0, 4.0, 1.5];
        let ratio = Ratio::of(&base, &other).unwrap();
        assert!((ratio.middle - 2.0).abs() < 1e-9 && (ratio.high - ratio.low).abs() < 1e-9, "{ratio:?}");
        // Computed by hand: logarithms 0 and ln 4, mean ln 2, spread (ln 2)^2 * 2, half 12.706 * ln 2.
        let ratio = Ratio::of(&[1.0, 4.0], &[1.0, 1.0]).unwrap();
        assert!((ratio.low.ln() - (1.0 - 12.706) * 2f64.ln()).abs() < 1e-9, "{ratio:?}");
        assert_eq!(Ratio::of(&[1.0], &[1.0]), None);
        assert_eq!(Ratio::of(&[0.0, 1.0], &[1.0, 0.0]), None);
    }

    #[test]
    fn the_interval_must_exclude_the_limit() {
        let ratio = |low, high| Ratio { middle: f64::midpoint(low, high), low, high };
        for (low, high, verdict) in [
            (1.06, 1.2, Verdict::Faster),
            (1.04, 1.2, Verdict::Same),
            (0.98, 1.01, Verdict::Same),
            (0.96, 1.2, Verdict::Unclear),
            (0.9, 0.96, Verdict::Slower),
        ] {
            assert_eq!(ratio(low, high).verdict(PAIRS_MIN), verdict, "{low} {high}");
            assert_eq!(ratio(low, high).verdict(PAIRS_MIN - 1), Verdict::TooFew);
        }
    }

    #[test]
    fn a_median_is_in_the_middle() {
        assert!((median(&[3.0, 1.0, 2.0]) - 2.0).abs() < 1e-9);
        assert!((median(&[4.0, 1.0, 2.0, 3.0]) - 2.5).abs() < 1e-9);
        assert!(median(&[]).abs() < 1e-9);
    }
}
