//! The same tree, of holes in order of their size: the search for the smallest that is large enough.
//!
//! # Theory
//! The order is that of `(size, start)`. So the first hole of a size is the lowest of that size, and the list goes from
//! each hole to the next larger one. No search needs the largest hole below a node.
//!
//! # Invariants
//! - **ST1 by-size** each hole is larger than the one before it, or has its size and lies above it; none is empty.
//!
//! RB1 to RB4 (see `tree`).
//!
//! # Locking
//! None here: `&mut self` to change it.
//! # Cost
//! 48 bytes a hole, O(log n) for everything but `new`.
//! # Source
//! Our own.

use super::tree::{Hole, Side, Tree};
use crate::slab::NIL;
use va_base::{AllocError, InvariantViolation, Next, Platform, Supply, Va, VaRange};

/// Holes in order of their size.
pub(crate) struct SizeTree {
    pub(super) tree: Tree<false>,
}

/// Memory for the records of holes in order of size.
#[derive(Debug)]
pub struct SizeSupply(Supply<Hole>);

impl SizeSupply {
    pub(crate) fn alloc(next: Next, platform: &impl Platform) -> Option<Self> {
        next.alloc(platform).map(Self)
    }

    pub(crate) fn free(self, platform: &impl Platform) {
        self.0.free(platform);
    }
}

impl SizeTree {
    pub(crate) const fn new() -> Self {
        Self { tree: Tree::new() }
    }

    /// Returns the holes for which there are records.
    pub(crate) fn capacity(&self) -> u64 {
        self.tree.slab.capacity() as u64
    }

    /// Returns the bytes of the records in use, and of all.
    pub(crate) fn bytes(&self) -> (usize, usize) {
        (self.tree.slab.used() * size_of::<Hole>(), self.tree.slab.bytes())
    }

    /// Returns the next piece of memory for records of `holes` holes, and its bytes; `None` if there are enough.
    pub(crate) fn next(&self, holes: u64) -> Option<(Next, usize)> {
        let next = self.tree.slab.next(usize::try_from(holes).ok()?)?;
        Some((next, next.bytes::<Hole>()))
    }

    /// Adds memory.
    ///
    /// # Errors
    /// The memory itself, if the tree has grown otherwise since.
    pub(crate) fn add(&mut self, supply: SizeSupply) -> Result<(), SizeSupply> {
        self.tree.slab.add(supply.0).map_err(SizeSupply)
    }

    /// Makes room for `holes` in all, so that as many can be inserted without a call of the platform.
    ///
    /// # Errors
    /// [`AllocError::NoMeta`] if the platform has no memory. The holes in the tree stay.
    pub(crate) fn reserve(&mut self, holes: u64, platform: &impl Platform) -> Result<(), AllocError> {
        if holes <= self.capacity() {
            return Ok(());
        }
        let want = usize::try_from(holes).map_err(|_| AllocError::NoMeta { records: usize::MAX })?;
        self.tree.slab.reserve(want, platform).map_err(|records| AllocError::NoMeta { records })
    }

    /// Inserts a hole that is not empty. Returns false if it is there already, or has no record.
    #[must_use]
    pub(crate) fn insert(&mut self, hole: VaRange) -> bool {
        let (start, end) = (hole.start().get(), hole.end().get());
        let (mut parent, mut side, mut at) = (NIL, Side::Left, self.tree.root);
        while at != NIL {
            let other = self.tree.get(at);
            side = match key(other).cmp(&(end - start, start)) {
                core::cmp::Ordering::Greater => Side::Left,
                core::cmp::Ordering::Less => Side::Right,
                core::cmp::Ordering::Equal => return false,
            };
            (parent, at) = (at, if side == Side::Left { other.left() } else { other.right() });
        }
        let Some(id) = self.tree.slab.take() else { return false };
        let record = self.tree.get_mut(id);
        (record.start, record.end) = (start, end);
        self.tree.insert(id, parent, side);
        true
    }

    /// Removes a hole. Returns false if it is not there.
    #[must_use]
    pub(crate) fn remove(&mut self, hole: VaRange) -> bool {
        let id = self.first_from(hole.len_bytes(), hole.start().get());
        let found = id != NIL && self.range_of(id) == Some(hole);
        if found {
            self.tree.erase(id);
            self.tree.slab.put(id);
        }
        found
    }

