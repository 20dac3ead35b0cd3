//! The pool of a node, or of a magazine: flushed areas, ready to be given out, by exact size.
//!
//! # Theory
//! An area of the right size that is flushed already costs neither the free index nor its lock. Up to
//! [`EXACT_PAGES_MAX`] pages each size has its own list, last in first out; above, the few sizes that are in use at the
//! moment share [`LARGE_SIZES`] more, so that a pair of 257 pages is no slower than one of 256.
//!
//! # Invariants
//! - **PO1 exact** every area in the list of a size has that size.
//! - **PO2 occupied** the bit of a list is set exactly when it holds an area.
//! - **PO3 bounded** the lists of large sizes hold at most [`LARGE_PAGES_MAX`] pages together.
//!
//! # Locking
//! None here: the node has the lock, the magazine its owner.
//! # Source
//! Linux `mm/vmalloc.c` (6.12: `node_pool_add_va`, `node_alloc`); the large sizes are our own.

use crate::list::{AreaList, Flushed, Loose};
use crate::map::{PageMap, State};
use va_base::{Align, Broken, Va};

/// Largest size with a list of its own, in pages.
pub const EXACT_PAGES_MAX: u64 = 256;
/// Sizes above that which can be pooled at a time.
pub const LARGE_SIZES: usize = 8;
/// Pages that they may hold together in one node: 64 MiB.
pub const LARGE_PAGES_MAX: u64 = 16 << 10;

const EXACT: usize = EXACT_PAGES_MAX as usize;
pub(crate) const CLASSES: usize = EXACT + LARGE_SIZES;

/// Flushed areas of one node.
pub(crate) struct Pool {
    lists: [AreaList<Flushed>; CLASSES],
    /// Size of the areas in each list of large areas; of any size while the list is empty.
    large: [u64; LARGE_SIZES],
    large_pages: u64,
    occupied: [u64; CLASSES.div_ceil(64)],
    areas: u64,
    pages: u64,
    /// What its areas are: [`State::Pooled`] or [`State::Cached`].
    state: State,
}

impl Pool {
    pub(crate) fn new(state: State) -> Self {
        Self {
            lists: [const { AreaList::new() }; CLASSES],
            large: [0; LARGE_SIZES],
            large_pages: 0,
            occupied: [0; CLASSES.div_ceil(64)],
            areas: 0,
            pages: 0,
            state,
        }
    }

    pub(crate) fn areas(&self) -> u64 {
        self.areas
    }

    pub(crate) fn pages(&self) -> u64 {
        self.pages
    }

    /// The list that holds areas of `pages`, if there is one.
    #[inline]
    pub(crate) fn class(&self, pages: u64) -> Option<usize> {
        if pages <= EXACT_PAGES_MAX {
            return Some(pages as usize - 1);
        }
        let large = self.large.iter().position(|&size| size == pages)?;
        Some(EXACT + large)
    }

    /// The list for one more area of `pages`.
    fn class_for(&mut self, pages: u64) -> Option<usize> {
        if pages > EXACT_PAGES_MAX && self.large_pages + pages > LARGE_PAGES_MAX {
            return None;
        }
        self.class(pages).or_else(|| {
            let vacant = self.lists[EXACT..].iter().position(AreaList::is_empty)?;
            self.large[vacant] = pages;
            Some(EXACT + vacant)
        })
    }

    /// Takes an area of exactly `pages`, aligned. Looks at `tries` areas at most; those that do not suit go to the end.
    #[inline]
    pub(crate) fn take(
        &mut self,
        map: &PageMap,
        pages: u64,
        align: Align,
        tries: u32,
    ) -> Option<Loose<Flushed>> {
        let class = self.class(pages)?;
        for _ in 0..u64::from(tries).min(self.lists[class].areas()) {
            let first = self.lists[class].first()?;
            if Va::from_page(first).is_aligned(align) {
                return self.pop(map, class);
            }
            self.lists[class].rotate(map);
        }
        None
    }

    /// Takes the first area of a class.
    #[inline]
    pub(crate) fn pop(&mut self, map: &PageMap, class: usize) -> Option<Loose<Flushed>> {
        let list = &mut self.lists[class];
        let area = list.pop_front(map)?;
        if list.is_empty() {
            self.occupied[class / 64] &= !(1 << (class % 64));
        }
        self.areas -= 1;
        self.pages -= area.pages;
        if class >= EXACT {
            self.large_pages -= area.pages;
        }
        Some(area)
    }

