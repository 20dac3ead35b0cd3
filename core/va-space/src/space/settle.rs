//! The moves of flushed areas: into the pool of their owner, or to the index.
//!
//! All of this runs in a slice of a purge (or of a shrinker), under the purge lock.

use super::VmapSpace;
use super::leave::Run;
use super::purge::PurgeState;
use crate::budget::{Budget, Cost};
use crate::config::{Config, Order};
use crate::decay::Decay;
use crate::flush_batch::CompletedBatch;
use crate::list::{AreaList, Flushed};
use crate::lookup::Lookup;
use crate::pool::{EXACT_PAGES_MAX, Pool};
use va_base::sync::atomic::Ordering;
use va_base::{Machine, Va};

/// The result of a call that decays a pool.
#[derive(Default)]
pub(super) struct Decayed {
    /// The class to continue with, if the budget ended first.
    pub(super) next: Option<usize>,
    /// Areas of that class that are left to take.
    pub(super) left: Option<u64>,
    /// Areas that went to the index.
    pub(super) areas: u64,
}

impl<P: Machine + Clone, C: Config> VmapSpace<P, C> {
    /// Decays the pool of `node` from `class` on.
    pub(super) fn decay(
        &self,
        node: u32,
        mut class: usize,
        mut left: Option<u64>,
        full: bool,
        budget: &mut Budget,
    ) -> Decayed {
        let Some(mut pool) = self.lock_filled_pool(node) else { return Decayed::default() };
        let mut batch = AreaList::new();
        let mut next = None;
        while let Some(at) = pool.next_class(class) {
            let (len, idle) = (pool.len(at), pool.idle(at));
            let quota = || if full { len } else { C::Decay::quota(len, idle) };
            let mut take = if at == class { left.take() } else { None }.unwrap_or_else(quota);
            budget.spend(Cost::NODE);
            while take > 0
                && budget.is_left()
                && let Some(area) = pool.pop(&self.map, at)
            {
                take -= 1;
                budget.spend(Cost::AREA);
                batch.push_back(&self.map, area);
            }
            if !budget.is_left() {
                (next, left) = (Some(at), Some(take));
                break;
            }
            pool.begin_interval(at);
            (class, left) = (at + 1, None);
        }
        drop(pool);
        self.stop_if_lost();
        let areas = batch.areas();
        self.to_index(batch, C::ORDER.sorts_decayed());
        Decayed { next, left, areas }
    }

    /// Empties the pool of `node` into the leaving areas, list by list from `class` on; returns the class to continue
    /// with, if the budget ended first.
    pub(super) fn empty_pool(
        &self,
        state: &mut PurgeState,
        node: u32,
        mut class: usize,
        budget: &mut Budget,
    ) -> Option<usize> {
        let mut pool = self.lock_filled_pool(node)?;
        while let Some(next) = pool.next_class(class) {
            if !budget.is_left() {
                return Some(next);
            }
            budget.spend(Cost::LIST);
            let list = pool.take_list(&self.map, next, u64::MAX);
            // Unsettled again, until they are in the index.
            self.settled.0.fetch_sub(list.pages(), Ordering::Relaxed);
            state.leaving.add(&self.map, list);
            class = next + 1;
        }
        None
    }

    /// Puts the areas of a completed batch by size into the pools of their nodes, from `class` of `node` on.
    /// Those that the pools do not take, and in a full pass all, go to the end of the areas that
    /// are not sorted by size.
    pub(super) fn settle_sized(
        &self,
        state: &mut PurgeState,
        completed: &mut CompletedBatch,
        node: &mut u32,
        class: &mut usize,
        budget: &mut Budget,
    ) {
        let mut pages = 0;
        while *node < self.nodes.nodes() && budget.is_left() {
            budget.spend(Cost::NODE);
            let mut batched = self.lock_batched(self.node(*node));
            if batched.lists().areas() > 0 {
                let mut pool = self.lock_pool(*node);
                while budget.is_left()
                    && let Some((next, size, list)) =
                        completed.next(&self.map, &self.machine, &mut batched, *class, budget)
                {
                    // The same class again, if only some of it was taken.
                    *class = next;
                    budget.spend(Cost::LIST);
                    let (areas, of_list) = (list.areas(), list.pages());
                    if state.gathers::<C>() {
                        state.areas += areas;
                        state.leaving.add(&self.map, list);
                        continue;
                    }
                    let rest = if state.full { Err(list) } else { self.pool_list(&mut pool, size, list) };
                    match rest {
                        Ok(()) => (state.areas, pages) = (state.areas + areas, pages + of_list),
                        Err(list) => completed.mixed.append(&self.map, list),
                    }
                }
                if batched.lists().areas() > 0 {
                    break;
                }
            }
            (*node, *class) = (self.next_node(*node + 1), 0);
        }
        self.settled.0.fetch_add(pages, Ordering::Release);
    }

