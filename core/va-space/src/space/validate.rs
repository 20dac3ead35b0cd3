//! Counts of all areas and pages, and the check of all invariants.

use super::VmapSpace;
use crate::area::range_of;
use crate::config::Config;
use crate::map::{Seen, State};
use va_base::sync::atomic::Ordering;
use va_base::{InvariantViolation, Machine, Pages, Va};
use va_tree::FreeIndex;

/// Attempts to count while no page is freed or settled.
const ATTEMPTS: u32 = 4;

/// Counts of areas and pages of a space, by state. Each number is exact at the moment it was read;
/// together they are exact only while no other thread calls. Otherwise they may differ by the pages
/// that were freed or settled in the time of one count.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Areas that are out of the index, in any state.
    pub areas: u64,
    /// Pages of busy areas.
    pub busy_pages: Pages,
    /// Pages freed and not yet settled by a purge, including those in magazines.
    pub lazy_pages: Pages,
    /// Areas in pools.
    pub pooled_areas: u64,
    /// Pages in pools.
    pub pooled_pages: Pages,
    /// Flushed areas in magazines, except those whose owner is in a call at that moment.
    pub cached_areas: u64,
    /// Their pages.
    pub cached_pages: Pages,
    /// Pages in the index.
    pub free_pages: Pages,
    /// Holes in the index.
    pub holes: u64,
    /// Pages of the largest.
    pub largest_hole: Pages,
    /// Passes of the purge.
    pub purges: u64,
    /// Flushes that it requested.
    pub flushes: u64,
    /// Areas that it settled.
    pub purged_areas: u64,
    /// Tables of the page map.
    pub tables: u64,
}

impl<P: Machine + Clone, C: Config> VmapSpace<P, C> {
    /// Counts, up to four times if pages are freed or settled meanwhile, and returns the count with the fewest such
    /// pages. Cost: O(nodes) locks, and the tables.
    pub fn stats(&self) -> Stats {
        let moves = || (self.lazied.0.load(Ordering::Relaxed), self.settled.0.load(Ordering::Relaxed));
        let (mut best, mut fewest) = (Stats::default(), u64::MAX);
        for _ in 0..ATTEMPTS {
            let before = moves();
            let stats = self.count();
            let after = moves();
            // `wrapping_sub`: the counts are, and the second falls for a moment while pools decay.
            let settled = after.1.wrapping_sub(before.1).cast_signed().unsigned_abs();
            let moved = after.0.wrapping_sub(before.0).saturating_add(settled);
            if moved < fewest {
                (best, fewest) = (stats, moved);
            }
            if moved == 0 {
                break;
            }
        }
        best
    }

    /// Returns the pages of flushed areas in magazines and pools, which no caller has: what a shrinker may return to the
    /// index. Where other threads call, an estimate.
    ///
    /// # Locks
    /// `pool`, of each node whose pool is not empty. Cost: O(magazines + nodes).
    pub fn idle_pages(&self) -> Pages {
        let pooled = self.each_node().filter_map(|(number, _)| Some(self.lock_filled_pool(number)?.pages()));
        Pages::new(self.held().cached_pages + pooled.sum::<u64>())
    }

    /// Returns whether a pass of the purge is in progress, for a model.
    #[cfg(all(test, loom))]
    pub(crate) fn is_purging(&self) -> bool {
        self.purging.load(Ordering::Relaxed)
    }

    fn count(&self) -> Stats {
        let held = self.held();
        // Sealed areas in magazines are counted as lazy in the space.
        let mut stats = Stats { tables: self.map.tables(), ..Stats::default() };
        stats.lazy_pages = Pages::new(self.lazy_pages().get() + held.lazy_pages);
        (stats.cached_areas, stats.cached_pages) = (self.cached_areas(), Pages::new(held.cached_pages));
        let mut pooled = 0;
        for (number, _) in self.each_node() {
            let pool = self.lock_pool(number);
            stats.pooled_areas += pool.areas();
            pooled += pool.pages();
        }
        stats.pooled_pages = Pages::new(pooled);
        let purge = self.lock_purge();
        (stats.purges, stats.flushes, stats.purged_areas) = (purge.passes, purge.flushes, purge.areas);
        drop(purge);
        let heap = self.lock_free();
        stats.areas = heap.index.live();
        stats.free_pages = heap.index.free_pages();
        stats.holes = heap.index.hole_count();
        stats.largest_hole = heap.index.largest_hole();
        let out = pages_of(self.extent) - stats.free_pages.get() - heap.transit_pages;
        stats.busy_pages =
            Pages::new(out.saturating_sub(stats.lazy_pages.get() + pooled + held.cached_pages));
        stats
    }

