//! The leaves of the page map: the slots of consecutive pages.
//!
//! # Theory
//! A leaf in which no area starts is free to serve other pages, so leaves are not tied to an entry of the table above.
//! The entry refers to the leaf that serves its pages now. The empty leaves, with an entry or without, wait in a list,
//! the one that is empty longest in front. Where a leaf is needed, the first of the list moves to the new entry. The
//! machine allocates more only if there was none a moment ago. Hence there are as many as were needed at a time, whichever pages were
//! in use before. An area that begins where another just ended finds its leaf in place.
//!
//! ```text
//!   entries  | a |   | b |   | c |              b, c: empty     list: b, c     an area starts at the last entry:
//!            | a |   |   |   | c | ... | b |                    list: c
//! ```
//!
//! A reader without a lock may hold a leaf that has just moved. It counts moves before and after (`PageMap::steady`),
//! and reads again. A thread that changes a word needs no such care: it compares and exchanges a word that it read
//! while the leaf was in place. No later word of that slot is the same, whatever page the slot is of: generations only
//! grow, until they wrap ([`Word`]). A leaf begins at a new entry with a generation that neither it nor any other moved
//! leaf ever had ([`Marker`](super::Marker)). A free by an address has no generation to compare with, and reads the
//! entry once more.
//!
//! A reader that got a reference a moment ago may still read it, and cannot be detected, since it takes no lock and
//! stores nothing. So leaves return to the machine only if it can wait for all readers of the moment, as a kernel does
//! by RCU ([`Machine::RETIRES`](va_base::Machine::RETIRES)). With others they remain as long as the space.
//!
//! # Invariants
//! - **PM4 leaf** a leaf that has an entry names it, and is in the list exactly when no area starts in it.

use super::word::{GENERATION_MASK, Word};
use va_base::sync::AtomicRef;
use va_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use va_base::{InvariantViolation, Meta, Table, Va};

/// Pages that a leaf serves, at most as many as a word has bits.
#[cfg(not(loom))]
pub(crate) const SLOTS: usize = 16;
#[cfg(loom)]
pub(crate) const SLOTS: usize = 8;

/// Leaves that are allocated together: as many as fit in a page of 4 KiB.
#[cfg(not(loom))]
pub(super) const SHEET: usize = 12;
#[cfg(loom)]
pub(super) const SHEET: usize = 1;

/// The record of one page in the map, used only while an area starts there.
#[repr(align(16))]
pub(crate) struct Slot {
    /// See [`Word`]. Protocol PR-WORD.
    word: AtomicU64,
    /// The first page of the next area in the list that this area is in, guarded by the holder of the list. If the area
    /// is busy and its word has the mark, its note. Protocol PR-NOTE.
    link: AtomicU64,
}

impl Slot {
    /// Returns the word as it is now.
    #[inline(always)]
    pub(crate) fn word(&self) -> Word {
        // Pairs with the release stores of `put` and of `exchange`.
        Word::from_bits(self.word.load(Ordering::Acquire))
    }

    /// Writes the word of an area that the caller owns.
    #[inline(always)]
    pub(crate) fn put(&self, word: Word) {
        // Release: a thread that finds or frees the area sees what was done to it before.
        self.word.store(word.bits(), Ordering::Release);
    }

    /// Replaces the word of a busy area, or returns the present one.
    #[inline(always)]
    pub(crate) fn exchange(&self, from: Word, to: Word) -> Result<(), Word> {
        // Acquire: the freer owns the area from here on. Release: as in `put`.
        let done = self.word.compare_exchange(from.bits(), to.bits(), Ordering::AcqRel, Ordering::Acquire);
        done.map(|_| ()).map_err(Word::from_bits)
    }

    /// Returns the area next in a list; the caller holds the list.
    #[inline(always)]
    pub(crate) fn link(&self) -> u64 {
        self.link.load(Ordering::Relaxed)
    }

    /// Sets the area next in a list.
    #[inline(always)]
    pub(crate) fn set_link(&self, next: u64) {
        // Release pairs with `note`: a reader that takes a link for a note then sees that the area is no longer busy.
        self.link.store(next, Ordering::Release);
    }

    /// Returns the note of a busy area, valid if its word is the same after this as it was before.
    #[inline(always)]
    pub(crate) fn note(&self) -> u64 {
        self.link.load(Ordering::Acquire)
    }
}

