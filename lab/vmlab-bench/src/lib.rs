//! Benchmarks of the allocators `va-*` and `vmalloc` beside their peers, and the kernel's test suite of vmalloc.
//!
//! | module | content |
//! |---|---|
//! | [`index`], [`mod@space`], [`percpu`], [`memory`] | benchmarks of indexes, spaces, per-CPU memory and allocators |
//! | [`suite`] | the kernel's test suite of vmalloc, on any allocator |
//! | [`compare`] | tables of many of its runs |
//! | [`counts`] | the programs whose instructions are counted |
//! | [`indexes`] | indexes for comparison only |
//! | [`harness`] | the common parts: rounds, statistics, selections, tables, pages, files |
//! | `stream` | contenders that run one stream of operations: indexes and spaces |
//!
//! A benchmark measures side by side: one process, the same operations for all, in alternating rounds.
//!
//! The crate compiles the core once for each policy and kind of locks. So it has no test inside, for which all of it
//! would be compiled once more. Items that only the tests in `tests` need are public, and hidden from this
//! documentation.

#![deny(clippy::print_stdout, clippy::print_stderr)]
#![cfg_attr(
    not(feature = "all"),
    expect(dead_code, unreachable_pub, unused_imports, reason = "the counted programs call a part")
)]

pub mod counts;
mod library;

// What the counted programs do not reach is not compiled: the other modules are private in their library.
#[cfg(feature = "all")]
pub mod compare;
#[cfg(feature = "all")]
pub mod harness;
#[cfg(feature = "all")]
pub mod index;
#[cfg(feature = "all")]
pub mod indexes;
#[cfg(feature = "all")]
pub mod memory;
#[cfg(feature = "all")]
pub mod percpu;
#[cfg(feature = "all")]
pub mod space;
#[cfg(feature = "all")]
#[doc(hidden)]
pub mod stream;
#[cfg(feature = "all")]
pub mod suite;

#[cfg(not(feature = "all"))]
mod harness;
#[cfg(not(feature = "all"))]
mod index;
#[cfg(not(feature = "all"))]
mod indexes;
#[cfg(not(feature = "all"))]
mod memory;
#[cfg(not(feature = "all"))]
mod percpu;
#[cfg(not(feature = "all"))]
mod space;
#[cfg(not(feature = "all"))]
mod stream;

#[cfg(feature = "all")]
pub use stream::ROUNDS_MAX;

/// The example of the README compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
