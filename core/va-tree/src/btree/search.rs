//! Searches: the lowest fit, the hole around an address, neighbours. None of them changes the tree.

use super::key::{fits, plus};
use super::node::{self, Inner};
use super::path::Path;
use super::rows::{self, Classes};
use super::{BTree, Key};
use crate::free_index::highest;
use crate::slab::NIL;
use va_base::{Align, Pages, Platform, Request, Va, VaRange};

/// The parameters of a search, in relative pages.
pub(super) struct Wanted {
    pub(super) size: u64,
    pub(super) align_log2: u32,
    pub(super) low: u64,
    pub(super) high: u64,
}

impl Wanted {
    /// Returns the class of its rows; `None` without alignment: then gaps decide.
    #[inline(always)]
    pub(super) fn class(&self) -> Option<usize> {
        (self.align_log2 > 0).then(|| Classes::of_align(self.align_log2))
    }
}

/// The result of a search.
pub(super) enum Search {
    /// The lowest fit.
    Found(Found),
    /// Nothing fits.
    Nothing,
    /// Without more of the row of its class the search would take too long.
    NeedsRow,
}

/// A hole, and the first page to take of it.
///
/// The path to it is in the argument that the search filled. A copy here would be read in wide loads right after its
/// narrow stores, and wait for them.
pub(super) struct Found {
    /// True if it is the top hole; else it is at step 0 of the path.
    pub(super) top: bool,
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) at: u64,
}

impl<K: Key, const F: usize, P: Platform, const L: usize, const I: usize> BTree<K, F, P, L, I> {
    /// Leaves that an aligned search may visit without a row before one is worth its cost. It is a constant, so that
    /// the bound stays O(log n), and equals the leaves of one inner node. Kernels align small areas in spaces of some
    /// hundred holes, where rows would only be upkeep.
    const ROWLESS_LEAVES: usize = F;

    /// Returns the first page of `wanted` in a hole that starts at `start`; it may lie past the end of the hole.
    #[inline(always)]
    pub(super) fn first_at(&self, start: u64, wanted: &Wanted) -> u64 {
        let at = start.max(wanted.low);
        if wanted.align_log2 == 0 {
            return at;
        }
        // Pages are below 2^52 and the mask is below 2^51. Of bytes, what is aligned may lie above all numbers.
        let mask = (1u64 << wanted.align_log2) - 1;
        plus::<K>(at, (self.base + at).wrapping_neg() & mask)
    }

    /// Finds the lowest fit: O(F log n), given exact maxima for its alignment (see `first_promise`). Without its row,
    /// an aligned search ends with [`Search::NeedsRow`] after a constant number of leaves.
    #[inline]
    pub(super) fn find_lowest(&self, wanted: &Wanted, path: &mut Path) -> Search {
        let rowless = wanted.class().is_some_and(|class| !self.whole_classes.has(class));
        self.find_within(wanted, path, if rowless { Self::ROWLESS_LEAVES } else { usize::MAX })
    }

    /// Does the same as [`find_lowest`](Self::find_lowest), but always finishes: O(n) for an aligned search without its
    /// row.
    pub(super) fn find_lowest_patiently(&self, wanted: &Wanted, path: &mut Path) -> Option<Found> {
        match self.find_within(wanted, path, usize::MAX) {
            Search::Found(found) => Some(found),
            Search::Nothing | Search::NeedsRow => None,
        }
    }

    /// Does the same, but looks into at most `leaves` leaves, in an aligned search.
    #[inline]
    pub(super) fn find_within(&self, wanted: &Wanted, path: &mut Path, leaves: usize) -> Search {
        let found = if wanted.size > self.longest {
            Search::Nothing
        } else if wanted.align_log2 == 0 {
            self.find_unaligned(wanted, path).map_or(Search::Nothing, Search::Found)
        } else {
            self.find_aligned(wanted, path, leaves)
        };
        match found {
            Search::Found(found) => self.in_window(Some(found), wanted),
            Search::NeedsRow => Search::NeedsRow,
            Search::Nothing => self.in_window(None, wanted),
        }
    }

    /// Returns the lowest fit of all: that of the tree, or if it has none, that in the top hole.
    #[inline(always)]
    pub(super) fn in_window(&self, found: Option<Found>, wanted: &Wanted) -> Search {
        let found = match found {
            Some(found) => found,
            None => {
                let (start, end) = (self.top_start, self.top_end());
                let at = self.first_at(start, wanted);
                if end.saturating_sub(at) < wanted.size {
                    return Search::Nothing;
                }
                Found { top: true, start, end, at }
            }
        };
        // If the lowest fit ends past the window, so does every other.
        if found.at + wanted.size <= wanted.high { Search::Found(found) } else { Search::Nothing }
    }

