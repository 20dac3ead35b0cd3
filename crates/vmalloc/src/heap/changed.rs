//! Areas whose mappings the program changed itself: what is freed with flags of its own must not be another's with them.
//!
//! # Theory
//! ```text
//!   |== live ==|     mprotect, mlock, MADV_DONTFORK: the word says that it is changed, and moved
//!   |  clean   |     free: fresh pages are mapped over it, which are as those around it
//! ```
//! The C library maps large memory for each allocation, so a program that changes its own (read only, locked, not for children, on a
//! node) need not undo that before it frees it. Here its addresses are somebody's soon, and would have these flags still. To undo each of
//! them would need to know each; to map anew needs to know none. A free looks at the word that it reads anyway.
//!
//! If the system denies fresh pages, the range is retired: it is never allocated again.
//!
//! # Locking
//! None: a handler of a signal may change memory, too.
//! # Source
//! Our own.

use super::Heap;
use crate::PAGE_BYTES;
use crate::arena::{ZONES, address};
use crate::os::Os;
use crate::word::Word;
use core::sync::atomic::Ordering;

impl<O: Os> Heap<O> {
    /// Has every live area that the bytes `[at, at + bytes)` touch mapped anew when it is freed.
    ///
    /// Cost: a word for each page between the start of the area around the first byte and the last one; O(1) in the area of the last call.
    pub(crate) fn renew_at_free(&self, at: usize, bytes: usize) {
        let end = at.saturating_add(bytes);
        let (last, page) = (self.changed.load(Ordering::Relaxed), (at / PAGE_BYTES) as u64);
        let word = self.arena.get(last);
        if word.is_changed()
            && (last..last + word.pages()).contains(&page)
            && end <= address(last + word.pages())
        {
            return;
        }
        for zone in 0..ZONES {
            self.live_in(zone, at, end, |page, word| {
                self.changed.store(page, Ordering::Relaxed);
                let more = u64::from(!word.is_moved());
                self.moved.fetch_add(more, Ordering::Relaxed);
                // Its owner is at this call, so it is another by now only if another thread has said the same.
                if !self.change(page, word, word.changed()) {
                    self.moved.fetch_sub(more, Ordering::Relaxed);
                }
            });
        }
    }

    /// Visits the live areas of a zone that touch `[at, end)`, in address order.
    pub(super) fn live_in(&self, zone: usize, at: usize, end: usize, mut visit: impl FnMut(u64, Word)) {
        let first = self.arena.extent(zone).start().page_floor();
        let frontier = first + self.arena.committed_pages(zone);
        let mut page = ((at / PAGE_BYTES) as u64).max(first);
        if page >= frontier || address(page) >= end {
            return;
        }
        // The nearest word below that says live is that of the area around, if there is one (VM2).
        page = (first..=page).rev().find(|&page| self.arena.get(page).is_live()).unwrap_or(page);
        while page < frontier && address(page) < end {
            let word = self.arena.get(page);
            if word.is_live() && address(page + word.pages()) > at {
                visit(page, word);
            }
            page += if word.is_live() { word.pages() } else { 1 };
        }
    }
}
