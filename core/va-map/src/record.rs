//! One record an area, found by its first page.
//!
//! # Theory
//! The space has the address range of an area, and the page table has its pages. The record has the rest: the kind of
//! the area, the requested bytes, the end of its pages.
//!
//! The records are adjacent in an array of pages ([`PagedArray`]), without a gap: a removal moves the last one into the
//! slot that became free. They are found by linear hashing (Litwin, 1980). There are as many buckets as records or up
//! to twice as many and one. An add splits one bucket, a removal merges two at most, so that no call moves more than
//! the records of two buckets. So both arrays grow and shrink at their end, a page at a time, and an unneeded page is
//! freed to the platform.
//!
//! ```text
//!   buckets   0  1  2  3 | 4  5            6 of 8: those below 2 are split, so three bits of the hash distinguish
//!             |     |    |    |            their records; two bits those of 2 and 3
//!   records   a->d  b    c    e            a chain links numbers of records
//! ```
//! A caller reserves room before it adds a record. Memory for that is allocated with no lock held.
//!
//! **Deferred frees.** The record of an area whose free waits for a worker remains in its bucket, marked. It is also in
//! a list, linked by first pages, since records move.
//!
//! # Invariants
//! - **RD1 reached** a record is in the chain of its bucket, and in no other.
//! - **RD2 room** there is memory for every record and every reservation, and for as many buckets; half of the buckets
//!   are no more than the records.
//! - **RD3 deferred** the list of deferred frees holds exactly the records that are marked so.
//!
//! # Cost
//! A call: O(1) expected, a chain has one record on average. Memory: [`Entry`] and 4 to 8 bytes for each.
//! # Locking
//! None here: `&mut self`.
//! # Source
//! Linux has `struct vm_struct`, from the slab, by a pointer in its `struct vmap_area` (`include/linux/vmalloc.h`,
//! 6.12), and `struct vfree_deferred`, whose list is linked through the freed memory itself (`mm/vmalloc.c`).

use crate::machine::Protection;
use crate::request::{DirectMap, Guard, Leaves};
use core::fmt;
use va_base::{
    Align, InvariantViolation, Meta, Next, PAGE_SIZE, PIECE_BYTES, PagedArray, Pages, Platform, Record,
    Supply, Va, VaRange,
};

/// The kind of an area, and so the call that frees it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// Pages of its own: `vfree`.
    Vmalloc,
    /// Pages of a caller: `vunmap`.
    Vmap,
    /// Pages of a caller, too many for a block: `vm_unmap_ram`.
    Ram,
    /// A block that small mappings of `vm_map_ram` are cut from, or an area that is being created.
    Block,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Vmalloc => "vmalloc",
            Self::Vmap => "vmap",
            Self::Ram | Self::Block => "vm_map_ram",
        })
    }
}

/// The number of no record, and the end of a chain.
const NO_NUMBER: u32 = u32::MAX;
/// The end of the list of deferred frees; no page number is as large.
const NO_PAGE: u64 = u64::MAX;

/// The record of an area. Page counts are from its first page on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    /// Number of the first page.
    pub(crate) page: u64,
    /// Pages of the address range.
    pub(crate) pages: u64,
    /// Pages that are mapped.
    pub(crate) mapped: u64,
    /// From the end of the mapped pages up to here, CPUs may translate earlier mappings.
    pub(crate) stale: u64,
    /// Bytes that were requested.
    pub(crate) requested: u64,
    pub(crate) caller: u64,
    pub(crate) protection: Protection,
    /// The alignment that was requested.
    pub(crate) align: Align,
    pub(crate) kind: Kind,
    pub(crate) guard: Guard,
    pub(crate) leaves: Leaves,
    pub(crate) direct_map: DirectMap,
    /// True if CPUs may translate addresses at which its pages were mapped before.
    pub(crate) aliased: bool,
    pub(crate) numa_id: Option<u32>,
    /// The window of the request, if it has one.
    pub(crate) window: Option<VaRange>,
}

