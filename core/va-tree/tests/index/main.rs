//! Indexes of free ranges against their reference models: worked examples, random operations, injected faults.
#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod best_fit;
mod btree_model;
mod btree_points;
mod bytes;
mod deterministic;
mod every_nth;
mod failure;
mod flat;
mod rb_model;
mod state;
mod steps;
mod strips;
mod tracked;
mod vectors;
