//! The counts of every index: live areas, holes, free pages, and the holes for which records are reserved (FT5, FT6).
//!
//! The arithmetic of SP3 (see `free_index`): with `live` areas and `holes` holes, frees alone can raise the number of
//! holes to at most `(live + holes + 1) / 2`. [`Ledger::bound`] is that number. [`Ledger::reserved_holes`] is the
//! number of holes for which the structure has reserved records.

use crate::free_index::Fit;
use va_base::{AllocError, InvariantViolation, Pages, Va};

/// The most holes that are walked after each change.
#[cfg(feature = "validate")]
const WALKED_EACH_TIME: u64 = 64;

/// The counts of one index.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ledger {
    /// Live areas, reserved fragments included.
    pub(crate) live: u64,
    /// Current holes.
    pub(crate) holes: u64,
    /// Pages in them.
    pub(crate) free_pages: u64,
    /// Holes for which the structure has records, in every shape.
    pub(crate) reserved_holes: u64,
}

impl Ledger {
    /// Returns the most holes to which frees alone can lead.
    #[inline]
    pub(crate) fn bound(&self) -> u64 {
        bound(self.live, self.holes)
    }

    /// Returns the holes for which records must be reserved before one more area is taken, for every fit.
    #[inline]
    pub(crate) fn bound_after_take(&self) -> u64 {
        // One area more, and at worst (NoEdge) one hole more.
        bound(self.live + 1, self.holes + 1)
    }

    /// Returns the holes for which records must be reserved before an area is cut from a known hole. For a whole hole
    /// that is the [`bound`](Self::bound) of now, so no record is missing.
    pub(crate) fn bound_after_cut(&self, fit: Fit) -> u64 {
        bound(self.live + 1, fit.holes_after(self.holes))
    }

    /// Returns the ledger with `pieces` more live areas, or `None` if no memory could ever suffice for them.
    pub(crate) fn with_pieces(&self, pieces: u64) -> Option<Self> {
        // A page that is out is at most one piece, and there are below 2^52: what is larger would only make sums wrap.
        let live = self.live.checked_add(pieces).filter(|&live| live < 1 << 52)?;
        Some(Self { live, ..*self })
    }

    /// Returns the ledger with `pieces` more live areas in an index of `pages`.
    ///
    /// # Errors
    /// [`AllocError::TooManyAreas`] if those are more than the pages: an area or a fragment has at least one.
    pub(crate) fn with_splits(&self, pieces: u64, pages: u64) -> Result<Self, AllocError> {
        let live = self.live.saturating_add(pieces);
        // Of bytes there may be more than 2^52: then sums would wrap.
        if pieces > 0 && live > pages.min((1 << 52) - 1) {
            return Err(AllocError::TooManyAreas { live, pages: Pages::new(pages) });
        }
        Ok(Self { live, ..*self })
    }

    /// Returns true if the live areas account for a free that merges with `merged` neighbours (0, 1 or 2).
    #[inline]
    pub(crate) fn may_return(&self, merged: u64) -> bool {
        // After it there are holes + 1 - merged, and at most (live - 1) + 1 there may be: none without a live area, since
        // it merges with holes that there are.
        self.holes < self.live + merged
    }

    /// Walks the invariants after the change that led to these counts (feature `validate`), or returns `Ok` where it is
    /// left out. A walk reads every hole, so of many holes the free pages, well mixed, choose one change in as many as
    /// there are 16 holes.
    #[cfg(feature = "validate")]
    pub(crate) fn walked(
        &self,
        walk: impl FnOnce() -> Result<(), InvariantViolation>,
    ) -> Result<(), InvariantViolation> {
        let mixed = self.free_pages.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        if self.holes <= WALKED_EACH_TIME || mixed.is_multiple_of(self.holes / 16) { walk() } else { Ok(()) }
    }

    /// Returns the most fragments that can be released while `holes <= live + 1` holds.
    fn releasable(&self) -> u64 {
        // holes >= 1 more than live is impossible to exceed; with no hole left, every area may be one.
        (self.live + 1).saturating_sub(self.holes).min(self.live)
    }

    /// Counts `pieces` live areas less, or as many as can be released. Returns how many.
    pub(crate) fn release(&mut self, pieces: u64) -> u64 {
        let released = pieces.min(self.releasable());
        self.live -= released;
        released
    }

    /// Checks FT6.
    pub(crate) fn validate(&self) -> Result<(), InvariantViolation> {
        if self.holes > self.live + 1 {
            return Err(InvariantViolation {
                rule: "FT6",
                at: Va::ZERO,
                expected: self.live + 1,
                actual: self.holes,
            });
        }
        if self.bound() > self.reserved_holes {
            return Err(InvariantViolation {
                rule: "FT6",
                at: Va::ZERO,
                expected: self.bound(),
                actual: self.reserved_holes,
            });
        }
        Ok(())
    }
}

