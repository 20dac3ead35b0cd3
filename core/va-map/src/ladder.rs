//! The size of each entry: as large as address, page numbers and length allow.
//!
//! # Theory
//! Sizes are binary logarithms of pages, ascending, the first 0; a *rung* is an index of one. An entry of rung `r`
//! begins at an address page and at a page number that are both multiples of `2^sizes[r]`. So a run can have one only
//! if page number and address page are congruent modulo that, and then it can have one for every whole block inside.
//!
//! ```text
//!   sizes [0, 2, 4]      page numbers 35 ..       congruent modulo 16:
//!   address page  3 | 4       | 8       | 12      | 16                                  | 32
//!   rung          0 | 1       | 1       | 1       | 2                                   | ...
//! ```
//! An area is aligned to the largest entry that its pages can have: any larger alignment changes no entry.
//!
//! Cost: O(sizes) for each step; a step ends where a larger entry begins.

use crate::machine::{LEAF_SIZES_MAX, Run};
use crate::request::PageList;
use va_base::{Align, PAGE_SHIFT};

/// Entries to be written next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Step {
    /// Index of their size in the ladder.
    pub(crate) rung: usize,
    /// Pages that they map together.
    pub(crate) pages: u64,
}

/// Returns whether sizes are a ladder: 0 first, ascending, of sizes that an address space can hold.
pub(crate) const fn is_ladder(sizes: &[u32]) -> bool {
    if sizes.is_empty() || sizes[0] != 0 || sizes.len() > LEAF_SIZES_MAX {
        return false;
    }
    let mut rung = 1;
    while rung < sizes.len() {
        if sizes[rung] <= sizes[rung - 1] || sizes[rung] >= u64::BITS - PAGE_SHIFT - 1 {
            return false;
        }
        rung += 1;
    }
    true
}

/// Returns the largest rung up to `top` of which an entry begins at address page `page` and fits `pages` pages.
pub(crate) fn rung(sizes: &[u32], top: usize, page: u64, pages: u64) -> usize {
    let fits = |&rung: &usize| page.is_multiple_of(1 << sizes[rung]) && pages >> sizes[rung] > 0;
    (1..=top).rev().find(fits).unwrap_or(0)
}

/// Returns the pages from address page `page` to the first one at which an entry of a rung above `rung` up to `top` can
/// begin, `pages` at most.
pub(crate) fn edge(sizes: &[u32], rung: usize, top: usize, page: u64, pages: u64) -> u64 {
    if rung == top {
        return pages;
    }
    // A larger entry begins, if at all, where one of the next rung can.
    let size = 1u64 << sizes[rung + 1];
    let edge = size - page % size;
    if pages < edge || (pages - edge) < size { pages } else { edge }
}

/// Returns the entries to be written next for a run at address page `page`, none above rung `top`.
pub(crate) fn step(sizes: &[u32], top: usize, page: u64, run: Run) -> Step {
    // `wrapping_sub`: congruence modulo a power of two.
    let apart = page.wrapping_sub(run.first);
    let top = (1..=top).rev().find(|&rung| apart.is_multiple_of(1 << sizes[rung])).unwrap_or(0);
    let rung = rung(sizes, top, page, run.pages);
    let pages = edge(sizes, rung, top, page, run.pages);
    Step { rung, pages: pages >> sizes[rung] << sizes[rung] }
}

/// Returns the largest rung of which a run could have an entry at address page `page`.
pub(crate) fn best(sizes: &[u32], page: u64, run: Run) -> usize {
    let apart = page.wrapping_sub(run.first);
    let holds = |&rung: &usize| {
        let size = 1u64 << sizes[rung];
        let lead = page.wrapping_neg() % size;
        apart.is_multiple_of(size) && run.pages >= lead && run.pages - lead >= size
    };
    (1..sizes.len()).rev().find(holds).unwrap_or(0)
}

/// Returns the largest rung of which pages in this order could have an entry, if they begin at a multiple of it.
pub(crate) fn best_of_list<L: PageList + ?Sized>(sizes: &[u32], list: &L) -> usize {
    let (mut place, mut rung) = (0, 0);
    // A list with fewer pages than the smallest large entry cannot have one, so it is not read.
    let Some(&least) = sizes.get(1) else { return 0 };
    while (list.count() - place) >> least > 0 && rung + 1 < sizes.len() {
        let run = list.run(place);
        rung = rung.max(best(sizes, place, run));
        place += run.pages;
    }
    rung
}