    /// Iterates over the holes of at least `bytes`, the smallest first.
    pub(crate) fn at_least(&self, bytes: u64) -> impl Iterator<Item = VaRange> + '_ {
        let mut id = self.first_from(bytes, 0);
        core::iter::from_fn(move || {
            let hole = self.range_of(id)?;
            id = self.tree.get(id).next;
            Some(hole)
        })
    }

    /// Checks ST1 and RB1 to RB4 with a full walk.
    ///
    /// # Errors
    /// [`InvariantViolation`] names the first rule that does not hold.
    pub(crate) fn validate(&self) -> Result<(), InvariantViolation> {
        self.tree.walk(|hole, smaller| {
            // An end below the start counts as an empty hole.
            let (size, start) = (hole.end.saturating_sub(hole.start), hole.start);
            let last = smaller.map_or((0, u64::MAX), key);
            InvariantViolation::check((size, start) > last, "ST1", Va::new(start), last.0, size)
        })
    }

    /// Frees records beyond `need`, in at most `steps` steps, which it counts down; returns the bytes.
    pub(crate) fn shrink(&mut self, need: u64, steps: &mut usize, platform: &impl Platform) -> usize {
        usize::try_from(need).map_or(0, |need| self.tree.shrink(need, steps, platform))
    }

    /// Empties the tree and frees its memory.
    pub(crate) fn clear(&mut self, platform: &impl Platform) {
        self.tree.slab.return_all(platform);
        *self = Self::new();
    }

    /// Returns the first hole that is not before `(size, start)` in order.
    fn first_from(&self, size: u64, start: u64) -> u32 {
        let (mut id, mut found) = (self.tree.root, NIL);
        let holes = self.tree.slab.view();
        while let Some(hole) = holes.find(id) {
            if key(hole) >= (size, start) {
                (found, id) = (id, hole.left());
            } else {
                id = hole.right();
            }
        }
        found
    }

    fn range_of(&self, id: u32) -> Option<VaRange> {
        if id == NIL {
            return None;
        }
        let hole = self.tree.get(id);
        VaRange::new(Va::new(hole.start), Va::new(hole.end))
    }
}

/// The order of the tree.
#[inline(always)]
fn key(hole: &Hole) -> (u64, u64) {
    (hole.size(), hole.start)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use va_base::{Heap, NoSlabs};

    fn pages(first: u64, end: u64) -> VaRange {
        VaRange::from_pages(first, end).unwrap()
    }

    #[test]
    fn st1_it_answers_as_a_sorted_set() {
        let (mut tree, mut model) = (SizeTree::new(), BTreeSet::new());
        let mut state = 1u64;
        for _ in 0..20_000 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let (page, size) = ((state >> 33) % 100, 1 + (state >> 50) % 9);
            let hole = pages(page, page + size);
            if state >> 63 == 0 {
                tree.reserve(model.len() as u64 + 1, &Heap).unwrap();
                assert_eq!(tree.insert(hole), model.insert((size, page)));
            } else {
                assert_eq!(tree.remove(hole), model.remove(&(size, page)));
            }
            if state.is_multiple_of(16) {
                tree.validate().unwrap();
                let like = model.range((size, 0)..).map(|&(size, page)| pages(page, page + size));
                assert!(tree.at_least(size * 4096).eq(like));
            }
        }
        assert!(model.len() > 64, "it outgrew its inline records: {}", model.len());
        tree.clear(&Heap);
        assert_eq!((tree.bytes().0, tree.at_least(0).count()), (0, 0));
    }

    #[test]
    fn st1_a_spoiled_order_is_named() {
        let mut tree = SizeTree::new();
        assert!(
            [(10, 12), (20, 24), (30, 34)].into_iter().all(|(first, end)| tree.insert(pages(first, end)))
        );
        assert_eq!(tree.validate(), Ok(()));
        for (id, end) in [(0, 15), (1, 20), (2, 33)] {
            let old = tree.tree.get(id).end;
            tree.tree.get_mut(id).end = end * 4096;
            assert_eq!(tree.validate().map_err(|broken| broken.rule), Err("ST1"), "{id}");
            tree.tree.get_mut(id).end = old;
        }
        // Two of a size: the lower one is first. None is there twice.
        for page in [40, 30] {
            (tree.tree.get_mut(1).start, tree.tree.get_mut(1).end) = (page * 4096, (page + 4) * 4096);
            assert_eq!(tree.validate().map_err(|broken| broken.rule), Err("ST1"));
        }
    }

    #[test]
    fn what_was_not_reserved_is_not_inserted() {
        let mut tree = SizeTree::new();
        let room = (0..).find(|&page| !tree.insert(pages(2 * page, 2 * page + 1))).unwrap();
        assert_eq!(tree.capacity(), room);
        assert!(tree.reserve(room, &NoSlabs).is_ok());
        assert_eq!(tree.reserve(room + 3, &NoSlabs), Err(AllocError::NoMeta { records: 3 }));
        tree.validate().unwrap();
        assert!(tree.remove(pages(0, 1)) && tree.insert(pages(9000, 9001)));
    }
}
