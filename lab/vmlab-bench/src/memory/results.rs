//! The results of all rounds, and the comparison at equal memory.

use super::contenders::Contender;
use super::measure::Sample;
use super::task::Spec;
use crate::harness::Summary;

/// A contender's rounds of one workload.
pub struct Row {
    /// Indexes into the lists of [`Results`].
    pub spec: usize,
    pub contender: usize,
    pub rounds: Vec<Sample>,
    /// The reason why there are no more rounds.
    pub stopped: Option<Stopped>,
}

/// The reason why a contender was stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stopped {
    /// It cannot allocate the memory.
    AllocFailed,
    /// It crashed, or hung.
    Crashed,
}

impl Stopped {
    pub fn text(self) -> &'static str {
        match self {
            Self::AllocFailed => "failed",
            Self::Crashed => "crashed",
        }
    }
}

/// All measurements.
pub struct Results {
    pub specs: Vec<Spec>,
    pub contenders: Vec<Contender>,
    pub rows: Vec<Row>,
    /// Peers that are not installed.
    pub missing: Vec<&'static str>,
    /// Failures.
    pub broken: Vec<String>,
}

impl Row {
    /// Returns the statistics of a figure; `None` without a round.
    pub fn figure(&self, of: impl Fn(&Sample) -> f64) -> Option<Summary> {
        Summary::of(self.rounds.iter().map(of))
    }

    /// Returns its point on a line, of medians: memory is that of the same operations for all.
    pub fn point(&self) -> Option<Point> {
        let median = |of: fn(&Sample) -> f64| Some(self.figure(of)?.median);
        Some(Point { rss: median(|sample| sample.rss_same)?, ns: median(|sample| sample.cpu_ns)? })
    }
}

impl Results {
    /// Returns the rows of a workload: the contenders that ran it, in order.
    pub fn of<'a>(&'a self, spec: &'a Spec) -> impl Iterator<Item = (&'a Contender, &'a Row)> {
        let rows = self.rows.iter().filter(|row| self.specs[row.spec].name == spec.name);
        rows.map(|row| (&self.contenders[row.contender], row))
    }
}

/// A point of a line: mean resident bytes, and the cost of an operation.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Point {
    pub rss: f64,
    pub ns: f64,
}

/// Returns the ratio of a peer's cost to ours at equal memory: the cheapest of our points with no more resident bytes
/// than the peer. `None` if each of ours has more.
pub fn at_equal_memory(ours: &[Point], peer: Point) -> Option<f64> {
    let fit = ours.iter().filter(|point| point.rss <= peer.rss);
    fit.map(|point| peer.ns / point.ns).max_by(f64::total_cmp)
}
