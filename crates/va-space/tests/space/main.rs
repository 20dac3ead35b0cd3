//! Spaces against their reference model: scripts, stress, injected faults, contexts, magazines.
#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod context;
mod failure;
mod faults;
mod fit;
mod leave;
mod magazine;
mod model;
mod notes;
mod points;
mod reshape;
mod script;
mod shared;
mod stress;
mod supply;
