//! Searches of Linux's engine: first by hints alone, then bit by bit from there, at most a page
//! further.

use super::{Hints, Rules, ScanHints};
use crate::bitmap::{self, PAGE_BITS};
use crate::engine::{View, Want};

/// Returns the bits from `at` to the next multiple of `align`.
#[inline]
fn waste(at: u32, align: u32) -> u32 {
    at.wrapping_neg() & (align - 1)
}

impl Hints {
    /// Returns true if the request fits the longest run, once aligned.
    #[inline]
    pub(super) fn holds(&self, want: Want) -> bool {
        waste(self.contig_start, want.align) + want.bits <= self.contig
    }

    /// Returns where the search begins, given that the request fits the longest run.
    #[inline]
    pub(super) fn look_from<R: Rules>(&self, bits: u32) -> u32 {
        let skip = R::FORWARD && self.scan > 0 && self.contig_start > self.scan_start && bits > self.scan;
        if skip { self.scan_start + self.scan } else { self.first_free }
    }
}

impl<R: Rules> View<'_, ScanHints<R>> {
    /// Returns the bit at which to search, if the request fits by the hints.
    pub(super) fn find(&self, want: Want, populated: bool) -> Option<u32> {
        if !self.head.holds(want) {
            return None;
        }
        let mut from = self.head.look_from::<R>(want.bits);
        loop {
            let (at, run) = self.next_fit(from, want)?;
            if !populated {
                return Some(at);
            }
            match self.unpopulated(at, run) {
                None => return Some(at),
                Some(next) => from = next,
            }
        }
    }

    /// Returns the next bit at or after `from` where `want` fits by the hints of the pages, and how far the fit may
    /// extend.
    ///
    /// An alloc walks most pages of a chunk, a hundred of them. So a page in which nothing fits has a short path.
    fn next_fit(&self, from: u32, want: Want) -> Option<(u32, u32)> {
        let mut seen = from % PAGE_BITS;
        // Free bits right before the page, from an aligned one on: pages begin at every alignment.
        let mut run = 0;
        let (least, mask) = (want.bits.min(PAGE_BITS), !(want.align - 1));
        for (page, block) in self.blocks.iter().enumerate().skip((from / PAGE_BITS) as usize) {
            let reach = run + block.left_free;
            if reach < least && block.contig < least {
                // Its end is no longer than its longest run (PH3).
                (run, seen) = (block.right_free & mask, 0);
                continue;
            }
            let base = page as u32 * PAGE_BITS;
            if run > 0 && reach >= want.bits {
                return Some((base - run, reach));
            }
            if run > 0 && block.left_free == PAGE_BITS {
                run = reach;
                continue;
            }
            if block.contig >= want.bits && block.contig_start >= seen && block.holds(want) {
                let start = block.look_from::<R>(want.bits);
                // Up to the end of an object at the beginning of the longest run.
                let reach = waste(block.contig_start, want.align) + want.bits + block.contig_start - start;
                return Some((base + start, reach));
            }
            (run, seen) = (block.right_free & mask, 0);
            if run >= want.bits {
                return Some((base + PAGE_BITS - run, run));
            }
        }
        None
    }

    /// Returns the bit where populated pages begin again, if one of those around `[at, at + bits)`
    /// is not populated.
    fn unpopulated(&self, at: u32, bits: u32) -> Option<u32> {
        let end = (at + bits).div_ceil(PAGE_BITS);
        let page = bitmap::next_clear(self.populated, at / PAGE_BITS, end);
        (page < end).then(|| bitmap::next_set(self.populated, page + 1, end) * PAGE_BITS)
    }

    /// Searches bit by bit from `from` on, and records the longest run that was too small.
    pub(super) fn settle(&mut self, want: Want, from: u32) -> Option<u32> {
        let end = (from + want.bits + PAGE_BITS).min(self.bits());
        let (mut skipped, mut longest) = (0u32, 0);
        let mut at = from;
        loop {
            at = bitmap::next_clear(self.map, at, end);
            at += waste(at, want.align);
            if at + want.bits > end {
                return None;
            }
            let used = bitmap::next_set(self.map, at, at + want.bits);
            if used == at + want.bits {
                break;
            }
            let run = used - at;
            let aligned = at == 0 || at.trailing_zeros() > skipped.trailing_zeros();
            if run > longest || (run == longest && skipped != 0 && aligned) {
                (skipped, longest) = (at, run);
            }
            at = used + 1;
        }
        if R::LEARN && longest > 0 {
            self.learn_skipped(skipped, longest);
        }
        Some(at)
    }

    /// Records a skipped run in the hints of its page, with the free bits before it that its alignment cut off.
    fn learn_skipped(&mut self, at: u32, run: u32) {
        let (page, start) = (at / PAGE_BITS, at % PAGE_BITS);
        let base = page * PAGE_BITS;
        if start + run <= PAGE_BITS {
            let from = bitmap::after_last_set(self.map, base, at) - base;
            self.blocks[page as usize].learn::<R>(from, start + run);
        }
    }
}
