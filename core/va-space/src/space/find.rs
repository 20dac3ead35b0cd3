//! Lookups: without a lock by the page map, under one lock a node by trees ([`lookup`](crate::lookup)).

use super::VmapSpace;
use crate::area::{AreaView, range_of};
use crate::config::{Config, Standard};
use crate::lookup::Lookup;
use crate::map::Seen;
use va_base::{Machine, Va, VaRange};

impl<P: Machine + Clone, C: Config> VmapSpace<P, C> {
    /// Returns the busy area that starts at `at`. Cost: O(1), no lock, by the page map.
    #[inline]
    pub fn find(&self, at: Va) -> Option<AreaView> {
        if Self::NOTIFIES_LOOKUP {
            return self.lookup.find(at, &self.machine).map(|range| self.view_of(range));
        }
        let seen = self.map.at(at.page_floor()).filter(|seen| seen.word.is_busy())?;
        if Va::from_page(seen.page) != at {
            return None;
        }
        if seen.word.is_noted() {
            return self.view_noted(seen, at).filter(|view| view.range.start() == at);
        }
        AreaView::of(seen)
    }

    /// Returns the busy area that `at` is inside. Cost: a few words for each level of the page map, whatever the sizes;
    /// no lock.
    #[inline(always)]
    pub fn find_enclosing(&self, at: Va) -> Option<AreaView> {
        if Self::NOTIFIES_LOOKUP {
            return self.lookup.enclosing(at, &self.machine).map(|range| self.view_of(range));
        }
        let seen = self.map.covering(at.page_floor()).filter(|seen| seen.word.is_busy())?;
        if seen.word.is_noted() {
            return self.view_noted(seen, at);
        }
        AreaView::of(seen)
    }

    /// Does the same where that is not the first thing that a caller does: a call.
    #[inline(never)]
    pub(super) fn find_enclosing_apart(&self, at: Va) -> Option<AreaView> {
        self.find_enclosing(at)
    }

    /// Returns the view of a noted area that `at` is inside, with its note; looks for one again while it changes.
    #[inline(never)]
    pub(super) fn view_noted(&self, mut seen: Seen, at: Va) -> Option<AreaView> {
        while seen.word.is_noted() {
            let read = self.map.steady(|| self.map.slot(seen.page).map(|slot| (slot.note(), slot.word())));
            let (note, word) = read?;
            if word == seen.word {
                return AreaView::of(seen).map(|view| AreaView { note: Some(note), ..view });
            }
            seen = self.map.covering_steady(at.page_floor()).filter(|seen| seen.word.is_busy())?;
        }
        AreaView::of(seen)
    }

    /// Returns the lowest busy area that ends above `at`: the one that `at` is inside, or the next above
    /// (`find_vmap_area_exceed_addr_lock`). Cost: that of [`find_enclosing`](Self::find_enclosing), and the idle areas
    /// in between; no lock.
    pub fn find_above(&self, at: Va) -> Option<AreaView> {
        if Self::NOTIFIES_LOOKUP {
            return self.lookup.above(at, &self.machine).map(|range| self.view_of(range));
        }
        if let Some(view) = self.find_enclosing_apart(at) {
            return Some(view);
        }
        let mut page = at.page_ceil();
        loop {
            let seen = self.map.next_busy(page)?;
            // Again, for its note; if it was freed meanwhile, the next one is returned.
            if let Some(view) = self.find(Va::from_page(seen.page)) {
                return Some(view);
            }
            page = seen.page + 1;
        }
    }

    /// Returns every area that is out of the index, in address order: busy, lazy, pooled and cached ones.
    pub fn areas(&self) -> Areas<'_, P, C> {
        self.areas_from(Va::ZERO)
    }

    /// Returns those of them that start at or above `at`.
    pub fn areas_from(&self, at: Va) -> Areas<'_, P, C> {
        Areas { space: self, page: at.page_ceil() }
    }
}

impl<P: Machine + Clone, C: Config> VmapSpace<P, C> {
    /// Calls `each` for every area that was freed and whose flush has not ended, in no order: those that Linux reports
    /// as `unpurged`. Areas in magazines are left out, in open rounds and sealed.
    ///
    /// # Locks
    /// `purge` throughout, under it `lazy` or `batched` of one node after the other, under which `each` is called: it
    /// must not call the space. Cost: O(lazy areas).
    pub fn for_each_lazy(&self, mut each: impl FnMut(VaRange)) {
        let each = &mut |page, pages| each(range_of(page, pages));
        let purge = self.lock_purge();
        purge.each_unflushed(&self.map, each);
        for (_, node) in self.each_node() {
            if !purge.has_completed() {
                self.lock_batched(node).lists().each(&self.map, each);
            }
            let lazy = self.lock_lazy(node);
            lazy.sized.each(&self.map, each);
            lazy.mixed.each(&self.map, each);
        }
        drop(purge);
        self.stop_if_lost();
    }
}

impl<P: Machine + Clone, C: Config> core::fmt::Debug for VmapSpace<P, C> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("VmapSpace").field("extent", &self.extent).finish_non_exhaustive()
    }
}

/// Areas in address order, looked up one by one.
///
/// **Consistency**: each was there, in the state returned, at the moment it was looked up, and starts above the one
/// before. An area that is out of the index during the whole iteration is returned exactly once. An area that begins or
/// ends meanwhile may be returned or not, so two areas may overlap only if the first ended in between. No lock is held
/// between two steps or in one.
pub struct Areas<'a, P: Machine + Clone, C: Config = Standard> {
    space: &'a VmapSpace<P, C>,
    page: u64,
}

impl<P: Machine + Clone, C: Config> core::fmt::Debug for Areas<'_, P, C> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Areas").field("page", &self.page).finish_non_exhaustive()
    }
}

impl<P: Machine + Clone, C: Config> Iterator for Areas<'_, P, C> {
    type Item = AreaView;

    fn next(&mut self) -> Option<AreaView> {
        let seen = self.space.map.next(self.page)?;
        self.page = seen.page + 1;
        AreaView::of(seen)
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::testing::{TestMachine, looks_of};
    use std::vec::Vec;
    use va_base::Request;

    #[test]
    fn find_above_passes_idle_areas_a_leaf_at_a_time() {
        const IDLE: u64 = 60_000;
        /// Pages that a leaf serves.
        const LEAF: u64 = 16;
        // Frees leave the areas lazy.
        let machine = TestMachine { elsewhere: true, ..TestMachine::default() };
        let all = VaRange::from_pages(LEAF, 1 << 20).unwrap();
        let space = VmapSpace::<_, Standard>::new(all, all, &machine).unwrap();
        let page = Request::pages(1).unwrap();
        let areas: Vec<_> = (0..IDLE).map(|_| space.alloc(0, &page).unwrap()).collect();
        let above = space.alloc(0, &page).unwrap();
        areas.into_iter().for_each(|area| space.free(area).unwrap());
        assert_eq!(space.lazy_pages().get(), IDLE, "nothing was purged");
        let (looks, seen) = looks_of(|| space.find_above(all.start()));
        assert_eq!(seen.map(|seen| seen.range), Some(above.range()));
        assert!(looks <= IDLE / LEAF + 32, "{looks} looks");
        // One by one there are more areas, so the looks are counted.
        let (looks, areas) = looks_of(|| space.areas().count() as u64);
        assert!(areas > IDLE && looks > IDLE, "{looks} looks");
    }
}
