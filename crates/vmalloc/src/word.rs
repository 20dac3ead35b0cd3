//! The word of an area's first page, which has the state of the area.
//!
//! ```text
//!   63 49    48    47         16 15        4 3   2       1     0
//!   |  0 | changed |   pages   |   slack   |tail| moved | state |     state 0: nothing ever began here, 1: live, 2: free
//!   |                  0                   |  kind  |   3   |           3: the page is a guard
//! ```
//! A free one that moved is the word of a page whose addresses were released: others may have them.
//!
//! With a tail, the last of the pages is not the caller's: it may be a guard.
//!
//! Slack is the part of the last page that the caller did not ask for. So three sizes are known:
//! requested, usable (whole pages), and with the address of the word the range.

use crate::PAGE_BYTES;

const STATE: u64 = 3;
const LIVE: u64 = 1;
const FREE: u64 = 2;
const GUARD: u64 = 3;
const MOVED: u64 = 1 << 2;
const TAIL_AT: u32 = 3;
const KIND_AT: u32 = 2;
const SLACK_AT: u32 = 4;
const PAGES_AT: u32 = 16;
const CHANGED: u64 = 1 << 48;
/// Pages that a word can tell.
pub(crate) const PAGES_MAX: u64 = u32::MAX as u64;

/// The method by which a page is a guard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Guard {
    /// It is marked in the page table.
    Marked,
    /// It is a mapping of its own, without access.
    Protected,
}

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

    /// The word of a page whose addresses, and those of the pages behind it, were released.
    pub(crate) const fn released(pages: u64) -> Self {
        Self::free(pages).moved()
    }

    /// Returns true if others may have the address of its page.
    #[inline(always)]
    pub(crate) const fn is_released(self) -> bool {
        self.0 & (STATE | MOVED) == FREE | MOVED
    }

    /// The word of a page that is a guard.
    pub(crate) const fn guard(kind: Guard) -> Self {
        Self((kind as u64) << KIND_AT | GUARD)
    }

    /// The guard that a page is.
    pub(crate) const fn as_guard(self) -> Option<Guard> {
        match (self.0 & STATE, self.0 >> KIND_AT) {
            (GUARD, 0) => Some(Guard::Marked),
            (GUARD, _) => Some(Guard::Protected),
            _ => None,
        }
    }

    /// The word of the same live area, of whose pages the last `tail`, 0 or 1, are not the caller's.
    #[inline(always)]
    pub(crate) const fn tailed(self, tail: u64) -> Self {
        Self(self.0 | tail << TAIL_AT)
    }

    #[inline(always)]
    pub(crate) const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    #[inline(always)]
    pub(crate) const fn bits(self) -> u64 {
        self.0
    }

    /// Bits of the words of live areas that a free looks closer at: those of moved areas, or, if it looks at `all`, one that all have.
    pub(crate) const fn closer(all: bool) -> u64 {
        if all { MOVED | LIVE } else { MOVED }
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
        (self.pages() - (self.0 >> TAIL_AT & 1)) as usize * PAGE_BYTES
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

    /// The program changed its mappings: nobody may have its addresses before they are mapped anew.
    pub(crate) const fn is_changed(self) -> bool {
        self.0 & CHANGED != 0
    }

    /// So it is moved as well, which is all that a free looks at.
    pub(crate) const fn changed(self) -> Self {
        Self(self.0 | CHANGED | MOVED)
    }

    /// The word of the same live area with another size: of `self`, only how it is mapped stays.
    pub(crate) const fn resized(self, to: Self) -> Self {
        Self(to.0 | self.0 & (CHANGED | MOVED))
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
            let changed = word.changed();
            assert!(
                changed.is_live() && changed.is_moved() && changed.is_changed() && !word.moved().is_changed()
            );
            assert_eq!((changed.pages(), changed.requested_bytes()), (pages, size));
            assert_eq!(changed.resized(Word::live(1, 5)), Word::live(1, 5).changed());
        }
        let tailed = Word::live(3, 5000).tailed(1);
        assert_eq!((tailed.pages(), tailed.usable_bytes(), tailed.requested_bytes()), (3, 8192, 5000));
        for kind in [Guard::Marked, Guard::Protected] {
            let guard = Word::guard(kind);
            assert!(guard.as_guard() == Some(kind) && !guard.is_live() && !guard.is_free());
        }
        assert!(tailed.as_guard().is_none() && Word::free(7).as_guard().is_none());
        let free = Word::free(PAGES_MAX);
        assert!(free.is_free() && !free.is_live() && free.pages() == PAGES_MAX);
        assert!(!Word::from_bits(0).is_live() && !Word::from_bits(0).is_free());
    }
}
