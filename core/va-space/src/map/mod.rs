//! The page map: the area that starts at a page, read without a lock.
//!
//! # Theory
//! A tree of areas per node, as Linux has it, finds a start under that node's lock, and an inside address by a search
//! of node after node. Here a page number is an index: a radix tree of tables, allocated when first needed, has a slot
//! for every page. Only the slot of an area's *first* page is used. An address inside an area is found by the nearest
//! start bit at or below it. The bits have a summary at each level, so the search reads a few words however large the
//! area is.
//!
//! ```text
//!   Far (2^10) > Wide (2^8) > High (2^9) > Top (2^11) > Mid (2^10) > Leaf (2^4 slots, 64 KiB of address space)
//!                                     near ^ the Top of the default window is known: three loads to a slot
//!
//!   page    10  11  12  13  14  15  16          word of 10: busy, 4 pages, owner, generation
//!   area     |===============|   |===|          find 13: nearest start bit at or below is 10, 13 < 10 + 4, found
//!   starts   1   0   0   0   0   1   0          find 14: nearest is 10 again, 14 >= 10 + 4, nothing there
//! ```
//!
//! # Writers
//! - A **start bit** means that an area starts at the page and is out of the free index, in any state. Bits change only
//!   under the lock of the free index, in the same hold as the index: the proof is a [`Marker`], which is a value under
//!   that lock. So areas with a bit and holes of the index tile the space at every moment (SP1).
//! - A **word** is written by the thread that owns the area exclusively. That is the thread that took it out of the
//!   index, a pool or a magazine, or the holder of the list that it is in. No thread owns a busy area in this sense, so
//!   it leaves that state by compare-exchange alone, and of two frees one fails.
//! - A **link** is guarded as its list is. A busy area is in no list: its link may hold its **note**. A thread writes
//!   the note while it holds the area (`Word`), which excludes frees and other writers. A reader reads the
//!   word, the note and the word again.
//!
//! # Invariants
//! - PM1: in every row of bits the summary is exact (`bits`).
//! - PM4: a leaf that has an entry names it, and waits for another exactly when it is empty (`leaf`).
//! - **PM2 upward** a table has a bit for a child exactly when the child has a bit.
//! - **PM3 start** a page with a start bit has a word with a state, and a page without has none.
//!
//! # Guarantees for readers
//! A lookup takes no lock, and is repeated if a leaf left its entry meanwhile (`leaf`). It finds an area that is busy
//! throughout the search. An area that it finds was busy at the moment its word was read. A size that took two reads is
//! confirmed by reading the word again. While a leaf stays at its entry, a generation recurs only after 2^23 areas have
//! begun at the page. A leaf that left it is noticed by the count of moves.
//! # Source
//! Our own; the counterpart is Linux `mm/vmalloc.c` (6.12: `find_vmap_area`, `find_vmap_area_exceed_addr_lock`).

mod bits;
mod change;
mod found;
mod leaf;
mod places;
mod table;
#[cfg(test)]
#[cfg(not(loom))]
mod tests;
mod word;

pub(crate) use found::Found;
pub use word::State;
pub(crate) use word::{OWNERS_MAX, Word};

use leaf::{Empties, Leaf};
pub(crate) use leaf::{Sheet, Slot};
pub(crate) use places::Step;
use table::Subtree;
use va_base::sync::AtomicRef;
use va_base::sync::atomic::{AtomicU64, Ordering};
use va_base::{InvariantViolation, Machine, Meta, Va};

#[cfg(not(loom))]
mod shape {
    use super::table::{Branch, Leaves, Subtree};
    pub(crate) type Mid = Leaves<16, 1024>;
    pub(super) type Top = Branch<Mid, 32, 2048>;
    pub(super) type High = Branch<Top, 8, 512>;
    pub(super) type Wide = Branch<High, 4, 256>;
    /// The rest of the page numbers: 2^10 with pages of 4 KiB.
    const FAR: usize = 1 << (u64::BITS - va_base::PAGE_SHIFT - Wide::LOG2);
    pub(super) type Far = Branch<Wide, { FAR.div_ceil(64) }, FAR>;
}

/// Small, since a model creates all of it thousands of times.
#[cfg(loom)]
mod shape {
    use super::table::{Branch, Leaves};
    pub(crate) type Mid = Leaves<1, 2>;
    pub(super) type Top = Branch<Mid, 1, 2>;
    pub(super) type High = Branch<Top, 1, 2>;
    pub(super) type Wide = Branch<High, 1, 2>;
    pub(super) type Far = Branch<Wide, 1, 2>;
}

