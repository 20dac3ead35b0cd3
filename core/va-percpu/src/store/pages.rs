//! The populated pages of a chunk.

use super::Store;
use crate::bitmap::{self, words_for};
use crate::config::Config;
use crate::engine::HintEngine;
use core::ops::Range;

impl<C: Config> Store<C> {
    /// Returns the first run of pages of `[page, end)` that is populated, or is not.
    pub(crate) fn run_of_pages(&self, row: u32, page: u32, end: u32, populated: bool) -> Option<Range<u32>> {
        let map = self.populated(row);
        let (start, stop) = if populated {
            let start = bitmap::next_set(map, page, end);
            (start, bitmap::next_clear(map, start, end))
        } else {
            let start = bitmap::next_clear(map, page, end);
            (start, bitmap::next_set(map, start, end))
        };
        (start < end).then_some(start..stop)
    }

    /// Records that pages are populated that were not.
    pub(crate) fn note_populated(&mut self, row: u32, pages: Range<u32>) {
        let words = 2 * words_for(self.geometry.unit_bits()) as usize;
        bitmap::set(&mut self.words.row_mut(row)[words..], pages.start, pages.end);
        let count = pages.end - pages.start;
        self.chunks.one_mut(row).populated += count;
        self.totals.populated += u64::from(count);
        // Pages in use were subtracted when they were taken.
        self.count_empty(row, count as i32);
    }

    /// Records that pages, all wholly free, are no longer populated.
    pub(crate) fn note_depopulated(&mut self, row: u32, pages: Range<u32>) {
        let words = 2 * words_for(self.geometry.unit_bits()) as usize;
        bitmap::clear(&mut self.words.row_mut(row)[words..], pages.start, pages.end);
        let count = pages.end - pages.start;
        self.chunks.one_mut(row).populated -= count;
        self.totals.populated -= u64::from(count);
        self.count_empty(row, -(count as i32));
    }

    /// Returns true if a page is populated and wholly free.
    pub(crate) fn is_spare(&mut self, row: u32, page: u32) -> bool {
        let (view, _) = self.view(row);
        C::Engine::is_free(&view, page) && bitmap::is_set(view.populated, page)
    }
}
