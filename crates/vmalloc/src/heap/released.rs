//! Addresses that are released where a limit counts them (`RLIMIT_AS`, locked memory), so that others find some.
//!
//! # Theory
//! ```text
//!   |== live ==|  clean  |== live ==|  clean  |   above the frontier    |
//!   |== live ==|..gone...|== live ==|..gone...|..gone, until the frontier moves there|
//! ```
//! A limit counts reserved addresses as if they were used. So everything that is cached becomes clean, and what is
//! clean is unmapped, as are the dirty rests of blocks. Above a frontier it is mapped again when the frontier moves,
//! unless others have mapped something there. Below it is gone for good: it is allocated in the space, and the word of
//! each of its pages says that it is released. A pointer there may be another allocator's, which one load of that word
//! tells.
//!
//! Where there is a limit when a heap is made, it begins like this: only what is below the frontiers is mapped.
//!
//! # Locking
//! That of a zone, in which the system is called.

use super::Heap;
use super::carve::Central;
use crate::PAGE_BYTES;
use crate::arena::ZONES;
use crate::fork::Hold;
use crate::os::Os;
use va_base::{Va, VaRange};
use va_tree::FreeIndex;

impl<O: Os> Heap<O> {
    /// Releases all addresses that no area has; `false` if there were none.
    pub(crate) fn release_addresses(&self) -> bool {
        if self.is_mine() {
            // A handler of a signal interrupted a call.
            return false;
        }
        // In the order of a fork: whoever has one zone asks for no other.
        let held = [self.zone(0), self.zone(1)];
        let closed = self.arena.close();
        drop(held);
        let _settled = self.hold_settled();
        self.release_alone();
        (0..ZONES).map(|zone| self.release_dirty(zone) + self.release_clean(zone)).sum::<u64>() > 0 || closed
    }

    /// Releases the dirty pages of a zone, of blocks that live areas have the rest of; returns how many. Called under
    /// `purge`.
    fn release_dirty(&self, zone: usize) -> u64 {
        let mut central = self.zone(zone);
        let (mut from, mut pages, mut parts) = (self.arena.extent(zone).start(), 0, 0);
        // Each splits a mapping, of which there may be so many.
        while parts < self.moved_max
            && let Some(hole) = central.dirty.hole_after(from)
        {
            (from, parts) = (hole.end(), parts + 1);
            // It stays as it is for want of records.
            if central.take_dirty_at(hole) {
                central.retired += hole.len_bytes() / PAGE_BYTES as u64;
                self.arena.release(hole);
                pages += hole.len_bytes() / PAGE_BYTES as u64;
            }
        }
        pages
    }

    /// Releases the clean pages below the frontier of a zone; returns how many.
    fn release_clean(&self, zone: usize) -> u64 {
        self.take_clean_ranges(zone, &mut self.zone(zone), |central, clean| {
            let taken = central.take_for_good(clean);
            if taken {
                self.arena.release(clean);
            }
            taken
        })
    }

    /// Calls `take` for the clean ranges below the frontier of a zone, in address order. Returns the pages of those for
    /// which it returned true. Each is a mapping of its own afterwards, so there are `moved_max` at most.
    pub(super) fn take_clean_ranges(
        &self,
        zone: usize,
        central: &mut Central<O>,
        mut take: impl FnMut(&mut Central<O>, VaRange) -> bool,
    ) -> u64 {
        let mut page = self.arena.extent(zone).start().page_floor();
        let (mut pages, mut parts, frontier) = (0, 0, page + self.arena.committed_pages(zone));
        while page < frontier && parts < self.moved_max {
            let above = central.space.find_above(Va::from_page(page));
            let (start, end) = above.map_or((frontier, frontier), |area| area.range.whole_pages());
            let clean = VaRange::from_pages(page, start.clamp(page, frontier)).unwrap_or_default();
            if !clean.is_empty() && take(central, clean) {
                (pages, parts) = (pages + clean.len_bytes() / PAGE_BYTES as u64, parts + 1);
            }
            page = end;
        }
        pages
    }
}

impl<O: Os> Central<O> {
    /// Takes a clean range that is never allocated again; `false` for want of records.
    fn take_for_good(&mut self, clean: VaRange) -> bool {
        let taken = self.pay().is_ok() && self.space.alloc_at(clean).is_ok();
        if taken {
            self.spare -= 1;
            self.retired += clean.len_bytes() / PAGE_BYTES as u64;
        }
        taken
    }
}
