//! Tables, CSV and growth plots.

use super::{Cell, workloads};
use crate::cli::out;
use crate::report::chart::{Chart, Scale};
use anyhow::{Context, Result};
use comfy_table::{CellAlignment, Table, presets};
use std::fmt::Write;
use std::path::Path;
use std::process::Command;

fn names<'a>(cells: &'a [Cell], of: impl Fn(&'a Cell) -> &'a str) -> Vec<&'a str> {
    let mut names = Vec::new();
    for cell in cells {
        let name = of(cell);
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

fn find<'a>(cells: &'a [Cell], workload: &str, contender: &str) -> Option<&'a Cell> {
    cells.iter().find(|cell| cell.workload == workload && cell.contender == contender)
}

fn number(ns: f64) -> String {
    if ns < 100.0 { format!("{ns:.1}") } else { format!("{ns:.0}") }
}

/// A table with its caption.
struct Captioned {
    caption: &'static str,
    table: Table,
}

/// All tables, in the order in which they are read.
fn tables(cells: &[Cell]) -> [Captioned; 3] {
    [times(cells), ratios(cells), memory(cells)]
}

/// Prints the tables.
pub(super) fn tables_to_terminal(cells: &[Cell]) -> Result<()> {
    for Captioned { caption, mut table } in tables(cells) {
        table.load_preset(presets::UTF8_HORIZONTAL_ONLY);
        out(caption)?;
        out(&format!("{table}\n"))?;
    }
    Ok(())
}

/// The tables as a page of results.
fn page(cells: &[Cell], rounds: usize) -> String {
    let mut page = format!("# The index of holes, {} build\n\n```text\n{}```\n", build(), header(rounds));
    for Captioned { caption, mut table } in tables(cells) {
        table.load_preset(presets::ASCII_MARKDOWN);
        // Writing to a String cannot fail.
        let _ = write!(page, "\n{caption}\n\n{}\n", table.trim_fmt());
    }
    page
}

/// Minimum (median) nanoseconds a pair.
fn times(cells: &[Cell]) -> Captioned {
    let contenders = names(cells, |cell| cell.contender);
    let mut table = Table::new();
    table.set_header(std::iter::once("workload").chain(contenders.iter().copied()));
    for workload in names(cells, |cell| &cell.workload) {
        let mut row = vec![workload.to_string()];
        for contender in &contenders {
            row.push(
                find(cells, workload, contender).map_or("-".to_string(), |cell| {
                    format!("{} ({})", number(cell.min), number(cell.median))
                }),
            );
        }
        table.add_row(row);
    }
    right(&mut table, 1);
    let caption = "Nanoseconds a pair, harness subtracted: minimum (median); - where a contender cannot or would take too long.";
    Captioned { caption, table }
}

/// Numbers to the right, from a column on.
fn right(table: &mut Table, from: usize) {
    for column in table.column_iter_mut().skip(from) {
        column.set_cell_alignment(CellAlignment::Right);
    }
}

/// The default indexes against the others, from minima.
fn ratios(cells: &[Cell]) -> Captioned {
    let pairs = [
        ("rb-linux", "btree"),
        ("rb-linux", "btree32"),
        ("kern", "rb-linux"),
        ("kern", "btree"),
        ("list", "rb-linux"),
    ];
    let mut table = Table::new();
    table.set_header(std::iter::once("workload".to_string()).chain(pairs.map(|(a, b)| format!("{a} / {b}"))));
    for workload in names(cells, |cell| &cell.workload) {
        let mut row = vec![workload.to_string()];
        for (slow, fast) in pairs {
            let ratio =
                find(cells, workload, slow).zip(find(cells, workload, fast)).map(|(a, b)| a.min / b.min);
            row.push(ratio.map_or("-".to_string(), |ratio| format!("{ratio:.2}")));
        }
        table.add_row(row);
    }
    right(&mut table, 1);
    Captioned { caption: "How many times the time of the second the first takes (minima).", table }
}

/// Bytes a hole.
fn memory(cells: &[Cell]) -> Captioned {
    let mut table = Table::new();
    table.set_header([
        "workload",
        "index",
        "holes",
        "bytes a hole",
        "rows, bytes a hole",
        "lent, bytes a hole",
    ]);
    let shown = ["rand-", "aligns-", "rows-"];
    for cell in cells.iter().filter(|cell| shown.iter().any(|prefix| cell.workload.starts_with(prefix))) {
        let Some((memory, holes)) = cell.memory else { continue };
        let per_hole = |bytes: usize| format!("{:.1}", bytes as f64 / holes.max(1) as f64);
        table.add_row([
            cell.workload.clone(),
            cell.contender.to_string(),
            holes.to_string(),
            per_hole(memory.used_bytes),
            per_hole(memory.row_bytes),
            per_hole(memory.lent_bytes),
        ]);
    }
    right(&mut table, 2);
    let caption = "Memory: records in use, alignment rows in use, and all slabs with what is reserved for returns and spare.";
    Captioned { caption, table }
}

