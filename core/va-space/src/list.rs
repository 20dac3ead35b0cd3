//! Lists of areas that are out of use, threaded through the page map, and the types that ensure SP2.
//!
//! # Theory
//! A freed area needs no record of its own. Its slot in the page map exists already, with its size in the word and a
//! free field for the next area in a list. So freeing, pooling and purging allocate nothing (SP3), and a list of any
//! length is moved by copying its ends.
//!
//! # SP2 by types
//! ```text
//!        free                       flush, completed                    pool, magazine, index
//!   Busy ----> AreaList<Unflushed> -------------------> AreaList<Flushed> ----> ...
//! ```
//! Pools, magazines and the index take [`Flushed`] areas only. The arrow in the middle is a function of `flush_batch`
//! alone, which requests a flush from the machine and then checks that it has ended. Leaving either out does not
//! compile.
//!
//! An [`UnlinkedArea`] is in no list: the thread that holds the value owns the area exclusively. The value can be
//! neither copied nor invented, only popped from a list, won from a free, or taken from the index. It is passed to some
//! calls in parts ([`UnlinkedArea::parts`]).
//!
//! # Invariants
//! - **LI1 idle** every area of a list is idle and has a slot.
//!
//! A list has no reference to the machine, so it cannot return an error for a wrong link. It reports such a link to the
//! page map ([`PageMap::lose`]) and ends. The caller stops the machine before it does anything else (`space::busy`).

use crate::map::{PageMap, Slot, Word};
use core::marker::PhantomData;

/// Freed; CPUs may still translate its addresses.
pub(crate) enum Unflushed {}
/// No CPU translates its addresses.
pub(crate) enum Flushed {}

/// The end of a run that is being sorted: beyond every page number.
const NIL: u64 = u64::MAX;

/// One area that one thread owns.
#[must_use = "a loose area that is dropped is lost to the space"]
pub(crate) struct UnlinkedArea<S> {
    pub(crate) page: u64,
    pub(crate) pages: u64,
    pub(crate) word: Word,
    /// The slot of its first page.
    slot: &'static Slot,
    phase: PhantomData<S>,
}

impl<S> UnlinkedArea<S> {
    /// Creates the value; only for a thread that owns the area by winning a free, by taking it out of the index, or by
    /// the parts of the value.
    #[inline(always)]
    pub(crate) fn won(page: u64, pages: u64, word: Word, slot: &'static Slot) -> Self {
        Self { page, pages, word, slot, phase: PhantomData }
    }

    /// Returns what the value was [`won`](Self::won) with, for a call that is not in place. The value itself would be
    /// written to memory even where the call is not made.
    #[inline(always)]
    pub(crate) fn parts(self) -> (u64, u64, Word, &'static Slot) {
        (self.page, self.pages, self.word, self.slot)
    }

    /// Releases the area as busy, with the given word.
    #[inline(always)]
    pub(crate) fn become_busy(self, word: Word) {
        self.slot.put(word);
    }

    /// Releases the area as busy, with the given word, which says that it has a note.
    #[inline(always)]
    pub(crate) fn become_noted(self, word: Word, note: u64) {
        // The word is released after the note, so a reader of it sees the note.
        self.slot.set_link(note);
        self.slot.put(word);
    }

    /// Releases the area with the mark of one that leaves; a sweep of the map finds it again.
    #[inline(always)]
    pub(crate) fn leave(self) {
        self.slot.put(self.word.leaving());
    }

    /// Returns the page after the last.
    pub(crate) fn end(&self) -> u64 {
        self.page + self.pages
    }
}

/// The links of a list: where it begins and ends, and how many areas it has.
///
/// The count ends it: head, tail and the last area's link have no meaning beyond that, so an empty list is all zeros.
#[must_use = "the areas of a list that is dropped are lost to the space"]
pub(crate) struct Links<S> {
    head: u64,
    tail: u64,
    areas: u64,
    phase: PhantomData<fn() -> S>,
}

