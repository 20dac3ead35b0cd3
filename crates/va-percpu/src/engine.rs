//! The engine that finds room in a chunk: the trait of the two engines, and their view of a chunk.
//!
//! # Theory
//! A chunk is a bitmap, one bit for 4 bytes, 1 where something is. An engine keeps what it likes
//! beside it, a row of blocks and a head for each chunk, to find a run of zeros without looking at
//! every word. It sets and clears the bits, and reports the pages that became wholly free or ceased
//! to be. The objects that there are, the pages that are populated and the list in which a chunk
//! stands are not its business.
//!
//! | engine | how | answers |
//! |---|---|---|
//! | [`ScanHints`](crate::scan::ScanHints) | Linux's hints for each page and the whole chunk | a fit near the lowest, or none although there is one |
//! | [`RunIndex`](crate::run::RunIndex) | exact longest runs in a tree over pages | the lowest fit, and none only if there is none |

use crate::bitmap::{self, PAGE_BITS, Word};
use crate::run::Fits;
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
    /// The head of the chunk says that nothing fits, or no page does.
    Nowhere,
    /// It seemed to fit, and did not where the engine looked.
    Missed,
    /// The bits are set from `at` on; `pages` pages are wholly free no more.
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
    /// Nothing fits below this page that did not fit before.
    pub from_page: u32,
}

/// One chunk as an engine sees it.
pub struct View<'a, E: HintEngine + ?Sized> {
    /// 1 where something is. Bits after the last page are not looked at.
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
    /// Bits of the chunk.
    #[inline]
    pub(crate) fn bits(&self) -> u32 {
        self.pages * PAGE_BITS
    }

    /// Returns true if some page around `[at, at + bits)` is not populated.
    #[inline]
    pub(crate) fn misses_pages(&self, at: u32, bits: u32) -> bool {
        let end = (at + bits).div_ceil(PAGE_BITS);
        bitmap::next_clear(self.populated, at / PAGE_BITS, end) < end
    }
}

/// A fault that an engine found: the rule, the bit nearest to it, the expected and the actual
/// value.
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
    /// `Ok` if `holds`.
    pub(crate) fn unless(holds: bool, rule: &'static str, at: u32, want: u32, got: u32) -> Result<(), Self> {
        if holds { Ok(()) } else { Err(Self { rule, at, want: want.into(), got: got.into() }) }
    }
}

/// Finds room in one chunk at a time.
pub trait HintEngine: 'static {
    /// The record for each page.
    type Block: Record;
    /// The record for each chunk.
    type Head: Copy + Send + Sync + fmt::Debug + 'static;
    /// The head of no chunk.
    const HEAD: Self::Head;

    /// The head tells exactly what fits in the chunk ([`fits`](Self::fits)), so that chunks are chosen by it, the
    /// lowest first.
    const BY_FITS: bool = false;

    /// Returns what fits in the chunk, for each alignment.
    fn fits(_head: &Self::Head) -> Fits {
        Fits::NONE
    }

    /// Returns true if it is worth looking into the chunk: `false` only if [`take`](Self::take) would answer
    /// [`Fit::Nowhere`].
    #[inline]
    fn may_hold(_head: &Self::Head, _want: Want) -> bool {
        true
    }

    /// Length of the row of a chunk of so many pages.
    fn blocks_for(pages: u32) -> u32;

    /// Begins with a chunk whose bits are all clear.
    fn reset(view: &mut View<'_, Self>);

    /// The longest run that the head admits to, in bits: it decides in which list the chunk stands. 0 only if the
    /// engine would find nothing at all.
    fn longest(head: &Self::Head) -> u32;

    /// Finds room and sets its bits; with `populated`, only where every page is populated.
    fn take(view: &mut View<'_, Self>, want: Want, populated: bool) -> Fit;

    /// Sets the bits `[at, at + bits)`, all of them clear, and returns how many pages were wholly free before.
    fn take_at(view: &mut View<'_, Self>, at: u32, bits: u32) -> u32;

    /// Clears the bits `[at, at + bits)`, all of them set.
    fn free(view: &mut View<'_, Self>, at: u32, bits: u32) -> FreedBits;

    /// Finds the lowest room that begins in a page or behind it, and sets its bits. An engine may say no when it would
    /// have to look far.
    #[inline]
    fn take_near(_view: &mut View<'_, Self>, _page: u32, _want: Want) -> Fit {
        Fit::Nowhere
    }

    /// Tells whether the head knows all that happened. Until [`settle`](Self::settle) is called it may speak of how
    /// things were before the last changes.
    #[inline]
    fn is_settled(_head: &Self::Head) -> bool {
        true
    }

    /// Tells the head what happened.
    #[inline]
    fn settle(_view: &mut View<'_, Self>) {}

    /// Tells whether a page is wholly free.
    fn is_free(view: &View<'_, Self>, page: u32) -> bool;

    /// Checks what the engine keeps against the bits, O(bits).
    ///
    /// # Errors
    /// The first rule broken.
    fn validate(view: &View<'_, Self>) -> Result<(), Wrong>;
}
