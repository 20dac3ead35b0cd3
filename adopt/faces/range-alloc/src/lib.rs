//! The interface of [range-alloc 0.1.5](https://docs.rs/range-alloc/0.1.5), over the index of holes.
//!
//! [`RangeAllocator`] allocates in the smallest free range that fits, as the original does. It takes O(log n) where the
//! original visits each free range, once there are more than 1,024. Paths, names and answers are those of the original. The differences are in
//! `docs/book/src/faces.md`.
//!
//! ```
//! use range_alloc::RangeAllocator;
//! let mut allocator = RangeAllocator::new(0..1024);
//! let (a, b) = (allocator.allocate_range(256).unwrap(), allocator.allocate_range(128).unwrap());
//! assert_eq!((a.clone(), b), (0..256, 256..384));
//! allocator.free_range(a);
//! assert_eq!(allocator.allocate_range_aligned(200, 50), Ok(0..200));
//! ```
#![forbid(unsafe_code)]

use std::fmt;
use std::ops::Range;
use va_compat::{AddError, BestFitUnits, LIMIT, Unit};

/// An allocator of the positions of one range; `T` is any integer type.
///
/// Of a range of 2^52 positions or more, the lowest 2^52 - 1 are allocated.
pub struct RangeAllocator<T> {
    initial_range: Range<T>,
    /// The free positions, as distances from the start.
    free_ranges: BestFitUnits,
    /// The number of positions, up to [`LIMIT`].
    managed: u64,
}

/// Nothing fits.
#[derive(Clone, Debug, PartialEq)]
pub struct RangeAllocationError<T> {
    /// The number of free positions. If it is at least the requested length, they are fragmented.
    pub fragmented_free_length: T,
}

impl<T: Unit> RangeAllocator<T> {
    /// Creates an allocator of `range`, all of it free. A range whose end is not above its start has no position.
    pub fn new(range: Range<T>) -> Self {
        let managed = length(&range).min(LIMIT);
        Self { initial_range: range, free_ranges: all(managed), managed }
    }

    /// Returns the whole range, with what [`grow_to`](Self::grow_to) added.
    pub fn initial_range(&self) -> &Range<T> {
        &self.initial_range
    }

    /// Moves the end of the range up; the new positions are free. O(log n) for n free ranges.
    ///
    /// A lower end than the present one removes the positions above it, if all of them are free. Otherwise nothing
    /// happens.
    pub fn grow_to(&mut self, new_end: T) {
        let grown = self.initial_range.start..new_end;
        let managed = length(&grown).min(LIMIT);
        if managed > self.managed {
            expect_memory(self.free_ranges.add(self.managed, managed));
        } else if managed < self.managed && !self.free_ranges.take(managed, self.managed) {
            return;
        }
        (self.initial_range, self.managed) = (grown, managed);
    }

    /// Allocates `length` positions in the smallest free range that has as many; of equal ones, in the lowest. O(log n).
    ///
    /// # Errors
    /// [`RangeAllocationError`] if no free range is so long, or the length is negative.
    ///
    /// # Panics
    /// If `length` is zero.
    #[inline]
    pub fn allocate_range(&mut self, length: T) -> Result<Range<T>, RangeAllocationError<T>> {
        let len = checked_length(length);
        let at = len.and_then(|len| Some((self.free_ranges.take_best(len)?, len)));
        self.answer(at)
    }

    /// Allocates `length` positions that begin at a multiple of `alignment`, in the free range that leaves the fewest
    /// above its first multiple. O(log n), and one step for each free range that is long enough and at most `alignment`
    /// longer than the chosen one.
    ///
    /// # Errors
    /// [`RangeAllocationError`] if nothing fits, or a number is negative.
    ///
    /// # Panics
    /// If `length` or `alignment` is zero.
    pub fn allocate_range_aligned(
        &mut self,
        length: T,
        alignment: T,
    ) -> Result<Range<T>, RangeAllocationError<T>> {
        assert_ne!(alignment, T::count(0), "an alignment is not zero");
        let len = checked_length(length);
        let (start, align) = (self.initial_range.start, alignment.since(T::count(0)));
        let at = len.zip(align).and_then(|(len, align)| {
            let padding = |units| start.after(units).padding(alignment);
            Some((self.free_ranges.take_best_aligned(len, align, padding)?, len))
        });
        self.answer(at)
    }

