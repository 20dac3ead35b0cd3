//! The purge: one flush for all lazy areas, which then become usable again.
//!
//! # Theory
//! A pass has four stages. **Decay**, in some passes: each pool frees some areas (or, in a full pass, all) in the index;
//! they are flushed already. **Batch**: the lazy lists of all nodes are taken, node by node, list by list. **In
//! flight**: one flush over their hull; the pass waits without a lock until the machine reports its end. **Settle**:
//! each area goes to its owner's pool, all of a size at once; in a full pass or if no list takes it, to the index.
//!
//! A pass is run in slices of bounded work ([`budget`](super::budget)), each under one hold of the purge lock and, at
//! its end, one of `free`; between slices both are free. Which calls run them is in [`drain`](super::drain).
//!
//! # Invariants
//! - **PU1 bounded** the steps of a slice cost at most as much as `SLICE_AREAS` areas on their way to the index, and
//!   one step.
//! - **PU2 counted** `lazied - settled` is the pages in lazy lists, in flight, and flushed but not settled.
//!
//! # Locking
//! `purge` for a slice; under it `pool`, `lazy` and `free`, one at a time. The holder of `purge` may change the state
//! that it guards, so decay by a shrinker and refill by a purge never run concurrently.
//! # Source
//! Linux `mm/vmalloc.c` (6.12: `__purge_vmap_area_lazy`, `purge_vmap_node`, `decay_va_pool_node`; the shrinker's lock).

use super::VmapSpace;
use super::leave::Leaving;
use crate::budget::{Budget, Cost};
use crate::config::Config;
use crate::decay::Decay;
use crate::dirty::Dirty;
use crate::flush_batch::{Amount, BatchAreas, CompletedBatch, FlushBatch, OpenBatch};
use crate::map::PageMap;
use va_base::sync::atomic::Ordering;
use va_base::{Epoch, Machine, Pages, VaRange};

/// The amount of work that a purge does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purge {
    /// A drain: flushes all lazy areas, into the pools first. Before that one in [`Decay::DRAINS`] decays each pool.
    Drain,
    /// Moves all pools and all lazy areas into the index, so that neighbours merge.
    Full,
    /// Like [`Drain`](Self::Drain). Afterwards no CPU translates the address of any area that was freed before the
    /// call; see [`VmapSpace::purge_aliases`].
    Aliases,
}

/// The result of a purge.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Purged {
    /// Areas that were lazy and are not any more, over the life of the space so far.
    pub areas: u64,
    /// Pages that are still lazy: freed meanwhile, or their flush has not ended.
    pub left: Pages,
    /// A flush has not ended: call [`tick`](VmapSpace::tick) or `purge` again later.
    pub waiting: bool,
}

/// The wait of a pass for a flush that has not ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wait {
    /// It waits, with no lock held.
    ForFlush,
    /// It stops and leaves the remaining stages to a later call.
    Never,
}

/// The end of a pass for the call that ran it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pass {
    /// The pass is finished; and `returned` at that moment, if no other thread returned areas meanwhile.
    Whole { returned: Option<u64> },
    /// The caller stopped it.
    Stopped,
    /// It waits for a flush.
    Waiting,
}

enum Stage {
    Idle,
    /// The next pool class to decay, and how many of its areas are left to take if it was begun.
    Decay {
        node: u32,
        class: usize,
        left: Option<u64>,
    },
    /// Lazy areas are added to the batch, from this class of this node on.
    Batch {
        open_batch: OpenBatch,
        node: u32,
        class: usize,
    },
    /// Areas that leave go to the index: at the end of a pass, or during the wait for a flush.
    Leave(Option<FlushBatch>),
    InFlight(FlushBatch),
    /// The areas of a completed batch are settled: those in its own lists, then those of a node by size.
    Settle {
        completed: CompletedBatch,
        node: u32,
        class: usize,
    },
}

/// The state that the purge lock guards.
pub(super) struct PurgeState {
    stage: Stage,
    /// This pass empties pools and fills none.
    pub(super) full: bool,
    /// It has done so from its beginning.
    full_from_start: bool,
    pub(super) passes: u64,
    full_passes: u64,
    /// The areas that a full pass returns to the index.
    pub(super) leaving: Leaving,
    /// Number of the last flush batch.
    last_batch: u64,
    /// The ranges that the next flush covers besides the areas in its batch.
    dirty: Dirty,
    pub(super) flushes: u64,
    pub(super) areas: u64,
}

