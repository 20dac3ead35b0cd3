//! Splits, joins and shifts that keep nodes between 3F/8 and F entries (BT2).
//!
//! A split, a join and a shift move holes between siblings. The maxima above their parent do not change, so each
//! corrects only the two summaries in the parent.

use super::cost::min_fill;
use super::node::{insert_at, max_of, move_tail, remove_at};
use super::path::Path;
use super::rows::{Classes, usable_in_leaf};
use super::{BTree, Key};
use crate::slab::NIL;
use va_base::Platform;

impl<K: Key, const F: usize, P: Platform, const L: usize, const I: usize> BTree<K, F, P, L, I> {
    /// Fewest entries of a node that is not the root.
    const MIN: usize = min_fill(F);

    /// Takes a reserved record.
    fn reserved(&self, record: Option<u32>) -> u32 {
        match record {
            Some(id) => id,
            None => {
                self.platform.bug(format_args!("SP3: the tree needs a record that was not paid for"), None)
            }
        }
    }

    /// Takes a leaf, whose contents are unspecified.
    pub(super) fn new_leaf(&mut self) -> u32 {
        let id = self.leaves.take();
        self.reserved(id)
    }

    /// Takes a row, whose contents are unspecified.
    pub(super) fn new_row(&mut self) -> u32 {
        let id = self.rows.take();
        self.reserved(id)
    }

    /// Takes an inner node and rows of `classes` for it. All else of it is unspecified.
    fn new_inner(&mut self, classes: Classes) -> u32 {
        let id = self.inners.take();
        let id = self.reserved(id);
        self.inners.get_mut(id).built = Classes::NONE;
        classes.each().for_each(|class| self.add_row(id, class));
        id
    }

    fn drop_inner(&mut self, id: u32) {
        self.drop_rows_of(id, self.built(id));
        self.inners.put(id);
    }

    /// Recomputes the summary in inner node `parent` of its child `slot`, a node at `level` (0 is a leaf).
    fn resummarize(&mut self, parent: u32, slot: usize, level: usize) {
        let child = self.inners.get(parent).child[slot];
        let gap = self.longest_below(child, level);
        self.inners.get_mut(parent).gap[slot] = gap;
        self.summarize_rows(parent, slot, level, |row, usable| row[slot] = usable);
    }

    /// Passes each row of inner node `parent` to `set`, with what is usable in its child `slot`, a node at `level`.
    #[inline(always)]
    fn summarize_rows(&mut self, parent: u32, slot: usize, level: usize, set: impl Fn(&mut [K; F], K)) {
        let inner = self.inners.get(parent);
        let child = inner.child[slot];
        let below = (level > 0).then(|| self.inners.get(child));
        for class in inner.built(self.row_epoch).each() {
            // The child has it, too (BT7).
            let usable = match below {
                None => {
                    let leaf = self.leaves.get(child);
                    usable_in_leaf(&leaf.end, &leaf.size, class, K::ZERO)
                }
                Some(below) => max_of(&self.rows.get(below.row[class]).0),
            };
            set(&mut self.rows.get_mut(inner.row[class]).0, usable);
        }
    }

    /// Splits the full leaf of `path` in halves and inserts a hole at `slot`. The summaries above include the hole.
    #[cold]
    pub(super) fn split_leaf(&mut self, path: &Path, slot: usize, end: K, size: K) {
        let left = path.node(0);
        let right = self.new_leaf();
        let half = F / 2;
        let leaf = self.leaves.get_mut(left);
        let (ends, sizes) = (upper_half(&mut leaf.end, K::MAX), upper_half(&mut leaf.size, K::ZERO));
        // At the seam the hole goes right: it ends above everything on the left either way.
        if slot < half {
            leaf.insert(slot, end, size);
        }
        // The last end on the left: below every start on the right, since holes do not touch (BT1).
        let sep = leaf.end[if slot < half { half } else { half - 1 }];
        let leaf = self.leaves.get_mut(right);
        (leaf.end, leaf.size) = (ends, sizes);
        if slot >= half {
            leaf.insert(slot - half, end, size);
        }
        self.add_child(path, 1, sep, right);
    }

    /// Makes `right` the right sibling of the node of `path` at `level - 1`, which it was split from at `sep`.
    fn add_child(&mut self, path: &Path, level: usize, sep: K, right: u32) {
        if level > self.height {
            return self.grow_root(sep, right);
        }
        let (parent, slot) = (path.node(level), path.slot(level));
        if self.inners.get(parent).is_full() {
            let (parent, slot) = self.split_inner(path, level);
            self.put_child(parent, slot, level, sep, right);
        } else {
            self.put_child(parent, slot, level, sep, right);
        }
    }

