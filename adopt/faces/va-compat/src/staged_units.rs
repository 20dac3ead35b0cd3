//! Free units in a list while there are few holes, and in an index when there are many.
//!
//! # Theory
//! The list becomes an index when it is full. The index becomes a list again at a quarter of the holes that a list can
//! have. So a set at the limit does not change its form at each call.
//!
//! # Invariants
//! Checked by `validate`: the list is empty while there is an index.
//!
//! # Cost
//! That of the form, and O(n log n) for a change of the form, after at least as many calls as there are holes to copy.
//! # Source
//! Our own; the two policies are those of `free-list` 0.3.4 and of `range-alloc` 0.1.5.

use crate::free_units::Begin;
use crate::heap::Heap;
use crate::hole_list::{self, Changed, Hole, HoleMemory, Inline, Listed};
use crate::{AddError, FreeUnits, LIMIT};
use alloc::boxed::Box;
use core::fmt;
use va_base::InvariantViolation;
use va_tree::{BTreeIndex, BTreeIndex32, BestFitIndex, FreeIndex};

/// A set of which the lowest fit is taken, with the first `N` holes inside the value.
///
/// ```
/// use va_compat::{AddError, InlineUnits};
/// static FREE: InlineUnits<4> = InlineUnits::new();
/// let mut free = FREE.clone();
/// free.add(10, 20).unwrap();
/// assert_eq!(free.take_lowest(4, 2, 0, 100), Some(12));
/// assert!(free.iter().eq([(10, 12), (16, 20)]));
/// assert_eq!(free.add(11, 13), Err(AddError::Overlap));
/// assert!(free.take(16, 17) && !free.take(16, 17));
/// assert_eq!(free.total(), 5);
/// ```
pub type InlineUnits<const N: usize> = StagedUnits<Inline<N>, BTreeIndex<Heap>>;

/// A set of ids below 2^32, of which the lowest is taken.
pub type Ids = StagedUnits<Listed<128>, BTreeIndex32<Heap>>;

/// A set of which the best fit is taken.
///
/// ```
/// use va_compat::BestFitUnits;
/// let mut free = BestFitUnits::new();
/// for (start, end) in [(0, 2), (6, 8), (14, 20)] {
///     free.add(start, end).unwrap();
/// }
/// assert_eq!(free.take_best(2), Some(0));
/// assert_eq!(free.take_best(3), Some(14));
/// assert_eq!((free.total(), free.largest()), (5, 3));
/// ```
pub type BestFitUnits = StagedUnits<Listed<1024>, BestFitIndex<BTreeIndex<Heap>, Heap>>;

/// A set of free units, in memory `L` for few holes, or in an index `I`.
pub struct StagedUnits<L: HoleMemory, I: FreeIndex> {
    few: L,
    many: Option<Box<FreeUnits<I>>>,
}

impl<const N: usize, I: FreeIndex> StagedUnits<Inline<N>, I> {
    /// Creates a set of no units. A constant; no memory is allocated.
    #[must_use]
    pub const fn new() -> Self {
        Self { few: Inline::NEW, many: None }
    }
}

impl<const N: usize, I: FreeIndex> StagedUnits<Listed<N>, I> {
    /// Creates a set of no units. A constant; no memory is allocated.
    #[must_use]
    pub const fn new() -> Self {
        Self { few: Listed::NEW, many: None }
    }
}

impl<const N: usize, I: FreeIndex> Default for StagedUnits<Listed<N>, I> {
    fn default() -> Self {
        Self::new()
    }
}