impl<S> Links<S> {
    pub(crate) const fn new() -> Self {
        Self { head: 0, tail: 0, areas: 0, phase: PhantomData }
    }

    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.areas == 0
    }

    #[inline(always)]
    pub(crate) fn areas(&self) -> u64 {
        self.areas
    }

    /// Returns the first page of the first area.
    #[inline(always)]
    pub(crate) fn first(&self) -> Option<u64> {
        (!self.is_empty()).then_some(self.head)
    }

    /// Takes all areas.
    #[inline(always)]
    pub(crate) fn take(&mut self) -> Self {
        core::mem::replace(self, Self::new())
    }

    /// Puts an area in front.
    #[inline(always)]
    pub(crate) fn push_front(&mut self, area: UnlinkedArea<S>) {
        area.slot.set_link(self.head);
        if self.is_empty() {
            self.tail = area.page;
        }
        self.head = area.page;
        self.areas += 1;
    }

    /// Takes the first area, which has `pages` pages.
    #[inline(always)]
    pub(crate) fn pop_front(&mut self, map: &PageMap, pages: u64) -> Option<UnlinkedArea<S>> {
        let page = self.first()?;
        // Checks LI1: a page that is busy, or no area, belongs to another thread.
        let Some((slot, word)) = map.idle_slot(page) else { return map.lose(page) };
        self.head = slot.link();
        self.areas -= 1;
        Some(UnlinkedArea::won(page, pages, word, slot))
    }

    /// Takes the first `count` areas.
    pub(crate) fn split_front(&mut self, map: &PageMap, count: u64) -> Self {
        if count >= self.areas {
            return self.take();
        }
        let Some(steps) = count.checked_sub(1) else { return Self::new() };
        let tail = (0..steps).fold(self.head, |page, _| map.link(page));
        let front = Self { head: self.head, tail, areas: count, phase: PhantomData };
        self.head = map.link(tail);
        self.areas -= count;
        front
    }

    /// Calls `each` for the first page and the pages of every area, in order; the caller holds the list.
    pub(crate) fn each(&self, map: &PageMap, each: &mut impl FnMut(u64, u64)) {
        let mut page = self.head;
        for _ in 0..self.areas {
            // Checks LI1.
            let Some((slot, _)) = map.idle_slot(page) else { return map.lose(page).unwrap_or_default() };
            let Some((pages, _)) = map.sized(page, slot) else { return };
            each(page, pages);
            page = slot.link();
        }
    }

    /// Moves areas that do not fit from the front to the end, until the first one fits or `tries` of them were checked;
    /// returns whether it fits.
    pub(crate) fn rotate_to(&mut self, map: &PageMap, tries: u64, fits: impl Fn(u64) -> bool) -> bool {
        let (mut page, mut before) = (self.head, self.tail);
        let mut left = tries.min(self.areas);
        while left > 0 && !fits(page) {
            (before, page) = (page, map.link(page));
            left -= 1;
        }
        // All of them in their order, or none: then the last area is before the first as it was.
        if before != self.tail {
            map.set_link(self.tail, self.head);
            (self.head, self.tail) = (page, before);
        }
        left > 0
    }

    /// Puts all of `other` in front, O(1).
    #[inline]
    pub(crate) fn prepend(&mut self, map: &PageMap, mut other: Self) {
        core::mem::swap(self, &mut other);
        self.append(map, other);
    }

    /// Appends all of `other`, O(1).
    #[inline]
    pub(crate) fn append(&mut self, map: &PageMap, other: Self) {
        if other.is_empty() {
            return;
        }
        if self.is_empty() {
            self.head = other.head;
        } else {
            map.set_link(self.tail, other.head);
        }
        self.tail = other.tail;
        self.areas += other.areas;
    }
}

/// A list of areas in one phase, of any sizes. The thread that can change the list owns its areas.
#[must_use = "the areas of a list that is dropped are lost to the space"]
pub(crate) struct AreaList<S> {
    links: Links<S>,
    pages: u64,
}

impl<S> AreaList<S> {
    pub(crate) const fn new() -> Self {
        Self { links: Links::new(), pages: 0 }
    }

    /// Returns a list whose areas all have `size` pages.
    #[inline(always)]
    pub(crate) fn of(links: Links<S>, size: u64) -> Self {
        Self { pages: links.areas * size, links }
    }

