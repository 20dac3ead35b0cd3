//! Our address space under the policies of five versions of Linux and of ours, as targets of the kernel's test suite.
//!
//! | module | content |
//! |---|---|
//! | [`case`] | the tests of the suite: bits, names, versions |
//! | `target` | the interface of a target |
//! | `space` | an address space, its blocks and per-CPU memory as a target |
//! | `history` | the policies of each version |
//!
//! Each policy compiles a space, blocks and per-CPU memory for two kinds of locks. So the crate has no test inside,
//! for which all of it would be compiled once more.

#![deny(clippy::print_stdout, clippy::print_stderr)]
#![warn(missing_debug_implementations)]

pub mod case;
mod history;
mod space;
mod target;

pub use history::Era;
pub use space::request;
pub use target::{Ask, Ram, Setup, Target, Unsettled, Worker};

/// The example of the README compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
