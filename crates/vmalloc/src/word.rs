//! What is known of an area, in the word of its first page.
//!
//! ```text
//!   63   48 47            16 15        4 3   2       1     0
//!   |  0   |     pages      |   slack   | 0 | moved | state |         state 0: nothing ever began here, 1: live, 2: free
//! ```
//! Slack is what the caller did not ask for in the last page, so that three sizes can be told: requested, usable (whole
//! pages), and with the address of the word the range.

use crate::PAGE_BYTES;

const STATE: u64 = 3;
const LIVE: u64 = 1;
const FREE: u64 = 2;
const MOVED: u64 = 1 << 2;
const SLACK_AT: u32 = 4;
const PAGES_AT: u32 = 16;
/// Pages that a word can tell.
pub(crate) const PAGES_MAX: u64 = u32::MAX as u64;

/// The word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Word(u64);

impl Word {
    /// The word of a live area of `size` bytes, which are not 0.
    #[inline(always)]
    pub(crate) const fn live(pages: u64, size: usize) -> Self {
        let slack = (size as u64).wrapping_neg() % PAGE_BYTES as u64;
        Self(pages << PAGES_AT | slack << SLACK_AT | LIVE)
    }

    /// The word of pages that nobody was given.
    #[inline(always)]
    pub(crate) const fn free(pages: u64) -> Self {
        Self(pages << PAGES_AT | FREE)
    }

    #[inline(always)]
    pub(crate) const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    #[inline(always)]
    pub(crate) const fn bits(self) -> u64 {
        self.0
    }

    #[inline(always)]
    pub(crate) const fn is_live(self) -> bool {
        self.0 & STATE == LIVE
    }

    /// An area began here once, and was freed.
    #[inline(always)]
    pub(crate) const fn is_free(self) -> bool {
        self.0 & STATE == FREE
    }

    #[inline(always)]
    pub(crate) const fn pages(self) -> u64 {
        self.0 >> PAGES_AT & PAGES_MAX
    }

    /// The pages that the caller can use, in bytes.
    pub(crate) const fn usable_bytes(self) -> usize {
        self.pages() as usize * PAGE_BYTES
    }

    /// The bytes that the caller asked for.
    pub(crate) const fn requested_bytes(self) -> usize {
        self.usable_bytes() - (self.0 >> SLACK_AT & (PAGE_BYTES as u64 - 1)) as usize
    }

    /// Its pages came from elsewhere: they are a mapping of their own.
    #[inline(always)]
    pub(crate) const fn is_moved(self) -> bool {
        self.0 & MOVED != 0
    }

    pub(crate) const fn moved(self) -> Self {
        Self(self.0 | MOVED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_tells_the_sizes_apart() {
        for (size, pages) in [(1, 1), (4095, 1), (4096, 1), (4097, 2), (1 << 40, 1 << 28)] {
            let word = Word::live(pages, size);
            assert_eq!((word.requested_bytes(), word.pages()), (size, pages));
            assert_eq!(word.usable_bytes(), pages as usize * PAGE_BYTES);
            assert!(word.is_live() && !word.is_free() && !word.is_moved());
            assert_eq!((word.moved().is_moved(), word.moved().requested_bytes()), (true, size));
        }
        let free = Word::free(PAGES_MAX);
        assert!(free.is_free() && !free.is_live() && free.pages() == PAGES_MAX);
        assert!(!Word::from_bits(0).is_live() && !Word::from_bits(0).is_free());
    }
}
