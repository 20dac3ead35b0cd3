//! Long random runs while memory fails for a time, then not, and then again.
//!
//! # Theory
//! A structure must fail a request for want of memory only while there is none, and serve the next one. So a
//! run changes the memory of its machine every few hundred operations, and each operation knows whether
//! memory may fail:
//!
//! ```text
//!   enough | a page at a time | enough | none after a few more | enough | ...
//! ```
//!
//! A page at a time is enough for everything. Whatever fails then, or while there is enough, is a failure that was
//! remembered too long. At the end there is enough again: the run frees everything, and the machine has all its memory.
//!
//! A seed is [`OPS`] operations: two hundred seeds are ten million. A test runs a few, and
//! `VMALLOC_SOAK_SEEDS` names another number (`cargo xtask soak`).

use crate::machine::SimMachine;
use crate::op::Rng;
use va_base::{InvariantViolation, PIECE_BYTES};

/// Operations of one seed.
pub const OPS: u64 = 50_000;
/// Operations from one walk of all invariants to the next: a prime, so that it meets every phase of a run.
const WALK_EVERY: u64 = 997;
/// Operations until memory changes, on average.
const CHANGE_EVERY: u64 = 300;

/// Returns the seeds of a test: `few`, or as many as the environment names.
pub fn seeds(few: u64) -> u64 {
    std::env::var("VMALLOC_SOAK_SEEDS").ok().and_then(|seeds| seeds.parse().ok()).unwrap_or(few)
}

/// A structure, and what is allocated from it.
pub trait Soak {
    /// Does one random operation and checks its result. A failure for want of memory is right only if `fails`.
    fn step(&mut self, rng: &mut Rng, fails: bool);

    /// Begins or ends a failure of memory that is not the machine's: of a backend, of a source of pages.
    fn set_fails(&mut self, _rng: &mut Rng, _fails: bool) {}

    /// Walks every invariant.
    ///
    /// # Errors
    /// The first that does not hold.
    fn walk(&self) -> Result<(), InvariantViolation>;
}

/// Runs one seed. Memory is there at the end; the caller frees what is allocated and checks [`SimMachine::allocated`].
///
/// # Panics
/// At the first wrong result or broken invariant.
pub fn run(soak: &mut impl Soak, machine: &SimMachine, seed: u64) {
    let mut rng = Rng::new(seed);
    let mut fails = false;
    for op in 0..OPS {
        if rng.below(CHANGE_EVERY) == 0 {
            let change = rng.below(4);
            fails = change == 0 || (change == 1 && !fails);
            let mut left = || if fails { rng.below(4) } else { u64::MAX };
            machine.fail_after(left(), left());
            machine.limit_slabs(if change == 2 { PIECE_BYTES } else { usize::MAX });
            soak.set_fails(&mut rng, fails);
        }
        soak.step(&mut rng, fails);
        if op % WALK_EVERY == 0
            && let Err(broken) = soak.walk()
        {
            panic!("seed {seed}, operation {op}: {broken}");
        }
    }
    machine.fail_after(u64::MAX, u64::MAX);
    machine.limit_slabs(usize::MAX);
    soak.set_fails(&mut rng, false);
    if let Err(broken) = soak.walk() {
        panic!("seed {seed}, at the end: {broken}");
    }
}
