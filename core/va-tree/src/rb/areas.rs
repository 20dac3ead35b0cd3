//! The same tree, of areas instead of holes: the lookup of an address, as in Linux.
//!
//! # Theory
//! Busy areas do not merge, so a range that touches another stays separate, and no search needs the largest. The tree
//! is a plain red-black tree, with the list beside it for the next area above. Tests compare it with the page map,
//! which needs neither a lock nor records. `docs/decisions/0007-page-map.md` has the figures of both.
//!
//! # Invariants
//! - **AT1 disjoint** areas are in address order, none empty, none overlapping the next.
//!
//! RB1 to RB4 (see `tree`).
//!
//! # Locking
//! None here: `&mut self` to change it.
//! # Cost
//! 48 bytes an area, O(log n) for everything but `new`.
//! # Source
//! Linux `mm/vmalloc.c` (6.12: `insert_vmap_area`, `unlink_va`, `__find_vmap_area`, `__find_vmap_area_exceed_addr`).

use super::tree::{Hole, Side, Tree};
use crate::slab::NIL;
use va_base::{AllocError, InvariantViolation, Meta, Next, Platform, Supply, Va, VaRange};

/// A red-black tree of disjoint areas, found by any address inside them.
///
/// ```
/// use va_base::{NoSlabs, Va, VaRange};
/// use va_tree::rb::AreaTree;
///
/// let mut tree = AreaTree::new();
/// tree.reserve(2, &NoSlabs)?;
/// for pages in [(1, 4), (4, 6)] {
///     tree.insert(VaRange::from_pages(pages.0, pages.1).unwrap())?;
/// }
/// assert_eq!(tree.enclosing(Va::from_page(5)), VaRange::from_pages(4, 6));
/// assert_eq!(tree.remove(Va::from_page(1)), VaRange::from_pages(1, 4));
/// assert_eq!(tree.above(Va::ZERO), VaRange::from_pages(4, 6));
/// # Ok::<(), va_base::AllocError>(())
/// ```
pub struct AreaTree {
    tree: Tree<false>,
}

impl core::fmt::Debug for AreaTree {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("AreaTree").finish_non_exhaustive()
    }
}

