//! Tables, CSV and charts of spaces.

use super::Measured;
use super::cases::Taken;
use super::threads::{Shared, name};
use crate::print::{Captioned, build, comments, number, page, right, write_chart, write_file};
use anyhow::Result;
use comfy_table::Table;
use std::fmt::Write;
use std::path::Path;
use va_base::LockClass;
use vmlab_base::chart::{Chart, Scale};
use vmlab_base::output::Output;
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

/// Returns all tables, in order.
pub(super) fn tables(measured: &Measured) -> Vec<Captioned> {
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
    tables
}

/// Returns each item once, in order.
fn unique<T: PartialEq>(all: impl Iterator<Item = T>) -> Vec<T> {
    all.fold(Vec::new(), |mut unique, item| {
        if !unique.contains(&item) {
            unique.push(item);
        }
        unique
    })
}

/// A table whose rows are `keys` and whose columns are contenders.
fn grid<K: PartialEq>(
    keys: &[K],
    head: &[&str],
    contenders: &[&'static str],
    label: impl Fn(&K) -> Vec<String>,
    cell: impl Fn(&K, &str) -> Option<String>,
) -> Table {
    let mut table = Table::new();
    table.set_header(head.iter().chain(contenders));
    for key in keys {
        let mut row = label(key);
        row.extend(contenders.iter().map(|contender| cell(key, contender).unwrap_or("-".to_string())));
        table.add_row(row);
    }
    right(&mut table, 1);
    table
}

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

    fn cell(&self, &(pattern, nodes): &Key<'_>, contender: &str) -> Option<&crate::Cell> {
        let row = self.rows.iter().find(|row| {
            row.nodes == nodes && row.cell.workload == pattern && row.cell.contender == contender
        })?;
        Some(&row.cell)
    }
}

fn label(&(pattern, nodes): &Key<'_>) -> Vec<String> {
    vec![pattern.to_string(), nodes.to_string()]
}

fn rows(measured: &Measured) -> Captioned {
    let table =
        grid(&measured.keys(), &["pattern", "nodes"], &measured.contenders(), label, |key, contender| {
            let cell = measured.cell(key, contender)?;
            Some(format!("{} ({}, {})", number(cell.min), number(cell.median), number(cell.mean)))
        });
    let caption = "Nanoseconds a pair of one thread, harness subtracted: minimum (median, mean). Purges and flushes are done, flushes count only.";
    Captioned { caption: caption.to_string(), table }
}

fn ratios(measured: &Measured) -> Captioned {
    let ours = |key: &Key<'_>| measured.cell(key, "ours").map(|cell| cell.min);
    let table = grid(&measured.keys(), &["pattern", "nodes"], &PEERS, label, |key, peer| {
        Some(format!("{:.2}", measured.cell(key, peer)?.min / ours(key)?))
    });
    Captioned { caption: "How many times the time of `ours` they take (minima).".to_string(), table }
}

fn drained(measured: &Measured) -> Captioned {
    let table =
        grid(&measured.keys(), &["pattern", "nodes"], &measured.contenders(), label, |key, contender| {
            let drained = measured.cell(key, contender)?.drained?;
            Some(format!("{} / {}", drained.purges, drained.flushes))
        });
    Captioned { caption: "Purges / flushes in all rounds together.".to_string(), table }
}

/// Formats nanoseconds in a readable unit.
fn short_ns(ns: f64) -> String {
    match ns {
        _ if ns < 1e3 => format!("{} ns", number(ns)),
        _ if ns < 1e6 => format!("{} us", number(ns / 1e3)),
        _ => format!("{} ms", number(ns / 1e6)),
    }
}

