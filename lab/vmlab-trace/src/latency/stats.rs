//! Durations: their number, percentiles and histogram.

use std::collections::VecDeque;

/// The share of the greatest probability below which no other is summed.
const NEGLIGIBLE: f64 = 1e-18;

/// Durations of one group, nanoseconds.
#[derive(Clone, Debug, Default)]
pub struct Durations {
    ns: Vec<u64>,
    sorted: bool,
}

/// The figures of a group, nanoseconds. Percentiles are durations that occurred: the smallest that at least this share
/// does not exceed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Durations.
    pub count: u64,
    /// Half of them are not longer.
    pub median: u64,
    /// 90 % are not longer.
    pub p90: u64,
    /// 99 %.
    pub p99: u64,
    /// 99.9 %.
    pub p999: u64,
    /// The longest.
    pub max: u64,
    /// All together.
    pub total: u64,
}

impl Durations {
    pub(super) fn push(&mut self, ns: u64) {
        self.ns.push(ns);
        self.sorted = false;
    }

    /// Adds those of another group.
    pub fn append(&mut self, other: &Self) {
        self.ns.extend_from_slice(&other.ns);
        self.sorted = false;
    }

    /// Returns their sum.
    pub fn total(&self) -> u64 {
        self.ns.iter().fold(0, |sum, &ns| sum.saturating_add(ns))
    }

    fn sort(&mut self) {
        if !self.sorted {
            self.ns.sort_unstable();
            self.sorted = true;
        }
    }

    /// Returns the smallest duration that so many per mille do not exceed; 0 of none. The first call after a change
    /// takes O(n log n), as do the first figures.
    pub fn percentile(&mut self, per_mille: usize) -> u64 {
        self.sort();
        let rank = self.ns.len().saturating_mul(per_mille).div_ceil(1000);
        self.ns.get(rank.saturating_sub(1)).copied().unwrap_or(0)
    }

    /// Returns the durations between which the percentile of all such calls is, with 95 % of certainty, if these are a
    /// sample of independent ones. How many of a sample are below the percentile is binomial, whatever the distribution.
    /// An end is `None` if these are too few to show it. The median has both ends from 6 durations on, and 99 % has its
    /// upper end from 368 on.
    pub fn interval(&mut self, per_mille: usize) -> Interval {
        self.sort();
        let (low, high) = ranks(self.ns.len(), per_mille as f64 / 1000.0);
        let at = |rank: usize| self.ns.get(rank.checked_sub(1)?).copied();
        (at(low), at(high))
    }

    /// Returns the figures.
    pub fn figures(&mut self) -> Figures {
        self.sort();
        Figures {
            count: self.ns.len() as u64,
            median: self.percentile(500),
            p90: self.percentile(900),
            p99: self.percentile(990),
            p999: self.percentile(999),
            max: self.ns.last().copied().unwrap_or(0),
            total: self.total(),
        }
    }

    /// Returns the number of durations from `2^k` to below `2^(k+1)` nanoseconds for each `k` that has any. Zero is in
    /// the first, from 0 to 2.
    pub fn histogram(&self) -> Vec<(u32, u64)> {
        let mut counts = [0u64; 64];
        for ns in &self.ns {
            counts[ns.max(&1).ilog2() as usize] += 1;
        }
        (0..).zip(counts).filter(|&(_, count)| count > 0).collect()
    }
}

/// Two durations between which a percentile is; an end is `None` if it is not known.
pub type Interval = (Option<u64>, Option<u64>);

