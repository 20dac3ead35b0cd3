//! Small, short-lived mappings, cut from blocks of address space that belong to a CPU (`vm_map_ram`).
//!
//! A space is asked for a whole block, now and then. The pages of a mapping are cut from it without
//! the space, without a record, and freed by address and count. [`Blocks`] does that for all CPUs,
//! [`Lane`] for the only caller of its lane, without a lock. Addresses are numbers: a caller that
//! maps something there unmaps it before it frees the pages.
//!
//! | module | what it is |
//! |---|---|
//! | [`Blocks`] | alloc, free, unmap_aliases, shrink; the life of a block and the lock order |
//! | [`EarlyBlocks`] | a place for blocks, for a static |
//! | [`config`] | the policies: Linux up to 6.3, Linux 6.4 to 6.12, ours |
//! | `block`, `strip` | how one block is divided (VB1), and given back without a lock |
//! | `lookup` | from an address to its block, hashed over possible CPUs or with one lock |
//! | `queue`, `ring` | the open blocks of a CPU, by the pages that they have in one piece |

#![no_std]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate std;

mod block;
mod blocks;
pub mod config;
mod early;
mod error;
mod lookup;
#[cfg(all(test, loom))]
mod loom;
mod queue;
mod ring;
mod strip;
#[cfg(all(test, not(loom)))]
mod testing;

pub use blocks::{Blocks, CPUS_MAX, Collected, Lane, Stats};
pub use config::Config;
pub use early::EarlyBlocks;
pub use error::{BlockError, UnmapError};

/// The example of the README compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
