//! Areas by exact size, for the pool of a node, the cache of a magazine, lazy areas and those in a purge.
//!
//! # Theory
//! A flushed area of the right size needs neither the free index nor its lock. Up to [`EXACT_PAGES_MAX`] pages each
//! size has its own list, last in first out. Above, the few sizes that are in use at the moment share [`LARGE_SIZES`]
//! more lists, so a pair of 257 pages is no slower than one of 256.
//!
//! Freed areas are sorted by size at once, while their slots are in the cache. So a purge moves lists, not areas: lazy
//! to flush batch to pool to cache, each in a few instructions for all areas of a size.
//!
//! # Invariants
//! - **PO1 exact** every area in the list of a size has that size.
//! - **PO2 occupied** the bit of a list is set exactly when it holds an area.
//! - **PO3 bounded** the lists of large sizes hold at most [`LARGE_PAGES_MAX`] pages together.
//!
//! # Locking
//! None here: the node has the lock, the magazine its owner's.
//! # Source
//! Linux `mm/vmalloc.c` (6.12: `node_pool_add_va`, `node_alloc`); the large sizes, and lists that move whole, are our
//! own.

use crate::list::{AreaList, Flushed, Links, UnlinkedArea};
use crate::map::{PageMap, State};
use va_base::{Align, InvariantViolation, PAGE_SHIFT, Va};

/// Largest size with a list of its own, in pages.
pub const EXACT_PAGES_MAX: u64 = 256;
/// Sizes above that which can be pooled at a time.
pub const LARGE_SIZES: usize = 8;
/// Pages that they may hold together in one pool or cache: 64 GiB of addresses. A worker that purges may run ten
/// thousand frees after it is woken, and what a pool cannot take goes to the index and back.
pub const LARGE_PAGES_MAX: u64 = 16 << 20;

/// Classes of sizes that have a list of their own; those above are of large sizes.
pub(crate) const EXACT: usize = EXACT_PAGES_MAX as usize;
pub(crate) const CLASSES: usize = EXACT + LARGE_SIZES;

/// Returns the class of a size that has a list of its own.
#[inline(always)]
fn exact_class(pages: u64) -> Option<usize> {
    // One comparison, after which no index needs another.
    let class = pages.wrapping_sub(1) as usize;
    (class < EXACT).then_some(class)
}

/// Returns whether an area that starts at `page` is aligned.
#[inline(always)]
fn is_aligned(page: u64, align: Align) -> bool {
    // Fewer instructions than by a mask, which needs a shift.
    page.trailing_zeros() + PAGE_SHIFT >= align.log2()
}

/// Areas of one phase, by size.
// What each call writes is first.
#[repr(C)]
pub(crate) struct SizeLists<S> {
    areas: u64,
    pages: u64,
    large_pages: u64,
    occupied: [u64; CLASSES.div_ceil(64)],
    /// Size of the areas in each list of large areas; of any size while the list is empty.
    large: [u64; LARGE_SIZES],
    lists: [Links<S>; CLASSES],
}

/// Flushed areas, ready to be allocated.
pub(crate) type Pool = SizeLists<Flushed>;

impl<S> SizeLists<S> {
    pub(crate) const fn new() -> Self {
        Self {
            lists: [const { Links::new() }; CLASSES],
            large: [0; LARGE_SIZES],
            large_pages: 0,
            occupied: [0; CLASSES.div_ceil(64)],
            areas: 0,
            pages: 0,
        }
    }

    #[inline(always)]
    pub(crate) fn areas(&self) -> u64 {
        self.areas
    }

    #[inline(always)]
    pub(crate) fn pages(&self) -> u64 {
        self.pages
    }

    /// Returns the list that holds areas of `pages`, if there is one.
    #[inline(always)]
    pub(crate) fn class(&self, pages: u64) -> Option<usize> {
        if let Some(exact) = exact_class(pages) {
            return Some(exact);
        }
        let large = self.large.iter().position(|&size| size == pages)?;
        Some(EXACT + large)
    }

    /// Returns the list for `more` pages in areas of `pages`.
    #[inline(always)]
    pub(crate) fn class_for(&mut self, pages: u64, more: u64) -> Option<usize> {
        exact_class(pages).or_else(|| self.large_class_for(pages, more))
    }

    #[inline(always)]
    fn large_class_for(&mut self, pages: u64, more: u64) -> Option<usize> {
        if self.large_pages + more > LARGE_PAGES_MAX {
            return None;
        }
        self.class(pages).or_else(|| self.new_class(pages))
    }

    /// Returns the list for areas of `pages`, and whether it is of that size only since now.
    pub(crate) fn class_or_new(&mut self, pages: u64) -> Option<(usize, bool)> {
        match self.class(pages) {
            Some(class) => Some((class, false)),
            None => Some((self.new_class(pages)?, true)),
        }
    }

