//! The reasons for an answer, read from an index after the fact (feature `certify`).
//!
//! # Theory
//! That an address is the lowest fit says something about every lower one. An index knows why none of them fits: it
//! passed subtrees whose longest hole is too short, and holes that are too short, clipped or not aligned. A *cover* is
//! the list of these reasons, in address order and without a gap. It is a claim that a checker can compare with a state
//! of its own (`va-certify`), bound by bound, without knowing any tree.
//!
//! ```text
//!   window low                                  at + size - 1
//!   |  subtree   | subtree |hole|hole|  part of  |
//!   |  max 3     |  max 1  |  2 | 4 c|  the hole |         c: 4 are free, 1 from the first aligned one on
//! ```
//! A fit below `at` would lie inside `[low, at + size - 1)`. No bound there permits it inside its interval, and no fit
//! straddles two intervals, since they meet at a taken unit.
//!
//! All of this reads the index. No operation does more, and no code of an operation changes with the feature.
//!
//! # Cost
//! The lowest and the highest fit: O(F log n) bounds, and one more for each hole that the search itself passes one by
//! one. A cover of the whole window for the best fit: one for each hole that is large enough.

use crate::FreeIndex;

/// One reason: a claim about the units from `low` up to `high`, numbers of units of the index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bound {
    /// No run of free units in `[low, high)` that begins at a multiple of `2^align_log2` is longer than `longest`.
    AtMost {
        /// First unit.
        low: u64,
        /// Unit after the last.
        high: u64,
        /// Units of the longest such run, or more than that.
        longest: u64,
        /// Binary logarithm of the alignment in units.
        align_log2: u32,
    },
    /// `[low, high)` is all of the hole `[start, end)` that the window includes, and the request fits in it.
    Hole {
        /// First unit.
        low: u64,
        /// Unit after the last.
        high: u64,
        /// First unit of the hole.
        start: u64,
        /// Unit after the hole.
        end: u64,
    },
}

/// The units that a cover is about, and the request, in units of the index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Covered {
    /// First unit.
    pub low: u64,
    /// Unit after the last.
    pub high: u64,
    /// Units of the request.
    pub size: u64,
    /// Binary logarithm of its alignment in units.
    pub align_log2: u32,
}

/// An index that can give the reasons for its answers.
///
/// ```
/// use va_base::{Heap, NoSlabs, VaRange};
/// use va_tree::certify::{Bound, Certify, Covered};
/// use va_tree::{BTreeIndex, FreeIndex};
///
/// let space = VaRange::from_pages(16, 32).unwrap();
/// let mut index = BTreeIndex::new(space, space, NoSlabs)?;
/// index.take(VaRange::from_pages(18, 20).unwrap())?;
/// // The lowest fit of three pages is at 20. Why not at 16?
/// let (mut bounds, below) = (Vec::new(), Covered { low: 16, high: 22, size: 3, align_log2: 0 });
/// index.cover(below, &mut |bound| bounds.push(bound));
/// assert_eq!(
///     bounds,
///     [
///         Bound::AtMost { low: 16, high: 20, longest: 2, align_log2: 0 },
///         Bound::AtMost { low: 20, high: 22, longest: 2, align_log2: 0 },
///     ]
/// );
/// # Ok::<(), va_base::AllocError>(())
/// ```
pub trait Certify: FreeIndex {
    /// Calls `each` with bounds that cover `covered`, in address order and without a gap: an [`AtMost`](Bound::AtMost)
    /// for what holds no fit, and a [`Hole`](Bound::Hole) for each other hole. Units outside the extent count as taken.
    /// Cost: see the module.
    fn cover(&self, covered: Covered, each: &mut dyn FnMut(Bound));

    /// Calls `each` with numbers that determine every later answer and every later shape of the structure, as long as
    /// memory does not fail. It omits where records are and how many, which changes neither (SP5). O(n).
    ///
    /// Two indexes of one type that give the same numbers are in the same state. So a search over states can end.
    fn shape(&self, each: &mut dyn FnMut(u64));
}

/// Hole by hole: the cover of an index that has no summaries.
pub(crate) fn cover_by_holes(index: &impl FreeIndex, covered: Covered, each: &mut dyn FnMut(Bound)) {
    let unit = index.unit();
    let mut cover = Cover::new(covered, each);
    let mut next = index.hole_after(unit.address(covered.low));
    while let Some(hole) = next {
        let (start, end) = unit.whole(hole);
        if !cover.reaches_above(start) {
            break;
        }
        cover.hole(start, end);
        next = index.hole_after(hole.end());
    }
    cover.nothing();
}

/// A cover that is written from its low end to its high end.
pub(crate) struct Cover<'a> {
    covered: Covered,
    /// The units below are covered.
    done: u64,
    each: &'a mut dyn FnMut(Bound),
}

impl<'a> Cover<'a> {
    pub(crate) fn new(covered: Covered, each: &'a mut dyn FnMut(Bound)) -> Self {
        Self { covered, done: covered.low, each }
    }

    /// Returns true if units below `high` are still to be covered.
    pub(crate) fn reaches_above(&self, low: u64) -> bool {
        low < self.covered.high
    }

    /// Returns true if the units below `high` are covered, or below what is to be covered.
    pub(crate) fn is_done(&self, high: u64) -> bool {
        high <= self.done
    }

