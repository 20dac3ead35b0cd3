//! The bulk return of areas to the index in a full pass.
//!
//! # Theory
//! Pools and flush batches hold areas by size, last freed first, so in random address order. Freeing them one by one
//! needs a search of the index for each, and sorting them needs some fifteen passes over each. But the page map *is*
//! sorted. So each area that leaves is **marked** in its word, once. Then a **sweep** over the start bits finds the
//! marked ones in address order and frees neighbours as one.
//!
//! ```text
//!   lanes   A -> D -> B     F -> C -> E        mark: one area of each lane in turn, so that the loads of some overlap
//!   map     |A|B|xx|C|D|E|......|F|            sweep: [A B] [C D E] [F] go to the index; x is in use, and skipped
//! ```
//!
//! A sweep also passes areas in use. Where those would be most of the areas, the leaving ones are sorted instead, a
//! slice at a time.
//!
//! # Cost
//! O(1) for an area that leaves, and O(1) for an area in between, at most [`PASSED_MAX`] times as many.

use super::VmapSpace;
use super::purge::PurgeState;
use crate::area::range_of;
use crate::budget::{Budget, Cost};
use crate::config::Config;
use crate::list::{AreaList, Flushed};
use crate::lookup::Lookup;
use crate::map::PageMap;
use va_base::sync::atomic::Ordering;
use va_base::{Machine, Va};
use va_tree::FreeIndex;

/// Lists that are marked alternately.
const LANES: usize = 8;
/// Areas out of the index, for each that leaves, up to which a sweep is shorter than a sort.
const PASSED_MAX: u64 = 8;

/// Flushed areas on their way to the index, under the purge lock.
pub(super) struct Leaving {
    lanes: [AreaList<Flushed>; LANES],
    /// The lane for the next list.
    lane: usize,
    /// Areas in lanes.
    listed: u64,
    /// Areas that are marked in the page map.
    marked: u64,
    /// Pages of both.
    pages: u64,
    /// No marked area starts below.
    from: u64,
}

impl Leaving {
    pub(super) const fn new() -> Self {
        let lanes = [const { AreaList::new() }; LANES];
        Self { lanes, lane: 0, listed: 0, marked: 0, pages: 0, from: u64::MAX }
    }

    /// Adds the areas of a list.
    pub(super) fn add(&mut self, map: &PageMap, list: AreaList<Flushed>) {
        self.listed += list.areas();
        self.pages += list.pages();
        self.lanes[self.lane].append(map, list);
        self.lane = (self.lane + 1) % LANES;
    }

    /// Returns the areas and pages on the way.
    pub(super) fn holds(&self) -> (u64, u64) {
        (self.listed + self.marked, self.pages)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.listed + self.marked == 0
    }

    /// Marks areas until the budget ends.
    fn mark(&mut self, map: &PageMap, budget: &mut Budget) {
        // A list with a wrong link ends early: the caller stops the machine then.
        while budget.is_left() && self.listed > 0 && map.lost().is_none() {
            for lane in &mut self.lanes {
                if budget.is_left()
                    && let Some(area) = lane.pop_any(map)
                {
                    self.from = self.from.min(area.page);
                    self.listed -= 1;
                    self.marked += 1;
                    budget.spend(Cost::MOVE);
                    area.leave();
                }
            }
        }
    }
}

impl PurgeState {
    /// Returns true if this pass gathers all areas, to free them to the index at its end.
    #[inline(always)]
    pub(super) fn gathers<C: Config>(&self) -> bool {
        self.full && C::ORDER.sorts_slices()
    }
}

impl<P: Machine + Clone, C: Config> VmapSpace<P, C> {
    /// Frees leaving areas in the index until the budget ends.
    pub(super) fn leave(&self, state: &mut PurgeState, budget: &mut Budget) {
        let leaving = &mut state.leaving;
        if leaving.marked == 0 && leaving.listed > 0 {
            let live = self.lock_free().index.live();
            if leaving.listed.saturating_mul(PASSED_MAX) < live {
                return self.leave_sorted(leaving, budget);
            }
        }
        leaving.mark(&self.map, budget);
        self.stop_if_lost();
        if budget.is_left() {
            self.sweep(leaving, budget);
        }
    }

    fn leave_sorted(&self, leaving: &mut Leaving, budget: &mut Budget) {
        let mut batch = AreaList::new();
        for lane in &mut leaving.lanes {
            while budget.is_left()
                && let Some(area) = lane.pop_any(&self.map)
            {
                budget.spend(Cost::AREA);
                leaving.listed -= 1;
                leaving.pages -= area.pages;
                batch.push_front(area);
            }
        }
        self.stop_if_lost();
        self.settled.0.fetch_add(batch.pages(), Ordering::Release);
        self.to_index(batch, true);
    }

    /// Frees marked areas in the index in address order; subtracts the cost of passed areas from the budget, too.
    fn sweep(&self, leaving: &mut Leaving, budget: &mut Budget) {
        let mut heap = self.lock_free();
        let heap = &mut *heap;
        let mut run = Run::NONE;
        let mut pages = 0;
        while budget.is_left() && leaving.marked > 0 {
            let Some(seen) = self.map.next(leaving.from) else {
                self.machine
                    .bug(format_args!("{} areas that leave are not in the map", leaving.marked), None);
            };
            budget.spend(Cost::PASS);
            leaving.from = seen.page + 1;
            if !seen.word.is_leaving() {
                continue;
            }
            self.map.end(&mut heap.marker, seen.page);
            self.lookup.release(Va::from_page(seen.page));
            leaving.marked -= 1;
            pages += seen.pages;
            if !run.continues(seen.page, seen.pages) {
                budget.spend(Cost::RUN);
                self.free_run(heap, core::mem::replace(&mut run, Run::of(seen.page, seen.pages)));
            }
        }
        self.free_run(heap, run);
        leaving.pages -= pages;
        if leaving.marked == 0 {
            leaving.from = u64::MAX;
        }
        // Before the lock is released: areas that can be allocated are never counted as lazy.
        self.settled.0.fetch_add(pages, Ordering::Release);
    }

    /// Frees neighbouring areas as one.
    pub(super) fn free_run(&self, heap: &mut super::locks::Heap<C::Index<P>>, run: Run) {
        let Run { page, end, areas } = run;
        if areas == 0 {
            return;
        }
        if let Err(error) = heap.index.free(range_of(page, end - page)) {
            self.machine.bug(format_args!("the index rejects what was busy: {error}"), None);
        }
        let _released = heap.index.release_splits(areas - 1);
    }
}

/// Neighbouring areas that are freed as one.
pub(super) struct Run {
    page: u64,
    end: u64,
    areas: u64,
}

impl Run {
    /// No area. None begins at its end.
    pub(super) const NONE: Self = Self { page: 0, end: u64::MAX, areas: 0 };

    pub(super) fn of(page: u64, pages: u64) -> Self {
        Self { page, end: page + pages, areas: 1 }
    }

    /// Adds an area if it begins at the end; returns whether it does.
    pub(super) fn continues(&mut self, page: u64, pages: u64) -> bool {
        let continues = self.end == page;
        if continues {
            self.end += pages;
            self.areas += 1;
        }
        continues
    }
}
