//! Below which page nothing fits: what was searched for lately, and where it was found.
//!
//! For engines whose answers are the lowest ([`HintEngine::BY_FITS`](crate::engine::HintEngine::BY_FITS)). Whoever asks for the
//! same size and alignment again need not search the chunks and pages below: taking makes no room there, and whoever gives
//! something back, or brings a chunk into reach, lowers the mark of every memo to where that is.
//!
//! # Invariants
//! - **PM1 nothing-below**  nothing that a memo speaks of fits in reach below its mark.

use crate::engine::Want;

/// How many there are: the sizes that programs ask for again and again are few.
const MEMOS: usize = 8;

/// The marks, by size and alignment.
pub(crate) struct Memos {
    wants: [Want; MEMOS],
    /// Row and page, in one number.
    marks: [u64; MEMOS],
}

/// A row and a page of it.
#[inline]
pub(crate) fn mark(row: u32, page: u32) -> u64 {
    u64::from(row) << u32::BITS | u64::from(page)
}

impl Memos {
    /// Nothing is known.
    pub(crate) fn new() -> Self {
        Self { wants: [Want { bits: 0, align: 0 }; MEMOS], marks: [0; MEMOS] }
    }

    #[inline]
    fn place(want: Want) -> usize {
        let mixed = want.bits.wrapping_mul(0x9e37_79b9) ^ want.align.wrapping_mul(0x85eb_ca6b);
        (mixed >> (u32::BITS - MEMOS.trailing_zeros())) as usize
    }

    /// The lowest row and page where it may fit.
    #[inline]
    pub(crate) fn find(&self, want: Want) -> Option<(u32, u32)> {
        let at = Self::place(want);
        let mark = self.marks[at];
        (self.wants[at] == want).then_some(((mark >> u32::BITS) as u32, mark as u32))
    }

    /// It fits in this page and nowhere below.
    #[inline]
    pub(crate) fn note(&mut self, want: Want, row: u32, page: u32) {
        let at = Self::place(want);
        (self.wants[at], self.marks[at]) = (want, mark(row, page));
    }

    /// There may be room in this page.
    #[inline]
    pub(crate) fn lower(&mut self, row: u32, page: u32) {
        let mark = mark(row, page);
        for old in &mut self.marks {
            *old = (*old).min(mark);
        }
    }

    /// What each memo says.
    pub(crate) fn all(&self) -> impl Iterator<Item = (Want, u32, u32)> + '_ {
        let known = self.wants.iter().zip(&self.marks).filter(|(want, _)| want.bits > 0);
        known.map(|(want, mark)| (*want, (*mark >> u32::BITS) as u32, *mark as u32))
    }
}
