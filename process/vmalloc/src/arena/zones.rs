//! The zones of an arena: which addresses are for areas of which size, and of which CPUs.
//!
//! # Theory
//! ```text
//!   |      small zones     |              huge zones              |
//!   |   0   | 1 | 2 | ...  | 1 | 2 | ...  |          0            |   of nodes 0, 1, 2, ... 15
//!   |==rw== |=  |=  |      |=  |=  |      |=====rw====            |
//! ```
//! A **node** (`heap/nodes.rs`) has a small zone, for areas below 64 KiB, and a huge zone for larger ones, on huge
//! pages if [`HugePages`] requests them. With [`HugePages::System`] the bound is 4 MiB. Node 0 is for all CPUs. A
//! sixteenth of the arena is in its small zone, or half of it with `HugePages::System`. The zones of the other nodes have
//! a 128th of it each, and an arena of less than 64 GiB has no other nodes. The advice for huge pages, if any, is set
//! once, for all zones of a kind, before they have a page. Two comparisons yield the zone of a page of node 0.
//! # Source
//! Our own. Figures: `docs/decisions/0014-two-zones.md`, `docs/decisions/0110-nodes-of-a-heap.md`.

use super::{Arena, HUGE_PAGES, PAGE_BYTES, address};
use crate::options::HugePages;
use va_base::VaRange;
use vmalloc_os::os::{Os, Span};

/// Nodes of an arena.
pub(crate) const NODES: usize = 16;
/// Zones of a node: that of small areas, then that of large ones. Zone `node * KINDS + kind` is of that node.
pub(crate) const KINDS: usize = 2;
pub(crate) const ZONES: usize = NODES * KINDS;
/// The kinds, which are the zones of node 0, too.
pub(crate) const SMALL: usize = 0;
pub(crate) const HUGE: usize = 1;
/// The part of the pages that is in each zone of the other nodes, and the fewest pages of an arena that has them.
const NODE_SHARE: u64 = 128;
const NODED_PAGES_MIN: u64 = (64 << 30) / PAGE_BYTES as u64;
/// Areas of fewer pages are small: 64 KiB; with [`HugePages::System`] 4 MiB, from which on programs request huge pages
/// themselves.
const SMALL_PAGES: u64 = 16;
const SMALL_PAGES_SYSTEM: u64 = 1024;

/// The bounds of the zones of an arena, in pages from its first.
pub(super) struct Layout {
    /// The end of the small zone of node 0.
    pub(super) small: u64,
    /// The start of the huge zone of node 0.
    pub(super) below_huge: u64,
    /// The pages of each zone in between.
    pub(super) noded: u64,
}

impl Layout {
    /// Returns the zones of an arena of that many pages.
    pub(super) fn new(pages: u64, huge_pages: HugePages) -> Self {
        let share = if huge_pages == HugePages::System { 2 } else { 16 };
        let small = pages / share / HUGE_PAGES * HUGE_PAGES;
        let noded = if pages < NODED_PAGES_MIN { 0 } else { 1 << (pages / NODE_SHARE).ilog2() };
        Self { small, below_huge: small + (ZONES - KINDS) as u64 * noded, noded }
    }
}

impl<O: Os> Arena<O> {
    /// Advises the system on huge pages for all zones.
    pub(super) fn advise_all(&self) {
        let middle = self.first + self.small + (NODES - 1) as u64 * self.noded;
        for (kind, start, end) in [(SMALL, self.first, middle), (HUGE, middle, self.first + self.pages)] {
            self.advise(kind, Span { at: address(start), bytes: address(end - start) });
        }
    }

    /// Returns true if a zone is to have huge pages.
    pub(crate) fn has_huge_pages(&self, zone: usize) -> bool {
        zone % KINDS == HUGE && self.huge_pages != HugePages::Never
    }

    /// Returns true if the arena has other nodes than node 0.
    pub(crate) fn has_nodes(&self) -> bool {
        self.noded > 0
    }

    /// Returns the pages of a zone.
    pub(crate) fn extent(&self, zone: usize) -> VaRange {
        let (start, end) = match zone {
            SMALL => (0, self.small),
            HUGE => (self.below_huge, self.pages),
            _ => {
                let (node, kind) = (zone / KINDS - 1, zone % KINDS);
                let start = self.small + (kind * (NODES - 1) + node) as u64 * self.noded;
                (start, start + self.noded)
            }
        };
        VaRange::from_pages(self.first + start, self.first + end).unwrap_or_default()
    }

    /// Returns the zone of a page of the arena.
    #[inline(never)]
    pub(crate) fn zone_of(&self, page: u64) -> usize {
        self.place_of(page.wrapping_sub(self.first)).0
    }

    /// Returns the kind of the zone of a page of the arena.
    pub(crate) fn kind_of(&self, page: u64) -> usize {
        self.zone_of(page) % KINDS
    }

    /// Returns the zone of the page with that index in the arena, and the index of the zone's first page.
    #[inline(always)]
    pub(super) fn place_of(&self, index: u64) -> (usize, u64) {
        if index < self.small {
            (SMALL, 0)
        } else if index >= self.below_huge {
            (HUGE, self.below_huge)
        } else {
            let nth = (index - self.small) >> self.noded.trailing_zeros();
            let (kind, before) = if nth < NODES as u64 - 1 { (SMALL, 0) } else { (HUGE, NODES as u64 - 1) };
            ((nth - before + 1) as usize * KINDS + kind, self.small + nth * self.noded)
        }
    }

    /// Returns the kind of zone for areas of that many pages.
    #[inline]
    pub(crate) fn kind_for(&self, pages: u64) -> usize {
        if pages >= self.huge_min() { HUGE } else { SMALL }
    }

    /// Returns the least pages of areas in the zone of large areas.
    #[inline]
    pub(crate) fn huge_min(&self) -> u64 {
        match self.huge_pages {
            HugePages::Always => 0,
            HugePages::System => SMALL_PAGES_SYSTEM,
            HugePages::Auto | HugePages::Never => SMALL_PAGES,
        }
    }
}
