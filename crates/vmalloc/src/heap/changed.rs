//! Areas whose mappings the program changed itself: its flags must not pass to the next owner of the addresses.
//!
//! # Theory
//! ```text
//!   |== live ==|     mprotect, mlock, MADV_DONTFORK: the word says that it is changed, and moved
//!   |  clean   |     free: fresh pages are mapped over it, which are as those around it
//! ```
//! The C library maps large memory for each allocation. So a program that makes its memory read only, locks it or hides
//! it from children need not undo that before the free. Here the addresses soon have another owner, and would keep
//! these flags. To undo each flag, each would have to be recorded. To map anew needs no record. A free reads the word
//! anyway.
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
    /// Cost: a word for each page between the start of the area around the first byte and the last one; O(1) in the
    /// area of the last call.
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
                // By now its owner may have freed or resized it, or another thread may have said the same.
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
        if self.arena.get(page).is_released() {
            // Another part of the program may have mapped something here.
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
