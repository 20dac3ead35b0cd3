//! The laboratory: replays the events of real kernels' address spaces, measures indexes side by side, and draws the
//! results.
//!
//! | module | content |
//! |---|---|
//! | [`trace`] | reads event traces (ftrace, trace-cmd, perf text; plain, gzip, zstd) and `/proc/vmallocinfo` |
//! | [`replay`] | runs a trace through an index and compares every address |
//! | [`mod@convert`] | traces in other forms |
//! | [`index_kind`] | the indexes, by name |
//! | [`machine`] | this process as the machine of a space |
//! | [`map`] | the address space at one time as a picture |
//! | [`report`] | one self-contained HTML file |
//! | `bench` | workloads, contenders, tables and plots |
//! | [`lab`] | indexes for comparison only |
//! | `suite`, `compare` | the kernel's test suite of vmalloc, on any allocator, and tables of many of its runs |
//! | [`shipped`] | the traces that are built into the program |
//!
//! `bench`, `suite` and `compare` are in the feature `measure`: they compile the core once for each policy and kind of
//! lock, and most users replay and draw.

#[cfg(feature = "measure")]
pub mod bench;
pub mod cli;
#[cfg(feature = "measure")]
pub mod compare;
pub mod convert;
mod doctor;
pub mod index_kind;
pub mod lab;
pub mod machine;
pub mod map;
mod record;
pub mod replay;
pub mod report;
pub mod run;
pub mod run_space;
pub mod shipped;
#[cfg(feature = "measure")]
pub mod suite;
pub mod trace;
