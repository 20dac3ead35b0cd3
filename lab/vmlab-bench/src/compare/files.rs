//! Writes the page, the CSV and the charts.

use super::{Compared, charts, locks, origins, tables};
use crate::print::{comments, page, write_file};
use anyhow::Result;
use std::fmt::Write;
use std::path::Path;
use vmlab_base::output::Output;

/// Name of the CSV file.
pub(super) const CSV: &str = "test-compare.csv";
const PAGE: &str = "test-compare.md";

/// Returns the description of the machine and the run.
pub(super) fn about(header: &str, rounds: u64, limit_s: u64) -> String {
    // Workers are not bound to a CPU; the suite's are not either.
    let lines: String =
        header.lines().filter(|line| !line.starts_with("rounds:")).map(|line| format!("{line}\n")).collect();
    // Other load on the machine affects every figure.
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split_whitespace().next().unwrap_or("unknown");
    format!(
        "{lines}load before: {load}\nrounds: {}, targets in turn, the fastest counts; a run is stopped after {} s\n",
        rounds, limit_s
    )
}

/// Writes all files.
///
/// # Errors
/// If a file cannot be written.
pub(super) fn write(compared: &Compared, dir: &Path, header: &str, out: &mut dyn Output) -> Result<()> {
    let mut text = page("The kernel's test suite on targets side by side", tables::all(compared), header);
    let drawn = charts::all(compared);
    // Writing to a String cannot fail.
    for chart in &drawn {
        let _ = write!(text, "\n![{0}]({0})\n", chart.file);
    }
    let tables = locks::all(compared);
    if !tables.is_empty() {
        text.push_str(
            "\nLocks in the form of `lock_stat`, microseconds: of each class the places where it was waited for, then those that held it. \
             Spin locks that count, in a run of its own. A place is a line of this commit. Under our own ways (`space`) lookups and frees \
             meet in the page map, which has no lock. The lock of per-CPU memory is not among them: what waiting for it takes counts as \
             work.\n",
        );
    }
    for table in tables {
        let _ = write!(text, "\n```text\n{}\n```\n", table.trim_end());
    }
    let csv = format!("{}{}{}", comments(header), tables::csv(compared), origins::csv(compared));
    write_file(dir, CSV, &csv, out)?;
    for chart in drawn {
        write_file(dir, &chart.file, &format!("{}\n", chart.svg), out)?;
    }
    write_file(dir, PAGE, &text, out)
}
