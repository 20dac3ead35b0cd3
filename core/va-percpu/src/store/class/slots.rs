//! Slots are taken and freed here, and slabs that become full or empty are handled.

use super::super::{Freed, Store, Taken};
use super::{ALL_FREE, Class, GRANULE_BYTES, RECIPROCALS, SLOTS, Slab};
use crate::bitmap::BIT_BYTES;
use crate::chunk::NIL;
use crate::config::Config;
use crate::engine::Want;
use crate::error::FreeError;
use crate::offset::Offset;
use crate::rows::Row;
use va_base::Va;

/// A slot that was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Slot {
    pub(crate) base: Va,
    pub(crate) off: u32,
}

impl<C: Config> Store<C> {
    /// Takes a slot of a slab that has room, if there is one.
    #[inline(always)]
    pub(crate) fn take_slot(&mut self, class: Class, want: Want) -> Option<Slot> {
        let slab = self.classes.first[class.at()];
        if slab == NIL {
            return None;
        }
        let (row, granule) = self.classes.split(slab);
        let of = self.classes.slab_mut(slab);
        let (before, next) = (of.free, of.next);
        of.free = before & before.wrapping_sub(1);
        if of.free == 0 {
            self.classes.first[class.at()] = next;
            if next != NIL {
                self.classes.slab_mut(next).prev = NIL;
            }
        }
        let chunk = self.chunk_mut(row);
        let base = Va::new(chunk.base);
        if before == ALL_FREE {
            chunk.idle -= 1;
            self.classes.idle[class.at()] = NIL;
        }
        self.classes.used[class.at()] += 1;
        self.totals.count(want);
        Some(Slot { base, off: granule * GRANULE_BYTES + before.trailing_zeros() * class.0 * BIT_BYTES })
    }

    /// Takes slots for a magazine: as many as slabs have, up to the length of `into`. Writes their addresses and
    /// returns their number.
    pub(crate) fn take_slots(&mut self, class: Class, into: &mut [u64]) -> usize {
        let bytes = u64::from(class.0 * BIT_BYTES);
        let mut count = 0;
        while count < into.len() {
            let slab = self.classes.first[class.at()];
            if slab == NIL {
                break;
            }
            let (row, granule) = self.classes.split(slab);
            let start = self.chunk(row).base + u64::from(granule * GRANULE_BYTES);
            let before = self.classes.slab(slab).free;
            let mut free = before;
            for place in &mut into[count..] {
                if free == 0 {
                    break;
                }
                *place = start + u64::from(free.trailing_zeros()) * bytes;
                free &= free - 1;
            }
            count += (before ^ free).count_ones() as usize;
            self.classes.slab_mut(slab).free = free;
            if free == 0 {
                self.classes.unlink(class, slab);
            }
            if before == ALL_FREE {
                self.chunk_mut(row).idle -= 1;
                self.classes.idle[class.at()] = NIL;
            }
        }
        self.classes.used[class.at()] += count as u64;
        self.count_moved(count as u64, Want { bits: class.0, align: 1 });
        count
    }

    /// Takes slots as [`take_slots`](Self::take_slots), and creates slabs for more of them, in populated pages and
    /// where there is a row for slabs.
    pub(crate) fn take_slots_of_new(&mut self, class: Class, want: Want, into: &mut [u64]) -> usize {
        let mut count = self.take_slots(class, into);
        while count < into.len() && self.wants_slab(class, want) {
            let Some(taken) = self.take_slab(class, true) else { break };
            if self.slab_row_wanted(taken.row).is_some() {
                let _bits = self.free_uncounted(taken.row, taken.at);
                break;
            }
            // No slab is freed for it: none of the class had room.
            if self.begin_slab(class, taken).is_none() {
                break;
            }
            count += self.take_slots(class, &mut into[count..]);
        }
        count
    }

    /// Returns the bytes of the slot that begins at a byte of a chunk and is in use, or 0. `None` if that byte is in no
    /// slab.
    pub(crate) fn slot_at(&mut self, row: u32, off: u32) -> Option<u32> {
        if !self.chunk(row).sliced {
            return None;
        }
        let (class, granule, of) = self.classes.find(row, off / GRANULE_BYTES)?;
        let within = off - granule * GRANULE_BYTES;
        let (slot, bytes) = (within / (class.0 * BIT_BYTES), class.0 * BIT_BYTES);
        let used = within.is_multiple_of(bytes) && of.free & (1 << slot) == 0;
        Some(if used { bytes } else { 0 })
    }

    /// Takes space for a slab, as an object without a request; with `populated`, only where pages are populated.
    pub(crate) fn take_slab(&mut self, class: Class, populated: bool) -> Option<Taken> {
        self.take_any(class.slab(), populated)
    }

    /// Returns the length of the row to allocate before a slab can be created in a chunk, if the chunk has none.
    pub(crate) fn slab_row_wanted(&self, row: u32) -> Option<u32> {
        (!self.classes.holds(row)).then(|| self.classes.granules())
    }

