//! The results of all rounds, and the comparison at equal memory.

use super::contenders::Contender;
use super::measure::Sample;
use super::task::Spec;

/// A contender's rounds of one workload.
pub(super) struct Row {
    /// Indexes into the lists of [`Results`].
    pub(super) spec: usize,
    pub(super) contender: usize,
    pub(super) rounds: Vec<Sample>,
    /// The reason why there are no more rounds.
    pub(super) stopped: Option<Stopped>,
}

/// The reason why a contender was stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stopped {
    /// It cannot allocate the memory.
    AllocFailed,
    /// It crashed, or hung.
    Crashed,
}

impl Stopped {
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::AllocFailed => "failed",
            Self::Crashed => "crashed",
        }
    }
}

/// Numbers of one contender on one workload: medians of rounds, unless their name says otherwise.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Summary {
    pub(super) cpu_ns: f64,
    pub(super) cpu_ns_min: f64,
    pub(super) wall_ns: f64,
    pub(super) wall_ns_min: f64,
    pub(super) p99_ns: f64,
    pub(super) faults: f64,
    pub(super) rss_mean: f64,
    pub(super) rss_same: f64,
    pub(super) rss_peak: f64,
    pub(super) rss_end: f64,
    pub(super) rss_ever: f64,
    pub(super) mappings: f64,
}

/// All measurements.
pub(super) struct Results {
    pub(super) specs: Vec<Spec>,
    pub(super) contenders: Vec<Contender>,
    pub(super) rows: Vec<Row>,
    /// Peers that are not installed.
    pub(super) missing: Vec<&'static str>,
    /// Failures.
    pub(super) broken: Vec<String>,
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let (below, above) = (values[(values.len() - 1) / 2], values[values.len() / 2]);
    f64::midpoint(below, above)
}

impl Row {
    /// Returns the summary; `None` without a round.
    pub(super) fn summary(&self) -> Option<Summary> {
        if self.rounds.is_empty() {
            return None;
        }
        let all = |of: fn(&Sample) -> f64| -> Vec<f64> { self.rounds.iter().map(of).collect() };
        let least = |of: fn(&Sample) -> f64| all(of).into_iter().fold(f64::INFINITY, f64::min);
        let most = |of: fn(&Sample) -> f64| all(of).into_iter().fold(0.0, f64::max);
        Some(Summary {
            cpu_ns: median(all(|sample| sample.cpu_ns)),
            cpu_ns_min: least(|sample| sample.cpu_ns),
            wall_ns: median(all(|sample| sample.wall_ns)),
            wall_ns_min: least(|sample| sample.wall_ns),
            p99_ns: median(all(|sample| sample.p99_ns)),
            faults: median(all(|sample| sample.faults)),
            rss_mean: median(all(|sample| sample.rss_mean)),
            rss_same: median(all(|sample| sample.rss_same)),
            rss_peak: most(|sample| sample.rss_peak),
            rss_end: median(all(|sample| sample.rss_end)),
            rss_ever: most(|sample| sample.rss_ever),
            mappings: most(|sample| sample.mappings),
        })
    }
}

impl Results {
    /// Returns the results of a workload: the contenders that ran it, in order.
    pub(super) fn of<'a>(&'a self, spec: &str) -> Vec<(&'a Contender, Summary)> {
        let rows = self.rows.iter().filter(|row| self.specs[row.spec].name == spec);
        rows.filter_map(|row| Some((&self.contenders[row.contender], row.summary()?))).collect()
    }
}

/// A point of a line: mean resident bytes, and the cost of an operation.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Point {
    pub(super) rss: f64,
    pub(super) ns: f64,
}

/// Returns the ratio of a peer's cost to ours at equal memory: the cheapest of our points with no more resident bytes
/// than the peer. `None` if each of ours has more.
pub(super) fn at_equal_memory(ours: &[Point], peer: Point) -> Option<f64> {
    let fit = ours.iter().filter(|point| point.rss <= peer.rss);
    fit.map(|point| peer.ns / point.ns).max_by(f64::total_cmp)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ours_is_the_cheapest_point_that_has_no_more_memory_than_the_peer() {
        let ours =
            [(10.0, 100.0), (20.0, 50.0), (30.0, 60.0), (40.0, 10.0)].map(|(rss, ns)| Point { rss, ns });
        for (rss, ns, ratio) in [
            (5.0, 1.0, None),
            (10.0, 200.0, Some(2.0)),
            (19.9, 200.0, Some(2.0)),
            (20.0, 200.0, Some(4.0)),
            // A point with more memory and more cost is never the best choice.
            (35.0, 200.0, Some(4.0)),
            (1000.0, 5.0, Some(0.5)),
        ] {
            assert_eq!(at_equal_memory(&ours, Point { rss, ns }), ratio, "{rss} {ns}");
        }
        assert_eq!(at_equal_memory(&[], Point { rss: 1.0, ns: 1.0 }), None);
    }

    #[test]
    fn a_median_is_in_the_middle_and_a_peak_at_the_top() {
        assert_eq!([median(vec![3.0, 1.0, 2.0]), median(vec![4.0, 1.0])], [2.0, 2.5]);
        let sample = |cpu_ns: f64| Sample {
            cpu_ns,
            wall_ns: 1.0,
            p99_ns: 1.0,
            faults: 0.0,
            rss_mean: cpu_ns,
            rss_same: cpu_ns,
            rss_peak: cpu_ns,
            rss_end: cpu_ns,
            rss_ever: cpu_ns,
            mappings: 1.0,
        };
        let rounds = [5.0, 1.0, 3.0].map(sample).to_vec();
        let row = Row { spec: 0, contender: 0, rounds, stopped: None };
        let summary = row.summary().unwrap();
        assert_eq!(
            (summary.cpu_ns, summary.cpu_ns_min, summary.rss_mean, summary.rss_peak),
            (3.0, 1.0, 3.0, 5.0)
        );
        assert_eq!(Row { spec: 0, contender: 0, rounds: vec![], stopped: None }.summary(), None);
    }
}