#[inline]
fn bound(live: u64, holes: u64) -> u64 {
    (live + holes).div_ceil(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ledger(live: u64, holes: u64) -> Ledger {
        Ledger { live, holes, free_pages: 0, reserved_holes: 0 }
    }

    /// Plays every sequence of frees on a row of areas and holes and compares the peak with the bound.
    #[test]
    fn ft6_the_bound_is_reached_and_never_passed() {
        // A bit a slot: 1 = one area, 0 = free. Holes are maximal runs of 0.
        fn holes(bits: u32, n: u32) -> u64 {
            (0..n).filter(|&i| bits & (1 << i) == 0 && (i == 0 || bits & (1 << (i - 1)) != 0)).count() as u64
        }
        fn peak(bits: u32, n: u32) -> u64 {
            let now = holes(bits, n);
            (0..n)
                .filter(|&i| bits & (1 << i) != 0)
                .map(|i| peak(bits & !(1 << i), n))
                .max()
                .map_or(now, |p| p.max(now))
        }
        let mut tight = 0;
        for n in 1..=9 {
            for bits in 0u32..1 << n {
                let l = ledger(u64::from(bits.count_ones()), holes(bits, n));
                let (peak, bound) = (peak(bits, n), l.bound());
                assert!(peak <= bound, "{bits:b}: peak {peak} > bound {bound}");
                assert!(l.holes <= l.live + 1);
                tight += u32::from(peak == bound);
            }
        }
        assert!(tight > 0, "the bound is never reached: it could be lower");
    }

    #[test]
    fn more_pieces_than_areas_are_noticed() {
        assert!(!ledger(0, 1).may_return(0), "nothing is out");
        assert!(ledger(1, 0).may_return(0), "the only area, nothing free: one hole afterwards");
        assert!(!ledger(1, 1).may_return(0), "the last area out must merge with the only hole");
        assert!(ledger(1, 1).may_return(1));
        assert!(!ledger(1, 2).may_return(1), "the last area out must merge with both holes");
        assert!(ledger(1, 2).may_return(2));
    }

    #[cfg(feature = "validate")]
    #[test]
    fn of_many_holes_one_change_in_as_many_as_there_are_16_is_walked() {
        let walks = |holes| {
            let is_walked = |&free_pages: &u64| {
                let fault = InvariantViolation { rule: "FT5", at: Va::ZERO, expected: 0, actual: 1 };
                Ledger { free_pages, ..ledger(holes, holes) }.walked(|| Err(fault)).is_err()
            };
            (0..4000).filter(is_walked).count()
        };
        assert_eq!([walks(1), walks(64)], [4000, 4000]);
        assert!((350..450).contains(&walks(160)), "{}", walks(160));
        assert!((35..45).contains(&walks(1600)), "{}", walks(1600));
    }

    #[test]
    fn ft6_a_violation_has_both_numbers() {
        let validated = |live, holes, reserved_holes| {
            let checked = Ledger { reserved_holes, ..ledger(live, holes) }.validate();
            checked.map_err(|broken| (broken.rule, broken.expected, broken.actual))
        };
        assert_eq!(validated(3, 4, 4), Ok(()));
        assert_eq!(validated(3, 5, 9), Err(("FT6", 4, 5)));
        assert_eq!(validated(3, 4, 3), Err(("FT6", 4, 3)));
    }

    #[test]
    fn more_pieces_than_pages_are_rejected() {
        let most = (1 << 52) - 2;
        assert_eq!(ledger(1, 0).with_pieces(most).map(|ledger| ledger.live), Some(most + 1));
        assert!(ledger(1, 0).with_pieces(most + 1).is_none());
    }

    #[test]
    fn splits_beyond_the_pages_are_rejected() {
        let with = |live, pieces, pages| ledger(live, 0).with_splits(pieces, pages).map(|ledger| ledger.live);
        let too_many = |live, pages| Err(AllocError::TooManyAreas { live, pages: Pages::new(pages) });
        assert_eq!((with(3, 4, 7), with(3, 5, 7)), (Ok(7), too_many(8, 7)));
        assert_eq!(with(3, u64::MAX, u64::MAX), too_many(u64::MAX, u64::MAX));
        assert_eq!((with(0, 1 << 52, u64::MAX), with(9, 0, 7)), (too_many(1 << 52, u64::MAX), Ok(9)));
    }

    #[test]
    fn what_holes_need_is_not_released() {
        assert_eq!(ledger(5, 6).releasable(), 0);
        assert_eq!(ledger(5, 3).releasable(), 3);
        assert_eq!(ledger(2, 0).releasable(), 2);
    }
}
