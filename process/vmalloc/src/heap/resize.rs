//! Resizing of areas: in place where that is possible, elsewhere otherwise (`relocate.rs`).
//!
//! # Theory
//! ```text
//!   grow in place   |== live ==|~dirty~|  clean  |   ->  |===== live =====|clean|      the pages above join the area
//!   shrink          |===== live =====|               ->  |== live ==|~dirty~|
//! ```
//! Neither makes a system call, except to move the frontier, or for a purge if the freed tail exceeds the budget. The
//! pages above an area are mostly free: areas are carved at the lowest fit, and an area that has grown was moved to
//! where there is room.
//! # Source
//! Our own; Linux has `vrealloc` (6.12), which copies, or stays in place if the area has enough pages.

use super::carve::Central;
use super::{Fill, Heap};
use crate::PAGE_BYTES;
use crate::arena::{Run, address, into_pointer};
use crate::error::{AllocError, ResizeError};
use crate::page_word::Word;
use core::alloc::Layout;
use core::ptr::NonNull;
use core::sync::atomic::Ordering;
use va_base::{Va, VaRange};
use va_tree::FreeIndex;
use vmalloc_os::os::Os;

/// Fragments that an area absorbs at most when it grows in place.
const PIECES_MAX: usize = 16;

/// A fragment above an area.
#[derive(Clone, Copy, Default)]
struct Piece {
    page: u64,
    end: u64,
    dirty: bool,
}

impl Piece {
    fn range(&self) -> VaRange {
        VaRange::from_pages(self.page, self.end).unwrap_or_default()
    }
}

impl<O: Os> Heap<O> {
    /// Resizes the area that begins at an address, and aligns it. Returns its new address. Its bytes are preserved up
    /// to the smaller size. With `Fill::Zero`, newly requested bytes are zeros.
    ///
    /// # Safety
    /// If an area begins there, no other reference to it is used during the call. If the address changes, no reference
    /// to the old one is used afterwards.
    pub(crate) unsafe fn resize(
        &self,
        at: usize,
        layout: Layout,
        fill: Fill,
    ) -> Result<NonNull<u8>, ResizeError> {
        if self.guards.tail > 0 {
            // SAFETY: this function's contract.
            return unsafe { self.resize_guarded(at, layout, fill) };
        }
        let word = self.live(at)?;
        let size = layout.size();
        if size == 0 {
            return Err(AllocError::ZeroSize.into());
        }
        let pages = self.run_pages(size);
        let page = (at / PAGE_BYTES) as u64;
        let stays = at.is_multiple_of(layout.align())
            && if pages <= word.pages() {
                self.shrink_in_place(page, word, size)?
            } else {
                self.may_stay(page, pages) && self.grow_in_place(page, word, size, fill)
            };
        if stays {
            let before = word.requested_bytes();
            if word.is_changed() && size > before {
                // SAFETY: live, and owned by the caller alone during this call.
                let area = unsafe { Run::claim(page, word.pages()) };
                self.extend_policy(&area, word, page + pages);
            }
            if fill == Fill::Zero && before < size {
                // SAFETY: live, and owned by the caller alone during this call.
                let mut run = unsafe { Run::claim(page, pages) };
                self.arena.zero(&mut run, before, size.min(word.usable_bytes()));
                return Ok(into_pointer(run));
            }
            // SAFETY: as before.
            return Ok(into_pointer(unsafe { Run::claim(page, pages) }));
        }
        // SAFETY: this function's contract.
        unsafe { self.relocate(at, word, layout, fill) }
    }

    /// Changes a live area's word. Returns false if the word has changed meanwhile.
    pub(super) fn change(&self, page: u64, from: Word, to: Word) -> bool {
        let place = self.arena.word(page);
        // Only the word changes; a thread that frees the area acquires nothing from here.
        place.is_some_and(|place| {
            place.compare_exchange(from.bits(), to.bits(), Ordering::Relaxed, Ordering::Relaxed).is_ok()
        })
    }

    /// Sets the size of the caller's live area to that of `to`. Returns the previous word, which another thread may
    /// have marked as changed. Returns `None` if the word is a different one by now.
    pub(super) fn change_own(&self, page: u64, word: Word, to: Word) -> Option<Word> {
        [word, word.changed()].into_iter().find(|&word| self.change(page, word, word.resized(to)))
    }

