//! The word of an area's first page, which has the state of the area.
//!
//! ```text
//!   63 51    50    49         18 17        4 3   2       1     0
//!   |  0 | changed |   pages   |   slack   |tail| moved | state |     state 0: never an area, 1: live, 2: free
//!   |                  0                   |  kind  |   3   |           3: the page is a guard
//! ```
//! A free one that moved is the word of a page whose addresses were released, where foreign mappings may be.
//!
//! With a tail, the caller does not own the last page, which may be a guard.
//!
//! Slack is the bytes of all pages, the tail included, beyond the requested size. So a word yields three sizes: requested, usable
//! (whole pages) and, with its address, the whole range.

use crate::PAGE_BYTES;

const STATE: u64 = 3;
const LIVE: u64 = 1;
const FREE: u64 = 2;
const GUARD: u64 = 3;
const MOVED: u64 = 1 << 2;
const TAIL_AT: u32 = 3;
const KIND_AT: u32 = 2;
const SLACK_AT: u32 = 4;
const PAGES_AT: u32 = 18;
const CHANGED: u64 = 1 << 50;
/// The bits of the slack.
const SLACK: u64 = (ROUND_PAGES * PAGE_BYTES) as u64 - 1;
/// Pages to a multiple of which sizes are rounded: 16 KiB.
const ROUND_PAGES: usize = 4;
/// The least pages of areas whose size may be rounded: 64 KiB.
pub(crate) const ROUNDED_MIN: u64 = 16;
/// The most pages that a word can store.
pub(crate) const PAGES_MAX: u64 = u32::MAX as u64;

/// Returns the number of pages of an area of that many bytes. From [`ROUNDED_MIN`] pages on, the next `rounded` numbers
/// are rounded up to a multiple of [`ROUND_PAGES`].
#[inline(always)]
pub(crate) const fn area_pages(size: usize, rounded: u64) -> u64 {
    // A layout is at most half of the addresses, so the sum does not overflow.
    let pages = (size as u64).wrapping_add(PAGE_BYTES as u64 - 1) / PAGE_BYTES as u64;
    let is_rounded = pages.wrapping_sub(ROUNDED_MIN) < rounded;
    if is_rounded { pages.next_multiple_of(ROUND_PAGES as u64) } else { pages }
}

/// The method that makes a page a guard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Guard {
    /// The page is marked in the page table.
    Marked,
    /// The page is a separate mapping without access.
    Protected,
}

/// The word of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Word(u64);

impl Word {
    /// Returns the word of a live area of `size` bytes, which must not be 0. The pages are those of [`area_pages`], or
    /// with a [tail](Self::tailed) one more.
    #[inline(always)]
    pub(crate) const fn live(pages: u64, size: usize) -> Self {
        let slack = (pages * PAGE_BYTES as u64).wrapping_sub(size as u64) & SLACK;
        Self(pages << PAGES_AT | slack << SLACK_AT | LIVE)
    }

    /// Returns the word of pages that no caller owns.
    #[inline(always)]
    pub(crate) const fn free(pages: u64) -> Self {
        Self(pages << PAGES_AT | FREE)
    }

    /// Returns the word of a page whose addresses, and those of the pages behind it, were released.
    pub(crate) const fn released(pages: u64) -> Self {
        Self::free(pages).moved()
    }

    /// Returns true if a foreign mapping may be at the address of its page.
    #[inline(always)]
    pub(crate) const fn is_released(self) -> bool {
        self.0 & (STATE | MOVED) == FREE | MOVED
    }

    /// Returns the word of a guard page.
    pub(crate) const fn guard(kind: Guard) -> Self {
        Self((kind as u64) << KIND_AT | GUARD)
    }

    /// Returns the kind of guard, if the page is one.
    pub(crate) const fn as_guard(self) -> Option<Guard> {
        match (self.0 & STATE, self.0 >> KIND_AT) {
            (GUARD, 0) => Some(Guard::Marked),
            (GUARD, _) => Some(Guard::Protected),
            _ => None,
        }
    }

    /// Returns the word of the same live area with the last `tail` pages, 0 or 1, not owned by the caller.
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

    /// Returns bits that select the live areas for which a free takes its slow path: moved ones, or with `all` every
    /// live area.
    pub(crate) const fn closer(all: bool) -> u64 {
        if all { MOVED | LIVE } else { MOVED }
    }

    #[inline(always)]
    pub(crate) const fn is_live(self) -> bool {
        self.0 & STATE == LIVE
    }

    /// Returns true if an area began here, and was freed.
    #[inline(always)]
    pub(crate) const fn is_free(self) -> bool {
        self.0 & STATE == FREE
    }

    #[inline(always)]
    pub(crate) const fn pages(self) -> u64 {
        self.0 >> PAGES_AT & PAGES_MAX
    }

    /// Returns the bytes of the pages that the caller can use.
    pub(crate) const fn usable_bytes(self) -> usize {
        (self.pages() - (self.0 >> TAIL_AT & 1)) as usize * PAGE_BYTES
    }

    /// Returns the bytes that the caller requested.
    pub(crate) const fn requested_bytes(self) -> usize {
        self.pages() as usize * PAGE_BYTES - (self.0 >> SLACK_AT & SLACK) as usize
    }

    /// Returns true if the pages were moved here from other addresses, so that they are a separate mapping.
    #[inline(always)]
    pub(crate) const fn is_moved(self) -> bool {
        self.0 & MOVED != 0
    }

    pub(crate) const fn moved(self) -> Self {
        Self(self.0 | MOVED)
    }

    /// Returns true if the program changed the mappings of the area, so that its addresses must be mapped again before
    /// reuse.
    pub(crate) const fn is_changed(self) -> bool {
        self.0 & CHANGED != 0
    }

    /// Returns the word as changed. It is also moved, the only bit that a free checks.
    pub(crate) const fn changed(self) -> Self {
        Self(self.0 | CHANGED | MOVED)
    }

    /// Returns the word of the same live area with the size of `to`. Only the bits about its mapping are those of
    /// `self`.
    pub(crate) const fn resized(self, to: Self) -> Self {
        Self(to.0 | self.0 & (CHANGED | MOVED))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_distinguishes_the_sizes() {
        for (size, pages) in [
            (1, 1),
            (4095, 1),
            (4096, 1),
            (4097, 2),
            (60_001, 15),
            (61_441, 16),
            (65_537, 20),
            (1 << 40, 1 << 28),
        ] {
            assert_eq!(area_pages(size, u64::MAX - ROUNDED_MIN), pages);
            assert_eq!(area_pages(size, 0), size.div_ceil(PAGE_BYTES) as u64);
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