impl AreaTree {
    /// Creates a tree without areas. No platform is called yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { tree: Tree::new() }
    }

    /// Returns the number of areas.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.tree.slab.used() as u64
    }

    /// Returns true if there is no area.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tree.root == NIL
    }

    /// Makes room for `areas` in all, so that as many can be inserted without a call of the platform.
    ///
    /// # Errors
    /// [`AllocError::NoMeta`] if the platform has no memory. The areas in the tree stay.
    pub fn reserve(&mut self, areas: u64, platform: &impl Platform) -> Result<(), AllocError> {
        let want = usize::try_from(areas).map_err(|_| AllocError::NoMeta { records: usize::MAX })?;
        self.tree.slab.reserve(want, platform).map_err(|records| AllocError::NoMeta { records })
    }

    /// Returns the memory that is missing for `areas` in all. `None` if none is, or if no memory could help.
    ///
    /// So a caller under a lock can release it, allocate ([`AreasWanted::alloc`]), and add the memory
    /// ([`donate`](Self::donate)), until nothing is missing.
    #[must_use]
    pub fn wanted(&self, areas: u64) -> Option<AreasWanted> {
        let (slab, want) = (&self.tree.slab, usize::try_from(areas).ok()?);
        if slab.capacity() >= want {
            return None;
        }
        let wanted = AreasWanted { flat: slab.next_flat(want), next: slab.next(want) };
        (wanted.flat.is_some() || wanted.next.is_some()).then_some(wanted)
    }

    /// Adds memory, and returns what is left over, to be freed: the memory itself, if the tree has grown otherwise since,
    /// or the memory that the areas moved out of.
    #[must_use]
    pub fn donate(&mut self, supply: AreaSupply) -> Option<AreaSupply> {
        match supply {
            AreaSupply(Of::Flat(flat)) => {
                let left = self.tree.slab.add_flat(flat);
                (!left.is_empty()).then_some(AreaSupply(Of::Flat(left)))
            }
            AreaSupply(Of::Piece(piece)) => {
                self.tree.slab.add(piece).err().map(|unused| AreaSupply(Of::Piece(unused)))
            }
        }
    }

    /// Inserts an area.
    ///
    /// # Errors
    /// [`AllocError::BadRange`] if it is empty, [`AllocError::Occupied`] if it overlaps another one,
    /// [`AllocError::NoMeta`] if no record was reserved. Nothing has changed.
    pub fn insert(&mut self, range: VaRange) -> Result<(), AllocError> {
        if range.is_empty() {
            return Err(AllocError::BadRange { range, extent: VaRange::ALL });
        }
        let (start, end) = (range.start().get(), range.end().get());
        let place = if self.is_empty() {
            Some((NIL, Side::Left))
        } else {
            self.tree.find_link(self.tree.root, start, end)
        };
        let (parent, side) = place.ok_or(AllocError::Occupied { range })?;
        let id = self.tree.slab.take().ok_or(AllocError::NoMeta { records: 1 })?;
        let area = self.tree.get_mut(id);
        (area.start, area.end) = (start, end);
        self.tree.insert(id, parent, side);
        Ok(())
    }

    /// Removes the area that starts at `start`, if there is one.
    pub fn remove(&mut self, start: Va) -> Option<VaRange> {
        let id = self.starting_at(start)?;
        let range = self.range_of(id);
        self.tree.erase(id);
        self.tree.slab.put(id);
        range
    }

    /// Returns the area that starts at `start`.
    #[must_use]
    pub fn find(&self, start: Va) -> Option<VaRange> {
        self.range_of(self.starting_at(start)?)
    }

    /// Returns the area that contains `at`.
    #[must_use]
    pub fn enclosing(&self, at: Va) -> Option<VaRange> {
        self.above(at).filter(|range| range.start() <= at)
    }

    /// Returns the lowest area that ends above `at`.
    #[must_use]
    pub fn above(&self, at: Va) -> Option<VaRange> {
        self.range_of(self.tree.first_ending_above(at.get()))
    }

    /// Iterates over all areas, in address order.
    pub fn areas(&self) -> impl Iterator<Item = VaRange> + '_ {
        let mut id = self.tree.first();
        core::iter::from_fn(move || {
            let range = self.range_of(id)?;
            id = self.tree.get(id).next;
            Some(range)
        })
    }

    /// Checks AT1 and RB1 to RB4 with a full walk.
    ///
    /// # Errors
    /// [`InvariantViolation`] names the first rule that does not hold.
    pub fn validate(&self) -> Result<(), InvariantViolation> {
        self.tree.walk(|area, below| {
            let (at, last) = (Va::new(area.start), below.map_or(0, |below| below.end));
            InvariantViolation::check(area.start >= last, "AT1", at, last, area.start)?;
            InvariantViolation::check(area.start < area.end, "AT1", at, area.end, area.start)
        })
    }

    /// Frees records beyond `need`, in at most `steps` steps, which it counts down; returns the bytes.
    pub(crate) fn shrink(&mut self, need: u64, steps: &mut usize, platform: &impl Platform) -> usize {
        usize::try_from(need).map_or(0, |need| self.tree.shrink(need, steps, platform))
    }

    /// Empties the tree and frees its memory.
    pub fn clear(&mut self, platform: &impl Platform) {
        self.tree.slab.return_all(platform);
        *self = Self::new();
    }

    fn starting_at(&self, start: Va) -> Option<u32> {
        let id = self.tree.last_starting_to(start.get());
        (id != NIL && self.tree.get(id).start == start.get()).then_some(id)
    }

    fn range_of(&self, id: u32) -> Option<VaRange> {
        if id == NIL {
            return None;
        }
        let area = self.tree.get(id);
        VaRange::new(Va::new(area.start), Va::new(area.end))
    }
}

/// The memory that an [`AreaTree`] is missing. Plain data, stale once the tree has grown otherwise.
#[derive(Clone, Copy, Debug)]
pub struct AreasWanted {
    flat: Option<usize>,
    next: Option<Next>,
}

impl AreasWanted {
    /// Allocates the memory; `None` if the platform has none.
    #[must_use]
    pub fn alloc(self, platform: &impl Platform) -> Option<AreaSupply> {
        let flat = self.flat.and_then(|len| platform.alloc_meta(len));
        if let Some(flat) = flat {
            return Some(AreaSupply(Of::Flat(Meta::new(flat))));
        }
        Some(AreaSupply(Of::Piece(self.next?.alloc(platform)?)))
    }
}

/// Memory for the areas of an [`AreaTree`].
#[derive(Debug)]
#[must_use]
pub struct AreaSupply(Of);

#[derive(Debug)]
enum Of {
    /// The first records in one piece, into which they move.
    Flat(Meta<&'static mut [Hole]>),
    /// A piece for further ones.
    Piece(Supply<Hole>),
}

impl AreaSupply {
    /// Frees memory that was not used.
    pub fn free(self, platform: &impl Platform) {
        match self.0 {
            Of::Flat(flat) => platform.free_meta(flat),
            Of::Piece(piece) => piece.free(platform),
        }
    }
}

impl Default for AreaTree {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use va_base::{Heap, LimitedHeap, NoSlabs};

    fn pages(first: u64, end: u64) -> VaRange {
        VaRange::from_pages(first, end).unwrap()
    }

