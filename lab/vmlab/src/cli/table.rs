//! Prints the results on a terminal.

pub(super) use crate::terminal::plain;

use super::out;
use anyhow::Result;
use comfy_table::{Cell, CellAlignment, Color, Table};
use vmlab_base::text::{bytes, counted};
use vmlab_replay::Tally;
use vmlab_replay::run::Outcome;

/// Number of differences that are shown for each index on each trace.
const DIFFERENCES_SHOWN: usize = 4;

/// Prints a row for each trace and index: green if every answer is the kernel's, yellow for differences.
pub(super) fn print(outcomes: &[Outcome]) -> Result<()> {
    let mut table = plain();
    table.set_header([
        "trace",
        "index",
        "events",
        "allocs",
        "equal",
        "lower",
        "higher",
        "failed\nboth",
        "failed\ndiffers",
        "inferred",
        "ns/op\nmedian",
        "ns/op\nmin",
        "holes\nat end",
        "largest\nhole",
    ]);
    let mut last = "";
    for Outcome { row, .. } in outcomes {
        let name = if row.trace == last { "" } else { &row.trace };
        last = &row.trace;
        let good = |count: u64| {
            let all = row.columns.same() == row.allocs;
            if all { Cell::new(count).fg(Color::Green) } else { Cell::new(count) }
        };
        let odd = |count: u64| if count > 0 { Cell::new(count).fg(Color::Yellow) } else { Cell::new(count) };
        table.add_row([
            Cell::new(name),
            Cell::new(&row.index),
            Cell::new(row.events),
            Cell::new(row.allocs),
            good(row.columns.equal),
            odd(row.columns.lower),
            odd(row.columns.higher),
            Cell::new(row.columns.failed_both),
            odd(row.columns.failed_differs),
            Cell::new(row.inferred),
            Cell::new(format!("{:.1}", row.ns_median)),
            Cell::new(format!("{:.1}", row.ns_min)),
            Cell::new(row.holes),
            Cell::new(bytes(row.largest_hole)),
        ]);
    }
    align(&mut table, 2);
    out(&table.to_string())
}

/// Narrows the columns, and aligns those from `from` on to the right.
pub(super) fn align(table: &mut Table, from: usize) {
    for column in table.column_iter_mut() {
        column.set_padding((0, 1));
    }
    for column in table.column_iter_mut().skip(from) {
        column.set_cell_alignment(CellAlignment::Right);
    }
}

/// Prints the first answers of each index that differ from the kernel's.
pub(super) fn print_differences(outcomes: &[Outcome]) -> Result<()> {
    outcomes.iter().try_for_each(|Outcome { row, tally, .. }| differences(&row.trace, &row.index, tally))
}

/// Prints the first differences of one replay, on the index or policy `name`.
pub(super) fn differences(trace: &str, name: &str, tally: &Tally) -> Result<()> {
    let address = |at: Option<u64>| at.map_or("nothing".to_string(), |at| format!("{at:#x}"));
    let count = tally.columns.differ();
    if count > 0 {
        out(&format!(
            "{trace} on {name}: {} from the kernel's, the first:",
            if count == 1 { "1 answer differs".into() } else { counted(count, "answer") + " differ" }
        ))?;
        for differs in tally.first_differences.iter().take(DIFFERENCES_SHOWN) {
            let (number, size, align) = (differs.number, differs.size, differs.align);
            let (kernel, ours) = (address(differs.kernel), address(differs.ours));
            let line = differs.line;
            out(&format!(
                "  allocation {number}, line {line}: size {size} align {align}: kernel {kernel}, {name} {ours}"
            ))?;
        }
    }
    Ok(())
}
