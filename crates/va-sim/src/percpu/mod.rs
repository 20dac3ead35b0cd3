//! The twin of per-CPU memory: a list of objects, a set of populated pages, and what must hold of them.
//!
//! | module | what it is |
//! |---|---|
//! | [`SimChunks`] | a backend that remembers what is populated, objects to what must not be, and refuses when told |
//! | [`fuzz`] | the body of its fuzz target |
//! | [`Rig`] | a space on it, its operations, and the objects that live, checked after each |

mod chunks;
pub mod fuzz;
mod rig;

pub use chunks::SimChunks;
pub use rig::{Live, Op, Rig, SIZES};
