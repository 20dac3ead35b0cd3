//! Checks of the cache against the store: CC1 to CC4.

use super::super::Store;
use super::{ALL_FREE, CLASSES, Class, GRANULE_BYTES, SLOTS, Slab};
use crate::bitmap;
use crate::chunk::NIL;
use crate::config::Config;
use va_base::{InvariantViolation, Record, Va};

impl<C: Config> Store<C> {
    /// Checks the slabs of every chunk, and the lists, O(granules).
    pub(crate) fn validate_classes(&mut self) -> Result<(), InvariantViolation> {
        let (mut slabs, mut used, mut room) = (0u64, 0u64, [0u64; CLASSES]);
        for row in self.rows() {
            if self.chunk(row).is_in_use() {
                self.validate_slabs(row, &mut slabs, &mut used, &mut room)?;
            }
        }
        let at = self.geometry.base();
        for (class, room) in room.into_iter().enumerate() {
            let (mut slab, mut prev, mut seen) = (self.classes.first[class], NIL, 0);
            while slab != NIL && seen <= room {
                let of = *self.classes.slab(slab);
                let right = usize::from(of.class) == class && of.back == 0 && of.free != 0 && of.prev == prev;
                InvariantViolation::check(right, "CC2", at, class as u64, of.class.into())?;
                (prev, slab, seen) = (slab, of.next, seen + 1);
            }
            InvariantViolation::check(seen == room, "CC2", at, room, seen)?;
        }
        let (counted, counted_used) = self.classes.counts();
        InvariantViolation::check(counted == slabs, "CC4", at, slabs, counted)?;
        InvariantViolation::check(counted_used == used, "CC4", at, used, counted_used)
    }

    fn validate_slabs(
        &mut self,
        row: u32,
        slabs: &mut u64,
        used: &mut u64,
        room: &mut [u64; CLASSES],
    ) -> Result<(), InvariantViolation> {
        let (base, mut idle) = (self.chunk(row).base, 0);
        let sliced = self.chunk(row).sliced;
        let granules = if sliced { self.geometry.unit_bytes() / GRANULE_BYTES } else { 0 };
        let mut granule = 0;
        while granule < granules {
            let at = Va::new(base + u64::from(granule * GRANULE_BYTES));
            let of = *self.classes.rows.at(row, granule);
            if of.class == 0 {
                InvariantViolation::check(
                    of == Slab { free: of.free, ..Slab::EMPTY },
                    "CC1",
                    at,
                    0,
                    of.back.into(),
                )?;
                granule += 1;
                continue;
            }
            let class = Class(of.class.into());
            let (bit, words) = (granule * SLOTS, class.0);
            let inside = of.back == 0 && granule + words <= granules && words <= C::CLASS_WORDS;
            InvariantViolation::check(inside, "CC1", at, 0, of.back.into())?;
            for back in 1..words {
                let other = *self.classes.rows.at(row, granule + back);
                let right = u32::from(other.back) == back && other.class == of.class;
                InvariantViolation::check(right, "CC1", at, back.into(), other.back.into())?;
            }
            // Each slab is an object of the store, of exactly this size.
            let (view, marks) = self.view(row);
            let end = bit + words * SLOTS;
            let whole = bitmap::is_set(marks, bit)
                && bitmap::next_clear_or_marked(view.map, marks, bit + 1, end) == end
                && (end == view.bits()
                    || !bitmap::is_set(view.map, end)
                    || bitmap::is_set(marks, end)
                    || self.hides(row, end));
            InvariantViolation::check(whole, "CC1", at, end.into(), bit.into())?;
            let slab = row << self.classes.shift | granule;
            let is_idle = self.classes.idle[class.at()] == slab;
            InvariantViolation::check(is_idle == (of.free == ALL_FREE), "CC3", at, 0, u64::from(is_idle))?;
            idle += u32::from(is_idle);
            *slabs += 1;
            *used += u64::from(SLOTS - of.free.count_ones());
            room[class.at()] += u64::from(of.free != 0);
            granule += words;
        }
        let counted = self.chunk(row).idle;
        InvariantViolation::check(counted == idle, "CC3", Va::new(base), idle.into(), counted.into())
    }

    /// Returns true if a bit is after the usable section of a chunk.
    fn hides(&self, row: u32, bit: u32) -> bool {
        let chunk = self.chunk(row);
        bit >= chunk.pages * bitmap::PAGE_BITS - chunk.hidden_after
    }
}
