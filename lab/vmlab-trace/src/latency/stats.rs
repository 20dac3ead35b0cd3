//! Durations: their number, percentiles and histogram.

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
    /// sample of independent ones. How many of a sample are below the percentile is binomial, so its place among them is
    /// known up to 1.96 standard deviations, whatever the distribution.
    pub fn interval(&mut self, per_mille: usize) -> (u64, u64) {
        self.sort();
        let Some(last) = self.ns.len().checked_sub(1) else { return (0, 0) };
        let (count, share) = (self.ns.len() as f64, per_mille as f64 / 1000.0);
        let wide = 1.96 * (count * share * (1.0 - share)).sqrt();
        let at = |rank: f64| self.ns[(rank.max(0.0) as usize).min(last)];
        (at((count * share - wide).floor() - 1.0), at((count * share + wide).ceil()))
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
        for (per_mille, truth) in [(500, 500_000), (990, 990_000)] {
            let mut inside = 0;
            for _ in 0..1000 {
                let mut sample = Durations::default();
                (0..400).for_each(|_| sample.push(random()));
                let (low, high) = sample.interval(per_mille);
                assert!(low <= sample.percentile(per_mille) && sample.percentile(per_mille) <= high);
                inside += u32::from((low..=high).contains(&truth));
            }
            assert!((935..=985).contains(&inside), "{per_mille}: {inside} of 1,000");
        }
    }

    #[test]
    fn of_nothing_there_is_nothing() {
        let mut none = Durations::default();
        assert_eq!((none.percentile(500), none.interval(500)), (0, (0, 0)));
        assert_eq!(none.figures(), Figures::default());
        assert!(none.histogram().is_empty());
    }
}
