//! Pages that slabs keep in vain: the balance finds them, so that they can be depopulated.
//!
//! # Theory
//! A slab need not begin or end at a page. For example, a slab of 64 slots of 40 bytes has 2,560 bytes, so two of three
//! cross into the next page. If one object of such a slab stays, both pages are in use, although one of them has nothing
//! but unused slots. Without slabs only the page of that object would be. So after many frees the balance looks for
//! pages in which all used bits are unused slots, and dissolves the slabs there ([`dissolve`](super::dissolve)). An
//! object stays where it is.
//!
//! ```text
//!   page      |-------- 1 --------|-------- 2 --------|
//!   slabs       |== A ===|=== B ===|=== C ===|            one slot in use in A and C, none in the part of B in page 2
//! ```
//!
//! A search is due once unused slots have grown by a sixteenth of the bytes of all slabs since the last one, and by
//! four pages. First the pages of a chunk are counted that can be had. Its slabs are dissolved only if the chunk can be
//! depopulated then: a quarter of it would be unused, or it is depopulated anyway.
//!
//! # Cost
//! A step reads no more than [`GRANULES_MOST`] granules and dissolves no more than [`SLABS_MOST`] slabs or one more. A
//! slab that becomes partly free costs one addition, and each sixteenth one a sum over the classes.

use super::super::Store;
use super::dissolve::{GRANULES_MOST, SLABS_MOST};
use super::{ALL_FREE, GRANULE_BYTES, SLOTS, Slab};
use crate::bitmap;
use crate::chunk::NIL;
use crate::config::Config;
use va_base::PAGE_SIZE;

/// Granules of a page.
const PAGE_GRANULES: u32 = PAGE_SIZE as u32 / GRANULE_BYTES;
/// A search is due once unused slots grew by one byte in so many of all slabs.
const SHARE: u64 = 16;
/// Nor is it due before they grew by so many bytes.
const LITTLE: u64 = 4 * PAGE_SIZE;
/// Slabs that become partly free between two looks at the sum.
const LINKS: u8 = 16;

/// The progress of a search through all chunks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Search {
    row: u32,
    page: u32,
    /// Pages of the chunk that can be had, while they are counted.
    found: u32,
    /// They were counted, and their slabs are dissolved.
    dissolves: bool,
    /// A chunk whose slabs were dissolved and that cannot be depopulated until others have spare pages.
    waiting: u32,
}

impl Search {
    /// Begins with the chunk of a row.
    fn at(row: u32, waiting: u32) -> Self {
        Self { row, page: 0, found: 0, dissolves: false, waiting }
    }
}

impl<C: Config> Store<C> {
    /// Notes that a slab became partly free. Returns whether a search is due.
    pub(super) fn note_link(&mut self) -> bool {
        self.classes.links = self.classes.links.wrapping_add(1);
        self.classes.links.is_multiple_of(LINKS) && self.search().is_some()
    }

    /// Returns a search, if enough slots were freed since the last one.
    pub(crate) fn search(&mut self) -> Option<Search> {
        let unused = self.classes.unused_bytes();
        self.classes.searched = self.classes.searched.min(unused);
        let more = unused - self.classes.searched;
        let due = self.by_page && more >= LITTLE && more * SHARE >= self.classes.bytes();
        due.then_some(Search::at(0, NIL))
    }

    /// Continues a search. Returns the rest of it; `None` at its end.
    pub(crate) fn continue_search(&mut self, mut at: Search) -> Option<Search> {
        let (mut pages, mut slabs) = (GRANULES_MOST / PAGE_GRANULES, 0);
        while pages > 0 && slabs < SLABS_MOST {
            pages -= 1;
            if at.row >= self.rows().end {
                self.classes.searched = self.classes.unused_bytes();
                return None;
            }
            let chunk = self.chunk(at.row);
            if !chunk.is_in_use() || !chunk.sliced || chunk.immutable {
                at = Search::at(at.row + 1, at.waiting);
            } else if at.page < chunk.pages {
                if self.is_kept_in_vain(at.row, at.page) {
                    at.found += 1;
                    if at.dissolves {
                        slabs += self.dissolve_page(at.row, at.page);
                    }
                }
                at.page += 1;
            } else if at.dissolves {
                let waiting = self.reclaim_or_wait(at.row, at.waiting);
                at = Search::at(at.row + 1, waiting);
            } else {
                let unused = chunk.empty + at.found as i32;
                let enough = chunk.isolated || unused >= (chunk.pages / 4) as i32;
                at = match at.found > 0 && enough {
                    true => Search { page: 0, found: 0, dissolves: true, ..at },
                    false => Search::at(at.row + 1, at.waiting),
                };
            }
        }
        Some(at)
    }

    /// Lets a chunk be depopulated, and then the one that waits; returns the one that waits from now on.
    fn reclaim_or_wait(&mut self, row: u32, waiting: u32) -> u32 {
        if !self.should_reclaim(row) {
            return row;
        }
        self.isolate(row);
        if waiting == NIL || !self.chunk(waiting).is_in_use() || !self.should_reclaim(waiting) {
            return waiting;
        }
        self.isolate(waiting);
        NIL
    }

    /// Returns whether a page is populated and in use, and has nothing but unused slots of slabs with others in use.
    fn is_kept_in_vain(&self, row: u32, page: u32) -> bool {
        let first = page * PAGE_GRANULES;
        let mut slabs = false;
        bitmap::is_set(self.populated(row), page)
            && (first..first + PAGE_GRANULES).all(|granule| {
                let Slab { class, back, .. } = *self.classes.rows.at(row, granule);
                if class == 0 {
                    // A granule has a word of bits.
                    return self.words.at(row, granule).0 == 0;
                }
                slabs = true;
                let (class, back) = (u32::from(class), u32::from(back));
                let free = self.classes.rows.at(row, granule - back).free;
                // The slots that have a bit here.
                let (from, to) = (back * SLOTS / class, (back * SLOTS + SLOTS - 1) / class);
                let here = (ALL_FREE >> (SLOTS - 1 - (to - from))) << from;
                free != ALL_FREE && free & here == here
            })
            && slabs
    }

    /// Dissolves the slabs of a page. Returns their number.
    fn dissolve_page(&mut self, row: u32, page: u32) -> u32 {
        let mut count = 0;
        for granule in page * PAGE_GRANULES..(page + 1) * PAGE_GRANULES {
            if let Some((class, granule, &mut Slab { free, .. })) = self.classes.find(row, granule) {
                self.dissolve_slab(class, row, granule, free);
                count += 1;
            }
        }
        count
    }
}
