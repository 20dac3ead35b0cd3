//! Maps of pages against their reference model, with faults injected, and on the ladder of entry sizes.
#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod broken;
mod claims;
mod failure;
mod growth;
mod ladder;
mod model;
mod plain;
mod points;
mod shared;
