//! The reasons for an answer, from the gaps and rows (feature `certify`).

use super::rows::Classes;
use super::{BTree, Key};
use crate::certify::{Bound, Certify, Cover, Covered};
use va_base::Platform;

/// The end of the part of the space below a node, relative, and the class of the request.
#[derive(Clone, Copy)]
struct Part {
    high: u64,
    class: Option<usize>,
}

impl<K: Key, const F: usize, P: Platform, const L: usize, const I: usize> BTree<K, F, P, L, I> {
    /// Covers the part of the space of `node`, relative units. Depth is bounded by `MAX_HEIGHT`.
    fn cover_node(&self, node: u32, level: usize, part: Part, cover: &mut Cover<'_>) {
        if level == 0 {
            let leaf = self.leaves.get(node);
            for slot in 0..leaf.len() {
                let (start, end) = self.hole_at(node, slot);
                cover.hole(self.base + start, self.base + end);
            }
            return;
        }
        let inner = self.inners.get(node);
        let len = inner.len();
        for slot in 0..len {
            // The last child ends where its parent does.
            let end = if slot + 1 == len { part.high } else { inner.sep[slot].get() };
            // What a search reads: the row of its class or the next below that the node has, else the gap.
            let (longest, align_log2) = match part.class.and_then(|class| self.built(node).up_to(class)) {
                Some(class) => (self.row(node, class)[slot], class as u32 + 1),
                None => (inner.gap[slot], 0),
            };
            let high = self.base + end;
            if !cover.is_done(high) && !cover.at_most(high, longest.get(), align_log2) {
                self.cover_node(inner.child[slot], level - 1, Part { high: end, ..part }, cover);
            }
            if !cover.reaches_above(high) {
                return;
            }
        }
    }

    fn shape_node(&self, node: u32, level: usize, each: &mut dyn FnMut(u64)) {
        if level == 0 {
            let leaf = self.leaves.get(node);
            each(leaf.len() as u64);
            leaf.end.iter().zip(&leaf.size).take(leaf.len()).for_each(|(end, size)| {
                each(end.get());
                each(size.get());
            });
            return;
        }
        let inner = self.inners.get(node);
        each(inner.len() as u64);
        each(self.built(node).count() as u64);
        self.built(node).each().for_each(|class| each(class as u64));
        for slot in 0..inner.len() {
            each(inner.sep[slot].get());
            each(inner.gap[slot].get());
            self.built(node).each().for_each(|class| each(self.row(node, class)[slot].get()));
            self.shape_node(inner.child[slot], level - 1, each);
        }
    }
}

impl<K: Key, const F: usize, P: Platform, const L: usize, const I: usize> Certify for BTree<K, F, P, L, I> {
    fn cover(&self, covered: Covered, each: &mut dyn FnMut(Bound)) {
        let mut cover = Cover::new(covered, each);
        let top = self.base + self.top_start;
        // All holes of the tree at once, as the search does.
        if !cover.is_done(top) && !cover.at_most(top, self.longest, 0) {
            let class = (covered.align_log2 > 0).then(|| Classes::of_align(covered.align_log2));
            let part = Part { high: self.top_start, class };
            self.cover_node(self.root, self.height, part, &mut cover);
        }
        cover.hole(top, self.end);
        cover.nothing();
    }

    fn shape(&self, each: &mut dyn FnMut(u64)) {
        // The records that are reserved change no answer while memory does not fail.
        let ledger = [self.ledger.live, self.ledger.holes, self.ledger.free_pages];
        let tree = [self.height as u64, self.longest, self.last_end, self.top_start];
        let classes = self.row_classes.each().chain(self.rows_missed.each()).map(|class| class as u64);
        ledger.into_iter().chain(tree).for_each(&mut *each);
        each(self.row_classes.count() as u64);
        classes.for_each(&mut *each);
        each(u64::from(self.rows_always));
        self.shape_node(self.root, self.height, each);
    }
}
