//! Checks FT1, FT2, FT4 to FT6, BT1 to BT7 and SL1 with a walk over everything, O(n).

use super::cost::min_fill;
use super::rows::{CLASSES, usable_in_leaf};
use super::{BTree, Key};
use crate::slab::NIL;
use va_base::{InvariantViolation, Platform};

/// The state of the walk.
struct Walk {
    leaves: u64,
    inners: u64,
    rows: u64,
    holes: u64,
    pages: u64,
    /// End of the last hole, if there was one.
    last_end: Option<u64>,
}

/// The truth about a subtree.
struct Truth<K> {
    gap: K,
    /// The rows of all classes, recomputed.
    row: [K; CLASSES],
}

impl<K: Key, const F: usize, P: Platform, const L: usize, const I: usize> BTree<K, F, P, L, I> {
    pub(super) fn walk(&self) -> Result<(), InvariantViolation> {
        let mut walk = Walk { leaves: 0, inners: 0, rows: 0, holes: 0, pages: 0, last_end: None };
        let low = self.first - self.base;
        let truth = self.walk_node(self.root, self.height, low, self.top_end(), &mut walk)?;
        let at = self.va(low);
        want("BT3", at, truth.gap.get(), self.longest)?;
        if let Some((start, end)) = self.top_hole() {
            walk.holes += 1;
            walk.pages += end - start;
        }
        if let Some(last_end) = walk.last_end {
            // BT5 and FT2: below the top hole and apart from it, or below the end of the extent.
            ensure("BT5", self.va(last_end), self.top_start, last_end, last_end < self.top_start)?;
            ensure("BT6", self.va(last_end), self.last_end, last_end, last_end <= self.last_end)?;
        }
        want("FT5", at, walk.holes, self.ledger.holes)?;
        want("FT5", at, walk.pages, self.ledger.free_pages)?;
        self.ledger.validate()?;
        want("SL1", at, walk.leaves, self.leaves.used() as u64)?;
        want("SL1", at, walk.inners, self.inners.used() as u64)?;
        want("SL1", at, walk.rows, self.rows.used() as u64)?;
        // BT7: above leaves alone each class is whole.
        let whole = if self.height > 0 { self.built(self.root) } else { self.row_classes };
        let (whole, kept) = (u64::from(whole.bits()), u64::from(self.whole_classes.bits()));
        want("BT7", at, whole, kept)?;
        for (nth, conserved) in
            [self.leaves.is_conserved(), self.inners.is_conserved(), self.rows.is_conserved()]
                .into_iter()
                .enumerate()
        {
            ensure("SL1", at, 0, nth as u64, conserved)?;
        }
        Ok(())
    }

    /// Checks the subtree of `node`: every hole ends in `(low, high]`, every hole but the first also starts in it.
    fn walk_node(
        &self,
        node: u32,
        level: usize,
        low: u64,
        high: u64,
        walk: &mut Walk,
    ) -> Result<Truth<K>, InvariantViolation> {
        let is_root = node == self.root;
        if level == 0 {
            walk.leaves += 1;
            return self.walk_leaf(node, is_root, low, high, walk);
        }
        let built = self.built(node);
        walk.inners += 1;
        walk.rows += built.count() as u64;
        ensure("BT7", self.va(low), 0, u64::from(built.bits()), built.without(self.row_classes).is_empty())?;
        let inner = self.inners.get(node);
        let at = self.va(low);
        let len = inner.len();
        let fewest = if is_root { 2 } else { min_fill(F) };
        ensure("BT2", at, fewest as u64, len as u64, len >= fewest)?;
        let mut truth = Truth { gap: K::ZERO, row: [K::ZERO; CLASSES] };
        let mut low = low;
        for slot in 0..F {
            if slot >= len {
                let unused = (inner.sep[slot], inner.gap[slot], inner.child[slot]) == (K::MAX, K::ZERO, NIL);
                ensure("BT2", at, 1, slot as u64, unused)?;
                continue;
            }
            let sep = inner.sep[slot].get();
            let child_high = if slot + 1 == len {
                want("BT1", at, K::MAX.get(), sep)?;
                high
            } else {
                ensure("BT1", self.va(low), low, sep, low <= sep && sep <= high)?;
                sep
            };
            let below = self.walk_node(inner.child[slot], level - 1, low, child_high, walk)?;
            if level > 1 {
                let lacking = built.without(self.built(inner.child[slot]));
                want("BT7", self.va(low), 0, u64::from(lacking.bits()))?;
            }
            want("BT3", self.va(low), below.gap.get(), inner.gap[slot].get())?;
            truth.gap = truth.gap.max(below.gap);
            for (class, &exact) in below.row.iter().enumerate() {
                truth.row[class] = truth.row[class].max(exact);
                if built.has(class) {
                    let stored = self.row(node, class)[slot];
                    want("BT4", self.va(low), exact.get(), stored.get())?;
                }
            }
            low = child_high;
        }
        for class in built.each() {
            let unused = self.row(node, class)[len..].iter().all(|&row| row == K::ZERO);
            ensure("BT4", at, 0, class as u64, unused)?;
        }
        Ok(truth)
    }

    fn walk_leaf(
        &self,
        node: u32,
        is_root: bool,
        low: u64,
        high: u64,
        walk: &mut Walk,
    ) -> Result<Truth<K>, InvariantViolation> {
        let leaf = self.leaves.get(node);
        let len = leaf.len();
        let at = self.va(low);
        ensure("BT2", at, min_fill(F) as u64, len as u64, is_root || len >= min_fill(F))?;
        for slot in 0..F {
            if slot >= len {
                let unused = (leaf.end[slot], leaf.size[slot]) == (K::MAX, K::ZERO);
                ensure("BT2", at, len as u64, slot as u64, unused)?;
                continue;
            }
            let (end, size) = (leaf.end[slot].get(), leaf.size[slot].get());
            ensure("FT4", at, end, size, 0 < size && size <= end && end < self.top_end())?;
            let start = end - size;
            ensure("FT4", self.va(start), self.first - self.base, start, start >= self.first - self.base)?;
            // BT1: to the right of every separator before, to the left of the next.
            ensure("BT1", self.va(start), low, start, start >= low)?;
            ensure("BT1", self.va(end), high, end, end <= high)?;
            if let Some(last_end) = walk.last_end {
                ensure("FT1", self.va(start), last_end, start, start >= last_end)?;
                ensure("FT2", self.va(start), last_end, start, start != last_end)?;
            }
            walk.last_end = Some(end);
            walk.holes += 1;
            walk.pages += size;
        }
        let row = core::array::from_fn(|class| usable_in_leaf(&leaf.end, &leaf.size, class, K::ZERO));
        Ok(Truth { gap: leaf.max_size(), row })
    }
}

fn want(rule: &'static str, at: va_base::Va, want: u64, got: u64) -> Result<(), InvariantViolation> {
    ensure(rule, at, want, got, want == got)
}

fn ensure(
    rule: &'static str,
    at: va_base::Va,
    want: u64,
    got: u64,
    holds: bool,
) -> Result<(), InvariantViolation> {
    InvariantViolation::check(holds, rule, at, want, got)
}
