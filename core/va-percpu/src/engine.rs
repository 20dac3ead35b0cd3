//! The engine that finds room in a chunk: the trait of the two engines, and their view of a chunk.
//!
//! # Theory
//! A chunk is a bitmap, one bit for 4 bytes, 1 where an object is. An engine stores data of its own beside it, a row of
//! blocks and a head for each chunk, to find a run of zeros without reading every word. It sets and clears the bits,
//! and reports the pages that became wholly free or ceased to be. It does not handle live objects, populated pages, or
//! the list that a chunk is in.
//!
//! | engine | method | result |
//! |---|---|---|
//! | [`ScanHints`](crate::scan::ScanHints) | Linux's hints for each page and the whole chunk | a fit near the lowest, or none although there is one |
//! | [`RunIndex`](crate::run::RunIndex) | exact longest runs in a tree over pages | the lowest fit, and none only if there is none |

use crate::bitmap::{self, PAGE_BITS, Word};
use crate::fits::Fits;
use core::fmt;
use va_base::Record;

/// A request, in bits: `align` is a power of two, at most [`PAGE_BITS`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Want {
    /// Size.
    pub bits: u32,
    /// Alignment.
    pub align: u32,
}

/// The result of a search.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fit {
    /// By the head of the chunk, or by its pages, nothing fits.
    Nowhere,
    /// By the hints it fitted, but it did not where the engine searched.
    Missed,
    /// The bits are set from `at` on; `pages` pages are no longer wholly free.
    At {
        /// The first bit.
        at: u32,
        /// Pages.
        pages: u32,
    },
}

/// The result of a free.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FreedBits {
    /// Pages that are wholly free now.
    pub pages: u32,
    /// Below this page, nothing fits that did not fit before.
    pub from_page: u32,
}

/// One chunk as an engine sees it.
pub struct View<'a, E: HintEngine + ?Sized> {
    /// 1 where an object is. Bits after the last page are ignored.
    pub map: &'a mut [Word],
    /// 1 for each populated page.
    pub populated: &'a [Word],
    /// The engine's row for this chunk, [`HintEngine::blocks_for`] long.
    pub blocks: &'a mut [E::Block],
    /// The engine's head for this chunk.
    pub head: &'a mut E::Head,
    /// Pages of the chunk.
    pub pages: u32,
}

impl<E: HintEngine + ?Sized> core::fmt::Debug for View<'_, E> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("View").finish_non_exhaustive()
    }
}

impl<E: HintEngine + ?Sized> View<'_, E> {
    /// Returns the bits of the chunk.
    #[inline]
    pub(crate) fn bits(&self) -> u32 {
        self.pages * PAGE_BITS
    }

    /// Returns true if a page around `[at, at + bits)` is not populated.
    #[inline]
    pub(crate) fn misses_pages(&self, at: u32, bits: u32) -> bool {
        let end = (at + bits).div_ceil(PAGE_BITS);
        bitmap::next_clear(self.populated, at / PAGE_BITS, end) < end
    }
}

/// A fault that an engine found: the rule, the bit nearest to it, the expected and the actual value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wrong {
    /// Id of the rule.
    pub rule: &'static str,
    /// Bit.
    pub at: u32,
    /// The value that the rule demands.
    pub want: u64,
    /// The actual value.
    pub got: u64,
}

impl Wrong {
    /// Returns `Ok` if `holds`.
    pub(crate) fn unless(holds: bool, rule: &'static str, at: u32, want: u32, got: u32) -> Result<(), Self> {
        if holds { Ok(()) } else { Err(Self { rule, at, want: want.into(), got: got.into() }) }
    }
}

/// An engine that finds room in one chunk at a time.
pub trait HintEngine: 'static {
    /// The record for each page.
    type Block: Record;
    /// The record for each chunk.
    type Head: Copy + Send + Sync + fmt::Debug + 'static;
    /// The head for no chunk.
    const HEAD: Self::Head;

    /// True if the head has exactly what fits in the chunk ([`fits`](Self::fits)), so that chunks are chosen by it, the
    /// lowest first.
    const BY_FITS: bool = false;

    /// Returns what fits in the chunk, for each alignment.
    fn fits(_head: &Self::Head) -> Fits {
        Fits::NONE
    }

    /// Returns whether a search in the chunk may succeed: `false` only if [`take`](Self::take) would return
    /// [`Fit::Nowhere`].
    #[inline]
    fn may_hold(_head: &Self::Head, _want: Want) -> bool {
        true
    }

    /// Returns the length of the row of a chunk of so many pages.
    fn blocks_for(pages: u32) -> u32;

    /// Initializes a chunk whose bits are all clear.
    fn reset(view: &mut View<'_, Self>);

    /// Returns the longest run by the head, in bits, which decides the list of the chunk. 0 only if the engine would
    /// find nothing at all.
    fn longest(head: &Self::Head) -> u32;

    /// Finds room and sets its bits; with `populated`, only where every page is populated.
    fn take(view: &mut View<'_, Self>, want: Want, populated: bool) -> Fit;

    /// Sets the bits `[at, at + bits)`, all of them clear, and returns how many pages were wholly free before.
    fn take_at(view: &mut View<'_, Self>, at: u32, bits: u32) -> u32;

    /// Clears the bits `[at, at + bits)`, all of them set.
    fn free(view: &mut View<'_, Self>, at: u32, bits: u32) -> FreedBits;

    /// Finds the lowest room that begins in a page or after it, and sets its bits. An engine may return nothing if it
    /// would have to search far.
    #[inline]
    fn take_near(_view: &mut View<'_, Self>, _page: u32, _want: Want) -> Fit {
        Fit::Nowhere
    }

    /// Returns whether the head includes all changes. Until [`settle`](Self::settle) is called it may be that of an
    /// earlier state.
    #[inline]
    fn is_settled(_head: &Self::Head) -> bool {
        true
    }

    /// Brings the head up to date.
    #[inline]
    fn settle(_view: &mut View<'_, Self>) {}

    /// Returns whether a page is wholly free.
    fn is_free(view: &View<'_, Self>, page: u32) -> bool;

    /// Checks the engine's data against the bits, O(bits).
    ///
    /// # Errors
    /// The first violation.
    fn validate(view: &View<'_, Self>) -> Result<(), Wrong>;
}