    /// Inserts `right` after child `slot` of `parent`, which has room.
    fn put_child(&mut self, parent: u32, slot: usize, level: usize, sep: K, right: u32) {
        let gap = self.longest_below(right, level - 1);
        let inner = self.inners.get_mut(parent);
        // The new child ends where the old one ended; the old one now ends at `sep`.
        let old_sep = inner.sep[slot];
        inner.insert(slot + 1, old_sep, gap, right);
        inner.sep[slot] = sep;
        self.summarize_rows(parent, slot + 1, level - 1, |row, usable| insert_at(row, slot + 1, usable));
        self.resummarize(parent, slot, level - 1);
    }

    /// Splits the full inner node of `path` at `level` in halves; returns where its slot of the path is now.
    ///
    /// It calls itself for each level whose node is full, so it has no node on its stack.
    fn split_inner(&mut self, path: &Path, level: usize) -> (u32, usize) {
        let (left, slot) = (path.node(level), path.slot(level));
        let right = self.new_inner(self.built(left));
        let sep = self.halve_inner(left, right);
        self.add_child(path, level + 1, sep, right);
        let half = F / 2;
        if slot < half { (left, slot) } else { (right, slot - half) }
    }

    /// Moves the upper half of the full inner node `left` to `right`, which has rows of the same classes; returns the separator between
    /// them. Array by array, so that a node is never on the stack.
    #[inline(never)]
    fn halve_inner(&mut self, left: u32, right: u32) -> K {
        let half = F / 2;
        let lower = self.inners.get_mut(left);
        let upper = upper_half(&mut lower.sep, K::MAX);
        // The separator of the last child on the left moves up.
        let sep = core::mem::replace(&mut lower.sep[half - 1], K::MAX);
        self.inners.get_mut(right).sep = upper;
        let upper = upper_half(&mut self.inners.get_mut(left).gap, K::ZERO);
        self.inners.get_mut(right).gap = upper;
        let upper = upper_half(&mut self.inners.get_mut(left).child, NIL);
        self.inners.get_mut(right).child = upper;
        for class in self.built(left).each() {
            let upper = upper_half(self.row_mut(left, class), K::ZERO);
            *self.row_mut(right, class) = upper;
        }
        sep
    }

    /// Puts a new root above the old one and its new right sibling.
    fn grow_root(&mut self, sep: K, right: u32) {
        let (left, level) = (self.root, self.height);
        // Above leaves all; above an inner node those that it has, and so its new sibling, too.
        let root = self.new_inner(self.whole_classes);
        for class in self.whole_classes.each() {
            *self.row_mut(root, class) = [K::ZERO; F];
        }
        let inner = self.inners.get_mut(root);
        (inner.sep, inner.gap, inner.child) = ([K::MAX; F], [K::ZERO; F], [NIL; F]);
        inner.insert(0, K::MAX, K::ZERO, right);
        inner.insert(0, sep, K::ZERO, left);
        self.resummarize(root, 0, level);
        self.resummarize(root, 1, level);
        self.root = root;
        self.height += 1;
    }

    /// Joins or refills the leaf of `path`, and the nodes above it, if they have too few entries.
    #[inline]
    pub(super) fn refill(&mut self, path: &Path) {
        if self.height == 0 || self.leaves.get(path.node(0)).size[Self::MIN - 1] != K::ZERO {
            return;
        }
        self.refill_from(path);
    }

    #[cold]
    fn refill_from(&mut self, path: &Path) {
        for level in 1..self.height + 1 {
            let (parent, slot) = (path.node(level), path.slot(level));
            // The left sibling, or for a first child the right one.
            let left = slot.saturating_sub(1);
            if !self.join(parent, left, level - 1) {
                return;
            }
            if level == self.height {
                if self.inners.get(parent).child[1] == NIL {
                    self.root = self.inners.get(parent).child[0];
                    self.height -= 1;
                    self.drop_inner(parent);
                    self.count_whole();
                    self.forget_rows();
                }
                return;
            }
            if self.inners.get(parent).child[Self::MIN - 1] != NIL {
                return;
            }
        }
    }

    /// Drops all rows if the tree has one inner node: no search visits more leaves than that has. O(1).
    fn forget_rows(&mut self) {
        if self.height == 1 && self.has_rows() && !self.rows_always {
            self.drop_rows();
        }
    }

    /// Returns the row of a class of inner node `id` that has one.
    #[inline(always)]
    pub(super) fn row(&self, id: u32, class: usize) -> &[K; F] {
        &self.rows.get(self.inners.get(id).row[class]).0
    }

    /// Returns that row mutably.
    #[inline(always)]
    pub(super) fn row_mut(&mut self, id: u32, class: usize) -> &mut [K; F] {
        let row = self.inners.get(id).row[class];
        &mut self.rows.get_mut(row).0
    }

