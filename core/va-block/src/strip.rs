//! Thirty-two pages of a block: bits for live and dead mappings, written by owner and freeing callers without a lock.
//!
//! # Theory
//! Two bits mark a mapping: a **head** at its first page, a **tail** at its last. Only the owner of the block writes
//! them, with plain stores. A caller that frees a mapping, on any CPU, writes one bit in another word, **gone**, at the
//! page of the head:
//!
//! ```text
//!   page     0 1 2 3 4 5 6 7
//!   heads    1 . . 1 1 . . .      three mappings: [0,3) [3,4) [4,7)
//!   tails    . . 1 1 . . 1 .
//!   gone     1 . . . 1 . . .      [0,3) and [4,7) were freed
//!   flushed  1 . . . . . . .      a flush covers, or will cover, [0,3)
//! ```
//!
//! So a mapping is freed by one compare-exchange, and of two callers that try, one fails. The upper half of `gone`
//! counts the times that pages of the strip were recycled. A caller may have read the marks of a mapping that is
//! recycled meanwhile. Its exchange fails, even if another mapping starts at the same page by then.

use core::num::NonZeroU64;
use va_base::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Pages of a strip.
pub(crate) const STRIP_PAGES: u32 = 32;

/// The bits of 32 pages.
pub(crate) struct Strip {
    /// Heads below, tails above. Written by the owner. Protocol PR-FREE.
    marks: AtomicU64,
    /// Heads of freed mappings in the lower half, a generation in the upper. Protocol PR-FREE.
    gone: AtomicU64,
    /// Pages that belong to no mapping and not to the open run. Owner only. Protocol PR-LOCK.
    free: AtomicU32,
    /// Bits of `gone` that a flush covers, begun or ended. Under the queue lock; see `Block::flush_state`.
    /// Protocol PR-TOUCH.
    flushed: AtomicU32,
}

/// A value of the word `gone`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gone(u64);

impl Gone {
    #[inline(always)]
    pub(crate) fn has(self, bit: u32) -> bool {
        self.0 & 1 << bit != 0
    }

    #[inline(always)]
    pub(crate) fn bits(self) -> u32 {
        self.0 as u32
    }
}

/// A value of the marks.
#[derive(Clone, Copy)]
pub(crate) struct Marks(u64);

impl Marks {
    #[inline(always)]
    pub(crate) fn has_head(self, bit: u32) -> bool {
        self.0 & 1 << bit != 0
    }

    /// Returns whether a mapping of `pages` pages starts at `bit`, and ends in this strip.
    #[inline(always)]
    pub(crate) fn are_of(self, bit: u32, pages: u64) -> bool {
        let from = self.0 >> bit;
        let tail = NonZeroU64::new(from >> STRIP_PAGES).map(NonZeroU64::trailing_zeros);
        from & 1 != 0 && tail.is_some_and(|tail| u64::from(tail) + 1 == pages)
    }

    #[inline(always)]
    pub(crate) fn heads(self) -> u32 {
        self.0 as u32
    }

    #[inline(always)]
    pub(crate) fn tails(self) -> u32 {
        (self.0 >> STRIP_PAGES) as u32
    }
}

impl Strip {
    va_base::const_fn! {
        pub(crate) fn new() -> Self {
            Self {
                marks: AtomicU64::new(0),
                gone: AtomicU64::new(0),
                free: AtomicU32::new(0),
                flushed: AtomicU32::new(0),
            }
        }
    }

    #[inline(always)]
    pub(crate) fn marks(&self) -> Marks {
        // Acquire pairs with `mark`: a thread that sees a head sees its tail, also in another strip.
        Marks(self.marks.load(Ordering::Acquire))
    }

    /// Sets heads and tails. Owner only.
    #[inline(always)]
    pub(crate) fn mark(&self, heads: u32, tails: u32) {
        let bits = u64::from(heads) | u64::from(tails) << STRIP_PAGES;
        self.marks.store(self.marks.load(Ordering::Relaxed) | bits, Ordering::Release);
    }

    /// Clears heads and tails. Owner only; before [`forget`](Self::forget).
    pub(crate) fn unmark(&self, heads: u32, tails: u32) {
        let bits = u64::from(heads) | u64::from(tails) << STRIP_PAGES;
        self.marks.store(self.marks.load(Ordering::Relaxed) & !bits, Ordering::Release);
    }

    /// Returns the word `gone`: the mappings that were freed. SeqCst: see
    /// [`mark_freed`](Self::mark_freed).
    #[inline(always)]
    pub(crate) fn gone(&self) -> Gone {
        Gone(self.gone.load(Ordering::SeqCst))
    }

