//! Objects for magazines, many under one lock.

use super::class::Class;
use super::{Store, Taken};
use crate::bitmap::{self, BIT_BYTES, PAGE_BITS};
use crate::config::Config;
use crate::engine::Want;
use crate::error::FreeError;
use crate::offset::Offset;
use core::ops::Range;
use va_base::Va;

impl<C: Config> Store<C> {
    /// Takes objects of a size from populated pages, by the engine: as many as fit, up to the length of `into`. Writes
    /// their addresses and returns their number. `slots` is their class if they could have come from a slab.
    pub(crate) fn take_batch(&mut self, want: Want, slots: Option<Class>, into: &mut [u64]) -> usize {
        for (count, place) in into.iter_mut().enumerate() {
            let Some(taken) = self.take_any(want, true) else { return count };
            if let Some(class) = slots {
                self.note_single(class, taken);
            }
            *place = self.chunk(taken.row).base + u64::from(taken.at * BIT_BYTES);
            self.count_moved(1, want);
        }
        into.len()
    }

    /// Counts objects that leave for a magazine.
    pub(super) fn count_moved(&mut self, count: u64, want: Want) {
        let bytes = want.bits * BIT_BYTES;
        self.totals.to_magazines = self.totals.to_magazines.wrapping_add(count);
        self.totals.live_max = self.totals.live_max.max(self.totals.live());
        self.totals.size_max = self.totals.size_max.max(bytes);
        self.totals.size_min = self.totals.size_min.min(bytes);
    }

    /// Frees objects that come from a magazine, at their addresses. Returns whether the balance is due.
    ///
    /// # Errors
    /// An object is not allocated: MC1 is broken.
    pub(crate) fn put_batch(&mut self, objects: &[u64]) -> Result<bool, FreeError> {
        let base = self.geometry.base();
        let mut balance = false;
        for &at in objects {
            balance |= self.free(Offset::between(base, at))?.balance;
            self.totals.frees -= 1;
            self.totals.to_magazines = self.totals.to_magazines.wrapping_sub(1);
        }
        Ok(balance)
    }

    /// Returns the address at which the bitmap of the chunk of an address begins, if it is in one.
    pub(crate) fn base_at(&self, at: u64) -> Option<Va> {
        self.place_of(at).map(|(row, _)| Va::new(self.chunk(row).base))
    }

    /// Returns whether an object of so many bytes begins at an address, or a slot of that size is in use. A place that a
    /// request waits for pages at is no object yet.
    pub(crate) fn is_allocated(&mut self, at: u64, bytes: u32) -> bool {
        let Some((row, off)) = self.place_of(at) else { return false };
        match self.slot_at(row, off) {
            Some(slot) => slot == bytes,
            None => {
                let bit = off / BIT_BYTES;
                off.is_multiple_of(BIT_BYTES)
                    && self.object_at(row, bit) == bytes / BIT_BYTES
                    && !self.is_taking(row, bit)
            }
        }
    }

    /// Returns the pages of a taken object.
    pub(crate) fn pages_of(&mut self, taken: Taken) -> Range<u32> {
        let end = taken.at + self.object_at(taken.row, taken.at);
        taken.at / PAGE_BITS..end.div_ceil(PAGE_BITS)
    }

    /// Returns the bits of the object that begins at a bit, or 0.
    fn object_at(&mut self, row: u32, bit: u32) -> u32 {
        let hidden = self.chunk(row).hidden_after;
        let (view, marks) = self.view(row);
        match bitmap::is_set(marks, bit) {
            true => bitmap::next_clear_or_marked(view.map, marks, bit + 1, view.bits() - hidden) - bit,
            false => 0,
        }
    }
}