    /// Joins children `left` and `left + 1` of `parent`, nodes at `level`, if they fit comfortably (2m entries); else
    /// divides the entries equally. Returns true if they were joined.
    fn join(&mut self, parent: u32, left: usize, level: usize) -> bool {
        let inner = self.inners.get(parent);
        let (a, b) = (inner.child[left], inner.child[left + 1]);
        let sep = inner.sep[left];
        let (a_len, b_len) = match level {
            0 => (self.leaves.get(a).len(), self.leaves.get(b).len()),
            _ => (self.inners.get(a).len(), self.inners.get(b).len()),
        };
        let total = a_len + b_len;
        let joined = total <= 2 * Self::MIN;
        // The number of entries of the left one afterwards.
        let left_target = if joined { total } else { total / 2 };
        let sep = match level {
            0 => self.share_leaves(a, b, a_len, b_len, left_target),
            _ => self.share_inners(a, b, a_len, b_len, left_target, sep),
        };
        let inner = self.inners.get_mut(parent);
        if joined {
            // The joined node ends where the right one ended.
            inner.sep[left] = inner.sep[left + 1];
            inner.remove(left + 1);
            for class in self.built(parent).each() {
                remove_at(self.row_mut(parent, class), left + 1, K::ZERO);
            }
            match level {
                0 => self.leaves.put(b),
                _ => self.drop_inner(b),
            }
        } else {
            inner.sep[left] = sep;
            self.resummarize(parent, left + 1, level);
        }
        self.resummarize(parent, left, level);
        joined
    }

    /// Moves holes between neighbouring leaves until `a` has `left_target`; returns the separator between them.
    /// Array by array, so that a node is never on the stack.
    #[inline(never)]
    fn share_leaves(&mut self, a: u32, b: u32, a_len: usize, b_len: usize, left_target: usize) -> K {
        let mut upper = self.leaves.get(b).end;
        let lower = &mut self.leaves.get_mut(a).end;
        share(lower, &mut upper, a_len, b_len, left_target, K::MAX);
        let sep = lower[left_target - 1];
        self.leaves.get_mut(b).end = upper;
        upper = self.leaves.get(b).size;
        share(&mut self.leaves.get_mut(a).size, &mut upper, a_len, b_len, left_target, K::ZERO);
        self.leaves.get_mut(b).size = upper;
        sep
    }

    /// Moves children between neighbouring inner nodes until `a` has `left_target`; returns the separator between them.
    /// Like [`share_leaves`](Self::share_leaves).
    #[inline(never)]
    fn share_inners(&mut self, a: u32, b: u32, a_len: usize, b_len: usize, left_target: usize, sep: K) -> K {
        let mut upper = self.inners.get(b).sep;
        let lower = &mut self.inners.get_mut(a).sep;
        // The bound of the left node from above bounds its last child; the parent will have the new bound.
        lower[a_len - 1] = sep;
        share(lower, &mut upper, a_len, b_len, left_target, K::MAX);
        let sep = core::mem::replace(&mut lower[left_target - 1], K::MAX);
        self.inners.get_mut(b).sep = upper;
        upper = self.inners.get(b).gap;
        share(&mut self.inners.get_mut(a).gap, &mut upper, a_len, b_len, left_target, K::ZERO);
        self.inners.get_mut(b).gap = upper;
        let mut children = self.inners.get(b).child;
        share(&mut self.inners.get_mut(a).child, &mut children, a_len, b_len, left_target, NIL);
        self.inners.get_mut(b).child = children;
        // Where one of them lacks a row, the other one's children are not all of those that it has afterwards.
        let (of_a, of_b) = (self.built(a), self.built(b));
        self.drop_rows_of(a, of_a.without(of_b));
        self.drop_rows_of(b, of_b.without(of_a));
        for class in self.built(a).each() {
            upper = *self.row(b, class);
            share(self.row_mut(a, class), &mut upper, a_len, b_len, left_target, K::ZERO);
            *self.row_mut(b, class) = upper;
        }
        sep
    }
}

/// Returns an array that begins with the upper half of `values` and continues with `unused`. That half of `values`
/// becomes `unused`.
#[inline(always)]
fn upper_half<T: Copy, const F: usize>(values: &mut [T; F], unused: T) -> [T; F] {
    let mut upper = [unused; F];
    let (lower, rest) = upper.split_at_mut(F / 2);
    lower.copy_from_slice(&values[F / 2..]);
    values[F / 2..].copy_from_slice(rest);
    upper
}

/// Moves elements over the seam between two neighbouring arrays until the left one has `left_target`.
fn share<T: Copy, const F: usize>(
    left: &mut [T; F],
    right: &mut [T; F],
    left_len: usize,
    right_len: usize,
    left_target: usize,
    unused: T,
) {
    if left_target >= left_len {
        let moved = left_target - left_len;
        left[left_len..left_target].copy_from_slice(&right[..moved]);
        right.copy_within(moved..right_len, 0);
        right[right_len - moved..right_len].fill(unused);
    } else {
        let moved = left_len - left_target;
        right.copy_within(..right_len, moved);
        move_tail(left, left_target, left_len, right, unused);
    }
}
