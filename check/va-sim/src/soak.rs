//! Long random runs while memory fails for a time, repeatedly.
//!
//! # Theory
//! A structure may fail a request for lack of memory only while there is none, and must meet the next one. So a run
//! changes the memory of its machine every few hundred operations, and each operation knows whether memory may fail:
//!
//! ```text
//!   enough | a page at a time | enough | none after a few more | enough | ...
//! ```
//!
//! A page at a time is enough for everything. A failure then, or while there is enough, was remembered too long. At the
//! end there is enough again: the run frees everything, and the machine has all its memory.
//!
//! A seed is [`OPS`] operations: two hundred seeds are ten million. A test runs a few, each in part (see [`effort`](crate::effort)),
//! and `VMALLOC_SOAK_SEEDS` names another number (`cargo xtask soak`), from `VMALLOC_SOAK_FIRST_SEED` on, so that several
//! processes divide the seeds of a structure. An operation is a call to the structure: a step that only changed the
//! machine, or found nothing to free, is not counted. All invariants are walked once in 997 operations, or in as many as
//! `VMALLOC_SOAK_WALK_EVERY` says, since the walks of a billion would take days.

use crate::effort::some;
use crate::machine::SimMachine;
use crate::op::Rng;
use std::fmt;
use std::ops::AddAssign;
use va_base::{InvariantViolation, PIECE_BYTES};

/// Operations of one seed.
pub const OPS: u64 = 50_000;
/// Operations from one walk of all invariants to the next: a prime, so that it meets every phase of a run.
const WALK_EVERY: u64 = 997;

/// Returns a number of the environment, or `usual`.
fn number(name: &str, usual: u64) -> u64 {
    std::env::var(name).ok().and_then(|number| number.parse().ok()).unwrap_or(usual)
}

/// Operations until memory changes, on average.
const CHANGE_EVERY: u64 = 300;

/// Returns the seeds of a test: `few`, or as many as the environment names.
#[must_use]
pub fn seeds(few: u64) -> u64 {
    number("VMALLOC_SOAK_SEEDS", few)
}

/// A structure, and what is allocated from it.
pub trait Soak {
    /// Runs one random operation and checks its result. A failure for lack of memory is right only if `fails`. Returns
    /// whether the structure was called.
    fn step(&mut self, rng: &mut Rng, fails: bool) -> bool;

    /// Returns how many requests failed for lack of memory so far.
    fn failures(&self) -> u64;

    /// Begins or ends a failure of resources other than the machine's memory: of a backend, of a source of pages.
    fn set_fails(&mut self, _rng: &mut Rng, _fails: bool) {}

    /// Walks every invariant.
    ///
    /// # Errors
    /// The first that does not hold.
    fn walk(&self) -> Result<(), InvariantViolation>;
}

/// Counts of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Calls to the structure.
    pub operations: u64,
    /// Times that memory began to fail.
    pub shortages: u64,
    /// Requests that failed for lack of memory.
    pub failures: u64,
    /// Walks of all invariants.
    pub walks: u64,
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.operations += other.operations;
        self.shortages += other.shortages;
        self.failures += other.failures;
        self.walks += other.walks;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { operations, shortages, failures, walks } = self;
        write!(f, "{operations} operations, {shortages} shortages, {failures} failed requests, {walks} walks")
    }
}

/// Runs `few` seeds, or as many as the environment names, and prints a line that `cargo xtask soak` reads.
///
/// # Panics
/// If no request failed for lack of memory: the run shows nothing then.
pub fn all(structure: &str, few: u64, one: impl FnMut(u64) -> Tally) {
    let (mut tally, first) = (Tally::default(), number("VMALLOC_SOAK_FIRST_SEED", 0));
    (first..first + seeds(few)).map(one).for_each(|seed| tally += seed);
    println!("soak: {structure}: {tally}");
    assert!(tally.failures > 0, "{structure}: nothing failed");
}

/// Runs one seed. Memory is available at the end; the caller frees its objects and checks [`SimMachine::allocated`].
///
/// # Panics
/// At the first wrong result or broken invariant.
pub fn run(soak: &mut impl Soak, machine: &SimMachine, seed: u64) -> Tally {
    let mut rng = Rng::new(seed);
    let mut tally = Tally::default();
    let mut fails = false;
    let walk_every = number("VMALLOC_SOAK_WALK_EVERY", WALK_EVERY).max(1);
    while tally.operations < some(OPS) {
        if rng.below(CHANGE_EVERY) == 0 {
            let (change, failed) = (rng.below(4), fails);
            fails = change == 0 || (change == 1 && !fails);
            tally.shortages += u64::from(fails && !failed);
            let mut left = || if fails { rng.below(4) } else { u64::MAX };
            machine.fail_after(left(), left());
            machine.limit_slabs(if change == 2 { PIECE_BYTES } else { usize::MAX });
            soak.set_fails(&mut rng, fails);
        }
        if !soak.step(&mut rng, fails) {
            continue;
        }
        tally.operations += 1;
        if tally.operations.is_multiple_of(walk_every) {
            tally.walks += 1;
            if let Err(broken) = soak.walk() {
                panic!("seed {seed}, operation {}: {broken}", tally.operations);
            }
        }
    }
    machine.fail_after(u64::MAX, u64::MAX);
    machine.limit_slabs(usize::MAX);
    soak.set_fails(&mut rng, false);
    if let Err(broken) = soak.walk() {
        panic!("seed {seed}, at the end: {broken}");
    }
    tally.walks += 1;
    tally.failures = soak.failures();
    tally
}

#[cfg(test)]
mod tests {
    use super::*;
    use va_base::{Meta, Platform, Record};

    #[derive(Clone, Copy)]
    struct Word;
    impl Record for Word {
        const EMPTY: Self = Self;
    }

    /// A structure that allocates and frees one word alternately.
    struct One<'m> {
        machine: &'m SimMachine,
        calls: u64,
        failures: u64,
        is_failing: bool,
    }

    impl Soak for One<'_> {
        fn step(&mut self, rng: &mut Rng, fails: bool) -> bool {
            assert_eq!(self.is_failing, fails);
            if rng.below(3) == 0 {
                return false;
            }
            self.calls += 1;
            match self.machine.alloc_meta::<Word>(1) {
                Some(word) => self.machine.free_meta(Meta::new(word)),
                None => self.failures += 1,
            }
            assert!(fails || self.failures == 0 || self.machine.slabs_left() == u64::MAX, "memory is there");
            true
        }

        fn failures(&self) -> u64 {
            self.failures
        }

        fn set_fails(&mut self, _rng: &mut Rng, fails: bool) {
            self.is_failing = fails;
        }

        fn walk(&self) -> Result<(), InvariantViolation> {
            Ok(())
        }
    }

    #[test]
    fn a_seed_counts_calls_and_memory_is_there_at_its_end() {
        let machine = SimMachine::new(1);
        let mut one = One { machine: &machine, calls: 0, failures: 0, is_failing: false };
        let tally = run(&mut one, &machine, 3);
        assert_eq!((tally.operations, tally.failures), (one.calls, one.failures));
        assert_eq!((tally.operations, tally.walks), (some(OPS), some(OPS) / WALK_EVERY + 1));
        assert!(tally.shortages > 10 && tally.failures > tally.shortages, "{tally}");
        assert_eq!((machine.slabs_left(), one.is_failing), (u64::MAX, false));
    }
}
