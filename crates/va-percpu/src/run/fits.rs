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

/// All ones where there is an alignment.
pub(super) const KEEP: [i16; LANES] = {
    let mut keep = [0; LANES];
    let mut lane = 0;
    while lane < ALIGNS {
        keep[lane] = -1;
        lane += 1;
    }
    keep
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
        // Only alignments: the other lanes are the caller's.
        Self(core::array::from_fn(|lane| {
            let aligned = start.wrapping_add(MASKS[lane]) & !MASKS[lane];
            end.wrapping_sub(aligned).max(0) & KEEP[lane]
        }))
    }

    /// The better of both, for each alignment.
    #[inline]
    pub(crate) fn max(self, other: Self) -> Self {
        Self(core::array::from_fn(|lane| self.0[lane].max(other.0[lane])))
    }

    /// Two neighbours as one; `left` has `left_bits`, `right` `right_bits`. Both begin at pages.
    #[inline]
    pub(super) fn join(left: &Self, right: &Self, left_bits: i16, right_bits: i16) -> Self {
        let (ends, begins) = (left.0[RIGHT], right.0[LEFT]);
        // Where the boundary is, every alignment is: what is cut off is what the run is longer than a multiple.
        let mut lanes: [i16; LANES] = core::array::from_fn(|lane| {
            let across = (ends & !MASKS[lane]).wrapping_add(begins);
            left.0[lane].max(right.0[lane]).max(across).min(CAP) & KEEP[lane]
        });
        let more = if left.0[LEFT] >= left_bits { begins } else { 0 };
        lanes[LEFT] = left.0[LEFT].wrapping_add(more).min(CAP);
        let more = if right.0[RIGHT] >= right_bits { ends } else { 0 };
        lanes[RIGHT] = right.0[RIGHT].wrapping_add(more).min(CAP);
        Self(lanes)
    }

    /// The longest run for an alignment of `1 << lane` bits.
    #[inline]
    pub(crate) fn fit(&self, lane: usize) -> i16 {
        self.0[lane % LANES]
    }

    /// Without the edges.
    #[inline]
    pub(crate) fn alignments(self) -> Self {
        Self(core::array::from_fn(|lane| self.0[lane] & KEEP[lane]))
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
