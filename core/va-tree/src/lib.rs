//! The free ranges of an address space: the index of holes.
//!
//! One trait, [`FreeIndex`], has three structures behind it. They return the same addresses (with one stated exception)
//! at different cost. Neither reads memory, locks, allocates or knows a machine: an address is a number.
//!
//! | structure | description | lowest fit | use |
//! |---|---|---|---|
//! | [`BTreeIndex`] | B+tree of holes keyed by their end, longest hole (and longest *aligned* hole) per child | exact, O(log n) for every size, window and alignment to 1 GiB | everything; the default |
//! | [`ByteIndex`] | the same tree, whose unit is one byte instead of a page | the same, with units instead of pages | bytes, handles, and all else that is numbered up to `2^64 - 2` |
//! | [`RbIndex`] with [`Exact`](rb::Exact) | red-black tree with `subtree_max_size` | exact; O(log n) up to page alignment | the reference for the B+tree |
//! | [`RbIndex`] with [`Linux`](rb::Linux) | the same tree | Linux 6.12's, address for address | comparison with a kernel |
//! | [`FlatIndex`] | holes in a sorted array inside the value | exact, O(holes) | a few dozen holes; no memory but its own |
//!
//! Two wrap an index. [`BestFitIndex`] has the holes in order of size, too. [`TrackedIndex`] has the areas beside the
//! holes, for callers that free by address or any part.
//!
//! Where code or values must be small, take [`FlatIndex`] (about 3 KiB of code at `opt-level = "s"`), or [`RbIndex`]
//! with the feature `small` (11 KiB). [`BTreeIndex`] takes 25 KiB with that feature, and 34 without.
//!
//! Start at [`FreeIndex`]; the head of each module has the theory of its structure.
#![no_std]
#![forbid(unsafe_code)]
#![warn(missing_debug_implementations, clippy::must_use_candidate, clippy::return_self_not_must_use)]

#[cfg(test)]
extern crate std;

mod best_fit;
pub mod btree;
#[cfg(feature = "certify")]
pub mod certify;
mod flat;
mod free_index;
mod ledger;
pub mod rb;
mod slab;
mod supply;
mod tracked;
mod unit;

pub use best_fit::{BestFitIndex, BestFitSupply};
pub use btree::{BTree, BTreeIndex, BTreeIndex32, ByteIndex};
pub use flat::FlatIndex;
pub use free_index::{Congruent, Fit, FreeIndex, IndexMemory};
pub use rb::RbIndex;
pub use supply::{InPlace, PieceWanted, Supplied};
pub use tracked::{TrackedError, TrackedIndex};
pub use unit::Unit;

/// True if operations of an index walk all of its invariants (feature `validate`): tests of many areas take fewer
/// then.
pub const WALKS_INVARIANTS: bool = cfg!(feature = "validate");

// The crates of the types in this interface: one dependency is enough.
pub use va_base;

/// The example of the README compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
