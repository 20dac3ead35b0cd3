//! Tables, CSV and growth plots of the indexes.

use super::workloads;
use crate::harness::{Drawn, Report, Table, build, log_chart, number, unique};
use crate::stream::{Cell, find};

fn workloads_of(cells: &[Cell]) -> Vec<&str> {
    unique(cells.iter().map(|cell| cell.workload.as_str()))
}

fn contenders_of(cells: &[Cell]) -> Vec<&'static str> {
    unique(cells.iter().map(|cell| cell.contender))
}

/// Returns a table whose rows are workloads, without rows.
fn table(caption: &str) -> Table {
    Table::new(caption, 1, ["workload"])
}

fn label(workload: &&str) -> Vec<String> {
    vec![(*workload).to_string()]
}

/// Returns minimum (median) nanoseconds for each pair.
fn times(cells: &[Cell]) -> Table {
    let figure = |workload: &&str, contender: &&str| {
        let ns = find(cells, workload, contender)?.ns;
        Some(format!("{} ({})", number(ns.min), number(ns.median)))
    };
    table("Nanoseconds a pair, harness subtracted: minimum (median); - where a contender cannot or would take too long.")
        .grid(&contenders_of(cells), workloads_of(cells), label, figure)
}

/// The contenders of a ratio.
const RATIOS: [(&str, &str); 5] = [
    ("rb-linux", "btree"),
    ("rb-linux", "btree32"),
    ("kern", "rb-linux"),
    ("kern", "btree"),
    ("list", "rb-linux"),
];

/// Returns the ratios of the default indexes to the others, from minima.
fn ratios(cells: &[Cell]) -> Table {
    let ratio = |workload: &&str, names: &String| {
        let (slow, fast) = names.split_once(" / ")?;
        let ratio = find(cells, workload, slow)?.ns.min / find(cells, workload, fast)?.ns.min;
        Some(format!("{ratio:.2}"))
    };
    table("How many times the time of the second the first takes (minima).").grid(
        &RATIOS.map(|(slow, fast)| format!("{slow} / {fast}")),
        workloads_of(cells),
        label,
        ratio,
    )
}

/// Returns the bytes for each hole.
pub fn memory(cells: &[Cell]) -> Table {
    let mut table = Table::new(
        "Memory: records in use, alignment rows in use, and all slabs with what is reserved for returns and spare.",
        2,
        ["workload", "index", "holes", "bytes a hole", "rows, bytes a hole", "allocated, bytes a hole"],
    );
    let shown = ["rand-", "aligns-", "rows-"];
    for cell in cells.iter().filter(|cell| shown.iter().any(|prefix| cell.workload.starts_with(prefix))) {
        let Some((memory, holes)) = cell.memory else { continue };
        let per_hole = |bytes: usize| format!("{:.1}", bytes as f64 / holes.max(1) as f64);
        table.row(&[
            &cell.workload,
            &cell.contender,
            &holes,
            &per_hole(memory.used_bytes),
            &per_hole(memory.row_bytes),
            &per_hole(memory.allocated_bytes),
        ]);
    }
    table
}

/// Returns the name of the files.
pub(super) fn stem() -> String {
    format!("index-{}", build())
}

/// Returns the tables, CSV and SVG.
pub fn report(cells: &[Cell], header: String) -> Report {
    let tables = vec![times(cells), ratios(cells), memory(cells)];
    let tables = Report::new(stem(), "The index of holes", header, tables);
    Report { csv: csv(cells), charts: charts(cells), ..tables }
}

fn csv(cells: &[Cell]) -> Vec<String> {
    let head = "workload,contender,ns_min,ns_median,ns_mean,raw_min,harness_min,rounds,holes,used_bytes,row_bytes,allocated_bytes";
    let line = |cell: &Cell| {
        let memory = cell.memory.map_or(",,,".to_string(), |(memory, holes)| {
            format!("{holes},{},{},{}", memory.used_bytes, memory.row_bytes, memory.allocated_bytes)
        });
        let Cell { workload, contender, ns, raw_min, harness, .. } = cell;
        format!(
            "{workload},{contender},{:.2},{:.2},{:.2},{raw_min:.2},{harness:.2},{},{memory}",
            ns.min, ns.median, ns.mean, ns.count
        )
    };
    std::iter::once(head.to_string()).chain(cells.iter().map(line)).collect()
}

fn charts(cells: &[Cell]) -> Vec<Drawn> {
    let chart = |(prefix, title, x): (&str, &str, &str)| {
        let points = |contender: &&str| -> Vec<(f64, f64)> {
            let specs = workloads::ALL.iter();
            specs
                .filter(|spec| spec.name.starts_with(prefix) && !spec.name.ends_with("rows"))
                .filter_map(|spec| Some((spec.n as f64, find(cells, spec.name, contender)?.ns.min)))
                .collect()
        };
        let lines = contenders_of(cells).into_iter().map(|name| (name.to_string(), points(&name)));
        let lines = lines.filter(|(_, points)| points.len() > 1).collect();
        let file = format!("index-{prefix}{}.svg", build());
        log_chart(file, title, [x, "ns a pair (minimum)"], lines, &["btree", "btree32", "rb-linux", "kern"])
    };
    [
        ("rand-", "Random sizes, replaced at random", "areas out"),
        ("adversary-", "Misaligned holes, an aligned request", "holes"),
        ("aligns-", "Random sizes and alignments, replaced at random", "areas out"),
    ]
    .into_iter()
    .filter_map(chart)
    .collect()
}
