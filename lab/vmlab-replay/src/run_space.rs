//! Replays one trace on one space, and returns the result as a row.

pub use crate::policy::Policy;

use crate::JSON_VERSION;
use crate::engine::{Columns, Tally};
use crate::policy::Linux616;
use crate::space::{Reasons, SpaceReplay};
use anyhow::{Context, Result};
use serde::Serialize;
use va_space::config::{Config, Linux69, OneLock52, Standard};
use va_space::{NODES_LIMIT, Stats};
use vmlab_trace::Trace;
use vmlab_trace::vmallocinfo::Table;

/// A row of the table. Its fields, in this order, are the object that `--json` prints.
#[derive(Clone, Debug, Serialize)]
pub struct SpaceRow {
    /// The version of the object.
    pub version: u32,
    /// Name of the trace.
    pub trace: String,
    /// Name of the policy.
    pub policy: &'static str,
    /// Nodes that the space had.
    pub nodes: u32,
    /// Counted events that change the address space.
    pub events: u64,
    /// Allocations, failed attempts included: the sum of the next five.
    pub allocs: u64,
    /// The answers.
    #[serde(flatten)]
    pub columns: Columns,
    /// Facts that events do not report and that were inferred.
    pub inferred: u64,
    /// The reasons why answers differ; their sum is the number of differences.
    pub why: Reasons,
    /// Passes of the purge.
    pub purges: u64,
    /// Flushes.
    pub flushes: u64,
    /// Areas in pools at the end.
    pub pooled: u64,
    /// Holes at the end.
    pub holes: u64,
}

/// The data of a row.
#[derive(Debug)]
pub struct SpaceOutcome {
    /// The row.
    pub row: SpaceRow,
    /// The full comparison of the addresses.
    pub tally: Tally,
}

/// Replays a fuzzer's trace under every policy, and checks that the counts add up (RP1, RP2).
///
/// # Panics
/// If they do not.
pub fn fuzz(trace: &Trace, table: &Table) {
    for policy in Policy::ALL {
        let Ok(SpaceOutcome { row, .. }) = run("fuzz", trace, table, policy, 3) else { continue };
        if let Err(error) = row.columns.check(row.allocs) {
            panic!("{error}");
        }
        assert_eq!(row.why.sum(), row.columns.differ(), "RP2");
    }
}

/// The number of nodes of a machine with the CPUs of the trace.
pub fn nodes_of(trace: &Trace) -> u32 {
    trace.cpu_count().min(NODES_LIMIT)
}

/// Replays `trace` on a space of `nodes` nodes, and compares.
///
/// # Errors
/// If the space cannot be created, or a check of its invariants fails.
pub fn run(name: &str, trace: &Trace, table: &Table, policy: Policy, nodes: u32) -> Result<SpaceOutcome> {
    match policy {
        Policy::Linux69 => run_on::<Linux69>(name, trace, table, policy, nodes),
        Policy::Linux616 => run_on::<Linux616>(name, trace, table, policy, nodes),
        Policy::OneLock52 => run_on::<OneLock52>(name, trace, table, policy, nodes),
        Policy::Standard => run_on::<Standard>(name, trace, table, policy, nodes),
    }
    .with_context(|| format!("{name} on {nodes} nodes, policy {}", policy.name()))
}

fn run_on<C: Config>(
    name: &str,
    trace: &Trace,
    table: &Table,
    policy: Policy,
    nodes: u32,
) -> Result<SpaceOutcome> {
    let mut replay = SpaceReplay::<C>::new(trace, table, nodes)?;
    replay.run(trace);
    replay.space.validate().context("the space is broken")?;
    let Stats { pooled_areas, holes, .. } = replay.space.stats();
    let (purges, flushes) = (replay.purges, replay.flushes);
    let tally = replay.tally;
    let row = SpaceRow {
        version: JSON_VERSION,
        trace: name.to_string(),
        policy: policy.name(),
        nodes: replay.space.nodes(),
        events: trace.counted_events(),
        allocs: trace.counted_allocs(),
        columns: tally.columns,
        inferred: tally.inferred,
        why: replay.reasons,
        purges,
        flushes,
        pooled: pooled_areas,
        holes,
    };
    Ok(SpaceOutcome { row, tally })
}