pub(crate) use shape::Mid;
use shape::{Far, High, Top, Wide};

/// Pages that the map covers, from 0.
pub(crate) const COVERED_PAGES: u64 = 1 << Far::LOG2;
#[cfg(not(loom))]
const _: () = assert!(Far::LOG2 == u64::BITS - va_base::PAGE_SHIFT);

/// The right to change start bits and the entries of leaves; there is one in each space, under the lock of the free
/// index.
pub(crate) struct Marker {
    /// The last shape of a huge area; see [`Word`].
    shape: u32,
    empties: Empties,
    /// The highest generation, not wrapped, that a leaf had when it left its entry.
    generation: u64,
    /// The first page of the tables of leaves that [`PageMap::retire`] looks at next.
    lowest: u64,
}

impl Marker {
    /// Returns the marker of a new space.
    pub(crate) const fn new() -> Self {
        Self { shape: 0, empties: Empties::new(), generation: 0, lowest: 0 }
    }

    /// Returns whether no leaf is empty.
    pub(crate) fn lacks_leaves(&self) -> bool {
        self.empties.is_empty()
    }

    /// Returns the next shape for an area that becomes huge, or huge of another size.
    pub(crate) fn next_shape(&mut self) -> u32 {
        self.shape = self.shape.wrapping_add(1);
        self.shape
    }
}

/// An area that a lookup found.
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
// What each lookup reads is in one line of cache.
#[repr(C, align(64))]
pub(crate) struct PageMap {
    // Constant once there are tables.
    /// The Top of the default window, or none, and its index among all Tops.
    near: Meta<&'static [Top]>,
    near_index: u64,
    /// `None` before there are tables.
    far: Option<Meta<&'static Far>>,
    // Atomic, each alone.
    /// The number of times that a leaf left its entry. Written under the lock of the free index. Protocol PR-LEAF.
    moves: AtomicU64,
    /// See [`lost`](Self::lost). Written once, by a thread that is about to stop. Protocol PR-HINT.
    lost: AtomicU64,
    /// Tables that the machine allocated, and groups of leaves. A counter.
    tables: AtomicU64,
    /// Leaves that the machine allocated, those that the present pass of [`retire`](Self::retire) has not examined.
    /// Written under that lock. Protocol PR-LOCK.
    sheets: AtomicRef<Sheet>,
    /// Those that it has. Protocol PR-LOCK.
    passed: AtomicRef<Sheet>,
}

/// No page was lost. No page number is as large, and neither is the end of a list.
const NONE_LOST: u64 = u64::MAX - 1;

impl PageMap {
    va_base::const_fn! {
        /// Returns a map without tables, in which no area starts.
        pub(crate) fn empty() -> Self {
            Self {
                far: None,
                near: Meta::new(&[]),
                near_index: 0,
                moves: AtomicU64::new(0),
                tables: AtomicU64::new(0),
                sheets: AtomicRef::new(),
                passed: AtomicRef::new(),
                lost: AtomicU64::new(NONE_LOST),
            }
        }
    }

    /// Creates a map with its tables, as [`init`](Self::init) does.
    #[cfg(test)]
    pub(crate) fn new(near: u64, machine: &impl Machine) -> Option<(Self, Marker)> {
        let mut map = Self::empty();
        map.init(near, machine).then_some((map, Marker::new()))
    }

    /// Allocates the tables of an empty map, with the fast path around page `near`; `false` if the machine has no
    /// memory.
    pub(crate) fn init(&mut self, near: u64, machine: &impl Machine) -> bool {
        let Some(far) = machine.alloc_table::<Far>() else { return false };
        let near = near.min(COVERED_PAGES - 1);
        let index = |low: u32, high: u32| (near >> low & ((1 << (high - low)) - 1)) as usize;
        let made = AtomicU64::new(1);
        let top = far
            .ensure(index(Wide::LOG2, Far::LOG2), &made, machine)
            .and_then(|wide| wide.ensure(index(High::LOG2, Wide::LOG2), &made, machine))
            .and_then(|high| high.ensure(index(Top::LOG2, High::LOG2), &made, machine));
        match top {
            Some(near_top) => {
                (self.far, self.tables) = (Some(Meta::new(far)), made);
                (self.near, self.near_index) =
                    (Meta::new(core::slice::from_ref(near_top)), near >> Top::LOG2);
                true
            }
            None => {
                far.release_meta(machine);
                machine.free_table(Meta::new(far));
                false
            }
        }
    }