    /// Notes that the mapping at `bit` was freed; `false` if the word is no longer `seen`.
    ///
    /// SeqCst, as is the load in [`gone`](Self::gone). A collection clears the block's `touched`
    /// and then reads this word. A caller that frees writes this word and then reads `touched`. One
    /// of them must see the other.
    #[inline(always)]
    pub(crate) fn mark_freed(&self, seen: Gone, bit: u32) -> bool {
        let new = seen.0 | 1 << bit;
        self.gone.compare_exchange(seen.0, new, Ordering::SeqCst, Ordering::Relaxed).is_ok()
    }

    /// Clears the bits of the freed mappings at `heads`, whose marks are cleared, and begins a new generation.
    pub(crate) fn forget(&self, heads: u32) {
        let next = |gone: u64| Some((gone & !u64::from(heads)).wrapping_add(1 << STRIP_PAGES));
        // Release: a thread that sees the new generation sees the marks cleared. It cannot fail: `next` always returns
        // a value.
        let _done = self.gone.fetch_update(Ordering::AcqRel, Ordering::Relaxed, next);
    }

    /// Clears the bits of all freed mappings as [`forget`](Self::forget) does, where no mapping is live. No caller can
    /// free here, so it takes no exchange.
    pub(crate) fn forget_all(&self) {
        let generation = self.gone.load(Ordering::Relaxed) >> STRIP_PAGES;
        self.gone.store(generation.wrapping_add(1) << STRIP_PAGES, Ordering::Release);
    }

    #[inline(always)]
    pub(crate) fn free(&self) -> u32 {
        self.free.load(Ordering::Relaxed)
    }

    /// Owner only.
    #[inline(always)]
    pub(crate) fn set_free(&self, free: u32) {
        self.free.store(free, Ordering::Relaxed);
    }

    #[inline(always)]
    pub(crate) fn flushed(&self) -> u32 {
        // Acquire pairs with `set_flushed`.
        self.flushed.load(Ordering::Acquire)
    }

    /// Returns the heads of the mappings that live. The frees are read first: what a lane recycles meanwhile is in both
    /// words, or its head is cleared.
    #[inline(always)]
    pub(crate) fn living(&self) -> u32 {
        let gone = self.gone().bits();
        self.marks().heads() & !gone
    }

    /// Returns the bits of `gone` that no flush covers. The marks are read first: what a lane recycles meanwhile is in
    /// both words, or not in `gone`.
    #[inline(always)]
    pub(crate) fn unnoted(&self) -> u32 {
        let flushed = self.flushed();
        self.gone().bits() & !flushed
    }

    #[inline(always)]
    pub(crate) fn set_flushed(&self, flushed: u32) {
        // Release: a thread that sees bits cleared sees those of `gone` cleared, though the lane does it without the lock.
        self.flushed.store(flushed, Ordering::Release);
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn a_mark_read_before_a_recycling_cannot_be_freed() {
        let strip = Strip::new();
        strip.mark(1 << 4, 1 << 6);
        let seen = strip.gone();
        assert!(strip.mark_freed(seen, 4), "the first");
        assert!(!strip.mark_freed(seen, 4), "the second");
        strip.unmark(1 << 4, 1 << 6);
        strip.forget(1 << 4);
        // The bits are the same as when `seen` was read, but the generation is not.
        strip.mark(1 << 4, 1 << 4);
        assert_eq!(strip.gone().bits(), seen.bits());
        assert!(!strip.mark_freed(seen, 4));
        assert!(strip.mark_freed(strip.gone(), 4));
    }

    #[test]
    fn a_mapping_that_ends_in_the_strip_has_one_size() {
        let strip = Strip::new();
        // [1, 4), [4, 5), and one that begins at 7 and ends in the next strip.
        strip.mark(1 << 1 | 1 << 4 | 1 << 7, 1 << 3 | 1 << 4);
        for (bit, size) in [(1, 3), (4, 1)] {
            for pages in [0, 1, 2, 3, 4, 32, 33, 64, 65, 1 << 32 | size, u64::MAX] {
                assert_eq!(strip.marks().are_of(bit, pages), pages == size, "{pages} pages at {bit}");
            }
        }
        for bit in [0, 2, 3, 5, 7, 31] {
            assert!((0..70).all(|pages| !strip.marks().are_of(bit, pages)), "{bit}");
        }
    }

    #[test]
    fn clearing_retains_concurrent_frees() {
        let strip = Strip::new();
        strip.mark(0b1001, 0b1001);
        assert!(strip.mark_freed(strip.gone(), 0) && strip.mark_freed(strip.gone(), 3));
        strip.unmark(1, 1);
        strip.forget(1);
        assert_eq!((strip.gone().bits(), strip.marks().heads(), strip.marks().tails()), (8, 8, 8));
    }

    #[test]
    fn the_highest_generation_is_followed_by_the_first() {
        let strip = Strip::new();
        strip.gone.store(u64::MAX << STRIP_PAGES | 1, Ordering::Relaxed);
        strip.forget(1);
        assert_eq!(strip.gone.load(Ordering::Relaxed), 0);
    }
}
