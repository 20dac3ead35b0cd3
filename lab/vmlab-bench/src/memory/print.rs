//! Tables, CSV, charts and the page of the allocators of a process.

use super::contenders::{Contender, KV, MMAP, OURS};
use super::results::{Point, Results, Summary, at_equal_memory};
use super::task::{CROWD, Growth, MIXES, Scope, Spec, Touch, Work, mix_name};
use crate::print::{Captioned, comments, right, write_chart, write_file};
use anyhow::Result;
use comfy_table::{Table, presets};
use std::fmt::Write;
use std::path::Path;
use vmlab_base::chart::{Chart, Scale};
use vmlab_base::output::Output;

const MIB: f64 = (1 << 20) as f64;

/// Returns the description of the machine and the run.
pub(super) fn header(rounds: usize, ms: u64) -> String {
    let header = crate::print::header(rounds);
    let common: String =
        header.lines().filter(|line| !line.starts_with("rounds:")).map(|line| format!("{line}\n")).collect();
    format!(
        "{common}rounds: {rounds} of {ms} ms (mixes longer, slow workloads fewer), in turn, a process each\n"
    )
}

/// Formats nanoseconds in few characters.
fn short(ns: f64) -> String {
    let three = |value: f64| match value {
        ..10.0 => format!("{value:.2}"),
        ..100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    };
    match ns {
        ..1e3 => format!("{} ns", three(ns)),
        ..1e6 => format!("{} us", three(ns / 1e3)),
        _ => format!("{} ms", three(ns / 1e6)),
    }
}

fn mib(bytes: f64) -> String {
    format!("{:.1}", bytes / MIB)
}

/// A group of workloads in one table.
struct Group {
    caption: &'static str,
    holds: fn(&Spec) -> bool,
}

const GROUPS: [Group; 4] = [
    Group {
        caption: "Cached pairs, one byte touched: CPU time, median (minimum).",
        holds: |spec| matches!(spec.work, Work::Pair { .. }) && spec.touch == Touch::Byte,
    },
    Group {
        caption: "Cached pairs, every page touched: CPU time, median (minimum).",
        holds: |spec| matches!(spec.work, Work::Pair { .. }) && spec.touch == Touch::Pages,
    },
    Group {
        caption: "Random mixes, one byte touched, at defaults: CPU time, median (minimum).",
        holds: |spec| matches!(spec.work, Work::Mix { .. }) && spec.touch == Touch::Byte,
    },
    Group {
        caption: "Zeros and alignment: CPU time, median (minimum).",
        holds: |spec| matches!(spec.work, Work::Calloc { .. } | Work::Memset { .. } | Work::Aligned { .. }),
    },
];

/// Returns all tables, in order.
pub(super) fn tables(results: &Results) -> Vec<Captioned> {
    let mut tables = vec![versions(results)];
    tables.extend(equal_memory(results));
    for group in GROUPS {
        let specs: Vec<_> = results.specs.iter().filter(|spec| (group.holds)(spec)).collect();
        if !specs.is_empty() {
            tables.push(grid(results, group.caption, &specs));
        }
    }
    let alone = |spec: &&Spec| GROUPS.iter().all(|group| !(group.holds)(spec));
    tables.extend(results.specs.iter().filter(alone).map(|spec| detail(results, spec)));
    tables
}

fn versions(results: &Results) -> Captioned {
    let mut table = Table::new();
    table.set_header(["allocator", "version", "library"]);
    for one in results.contenders.iter().filter(|one| one.is_default) {
        let library = one.library.as_ref().and_then(|path| path.file_name());
        let library = library.map_or("-".to_string(), |name| name.to_string_lossy().into_owned());
        table.add_row([&one.name, &one.version, &library]);
    }
    let missing = match &results.missing[..] {
        [] => String::new(),
        missing => format!(" Not here, and left out: {}.", missing.join(", ")),
    };
    Captioned { caption: format!("Allocators.{missing}"), table }
}

