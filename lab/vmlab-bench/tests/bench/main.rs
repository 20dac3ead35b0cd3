//! The tests of the benchmarks, from outside: the crate is compiled once, for its program and for these.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod compare;
mod counts;
mod harness;
mod index;
mod memory;
mod percpu;
mod space;
mod suite;
