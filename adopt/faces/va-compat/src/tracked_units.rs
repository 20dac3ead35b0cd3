//! Free units and areas of one range, with 64-bit positions.
//!
//! # Theory
//! The index has numbers below [`LIMIT`], and positions have 64 bits. So numbers are distances from an origin. It is the
//! start of the range rounded down to 2^51, so that a number has every alignment of its position up to that. A larger
//! alignment has one multiple in the range, at most.
//!
//! # Cost
//! O(log n) a call, and 48 bytes an area beside the index.
//! # Source
//! Our own.

use crate::LIMIT;
use crate::heap::Heap;
use core::fmt;
use va_base::{Align, PAGE_SHIFT, Request, Va, VaRange};
use va_tree::{BTreeIndex, FreeIndex, TrackedIndex};

/// Binary logarithm of the largest alignment that the index knows.
const ALIGN_MAX: u32 = u64::BITS - 1 - PAGE_SHIFT;

/// The end of the range at which a search begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// The lowest fit.
    Lowest,
    /// The highest fit.
    Highest,
}

/// No area has exactly the positions of a free.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotAnArea;

/// The units of one range, free or in areas.
///
/// ```
/// use va_compat::{Side, TrackedUnits};
/// let mut units = TrackedUnits::new(0xfff0, 0xffff).unwrap();
/// assert_eq!(units.alloc(4, 2, Side::Highest), Some(0xfffc));
/// assert_eq!(units.alloc(4, 3, Side::Lowest), Some(0xfff0));
/// assert!(units.take(0xfff4, 1) && !units.take(0xfff4, 1));
/// assert!(units.free(0xfffc, 2).is_err() && units.free(0xfffc, 4).is_ok());
/// ```
pub struct TrackedUnits {
    origin: u64,
    index: TrackedIndex<BTreeIndex<Heap>, Heap>,
}

impl TrackedUnits {
    /// Creates the set of the units from `first` to `last`, all free.
    ///
    /// `None` if there is none, or if `last` is [`LIMIT`] units above `first` rounded down to 2^51, or more. Every range
    /// of up to 2^51 units is within that.
    #[must_use]
    pub fn new(first: u64, last: u64) -> Option<Self> {
        let origin = first & !((1 << ALIGN_MAX) - 1);
        let end = last.checked_sub(origin)?.checked_add(1)?;
        let extent = VaRange::from_pages(first - origin, end)?;
        let index = BTreeIndex::new(extent, extent, Heap::NEW).ok()?;
        Some(Self { origin, index: TrackedIndex::new(index, Heap::NEW) })
    }

    /// Allocates `len` units at a multiple of `2^align_log2`, and returns the first. `None` if nothing fits, or the
    /// global allocator fails.
    pub fn alloc(&mut self, len: u64, align_log2: u32, side: Side) -> Option<u64> {
        if align_log2 > ALIGN_MAX {
            let multiple = self.first().checked_next_multiple_of(1u64.checked_shl(align_log2)?)?;
            return self.take(multiple, len).then_some(multiple);
        }
        let request = Request::pages(len).ok()?.aligned(Align::from_log2(align_log2 + PAGE_SHIFT)?);
        let area = match side {
            Side::Lowest => self.index.alloc(&request),
            Side::Highest => self.index.alloc_highest(&request),
        };
        area.ok().map(|area| self.origin + area.start().page_floor())
    }

    /// Allocates the `len` units from `start` on. Returns false, and changes nothing, unless all are free, and there is
    /// memory.
    pub fn take(&mut self, start: u64, len: u64) -> bool {
        self.range(start, len).is_some_and(|range| self.index.take(range).is_ok())
    }

    /// Frees the area of `len` units that begins at `start`.
    ///
    /// # Errors
    /// [`NotAnArea`]; nothing has changed.
    pub fn free(&mut self, start: u64, len: u64) -> Result<(), NotAnArea> {
        let range = self.range(start, len).ok_or(NotAnArea)?;
        self.index.free_range(range).map_err(|_| NotAnArea)
    }

    /// Returns true if the `len` units from `start` on are one area.
    #[must_use]
    pub fn is_area(&self, start: u64, len: u64) -> bool {
        self.range(start, len).is_some_and(|range| self.index.find(range.start()) == Some(range))
    }

    /// Returns true if the `len` units from `start` on are one hole: all free, and neither neighbour is.
    #[must_use]
    pub fn is_hole(&self, start: u64, len: u64) -> bool {
        self.range(start, len)
            .is_some_and(|range| self.index.index().hole_below(range.start()) == Some(range))
    }

    /// Iterates over the areas as first and last position, in order.
    pub fn areas(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.index.areas().map(|area| self.ends(area))
    }

    /// Iterates over the holes as first and last position, in order.
    pub fn holes(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.index.index().holes().map(|hole| self.ends(hole))
    }

