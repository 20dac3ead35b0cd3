//! Changes of the tree: cut an area from a hole, merge a freed one, and update the summaries above.
//!
//! # Theory
//! A summary (a gap, a row) is the maximum of the holes below. A hole that grows can only raise the maxima above it,
//! and the first one that does not rise ends the walk. A hole that shrinks can lower a maximum only if it was that
//! maximum. Then the node is scanned, and the walk ends where the result equals the old value.
//!
//! Separators need care in two places. A separator must lie between the ends to its left and the *starts* to its right
//! (BT1), and a merge or an insertion can move either:
//!
//! ```text
//!   child i         sep      child i+1
//!   ...  |##|        ^        |####|  ...
//!            |=======|=====|              a freed range may straddle the separator
//!   start falls below sep  ->  lower it to the start (the one separator left of the path)
//!   end passes sep         ->  raise it to the end   (the one separator right of the path)
//! ```
//! To find "the one", climb to the first level where the path is not in the first (or last) slot. Separators higher up
//! lie beyond it, and lower down on that side there are none.

use super::node;
use super::path::Path;
use super::rows::{self, Classes};
use super::search::Found;
use super::{BTree, Key};
use crate::Fit;
use va_base::{FreeError, Platform, VaRange};

/// The hole to the right of a freed range.
enum Right {
    None,
    /// In the same leaf as the path, at this slot.
    Here(usize),
    /// First of the next leaf.
    Next,
}

impl<K: Key, const F: usize, P: Platform, const L: usize, const I: usize> BTree<K, F, P, L, I> {
    /// Cuts `size` pages at `found.at` from the hole found at `path`. Its records are reserved.
    #[inline]
    pub(super) fn cut(&mut self, found: &Found, path: &mut Path, size: u64) -> Fit {
        let (start, end) = (found.start, found.end);
        let (from, to) = (found.at, found.at + size);
        let fit = Fit::of(from, to, start, end);
        if found.top {
            self.cut_top(from, to, fit);
        } else {
            self.cut_in_tree(path, (start, end), (from, to), fit);
        }
        self.ledger.live += 1;
        self.ledger.free_pages -= size;
        self.ledger.holes = fit.holes_after(self.ledger.holes);
        fit
    }

    /// Cuts `size` pages from the left edge of the top hole, which is large enough.
    #[inline]
    pub(super) fn cut_top_edge(&mut self, size: u64) {
        self.top_start += size;
        self.ledger.live += 1;
        self.ledger.free_pages -= size;
        self.ledger.holes -= u64::from(self.top_start == self.top_end());
    }

    #[inline]
    fn cut_top(&mut self, from: u64, to: u64, fit: Fit) {
        let start = self.top_start;
        self.top_start = to;
        match fit {
            Fit::Full | Fit::LeftEdge => {}
            // The lower rest no longer touches the end of the extent: it moves into the tree (BT5).
            Fit::RightEdge | Fit::NoEdge => {
                let mut path = Path::new();
                let slot = self.route(K::of(from), &mut path).1;
                self.insert_hole(&mut path, slot, start, from);
            }
        }
    }

    #[inline]
    fn cut_in_tree(&mut self, path: &mut Path, hole: (u64, u64), taken: (u64, u64), fit: Fit) {
        let ((start, end), (from, to)) = (hole, taken);
        let (id, slot) = (path.node(0), path.slot(0));
        let leaf = self.leaves.get_mut(id);
        let lower = (K::of(from), K::of(from - start));
        let upper = (K::of(end), K::of(end - to));
        let old = (K::of(end), K::of(end - start));
        match fit {
            Fit::LeftEdge => leaf.size[slot] = upper.1,
            Fit::RightEdge => (leaf.end[slot], leaf.size[slot]) = lower,
            Fit::Full => {
                leaf.remove(slot);
                self.lowered(path, old, [lower, upper]);
                return self.refill(path);
            }
            // The slot retains the upper rest, whose end is the old one; the lower one is inserted before it.
            Fit::NoEdge if leaf.is_full() => {
                leaf.size[slot] = upper.1;
                self.lowered(path, old, [lower, upper]);
                return self.split_leaf(path, slot, lower.0, lower.1);
            }
            Fit::NoEdge => {
                leaf.size[slot] = upper.1;
                leaf.insert(slot, lower.0, lower.1);
            }
        }
        self.lowered(path, old, [lower, upper]);
    }