    /// Returns every table to the machine; the map must not be used afterwards.
    pub(crate) fn release_meta(&self, machine: &impl Machine) {
        for sheet in self.sheets() {
            machine.free_table(Meta::new(sheet));
        }
        if let Some(far) = self.far {
            far.release_meta(machine);
            machine.free_table(far);
        }
    }

    /// Returns the groups of leaves that the machine allocated. The link of a group is read before the group is
    /// returned.
    fn sheets(&self) -> impl Iterator<Item = &'static Sheet> {
        [&self.sheets, &self.passed].into_iter().flat_map(|first| {
            let mut next = first.load();
            core::iter::from_fn(move || {
                let sheet = next?;
                next = sheet.older.load();
                Some(sheet)
            })
        })
    }

    /// Returns the number of allocated tables, including allocations of leaves.
    pub(crate) fn tables(&self) -> u64 {
        self.tables.load(Ordering::Relaxed)
    }

    /// Returns that number by a walk over them.
    #[cfg(test)]
    #[cfg(not(loom))]
    pub(crate) fn count_tables(&self) -> u64 {
        self.far.map_or(0, |far| far.count()) + self.sheets().count() as u64
    }

    /// Returns the reference to the leaf of a page, if the tables for it were allocated.
    #[inline(always)]
    fn place(&self, page: u64) -> Option<&'static AtomicRef<Leaf>> {
        #[cfg(test)]
        #[cfg(not(loom))]
        crate::testing::look();
        match self.near_page(page) {
            Some((near, at)) => near.place(at),
            None => self.far?.place(page),
        }
    }

    /// Returns the leaf that serves a page.
    #[inline(always)]
    fn leaf(&self, page: u64) -> Option<&'static Leaf> {
        self.place(page)?.load()
    }

    /// Does the same where nothing waits for it: the tables far from the default window are a call, and not in place.
    #[inline(always)]
    fn leaf_apart(&self, page: u64) -> Option<&'static Leaf> {
        match self.near_page(page) {
            Some((near, at)) => {
                #[cfg(test)]
                #[cfg(not(loom))]
                crate::testing::look();
                near.place(at)?.load()
            }
            None => self.far_leaf(page),
        }
    }

    #[inline(never)]
    fn far_leaf(&self, page: u64) -> Option<&'static Leaf> {
        self.leaf(page)
    }

    /// Returns the slot of a page, if a leaf serves it. The leaf remains while an area starts there; otherwise it may
    /// move to other pages at any moment.
    #[inline(always)]
    pub(crate) fn slot(&self, page: u64) -> Option<&'static Slot> {
        Some(self.leaf(page)?.slot(page))
    }

    /// Does the same by [`leaf_apart`](Self::leaf_apart).
    #[inline(always)]
    fn slot_apart(&self, page: u64) -> Option<&'static Slot> {
        Some(self.leaf_apart(page)?.slot(page))
    }

    /// Repeats `look`, which reads leaves, until no leaf can have left its entry meanwhile. Lookups do it once in
    /// place, since a closure that is called in two places is inlined in none.
    pub(crate) fn steady<T>(&self, look: impl Fn() -> T) -> T {
        loop {
            let before = self.moves();
            let got = look();
            if self.moves() == before {
                return got;
            }
        }
    }

    /// Returns the number of times that a leaf left its place.
    #[inline(always)]
    fn moves(&self) -> u64 {
        // Acquire pairs with `move_to`: a thread that sees the move does not find the leaf at its old entry. And a leaf
        // at a new entry is written after the move was counted, and read by an acquire: a thread that reads such a
        // write sees the count.
        self.moves.load(Ordering::Acquire)
    }

    /// Returns the near table, if `page` is in it. One comparison checks both that there is one and that the page is in
    /// it.
    #[inline(always)]
    fn near(&self, page: u64) -> Option<&'static Top> {
        let nth = (page >> Top::LOG2).wrapping_sub(self.near_index);
        if nth < self.near.len() as u64 { self.near.first() } else { None }
    }

    /// Ensures that there is an entry for the leaf of `page`; `false` if the machine allocates no table.
    #[inline]
    pub(crate) fn reserve(&self, page: u64, machine: &impl Machine) -> bool {
        self.place(page).is_some() || self.far.is_some_and(|far| far.reserve(page, &self.tables, machine))
    }

    /// Returns the word of a page that the caller owns.
    #[inline(always)]
    pub(crate) fn word(&self, page: u64) -> Word {
        self.slot_apart(page).map_or(Word::NONE, Slot::word)
    }

    /// Writes the word of an area that the caller owns, whose slot exists.
    #[inline(always)]
    pub(crate) fn put(&self, page: u64, word: Word) {
        if let Some(slot) = self.slot_apart(page) {
            slot.put(word);
        }
    }

    /// Returns the size of the area that starts at `page` and its word, confirmed by `slot`, which
    /// is the slot of `page`.
    #[inline(always)]
    pub(crate) fn sized(&self, page: u64, slot: &Slot) -> Option<(u64, Word)> {
        let word = slot.word();
        match word.pages() {
            Some(pages) => Some((pages, word)),
            None => self.at(page).map(|seen| (seen.pages, seen.word)),
        }
    }

    /// Returns slot and word of an area that is in a list, which the caller holds.
    #[inline(always)]
    pub(crate) fn idle_slot(&self, page: u64) -> Option<(&'static Slot, Word)> {
        let slot = self.slot(page)?;
        let word = slot.word();
        word.is_idle().then_some((slot, word))
    }

    /// Records that a list led to `page`, which is none of its areas: LI1 is broken.
    #[cold]
    pub(crate) fn lose<T>(&self, page: u64) -> Option<T> {
        self.lost.store(page, Ordering::Relaxed);
        None
    }

    /// Returns the wrong page that a list led to, if that ever happened.
    #[inline]
    pub(crate) fn lost(&self) -> Option<u64> {
        Some(self.lost.load(Ordering::Relaxed)).filter(|&page| page != NONE_LOST)
    }

    /// Returns the area next in a list; the caller holds the list.
    #[inline(always)]
    pub(crate) fn link(&self, page: u64) -> u64 {
        match self.slot(page) {
            Some(slot) => slot.link(),
            // Beyond every page: the list ends.
            None => self.lose(page).unwrap_or(u64::MAX),
        }
    }

    /// Sets the area next in a list.
    #[inline(always)]
    pub(crate) fn set_link(&self, page: u64, next: u64) {
        if let Some(slot) = self.slot_apart(page) {
            slot.set_link(next);
        }
    }

    /// Returns the near table and the offset of a page in it, if it is there.
    #[inline(always)]
    fn near_page(&self, page: u64) -> Option<(&'static Top, u64)> {
        self.near(page).map(|near| (near, page & ((1 << Top::LOG2) - 1)))
    }

    /// The generation at which the last area here ended; meaningful while no area starts at `page` and its leaf is in
    /// place.
    pub(crate) fn last_generation(&self, page: u64) -> u32 {
        self.link(page) as u32
    }

    /// Returns the area that starts at `page`, in any state.
    #[inline(always)]
    pub(crate) fn at(&self, page: u64) -> Option<Seen> {
        let before = self.moves();
        // An area that is not found was not there, wherever the leaf is: the leaf of an area does not move.
        let seen = Self::at_leaf(page, self.leaf_apart(page)?)?;
        if self.moves() == before { Some(seen) } else { self.at_again(page) }
    }

    #[cold]
    #[inline(never)]
    fn at_again(&self, page: u64) -> Option<Seen> {
        self.steady(|| Self::at_leaf(page, self.leaf(page)?))
    }

    /// Finds the area that starts at `page`, if its word `suits`, for a caller that claims it as it was found, or owns
    /// it. So the entry itself shows whether the leaf was in place: a reader of a word that was written elsewhere finds
    /// that this entry has another leaf. If the leaf returned meanwhile, the word is different, since generations only
    /// grow.
    #[inline(always)]
    pub(crate) fn found(&self, page: u64, suits: impl Fn(Word) -> bool) -> Option<Found> {
        let place = self.place(page)?;
        loop {
            let leaf = place.load()?;
            let slot = leaf.slot(page);
            let word = slot.word();
            if !suits(word) {
                return None;
            }
            let Some(pages) = word.pages().or_else(|| Self::huge_pages(leaf, slot, word)) else { continue };
            if place.load().is_some_and(|there| core::ptr::eq(there, leaf)) {
                return Some(Found::new(page, pages, word, slot));
            }
        }
    }

    /// Returns the area that starts at `page`, by the leaf that serves it.
    #[inline(always)]
    fn at_leaf(page: u64, leaf: &Leaf) -> Option<Seen> {
        #[cfg(test)]
        #[cfg(not(loom))]
        crate::testing::look();
        let slot = leaf.slot(page);
        loop {
            let word = slot.word();
            word.state()?;
            if let Some(pages) = word.pages().or_else(|| Self::huge_pages(leaf, slot, word)) {
                return Some(Seen { page, pages, word });
            }
        }
    }

    /// Returns a size that is in the leaf, if the word that says so is still the same.
    // In place: a call would cost registers where sizes are in words.
    #[cold]
    #[inline(always)]
    fn huge_pages(leaf: &Leaf, slot: &Slot, word: Word) -> Option<u64> {
        let pages = leaf.huge_pages();
        (slot.word() == word).then_some(pages)
    }

    /// Returns the lowest area that starts at or above `page`, in any state. A start bit of a leaf that has just left
    /// its entry gives a page of that entry, and no further. No area started there a moment ago, so no area is skipped.
    pub(crate) fn next(&self, mut page: u64) -> Option<Seen> {
        while page < COVERED_PAGES {
            let near = self.near_page(page).and_then(|(near, at)| near.next(at));
            page = match near {
                Some(near) => self.near_index << Top::LOG2 | near,
                None => self.far?.next(page)?,
            };
            if let Some(seen) = self.at(page) {
                return Some(seen);
            }
            page += 1;
        }
        None
    }

    /// Returns the lowest busy area that starts at or above `page`. For each idle area in between its word is read.
    pub(crate) fn next_busy(&self, mut page: u64) -> Option<Seen> {
        while page < COVERED_PAGES {
            page = self.far?.next_busy(page)?;
            if let Some(seen) = self.at(page).filter(|seen| seen.word.is_busy()) {
                return Some(seen);
            }
            page += 1;
        }
        None
    }

    /// Returns the area that covers `page`, in any state.
    #[inline(always)]
    pub(crate) fn covering(&self, page: u64) -> Option<Seen> {
        let before = self.moves();
        let seen = self.covering_once(page);
        if self.moves() == before { seen } else { self.covering_steady(page) }
    }

    /// Does the same for a caller that looks again: a call.
    #[cold]
    #[inline(never)]
    pub(crate) fn covering_steady(&self, page: u64) -> Option<Seen> {
        self.steady(|| self.covering_once(page))
    }

    #[inline(always)]
    fn covering_once(&self, page: u64) -> Option<Seen> {
        // The bits first, even of the page itself: the slot of a page inside an area is not otherwise accessed, so not
        // in any cache.
        let (start, leaf) = self.prev_start(page)?;
        match Self::at_leaf(start, leaf) {
            // Areas are disjoint: one that starts lower ends before this one starts.
            Some(seen) => (page - start < seen.pages).then_some(seen),
            // It ended after its bit was read.
            None => self.covering_again(page, start),
        }
    }

    /// Returns the area that covers `page`, unless it starts at or above `before`.
    #[cold]
    fn covering_again(&self, page: u64, mut before: u64) -> Option<Seen> {
        loop {
            let (start, leaf) = self.prev_start(before.checked_sub(1)?)?;
            if let Some(seen) = Self::at_leaf(start, leaf) {
                return (page - start < seen.pages).then_some(seen);
            }
            before = start;
        }
    }

    #[inline(always)]
    fn prev_start(&self, page: u64) -> Option<(u64, &'static Leaf)> {
        if let Some((near, at)) = self.near_page(page)
            && let Some((found, leaf)) = near.prev(at)
        {
            return Some((self.near_index << Top::LOG2 | found, leaf));
        }
        self.far_prev_start(page)
    }

    #[inline(never)]
    fn far_prev_start(&self, page: u64) -> Option<(u64, &'static Leaf)> {
        self.far?.prev(page.min(COVERED_PAGES - 1))
    }

    /// Checks PM1, PM2 and PM4.
    pub(crate) fn check(&self) -> Result<(), InvariantViolation> {
        self.far.map_or(Ok(()), |far| far.check(0).map(|_| ()))
    }

    /// Checks that a word has a state only if its page has a start bit, for one page (PM3).
    pub(crate) fn check_bit(&self, page: u64) -> Result<(), InvariantViolation> {
        let bit = self.far.and_then(|far| far.next(page)) == Some(page);
        let state = self.word(page).state().is_some();
        let broken = InvariantViolation {
            rule: "PM3",
            at: Va::from_page(page),
            expected: u64::from(bit),
            actual: u64::from(state),
        };
        if bit == state { Ok(()) } else { Err(broken) }
    }
}