/// The build's instruction set, as far as it matters here.
fn build() -> &'static str {
    if cfg!(target_feature = "avx2") { "x86-64-v3" } else { "baseline" }
}

/// What the figures were taken with.
pub(super) fn header(rounds: usize) -> String {
    let output = |command: &mut Command| {
        let output = command.output().ok().filter(|output| output.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_string())
    };
    let commit =
        output(Command::new("git").args(["rev-parse", "--short=12", "HEAD"])).unwrap_or("unknown".into());
    let rustc = output(Command::new("rustc").arg("--version")).unwrap_or("unknown".into());
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |key: &str| {
        let line = cpuinfo.lines().find(|line| line.starts_with(key))?;
        Some(line.split_once(':')?.1.trim().to_string())
    };
    let (model, family) =
        (field("model name").unwrap_or("unknown".into()), field("cpu family").unwrap_or_default());
    // Not what this thread may use: it is pinned to one.
    let cpus = cpuinfo.lines().filter(|line| line.starts_with("processor")).count();
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let args: Vec<String> =
        std::env::args().skip(1).map(|arg| arg.rsplit('/').next().unwrap_or("").to_string()).collect();
    format!(
        "command: vmlab {}\ncommit: {commit}\nmachine: {model} (family {family}), {cpus} CPUs, Linux {}\nbuild: {rustc}, {}, fat LTO\nrounds: {rounds} (fewer where a contender is slow), in turn, pinned to one CPU\n",
        args.join(" "),
        kernel.trim(),
        build()
    )
}

/// CSV, tables and SVG.
pub(super) fn files(cells: &[Cell], dir: &Path, rounds: usize) -> Result<()> {
    std::fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    let mut csv = String::new();
    for line in header(rounds).lines() {
        // Writing to a String cannot fail.
        let _ = writeln!(csv, "# {line}");
    }
    csv.push_str("workload,contender,ns_min,ns_median,raw_min,harness_min,rounds,holes,used_bytes,row_bytes,lent_bytes\n");
    for cell in cells {
        let memory = cell.memory.map_or(",,,".to_string(), |(memory, holes)| {
            format!("{holes},{},{},{}", memory.used_bytes, memory.row_bytes, memory.lent_bytes)
        });
        let Cell { workload, contender, min, median, raw_min, harness, rounds, .. } = cell;
        let _ = writeln!(
            csv,
            "{workload},{contender},{min:.2},{median:.2},{raw_min:.2},{harness:.2},{rounds},{memory}"
        );
    }
    let write = |name: String, text: &str| -> Result<()> {
        let path = dir.join(name);
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        out(&format!("wrote {}", path.display()))
    };
    write(format!("index-{}.csv", build()), &csv)?;
    write(format!("index-{}.md", build()), &page(cells, rounds))?;
    for (prefix, title, x) in [
        ("rand-", "Random sizes, replaced at random", "areas out"),
        ("adversary-", "Misaligned holes, an aligned request", "holes"),
        ("aligns-", "Random sizes and alignments, replaced at random", "areas out"),
    ] {
        let lines: Vec<_> = names(cells, |cell| cell.contender)
            .into_iter()
            .filter_map(|contender| {
                let points: Vec<_> = workloads::ALL
                    .iter()
                    .filter(|spec| spec.name.starts_with(prefix) && !spec.name.ends_with("rows"))
                    .filter_map(|spec| Some((spec.n as f64, find(cells, spec.name, contender)?.min)))
                    .collect();
                (points.len() > 1).then(|| (contender.to_string(), points))
            })
            .collect();
        if lines.is_empty() {
            continue;
        }
        let chart = Chart {
            title,
            x,
            y: "ns a pair (minimum)",
            x_scale: Scale::Log,
            y_scale: Scale::Log,
            lines,
            size: (760.0, 430.0),
        };
        write(format!("index-{}{}.svg", prefix, build()), &format!("{}\n", chart.svg(true)))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_shown_wherever_holes_are_many() {
        let memory = va_tree::IndexMemory { used_bytes: 300, row_bytes: 120, ..Default::default() };
        let cell = |workload: &str| Cell {
            workload: workload.to_string(),
            contender: "btree",
            median: 1.0,
            min: 1.0,
            raw_min: 1.0,
            harness: 0.0,
            rounds: 1,
            memory: Some((memory, 10)),
        };
        let table = super::memory(&["rand-1k", "rows-1M", "aligns-1k", "empty"].map(cell)).table;
        let rows: Vec<String> =
            table.row_iter().map(|row| row.cell_iter().map(comfy_table::Cell::content).collect()).collect();
        assert_eq!(rows.len(), 3);
        assert_eq!(rows[1], "rows-1Mbtree1030.012.00.0");
        let rows = workloads::ALL.iter().filter(|spec| spec.name.starts_with("rows-"));
        assert_eq!(rows.map(|spec| spec.n).max(), Some(1_000_000));
    }
}
