//! Start bits and words of areas that leave the free index, change, or return to it, under the lock of the index.

use super::leaf::{Leaf, Slot};
use super::table::Subtree;
use super::word::{ESCAPE_PAGES, Word};
use super::{Marker, PageMap};

impl PageMap {
    /// Sets word and start bit of an area that just left the index, and returns its slot. Its leaf is in place
    /// ([`attach`](Self::attach)).
    pub(crate) fn begin(
        &self,
        _marker: &mut Marker,
        page: u64,
        pages: u64,
        word: Word,
    ) -> Option<&'static Slot> {
        let leaf = self.leaf(page)?;
        if pages >= ESCAPE_PAGES {
            leaf.set_huge_pages(pages);
        }
        let slot = leaf.slot(page);
        slot.put(word);
        self.mark(page, Leaf::bit(page));
        Some(slot)
    }

    /// Sets word and start bit of areas that just left the index, as [`begin`](Self::begin) does for one. Each is
    /// smaller than a huge one. `word` has the word for the last generation at a page, and `each` is called with the
    /// area. Pages in one leaf that follow each other cost one access to the tables.
    #[inline(always)]
    pub(crate) fn begin_row(
        &self,
        _marker: &mut Marker,
        pages: impl Iterator<Item = u64>,
        word: impl Fn(u32) -> Word,
        mut each: impl FnMut(u64, Word, &'static Slot),
    ) {
        let mut open: Option<(u64, u64, &'static Leaf)> = None;
        for page in pages {
            let (bits, leaf) = match open {
                Some((first, bits, leaf)) if Leaf::serves_both(first, page) => (bits, leaf),
                before => {
                    before.iter().for_each(|&(first, bits, _)| self.mark(first, bits));
                    let Some(leaf) = self.leaf(page) else { return };
                    (0, leaf)
                }
            };
            let slot = leaf.slot(page);
            let word = word(slot.link() as u32);
            slot.put(word);
            open = Some((page, bits | Leaf::bit(page), leaf));
            each(page, word, slot);
        }
        open.iter().for_each(|&(first, bits, _)| self.mark(first, bits));
    }

    /// Sets start bits in the leaf of `page`.
    fn mark(&self, page: u64, bits: u64) {
        // The tables above the near one have their bit already if the near one has any.
        match self.near_page(page) {
            Some((near, at)) if near.has_any() => near.mark(at, bits),
            _ => {
                if let Some(far) = self.far {
                    far.mark(page, bits);
                }
            }
        }
    }

    /// Sets another size and word of an area that the caller owns, under the lock of the free index.
    pub(crate) fn resize(&self, _marker: &mut Marker, page: u64, pages: u64, word: Word) {
        let Some(leaf) = self.leaf(page) else { return };
        if pages >= ESCAPE_PAGES {
            leaf.set_huge_pages(pages);
        }
        leaf.slot(page).put(word);
    }

    /// Clears the start bit and the word of an area that returns to the index. The generation remains in the link, for
    /// the next area that begins here.
    pub(crate) fn end(&self, marker: &mut Marker, page: u64) {
        if self.near_page(page).is_none_or(|(near, at)| near.unmark(at))
            && let Some(far) = self.far
        {
            far.unmark(page);
        }
        let Some(leaf) = self.leaf(page) else { return };
        let slot = leaf.slot(page);
        slot.set_link(u64::from(slot.word().generation()));
        slot.put(Word::NONE);
        if leaf.is_empty() {
            marker.empties.push(leaf);
        }
    }
}