impl Entry {
    const EMPTY: Self = Self {
        page: 0,
        pages: 0,
        mapped: 0,
        stale: 0,
        requested: 0,
        caller: 0,
        protection: Protection(0),
        align: Align::PAGE,
        kind: Kind::Vmalloc,
        guard: Guard::Page,
        leaves: Leaves::Small,
        direct_map: DirectMap::Unchanged,
        aliased: false,
        numa_id: None,
        window: None,
    };

    /// Returns the first address.
    pub(crate) fn start(&self) -> Va {
        Va::from_page(self.page)
    }

    /// Returns the address range.
    pub(crate) fn range(&self) -> VaRange {
        self.part(0, self.pages)
    }

    /// Returns the pages `[from, to)`, counted from the first.
    pub(crate) fn part(&self, from: u64, to: u64) -> VaRange {
        // Inside an extent, which ends by 2^64 - 1.
        VaRange::from_pages(self.page + from, self.page + to).unwrap_or_default()
    }

    /// Returns the bytes that can be used.
    pub(crate) fn usable(&self) -> u64 {
        self.mapped * PAGE_SIZE
    }
}

/// An entry in a chain, and possibly in the list of deferred frees.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Slot {
    entry: Entry,
    /// Number of the next record of the bucket.
    next: u32,
    deferred: bool,
    /// First page of the next area whose free is deferred.
    next_deferred: u64,
}

impl Record for Slot {
    const EMPTY: Self =
        Self { entry: Entry::EMPTY, next: NO_NUMBER, deferred: false, next_deferred: NO_PAGE };
}

/// The first record of a bucket.
#[derive(Clone, Copy)]
struct Head(u32);

impl Record for Head {
    const EMPTY: Self = Self(NO_NUMBER);
}

/// A platform that has memory by the page alone: one call would have to pay for the allocation of a larger slab.
pub(crate) struct ByPage<'a, P>(pub(crate) &'a P);

impl<P: Platform> Platform for ByPage<'_, P> {
    const PAGE_SHIFT: u32 = P::PAGE_SHIFT;

    fn alloc_meta<T: Record>(&self, min: usize) -> Option<&'static mut [T]> {
        if size_of::<T>().checked_mul(min)? > PIECE_BYTES { None } else { self.0.alloc_meta(min) }
    }

    fn free_meta<T: Record>(&self, slab: Meta<&'static mut [T]>) {
        self.0.free_meta(slab);
    }
}

/// Memory that is missing for one more record. Plain data, for an allocation with no lock held.
#[derive(Clone, Copy)]
pub(crate) enum Missing {
    Slots(Next),
    Heads(Next),
    /// More records than can be numbered.
    Numbers,
}

/// Memory of records, of one array or of both, before it is used or after.
#[derive(Default)]
#[must_use]
pub(crate) struct Memory {
    slots: Option<Supply<Slot>>,
    heads: Option<Supply<Head>>,
}

impl Missing {
    /// Allocates the memory from the platform.
    pub(crate) fn alloc(self, platform: &impl Platform) -> Option<Memory> {
        let platform = &ByPage(platform);
        match self {
            Self::Slots(next) => Some(Memory { slots: Some(next.alloc(platform)?), heads: None }),
            Self::Heads(next) => Some(Memory { slots: None, heads: Some(next.alloc(platform)?) }),
            Self::Numbers => None,
        }
    }
}

impl Memory {
    /// Frees the memory, and returns the number of slabs.
    pub(crate) fn free(self, platform: &impl Platform) -> u64 {
        let pieces = u64::from(self.slots.is_some()) + u64::from(self.heads.is_some());
        if let Some(slots) = self.slots {
            slots.free(platform);
        }
        if let Some(heads) = self.heads {
            heads.free(platform);
        }
        pieces
    }
}

/// The reason why no record was taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NotTaken {
    /// No area starts there.
    None,
    /// The area is of another kind.
    Other(Entry),
    /// Its free is deferred.
    Deferred(Entry),
    /// It has another number of mapped pages than the caller named.
    Count(Entry, Pages),
}

/// The record that a call takes: of an area of one kind, and if it says so, of one with that many mapped pages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) kind: Kind,
    pub(crate) mapped: Option<u64>,
}

impl From<Kind> for Wanted {
    fn from(kind: Kind) -> Self {
        Self { kind, mapped: None }
    }
}