    /// Makes an empty list one for areas of `pages`.
    #[cold]
    fn new_class(&mut self, pages: u64) -> Option<usize> {
        // By the size, so that sizes that alternate keep their lists.
        let vacant = (0..LARGE_SIZES)
            .map(|nth| (pages as usize + nth) % LARGE_SIZES)
            .find(|&large| self.lists[EXACT + large].is_empty())?;
        self.large[vacant] = pages;
        Some(EXACT + vacant)
    }

    /// Returns the size of the areas in a class that holds some.
    #[inline(always)]
    pub(crate) fn size(&self, class: usize) -> u64 {
        if class < EXACT { class as u64 + 1 } else { self.large[class - EXACT] }
    }

    /// Counts areas that are put into a class.
    #[inline(always)]
    fn count_in(&mut self, class: usize, areas: u64, pages: u64) {
        self.areas += areas;
        self.pages += pages;
        if class >= EXACT {
            self.large_pages += pages;
        }
        if self.lists[class].is_empty() {
            self.occupied[class / 64] |= 1 << (class % 64);
        }
    }

    /// Counts areas that are taken out of a class.
    #[inline(always)]
    fn count_out(&mut self, class: usize, areas: u64, pages: u64) {
        self.areas -= areas;
        self.pages -= pages;
        if class >= EXACT {
            self.large_pages -= pages;
        }
        if self.lists[class].is_empty() {
            self.occupied[class / 64] &= !(1 << (class % 64));
        }
    }

    /// Takes the first area of a class.
    #[inline(always)]
    pub(crate) fn pop(&mut self, map: &PageMap, class: usize) -> Option<UnlinkedArea<S>> {
        self.pop_of(map, class, self.size(class))
    }

    /// Takes the first area of a class, whose areas have `pages` pages.
    #[inline(always)]
    fn pop_of(&mut self, map: &PageMap, class: usize, pages: u64) -> Option<UnlinkedArea<S>> {
        let area = self.lists[class].pop_front(map, pages)?;
        self.count_out(class, 1, pages);
        Some(area)
    }

    /// Adds an area, or returns it if there is no list for its size.
    ///
    /// # Errors
    /// The area.
    #[inline(always)]
    pub(crate) fn put(&mut self, area: UnlinkedArea<S>) -> Result<(), UnlinkedArea<S>> {
        let Some(class) = self.class_for(area.pages, area.pages) else { return Err(area) };
        self.put_in(class, area);
        Ok(())
    }

    /// Adds an area to its class.
    #[inline(always)]
    pub(crate) fn put_in(&mut self, class: usize, area: UnlinkedArea<S>) {
        self.count_in(class, 1, area.pages);
        self.lists[class].push_front(area);
    }

    /// Returns the list that has room for `more` pages in areas of `pages`, unless a list must first become one of that
    /// size.
    #[inline(always)]
    pub(crate) fn present_class_for(&self, pages: u64, more: u64) -> Option<usize> {
        let class = self.class(pages)?;
        (class < EXACT || self.large_pages + more <= LARGE_PAGES_MAX).then_some(class)
    }

    /// Adds areas of one size before the present ones, or returns them if there is no list for them.
    ///
    /// # Errors
    /// The areas.
    pub(crate) fn put_list(
        &mut self,
        map: &PageMap,
        size: u64,
        list: AreaList<S>,
    ) -> Result<(), AreaList<S>> {
        let Some(class) = self.class_for(size, list.pages()) else { return Err(list) };
        self.put_list_in(map, class, list);
        Ok(())
    }

    /// Does the same with areas that other lists had in `class`: a size that has a list of its own has it everywhere.
    ///
    /// # Errors
    /// The areas.
    #[inline(always)]
    pub(crate) fn put_class(
        &mut self,
        map: &PageMap,
        class: usize,
        size: u64,
        list: AreaList<S>,
    ) -> Result<(), AreaList<S>> {
        if class >= EXACT {
            return self.put_list(map, size, list);
        }
        self.put_list_in(map, class, list);
        Ok(())
    }

    /// Adds areas to their class, before the present ones.
    #[inline(always)]
    fn put_list_in(&mut self, map: &PageMap, class: usize, list: AreaList<S>) {
        if !list.is_empty() {
            self.count_in(class, list.areas(), list.pages());
            self.lists[class].prepend(map, list.links());
        }
    }

    /// Takes the first `count` areas of a class, or all if there are fewer.
    #[inline(always)]
    pub(crate) fn take_list(&mut self, map: &PageMap, class: usize, count: u64) -> AreaList<S> {
        if count < self.len(class) { self.take_some(map, class, count) } else { self.take_all(class) }
    }