/// Slots of consecutive pages, and a bit for each at which an area starts.
#[repr(C)]
pub(crate) struct Leaf {
    /// A bit for each page at which an area starts. Protocol PR-START.
    starts: AtomicU64,
    /// The size of the area of 2^23 pages or more that starts here: at most one can. Written before its word.
    /// Protocol PR-NOTE.
    huge_pages: AtomicU64,
    // Under the lock of the free index.
    /// One more than the number of its entry, or 0. Protocol PR-LOCK.
    place: AtomicU64,
    /// The generation at which all slots began at this entry. Protocol PR-LOCK.
    base: AtomicU64,
    /// It is in the list of empty leaves. Protocol PR-LOCK.
    listed: AtomicBool,
    /// Neighbours in the list of empty leaves. Protocol PR-LOCK.
    before: AtomicRef<Self>,
    /// See `before`. Protocol PR-LOCK.
    after: AtomicRef<Self>,
    slots: [Slot; SLOTS],
}

impl Table for Leaf {
    va_base::empty_table! {
        Self {
            starts: AtomicU64::new(0),
            huge_pages: AtomicU64::new(0),
            place: AtomicU64::new(0),
            base: AtomicU64::new(0),
            listed: AtomicBool::new(false),
            before: AtomicRef::new(),
            after: AtomicRef::new(),
            slots: va_base::array_of![Slot { word: AtomicU64::new(0), link: AtomicU64::new(0) }; SLOTS],
        }
    }
}

/// Returns the number of the entry that serves a page.
fn place_of(page: u64) -> u64 {
    page / SLOTS as u64 + 1
}

impl Leaf {
    /// Returns the start bit of a page.
    #[inline(always)]
    pub(super) fn bit(page: u64) -> u64 {
        1 << (page % SLOTS as u64)
    }

    /// Returns whether one leaf serves both pages.
    #[inline(always)]
    pub(super) fn serves_both(one: u64, other: u64) -> bool {
        one / SLOTS as u64 == other / SLOTS as u64
    }

    /// Returns the slot of a page that the leaf serves.
    #[inline(always)]
    pub(crate) fn slot(&self, page: u64) -> &Slot {
        &self.slots[page as usize % SLOTS]
    }

    /// Returns the size that [`set_huge_pages`](Self::set_huge_pages) wrote, valid if the word is the same after this
    /// as it was before.
    pub(crate) fn huge_pages(&self) -> u64 {
        self.huge_pages.load(Ordering::Acquire)
    }

    /// Stores the size of a huge area that starts here, before its word has the mark of one.
    pub(crate) fn set_huge_pages(&self, pages: u64) {
        self.huge_pages.store(pages, Ordering::Release);
    }