    /// Inserts hole `[start, end)` at `slot` of the leaf of `path`.
    pub(super) fn insert_hole(&mut self, path: &mut Path, slot: usize, start: u64, end: u64) {
        let (key, size) = (K::of(end), K::of(end - start));
        self.last_end = self.last_end.max(end);
        // The path leads to `start` or above, so no separator on its left is above `start`.
        let leaf = self.leaves.get_mut(path.node(0));
        let last = slot == F || leaf.size[slot] == K::ZERO;
        if leaf.is_full() {
            if last {
                self.raise_right_separator(path, key);
            }
            self.raised(path, key, size);
            self.split_leaf(path, slot, key, size);
        } else {
            leaf.insert(slot, key, size);
            if last {
                self.raise_right_separator(path, key);
            }
            self.raised(path, key, size);
        }
    }

    /// Merges `[start, end)` with the holes that it touches, or fails and changes nothing.
    #[inline]
    pub(super) fn merge(&mut self, start: u64, end: u64, range: VaRange) -> Result<(), FreeError> {
        // Right below the top hole and above all others: pages that were taken last are freed first.
        if end == self.top_start && (start > self.last_end || self.longest == 0) {
            self.accept(range, u64::from(end < self.top_end()), end - start)?;
            self.move_top(start);
            return Ok(());
        }
        self.merge_in_tree(start, end, range)
    }

    fn merge_in_tree(&mut self, start: u64, end: u64, range: VaRange) -> Result<(), FreeError> {
        let top = self.top_start;
        if end > top {
            // The lowest hole that overlaps may lie below the top hole.
            let (hole_start, hole_end) = self.first_hole_from(start + 1).unwrap_or((top, self.top_end()));
            return Err(FreeError::AlreadyFree { range, hole: self.range(hole_start, hole_end) });
        }
        // The first hole that ends at or above the start: a left neighbour, one that overlaps, or a right neighbour.
        let mut path = Path::new();
        let (id, slot) = self.route(K::of(start), &mut path);
        let leaf = self.leaves.get(id);
        let left = slot < F && leaf.end[slot].get() == start && leaf.size[slot] != K::ZERO;
        let next = slot + usize::from(left);
        let (right, right_hole) = if next < F && leaf.size[next] != K::ZERO {
            let (size, end) = (leaf.size[next].get(), leaf.end[next].get());
            (Right::Here(next), Some((end - size, end)))
        } else {
            self.first_of_next_leaf(&path)
        };
        if let Some((hole_start, hole_end)) = right_hole
            && hole_start < end
        {
            return Err(FreeError::AlreadyFree { range, hole: self.range(hole_start, hole_end) });
        }
        let touches = right_hole.filter(|&(hole_start, _)| hole_start == end);
        let with_top = end == top && top < self.top_end();
        let merged = u64::from(left) + u64::from(touches.is_some() || with_top);
        self.accept(range, merged, end - start)?;

        if end == top {
            // The top hole grows down, over the left neighbour too.
            if left {
                let left_start = self.hole_at(id, slot).0;
                self.remove_hole(&path);
                self.move_top(left_start);
            } else {
                self.move_top(start);
            }
            return Ok(());
        }
        match (left, touches, right) {
            (false, None, _) => self.insert_hole(&mut path, slot, start, end),
            (true, None, _) => self.grow_right(&path, slot, end),
            (false, Some(_), Right::Here(slot)) => self.grow_left(&path, slot, start),
            (false, Some(_), _) => {
                self.next_leaf(&mut path);
                self.grow_left(&path, 0, start);
            }
            (true, Some((_, right_end)), Right::Here(next)) => {
                // |##L##|==freed=|##R##|  both in this leaf: R's slot closes, L's takes everything.
                let leaf = self.leaves.get_mut(id);
                let size = K::of(right_end - (leaf.end[slot] - leaf.size[slot]).get());
                leaf.remove(next);
                (leaf.end[slot], leaf.size[slot]) = (K::of(right_end), size);
                // The whole ends where R ended and is longer than either in every class: no summary falls.
                self.raised(&path, K::of(right_end), size);
                self.refill(&path);
            }
            (true, Some((_, right_end)), _) => {
                // R is in the next leaf. It goes first, which may move L: look it up again.
                let mut next_path = path;
                self.next_leaf(&mut next_path);
                self.remove_hole(&next_path);
                let slot = self.route(K::of(start), &mut path).1;
                self.grow_right(&path, slot, right_end);
            }
        }
        Ok(())
    }

