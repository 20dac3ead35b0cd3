//! Leaves and inner nodes: fixed arrays, no header, no pointer.
//!
//! # Theory
//! A leaf holds up to `F` holes as two parallel arrays, ends and sizes, in address order. It stores no count. An unused
//! slot has size zero and the largest end, so a scan for the first end at or above a key needs no length. "Full" is
//! `size[F - 1] != 0` and "fewer than `m`" is `size[m - 1] == 0`.
//!
//! An inner node holds up to `F` children: the id of each, the longest hole below it (`gap`), and a separator `sep`.
//! The separator of the last child, and of unused slots, is the largest key. The real bound of the last child is in an
//! ancestor. So the growth of the last hole of a subtree changes one place, not a chain of them.
//!
//! ```text
//!   inner  sep  |  40 |  97 | MAX | MAX ..        ends in child 0 <= 40 <= starts in child 1
//!          gap  |   9 |  30 |   4 |   0 ..
//!          child|  L3 |  L0 |  L7 | NIL ..
//!   leaf   end  |  44 |  60 |  97 | MAX ..        three holes: [42,44) [30..60) no: ascending and disjoint
//!          size |   2 |   9 |  30 |   0 ..
//! ```

use super::Key;
use super::rows::{CLASSES, Classes};
use crate::slab::{Linked, Movable, NIL};
use va_base::Record;

/// Up to `F` holes in address order.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(super) struct Leaf<K, const F: usize> {
    pub(super) end: [K; F],
    pub(super) size: [K; F],
}

impl<K: Key, const F: usize> Leaf<K, F> {
    /// A leaf without holes.
    pub(super) const WITHOUT_HOLES: Self = Self { end: [K::MAX; F], size: [K::ZERO; F] };

    /// Returns the slots in use, O(F).
    pub(super) fn len(&self) -> usize {
        self.size.iter().filter(|&&size| size != K::ZERO).count()
    }

    #[inline(always)]
    pub(super) fn is_full(&self) -> bool {
        self.size[F - 1] != K::ZERO
    }

    /// Index of the first hole that ends at or above `key`; `F` if there is none and no unused slot.
    #[inline(always)]
    pub(super) fn first_end_from(&self, key: K) -> usize {
        first_from(&self.end, key)
    }

    #[inline(always)]
    pub(super) fn max_size(&self) -> K {
        let mut max = K::ZERO;
        for group in self.size.chunks_exact(const { together(F) }) {
            max = max.max(max_of(group));
            if group[const { together(F) } - 1] == K::ZERO {
                break;
            }
        }
        max
    }

    /// Opens slot `at` for a hole. The leaf must not be full.
    ///
    /// Moves element by element, and stops at the first unused slot. A wide load from a line that was just written in
    /// narrow stores waits for them. That costs a small tree more than the moves (three times, measured).
    #[inline(always)]
    pub(super) fn insert(&mut self, at: usize, mut end: K, mut size: K) {
        for slot in at..F {
            core::mem::swap(&mut self.end[slot], &mut end);
            core::mem::swap(&mut self.size[slot], &mut size);
            if size == K::ZERO {
                return;
            }
        }
    }

    /// Closes slot `at`.
    #[inline(always)]
    pub(super) fn remove(&mut self, at: usize) {
        for slot in at..F - 1 {
            let size = self.size[slot + 1];
            self.end[slot] = self.end[slot + 1];
            self.size[slot] = size;
            if size == K::ZERO {
                return;
            }
        }
        (self.end[F - 1], self.size[F - 1]) = (K::MAX, K::ZERO);
    }
}

impl<K: Key, const F: usize> Record for Leaf<K, F> {
    // Zeros, so that the fill of a slab is one call. Nothing reads them.
    const EMPTY: Self = Self { end: [K::ZERO; F], size: [K::ZERO; F] };
}

impl<K: Key, const F: usize> Linked for Leaf<K, F> {
    fn links(&self) -> [u32; 2] {
        [self.end[0].get() as u32, self.end[1].get() as u32]
    }

    fn set_links(&mut self, links: [u32; 2]) {
        let [previous, next] = links.map(|id| K::of(u64::from(id)));
        (self.end[0], self.end[1]) = (previous, next);
        (self.size[0], self.size[1]) = (K::ZERO, K::of(1));
    }
}

impl<K: Key, const F: usize> Movable for Leaf<K, F> {
    fn is_free(&self) -> bool {
        // A second hole without a first: no leaf in use has that.
        self.size[0] == K::ZERO && self.size[1] != K::ZERO
    }
}

/// Up to `F` children with their summaries.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(super) struct Inner<K, const F: usize> {
    pub(super) sep: [K; F],
    pub(super) gap: [K; F],
    pub(super) child: [u32; F],
    /// The classes of which it has a row, if the tree has dropped no rows since: `epoch` is the tree's.
    pub(super) built: Classes,
    pub(super) epoch: u64,
    /// Its alignment rows, by class; undefined for classes without rows.
    pub(super) row: [u32; CLASSES],
}

