//! Small objects from slabs: sixty-four slots of one size, and one word with a bit for each free slot.
//!
//! # Theory
//! Most objects of programs are counters of 4 to 64 bytes. To the engine below a slab is one object. Inside it no
//! search is needed: the lowest bit of a word is the slot to allocate. To free a slot is to set a bit, if it was not
//! set.
//!
//! ```text
//!   chunk     |..object..|== slab, 64 slots of 24 bytes ==|== slab, 64 of 8 ==|.......|      a slab of w words has w granules
//!   granules  |  -    -  | 6/0   6/1   6/2  6/3  6/4  6/5 |  2/0   2/1        |  -    |      class / distance to its first
//! ```
//!
//! A granule is 64 words of 4 bytes, so a slab of class `w` (slots of `w` words) is `w` granules, aligned to one. The
//! address of a slot gives its granule, and the granule's record gives the slab. Slabs with room are in a list of their
//! class, the one with the latest free at the front. A slab without a slot in use is freed to the engine, unless it is
//! the only one of its class with room. Otherwise a pair of calls in a loop would create and free it. The balance frees
//! those too.
//!
//! If no slab fits any more, the engine allocates objects one by one. So the cache causes no additional chunk except
//! for the bytes unused in slabs. Those are bounded: before a chunk is created, sparse slabs are dissolved (`dissolve`)
//! while more than a sixteenth of all bytes is in unused slots. And the balance dissolves those that keep a page in vain
//! (`sparse`).
//!
//! # Invariants
//! - **CC1 slab-known**  the granules of a slab name its class and their distance from its first. Each slab is a live
//!   object of the store, and no other granule names a class.
//! - **CC2 in-list**     the list of a class holds its slabs with room and nothing else.
//! - **CC3 idle**        a slab without a slot in use is the one that its class caches; each chunk counts its own.
//! - **CC4 counted**     the live objects are those of the chunks, minus the slabs, plus the slots in use.
//!
//! # Locking
//! None here: the lock `chunks` guards the cache.
//!
//! # Cost
//! O(1) for 63 of 64 requests and most frees; 24 bytes for each granule of 256 bytes.

mod dissolve;
mod slots;
mod sparse;
mod validate;

pub(crate) use dissolve::Dissolved;
pub(crate) use slots::Slot;
pub(crate) use sparse::Search;

use crate::bitmap::BIT_BYTES;
use crate::chunk::NIL;
use crate::config::CLASS_WORDS_MAX;
use crate::engine::Want;
use crate::rows::{Row, Rows};
use crate::table::Table;
use va_base::{InvariantViolation, Platform, Record};

/// Slots of a slab.
pub(crate) const SLOTS: u32 = u64::BITS;
/// Bytes of a granule.
pub(crate) const GRANULE_BYTES: u32 = SLOTS * BIT_BYTES;
/// Rows by class, as many as make the remainder of a class a mask.
const CLASSES: usize = (CLASS_WORDS_MAX as usize + 1).next_power_of_two();
/// No slot is in use.
const ALL_FREE: u64 = u64::MAX;

/// Factors that replace a division of a number of words below a slab's: multiply, then shift by 16.
const RECIPROCALS: [u32; CLASSES] = {
    let mut of = [0; CLASSES];
    let mut class = 1;
    while class < CLASSES {
        of[class] = (1 << 16) / class as u32 + 1;
        class += 1;
    }
    of
};

/// A size of slots, in words of 4 bytes: from 1 to [`CLASS_WORDS_MAX`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Class(u32);

impl Class {
    /// Returns the class whose slots fit the request, if there is one up to `max` words. Slabs are aligned to a
    /// granule, so a slot is aligned to any power of two that divides its size.
    #[inline(always)]
    pub(crate) fn of(want: Want, max: u32) -> Option<Self> {
        let words = want.bits.wrapping_add(want.align - 1) & !(want.align - 1);
        (words <= max).then_some(Self(words))
    }

    /// Returns the request for a slab of it to the engine.
    pub(crate) fn slab(self) -> Want {
        Want { bits: self.0 * SLOTS, align: SLOTS }
    }

    #[inline(always)]
    fn at(self) -> usize {
        self.0 as usize % CLASSES
    }
}

/// The record of a granule. That of a slab's first granule has all fields, the others have the class and the distance
/// to the first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Slab {
    /// 1 for each free slot.
    free: u64,
    next: u32,
    prev: u32,
    /// 0 if the granule is in no slab.
    class: u8,
    /// Granules from the first of the slab.
    back: u8,
}

impl Record for Slab {
    const EMPTY: Self = Self { free: 0, next: NIL, prev: NIL, class: 0, back: 0 };
}