fn cases(cases: &[Taken]) -> Captioned {
    let contenders = unique(cases.iter().map(|taken| taken.contender));
    let names = unique(cases.iter().map(|taken| taken.case.name));
    let of = |name: &str| cases.iter().find(|taken| taken.case.name == name);
    let label = |name: &&str| {
        let case = of(name).map(|taken| taken.case);
        let about = case.map_or(String::new(), |case| format!("{name}: {}", case.about));
        vec![about]
    };
    let table = grid(&names, &["case"], &contenders, label, |name, contender| {
        let taken = cases.iter().find(|taken| taken.case.name == *name && taken.contender == contender)?;
        Some(format!("{} ({})", short_ns(taken.min), short_ns(taken.median)))
    });
    let caption = "Single calls: minimum (median) of rounds, each in a fresh space.";
    Captioned { caption: caption.to_string(), table }
}

fn shared(shared: &[Shared]) -> Captioned {
    let mut table = Table::new();
    table.set_header([
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
    ]);
    for row in shared {
        let ours = shared
            .iter()
            .find(|ours| (ours.pattern, ours.threads, ours.contender) == (row.pattern, row.threads, "ours"));
        table.add_row([
            row.pattern.to_string(),
            row.threads.to_string(),
            row.contender.to_string(),
            number(row.min),
            number(row.median),
            number(row.mean),
            ours.map_or("-".to_string(), |ours| format!("{:.2}", row.min / ours.min)),
            row.pairs.to_string(),
            row.drained.purges.to_string(),
            row.drained.flushes.to_string(),
            row.counted.locks_a_pair().map_or("-".to_string(), |locks| format!("{locks:.3}")),
        ]);
    }
    right(&mut table, 3);
    let caption = "Threads, a node each, drained by a helper: nanoseconds of wall time a pair of all together; pairs of all \
                   rounds, purges and flushes with those of the setup. More threads than cores show what waiting costs, not how it scales.";
    Captioned { caption: caption.to_string(), table }
}

/// Formats microseconds as `lock_stat` does.
fn us(ns: u64) -> String {
    format!("{:.2}", ns as f64 / 1e3)
}

fn mean_us(total_ns: u64, count: u64) -> String {
    format!("{:.2}", total_ns as f64 / 1e3 / count.max(1) as f64)
}

