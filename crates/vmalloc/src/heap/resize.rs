//! Areas of another size: in place where that is possible, by moving pages where it pays, by copying otherwise.
//!
//! # Theory
//! ```text
//!   grow in place   |== live ==|~dirty~|  clean  |   ->  |===== live =====|clean|      what is above it joins it
//!   move            |== live ==|xx somebody xx|      ->  |  clean   |xxxx|   |== live ==......|   page tables, no bytes
//!   shrink          |===== live =====|               ->  |== live ==|~dirty~|
//! ```
//! A move (`mremap`) costs microseconds whatever the size, a copy a tenth of a microsecond a page and a page fault besides. But
//! what is moved is a mapping of its own, and a process has not many: there may be a bounded number of them, and a **moved**
//! area is not kept when it is freed: fresh pages are mapped over it, which merge with what is around it.
//!
//! A move that fails for want of memory may leave a hole where it was to go. It is mended at once; if another thread mapped
//! something there first, that range is **retired**: nobody is given it again. Then there are no more moves.
//! # Source
//! Our own; Linux has `vrealloc` (6.12), which copies, or stays where it is if its pages are enough.

use super::carve::Central;
use super::{Fill, Heap};
use crate::PAGE_BYTES;
use crate::arena::{Run, ZONES, address, into_pointer};
use crate::error::{AllocError, ResizeError};
use crate::os::{Errno, Os};
use crate::word::Word;
use core::alloc::Layout;
use core::ptr::NonNull;
use core::sync::atomic::Ordering;
use va_base::{Va, VaRange};
use va_tree::FreeIndex;

/// Pages from which an area is moved rather than copied.
const MOVE_PAGES_MIN: u64 = 64;
/// Pieces that an area takes in at most when it grows in place.
const PIECES_MAX: usize = 16;

