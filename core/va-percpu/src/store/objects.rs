//! Objects are taken and freed here; this updates the marks, the list and the forest entry of their chunk.

use super::unsettled::Unsettled;
use super::{FIRST, Freed, Miss, RESERVED, Store, Taken};
use crate::bitmap::{self, BIT_BYTES, PAGE_BITS, WORD_BITS, words_for};
use crate::chunk::NIL;
use crate::config::Config;
use crate::engine::{Fit, HintEngine, Want};
use crate::error::FreeError;
use crate::fits::Fits;
use crate::offset::Offset;
use va_base::{PAGE_SIZE, Va};

impl<C: Config> Store<C> {
    /// Takes room for an object and counts it as allocated.
    #[cfg(test)]
    #[cfg(not(loom))]
    pub(crate) fn take(&mut self, want: Want, populated: bool) -> Option<Taken> {
        let taken = self.take_any(want, populated)?;
        self.totals.count(want);
        Some(taken)
    }

    /// Takes room for an object in any chunk but the reserved one. It is counted only in its chunk: the caller that
    /// allocates it counts it.
    #[inline]
    pub(crate) fn take_any(&mut self, want: Want, populated: bool) -> Option<Taken> {
        let slot = if C::Engine::BY_FITS {
            if let Some(taken) = self.take_lowest(want, populated) {
                return Some(taken);
            }
            self.slots.sidelined
        } else {
            self.slots.of(want.bits * BIT_BYTES)
        };
        for slot in slot..=self.slots.free {
            let mut row = self.lists.first[slot as usize];
            while row != NIL {
                let next = self.chunks.one(row).next;
                let tried = match C::Engine::may_hold(&self.chunks.one(row).head, want) {
                    true => self.take_in(row, want, populated),
                    false => Err(Miss::Nowhere),
                };
                match tried {
                    Ok(taken) => {
                        self.reintegrate(row);
                        return Some(taken);
                    }
                    Err(Miss::Nowhere) if C::RELEGATE && slot < 3 => self.relegate(row),
                    Err(_) => {}
                }
                row = next;
            }
        }
        None
    }

    /// Finds the lowest room in reach: in chunks neither wholly free nor isolated.
    #[inline]
    pub(super) fn take_lowest(&mut self, want: Want, populated: bool) -> Option<Taken> {
        if !populated && let Some((row, page)) = self.memos.find(want) {
            // The mark may be of a chunk that is out of reach by now.
            if self.in_reach(row) {
                let (mut view, marks) = self.view(row);
                if let Fit::At { at, pages } = C::Engine::take_near(&mut view, page, want) {
                    bitmap::set(marks, at, at + 1);
                    let missing = view.misses_pages(at, want.bits);
                    self.note_take(row, want, pages);
                    if at / PAGE_BITS != page {
                        self.memos.note(want, row, at / PAGE_BITS);
                    }
                    // The chunk stays in reach, and its head is unchanged.
                    self.leave_unsettled(row, false);
                    return Some(Taken { row, at, missing, broke: pages > 0 });
                }
            }
        }
        if self.unsettled.more {
            self.settle();
        }
        let lane = want.align.trailing_zeros() as usize;
        let mut from = 0;
        while let Some(row) = self.forest.lowest(from, want.bits, lane) {
            if let Ok(taken) = self.take_in(row, want, populated) {
                if !populated {
                    self.memos.note(want, row, taken.at / PAGE_BITS);
                }
                return Some(taken);
            }
            if self.unsettled.is_empty() {
                // It fits, but not in populated pages.
                from = row + 1;
            } else {
                // It fitted before a take there.
                self.settle();
            }
        }
        None
    }

    /// Takes the bits from an address on, if all of them are free.
    pub(crate) fn take_exact(&mut self, at: u64, bits: u32) -> Option<Taken> {
        let (row, off) = self.place_of(at).filter(|(_, off)| off.is_multiple_of(BIT_BYTES))?;
        let (bit, end) = (off / BIT_BYTES, off / BIT_BYTES + bits);
        let before = self.before(row);
        let (mut view, marks) = self.view(row);
        if end > view.bits() || bitmap::next_set(view.map, bit, end) < end {
            return None;
        }
        let pages = C::Engine::take_at(&mut view, bit, bits);
        bitmap::set(marks, bit, bit + 1);
        let missing = view.misses_pages(bit, bits);
        self.note_take(row, Want { bits, align: 1 }, pages);
        self.moved(row, before, false);
        self.reintegrate(row);
        Some(Taken { row, at: bit, missing, broke: pages > 0 })
    }

    /// Takes room in the reserved section.
    pub(crate) fn take_reserved(&mut self, want: Want, populated: bool) -> Option<Taken> {
        self.take_in(RESERVED, want, populated).ok()
    }

    /// Returns true if there is a reserved section.
    pub(crate) fn has_reserved(&self) -> bool {
        self.chunk(RESERVED).is_in_use()
    }

