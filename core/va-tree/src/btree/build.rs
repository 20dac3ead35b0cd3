//! Rows that are being built: which nodes have one, the steps that add more, and searches where some nodes lack theirs.
//!
//! # Theory
//! A row of 100,000 holes takes a millisecond to build, and the caller mostly holds a lock. So rows are built in steps,
//! a few nodes each, and a class may have rows in some nodes and none in others. Rows appear from the leaves up: a node
//! gets one when all inner nodes below have theirs. Then its numbers are exact at once, and changes keep them so.
//!
//! **A search builds what it passes.** To be exact, a search must look into each part that nothing excludes. It looks
//! in address order, and where a node above leaves lacks its row, it builds that first. A node in which nothing fits
//! has its row when the search leaves it, and the next search passes it in one look. Each node is paid for once, by the
//! request that has to look into it anyway.
//!
//! ```text
//!   root                    .                 no row: its third child has none
//!   level 2         R       R       .         R: the row excludes the whole subtree, in one look
//!   level 1       R R R   R R R   R * . .     *: looked into now, its row is built first
//! ```
//!
//! **A step** builds the rows of at most [`STEP_NODES`](BTree::STEP_NODES) nodes. If a search needs more, it ends. The
//! next one continues where it stopped, since what it passed is built. If it needs fewer, the others are built from the
//! lowest address up. So a class is whole after as many requests as there are steps, even if each is short. For example,
//! 100,000 holes are some 8,000 leaves below 600 nodes, and a step of the 64-bit tree builds four of those. The first
//! step only says that the row lacks memory ([`Supplied`](crate::Supplied)). So a caller that takes steps can allocate
//! that with no lock held.
//!
//! # Invariants
//! - **BT7 whole** a node has the row of a class only if all inner nodes below have it, and the class is whole exactly
//!   if the root has its row.

use super::key::{fits, plus};
use super::node::{self, Inner, Leaf};
use super::path::Path;
use super::rows::{self, Classes};
use super::search::{Found, Search, Wanted};
use super::{BTree, Key};
use crate::slab::NIL;
use va_base::Platform;

/// The result of a search below a node.
enum Below {
    Fit(Found),
    /// Nothing fits here. The search continues to the right.
    Nothing,
    /// Nothing fits here, and all further holes start past the window.
    Past,
    /// More rows must be built than the step may.
    Later,
}

impl<K: Key, const F: usize> Inner<K, F> {
    /// Returns the classes of which it has rows, in a tree of this epoch.
    #[inline(always)]
    pub(super) fn built(&self, epoch: u64) -> Classes {
        if self.epoch == epoch { self.built } else { Classes::NONE }
    }
}

impl<K: Key, const F: usize, P: Platform, const L: usize, const I: usize> BTree<K, F, P, L, I> {
    /// Nodes whose rows one step builds: those of 64 leaves. That is some 14,000 instructions, as many as a
    /// slice of a purge.
    pub(super) const STEP_NODES: usize = if F < 64 { 64 / F } else { 1 };

    /// Returns the classes of which inner node `id` has rows.
    #[inline(always)]
    pub(super) fn built(&self, id: u32) -> Classes {
        self.inners.get(id).built(self.row_epoch)
    }

    /// Adds a row to inner node `id`, which has none of this class. Its contents are unspecified.
    pub(super) fn add_row(&mut self, id: u32, class: usize) {
        let row = self.new_row();
        let built = self.built(id);
        let inner = self.inners.get_mut(id);
        (inner.built, inner.epoch, inner.row[class]) =
            (built.with(Classes::only(class)), self.row_epoch, row);
    }

    /// Drops rows that inner node `id` has.
    pub(super) fn drop_rows_of(&mut self, id: u32, classes: Classes) {
        for class in classes.each() {
            self.rows.put(self.inners.get(id).row[class]);
        }
        let built = self.built(id).without(classes);
        let inner = self.inners.get_mut(id);
        (inner.built, inner.epoch) = (built, self.row_epoch);
    }

    /// Drops all rows. O(1): what nodes say of theirs is of an earlier epoch.
    pub(super) fn drop_rows(&mut self) {
        self.rows.forget_all(0);
        (self.row_classes, self.whole_classes) = (Classes::NONE, Classes::NONE);
        self.row_epoch += 1;
        self.count_reserved();
    }