    /// Returns whether every pool has a list for areas of a size, so that none of them goes to the index.
    #[inline(always)]
    pub(super) const fn always_pools(pages: u64) -> bool {
        pages <= C::POOL_PAGES_MAX && pages <= EXACT_PAGES_MAX
    }

    /// Puts flushed areas of one size into a pool. Returns them if it has no list for them, or if no request would take
    /// areas of that size from there.
    pub(super) fn pool_list(
        &self,
        pool: &mut Pool,
        pages: u64,
        list: AreaList<Flushed>,
    ) -> Result<(), AreaList<Flushed>> {
        if pages > C::POOL_PAGES_MAX { Err(list) } else { pool.put_list(&self.map, pages, list) }
    }

    /// Puts flushed areas into pools, and those that no pool takes into the index.
    pub(super) fn settle(&self, state: &mut PurgeState, list: &mut AreaList<Flushed>, budget: &mut Budget) {
        if state.gathers::<C>() {
            if budget.is_left() && !list.is_empty() {
                budget.spend(Cost::LIST);
                state.areas += list.areas();
                state.leaving.add(&self.map, core::mem::replace(list, AreaList::new()));
            }
            return;
        }
        // The areas for the index, and those of them that are of one node.
        let (mut batch, mut part, mut part_of) = (AreaList::new(), AreaList::new(), 0);
        let mut pages = 0;
        let mut pool = None;
        while budget.is_left()
            && let Some(area) = list.pop_any(&self.map)
        {
            budget.spend(Cost::MOVE);
            state.areas += 1;
            pages += area.pages;
            let owner = area.word.owner().filter(|_| !state.full && area.pages <= C::POOL_PAGES_MAX);
            let rest = match owner {
                None => Err(area),
                Some(owner) => {
                    // Adjacent areas in the list mostly have one owner: its lock is held from one to the next.
                    let held = match pool.take() {
                        Some((held, guard)) if held == owner => guard,
                        other => {
                            drop(other);
                            self.lock_pool(owner)
                        }
                    };
                    let (_, pool) = pool.insert((owner, held));
                    pool.put(area)
                }
            };
            if let Err(area) = rest {
                budget.spend(Cost::AREA);
                let node = self.home(&area);
                if node != part_of {
                    batch.append(&self.map, core::mem::replace(&mut part, AreaList::new()));
                    part_of = node;
                }
                match C::ORDER {
                    Order::NodeByAddress => part.push_front(area),
                    Order::Newest | Order::SliceByAddress => part.push_back(&self.map, area),
                }
            }
        }
        batch.append(&self.map, part);
        drop(pool);
        self.stop_if_lost();
        // Before they are in the index: areas that can be allocated are never counted as lazy.
        self.settled.0.fetch_add(pages, Ordering::Release);
        self.to_index(batch, C::ORDER.sorts_slices());
    }

    /// Frees flushed areas in the index, as many under one hold of `free` as in a slice.
    pub(super) fn to_index_by_slices(&self, mut list: AreaList<Flushed>, by_address: bool) {
        let most = Budget::of_slice::<C>().steps(Cost::AREA);
        while !list.is_empty() {
            let mut part = AreaList::new();
            while part.areas() < most
                && let Some(area) = list.pop_any(&self.map)
            {
                part.push_front(area);
            }
            // Also where the first link of a slice is wrong, and the slice has no area.
            self.stop_if_lost();
            self.to_index(part, by_address);
        }
    }

    /// Frees flushed areas in the index under one hold of `free`: one by one, or sorted by address and neighbours as one.
    pub(super) fn to_index(&self, mut batch: AreaList<Flushed>, by_address: bool) {
        if batch.is_empty() {
            return;
        }
        if by_address {
            batch.sort(&self.map);
        }
        let mut heap = self.lock_free();
        let heap = &mut *heap;
        let mut run = Run::NONE;
        while let Some(area) = batch.pop_any(&self.map) {
            if !by_address || !run.continues(area.page, area.pages) {
                self.free_run(heap, core::mem::replace(&mut run, Run::of(area.page, area.pages)));
            }
            self.map.end(&mut heap.marker, area.page);
            self.lookup.release(Va::from_page(area.page));
        }
        self.free_run(heap, run);
        self.stop_if_lost();
    }
}
