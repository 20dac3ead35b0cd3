//! The laboratory: replays the events of real kernels' address spaces, measures indexes side by side, and draws the
//! results.
//!
//! | module | content |
//! |---|---|
//! | [`trace`] | reads event traces (ftrace, trace-cmd, perf text; plain, gzip, zstd) and `/proc/vmallocinfo` |
//! | [`replay`] | runs a trace through an index and compares every address |
//! | [`mod@convert`] | traces in other forms |
//! | [`index_kind`] | the indexes, by name |
//! | [`map`] | the address space at one time as a picture |
//! | [`report`] | one self-contained HTML file |
//! | [`shipped`] | the traces that are built into the program |
//!
//! The feature `measure` adds the commands of `vmlab-bench`, which compiles the core once for each policy and kind of
//! lock. Most users replay and draw.

pub mod cli;
mod doctor;
pub mod map;
pub mod report;
