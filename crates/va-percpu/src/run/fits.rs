//! What fits where, for every alignment at once.

use crate::bitmap::PAGE_BITS;
use va_base::Record;

/// Alignments: 2^0 to 2^10 bits, a page.
pub(super) const ALIGNS: usize = 11;
/// Lanes; a power of two, for vectors.
pub(super) const LANES: usize = 16;
/// Longer runs are said to be so long. It holds the largest object at the worst place, and is a multiple of a page, so that what
/// is cut off begins at a page and changes no alignment.
pub(super) const CAP: i16 = 12 * PAGE_BITS as i16;
const LEFT: usize = 11;
const RIGHT: usize = 12;

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

/// For each alignment, the longest free run once its start is aligned; and the runs at both edges. Bits, at most [`CAP`].
///
/// The lanes that mean nothing hold what suits whoever has the vector.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(align(32))]
pub struct Fits(pub(super) [i16; LANES]);

impl Record for Fits {
    const EMPTY: Self = Self::NONE;
}

impl Fits {
    /// Nothing fits.
    pub(crate) const NONE: Self = Self([0; LANES]);

    /// The run `[start, end)` of a page.
    #[inline]
    pub(super) fn of_run(start: u32, end: u32) -> Self {
        let (start, end) = (start as i16, end as i16);
        let mut lanes = [0; LANES];
        for (lane, mask) in lanes.iter_mut().zip(MASKS) {
            *lane = (end - ((start + mask) & !mask)).max(0);
        }
        // Only alignments: the other lanes are the caller's.
        for lane in &mut lanes[ALIGNS..] {
            *lane = 0;
        }
        Self(lanes)
    }

    /// The better of both, for each alignment.
    #[inline]
    pub(crate) fn max(self, other: Self) -> Self {
        let mut lanes = self.0;
        for (lane, other) in lanes.iter_mut().zip(other.0) {
            *lane = (*lane).max(other);
        }
        Self(lanes)
    }

    /// Two neighbours as one; `left` has `left_bits`, `right` `right_bits`. Both begin at pages.
    #[inline]
    pub(super) fn join(left: &Self, right: &Self, left_bits: i16, right_bits: i16) -> Self {
        let mut lanes = left.max(*right).0;
        let (ends, begins) = (left.0[RIGHT], right.0[LEFT]);
        for (lane, mask) in lanes.iter_mut().zip(MASKS) {
            // Where the boundary is, every alignment is: what is cut off is what the run is longer than a multiple.
            *lane = (*lane).max((ends & !mask) + begins).min(CAP);
        }
        lanes[LEFT] = if left.0[LEFT] >= left_bits { (left.0[LEFT] + begins).min(CAP) } else { left.0[LEFT] };
        lanes[RIGHT] =
            if right.0[RIGHT] >= right_bits { (right.0[RIGHT] + ends).min(CAP) } else { right.0[RIGHT] };
        for lane in &mut lanes[RIGHT + 1..] {
            *lane = 0;
        }
        Self(lanes)
    }

    /// The longest run for an alignment of `1 << lane` bits.
    #[inline]
    pub(crate) fn fit(&self, lane: usize) -> i16 {
        self.0[lane % LANES]
    }

    /// Without the edges.
    #[inline]
    pub(crate) fn alignments(mut self) -> Self {
        self.0[ALIGNS..].fill(0);
        self
    }

    /// The run at the left edge.
    #[inline]
    pub(super) fn left(&self) -> i16 {
        self.0[LEFT]
    }

    /// The run at the right edge.
    #[inline]
    pub(super) fn right(&self) -> i16 {
        self.0[RIGHT]
    }

    #[inline]
    pub(super) fn with_edges(mut self, left: u32, right: u32) -> Self {
        self.0[LEFT] = left as i16;
        self.0[RIGHT] = right as i16;
        self
    }
}
