//! Updates of the hints after bits are taken and freed.

use super::{Hints, Rules, ScanHints};
use crate::bitmap::{self, PAGE_BITS, Word};
use crate::engine::View;

/// Returns true if `[a, a + len)` and `[from, end)` meet.
#[inline]
fn meets(a: u32, len: u32, from: u32, end: u32) -> bool {
    a < end && from < a + len
}

impl Hints {
    /// Records a free run `[start, end)` that is as long as it can be within these hints (F.6 `update`).
    ///
    /// `end` may be before `start` where Linux computes it so: then only `first_free` changes.
    pub(super) fn learn<R: Rules>(&mut self, start: u32, end: u32) {
        let run = end.saturating_sub(start);
        self.first_free = self.first_free.min(start);
        if end < start {
            // Linux has a negative length here, which is less than any hint, so it changes nothing else either.
            return;
        }
        if start == 0 {
            self.left_free = run;
        }
        if end == self.bits {
            self.right_free = run;
        }
        if run > self.contig {
            if start <= self.contig_start {
                // The old longest run is after the new one now.
                self.scan = 0;
            } else if self.contig > self.scan {
                self.set_scan::<R>(self.contig_start, self.contig);
            } else if start < self.scan_start {
                // `scan` was as long as the old longest run and is after the new one.
                self.scan = 0;
            }
            (self.contig_start, self.contig) = (start, run);
        } else if run == self.contig {
            let better = start == 0 || start.trailing_zeros() > self.contig_start.trailing_zeros();
            if self.contig_start != 0 && better {
                self.contig_start = start;
                if start < self.scan_start && self.contig > self.scan {
                    self.scan = 0;
                }
            } else if start > self.scan_start || self.contig > self.scan {
                self.set_scan::<R>(start, run);
            }
        } else if start < self.contig_start
            && (run > self.scan || (run == self.scan && start > self.scan_start))
        {
            self.set_scan::<R>(start, run);
        }
    }

    /// Does the same in a walk upward, which begins at `first_free` or behind the longest run. A shorter run is no news
    /// then, since `scan` is one before the longest.
    #[inline(always)]
    fn learn_next<R: Rules>(&mut self, start: u32, end: u32) {
        if end - start >= self.contig || end == self.bits {
            self.learn::<R>(start, end);
        }
    }

    fn set_scan<R: Rules>(&mut self, start: u32, run: u32) {
        if R::TRACK_SCAN {
            (self.scan_start, self.scan) = (start, run);
        }
    }

    /// Replaces the longest run, which was broken, by `scan`; returns where the search for longer ones begins.
    fn promote(&mut self) -> u32 {
        if self.scan == 0 {
            self.contig = 0;
            return self.first_free;
        }
        (self.contig_start, self.contig) = (self.scan_start, self.scan);
        self.scan = 0;
        self.contig_start + self.contig
    }

    /// Records that nothing in this page is free. `first_free` does not matter then.
    fn use_up(&mut self) {
        (self.scan, self.contig, self.left_free, self.right_free) = (0, 0, 0, 0);
    }

    /// Returns true if `[from, end)` was part of the longest run, or of `scan`, which ends.
    #[inline(always)]
    fn breaks(&mut self, from: u32, end: u32) -> bool {
        if meets(self.scan_start, self.scan, from, end) {
            self.scan = 0;
        }
        meets(self.contig_start, self.contig, from, end)
    }
}

/// Searches for the longest run of a page whose longest was broken.
fn refresh_page<R: Rules>(map: &[Word], page: u32, block: &mut Hints) {
    let from = block.promote();
    block.right_free = 0;
    bitmap::each_clear_run(bitmap::page(map, page), from, |start, end| block.learn_next::<R>(start, end));
}

/// Searches for the longest run of a chunk from a bit on, by the hints of its pages: longest runs, and runs that span
/// pages.
fn refresh_chunk<R: Rules>(blocks: &[Hints], head: &mut Hints, from: u32) {
    let first = from / PAGE_BITS;
    let (mut base, mut seen) = (first * PAGE_BITS, from % PAGE_BITS);
    // Free bits right before the page.
    let mut run = 0;
    for block in blocks.get(first as usize..).unwrap_or_default() {
        let end = base + PAGE_BITS;
        if run > 0 {
            let start = base - run;
            run += block.left_free;
            if block.left_free == PAGE_BITS {
                base = end;
                continue;
            }
            head.learn_next::<R>(start, start + run);
            // The bit behind the run is used.
            seen = block.left_free + 1;
        }
        let longest = block.contig_start + block.contig;
        // A run at the end of the page may continue in the next.
        if block.contig > 0 && block.contig_start >= seen && longest < PAGE_BITS {
            head.learn_next::<R>(base + block.contig_start, base + longest);
            seen = longest + 1;
        }
        run = if seen < PAGE_BITS { block.right_free } else { 0 };
        (base, seen) = (end, 0);
    }
    if run > 0 {
        head.learn::<R>(base - run, base);
    }
}

