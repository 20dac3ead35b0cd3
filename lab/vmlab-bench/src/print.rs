//! The common content of every page of results: its header, its tables, its files.

use super::Cell;
use anyhow::{Context, Result};
use comfy_table::{CellAlignment, Table, presets};
use std::fmt::Write;
use std::path::Path;
use std::process::Command;
use vmlab_base::chart::Chart;
use vmlab_base::output::Output;
use vmlab_base::text::counted;

pub(crate) fn names<'a>(cells: &'a [Cell], of: impl Fn(&'a Cell) -> &'a str) -> Vec<&'a str> {
    let mut names = Vec::new();
    for cell in cells {
        let name = of(cell);
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

pub(crate) fn find<'a>(cells: &'a [Cell], workload: &str, contender: &str) -> Option<&'a Cell> {
    cells.iter().find(|cell| cell.workload == workload && cell.contender == contender)
}

pub(crate) fn number(ns: f64) -> String {
    if ns < 100.0 { format!("{ns:.1}") } else { format!("{ns:.0}") }
}

/// A table with its caption.
pub struct Captioned {
    pub(crate) caption: String,
    pub(crate) table: Table,
}

/// Writes the tables as a terminal shows them.
///
/// # Errors
/// If a line cannot be written.
pub fn show(tables: impl IntoIterator<Item = Captioned>, out: &mut dyn Output) -> Result<()> {
    for Captioned { caption, mut table } in tables {
        table.load_preset(presets::UTF8_HORIZONTAL_ONLY);
        out.line(&caption)?;
        out.line(&format!("{table}\n"))?;
    }
    Ok(())
}

/// Returns the tables as a page of results.
pub fn page(title: &str, tables: impl IntoIterator<Item = Captioned>, header: &str) -> String {
    let mut page = format!("# {title}, {} build\n\n```text\n{header}```\n", build());
    for Captioned { caption, mut table } in tables {
        table.load_preset(presets::ASCII_MARKDOWN);
        // Writing to a String cannot fail.
        let _ = write!(page, "\n{caption}\n\n{}\n", table.trim_fmt());
    }
    page
}

/// Returns the header as comments of a CSV file.
pub(crate) fn comments(header: &str) -> String {
    header.lines().map(|line| format!("# {line}\n")).collect()
}

/// Returns a table of minimum (median) nanoseconds for each pair.
pub(crate) fn times(cells: &[Cell]) -> Captioned {
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
    Captioned { caption: caption.to_string(), table }
}

/// Aligns numbers to the right, from a column on.
pub(crate) fn right(table: &mut Table, from: usize) {
    for column in table.column_iter_mut().skip(from) {
        column.set_cell_alignment(CellAlignment::Right);
    }
}

/// Returns the build's instruction set.
pub(crate) fn build() -> &'static str {
    if cfg!(target_feature = "avx2") { "x86-64-v3" } else { "baseline" }
}

/// The profile of this build. Published figures use `dist`.
const PROFILE: &str = env!("VMLAB_PROFILE");

/// Returns the name of the profile, as tables state it.
fn profile() -> String {
    if PROFILE == "dist" {
        "fat LTO".into()
    } else {
        format!("profile {PROFILE}, not optimised as one program")
    }
}

/// Returns the output of a command, if it succeeds.
fn output(command: &mut Command) -> Option<String> {
    let output = command.output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_string())
}

/// Returns the commit of the repository that contains `dir`, the source of this build, and marks uncommitted changes of
/// code. Results are not code.
fn commit(dir: &Path) -> Option<String> {
    let git = |args: &[&str]| output(Command::new("git").arg("-C").arg(dir).args(args));
    let commit = git(&["rev-parse", "--short=12", "HEAD"])?;
    let changed =
        git(&["status", "--porcelain", "--untracked-files=no", "--", ":/", ":(top,exclude)results"])?;
    Some(if changed.is_empty() { commit } else { commit + "+changes" })
}

/// Returns the description of the machine and the run. It is read before the run, so that it names the commit of the
/// build.
pub fn header(rounds: usize) -> String {
    let commit = commit(Path::new(env!("CARGO_MANIFEST_DIR"))).unwrap_or("unknown".into());
    let rustc = output(Command::new("rustc").arg("--version")).unwrap_or("unknown".into());
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |key: &str| {
        let line = cpuinfo.lines().find(|line| line.starts_with(key))?;
        Some(line.split_once(':')?.1.trim().to_string())
    };
    let model = field("model name").unwrap_or("unknown processor".into());
    let family = field("cpu family").map_or(String::new(), |family| format!(" (family {family})"));
    // All CPUs of the machine if they are listed; otherwise those that this process may use.
    let cpus = match cpuinfo.lines().filter(|line| line.starts_with("processor")).count() {
        0 => std::thread::available_parallelism().map_or(0, std::num::NonZero::get),
        listed => listed,
    };
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let args: Vec<String> =
        std::env::args().skip(1).map(|arg| arg.rsplit('/').next().unwrap_or("").to_string()).collect();
    format!(
        "command: vmlab {}\ncommit: {commit}\nmachine: {model}{family}, {}, Linux {}\nbuild: {rustc}, {}, {}\nrounds: {rounds} (fewer where a contender is slow), in turn, pinned to one CPU\n",
        args.join(" "),
        counted(cpus as u64, "CPU"),
        kernel.trim(),
        build(),
        profile()
    )
}

/// Creates the folder, and checks that files can be written there, before any measurement.
///
/// # Errors
/// If they cannot.
pub fn prepare(dir: &Path, name: &str) -> Result<()> {
    std::fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    vmlab_base::file::OutputFile::open(&dir.join(name)).map(drop)
}

/// Writes a file of results, and reports its path.
///
/// # Errors
/// If it cannot be written.
pub fn write_file(dir: &Path, name: &str, text: &str, out: &mut dyn Output) -> Result<()> {
    let path = dir.join(name);
    std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    out.line(&format!("wrote {}", path.display()))
}

/// The same for a chart.
pub(crate) fn write_chart(dir: &Path, name: &str, chart: &Chart<'_>, out: &mut dyn Output) -> Result<()> {
    write_file(dir, name, &format!("{}\n", chart.svg(true)), out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_commit_shows_changes_other_than_results() {
        let dir = tempfile::TempDir::new().unwrap();
        let git = |args: &[&str]| {
            let config = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"];
            output(Command::new("git").arg("-C").arg(dir.path()).args(config).args(args)).unwrap()
        };
        let (code, results) = (dir.path().join("core"), dir.path().join("results"));
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
}
