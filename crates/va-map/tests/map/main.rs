//! Maps of pages against their model: twins, refusals, the ladder of entry sizes.
#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod ladder;
mod points;
mod refusal;
mod twins;