    /// Checks every invariant with full walks: those of the index, the page map and the pools, and SP1. By SP1 every
    /// page is in a hole or in exactly one area, and every lazy and every pooled area is in a list.
    ///
    /// Call it while no other thread calls: a change during the walk may look like a violation.
    ///
    /// # Errors
    /// [`InvariantViolation`] names the first rule that does not hold.
    pub fn validate(&self) -> Result<(), InvariantViolation> {
        let purge = self.lock_purge();
        let (mut listed, mut lazy_pages) = purge.holds();
        let mut sealed = purge.sealed();
        let (mut pooled, mut pooled_pages) = (0, 0);
        for (number, node) in self.each_node() {
            let pool = self.lock_pool(number);
            pool.validate(&self.map)?;
            pool.check_idle()?;
            let (any, published) = (u64::from(pool.areas() > 0), u64::from(self.pooled.0.has(number)));
            if any != published {
                return Err(InvariantViolation {
                    rule: "PO4",
                    at: Va::ZERO,
                    expected: any,
                    actual: published,
                });
            }
            (pooled, pooled_pages) = (pooled + pool.areas(), pooled_pages + pool.pages());
            drop(pool);
            let lazy = self.lock_lazy(node);
            lazy.sized.validate(&self.map)?;
            (listed, lazy_pages) = (listed + lazy.areas(), lazy_pages + lazy.pages());
            sealed.add(lazy.sealed);
            drop(lazy);
            let batched = self.lock_batched(node);
            batched.lists().validate(&self.map)?;
            (listed, lazy_pages) = (listed + batched.lists().areas(), lazy_pages + batched.lists().pages());
        }
        let heap = self.lock_free();
        heap.index.validate()?;
        self.map.check()?;
        self.check_lookup()?;
        let areas = self.check_tiling(&heap.index, heap.transit_pages)?;
        let sp1 = |want, got| {
            if want == got {
                Ok(())
            } else {
                Err(InvariantViolation { rule: "SP1", at: Va::ZERO, expected: want, actual: got })
            }
        };
        let of = |state: State| areas[state as usize];
        let [cached, lazy, sealed_in_cells] = self.check_cells()?;
        if sealed_in_cells != sealed {
            return Err(InvariantViolation {
                rule: "MG2",
                at: Va::ZERO,
                expected: sealed_in_cells.pages,
                actual: sealed.pages,
            });
        }
        (listed, lazy_pages) = (listed + sealed.areas, lazy_pages + sealed.pages);
        let (idle_areas, idle_pages) = of(State::Idle);
        sp1(listed + lazy.areas + pooled + cached.areas, idle_areas)?;
        sp1(lazy_pages + lazy.pages + pooled_pages + cached.pages, idle_pages)?;
        let broken = InvariantViolation {
            rule: "PU2",
            at: Va::ZERO,
            expected: lazy_pages,
            actual: self.lazy_pages().get(),
        };
        if lazy_pages == self.lazy_pages().get() { Ok(()) } else { Err(broken) }
    }

    /// Walks holes and areas side by side: they must tile the extent. Returns areas and pages by state.
    fn check_tiling(
        &self,
        index: &impl FreeIndex,
        transit: u64,
    ) -> Result<[(u64, u64); 8], InvariantViolation> {
        let mut counts = [(0, 0); 8];
        let (mut at, end) = self.extent.whole_pages();
        let mut missing = 0;
        let mut holes = index.holes().peekable();
        let mut areas = 0;
        loop {
            let area = self.map.next(at);
            let hole = holes.peek().map(|hole| hole.whole_pages());
            let (start, pages) = match (area, hole) {
                (Some(area), hole) if hole.is_none_or(|(start, _)| area.page < start) => {
                    self.map.check_bit(area.page)?;
                    self.check_owner(&area)?;
                    let state = area.word.state().map_or(0, |state| state as usize);
                    counts[state] = (counts[state].0 + 1, counts[state].1 + area.pages);
                    areas += 1;
                    (area.page, area.pages)
                }
                (_, Some((start, end))) => {
                    holes.next();
                    (start, end - start)
                }
                (_, None) => break,
            };
            // Overlap, or a gap larger than the pages in transit.
            let gap = start.wrapping_sub(at);
            if start < at || gap > transit - missing {
                return Err(InvariantViolation {
                    rule: "SP1",
                    at: Va::from_page(at),
                    expected: at,
                    actual: start,
                });
            }
            missing += gap;
            at = start + pages;
        }
        // More than there are pages, if the last area passes the end.
        missing += end.wrapping_sub(at);
        if missing != transit {
            return Err(InvariantViolation {
                rule: "SP1",
                at: Va::from_page(at),
                expected: transit,
                actual: missing,
            });
        }
        // The index counts each area as out (and pages in transit, which are no area yet).
        if areas > index.live() || (transit == 0 && areas != index.live()) {
            return Err(InvariantViolation {
                rule: "SP1",
                at: Va::from_page(at),
                expected: index.live(),
                actual: areas,
            });
        }
        Ok(counts)
    }

