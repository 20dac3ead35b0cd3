//! The purge: one flush for all that is lazy, then back into use.
//!
//! # Theory
//! A pass has four stages. **Decay**: each pool gives a part (or, in a full pass, all) back to the index; its areas are
//! flushed already. **Board**: the lazy lists of all nodes are taken, in O(nodes and sizes). **Flight**: one flush over their
//! hull; the pass waits, without holding anything up, until the machine says that it ended. **Settle**: each area goes to
//! the pool of its owner, all of a size at once, or, in a full pass or if no list takes it, to the index.
//!
//! A pass is run in slices of a bounded number of areas, each under one hold of the purge lock and, at its end, one of
//! `free`; between slices both are free. Who runs them is the machine's choice ([`Machine::drain`]): the call that freed
//! too much and those after it, a slice each, or a worker that calls [`VmapSpace::tick`]. A producer that is ahead of the
//! worker by twice the threshold does a slice at each free in any case, so the backlog is bounded: by twice the threshold
//! and what is freed during the slices of one decay.
//!
//! # Invariants
//! - **PU1 bounded** a slice handles at most `SLICE_AREAS` areas and lists of areas of one size.
//! - **PU2 counted** `lazied - settled` is the pages in lazy lists, in flight, and flushed but not settled.
//!
//! # Locking
//! `purge` for a slice; under it `pool`, `lazy` and `free`, one at a time. Whoever holds `purge` may change what is in it,
//! so decay by a shrinker and refill by a purge never meet.
//! # Source
//! Linux `mm/vmalloc.c` (6.12: `__purge_vmap_area_lazy`, `purge_vmap_node`, `decay_va_pool_node`; the shrinker with the
//! lock that it has had since 2026).

use super::VmapSpace;
use super::leave::Leaving;
use crate::config::{Config, Order};
use crate::flight::{Amount, Boarding, Flight, Landed};
use va_base::sync::atomic::Ordering;
use va_base::{Drain, LockClass, Machine, Pages};

/// How much a purge does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purge {
    /// What a drain does: a part of each pool, then all that is lazy, into the pools first.
    Drain,
    /// All pools and all that is lazy into the index, so that neighbours merge.
    Full,
    /// As [`Drain`](Self::Drain): afterwards no CPU translates the address of any area that was freed before the call.
    Aliases,
}

/// What a purge did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Purged {
    /// Areas that were lazy and are not any more, over the life of the space so far.
    pub areas: u64,
    /// Pages that are still lazy: freed meanwhile, or their flush has not ended.
    pub left: Pages,
    /// A flush has not ended: call [`tick`](VmapSpace::tick) or `purge` again later.
    pub waiting: bool,
}

/// How a pass ended for whoever asked for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pass {
    /// All of it was done; and what `returned` was at that moment.
    Whole { returned: u64 },
    /// The caller had enough.
    Stopped,
    /// It waits for a flush.
    Waiting,
}

enum Stage {
    Idle,
    /// The next pool class to decay, and how many of it are left to take if it was begun.
    Decay {
        node: u32,
        class: usize,
        left: Option<u64>,
    },
    /// What leaves goes to the index: the end of a pass, or what can be done while a flight is waited for.
    Leave(Option<Flight>),
    Flight(Flight),
    /// What landed, and the next of what is on board of a node by size.
    Settle {
        landed: Landed,
        node: u32,
        class: usize,
    },
}

/// What the purge lock guards.
pub(super) struct PurgeState {
    stage: Stage,
    /// This pass empties pools and fills none.
    pub(super) full: bool,
    /// It has done so from its beginning.
    full_from_start: bool,
    passes: u64,
    full_passes: u64,
    /// What a full pass gives back to the index.
    pub(super) leaving: Leaving,
    /// Number of the last flight.
    flights: u64,
    pub(super) flushes: u64,
    pub(super) areas: u64,
}

impl PurgeState {
    pub(super) fn new() -> Self {
        Self {
            stage: Stage::Idle,
            full: false,
            full_from_start: false,
            passes: 0,
            full_passes: 0,
            leaving: Leaving::new(),
            flights: 0,
            flushes: 0,
            areas: 0,
        }
    }

    fn is_idle(&self) -> bool {
        matches!(self.stage, Stage::Idle)
    }

    /// Areas and pages that were lazy and are in the hands of the purge, but for those on board of nodes.
    pub(super) fn holds(&self) -> (u64, u64) {
        let (areas, pages) = match &self.stage {
            Stage::Idle | Stage::Decay { .. } | Stage::Leave(None) => (0, 0),
            Stage::Flight(flight) | Stage::Leave(Some(flight)) => flight.mixed(),
            Stage::Settle { landed, .. } => (landed.mixed.areas(), landed.mixed.pages()),
        };
        let leaving = self.leaving.holds();
        (areas + leaving.0, pages + leaving.1)
    }