    #[test]
    fn at1_it_answers_as_a_sorted_map() {
        let (mut tree, mut model) = (AreaTree::new(), BTreeMap::new());
        let mut state = 1u64;
        for _ in 0..20_000 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let (page, size) = ((state >> 33) % 900, (state >> 50) % 9);
            let range = pages(page, page + size);
            let at = Va::new(range.start().get() + (state >> 20) % 4096);
            if state >> 63 == 0 {
                tree.reserve(tree.len() + 1, &Heap).unwrap();
                let free = model.range(..page + size).next_back().is_none_or(|(_, &end)| end <= page);
                assert_eq!(tree.insert(range).is_ok(), size > 0 && free, "{range}");
                if size > 0 && free {
                    model.insert(page, page + size);
                }
            } else {
                assert_eq!(tree.remove(at).is_some(), at == range.start() && model.contains_key(&page));
                let want = model.remove(&page).map(|end| pages(page, end));
                let again = tree.remove(range.start());
                assert!(again == want || (at == range.start() && again.is_none()));
            }
            let inside = model.range(..=page).next_back().filter(|(_, end)| **end > page);
            let inside = inside.map(|(&first, &end)| pages(first, end));
            let above = inside.or_else(|| model.range(page..).next().map(|(&first, &end)| pages(first, end)));
            assert_eq!((tree.enclosing(at), tree.above(at)), (inside, above));
            assert_eq!(tree.find(at), inside.filter(|inside| inside.start() == at));
            if state.is_multiple_of(16) {
                tree.validate().unwrap();
                assert!(tree.areas().eq(model.iter().map(|(&first, &end)| pages(first, end))));
            }
        }
        assert!(tree.len() > 64, "it outgrew its inline records: {}", tree.len());
        tree.clear(&Heap);
        assert_eq!((tree.is_empty(), tree.len()), (true, 0));
    }

    #[test]
    fn at1_areas_that_overlap_or_are_empty_are_errors_and_a_spoiled_tree_is_named() {
        let mut tree = AreaTree::new();
        tree.insert(pages(10, 20)).unwrap();
        tree.insert(pages(20, 30)).unwrap();
        for (first, end) in [(9, 11), (19, 20), (12, 13), (0, 100), (10, 20)] {
            let range = pages(first, end);
            assert_eq!(tree.insert(range), Err(AllocError::Occupied { range }));
        }
        assert!(matches!(tree.insert(pages(5, 5)), Err(AllocError::BadRange { .. })));
        tree.validate().unwrap();
        tree.tree.get_mut(0).end += 4096;
        assert_eq!(tree.validate().map_err(|broken| broken.rule), Err("AT1"));
        tree.tree.get_mut(0).end = tree.tree.get(0).start;
        assert_eq!(tree.validate().map_err(|broken| broken.rule), Err("AT1"));
    }

    #[test]
    fn donated_memory_is_used_or_left_over_and_a_tree_needs_no_other() {
        // Slabs of any length, and of a page alone.
        for limit in [usize::MAX, 4096] {
            let heap = LimitedHeap::new();
            heap.limit(limit);
            let mut tree = AreaTree::new();
            for page in 0..5000 {
                let mut rounds = 0;
                while let Some(wanted) = tree.wanted(page + 1) {
                    let Some(supply) = wanted.alloc(&heap) else { panic!("area {page}: no memory") };
                    // Another caller wanted the same at the same time.
                    let late = wanted.alloc(&heap);
                    let left =
                        [Some(supply), late].map(|supply| supply.and_then(|supply| tree.donate(supply)));
                    left.into_iter().flatten().for_each(|left| left.free(&heap));
                    rounds += 1;
                }
                assert!(rounds < 9 && tree.reserve(page + 1, &NoSlabs).is_ok());
                tree.insert(pages(2 * page, 2 * page + 1)).unwrap();
            }
            tree.validate().unwrap();
            assert!(tree.wanted(5000).is_none() && tree.wanted(u64::MAX).is_some());
            assert!((0..5000).all(|page| tree.find(Va::from_page(2 * page)).is_some()));
            tree.clear(&heap);
            assert_eq!(heap.bytes(), 0, "all that was left over was freed");
        }
    }

    #[test]
    fn what_was_not_reserved_is_an_error_and_changes_nothing() {
        let mut tree = AreaTree::new();
        let room = (0..).find(|&page| tree.insert(pages(2 * page, 2 * page + 1)).is_err()).unwrap();
        assert_eq!(tree.len(), room);
        assert_eq!(tree.insert(pages(9000, 9001)), Err(AllocError::NoMeta { records: 1 }));
        assert_eq!(tree.reserve(room + 3, &NoSlabs), Err(AllocError::NoMeta { records: 3 }));
        tree.validate().unwrap();
        assert!(tree.remove(Va::ZERO).is_some() && tree.insert(pages(9000, 9001)).is_ok());
    }
}
