//! Indexes of free ranges against their models: worked examples, twins, refusals.
#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod btree_points;
mod btree_twins;
mod deterministic;
mod rb_twins;
mod refusal;
mod strips;
mod vectors;
