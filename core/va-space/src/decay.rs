//! The share of a pool that a decay returns to the free index, once in some drains.
//!
//! A pool without requests must not hold its areas forever, and a pool with requests must not be emptied. What goes to
//! the index comes back from there, at ten times the cost. Decay comes first in a drain and the refill after it, so a
//! steady load converges to pools that hold what it uses.
//!
//! An area is *idle* if no request took it since the last decay. A list is last in, first out, so as many areas of a
//! list are idle as it had at least in that time. Linux returns a quarter of all in each drain. A drain that comes late
//! finds pools full of areas that will all be requested before the next, and returns a quarter of these, too. And what
//! is flushed in the course of several drains is requested in the course of several: from one to the next most of it
//! seems idle.
//!
//! # Source
//! Linux `mm/vmalloc.c` (6.12: `decay_va_pool_node`; 6.16 without the underflow). The idle areas are the working set of
//! Bonwick and Adams, *Magazines and Vmem* (2001), 3.4.

/// A rule for the number of areas that a decay takes out of a list of a pool, and for how often there is one.
pub trait Decay: 'static {
    /// The drains from one decay to the next, at least 1. A purge of everything empties the pools in any case.
    const DRAINS: u64 = 1;

    /// Returns the areas to take of `len`, of which `idle` are idle. Never more than `len`.
    fn quota(len: u64, idle: u64) -> u64;
}

/// A quarter of the idle ones, rounded down, once in 16 drains.
#[derive(Clone, Copy, Debug)]
pub struct QuarterOfIdle;

impl Decay for QuarterOfIdle {
    const DRAINS: u64 = 16;

    #[inline]
    fn quota(_len: u64, idle: u64) -> u64 {
        idle >> 2
    }
}

/// A quarter of all, rounded down, so that pools of one to three areas remain.
#[derive(Clone, Copy, Debug)]
pub struct Quarter;

impl Decay for Quarter {
    #[inline]
    fn quota(len: u64, _idle: u64) -> u64 {
        len >> 2
    }
}

/// Linux 6.12: a quarter, but all of a pool of one to three, where the count of a quarter begins at 0 and wraps.
#[derive(Clone, Copy, Debug)]
pub struct QuarterOrAllOfFew;

impl Decay for QuarterOrAllOfFew {
    #[inline]
    fn quota(len: u64, _idle: u64) -> u64 {
        if len < 4 { len } else { len >> 2 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_vectors_of_all_rules() {
        let lens = [0, 1, 2, 3, 4, 7, 8, 100];
        assert_eq!(lens.map(|len| QuarterOrAllOfFew::quota(len, 0)), [0, 1, 2, 3, 1, 1, 2, 25]);
        assert_eq!(lens.map(|len| Quarter::quota(len, 0)), [0, 0, 0, 0, 1, 1, 2, 25]);
        assert_eq!(lens.map(|idle| QuarterOfIdle::quota(100, idle)), [0, 0, 0, 0, 1, 1, 2, 25]);
    }
}
