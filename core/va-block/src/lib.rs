//! Small, short-lived mappings, cut from blocks of address space that belong to a CPU (`vm_map_ram`).
//!
//! The space allocates whole blocks. The pages of a mapping are cut from a block without a call of the space and
//! without a record, and are freed by address and count. [`Blocks`] serves all CPUs, and a [`Lane`] one of them, or a
//! thread. The caller maps pages at the addresses, and unmaps them before it frees the addresses.
//!
//! | module | what it is |
//! |---|---|
//! | [`Blocks`] | alloc, free, unmap_aliases, shrink; the life of a block and the lock order |
//! | [`EarlyBlocks`] | a place for blocks, for a static |
//! | [`config`] | the policies: Linux up to 6.3, Linux 6.4 to 6.12, ours |
//! | `block`, `strip` | how one block is divided (VB1), and freed without a lock |
//! | `lookup` | from an address to its block, hashed over possible CPUs or with one lock |
//! | `queue`, `ring` | the open blocks of a CPU, by the pages that they have in one piece |

#![no_std]
#![forbid(unsafe_code)]
#![warn(missing_debug_implementations, clippy::must_use_candidate, clippy::return_self_not_must_use)]

#[cfg(test)]
extern crate std;

mod block;
mod blocks;
pub mod config;
mod early;
mod error;
mod link;
mod lookup;
#[cfg(all(test, loom))]
mod loom;
mod queue;
mod ring;
mod strip;
#[cfg(test)]
#[cfg(not(loom))]
mod testing;

pub use blocks::{Blocks, CPUS_MAX, Collected, Lane, Stats};
pub use config::Config;
pub use early::EarlyBlocks;
pub use error::{BlockError, UnmapError};

// The crates of the types in this interface: one dependency is enough.
pub use va_base;
pub use va_space;

/// The example of the README compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
