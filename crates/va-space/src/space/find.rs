//! Lookups: without a lock by the page map, under one lock a node by trees ([`lookup`](crate::lookup)).

use super::VmapSpace;
use crate::area::AreaView;
use crate::config::Config;
use crate::lookup::Lookup;
use crate::map::State;
use va_base::{Machine, Va};

impl<P: Machine + Clone, C: Config> VmapSpace<P, C> {
    /// The busy area that starts at `at`. Cost: O(1), no lock, by the page map.
    #[inline]
    pub fn find(&self, at: Va) -> Option<AreaView> {
        if Self::TELLS {
            return self.lookup.find(at, &self.machine).map(|range| self.view_of(range));
        }
        let seen = self.map.at(at.page_floor()).filter(|seen| seen.word.is_busy())?;
        (Va::from_page(seen.page) == at).then(|| AreaView::of(seen))?
    }

    /// The busy area that `at` is inside. Cost: a few words for each level of the page map, whatever the sizes; no lock.
    #[inline(always)]
    pub fn find_enclosing(&self, at: Va) -> Option<AreaView> {
        if Self::TELLS {
            return self.lookup.enclosing(at, &self.machine).map(|range| self.view_of(range));
        }
        let seen = self.map.covering(at.page_floor()).filter(|seen| seen.word.is_busy())?;
        AreaView::of(seen)
    }

    /// The lowest busy area that ends above `at`: the one that `at` is inside, or the next above
    /// (`find_vmap_area_exceed_addr_lock`). Cost: as [`find_enclosing`](Self::find_enclosing), and the areas out of use
    /// in between; no lock.
    pub fn find_above(&self, at: Va) -> Option<AreaView> {
        if Self::TELLS {
            return self.lookup.above(at, &self.machine).map(|range| self.view_of(range));
        }
        self.find_enclosing(at).or_else(|| self.areas_from(at).find(|seen| seen.state == State::Busy))
    }

    /// Every area that is out of the index, in address order: busy ones, and those lazy, pooled or cached.
    pub fn areas(&self) -> Areas<'_, P, C> {
        self.areas_from(Va::ZERO)
    }

    /// The same, of those that start at or above `at`.
    pub fn areas_from(&self, at: Va) -> Areas<'_, P, C> {
        Areas { space: self, page: at.page_ceil() }
    }
}

/// Areas in address order, looked up one by one.
///
/// **Consistency**: each was there, in the state told, at the moment it was looked up, and starts above the one before. What was out
/// of the index from before the iteration until after it is met exactly once. What came or went meanwhile may be met or
/// not, so two areas met may overlap only if the first went in between. No lock is held between two steps or in one.
pub struct Areas<'a, P: Machine + Clone, C: Config> {
    space: &'a VmapSpace<P, C>,
    page: u64,
}

impl<P: Machine + Clone, C: Config> Iterator for Areas<'_, P, C> {
    type Item = AreaView;

    fn next(&mut self) -> Option<AreaView> {
        let seen = self.space.map.next(self.page)?;
        self.page = seen.page + 1;
        AreaView::of(seen)
    }
}
