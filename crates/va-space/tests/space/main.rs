//! Spaces against their model: twins, scripts, stress, refusals, contexts, magazines.
#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod context;
mod faults;
mod fit;
mod leave;
mod magazine;
mod notes;
mod points;
mod refusal;
mod reshape;
mod script;
mod stress;
mod supply;
mod twins;
