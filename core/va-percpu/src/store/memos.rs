//! Memos of the latest searches: the page below which nothing of a size and alignment fits.
//!
//! For engines that return the lowest fit ([`HintEngine::BY_FITS`](crate::engine::HintEngine::BY_FITS)). A repeated
//! request for the same size and alignment need not search the chunks and pages below: a take makes no room there. A
//! caller that frees an object, or brings a chunk into reach, lowers the mark of every memo to that page.
//!
//! # Invariants
//! - **PN1 nothing-below**  nothing of the size and alignment of a memo fits in reach below its mark.

use crate::engine::Want;

/// The number of memos: programs repeat few sizes.
pub(super) const MEMOS: usize = 16;

/// The marks, by size and alignment.
pub(crate) struct Memos {
    wants: [Want; MEMOS],
    /// Row and page in one number that is compared as a whole. Signed, since all targets compare signed numbers in
    /// vectors.
    marks: [i32; MEMOS],
    /// Bits of a page's number in a mark.
    page_bits: u32,
}

impl Memos {
    /// No memos, for units of one page.
    pub(crate) const EMPTY: Self =
        Self { wants: [Want { bits: 0, align: 0 }; MEMOS], marks: [0; MEMOS], page_bits: 0 };

    /// Sets the pages of a unit, before there is a memo.
    pub(crate) fn init(&mut self, unit_pages: u32) {
        self.page_bits = unit_pages.next_power_of_two().trailing_zeros();
    }

    /// Returns the mark of a row and a page of it; rows too high for the type have none.
    #[inline]
    fn mark(&self, row: u32, page: u32) -> Option<i32> {
        i32::try_from(u64::from(row) << self.page_bits | u64::from(page)).ok()
    }

    #[inline]
    fn place(want: Want) -> usize {
        let mixed = (want.bits << 4 | want.align.trailing_zeros()).wrapping_mul(0x9e37_79b9);
        (mixed >> (u32::BITS - MEMOS.trailing_zeros())) as usize
    }

    #[inline]
    fn split(&self, mark: i32) -> (u32, u32) {
        let mark = mark.cast_unsigned();
        (mark >> self.page_bits, mark & ((1 << self.page_bits) - 1))
    }

    /// Returns the lowest row and page where the request may fit.
    #[inline]
    pub(crate) fn find(&self, want: Want) -> Option<(u32, u32)> {
        let at = Self::place(want);
        (self.wants[at] == want).then(|| self.split(self.marks[at]))
    }

    /// Records that the request fits in this page and nowhere below.
    #[inline]
    pub(crate) fn note(&mut self, want: Want, row: u32, page: u32) {
        let at = Self::place(want);
        match self.mark(row, page) {
            Some(mark) => (self.wants[at], self.marks[at]) = (want, mark),
            None => self.wants[at].bits = 0,
        }
    }

    /// Records that there may be room in this page.
    #[inline]
    pub(crate) fn lower(&mut self, row: u32, page: u32) {
        let Some(mark) = self.mark(row, page) else { return };
        for old in &mut self.marks {
            *old = (*old).min(mark);
        }
    }

    /// Returns one of the memos: the request, and the row and the page of its mark.
    pub(super) fn get(&self, at: usize) -> Option<(Want, u32, u32)> {
        let (row, page) = self.split(self.marks[at]);
        (self.wants[at].bits > 0).then_some((self.wants[at], row, page))
    }
}
