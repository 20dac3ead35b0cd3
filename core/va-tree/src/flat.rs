//! Holes in a sorted array inside the value: the index of a small space, an early boot, or a processor with little
//! memory.
//!
//! # Theory
//! Up to some dozen holes, a scan of neighbouring words costs less than the steps of a tree, and code for it is short.
//! The array has room for `N` holes, and needs no platform. An area is taken only if the holes to which frees can lead
//! have room (SP3, see [`FreeIndex`]), so a free cannot fail.
//!
//! ```text
//!   start  | 3 | 17 | 40 |         end  | 9 | 20 | 64 |         three of N: [3, 9), [17, 20), [40, 64)
//! ```
//!
//! # Invariants
//! FT1 to FT6 (see [`FreeIndex`]).
//!
//! # Cost
//! 16 bytes a hole and about 100 bytes, in the value. Alloc and free: O(holes), a few nanoseconds for a dozen; with
//! above 100 holes a [`BTreeIndex`](crate::BTreeIndex) is faster.
//! # Source
//! Our own; Hermit's `free-list` has the same structure with other answers.

use crate::free_index::units_of;
use crate::ledger::Ledger;
use crate::{Fit, FreeIndex, IndexMemory};
use core::fmt;
use va_base::{AllocError, FreeError, InvariantViolation, Pages, Request, Va, VaRange};

/// A hole, in pages; unused ones are empty.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Hole {
    start: u64,
    end: u64,
}

impl Hole {
    fn size(self) -> u64 {
        self.end - self.start
    }

    fn range(self) -> VaRange {
        VaRange::from_pages(self.start, self.end).unwrap_or_default()
    }
}

/// An index of at most `N` holes, without other memory.
///
/// It has room as long as areas and holes together are at most `2 N`: so many that every area can be freed.
///
/// ```
/// use std::sync::Mutex;
/// use va_base::{Request, Va, VaRange};
/// use va_tree::{FlatIndex, FreeIndex};
///
/// static INDEX: Mutex<FlatIndex<24>> = Mutex::new(FlatIndex::EMPTY);
///
/// let space = VaRange::from_pages(0x100, 0x200).unwrap();
/// let mut index = INDEX.lock().unwrap();
/// index.init(space, space)?;
/// assert_eq!(index.alloc(&Request::pages(3)?)?, Va::from_page(0x100));
/// assert_eq!(index.alloc(&Request::new(4096, 64 * 4096)?)?, Va::from_page(0x140));
/// index.free(VaRange::from_pages(0x100, 0x103).unwrap())?;
/// assert_eq!(index.hole_count(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct FlatIndex<const N: usize> {
    extent: VaRange,
    default_window: VaRange,
    ledger: Ledger,
    holes: [Hole; N],
}

impl<const N: usize> FlatIndex<N> {
    /// An index of no pages: a constant of zeros for a `static`. [`init`](Self::init) sets its extent.
    pub const EMPTY: Self = {
        assert!(N > 0, "an index needs room for a hole");
        Self {
            extent: VaRange::EMPTY,
            default_window: VaRange::EMPTY,
            ledger: Ledger { live: 0, holes: 0, free_pages: 0, reserved_holes: 0 },
            holes: [Hole { start: 0, end: 0 }; N],
        }
    };

    /// Creates an index of the whole pages of `extent`, all free.
    ///
    /// # Errors
    /// [`AllocError::BadRange`] if there is none.
    pub fn new(extent: VaRange, default_window: VaRange) -> Result<Self, AllocError> {
        let mut index = Self::EMPTY;
        index.init(extent, default_window)?;
        Ok(index)
    }

    /// Sets the extent of an [`EMPTY`](Self::EMPTY) index, in place.
    ///
    /// # Errors
    /// [`AllocError::BadRange`] if `extent` holds no whole page. [`AllocError::Occupied`] if the index has an extent.
    pub fn init(&mut self, extent: VaRange, default_window: VaRange) -> Result<(), AllocError> {
        let (start, end) = extent.whole_pages();
        let bad = AllocError::BadRange { range: extent, extent: VaRange::ALL };
        let pages = VaRange::from_pages(start, end).filter(|pages| !pages.is_empty()).ok_or(bad)?;
        if !self.extent.is_empty() {
            return Err(AllocError::Occupied { range: extent });
        }
        (self.extent, self.default_window) = (pages, default_window);
        self.ledger = Ledger { live: 0, holes: 1, free_pages: end - start, reserved_holes: N as u64 };
        self.holes[0] = Hole { start, end };
        Ok(())
    }