    #[inline]
    pub(super) fn take_in(&mut self, row: u32, want: Want, populated: bool) -> Result<Taken, Miss> {
        let before = self.before(row);
        let (mut view, marks) = self.view(row);
        match C::Engine::take(&mut view, want, populated) {
            Fit::At { at, pages } => {
                bitmap::set(marks, at, at + 1);
                let missing = !populated && view.misses_pages(at, want.bits);
                self.note_take(row, want, pages);
                self.moved(row, before, false);
                Ok(Taken { row, at, missing, broke: pages > 0 })
            }
            Fit::Nowhere => Err(Miss::Nowhere),
            Fit::Missed => Err(Miss::There),
        }
    }

    /// Records a take in its chunk.
    #[inline]
    pub(super) fn note_take(&mut self, row: u32, want: Want, pages: u32) {
        let chunk = self.chunks.one_mut(row);
        chunk.live += 1;
        chunk.largest_bits = chunk.largest_bits.max(want.bits);
        self.count_taken(row, want.bits, pages);
    }

    /// Returns the measure that puts a chunk where it is, before it changes. For engines with exact heads that is its
    /// list, in or out of reach.
    #[inline]
    pub(super) fn before(&self, row: u32) -> u32 {
        if C::Engine::BY_FITS { self.chunks.one(row).slot.into() } else { self.bits_of(row) }
    }

    /// Puts a changed chunk into the right list, given its measure `before`. `freed` is true if bits of it were freed.
    #[inline]
    pub(super) fn moved(&mut self, row: u32, before: u32, freed: bool) {
        if !C::Engine::BY_FITS {
            if self.bits_of(row) != before {
                self.relocate(row, self.slots.of(before * BIT_BYTES));
            }
            return;
        }
        let old = before as u8;
        let whole = self.chunks.one(row).free_bits == self.geometry.unit_bits();
        if (old == self.slots.free) == whole {
            return self.leave_unsettled(row, freed);
        }
        // It came into reach, or went out of it. The list of wholly free chunks has the change at once, the forest
        // before the next search.
        self.leave_unsettled(row, true);
        self.relocate(row, old);
        self.memos.lower(row, 0);
    }

    /// Leaves a chunk with a head that lacks changes. With `more`, the forest may show less than what fits.
    #[inline]
    pub(super) fn leave_unsettled(&mut self, row: u32, more: bool) {
        if !self.unsettled.add(row) {
            self.settle();
            self.unsettled.add(row);
        }
        self.unsettled.more |= more;
    }

    /// Updates every head, list and the forest.
    #[inline]
    pub(crate) fn settle(&mut self) {
        let unsettled = core::mem::replace(&mut self.unsettled, Unsettled::NONE);
        for &row in unsettled.rows() {
            C::Engine::settle(&mut self.view(row).0);
            // From its present list: its head may include all changes already.
            self.relocate(row, self.chunk(row).slot);
            self.update_forest(row);
        }
    }

    /// Returns true if a chunk is one that a search for the lowest fit looks into.
    #[inline]
    pub(super) fn in_reach(&self, row: u32) -> bool {
        let chunk = self.chunks.one(row);
        row != RESERVED
            && chunk.is_in_use()
            && !chunk.isolated
            && chunk.free_bits != self.geometry.unit_bits()
    }

    /// Returns the chunk and the byte of it at an address.
    #[inline(always)]
    pub(crate) fn place_of(&self, at: u64) -> Option<(u32, u32)> {
        let mut row = self.lookup.find(at >> self.grain_shift)?;
        let mut chunk = self.chunk(row);
        if row == FIRST && at < chunk.base + u64::from(chunk.hidden_before * BIT_BYTES) {
            row = RESERVED;
            chunk = self.chunk(row);
        }
        let off = at.checked_sub(chunk.base).filter(|_| chunk.is_in_use())?;
        let inside = off < u64::from(chunk.pages) * PAGE_SIZE;
        inside.then_some((row, off as u32))
    }

    /// Frees an object.
    #[inline(always)]
    pub(crate) fn free(&mut self, offset: Offset) -> Result<Freed, FreeError> {
        let at = offset.at(self.geometry.base()).get();
        let Some((row, off)) = self.place_of(at) else { return Err(FreeError::NoChunk { offset }) };
        if C::CLASS_WORDS > 0
            && let Some(freed) = self.free_slot(offset, row, off)
        {
            return freed;
        }
        let bit = off / BIT_BYTES;
        if !off.is_multiple_of(BIT_BYTES) || !self.is_marked(row, bit) || self.is_taking(row, bit) {
            return Err(self.no_object(offset, row, bit));
        }
        self.free_at(row, bit);
        let base = Va::new(self.chunk(row).base);
        Ok(Freed { base, off, balance: self.after_free(row) })
    }

    /// Returns true if the object that begins at a bit is one that no caller has yet.
    #[inline(always)]
    pub(super) fn is_taking(&self, row: u32, bit: u32) -> bool {
        self.taking != [None; 2] && self.taking.contains(&Some((row, bit)))
    }

    /// Returns true if an object begins at a bit.
    #[inline(always)]
    fn is_marked(&self, row: u32, bit: u32) -> bool {
        let marks = words_for(self.geometry.unit_bits());
        self.words.at(row, marks + bit / WORD_BITS).0 & (1 << (bit % WORD_BITS)) != 0
    }