    #[inline(always)]
    pub(crate) fn links(self) -> Links<S> {
        self.links
    }

    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.links.is_empty()
    }

    #[inline(always)]
    pub(crate) fn areas(&self) -> u64 {
        self.links.areas
    }

    #[inline(always)]
    pub(crate) fn pages(&self) -> u64 {
        self.pages
    }

    /// Returns the first page of the first area.
    #[inline(always)]
    pub(crate) fn first(&self) -> Option<u64> {
        self.links.first()
    }

    /// Puts an area in front.
    #[inline(always)]
    pub(crate) fn push_front(&mut self, area: UnlinkedArea<S>) {
        self.pages += area.pages;
        self.links.push_front(area);
    }

    /// Puts an area at the end.
    #[inline]
    pub(crate) fn push_back(&mut self, map: &PageMap, area: UnlinkedArea<S>) {
        let mut last = Self::new();
        last.push_front(area);
        self.append(map, last);
    }

    /// Takes the first area, which has `pages` pages.
    #[inline(always)]
    pub(crate) fn pop_front(&mut self, map: &PageMap, pages: u64) -> Option<UnlinkedArea<S>> {
        let area = self.links.pop_front(map, pages)?;
        self.pages -= pages;
        Some(area)
    }

    /// Takes the first area, of whatever size.
    #[inline]
    pub(crate) fn pop_any(&mut self, map: &PageMap) -> Option<UnlinkedArea<S>> {
        let page = self.first()?;
        let Some((slot, _)) = map.idle_slot(page) else { return map.lose(page) };
        let (pages, _) = map.sized(page, slot)?;
        self.pop_front(map, pages)
    }

    /// Takes the first `count` areas of a list whose areas all have `size` pages.
    pub(crate) fn split_front(&mut self, map: &PageMap, count: u64, size: u64) -> Self {
        let front = Self::of(self.links.split_front(map, count), size);
        self.pages -= front.pages;
        front
    }

    /// Calls `each` as [`Links::each`] does.
    pub(crate) fn each(&self, map: &PageMap, each: &mut impl FnMut(u64, u64)) {
        self.links.each(map, each);
    }

    /// Appends all of `other`, O(1).
    #[inline]
    pub(crate) fn append(&mut self, map: &PageMap, other: Self) {
        self.links.append(map, other.links);
        self.pages += other.pages;
    }

    /// Returns the same areas in another phase; only `flush_batch` may call it.
    pub(crate) fn in_phase<T>(self) -> AreaList<T> {
        let Links { head, tail, areas, .. } = self.links;
        AreaList { links: Links { head, tail, areas, phase: PhantomData }, pages: self.pages }
    }

    /// Sorts by address: merge sort on the links, O(n log n), no memory. O(1) for one area, which most slices of a purge
    /// have: for example, a slice after each free of an area above the pool limit.
    #[inline]
    pub(crate) fn sort(&mut self, map: &PageMap) {
        if self.areas() > 1 {
            self.sort_some(map);
        }
    }

    fn sort_some(&mut self, map: &PageMap) {
        let list = &mut self.links;
        // Runs of 2^i areas wait in bin i, so n areas use no bin above log2(n).
        let mut bins = [NIL; u64::BITS as usize];
        let bins = &mut bins[..=list.areas.ilog2() as usize];
        let mut rest = list.head;
        for _ in 0..list.areas {
            let mut run = rest;
            // Checks LI1: a list with a wrong link may be circular.
            rest = match map.idle_slot(rest) {
                Some((slot, _)) => slot.link(),
                None => return map.lose(run).unwrap_or_default(),
            };
            map.set_link(run, NIL);
            for bin in &mut *bins {
                if *bin == NIL {
                    *bin = run;
                    break;
                }
                run = merge(map, core::mem::replace(bin, NIL), run);
            }
        }
        list.head = bins.iter().fold(NIL, |all, &run| merge(map, run, all));
        list.tail = (1..list.areas).fold(list.head, |at, _| map.link(at));
    }
}