    /// Returns the first hole after the leaf of `path`.
    fn first_of_next_leaf(&self, path: &Path) -> (Right, Option<(u64, u64)>) {
        let mut path = *path;
        if self.next_leaf(&mut path) {
            (Right::Next, Some(self.hole_at(path.node(0), 0)))
        } else {
            (Right::None, None)
        }
    }

    /// Lets the top hole begin at `start`, lower than before: every hole of the tree now ends below it.
    #[inline]
    fn move_top(&mut self, start: u64) {
        self.top_start = start;
        self.last_end = self.last_end.min(start.saturating_sub(1));
    }

    /// Counts a free that merges with `merged` holes, or fails if the live areas cannot account for it.
    #[inline]
    fn accept(&mut self, range: VaRange, merged: u64, pages: u64) -> Result<(), FreeError> {
        if !self.ledger.may_return(merged) {
            return Err(FreeError::TooManySplits { range, live: self.ledger.live });
        }
        self.ledger.live -= 1;
        self.ledger.holes = self.ledger.holes + 1 - merged;
        self.ledger.free_pages += pages;
        Ok(())
    }

    /// Removes the hole at step 0 of `path` from the tree.
    fn remove_hole(&mut self, path: &Path) {
        let (id, slot) = (path.node(0), path.slot(0));
        let leaf = self.leaves.get_mut(id);
        let (end, size) = (leaf.end[slot], leaf.size[slot]);
        leaf.remove(slot);
        self.lowered(path, (end, size), [(end, K::ZERO); 2]);
        self.refill(path);
    }

    /// Moves the end of hole `slot` up to `end`.
    #[inline]
    fn grow_right(&mut self, path: &Path, slot: usize, end: u64) {
        self.last_end = self.last_end.max(end);
        let leaf = self.leaves.get_mut(path.node(0));
        let size = K::of(end - (leaf.end[slot] - leaf.size[slot]).get());
        let end = K::of(end);
        (leaf.end[slot], leaf.size[slot]) = (end, size);
        if slot + 1 == F || leaf.size[slot + 1] == K::ZERO {
            self.raise_right_separator(path, end);
        }
        self.raised(path, end, size);
    }

    /// Moves the start of hole `slot` down to `start`.
    #[inline]
    fn grow_left(&mut self, path: &Path, slot: usize, start: u64) {
        let leaf = self.leaves.get_mut(path.node(0));
        let end = leaf.end[slot];
        let size = K::of(end.get() - start);
        leaf.size[slot] = size;
        if slot == 0 {
            self.lower_left_separator(path, K::of(start));
        }
        self.raised(path, end, size);
    }

    #[inline]
    fn lower_left_separator(&mut self, path: &Path, start: K) {
        for level in 1..self.height + 1 {
            if let Some(slot) = path.slot(level).checked_sub(1) {
                let sep = &mut self.inners.get_mut(path.node(level)).sep[slot];
                *sep = (*sep).min(start);
                return;
            }
        }
    }

    #[inline]
    fn raise_right_separator(&mut self, path: &Path, end: K) {
        for level in 1..self.height + 1 {
            let sep = &mut self.inners.get_mut(path.node(level)).sep[path.slot(level)];
            // MAX marks the last child: the bound is higher up.
            if *sep != K::MAX {
                *sep = (*sep).max(end);
                return;
            }
        }
    }

    /// Updates the summaries above the leaf of `path` for a hole that is new, or longer than before.
    #[inline]
    fn raised(&mut self, path: &Path, end: K, size: K) {
        self.longest = self.longest.max(size.get());
        for level in 1..self.height + 1 {
            let gap = &mut self.inners.get_mut(path.node(level)).gap[path.slot(level)];
            if *gap >= size {
                break;
            }
            *gap = size;
        }
        if self.height > 0 && self.has_rows() {
            self.raised_rows(path, end, size);
        }
    }

