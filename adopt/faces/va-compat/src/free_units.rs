//! The free units of a range in an index, without the areas between them.
//!
//! # Theory
//! The index reserves records for the frees of all live areas (SP3 of `va-tree`), so that a free cannot fail. The
//! packages here replace lists of free ranges, in which a free may allocate, any part of an area may be freed, and
//! several areas may be freed at once. So a [`FreeUnits`] counts no live area in the index: after each call it releases
//! the count, and before a free it reserves two fragments. Then the memory follows the holes, as in a list of them.
//!
//! # Cost
//! O(log n) a call, for n holes.
//! # Source
//! Our own.

use crate::LIMIT;
use crate::heap::Heap;
use crate::hole_list::Hole;
use va_base::{Align, FreeError, InvariantViolation, PAGE_SHIFT, Pages, Request, Va, VaRange};
use va_tree::{BTreeIndex, BTreeIndex32, BestFitIndex, FreeIndex};

/// The reason why no unit was added.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AddError {
    /// The range is empty, or not within the limits of the set.
    BadRange,
    /// A unit of the range is free already.
    Overlap,
    /// The global allocator failed.
    NoMemory,
}

/// A set of free units over an index.
#[derive(Debug)]
pub struct FreeUnits<I: FreeIndex> {
    index: I,
}

/// A set that can begin without units.
pub trait Begin: Sized {
    /// The lowest number that no unit has.
    const END: u64;

    /// Creates a set of no units. `None` if the global allocator fails.
    fn none() -> Option<Self>;
}

impl Begin for FreeUnits<BTreeIndex<Heap>> {
    const END: u64 = LIMIT;

    fn none() -> Option<Self> {
        let extent = VaRange::from_pages(0, Self::END)?;
        Self::without_units(BTreeIndex::new(extent, extent, Heap::NEW).ok()?)
    }
}

impl Begin for FreeUnits<BTreeIndex32<Heap>> {
    const END: u64 = 1 << u32::BITS;

    fn none() -> Option<Self> {
        let extent = VaRange::from_pages(0, Self::END)?;
        Self::without_units(BTreeIndex32::new(extent, extent, Heap::NEW).ok()?)
    }
}

impl Begin for FreeUnits<BestFitIndex<BTreeIndex<Heap>, Heap>> {
    const END: u64 = LIMIT;

    fn none() -> Option<Self> {
        let extent = VaRange::from_pages(0, Self::END)?;
        let index = BTreeIndex::new(extent, extent, Heap::NEW).ok()?;
        Self::without_units(BestFitIndex::new(index, Heap::NEW).ok()?)
    }
}

impl FreeUnits<BestFitIndex<BTreeIndex<Heap>, Heap>> {
    /// Takes `len` units of the smallest hole in which they fit, of equal holes the lowest, and returns the first.
    #[inline]
    pub(crate) fn take_best(&mut self, len: u64) -> Option<u64> {
        let at = self.index.alloc_best(&Request::pages(len).ok()?).ok()?.page_floor();
        self.release();
        Some(at)
    }

    /// Iterates over the holes of at least `len` units in order of size.
    pub(crate) fn by_size(&self, len: u64) -> impl Iterator<Item = Hole> + '_ {
        self.index.holes_from(Pages::new(len)).map(VaRange::whole_pages)
    }
}

impl<I: FreeIndex> FreeUnits<I> {
    fn without_units(index: I) -> Option<Self> {
        let mut set = Self { index };
        let (start, end) = set.index.extent().whole_pages();
        set.take(start, end).then_some(set)
    }

    /// Adds the units `[start, end)`. Merges them with what they touch.
    pub(crate) fn add_below_end(&mut self, start: u64, end: u64) -> Result<(), AddError> {
        let range =
            VaRange::from_pages(start, end).filter(|range| !range.is_empty()).ok_or(AddError::BadRange)?;
        // One free raises the count of holes by one at most: see `Ledger::may_return` in `va-tree`.
        self.index.reserve_splits(2).map_err(|_| AddError::NoMemory)?;
        let freed = self.index.free(range);
        self.release();
        freed.map_err(|error| match error {
            FreeError::BadRange { .. } => AddError::BadRange,
            _ => AddError::Overlap,
        })
    }

    /// Takes the units `[start, end)`. Returns false, and changes nothing, unless all are free and there is memory.
    pub(crate) fn take(&mut self, start: u64, end: u64) -> bool {
        let taken = VaRange::from_pages(start, end).is_some_and(|range| self.index.take(range).is_ok());
        self.release();
        taken
    }

    /// Takes `len` units at the lowest multiple of `2^align_log2` where they are free within `[low, high)`.
    #[inline]
    pub(crate) fn take_lowest_within(
        &mut self,
        len: u64,
        align_log2: u32,
        low: u64,
        high: u64,
    ) -> Option<u64> {
        let Some(align) = Align::from_log2(align_log2.saturating_add(PAGE_SHIFT)) else {
            // Zero is the only multiple below the limit, if there is a number for the alignment.
            let is_possible = low == 0 && len > 0 && len <= high && align_log2 < u64::BITS;
            return (is_possible && self.take(0, len)).then_some(0);
        };
        let window = VaRange::from_pages(low, high.min(LIMIT))?;
        let request = Request::pages(len).ok()?.aligned(align).within(window);
        let at = self.index.alloc(&request).ok()?.page_floor();
        self.release();
        Some(at)
    }

    pub(crate) fn total(&self) -> u64 {
        self.index.free_pages().get()
    }

    pub(crate) fn largest(&self) -> u64 {
        self.index.largest_hole().get()
    }

    pub(crate) fn holes(&self) -> u64 {
        self.index.hole_count()
    }

    pub(crate) fn contains(&self, unit: u64) -> bool {
        let unit = Va::from_page(unit.min(LIMIT));
        self.index.hole_below(unit).is_some_and(|hole| hole.contains(unit))
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = Hole> + use<'_, I> {
        self.index.holes().map(VaRange::whole_pages)
    }

    pub(crate) fn validate(&self) -> Result<(), InvariantViolation> {
        self.index.validate()
    }

    /// Reports to the index that no area is live, as far as the current holes permit.
    #[inline]
    fn release(&mut self) {
        let live = self.index.live();
        self.index.release_splits(live);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_of_areas_stays_at_that_of_holes() {
        let mut free = FreeUnits::<BTreeIndex<Heap>>::none().unwrap();
        free.add_below_end(0, 1 << 30).unwrap();
        for _ in 0..10_000 {
            free.take_lowest_within(2, 0, 0, LIMIT).unwrap();
        }
        assert_eq!((free.index.live(), free.holes()), (0, 1));
        for at in 0..1_000 {
            free.add_below_end(4 * at, 4 * at + 1).unwrap();
        }
        assert_eq!((free.index.live(), free.holes()), (1_000, 1_001));
        // Several areas at once.
        assert_eq!(free.add_below_end(4, 9), Err(AddError::Overlap));
        free.add_below_end(5, 8).unwrap();
        free.validate().unwrap();
        assert_eq!((free.index.live(), free.holes()), (999, 1_000));
    }
}