impl PurgeState {
    pub(super) const fn new() -> Self {
        Self {
            stage: Stage::Idle,
            full: false,
            full_from_start: false,
            passes: 0,
            full_passes: 0,
            leaving: Leaving::new(),
            last_batch: 0,
            dirty: Dirty::new(),
            flushes: 0,
            areas: 0,
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        matches!(self.stage, Stage::Idle)
    }

    /// Returns the lazy areas and pages that the purge holds, except the batched ones in lists of nodes.
    pub(super) fn holds(&self) -> (u64, u64) {
        let Amount { areas, pages } = match &self.stage {
            Stage::Settle { completed, .. } => completed.mixed(),
            _ => self.batch_areas().map_or(Amount::NONE, |areas| Amount {
                areas: areas.mixed.areas(),
                pages: areas.mixed.pages(),
            }),
        };
        let leaving = self.leaving.holds();
        (areas + leaving.0, pages + leaving.1)
    }

    /// Returns the flush batch that is open or in flight, if there is one.
    fn batch_areas(&self) -> Option<&BatchAreas> {
        match &self.stage {
            Stage::Batch { open_batch, .. } => Some(&open_batch.areas),
            Stage::InFlight(batch) | Stage::Leave(Some(batch)) => Some(&batch.areas),
            Stage::Idle | Stage::Decay { .. } | Stage::Leave(None) | Stage::Settle { .. } => None,
        }
    }

    /// Calls `each` for the areas that are in a flush batch and in no node's list.
    pub(super) fn each_unflushed(&self, map: &PageMap, each: &mut impl FnMut(u64, u64)) {
        if let Some(areas) = self.batch_areas() {
            areas.mixed.each(map, each);
        }
    }

    /// Returns whether the batched areas in lists of nodes were flushed already.
    pub(super) fn has_completed(&self) -> bool {
        matches!(self.stage, Stage::Settle { .. })
    }

    /// Returns the amount that is flushed without being in a list of the purge.
    pub(super) fn sealed(&self) -> Amount {
        self.batch_areas().map_or(Amount::NONE, |areas| areas.sealed)
    }

    /// Returns the flush batch that is open or in flight, mutably.
    pub(super) fn batch_areas_mut(&mut self) -> Option<&mut BatchAreas> {
        match &mut self.stage {
            Stage::Batch { open_batch, .. } => Some(&mut open_batch.areas),
            Stage::InFlight(batch) | Stage::Leave(Some(batch)) => Some(&mut batch.areas),
            Stage::Idle | Stage::Decay { .. } | Stage::Leave(None) | Stage::Settle { .. } => None,
        }
    }

    /// Returns the epoch of the flush that the pass waits for.
    fn epoch(&self) -> Option<Epoch> {
        match &self.stage {
            Stage::InFlight(batch) => Some(batch.epoch()),
            _ => None,
        }
    }

    /// Returns the number of the last batch that takes nothing of a node that is created now.
    pub(super) fn last_batch_before(&self, made: u32) -> u64 {
        match self.stage {
            // The batch takes the nodes in turn, and will reach those above the present one.
            Stage::Batch { node, .. } if made > node => self.last_batch - 1,
            _ => self.last_batch,
        }
    }
}

impl<P: Machine + Clone, C: Config> VmapSpace<P, C> {
    /// Purges to the end, or until it has to wait for a flush ([`Purged::waiting`]).
    ///
    /// # Locks
    /// `purge`, released after each slice.
    pub fn purge(&self, how: Purge) -> Purged {
        if how == Purge::Aliases {
            return self.purge_aliases(&[]);
        }
        let pass = self.run_pass(how == Purge::Full, Wait::Never, || false);
        self.purged(pass == Pass::Waiting)
    }

    /// Purges to the end, and waits for its flush with [`Machine::wait`] where that ends later. The caller may sleep.
    ///
    /// # Locks
    /// `purge`, released after each slice and while it waits.
    pub fn purge_and_wait(&self, how: Purge) -> Purged {
        if how == Purge::Aliases {
            self.add_dirty(&[]);
        }
        let _whole = self.run_pass(how == Purge::Full, Wait::ForFlush, || false);
        self.purged(false)
    }