/// Returns the ranks, from 1, between which a percentile is among so many durations, with 95 % of certainty. It is below
/// the first, or above the second, with 2.5 % at most. Rank 0, and the one after the last, are no durations. O(√count).
fn ranks(count: usize, share: f64) -> (usize, usize) {
    let all = count as f64;
    // How probable each number of durations below the percentile is, in proportion to the most probable one.
    let mode = ((all + 1.0) * share).floor().min(all);
    let mut weights = VecDeque::from([1.0]);
    let (mut low, mut weight) = (mode, 1.0);
    while low > 0.0 && weight > NEGLIGIBLE {
        weight *= low * (1.0 - share) / ((all - low + 1.0) * share);
        weights.push_front(weight);
        low -= 1.0;
    }
    let (mut high, mut weight) = (mode, 1.0);
    while high < all && weight > NEGLIGIBLE {
        weight *= (all - high) * share / ((high + 1.0) * (1.0 - share));
        weights.push_back(weight);
        high += 1.0;
    }
    let limit = 0.025 * weights.iter().sum::<f64>();
    let within = |sum: &mut f64, weight: &f64| {
        *sum += weight;
        (*sum <= limit).then_some(())
    };
    let below = weights.iter().scan(0.0, within).count();
    let above = weights.iter().rev().scan(0.0, within).count();
    (low as usize + below, high as usize + 1 - above)
}

/// Returns the least duration of a range of [`Durations::histogram`], nanoseconds.
pub fn lowest(range: u32) -> u64 {
    if range == 0 { 0 } else { 1u64.checked_shl(range).unwrap_or(u64::MAX) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The smallest duration that so many per mille do not exceed, by counting.
    fn slow(ns: &[u64], per_mille: usize) -> u64 {
        let enough = |&&limit: &&u64| {
            let within = ns.iter().filter(|&&one| one <= limit).count();
            within * 1000 >= per_mille * ns.len()
        };
        *ns.iter().filter(enough).min().unwrap()
    }

    proptest! {
        #[test]
        fn figures_are_those_of_counting(ns in proptest::collection::vec(prop_oneof![0..40u64, any::<u64>()], 1..300)) {
            let mut durations = Durations::default();
            ns.iter().for_each(|&one| durations.push(one));
            let figures = durations.figures();
            prop_assert_eq!(figures.count, ns.len() as u64);
            let want = [500, 900, 990, 999, 1000].map(|per_mille| slow(&ns, per_mille));
            prop_assert_eq!([figures.median, figures.p90, figures.p99, figures.p999, figures.max], want);
            let total: u128 = ns.iter().map(|&one| u128::from(one)).sum();
            prop_assert_eq!(u128::from(figures.total), total.min(u64::MAX.into()));
            for (bucket, count) in durations.histogram() {
                let low = if bucket == 0 { 0 } else { 1u128 << bucket };
                let within = ns.iter().filter(|&&one| (low..1 << (bucket + 1)).contains(&one.into())).count();
                prop_assert_eq!(count, within as u64);
            }
            prop_assert_eq!(durations.histogram().iter().map(|&(_, count)| count).sum::<u64>(), ns.len() as u64);
        }
    }

    #[test]
    fn an_interval_has_the_true_percentile_nineteen_times_of_twenty() {
        let mut state = 19u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % 1_000_000
        };
        for (per_mille, truth, count) in [500, 990]
            .into_iter()
            .flat_map(|one| [1, 5, 6, 50, 100, 367, 368, 400].map(|count| (one, one as u64 * 1000, count)))
        {
            let (mut inside, mut changes, mut before) = (0, 0, (None, None));
            for _ in 0..1000 {
                let mut sample = Durations::default();
                (0..count).for_each(|_| sample.push(random()));
                let (low, high) = sample.interval(per_mille);
                let middle = sample.percentile(per_mille);
                assert!(low.is_none_or(|low| low <= middle) && high.is_none_or(|high| middle <= high));
                inside +=
                    u32::from(low.is_none_or(|low| low <= truth) && high.is_none_or(|high| truth <= high));
                let apart = |a: Option<u64>, b: Option<u64>| a.zip(b).is_some_and(|(a, b)| a < b);
                changes += u32::from(apart(before.1, low) || apart(high, before.0));
                before = (low, high);
                assert_eq!(high.is_some(), count >= if per_mille == 500 { 6 } else { 368 });
            }
            assert!(inside >= 935 && changes <= 50, "{per_mille} of {count}: {inside}, {changes} of 1,000");
        }
    }

    #[test]
    fn of_nothing_there_is_nothing() {
        let mut none = Durations::default();
        assert_eq!((none.percentile(500), none.interval(500)), (0, (None, None)));
        assert_eq!(none.figures(), Figures::default());
        assert!(none.histogram().is_empty());
    }
}