    /// Checks the invariants of the index and of the areas with full walks.
    ///
    /// # Errors
    /// The first rule that does not hold.
    pub fn validate(&self) -> Result<(), va_base::InvariantViolation> {
        self.index.validate()
    }

    fn first(&self) -> u64 {
        self.ends(self.index.index().extent()).0
    }

    fn ends(&self, range: VaRange) -> (u64, u64) {
        let (start, end) = range.whole_pages();
        // A range of an index has at least one page.
        (self.origin + start, self.origin + (end - 1))
    }

    /// Returns the range of `len` units from `start` on, if the index could have it.
    fn range(&self, start: u64, len: u64) -> Option<VaRange> {
        let start = start.checked_sub(self.origin).filter(|&start| start < LIMIT)?;
        let end = start.checked_add(len).filter(|_| len > 0)?;
        VaRange::new(Va::from_page(start), VaRange::from_pages(start, end)?.end())
    }
}

impl Clone for TrackedUnits {
    /// Copies the areas one by one.
    ///
    /// # Panics
    /// If the global allocator fails, as the collections of the standard library do.
    fn clone(&self) -> Self {
        let (first, last) = self.ends(self.index.index().extent());
        let copied = Self::new(first, last).and_then(|mut copy| {
            self.areas().all(|(from, to)| copy.take(from, to - from + 1)).then_some(copy)
        });
        copied.unwrap_or_else(|| alloc::alloc::handle_alloc_error(core::alloc::Layout::new::<Self>()))
    }
}

impl fmt::Debug for TrackedUnits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.areas().map(|(first, last)| first..=last)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn a_range_at_the_top_of_64_bits_is_complete() {
        let mut units = TrackedUnits::new(u64::MAX - 9, u64::MAX).unwrap();
        assert_eq!(units.alloc(1, 0, Side::Highest), Some(u64::MAX));
        assert_eq!(
            units.alloc(8, 3, Side::Lowest),
            None,
            "a multiple of 8 and its 7 next need the last unit"
        );
        units.free(u64::MAX, 1).unwrap();
        assert_eq!(units.alloc(8, 3, Side::Lowest), Some(u64::MAX - 7));
        assert!(units.holes().eq([(u64::MAX - 9, u64::MAX - 8)]));
        assert!(!units.take(u64::MAX - 8, 3) && !units.take(5, 1) && !units.take(u64::MAX, 2));
        units.validate().unwrap();
    }

    #[test]
    fn an_alignment_has_one_multiple_or_none() {
        let mut units = TrackedUnits::new((1 << 60) - 100, (1 << 60) + 100).unwrap();
        assert_eq!(units.alloc(3, 60, Side::Highest), Some(1 << 60));
        assert_eq!(units.alloc(3, 60, Side::Lowest), None);
        assert_eq!(units.alloc(1, 61, Side::Lowest), None);
        assert_eq!(units.alloc(1, 64, Side::Lowest), None);
        assert_eq!(TrackedUnits::new(0, 10).unwrap().alloc(2, 63, Side::Lowest), Some(0));
    }

    #[test]
    fn an_alignment_is_that_of_the_position() {
        for base in [0x1234_5678, (1 << 52) + 0x1234_5678, (7 << 51) + 12345] {
            let mut units = TrackedUnits::new(base, base + (1 << 40)).unwrap();
            for log2 in [1, 12, 20, 33] {
                let at = units.alloc(1, log2, Side::Lowest).unwrap();
                assert!(at.is_multiple_of(1 << log2) && at - base < 4 << log2, "{at:#x}");
                let at = units.alloc(1, log2, Side::Highest).unwrap();
                assert!(at.is_multiple_of(1 << log2), "{at:#x}");
            }
        }
    }

    #[test]
    fn what_the_index_cannot_number_is_no_set() {
        assert!(TrackedUnits::new(0, LIMIT - 1).is_some());
        assert!(TrackedUnits::new(0, LIMIT).is_none());
        assert!(TrackedUnits::new(5, 4).is_none());
        assert!(TrackedUnits::new(0, u64::MAX).is_none());
        assert!(TrackedUnits::new((3 << 51) - 1, (4 << 51) - 2).is_some());
    }

    #[test]
    fn a_copy_has_the_same_areas() {
        let mut units = TrackedUnits::new(1000, 9999).unwrap();
        let at: Vec<u64> = (0..100).map(|_| units.alloc(7, 1, Side::Lowest).unwrap()).collect();
        at.iter().step_by(3).for_each(|&at| units.free(at, 7).unwrap());
        let mut copy = units.clone();
        assert!(copy.areas().eq(units.areas()) && copy.holes().eq(units.holes()));
        copy.free(at[1], 7).unwrap();
        assert!(units.is_area(at[1], 7) && !copy.is_area(at[1], 7));
        assert!(!copy.is_hole(at[1], 7), "it merged");
        copy.validate().unwrap();
    }
}
