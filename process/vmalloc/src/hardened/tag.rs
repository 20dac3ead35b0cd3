//! The tag of an area's first page, which has the state of the area.
//!
//! ```text
//!   63 59   58    57    46 45   34 33        2 1     0
//!   |  0 | changed | offset | tail  |   pages   | state |   live: 1. Offset in the first page; bytes behind the end
//!   |            when             |   pages   | state |     quarantined: 2, released: 3. Number of the free. 0: never
//! ```

use crate::PAGE_BYTES;

const LIVE: u64 = 1;
const QUARANTINED: u64 = 2;
/// The bits to set in the tag of an area in quarantine when its addresses are free for reuse.
pub(crate) const RELEASED: u64 = 3;
const PAGES_AT: u32 = 2;
const TAIL_AT: u32 = 34;
const OFFSET_AT: u32 = 46;
const CHANGED: u64 = 1 << 58;
const IN_PAGE: u64 = PAGE_BYTES as u64 - 1;
/// The most pages that a tag can store.
pub(crate) const PAGES_MAX: u64 = u32::MAX as u64;
/// The number of frees that a tag can distinguish.
const FREES: u64 = 1 << 30;

const _: () = assert!(
    PAGE_BYTES == 1 << (OFFSET_AT - TAIL_AT),
    "vmalloc needs pages of 4 KiB: docs/decisions/0012-page-size.md"
);

/// The tag of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Tag(u64);

/// The state in a tag.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// No area ever began at the page.
    Never,
    /// A live area begins at the page.
    Live,
    /// An area began there and was freed; its addresses are not reused yet.
    Quarantined,
    /// An area began there and was freed; its addresses may be reused.
    Released,
}

impl Tag {
    /// Returns the tag of a live area of `size` bytes, which must not be 0. The area is as close to the end of its
    /// pages as `align`, a power of two, allows.
    pub(crate) const fn live(size: usize, align: usize) -> Self {
        let pages = size.div_ceil(PAGE_BYTES) as u64;
        let slack = (size as u64).wrapping_neg() & IN_PAGE;
        let offset = if align < PAGE_BYTES { slack & !(align as u64 - 1) } else { 0 };
        Self(offset << OFFSET_AT | (slack - offset) << TAIL_AT | pages << PAGES_AT | LIVE)
    }

    /// Returns the tag of an area of `size` bytes that begins at the same offset.
    pub(crate) const fn resized(self, size: usize) -> Self {
        let end = size + self.offset();
        let (pages, tail) = (end.div_ceil(PAGE_BYTES) as u64, (end as u64).wrapping_neg() & IN_PAGE);
        Self((self.offset() as u64) << OFFSET_AT | tail << TAIL_AT | pages << PAGES_AT | LIVE)
    }

    /// Returns the tag of the same live area, with its mappings marked as changed by the program.
    pub(crate) const fn changed(self) -> Self {
        Self(self.0 | CHANGED)
    }

    /// Returns true if the program changed the mappings of the live area.
    pub(crate) const fn is_changed(self) -> bool {
        self.0 & CHANGED != 0
    }

    /// Returns the tag of the same area in quarantine; `frees` is the number of its free.
    pub(crate) const fn quarantined(self, frees: u64) -> Self {
        Self((frees % FREES) << TAIL_AT | self.pages() << PAGES_AT | QUARANTINED)
    }

    pub(crate) const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    pub(crate) const fn bits(self) -> u64 {
        self.0
    }

    pub(crate) const fn state(self) -> State {
        match self.0 & 3 {
            LIVE => State::Live,
            QUARANTINED => State::Quarantined,
            RELEASED => State::Released,
            _ => State::Never,
        }
    }

    pub(crate) const fn pages(self) -> u64 {
        self.0 >> PAGES_AT & PAGES_MAX
    }

    /// Returns the offset in its first page at which a live area begins.
    pub(crate) const fn offset(self) -> usize {
        (self.0 >> OFFSET_AT & IN_PAGE) as usize
    }

    /// Returns the requested bytes of a live area.
    pub(crate) const fn requested_bytes(self) -> usize {
        self.pages() as usize * PAGE_BYTES - (self.0 >> TAIL_AT & IN_PAGE) as usize - self.offset()
    }

    /// Returns the number of frees since this one, of `frees` in all, modulo 2^30.
    pub(crate) const fn age(self, frees: u64) -> u64 {
        frees.wrapping_sub(self.0 >> TAIL_AT) % FREES
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_area_ends_where_its_pages_end_as_far_as_its_alignment_lets_it() {
        let cases = [
            (1, 1, 1, 4095),
            (4096, 1, 1, 0),
            (4097, 1, 2, 4095),
            (100, 16, 1, 3984),
            (96, 16, 1, 4000),
            (5000, 4096, 2, 0),
            (5000, 1 << 21, 2, 0),
            (1 << 40, 8, 1 << 28, 0),
        ];
        for (size, align, pages, offset) in cases {
            let tag = Tag::live(size, align);
            assert_eq!((tag.pages(), tag.offset(), tag.requested_bytes()), (pages, offset, size));
            assert_eq!(tag.state(), State::Live);
            let changed = tag.changed();
            assert!(changed.is_changed() && !tag.is_changed() && !tag.changed().quarantined(7).is_changed());
            assert_eq!((changed.pages(), changed.offset(), changed.requested_bytes()), (pages, offset, size));
            // The bytes after the area are only those that the alignment requires.
            let behind = pages as usize * PAGE_BYTES - offset - size;
            assert!(behind < align && offset % align.min(PAGE_BYTES) == 0);
        }
    }

    #[test]
    fn a_dead_tag_has_the_number_of_frees_since() {
        let dead = Tag::live(9000, 8).quarantined(FREES + 5);
        assert_eq!((dead.state(), dead.pages(), dead.age(FREES + 12)), (State::Quarantined, 3, 7));
        let gone = Tag::from_bits(dead.bits() | RELEASED);
        assert_eq!((gone.state(), gone.pages(), gone.age(5)), (State::Released, 3, 0));
        assert_eq!(Tag::from_bits(0).state(), State::Never);
    }
}
