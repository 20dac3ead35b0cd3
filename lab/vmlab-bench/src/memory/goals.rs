//! The goals, and verdicts on the measurements.

use super::contenders::{Contender, GLIBC, GUARDS, KV, MMAP, OURS, TUNED};
use super::results::{Point, Results, Summary, at_equal_memory};
use super::task::{
    CALLOCS, CROWD, FLOWS, GROWN, GUARDED, Growth, HARDLY, MAPPED_MAX, MIXES, PAIRS, TRIMMED, exchange_name,
    grow_name, mix_name, size, sparse_name, trim_name,
};

/// A goal.
pub(super) struct Goal {
    pub(super) what: String,
    /// The required figure, as text.
    pub(super) asked: String,
    /// The measured figure, and the peer.
    pub(super) figure: String,
    pub(super) met: Verdict,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    Met,
    Missed,
    /// A figure that it needs was not measured.
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
/// Required ratios.
const GLIBC_RATIO: f64 = 5.0;
const BETTER_RATIO: f64 = 1.5;
const MMAP_RATIO: f64 = 20.0;
/// A result that is at most this much worse than the best counts as equal.
const AS_GOOD: f64 = 1.1;
/// For memory that one thread allocates and hardly touches, and another frees.
const FLOW_RATIO: f64 = 2.0;
const EXCHANGE_RATIO: f64 = 1.3;
const SPARSE_RATIO: f64 = 1.5;
/// Resident memory after a trim, over that of the live allocations.
const TRIM_RATIO: f64 = 1.02;
const MAPPINGS: f64 = 100.0;
const GUARD_RATIO: f64 = 1.02;
const PAIR_NS: f64 = 20.0;
const IDLE_MIB: f64 = 20.0;
/// Difference between two runs of the same program.
const NOISE: f64 = 1.05;

/// Creates a goal from a figure and its verdict. `None` was not measured.
fn goal(what: impl Into<String>, asked: impl Into<String>, figure: Option<(String, bool)>) -> Goal {
    let (figure, met) = match figure {
        Some((figure, true)) => (figure, Verdict::Met),
        Some((figure, false)) => (figure, Verdict::Missed),
        None => ("-".to_string(), Verdict::Unknown),
    };
    Goal { what: what.into(), asked: asked.into(), figure, met }
}

/// Returns all goals, in the order in which they were set.
pub(super) fn all(results: &Results) -> Vec<Goal> {
    let mut goals = vec![pairs(results)];
    for mix in MIXES {
        for threads in [1, 2] {
            let name = format!("{}-pages-{threads}t", mix_name(mix));
            goals.extend(mixes(results, &name, mix.1 > MIXES[0].1));
            goals.push(dominated(results, &name));
        }
    }
    goals.push(best(results, &format!("crowd-{CROWD}t")));
    goals.extend(FLOWS.map(|bytes| best(results, &format!("flow-{}", size(bytes)))));
    goals.push(hardly(results, &format!("flow-{}-byte", size(HARDLY)), FLOW_RATIO, false));
    goals.push(hardly(results, &exchange_name(), EXCHANGE_RATIO, true));
    goals.push(hardly(results, &sparse_name(), SPARSE_RATIO, false));
    goals.push(idle(results));
    goals.push(trimmed(results));
    goals.extend(CALLOCS.map(|bytes| calloc(results, bytes)));
    goals.push(grown(results));
    let grown = GROWN.into_iter().filter(|&(_, growth)| growth != Growth::Half);
    goals.extend(grown.map(|one| hardly(results, &grow_name(one), NOISE, false)));
    goals.extend(guarded(results));
    goals.extend(mapped(results));
    goals
}

fn is_ours(contender: &Contender) -> bool {
    [OURS, KV, GUARDS].contains(&contender.family)
}

/// The most expensive cached pair.
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
    Point { rss: summary.rss_same, ns: summary.cpu_ns }
}

