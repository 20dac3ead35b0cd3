//! Addresses of the window that are released to the system, where a limit counts them.
//!
//! # Theory
//! ```text
//!   |  granules  |..gone..|  tags  |..gone..|..[#|==area==|#]..gone..[#|=|#]..gone..|
//! ```
//! First everything above the window is unmapped: it grows no more. In the window whole granules are unmapped, which
//! were closed and have no page of a room or of a wall. The word of such a granule stays released. With the last
//! granule of a table the page of its tags goes, too. What another part of the process maps there is never touched.
//!
//! # Locking
//! Called under the lock of the allocator. The words are read without it.

use super::{TAG_BYTES, Window, address, granules_bytes};
use crate::hardened::granules::{GRANULE_PAGES, TABLE};
use core::ops::Range;
use core::sync::atomic::Ordering;
use vmalloc_os::os::{Os, Span};

impl<O: Os> Window<O> {
    /// Returns true if the window grows no more.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Releases the addresses above the window, which grows no more. Returns `false` if that was done before.
    pub(crate) fn close_above(&self) -> bool {
        if self.closed.swap(true, Ordering::Relaxed) {
            return false;
        }
        let have = self.window_pages();
        let end = self.reserved.at + self.reserved.bytes;
        let above = [
            (self.granules + granules_bytes(have), self.granules + granules_bytes(self.pages)),
            (self.tags + tags_bytes(have), self.tags + tags_bytes(self.pages)),
            (address(self.first + have), end),
        ];
        for (at, stop) in above {
            self.unmap_part(Span { at, bytes: stop - at });
        }
        true
    }

    /// Releases granules that are closed. No room, and no wall of one, has a page of them.
    pub(crate) fn release_granules(&self, all: &Range<u64>) {
        for at in all.clone() {
            self.set_granule(at, self.granule(at).released());
        }
        self.unmap_part(self.granules_span(all));
        for table in all.start / TABLE..all.end.div_ceil(TABLE) {
            if self.is_table_released(table) {
                self.unmap_part(self.tags_of(table));
            }
        }
    }

    fn is_table_released(&self, table: u64) -> bool {
        (table * TABLE..(table + 1) * TABLE).all(|at| self.granule(at).is_released())
    }

    /// The tags of a table of pages: a page of them.
    fn tags_of(&self, table: u64) -> Span {
        let from = tags_bytes(table * TABLE * GRANULE_PAGES);
        Span { at: self.tags + from, bytes: tags_bytes((table + 1) * TABLE * GRANULE_PAGES) - from }
    }

    /// Returns true if the system may have given the addresses of a page of the reservation to others.
    pub(crate) fn is_released(&self, page: u64) -> bool {
        let index = page - self.first;
        let gone = || index >= self.window_pages() || self.granule(index / GRANULE_PAGES).is_released();
        self.is_closed() && gone()
    }

    fn unmap_part(&self, part: Span) {
        if part.bytes > 0 {
            // SAFETY: part of the reservation in which nothing is used.
            unsafe { self.host.os().unmap(part) };
        }
    }

    /// Unmaps a window that was never used.
    pub(crate) fn unmap_unused(&self) {
        self.unmap_part(self.reserved);
    }

    /// Unmaps everything that was not released.
    ///
    /// # Safety
    /// No thread uses the window, or memory in it, any more.
    pub(crate) unsafe fn unmap(&self) {
        if !self.is_closed() {
            return self.unmap_unused();
        }
        let (mut at, end) = (0, self.granules());
        while at < end {
            let gone = self.granule(at).is_released();
            let stop = (at..end).find(|&other| self.granule(other).is_released() != gone).unwrap_or(end);
            if !gone {
                self.unmap_part(self.granules_span(&(at..stop)));
            }
            at = stop;
        }
        let kept = (0..end / TABLE).filter(|&table| !self.is_table_released(table));
        kept.for_each(|table| self.unmap_part(self.tags_of(table)));
        let have = self.window_pages();
        // With what is below, for the sake of the alignment.
        let below = self.granules - self.reserved.at;
        self.unmap_part(Span { at: self.reserved.at, bytes: below + granules_bytes(have) });
    }
}

/// Bytes of the tags of so many pages.
pub(super) fn tags_bytes(pages: u64) -> usize {
    (pages as usize * TAG_BYTES).next_multiple_of(crate::PAGE_BYTES)
}