/// All records.
pub(crate) struct Records {
    slots: PagedArray<Slot>,
    heads: PagedArray<Head>,
    live: u32,
    reserved: u32,
    buckets: u32,
    /// First page of an area whose free is deferred, if there is one.
    deferred: Option<u64>,
    deferred_count: u64,
    /// Records that were read or moved so far.
    #[cfg(test)]
    steps: core::cell::Cell<u64>,
}

impl Records {
    /// No records, and no memory for any.
    pub(crate) const fn new() -> Self {
        Self {
            slots: PagedArray::new(),
            heads: PagedArray::new(),
            live: 0,
            reserved: 0,
            buckets: 0,
            deferred: None,
            deferred_count: 0,
            #[cfg(test)]
            steps: core::cell::Cell::new(0),
        }
    }

    /// Returns the number of areas.
    pub(crate) fn live(&self) -> usize {
        self.live as usize
    }

    /// Returns the reservations that were neither used nor dropped.
    pub(crate) fn reserved(&self) -> usize {
        self.reserved as usize
    }

    /// Returns the number of areas whose free is deferred.
    pub(crate) fn deferred(&self) -> u64 {
        self.deferred_count
    }

    /// Reserves room for one more record.
    ///
    /// # Errors
    /// The memory that is missing; [`supply`](Self::supply) adds it before the next attempt.
    pub(crate) fn reserve(&mut self) -> Result<(), Missing> {
        let want = self.live as usize + self.reserved as usize + 1;
        if self.slots.len() < want {
            return Err(self.slots.next().map_or(Missing::Numbers, Missing::Slots));
        }
        if self.heads.len() < want {
            return Err(self.heads.next().map_or(Missing::Numbers, Missing::Heads));
        }
        self.reserved += 1;
        Ok(())
    }

    /// Uses memory, and returns it if other callers supplied some meanwhile.
    pub(crate) fn supply(&mut self, memory: Memory) -> Memory {
        let slots = memory.slots.and_then(|supply| self.slots.add(supply).err());
        let heads = memory.heads.and_then(|supply| self.heads.add(supply).err());
        Memory { slots, heads }
    }

    /// Drops a reservation.
    pub(crate) fn cancel(&mut self) {
        self.reserved -= 1;
    }

    /// Adds a record for which room was reserved.
    pub(crate) fn add(&mut self, entry: Entry) {
        self.reserved -= 1;
        let number = self.live;
        self.live += 1;
        if let Some(slot) = self.slots.get_mut(number) {
            *slot = Slot { entry, ..Slot::EMPTY };
        }
        if self.buckets < self.live {
            self.split();
        }
        self.push(self.bucket(entry.page), number);
    }

    /// Returns the record of the area that begins with a page.
    pub(crate) fn get(&self, page: u64) -> Option<Entry> {
        self.slots.get(self.find(page)?).map(|slot| slot.entry)
    }

    /// Removes the record that begins with a page, if it is the wanted one; with `reserved`, its room remains reserved.
    pub(crate) fn take(
        &mut self,
        page: u64,
        wanted: impl Into<Wanted>,
        reserved: bool,
    ) -> Result<Entry, NotTaken> {
        let wanted = wanted.into();
        let slot = self.find(page).and_then(|number| self.slots.get(number)).ok_or(NotTaken::None)?;
        let entry = slot.entry;
        if entry.kind != wanted.kind {
            return Err(NotTaken::Other(entry));
        }
        if slot.deferred {
            return Err(NotTaken::Deferred(entry));
        }
        if let Some(pages) = wanted.mapped.filter(|&mapped| mapped != entry.mapped) {
            return Err(NotTaken::Count(entry, Pages::new(pages)));
        }
        self.remove(page);
        self.reserved += u32::from(reserved);
        Ok(entry)
    }