    fn take_some(&mut self, map: &PageMap, class: usize, count: u64) -> AreaList<S> {
        let list = AreaList::of(self.lists[class].split_front(map, count), self.size(class));
        self.count_out(class, list.areas(), list.pages());
        list
    }

    /// Takes all areas of a class.
    #[inline(always)]
    pub(crate) fn take_all(&mut self, class: usize) -> AreaList<S> {
        let list = AreaList::of(self.lists[class].take(), self.size(class));
        self.count_out(class, list.areas(), list.pages());
        list
    }

    /// Takes all areas of a class but the first `count`. Cost: O(count).
    pub(crate) fn take_behind(&mut self, map: &PageMap, class: usize, count: u64) -> AreaList<S> {
        let front = self.lists[class].split_front(map, count);
        let list = AreaList::of(core::mem::replace(&mut self.lists[class], front), self.size(class));
        self.count_out(class, list.areas(), list.pages());
        list
    }

    /// Returns the first class at or above `class` that holds an area.
    #[inline]
    pub(crate) fn next_class(&self, class: usize) -> Option<usize> {
        let mut mask = !0 << (class % 64);
        for word in class / 64..self.occupied.len() {
            let bits = self.occupied[word] & mask;
            if bits != 0 {
                return Some(word * 64 + bits.trailing_zeros() as usize);
            }
            mask = !0;
        }
        None
    }

    /// Calls `each` for the first page and the pages of every area.
    pub(crate) fn each(&self, map: &PageMap, each: &mut impl FnMut(u64, u64)) {
        self.lists.iter().for_each(|list| list.each(map, each));
    }

    /// Returns the number of areas in a class.
    #[inline(always)]
    pub(crate) fn len(&self, class: usize) -> u64 {
        self.lists[class].areas()
    }

    /// Checks PO1 to PO3 with a full walk; the caller holds the lock that guards the lists.
    pub(crate) fn validate(&self, map: &PageMap) -> Result<(), InvariantViolation> {
        let (mut areas, mut pages, mut large_pages) = (0, 0, 0);
        for (class, list) in self.lists.iter().enumerate() {
            let bit = self.occupied[class / 64] >> (class % 64) & 1;
            let at = Va::from_page(list.first().unwrap_or(0));
            let want = u64::from(!list.is_empty());
            if bit != want {
                return Err(InvariantViolation { rule: "PO2", at, expected: want, actual: bit });
            }
            let size = self.size(class);
            let (mut next, mut left) = (list.first(), list.areas());
            while left > 0 {
                let seen = next.and_then(|page| map.at(page));
                let got = seen.map_or(0, |seen| seen.pages);
                if got != size || seen.and_then(|seen| seen.word.state()) != Some(State::Idle) {
                    return Err(InvariantViolation { rule: "PO1", at, expected: size, actual: got });
                }
                next = next.map(|page| map.link(page));
                left -= 1;
            }
            areas += list.areas();
            pages += list.areas() * size;
            large_pages += if class < EXACT { 0 } else { list.areas() * size };
        }
        if (areas, pages) != (self.areas, self.pages) {
            return Err(InvariantViolation {
                rule: "PO1",
                at: Va::ZERO,
                expected: pages,
                actual: self.pages,
            });
        }
        if large_pages != self.large_pages || large_pages > LARGE_PAGES_MAX {
            return Err(InvariantViolation {
                rule: "PO3",
                at: Va::ZERO,
                expected: LARGE_PAGES_MAX,
                actual: large_pages,
            });
        }
        Ok(())
    }
}

impl Pool {
    /// Takes an area of exactly `pages`, aligned. Checks `tries` areas at most; those that do not fit go to the end.
    #[inline(always)]
    pub(crate) fn take(
        &mut self,
        map: &PageMap,
        pages: u64,
        align: Align,
        tries: u32,
    ) -> Option<UnlinkedArea<Flushed>> {
        let class = self.class(pages)?;
        let first = self.lists[class].first()?;
        if is_aligned(first, align) && tries > 0 {
            return self.pop_of(map, class, pages);
        }
        self.take_further(map, class, align, tries)
    }

    /// Takes the first area of exactly `pages`, if it is aligned.
    #[inline(always)]
    pub(crate) fn take_first(
        &mut self,
        map: &PageMap,
        pages: u64,
        align: Align,
    ) -> Option<UnlinkedArea<Flushed>> {
        let class = self.class(pages)?;
        let first = self.lists[class].first()?;
        if is_aligned(first, align) { self.pop_of(map, class, pages) } else { None }
    }

