//! The reasons for an answer, from `subtree_max_size` (feature `certify`).

use super::{RbIndex, Search};
use crate::certify::{Bound, Certify, Cover, Covered};
use crate::slab::NIL;
use va_base::{PAGE_SIZE, Platform};

impl<S: Search, P: Platform> RbIndex<S, P> {
    /// Covers the pages of the subtree of `id`, up to page `high`. Depth is bounded by RB1 and RB2.
    fn cover_hole(&self, id: u32, high: u64, cover: &mut Cover<'_>) {
        if id == NIL || cover.is_done(high) {
            return;
        }
        let hole = self.tree.get(id);
        if cover.at_most(high, hole.subtree_max_size / PAGE_SIZE, 0) {
            return;
        }
        let (start, end) = (hole.start / PAGE_SIZE, hole.end / PAGE_SIZE);
        self.cover_hole(hole.left(), start, cover);
        if cover.reaches_above(start) {
            cover.hole(start, end);
            self.cover_hole(hole.right(), high, cover);
        }
    }

    fn shape_hole(&self, id: u32, each: &mut dyn FnMut(u64)) {
        each(u64::from(id != NIL));
        if id != NIL {
            let hole = self.tree.get(id);
            [hole.start, hole.end, hole.subtree_max_size, u64::from(hole.red)]
                .into_iter()
                .for_each(&mut *each);
            self.shape_hole(hole.left(), each);
            self.shape_hole(hole.right(), each);
        }
    }
}

impl<S: Search, P: Platform> Certify for RbIndex<S, P> {
    fn cover(&self, covered: Covered, each: &mut dyn FnMut(Bound)) {
        let mut cover = Cover::new(covered, each);
        self.cover_hole(self.tree.root, self.extent.end().page_floor(), &mut cover);
        cover.nothing();
    }

    fn shape(&self, each: &mut dyn FnMut(u64)) {
        [self.ledger.live, self.ledger.holes, self.ledger.free_pages].into_iter().for_each(&mut *each);
        self.shape_hole(self.tree.root, each);
    }
}
