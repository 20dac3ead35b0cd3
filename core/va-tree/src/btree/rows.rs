//! Alignment rows: per child, the longest *aligned* section of any hole below it, one number per alignment class.
//!
//! # Theory
//! Let `pad_k(h)` be the pages from the start of hole `h` to the next multiple of `2^k`. The usable length of `h` is
//! `usable_k(h) = max(0, size - pad_k)`. A request of `s` pages aligned to `2^k` fits in `h` if and only if
//! `usable_k(h) >= s`. The row of class k has, for every child, the maximum of `usable_k` below it. So a descent that
//! takes the first child with `row_k >= s` is never misled and never comes back: O(log n) for every set of holes. A
//! single longest-gap value misleads. Take 100,000 holes of 1023 pages, each one page past a multiple of 1024. All look
//! large enough for 512 pages aligned to 1024, and all but a few are not.
//!
//! A gap is the row of class 0, and a row is maintained as a gap is: eagerly, exactly, and level by level until one
//! does not change. Each class costs that again on every change. So the tree stores only classes that a search needed
//! and did not have (a kernel requests two or three). A row is a separate record of 128 bytes, so a class costs memory
//! only from its first use on. It is built in steps by the requests of its alignment (see `build`). Rows are a cache. If
//! the platform has no memory for one, a class is not stored, and its requests walk over the holes until there is
//! memory. Above `2^18` pages (1 GiB) rows can only exclude. Such a request
//! is still exact, with a walk over the holes that class 18 cannot exclude, O(n).
//!
//! ```text
//!   inner   gap  |   9 |  30 |   4 |   0 ..      usable_0, always stored
//!   row 1        |   8 |  30 |   3 |   0 ..      pages after the first multiple of 2
//!   row 2        |   6 |  28 |   0 |   0 ..      ... of 4, if a request was aligned to 4
//! ```
//!
//! # Invariants
//! - **BT4 rows** if an inner node has the row of a class, `row[k][i]` is the maximum of `usable_k` over all holes below
//!   child `i`; rows of unused slots are zero.

use super::Key;
use super::node::Leaf;
use super::search::Wanted;
use crate::slab::Linked;
use va_base::Record;

/// Number of alignment classes: `2^1` to `2^18` pages (8 KiB to 1 GiB).
pub(super) const CLASSES: usize = 18;

/// The row of one class of one inner node.
#[derive(Clone, Copy)]
pub(super) struct Row<K, const F: usize>(pub(super) [K; F]);

impl<K: Key, const F: usize> Record for Row<K, F> {
    const EMPTY: Self = Self([K::ZERO; F]);
}

impl<K: Key, const F: usize> Linked for Row<K, F> {
    fn links(&self) -> [u32; 2] {
        [self.0[0].get() as u32, self.0[1].get() as u32]
    }

    fn set_links(&mut self, links: [u32; 2]) {
        let [previous, next] = links.map(|id| K::of(u64::from(id)));
        (self.0[0], self.0[1]) = (previous, next);
    }
}

/// A set of classes, one bit each: bit `k - 1` is for `2^k` pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Classes(u32);

impl Classes {
    pub(super) const NONE: Self = Self(0);
    pub(super) const ALL: Self = Self((1 << CLASSES) - 1);

    /// Returns the class of an alignment to `2^log2` pages, `log2 > 0`: the row with the best bound for it.
    #[inline(always)]
    pub(super) fn of_align(log2: u32) -> usize {
        (log2 as usize).min(CLASSES) - 1
    }

    #[inline(always)]
    pub(super) fn only(class: usize) -> Self {
        Self(1 << class)
    }

    #[inline(always)]
    pub(super) fn is_empty(self) -> bool {
        self.0 == 0
    }

    #[inline(always)]
    pub(super) fn has(self, class: usize) -> bool {
        self.0 & (1 << class) != 0
    }

    /// Returns the highest class of the set up to `class`: its row excludes most for a request of that class. What is
    /// usable for an alignment is usable for a smaller one.
    #[inline(always)]
    pub(super) fn up_to(self, class: usize) -> Option<usize> {
        let stored = self.0 & ((2 << class) - 1);
        stored.checked_ilog2().map(|highest| highest as usize)
    }

