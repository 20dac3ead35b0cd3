//! Blocks of small mappings against their model: twins, stress, refusals.
#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod faults;
mod points;
mod stress;
mod twins;
