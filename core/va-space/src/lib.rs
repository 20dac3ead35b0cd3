//! The allocator of a virtual address space: it decides which caller holds which range, and until when.
//!
//! [`VmapSpace`] allocates areas, frees them, and allocates their addresses again only after a flush. It uses the index
//! of holes (`va-tree`) and accesses a machine only through the contract of [`va_base::Machine`]. It reads no memory
//! and allocates none: an address is a number.
//!
//! | module | what it is |
//! |---|---|
//! | [`VmapSpace`] | alloc, free, find, purge; the life of an area and the lock order |
//! | [`config`] | the policies: Linux 5.2, Linux 6.9, ours |
//! | [`pool`], [`decay`] | flushed areas by exact size, and the decay of pools |
//! | [`lazy`], [`node`] | the pages that may wait for a flush, and the node in which they wait |
//! | [`lookup`] | the search for a busy area: by the page map, or by a tree in each node |
//! | [`EarlySpace`] | storage for a space, for a static; a call that comes too early fails |
//! | [`Magazine`] | a cache of areas that its owner passes by `&mut`, and that any thread can drain ([`Drained`]) |
//! | `map` | the page map: the area that starts at a page, read without a lock |
//! | `list`, `flush_batch` | lists without records, and the types that exclude unflushed ranges from use (SP2) |

#![no_std]
#![forbid(unsafe_code)]
#![warn(missing_debug_implementations, clippy::must_use_candidate, clippy::return_self_not_must_use)]

#[cfg(test)]
extern crate std;

mod area;
mod budget;
pub mod config;
pub mod decay;
mod dirty;
mod early;
mod error;
mod flush_batch;
pub mod lazy;
mod list;
pub mod lookup;
#[cfg(all(test, loom))]
mod loom;
mod map;
pub mod node;
mod node_table;
pub mod pool;
mod space;
#[cfg(test)]
mod testing;

pub use area::{Area, AreaView, DetachedArea};
pub use config::Config;
pub use early::EarlySpace;
pub use error::{ReleaseError, SpaceError};
pub use map::State;
pub use node_table::NODES_LIMIT;
pub use space::{
    Areas, Drained, Magazine, OwnedArea, Purge, Purged, Release, ReshapeError, Stats, VmapSpace,
};

// The crates of the types in this interface: one dependency is enough.
pub use va_base;
pub use va_tree;

/// The example of the README compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
