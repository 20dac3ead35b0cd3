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
//! | [`mod@bench`] | workloads, contenders, tables and plots |
//! | [`lab`] | indexes for comparison only |
//! | [`suite`] | the kernel's test suite of vmalloc, on any allocator |
//! | [`shipped`] | the traces that are built into the program |

pub mod bench;
pub mod cli;
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
pub mod suite;
pub mod trace;