    /// Frees positions that are allocated: any part of an allocation, or neighbours at once. O(log n).
    ///
    /// # Panics
    /// If `range` is empty or not inside the whole range, or if a position in it is free.
    pub fn free_range(&mut self, range: Range<T>) {
        let whole = &self.initial_range;
        assert!(whole.start <= range.start && range.end <= whole.end, "{range:?} is not in {whole:?}");
        assert!(range.start < range.end, "{range:?} is empty");
        let ends = range.start.since(whole.start).zip(range.end.since(whole.start));
        let freed = ends.map_or(Err(AddError::BadRange), |(start, end)| self.free_ranges.add(start, end));
        match freed {
            Ok(()) => {}
            Err(AddError::NoMemory) => out_of_memory(),
            Err(AddError::Overlap | AddError::BadRange) => panic!("a part of {range:?} is free already"),
        }
    }

    /// Iterates over the allocated positions, in order; neighbours are one range.
    pub fn allocated_ranges(&self) -> impl Iterator<Item = Range<T>> + '_ {
        let holes = self.free_ranges.iter().chain(std::iter::once((self.managed, self.managed)));
        let between = holes.scan(0, |last, (start, end)| Some((std::mem::replace(last, end), start)));
        between.filter(|(start, end)| start < end).map(|(start, end)| self.positions(start, end))
    }

    /// Frees everything.
    pub fn reset(&mut self) {
        self.free_ranges = all(self.managed);
    }

    /// Returns true if nothing is allocated.
    pub fn is_empty(&self) -> bool {
        self.free_ranges.total() == self.managed
    }

    /// Returns the number of free positions. O(1), or one step for each of up to 1,024 free ranges.
    pub fn total_available(&self) -> T {
        // Positions that are not managed are free as well.
        T::count(self.free_ranges.total() + (length(&self.initial_range) - self.managed))
    }

    fn answer(&self, at: Option<(u64, u64)>) -> Result<Range<T>, RangeAllocationError<T>> {
        match at {
            Some((at, len)) => Ok(self.positions(at, at + len)),
            None => Err(RangeAllocationError { fragmented_free_length: self.total_available() }),
        }
    }

    fn positions(&self, start: u64, end: u64) -> Range<T> {
        self.initial_range.start.after(start)..self.initial_range.start.after(end)
    }
}

/// Returns a length in units; `None` if it is negative.
fn checked_length<T: Unit>(length: T) -> Option<u64> {
    assert_ne!(length, T::count(0), "a length is not zero");
    length.since(T::count(0))
}

/// Returns the positions of a range, up to the largest number.
fn length<T: Unit>(range: &Range<T>) -> u64 {
    if range.end > range.start { range.end.since(range.start).unwrap_or(u64::MAX) } else { 0 }
}

/// Returns `managed` free positions.
fn all(managed: u64) -> BestFitUnits {
    let mut free = BestFitUnits::new();
    if managed > 0 {
        expect_memory(free.add(0, managed));
    }
    free
}

fn expect_memory(result: Result<(), AddError>) {
    if result.is_err() {
        out_of_memory();
    }
}

/// Ends the program as the standard library does if a vector cannot grow.
fn out_of_memory() -> ! {
    std::alloc::handle_alloc_error(std::alloc::Layout::new::<BestFitUnits>())
}

impl<T: Unit> fmt::Debug for RangeAllocator<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let free: Vec<_> = self.free_ranges.iter().map(|(start, end)| self.positions(start, end)).collect();
        f.debug_struct("RangeAllocator")
            .field("initial_range", &self.initial_range)
            .field("free_ranges", &free)
            .finish()
    }
}
