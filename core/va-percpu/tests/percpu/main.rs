//! Per-CPU memory against its reference model: stress, back ends, fragmentation.
#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod backends;
mod every_nth;
mod failure;
mod fragmentation;
mod magazines;
mod model;
mod points;
mod reserve;
mod shared;
mod stress;
