//! Checks of the store against its bits: PC1 to PC8, PF1, PL1, PN1, PT1 and PW1, and those of the engine.

use super::{FIRST, RESERVED, Store};
use crate::bitmap::{self, BIT_BYTES, PAGE_BITS};
use crate::chunk::{NIL, NO_SLOT, State};
use crate::config::Config;
use crate::engine::HintEngine;
use crate::fits::Fits;
use va_base::{InvariantViolation, PAGE_SIZE, Va};

impl<C: Config> Store<C> {
    /// Checks everything, O(bits). No thread is between a take and its end.
    pub(crate) fn validate(&mut self) -> Result<(), InvariantViolation> {
        self.settle();
        let rows = self.begun;
        self.words.validate(rows)?;
        self.blocks.validate(rows)?;
        self.classes.validate(if C::CLASS_WORDS > 0 { self.room } else { 0 })?;
        self.chunks.validate(self.room)?;
        let (mut spare, mut live, mut grains, mut leaving) = (0, 0, self.grains(), 0);
        let (mut free, mut whole) = (0, 0);
        for row in self.rows() {
            let chunk = *self.chunk(row);
            if chunk.state == State::Unused {
                continue;
            }
            live += u64::from(chunk.live);
            if row != RESERVED && !chunk.isolated {
                spare += i64::from(chunk.empty);
            }
            let found_at = |at: u64| self.lookup.find(at >> self.grain_shift);
            let (base, found) = (chunk.base, found_at(chunk.base));
            if chunk.state == State::Leaving {
                let whole = chunk.live == 0 && chunk.free_bits == self.geometry.unit_bits();
                let hidden = whole && chunk.slot == NO_SLOT && found != Some(row);
                InvariantViolation::check(hidden, "PC7", Va::new(base), 0, chunk.live.into())?;
                self.validate_chunk(row)?;
                leaving += 1;
                continue;
            }
            // Both sections of the first chunk are found as one.
            let known = found == Some(if row == RESERVED { FIRST } else { row });
            let last = found_at(base + u64::from(chunk.pages) * PAGE_SIZE - 1);
            InvariantViolation::check(
                known && last == found,
                "PL1",
                Va::new(base),
                row.into(),
                found.map_or(u64::MAX, u64::from),
            )?;
            if row > RESERVED {
                grains += self.grains();
            }
            self.validate_chunk(row)?;
            if row != RESERVED {
                free += u64::from(chunk.free_bits);
                whole += self.whole_pages(row);
            }
        }
        let at = self.geometry.base();
        InvariantViolation::check(
            self.lookup.used() == grains,
            "PL1",
            at,
            grains.into(),
            self.lookup.used().into(),
        )?;
        InvariantViolation::check(
            spare == self.totals.spare_pages,
            "PC6",
            at,
            spare as u64,
            self.totals.spare_pages as u64,
        )?;
        InvariantViolation::check(free == self.totals.free_bits, "PC8", at, free, self.totals.free_bits)?;
        InvariantViolation::check(
            whole == self.totals.whole_pages,
            "PC8",
            at,
            whole,
            self.totals.whole_pages,
        )?;
        let (slabs, used) = self.classes.counts();
        // CC4 where there are slabs.
        let (rule, live) =
            (if slabs > 0 { "CC4" } else { "PC1" }, live.wrapping_sub(slabs).wrapping_add(used));
        InvariantViolation::check(live == self.totals.live(), rule, at, live, self.totals.live())?;
        if C::CLASS_WORDS > 0 {
            self.validate_classes()?;
        }
        if C::Engine::BY_FITS {
            let rows = self.begun;
            self.forest.validate(|row| if row < rows { self.forest_fits(row) } else { Fits::NONE })?;
            self.validate_memos()?;
        }
        self.validate_lists(leaving)
    }

    /// Returns the pages of a chunk that are wholly free.
    fn whole_pages(&mut self, row: u32) -> u64 {
        let (view, _) = self.view(row);
        (0..view.pages).filter(|&page| C::Engine::is_free(&view, page)).count() as u64
    }