    /// Returns the first child of `node` from `from` on that may hold a fit. No other may; that one surely does if its
    /// class is stored and the alignment is none or at most `2^CLASSES` pages.
    #[inline(always)]
    fn first_promise(&self, node: &Inner<K, F>, from: usize, wanted: &Wanted) -> Option<usize> {
        // The size is at most `longest`, a key.
        let size = K::of(wanted.size);
        let longest = match wanted.class().and_then(|class| self.whole_classes.up_to(class)) {
            Some(class) => &self.rows.get(node.row[class]).0,
            None => &node.gap,
        };
        node::first_promise(longest, from, size)
    }

    /// Returns the first leaf that a search looks in, and the slot where it begins.
    #[inline(always)]
    fn first_leaf(&self, wanted: &Wanted, path: &mut Path) -> Option<(u32, usize)> {
        if wanted.low <= self.first - self.base {
            // Nothing is clipped: the first promise is the answer.
            return self.descend(path, self.root, self.height, wanted).map(|leaf| (leaf, 0));
        }
        // A hole counts from where it ends above the window's start.
        let key = plus::<K>(wanted.low, 1);
        (key <= self.last_end).then(|| self.route(K::of(key), path))
    }

    /// Finds the lowest fit of a request without an alignment: in the leaf where the window starts, or in the first one
    /// after it that is long enough.
    #[inline]
    fn find_unaligned(&self, wanted: &Wanted, path: &mut Path) -> Option<Found> {
        let size = K::of(wanted.size);
        let (mut leaf_id, mut slot) = self.first_leaf(wanted, path)?;
        loop {
            let leaf = self.leaves.get(leaf_id);
            while let Some(next) = node::first_promise(&leaf.size, slot, size) {
                let end = leaf.end[next].get();
                let start = end - leaf.size[next].get();
                let at = start.max(wanted.low);
                if fits::<K>(at, wanted.size, end) {
                    path.set(0, leaf_id, next);
                    return Some(Found { top: false, start, end, at });
                }
                // The window clips this one hole.
                slot = next + 1;
            }
            (leaf_id, slot) = (self.climb(path, wanted)?, 0);
        }
    }

    #[inline]
    fn find_aligned(&self, wanted: &Wanted, path: &mut Path, mut leaves: usize) -> Search {
        // Where the scan of the current leaf begins.
        let Some((mut leaf_id, mut slot)) = self.first_leaf(wanted, path) else { return Search::Nothing };
        loop {
            self.visit();
            let leaf = self.leaves.get(leaf_id);
            if let Some(found) = self.fit_in_leaf(leaf, leaf_id, slot, wanted, path) {
                return Search::Found(found);
            }
            if (leaf.end[0] - leaf.size[0]).get() >= wanted.high {
                return Search::Nothing;
            }
            leaf_id = match self.climb(path, wanted) {
                Some(leaf) => leaf,
                None => return Search::Nothing,
            };
            slot = 0;
            leaves -= 1;
            if leaves == 0 {
                return Search::NeedsRow;
            }
        }
    }

    /// Enters the first child with a sufficient maximum, `level` levels down from `node`; `None` if the first node has
    /// none.
    #[inline]
    fn descend(&self, path: &mut Path, mut node: u32, mut level: usize, wanted: &Wanted) -> Option<u32> {
        while level > 0 {
            let inner = self.inners.get(node);
            // Below a promise there is always another: only the first node can fail.
            let slot = self.first_promise(inner, 0, wanted)?;
            path.set(level, node, slot);
            node = inner.child[slot];
            level -= 1;
        }
        Some(node)
    }

    /// Goes up until a child further right has a sufficient maximum, then down into it.
    #[inline]
    fn climb(&self, path: &mut Path, wanted: &Wanted) -> Option<u32> {
        for level in 1..self.height + 1 {
            let node = path.node(level);
            let inner = self.inners.get(node);
            if let Some(slot) = self.first_promise(inner, path.slot(level) + 1, wanted) {
                path.set(level, node, slot);
                return self.descend(path, inner.child[slot], level - 1, wanted);
            }
        }
        None
    }

