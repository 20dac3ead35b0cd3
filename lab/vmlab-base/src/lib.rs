//! The parts that all crates of the laboratory share: text, output files, charts.
//!
//! | module | content |
//! |---|---|
//! | [`text`] | numbers as text for readers |
//! | [`choice`] | closed sets of values that a user selects by name |
//! | [`output`] | the destination of a command's text |
//! | [`mod@file`] | an output file that is opened before the work |
//! | [`chart`], [`bars`] | charts as SVG |
//!
//! No crate of the laboratory but `vmlab` reads arguments or prints: they return values, or write to an
//! [`Output`](output::Output).

#![deny(clippy::print_stdout, clippy::print_stderr)]
#![warn(missing_debug_implementations)]

pub mod bars;
pub mod chart;
pub mod choice;
pub mod file;
pub mod output;
pub mod text;

/// The example of the README compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
