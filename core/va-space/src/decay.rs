//! The share of a pool that each drain returns to the free index.
//!
//! A pool without requests must not hold its areas forever, and a pool with requests must not be
//! emptied. Decay comes first in a drain and the refill after it, so a steady load converges to
//! pools that hold what it uses.
//!
//! # Source
//! Linux `mm/vmalloc.c` (6.12: `decay_va_pool_node`; 6.16 without the underflow).

/// A rule for the number of areas that one drain takes out of a pool of `len` areas.
pub trait Decay: 'static {
    /// Never more than `len`.
    fn quota(len: u64) -> u64;
}

/// A quarter, rounded down, so that pools of one to three areas remain.
#[derive(Clone, Copy, Debug)]
pub struct Quarter;

impl Decay for Quarter {
    #[inline]
    fn quota(len: u64) -> u64 {
        len >> 2
    }
}

/// Linux 6.12: a quarter, but all of a pool of one to three, where the count of a quarter begins at 0 and wraps.
#[derive(Clone, Copy, Debug)]
pub struct QuarterOrAllOfFew;

impl Decay for QuarterOrAllOfFew {
    #[inline]
    fn quota(len: u64) -> u64 {
        if len < 4 { len } else { len >> 2 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_vectors_of_both_rules() {
        let lens = [0, 1, 2, 3, 4, 7, 8, 100];
        assert_eq!(lens.map(QuarterOrAllOfFew::quota), [0, 1, 2, 3, 1, 1, 2, 25]);
        assert_eq!(lens.map(Quarter::quota), [0, 0, 0, 0, 1, 1, 2, 25]);
    }
}