/// Returns the ratios at equal memory, of every point of every peer; `None` without a workload at several settings.
fn equal_memory(results: &Results) -> Option<Captioned> {
    let specs = results.specs.iter().filter(|spec| spec.scope == Scope::WithKnobs);
    let measured: Vec<_> = specs.map(|spec| (&spec.name, results.of(&spec.name))).collect();
    let mut table = Table::new();
    table.set_header(std::iter::once("allocator").chain(measured.iter().map(|(name, _)| name.as_str())));
    for peer in results.contenders.iter().filter(|one| !one.is_ours()) {
        let cell = |(_, all): &(&String, Vec<(&Contender, Summary)>)| {
            let point = |summary: &Summary| Point { rss: summary.rss_same, ns: summary.cpu_ns };
            let ours = all.iter().filter(|(one, _)| one.family == OURS);
            let ours: Vec<_> = ours.map(|(_, summary)| point(summary)).collect();
            let (_, theirs) = all.iter().find(|(one, _)| one.name == peer.name)?;
            Some(
                at_equal_memory(&ours, point(theirs))
                    .map_or("less".to_string(), |ratio| format!("{ratio:.2}")),
            )
        };
        let cells: Vec<_> = measured.iter().map(cell).collect();
        if cells.iter().any(Option::is_some) {
            let texts = cells.into_iter().map(|cell| cell.unwrap_or("-".to_string()));
            table.add_row(std::iter::once(peer.name.clone()).chain(texts));
        }
    }
    right(&mut table, 1);
    let caption = "At equal memory: how many times our CPU time a peer takes. Ours is the cheapest of our points with no more mean RSS \
                   over the same operations than the peer; `less` where each of ours has more.";
    (!table.is_empty()).then(|| Captioned { caption: caption.to_string(), table })
}

/// Returns a table with contenders as rows, workloads as columns.
fn grid(results: &Results, caption: &str, specs: &[&Spec]) -> Captioned {
    let mut table = Table::new();
    table.set_header(std::iter::once("allocator").chain(specs.iter().map(|spec| spec.name.as_str())));
    for one in &results.contenders {
        let cell = |spec: &&Spec| {
            let row = results.rows.iter().find(|row| {
                results.specs[row.spec].name == spec.name
                    && results.contenders[row.contender].name == one.name
            })?;
            Some(match (row.stopped, row.summary()) {
                (Some(stopped), _) => stopped.text().to_string(),
                (None, all) => {
                    let all = all?;
                    format!("{} ({})", short(all.cpu_ns), short(all.cpu_ns_min))
                }
            })
        };
        let cells: Vec<_> = specs.iter().map(cell).collect();
        if cells.iter().any(Option::is_some) {
            let texts = cells.into_iter().map(|cell| cell.unwrap_or("-".to_string()));
            table.add_row(std::iter::once(one.name.clone()).chain(texts));
        }
    }
    right(&mut table, 1);
    Captioned { caption: caption.to_string(), table }
}

/// Returns a table with contenders as rows, all figures as columns.
fn detail(results: &Results, spec: &Spec) -> Captioned {
    let mut table = Table::new();
    table.set_header([
        "allocator",
        "CPU",
        "CPU min",
        "clock",
        "p99",
        "MiB mean",
        "MiB same ops",
        "MiB peak",
        "MiB at end",
        "MiB ever",
        "faults",
        "mappings",
    ]);
    for row in results.rows.iter().filter(|row| results.specs[row.spec].name == spec.name) {
        let mut name = results.contenders[row.contender].name.clone();
        if let Some(stopped) = row.stopped {
            name = format!("{name} ({} then)", stopped.text());
        }
        let Some(all) = row.summary() else {
            table.add_row([name]);
            continue;
        };
        table.add_row([
            name,
            short(all.cpu_ns),
            short(all.cpu_ns_min),
            short(all.wall_ns),
            short(all.p99_ns),
            mib(all.rss_mean),
            mib(all.rss_same),
            mib(all.rss_peak),
            mib(all.rss_end),
            mib(all.rss_ever),
            format!("{:.2}", all.faults),
            format!("{:.0}", all.mappings),
        ]);
    }
    right(&mut table, 1);
    Captioned { caption: format!("{}: {}", spec.name, about(spec)), table }
}

