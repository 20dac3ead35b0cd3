//! The page map: what starts at a page, read without a lock.
//!
//! # Theory
//! A tree of areas per node, as Linux has it, finds a start under that node's lock and an inside address by asking node
//! after node. Here a page number is an index: a radix tree of tables, lent when first needed, has a slot for every page.
//! Only the slot of an area's *first* page is used. An address inside an area is found by the nearest start bit at
//! or below it: the bits have a summary at each level, so that the way there is a few words long however large
//! the area is.
//!
//! ```text
//!   Far (2^10) > Wide (2^10) > Top (2^11) > Mid (2^11) > Leaf (2^10 slots, 4 MiB of address space)
//!                                near ^ the Top of the default window is known: three loads to a slot
//!
//!   page    10  11  12  13  14  15  16          word of 10: busy, 4 pages, owner, generation
//!   area     |===============|   |===|          find 13: nearest start bit at or below is 10, 13 < 10 + 4, found
//!   starts   1   0   0   0   0   1   0          find 14: nearest is 10 again, 14 >= 10 + 4, nothing there
//! ```
//!
//! # Who writes what
//! - A **start bit** means that the page is the start of an area that is out of the free index, in whatever state. Bits
//!   change only under the lock of the free index, in the same hold as the index: the proof is a [`Marker`], which
//!   lives under that lock. So areas with a bit and holes of the index tile the space at every moment (SP1).
//! - A **word** is written by whoever has the area to himself: the thread that took it out of the index, a pool or a
//!   magazine; the holder of the list that it is in. A busy area belongs to nobody in this sense, so it leaves that state
//!   by compare-exchange alone, and of two frees one loses.
//! - A **link** is guarded by whatever guards the list.
//!
//! # Invariants
//! - PM1: in every row of bits the summary is exact (`bits`).
//! - **PM2 upward** a table has a bit for a child exactly when the child has a bit.
//! - **PM3 start** a page with a start bit has a word with a state, and a page without has none.
//!
//! # What a reader may rely on
//! No lock, and no waiting for anybody. An area that is busy from before a search until after it is found. What is found
//! was busy at the moment its word was read; a size that took two reads is confirmed by reading the word again
//! (a generation cannot come back unless 2^21 areas began there in between).
//! # Source
//! Our own; what it stands for: Linux `mm/vmalloc.c` (6.12: `find_vmap_area`, `find_vmap_area_exceed_addr_lock`).

mod bits;
mod table;
mod word;

pub use word::State;
pub(crate) use word::{OWNERS_MAX, Word};

pub(crate) use table::Slot;
use table::{Branch, Leaf, Subtree};
use va_base::sync::atomic::{AtomicU64, Ordering};
use va_base::{Broken, Machine, Va};
use word::ESCAPE_PAGES;

#[cfg(not(loom))]
mod shape {
    use super::{Branch, Leaf};
    pub(super) type Slots = Leaf<16, 1024>;
    pub(super) type Mid = Branch<Slots, 32, 2048>;
    pub(super) type Top = Branch<Mid, 32, 2048>;
    pub(super) type Wide = Branch<Top, 16, 1024>;
    /// The rest of the page numbers: 2^10 with pages of 4 KiB.
    const FAR: usize = 1 << (u64::BITS - va_base::PAGE_SHIFT - 42);
    pub(super) type Far = Branch<Wide, { FAR.div_ceil(64) }, FAR>;
}

/// Small, since a model makes all of it anew thousands of times.
#[cfg(loom)]
mod shape {
    use super::{Branch, Leaf};
    pub(super) type Slots = Leaf<1, 8>;
    pub(super) type Mid = Branch<Slots, 1, 2>;
    pub(super) type Top = Branch<Mid, 1, 2>;
    pub(super) type Wide = Branch<Top, 1, 2>;
    pub(super) type Far = Branch<Wide, 1, 2>;
}

use shape::{Far, Top, Wide};

/// Pages that the map covers, from 0.
pub(crate) const COVERED_PAGES: u64 = 1 << Far::LOG2;
#[cfg(not(loom))]
const _: () = assert!(Far::LOG2 == u64::BITS - va_base::PAGE_SHIFT);

/// The right to change start bits; there is one in each space, under the lock of the free index.
pub(crate) struct Marker(());

