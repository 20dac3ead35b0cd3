//! Per-CPU memory: an object has one offset, and a copy on each CPU.
//!
//! A chunk is a range of bytes, of which each CPU has a copy, its unit. The copies of a CPU are at a distance that is
//! the same for all chunks. So one addition gives the address of any CPU's object from an [`Offset`]. [`PercpuSpace`]
//! decides which bytes belong to which object. A [`Backend`] supplies addresses, and pages only where objects are. An
//! offset is a number here, and never dereferenced.
//!
//! | module | what it is |
//! |---|---|
//! | [`PercpuSpace`] | alloc, free, the balance in steps, counts; the lock order |
//! | [`Magazine`] | zeroed objects that a CPU or a thread holds: pairs without a shared lock |
//! | [`Reserve`] | objects set aside for callers that cannot wait |
//! | [`EarlyPercpu`] | storage for a space, for a static |
//! | [`Request`], [`Offset`] | a request, and its result |
//! | [`config`] | the policies: Linux's and ours |
//! | `class` | small objects from slabs, which are objects to the engine |
//! | [`engine`] | the search for room in a chunk: [`scan`], Linux's hints, and [`run`], exact runs |
//! | [`geometry`], [`plan`](plan::plan) | units, sections of the first chunk, groups of CPUs |
//! | [`first`] | the first chunk, embedded in the memory of nodes or by page |
//! | [`backend`], [`vm`], [`km`] | the supply of chunks and pages |
//! | `store`, `chunk`, `table`, `rows`, `lookup` | chunks, their lists, records, from an address to its chunk |

#![no_std]
#![forbid(unsafe_code)]
#![warn(missing_debug_implementations, clippy::must_use_candidate, clippy::return_self_not_must_use)]

#[cfg(test)]
extern crate std;

pub mod backend;
mod bitmap;
mod chunk;
pub mod config;
mod early;
pub mod engine;
mod error;
pub mod first;
mod fits;
pub mod geometry;
pub mod km;
mod lookup;
#[cfg(test)]
#[cfg(loom)]
mod loom;
mod offset;
pub mod plan;
mod request;
mod rows;
pub mod run;
pub mod scan;
mod space;
mod store;
mod table;
pub mod vm;

pub use backend::{Backend, BackendError, Event};
pub use bitmap::{BIT_BYTES, PAGE_BITS, Word};
pub use config::Config;
pub use early::EarlyPercpu;
pub use error::{AllocError, FreeError, NewError, PlacementError};
pub use geometry::{Geometry, GeometryError, Sizes};
pub use offset::Offset;
pub use request::{Context, Place, Request};
pub use space::{
    ChunkKind, ChunkStats, Drained, Found, MAGAZINE_BYTES_MAX, MAGAZINE_BYTES_MIN, Magazine, MagazineStats,
    PercpuSpace, Progress, Reserve, Stats, StatsText,
};

// The crates of the types in this interface: one dependency is enough.
pub use va_base;

/// The example of the README compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