fn about(spec: &Spec) -> String {
    let threads = match spec.threads {
        1 => "one thread".to_string(),
        threads => format!("{threads} threads"),
    };
    let touched = match spec.touch {
        Touch::Byte => "one byte",
        Touch::Pages => "every page",
        Touch::Sparse => "one page in four",
    };
    let unit = match spec.work {
        Work::Burst { idle_ms, .. } => {
            return format!(
                "{touched} touched, then all freed, then {idle_ms} ms of idling; for one of them, purging counts."
            );
        }
        Work::Many { .. } => return "none touched, all live at once; for one of them.".to_string(),
        Work::Grow { growth: Growth::Half, .. } => "a whole growth by half at a time".to_string(),
        Work::Grow { growth: Growth::Double, .. } => "a whole growth by doubling".to_string(),
        Work::Grow { growth: Growth::Steps, .. } => {
            "a whole growth by 1 MiB at a time, an allocation of 150,000 bytes after each".to_string()
        }
        Work::Trim { .. } => {
            return format!(
                "{touched} touched, then every second one freed, then a trim; for one that is freed."
            );
        }
        Work::Mix { live, .. } => format!("one freed and one allocated, {live} live in each thread"),
        Work::Flow { .. } => "one allocated by a thread and freed by another".to_string(),
        Work::Exchange { live, .. } => {
            format!("one allocated, and one freed that any thread allocated, {live} live in all")
        }
        Work::Pair { .. } | Work::Calloc { .. } | Work::Memset { .. } | Work::Aligned { .. } => {
            "a pair".to_string()
        }
    };
    format!("{touched} touched, {threads}; for {unit}; the clock for all threads together.")
}

/// Writes CSV, tables and charts.
pub(super) fn files(
    results: &Results,
    dir: &Path,
    stem: &str,
    header: &str,
    out: &mut dyn Output,
) -> Result<()> {
    write_file(dir, &format!("{stem}.csv"), &(comments(header) + &csv(results)), out)?;
    let mut page = format!("# Allocators of a process\n\n```text\n{header}```\n");
    let huge = stem.ends_with("thp");
    if huge {
        page.push_str("\nTransparent huge pages on for the peers that have an option for it.\n");
    }
    for Captioned { caption, mut table } in tables(results) {
        table.load_preset(presets::ASCII_MARKDOWN);
        // Writing to a String cannot fail.
        let _ = write!(page, "\n{caption}\n\n{}\n", table.trim_fmt());
    }
    for broken in &results.broken {
        let _ = write!(page, "\nBroken: {broken}\n");
    }
    write_file(dir, &format!("{stem}.md"), &page, out)?;
    charts(results, dir, stem, out)
}

fn csv(results: &Results) -> String {
    let mut csv = String::from(
        "workload,allocator,setting,version,threads,rounds,cpu_ns,cpu_ns_min,wall_ns,wall_ns_min,p99_ns,faults,rss_mean,rss_same,rss_peak,rss_end,rss_ever,mappings\n",
    );
    for row in &results.rows {
        let (spec, one) = (&results.specs[row.spec], &results.contenders[row.contender]);
        let setting = one.name.strip_prefix(one.family).unwrap_or_default().trim();
        let labels = format!("{},{},{setting},{}", spec.name, one.family, one.version.replace(',', " "));
        let Some(all) = row.summary() else { continue };
        let Summary { cpu_ns, cpu_ns_min, wall_ns, wall_ns_min, p99_ns, faults, .. } = all;
        let Summary { rss_mean, rss_same, rss_peak, rss_end, rss_ever, mappings, .. } = all;
        // Writing to a String cannot fail.
        let _ = writeln!(
            csv,
            "{labels},{},{},{cpu_ns:.2},{cpu_ns_min:.2},{wall_ns:.2},{wall_ns_min:.2},{p99_ns:.0},{faults:.3},{rss_mean:.0},{rss_same:.0},{rss_peak:.0},{rss_end:.0},{rss_ever:.0},{mappings:.0}",
            spec.threads,
            row.rounds.len(),
        );
    }
    csv
}

