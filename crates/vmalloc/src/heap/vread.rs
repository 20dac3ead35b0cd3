//! Reading areas by address, whoever frees them meanwhile.

use super::Heap;
use crate::PAGE_BYTES;
use crate::arena::{ZONES, address};
use crate::os::Os;
use crate::vread::peek;

impl<O: Os> Heap<O> {
    /// Copies what live areas hold at an address; the rest is zeros. Returns how many bytes were read.
    ///
    /// Cost: the bytes, and a word for each page between the first byte and the start of the area around it.
    pub(crate) fn vread(&self, at: usize, to: &mut [u8]) -> usize {
        to.fill(0);
        (0..ZONES).map(|zone| self.vread_zone(zone, at, to)).sum()
    }

    fn vread_zone(&self, zone: usize, at: usize, to: &mut [u8]) -> usize {
        let end = at.saturating_add(to.len());
        let first = self.arena.extent(zone).start().page_floor();
        let frontier = first + self.arena.committed_pages(zone);
        let mut page = ((at / PAGE_BYTES) as u64).max(first);
        // The nearest word below that says live is that of the area around, if there is one (VM2).
        if page < frontier {
            page = (first..=page).rev().find(|&page| self.arena.get(page).is_live()).unwrap_or(page);
        }
        let mut really = 0;
        while page < frontier && address(page) < end {
            let word = self.arena.get(page);
            if !word.is_live() {
                page += 1;
                continue;
            }
            let (start, stop) = (address(page), address(page) + word.usable_bytes());
            let (from, until) = (start.max(at), stop.min(end));
            if from < until {
                really += peek(from, &mut to[from - at..until - at]);
            }
            page += word.pages();
        }
        really
    }
}
