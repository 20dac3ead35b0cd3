//! The laboratory: replays the events of real kernels' address spaces, measures indexes side by side, and draws the
//! results.
//!
//! | crate | content |
//! |---|---|
//! | `vmlab-trace` | traces: read, written, recorded, converted |
//! | `vmlab-replay` | replays, their differences and causes |
//! | `vmlab-view` | pictures of address spaces, and reports |
//! | `vmlab-bench` | benchmarks, and the kernel's test suite of vmalloc |
//! | `vmlab-targets` | spaces with the policies of several versions of Linux, as targets of that suite |
//! | `vmlab-machine` | this process as the machine of a space |
//! | `vmlab-base` | text, output files, charts |
//!
//! This crate alone reads arguments and prints.
//!
//! The feature `measure` adds the commands of `vmlab-bench`, which compiles the core once for each policy and kind of
//! lock. Most users replay and draw.

pub mod cli;
mod doctor;
mod reading;
mod terminal;