    /// Counts the classes whose rows are whole (BT7).
    pub(super) fn count_whole(&mut self) {
        self.whole_classes = if self.height > 0 { self.built(self.root) } else { self.row_classes };
    }

    /// Begins the row of a class, unless it is begun. `None` if there is no memory for it and for one more area. Without
    /// it the walk is long, and the result the same: an area that lacks memory fails where it is cut, if there is room
    /// for it. `Some(false)` if the caller takes steps of `left` nodes, and this was the first: it may supply the memory.
    fn begin_row(&mut self, class: usize, left: usize) -> Option<bool> {
        if self.row_classes.has(class) {
            return Some(true);
        }
        if left < usize::MAX && !self.rows_missed.has(class) {
            self.rows_missed = self.rows_missed.with(Classes::only(class));
            return Some(false);
        }
        let holes = self.ledger.bound_after_take();
        // The area comes first: a failure must not leave rows behind.
        self.reserve_holes(holes).ok()?;
        self.begin_rows(Classes::only(class), holes).ok().map(|()| true)
    }

    /// Builds the rows of every class that was begun. O(n) for each.
    pub(super) fn build_all(&mut self) {
        for class in self.row_classes.without(self.whole_classes).each() {
            let mut left = usize::MAX;
            let _whole = self.build_row(self.root, self.height, class, &mut left);
        }
    }

    /// Begins the row of a class, and builds up to `left` nodes of it, from the lowest address up. Returns false if more
    /// is left to do, or `None` if there is no memory.
    #[cold]
    pub(super) fn step_row(&mut self, class: usize, mut left: usize) -> Option<bool> {
        let begun = self.begin_row(class, left)?;
        Some(begun && self.build_row(self.root, self.height, class, &mut left))
    }

    /// Builds the row of a class in inner node `node`, after those of all inner nodes below. Each counts `left` down.
    /// Returns false if none is left before the end. Depth is bounded by `MAX_HEIGHT`.
    fn build_row(&mut self, node: u32, level: usize, class: usize, left: &mut usize) -> bool {
        if level == 0 || self.built(node).has(class) {
            return true;
        }
        if level > 1 {
            for slot in 0..F {
                let child = self.inners.get(node).child[slot];
                if child != NIL && !self.build_row(child, level - 1, class, left) {
                    return false;
                }
            }
        }
        if *left == 0 {
            return false;
        }
        *left -= 1;
        self.fill_row(node, level, class);
        if node == self.root {
            self.count_whole();
        }
        true
    }

    /// Computes the row of a node whose inner children have theirs.
    // Apart, so that the row is on no stack of a call below.
    #[inline(never)]
    fn fill_row(&mut self, node: u32, level: usize, class: usize) {
        let mut row = [K::ZERO; F];
        for (usable, &child) in row.iter_mut().zip(&self.inners.get(node).child) {
            if child == NIL {
                break;
            }
            self.visit();
            *usable = if level == 1 {
                let leaf = self.leaves.get(child);
                rows::usable_in_leaf(&leaf.end, &leaf.size, class, K::ZERO)
            } else {
                node::max_of(self.row(child, class))
            };
        }
        self.add_row(node, class);
        *self.row_mut(node, class) = row;
    }

    /// Updates the rows above the leaf of `path` of classes that are not whole, after a change of the leaf. `holes` count
    /// even if they are not in the leaf yet.
    // Each is computed anew: few changes come while a row is built.
    #[cold]
    #[inline(never)]
    pub(super) fn update_rows(&mut self, path: &Path, holes: [(K, K); 2]) {
        for level in 1..self.height + 1 {
            let below = path.node(level - 1);
            for class in self.built(path.node(level)).without(self.whole_classes).each() {
                let usable = if level == 1 {
                    let least = holes.map(|(end, size)| rows::usable(end, size, class));
                    let leaf = self.leaves.get(below);
                    rows::usable_in_leaf(&leaf.end, &leaf.size, class, least[0].max(least[1]))
                } else {
                    node::max_of(self.row(below, class))
                };
                self.row_mut(path.node(level), class)[path.slot(level)] = usable;
            }
        }
    }

