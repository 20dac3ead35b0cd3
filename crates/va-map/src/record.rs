//! One record an area, found by its first page.
//!
//! # Theory
//! The space knows that an area is busy and how large its address range is; the page table knows which pages are behind it.
//! What neither knows is here: what the area is, how many bytes were asked for, where its pages end. The records are a table
//! by the hash of the first page, with open addressing; a removal moves those behind into the gap, so there are no marks of
//! what is gone, and no removal needs memory. Whoever is to add one promises it first, and the table grows then.
//!
//! ```text
//!   place   0    1    2    3    4        home of a record: hash of its first page
//!         | C  | A  | B  |    |    |     B's home is 1, A was there: B went on to 2
//! ```
//! # Invariants
//! - **RD1 reached** between the home of a record and its place no place is empty.
//! - **RD2 room** records and promises together fill three quarters of the places at most.
//!
//! # Locking
//! None here: `&mut self`.
//! # Source
//! Linux has `struct vm_struct`, from the slab, by a pointer in its `struct vmap_area` (`include/linux/vmalloc.h`, 6.12).

use crate::machine::Protection;
use crate::request::{Guard, Leaves};
use core::fmt;
use va_base::{Align, Broken, PAGE_SIZE, Platform, Record, Va, VaRange};

/// What an area is, and so which call takes it back.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// Pages of its own: `vfree`.
    Vmalloc,
    /// Pages of a caller: `vunmap`.
    Vmap,
    /// Pages of a caller, too many for a block: `vm_unmap_ram`.
    Ram,
    /// A block that small mappings of `vm_map_ram` are cut from, or an area in the making.
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

/// What is known of an area. Page counts are from its first page on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    /// Number of the first page.
    pub(crate) page: u64,
    /// Pages of the address range; 0 marks an empty place.
    pub(crate) pages: u64,
    /// Pages that are mapped.
    pub(crate) mapped: u64,
    /// From the end of what is mapped up to here, CPUs may translate what was mapped before.
    pub(crate) stale: u64,
    /// Bytes that were asked for.
    pub(crate) requested: u64,
    pub(crate) caller: u64,
    pub(crate) protection: Protection,
    pub(crate) align: Align,
    pub(crate) kind: Kind,
    pub(crate) guard: Guard,
    pub(crate) leaves: Leaves,
    /// Where it may lie, if that was said.
    pub(crate) window: Option<VaRange>,
}

impl Record for Entry {
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
        window: None,
    };
}

impl Entry {
    /// First address.
    pub(crate) fn start(&self) -> Va {
        Va::from_page(self.page)
    }

    /// The address range.
    pub(crate) fn range(&self) -> VaRange {
        self.part(0, self.pages)
    }

    /// Pages `[from, to)`, counted from the first.
    pub(crate) fn part(&self, from: u64, to: u64) -> VaRange {
        // Inside an extent, which ends by 2^64 - 1.
        VaRange::from_pages(self.page + from, self.page + to).unwrap_or_default()
    }

    /// Bytes that can be used.
    pub(crate) fn usable(&self) -> u64 {
        self.mapped * PAGE_SIZE
    }
}

/// Places of the first table.
const FIRST: usize = 64;

/// All records.
#[derive(Default)]
pub(crate) struct Records {
    slots: &'static mut [Entry],
    live: usize,
    promised: usize,
}

impl Records {
    /// Areas.
    pub(crate) fn live(&self) -> usize {
        self.live
    }

    /// Records promised and neither added nor forgiven.
    pub(crate) fn promised(&self) -> usize {
        self.promised
    }

    /// Makes room for one more record. `Err` tells how many places the machine refused.
    pub(crate) fn promise(&mut self, platform: &impl Platform) -> Result<(), usize> {
        if (self.live + self.promised + 1) * 4 > self.places() * 3 {
            self.grow(platform)?;
        }
        self.promised += 1;
        Ok(())
    }

    /// A promise that nobody needs any more.
    pub(crate) fn forgive(&mut self) {
        self.promised -= 1;
    }

    /// Adds the record that was promised.
    pub(crate) fn add(&mut self, entry: Entry) {
        self.promised -= 1;
        self.live += 1;
        self.place(entry);
    }

    /// The record of the area that begins with a page.
    pub(crate) fn get(&self, page: u64) -> Option<Entry> {
        self.find(page).map(|at| self.slots[at])
    }

    /// Takes a record out; `promised` keeps its room.
    pub(crate) fn remove(&mut self, page: u64, promised: bool) -> Option<Entry> {
        let mut gap = self.find(page)?;
        let mask = self.places() - 1;
        let gone = core::mem::replace(&mut self.slots[gap], Entry::EMPTY);
        self.live -= 1;
        self.promised += usize::from(promised);
        let mut at = gap;
        loop {
            at = (at + 1) & mask;
            let entry = self.slots[at];
            if entry.pages == 0 {
                return Some(gone);
            }
            // Moves down whatever would not be reached over the gap; `wrapping_sub`: places go round.
            let from_home = at.wrapping_sub(self.home(entry.page)) & mask;
            if from_home >= at.wrapping_sub(gap) & mask {
                self.slots[gap] = entry;
                self.slots[at] = Entry::EMPTY;
                gap = at;
            }
        }
    }