    /// Uses a row for the slabs of a chunk that has none and holds an object. The caller holds `grow`, as all do that
    /// supply rows.
    pub(crate) fn put_slab_row(&mut self, row: u32, memory: Row<Slab>) {
        let _none = self.classes.put(row, memory);
    }

    /// Creates a slab in the space taken, all of whose pages are populated. Returns whether the balance is due. `None`
    /// if its chunk has no row for slabs, or the slab's number would be too high: then the space is freed.
    pub(crate) fn begin_slab(&mut self, class: Class, taken: Taken) -> Option<bool> {
        if !self.classes.holds(taken.row) {
            let _bits = self.free_uncounted(taken.row, taken.at);
            return None;
        }
        // The row is empty, as it came from the platform: a slab clears its granules at its end.
        self.chunk_mut(taken.row).sliced = true;
        let Some(slab) = self.classes.begin(class, taken.row, taken.at / SLOTS) else {
            let _bits = self.free_uncounted(taken.row, taken.at);
            return None;
        };
        Some(self.cache_idle(class, slab))
    }

    /// Caches a slab that is in its list and has no slot in use. The one cached before, which another thread created
    /// meanwhile, is freed. Returns whether the balance is due.
    #[inline(always)]
    fn cache_idle(&mut self, class: Class, slab: u32) -> bool {
        let other = core::mem::replace(&mut self.classes.idle[class.at()], slab);
        let (row, _) = self.classes.split(slab);
        self.chunk_mut(row).idle += 1;
        other != NIL && self.end_idle(class, other)
    }

    #[cold]
    #[inline(never)]
    fn end_idle(&mut self, class: Class, slab: u32) -> bool {
        let (row, _) = self.classes.split(slab);
        self.chunk_mut(row).idle -= 1;
        self.end_slab(class, slab)
    }

    /// Frees the space of a slab without a slot in use. Returns whether the balance is due.
    fn end_slab(&mut self, class: Class, slab: u32) -> bool {
        self.classes.end(class, slab);
        let (row, granule) = self.classes.split(slab);
        let _bits = self.free_uncounted(row, granule * SLOTS);
        self.after_free(row)
    }

    /// Frees every slab without a slot in use. Returns whether the balance is due; `None` if there was no such slab.
    pub(crate) fn release_idle(&mut self) -> Option<bool> {
        let mut due = None;
        for class in 1..=C::CLASS_WORDS {
            let class = Class(class);
            let slab = core::mem::replace(&mut self.classes.idle[class.at()], NIL);
            if slab != NIL {
                due = Some(self.end_idle(class, slab) || due == Some(true));
            }
        }
        due
    }

    /// Frees the object that starts at byte `off` of a chunk, if one does. `None` if that byte is in no slab.
    #[inline(always)]
    pub(crate) fn free_slot(
        &mut self,
        offset: Offset,
        row: u32,
        off: u32,
    ) -> Option<Result<Freed, FreeError>> {
        if !self.chunk(row).sliced {
            return None;
        }
        let (class, granule, of) = self.classes.find(row, off / GRANULE_BYTES)?;
        let within = off - granule * GRANULE_BYTES;
        let slot = (within / BIT_BYTES * RECIPROCALS[class.at()]) >> 16;
        let (before, bit) = (of.free, 1 << (slot % SLOTS));
        let start = slot * class.0 * BIT_BYTES;
        if before & bit != 0 || start != within {
            return Some(Err(self.no_slot(offset, row, granule * GRANULE_BYTES + start, before & bit == 0)));
        }
        let after = before | bit;
        of.free = after;
        self.classes.used[class.at()] -= 1;
        self.totals.frees += 1;
        let mut balance = false;
        if before == 0 || after == ALL_FREE {
            balance = self.ran(class, row << self.classes.shift | granule, after);
        }
        let base = Va::new(offset.at(self.geometry.base()).get().wrapping_sub(off.into()));
        Some(Ok(Freed { base, off, balance }))
    }

    /// Links a slab that was full, or handles one without a slot in use any more. Returns whether the balance is due.
    fn ran(&mut self, class: Class, slab: u32, free: u64) -> bool {
        if free == ALL_FREE {
            return self.ran_empty(class, slab);
        }
        self.classes.link(class, slab);
        self.note_link()
    }

    #[cold]
    fn no_slot(&self, offset: Offset, row: u32, start: u32, lives: bool) -> FreeError {
        let start = Offset::between(self.geometry.base(), self.chunk(row).base + u64::from(start));
        FreeError::NoObject { offset, inside: lives.then_some(start) }
    }

    /// Caches or frees a slab without a slot in use. Returns whether the balance is due.
    fn ran_empty(&mut self, class: Class, slab: u32) -> bool {
        let of = self.classes.slab(slab);
        if (of.prev, of.next) != (NIL, NIL) {
            return self.end_slab(class, slab);
        }
        let due = self.cache_idle(class, slab);
        let (row, _) = self.classes.split(slab);
        let chunk = self.chunk(row);
        // Without such slabs the chunk would be wholly free, and another one is wholly free.
        let whole = chunk.live == chunk.idle && !chunk.immutable;
        due || whole && self.lists.first[self.slots.free as usize] != NIL
    }
}