    /// The holes, in address order.
    fn all(&self) -> &[Hole] {
        // FT5: as many as counted.
        self.holes.get(..self.ledger.holes as usize).unwrap_or_default()
    }

    /// Returns the index of the first hole that ends above page `page`.
    fn first_ending_above(&self, page: u64) -> usize {
        self.all().partition_point(|hole| hole.end <= page)
    }

    /// Returns an error unless `holes` have room.
    fn room(&self, holes: u64) -> Result<(), AllocError> {
        if holes <= self.ledger.reserved_holes {
            return Ok(());
        }
        Err(AllocError::NoMeta { records: usize::try_from(holes).unwrap_or(usize::MAX) })
    }

    /// Returns the first hole that `fits`, with the address there.
    fn find(&self, request: &Request) -> Option<(usize, u64)> {
        let (low, high) = request.window().unwrap_or(self.default_window).whole_pages();
        let (size, mask) = (request.size().get(), (1u64 << request.align().page_log2()) - 1);
        let from = self.first_ending_above(low);
        for (at, hole) in self.all().iter().enumerate().skip(from) {
            // Pages are below 2^52, and so is a size that fits; masks are below 2^52 too.
            let start = (hole.start.max(low) + mask) & !mask;
            if start.checked_add(size).is_some_and(|end| end <= hole.end.min(high)) {
                return Some((at, start));
            }
            if hole.end >= high {
                break;
            }
        }
        None
    }

    /// Cuts pages from hole `at`, which encloses them; there is room for the rest.
    fn cut(&mut self, at: usize, start: u64, end: u64) -> Fit {
        let count = self.ledger.holes as usize;
        let hole = &mut self.holes[at];
        let fit = Fit::of(start, end, hole.start, hole.end);
        match fit {
            Fit::Full => self.remove(at),
            Fit::LeftEdge => hole.start = end,
            Fit::RightEdge => hole.end = start,
            Fit::NoEdge => {
                let above = Hole { start: end, end: hole.end };
                hole.end = start;
                self.holes.copy_within(at + 1..count, at + 2);
                self.holes[at + 1] = above;
            }
        }
        self.ledger.live += 1;
        self.ledger.free_pages -= end - start;
        self.ledger.holes = fit.holes_after(count as u64);
        fit
    }

    /// Closes the place of hole `at`.
    fn remove(&mut self, at: usize) {
        self.holes.copy_within(at + 1..self.ledger.holes as usize, at);
    }

    fn checked_pages(&self, range: VaRange) -> Option<(u64, u64)> {
        let inside = range.is_page_aligned() && !range.is_empty() && self.extent.encloses(range);
        inside.then(|| range.whole_pages())
    }

    /// Stops, with the feature `validate`, at the first walk of the invariants that finds one broken.
    #[inline(always)]
    fn check(&self) {
        #[cfg(feature = "validate")]
        if let Err(broken) = self.ledger.walked(|| self.validate()) {
            self.bug(format_args!("after an operation on the array of holes: {broken}"));
        }
    }
}

impl<const N: usize> FreeIndex for FlatIndex<N> {
    fn extent(&self) -> VaRange {
        self.extent
    }

    fn default_window(&self) -> VaRange {
        self.default_window
    }

    fn would_fit(&self, request: &Request) -> Result<Va, AllocError> {
        self.find(request).map(|(_, at)| Va::from_page(at)).ok_or_else(|| self.no_space(request))
    }

    fn alloc(&mut self, request: &Request) -> Result<Va, AllocError> {
        let Some((at, page)) = self.find(request) else { return Err(self.no_space(request)) };
        let (hole, end) = (self.holes[at], page + request.size().get());
        self.room(self.ledger.bound_after_cut(Fit::of(page, end, hole.start, hole.end)))?;
        self.cut(at, page, end);
        self.check();
        Ok(Va::from_page(page))
    }

