//! Replays one trace on one index, and returns the result as a row.

use crate::JSON_VERSION;
use crate::engine::{Columns, Tally, default_window};
use crate::index::Replay;
use crate::index_kind::{IndexKind, Visitor};
use crate::timing::{Budget, each_call, per_call};
use anyhow::{Context, Result};
use serde::Serialize;
use va_base::{AllocError, VaRange};
use va_tree::FreeIndex;
use vmlab_machine::kernel_extent;
use vmlab_trace::Trace;
use vmlab_trace::vmallocinfo::Table;

/// A row of the table. Its fields, in this order, are the object that `--json` prints.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The version of the object.
    pub version: u32,
    /// Name of the trace.
    pub trace: String,
    /// Name of the index.
    pub index: String,
    /// Counted events that change the address space.
    pub events: u64,
    /// Allocations, failed attempts included: the sum of the next five.
    pub allocs: u64,
    /// The answers.
    #[serde(flatten)]
    pub columns: Columns,
    /// Facts that events do not report and that were inferred: percpu chunks, frees and reuses on paths without events.
    pub inferred: u64,
    /// Nanoseconds for each call of the whole replay, median round.
    pub ns_median: f64,
    /// Nanoseconds for each call, fastest round.
    pub ns_min: f64,
    /// Holes at the end.
    pub holes: u64,
    /// Largest hole of the window at the end, in bytes.
    pub largest_hole: u64,
}

/// The data of a row.
#[derive(Debug)]
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
            version: JSON_VERSION,
            trace: self.name.to_string(),
            index: self.kind.name().to_string(),
            events: self.trace.counted_events(),
            allocs: self.trace.counted_allocs(),
            columns: tally.columns,
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
