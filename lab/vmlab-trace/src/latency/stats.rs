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
    pub(super) fn append(&mut self, other: &Self) {
        self.ns.extend_from_slice(&other.ns);
        self.sorted = false;
    }

    /// Returns their sum.
    pub fn total(&self) -> u64 {
        self.ns.iter().fold(0, |sum, &ns| sum.saturating_add(ns))
    }

    /// Returns the figures. The first call after a change takes O(n log n).
    pub fn figures(&mut self) -> Figures {
        if !self.sorted {
            self.ns.sort_unstable();
            self.sorted = true;
        }
        let Some(&max) = self.ns.last() else { return Figures::default() };
        let at = |per_mille: usize| {
            let rank = self.ns.len().saturating_mul(per_mille).div_ceil(1000);
            self.ns[rank.saturating_sub(1)]
        };
        Figures {
            count: self.ns.len() as u64,
            median: at(500),
            p90: at(900),
            p99: at(990),
            p999: at(999),
            max,
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
    fn of_nothing_there_is_nothing() {
        let mut none = Durations::default();
        assert_eq!(none.figures(), Figures::default());
        assert!(none.histogram().is_empty());
    }
}