    /// Does the same as [`find_lowest`](Self::find_lowest) where the row of the request's class is not whole: builds up to
    /// `left` nodes that it passes, and then the rest of one step. [`Search::NeedsRow`] if the result needs more. Without
    /// memory for the row it walks, O(n).
    #[cold]
    #[inline(never)]
    pub(super) fn find_in_steps(&mut self, wanted: &Wanted, path: &mut Path, mut left: usize) -> Search {
        let class = Classes::of_align(wanted.align_log2);
        // Above the largest class a row excludes too little, so that a search again passes what an earlier one did.
        if wanted.align_log2 as usize > rows::CLASSES {
            left = usize::MAX;
        }
        match self.begin_row(class, left) {
            Some(true) => {}
            Some(false) => return Search::NeedsRow,
            None => return self.find_within(wanted, path, usize::MAX),
        }
        let found = match self.find_building(wanted, path, &mut left) {
            Below::Later => return Search::NeedsRow,
            Below::Fit(found) => Some(found),
            Below::Nothing | Below::Past => None,
        };
        left = left.min(Self::STEP_NODES);
        let _whole = self.build_row(self.root, self.height, class, &mut left);
        self.in_window(found, wanted)
    }

    fn find_building(&mut self, wanted: &Wanted, path: &mut Path, left: &mut usize) -> Below {
        if wanted.low <= self.first - self.base {
            return self.lowest_below((self.root, self.height), 0, wanted, path, left);
        }
        let key = plus::<K>(wanted.low, 1);
        if key > self.last_end {
            return Below::Nothing;
        }
        let (leaf, slot) = self.route(K::of(key), path);
        let mut below = self.lowest_in_leaf(leaf, slot, wanted, path);
        for level in 1..self.height + 1 {
            if !matches!(below, Below::Nothing) {
                break;
            }
            let (node, next) = (path.node(level), path.slot(level) + 1);
            below = self.lowest_below((node, level), next, wanted, path, left);
        }
        below
    }

    /// Finds the lowest fit below a node at a level, in its children from `from` on. Builds the rows of nodes that it
    /// passes. Depth is bounded by `MAX_HEIGHT`.
    fn lowest_below(
        &mut self,
        (node, level): (u32, usize),
        from: usize,
        wanted: &Wanted,
        path: &mut Path,
        left: &mut usize,
    ) -> Below {
        if level == 0 {
            return self.lowest_in_leaf(node, from, wanted, path);
        }
        self.visit();
        let class = Classes::of_align(wanted.align_log2);
        if level == 1 && !self.build_row(node, level, class, left) {
            return Below::Later;
        }
        let mut next = from;
        while let Some(slot) = self.next_promise(node, next, class, K::of(wanted.size)) {
            let inner = self.inners.get(node);
            // The separator is at or below all starts to its right.
            if slot > 0 && inner.sep[slot - 1].get() >= wanted.high {
                return Below::Past;
            }
            let child = inner.child[slot];
            path.set(level, node, slot);
            match self.lowest_below((child, level - 1), 0, wanted, path, left) {
                Below::Nothing => next = slot + 1,
                done => return done,
            }
        }
        // The window may begin inside: then a later search may have to look there anyway.
        if from == 0 && !self.build_row(node, level, class, left) {
            return Below::Later;
        }
        Below::Nothing
    }

    /// Returns the first child from `from` on that the best row of the node, or its gaps, do not exclude.
    fn next_promise(&self, node: u32, from: usize, class: usize, size: K) -> Option<usize> {
        let inner = self.inners.get(node);
        let longest = match inner.built(self.row_epoch).up_to(class) {
            Some(class) => &self.rows.get(inner.row[class]).0,
            None => &inner.gap,
        };
        node::first_promise(longest, from, size)
    }

    fn lowest_in_leaf(&self, leaf: u32, from: usize, wanted: &Wanted, path: &mut Path) -> Below {
        self.visit();
        let holes = self.leaves.get(leaf);
        if let Some(found) = self.fit_in_leaf(holes, leaf, from, wanted, path) {
            return Below::Fit(found);
        }
        if self.hole_at(leaf, 0).0 >= wanted.high { Below::Past } else { Below::Nothing }
    }