    /// Purges as [`Purge::Aliases`] does, with the caller's `dirty` ranges, in bytes, covered by the same flush.
    ///
    /// Afterwards no CPU translates an address in `dirty`, nor that of any area that was freed before the call. Areas in
    /// a magazine remain there, and lazy. If the result is `waiting`, none of this is certain yet: call again with
    /// `&[]`, since a range begins another flush, or [`purge_and_wait`](Self::purge_and_wait).
    ///
    /// The machine gets `dirty`, the hull of lazy areas, and that of each magazine with an area that no such flush covers
    /// yet. More than sixteen ranges are joined with their neighbours. If there is none, nothing is flushed.
    ///
    /// # Locks
    /// `purge`, released after each slice. Magazines are not locked.
    pub fn purge_aliases(&self, dirty: &[VaRange]) -> Purged {
        self.add_dirty(dirty);
        let pass = self.run_pass(false, Wait::Never, || false);
        self.purged(pass == Pass::Waiting)
    }

    /// Adds `dirty`, and the hulls of open rounds with an area that no flush covers, to the next flush that begins.
    fn add_dirty(&self, dirty: &[VaRange]) {
        // Hulls before the pass opens a batch: a round that is sealed after this read is seen here. One sealed before
        // is covered by the lazy areas of its node, which join later.
        let mut state = self.lock_purge();
        dirty.iter().for_each(|&range| state.dirty.add(range));
        self.each_uncovered(|range| state.dirty.add(range));
    }

    /// Releases all pooled areas to the index, for a machine that is short of memory or of space. Then it frees memory
    /// of the index and of the page map that is not needed. Returns the number of areas. Lazy areas remain lazy.
    ///
    /// # Locks
    /// `purge`, released after each slice; under the same exclusion as a purge. Then `free`, as in
    /// [`shrink_index`](Self::shrink_index) and [`shrink_map`](Self::shrink_map).
    pub fn shrink(&self) -> u64 {
        let mut shrunk = 0;
        for (node, _) in self.each_node() {
            let mut class = Some(0);
            while let Some(at) = class {
                let _state = self.lock_purge();
                let mut budget = Budget::of_slice::<C>();
                let decayed = self.decay(node, at, None, true, &mut budget);
                class = decayed.next;
                shrunk += decayed.areas;
            }
        }
        self.shrink_index_wholly();
        // A whole pass, after the rest of one that was begun.
        (0..2).for_each(|_| _ = self.shrink_map(usize::MAX));
        shrunk
    }

    pub(super) fn purged(&self, waiting: bool) -> Purged {
        Purged { areas: self.lock_purge().areas, left: self.lazy_pages(), waiting }
    }

    /// Runs the remaining stages of the present pass and a new one; calls `stop` after each slice.
    pub(super) fn run_pass(&self, full: bool, wait: Wait, mut stop: impl FnMut() -> bool) -> Pass {
        let mut state = self.lock_purge();
        // An empty space has no node, and nothing to flush.
        if self.extent.is_empty() {
            state.dirty.clear();
            return Pass::Whole { returned: None };
        }
        let (before, mut mine) = (self.returned.0.load(Ordering::Acquire), 0);
        // A pass in progress may have detached already, and may have filled pools: it does not count.
        let done = |state: &PurgeState| if full { state.full_passes } else { state.passes };
        let under_way = !state.is_idle() && (!full || state.full_from_start);
        let target = done(&state) + 1 + u64::from(under_way);
        loop {
            let waiting = self.slice(&mut state, full).then(|| state.epoch());
            mine += 1;
            if done(&state) >= target {
                // Areas that returned meanwhile by any other path may have returned behind the pass.
                let returned = self.returned.0.load(Ordering::Acquire);
                return Pass::Whole { returned: (returned == before + mine).then_some(returned) };
            }
            drop(state);
            if stop() {
                // The remaining stages continue as a drain.
                let mut state = self.lock_purge();
                (state.full, state.full_from_start) = (false, false);
                return Pass::Stopped;
            }
            match (waiting, wait) {
                (Some(_), Wait::Never) => return Pass::Waiting,
                (Some(Some(epoch)), Wait::ForFlush) => self.machine.wait(epoch),
                (Some(None) | None, _) => {}
            }
            state = self.lock_purge();
        }
    }

    /// Runs one slice; begins a pass if none is in progress. Returns whether it waits for a flush.
    pub(super) fn slice(&self, state: &mut PurgeState, full: bool) -> bool {
        let waiting = self.slice_stages(state, full);
        self.note_return();
        waiting
    }