/// A peer's point beside ours.
struct Beside<'a> {
    peer: &'a Contender,
    /// Ratio to the cost of ours, at equal memory; `None` if each of ours has more.
    ratio: Option<f64>,
    rss: f64,
}

impl Beside<'_> {
    /// Returns the figure, and true if the ratio is at least `asked`.
    fn judge(&self, asked: f64) -> (String, bool) {
        match self.ratio {
            Some(ratio) => (format!("{ratio:.2}x {}", self.peer.name), ratio >= asked),
            None => (
                format!("none of ours has as little as {} ({:.1} MiB)", self.peer.name, self.rss / MIB),
                false,
            ),
        }
    }
}

/// Returns the peer with the lowest ratio. One with less memory than each of our points comes first.
fn worst<'a>(among: impl Iterator<Item = &'a Beside<'a>>) -> Option<&'a Beside<'a>> {
    among.min_by(|a, b| a.ratio.unwrap_or(0.0).total_cmp(&b.ratio.unwrap_or(0.0)))
}

/// Goals of a mix at equal memory: against every point of every peer, glibc, and the better of two.
fn mixes(results: &Results, name: &str, beats_glibc: bool) -> Vec<Goal> {
    let all = results.of(name);
    let of_ours = all.iter().filter(|(one, _)| one.family == OURS);
    let ours: Vec<Point> = of_ours.map(|(_, summary)| point(summary)).collect();
    let peers = all.iter().filter(|(one, _)| !is_ours(one) && one.family != MMAP && !ours.is_empty());
    let beside: Vec<_> = peers
        .map(|(peer, summary)| {
            let rss = summary.rss_same;
            Beside { peer, ratio: at_equal_memory(&ours, point(summary)), rss }
        })
        .collect();
    // Goals that need all of these families.
    let only = |families: &[&str], asked: f64| {
        let of = |family: &str| beside.iter().find(|one| one.peer.is_default && one.peer.family == family);
        let found: Option<Vec<_>> = families.iter().map(|family| of(family)).collect();
        Some(worst(found?.into_iter())?.judge(asked))
    };
    let at = format!("{name}, equal memory");
    let every = worst(beside.iter()).map(|one| one.judge(1.0));
    let mut goals = vec![goal(&*at, "every point of every peer: >= 1x", every)];
    if beats_glibc {
        let asked = format!("glibc: >= {GLIBC_RATIO}x");
        goals.push(goal(&*at, asked, only(&[GLIBC], GLIBC_RATIO)));
    }
    let asked = format!("the better of jemalloc and mimalloc: >= {BETTER_RATIO}x");
    goals.push(goal(&*at, asked, only(&["jemalloc", "mimalloc"], BETTER_RATIO)));
    goals
}

/// At the defaults, and with the tunables of glibc: a peer that is faster and has less memory.
fn dominated(results: &Results, name: &str) -> Goal {
    let all = results.of(name);
    let ours = results.default_of(name, OURS).map(|summary| point(&summary));
    let peers = all.iter().filter(|(one, _)| !is_ours(one) && (one.is_default || one.name == TUNED));
    let peers: Vec<_> = peers.map(|(one, summary)| (one, point(summary))).collect();
    let figure = ours.filter(|_| !peers.is_empty()).map(|ours| {
        let better = peers.iter().filter(|(_, peer)| peer.ns < ours.ns && peer.rss < ours.rss);
        let names: Vec<_> = better.map(|(one, _)| one.name.as_str()).collect();
        if names.is_empty() { ("none".to_string(), true) } else { (names.join(", "), false) }
    });
    goal(format!("{name}, defaults"), "no peer is faster and smaller", figure)
}

