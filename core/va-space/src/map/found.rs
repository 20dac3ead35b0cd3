//! An area as a look-up found it, for a claim of just that.

use super::leaf::Slot;
use super::word::Word;

/// An area that a lookup found, to be claimed as it was found: by its word, which has a generation, and its slot.
#[derive(Clone, Copy)]
#[must_use = "what was found is claimed, or left alone"]
pub(crate) struct Found {
    /// First page.
    pub(crate) page: u64,
    /// Size.
    pub(crate) pages: u64,
    /// The word as it was read.
    pub(crate) word: Word,
    slot: &'static Slot,
}

impl Found {
    /// Returns an area as it was read from its slot.
    #[inline(always)]
    pub(crate) fn new(page: u64, pages: u64, word: Word, slot: &'static Slot) -> Self {
        Self { page, pages, word, slot }
    }

    /// Replaces the word that was found. Fails if it is another by now: then the area was freed, cut or noted, and
    /// nothing has changed.
    #[inline(always)]
    pub(crate) fn exchange(self, to: Word) -> Result<&'static Slot, Word> {
        self.slot.exchange(self.word, to).map(|()| self.slot)
    }
}
