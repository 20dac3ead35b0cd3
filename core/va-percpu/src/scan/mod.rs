//! Linux's engine: for each page, and for the whole chunk, the longest free run known and one before it.
//!
//! # Theory
//! Each page of a chunk has [`Hints`], and so has the chunk, whose hints are about all its bits:
//!
//! ```text
//!   bits of a page   UUU..UU.....U........UUUUU....      U used, . free
//!                       |    |    |                |
//!            first_free-+    |    +-contig         +-right_free (left_free is 0 here)
//!                            +-scan: the longest run known before contig
//! ```
//!
//! A search for more than `scan` holds begins after it: the search only goes forward (patches 7 and 9 of the series
//! that introduced it). A run found too small on the way is recorded (patch 8). When the longest run is broken, `scan`
//! replaces it and the page is read from there on. The hints of the chunk are computed from those of its pages, so that
//! a run is put together from a `right_free`, wholly free pages and a `left_free`.
//!
//! Hints may understate: the only consequence is a missed fit. Except for PH3 under Linux's rules they never overstate,
//! or a search would find nothing where a hint has a fit.
//!
//! # Invariants
//! - **PH1 contig-free**  `contig` bits from `contig_start` on are free.
//! - **PH2 scan-free**    `scan` bits from `scan_start` on are free.
//! - **PH3 edges-free**   the first `left_free` and the last `right_free` bits are free. Of a page, `left_free` is 0 only
//!   if its first bit is used, and `right_free` is at most `contig`. Under [`AsInLinux`] `left_free` may overstate, and
//!   so may the two runs of the chunk (`Rules::EXACT_EDGES`). A search then finds less than the hint, and goes on.
//! - **PH4 first-low**    nothing below `first_free` is free.
//!
//! Starts mean nothing where the size is 0. Linux compares them even so, and so does this code, since it decides where
//! the next object goes.
//!
//! # Cost
//! Take: pages of the chunk (the search, and the hints of the chunk when its longest run is broken) and the words of
//! two pages. Free: the words of two pages; pages of the chunk if a page became free.
//!
//! # Source
//! Linux `mm/percpu.c` (6.12: `pcpu_block_update`, `pcpu_block_update_hint_alloc`, `pcpu_block_update_hint_free`,
//! `pcpu_find_block_fit`, `pcpu_alloc_area`) and the series "introduce percpu block scan_hint" of 2019 that introduced
//! it. docs/kernel-map.md names the counterpart of each patch.

mod change;
mod search;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;
mod validate;

use crate::bitmap::PAGE_BITS;
use crate::engine::{Fit, FreedBits, HintEngine, View, Want, Wrong};
use core::marker::PhantomData;
use va_base::Record;

/// The rules of Linux's engine that are in use. Each can be disabled separately, to measure its effect.
pub trait Rules: 'static {
    /// The hint of the chunk is raised by a free in any page. Linux from 5.2 to 6.12 computes the end of the freed run
    /// from the beginning of its page instead of the chunk's, so that only the first page raises it.
    const EXACT_CHUNK_HINT: bool = true;
    /// The free bits at the beginning of a page are counted again if their run is broken after its first bit. Linux
    /// from 5.2 to 6.12 does so only if it reads the page from there on. It reads from a later run on if that is as
    /// long.
    const EXACT_EDGES: bool = true;
    /// A run before the longest is recorded as `scan` (patch 7).
    const TRACK_SCAN: bool = true;
    /// The longest run that a search skipped is recorded (patch 8).
    const LEARN: bool = true;
    /// A search begins after the run that is too small (patch 9).
    const FORWARD: bool = true;
}

/// Linux's rules, with the chunk hint and the edges of pages corrected.
#[derive(Debug)]
pub enum Corrected {}
impl Rules for Corrected {}

/// Linux's rules up to 6.12, offset for offset.
#[derive(Debug)]
pub enum AsInLinux {}
impl Rules for AsInLinux {
    const EXACT_CHUNK_HINT: bool = false;
    const EXACT_EDGES: bool = false;
}

/// The hints about the free runs of a page, or of a chunk. Bits.
///
/// The layout is that of Linux's `struct pcpu_block_md`, so that a kernel reads them where `adopt/linux` has them
/// stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct Hints {
    pub(crate) scan: u32,
    pub(crate) scan_start: u32,
    pub(crate) contig: u32,
    pub(crate) contig_start: u32,
    pub(crate) left_free: u32,
    pub(crate) right_free: u32,
    pub(crate) first_free: u32,
    /// Bits that these hints cover; constant.
    pub(crate) bits: u32,
}

impl Record for Hints {
    const EMPTY: Self = Self::whole(0);
}

impl Hints {
    /// Returns hints of a page or chunk in which all is free.
    pub(crate) const fn whole(bits: u32) -> Self {
        Self {
            scan: 0,
            scan_start: 0,
            contig: bits,
            contig_start: 0,
            left_free: bits,
            right_free: bits,
            first_free: 0,
            bits,
        }
    }

    /// Makes all free, as Linux does for a page inside a freed range or for a new chunk: the start of an empty `scan`
    /// does not change.
    fn make_whole(&mut self) {
        let scan_start = self.scan_start;
        *self = Self { scan_start, ..Self::whole(self.bits) };
    }
}

/// The engine.
#[derive(Debug)]
pub struct ScanHints<R = Corrected>(PhantomData<R>);

/// A take in two steps, for a caller that does something of its own between them.
impl<R: Rules> ScanHints<R> {
    /// Returns the bit from which [`take_from`](Self::take_from) is to search, or `None` if nothing fits by the hints;
    /// with `populated`, only where every page is populated.
    #[inline]
    #[must_use]
    pub fn find(view: &View<'_, Self>, want: Want, populated: bool) -> Option<u32> {
        view.find(want, populated)
    }

    /// Finds room from a bit of [`find`](Self::find) on, at most a page further, and sets its bits.
    #[inline]
    pub fn take_from(view: &mut View<'_, Self>, want: Want, from: u32) -> Fit {
        let Some(at) = view.settle(want, from) else { return Fit::Missed };
        Fit::At { at, pages: Self::take_at(view, at, want.bits) }
    }
}

impl<R: Rules> HintEngine for ScanHints<R> {
    type Block = Hints;
    type Head = Hints;
    const HEAD: Hints = Hints::EMPTY;

    fn blocks_for(pages: u32) -> u32 {
        pages
    }

    fn reset(view: &mut View<'_, Self>) {
        *view.head = Hints::whole(view.bits());
        view.blocks.fill(Hints::whole(PAGE_BITS));
    }

    #[inline]
    fn longest(head: &Hints) -> u32 {
        head.contig
    }

    #[inline]
    fn may_hold(head: &Hints, want: Want) -> bool {
        head.holds(want)
    }

    #[inline]
    fn take(view: &mut View<'_, Self>, want: Want, populated: bool) -> Fit {
        Self::find(view, want, populated).map_or(Fit::Nowhere, |from| Self::take_from(view, want, from))
    }

    fn take_at(view: &mut View<'_, Self>, at: u32, bits: u32) -> u32 {
        view.take_bits(at, bits)
    }

    fn free(view: &mut View<'_, Self>, at: u32, bits: u32) -> FreedBits {
        FreedBits { pages: view.clear_bits(at, bits), from_page: 0 }
    }

    #[inline]
    fn is_free(view: &View<'_, Self>, page: u32) -> bool {
        view.blocks[page as usize].contig == PAGE_BITS
    }

    fn validate(view: &View<'_, Self>) -> Result<(), Wrong> {
        validate::check(view)
    }
}