    /// Puts an area in, or gives it back if the pool has no list for its size.
    ///
    /// # Errors
    /// The area.
    #[inline]
    pub(crate) fn put(&mut self, map: &PageMap, area: Loose<Flushed>) -> Result<(), Loose<Flushed>> {
        let Some(class) = self.class_for(area.pages) else { return Err(area) };
        self.areas += 1;
        self.pages += area.pages;
        if class >= EXACT {
            self.large_pages += area.pages;
        }
        self.occupied[class / 64] |= 1 << (class % 64);
        self.lists[class].push_front(map, area, self.state);
        Ok(())
    }

    /// The first class at or above `class` that holds an area.
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

    /// Areas in a class.
    pub(crate) fn len(&self, class: usize) -> u64 {
        self.lists[class].areas()
    }

    /// Checks PO1 to PO3 with a full walk; the lock is held.
    pub(crate) fn validate(&self, map: &PageMap) -> Result<(), Broken> {
        let (mut areas, mut pages, mut large_pages) = (0, 0, 0);
        for (class, list) in self.lists.iter().enumerate() {
            let bit = self.occupied[class / 64] >> (class % 64) & 1;
            let at = Va::from_page(list.first().unwrap_or(0));
            let want = u64::from(!list.is_empty());
            if bit != want {
                return Err(Broken { rule: "PO2", at, want, got: bit });
            }
            let size = if class < EXACT { class as u64 + 1 } else { self.large[class - EXACT] };
            let (mut next, mut left) = (list.first(), list.areas());
            while left > 0 {
                let seen = next.and_then(|page| map.at(page));
                let got = seen.map_or(0, |seen| seen.pages);
                if got != size || seen.and_then(|seen| seen.word.state()) != Some(self.state) {
                    return Err(Broken { rule: "PO1", at, want: size, got });
                }
                next = next.map(|page| map.link(page));
                left -= 1;
            }
            areas += list.areas();
            pages += list.areas() * size;
            large_pages += if class < EXACT { 0 } else { list.areas() * size };
        }
        if (areas, pages) != (self.areas, self.pages) {
            return Err(Broken { rule: "PO1", at: Va::ZERO, want: pages, got: self.pages });
        }
        if large_pages != self.large_pages || large_pages > LARGE_PAGES_MAX {
            return Err(Broken { rule: "PO3", at: Va::ZERO, want: LARGE_PAGES_MAX, got: large_pages });
        }
        Ok(())
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::map::Word;
    use crate::testing::TestMachine;

    /// A pool of three areas of 4 pages, one of 9, and one of 300.
    fn pool() -> (PageMap, Pool) {
        let machine = TestMachine::default();
        let (map, mut marker) = PageMap::new(0, &machine).unwrap();
        let mut pool = Pool::new(State::Pooled);
        for (page, pages) in [(0, 4), (100, 4), (200, 4), (300, 9), (400, 300)] {
            assert!(map.reserve(page, pages, &machine));
            map.begin(&mut marker, page, pages, Word::new(pages, None, 1, State::Busy));
            assert!(pool.put(&map, Loose::won(page, pages, map.word(page))).is_ok());
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
        assert_eq!(broken(|map, _| map.put(300, Word::new(8, None, 1, State::Pooled))), "PO1");
        assert_eq!(broken(|map, _| map.put(100, Word::new(4, None, 1, State::Busy))), "PO1");
        assert_eq!(broken(|_, pool| pool.pages += 1), "PO1");
    }

    #[test]
    fn po2_a_wrong_bit_is_named() {
        assert_eq!(broken(|_, pool| pool.occupied[0] ^= 1 << 3), "PO2");
        assert_eq!(broken(|_, pool| pool.occupied[2] |= 1), "PO2");
    }

    #[test]
    fn po3_too_much_in_large_lists_is_named() {
        assert_eq!(broken(|_, pool| pool.large_pages -= 1), "PO3");
        // And is not taken in to begin with.
        let (map, mut pool) = pool();
        pool.large_pages = LARGE_PAGES_MAX - 300 + 1;
        assert!(pool.put(&map, Loose::won(900, 300, Word::new(300, None, 1, State::Busy))).is_err());
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
