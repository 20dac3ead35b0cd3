//! Per-CPU memory against its model: twins, stress, back ends, fragmentation.
#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod backends;
mod failure;
mod fragmentation;
mod points;
mod stress;
mod twins;
