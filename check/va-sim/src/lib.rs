//! Reference models, the `Op` language and platforms with fault injection, for tests and the laboratory.
//!
//! | module | what it is |
//! |---|---|
//! | [`machine`] | a machine that records stale translations, and fails the nth slab or table |
//! | [`pages`] | a page table and pages with contents, of which the nth fails |
//! | [`map_model`] | areas with pages, byte by byte |
//! | [`areas`] | which area is where, by start and by state |
//! | [`space_model`] | a reference model of a space, which can be corrected |
//! | [`block_model`] | small mappings in blocks, page by page |
//! | [`block_run`] | calls to blocks, run beside that model and without |
//! | [`platform`] | a heap that allocates slabs and gets them back, and one that fails on demand |
//! | [`model`] | the index of holes as a sorted list, and as a row of booleans |
//! | [`op`] | one language for property tests, fuzzing and saved failures |
//! | [`run`] | runs ops on two indexes and names the first difference |
//! | [`percpu`] | a reference model of per-CPU memory, and a backend that records calls and injects faults |
//! | [`effort`] | the effort of a test: a part of its operations, or all |
//! | [`every_nth`] | every n-th request for memory of a call fails, for three times |
//! | [`soak`] | long random runs while memory fails for a time |
//! | [`strip`] | address spaces as strings: `"AA.B...CC"` |
//! | [`small`] | policies of a space under which a few dozen pages reach every limit |
//! | [`fuzz`], [`space_fuzz`] | the bodies of the fuzz targets, also run as tests over a saved corpus |
//!
//! Functions that run every policy are `#[inline]`: programs that call them compile them, and this library's other
//! users do not.
#![forbid(unsafe_code)]
#![warn(missing_debug_implementations, clippy::must_use_candidate, clippy::return_self_not_must_use)]

pub mod areas;
pub mod block_model;
pub mod block_run;
pub mod effort;
pub mod every_nth;
pub mod fuzz;
pub mod machine;
pub mod map_model;
pub mod model;
pub mod op;
pub mod pages;
pub mod pause;
pub mod percpu;
pub mod platform;
pub mod run;
pub mod small;
pub mod soak;
pub mod space_fuzz;
pub mod space_model;
pub mod strip;

/// The example of the README compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