    // Apart, since most trees have no rows.
    #[inline(never)]
    fn raised_rows(&mut self, path: &Path, end: K, size: K) {
        if self.row_classes != self.whole_classes {
            self.update_rows(path, [(end, size); 2]);
        }
        let (inner, slot) = (self.inners.get(path.node(1)), path.slot(1));
        let mut raised = Classes::NONE;
        for class in self.whole_classes.each() {
            let usable = rows::usable(end, size, class);
            if usable == K::ZERO {
                // Nor is it for any larger alignment.
                break;
            }
            let largest = &mut self.rows.get_mut(inner.row[class]).0[slot];
            if *largest < usable {
                *largest = usable;
                raised = raised.with(Classes::only(class));
            }
        }
        for class in raised.each() {
            self.raised_row(path, class, rows::usable(end, size, class));
        }
    }

    /// Raises the row of a class from the second level on.
    fn raised_row(&mut self, path: &Path, class: usize, usable: K) {
        for level in 2..self.height + 1 {
            let largest = &mut self.row_mut(path.node(level), class)[path.slot(level)];
            if *largest >= usable {
                return;
            }
            *largest = usable;
        }
    }

    /// Updates the summaries above the leaf of `path` for a hole of which only `rests` are left, empty ones too. They
    /// count even if they are not in the leaf yet.
    #[inline]
    fn lowered(&mut self, path: &Path, (end, size): (K, K), rests: [(K, K); 2]) {
        if self.height > 0 && self.has_rows() {
            self.lowered_rows(path, (end, size), rests);
        }
        self.lowered_gap(path, size, rests[0].1.max(rests[1].1));
    }

    #[inline(never)]
    fn lowered_rows(&mut self, path: &Path, hole: (K, K), rests: [(K, K); 2]) {
        if self.row_classes != self.whole_classes {
            self.update_rows(path, rests);
        }
        let usable = |(end, size), class| rows::usable(end, size, class);
        let (inner, slot) = (self.inners.get(path.node(1)), path.slot(1));
        let leaf = self.leaves.get(path.node(0));
        let mut lowered = Classes::NONE;
        for class in self.whole_classes.each() {
            let old = usable(hole, class);
            let rest = usable(rests[0], class).max(usable(rests[1], class));
            if rest == old {
                // No multiple of the alignment was cut off, nor of any larger one.
                break;
            }
            let largest = &mut self.rows.get_mut(inner.row[class]).0[slot];
            if *largest != old {
                continue;
            }
            *largest = rows::usable_in_leaf(&leaf.end, &leaf.size, class, rest);
            if *largest != old {
                lowered = lowered.with(Classes::only(class));
            }
        }
        for class in lowered.each() {
            self.lowered_row(path, class, usable(hole, class));
        }
    }

    /// Lowers the gaps. A gap above that is not `old` belongs to another hole: there the walk ends, without a scan.
    #[inline]
    fn lowered_gap(&mut self, path: &Path, old: K, rest: K) {
        for level in 1..self.height + 1 {
            let (node, slot) = (path.node(level), path.slot(level));
            if self.inners.get(node).gap[slot] != old {
                return;
            }
            let max = self.longest_below(path.node(level - 1), level - 1).max(rest);
            if max == old {
                return;
            }
            self.inners.get_mut(node).gap[slot] = max;
        }
        if self.longest == old.get() {
            self.longest = self.longest_below(path.node(self.height), self.height).max(rest).get();
        }
    }

    /// Returns the longest hole below `node`, which is at `level`, by a scan.
    #[inline]
    pub(super) fn longest_below(&self, node: u32, level: usize) -> K {
        match level {
            0 => self.leaves.get(node).max_size(),
            _ => self.inners.get(node).max_gap(),
        }
    }

    /// Does the same as [`lowered_gap`](Self::lowered_gap), for one class and from the second level on.
    fn lowered_row(&mut self, path: &Path, class: usize, old: K) {
        let mut below = self.inners.get(path.node(1)).row[class];
        for level in 2..self.height + 1 {
            let (row, slot) = (self.inners.get(path.node(level)).row[class], path.slot(level));
            if self.rows.get(row).0[slot] != old {
                return;
            }
            let max = node::max_of(&self.rows.get(below).0);
            if max == old {
                return;
            }
            self.rows.get_mut(row).0[slot] = max;
            below = row;
        }
    }
}
