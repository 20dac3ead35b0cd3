//! Areas whose mappings the program changed: the next owner of the addresses must not inherit the changed flags.
//!
//! # Theory
//! ```text
//!   |== live ==|     mprotect, mlock, MADV_DONTFORK: the word records "changed" and "moved"
//!   |  clean   |     free: fresh pages are mapped over it, with the flags of those around it
//! ```
//! The C library maps large memory for each allocation. So a program that makes its memory read-only, locks it or hides
//! it from children need not undo that before the free. Here the addresses soon have another owner, and would keep
//! these flags. To undo the flags, each would have to be recorded. A new mapping needs no such record, and a free reads
//! the word in any case.
//!
//! If the system denies fresh pages, the range is retired: it is never allocated again.
//!
//! A memory policy (`mbind`) that covers the area goes with it when it is resized: to the pages by which it grows, and
//! to the area to which it moves. That area is changed, too. Where only plain calls may be made, the policy ends there.
//!
//! # Locking
//! None: a handler of a signal may change memory, too.
//! # Source
//! Our own.

use super::Heap;
use crate::PAGE_BYTES;
use crate::arena::{Run, address};
use crate::page_word::Word;
use core::sync::atomic::Ordering;
use vmalloc_os::os::Os;

impl<O: Os> Heap<O> {
    /// Marks every live area that the bytes `[at, at + bytes)` touch, so that its free maps fresh pages over it.
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
        for zone in self.zones() {
            self.live_in(zone, at, end, |page, word| {
                self.changed.store(page, Ordering::Relaxed);
                self.mark_changed(page, word);
            });
        }
    }

    /// Marks the area of a word as changed.
    fn mark_changed(&self, page: u64, word: Word) {
        let more = u64::from(!word.is_moved());
        self.moved.fetch_add(more, Ordering::Relaxed);
        // The owner may have freed or resized the area meanwhile, or another thread may have marked it.
        if !self.change(page, word, word.changed()) {
            self.moved.fetch_sub(more, Ordering::Relaxed);
        }
    }

    /// Sets the memory policy of a changed area on its new area. Resident pages there were placed by another policy, so
    /// they are released. Returns how many pages, from the first on, may have contents: `used`, or 0.
    pub(super) fn move_policy(&self, from: &Run, word: Word, to: &mut Run, used: u64) -> u64 {
        if !word.is_changed() || !self.arena.keep_policy(from, word.requested_bytes(), to) {
            return used;
        }
        self.mark_changed(to.page(), self.arena.get(to.page()));
        if self.arena.discard(core::slice::from_mut(to)).is_ok() { 0 } else { used }
    }

    /// Sets the memory policy of a changed area on the pages behind the bytes that were requested of it, up to `end`, as
    /// [`move_policy`](Self::move_policy) does. Those that joined the area are discarded. The caller may have written to
    /// the others, if it queried the usable size.
    #[cold]
    pub(super) fn extend_policy(&self, area: &Run, word: Word, end: u64) {
        let requested = area.page() + word.requested_bytes().div_ceil(PAGE_BYTES) as u64;
        if requested == end {
            return;
        }
        // SAFETY: pages of the area as it is now, which the caller owns alone during this call (AR2).
        let mut rest = unsafe { Run::claim(requested, end - requested) };
        if self.arena.keep_policy(area, word.requested_bytes(), &mut rest) && end > area.end() {
            // SAFETY: as before.
            let mut joined = unsafe { Run::claim(area.end(), end - area.end()) };
            let _stay = self.arena.discard(core::slice::from_mut(&mut joined));
        }
    }

    /// Visits the live areas of a zone that touch `[at, end)`, in address order.
    pub(super) fn live_in(&self, zone: usize, at: usize, end: usize, mut visit: impl FnMut(u64, Word)) {
        let first = self.arena.extent(zone).start().page_floor();
        let frontier = self.arena.frontier(zone);
        let mut page = ((at / PAGE_BYTES) as u64).max(first);
        if page >= frontier || address(page) >= end {
            return;
        }
        // No area contains a released page. Any other page belongs to the area of the nearest live word below, if any
        // (VM2).
        if !self.arena.get(page).is_released() {
            page = (first..=page).rev().find(|&page| self.arena.get(page).is_live()).unwrap_or(page);
        }
        while page < frontier && address(page) < end {
            let word = self.arena.get(page);
            if word.is_live() && address(page + word.pages()) > at {
                visit(page, word);
            }
            page += if word.is_live() || word.is_released() { word.pages() } else { 1 };
        }
    }
}
