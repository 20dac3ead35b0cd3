//! A trace followed with the kernel's addresses: which areas are busy, lazy and in pools after each event.

use super::recording::{Area, Areas as Listed, Recording};
use super::{Diff, Options};
use crate::engine::{Columns, replay, steps};
use crate::policy::{Linux616, Policy};
use anyhow::Result;
use va_sim::areas::SpaceAreas;
use va_sim::space_model::{Lazy, Owner};
use va_space::config::{Config, Linux69, OneLock52, Standard};
use vmlab_trace::Trace;
use vmlab_trace::vmallocinfo::Table;

/// The areas of a ledger: the owners of busy ones, the nodes of lazy ones, and those of pooled ones, if known.
pub type Areas = SpaceAreas<Owner, Lazy, Option<u32>>;

/// A trace that was followed to its end.
#[derive(Clone, Debug)]
pub struct Followed {
    /// The answers of the policy.
    pub columns: Columns,
    /// The areas that are not free at the end.
    pub areas: Areas,
}

/// Follows a trace: the policy answers, and its ledger gets the kernel's address after each difference. So busy areas
/// are the kernel's, and the policy decides which freed ones are in pools. After each event, calls `watch` with its
/// index and the areas.
///
/// # Errors
/// If a ledger cannot be created.
pub fn follow(
    trace: &Trace,
    table: &Table,
    policy: Policy,
    nodes: u32,
    watch: impl FnMut(usize, &Areas),
) -> Result<Followed> {
    let area = |listed: &vmlab_trace::vmallocinfo::Listed| Area {
        start: listed.start,
        size: listed.size,
        lazy: listed.lazy,
    };
    let recording = Recording {
        steps: steps(trace).map(|(_, step)| step).collect(),
        end: Some(Listed { areas: table.listed().map(area).collect(), ..Listed::default() }),
        ..Recording::default()
    };
    let options = Options { resync: true, cpus: nodes, differences_max: 0, kernel: Policy::of(trace) };
    match policy {
        Policy::Linux69 => follow_on::<Linux69, Linux69>(trace, &recording, options, watch),
        Policy::Linux616 => follow_on::<Linux616, Linux616>(trace, &recording, options, watch),
        Policy::OneLock52 => follow_on::<OneLock52, OneLock52>(trace, &recording, options, watch),
        Policy::Standard => follow_on::<Standard, Linux69>(trace, &recording, options, watch),
    }
}

fn follow_on<C: Config, K: Config>(
    trace: &Trace,
    recording: &Recording,
    options: Options,
    mut watch: impl FnMut(usize, &Areas),
) -> Result<Followed> {
    let mut diff = Diff::<C, K>::new(recording, options)?;
    diff.stand_on(&trace.standing, 0);
    let mut event = 0;
    replay(&mut diff, recording.steps.iter().copied().enumerate(), |_, diff| {
        watch(event, diff.policy.areas());
        event += 1;
    });
    Ok(Followed { columns: diff.report.columns, areas: diff.policy.areas().clone() })
}
