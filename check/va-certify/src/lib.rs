//! Checks the answers of an index of free ranges, one by one, by a state of its own.
//!
//! # Theory
//! A search for the lowest fit is a few hundred lines over a balanced tree. Whether its answer is right can be checked
//! by far less, if the search says why: this is a *certificate*. It names the hole of the answer, and bounds that cover
//! every better address. Each bound is a claim about one interval: no free run in it is longer than so many units. The
//! checker knows which units are free, and compares each claim with that. If all claims hold, no better address fits,
//! whatever the index did to find its answer.
//!
//! | answer | what a certificate must show |
//! |---|---|
//! | the lowest, highest or best fit | it is free, aligned, inside; the bounds cover every better address and permit none |
//! | nothing fits | the bounds cover the window and permit no fit |
//! | a cut | the hole before it, and what is left of it below and above |
//! | a free | the neighbours that it touches, and the hole that results |
//! | a rejected take or free | the range is not free, or overlaps the hole that is named |
//!
//! # What it trusts
//! Nothing of the index. A certificate may be wrong in any way: an answer that is not right is not accepted
//! (`tests/lies.rs` tries each kind of lie, and all answers of a small space). The checker's own state follows from the
//! accepted changes alone.
//!
//! It does not know where one area ends and the next begins, nor how much memory there is. So it says nothing about
//! [`NoMeta`](va_base::AllocError::NoMeta) or [`TooManySplits`](va_base::FreeError::TooManySplits).
//!
//! # Cost
//! O(log n) for a bound without an alignment, n holes. A bound for aligned runs takes a step for each hole of its
//! interval that is longer than the claim and not so aligned.
//! # Source
//! Our own. The idea is that of certifying algorithms: McConnell, Mehlhorn, Näher, Schweitzer, 2011.
#![forbid(unsafe_code)]
#![warn(missing_debug_implementations, clippy::must_use_candidate, clippy::return_self_not_must_use)]

mod checker;
mod holes;
mod index;
pub mod states;

pub use checker::{Bound, Checker, Fit, Lie, Request};
pub use holes::Run;
pub use index::Certified;

/// The example of the README compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