impl<R: Rules> View<'_, ScanHints<R>> {
    /// Returns the first free bit of a page from `from` on, both counted from its beginning.
    #[inline(always)]
    fn clear_in(&self, page: u32, from: u32) -> u32 {
        let base = page * PAGE_BITS;
        bitmap::next_clear(self.map, base + from, base + PAGE_BITS) - base
    }

    /// Sets `[at, at + bits)` and returns how many pages were wholly free before.
    #[inline(always)]
    pub(super) fn take_bits(&mut self, at: u32, bits: u32) -> u32 {
        let end = at + bits;
        bitmap::set(self.map, at, end);
        let (first, last) = (at / PAGE_BITS, (end - 1) / PAGE_BITS);
        let (from, to) = (at % PAGE_BITS, (end - 1) % PAGE_BITS + 1);
        self.move_first_free(at, last, to);
        let mut pages = self.take_in_first(first, from, bits, first == last, to);
        if first != last {
            pages += self.take_in_last(last, to) + (last - first - 1);
            for page in first + 1..last {
                self.blocks[page as usize].use_up();
            }
        }
        if self.head.breaks(at, end) {
            let from = self.head.promote();
            refresh_chunk::<R>(self.blocks, self.head, from);
        }
        pages
    }

    /// Updates `first_free` of the chunk, and of the pages where a taken range begins and ends, which is before bit `to`
    /// of the page `last`.
    #[inline(always)]
    fn move_first_free(&mut self, at: u32, last: u32, to: u32) {
        let (first, from) = (at / PAGE_BITS, at % PAGE_BITS);
        let of_chunk = at == self.head.first_free;
        let of_page = from == self.blocks[first as usize].first_free;
        if !(of_chunk || of_page || first != last) {
            return;
        }
        let next = self.clear_in(last, to);
        if of_page {
            self.blocks[first as usize].first_free = PAGE_BITS;
        }
        if of_page || first != last {
            self.blocks[last as usize].first_free = next;
        }
        if of_chunk {
            let end = (last + 1) * PAGE_BITS;
            self.head.first_free = match next {
                PAGE_BITS => bitmap::next_clear(self.map, end, self.bits()),
                next => end - PAGE_BITS + next,
            };
        }
    }

    /// Updates the page where a taken range begins, at bit `from`; the range has `bits`, in this page up to `to`.
    #[inline(always)]
    fn take_in_first(&mut self, page: u32, from: u32, bits: u32, only: bool, to: u32) -> u32 {
        let block = &mut self.blocks[page as usize];
        let whole = block.contig == PAGE_BITS;
        if block.breaks(from, from + bits) {
            if from == 0 || R::EXACT_EDGES {
                block.left_free = block.left_free.min(from);
            }
            refresh_page::<R>(self.map, page, block);
        } else {
            block.left_free = block.left_free.min(from);
            block.right_free = if only { block.right_free.min(PAGE_BITS - to) } else { 0 };
        }
        whole.into()
    }

    /// Updates the page, not the first, where a taken range ends before bit `to`.
    #[inline(always)]
    fn take_in_last(&mut self, page: u32, to: u32) -> u32 {
        let block = &mut self.blocks[page as usize];
        let whole = block.contig == PAGE_BITS;
        if to == PAGE_BITS {
            block.use_up();
            return whole.into();
        }
        if to > block.scan_start {
            block.scan = 0;
        }
        block.left_free = 0;
        // If the longest run is behind the taken bits, so is the free end of the page, which is no longer (PH3).
        if to > block.contig_start {
            refresh_page::<R>(self.map, page, block);
        }
        whole.into()
    }

    /// Clears `[at, at + bits)` and returns how many pages are wholly free now.
    pub(super) fn clear_bits(&mut self, at: u32, bits: u32) -> u32 {
        bitmap::clear(self.map, at, at + bits);
        self.head.first_free = self.head.first_free.min(at);
        let (first, last) = (at / PAGE_BITS, (at + bits - 1) / PAGE_BITS);
        let (from, to) = (at % PAGE_BITS, (at + bits - 1) % PAGE_BITS + 1);

        // The run may extend beyond the freed bits, on both sides, within the pages.
        let block = &self.blocks[first as usize];
        let start = if from == block.contig_start + block.contig {
            block.contig_start
        } else {
            let base = first * PAGE_BITS;
            bitmap::after_last_set(self.map, base, base + from) - base
        };
        let block = &self.blocks[last as usize];
        let end = if to == block.contig_start {
            block.contig_start + block.contig
        } else {
            let base = last * PAGE_BITS;
            bitmap::next_set(self.map, base + to, base + PAGE_BITS) - base
        };

        let first_end = if first == last { end } else { PAGE_BITS };
        let mut pages = u32::from(start == 0 && first_end == PAGE_BITS);
        self.blocks[first as usize].learn::<R>(start, first_end);
        if first != last {
            pages += u32::from(end == PAGE_BITS) + (last - first - 1);
            self.blocks[last as usize].learn::<R>(0, end);
            for page in first + 1..last {
                self.blocks[page as usize].make_whole();
            }
        }

        if first != last || end - start >= PAGE_BITS {
            self.head.contig = 0;
            let from = self.head.first_free;
            refresh_chunk::<R>(self.blocks, self.head, from);
        } else {
            let base = first * PAGE_BITS;
            let end = if R::EXACT_CHUNK_HINT { base + end } else { end };
            self.head.learn::<R>(base + start, end);
        }
        pages
    }
}