/// What a lookup found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Seen {
    /// First page.
    pub(crate) page: u64,
    /// Size.
    pub(crate) pages: u64,
    /// The word as it was read.
    pub(crate) word: Word,
}

/// The map of one space.
pub(crate) struct PageMap {
    // Constant after `new`.
    far: &'static Far,
    /// The Top of the default window, and which of all Tops that is.
    near: &'static Top,
    near_index: u64,
    /// See [`lost`](Self::lost). Written once, by whoever is about to stop.
    lost: AtomicU64,
}

/// No page was lost. No page number is as large, and neither is what a list ends with.
const NONE_LOST: u64 = u64::MAX - 1;

impl PageMap {
    /// Creates the map, whose fast part is around page `near`; `None` if the machine refuses a table.
    pub(crate) fn new(near: u64, machine: &impl Machine) -> Option<(Self, Marker)> {
        let far = machine.lend_table::<Far>()?;
        let near = near.min(COVERED_PAGES - 1);
        let top = far.ensure((near >> Wide::LOG2) as usize, machine).and_then(|wide| {
            wide.ensure((near >> Top::LOG2 & ((1 << (Wide::LOG2 - Top::LOG2)) - 1)) as usize, machine)
        });
        match top {
            Some(near_top) => {
                let (near_index, lost) = (near >> Top::LOG2, AtomicU64::new(NONE_LOST));
                Some((Self { far, near: near_top, near_index, lost }, Marker(())))
            }
            None => {
                far.hand_back(machine);
                machine.take_back_table(far);
                None
            }
        }
    }

    /// Hands every table back; the map must not be used afterwards.
    pub(crate) fn hand_back(&self, machine: &impl Machine) {
        self.far.hand_back(machine);
        machine.take_back_table(self.far);
    }

    /// Tables lent.
    pub(crate) fn tables(&self) -> u64 {
        self.far.count()
    }