    /// Checks PO6.
    fn check_owner(&self, area: &Seen) -> Result<(), InvariantViolation> {
        let range = range_of(area.page, area.pages);
        let fits = area.word.owner().is_none() || self.default_window.encloses(range);
        InvariantViolation::check(
            fits,
            "PO6",
            range.start(),
            self.default_window.end().get(),
            range.end().get(),
        )
    }
}

fn pages_of(extent: va_base::VaRange) -> u64 {
    let (start, end) = extent.whole_pages();
    end - start
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::config::Standard;
    use crate::testing::TestMachine;
    use va_base::{Request, VaRange};

    /// Returns the rule that is named after `spoil`, in a space with lazy and busy areas.
    fn broken(spoil: impl FnOnce(&VmapSpace<&TestMachine, Standard>)) -> &'static str {
        let machine = TestMachine::default();
        let all = VaRange::from_pages(16, 1 << 16).unwrap();
        let space = VmapSpace::<_, Standard>::new(all, all, &machine).unwrap();
        for pages in 1..20 {
            let area = space.alloc(pages as u32 % 2, &Request::pages(pages).unwrap()).unwrap();
            if pages % 2 == 0 {
                space.free(area).unwrap();
            }
        }
        assert_eq!(space.validate(), Ok(()));
        spoil(&space);
        space.validate().map_err(|broken| broken.rule).err().unwrap_or("nothing")
    }

    #[test]
    fn pu2_pages_that_were_counted_wrong_are_named() {
        assert_eq!(broken(|space| _ = space.lazied.0.fetch_add(1, Ordering::Relaxed)), "PU2");
        assert_eq!(broken(|space| _ = space.settled.0.fetch_add(1, Ordering::Relaxed)), "PU2");
    }

    #[test]
    fn po4_a_pool_that_is_not_noted_or_empty_though_noted_is_named() {
        assert_eq!(broken(|space| space.pooled.0.spoil(0)), "PO4");
        let filled = |space: &VmapSpace<&TestMachine, Standard>| {
            space.purge(crate::Purge::Drain);
            assert!(space.pooled.0.has(0) && space.validate().is_ok());
            space.pooled.0.spoil(0);
        };
        assert_eq!(broken(filled), "PO4");
    }

    #[test]
    fn po5_more_idle_areas_than_there_are_are_named() {
        assert_eq!(broken(|space| space.lock_pool(0).spoil_idle()), "PO5");
    }

    #[test]
    fn po6_an_owned_area_outside_the_default_window_is_named() {
        let machine = TestMachine::default();
        let [all, window] = [100, 50].map(|end| VaRange::from_pages(16, end).unwrap());
        let space = VmapSpace::<_, Standard>::new(all, window, &machine).unwrap();
        let request = |pages| Request::pages(pages).unwrap();
        let _owned = space.alloc(0, &request(34)).unwrap();
        let area = space.alloc(0, &request(3).within(all)).unwrap();
        assert_eq!(space.validate(), Ok(()));
        let page = area.start().page_floor();
        space.map.put(page, crate::map::Word::new(3, Some(0), 1, State::Busy));
        assert_eq!(space.validate().map_err(|broken| (broken.rule, broken.at)), Err(("PO6", area.start())));
    }

    #[test]
    fn mg2_sealed_and_unpublished_pages_are_named() {
        assert_eq!(broken(|space| space.lock_lazy(space.node(0)).sealed.pages += 1), "MG2");
    }

    #[test]
    fn sp1_an_area_that_is_nowhere_or_twice_is_named() {
        // The first area is [16, 17), busy: it becomes lazy without a list, larger than it is, or none.
        let word = |pages, state| crate::map::Word::new(pages, None, 1, state);
        assert_eq!(broken(|space| space.map.put(16, word(1, State::Idle))), "SP1");
        assert_eq!(broken(|space| space.map.put(16, word(2, State::Busy))), "SP1");
        let end = |space: &VmapSpace<&TestMachine, Standard>| {
            let heap = &mut *space.lock_free();
            space.map.end(&mut heap.marker, 16);
        };
        assert_eq!(broken(end), "SP1");
        // The index has one area more or less than there are.
        assert_eq!(broken(|space| space.lock_free().index.reserve_splits(1).unwrap()), "SP1");
        assert_eq!(broken(|space| _ = space.lock_free().index.release_splits(1)), "SP1");
    }

    #[test]
    fn sp1_names_the_page_from_which_nothing_is_known() {
        let machine = TestMachine::default();
        let all = VaRange::from_pages(16, 1 << 16).unwrap();
        let space = VmapSpace::<_, Standard>::new(all, all, &machine).unwrap();
        let areas = [(); 3].map(|()| space.alloc(0, &Request::pages(4).unwrap()).unwrap());
        let heap = &mut *space.lock_free();
        space.map.end(&mut heap.marker, areas[1].start().page_floor());
        let named = space.check_tiling(&heap.index, 0).map_err(|broken| (broken.rule, broken.at));
        assert_eq!(named.err(), Some(("SP1", areas[1].start())));
    }
}