impl<L: HoleMemory, I: FreeIndex> StagedUnits<L, I>
where
    FreeUnits<I>: Begin,
{
    /// Adds the units `[start, end)`. Merges them with what they touch.
    ///
    /// # Errors
    /// See [`AddError`]; nothing has changed.
    #[inline]
    pub fn add(&mut self, start: u64, end: u64) -> Result<(), AddError> {
        if start >= end || end > FreeUnits::<I>::END {
            return Err(AddError::BadRange);
        }
        if self.many.is_none() {
            match hole_list::add(&mut self.few, start, end) {
                Changed::Yes => return Ok(()),
                Changed::No => return Err(AddError::Overlap),
                Changed::Full => self.grow_to_index().ok_or(AddError::NoMemory)?,
            }
        }
        let added = self.many.as_mut().map_or(Ok(()), |many| many.add_below_end(start, end));
        self.shrink_to_list();
        added
    }

    /// Takes the units `[start, end)`. Returns false, and changes nothing, unless all are free and there is memory.
    #[inline]
    pub fn take(&mut self, start: u64, end: u64) -> bool {
        if start >= end {
            return false;
        }
        if self.many.is_none() {
            match hole_list::take(&mut self.few, start, end) {
                Changed::Yes => return true,
                Changed::No => return false,
                Changed::Full => {}
            }
        }
        self.in_index(|many| many.take(start, end))
    }

    /// Takes `len` units at the lowest multiple of `2^align_log2` where they are free within `[low, high)`, and returns
    /// the first.
    #[inline]
    pub fn take_lowest(&mut self, len: u64, align_log2: u32, low: u64, high: u64) -> Option<u64> {
        if self.many.is_none() {
            let found = hole_list::lowest(self.few.holes(), len, align_log2, (low, high));
            let (at, first) = found.filter(|_| len > 0)?;
            if hole_list::cut(&mut self.few, at, first, first + len) == Changed::Yes {
                return Some(first);
            }
        }
        self.in_index(|many| many.take_lowest_within(len, align_log2, low, high))
    }

    /// Lets the set be an index, and calls `f` with it. The default value if there is no memory.
    fn in_index<T: Default>(&mut self, f: impl FnOnce(&mut FreeUnits<I>) -> T) -> T {
        if self.many.is_none() && self.grow_to_index().is_none() {
            return T::default();
        }
        let result = self.many.as_mut().map_or_else(T::default, |many| f(many));
        self.shrink_to_list();
        result
    }

    /// Copies the list to an index. `None` if there is no memory: then it remains a list.
    #[cold]
    fn grow_to_index(&mut self) -> Option<()> {
        let mut many = Box::new(FreeUnits::<I>::none()?);
        for &(start, end) in self.few.holes() {
            many.add_below_end(start, end).ok()?;
        }
        self.clear_list();
        self.many = Some(many);
        Some(())
    }

    /// Copies the index to the list, if it has a quarter of the holes that the list can have.
    #[inline]
    fn shrink_to_list(&mut self) {
        if self.many.as_ref().is_some_and(|many| many.holes() <= L::MAX as u64 / 4) {
            self.copy_to_list();
        }
    }

    #[cold]
    fn copy_to_list(&mut self) {
        let Some(many) = self.many.take() else { return };
        let is_copied = many.iter().enumerate().all(|(at, hole)| self.few.insert(at, hole));
        if !is_copied {
            // No memory for a list: it remains an index.
            self.clear_list();
            self.many = Some(many);
        }
    }

    fn clear_list(&mut self) {
        while let Some(last) = self.few.holes().len().checked_sub(1) {
            self.few.remove(last);
        }
    }

    /// Returns the number of free units. O(1) in an index, and one step a hole in a list.
    #[must_use]
    pub fn total(&self) -> u64 {
        let few: u64 = self.few.holes().iter().map(|(start, end)| end - start).sum();
        self.many.as_ref().map_or(few, |many| many.total())
    }

    /// Returns the units of the longest hole. Cost: as [`total`](Self::total).
    #[must_use]
    pub fn largest(&self) -> u64 {
        let few = self.few.holes().iter().map(|(start, end)| end - start).max();
        self.many.as_ref().map_or(few.unwrap_or(0), |many| many.largest())
    }

    /// Returns the number of holes: maximal runs of free units. O(1).
    #[must_use]
    pub fn holes(&self) -> u64 {
        self.many.as_ref().map_or(self.few.holes().len() as u64, |many| many.holes())
    }

    /// Returns true if `unit` is free.
    #[must_use]
    pub fn contains(&self, unit: u64) -> bool {
        let few = self.few.holes();
        let at = few.partition_point(|hole| hole.0 <= unit);
        at > 0 && unit < few[at - 1].1 || self.many.as_ref().is_some_and(|many| many.contains(unit))
    }

    /// Iterates over the holes as `[start, end)`, in order; O(1) each in a list, O(log n) in an index.
    pub fn iter(&self) -> impl Iterator<Item = Hole> + use<'_, L, I> {
        self.few.holes().iter().copied().chain(self.many.iter().flat_map(|many| many.iter()))
    }

    /// Returns true if the set is an index.
    #[must_use]
    pub fn is_index(&self) -> bool {
        self.many.is_some()
    }

    /// Checks the set with a full walk.
    ///
    /// # Errors
    /// The first rule that does not hold.
    pub fn validate(&self) -> Result<(), InvariantViolation> {
        let few = self.few.holes();
        let sorted = few.windows(2).all(|two| two[0].1 < two[1].0) && few.iter().all(|hole| hole.0 < hole.1);
        let alone = few.is_empty() || self.many.is_none();
        InvariantViolation::check(sorted && alone, "list", va_base::Va::ZERO, 1, 0)?;
        self.many.as_ref().map_or(Ok(()), |many| many.validate())
    }
}