    /// Frees all pages but those for `size`.
    fn shrink_in_place(&self, page: u64, word: Word, size: usize) -> Result<bool, ResizeError> {
        let pages = self.run_pages(size);
        let to = Word::live(pages, size);
        if pages == word.pages() {
            let word = self.change_own(page, word, to);
            return word.map(|_| true).ok_or_else(|| self.free_error(address(page)).into());
        }
        let mut central = self.zone_of(page);
        // The tail is freed separately.
        central.part()?;
        let Some(word) = self.change_own(page, word, to) else {
            central.record_merged(1);
            return Err(self.free_error(address(page)).into());
        };
        // SAFETY: the tail of a live area that has become shorter.
        let mut tail = unsafe { Run::claim(page + pages, word.pages() - pages) };
        let mut dirty = tail.pages();
        if word.is_moved() || self.wipes() || self.cached_max == 0 {
            // Not under the lock: the tail is in no list, and its word records its size meanwhile (VM1).
            self.arena.put(tail.page(), Word::free(tail.pages()));
            drop(central);
            if word.is_moved() {
                dirty = self.free_renewed(tail, word);
            } else {
                if self.cached_max > 0 || self.arena.discard(core::slice::from_mut(&mut tail)).is_err() {
                    self.wipe(&mut tail, 0, address(dirty));
                }
                self.zone_of(page).add_dirty(tail);
            }
        } else {
            central.add_dirty(tail);
            drop(central);
        }
        self.settle(dirty);
        Ok(true)
    }

    /// Returns true if an area of this many pages belongs in its zone. An area that has become large leaves the zone of
    /// small areas once, while moving it is cheap. Later it would have small pages for good, at a page fault each.
    fn may_stay(&self, page: u64, pages: u64) -> bool {
        self.arena.kind_of(page) >= self.arena.kind_for(pages)
    }

    /// Extends an area over the free pages above it, if they suffice.
    fn grow_in_place(&self, page: u64, word: Word, size: usize, fill: Fill) -> bool {
        let pages = self.run_pages(size);
        let (from, extent) = (page + word.pages(), self.arena.extent(self.arena.zone_of(page)));
        let Some(end) = page.checked_add(pages).filter(|&end| end <= extent.end().page_floor()) else {
            return false;
        };
        let mut guard = self.zone_of(page);
        let central = &mut *guard;
        let mut pieces = [Piece::default(); PIECES_MAX];
        let Some(count) = find_pieces(central, from, end, &mut pieces) else { return false };
        let pieces = &pieces[..count];
        // The rest of the last clean block is freed separately.
        if central.part().is_err() {
            return false;
        }
        let taken = pieces.iter().take_while(|piece| self.take_piece(central, piece)).count();
        let to = word.resized(Word::live(pages, size));
        if taken < count || !self.change(page, word, to) {
            for piece in &pieces[..taken] {
                if piece.dirty {
                    central.add_dirty_range(piece.range());
                } else {
                    central.free_clean(piece.range());
                }
            }
            central.record_merged(1);
            return false;
        }
        match pieces.last().filter(|piece| piece.end > end) {
            Some(last) => central.add_dirty_range(VaRange::from_pages(end, last.end).unwrap_or_default()),
            None => central.record_merged(1),
        }
        // Each was allocated as a run of its own, and is freed with the area.
        central.record_merged(pieces.iter().filter(|piece| piece.dirty).count() as u64);
        drop(guard);
        self.growth.in_place.fetch_add(1, Ordering::Relaxed);
        for piece in pieces.iter().filter(|piece| piece.dirty && fill == Fill::Zero) {
            // SAFETY: part of the area now, which the caller owns alone during this call.
            let mut run = unsafe { Run::claim(piece.page, piece.end - piece.page) };
            self.arena.zero(&mut run, 0, usize::MAX);
        }
        true
    }

    fn take_piece(&self, central: &mut Central<O>, piece: &Piece) -> bool {
        if piece.dirty {
            return central.take_dirty_at(piece.range());
        }
        central.take_clean_at(&self.arena, piece.range())
    }
}

/// Finds the dirty and clean fragments of the pages `[from, end)`, if no area has any of these pages. Returns the
/// number of fragments.
fn find_pieces<O: Os>(
    central: &Central<O>,
    from: u64,
    end: u64,
    pieces: &mut [Piece; PIECES_MAX],
) -> Option<usize> {
    let (mut page, mut count) = (from, 0);
    while page < end {
        let at = Va::from_page(page);
        let dirty = central.dirty.hole_below(at).filter(|hole| hole.contains(at));
        let above = match dirty {
            Some(hole) => hole.end().page_floor(),
            None => match central.space.find_above(at) {
                Some(area) if area.range.contains(at) => return None,
                Some(area) => area.range.start().page_floor(),
                None => u64::MAX,
            },
        };
        // Clean pages are allocated in whole blocks.
        let end = match dirty {
            Some(_) => above.min(end),
            None => above.min(central.block(central.blocks_around(page, end).end).start().page_floor()),
        };
        *pieces.get_mut(count)? = Piece { page, end, dirty: dirty.is_some() };
        count += 1;
        page = above;
    }
    Some(count)
}
