//! Blocks of small mappings against their reference model, under stress, with faults injected.
#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod claims;
mod every_nth;
mod faults;
mod lanes;
mod model;
mod others;
mod points;
mod purges;
mod room;
mod shared;
mod stress;