impl<K: Key, const F: usize> Inner<K, F> {
    /// Returns the slots in use, O(F).
    pub(super) fn len(&self) -> usize {
        self.child.iter().filter(|&&child| child != NIL).count()
    }

    #[inline(always)]
    pub(super) fn is_full(&self) -> bool {
        self.child[F - 1] != NIL
    }

    /// Index of the first child that may have a hole that ends at or above `key`.
    #[inline(always)]
    pub(super) fn route(&self, key: K) -> usize {
        // The last child's separator is MAX, so this always finds one; the bound keeps the result in range.
        first_from(&self.sep, key).min(F - 1)
    }

    #[inline(always)]
    pub(super) fn max_gap(&self) -> K {
        max_of(&self.gap)
    }

    /// Opens slot `at`. The node must not be full.
    pub(super) fn insert(&mut self, at: usize, sep: K, gap: K, child: u32) {
        insert_at(&mut self.sep, at, sep);
        insert_at(&mut self.gap, at, gap);
        insert_at(&mut self.child, at, child);
    }

    /// Closes slot `at`.
    pub(super) fn remove(&mut self, at: usize) {
        remove_at(&mut self.sep, at, K::MAX);
        remove_at(&mut self.gap, at, K::ZERO);
        remove_at(&mut self.child, at, NIL);
    }
}

impl<K: Key, const F: usize> Record for Inner<K, F> {
    // Zeros, as those of a leaf.
    const EMPTY: Self = Self {
        sep: [K::ZERO; F],
        gap: [K::ZERO; F],
        child: [0; F],
        built: Classes::NONE,
        epoch: 0,
        row: [0; CLASSES],
    };
}

impl<K: Key, const F: usize> Linked for Inner<K, F> {
    fn links(&self) -> [u32; 2] {
        [self.child[1], self.child[2]]
    }

    fn set_links(&mut self, [previous, next]: [u32; 2]) {
        (self.child[0], self.child[1], self.child[2]) = (NIL, previous, next);
        self.gap[0] = K::of(1);
    }
}

impl<K: Key, const F: usize> Movable for Inner<K, F> {
    fn is_free(&self) -> bool {
        // A gap without a child: no node in use has that.
        self.child[0] == NIL && self.gap[0] != K::ZERO
    }
}

/// Slots that a scan takes together: eight, or all of a smaller node.
const fn together(fanout: usize) -> usize {
    if fanout < 8 { fanout } else { 8 }
}

/// Index of the first of the ascending `values` at or above `key`; `F` if there is none.
///
/// Wide values are counted in groups of eight: the position within a group cannot be predicted, but the group often can.
/// There are more narrow values, and for them a scan that ends early is faster (both measured).
#[inline(always)]
fn first_from<K: Key, const F: usize>(values: &[K; F], key: K) -> usize {
    if size_of::<K>() < size_of::<u64>() {
        return values.iter().position(|&value| value >= key).unwrap_or(F);
    }
    let mut first = 0;
    for group in values.chunks_exact(const { together(F) }) {
        if group[const { together(F) } - 1] < key {
            first += const { together(F) };
            continue;
        }
        return first + group.iter().map(|&value| usize::from(value < key)).sum::<usize>();
    }
    first
}

/// Index of the first of `values` that is at least `wanted`, from `from` on.
#[inline(always)]
pub(super) fn first_promise<K: Key, const F: usize>(
    values: &[K; F],
    from: usize,
    wanted: K,
) -> Option<usize> {
    if from > 0 {
        return (from..F).find(|&slot| values[slot] >= wanted);
    }
    // From a constant the compiler unrolls the scan: three instructions a slot in place of six.
    values.iter().position(|&value| value >= wanted)
}

/// Largest element. No branch: nothing predicts which of them it is.
#[inline(always)]
pub(super) fn max_of<K: Key>(values: &[K]) -> K {
    values.iter().fold(K::ZERO, |max, &value| core::hint::select_unpredictable(value > max, value, max))
}

/// Shifts `values[at..]` up by one, dropping the last, and writes `value` at `at`.
#[inline(always)]
pub(super) fn insert_at<T: Copy, const F: usize>(values: &mut [T; F], at: usize, value: T) {
    values.copy_within(at..F - 1, at + 1);
    values[at] = value;
}

/// Shifts `values[at + 1..]` down by one and writes `unused` into the last.
#[inline(always)]
pub(super) fn remove_at<T: Copy, const F: usize>(values: &mut [T; F], at: usize, unused: T) {
    values.copy_within(at + 1.., at);
    values[F - 1] = unused;
}

/// Moves `from[first..len]` to the beginning of `to` and fills the old slots with `unused`.
pub(super) fn move_tail<T: Copy, const F: usize>(
    from: &mut [T; F],
    first: usize,
    len: usize,
    to: &mut [T; F],
    unused: T,
) {
    to[..len - first].copy_from_slice(&from[first..len]);
    from[first..len].fill(unused);
}
