//! The reason why the kernel's answer and a policy's differ.
//!
//! # Theory
//! Two ledgers follow the trace. The kernel's ledger has nodes and pools by Linux's rules, as far as events show them,
//! and is always corrected by the kernel's addresses. The other is that of the policy. If the addresses differ, both
//! are looked up in both ledgers, and Linux's policy computes an address from the kernel's ledger. If that is the
//! kernel's address, the difference is one of policies. If not, its cause is not in events and tables. The first rule
//! that holds counts.
//!
//! # Invariants
//! - **DF1 one-cause** every answer that differs has exactly one cause; if no rule applies, it is counted as
//!   unexplained.

use serde::Serialize;

/// A cause. The order is that of the tables.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// The kernel took the area from the pool of its CPU's node; the policy has no such pool, or another content.
    KernelPool,
    /// The kernel left a lower hole, which is in a pool there.
    LeftPooled,
    /// The kernel left a lower hole, which is still lazy there, by the events.
    LeftLazy,
    /// The policy took it from a pool of its own, which the kernel does not have.
    OwnPool,
    /// Both took it from the pool of the node, in different orders.
    OwnOrder,
    /// Linux searches for size + align - 1 bytes; the lower hole is shorter, but would fit.
    AlignRule,
    /// The policy's search finds another hole than Linux's.
    OwnSearch,
    /// Exactly one side failed.
    Failed,
    /// An earlier difference allocated the range to another area on one side; never while resynchronising.
    Earlier,
    /// From the pool of the node, but not the area that Linux would take next: the pool differs from that of the
    /// events.
    PoolOrder,
    /// The kernel took it from the pool of another node than that of the event's CPU: the thread moved in between.
    OtherNode,
    /// The kernel took it from a pool of an unknown node: the area was allocated before the trace, or was missing from
    /// the pool where it was expected.
    OwnerUnknown,
    /// The pool held an area by the events, but the kernel searched: the pool was emptied without an event, or the
    /// thread moved.
    PoolMissed,
    /// The kernel took an area that is lazy by the events: it had been purged, and that event comes later or not at
    /// all.
    PurgeUnseen,
    /// The kernel took an area that is busy by the events: it was freed on a path without events.
    FreeUnseen,
    /// Another CPU allocated the policy's address in one of the next events: the two are recorded in the other order.
    EventOrder,
    /// The range overlaps an area that no table lists and that is freed later.
    AreaUnknown,
    /// An aligned request, and a hole shorter than size + align - 1. Linux's search takes such a hole only if it visits
    /// it, which depends on the shape of its tree. No fact that is supplied proves it.
    TreeShape,
    /// None of these.
    Unexplained,
}

/// All of them.
pub const CAUSES: [Cause; 19] = [
    Cause::KernelPool,
    Cause::LeftPooled,
    Cause::LeftLazy,
    Cause::OwnPool,
    Cause::OwnOrder,
    Cause::AlignRule,
    Cause::OwnSearch,
    Cause::Failed,
    Cause::Earlier,
    Cause::PoolOrder,
    Cause::OtherNode,
    Cause::OwnerUnknown,
    Cause::PoolMissed,
    Cause::PurgeUnseen,
    Cause::FreeUnseen,
    Cause::EventOrder,
    Cause::AreaUnknown,
    Cause::TreeShape,
    Cause::Unexplained,
];

impl Cause {
    /// Returns its text, as the head of a row.
    pub fn text(self) -> &'static str {
        match self {
            Self::KernelPool => "kernel took it from its node's pool",
            Self::LeftPooled => "kernel left a lower hole: pooled there",
            Self::LeftLazy => "kernel left a lower hole: still lazy there",
            Self::OwnPool => "policy took it from a pool that the kernel does not have",
            Self::OwnOrder => "both from the pool, in different orders",
            Self::OwnSearch => "the policy's search finds another hole",
            Self::AlignRule => "alignment rule: Linux looks for size + align - 1",
            Self::Failed => "one side found nothing",
            Self::Earlier => "from an earlier difference",
            Self::PoolOrder => "pool of the node, but not the area that Linux takes next",
            Self::OtherNode => "pool of another node than that of the event's CPU",
            Self::OwnerUnknown => "pool of a node that is not known",
            Self::PoolMissed => "pool held one, and the kernel searched",
            Self::PurgeUnseen => "lazy by the events: purged, and not seen yet",
            Self::FreeUnseen => "busy by the events: freed without one",
            Self::EventOrder => "events of two CPUs stand in the other order",
            Self::AreaUnknown => "an area that is in no table is in the way",
            Self::TreeShape => "aligned, and which hole is met depends on the tree's shape",
            Self::Unexplained => "unexplained",
        }
    }

    /// Returns true for a difference of policy, which would occur in any recording. Otherwise the recording lacks
    /// information, or [`Cause::TreeShape`] and [`Cause::Unexplained`] are open.
    pub fn is_policy(self) -> bool {
        match self {
            Self::KernelPool
            | Self::LeftPooled
            | Self::LeftLazy
            | Self::OwnPool
            | Self::OwnOrder
            | Self::AlignRule
            | Self::OwnSearch
            | Self::Failed
            | Self::Earlier => true,
            Self::PoolOrder
            | Self::OtherNode
            | Self::OwnerUnknown
            | Self::PoolMissed
            | Self::PurgeUnseen
            | Self::FreeUnseen
            | Self::EventOrder
            | Self::AreaUnknown
            | Self::TreeShape
            | Self::Unexplained => false,
        }
    }

    /// Returns true if the cause is a fact that the recording lacks: the kernel's ledger with that fact gives the kernel's
    /// address.
    pub fn is_unknowable(self) -> bool {
        !self.is_policy() && !matches!(self, Self::TreeShape | Self::Unexplained)
    }
}