    /// Returns whether no area starts here; called under the lock.
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.starts.load(Ordering::Relaxed) == 0
    }

    /// Sets start bits. The caller holds the lock, so a load and a store are enough; `Release` publishes the words.
    #[inline(always)]
    pub(crate) fn mark(&self, bits: u64) {
        self.starts.store(self.starts.load(Ordering::Relaxed) | bits, Ordering::Release);
    }

    /// Clears a start bit under the lock and returns whether none is left.
    #[inline(always)]
    pub(crate) fn unmark(&self, at: u64) -> bool {
        let left = self.starts.load(Ordering::Relaxed) & !(1 << at);
        self.starts.store(left, Ordering::Release);
        left == 0
    }

    /// Returns the start bits at or above `at`; pairs with the stores of `mark` and `unmark`.
    #[inline(always)]
    fn starts_from(&self, at: u64) -> u64 {
        #[cfg(test)]
        #[cfg(not(loom))]
        crate::testing::look();
        self.starts.load(Ordering::Acquire) & (!0 << at)
    }

    /// Returns the lowest start at or above `at`.
    #[inline(always)]
    pub(crate) fn next(&self, at: u64) -> Option<u64> {
        let bits = self.starts_from(at);
        (bits != 0).then(|| u64::from(bits.trailing_zeros()))
    }

    /// Returns the lowest start at or above `at` of an area that is busy.
    ///
    /// Most leaves on the way have none, so that is checked first. Where areas are dense, all words are checked at
    /// once, two instructions each: only words of busy or detached areas have the lowest bit.
    #[inline]
    pub(crate) fn next_busy(&self, at: u64) -> Option<u64> {
        let mut bits = self.starts_from(at);
        if bits.count_ones() as usize >= SLOTS / 2
            && self.slots.iter().fold(0, |any, slot| any | slot.word().bits()) & 1 == 0
        {
            return None;
        }
        while bits != 0 {
            let at = u64::from(bits.trailing_zeros());
            if self.slot(at).word().is_busy() {
                return Some(at);
            }
            bits &= bits - 1;
        }
        None
    }

    /// Returns the highest start at or below `at`.
    #[inline(always)]
    pub(crate) fn prev(&self, at: u64) -> Option<u64> {
        #[cfg(test)]
        #[cfg(not(loom))]
        crate::testing::look();
        let bits = self.starts.load(Ordering::Acquire) & (!0 >> (63 - at));
        (bits != 0).then(|| u64::from(bits.ilog2()))
    }

    /// Returns the first page of its entry, if it has one.
    pub(super) fn first_page(&self) -> Option<u64> {
        Some(self.place.load(Ordering::Relaxed).checked_sub(1)? * SLOTS as u64)
    }

    /// Leaves its entry. Returns the highest generation, not wrapped, that any of its slots had there.
    pub(super) fn leave(&self) -> u64 {
        self.place.store(0, Ordering::Relaxed);
        let base = self.base.load(Ordering::Relaxed);
        // No area starts here, so each link is the generation at which the last one ended.
        let used = |slot: &Slot| slot.link().wrapping_sub(base) & GENERATION_MASK;
        base + self.slots.iter().map(used).max().unwrap_or(0)
    }

    /// Serves `page` and its neighbours from now on, each of which begins above `generation`.
    pub(super) fn serve(&self, page: u64, generation: u64) {
        self.place.store(place_of(page), Ordering::Relaxed);
        self.base.store(generation, Ordering::Relaxed);
        self.slots.iter().for_each(|slot| slot.set_link(generation & GENERATION_MASK));
    }

    /// Checks PM4 of the leaf that serves `page`; returns whether any start bit is set.
    pub(super) fn check(&self, page: u64) -> Result<bool, InvariantViolation> {
        let at = Va::from_page(page);
        let (want, got) = (place_of(page), self.place.load(Ordering::Relaxed));
        InvariantViolation::check(want == got, "PM4", at, want, got)?;
        let (want, got) = (self.is_empty(), self.listed.load(Ordering::Relaxed));
        InvariantViolation::check(want == got, "PM4", at, u64::from(want), u64::from(got))?;
        Ok(!want)
    }
}

/// The leaves in which no area starts, under the lock of the free index.
pub(super) struct Empties {
    first: Option<Meta<&'static Leaf>>,
    last: Option<Meta<&'static Leaf>>,
}

impl Empties {
    pub(super) const fn new() -> Self {
        Self { first: None, last: None }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// Adds a leaf at the end, unless it is in the list.
    #[inline]
    pub(super) fn push(&mut self, leaf: &'static Leaf) {
        if leaf.listed.load(Ordering::Relaxed) {
            return;
        }
        leaf.listed.store(true, Ordering::Relaxed);
        leaf.before.store(self.last.map(Meta::take));
        leaf.after.store(None);
        match self.last.replace(Meta::new(leaf)) {
            Some(last) => last.after.store(Some(leaf)),
            None => self.first = Some(Meta::new(leaf)),
        }
    }

    /// Removes a leaf, if it is in the list.
    #[inline]
    pub(super) fn remove(&mut self, leaf: &'static Leaf) {
        if !leaf.listed.load(Ordering::Relaxed) {
            return;
        }
        leaf.listed.store(false, Ordering::Relaxed);
        let (before, after) = (leaf.before.load(), leaf.after.load());
        match before {
            Some(before) => before.after.store(after),
            None => self.first = after.map(Meta::new),
        }
        match after {
            Some(after) => after.before.store(before),
            None => self.last = before.map(Meta::new),
        }
    }

    /// Takes the leaf that is empty longest.
    pub(super) fn pop(&mut self) -> Option<&'static Leaf> {
        let leaf = self.first?.take();
        self.remove(leaf);
        Some(leaf)
    }
}

/// Leaves as the machine allocates them.
pub(crate) struct Sheet {
    pub(super) leaves: [Leaf; SHEET],
    /// The next sheet in the list. Protocol PR-LOCK.
    pub(super) older: AtomicRef<Self>,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Sheet>() <= va_base::PIECE_BYTES);

impl Table for Sheet {
    #[cfg(not(loom))]
    const EMPTY: Self = Self { leaves: [const { Leaf::EMPTY }; SHEET], older: AtomicRef::new() };

    #[cfg(loom)]
    fn empty() -> Self {
        Self { leaves: core::array::from_fn(|_| Leaf::empty()), older: AtomicRef::new() }
    }
}