    /// Does the same as [`take`](Self::take): a call, and not in place.
    #[inline(never)]
    pub(crate) fn take_apart(
        &mut self,
        map: &PageMap,
        pages: u64,
        align: Align,
        tries: u32,
    ) -> Option<UnlinkedArea<Flushed>> {
        self.take(map, pages, align, tries)
    }

    #[cold]
    fn take_further(
        &mut self,
        map: &PageMap,
        class: usize,
        align: Align,
        tries: u32,
    ) -> Option<UnlinkedArea<Flushed>> {
        let fits = |page| is_aligned(page, align);
        if self.lists[class].rotate_to(map, u64::from(tries), fits) { self.pop(map, class) } else { None }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::map::Word;
    use crate::testing::TestMachine;

    fn loose(map: &PageMap, page: u64, pages: u64) -> UnlinkedArea<Flushed> {
        UnlinkedArea::won(page, pages, map.word(page), map.slot(page).unwrap())
    }

    /// Returns a pool of three areas of 4 pages, one of 9, and one of 300.
    fn pool() -> (PageMap, Pool) {
        let machine = TestMachine::default();
        let (map, mut marker) = PageMap::new(0, &machine).unwrap();
        let mut pool = Pool::new();
        for (page, pages) in [(0, 4), (100, 4), (200, 4), (300, 9), (400, 300)] {
            map.ensure(&mut marker, page, &machine);
            map.begin(&mut marker, page, pages, Word::new(pages, None, 1, State::Idle));
            assert!(pool.put(loose(&map, page, pages)).is_ok());
        }
        pool.validate(&map).unwrap();
        (map, pool)
    }

    fn broken(spoil: impl FnOnce(&PageMap, &mut Pool)) -> &'static str {
        let (map, mut pool) = pool();
        spoil(&map, &mut pool);
        pool.validate(&map).map_err(|broken| broken.rule).err().unwrap_or("nothing")
    }

    #[test]
    fn po1_an_area_in_the_list_of_another_size_is_named() {
        assert_eq!(broken(|map, _| map.put(300, Word::new(8, None, 1, State::Idle))), "PO1");
        assert_eq!(broken(|map, _| map.put(100, Word::new(4, None, 1, State::Busy))), "PO1");
        assert_eq!(broken(|_, pool| pool.pages += 1), "PO1");
    }

    #[test]
    fn without_tries_no_area_comes_out() {
        let (map, mut pool) = pool();
        assert!(pool.take(&map, 9, Align::PAGE, 0).is_none());
        assert!(pool.take(&map, 9, Align::PAGE, 1).is_some());
        pool.validate(&map).unwrap();
    }

    #[test]
    fn po2_a_wrong_bit_is_named() {
        assert_eq!(broken(|_, pool| pool.occupied[0] ^= 1 << 3), "PO2");
        assert_eq!(broken(|_, pool| pool.occupied[2] |= 1), "PO2");
    }

    #[test]
    fn po3_too_much_in_large_lists_is_named() {
        assert_eq!(broken(|_, pool| pool.large_pages -= 1), "PO3");
        // It is not added in the first place.
        let (map, mut pool) = pool();
        pool.large_pages = LARGE_PAGES_MAX - 300 + 1;
        assert!(pool.present_class_for(300, 299).is_some());
        assert_eq!((pool.present_class_for(300, 300), pool.present_class_for(301, 1)), (None, None));
        assert!(pool.put(loose(&map, 0, 300)).is_err());
    }

    #[test]
    fn po3_large_lists_may_be_as_large_as_the_limit() {
        let machine = TestMachine::default();
        let (map, mut marker) = PageMap::new(0, &machine).unwrap();
        let mut pool = Pool::new();
        for (page, pages) in [(100, LARGE_PAGES_MAX - 300), (1 << 30, 300), (2 << 30, 257)] {
            map.ensure(&mut marker, page, &machine);
            map.begin(&mut marker, page, pages, Word::new(pages, None, 1, State::Idle));
            assert_eq!(pool.put(loose(&map, page, pages)).is_ok(), pages != 257);
        }
        assert_eq!(pool.validate(&map), Ok(()));
    }

    #[test]
    fn an_area_of_the_right_size_comes_out_last_in_first_out() {
        let (map, mut pool) = pool();
        let pages: [Option<u64>; 4] =
            core::array::from_fn(|_| pool.take(&map, 4, Align::PAGE, 1).map(|area| area.page));
        assert_eq!(pages, [Some(200), Some(100), Some(0), None]);
        assert_eq!(pool.take(&map, 300, Align::PAGE, 1).map(|area| area.page), Some(400));
        assert_eq!((pool.areas(), pool.pages()), (1, 9));
        pool.validate(&map).unwrap();
    }
}