    /// Walks to the first leaf that may have a hole that ends at or above `key`. Returns the leaf and the slot of the
    /// first such hole in it (one past the last hole if there is none). Fills the path, step 0 included.
    #[inline]
    pub(super) fn route(&self, key: K, path: &mut Path) -> (u32, usize) {
        let mut node = self.root;
        for level in (1..self.height + 1).rev() {
            let inner = self.inners.get(node);
            let slot = inner.route(key);
            path.set(level, node, slot);
            node = inner.child[slot];
        }
        let slot = self.leaves.get(node).first_end_from(key);
        path.set(0, node, slot);
        (node, slot)
    }

    /// Moves `path` to the first hole of the next leaf; false if there is none.
    pub(super) fn next_leaf(&self, path: &mut Path) -> bool {
        for level in 1..self.height + 1 {
            let (node, slot) = (path.node(level), path.slot(level) + 1);
            let inner = self.inners.get(node);
            if slot < F && inner.child[slot] != NIL {
                path.set(level, node, slot);
                let mut node = inner.child[slot];
                for level in (1..level).rev() {
                    path.set(level, node, 0);
                    node = self.inners.get(node).child[0];
                }
                path.set(0, node, 0);
                return true;
            }
        }
        false
    }

    /// Returns the hole that encloses `[start, end)`.
    pub(super) fn find_enclosing(&self, start: u64, end: u64, path: &mut Path) -> Option<Found> {
        if start >= self.top_start {
            return Some(Found { top: true, start: self.top_start, end: self.top_end(), at: start });
        }
        if end > self.last_end {
            return None;
        }
        let (mut leaf, mut slot) = self.route(K::of(end), path);
        if slot == F || self.leaves.get(leaf).size[slot] == K::ZERO {
            if !self.next_leaf(path) {
                return None;
            }
            (leaf, slot) = (path.node(0), 0);
        }
        let (hole_start, hole_end) = self.hole_at(leaf, slot);
        (hole_start <= start).then_some(Found { top: false, start: hole_start, end: hole_end, at: start })
    }

    /// Hole `slot` of a leaf, relative pages.
    #[inline(always)]
    pub(super) fn hole_at(&self, leaf: u32, slot: usize) -> (u64, u64) {
        let leaf = self.leaves.get(leaf);
        let (size, end) = (leaf.size[slot].get(), leaf.end[slot].get());
        (end - size, end)
    }

    /// Returns the top hole, if there is one.
    pub(super) fn top_hole(&self) -> Option<(u64, u64)> {
        (self.top_start < self.top_end()).then_some((self.top_start, self.top_end()))
    }

    /// Returns the first hole of the tree that ends at or above `key`.
    pub(super) fn first_hole_from(&self, key: u64) -> Option<(u64, u64)> {
        if key > self.last_end {
            return None;
        }
        let mut path = Path::new();
        let (leaf, slot) = self.route(K::of(key), &mut path);
        if slot < F && self.leaves.get(leaf).size[slot] != K::ZERO {
            return Some(self.hole_at(leaf, slot));
        }
        self.next_leaf(&mut path).then(|| self.hole_at(path.node(0), 0))
    }

    /// Returns the last hole that starts at or below `page`, the top hole included.
    pub(super) fn last_hole_to(&self, page: u64) -> Option<(u64, u64)> {
        if let Some((start, end)) = self.top_hole().filter(|&(start, _)| start <= page) {
            return Some((start, end));
        }
        let mut path = Path::new();
        // Past `last_end` the very last leaf is reached, with the slot after its last hole.
        let (leaf, slot) = self.route(K::of(plus::<K>(page, 1).min(K::MAX.get())), &mut path);
        if slot < F && self.leaves.get(leaf).size[slot] != K::ZERO && self.hole_at(leaf, slot).0 <= page {
            return Some(self.hole_at(leaf, slot));
        }
        // The hole that ends above `page` starts above it, or there is none: the one before is the answer.
        if slot > 0 {
            let last = slot.min(self.leaves.get(leaf).len());
            return last.checked_sub(1).map(|slot| self.hole_at(leaf, slot));
        }
        for level in 1..self.height + 1 {
            if path.slot(level) > 0 {
                let mut node = self.inners.get(path.node(level)).child[path.slot(level) - 1];
                for _ in 1..level {
                    let inner = self.inners.get(node);
                    node = inner.child[inner.len() - 1];
                }
                return self.leaves.get(node).len().checked_sub(1).map(|slot| self.hole_at(node, slot));
            }
        }
        None
    }

