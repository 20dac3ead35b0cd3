//! Reading of areas by address, while other threads may free them.

use super::Heap;
use crate::arena::address;
use vmalloc_os::os::Os;
use vmalloc_os::vread::peek;

impl<O: Os> Heap<O> {
    /// Copies the contents of live areas at an address; other bytes become zeros. Returns how many bytes were read.
    ///
    /// Cost: the bytes, and a word for each page between the first byte and the start of the area around it.
    pub(crate) fn vread(&self, at: usize, to: &mut [u8]) -> usize {
        to.fill(0);
        self.zones().map(|zone| self.vread_zone(zone, at, to)).sum()
    }

    fn vread_zone(&self, zone: usize, at: usize, to: &mut [u8]) -> usize {
        let mut really = 0;
        self.live_in(zone, at, at.saturating_add(to.len()), |page, word| {
            let (start, stop) = (address(page), address(page) + word.usable_bytes());
            let (from, until) = (start.max(at), stop.min(at + to.len()));
            if from < until {
                really += peek(from, &mut to[from - at..until - at]);
            }
        });
        really
    }
}