    fn slice_stages(&self, state: &mut PurgeState, full: bool) -> bool {
        // Checks PU1: each stage subtracts its steps from the budget, and ends the slice when it is exhausted.
        let mut budget = Budget::of_slice::<C>();
        if state.is_idle() {
            let decays = full || state.passes.is_multiple_of(C::Decay::DRAINS);
            let node = if decays { 0 } else { self.nodes.nodes() };
            state.stage = Stage::Decay { node, class: 0, left: None };
            (state.full, state.full_from_start) = (full, full);
            self.purging.store(true, Ordering::Relaxed);
        }
        state.full |= full;
        while budget.is_left() {
            match core::mem::replace(&mut state.stage, Stage::Idle) {
                Stage::Decay { node, class, .. } if node < self.nodes.nodes() && state.gathers::<C>() => {
                    budget.spend(Cost::NODE);
                    state.stage = match self.empty_pool(state, node, class, &mut budget) {
                        Some(class) => Stage::Decay { node, class, left: None },
                        None => Stage::Decay { node: self.next_node(node + 1), class: 0, left: None },
                    };
                }
                Stage::Decay { node, class, left } if node < self.nodes.nodes() => {
                    budget.spend(Cost::NODE);
                    let decayed = self.decay(node, class, left, state.full, &mut budget);
                    state.stage = match decayed.next {
                        Some(class) => Stage::Decay { node, class, left: decayed.left },
                        None => Stage::Decay { node: self.next_node(node + 1), class: 0, left: None },
                    };
                }
                Stage::Decay { .. } => {
                    let open_batch = OpenBatch::new(&mut state.last_batch);
                    state.stage = Stage::Batch { open_batch, node: 0, class: 0 };
                }
                Stage::Batch { mut open_batch, node, class } if node < self.nodes.nodes() => {
                    budget.spend(Cost::NODE);
                    state.stage = match self.add_to_batch(&mut open_batch, node, class, &mut budget) {
                        Some(class) => Stage::Batch { open_batch, node, class },
                        None => Stage::Batch { open_batch, node: self.next_node(node + 1), class: 0 },
                    };
                }
                Stage::Batch { open_batch, .. } => {
                    let Some(open_batch) = open_batch.unless_empty(&state.dirty, &self.completed_batches)
                    else {
                        state.stage = Stage::Leave(None);
                        continue;
                    };
                    state.flushes += 1;
                    state.stage =
                        Stage::InFlight(FlushBatch::begin(open_batch, &mut state.dirty, &self.machine));
                }
                Stage::InFlight(batch) => {
                    let settled = |sealed: Amount| {
                        state.areas += sealed.areas;
                        self.settled.0.fetch_add(sealed.pages, Ordering::Release);
                    };
                    match batch.complete(&self.machine, &self.completed_batches, settled) {
                        Ok(completed) => state.stage = Stage::Settle { completed, node: 0, class: 0 },
                        // Areas that are flushed already need not wait.
                        Err(batch) if !state.leaving.is_empty() => state.stage = Stage::Leave(Some(batch)),
                        Err(batch) => {
                            state.stage = Stage::InFlight(batch);
                            return true;
                        }
                    }
                }
                Stage::Leave(batch) if !state.leaving.is_empty() => {
                    self.leave(state, &mut budget);
                    state.stage = Stage::Leave(batch);
                }
                Stage::Leave(Some(batch)) => state.stage = Stage::InFlight(batch),
                Stage::Leave(None) => {
                    self.end_pass(state);
                    return false;
                }
                Stage::Settle { mut completed, mut node, mut class } => {
                    self.settle_sized(state, &mut completed, &mut node, &mut class, &mut budget);
                    completed.settle_mixed(&self.map, &self.machine, &mut budget);
                    self.settle(state, &mut completed.mixed, &mut budget);
                    state.stage = if node >= self.nodes.nodes() && completed.mixed().areas == 0 {
                        Stage::Leave(None)
                    } else {
                        Stage::Settle { completed, node, class }
                    };
                }
                Stage::Idle => return false,
            }
        }
        false
    }

    fn end_pass(&self, state: &mut PurgeState) {
        state.passes += 1;
        state.full_passes += u64::from(state.full_from_start);
        (state.full, state.full_from_start) = (false, false);
        self.purging.store(false, Ordering::Relaxed);
        self.forget_drainer();
    }

    /// Adds the lazy areas of `node` to the batch, from `class` on; returns the next class, if the budget ends first.
    fn add_to_batch(
        &self,
        open_batch: &mut OpenBatch,
        node: u32,
        class: usize,
        budget: &mut Budget,
    ) -> Option<usize> {
        let node = self.node(node);
        let mut batched = self.lock_batched(node);
        let mut lazy = self.lock_lazy(node);
        if C::ORDER.sorts_lazy() {
            lazy.mixed.sort(&self.map);
        }
        let next = open_batch.add(&self.map, &mut lazy, &mut batched, class, budget);
        drop((lazy, batched));
        self.stop_if_lost();
        next
    }
}