    /// Returns the error for an offset at which no object begins.
    #[cold]
    fn no_object(&mut self, offset: Offset, row: u32, bit: u32) -> FreeError {
        let (view, marks) = self.view(row);
        let start = bitmap::after_last_set(marks, 0, bit + 1);
        // Inside: no bit is free from the start of an object up to here.
        let used = start > 0 && bitmap::next_clear(view.map, start - 1, bit + 1) == bit + 1;
        // Hidden bits after the section are used, too, and belong to no object.
        let chunk = self.chunk(row);
        let bits = chunk.pages * (PAGE_SIZE as u32 / BIT_BYTES);
        let inside = used && bit < bits - chunk.hidden_after && !self.is_taking(row, start - 1);
        let start = self.chunk(row).base + u64::from(start.saturating_sub(1) * BIT_BYTES);
        let inside = inside.then(|| Offset::between(self.geometry.base(), start));
        FreeError::NoObject { offset, inside }
    }

    /// Returns true if a free in a chunk makes the balance due.
    #[inline]
    pub(crate) fn after_free(&mut self, row: u32) -> bool {
        let (chunk, whole) = (self.chunks.one(row), self.geometry.unit_bits());
        if chunk.free_bits == whole && !chunk.isolated {
            // Another chunk is wholly free.
            self.lists.first[self.slots.free as usize] != self.lists.last[self.slots.free as usize]
                || self.lists.first[self.slots.free as usize] != row
        } else if self.should_reclaim(row) {
            self.isolate(row);
            true
        } else {
            false
        }
    }

    /// Frees the object that starts at a bit.
    #[inline]
    pub(crate) fn free_at(&mut self, row: u32, bit: u32) {
        let bits = self.free_uncounted(row, bit);
        self.totals.frees += 1;
        if bits > C::CLASS_WORDS {
            self.classes.larger = self.classes.larger.saturating_sub(bits.into());
        }
    }

    /// Frees an object that is counted only in its chunk, and returns its bits.
    pub(crate) fn free_uncounted(&mut self, row: u32, bit: u32) -> u32 {
        let before = self.before(row);
        // Hidden bits after the section are used and begin no object.
        let hidden = self.chunk(row).hidden_after;
        let (mut view, marks) = self.view(row);
        let end = bitmap::next_clear_or_marked(view.map, marks, bit + 1, view.bits() - hidden);
        bitmap::clear(marks, bit, bit + 1);
        let freed = C::Engine::free(&mut view, bit, end - bit);
        self.chunks.one_mut(row).live -= 1;
        self.count_freed(row, end - bit, freed.pages);
        if C::Engine::BY_FITS {
            self.memos.lower(row, freed.from_page);
        }
        self.moved(row, before, true);
        end - bit
    }

    /// Splits the object that starts at a bit into 64 objects of `bits` each; those in `free` are freed. They are
    /// counted only in their chunk.
    pub(crate) fn split_at(&mut self, row: u32, bit: u32, bits: u32, free: u64) {
        let before = self.before(row);
        let (mut view, marks) = self.view(row);
        let (mut pages, mut from_page) = (0, u32::MAX);
        let mut part = 0;
        while part < u64::BITS {
            let at = bit + part * bits;
            let run = (free >> part).trailing_ones();
            if run == 0 {
                bitmap::set(marks, at, at + 1);
                part += 1;
                continue;
            }
            bitmap::clear(marks, at, at + 1);
            let freed = C::Engine::free(&mut view, at, run * bits);
            (pages, from_page) = (pages + freed.pages, from_page.min(freed.from_page));
            part += run;
        }
        let chunk = self.chunks.one_mut(row);
        chunk.live += (!free).count_ones();
        chunk.live -= 1;
        self.count_freed(row, free.count_ones() * bits, pages);
        if C::Engine::BY_FITS {
            self.memos.lower(row, from_page);
        }
        self.moved(row, before, true);
    }

    /// Returns true if a chunk has so many unused populated pages that it should be depopulated.
    pub(super) fn should_reclaim(&self, row: u32) -> bool {
        let chunk = self.chunk(row);
        let (empty, spare) = (i64::from(chunk.empty), self.totals.spare_pages);
        !chunk.immutable
            && self.by_page
            && ((chunk.isolated && empty > 0)
                || (spare > i64::from(C::SPARE_PAGES_HIGH) + empty && empty >= i64::from(chunk.pages / 4)))
    }

    /// Returns the fits that the forest stores for a chunk.
    #[inline]
    pub(super) fn forest_fits(&self, row: u32) -> Fits {
        match self.in_reach(row) {
            true => C::Engine::fits(&self.chunks.one(row).head).alignments(),
            false => Fits::NONE,
        }
    }

    /// Updates the forest's entry for a chunk.
    #[inline]
    pub(super) fn update_forest(&mut self, row: u32) {
        if C::Engine::BY_FITS {
            let fits = self.forest_fits(row);
            self.forest.put(row, fits);
        }
    }
}
