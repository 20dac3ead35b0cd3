//! A reference model of per-CPU memory: a list of objects, a set of populated pages, and their invariants.
//!
//! | module | what it is |
//! |---|---|
//! | [`SimChunks`] | a backend that records populated pages, panics for invalid calls, and fails on request |
//! | [`Numbers`] | a backend whose chunks are numbers alone |
//! | [`fuzz`] | the body of its fuzz target |
//! | [`magazines`] | magazines, their operations, and the contents of objects |
//! | [`Harness`] | a space on it, its operations, and the live objects, checked after each |

mod chunks;
pub mod fuzz;
mod harness;
pub mod magazines;
mod numbers;

use crate::op::Rng;

pub use chunks::SimChunks;
pub use harness::{Harness, Live, Op, SIZES};
pub use numbers::Numbers;

/// Returns a request of a population of network filters and devices: size and alignment.
pub fn netmix(rng: &mut Rng) -> (u32, u32) {
    match rng.below(100) {
        0..40 => (16, 16),
        40..70 => (64, 16),
        70..85 => (16, 8),
        85..93 => (24, 8),
        93..97 => (64, 64),
        _ => (8, 8),
    }
}