/// Returns the alignment of an area whose largest entry is of a rung.
pub(crate) fn align(sizes: &[u32], rung: usize) -> Align {
    Align::from_log2(sizes[rung] + PAGE_SHIFT).unwrap_or(Align::PAGE)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    const SIZES: &[u32] = &[0, 2, 4];

    /// Returns every entry of a run, as (page, log2).
    fn entries(sizes: &[u32], top: usize, page: u64, run: Run) -> Vec<(u64, u32)> {
        let (mut done, mut entries) = (0, Vec::new());
        while done < run.pages {
            let rest = Run { first: run.first + done, pages: run.pages - done };
            let step = step(sizes, top, page + done, rest);
            assert!(step.pages > 0 && step.rung <= top);
            for at in (0..step.pages).step_by(1 << sizes[step.rung]) {
                entries.push((page + done + at, sizes[step.rung]));
            }
            done += step.pages;
        }
        entries
    }

    /// Returns the largest entry at each page, by exhaustive search.
    fn model(sizes: &[u32], top: usize, page: u64, run: Run) -> Vec<(u64, u32)> {
        let (mut done, mut entries) = (0, Vec::new());
        while done < run.pages {
            let fits = |&&log2: &&u32| {
                (page + done).is_multiple_of(1 << log2)
                    && (run.first + done).is_multiple_of(1 << log2)
                    && done + (1 << log2) <= run.pages
            };
            let log2 = *sizes[..=top].iter().rev().find(fits).unwrap();
            entries.push((page + done, log2));
            done += 1 << log2;
        }
        entries
    }

    #[test]
    fn mp4_entries_are_as_large_as_each_page_allows() {
        for top in 0..SIZES.len() {
            for page in 0..40 {
                for (first, pages) in (0..40).flat_map(|first| (1..70).map(move |pages| (first, pages))) {
                    let run = Run { first, pages };
                    let found = entries(SIZES, top, page, run);
                    assert_eq!(found, model(SIZES, top, page, run), "{run:?} at {page}, top {top}");
                    if top + 1 == SIZES.len() {
                        let largest = found.iter().map(|entry| entry.1).max().unwrap();
                        assert_eq!(SIZES[best(SIZES, page, run)], largest, "{run:?} at {page}");
                    }
                }
            }
        }
    }

    #[test]
    fn an_area_is_aligned_to_the_largest_entry_that_its_pages_can_have() {
        // Pages 16 to 47 at index 0, at index 3, and at index 4, after pages that are not consecutive.
        for (lead, rung) in [(0, 2), (3, 0), (4, 1), (16, 2)] {
            let lead = (0..lead).map(|n| 1000 + n * 2);
            let list: Vec<u64> = lead.chain(16..48).collect();
            assert_eq!(best_of_list(SIZES, list.as_slice()), rung);
        }
        assert_eq!(best_of_list(SIZES, [0, 1, 2].as_slice()), 0);
        assert_eq!(best_of_list(&[0], (0..64).collect::<Vec<u64>>().as_slice()), 0);
        assert_eq!(best_of_list(&[0, 9, 18], (512..1024).collect::<Vec<u64>>().as_slice()), 1);
    }

    #[test]
    fn pages_too_few_for_a_large_entry_are_not_read() {
        /// Consecutive pages from 1 on, of which a run may be read where it begins below a bound.
        struct Bounded(u64, u64);
        impl PageList for Bounded {
            fn count(&self) -> u64 {
                self.0
            }

            fn page(&self, place: u64) -> u64 {
                1 + place
            }

            fn run(&self, place: u64) -> Run {
                assert!(place < self.1, "read at {place}");
                Run { first: self.page(place), pages: 2 }
            }
        }
        assert_eq!(best_of_list(SIZES, &Bounded(3, 0)), 0);
        assert_eq!(best_of_list(SIZES, &Bounded(9, 6)), 0);
    }

    #[test]
    fn a_ladder_begins_with_single_pages_and_ascends() {
        for (sizes, right) in [
            (&[0][..], true),
            (&[0, 4, 9, 18], true),
            (&[], false),
            (&[1, 2], false),
            (&[0, 0], false),
            (&[0, 9, 4], false),
            (&[0, 63], false),
            (&[0, 51], false),
            (&[0, 50], true),
            (&[0, 1, 2, 3, 4, 5, 6, 7], true),
            (&[0, 1, 2, 3, 4, 5, 6, 7, 8], false),
        ] {
            assert_eq!(is_ladder(sizes), right, "{sizes:?}");
        }
    }
}