    /// Marks the record of an area of [`Kind::Vmalloc`], which begins with a page, as one whose free is deferred. Needs
    /// no memory.
    pub(crate) fn defer(&mut self, page: u64) -> Result<(), NotTaken> {
        let first = self.deferred;
        let slot = self.find(page).and_then(|number| self.slots.get_mut(number)).ok_or(NotTaken::None)?;
        if slot.entry.kind != Kind::Vmalloc {
            return Err(NotTaken::Other(slot.entry));
        }
        if slot.deferred {
            return Err(NotTaken::Deferred(slot.entry));
        }
        (slot.deferred, slot.next_deferred) = (true, first.unwrap_or(NO_PAGE));
        self.deferred = Some(page);
        self.deferred_count += 1;
        Ok(())
    }

    /// Removes a record whose free is deferred, the latest first.
    pub(crate) fn take_deferred(&mut self) -> Option<Entry> {
        let page = self.deferred?;
        let slot = self.find(page).and_then(|number| self.slots.get(number))?;
        let (entry, next) = (slot.entry, slot.next_deferred);
        self.deferred = (next != NO_PAGE).then_some(next);
        self.deferred_count -= 1;
        self.remove(page);
        Some(entry)
    }

    /// Changes a record in place; `false` if there is none.
    pub(crate) fn change(&mut self, page: u64, change: impl FnOnce(&mut Entry)) -> bool {
        let slot = self.find(page).and_then(|number| self.slots.get_mut(number));
        slot.map(|slot| change(&mut slot.entry)).is_some()
    }

    /// Removes unneeded memory, at most one slab of each array. With `spare`, one slab more remains, so that a load at
    /// the edge of a slab does not allocate it repeatedly.
    pub(crate) fn excess(&mut self, spare: bool) -> Memory {
        let need = self.live as usize + self.reserved as usize;
        let least = |piece: usize| need + if spare { piece } else { 0 };
        let slots = self.slots.len_without_last().is_some_and(|len| len >= least(self.slots.piece_len()));
        let least = least(self.heads.piece_len()).max(self.buckets as usize);
        let heads = self.heads.len_without_last().is_some_and(|len| len >= least);
        Memory {
            slots: if slots { self.slots.remove_last() } else { None },
            heads: if heads { self.heads.remove_last() } else { None },
        }
    }

    /// Merges one bucket, until there is one for each record, so that [`excess`](Self::excess) finds the most. O(1);
    /// `true` if the caller should call again.
    pub(crate) fn compact(&mut self) -> bool {
        if self.buckets > self.live {
            self.merge();
        }
        self.buckets > self.live
    }

    /// Frees all memory.
    pub(crate) fn end(&mut self, platform: &impl Platform) {
        self.slots.clear(platform);
        self.heads.clear(platform);
        (self.live, self.buckets, self.deferred) = (0, 0, None);
    }