/// Part of what is above an area.
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
    /// Gives the area that begins at an address another size, and an alignment; where it is then. Its bytes stay, as many as
    /// both sizes have. With `Fill::Zero`, bytes that were not asked for before are zeros.
    ///
    /// # Safety
    /// If an area begins there, nobody refers to it during the call, nor to the address afterwards if it is another.
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
        let pages = size.div_ceil(PAGE_BYTES) as u64;
        let page = (at / PAGE_BYTES) as u64;
        let stays = at.is_multiple_of(layout.align())
            && if pages <= word.pages() {
                self.shrink_in_place(page, word, size)?
            } else {
                self.grow_in_place(page, word, size, fill)
            };
        if stays {
            let before = word.requested_bytes();
            if fill == Fill::Zero && before < size {
                // SAFETY: live, and the caller's alone for this call.
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

    /// Changes a live area's word; `false` if it is another by now.
    pub(super) fn change(&self, page: u64, from: Word, to: Word) -> bool {
        let place = self.arena.word(page);
        // Only the word changes; whoever frees the area acquires nothing from here.
        place.is_some_and(|place| {
            place.compare_exchange(from.bits(), to.bits(), Ordering::Relaxed, Ordering::Relaxed).is_ok()
        })
    }

    /// Gives up all pages but those for `size`.
    fn shrink_in_place(&self, page: u64, word: Word, size: usize) -> Result<bool, ResizeError> {
        let pages = size.div_ceil(PAGE_BYTES) as u64;
        let mut to = Word::live(pages, size);
        if word.is_moved() {
            to = to.moved();
        }
        if pages == word.pages() {
            return if self.change(page, word, to) {
                Ok(true)
            } else {
                Err(self.refusal(address(page)).into())
            };
        }
        let mut central = self.zone_of(page);
        // The tail comes back on its own.
        central.part()?;
        if !self.change(page, word, to) {
            central.unite(1);
            return Err(self.refusal(address(page)).into());
        }
        // SAFETY: the tail of a live area that has become shorter.
        let tail = unsafe { Run::claim(page + pages, word.pages() - pages) };
        if word.is_moved() {
            self.give_fresh(&mut central, tail);
        } else {
            central.add_dirty(tail);
        }
        Ok(true)
    }

    /// Takes in what is above an area, if nobody has it.
    fn grow_in_place(&self, page: u64, word: Word, size: usize, fill: Fill) -> bool {
        let pages = size.div_ceil(PAGE_BYTES) as u64;
        let (from, extent) = (page + word.pages(), self.arena.extent(self.arena.zone_of(page)));
        let Some(end) = page.checked_add(pages).filter(|&end| end <= extent.end().page_floor()) else {
            return false;
        };
        let mut guard = self.zone_of(page);
        let central = &mut *guard;
        let mut pieces = [Piece::default(); PIECES_MAX];
        let Some(count) = find_pieces(central, from, end, &mut pieces) else { return false };
        let pieces = &pieces[..count];
        // What is left of the last block of clean ones comes back on its own.
        if central.part().is_err() {
            return false;
        }
        let taken = pieces.iter().take_while(|piece| self.take_piece(central, piece)).count();
        let mut to = Word::live(pages, size);
        if word.is_moved() {
            to = to.moved();
        }
        if taken < count || !self.change(page, word, to) {
            for piece in &pieces[..taken] {
                if piece.dirty {
                    central.give_dirty(piece.range());
                } else {
                    central.free_clean(piece.range());
                }
            }
            central.unite(1);
            return false;
        }
        match pieces.last().filter(|piece| piece.end > end) {
            Some(last) => central.give_dirty(VaRange::from_pages(end, last.end).unwrap_or_default()),
            None => central.unite(1),
        }
        // Each came out as a run of its own, and goes back with the area.
        central.unite(pieces.iter().filter(|piece| piece.dirty).count() as u64);
        drop(guard);
        for piece in pieces.iter().filter(|piece| piece.dirty && fill == Fill::Zero) {
            // SAFETY: part of the area now, which is the caller's alone for this call.
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

    /// Gives an area another place.
    ///
    /// # Safety
    /// As [`resize`](Self::resize).
    unsafe fn relocate(
        &self,
        at: usize,
        word: Word,
        layout: Layout,
        fill: Fill,
    ) -> Result<NonNull<u8>, ResizeError> {
        let size = layout.size();
        let grows = layout.size().div_ceil(PAGE_BYTES) as u64 >= word.pages();
        let moves = word.pages() >= MOVE_PAGES_MIN && grows && !self.moves_off.load(Ordering::Relaxed);
        let moves = moves && (0..ZONES).map(|zone| self.zone(zone).moved).sum::<u64>() < self.moved_max;
        let (mut to, mut clean) = self.carve(layout, moves)?;
        // SAFETY: this function's contract.
        let (mut from, word) = match unsafe { self.claim(at) } {
            Ok(claimed) => claimed,
            Err(error) => {
                self.arena.put(to.page(), Word::free(to.pages()));
                self.keep(to);
                return Err(error.into());
            }
        };
        let mut moved = false;
        if moves {
            match self.arena.remap(&mut from, &mut to) {
                Ok(()) => moved = true,
                Err((errno, usable)) => {
                    if errno == Errno::NOMEM {
                        self.moves_off.store(true, Ordering::Relaxed);
                    }
                    if !usable {
                        self.retire(to);
                        (to, clean) = match self.carve(layout, false) {
                            Ok(other) => other,
                            Err(error) => {
                                self.arena.put(from.page(), word);
                                return Err(error.into());
                            }
                        };
                    }
                }
            }
        }
        if moved {
            let mut central = self.zone_of(to.page());
            central.moved += 1;
            self.arena.put(to.page(), Word::live(to.pages(), size).moved());
            drop(central);
            let mut central = self.zone_of(from.page());
            if word.is_moved() {
                central.moved -= 1;
            }
            self.give_fresh(&mut central, from);
            drop(central);
            self.zero_rest(&mut to, word, size, fill, clean);
            return Ok(into_pointer(to));
        }
        self.copies.fetch_add(1, Ordering::Relaxed);
        // Whoever asked how much he could use may have used all of it.
        self.arena.copy(&from, &mut to, word.usable_bytes().min(size));
        self.zero_rest(&mut to, word, size, fill, clean);
        if word.is_moved() {
            self.free_moved(from);
        } else {
            self.keep(from);
        }
        Ok(into_pointer(to))
    }

    /// Zeroes what was not asked for before, in a run to which the pages of an area came; above them it is as it was carved.
    pub(super) fn zero_rest(&self, to: &mut Run, word: Word, size: usize, fill: Fill, clean: bool) {
        if fill == Fill::Zero {
            let end = if clean { size.min(word.usable_bytes()) } else { size };
            self.arena.zero(to, word.requested_bytes(), end);
        }
    }

    /// Frees a run that is a mapping of its own.
    #[cold]
    pub(super) fn free_moved(&self, run: Run) {
        let mut central = self.zone_of(run.page());
        self.give_fresh(&mut central, run);
        central.moved -= 1;
    }

    /// Maps fresh pages over a run; its blocks are clean then, and what is left at its ends dirty.
    fn give_fresh(&self, central: &mut Central<O>, mut run: Run) {
        let range = run.range();
        let renewed = self.arena.renew(&mut run).is_ok();
        central.add_dirty(run);
        if renewed {
            central.launder(range);
        } else {
            central.refused += 1;
        }
    }

    /// Gives a run to nobody any more.
    #[cold]
    pub(super) fn retire(&self, run: Run) {
        let mut central = self.zone_of(run.page());
        self.arena.put(run.page(), Word::free(run.pages()));
        central.retired += run.pages();
    }
}

/// What the pages `[from, end)` are, if nobody has any of them; how many pieces.
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
        // Clean ones in whole blocks.
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
