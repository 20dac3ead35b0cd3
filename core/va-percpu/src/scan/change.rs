//! Updates of the hints after bits are taken and freed.

use super::{Hints, Rules, ScanHints};
use crate::bitmap::{self, PAGE_BITS};
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
    fn breaks(&mut self, from: u32, end: u32) -> bool {
        if meets(self.scan_start, self.scan, from, end) {
            self.scan = 0;
        }
        meets(self.contig_start, self.contig, from, end)
    }
}

impl<R: Rules> View<'_, ScanHints<R>> {
    /// Returns the first free bit of a page from `from` on, both counted from its beginning.
    fn clear_in(&self, page: u32, from: u32) -> u32 {
        let base = page * PAGE_BITS;
        bitmap::next_clear(self.map, base + from, base + PAGE_BITS) - base
    }

    /// Searches for the longest run of a page whose longest was broken.
    fn refresh_page(&mut self, page: u32) {
        let base = page * PAGE_BITS;
        let end = base + PAGE_BITS;
        let block = &mut self.blocks[page as usize];
        let mut start = bitmap::next_clear(self.map, base + block.promote(), end);
        block.right_free = 0;
        while start < end {
            let stop = bitmap::next_set(self.map, start, end);
            block.learn::<R>(start - base, stop - base);
            start = bitmap::next_clear(self.map, stop, end);
        }
    }

    /// Searches for the longest run of the chunk, by the hints of its pages.
    fn refresh_chunk(&mut self, from: u32) {
        let mut at = from;
        while let Some((start, run)) = self.next_run(at) {
            self.head.learn::<R>(start, start + run);
            at = start + run + 1;
        }
    }

    /// Returns the next run at or after `at` by the hints of the pages: a longest run, or one that spans pages.
    fn next_run(&self, at: u32) -> Option<(u32, u32)> {
        let first = (at / PAGE_BITS) as usize;
        let mut seen = at % PAGE_BITS;
        let (mut start, mut run) = (0, 0);
        for (page, block) in self.blocks.iter().enumerate().skip(first) {
            if run > 0 {
                run += block.left_free;
                if block.left_free == PAGE_BITS {
                    continue;
                }
                return Some((start, run));
            }
            let base = page as u32 * PAGE_BITS;
            // A run at the end of the page may continue in the next.
            if block.contig > 0 && block.contig_start >= seen && block.contig_start + block.contig < PAGE_BITS
            {
                return Some((base + block.contig_start, block.contig));
            }
            seen = 0;
            run = block.right_free;
            start = base + PAGE_BITS - run;
        }
        (start < self.bits()).then_some((start, run)).filter(|_| run > 0)
    }

    /// Sets `[at, at + bits)` and returns how many pages were wholly free before.
    pub(super) fn take_bits(&mut self, at: u32, bits: u32) -> u32 {
        let end = at + bits;
        bitmap::set(self.map, at, end);
        if at == self.head.first_free {
            self.head.first_free = bitmap::next_clear(self.map, end, self.bits());
        }
        let (first, last) = (at / PAGE_BITS, (end - 1) / PAGE_BITS);
        let (from, to) = (at % PAGE_BITS, (end - 1) % PAGE_BITS + 1);
        let mut pages = self.take_in_first(first, from, bits, first == last, to);
        if first != last {
            pages += self.take_in_last(last, to) + (last - first - 1);
            for page in first + 1..last {
                self.blocks[page as usize].use_up();
            }
        }
        if self.head.breaks(at, end) {
            let from = self.head.promote();
            self.refresh_chunk(from);
        }
        pages
    }

    /// Updates the page where a taken range begins, at bit `from`; the range has `bits`, in this page up to `to`.
    fn take_in_first(&mut self, page: u32, from: u32, bits: u32, only: bool, to: u32) -> u32 {
        let first_free = self.blocks[page as usize].first_free;
        if from == first_free {
            let next = if only { self.clear_in(page, to) } else { PAGE_BITS };
            self.blocks[page as usize].first_free = next;
        }
        let block = &mut self.blocks[page as usize];
        let whole = block.contig == PAGE_BITS;
        if block.breaks(from, from + bits) {
            if from == 0 || R::EXACT_EDGES {
                block.left_free = block.left_free.min(from);
            }
            self.refresh_page(page);
        } else {
            block.left_free = block.left_free.min(from);
            block.right_free = if only { block.right_free.min(PAGE_BITS - to) } else { 0 };
        }
        whole.into()
    }

    /// Updates the page, not the first, where a taken range ends before bit `to`.
    fn take_in_last(&mut self, page: u32, to: u32) -> u32 {
        let next = self.clear_in(page, to);
        let block = &mut self.blocks[page as usize];
        let whole = block.contig == PAGE_BITS;
        block.first_free = next;
        if to == PAGE_BITS {
            block.use_up();
            return whole.into();
        }
        if to > block.scan_start {
            block.scan = 0;
        }
        block.left_free = 0;
        if to > block.contig_start {
            self.refresh_page(page);
        } else {
            block.right_free = block.right_free.min(PAGE_BITS - to);
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
            self.refresh_chunk(from);
        } else {
            let base = first * PAGE_BITS;
            let end = if R::EXACT_CHUNK_HINT { base + end } else { end };
            self.head.learn::<R>(base + start, end);
        }
        pages
    }
}
