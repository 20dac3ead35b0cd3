//! The report of a comparison.

use super::cause::Cause;
use super::offsets::Offsets;
use crate::engine::Columns;
use serde::{Serialize, Serializer};
use std::collections::BTreeMap;
use vmlab_trace::jsonl::Address;

/// The version of the objects that `--json` prints. In version 1 addresses were numbers, which many readers round.
pub const VERSION: u32 = 2;

/// Writes an address as hexadecimal text.
pub(super) fn hex<S: Serializer>(at: &u64, to: S) -> Result<S::Ok, S::Error> {
    Address(*at).serialize(to)
}

#[expect(clippy::ref_option, reason = "serde passes a reference to the field")]
fn hex_option<S: Serializer>(at: &Option<u64>, to: S) -> Result<S::Ok, S::Error> {
    at.map(Address).serialize(to)
}

fn hex_pair<S: Serializer>(&(from, until): &(u64, u64), to: S) -> Result<S::Ok, S::Error> {
    (Address(from), Address(until)).serialize(to)
}

/// One answer that differs. Its fields, in this order, are the object that `--json` prints.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Divergence {
    /// Number of the allocation, from 1.
    pub number: u64,
    /// Line of the recording.
    pub line: u64,
    /// Time of the event, in nanoseconds of the trace's clock.
    pub ns: u64,
    /// CPU of the event.
    pub cpu: u16,
    /// Requested bytes.
    pub size: u64,
    /// Requested alignment.
    pub align: u64,
    /// The window: first address, and the one after its last.
    #[serde(serialize_with = "hex_pair")]
    pub window: (u64, u64),
    /// The kernel's answer.
    #[serde(serialize_with = "hex_option")]
    pub kernel: Option<u64>,
    /// The policy's answer.
    #[serde(serialize_with = "hex_option")]
    pub policy: Option<u64>,
    /// The reason.
    pub cause: Cause,
    /// The reason as a sentence, with the numbers.
    pub why: String,
}

/// The facts that were known at the beginning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Known {
    /// True if there was a table before; without one the space begins empty.
    pub table: bool,
    /// Busy areas of the table.
    pub busy: u64,
    /// Lazy areas of the table.
    pub lazy: u64,
    /// Lazy areas whose node follows from the order of the lines.
    pub lazy_with_node: u64,
    /// Lines that could not be used: overlapping, or not understood.
    pub unusable: u64,
    /// True if a mark records that the pools were empty.
    pub pools: bool,
}

/// The agreement of the kernel's ledger with the table after.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct EndCheck {
    /// Areas of the table.
    pub areas: u64,
    /// Areas that the ledger also has, with that size and state.
    pub agree: u64,
    /// Areas in the ledger that the table does not have.
    #[serde(rename = "only_in_books")]
    pub only_in_ledger: u64,
}

/// The outcome.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// Name of the policy.
    pub policy: &'static str,
    /// Nodes that it had.
    pub nodes: u32,
    /// True if its ledger was corrected after each difference.
    pub resync: bool,
    /// Allocations compared.
    pub allocs: u64,
    /// The answers; their sum is `allocs`.
    #[serde(flatten)]
    pub columns: Columns,
    /// Equal answers that came from a pool.
    pub equal_from_pool: u64,
    /// Events whose numbers no allocator accepts; allocations among them count as failed on both sides, or on one.
    pub malformed: u64,
    /// True if there were too many differences to look for the causes of all: those of the later ones may be others.
    pub causes_incomplete: bool,
    /// Frees of areas that the ledger does not have.
    pub frees_unknown: u64,
    /// Purges that freed areas, and the number of these areas by the events and by the ledger.
    pub purges: u64,
    /// See `purges`.
    pub purged: u64,
    /// See `purges`.
    #[serde(rename = "purged_books")]
    pub purged_ledger: u64,
    /// Purges that begin before their events: at the free that the count of their areas shows.
    pub purges_begun: u64,
    /// Percpu chunks, and those whose base the top-down search finds.
    pub chunks: u64,
    /// See `chunks`.
    pub chunks_equal: u64,
    /// The comparison of offsets in percpu chunks, if the recording has such events and the policy a percpu one.
    pub offsets: Option<Offsets>,
    /// The facts that were known at the beginning.
    pub known: Known,
    /// The agreement with the table after, if there is one.
    pub end: Option<EndCheck>,
    /// Number of differences of each cause; their sum is the number of differences.
    pub causes: BTreeMap<Cause, u64>,
    /// The first differences.
    pub divergences: Vec<Divergence>,
}

impl Report {
    /// Returns the number of answers that differ for a reason that no recording can show.
    pub fn unknowable(&self) -> u64 {
        self.causes.iter().filter(|(cause, _)| cause.is_unknowable()).map(|(_, count)| count).sum()
    }
}