/// The slabs of a class that may be created although there are many holes. Each time that an object of the class finds
/// no hole, their number becomes one more than twice the previous one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Room {
    slabs: u8,
    first: u8,
}

/// The pace at which objects of a class are allocated, beside larger ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Pace {
    /// The bits of larger objects when the last slab was wanted, or the last objects one by one began.
    since: Option<u64>,
    /// Objects that come one by one before the next slab.
    singles: u8,
}

/// The slabs of all chunks.
pub(crate) struct ClassCache {
    /// A record for each granule of each chunk.
    rows: Rows<Slab>,
    /// Bits of a granule's number in that of a slab, which is row and granule.
    shift: u32,
    /// The first slab with room of each class.
    first: [u32; CLASSES],
    /// The slab of each class without a slot in use.
    idle: [u32; CLASSES],
    /// Slabs of each class, and slots of them in use.
    slabs: [u64; CLASSES],
    used: [u64; CLASSES],
    /// The slabs of each class that may be created although there are many holes.
    room: [Room; CLASSES],
    /// Slabs that are created before the next search for sparse ones, and the initial value of this count.
    pause: (u8, u8),
    /// The granule from which the next search for sparse slabs continues: row and granule, as in the number of a slab.
    cursor: u32,
    /// The bytes of unused slots at the end of the last search for pages that slabs keep in vain, or since then.
    searched: u64,
    /// Slabs that became partly free, wrapping.
    links: u8,
    /// The bits of objects that are too large for slabs: what stays, and not what comes and goes.
    pub(crate) larger: u64,
    /// The pace of each class.
    pace: [Pace; CLASSES],
}

impl ClassCache {
    /// No slabs, in units of one granule.
    pub(crate) const EMPTY: Self = Self {
        rows: Rows::new(1),
        shift: 0,
        first: [NIL; CLASSES],
        idle: [NIL; CLASSES],
        slabs: [0; CLASSES],
        used: [0; CLASSES],
        room: [Room { slabs: 0, first: 0 }; CLASSES],
        pause: (0, 0),
        cursor: 0,
        searched: 0,
        links: 0,
        larger: 0,
        pace: [Pace { since: None, singles: 0 }; CLASSES],
    };

    /// Sets the bytes of a unit, before there are slabs.
    pub(crate) fn init(&mut self, unit_bytes: u32) {
        let granules = unit_bytes / GRANULE_BYTES;
        self.rows = Rows::new(granules);
        self.shift = granules.next_power_of_two().trailing_zeros();
    }

    /// Returns whether a chunk has memory for slabs.
    pub(crate) fn holds(&self, row: u32) -> bool {
        self.rows.holds(row)
    }

    /// Uses memory for the slabs of a chunk, and returns the previous memory.
    pub(crate) fn put(&mut self, row: u32, memory: Row<Slab>) -> Row<Slab> {
        self.rows.put(row, memory)
    }

    /// Moves the entries into a longer table, and returns the old, now empty one.
    pub(crate) fn move_to(&mut self, rows: Table<Row<Slab>>) -> Table<Row<Slab>> {
        self.rows.move_to(rows)
    }

    /// Checks that there is an entry for so many rows.
    pub(crate) fn validate(&self, rows: u32) -> Result<(), InvariantViolation> {
        self.rows.validate_places(rows)
    }

    /// Frees all memory.
    pub(crate) fn free<P: Platform>(&mut self, platform: &P) {
        self.rows.free(platform);
    }