    fn validate_chunk(&mut self, row: u32) -> Result<(), InvariantViolation> {
        let chunk = *self.chunk(row);
        let (view, marks) = self.view(row);
        let place = |bit: u32| Va::new(chunk.base.wrapping_add(u64::from(bit) * u64::from(BIT_BYTES)));
        let unless = |holds, rule, bit, want: u32, got: u32| {
            InvariantViolation::check(holds, rule, place(bit), want.into(), got.into())
        };
        C::Engine::validate(&view).map_err(|wrong| InvariantViolation {
            rule: wrong.rule,
            at: place(wrong.at),
            expected: wrong.want,
            actual: wrong.got,
        })?;

        let bits = view.bits();
        let (mut free, mut live, mut empty, mut populated) = (0, 0, 0, 0);
        for bit in 0..bits {
            let used = bitmap::is_set(view.map, bit);
            free += u32::from(!used);
            if bitmap::is_set(marks, bit) {
                live += 1;
                unless(used, "PC1", bit, 1, 0)?;
            } else if used && bit >= chunk.hidden_before && bit < bits - chunk.hidden_after {
                // A bit that begins no object continues one.
                let before = bit > chunk.hidden_before && bitmap::is_set(view.map, bit - 1);
                unless(before, "PC1", bit, 1, 0)?;
            }
            let hidden = bit < chunk.hidden_before || bit >= bits - chunk.hidden_after;
            unless(!hidden || used, "PC3", bit, 1, 0)?;
            let there = bitmap::is_set(view.populated, bit / PAGE_BITS);
            unless(there || !used, "PC5", bit, 1, 0)?;
        }
        for page in 0..chunk.pages {
            let there = bitmap::is_set(view.populated, page);
            let start = page * PAGE_BITS;
            let whole = bitmap::next_set(view.map, start, start + PAGE_BITS) == start + PAGE_BITS;
            populated += u32::from(there);
            empty += i32::from(there && whole);
            unless(C::Engine::is_free(&view, page) == whole, "PC4", start, whole.into(), 0)?;
        }
        unless(live == chunk.live, "PC1", 0, live, chunk.live)?;
        unless(free == chunk.free_bits, "PC3", 0, free, chunk.free_bits)?;
        unless(empty == chunk.empty, "PC4", 0, empty as u32, chunk.empty as u32)?;
        unless(populated == chunk.populated, "PC5", 0, populated, chunk.populated)
    }

    /// Checks PN1: all that fits, bit by bit, is above the marks.
    fn validate_memos(&mut self) -> Result<(), InvariantViolation> {
        for memo in 0..super::memos::MEMOS {
            let Some((want, mark_row, mark_page)) = self.memos.get(memo) else { continue };
            for row in (0..=mark_row.min(self.begun - 1)).filter(|&row| row != RESERVED) {
                if !self.in_reach(row) {
                    continue;
                }
                let (view, _) = self.view(row);
                let end = if row == mark_row { view.bits().min(mark_page * PAGE_BITS) } else { view.bits() };
                let mut at = 0;
                while at < end {
                    at = bitmap::next_clear(view.map, at, end).next_multiple_of(want.align);
                    let stop = (at + want.bits).min(view.bits());
                    let used = bitmap::next_set(view.map, at, stop);
                    if at < end && used == at + want.bits {
                        let place = Va::new(u64::from(row) << 32 | u64::from(at));
                        return InvariantViolation::check(
                            false,
                            "PN1",
                            place,
                            mark_page.into(),
                            (at / PAGE_BITS).into(),
                        );
                    }
                    at = used + 1;
                }
            }
        }
        Ok(())
    }

    fn validate_lists(&self, leaving: u32) -> Result<(), InvariantViolation> {
        // Leaving chunks are in no list.
        let mut seen = leaving;
        for slot in 0..=self.slots.to_depopulate {
            let (mut row, mut before) = (self.lists.first[slot as usize], NIL);
            while row != NIL {
                let chunk = self.chunk(row);
                let (own, at) = (self.slot_of(row), Va::new(chunk.base));
                let parked = C::RELEGATE && !C::Engine::BY_FITS && slot == 0 && own < 3;
                let right = match chunk.isolated {
                    true => slot == self.slots.sidelined || slot == self.slots.to_depopulate,
                    false => slot == own || parked,
                };
                InvariantViolation::check(right && chunk.slot == slot, "PC2", at, own.into(), slot.into())?;
                // A chunk that comes a second time has another before it, so no list is walked without end.
                InvariantViolation::check(chunk.prev == before, "PC2", at, before.into(), chunk.prev.into())?;
                (before, row) = (row, chunk.next);
                seen += 1;
            }
            let last = self.lists.last[slot as usize];
            InvariantViolation::check(
                last == before,
                "PC2",
                self.geometry.base(),
                before.into(),
                last.into(),
            )?;
        }
        // The first chunk counts as one, by its dynamic section.
        let chunks = self.totals.chunks;
        InvariantViolation::check(seen == chunks, "PC2", self.geometry.base(), chunks.into(), seen.into())
    }
}
