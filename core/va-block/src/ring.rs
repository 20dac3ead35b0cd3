//! Lists of blocks, threaded through their records.
//!
//! A list is a ring of indices: the block before the first is the last, so a list is one word and a
//! block leaves it in O(1). Each record has two pairs of links, one for each kind of list that a
//! block can be in at a time.

use crate::block::{Block, NIL};
use crate::lookup::Lookup;
use va_base::sync::atomic::Ordering;

/// The kind of the lists of a CPU's open blocks.
pub(crate) const OPEN: usize = 0;
/// The kind of the lists of the collection.
pub(crate) const COLLECTED: usize = 1;

/// A list of kind `KIND`, the oldest block first.
#[derive(Clone, Copy)]
pub(crate) struct Ring<const KIND: usize> {
    /// The index of the oldest block and one, so that an empty list is all zeros.
    after_head: u32,
}

impl<const KIND: usize> Ring<KIND> {
    pub(crate) const EMPTY: Self = Self { after_head: 0 };

    pub(crate) fn is_empty(self) -> bool {
        self.after_head == 0
    }

    /// Returns the index of the oldest block, or `NIL`.
    fn head(self) -> u32 {
        self.after_head.wrapping_sub(1)
    }

    /// Returns the oldest block.
    pub(crate) fn first(self, lookup: &Lookup) -> Option<&'static Block> {
        lookup.find(self.head())
    }

    /// Puts a block that is in no list of this kind at the end.
    pub(crate) fn push(&mut self, lookup: &Lookup, block: &'static Block) {
        let (index, link) = (block.index(), block.link(KIND));
        let Some(first) = lookup.find(self.head()) else {
            link.next.store(index, Ordering::Relaxed);
            link.prev.store(index, Ordering::Relaxed);
            self.after_head = index + 1;
            return;
        };
        let last = first.link(KIND).prev();
        link.next.store(self.head(), Ordering::Relaxed);
        link.prev.store(last, Ordering::Relaxed);
        first.link(KIND).prev.store(index, Ordering::Relaxed);
        if let Some(last) = lookup.find(last) {
            last.link(KIND).next.store(index, Ordering::Relaxed);
        }
    }

    /// Removes a block that is in this list.
    pub(crate) fn remove(&mut self, lookup: &Lookup, block: &Block) {
        let (next, prev) = (block.link(KIND).next(), block.link(KIND).prev());
        if next == block.index() {
            self.after_head = 0;
            return;
        }
        if let Some(next) = lookup.find(next) {
            next.link(KIND).prev.store(prev, Ordering::Relaxed);
        }
        if let Some(prev) = lookup.find(prev) {
            prev.link(KIND).next.store(next, Ordering::Relaxed);
        }
        if self.head() == block.index() {
            self.after_head = next + 1;
        }
    }

    /// Returns the blocks, the oldest first. Only the block that was returned last may leave the list meanwhile.
    pub(crate) fn each<'a>(self, lookup: &'a Lookup) -> impl Iterator<Item = &'static Block> + use<'a, KIND> {
        let mut at = self.head();
        let last = self.first(lookup).map_or(NIL, |first| first.link(KIND).prev());
        core::iter::from_fn(move || {
            let block = lookup.find(at)?;
            at = if at == last { NIL } else { block.link(KIND).next() };
            Some(block)
        })
    }
}