    /// Returns the slabs, and their slots in use.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.slabs.iter().sum(), self.used.iter().sum())
    }

    /// Returns the bytes of all slabs.
    pub(crate) fn bytes(&self) -> u64 {
        (1..CLASSES).map(|class| self.slabs[class] * class as u64 * u64::from(GRANULE_BYTES)).sum()
    }

    /// Returns the bytes of slots that are not in use.
    pub(crate) fn unused_bytes(&self) -> u64 {
        let used = |class: usize| self.used[class] * class as u64 * u64::from(BIT_BYTES);
        self.bytes() - (1..CLASSES).map(used).sum::<u64>()
    }

    /// Returns the granules of a unit.
    pub(crate) fn granules(&self) -> u32 {
        self.rows.len()
    }

    #[inline(always)]
    fn split(&self, slab: u32) -> (u32, u32) {
        (slab >> self.shift, slab & ((1 << self.shift) - 1))
    }

    #[inline(always)]
    fn slab(&self, slab: u32) -> &Slab {
        let (row, granule) = self.split(slab);
        self.rows.at(row, granule)
    }

    #[inline(always)]
    fn slab_mut(&mut self, slab: u32) -> &mut Slab {
        let (row, granule) = self.split(slab);
        self.rows.at_mut(row, granule)
    }

    /// Returns the class of the slab that a granule is in, its first granule, and the record of that.
    #[inline(always)]
    fn find(&mut self, row: u32, granule: u32) -> Option<(Class, u32, &mut Slab)> {
        let granules = self.rows.row_mut(row);
        let Slab { class, back, .. } = granules[granule as usize];
        if class == 0 {
            return None;
        }
        let first = granule - u32::from(back);
        Some((Class(class.into()), first, &mut granules[first as usize]))
    }

    /// Puts a slab at the front of its list.
    #[inline]
    fn link(&mut self, class: Class, slab: u32) {
        let next = core::mem::replace(&mut self.first[class.at()], slab);
        if next != NIL {
            self.slab_mut(next).prev = slab;
        }
        let of = self.slab_mut(slab);
        (of.prev, of.next) = (NIL, next);
    }

    /// Removes a slab from its list.
    #[inline]
    fn unlink(&mut self, class: Class, slab: u32) {
        let Slab { prev, next, .. } = *self.slab(slab);
        match prev {
            NIL => self.first[class.at()] = next,
            _ => self.slab_mut(prev).next = next,
        }
        if next != NIL {
            self.slab_mut(next).prev = prev;
        }
    }

    /// Begins a slab at this granule. `None` if its number would be too high.
    fn begin(&mut self, class: Class, row: u32, granule: u32) -> Option<u32> {
        let slab = row
            .checked_shl(self.shift)
            .filter(|high| high >> self.shift == row && *high < NIL << self.shift)?;
        let slab = slab | granule;
        let granules = &mut self.rows.row_mut(row)[granule as usize..(granule + class.0) as usize];
        for (back, of) in granules.iter_mut().enumerate() {
            *of = Slab { class: class.0 as u8, back: back as u8, ..Slab::EMPTY };
        }
        granules[0].free = ALL_FREE;
        self.link(class, slab);
        self.slabs[class.at()] += 1;
        Some(slab)
    }

    /// Removes a slab that is in its list and has no slot in use.
    fn end(&mut self, class: Class, slab: u32) {
        self.unlink(class, slab);
        let (row, granule) = self.split(slab);
        self.rows.row_mut(row)[granule as usize..(granule + class.0) as usize].fill(Slab::EMPTY);
        self.slabs[class.at()] -= 1;
    }
}

/// Faults that tests inject, to check that `validate` finds them.
#[cfg(test)]
#[cfg(not(loom))]
impl ClassCache {
    /// The last granule of a slab names another class.
    pub(crate) fn break_class(&mut self, row: u32) {
        if let Some(slab) = self.rows.row_mut(row).iter_mut().rev().find(|of| of.class > 0) {
            slab.class += 1;
        }
    }

    /// A list ends before its first slab.
    pub(crate) fn break_list(&mut self, class: usize) {
        self.first[class] = NIL;
    }

    /// The cached slab of a class is not recorded.
    pub(crate) fn break_idle(&mut self, class: usize) {
        self.idle[class] = NIL;
    }

    /// One slab too many is counted.
    pub(crate) fn break_count(&mut self) {
        self.slabs[1] += 1;
        self.used[1] += 1;
    }
}

/// A granule is whole words of a slab of any class, and a slab is within a page or is one.
const _: () = assert!(CLASS_WORDS_MAX * GRANULE_BYTES <= va_base::PAGE_SIZE as u32);

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn a_slot_holds_what_is_asked_for_aligned() {
        let of = |bits, align| Class::of(Want { bits, align }, CLASS_WORDS_MAX).map(|class| class.0);
        assert_eq!(of(1, 1), Some(1));
        assert_eq!(of(5, 1), Some(5));
        assert_eq!(of(5, 4), Some(8));
        assert_eq!(of(10, 16), Some(16));
        assert_eq!(of(16, 16), Some(16));
        assert_eq!(of(17, 1), None);
        assert_eq!(of(1, 32), None);
        assert_eq!(Class::of(Want { bits: 1, align: 1 }, 0), None);
    }

    #[test]
    fn a_slab_whose_number_would_be_too_high_is_none() {
        let mut cache = ClassCache::EMPTY;
        // 16 granules: four bits of a number.
        cache.init(16 * GRANULE_BYTES);
        for row in [NIL >> 4, NIL - 1, 1 << 28, 1 << 31] {
            assert_eq!(cache.begin(Class(1), row, 0), None, "row {row:#x}");
        }
    }

    #[test]
    fn slots_are_distinguished_without_dividing() {
        for class in 1..=CLASS_WORDS_MAX {
            for word in 0..class * SLOTS {
                assert_eq!((word * RECIPROCALS[class as usize]) >> 16, word / class, "{word} of {class}");
            }
        }
    }
}