    /// Covers the units up to `high` by a number that the structure stores; returns false if that permits a fit.
    pub(crate) fn at_most(&mut self, high: u64, longest: u64, align_log2: u32) -> bool {
        let excludes = longest < self.covered.size && align_log2 <= self.covered.align_log2;
        if excludes {
            self.push(high, longest, align_log2);
        }
        excludes
    }

    /// Covers the units up to the end of a hole, the next one above.
    pub(crate) fn hole(&mut self, start: u64, end: u64) {
        let (low, high) = (start.max(self.covered.low), end.min(self.covered.high));
        if low >= high {
            return;
        }
        let Covered { size, align_log2, .. } = self.covered;
        // Pages are below 2^52; of bytes, what is aligned may lie above all numbers.
        let pad = low.wrapping_neg() & ((1u64 << align_log2) - 1);
        let usable = (high - low).saturating_sub(pad);
        if !self.at_most(high, usable, align_log2) {
            debug_assert!(usable >= size);
            self.push(low, 0, 0);
            (self.each)(Bound::Hole { low, high, start, end });
            self.done = high;
        }
    }

    /// Covers the rest, in which nothing is free.
    pub(crate) fn nothing(&mut self) {
        self.push(self.covered.high, 0, 0);
    }

    fn push(&mut self, high: u64, longest: u64, align_log2: u32) {
        let high = high.min(self.covered.high);
        if self.done < high {
            (self.each)(Bound::AtMost { low: self.done, high, longest, align_log2 });
            self.done = high;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::btree::BTree;
    use crate::rb::{Exact, RbIndex};
    use std::vec::Vec;
    use va_base::{Heap, NoSlabs, VaRange};

    fn pages(first: u64, end: u64) -> VaRange {
        VaRange::from_pages(first, end).unwrap()
    }

    /// Takes every eighth page from 24 up to `end`, and returns the shape.
    fn shape(mut index: impl Certify, end: u64) -> Vec<u64> {
        (24..end).step_by(8).for_each(|page| _ = index.take(pages(page, page + 1)).unwrap());
        let mut numbers = Vec::new();
        index.shape(&mut |number| numbers.push(number));
        numbers
    }

    #[test]
    fn one_bound_excludes_all_holes_of_a_btree() {
        let mut index = BTree::<u64, 4, Heap>::new(pages(16, 99), pages(16, 99), Heap).unwrap();
        (24..65).step_by(8).for_each(|page| _ = index.take(pages(page, page + 1)).unwrap());
        let mut bounds = Vec::new();
        let covered = Covered { low: 16, high: 99, size: 9, align_log2: 0 };
        index.cover(covered, &mut |bound| bounds.push(bound));
        let below = Bound::AtMost { low: 16, high: 65, longest: 8, align_log2: 0 };
        assert_eq!(bounds, [below, Bound::Hole { low: 65, high: 99, start: 65, end: 99 }]);
    }

    #[test]
    fn the_shape_of_a_red_black_tree_has_all_of_its_nodes() {
        let index = || RbIndex::<Exact, _>::new(pages(16, 99), pages(16, 99), NoSlabs).unwrap();
        // Live areas, holes, free pages. Of each node the hole, the largest below, and the colour.
        let node = |start: u64, end: u64, largest: u64, red| [1, start << 12, end << 12, largest << 12, red];
        let (root, left, right) = (node(25, 32, 66, 0), node(16, 24, 8, 1), node(33, 99, 66, 1));
        let expected = [&[2, 3, 81][..], &root, &left, &[0, 0], &right, &[0, 0]].concat();
        assert_eq!(shape(index(), 33), expected);
    }

    #[test]
    fn the_shape_of_a_btree_has_all_of_its_entries() {
        let index = || BTree::<u64, 4, Heap>::new(pages(16, 99), pages(16, 99), Heap).unwrap();
        // With the holes in order of size come their starts.
        let by_size = shape(crate::BestFitIndex::new(index(), Heap).unwrap(), 33);
        assert_eq!(by_size, [shape(index(), 33), Vec::from([25 << 12, 16 << 12, 33 << 12])].concat());
        // Live areas, holes, free pages; height, longest hole of the tree, last end, start of the top hole; rows. Of
        // each hole the end and the size.
        assert_eq!(shape(index(), 33), [2, 3, 81, 0, 8, 32, 33, 0, 0, 2, 24, 8, 32, 7]);
        // With an inner node of two children and no row. Of each child the bound and the longest hole.
        let children = [2, 32, 8, 2, 24, 8, 32, 7, u64::MAX, 7, 4, 40, 7, 48, 7, 56, 7, 64, 7];
        let expected = [&[6, 7, 77, 1, 8, 64, 65, 0, 0, 2, 0][..], &children[1..]].concat();
        assert_eq!(shape(index(), 65), expected);
        // And with rows, which are numbered: in each the longest run from a multiple of 2, of 4, and so on.
        let numbers: Vec<u64> = (0..18).collect();
        let row = |longest: &[u64]| [longest, &[0; 18][longest.len()..]].concat();
        let (left, right) = (row(&[8, 8, 8, 8]), row(&[6, 4]));
        // The inner node has all classes, too.
        let head = [&[6, 7, 77, 1, 8, 64, 65, 18][..], &numbers, &[1, 2, 18], &numbers].concat();
        let expected = [&head, &children[1..3], &left, &children[3..10], &right, &children[10..]].concat();
        assert_eq!(shape(index().with_rows().unwrap(), 65), expected);
    }
}
