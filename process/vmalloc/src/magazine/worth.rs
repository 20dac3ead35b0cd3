//! Which kinds of items a magazine keeps: those of which some are requested again.
//!
//! # Theory
//! ```text
//!   items kept, a sixteenth or more of them requested again  --->  the kind is kept
//!      ^                                  |  256 more items than 16 for each hit
//!      |                                  v
//!   8 hits more than items / 16  <---  the kind is not kept: a freed run becomes dirty, its size is remembered
//! ```
//! An item serves requests of its exact size alone, and pages in dirty runs serve any. Where many threads request mixed
//! sizes, 2 to 3 % of the items are requested again, and the magazines of all CPUs would hold up to three quarters of
//! the budget. So a magazine counts how many items it gets for each hit. Once they are too many, it keeps none of that
//! kind. It remembers the sizes of the last few, and a request of one of these counts as a hit, since the item would
//! have served it.
//!
//! Only magazines of a heap with several nodes count. In a program whose threads do not wait for each other, a miss takes
//! what the magazine holds before it takes pages from the system.
//! # Source
//! Our own; the remembered sizes are the ghosts of caches such as ARC.

use super::{BIG_PAGES, Magazine};

/// Items that a hit is worth.
const HIT: u32 = 16;
/// The count of items at which no more are kept, and the one at which they are again.
const WASTED_MAX: u32 = 16 * HIT;
const WASTED_AGAIN: u32 = 8 * HIT;
/// Sizes that are remembered.
const SIZES: usize = 8;

/// The worth of one kind of items. All zeros is the value for a kind that is kept.
pub(super) struct Worth {
    /// Items since the last hit, of which each hit takes away [`HIT`].
    wasted: u32,
    /// True while no item is kept.
    idle: bool,
    /// The hits that are counted.
    counted: u64,
    /// Pages of the last items that were not kept, and the place of the next one.
    sizes: [u64; SIZES],
    next: usize,
}

impl Magazine {
    /// Counts a freed run that finds no place in a front slot. Returns true if it is to be cached: some of its kind were
    /// requested again lately.
    pub(crate) fn keeps(&self, pages: u64) -> bool {
        let kind = usize::from(pages >= BIG_PAGES);
        let mut sets = self.sets.lock();
        let hits = self.hits_of(&sets)[kind];
        sets.worth[kind].keeps(pages, hits)
    }
}

impl Worth {
    /// Counts a freed item of a kind that had `hits` hits so far. Returns true if it is to be kept.
    fn keeps(&mut self, pages: u64, hits: u64) -> bool {
        let new = hits.saturating_sub(core::mem::replace(&mut self.counted, hits));
        self.pay(new);
        self.wasted = WASTED_MAX.min(self.wasted + 1);
        self.idle |= self.wasted == WASTED_MAX;
        if self.idle {
            self.sizes[self.next % SIZES] = pages;
            self.next = self.next.wrapping_add(1);
        }
        !self.idle
    }

    /// Notices a request that no item served. An item that was not kept might have.
    #[inline]
    pub(super) fn miss(&mut self, pages: u64) {
        if self.idle
            && let Some(size) = self.sizes.iter_mut().find(|size| **size == pages)
        {
            *size = 0;
            self.pay(1);
        }
    }

    /// Counts hits.
    fn pay(&mut self, hits: u64) {
        let hits = u32::try_from(hits).unwrap_or(WASTED_MAX).min(WASTED_MAX);
        self.wasted = self.wasted.saturating_sub(hits * HIT);
        self.idle &= self.wasted > WASTED_AGAIN;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const NEW: Worth = Worth { wasted: 0, idle: false, counted: 0, sizes: [0; SIZES], next: 0 };

    #[test]
    fn a_kind_is_kept_while_one_in_sixteen_is_requested_again() {
        let mut worth = NEW;
        for item in 0..10_000 {
            assert!(worth.keeps(30, item / 15), "{item}");
        }
        let mut worth = NEW;
        // One in seventeen: 256 of 272 are wasted more than the hits take away.
        let kept = (0..10_000).find(|&item| !worth.keeps(30, item / 17)).unwrap();
        assert!((4000..4500).contains(&kept), "{kept}");
    }

    #[test]
    fn a_kind_that_is_not_kept_is_kept_again_once_its_sizes_are_requested() {
        let mut worth = NEW;
        assert_eq!((0..1000).find(|_| !worth.keeps(700, 0)), Some(255));
        // Other sizes, and the same one more often than it was freed.
        (0..100).for_each(|_| worth.miss(701));
        assert!(!worth.keeps(700, 0));
        // The last eight are remembered, each for one request.
        (0..100).for_each(|_| _ = worth.keeps(900, 0));
        (0..100).for_each(|_| worth.miss(700));
        (0..7).for_each(|_| worth.miss(900));
        assert!(worth.idle);
        worth.miss(900);
        assert!(!worth.idle && worth.keeps(900, 0));
        // A request of each freed size, as in a program that frees and allocates in turn.
        let mut worth = NEW;
        (0..1000).for_each(|_| _ = worth.keeps(700, 0));
        let again = (0..100).position(|_| {
            worth.miss(700);
            worth.keeps(700, 0)
        });
        assert_eq!(again, Some(8));
    }
}