    /// What flies without being in a list of the purge.
    pub(super) fn sealed(&self) -> Amount {
        match &self.stage {
            Stage::Flight(flight) | Stage::Leave(Some(flight)) => flight.sealed,
            Stage::Idle | Stage::Decay { .. } | Stage::Leave(None) | Stage::Settle { .. } => Amount::NONE,
        }
    }

    /// The flight that is in the air.
    pub(super) fn flight(&mut self) -> Option<&mut Flight> {
        match &mut self.stage {
            Stage::Flight(flight) | Stage::Leave(Some(flight)) => Some(flight),
            Stage::Idle | Stage::Decay { .. } | Stage::Leave(None) | Stage::Settle { .. } => None,
        }
    }

    pub(super) fn passes(&self) -> u64 {
        self.passes
    }
}

impl<P: Machine + Clone, C: Config> VmapSpace<P, C> {
    /// Purges to the end, or until a flush has to be waited for.
    ///
    /// # Locks
    /// `purge`, given back after each slice.
    pub fn purge(&self, how: Purge) -> Purged {
        let pass = self.run_pass(how == Purge::Full, || false);
        let mut waiting = pass == Pass::Waiting;
        if how == Purge::Aliases && self.held().lazy_pages > 0 {
            // What magazines hold stays lazy, and is flushed again with the rest; but nothing translates it any more.
            let epoch = self.machine.flush(&[self.extent]);
            waiting |= !self.machine.completed(epoch);
        }
        self.purged(waiting)
    }

    /// Does one slice of a purge if one is under way or due. For workers and idle loops.
    ///
    /// # Locks
    /// `purge`, for one slice.
    pub fn tick(&self) -> Purged {
        let mut state = self.lock_purge();
        let due = !state.is_idle() || self.lazy_pages() > self.lazy_max();
        let waiting = due && self.slice(&mut state, false);
        drop(state);
        self.purged(waiting)
    }

    /// Purges until no pass is under way and no more is lazy than may be, or until a flush has to be waited for. For a worker
    /// that was woken: what was drained by others in the meantime is not drained again.
    ///
    /// # Locks
    /// `purge`, given back after each slice.
    pub fn drain(&self) -> Purged {
        loop {
            let mut state = self.lock_purge();
            if state.is_idle() && self.lazy_pages() <= self.lazy_max() {
                drop(state);
                return self.purged(false);
            }
            if self.slice(&mut state, false) {
                drop(state);
                return self.purged(true);
            }
        }
    }

    /// Gives all pooled areas back to the index, for a machine that is short of memory or of space; returns how many.
    /// Lazy areas stay.
    ///
    /// # Locks
    /// `purge`, given back after each slice; under the same exclusion as a purge.
    pub fn shrink(&self) -> u64 {
        let mut shrunk = 0;
        for node in 0..self.nodes.nodes() {
            let mut class = Some(0);
            while let Some(at) = class {
                let _state = self.lock_purge();
                let mut budget = C::SLICE_AREAS;
                (class, _) = self.decay(node, at, None, true, &mut budget);
                shrunk += C::SLICE_AREAS - budget;
            }
        }
        shrunk
    }

    fn purged(&self, waiting: bool) -> Purged {
        Purged { areas: self.lock_purge().areas, left: self.lazy_pages(), waiting }
    }

    #[inline]
    pub(super) fn lazy_max(&self) -> Pages {
        C::lazy_max(self.machine.cpus_online())
    }

    /// After a free: does a slice, or has somebody woken, if too much is lazy.
    #[inline]
    pub(super) fn after_free(&self) {
        if self.lazy_pages() > self.lazy_max() || self.purging.load(Ordering::Relaxed) {
            self.drain_some(self.lazy_pages().get());
        }
    }

    /// The same at the end of a magazine's round: what others have in theirs counts, too.
    pub(super) fn after_round(&self) {
        let lazy = self.lazy_pages().get() + self.unsealed();
        if lazy > self.lazy_max().get() || self.purging.load(Ordering::Relaxed) {
            self.drain_some(lazy);
        }
    }

    #[cold]
    fn drain_some(&self, lazy: u64) {
        let max = self.lazy_max().get();
        let begun = self.purging.load(Ordering::Relaxed);
        let helps = lazy > max.saturating_mul(2);
        // Asked even if this call helps, so that a worker that sleeps is woken.
        if self.machine.drain() == Drain::Elsewhere && !helps {
            return;
        }
        // Somebody else is at it: he does this slice.
        self.machine.locking(LockClass::Purge);
        let Some(mut state) = self.purge.try_lock() else { return };
        if lazy > max || begun {
            let _waiting = self.slice(&mut state, false);
        }
    }

