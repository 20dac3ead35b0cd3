//! Tables, CSV and charts of spaces.

use super::cases::{Case, Taken};
use super::run::{Measured, Row};
use super::threads::{Shared, name};
use crate::harness::{
    Drawn, Report, Summary, Table, build, dash, duration, log_chart, mean_us, number, unique, us,
};
use crate::indexes::Drained;
use crate::stream::Cell;
use va_base::LockClass;
use vmlab_machine::LockStat;

/// The contenders that ours is compared with.
const PEERS: [&str; 3] = ["kern", "linux69", "onelock52"];

/// The kernel's name for the structure that a lock of ours guards. The kernel's `vmap_area_lock`, and later
/// `vn->busy.lock`, exist under Linux's policies, whose lookup is a tree in each node. The page map of ours is read and
/// written without a lock.
const LOCKS: [(LockClass, &str); 5] = [
    (LockClass::Free, "free_vmap_area_lock"),
    (LockClass::Busy, "vn->busy.lock"),
    (LockClass::Lazy, "vn->lazy.lock"),
    (LockClass::Pool, "vn->pool_lock"),
    (LockClass::Purge, "vmap_purge_lock"),
];

/// Pattern and number of nodes.
type Key<'a> = (&'a str, u32);

impl Measured {
    /// Returns the keys, sorted by pattern first.
    fn keys(&self) -> Vec<Key<'_>> {
        let names = unique(self.rows.iter().map(|row| row.cell.workload.as_str()));
        let of = |name| self.rows.iter().filter(move |row| row.cell.workload == name).map(|row| row.nodes);
        names
            .into_iter()
            .flat_map(|name| unique(of(name)).into_iter().map(move |nodes| (name, nodes)))
            .collect()
    }

    fn contenders(&self) -> Vec<&'static str> {
        unique(self.rows.iter().map(|row| row.cell.contender))
    }

    fn cell(&self, &(pattern, nodes): &Key<'_>, contender: &str) -> Option<&Cell> {
        let row = self.rows.iter().find(|row| {
            row.nodes == nodes && row.cell.workload == pattern && row.cell.contender == contender
        })?;
        Some(&row.cell)
    }
}

fn label(&(pattern, nodes): &Key<'_>) -> Vec<String> {
    vec![pattern.to_string(), nodes.to_string()]
}

/// Returns a table of all patterns, without rows.
fn patterns(caption: &str) -> Table {
    Table::new(caption, 1, ["pattern", "nodes"])
}

fn rows(measured: &Measured) -> Table {
    let caption = "Nanoseconds a pair of one thread, harness subtracted: minimum (median, mean). Purges and flushes are done, flushes count only.";
    patterns(caption).grid(&measured.contenders(), measured.keys(), label, |key, contender| {
        let ns = measured.cell(key, contender)?.ns;
        Some(format!("{} ({}, {})", number(ns.min), number(ns.median), number(ns.mean)))
    })
}

fn ratios(measured: &Measured) -> Table {
    let caption = "How many times the time of `ours` they take (minima).";
    patterns(caption).grid(&PEERS, measured.keys(), label, |key, peer| {
        let ours = measured.cell(key, "ours")?.ns.min;
        Some(format!("{:.2}", measured.cell(key, peer)?.ns.min / ours))
    })
}

fn drained(measured: &Measured) -> Table {
    let caption = "Purges / flushes in all rounds together.";
    patterns(caption).grid(&measured.contenders(), measured.keys(), label, |key, contender| {
        let drained = measured.cell(key, contender)?.drained?;
        Some(format!("{} / {}", drained.purges, drained.flushes))
    })
}

fn cases(cases: &[Taken]) -> Table {
    let all = super::cases::ALL.iter().filter(|case| cases.iter().any(|taken| taken.case.name == case.name));
    let label = |case: &&Case| vec![format!("{}: {}", case.name, case.about)];
    let caption = "Single calls: minimum (median) of rounds, each in a fresh space.";
    let contenders = unique(cases.iter().map(|taken| taken.contender));
    Table::new(caption, 1, ["case"]).grid(&contenders, all, label, |case, contender| {
        let taken =
            cases.iter().find(|taken| taken.case.name == case.name && taken.contender == *contender)?;
        Some(format!("{} ({})", duration(taken.ns.min), duration(taken.ns.median)))
    })
}

fn shared(shared: &[Shared]) -> Table {
    let caption = "Threads, a node each, drained by a helper: nanoseconds of wall time a pair of all together; pairs of all \
                   rounds, purges and flushes with those of the setup. More threads than cores show what waiting costs, not how it scales.";
    let head = [
        "pattern",
        "threads",
        "contender",
        "ns min",
        "ns median",
        "ns mean",
        "times ours",
        "pairs",
        "purges",
        "flushes",
        "locks a pair",
    ];
    let mut table = Table::new(caption, 3, head);
    for row in shared {
        let ours = shared
            .iter()
            .find(|ours| (ours.pattern, ours.threads, ours.contender) == (row.pattern, row.threads, "ours"));
        table.row(&[
            &row.pattern,
            &row.threads,
            &row.contender,
            &number(row.ns.min),
            &number(row.ns.median),
            &number(row.ns.mean),
            &dash(ours.map(|ours| format!("{:.2}", row.ns.min / ours.ns.min))),
            &row.pairs,
            &row.drained.purges,
            &row.drained.flushes,
            &dash(row.counted.locks_a_pair().map(|locks| format!("{locks:.3}"))),
        ]);
    }
    table
}