impl<L: HoleMemory> StagedUnits<L, BestFitIndex<BTreeIndex<Heap>, Heap>> {
    /// Takes `len` units of the smallest hole in which they fit, of equal holes the lowest, and returns the first.
    #[inline]
    pub fn take_best(&mut self, len: u64) -> Option<u64> {
        if self.many.is_none() {
            let (at, first) = hole_list::best(self.few.holes(), len).filter(|_| len > 0)?;
            // It begins where the hole does: no hole more is needed.
            return (hole_list::cut(&mut self.few, at, first, first + len) == Changed::Yes).then_some(first);
        }
        self.in_index(|many| many.take_best(len))
    }

    /// Takes `len` units of the hole in which the fewest are left above the first that `padding` permits. `padding`
    /// returns the units from a number to the next multiple of an alignment of `align` units, or `None` if there is none.
    pub fn take_best_aligned(
        &mut self,
        len: u64,
        align: u64,
        padding: impl Fn(u64) -> Option<u64>,
    ) -> Option<u64> {
        let first = match &self.many {
            Some(many) => hole_list::best_aligned(many.by_size(len), len, align, padding, true),
            None => hole_list::best_aligned(self.few.holes().iter().copied(), len, align, padding, false),
        }?;
        self.take(first, first + len).then_some(first)
    }
}

impl<L: HoleMemory + Clone, I: FreeIndex> Clone for StagedUnits<L, I>
where
    FreeUnits<I>: Begin,
{
    /// Copies the holes one by one.
    ///
    /// # Panics
    /// If the global allocator fails, as the collections of the standard library do.
    fn clone(&self) -> Self {
        let mut copy = Self { few: self.few.clone(), many: None };
        if let Some(many) = &self.many {
            let copied = FreeUnits::<I>::none().and_then(|mut copy| {
                many.iter().all(|(start, end)| copy.add_below_end(start, end).is_ok()).then_some(copy)
            });
            let Some(copied) = copied else {
                alloc::alloc::handle_alloc_error(core::alloc::Layout::new::<Self>());
            };
            copy.many = Some(Box::new(copied));
        }
        copy
    }
}

impl<L: HoleMemory, I: FreeIndex> fmt::Debug for StagedUnits<L, I>
where
    FreeUnits<I>: Begin,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter().map(|(start, end)| start..end)).finish()
    }
}

const _: () = assert!(LIMIT < u64::MAX, "sums of a unit and a length that is within the limit fit");

#[cfg(test)]
mod tests;