    /// Runs what is left of the present pass and a new one, with `stop` asked after each slice.
    pub(super) fn run_pass(&self, full: bool, mut stop: impl FnMut() -> bool) -> Pass {
        let mut state = self.lock_purge();
        // A pass under way may have detached already, and may have filled pools: it does not count.
        let done = |state: &PurgeState| if full { state.full_passes } else { state.passes };
        let under_way = !state.is_idle() && (!full || state.full_from_start);
        let target = done(&state) + 1 + u64::from(under_way);
        loop {
            let waiting = self.slice(&mut state, full);
            if done(&state) >= target {
                // Under the purge lock: pools that fill later do so in a slice that moves it.
                return Pass::Whole { returned: self.returned.0.load(Ordering::Acquire) };
            }
            drop(state);
            if stop() {
                // What is left goes on as a drain.
                let mut state = self.lock_purge();
                (state.full, state.full_from_start) = (false, false);
                return Pass::Stopped;
            }
            if waiting {
                return Pass::Waiting;
            }
            state = self.lock_purge();
        }
    }

    /// One slice; begins a pass if none is under way. Tells whether it waits for a flush.
    fn slice(&self, state: &mut PurgeState, full: bool) -> bool {
        let waiting = self.slice_stages(state, full);
        self.note_return();
        waiting
    }

    fn slice_stages(&self, state: &mut PurgeState, full: bool) -> bool {
        // Checks PU1: each stage counts what it handles off the budget, and ends the slice when there is none.
        let mut budget = C::SLICE_AREAS;
        if state.is_idle() {
            state.stage = Stage::Decay { node: 0, class: 0, left: None };
            (state.full, state.full_from_start) = (full, full);
            self.purging.store(true, Ordering::Relaxed);
        }
        state.full |= full;
        while budget > 0 {
            match core::mem::replace(&mut state.stage, Stage::Idle) {
                Stage::Decay { node, class, .. }
                    if node < self.nodes.nodes() && state.full && C::ORDER == Order::SliceByAddress =>
                {
                    state.stage = match self.empty_pool(state, node, class, &mut budget) {
                        Some(class) => Stage::Decay { node, class, left: None },
                        None => Stage::Decay { node: node + 1, class: 0, left: None },
                    };
                }
                Stage::Decay { node, class, left } if node < self.nodes.nodes() => {
                    let (class, left) = self.decay(node, class, left, state.full, &mut budget);
                    state.stage = match class {
                        Some(class) => Stage::Decay { node, class, left },
                        None => Stage::Decay { node: node + 1, class: 0, left: None },
                    };
                }
                Stage::Decay { .. } => {
                    let Some(boarding) = self.board(&mut state.flights) else {
                        state.stage = Stage::Leave(None);
                        continue;
                    };
                    state.flushes += 1;
                    state.stage = Stage::Flight(Flight::begin(boarding, &self.machine));
                }
                Stage::Flight(flight) => {
                    let settled = |sealed: Amount| {
                        state.areas += sealed.areas;
                        self.settled.0.fetch_add(sealed.pages, Ordering::Release);
                    };
                    match flight.land(&self.machine, &self.landings, settled) {
                        Ok(landed) => state.stage = Stage::Settle { landed, node: 0, class: 0 },
                        // What is flushed already need not wait.
                        Err(flight) if !state.leaving.is_empty() => state.stage = Stage::Leave(Some(flight)),
                        Err(flight) => {
                            state.stage = Stage::Flight(flight);
                            return true;
                        }
                    }
                }
                Stage::Leave(flight) if !state.leaving.is_empty() => {
                    self.leave(state, &mut budget);
                    state.stage = Stage::Leave(flight);
                }
                Stage::Leave(Some(flight)) => state.stage = Stage::Flight(flight),
                Stage::Leave(None) => {
                    self.end_pass(state);
                    return false;
                }
                Stage::Settle { mut landed, mut node, mut class } => {
                    self.settle_sized(state, &mut landed, &mut node, &mut class, &mut budget);
                    self.settle(state, &mut landed.mixed, &mut budget);
                    state.stage = if node >= self.nodes.nodes() && landed.mixed.is_empty() {
                        Stage::Leave(None)
                    } else {
                        Stage::Settle { landed, node, class }
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
    }

    /// Takes the lazy areas of all nodes on board, if there are any.
    fn board(&self, flights: &mut u64) -> Option<Boarding> {
        let mut boarding = Boarding::new(flights);
        for node in self.each_node() {
            let mut board = node.board.lock();
            let mut lazy = self.lock_lazy(node);
            if C::ORDER == Order::NodeByAddress {
                lazy.mixed.sort(&self.map);
            }
            boarding.board(&self.map, &mut lazy, &mut board);
        }
        self.stop_if_lost();
        boarding.unless_empty(&self.landings)
    }
}
