//! Reading areas by address, whoever frees them meanwhile.

use super::Heap;
use crate::PAGE_BYTES;
use crate::arena::address;
use crate::os::Os;
use crate::vread::peek;

impl<O: Os> Heap<O> {
    /// Copies what live areas hold at an address; the rest is zeros. Returns how many bytes were read.
    ///
    /// Cost: the bytes, and a word for each page between the first byte and the start of the area around it.
    pub(crate) fn vread(&self, at: usize, to: &mut [u8]) -> usize {
        to.fill(0);
        let end = at.saturating_add(to.len());
        let (first, frontier) = (self.arena.first(), self.arena.first() + self.arena.committed_pages());
        let mut page = ((at / PAGE_BYTES) as u64).max(first);
        // The nearest word below that says live is that of the area around, if there is one (VM2).
        page =
            (first..=page.min(frontier)).rev().find(|&page| self.arena.get(page).is_live()).unwrap_or(page);
        let mut really = 0;
        while page < frontier && address(page) < end {
            let word = self.arena.get(page);
            if !word.is_live() {
                page += 1;
                continue;
            }
            let stop = page + word.pages();
            let (from, until) = (address(page).max(at), address(stop).min(end));
            if from < until {
                really += peek(from, &mut to[from - at..until - at]);
            }
            page = stop;
        }
        really
    }
}
