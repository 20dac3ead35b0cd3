//! Prints the results on a terminal.

pub(super) use crate::terminal::plain;

use super::out;
use anyhow::Result;
use comfy_table::{Cell, CellAlignment, Color, ColumnConstraint, ContentArrangement, Table};
use vmlab_base::text::{bytes, counted};
use vmlab_replay::run::Outcome;
use vmlab_replay::{Columns as Answers, Tally};

/// Number of differences that are shown for each index on each trace.
const DIFFERENCES_SHOWN: usize = 4;

/// The characters of a name that a table of 80 columns has room for.
const NAME: usize = 16;

/// When a column is shown.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Shown {
    Always,
    /// With `--wide`: the other columns fit a terminal of 80.
    Wide,
}

/// A table of `N` columns, some of which only `--wide` shows. The first `texts` are texts, the others numbers.
pub(super) struct Columns<const N: usize> {
    table: Table,
    texts: usize,
    wide: bool,
    /// True for each column that is shown.
    shown: [bool; N],
}

impl<const N: usize> Columns<N> {
    pub(super) fn new(wide: bool, texts: usize, head: [(&str, Shown); N]) -> Self {
        let shown = head.map(|(_, when)| wide || when == Shown::Always);
        let mut table = plain();
        if wide {
            table.set_content_arrangement(ContentArrangement::Disabled);
        }
        table.set_header(head.iter().zip(&shown).filter(|(_, shown)| **shown).map(|((name, _), _)| *name));
        Self { table, texts, wide, shown }
    }

    /// Adds a row, with a cell for each column of the head. The first is a name.
    pub(super) fn row(&mut self, mut cells: [Cell; N]) {
        if let Some(name) = cells.first_mut().filter(|_| !self.wide) {
            *name = Cell::new(in_lines(&name.content()));
        }
        let shown = cells.into_iter().zip(&self.shown).filter_map(|(cell, shown)| shown.then_some(cell));
        self.table.add_row(shown);
    }

    pub(super) fn print(mut self) -> Result<()> {
        align(&mut self.table, self.texts);
        out(&self.table.to_string())
    }
}

/// Returns a name on one line, or on two, broken behind a hyphen, if a table of 80 columns has no room for it.
fn in_lines(name: &str) -> String {
    let half = |&(at, _): &(usize, &str)| at.max(name.len() - at);
    let broken = name.match_indices('-').map(|(at, hyphen)| (at + 1, hyphen)).min_by_key(half);
    match broken.filter(|_| name.chars().count() > NAME) {
        Some((at, _)) => format!("{}\n{}", &name[..at], &name[at..]),
        None => name.to_string(),
    }
}

/// Prints a row for each trace and index: green if every answer is the kernel's, yellow for differences.
pub(super) fn print(outcomes: &[Outcome], wide: bool) -> Result<()> {
    let mut table = Columns::new(
        wide,
        2,
        [
            ("trace", Shown::Always),
            ("index", Shown::Always),
            ("events", Shown::Wide),
            ("allocs", Shown::Always),
            ("equal", Shown::Always),
            ("lower", Shown::Always),
            ("higher", Shown::Always),
            ("failed\nboth", Shown::Wide),
            ("failed\nalone", Shown::Always),
            ("inferred", Shown::Wide),
            ("ns/op\nmedian", Shown::Always),
            ("ns/op\nmin", Shown::Wide),
            ("holes\nat end", Shown::Always),
            ("largest\nhole", Shown::Wide),
        ],
    );
    let mut last = "";
    for Outcome { row, .. } in outcomes {
        let name = if row.trace == last { "" } else { &row.trace };
        last = &row.trace;
        let [equal, lower, higher, failed_both, failed_alone] = answers(row.allocs, &row.columns);
        table.row([
            Cell::new(name),
            Cell::new(&row.index),
            Cell::new(row.events),
            Cell::new(row.allocs),
            equal,
            lower,
            higher,
            failed_both,
            failed_alone,
            Cell::new(row.inferred),
            Cell::new(format!("{:.1}", row.ns_median)),
            Cell::new(format!("{:.1}", row.ns_min)),
            Cell::new(row.holes),
            Cell::new(bytes(row.largest_hole)),
        ]);
    }
    table.print()
}

/// Returns the cells of the answers: equal, lower, higher, failed on both sides, failed on one alone. The equal ones are
/// green if all are, and differences yellow.
pub(super) fn answers(allocs: u64, columns: &Answers) -> [Cell; 5] {
    let odd = |count: u64| if count > 0 { Cell::new(count).fg(Color::Yellow) } else { Cell::new(count) };
    let equal = Cell::new(columns.equal);
    [
        if columns.same() == allocs { equal.fg(Color::Green) } else { equal },
        odd(columns.lower),
        odd(columns.higher),
        Cell::new(columns.failed_both),
        odd(columns.failed_differs),
    ]
}

/// Narrows the columns. Those from `from` on are numbers: aligned to the right, and not wrapped.
pub(super) fn align(table: &mut Table, from: usize) {
    for column in table.column_iter_mut() {
        column.set_padding((0, 1));
    }
    for column in table.column_iter_mut().skip(from) {
        column.set_cell_alignment(CellAlignment::Right);
        column.set_constraint(ColumnConstraint::ContentWidth);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_name_keeps_its_hyphens() {
        assert_eq!(in_lines("test_vmalloc-mask127-smp1"), "test_vmalloc-\nmask127-smp1");
        assert_eq!(in_lines("fork-netns-smp4"), "fork-netns-smp4");
        assert_eq!(in_lines("a_name_without_one_of_them"), "a_name_without_one_of_them");
    }
}