    /// Returns the first fit of an aligned request in a leaf, from slot `from` on.
    #[inline(always)]
    pub(super) fn fit_in_leaf(
        &self,
        leaf: &Leaf<K, F>,
        leaf_id: u32,
        mut from: usize,
        wanted: &Wanted,
        path: &mut Path,
    ) -> Option<Found> {
        while let Some(slot) = rows::first_usable(leaf, from, wanted) {
            let end = leaf.end[slot].get();
            let start = end - leaf.size[slot].get();
            let at = self.first_at(start, wanted);
            if fits::<K>(at, wanted.size, end) {
                path.set(0, leaf_id, slot);
                return Some(Found { top: false, start, end, at });
            }
            from = slot + 1;
        }
        None
    }

    /// Counts a node that a search or a step looks at, for tests.
    #[inline(always)]
    pub(super) fn visit(&self) {
        #[cfg(test)]
        self.visits.set(self.visits.get() + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FreeIndex, Supplied};
    use std::vec::Vec;
    use va_base::{Align, Heap, Request, VaRange};

    type Tree = BTree<u64, 8, Heap>;

    /// Returns a tree of holes `[4 n + 1, 4 n + 3)`, and a request of two pages aligned to two. It fits in the holes of
    /// `fits` alone, which are longer by the page before.
    fn misleading(holes: u64, fits: &[u64]) -> (Tree, Request) {
        let space = VaRange::from_pages(0, 1 << 20).unwrap();
        let mut tree = Tree::new(space, space, Heap).unwrap();
        let mut end = 0;
        for n in 0..holes {
            let start = 4 * n + u64::from(!fits.contains(&n));
            if end < start {
                tree.take(VaRange::from_pages(end, start).unwrap()).unwrap();
            }
            end = 4 * n + 3;
        }
        tree.take(VaRange::from_pages(end, 4 * holes).unwrap()).unwrap();
        (tree, Request::pages(2).unwrap().aligned(Align::new(2 << 12).unwrap()))
    }

    /// Returns the result of a call and the nodes that it looked at.
    fn visits<T>(tree: &mut Tree, call: impl FnOnce(&mut Tree) -> T) -> (T, u64) {
        tree.visits.set(0);
        let result = call(tree);
        (result, tree.visits.get())
    }

    /// Nodes that one step may look at: the leaves before a row is asked for, and those whose rows it builds. On each
    /// level the children of one node come in addition, once to search them and once to find where to build.
    fn most(tree: &Tree) -> u64 {
        8 + (64 + 8) + 2 * 8 * (tree.height as u64 + 1)
    }

    #[test]
    fn bt7_a_step_looks_at_as_many_nodes_whatever_the_holes() {
        for holes in [2_000, 20_000] {
            let (mut tree, request) = misleading(holes, &[]);
            let (lowest, most) = (tree.would_fit(&request).unwrap(), most(&tree));
            let (mut steps, mut all) = (0, 0);
            let at = loop {
                let (step, seen) = visits(&mut tree, |tree| tree.alloc_step(&request).unwrap());
                assert!(seen <= most, "{holes} holes: {seen} nodes of at most {most}");
                tree.validate().unwrap();
                (steps, all) = (steps + 1, all + seen);
                if let Some(at) = step {
                    break at;
                }
            };
            assert_eq!(at, lowest);
            // Most steps build as much as they may, and together they look at each node a few times.
            let (leaves, inners) = (tree.leaves.used() as u64, tree.inners.used());
            assert!(steps <= 3 + inners / Tree::STEP_NODES, "{steps} steps for {inners} nodes");
            assert!(all < 3 * leaves, "{all} nodes for {leaves} leaves");
            assert!(tree.whole_classes.has(0));
            let (_, seen) = visits(&mut tree, |tree| tree.alloc(&request).unwrap());
            assert_eq!(seen, 0, "only the top hole fits");
        }
    }

    #[test]
    fn bt7_the_highest_fit_is_found_in_steps_of_bounded_work() {
        for holes in [2_000, 20_000] {
            let (mut tree, request) = misleading(holes, &[3]);
            let request = request.within(VaRange::from_pages(0, 4 * holes).unwrap());
            let (highest, most) = (tree.highest_fit(&request).unwrap(), most(&tree));
            assert_eq!(highest.page_floor(), 12);
            let mut steps = 0;
            loop {
                let (step, seen) = visits(&mut tree, |tree| tree.alloc_highest_step(&request).unwrap());
                assert!(seen <= most, "{holes} holes: {seen} nodes of at most {most}");
                steps += 1;
                if let Some(at) = step {
                    assert_eq!(at, highest);
                    break;
                }
            }
            assert!(steps > tree.leaves.used() / 128, "{steps} steps");
        }
    }

    #[test]
    fn bt7_a_request_pays_for_what_it_passes_and_one_step() {
        // The first fit is in hole 300 of 2,000 or of 20,000: that makes no difference.
        let seen = [2_000, 20_000].map(|holes| {
            let (mut tree, request) = misleading(holes, &[300, 600, 601]);
            let mut seen = Vec::new();
            for fit in [300, 600, 601] {
                let (at, of_it) = visits(&mut tree, |tree| tree.alloc(&request).unwrap());
                assert_eq!(at.page_floor(), 4 * fit);
                assert!(tree.has_rows() && !tree.whole_classes.has(0));
                tree.validate().unwrap();
                seen.push(of_it);
            }
            seen
        });
        let [few, many] = seen;
        for (few, many) in few.iter().zip(&many) {
            assert!(many <= &(few + 2 * 8) && *many < 8 + 9 * 300 / 4, "{few} and {many} nodes");
        }
        // The last one passes nothing that was not passed before.
        assert!(many[2] < most(&misleading(20_000, &[]).0), "{many:?}");
    }

    #[test]
    fn bt7_short_requests_make_a_row_whole() {
        let (mut tree, request) = misleading(2_000, &[200]);
        let mut requests = 0;
        while !tree.whole_classes.has(0) {
            let at = tree.alloc(&request).unwrap();
            tree.free(VaRange::from_size(at, 2 << 12).unwrap()).unwrap();
            requests += 1;
        }
        let steps = tree.inners.used() / Tree::STEP_NODES;
        assert!((steps / 2..=steps + 1).contains(&requests), "{requests} requests for {steps} steps");
    }

    #[test]
    fn bt7_a_window_ends_the_search_and_what_it_builds() {
        let (mut tree, request) = misleading(20_000, &[]);
        let narrow = request.within(VaRange::from_pages(4 * 900 + 2, 4 * 1400).unwrap());
        let (failed, seen) = visits(&mut tree, |tree| tree.alloc(&narrow).is_err());
        // 500 holes are in at most 167 leaves, below a few nodes more.
        assert!(failed && tree.has_rows() && seen < 8 + 167 + 167 / 2 + most(&tree), "{seen} nodes");
        tree.validate().unwrap();
        let (failed, seen) = visits(&mut tree, |tree| tree.alloc(&narrow).is_err());
        assert!(failed && seen <= most(&tree), "{seen} nodes");
    }

    #[test]
    fn bt7_the_first_step_asks_for_memory_and_allocates_none() {
        let (mut tree, request) = misleading(2_000, &[]);
        assert!(Supplied::wanted(&tree, 1).is_none());
        assert_eq!(tree.alloc_step(&request), Ok(None));
        assert!(!tree.has_rows() && tree.rows.capacity() == 0);
        tree.supply(1, &Heap).unwrap();
        let capacity = tree.rows.capacity();
        assert!(capacity > 0);
        assert_eq!(tree.alloc_step(&request), Ok(None));
        assert!(tree.has_rows() && tree.rows.capacity() == capacity);
    }

    #[test]
    fn bt7_above_the_largest_class_a_search_ends_in_one_go() {
        let (mut tree, request) = misleading(20_000, &[]);
        let huge = request.aligned(Align::new(1 << (12 + 19)).unwrap());
        let mut calls = 0;
        while tree.alloc_step(&huge) == Ok(None) {
            calls += 1;
            assert!(calls < 3);
        }
    }
}
