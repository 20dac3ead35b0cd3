//! Replays one trace on one index, and returns the result as a row.

use crate::index_kind::{IndexKind, Visitor};
use crate::replay::timing::{Budget, each_call, per_call};
use crate::replay::{Replay, Tally, default_window, kernel_extent};
use crate::trace::Trace;
use crate::trace::vmallocinfo::Table;
use anyhow::{Context, Result};
use serde::Serialize;
use va_base::{AllocError, VaRange};
use va_tree::FreeIndex;

/// A row of the table. Its fields, in this order, are the object that `--json` prints.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Name of the trace.
    pub trace: String,
    /// Name of the index.
    pub index: String,
    /// Events that change the address space.
    pub events: u64,
    /// Allocations, failed attempts included: the sum of the next five.
    pub allocs: u64,
    /// The address was the kernel's.
    pub equal: u64,
    /// The address was lower.
    pub lower: u64,
    /// The address was higher.
    pub higher: u64,
    /// Both failed.
    pub failed_both: u64,
    /// Exactly one failed.
    pub failed_differs: u64,
    /// Facts that events do not report and that were inferred: percpu chunks, frees and reuses on paths without events.
    pub inferred: u64,
    /// Nanoseconds for each call, median round.
    pub ns_median: f64,
    /// Nanoseconds for each call, fastest round.
    pub ns_min: f64,
    /// Holes at the end.
    pub holes: u64,
    /// Largest hole of the window at the end, in bytes.
    pub largest_hole: u64,
}

/// The data of a row.
pub struct Outcome {
    /// The row.
    pub row: Row,
    /// Rounds timed.
    pub rounds: u32,
    /// Nanoseconds of each call, if requested.
    pub latency: Vec<u32>,
    /// The full comparison of the addresses.
    pub tally: Tally,
}

/// The options of a run.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Rounds of timing.
    pub budget: Budget,
    /// True if each call is timed separately.
    pub latency: bool,
}

struct Run<'a> {
    name: &'a str,
    trace: &'a Trace,
    table: &'a Table,
    kind: IndexKind,
    window: VaRange,
    options: Options,
}

impl Visitor for Run<'_> {
    type Out = Result<Outcome>;

    fn visit<I: FreeIndex>(self, make: impl Fn() -> Result<I, AllocError>) -> Result<Outcome> {
        let mut replay = Replay::new(make()?, self.window, self.table);
        replay.run(self.trace);
        replay.index.validate().context("the index is broken")?;
        let time = per_call(&make, &replay.calls, self.options.budget)?;
        let latency = if self.options.latency { each_call(&make, &replay.calls)? } else { Vec::new() };
        let tally = replay.tally.clone();
        let row = Row {
            trace: self.name.to_string(),
            index: self.kind.name().to_string(),
            events: self.trace.events.len() as u64,
            allocs: self.trace.allocs(),
            equal: tally.equal,
            lower: tally.lower,
            higher: tally.higher,
            failed_both: tally.failed_both,
            failed_differs: tally.failed_differs,
            inferred: tally.inferred,
            ns_median: time.median,
            ns_min: time.min,
            holes: replay.index.hole_count(),
            largest_hole: replay.largest_in_window(),
        };
        Ok(Outcome { row, tally, rounds: time.rounds, latency })
    }
}

/// Replays `trace` on the index `kind`, compares and times it.
///
/// # Errors
/// If the index cannot be created, or a check of its invariants fails.
pub fn run(name: &str, trace: &Trace, table: &Table, kind: IndexKind, options: Options) -> Result<Outcome> {
    let window = default_window(trace);
    kind.visit(kernel_extent(), window, Run { name, trace, table, kind, window, options })
        .with_context(|| format!("{name} on {}", kind.name()))
}

/// Formats bytes for readers: `12.5 PiB`.
pub fn bytes(count: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut unit = 0;
    let mut scaled = count as f64;
    while scaled >= 1024.0 && unit + 1 < units.len() {
        scaled /= 1024.0;
        unit += 1;
    }
    let text = if scaled >= 100.0 { format!("{scaled:.0}") } else { format!("{scaled:.1}") };
    format!("{} {}", text.strip_suffix(".0").unwrap_or(&text), units[unit])
}

/// Formats a count with its noun: `1 page`, `67,187 pages`.
pub fn counted(count: u64, noun: &str) -> String {
    format!("{} {noun}{}", grouped(count), if count == 1 { "" } else { "s" })
}

/// Formats a number with its digits in groups of three: `67,187`.
pub fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{bytes, counted, grouped};

    #[test]
    fn bytes_read_well() {
        let given = [0, 4096, 5 << 19, (2 << 20) + 4096, 150 << 20, u64::MAX];
        assert_eq!(given.map(bytes), ["0 B", "4 KiB", "2.5 MiB", "2 MiB", "150 MiB", "16 EiB"]);
    }

    #[test]
    fn one_is_singular_and_all_else_plural() {
        let given = [0, 1, 2, 1000].map(|count| counted(count, "answer"));
        assert_eq!(given, ["0 answers", "1 answer", "2 answers", "1,000 answers"]);
    }

    #[test]
    fn digits_come_in_threes() {
        let given = [0, 999, 1000, 67_187, u64::MAX];
        assert_eq!(given.map(grouped), ["0", "999", "1,000", "67,187", "18,446,744,073,709,551,615"]);
    }
}