    /// Returns the bucket of a page.
    fn bucket(&self, page: u64) -> u32 {
        // Multiplies by 2^64 over the golden ratio and takes the highest bits; `wrapping_mul`: a hash.
        let hash = (page.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32;
        // A hash past the last bucket belongs to the bucket that will be split for it.
        let mask = self.buckets.next_power_of_two() - 1;
        if hash & mask < self.buckets { hash & mask } else { hash & (mask >> 1) }
    }

    fn head(&self, bucket: u32) -> u32 {
        self.heads.get(bucket).map_or(NO_NUMBER, |head| head.0)
    }

    fn set_head(&mut self, bucket: u32, number: u32) {
        if let Some(head) = self.heads.get_mut(bucket) {
            head.0 = number;
        }
    }

    fn next(&self, number: u32) -> u32 {
        #[cfg(test)]
        self.steps.set(self.steps.get() + 1);
        self.slots.get(number).map_or(NO_NUMBER, |slot| slot.next)
    }

    fn set_next(&mut self, number: u32, next: u32) {
        if let Some(slot) = self.slots.get_mut(number) {
            slot.next = next;
        }
    }

    fn page_of(&self, number: u32) -> u64 {
        self.slots.get(number).map_or(NO_PAGE, |slot| slot.entry.page)
    }

    /// Puts a record at the beginning of a chain.
    fn push(&mut self, bucket: u32, number: u32) {
        self.set_next(number, self.head(bucket));
        self.set_head(bucket, number);
    }

    fn find(&self, page: u64) -> Option<u32> {
        if self.live == 0 {
            return None;
        }
        let mut number = self.head(self.bucket(page));
        while number != NO_NUMBER && self.page_of(number) != page {
            number = self.next(number);
        }
        (number != NO_NUMBER).then_some(number)
    }

    /// Replaces `old` by `new` in the chain of a bucket.
    fn relink(&mut self, bucket: u32, old: u32, new: u32) {
        let mut number = self.head(bucket);
        if number == old {
            return self.set_head(bucket, new);
        }
        while number != NO_NUMBER {
            let next = self.next(number);
            if next == old {
                return self.set_next(number, new);
            }
            number = next;
        }
    }

    /// Removes the record of a page, and moves the last record into its slot.
    fn remove(&mut self, page: u64) {
        let Some(number) = self.find(page) else { return };
        self.relink(self.bucket(page), number, self.next(number));
        let last = self.live - 1;
        if number != last {
            self.relink(self.bucket(self.page_of(last)), last, number);
            let moved = self.slots.get(last).copied();
            if let Some((slot, moved)) = self.slots.get_mut(number).zip(moved) {
                *slot = moved;
            }
        }
        self.live -= 1;
        // Twice at most.
        while self.buckets / 2 > self.live {
            self.merge();
        }
    }

    /// Adds a bucket, and moves its records there.
    fn split(&mut self) {
        let new = self.buckets;
        self.set_head(new, NO_NUMBER);
        self.buckets += 1;
        if new == 0 {
            return;
        }
        // The bucket that had the records of the new one: the same number without the highest bit.
        let old = new & !(1 << new.ilog2());
        let mut number = self.head(old);
        self.set_head(old, NO_NUMBER);
        while number != NO_NUMBER {
            let next = self.next(number);
            self.push(self.bucket(self.page_of(number)), number);
            number = next;
        }
    }

    /// Removes the last bucket, and moves its records back to the bucket that they were split from.
    fn merge(&mut self) {
        self.buckets -= 1;
        let gone = self.buckets;
        let mut number = self.head(gone);
        while number != NO_NUMBER {
            let next = self.next(number);
            self.push(self.bucket(self.page_of(number)), number);
            number = next;
        }
    }

    /// Checks RD1, RD2 and RD3 with a full walk.
    pub(crate) fn validate(&self) -> Result<(), InvariantViolation> {
        self.slots.validate()?;
        self.heads.validate()?;
        let (mut chained, mut marked) = (0, 0);
        for bucket in 0..self.buckets {
            let mut number = self.head(bucket);
            while number != NO_NUMBER {
                let at = Va::from_page(self.page_of(number));
                let (found, want) = (self.bucket(self.page_of(number)), bucket);
                let within = number < self.live && chained < self.live;
                InvariantViolation::check(found == want && within, "RD1", at, want.into(), found.into())?;
                chained += 1;
                marked += self.slots.get(number).map_or(0, |slot| u64::from(slot.deferred));
                number = self.next(number);
            }
        }
        InvariantViolation::check(chained == self.live, "RD1", Va::ZERO, self.live.into(), chained.into())?;
        let need = self.live as usize + self.reserved as usize;
        let room = self.slots.len().min(self.heads.len());
        InvariantViolation::check(need <= room, "RD2", Va::ZERO, room as u64, need as u64)?;
        let buckets = self.buckets as usize;
        let enough =
            self.live <= self.buckets && self.buckets / 2 <= self.live && buckets <= self.heads.len();
        InvariantViolation::check(enough, "RD2", Va::ZERO, self.live.into(), buckets as u64)?;
        let (mut listed, mut page) = (0, self.deferred);
        while let Some(at) = page.filter(|_| listed <= marked) {
            let slot = self.find(at).and_then(|number| self.slots.get(number)).filter(|slot| slot.deferred);
            let Some(slot) = slot else {
                return InvariantViolation::check(false, "RD3", Va::from_page(at), 1, 0);
            };
            listed += 1;
            page = (slot.next_deferred != NO_PAGE).then_some(slot.next_deferred);
        }
        let counted = listed == marked && listed == self.deferred_count;
        InvariantViolation::check(counted, "RD3", Va::ZERO, marked, listed)
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests;
