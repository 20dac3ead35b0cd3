//! The allocator of a virtual address space: which caller holds which range, and until when.
//!
//! [`VmapSpace`] allocates areas, frees them, and allocates their addresses again only after a
//! flush. It stands on the index of holes (`va-tree`) and knows a machine by the contract of
//! [`va_base::Machine`] alone. It reads no memory and allocates none: an address is a number.
//!
//! | module | what it is |
//! |---|---|
//! | [`VmapSpace`] | alloc, free, find, purge; the life of an area and the lock order |
//! | [`config`] | the policies: Linux 5.2, Linux 6.9, ours |
//! | [`pool`], [`decay`] | flushed areas by exact size, and how pools shrink |
//! | [`lazy`], [`node`] | how much may wait for a flush, which node it waits in |
//! | [`lookup`] | how a busy area is found: by the page map, or by a tree in each node |
//! | [`EarlySpace`] | a place for a space, for a static; a call that comes too early fails |
//! | [`Magazine`] | a cache of areas that its owner passes by `&mut`, and that any thread can drain ([`Drained`]) |
//! | `map` | the page map: what starts at a page, read without a lock |
//! | `list`, `flush_batch` | lists without records, and the types that keep an unflushed range out of use (SP2) |

#![no_std]
#![forbid(unsafe_code)]
#![warn(missing_debug_implementations)]

#[cfg(test)]
extern crate std;

mod area;
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
pub use space::{Areas, Drained, Magazine, Purge, Purged, ReshapeError, Stats, VmapSpace};

/// The example of the README compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