/// Merges two sorted runs.
fn merge(map: &PageMap, mut a: u64, mut b: u64) -> u64 {
    // NIL is above every page, so an exhausted run never wins.
    let head = a.min(b);
    let mut tail = NIL;
    while a != NIL && b != NIL {
        let least = if a < b { &mut a } else { &mut b };
        let page = *least;
        *least = map.link(page);
        if tail != NIL {
            map.set_link(tail, page);
        }
        tail = page;
    }
    if tail != NIL {
        map.set_link(tail, a.min(b));
    }
    head
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::map::State;
    use crate::testing::TestMachine;
    use std::vec::Vec;

    fn map_of(pages: &[u64]) -> PageMap {
        let machine = TestMachine::default();
        let Some((map, mut marker)) = PageMap::new(0, &machine) else { panic!("no memory") };
        for &page in pages {
            map.ensure(&mut marker, page, &machine);
            map.begin(&mut marker, page, 1, Word::new(1, None, 1, State::Idle));
        }
        map.ensure(&mut marker, 5000, &machine);
        map
    }

    fn filled(map: &PageMap, pages: &[u64]) -> AreaList<Flushed> {
        let mut list = AreaList::new();
        for &page in pages {
            let Some(slot) = map.slot(page) else { panic!("no slot") };
            list.push_back(map, UnlinkedArea::won(page, 1, map.word(page), slot));
        }
        list
    }

    fn drained(map: &PageMap, mut list: AreaList<Flushed>) -> Vec<u64> {
        let (areas, mut pages) = (list.areas(), Vec::new());
        while let Some(area) = list.pop_any(map) {
            pages.push(area.page);
        }
        assert_eq!((areas, list.areas(), list.pages()), (pages.len() as u64, 0, 0));
        pages
    }

    #[test]
    fn a_list_retains_its_order_and_sorts_by_address() {
        for count in 0..40u64 {
            let pages: Vec<u64> = (0..count).map(|n| n * 37 % 101).collect();
            let map = map_of(&pages);
            assert_eq!(drained(&map, filled(&map, &pages)), pages);
            let mut list = filled(&map, &pages);
            list.sort(&map);
            // The tail is right, too: an appended area is last.
            let mut want = pages.clone();
            want.sort_unstable();
            let mut more = AreaList::new();
            more.append(&map, list);
            let last = Word::new(1, None, 0, State::Idle);
            map.put(5000, last);
            let Some(slot) = map.slot(5000) else { panic!("no slot") };
            more.push_back(&map, UnlinkedArea::won(5000, 1, last, slot));
            want.push(5000);
            assert_eq!(drained(&map, more), want);
        }
    }

    #[test]
    fn areas_that_do_not_fit_go_to_the_end_in_their_order() {
        let pages = [1, 2, 3, 4];
        for (fit, tries, found, order) in [
            (3, 4, true, [3, 4, 1, 2]),
            (3, 3, true, [3, 4, 1, 2]),
            (3, 2, false, [3, 4, 1, 2]),
            (3, 1, false, [2, 3, 4, 1]),
            (3, 0, false, pages),
            (1, 1, true, pages),
            (4, 9, true, [4, 1, 2, 3]),
            (9, 9, false, pages),
        ] {
            let map = map_of(&pages);
            let mut list = filled(&map, &pages);
            assert_eq!(list.links.rotate_to(&map, tries, |page| page == fit), found, "{fit} in {tries}");
            assert_eq!(drained(&map, list), order, "{fit} in {tries}");
        }
        let mut none = Links::<Flushed>::new();
        assert!(!none.rotate_to(&map_of(&[1]), 1, |_| true));
    }

    #[test]
    fn a_list_is_cut_anywhere_and_put_before_another() {
        let pages = [9, 2, 7, 4, 5];
        for count in 0..=6 {
            let map = map_of(&pages);
            let mut list = filled(&map, &pages);
            let front = list.split_front(&map, count, 1);
            let cut = pages.len().min(count as usize);
            assert_eq!((front.areas(), front.pages()), (cut as u64, cut as u64));
            assert_eq!((list.areas(), list.first()), ((5 - cut) as u64, pages.get(cut).copied()));
            // The tail of the front is right, too: the rest is put before it, and found in order.
            let mut whole = front.links();
            whole.prepend(&map, list.links());
            let want: Vec<u64> = pages[cut..].iter().chain(&pages[..cut]).copied().collect();
            assert_eq!(drained(&map, AreaList::of(whole, 1)), want);
        }
    }
}