    fn take(&mut self, range: VaRange) -> Result<Fit, AllocError> {
        let bad = AllocError::BadRange { range, extent: self.extent };
        let (start, end) = self.checked_pages(range).ok_or(bad)?;
        let at = self.first_ending_above(start);
        let hole = self.all().get(at).filter(|hole| hole.start <= start && end <= hole.end);
        let Some(&hole) = hole else { return Err(AllocError::Occupied { range }) };
        self.room(self.ledger.bound_after_cut(Fit::of(start, end, hole.start, hole.end)))?;
        let fit = self.cut(at, start, end);
        self.check();
        Ok(fit)
    }

    fn free(&mut self, range: VaRange) -> Result<(), FreeError> {
        let bad = FreeError::BadRange { range, extent: self.extent };
        let (start, end) = self.checked_pages(range).ok_or(bad)?;
        // The hole above, or one that overlaps; the hole below ends at or below the start.
        let at = self.first_ending_above(start);
        let above = self.all().get(at).copied();
        if let Some(hole) = above.filter(|hole| hole.start < end) {
            return Err(FreeError::AlreadyFree { range, hole: hole.range() });
        }
        let touches_above = above.is_some_and(|hole| hole.start == end);
        let touches_below = at > 0 && self.holes[at - 1].end == start;
        let merged = u64::from(touches_above) + u64::from(touches_below);
        if !self.ledger.may_return(merged) {
            return Err(FreeError::TooManySplits { range, live: self.ledger.live });
        }
        let count = self.ledger.holes as usize;
        match (touches_below, touches_above) {
            (true, true) => {
                self.holes[at - 1].end = self.holes[at].end;
                self.remove(at);
            }
            (true, false) => self.holes[at - 1].end = end,
            (false, true) => self.holes[at].start = start,
            (false, false) => {
                self.holes.copy_within(at..count, at + 1);
                self.holes[at] = Hole { start, end };
            }
        }
        self.ledger.live -= 1;
        self.ledger.holes = count as u64 + 1 - merged;
        self.ledger.free_pages += end - start;
        self.check();
        Ok(())
    }

    fn reserve_splits(&mut self, pieces: u64) -> Result<(), AllocError> {
        let want = self.ledger.with_splits(pieces, units_of(self))?;
        self.room(want.bound())?;
        self.ledger.live = want.live;
        Ok(())
    }

    fn release_splits(&mut self, pieces: u64) -> u64 {
        self.ledger.release(pieces)
    }

    fn live(&self) -> u64 {
        self.ledger.live
    }

    fn free_pages(&self) -> Pages {
        Pages::new(self.ledger.free_pages)
    }

    fn hole_count(&self) -> u64 {
        self.ledger.holes
    }

    /// O(holes).
    fn largest_hole(&self) -> Pages {
        Pages::new(self.all().iter().map(|hole| hole.size()).max().unwrap_or(0))
    }

    fn hole_after(&self, at: Va) -> Option<VaRange> {
        let hole = self.all().iter().find(|hole| hole.range().end() > at)?;
        Some(hole.range())
    }

    fn hole_below(&self, at: Va) -> Option<VaRange> {
        let hole = self.all().iter().rfind(|hole| hole.range().start() <= at)?;
        Some(hole.range())
    }

    fn memory(&self) -> IndexMemory {
        IndexMemory { used_bytes: size_of_val(self.all()), row_bytes: 0, allocated_bytes: 0 }
    }

    fn validate(&self) -> Result<(), InvariantViolation> {
        let (holes, mut pages) = (self.ledger.holes, 0);
        InvariantViolation::check(holes <= N as u64, "FT6", Va::ZERO, N as u64, holes)?;
        let mut last: Option<Hole> = None;
        for &hole in self.all() {
            let at = Va::from_page(hole.start);
            let inside = hole.start < hole.end && self.extent.encloses(hole.range());
            InvariantViolation::check(inside, "FT4", at, hole.end, hole.start)?;
            if let Some(last) = last {
                InvariantViolation::check(hole.start >= last.end, "FT1", at, last.end, hole.start)?;
                InvariantViolation::check(hole.start != last.end, "FT2", at, last.end, hole.start)?;
            }
            last = Some(hole);
            pages += hole.size();
        }
        let free = self.ledger.free_pages;
        InvariantViolation::check(pages == free, "FT5", Va::ZERO, pages, free)?;
        self.ledger.validate()
    }
}