    /// Returns the last hole of at least `size` pages that starts at or below `page`, the top hole included. With a
    /// class whose row is whole, its usable length is at least `size`, except that of the top hole.
    pub(super) fn last_fit_to(&self, page: u64, size: u64, class: Option<usize>) -> Option<(u64, u64)> {
        if let Some((start, end)) =
            self.top_hole().filter(|&(start, end)| start <= page && end - start >= size)
        {
            return Some((start, end));
        }
        if size > self.longest {
            return None;
        }
        let wanted = K::of(size);
        let class = class.filter(|&class| self.whole_classes.has(class));
        let mut path = Path::new();
        let (leaf, slot) = self.route(K::of(plus::<K>(page, 1).min(K::MAX.get())), &mut path);
        // The first hole that ends above `page` may start there or below; those before it do.
        let reaches =
            slot < F && self.leaves.get(leaf).size[slot] != K::ZERO && self.hole_at(leaf, slot).0 <= page;
        if let Some(slot) = self.last_in_leaf(leaf, slot + usize::from(reaches), wanted, class) {
            return Some(self.hole_at(leaf, slot));
        }
        for level in 1..self.height + 1 {
            let (node, end) = (path.node(level), path.slot(level));
            let Some(slot) = self.last_in_inner(node, end, wanted, class) else { continue };
            let mut node = self.inners.get(node).child[slot];
            for _ in 1..level {
                let slot = self.last_in_inner(node, F, wanted, class)?;
                node = self.inners.get(node).child[slot];
            }
            return self.last_in_leaf(node, F, wanted, class).map(|slot| self.hole_at(node, slot));
        }
        None
    }

    /// Holes that an aligned search from the top may step over before a row is worth its cost.
    pub(super) const ROWLESS_HOLES: usize = F;

    /// Returns the highest address at which a request could be met, after at most `holes` steps; it counts them down.
    /// The result is wrong if none is left.
    pub(super) fn highest_within(&self, request: &Request, holes: &mut usize) -> Option<Va> {
        let window = request.window().unwrap_or(self.default_window);
        highest::find(K::UNIT, window, request, |at| {
            self.aligned_within(at, request.size(), request.align(), holes)
        })
    }

    /// Does the same as [`aligned_fit_below`](FreeIndex::aligned_fit_below), with at most `holes` steps.
    pub(super) fn aligned_within(
        &self,
        at: Va,
        size: Pages,
        align: Align,
        holes: &mut usize,
    ) -> Option<VaRange> {
        let mut page = Some(K::UNIT.floor(at)).filter(|&page| page >= self.first)?.min(self.end) - self.base;
        let (size, log2) = (size.get().max(1), K::UNIT.align_log2(align));
        let class = (log2 > 0).then(|| Classes::of_align(log2));
        loop {
            *holes = holes.checked_sub(1)?;
            let (start, end) = self.last_fit_to(page, size, class)?;
            // A class that is not stored, and an alignment above the largest, exclude too little.
            let wanted = Wanted { size, align_log2: log2, low: 0, high: end };
            if fits::<K>(self.first_at(start, &wanted), size, end) {
                return Some(self.range(start, end));
            }
            page = start.checked_sub(1)?;
        }
    }

    /// Returns the last child before slot `end` below which a hole, or with a class its usable section, has `wanted`
    /// pages.
    fn last_in_inner(&self, node: u32, end: usize, wanted: K, class: Option<usize>) -> Option<usize> {
        let inner = self.inners.get(node);
        match class {
            Some(class) => last_from(&self.rows.get(inner.row[class]).0[..end], wanted),
            None => last_from(&inner.gap[..end], wanted),
        }
    }

    /// Returns the last such hole of a leaf before slot `end`.
    fn last_in_leaf(&self, leaf: u32, end: usize, wanted: K, class: Option<usize>) -> Option<usize> {
        let leaf = self.leaves.get(leaf);
        match class {
            Some(class) => {
                (0..end).rfind(|&slot| rows::usable(leaf.end[slot], leaf.size[slot], class) >= wanted)
            }
            None => last_from(&leaf.size[..end], wanted),
        }
    }
}

/// Returns the last slot with at least `wanted`.
#[inline]
fn last_from<K: Key>(sizes: &[K], wanted: K) -> Option<usize> {
    sizes.iter().rposition(|&size| size >= wanted)
}
