//! Tables, CSV, charts and the page of the allocators of a process.

use super::contenders::{Contender, KV, MMAP, OURS};
use super::measure::Sample;
use super::results::{Results, at_equal_memory};
use super::task::{CROWD, Growth, MIXES, Scope, Spec, Touch, Work, mix_name};
use crate::harness::{Drawn, Header, Report, Summary, Table, duration, log_chart, unique};

const MIB: f64 = (1 << 20) as f64;

/// Returns the description of the machine and the run.
pub(super) fn header(common: &Header, rounds: usize, ms: u64) -> String {
    common.with(&format!(
        "rounds: {rounds} of {ms} ms (mixes longer, slow workloads fewer), in turn, a process each"
    ))
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

/// Returns the tables, CSV, charts and the page.
pub(super) fn report(results: &Results, thp: bool, stem: &str, header: String) -> Report {
    let mut tables = vec![versions(results, thp)];
    let specs = |holds: &dyn Fn(&Spec) -> bool| -> Vec<&Spec> {
        results.specs.iter().filter(|spec| holds(spec)).collect()
    };
    let with_knobs = specs(&|spec| spec.scope == Scope::WithKnobs);
    if !with_knobs.is_empty() {
        tables.push(equal_memory(results, &with_knobs));
    }
    for group in GROUPS {
        let specs = specs(&group.holds);
        if !specs.is_empty() {
            tables.push(grid(results, group.caption, &specs));
        }
    }
    let alone = specs(&|spec| GROUPS.iter().all(|group| !(group.holds)(spec)));
    tables.extend(alone.into_iter().map(|spec| detail(results, spec)));
    Report {
        csv: csv(results),
        charts: with_knobs.iter().filter_map(|spec| chart(results, spec, stem)).collect(),
        notes: results.broken.iter().map(|broken| format!("Broken: {broken}")).collect(),
        ..Report::new(stem, "Allocators of a process", header, tables)
    }
}

fn versions(results: &Results, thp: bool) -> Table {
    let mut caption = "Allocators.".to_string();
    if !results.missing.is_empty() {
        caption += &format!(" Not here, and left out: {}.", results.missing.join(", "));
    }
    if thp {
        caption += " Transparent huge pages on for the peers that have an option for it.";
    }
    let mut table = Table::new(caption, 3, ["allocator", "version", "library"]);
    for one in results.contenders.iter().filter(|one| one.is_default) {
        let library = one.library.as_ref().and_then(|path| path.file_name());
        let library = library.map_or("-".to_string(), |name| name.to_string_lossy().into_owned());
        table.row(&[&one.name, &one.version, &library]);
    }
    table
}

/// Returns a table with allocators as rows, workloads as columns; an allocator without a figure has no row.
fn by_workload<'r>(
    caption: &str,
    specs: &[&'r Spec],
    allocators: impl IntoIterator<Item = &'r Contender>,
    figure: impl Fn(&Contender, &Spec) -> Option<String>,
) -> Table {
    let names: Vec<&str> = specs.iter().map(|spec| spec.name.as_str()).collect();
    let label = |one: &&Contender| vec![one.name.clone()];
    Table::new(caption, 1, ["allocator"])
        .grid(&names, allocators, label, |one, name| {
            figure(one, specs.iter().find(|spec| spec.name == *name)?)
        })
        .without_empty_rows()
}

/// Returns the ratios at equal memory, of every point of every peer.
pub fn equal_memory(results: &Results, specs: &[&Spec]) -> Table {
    let caption = "At equal memory: how many times our CPU time a peer takes. Ours is the cheapest of our points with no more mean RSS \
                   over the same operations than the peer; `less` where each of ours has more.";
    let peers = results.contenders.iter().filter(|one| !one.is_ours());
    by_workload(caption, specs, peers, |peer, spec| {
        let ours = results.of(spec).filter(|(one, _)| one.family == OURS);
        let ours: Vec<_> = ours.filter_map(|(_, row)| row.point()).collect();
        let (_, row) = results.of(spec).find(|(one, _)| one.name == peer.name)?;
        let ratio = at_equal_memory(&ours, row.point()?);
        Some(ratio.map_or("less".to_string(), |ratio| format!("{ratio:.2}")))
    })
}

/// Returns CPU times.
fn grid(results: &Results, caption: &str, specs: &[&Spec]) -> Table {
    by_workload(caption, specs, &results.contenders, |one, spec| {
        let (_, row) = results.of(spec).find(|(ran, _)| ran.name == one.name)?;
        if let Some(stopped) = row.stopped {
            return Some(stopped.text().to_string());
        }
        let ns = row.figure(|sample| sample.cpu_ns)?;
        Some(format!("{} ({})", duration(ns.median), duration(ns.min)))
    })
}

/// A figure of each round, the choice among the rounds, and its form.
type Figure<F> = (&'static str, fn(&Sample) -> f64, fn(Summary) -> f64, F);

fn least(rounds: Summary) -> f64 {
    rounds.min
}

fn middle(rounds: Summary) -> f64 {
    rounds.median
}

fn most(rounds: Summary) -> f64 {
    rounds.max
}

type Text = fn(f64) -> String;

/// The columns of a detailed table.
const COLUMNS: [Figure<Text>; 11] = [
    ("CPU", |sample| sample.cpu_ns, middle, duration),
    ("CPU min", |sample| sample.cpu_ns, least, duration),
    ("clock", |sample| sample.wall_ns, middle, duration),
    ("p99", |sample| sample.p99_ns, middle, duration),
    ("MiB mean", |sample| sample.rss_mean, middle, mib),
    ("MiB same ops", |sample| sample.rss_same, middle, mib),
    ("MiB peak", |sample| sample.rss_peak, most, mib),
    ("MiB at end", |sample| sample.rss_end, middle, mib),
    ("MiB ever", |sample| sample.rss_ever, most, mib),
    ("faults", |sample| sample.faults, middle, |faults| format!("{faults:.2}")),
    ("mappings", |sample| sample.mappings, most, |mappings| format!("{mappings:.0}")),
];

/// The columns of CSV, and their decimals.
const CSV: [Figure<usize>; 12] = [
    ("cpu_ns", |sample| sample.cpu_ns, middle, 2),
    ("cpu_ns_min", |sample| sample.cpu_ns, least, 2),
    ("wall_ns", |sample| sample.wall_ns, middle, 2),
    ("wall_ns_min", |sample| sample.wall_ns, least, 2),
    ("p99_ns", |sample| sample.p99_ns, middle, 0),
    ("faults", |sample| sample.faults, middle, 3),
    ("rss_mean", |sample| sample.rss_mean, middle, 0),
    ("rss_same", |sample| sample.rss_same, middle, 0),
    ("rss_peak", |sample| sample.rss_peak, most, 0),
    ("rss_end", |sample| sample.rss_end, middle, 0),
    ("rss_ever", |sample| sample.rss_ever, most, 0),
    ("mappings", |sample| sample.mappings, most, 0),
];

/// Returns a table with contenders as rows, all figures as columns.
fn detail(results: &Results, spec: &Spec) -> Table {
    let head = std::iter::once("allocator").chain(COLUMNS.map(|(name, ..)| name));
    let mut table = Table::new(format!("{}: {}", spec.name, about(spec)), 1, head);
    for (one, row) in results.of(spec) {
        let name = match row.stopped {
            Some(stopped) => format!("{} ({} then)", one.name, stopped.text()),
            None => one.name.clone(),
        };
        let figures = COLUMNS.iter().filter_map(|(_, of, choose, text)| Some(text(choose(row.figure(of)?))));
        table.push(std::iter::once(name).chain(figures));
    }
    table
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

fn csv(results: &Results) -> Vec<String> {
    let names = CSV.map(|(name, ..)| name).join(",");
    let mut lines = vec![format!("workload,allocator,setting,version,threads,rounds,{names}")];
    for row in results.rows.iter().filter(|row| !row.rounds.is_empty()) {
        let (spec, one) = (&results.specs[row.spec], &results.contenders[row.contender]);
        let setting = one.name.strip_prefix(one.family).unwrap_or_default().trim();
        let version = one.version.replace(',', " ");
        let mut line =
            format!("{},{},{setting},{version},{},{}", spec.name, one.family, spec.threads, row.rounds.len());
        line.extend(CSV.iter().filter_map(|(_, of, choose, decimals)| {
            Some(format!(",{:.decimals$}", choose(row.figure(of)?)))
        }));
        lines.push(line);
    }
    lines
}

/// Draws a workload that runs at several settings: a line for each allocator, a point for each setting.
fn chart(results: &Results, spec: &Spec, stem: &str) -> Option<Drawn> {
    let shown = results.of(spec).filter(|(one, _)| ![KV, MMAP].contains(&one.family));
    let points: Vec<_> = shown.filter_map(|(one, row)| Some((one.line(), row.point()?))).collect();
    let names = unique(points.iter().map(|(name, _)| *name));
    let line = |name: &&str| {
        let of = points.iter().filter(|(line, _)| line == name);
        let mut points: Vec<_> = of.map(|(_, point)| (point.rss / MIB, point.ns)).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        ((*name).to_string(), points)
    };
    let file = format!("{stem}-{}.svg", spec.name.replace("-pages", ""));
    let axes = ["mean RSS in MiB, over the same operations", "ns an operation (CPU time, median)"];
    log_chart(file, &title(spec), axes, names.iter().map(line).collect(), &names)
}

fn title(spec: &Spec) -> String {
    let mix = MIXES.map(mix_name).into_iter().find(|name| spec.name.starts_with(name.as_str()));
    let what =
        mix.map_or(format!("{CROWD} threads"), |name| format!("Random sizes, {}", &name["mix-".len()..]));
    format!("{what}, every page touched, threads: {}", spec.threads)
}
