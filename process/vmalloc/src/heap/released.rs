//! Addresses that are released under a limit that counts them (`RLIMIT_AS`, locked memory), for other mappings.
//!
//! # Theory
//! ```text
//!   |== live ==|  clean  |== live ==|  clean  |   above the frontier    |
//!   |== live ==|..gone...|== live ==|..gone...|..gone, until the frontier moves there|
//! ```
//! A limit counts reserved addresses as if they were used. So all cached memory becomes clean, and clean addresses are
//! unmapped, as are the dirty rests of blocks. Above a frontier they are mapped again when the frontier moves, unless a
//! foreign mapping is there. Below it they are never used again: they stay allocated in the space, and the word of each
//! page records that it is released. One load of that word shows that a pointer there may be another allocator's.
//!
//! Under a limit, a new heap begins in this state: only addresses below the frontiers are mapped.
//!
//! # Locking
//! The lock of a zone, under which the system is called.

use super::Heap;
use super::carve::Central;
use crate::PAGE_BYTES;
use crate::arena::{Arena, ZONES};
use va_base::{Pages, Va, VaRange};
use va_tree::FreeIndex;
use vmalloc_os::fork::Hold;
use vmalloc_os::os::Os;

impl<O: Os> Heap<O> {
    /// Releases all addresses without a live area. Returns false if there were none.
    pub(crate) fn release_addresses(&self) -> bool {
        if self.is_mine() {
            // A signal handler interrupted a call.
            return false;
        }
        // First, so that no node is made meanwhile.
        let _settled = self.hold_settled();
        // In the order of a fork: a thread that holds one zone never requests another.
        let mut held = [const { None }; ZONES];
        self.zones().for_each(|zone| held[zone] = Some(self.zone(zone)));
        let closed = self.arena.close();
        drop(held);
        self.release_alone();
        // Each hole splits a mapping: half of the possible ones are left to the program.
        let mut holes = 4 * self.moved_max;
        let mut pages = 0;
        for zone in self.zones() {
            pages += self.release_dirty(zone, &mut holes) + self.release_clean(zone, &mut holes);
        }
        pages > 0 || closed
    }

    /// Releases the dirty pages of a zone in blocks that are partly in use, and returns how many. At most `holes`
    /// runs. Called under `purge`.
    fn release_dirty(&self, zone: usize, holes: &mut u64) -> u64 {
        let mut central = self.zone(zone);
        let (mut from, mut pages) = (self.arena.extent(zone).start(), 0);
        while *holes > 0
            && let Some(hole) = central.dirty.hole_after(from)
        {
            (from, *holes) = (hole.end(), *holes - 1);
            // A whole run, so no record is needed.
            if central.take_dirty_at(hole) {
                central.retire_released(&self.arena, hole);
                self.arena.release(hole);
                pages += hole.len_bytes() / PAGE_BYTES as u64;
            }
        }
        pages
    }

    /// Releases the clean pages below the frontier of a zone, and returns how many.
    fn release_clean(&self, zone: usize, holes: &mut u64) -> u64 {
        self.take_clean_ranges(zone, &mut self.zone(zone), holes, |central, clean| {
            let taken = central.take_for_good(&self.arena, clean);
            if taken {
                central.retire_released(&self.arena, clean);
                self.arena.release(clean);
            }
            taken
        })
    }

    /// Calls `take` for the clean ranges below the frontier of a zone, in address order. Returns the pages of those for
    /// which it returned true: at most `holes`, since each is a mapping of its own afterwards.
    pub(super) fn take_clean_ranges(
        &self,
        zone: usize,
        central: &mut Central<O>,
        holes: &mut u64,
        mut take: impl FnMut(&mut Central<O>, VaRange) -> bool,
    ) -> u64 {
        let mut page = self.arena.extent(zone).start().page_floor();
        let (mut pages, frontier) = (0, self.arena.frontier(zone));
        while page < frontier && *holes > 0 {
            let above = central.space.find_above(Va::from_page(page));
            let (start, end) = above.map_or((frontier, frontier), |area| area.range.whole_pages());
            let clean = VaRange::from_pages(page, start.clamp(page, frontier)).unwrap_or_default();
            if !clean.is_empty() && take(central, clean) {
                (pages, *holes) = (pages + clean.len_bytes() / PAGE_BYTES as u64, *holes - 1);
            }
            page = end;
        }
        pages
    }
}

impl<O: Os> Central<O> {
    /// Removes a clean range for good. It becomes part of the area below, which needs no memory for records: while a
    /// limit is exceeded, the system provides none. Returns false if a record is needed and not available.
    #[inline(never)]
    fn take_for_good(&mut self, arena: &Arena<O>, clean: VaRange) -> bool {
        let (page, end) = clean.whole_pages();
        let zone = arena.zone_of(page);
        // Below the frontier it is a whole gap, whose spare record becomes the run's.
        let is_gap = end < arena.frontier(zone);
        if !is_gap && !is_released(arena, zone, page - 1) && self.pay().is_err() {
            return false;
        }
        let taken = match self.space.find_enclosing(Va::from_page(page - 1)) {
            Some(area) => {
                let whole = Pages::new(end - area.range.start().page_floor());
                self.space.grow_at(area.range.start(), whole).is_ok()
            }
            None => self.space.alloc_at(clean).is_ok(),
        };
        if taken {
            self.spare -= 1;
            self.gaps -= u64::from(is_gap);
        }
        taken
    }

    /// Records that a run is about to be released for good. It is one run with the released ones beside it, so their
    /// records become spare ones.
    #[inline(never)]
    pub(super) fn retire_released(&mut self, arena: &Arena<O>, range: VaRange) {
        let ((page, end), zone) = (range.whole_pages(), arena.zone_of(range.start().page_floor()));
        self.retired += end - page;
        self.spare +=
            [page - 1, end].into_iter().filter(|&beside| is_released(arena, zone, beside)).count() as u64;
    }
}

/// Returns true if a page is of this zone and was released.
fn is_released<O: Os>(arena: &Arena<O>, zone: usize, page: u64) -> bool {
    arena.zone_of(page) == zone && arena.get(page).is_released()
}