/// The same extent, window, holes and number of areas.
impl<const N: usize> PartialEq for FlatIndex<N> {
    fn eq(&self, other: &Self) -> bool {
        let of = |index: &Self| (index.extent, index.default_window, index.ledger.live);
        of(self) == of(other) && self.all() == other.all()
    }
}

impl<const N: usize> Eq for FlatIndex<N> {}

impl<const N: usize> fmt::Debug for FlatIndex<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FlatIndex")
            .field("extent", &self.extent)
            .field("live", &self.ledger.live)
            .field("holes", &self.ledger.holes)
            .field("free_pages", &self.ledger.free_pages)
            .field("largest_hole", &self.largest_hole())
            .finish_non_exhaustive()
    }
}

#[cfg(feature = "certify")]
impl<const N: usize> crate::certify::Certify for FlatIndex<N> {
    fn cover(&self, covered: crate::certify::Covered, each: &mut dyn FnMut(crate::certify::Bound)) {
        crate::certify::cover_by_holes(self, covered, each);
    }

    fn shape(&self, each: &mut dyn FnMut(u64)) {
        [self.ledger.live, self.ledger.holes, self.ledger.free_pages].into_iter().for_each(&mut *each);
        self.all().iter().flat_map(|hole| [hole.start, hole.end]).for_each(each);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(first: u64, end: u64) -> VaRange {
        VaRange::from_pages(first, end).unwrap()
    }

    #[test]
    fn ft1_to_ft6_each_is_named_when_it_is_broken() {
        let broken = |spoil: fn(&mut FlatIndex<4>)| {
            let mut index = FlatIndex::<4>::new(pages(10, 100), pages(10, 100)).unwrap();
            index.take(pages(20, 30)).unwrap();
            index.take(pages(40, 50)).unwrap();
            assert_eq!(index.validate(), Ok(()));
            spoil(&mut index);
            index.validate().map_err(|broken| broken.rule)
        };
        assert_eq!(broken(|_| ()), Ok(()));
        assert_eq!(broken(|index| index.holes[1].start = 19), Err("FT1"));
        assert_eq!(broken(|index| index.holes[1].start = 20), Err("FT2"));
        assert_eq!(broken(|index| index.holes[0].start = 9), Err("FT4"));
        assert_eq!(broken(|index| index.holes[2].end = 101), Err("FT4"));
        assert_eq!(broken(|index| index.holes[0].end = 10), Err("FT4"));
        assert_eq!(broken(|index| index.holes[0].end = 19), Err("FT5"));
        assert_eq!(broken(|index| index.ledger.holes = 2), Err("FT5"));
        assert_eq!(broken(|index| index.ledger.holes = 5), Err("FT6"));
        assert_eq!(broken(|index| index.ledger.live = 1), Err("FT6"));
        assert_eq!(broken(|index| index.ledger.live = 9), Err("FT6"));
    }

    #[cfg(feature = "validate")]
    #[test]
    #[should_panic(expected = "after an operation on the array of holes: invariant FT5")]
    fn an_operation_stops_at_a_wrong_count() {
        let mut index = FlatIndex::<4>::new(pages(10, 100), pages(10, 100)).unwrap();
        index.ledger.free_pages += 1;
        _ = index.take(pages(20, 30));
    }

    #[cfg(feature = "certify")]
    #[test]
    fn states_that_differ_have_shapes_that_differ() {
        use crate::certify::Certify;
        let shape = |index: &FlatIndex<4>| {
            let mut numbers = std::vec::Vec::new();
            index.shape(&mut |number| numbers.push(number));
            numbers
        };
        let mut index = FlatIndex::<4>::new(pages(10, 100), pages(10, 100)).unwrap();
        let empty = shape(&index);
        assert_eq!(empty, [0, 1, 90, 10, 100]);
        index.take(pages(20, 30)).unwrap();
        assert_eq!(shape(&index), [1, 2, 80, 10, 20, 30, 100]);
        index.free(pages(20, 30)).unwrap();
        assert_eq!(shape(&index), empty);
    }
}