/// Returns the table of locks, the most contended first, as `lock_stat` sorts.
fn locks(shared: &[Shared]) -> Table {
    let caption = "Locks as `lock_stat` shows them, microseconds, counted in one run each that is not among the times above. Standard \
                   has no `vmap_area_lock` (`vn->busy.lock`): lookups and frees meet in the page map, which has none. A library reports what it counts, its setup among it.";
    let head = [
        "pattern",
        "threads",
        "contender",
        "class name",
        "con-bounces",
        "contentions",
        "waittime-max",
        "waittime-total",
        "waittime-avg",
        "acq-bounces",
        "acquisitions",
        "holdtime-max",
        "holdtime-total",
        "holdtime-avg",
    ];
    let mut table = Table::new(caption, 4, head);
    for row in shared {
        let mut classes: Vec<(u64, [String; 11])> = Vec::new();
        match &row.counted.own_locks {
            Some(own) => {
                for lock in own {
                    let mut columns = std::array::from_fn(|_| "-".to_string());
                    columns[0] = lock.name.to_string();
                    columns[2] = lock.contentions.to_string();
                    columns[7] = dash(lock.acquisitions);
                    classes.push((lock.contentions, columns));
                }
            }
            None => {
                for (class, name) in LOCKS {
                    let seen = &row.counted.locks[class as usize];
                    if seen.acquisitions > 0 {
                        classes.push((seen.contentions, columns(name, seen)));
                    }
                }
            }
        }
        classes.sort_by_key(|&(contentions, _)| std::cmp::Reverse(contentions));
        for (_, columns) in classes {
            let labels = [row.pattern.to_string(), row.threads.to_string(), row.contender.to_string()];
            table.push(labels.into_iter().chain(columns));
        }
    }
    table
}

pub fn columns(name: &str, seen: &LockStat) -> [String; 11] {
    [
        name.to_string(),
        seen.con_bounces.to_string(),
        seen.contentions.to_string(),
        us(seen.wait_max_ns),
        us(seen.wait_total_ns),
        mean_us(seen.wait_total_ns, seen.contentions),
        seen.acq_bounces.to_string(),
        seen.acquisitions.to_string(),
        us(seen.hold_max_ns),
        us(seen.hold_total_ns),
        mean_us(seen.hold_total_ns, seen.acquisitions),
    ]
}

/// Returns the name of the files.
pub(super) fn stem() -> String {
    format!("space-{}", build())
}

/// Returns the tables, CSV and SVG.
pub(super) fn report(measured: &Measured, header: String) -> Report {
    let mut tables = Vec::new();
    if !measured.rows.is_empty() {
        tables.extend([rows(measured), ratios(measured), drained(measured)]);
    }
    if !measured.cases.is_empty() {
        tables.push(cases(&measured.cases));
    }
    if !measured.shared.is_empty() {
        tables.extend([shared(&measured.shared), locks(&measured.shared)]);
    }
    let tables = Report::new(stem(), "The space", header, tables);
    Report { csv: csv(measured), charts: charts(measured), ..tables }
}

fn csv(measured: &Measured) -> Vec<String> {
    let figures = |ns: &Summary| format!("{:.2},{:.2},{:.2},{}", ns.min, ns.median, ns.mean, ns.count);
    let drained = |drained: &Drained| format!("{},{}", drained.purges, drained.flushes);
    let head =
        "kind,name,nodes,threads,contender,ns_min,ns_median,ns_mean,rounds,purges,flushes,locks_a_pair";
    let rows = measured.rows.iter().map(|Row { nodes, cell }| {
        let drained = drained(&cell.drained.unwrap_or_default());
        format!("pattern,{},{nodes},1,{},{},{drained},", cell.workload, cell.contender, figures(&cell.ns))
    });
    let cases = measured
        .cases
        .iter()
        .map(|taken| format!("case,{},,1,{},{},,,", taken.case.name, taken.contender, figures(&taken.ns)));
    let shared = measured.shared.iter().map(|row| {
        let Shared { pattern, threads, contender, ns, .. } = row;
        let locks = row.counted.locks_a_pair().map_or(String::new(), |locks| format!("{locks:.4}"));
        let (figures, drained) = (figures(ns), drained(&row.drained));
        format!("threads,{pattern},{threads},{threads},{contender},{figures},{drained},{locks}")
    });
    std::iter::once(head.to_string()).chain(rows).chain(cases).chain(shared).collect()
}

/// Draws charts with one curve for each contender: over nodes, and over threads.
fn charts(measured: &Measured) -> Vec<Drawn> {
    let mut charts = Vec::new();
    for pattern in (0..3).map(name) {
        let nodes = |contender: &str| -> Vec<(f64, f64)> {
            let keys = measured.keys();
            let of = keys.iter().filter(|(name, _)| *name == pattern);
            of.filter_map(|key| Some((f64::from(key.1), measured.cell(key, contender)?.ns.min))).collect()
        };
        let threads = |contender: &str| -> Vec<(f64, f64)> {
            let of =
                measured.shared.iter().filter(|row| row.pattern == pattern && row.contender == contender);
            of.map(|row| (f64::from(row.threads), row.ns.min)).collect()
        };
        let lines = |names: Vec<&'static str>, points: &dyn Fn(&str) -> Vec<(f64, f64)>| -> Vec<_> {
            let named = names.into_iter().map(|name| (name.to_string(), points(name)));
            named.filter(|(_, points)| points.len() > 1).collect()
        };
        let crowds = unique(measured.shared.iter().map(|row| row.contender));
        for (x, how, lines) in [
            ("nodes", "one thread", lines(measured.contenders(), &nodes)),
            ("threads", "a node a thread", lines(crowds, &threads)),
        ] {
            let file = format!("space-{x}-{pattern}-{}.svg", build());
            let (title, axes) = (format!("{pattern}, {how}"), [x, "ns a pair (minimum)"]);
            charts.extend(log_chart(file, &title, axes, lines, &["ours", "kern", "linux69"]));
        }
    }
    charts
}
