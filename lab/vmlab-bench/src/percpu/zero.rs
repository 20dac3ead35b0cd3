//! The cost of zeroing an object's bytes in each unit, which every other figure excludes.

use super::clock::Moment;
use super::subject::{UNITS, USUAL};
use std::hint::black_box;

/// Nanoseconds to zero one object of a size on every CPU.
pub(super) struct Zeroed {
    pub(super) size: u32,
    pub(super) units: u32,
    pub(super) ns: f64,
}

/// Zeroes objects of several sizes, one after the other through a chunk; returns the fastest of the rounds.
pub(super) fn measure(rounds: usize) -> Vec<Zeroed> {
    let mut measured = Vec::new();
    for units in [UNITS, 64] {
        let unit = USUAL.unit as usize;
        let mut memory = vec![1u8; unit * units as usize];
        for size in [16, 64, 1024] {
            let round = |_| {
                let begun = Moment::now();
                for at in (0..unit).step_by(size as usize) {
                    for cpu in memory.chunks_exact_mut(unit) {
                        cpu[at..at + size as usize].fill(0);
                    }
                    black_box(&mut memory);
                }
                begun.elapsed_ns() / (unit / size as usize) as f64
            };
            let ns = (0..rounds.max(2)).map(round).fold(f64::INFINITY, f64::min);
            measured.push(Zeroed { size, units, ns });
        }
    }
    measured
}
