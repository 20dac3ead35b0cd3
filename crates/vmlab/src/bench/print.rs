//! Tables, CSV and growth plots.

use super::{Cell, workloads};
use crate::cli::out;
use crate::report::chart::{Chart, Scale};
use crate::run::counted;
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
fn page(cells: &[Cell], header: &str) -> String {
    let mut page = format!("# The index of holes, {} build\n\n```text\n{header}```\n", build());
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

/// What a command prints, if it succeeds.
fn output(command: &mut Command) -> Option<String> {
    let output = command.output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_string())
}

/// The commit of the repository that `dir` lies in (what this was built from, wherever it runs), and whether code was
/// changed since. Results are not code.
fn commit(dir: &Path) -> Option<String> {
    let git = |args: &[&str]| output(Command::new("git").arg("-C").arg(dir).args(args));
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    let changed =
        git(&["status", "--porcelain", "--untracked-files=no", "--", ":/", ":(top,exclude)results"])?;
    Some(if changed.is_empty() { commit } else { commit + "+changes" })
}

/// What the figures are taken with: asked for before the run, so that nobody's commit meanwhile is named.
pub(super) fn header(rounds: usize) -> String {
    let commit = commit(Path::new(env!("CARGO_MANIFEST_DIR"))).unwrap_or("unknown".into());
    let rustc = output(Command::new("rustc").arg("--version")).unwrap_or("unknown".into());
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |key: &str| {
        let line = cpuinfo.lines().find(|line| line.starts_with(key))?;
        Some(line.split_once(':')?.1.trim().to_string())
    };
    let model = field("model name").unwrap_or("unknown processor".into());
    let family = field("cpu family").map_or(String::new(), |family| format!(" (family {family})"));
    // All of the machine, where it lists them; what this process may use, where it does not.
    let cpus = match cpuinfo.lines().filter(|line| line.starts_with("processor")).count() {
        0 => std::thread::available_parallelism().map_or(0, std::num::NonZero::get),
        listed => listed,
    };
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let args: Vec<String> =
        std::env::args().skip(1).map(|arg| arg.rsplit('/').next().unwrap_or("").to_string()).collect();
    format!(
        "command: vmlab {}\ncommit: {commit}\nmachine: {model}{family}, {}, Linux {}\nbuild: {rustc}, {}, fat LTO\nrounds: {rounds} (fewer where a contender is slow), in turn, pinned to one CPU\n",
        args.join(" "),
        counted(cpus as u64, "CPU"),
        kernel.trim(),
        build()
    )
}

/// Makes the folder, and sees that files can be written there, before anything is measured.
pub(super) fn prepare(dir: &Path) -> Result<()> {
    std::fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    crate::cli::FileToBe::open(&dir.join(csv_name())).map(drop)
}

fn csv_name() -> String {
    format!("index-{}.csv", build())
}

/// CSV, tables and SVG.
pub(super) fn files(cells: &[Cell], dir: &Path, header: &str) -> Result<()> {
    let mut csv = String::new();
    for line in header.lines() {
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
    write(csv_name(), &csv)?;
    write(format!("index-{}.md", build()), &page(cells, header))?;
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
            about: &["btree", "btree32", "rb-linux", "kern"],
            size: (820.0, 470.0),
        };
        write(format!("index-{}{}.svg", prefix, build()), &format!("{}\n", chart.svg(true)))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commit_tells_of_changes_other_than_results() {
        let dir = tempfile::TempDir::new().unwrap();
        let git = |args: &[&str]| {
            let who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"];
            output(Command::new("git").arg("-C").arg(dir.path()).args(who).args(args)).unwrap()
        };
        let (code, results) = (dir.path().join("crates"), dir.path().join("results"));
        git(&["init", "-q"]);
        for at in [&code, &results] {
            std::fs::create_dir(at).unwrap();
            std::fs::write(at.join("a"), "a").unwrap();
        }
        git(&["add", "."]);
        git(&["commit", "-qm", "a"]);
        let head = git(&["rev-parse", "--short=12", "HEAD"]);
        assert_eq!(commit(&code), Some(head.clone()));
        std::fs::write(results.join("a"), "b").unwrap();
        assert_eq!(commit(&code), Some(head.clone()));
        std::fs::write(code.join("a"), "b").unwrap();
        assert_eq!(commit(&code), Some(head + "+changes"));
    }

    #[test]
    fn the_header_counts_the_cpus_of_the_machine() {
        let cpus = std::thread::available_parallelism().unwrap().get();
        let header = header(3);
        let line = header.lines().find(|line| line.starts_with("machine: ")).unwrap();
        let count =
            line.split(", ").find_map(|part| part.strip_suffix(" CPUs").or(part.strip_suffix(" CPU")));
        assert!(count.unwrap().parse::<usize>().unwrap() >= cpus, "{line}");
    }

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
