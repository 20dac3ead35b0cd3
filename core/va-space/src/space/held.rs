//! The pages that all magazines hold together.
//!
//! A magazine publishes what it holds, so that others read it without its lock. A sum is exact while no magazine is in
//! a call. Otherwise areas may be on their way from one to another, or a magazine may be met twice.

use super::VmapSpace;
use super::cell::Cell;
use crate::config::Config;
use va_base::Machine;
use va_base::sync::atomic::Ordering;

/// With more magazines than this, the unsealed areas of others are not counted when a round ends.
const LOOKED_AT_MAX: usize = 16;

/// Pages that all magazines hold together, except sealed ones that wait for their batch.
#[derive(Clone, Copy, Default)]
pub(super) struct Held {
    pub(super) cached_pages: u64,
    pub(super) lazy_pages: u64,
}

impl Held {
    /// Returns the pages that are in no count of the space.
    pub(super) fn uncounted(&self) -> u64 {
        self.cached_pages + self.lazy_pages
    }
}

impl<P: Machine + Clone, C: Config> VmapSpace<P, C> {
    /// Returns the unsealed pages of few magazines. Those of many are not counted: they are at most half of what may be
    /// lazy.
    pub(super) fn unsealed(&self) -> u64 {
        if self.cells.magazines() <= LOOKED_AT_MAX { self.held().lazy_pages } else { 0 }
    }

    /// Counts the pages of all magazines. Cost: six loads for each.
    pub(super) fn held(&self) -> Held {
        let mut held = Held::default();
        for cell in self.cells.live() {
            let Held { cached_pages, lazy_pages } = self.held_in(cell);
            held.cached_pages += cached_pages;
            held.lazy_pages += lazy_pages;
        }
        held
    }

    /// Returns whether any magazine holds pages that are in no count of the space. Cost: that of [`held`](Self::held),
    /// or less.
    pub(super) fn is_any_held(&self) -> bool {
        self.cells.live().any(|cell| self.held_in(cell).uncounted() > 0)
    }

    #[inline(always)]
    fn held_in(&self, cell: &Cell<P::OwnerLock>) -> Held {
        let [lazy_pages, sealed, mut cached_pages] = cell.counts();
        if self.completed_batches.have_reached(cell.batch_number.load(Ordering::Acquire)) {
            cached_pages += sealed;
        }
        Held { cached_pages, lazy_pages }
    }

    /// Counts flushed areas in magazines, except those whose owner is in a call.
    pub(super) fn cached_areas(&self) -> u64 {
        let areas = |cell: &'static Cell<P::OwnerLock>| {
            let contents = cell.try_lock()?;
            let rounds = &contents.rounds;
            let completed = self.completed_batches.have_reached(rounds.batch_number().get());
            Some(contents.cache.areas() + if completed { rounds.sealed().areas() } else { 0 })
        };
        self.cells.live().filter_map(areas).sum()
    }
}