/// Returns ours, and the peer with the lowest value at its default, or with the tunables of glibc.
fn with_best<'a>(
    results: &'a Results,
    name: &str,
    ns: fn(&Summary) -> f64,
) -> Option<(Summary, (&'a Contender, Summary))> {
    let all = results.of(name).into_iter();
    let peers = all.filter(|(one, _)| (one.is_default || one.name == TUNED) && !is_ours(one));
    let best = peers.min_by(|a, b| ns(&a.1).total_cmp(&ns(&b.1)));
    results.default_of(name, OURS).zip(best)
}

/// Wall time, against the best peer at its default.
fn best(results: &Results, name: &str) -> Goal {
    let figure = with_best(results, name, |one| one.wall_ns).map(|(ours, (one, theirs))| {
        let ratio = ours.wall_ns / theirs.wall_ns;
        let (ours, theirs) = (ours.wall_ns, theirs.wall_ns);
        (format!("{ratio:.2} of {} ({ours:.0} ns, {theirs:.0} ns)", one.name), ratio <= AS_GOOD)
    });
    goal(format!("{name}, time of the clock"), format!("<= {AS_GOOD} of the best peer"), figure)
}

/// CPU time with hardly touched memory, against the cheapest peer; with `memory` also at no more memory than that peer.
fn hardly(results: &Results, name: &str, ratio_max: f64, memory: bool) -> Goal {
    let figure = with_best(results, name, |one| one.cpu_ns).map(|(ours, (peer, best))| {
        let ratio = ours.cpu_ns / best.cpu_ns;
        let shown = |one: &Summary| format!("{:.0} ns, {:.1} MiB", one.cpu_ns, one.rss_mean / MIB);
        let text = format!("{ratio:.2} of {} ({}; {})", peer.name, shown(&ours), shown(&best));
        (text, ratio <= ratio_max && (!memory || ours.rss_mean <= best.rss_mean))
    });
    let less = if memory { ", at no more memory" } else { "" };
    goal(format!("{name}, CPU time"), format!("<= {ratio_max} of the best peer{less}"), figure)
}

fn idle(results: &Results) -> Goal {
    let figure = results.default_of("burst-256x1M", OURS).map(|ours| {
        let mib = ours.rss_end / MIB;
        (format!("{mib:.1} MiB"), mib < IDLE_MIB)
    });
    goal("resident 1.5 s after a burst of 256 MiB", format!("< {IDLE_MIB} MiB"), figure)
}

/// Every second allocation is live, with all its pages. The program's own pages count.
fn trimmed(results: &Results) -> Goal {
    let figure = results.default_of(&trim_name(), OURS).map(|ours| {
        let ratio = ours.rss_end / (TRIMMED.0 / 2 * TRIMMED.1) as f64;
        (format!("{ratio:.3}"), ratio <= TRIM_RATIO)
    });
    let asked = format!("<= {TRIM_RATIO} of what is live");
    goal("resident after every second one was freed, and a trim", asked, figure)
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

/// A copy would make two copies resident at a time.
fn grown(results: &Results) -> Goal {
    let figure = results.default_of("grow-256M", OURS).map(|ours| {
        let mib = ours.rss_ever / MIB;
        (format!("{mib:.0} MiB resident at most"), mib <= 256.0 * AS_GOOD)
    });
    goal("growing to 256 MiB without copying", format!("<= {:.0} MiB resident", 256.0 * AS_GOOD), figure)
}

/// Guards: the number of mappings, and their cost for areas that are reused.
fn guarded(results: &Results) -> [Goal; 2] {
    let many = results.default_of(&format!("guarded-{GUARDED}"), GUARDS);
    let figure = many.map(|all| (format!("{:.0}", all.mappings), all.mappings < MAPPINGS));
    let mappings = goal("mappings of a million guarded areas", format!("< {MAPPINGS}"), figure);
    let ratio = |&bytes: &usize| {
        let name = format!("pair-{}-byte-1t", size(bytes));
        // Minima: the remaining time is noise of the machine, which exceeds two percent.
        let of = |family| results.default_of(&name, family).map(|all| all.cpu_ns_min);
        Some((of(GUARDS)? / of(OURS)?, size(bytes)))
    };
    let ratios: Vec<_> = PAIRS.iter().filter_map(ratio).collect();
    let worst = ratios.iter().max_by(|a, b| a.0.total_cmp(&b.0)).filter(|_| ratios.len() == PAIRS.len());
    let figure = worst.map(|(ratio, size)| (format!("{ratio:.3} at {size}"), *ratio <= GUARD_RATIO));
    let asked = format!("<= {GUARD_RATIO} of those without, minima");
    [mappings, goal("cached pair with guards, one byte", asked, figure)]
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

#[cfg(test)]
mod tests {
    use super::super::measure::Sample;
    use super::super::results::Row;
    use super::super::task::{self, How, Ways};
    use super::*;

    /// Returns results of one workload: name, family, average resident MiB and nanoseconds of each contender.
    fn results(spec: &str, points: &[(&str, &'static str, f64, f64)]) -> Results {
        let specs: Vec<_> = task::all().into_iter().filter(|one| one.name == spec).collect();
        assert_eq!(specs.len(), 1, "{spec}");
        let contender = |&(name, family, ..): &(&str, &'static str, f64, f64)| Contender {
            name: name.to_string(),
            family,
            how: How::Vmalloc { cache_bytes_max: None, ways: Ways::Default },
            library: None,
            env: Vec::new(),
            version: String::new(),
            is_default: name == family,
        };
        let row = |(at, &(_, _, mib, ns)): (usize, &(&str, &'static str, f64, f64))| {
            let rss = mib * MIB;
            let sample = Sample {
                cpu_ns: ns,
                wall_ns: ns,
                p99_ns: ns,
                faults: 0.0,
                rss_mean: rss,
                rss_same: rss,
                rss_peak: rss,
                rss_end: rss,
                rss_ever: rss,
                mappings: mib,
            };
            Row { spec: 0, contender: at, rounds: vec![sample], stopped: None }
        };
        let rows = points.iter().enumerate().map(row).collect();
        let contenders = points.iter().map(contender).collect();
        Results { specs, contenders, rows, missing: Vec::new(), broken: Vec::new() }
    }

    /// Returns figures and verdicts of the measured goals.
    fn verdicts(results: &Results) -> Vec<(String, Verdict)> {
        let known = all(results).into_iter().filter(|goal| goal.met != Verdict::Unknown);
        known.map(|goal| (goal.figure, goal.met)).collect()
    }

    #[test]
    fn a_mix_is_judged_at_equal_memory_against_all_glibc_and_the_better_of_two() {
        let mut points = vec![
            ("ours", "ours", 100.0, 10.0),
            ("ours 8M", "ours", 50.0, 40.0),
            ("glibc", "glibc", 60.0, 400.0),
            ("jemalloc", "jemalloc", 70.0, 80.0),
            ("mimalloc", "mimalloc", 200.0, 12.0),
        ];
        let seen = verdicts(&results("mix-1M-16M-pages-1t", &points));
        let (met, missed) = (Verdict::Met, Verdict::Missed);
        // Of the two, mimalloc is better.
        let none = ("none", met);
        let wanted = [("1.20x mimalloc", met), ("10.00x glibc", met), ("1.20x mimalloc", missed), none];
        assert_eq!(seen, wanted.map(|(figure, met)| (figure.to_string(), met)));
        // Another setting of a peer counts for the first goal only.
        points.push(("jemalloc decay-0", "jemalloc", 40.0, 1e9));
        let seen = verdicts(&results("mix-1M-16M-pages-1t", &points));
        assert_eq!(seen[0], ("none of ours has as little as jemalloc decay-0 (40.0 MiB)".into(), missed));
        assert_eq!((seen[1].1, seen[2].1), (met, missed));
        // Without one of the two, the better one is unknown.
        let seen = verdicts(&results("mix-1M-16M-pages-1t", &points[..4]));
        assert_eq!(seen.len(), 3);
        // One that is faster and smaller, and one that is only faster.
        points.push(("glibc trim-8G", "glibc", 99.0, 9.0));
        points.push(("jemalloc decay-off", "jemalloc", 1.0, 1.0));
        points.push(("tcmalloc", "tcmalloc", 101.0, 1.0));
        let seen = verdicts(&results("mix-1M-16M-pages-1t", &points));
        assert_eq!(seen.last(), Some(&("glibc trim-8G".to_string(), missed)));
        points.truncate(6);
        assert!(verdicts(&results("mix-1M-16M-pages-1t", &points[2..])).is_empty(), "ours is not there");
    }

    #[test]
    fn others_are_judged_by_their_own_figures() {
        for (spec, points, figure, met) in [
            (
                "flow-1M",
                [("ours", 1.0, 109.0), ("tcmalloc", 1.0, 100.0)],
                "1.09 of tcmalloc (109 ns, 100 ns)",
                true,
            ),
            (
                "flow-1M",
                [("ours", 1.0, 111.0), ("tcmalloc", 1.0, 100.0)],
                "1.11 of tcmalloc (111 ns, 100 ns)",
                false,
            ),
            (
                "exchange-64K-1M-byte",
                [("ours", 2.0, 130.0), ("glibc", 2.0, 100.0)],
                "1.30 of glibc (130 ns, 2.0 MiB; 100 ns, 2.0 MiB)",
                true,
            ),
            (
                "exchange-64K-1M-byte",
                [("ours", 2.1, 100.0), ("glibc", 2.0, 100.0)],
                "1.00 of glibc (100 ns, 2.1 MiB; 100 ns, 2.0 MiB)",
                false,
            ),
            (
                "flow-256K-byte",
                [("ours", 9.0, 200.0), ("glibc", 2.0, 100.0)],
                "2.00 of glibc (200 ns, 9.0 MiB; 100 ns, 2.0 MiB)",
                true,
            ),
            ("burst-256x1M", [("ours", 19.9, 1.0), ("glibc", 4.0, 1.0)], "19.9 MiB", true),
            ("burst-256x1M", [("ours", 20.1, 1.0), ("glibc", 4.0, 1.0)], "20.1 MiB", false),
            ("grow-256M", [("ours", 400.0, 1.0), ("glibc", 4.0, 1.0)], "400 MiB resident at most", false),
            ("trim-4096x260K", [("ours", 530.0, 1.0), ("glibc", 4.0, 1.0)], "1.019", true),
            ("trim-4096x260K", [("ours", 532.0, 1.0), ("glibc", 4.0, 1.0)], "1.023", false),
            (
                "double-1024M",
                [("ours", 9.0, 106.0), ("mimalloc", 2.0, 100.0)],
                "1.06 of mimalloc (106 ns, 9.0 MiB; 100 ns, 2.0 MiB)",
                false,
            ),
            (
                "sparse-128K-2M",
                [("ours", 9.0, 150.0), ("mimalloc", 2.0, 100.0)],
                "1.50 of mimalloc (150 ns, 9.0 MiB; 100 ns, 2.0 MiB)",
                true,
            ),
            ("guarded-1000000", [("ours-guards", 99.0, 1.0), ("glibc", 4.0, 1.0)], "99", true),
            ("guarded-1000000", [("ours-guards", 100.0, 1.0), ("glibc", 4.0, 1.0)], "100", false),
        ] {
            let points = points.map(|(family, mib, ns)| (family, family, mib, ns));
            let verdict = if met { Verdict::Met } else { Verdict::Missed };
            assert_eq!(verdicts(&results(spec, &points)), [(figure.to_string(), verdict)], "{spec}");
        }
        // One size of many is not enough.
        assert!(verdicts(&results("pair-1M-byte-1t", &[("ours", "ours", 1.0, 1.0)])).is_empty());
    }
}
