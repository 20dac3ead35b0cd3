//! What must be shown, and whether it is, computed from what was measured.

use super::results::{Point, Results, Summary, at_equal_memory};
use super::task::{CALLOCS, CROWD, FLOWS, MAPPED_MAX, MIXES, PAIRS, mix_name, size};
use super::who::{Contender, GLIBC, KV, MMAP, OURS};

/// A goal.
pub(super) struct Goal {
    pub(super) what: String,
    /// What is asked for.
    pub(super) asked: String,
    /// What was measured, and against whom.
    pub(super) figure: String,
    pub(super) met: Verdict,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    Met,
    Missed,
    /// Something that it takes was not measured.
    Unknown,
}

impl Verdict {
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Met => "met",
            Self::Missed => "missed",
            Self::Unknown => "not measured",
        }
    }
}

const MIB: f64 = (1 << 20) as f64;
/// Least ratios asked for.
const GLIBC_RATIO: f64 = 5.0;
const BETTER_RATIO: f64 = 1.5;
const MMAP_RATIO: f64 = 20.0;
/// Who is that much worse than the best counts as equal.
const AS_GOOD: f64 = 1.1;
const PAIR_NS: f64 = 20.0;
const IDLE_MIB: f64 = 20.0;
/// What two runs of the same differ by.
const NOISE: f64 = 1.05;

/// A figure that must be at most, or at least, some number. `None` was not measured.
fn goal(what: impl Into<String>, asked: impl Into<String>, figure: Option<(String, bool)>) -> Goal {
    let (figure, met) = match figure {
        Some((figure, true)) => (figure, Verdict::Met),
        Some((figure, false)) => (figure, Verdict::Missed),
        None => ("-".to_string(), Verdict::Unknown),
    };
    Goal { what: what.into(), asked: asked.into(), figure, met }
}

/// All goals, in the order in which they were set.
pub(super) fn all(results: &Results) -> Vec<Goal> {
    let mut goals = vec![pairs(results)];
    for mix in MIXES {
        for threads in [1, 2] {
            let name = format!("{}-pages-{threads}t", mix_name(mix));
            goals.extend(mixes(results, &name, mix.1 > MIXES[0].1));
        }
    }
    goals.push(best(results, &format!("crowd-{CROWD}t")));
    goals.extend(FLOWS.map(|bytes| best(results, &format!("flow-{}", size(bytes)))));
    goals.push(idle(results));
    goals.extend(CALLOCS.map(|bytes| calloc(results, bytes)));
    goals.push(grown(results));
    goals.extend(mapped(results));
    goals
}

fn is_ours(contender: &Contender) -> bool {
    [OURS, KV].contains(&contender.family)
}

/// The dearest of cached pairs.
fn pairs(results: &Results) -> Goal {
    let costs = PAIRS.map(|bytes| {
        let ns = results.default_of(&format!("pair-{}-byte-1t", size(bytes)), OURS)?.cpu_ns;
        Some((ns, size(bytes)))
    });
    let costs: Vec<_> = costs.into_iter().flatten().collect();
    let worst = costs.iter().max_by(|a, b| a.0.total_cmp(&b.0)).filter(|_| costs.len() == PAIRS.len());
    let figure = worst.map(|(ns, size)| (format!("{ns:.1} ns at {size}"), *ns <= PAIR_NS));
    goal("cached pair, one byte, 64K to 64M", format!("<= {PAIR_NS} ns at every size"), figure)
}

fn point(summary: &Summary) -> Point {
    Point { rss: summary.rss_mean, ns: summary.cpu_ns }
}

/// A peer's point beside ours.
struct Beside<'a> {
    peer: &'a Contender,
    /// How many times the cost of ours, at equal memory; `None` if each of ours has more.
    ratio: Option<f64>,
    rss: f64,
}

impl Beside<'_> {
    /// The figure, and whether the ratio is as asked.
    fn told(&self, asked: f64) -> (String, bool) {
        match self.ratio {
            Some(ratio) => (format!("{ratio:.2}x {}", self.peer.name), ratio >= asked),
            None => (
                format!("none of ours has as little as {} ({:.1} MiB)", self.peer.name, self.rss / MIB),
                false,
            ),
        }
    }
}

/// The peer that comes off best. Whoever has less memory than each of ours comes first.
fn worst<'a>(among: impl Iterator<Item = &'a Beside<'a>>) -> Option<&'a Beside<'a>> {
    among.min_by(|a, b| a.ratio.unwrap_or(0.0).total_cmp(&b.ratio.unwrap_or(0.0)))
}

