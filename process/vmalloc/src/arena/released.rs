//! Addresses of an arena that are unmapped, all at its end or some before (`heap/released.rs`).

use super::{Arena, Run, ZONES, address, span_of};
use crate::page_word::Word;
use core::sync::atomic::Ordering;
use va_base::VaRange;
use vmalloc_os::os::{Os, Span};

/// Parts of a zone that are unmapped by themselves.
const PARTS: usize = 2;
const _: () = assert!(ZONES * PARTS <= u64::BITS as usize);
pub(super) const WORDS: usize = 0;
pub(super) const PAGES: usize = 1;

/// The bit of a part of a zone.
fn kept_bit(zone: usize, part: usize) -> u64 {
    1 << (zone * PARTS + part)
}

impl<O: Os> Arena<O> {
    /// Unmaps the arena.
    ///
    /// # Safety
    /// No thread uses the arena, or memory in it, any more.
    pub(crate) unsafe fn unmap(&self) {
        if self.torn_pages() == 0 && !self.closed.load(Ordering::Relaxed) {
            _ = self.unmap_part(self.reserved);
            return;
        }
        let _again = self.close();
        // What lies between may be others' by now.
        for zone in 0..ZONES {
            let first = self.extent(zone).start().page_floor();
            let (mut page, end) = (first, first + self.committed_pages(zone));
            while page < end {
                let gone = self.get(page).is_released();
                let stop = (page..end).find(|&other| self.get(other).is_released() != gone).unwrap_or(end);
                if !gone {
                    _ = self.unmap_part(Span { at: address(page), bytes: address(stop - page) });
                }
                page = stop;
            }
        }
        for zone in 0..ZONES {
            _ = self.unmap_part(self.words_between(zone, 0, self.committed_pages(zone)));
            let still = (0..PARTS).filter(|&part| self.is_kept(zone, part));
            still.for_each(|part| _ = self.unmap_part(self.above(zone)[part]));
        }
    }

    /// Returns true if the addresses above the frontiers were released.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Releases the addresses above the frontiers, until a frontier moves there, as far as the system lets it. Called
    /// under the locks of all zones. Returns `false` if the arena was closed before.
    pub(crate) fn close(&self) -> bool {
        if self.closed.swap(true, Ordering::Relaxed) {
            return false;
        }
        for zone in 0..ZONES {
            for (part, above) in self.above(zone).into_iter().enumerate() {
                if !self.unmap_part(above) {
                    self.kept.fetch_or(kept_bit(zone, part), Ordering::Relaxed);
                }
            }
        }
        // Addresses that serve the alignment alone.
        let (words, end) = (self.words, address(self.first + self.pages));
        _ = self.unmap_part(Span { at: self.reserved.at, bytes: words - self.reserved.at });
        _ = self.unmap_part(Span { at: end, bytes: self.reserved.at + self.reserved.bytes - end });
        true
    }

    /// The words and the pages above the frontier of a zone.
    fn above(&self, zone: usize) -> [Span; PARTS] {
        let (first, last) = self.extent(zone).whole_pages();
        let have = self.committed_pages(zone);
        let pages = Span { at: address(first + have), bytes: address(last - first - have) };
        [self.words_between(zone, have, last - first), pages]
    }

    /// Returns true if the system did not unmap a part above the frontier of a zone, which is as it was reserved.
    pub(super) fn is_kept(&self, zone: usize, part: usize) -> bool {
        self.kept.load(Ordering::Relaxed) & kept_bit(zone, part) != 0
    }

    /// Releases pages below the frontier of a zone, whose lock is held, for good. They were clean or dirty, and are in
    /// no index.
    pub(crate) fn release(&self, range: VaRange) {
        // Before the addresses can be mapped by others: a pointer there is theirs then.
        self.mark_released(range);
        let span = span_of(range);
        if !self.unmap_part(span) {
            // Their memory, at least.
            // SAFETY: part of the arena below a frontier, which has no users.
            let _stays = unsafe { self.host.os().discard(&[span]) };
        }
    }

    /// Retires a run in whose place another mapping may be, which stays when the arena is unmapped.
    pub(crate) fn disown(&self, run: Run) {
        self.torn.fetch_add(run.pages(), Ordering::Relaxed);
        self.mark_released(run.range());
    }

    /// Returns the pages in whose place other mappings may be.
    pub(crate) fn torn_pages(&self) -> u64 {
        self.torn.load(Ordering::Relaxed)
    }

    fn mark_released(&self, range: VaRange) {
        let (start, end) = range.whole_pages();
        (start..end).for_each(|page| self.put(page, Word::released(end - page)));
    }

    /// Unmaps part of the reservation, which has no users. Returns `false` if the system does not.
    pub(super) fn unmap_part(&self, part: Span) -> bool {
        // SAFETY: part of the reservation, which has no users.
        part.bytes == 0 || unsafe { self.host.os().unmap(part) }
    }
}