/// Writes a chart for each workload that runs at several settings: a line for each allocator, a point for each setting.
fn charts(results: &Results, dir: &Path, stem: &str, out: &mut dyn Output) -> Result<()> {
    for spec in results.specs.iter().filter(|spec| spec.scope == Scope::WithKnobs) {
        let all = results.of(&spec.name);
        let shown = all.iter().filter(|(one, _)| ![KV, MMAP].contains(&one.family));
        let points: Vec<_> = shown.map(|(one, all)| (one.line(), all.rss_same / MIB, all.cpu_ns)).collect();
        chart(spec, &points, dir, stem, out)?;
    }
    Ok(())
}

/// Writes the chart of a workload, from points with the names of their lines.
fn chart(
    spec: &Spec,
    points: &[(&str, f64, f64)],
    dir: &Path,
    stem: &str,
    out: &mut dyn Output,
) -> Result<()> {
    let mut names: Vec<&str> = Vec::new();
    for (name, ..) in points {
        if !names.contains(name) {
            names.push(name);
        }
    }
    if names.is_empty() {
        return Ok(());
    }
    let lines = names.iter().map(|name| {
        let of = points.iter().filter(|(line, ..)| line == name);
        let mut points: Vec<_> = of.map(|&(_, x, y)| (x, y)).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        ((*name).to_string(), points)
    });
    let chart = Chart {
        title: &title(spec),
        x: "mean RSS in MiB, over the same operations",
        y: "ns an operation (CPU time, median)",
        x_scale: Scale::Log,
        y_scale: Scale::Log,
        lines: lines.collect(),
        about: &names,
        size: (820.0, 470.0),
    };
    write_chart(dir, &format!("{stem}-{}.svg", spec.name.replace("-pages", "")), &chart, out)
}

fn title(spec: &Spec) -> String {
    let mix = MIXES.map(mix_name).into_iter().find(|name| spec.name.starts_with(name.as_str()));
    let what =
        mix.map_or(format!("{CROWD} threads"), |name| format!("Random sizes, {}", &name["mix-".len()..]));
    format!("{what}, every page touched, threads: {}", spec.threads)
}

#[cfg(test)]
mod tests {
    use super::super::measure::Sample;
    use super::super::results::Row;
    use super::super::task::{self, How, Ways};
    use super::*;

    #[test]
    fn times_have_three_digits_and_a_unit() {
        let texts = [1.234, 12.34, 123.4, 1234.0, 12_340_000.0].map(short);
        assert_eq!(texts, ["1.23 ns", "12.3 ns", "123 ns", "1.23 us", "12.3 ms"]);
    }

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
        let row = |(at, &(_, _, mib, cpu_ns)): (usize, &(&str, &'static str, f64, f64))| {
            let rss_same = mib * MIB;
            let sample = Sample { cpu_ns, rss_same, ..Sample::default() };
            Row { spec: 0, contender: at, rounds: vec![sample], stopped: None }
        };
        let rows = points.iter().enumerate().map(row).collect();
        let contenders = points.iter().map(contender).collect();
        Results { specs, contenders, rows, missing: Vec::new(), broken: Vec::new() }
    }

    #[test]
    fn a_peer_is_compared_at_equal_memory_with_each_of_its_settings() {
        let points = [
            ("ours", "ours", 100.0, 10.0),
            ("ours 8M", "ours", 50.0, 40.0),
            ("ours-kv", "ours-kv", 1.0, 1.0),
            ("glibc", "glibc", 60.0, 400.0),
            ("jemalloc", "jemalloc", 70.0, 80.0),
            ("jemalloc decay-0", "jemalloc", 40.0, 1e9),
            ("mimalloc", "mimalloc", 200.0, 12.0),
        ];
        let table = equal_memory(&results("mix-1M-16M-pages-1t", &points)).unwrap().table;
        let rows: Vec<Vec<String>> =
            table.row_iter().map(|row| row.cell_iter().map(comfy_table::Cell::content).collect()).collect();
        let wanted =
            [["glibc", "10.00"], ["jemalloc", "2.00"], ["jemalloc decay-0", "less"], ["mimalloc", "1.20"]];
        assert_eq!(rows, wanted);
        // A workload at one setting only has no line of points.
        assert!(equal_memory(&results("flow-1M", &points)).is_none());
    }
}