    /// Gives the memory back.
    pub(crate) fn end(&mut self, platform: &impl Platform) {
        let slots = core::mem::take(&mut self.slots);
        if !slots.is_empty() {
            platform.take_back_slab(slots);
        }
        self.live = 0;
    }

    fn grow(&mut self, platform: &impl Platform) -> Result<(), usize> {
        let places = (self.places() * 2).max(FIRST);
        let slots = platform.lend_slab::<Entry>(places).ok_or(places)?;
        slots.fill(Entry::EMPTY);
        let old = core::mem::replace(&mut self.slots, slots);
        for entry in old.iter().filter(|entry| entry.pages != 0) {
            self.place(*entry);
        }
        if !old.is_empty() {
            platform.take_back_slab(old);
        }
        Ok(())
    }

    /// Places in use: a power of two, so that a mask goes round. What the machine lent beyond stays empty.
    fn places(&self) -> usize {
        if self.slots.is_empty() { 0 } else { 1 << self.slots.len().ilog2() }
    }

    fn home(&self, page: u64) -> usize {
        // Multiplies by 2^64 over the golden ratio and takes the highest bits; `wrapping_mul`: a hash.
        let bits = self.places().trailing_zeros().max(1);
        (page.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - bits)) as usize & (self.places() - 1)
    }

    /// Puts a record in the first empty place from its home on; RD2 says that there is one.
    fn place(&mut self, entry: Entry) {
        let mask = self.places() - 1;
        let mut at = self.home(entry.page);
        while self.slots[at].pages != 0 {
            at = (at + 1) & mask;
        }
        self.slots[at] = entry;
    }

    fn find(&self, page: u64) -> Option<usize> {
        let mask = self.places().checked_sub(1)?;
        let mut at = self.home(page);
        while self.slots[at].pages != 0 {
            if self.slots[at].page == page {
                return Some(at);
            }
            at = (at + 1) & mask;
        }
        None
    }

    /// Checks RD1 and RD2 with a full walk.
    pub(crate) fn validate(&self) -> Result<(), Broken> {
        let mut live = 0;
        for (at, entry) in self.slots.iter().enumerate().filter(|(_, entry)| entry.pages != 0) {
            live += 1;
            let found = self.find(entry.page);
            Broken::unless(found == Some(at), "RD1", entry.start(), at as u64, found.unwrap_or(0) as u64)?;
        }
        Broken::unless(live == self.live, "RD2", Va::ZERO, live as u64, self.live as u64)?;
        let full = (self.live + self.promised) * 4;
        Broken::unless(full <= self.places() * 3, "RD2", Va::ZERO, self.places() as u64 * 3, full as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;
    use va_base::NoSlabs;

    struct Heap;

    impl Platform for Heap {
        fn lend_slab<T: Record>(&self, min: usize) -> Option<&'static mut [T]> {
            // A few more than asked for.
            Some(std::vec![T::EMPTY; min + min / 3].leak())
        }

        fn take_back_slab<T: Record>(&self, _slab: &'static mut [T]) {}
    }

    fn entry(page: u64) -> Entry {
        Entry { page, pages: page + 1, ..Entry::EMPTY }
    }

    #[test]
    fn rd1_records_are_found_after_every_add_and_removal() {
        let (mut records, mut twin) = (Records::default(), BTreeMap::new());
        let mut seed = 7u64;
        for round in 0..4000u64 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            // Few pages, so that places collide and pages come again; page 0 among them.
            let page = (seed >> 40) % (40 + round / 8);
            if twin.remove(&page).is_some() {
                assert_eq!(records.remove(page, false), Some(entry(page)));
            } else {
                assert_eq!(records.remove(page, false), None);
                records.promise(&Heap).unwrap();
                records.add(entry(page));
                twin.insert(page, ());
            }
            records.validate().unwrap();
            assert_eq!(records.live(), twin.len());
        }
        assert!(twin.keys().all(|&page| records.get(page) == Some(entry(page))));
    }

    #[test]
    fn rd2_what_is_promised_has_room_and_a_refusal_changes_nothing() {
        let mut records = Records::default();
        assert_eq!(records.promise(&NoSlabs), Err(FIRST));
        assert_eq!(records.get(3), None);
        records.promise(&Heap).unwrap();
        (1..48).for_each(|_| records.promise(&NoSlabs).unwrap());
        assert_eq!(records.promise(&NoSlabs), Err(128));
        records.forgive();
        records.promise(&NoSlabs).unwrap();
        (0..48).for_each(|page| records.add(entry(page)));
        records.validate().unwrap();
        // Taken out for a while, a record keeps its room.
        let kept = records.remove(5, true).unwrap();
        assert_eq!(records.promise(&NoSlabs), Err(128));
        records.add(kept);
        records.live += 1;
        assert_eq!(records.validate().unwrap_err().rule, "RD2");
        records.live -= 1;
        let mask = records.places() - 1;
        let at = records.find(7).unwrap();
        let empty = (0..=mask).find(|&place| records.slots[place].pages == 0).unwrap();
        records.slots.swap(at, empty);
        assert_eq!(records.validate().unwrap_err().rule, "RD1");
    }
}