/// A mix at equal memory: against every point of every peer, glibc, and the better of two.
fn mixes(results: &Results, name: &str, beats_glibc: bool) -> Vec<Goal> {
    let all = results.of(name);
    let of_ours = all.iter().filter(|(one, _)| one.family == OURS);
    let ours: Vec<Point> = of_ours.map(|(_, summary)| point(summary)).collect();
    let peers = all.iter().filter(|(one, _)| !is_ours(one) && one.family != MMAP && !ours.is_empty());
    let beside: Vec<_> = peers
        .map(|(peer, summary)| {
            let rss = summary.rss_mean;
            Beside { peer, ratio: at_equal_memory(&ours, point(summary)), rss }
        })
        .collect();
    // All of these must have been measured.
    let only = |families: &[&str], asked: f64| {
        let of = |family: &str| beside.iter().find(|one| one.peer.is_default && one.peer.family == family);
        let found: Option<Vec<_>> = families.iter().map(|family| of(family)).collect();
        Some(worst(found?.into_iter())?.told(asked))
    };
    let at = format!("{name}, equal memory");
    let every = worst(beside.iter()).map(|one| one.told(1.0));
    let mut goals = vec![goal(&*at, "every point of every peer: >= 1x", every)];
    if beats_glibc {
        let asked = format!("glibc: >= {GLIBC_RATIO}x");
        goals.push(goal(&*at, asked, only(&[GLIBC], GLIBC_RATIO)));
    }
    let asked = format!("the better of jemalloc and mimalloc: >= {BETTER_RATIO}x");
    goals.push(goal(&*at, asked, only(&["jemalloc", "mimalloc"], BETTER_RATIO)));
    goals
}

/// Time of the clock, against the best at its default.
fn best(results: &Results, name: &str) -> Goal {
    let all = results.of(name);
    let peers = all.iter().filter(|(one, _)| one.is_default && !is_ours(one));
    let best = peers.min_by(|a, b| a.1.wall_ns.total_cmp(&b.1.wall_ns));
    let figure = results.default_of(name, OURS).zip(best).map(|(ours, (one, theirs))| {
        let ratio = ours.wall_ns / theirs.wall_ns;
        let (ours, theirs) = (ours.wall_ns, theirs.wall_ns);
        (format!("{ratio:.2} of {} ({ours:.0} ns, {theirs:.0} ns)", one.name), ratio <= AS_GOOD)
    });
    goal(format!("{name}, time of the clock"), format!("<= {AS_GOOD} of the best peer"), figure)
}

fn idle(results: &Results) -> Goal {
    let figure = results.default_of("burst-256x1M", OURS).map(|ours| {
        let mib = ours.rss_end / MIB;
        (format!("{mib:.1} MiB"), mib < IDLE_MIB)
    });
    goal("resident 1.5 s after a burst of 256 MiB", format!("< {IDLE_MIB} MiB"), figure)
}

fn calloc(results: &Results, bytes: usize) -> Goal {
    let name = size(bytes);
    let ours = results.default_of(&format!("calloc-{name}"), OURS);
    let memset = results.default_of(&format!("memset-{name}"), GLIBC);
    let figure = ours.zip(memset).map(|(ours, memset)| {
        let ratio = ours.cpu_ns / memset.cpu_ns;
        (format!("{ratio:.2} ({:.0} ns, {:.0} ns)", ours.cpu_ns, memset.cpu_ns), ratio <= NOISE)
    });
    let asked = format!("<= {NOISE} of memset of what is resident");
    goal(format!("zeros, {name}"), asked, figure)
}

/// Two copies at a time would be resident if it copied.
fn grown(results: &Results) -> Goal {
    let figure = results.default_of("grow-256M", OURS).map(|ours| {
        let mib = ours.rss_ever / MIB;
        (format!("{mib:.0} MiB resident at most"), mib <= 256.0 * AS_GOOD)
    });
    goal("growing to 256 MiB without copying", format!("<= {:.0} MiB resident", 256.0 * AS_GOOD), figure)
}

/// Against plain mappings, for each number of threads.
fn mapped(results: &Results) -> [Goal; 2] {
    [1, 2].map(|threads| {
        let ratio = |&bytes: &usize| {
            let name = format!("pair-{}-pages-{threads}t", size(bytes));
            let of = |family| results.default_of(&name, family).map(|found| found.wall_ns);
            Some((of(MMAP)? / of(OURS)?, size(bytes)))
        };
        let sizes: Vec<_> = PAIRS.iter().filter(|&&bytes| bytes <= MAPPED_MAX).collect();
        let ratios: Vec<_> = sizes.iter().filter_map(|bytes| ratio(bytes)).collect();
        let worst = ratios.iter().min_by(|a, b| a.0.total_cmp(&b.0)).filter(|_| ratios.len() == sizes.len());
        let figure = worst.map(|(ratio, size)| (format!("{ratio:.1}x at {size}"), *ratio >= MMAP_RATIO));
        let what = format!("mmap and munmap, every page, 64K to 16M, threads: {threads}");
        goal(what, format!(">= {MMAP_RATIO}x at every size"), figure)
    })
}