    pub(super) fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    pub(super) fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Returns the set as bits.
    pub(super) fn bits(self) -> u32 {
        self.0
    }

    /// Number of classes in the set.
    #[inline(always)]
    pub(super) fn count(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Returns the classes in it, smallest first.
    #[inline(always)]
    pub(super) fn each(self) -> impl Iterator<Item = usize> {
        let mut left = self.0;
        core::iter::from_fn(move || {
            let class = left.trailing_zeros();
            // Clears the lowest bit; of zero there is none.
            left &= left.wrapping_sub(1);
            (class < u32::BITS).then_some(class as usize)
        })
    }
}

/// Pages of an alignment less one.
#[inline(always)]
fn class_mask<K: Key>(class: usize) -> K {
    K::of((2u64 << class) - 1)
}

/// Returns the pages from the start of a hole to the next multiple of `mask + 1`. The tree's base is a multiple of
/// `2^18`, so relative alignment is alignment.
#[inline(always)]
fn pad<K: Key>(end: K, size: K, mask: K) -> K {
    (end - size).wrapping_neg() & mask
}

/// Returns the usable length of one hole that ends at `end`.
#[inline(always)]
pub(super) fn usable<K: Key>(end: K, size: K, class: usize) -> K {
    size.saturating_sub(pad(end, size, class_mask(class)))
}

/// Returns the longest usable length of all holes of a leaf, if it is more than `least`; else that.
#[inline(never)]
pub(super) fn usable_in_leaf<K: Key, const F: usize>(
    end: &[K; F],
    size: &[K; F],
    class: usize,
    least: K,
) -> K {
    let mut max = least;
    // An unused slot has size 0 and contributes nothing, whatever its end.
    for (&end, &size) in end.iter().zip(size) {
        if size > max {
            max = max.max(usable(end, size, class));
        }
    }
    max
}

/// Returns the first hole of a leaf from `from` on with a usable length for `wanted`, which has an alignment.
// Apart, so that searches without an alignment keep their registers.
#[inline(never)]
pub(super) fn first_usable<K: Key, const F: usize>(
    leaf: &Leaf<K, F>,
    from: usize,
    wanted: &Wanted,
) -> Option<usize> {
    let (mask, wanted) = (class_mask(Classes::of_align(wanted.align_log2)), K::of(wanted.size));
    (from..F).find(|&slot| {
        let (end, size) = (leaf.end[slot], leaf.size[slot]);
        size >= wanted && pad(end, size, mask) <= size - wanted
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Usable pages by trying every start.
    fn by_trying(start: u64, end: u64, k: usize) -> u64 {
        (start..end).find(|page| page % (1 << k) == 0).map_or(0, |page| end - page)
    }

    #[test]
    fn bt4_a_row_is_what_trying_every_start_gives() {
        for start in 0..70u64 {
            for size in 1..40 {
                for class in 0..CLASSES {
                    let expected = by_trying(start, start + size, class + 1);
                    assert_eq!(
                        usable(start + size, size, class),
                        expected,
                        "[{start}, +{size}) 2^{}",
                        class + 1
                    );
                }
            }
        }
    }

    #[test]
    fn a_row_near_the_top_of_32_bits_does_not_wrap() {
        // Starts at 2^32 - 11: the next multiples of 2, 4, 8 are 2^32 - 10, 2^32 - 8, 2^32 - 8; of 16, past its end.
        let row = |class| usable::<u32>(u32::MAX, 10, class);
        assert_eq!([row(0), row(1), row(2), row(3), row(CLASSES - 1)], [9, 7, 7, 0, 0]);
    }

    #[test]
    fn an_alignment_above_the_largest_class_has_that_one() {
        assert_eq!((Classes::of_align(1), Classes::of_align(18), Classes::of_align(51)), (0, 17, 17));
        assert!(Classes::ALL.each().eq(0..CLASSES));
        assert!(Classes::ALL.without(Classes::only(3)).each().all(|class| class != 3));
        assert_eq!(Classes::ALL.with(Classes::only(3)), Classes::ALL);
    }
}