/// Returns the table of locks, the most contended first, as `lock_stat` sorts.
fn locks(shared: &[Shared]) -> Captioned {
    let mut table = Table::new();
    table.set_header([
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
    ]);
    for row in shared {
        let mut classes: Vec<(u64, [String; 11])> = Vec::new();
        match &row.counted.own_locks {
            Some(own) => {
                for lock in own {
                    let mut columns = std::array::from_fn(|_| "-".to_string());
                    columns[0] = lock.name.to_string();
                    columns[2] = lock.contentions.to_string();
                    columns[7] = lock.acquisitions.map_or("-".to_string(), |count| count.to_string());
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
            table.add_row(labels.into_iter().chain(columns));
        }
    }
    right(&mut table, 4);
    let caption = "Locks as `lock_stat` shows them, microseconds, counted in one run each that is not among the times above. Standard \
                   has no `vmap_area_lock` (`vn->busy.lock`): lookups and frees meet in the page map, which has none. A library reports what it counts, its setup among it.";
    Captioned { caption: caption.to_string(), table }
}

fn columns(name: &str, seen: &LockStat) -> [String; 11] {
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

pub(super) fn csv_name() -> String {
    format!("space-{}.csv", build())
}

/// Writes CSV, tables and SVG.
pub(super) fn files(measured: &Measured, dir: &Path, header: &str, out: &mut dyn Output) -> Result<()> {
    write_file(dir, &csv_name(), &(comments(header) + &csv(measured)), out)?;
    let page = page("The space", tables(measured), header);
    write_file(dir, &format!("space-{}.md", build()), &page, out)?;
    charts(measured, dir, out)
}

fn csv(measured: &Measured) -> String {
    let mut csv = String::from(
        "kind,name,nodes,threads,contender,ns_min,ns_median,ns_mean,rounds,purges,flushes,locks_a_pair\n",
    );
    // Writing to a String cannot fail.
    for super::Row { nodes, cell } in &measured.rows {
        let drained = cell.drained.unwrap_or_default();
        let (name, contender, rounds) = (&cell.workload, cell.contender, cell.rounds);
        let _ = writeln!(
            csv,
            "pattern,{name},{nodes},1,{contender},{:.2},{:.2},{:.2},{rounds},{},{},",
            cell.min, cell.median, cell.mean, drained.purges, drained.flushes
        );
    }
    for taken in &measured.cases {
        let (name, contender, rounds) = (taken.case.name, taken.contender, taken.rounds);
        let _ = writeln!(
            csv,
            "case,{name},,1,{contender},{:.2},{:.2},{:.2},{rounds},,,",
            taken.min, taken.median, taken.mean
        );
    }
    for row in &measured.shared {
        let Shared { pattern, threads, contender, min, median, mean, rounds, drained, .. } = row;
        let locks = row.counted.locks_a_pair().map_or(String::new(), |locks| format!("{locks:.4}"));
        let _ = writeln!(
            csv,
            "threads,{pattern},{threads},{threads},{contender},{min:.2},{median:.2},{mean:.2},{rounds},{},{},{locks}",
            drained.purges, drained.flushes
        );
    }
    csv
}

/// Writes charts with one curve for each contender: over nodes, and over threads.
fn charts(measured: &Measured, dir: &Path, out: &mut dyn Output) -> Result<()> {
    let patterns: Vec<&'static str> = (0..).map_while(|at| (at < 3).then(|| name(at))).collect();
    for pattern in patterns {
        let nodes = |contender: &str| -> Vec<(f64, f64)> {
            let keys = measured.keys();
            let of = keys.iter().filter(|(name, _)| *name == pattern);
            of.filter_map(|key| Some((f64::from(key.1), measured.cell(key, contender)?.min))).collect()
        };
        let threads = |contender: &str| -> Vec<(f64, f64)> {
            let of =
                measured.shared.iter().filter(|row| row.pattern == pattern && row.contender == contender);
            of.map(|row| (f64::from(row.threads), row.min)).collect()
        };
        let lines = |names: Vec<&'static str>, points: &dyn Fn(&str) -> Vec<(f64, f64)>| -> Vec<_> {
            let named = names.into_iter().map(|name| (name.to_string(), points(name)));
            named.filter(|(_, points)| points.len() > 1).collect()
        };
        for (file, title, x, lines) in [
            ("nodes", format!("{pattern}, one thread"), "nodes", lines(measured.contenders(), &nodes)),
            (
                "threads",
                format!("{pattern}, a node a thread"),
                "threads",
                lines(unique(measured.shared.iter().map(|row| row.contender)), &threads),
            ),
        ] {
            if lines.is_empty() {
                continue;
            }
            let chart = Chart {
                title: &title,
                x,
                y: "ns a pair (minimum)",
                x_scale: Scale::Log,
                y_scale: Scale::Log,
                lines,
                about: &["ours", "kern", "linux69"],
                size: (820.0, 470.0),
            };
            write_chart(dir, &format!("space-{file}-{pattern}-{}.svg", build()), &chart, out)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_of_times_fit_their_size() {
        assert_eq!([12.0, 4_300.0, 4_300_000.0].map(short_ns), ["12.0 ns", "4.3 us", "4.3 ms"]);
        assert_eq!(
            (us(1500), mean_us(3000, 2), mean_us(0, 0)),
            ("1.50".into(), "1.50".into(), "0.00".into())
        );
    }

    #[test]
    fn a_lock_has_the_columns_of_lock_stat() {
        let seen = LockStat {
            con_bounces: 1,
            contentions: 2,
            wait_total_ns: 3000,
            wait_max_ns: 2000,
            acq_bounces: 4,
            acquisitions: 5,
            hold_total_ns: 10_000,
            hold_max_ns: 6000,
            ..LockStat::default()
        };
        let columns = columns("x", &seen);
        assert_eq!(columns, ["x", "1", "2", "2.00", "3.00", "1.50", "4", "5", "6.00", "10.00", "2.00"]);
    }
}