    /// The slot of a page, if its leaf was lent.
    #[inline(always)]
    pub(crate) fn slot(&self, page: u64) -> Option<&'static Slot> {
        if page >> Top::LOG2 == self.near_index {
            self.near.slot(page & ((1 << Top::LOG2) - 1))
        } else {
            self.far.slot(page)
        }
    }

    /// Makes sure that the slots for an area are there; `false` if the machine refuses a table.
    #[inline]
    pub(crate) fn reserve(&self, page: u64, pages: u64, machine: &impl Machine) -> bool {
        self.is_reserved(page, pages)
            || (self.far.reserve(page, machine)
                && (pages < ESCAPE_PAGES || self.far.reserve(page + 1, machine)))
    }

    /// Tells whether they are.
    #[inline]
    pub(crate) fn is_reserved(&self, page: u64, pages: u64) -> bool {
        self.slot(page).is_some() && (pages < ESCAPE_PAGES || self.slot(page + 1).is_some())
    }

    /// The word of a page.
    #[inline(always)]
    pub(crate) fn word(&self, page: u64) -> Word {
        self.slot(page).map_or(Word::NONE, Slot::word)
    }

    /// Writes the word of an area that the caller has to himself. Its slot is there.
    #[inline(always)]
    pub(crate) fn put(&self, page: u64, word: Word) {
        if let Some(slot) = self.slot(page) {
            slot.put(word);
        }
    }

    /// What the word of the area that starts at `page` says, and its size, confirmed by `slot`, which is the slot of `page`.
    #[inline(always)]
    pub(crate) fn sized(&self, page: u64, slot: &Slot) -> Option<(u64, Word)> {
        let word = slot.word();
        match word.pages() {
            Some(pages) => Some((pages, word)),
            None => self.at(page).map(|seen| (seen.pages, seen.word)),
        }
    }

    /// Slot and word of an area that is in a list, which the caller holds.
    #[inline(always)]
    pub(crate) fn idle_slot(&self, page: u64) -> Option<(&'static Slot, Word)> {
        let slot = self.slot(page)?;
        let word = slot.word();
        (word.state() == Some(State::Idle)).then_some((slot, word))
    }

    /// Notes that a list led to `page`, which is none of its areas: LI1 is broken.
    #[cold]
    pub(crate) fn lose<T>(&self, page: u64) -> Option<T> {
        self.lost.store(page, Ordering::Relaxed);
        None
    }

    /// The page that a list led to and that is none of its areas, if that ever happened.
    #[inline]
    pub(crate) fn lost(&self) -> Option<u64> {
        Some(self.lost.load(Ordering::Relaxed)).filter(|&page| page != NONE_LOST)
    }

    /// The area next in a list; the caller holds the list.
    #[inline(always)]
    pub(crate) fn link(&self, page: u64) -> u64 {
        match self.slot(page) {
            Some(slot) => slot.link(),
            // Beyond every page: the list ends.
            None => self.lose(page).unwrap_or(u64::MAX),
        }
    }

    /// Sets it.
    #[inline(always)]
    pub(crate) fn set_link(&self, page: u64, next: u64) {
        if let Some(slot) = self.slot(page) {
            slot.set_link(next);
        }
    }

    /// Gives an area that just left the index its word and its start bit. Its slots are there.
    pub(crate) fn begin(&self, _marker: &mut Marker, page: u64, pages: u64, word: Word) {
        if pages >= ESCAPE_PAGES {
            self.put(page + 1, Word::size_escape(pages));
        }
        self.put(page, word);
        // What is above the near part has its bit already if that has any.
        match self.near_page(page) {
            Some(near) if self.near.has_any() => self.near.mark(near),
            _ => self.far.mark(page),
        }
    }

    /// Where a page is in the near part, if it is there.
    #[inline(always)]
    fn near_page(&self, page: u64) -> Option<u64> {
        (page >> Top::LOG2 == self.near_index).then_some(page & ((1 << Top::LOG2) - 1))
    }

    /// Takes the start bit and the word of an area that goes back to the index. The generation stays behind in the
    /// link, to be counted on when an area begins here again.
    pub(crate) fn end(&self, _marker: &mut Marker, page: u64, pages: u64) {
        if self.near_page(page).is_none_or(|near| self.near.unmark(near)) {
            self.far.unmark(page);
        }
        self.set_link(page, u64::from(self.word(page).generation()));
        self.put(page, Word::NONE);
        if pages >= ESCAPE_PAGES {
            self.put(page + 1, Word::NONE);
        }
    }

    /// The generation at which the last area here ended; meaningful while no area starts at `page`.
    pub(crate) fn last_generation(&self, page: u64) -> u32 {
        self.link(page) as u32
    }

    /// What starts at `page`, in whatever state.
    #[inline]
    pub(crate) fn at(&self, page: u64) -> Option<Seen> {
        self.at_slot(page, self.slot(page)?)
    }

    /// The same, by the slot of `page`.
    #[inline(always)]
    fn at_slot(&self, page: u64, slot: &Slot) -> Option<Seen> {
        let word = slot.word();
        word.state()?;
        match word.pages() {
            Some(pages) => Some(Seen { page, pages, word }),
            None => self.at_escaped(page, word),
        }
    }

    /// The same for a size that is in the second page's slot.
    #[cold]
    fn at_escaped(&self, page: u64, mut word: Word) -> Option<Seen> {
        loop {
            word.state()?;
            if let Some(pages) = word.pages() {
                return Some(Seen { page, pages, word });
            }
            let pages = self.word(page + 1).escaped_pages();
            let again = self.word(page);
            if again == word {
                return Some(Seen { page, pages, word });
            }
            word = again;
        }
    }

    /// The lowest area that starts at or above `page`, in whatever state.
    pub(crate) fn next(&self, mut page: u64) -> Option<Seen> {
        while page < COVERED_PAGES {
            let near = self.near_page(page).and_then(|near| self.near.next(near));
            page = match near {
                Some(near) => self.near_index << Top::LOG2 | near,
                None => self.far.next(page)?,
            };
            if let Some(seen) = self.at(page) {
                return Some(seen);
            }
            page += 1;
        }
        None
    }

    /// The area that covers `page`, in whatever state.
    #[inline(always)]
    pub(crate) fn covering(&self, page: u64) -> Option<Seen> {
        // The bits first, even of the page itself: they are 128 bytes for 4 MiB, and the slot of a page inside an area is
        // one that nobody else ever touches, so not in any cache.
        let (start, slot) = self.prev_start(page)?;
        match self.at_slot(start, slot) {
            // Areas are disjoint: what starts lower ends before this one starts.
            Some(seen) => (page - start < seen.pages).then_some(seen),
            // It ended after its bit was read.
            None => self.covering_again(page, start),
        }
    }

    /// The same, without what starts at or above `before`.
    #[cold]
    fn covering_again(&self, page: u64, mut before: u64) -> Option<Seen> {
        loop {
            let (start, slot) = self.prev_start(before.checked_sub(1)?)?;
            if let Some(seen) = self.at_slot(start, slot) {
                return (page - start < seen.pages).then_some(seen);
            }
            before = start;
        }
    }

    #[inline(always)]
    fn prev_start(&self, page: u64) -> Option<(u64, &'static Slot)> {
        if page >> Top::LOG2 == self.near_index
            && let Some((found, slot)) = self.near.prev(page & ((1 << Top::LOG2) - 1))
        {
            return Some((self.near_index << Top::LOG2 | found, slot));
        }
        self.far_prev_start(page)
    }

    #[inline(never)]
    fn far_prev_start(&self, page: u64) -> Option<(u64, &'static Slot)> {
        self.far.prev(page.min(COVERED_PAGES - 1))
    }

    /// Checks PM1 and PM2.
    pub(crate) fn check(&self) -> Result<(), Broken> {
        self.far.check(0).map(|_| ())
    }

    /// Checks that no word is in a state unless its page has a start bit, for one page (PM3).
    pub(crate) fn check_bit(&self, page: u64) -> Result<(), Broken> {
        let bit = self.far.next(page) == Some(page);
        let state = self.word(page).state().is_some();
        let broken =
            Broken { rule: "PM3", at: Va::from_page(page), want: u64::from(bit), got: u64::from(state) };
        if bit == state { Ok(()) } else { Err(broken) }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::testing::TestMachine;

    /// Areas of two pages at these pages.
    fn map(pages: &[u64]) -> (PageMap, Marker) {
        let machine = TestMachine::default();
        let (map, mut marker) = PageMap::new(0, &machine).unwrap();
        for &page in pages {
            assert!(map.reserve(page, 2, &machine));
            map.begin(&mut marker, page, 2, Word::new(2, None, 1, State::Busy));
        }
        map.check().unwrap();
        (map, marker)
    }

    /// Near, in the next table, in another branch, and at the end of the address space.
    const FAR_APART: [u64; 5] = [3, 1500, 1 << 22, 1 << 40, COVERED_PAGES - 3];

    #[test]
    fn pm2_a_bit_without_an_area_below_is_named() {
        let (map, _marker) = map(&FAR_APART);
        // The leaf loses its start without telling upward.
        let index = (1u64 << 22) >> shape::Mid::LOG2;
        let mid = map.near.child(index as usize).unwrap();
        let leaf = mid.child(0).unwrap();
        assert!(leaf.unmark(0));
        assert_eq!(map.check().unwrap_err().rule, "PM2");
        leaf.mark(0);
        map.check().unwrap();
    }

    #[test]
    fn pm3_a_word_without_a_start_is_named_and_a_start_without_a_word() {
        let (map, _marker) = map(&FAR_APART);
        FAR_APART.into_iter().for_each(|page| map.check_bit(page).unwrap());
        map.put(4, Word::new(1, None, 1, State::Busy));
        assert_eq!(map.check_bit(4).unwrap_err().rule, "PM3");
        map.put(1500, Word::NONE);
        assert_eq!(map.check_bit(1500).unwrap_err().rule, "PM3");
    }

    #[test]
    fn what_covers_a_page_is_found_however_far_its_neighbours_are() {
        let (map, mut marker) = map(&FAR_APART);
        for page in FAR_APART {
            let found = |page| map.covering(page).map(|seen| seen.page);
            assert_eq!([found(page), found(page + 1), found(page + 2)], [Some(page), Some(page), None]);
            assert_eq!(map.next(page).map(|seen| seen.page), Some(page));
        }
        assert_eq!(map.next(5).map(|seen| seen.page), Some(1500));
        map.end(&mut marker, 1500, 2);
        assert_eq!(map.next(5).map(|seen| seen.page), Some(1 << 22));
        assert_eq!(map.covering(1500).map(|seen| seen.page), None);
        map.check().unwrap();
    }
}
