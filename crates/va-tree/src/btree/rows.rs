//! Alignment rows: per child, the longest *aligned* part of any hole below it, one number per alignment.
//!
//! # Theory
//! With `pad_k(h)` the pages from the start of hole `h` to the next multiple of `2^k`, its usable length is
//! `usable_k(h) = max(0, size - pad_k)`: a request of `s` pages aligned to `2^k` fits in `h` if and only if
//! `usable_k(h) >= s`. A row keeps, for every k from 1 to [`CLASSES`], the maximum of `usable_k` below a child. So a
//! descent that takes the first child with `row[k] >= s` meets no false promise and never comes back: O(log n),
//! whatever the holes look like. A single longest-gap value promises too much: 100,000 holes of 1023 pages, each one
//! page past a multiple of 1024, all look large enough for 512 pages aligned to 1024 and all but a few are not.
//!
//! Rows are kept eagerly, and exactly: a hole that grows raises each class, a hole that shrinks makes those
//! classes be computed anew of which it was the maximum, and only those. Above `2^18` pages (1 GiB) rows cannot promise, only
//! exclude: such a request is still answered exactly, with a walk over the holes that class 18 cannot exclude, O(n).
//!
//! # Invariants
//! - **BT4 rows** while rows are on, every inner node has a row block, and `row[i][k]` is the maximum of `usable_k` over
//!   all holes below child `i`; unused slots are zero.

use super::Key;
use crate::slab::Linked;
use va_base::Record;

/// Alignments that have a class of their own: `2^1` to `2^18` pages (8 KiB to 1 GiB).
pub(super) const CLASSES: usize = 18;

/// One number per alignment class; entry `k - 1` is for `2^k` pages.
pub(super) type Row<K> = [K; CLASSES];

/// The rows of one inner node.
#[derive(Clone, Copy)]
pub(super) struct RowBlock<K, const F: usize> {
    pub(super) row: [Row<K>; F],
}

impl<K: Key, const F: usize> Record for RowBlock<K, F> {
    const EMPTY: Self = Self { row: [[K::ZERO; CLASSES]; F] };
}

impl<K: Key, const F: usize> Linked for RowBlock<K, F> {
    fn link(&self) -> u32 {
        self.row[0][0].get() as u32
    }

    fn set_link(&mut self, id: u32) {
        self.row[0][0] = K::of(u64::from(id));
    }
}

/// `2^k - 1` for each class.
#[inline(always)]
fn masks<K: Key>() -> Row<K> {
    core::array::from_fn(|i| K::of((2u64 << i) - 1))
}

/// The row of one hole that ends at `end`. The tree's base is a multiple of `2^18`, so relative alignment is alignment.
#[inline(always)]
pub(super) fn row_of<K: Key>(end: K, size: K) -> Row<K> {
    let below = (end - size).wrapping_neg();
    masks::<K>().map(|mask| size.saturating_sub(below & mask))
}

/// Raises each class of `row` to that of `other`; tells whether any rose.
#[inline(always)]
pub(super) fn raise<K: Key>(row: &mut Row<K>, other: &Row<K>) -> bool {
    let mut rose = false;
    for (mine, &theirs) in row.iter_mut().zip(other) {
        rose |= theirs > *mine;
        *mine = (*mine).max(theirs);
    }
    rose
}

/// The classes, one bit each, of which `row` is the maximum in `of`, zero aside: what falls when `row` does.
#[inline(always)]
pub(super) fn held_up<K: Key>(row: &Row<K>, of: &Row<K>) -> u32 {
    let mut held = 0;
    for (class, (&mine, &max)) in row.iter().zip(of).enumerate() {
        held |= u32::from(mine == max && max != K::ZERO) << class;
    }
    held
}

/// The indexes of the set bits of `classes`.
#[inline(always)]
pub(super) fn each(mut classes: u32) -> impl Iterator<Item = usize> {
    core::iter::from_fn(move || {
        let class = classes.trailing_zeros();
        // Clears the lowest bit; of zero there is none.
        classes &= classes.wrapping_sub(1);
        (class < u32::BITS).then_some(class as usize)
    })
}

/// One class of the row of all holes of a leaf.
#[inline(always)]
pub(super) fn class_of_leaf<K: Key, const F: usize>(end: &[K; F], size: &[K; F], class: usize) -> K {
    let mask = K::of((2u64 << class) - 1);
    let mut max = K::ZERO;
    for (&end, &size) in end.iter().zip(size) {
        max = max.max(size.saturating_sub((end - size).wrapping_neg() & mask));
    }
    max
}

/// One class of the row of all children of an inner node.
#[inline(always)]
pub(super) fn class_of_block<K: Key, const F: usize>(rows: &[Row<K>; F], class: usize) -> K {
    rows.iter().map(|row| row[class]).fold(K::ZERO, K::max)
}

/// The row of all holes of a leaf.
pub(super) fn row_of_leaf<K: Key, const F: usize>(end: &[K; F], size: &[K; F]) -> Row<K> {
    let mut row = [K::ZERO; CLASSES];
    for (&end, &size) in end.iter().zip(size) {
        // An unused slot has size 0 and contributes nothing, whatever its end.
        raise(&mut row, &row_of(end, size));
    }
    row
}

/// The row of all children of an inner node.
pub(super) fn row_of_block<K: Key, const F: usize>(rows: &[Row<K>; F]) -> Row<K> {
    let mut row = rows[0];
    for other in &rows[1..] {
        raise(&mut row, other);
    }
    row
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Usable pages by trying every start.
    fn usable(start: u64, end: u64, k: usize) -> u64 {
        (start..end).find(|page| page % (1 << k) == 0).map_or(0, |page| end - page)
    }

    #[test]
    fn bt4_a_row_is_what_trying_every_start_gives() {
        for start in 0..70u64 {
            for size in 1..40 {
                let row = row_of(start + size, size);
                for k in 1..=CLASSES {
                    assert_eq!(row[k - 1], usable(start, start + size, k), "[{start}, +{size}) 2^{k}");
                }
            }
        }
    }

    #[test]
    fn a_row_near_the_top_of_32_bits_does_not_wrap() {
        // Starts at 2^32 - 11: the next multiples of 2, 4, 8 are 2^32 - 10, 2^32 - 8, 2^32 - 8; of 16, past its end.
        let row = row_of::<u32>(u32::MAX, 10);
        assert_eq!((&row[..3], &row[3..]), (&[9, 7, 7][..], &[0; CLASSES - 3][..]));
    }
}
