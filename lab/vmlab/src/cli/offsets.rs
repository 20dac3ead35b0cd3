//! The section of `vmlab replay --diff` about offsets in percpu chunks.

use super::out;
use super::table::{align, plain};
use anyhow::Result;
use comfy_table::Cell;
use std::fmt::Write as _;
use vmlab_base::text::{counted, grouped};
use vmlab_replay::diff::Report;
use vmlab_replay::diff::offsets::{Elsewhere, OffsetCause, Offsets};

const HEAD: [&str; 9] = [
    "percpu\npolicy",
    "allocs",
    "equal",
    "lower",
    "higher",
    "none\nfound",
    "no other\nplace known",
    "not\nknowable",
    "equal of\nthe rest",
];

fn cells(offsets: &Offsets) -> [String; 9] {
    let rest = offsets.allocs - offsets.unknowable();
    let share = if rest == 0 {
        "-".to_string()
    } else {
        format!("{:.2} %", 100.0 * offsets.equal as f64 / rest as f64)
    };
    [
        offsets.policy.to_string(),
        grouped(offsets.allocs),
        grouped(offsets.equal),
        grouped(offsets.lower),
        grouped(offsets.higher),
        grouped(offsets.failed),
        grouped(offsets.alone),
        grouped(offsets.unknowable()),
        share,
    ]
}

fn all(reports: &[Report]) -> Vec<&Offsets> {
    reports.iter().filter_map(|report| report.offsets.as_ref()).collect()
}

/// Returns the sentences before the offsets.
fn notes(offsets: &[&Offsets]) -> Vec<String> {
    let Some(first) = offsets.first() else { return Vec::new() };
    vec![
        format!(
            "offsets are compared within the chunk that the kernel took: how full chunks were, which decides between them, no event shows; {}, {} of them made in the recording ({}, of these {} equal and {} with no other place)",
            counted(first.chunks, "chunk"),
            grouped(first.chunks_new),
            counted(first.new_allocs, "allocation"),
            grouped(first.new_equal),
            grouped(first.new_alone)
        ),
        "in a chunk that was there before, what the events do not prove to be free is taken to be in use; where the kernel's place is then the only one, nothing is proved and it counts as not knowable".into(),
        format!(
            "{} of objects from before the recording, {} of objects that no event allocated, where another had been; {} allocated where the events still have an object; {} that no chunk can have",
            counted(first.frees_before, "free"),
            grouped(first.frees_unseen),
            counted(first.taken_twice, "place"),
            counted(first.malformed, "event")
        ),
    ]
}

/// Formats a difference as a line.
fn shown(difference: &Elsewhere) -> String {
    let Elsewhere { line, base, size, align, kernel, policy, cause } = difference;
    let policy = policy.map_or("nothing".to_string(), |policy| policy.to_string());
    format!(
        "line {line}, chunk {base:#x}: {size} bytes aligned to {align}: kernel offset {kernel}, policy {policy}: {}",
        cause.text()
    )
}

/// Returns the causes that occur, with a row of counts for each.
fn causes(offsets: &[&Offsets]) -> Vec<Vec<String>> {
    let mut causes: Vec<OffsetCause> =
        offsets.iter().flat_map(|offsets| offsets.causes.keys().copied()).collect();
    causes.sort_unstable();
    causes.dedup();
    let count = |offsets: &Offsets, cause: &OffsetCause| {
        grouped(offsets.causes.get(cause).copied().unwrap_or_default())
    };
    let row = |cause: &OffsetCause| {
        let counts = offsets.iter().map(|offsets| count(offsets, cause));
        [cause.text().to_string(), cause.kind().to_string()].into_iter().chain(counts).collect()
    };
    causes.iter().map(row).collect()
}

/// Prints the tables, unless they are empty.
pub(super) fn print(name: &str, reports: &[Report]) -> Result<()> {
    let offsets = all(reports);
    if offsets.is_empty() {
        return Ok(());
    }
    let mut table = plain();
    table.set_header(HEAD);
    for offsets in &offsets {
        table.add_row(cells(offsets).map(Cell::new));
    }
    align(&mut table, 1);
    out(&table.to_string())?;
    let rows = causes(&offsets);
    if !rows.is_empty() {
        let mut table = plain();
        let policies = offsets.iter().map(|offsets| offsets.policy);
        table.set_header(["offset differs", "of"].into_iter().chain(policies));
        for row in rows {
            table.add_row(row);
        }
        align(&mut table, 2);
        out(&table.to_string())?;
    }
    for line in notes(&offsets) {
        out(&format!("{name}: {line}"))?;
    }
    for offsets in offsets {
        for difference in &offsets.divergences {
            out(&format!("{name}: percpu {}: {}", offsets.policy, shown(difference)))?;
        }
    }
    Ok(())
}

/// Returns the section for a page; empty if there are no offsets.
pub(super) fn markdown(reports: &[Report]) -> String {
    let offsets = all(reports);
    if offsets.is_empty() {
        return String::new();
    }
    let row = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let line =
        |columns: usize, left: usize| format!("|{}{}\n", "---|".repeat(left), "---:|".repeat(columns - left));
    let mut page = "\n## Offsets in percpu chunks\n\n".to_string();
    for line in notes(&offsets) {
        let _ = writeln!(page, "- {line}");
    }
    page.push('\n');
    page += &row(&HEAD.map(|head| head.replace('\n', " ")));
    page += &line(HEAD.len(), 1);
    for offsets in &offsets {
        page += &row(&cells(offsets));
    }
    let rows = causes(&offsets);
    if !rows.is_empty() {
        let policies = offsets.iter().map(|offsets| offsets.policy.to_string());
        let head = ["offset differs".to_string(), "of".to_string()];
        page.push('\n');
        page += &row(&head.into_iter().chain(policies).collect::<Vec<_>>());
        page += &line(2 + offsets.len(), 2);
        for cells in rows {
            page += &row(&cells);
        }
    }
    for offsets in offsets.iter().filter(|offsets| !offsets.divergences.is_empty()) {
        let _ = write!(page, "\nThe first of percpu `{}`:\n\n", offsets.policy);
        for difference in &offsets.divergences {
            let _ = writeln!(page, "- {}", shown(difference));
        }
    }
    page
}
