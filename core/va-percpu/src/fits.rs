//! The longest objects that fit in a range, for every alignment at once.

use crate::bitmap::{BIT_BYTES, PAGE_BITS};
use crate::geometry::UNIT_BYTES_MIN;
use va_base::Record;

/// Alignments: from a bit to a page, eleven where a page has 4 KiB.
pub(crate) const ALIGNS: usize = PAGE_BITS.trailing_zeros() as usize + 1;
/// Lanes; a power of two, for vectors. The two lanes after the alignments are the edges.
pub(crate) const LANES: usize = (ALIGNS + 2).next_power_of_two();
/// The length that longer runs are recorded with: no less than the largest object, whole pages. The bits cut off begin
/// at a page and change no alignment. And a run at an edge of a page that is so long holds any object at any alignment.
pub(crate) const CAP: i16 = (UNIT_BYTES_MIN / BIT_BYTES).next_multiple_of(PAGE_BITS) as i16;
const LEFT: usize = ALIGNS;
const RIGHT: usize = ALIGNS + 1;
/// The longest run fits a lane.
const _: () = assert!((UNIT_BYTES_MIN / BIT_BYTES).next_multiple_of(PAGE_BITS) < 1 << 15);

/// 2^lane - 1.
const MASKS: [i16; LANES] = {
    let mut masks = [0; LANES];
    let mut lane = 0;
    while lane < ALIGNS {
        masks[lane] = (1 << lane) - 1;
        lane += 1;
    }
    masks
};

/// All ones where there is an alignment.
pub(crate) const ALIGN_MASK: [i16; LANES] = {
    let mut mask = [0; LANES];
    let mut lane = 0;
    while lane < ALIGNS {
        mask[lane] = -1;
        lane += 1;
    }
    mask
};

const fn only(lane: usize) -> [i16; LANES] {
    let mut only = [0; LANES];
    only[lane] = -1;
    only
}

/// All ones in the lane of the left edge, and of the right one.
const ONLY_LEFT: [i16; LANES] = only(LEFT);
const ONLY_RIGHT: [i16; LANES] = only(RIGHT);

/// Computes a vector lane by lane. A loop, since compilers turn it into vector instructions on every target.
#[inline(always)]
pub(crate) fn lanes(of: impl Fn(usize) -> i16) -> [i16; LANES] {
    let mut lanes = [0; LANES];
    for (at, lane) in lanes.iter_mut().enumerate() {
        *lane = of(at);
    }
    lanes
}

/// For each alignment, the longest free run once its start is aligned; and the runs at both edges. Bits, at most `CAP`.
///
/// The content of the unused lanes is up to the code that has the vector.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(align(32))]
pub struct Fits(pub(crate) [i16; LANES]);

impl Record for Fits {
    const EMPTY: Self = Self::NONE;
}

impl Fits {
    /// Nothing fits.
    pub(crate) const NONE: Self = Self([0; LANES]);

    /// Returns the run `[start, end)` of a page.
    #[inline(always)]
    pub(crate) fn of_run(start: u32, end: u32) -> Self {
        let (start, end) = (start as i16, end as i16);
        // Only alignments: the caller sets the other lanes.
        Self(lanes(|lane| {
            let aligned = start.wrapping_add(MASKS[lane]) & !MASKS[lane];
            end.wrapping_sub(aligned).max(0) & ALIGN_MASK[lane]
        }))
    }

    /// Returns the better of both, for each alignment.
    #[inline(always)]
    pub(crate) fn max(self, other: Self) -> Self {
        Self(lanes(|lane| self.0[lane].max(other.0[lane])))
    }

    /// Returns two neighbours as one; `left` has `left_bits`, `right` `right_bits`. Both begin at pages.
    #[inline(always)]
    pub(crate) fn join(left: &Self, right: &Self, left_bits: i16, right_bits: i16) -> Self {
        let (ends, begins) = (left.0[RIGHT], right.0[LEFT]);
        // The boundary is aligned to every alignment, so only the start of a run that crosses it is rounded.
        let more = if left.0[LEFT] >= left_bits { begins } else { 0 };
        let first = left.0[LEFT].saturating_add(more).min(CAP);
        let more = if right.0[RIGHT] >= right_bits { ends } else { 0 };
        let last = right.0[RIGHT].saturating_add(more).min(CAP);
        Self(lanes(|lane| {
            let across = (ends & !MASKS[lane]).saturating_add(begins);
            let fits = left.0[lane].max(right.0[lane]).max(across).min(CAP) & ALIGN_MASK[lane];
            fits | (first & ONLY_LEFT[lane]) | (last & ONLY_RIGHT[lane])
        }))
    }

    /// Returns the longest run for an alignment of `1 << lane` bits.
    #[inline(always)]
    pub(crate) fn fit(&self, lane: usize) -> i16 {
        self.0[lane % LANES]
    }

    /// Returns the lanes of the alignments, without the edges.
    #[inline(always)]
    pub(crate) fn alignments(self) -> Self {
        Self(lanes(|lane| self.0[lane] & ALIGN_MASK[lane]))
    }

    /// Returns the other lanes alone.
    #[cfg(test)]
    #[cfg(not(loom))]
    pub(crate) fn without_alignments(self) -> Self {
        Self(lanes(|lane| self.0[lane] & !ALIGN_MASK[lane]))
    }

    /// Returns the run at the left edge.
    #[inline(always)]
    pub(crate) fn left(&self) -> i16 {
        self.0[LEFT]
    }

    /// Returns the run at the right edge.
    #[inline(always)]
    pub(crate) fn right(&self) -> i16 {
        self.0[RIGHT]
    }

    #[inline(always)]
    pub(crate) fn with_edges(self, left: u32, right: u32) -> Self {
        self.with(left, right)
    }

    /// Returns the fits with two numbers in the two lanes after the alignments.
    #[inline(always)]
    pub(crate) fn with(self, first: u32, second: u32) -> Self {
        let (first, second) = (first as i16, second as i16);
        // Lane by lane: a vector whose numbers are stored one by one is slow to load again.
        Self(lanes(|lane| {
            (self.0[lane] & ALIGN_MASK[lane]) | (first & ONLY_LEFT[lane]) | (second & ONLY_RIGHT[lane])
        }))
    }
}
