//! Which ranges of an address space are free: the index of holes.
//!
//! One trait, [`FreeIndex`], and two structures behind it that give the same answers (with one stated exception) at
//! different cost. Neither reads memory, locks, allocates or knows a machine: an address is a number.
//!
//! | structure | what it is | lowest fit | for |
//! |---|---|---|---|
//! | [`BTreeIndex`] | B+tree of holes keyed by their end, longest hole (and longest *aligned* hole) per child | exact, O(log n) for every size, window and alignment to 1 GiB | everything; the default |
//! | [`RbIndex`] with [`Exact`](rb::Exact) | red-black tree with `subtree_max_size` | exact; O(log n) up to page alignment | the twin of the above |
//! | [`RbIndex`] with [`Linux`](rb::Linux) | the same tree | what Linux 6.12 answers, address for address | comparing with a kernel |
//!
//! Start at [`FreeIndex`]; the theory of each structure heads its module.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

pub mod btree;
mod congruent;
mod free_index;
mod ledger;
pub mod rb;
mod slab;
mod supply;

pub use btree::{BTree, BTreeIndex, BTreeIndex32};
pub use congruent::Congruent;
pub use free_index::{Fit, FreeIndex, IndexMemory};
pub use rb::RbIndex;
pub use supply::{InPlace, PieceWanted, Supplied};

/// Whether each operation of an index walks all of its invariants (feature `validate`): tests of many areas take fewer then.
pub const WALKS_INVARIANTS: bool = cfg!(feature = "validate");

/// The example of the README compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
