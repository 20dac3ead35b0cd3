//! The common parts of all benchmarks, and of the kernel's test suite.
//!
//! | item | content |
//! |---|---|
//! | [`turns`], [`in_turn`] | the order in which contenders run |
//! | [`Summary`] | the statistics of a figure |
//! | [`Run`] | what a user selected, its progress, its end |
//! | [`Header`], [`Table`], [`Report`] | the content of a page of results, and its files |
//! | [`number`], [`duration`], [`us`] | figures as text |
//!
//! A benchmark has contenders, rounds and tables of its own, and none of these parts.

mod header;
mod report;
mod rounds;
mod run;
mod table;
mod text;

pub use header::{Header, build};
pub use report::{Drawn, Report, log_chart, prepare};
pub use rounds::{Summary, in_turn, turns};
pub use run::{Run, check_names, folder, pin, pin_apart, select};
pub use table::Table;
pub use text::{dash, duration, mean_us, number, unique, us};
