//! The tests of the replays, from outside: the crate is compiled once, for its users and for these.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod diff;
mod engine;
mod exact;
mod index;
mod offsets;
mod percpu;
mod recording;
mod selection;
mod space;
