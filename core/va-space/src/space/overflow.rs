//! The steps of an alloc before it fails.
//!
//! # Theory
//! Holes that fit may exist in other nodes' pools, in magazines, among the lazy areas, and at the machine's clients.
//! The steps, in this order:
//!
//! 1. Take an area of the exact size from another node's pool.
//! 2. Drain every magazine, even while its owner sleeps.
//! 3. Purge everything and empty the pools, so that neighbours merge; search the index again. A policy that fails fast
//!    searches after each slice.
//! 4. Ask the machine's clients to free, and repeat. Linux frees its vmap blocks before the purge:
//!    [`Config::RECLAIM_FIRST`].
//!
//! A request that this extent could never meet fails before any of this. A request fails at the first step if it
//! requires at least as much as one that failed, and nothing was freed since. So a caller that repeats a request in a
//! full window takes the steps once; later only the clients are called, which report quickly that they have nothing
//! new. (Linux empties every pool of every node at each failure.)
//!
//! # Source
//! Linux `mm/vmalloc.c` (6.12: `alloc_vmap_area`, the label `overflow`).

use super::VmapSpace;
use super::purge::{Pass, Wait};
use super::take::Placement;
use crate::area::Area;
use crate::config::Config;
use crate::error::SpaceError;
use va_base::sync::atomic::Ordering;
use va_base::{Align, AllocError, Machine, Pages, Request, VaRange};
use va_tree::FreeIndex;

/// Repetitions of a request because of a magazine whose owner is in a call.
const BUSY_TRIES: u32 = if cfg!(loom) { 1 } else { 3 };

/// A request that failed although nothing was lazy, pooled or in flight any more.
#[derive(Clone, Copy)]
pub(super) struct Failed {
    size: Pages,
    align: Align,
    window: VaRange,
    /// Pages that had ever been freed then, all of them settled.
    lazied: u64,
    /// The number of times that anything had been returned.
    returned: u64,
}

impl<P: Machine + Clone, C: Config> VmapSpace<P, C> {
    #[cold]
    pub(super) fn overflow<F: Placement>(
        &self,
        request: &Request,
        owner: Option<u32>,
    ) -> Result<Area, SpaceError> {
        if !request.waits() {
            return self.overflow_at_once::<F>(request, owner);
        }
        // Memory that clients no longer need since then counts as free: the space is not notified of it.
        if C::FAIL_FAST
            && let Some(largest) = self.failed_before(request)
            && self.machine.reclaim() == 0
        {
            return Err(self.no_space(request, largest));
        }
        let steal = |own: bool| {
            let found = if own { self.steal_anywhere(request, owner) } else { self.steal(request, owner) };
            found.map(Ok)
        };
        let attempt = || {
            let got = self.or_supplied::<F>(request, owner, self.take_from_index::<F>(request, owner));
            Some(got).filter(|got| !is_no_space(got))
        };
        match self.make_space(F::IS_SHORT, steal, attempt) {
            Ok(found) => found,
            Err(vain) => {
                if let Some((lazied, returned)) = vain {
                    self.remember(request, lazied, returned);
                }
                let largest = self.lock_free().index.largest_hole();
                Err(self.no_space(request, largest))
            }
        }
    }

    /// Frees all possible areas for a request, until `steal` takes one from a pool, or `attempt` has a result. `steal`
    /// searches the pools of other nodes, and after magazines were drained (`true`) also that of the request's own. An
    /// attempt that is not short is made after slices 1, 2, 4, 8 of a pass and so on, and at its end: not in each.
    ///
    /// # Errors
    /// Nothing is left to free: the pages that had ever been freed before the last pass, and `returned` at its end, if
    /// no other thread returned areas meanwhile.
    #[cold]
    pub(super) fn make_space<T>(
        &self,
        is_short: bool,
        mut steal: impl FnMut(bool) -> Option<T>,
        mut attempt: impl FnMut() -> Option<T>,
    ) -> Result<T, Option<(u64, u64)>> {
        if C::RECLAIM_FIRST {
            self.machine.reclaim();
        }
        let mut tries = BUSY_TRIES;
        loop {
            if let Some(found) = steal(false) {
                return Ok(found);
            }
            let drained = self.drain_cells(|_| true);
            if drained.magazines > 0
                && let Some(found) = steal(true)
            {
                return Ok(found);
            }
            // Read before the purge, which may miss areas that are freed during it.
            let lazied = self.lazied.0.load(Ordering::Relaxed);
            let (mut found, mut slices) = (None, 0_u64);
            let pass = self.run_pass(true, Wait::ForFlush, || {
                slices += 1;
                let now = C::FAIL_FAST && (is_short || slices.is_power_of_two());
                found = if now { attempt() } else { None };
                found.is_some()
            });
            if let Some(found) = found.or_else(&mut attempt) {
                return Ok(found);
            }
            if self.machine.reclaim() > 0 {
                continue;
            }
            // An owner in the middle of a call leaves it soon, unless its thread does not run.
            if drained.busy > 0 && tries > 0 {
                tries -= 1;
                continue;
            }
            return Err(match pass {
                Pass::Whole { returned } => returned.map(|returned| (lazied, returned)),
                Pass::Stopped | Pass::Waiting => None,
            });
        }
    }

    /// Does the same for a request that may not wait: tries other pools. The error depends on whether a caller that may
    /// sleep could free more.
    fn overflow_at_once<F: Placement>(
        &self,
        request: &Request,
        owner: Option<u32>,
    ) -> Result<Area, SpaceError> {
        if let Some(area) = self.steal(request, owner) {
            return Ok(area);
        }
        // A lazy page settles before it is pooled, free, or held by a magazine: the magazines are read again.
        let waiting = self.is_any_held()
            || self.lazy_pages().get() > 0
            || self.is_any_held()
            || self.purging.load(Ordering::Relaxed)
            || (0..self.nodes.nodes()).any(|node| self.pooled.0.has(node))
            || self.machine.can_reclaim();
        if !waiting {
            // Again: areas may have returned, and only this call shows whether their hole needs a table.
            match self.take_from_index::<F>(request, owner) {
                Err(SpaceError::NoSpace { largest, .. }) => return Err(self.no_space(request, largest)),
                done => return done,
            }
        }
        Err(self.would_block(request))
    }

    #[cold]
    pub(super) fn would_block(&self, request: &Request) -> SpaceError {
        let lazy = self.lazy_pages().get() + self.held().lazy_pages;
        SpaceError::WouldBlock { requested: request.size(), lazy: Pages::new(lazy) }
    }

    /// Returns an area of the exact size from any pool.
    fn steal(&self, request: &Request, owner: Option<u32>) -> Option<Area> {
        if !C::STEAL || request.size().get() > C::POOL_PAGES_MAX {
            return None;
        }
        let node = owner?;
        let nodes = self.nodes.nodes();
        (1..nodes).find_map(|step| self.take_pooled((node + step) % nodes, request, owner))
    }

    /// Takes an area of the exact size from any pool, that of the request's own node first.
    fn steal_anywhere(&self, request: &Request, owner: Option<u32>) -> Option<Area> {
        if !C::STEAL || request.size().get() > C::POOL_PAGES_MAX {
            return None;
        }
        self.take_pooled(owner?, request, owner).or_else(|| self.steal(request, owner))
    }

    /// Returns the error of a request that could not be met even if the extent were all free, where the policy checks
    /// this. Reads only constants.
    #[inline(never)]
    pub(super) fn impossible(&self, request: &Request) -> Option<SpaceError> {
        if !C::FAIL_FAST || !self.is_impossible(request) {
            return None;
        }
        let window = request.window().unwrap_or(self.default_window);
        Some(SpaceError::Impossible { requested: request.size(), align: request.align(), window })
    }

    fn is_impossible(&self, request: &Request) -> bool {
        let window = request.window().unwrap_or(self.default_window);
        let start = window.start().max(self.extent.start()).align_up(request.align().max(Align::PAGE));
        let (_, end) = window.whole_pages();
        let end = end.min(self.extent.end().page_floor());
        start.is_none_or(|start| {
            let first = start.page_ceil();
            first > end || end - first < request.size().get()
        })
    }

    /// Returns the largest hole, if a request for no more failed before, and nothing was freed since.
    pub(super) fn failed_before(&self, request: &Request) -> Option<Pages> {
        // Pages in magazines are counted as freed only when they leave them, and can be drained.
        if self.is_any_held() {
            return None;
        }
        let window = request.window().unwrap_or(self.default_window);
        let heap = self.lock_free();
        let known = heap.failed.is_some_and(|failed| {
            request.size() >= failed.size
                && request.align() >= failed.align
                && failed.window.encloses(window)
                && failed.lazied == self.lazied.0.load(Ordering::Relaxed)
                && failed.returned == self.returned.0.load(Ordering::Acquire)
        });
        known.then(|| heap.index.largest_hole())
    }

    /// Returns whether a request would fail because one did before, for a model.
    #[cfg(all(test, loom))]
    pub(crate) fn is_known_to_fail(&self, request: &Request) -> bool {
        self.failed_before(request).is_some()
    }

    /// Records that a request failed with nothing left to purge. Records nothing if pages are lazy or in a magazine.
    /// Otherwise the record would miss a free that was counted but had not put its area into the list when the purge
    /// took it, and the areas of a magazine.
    fn remember(&self, request: &Request, lazied: u64, returned: u64) {
        if self.lazy_pages().get() > 0 || self.is_any_held() {
            return;
        }
        let window = request.window().unwrap_or(self.default_window);
        let failed = Failed { size: request.size(), align: request.align(), window, lazied, returned };
        self.lock_free().failed = Some(failed);
    }

    /// Records that areas returned to the index or to pools other than by a free: a request that failed before may
    /// succeed.
    pub(super) fn note_return(&self) {
        // Release pairs with the acquire loads of `overflow`: a thread that reads the new number finds these areas.
        self.returned.0.fetch_add(1, Ordering::Release);
    }

    pub(super) fn no_space(&self, request: &Request, largest: Pages) -> SpaceError {
        let window = request.window().unwrap_or(self.default_window);
        let (requested, align) = (request.size(), request.align());
        self.space_error(AllocError::NoSpace { requested, align, window, largest })
    }

    /// Converts an error of the index, with the numbers that only the space has.
    #[cold]
    pub(super) fn space_error(&self, error: AllocError) -> SpaceError {
        let held = self.held();
        let (lazy, cached) = (self.lazy_pages(), Pages::new(held.uncounted()));
        match Self::not_yet(error) {
            SpaceError::NoSpace { requested, align, window, largest, .. } => {
                SpaceError::NoSpace { requested, align, window, largest, lazy, cached }
            }
            other => other,
        }
    }

    /// Converts an error of the index, for a request with further steps to try.
    pub(super) fn not_yet(error: AllocError) -> SpaceError {
        match error {
            AllocError::NoSpace { requested, align, window, largest } => {
                let none = Pages::new(0);
                SpaceError::NoSpace { requested, align, window, largest, lazy: none, cached: none }
            }
            other => SpaceError::Index(other),
        }
    }
}

fn is_no_space(got: &Result<Area, SpaceError>) -> bool {
    matches!(got, Err(SpaceError::NoSpace { .. }))
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::VmapSpace;
    use crate::config::{Standard, WithLazyMax};
    use crate::testing::TestMachine;
    use std::vec::Vec;
    use va_base::Context;

    #[test]
    fn a_long_search_is_not_repeated_after_each_slice() {
        let machine = TestMachine::default();
        let all = VaRange::from_pages(16, 16 + 4000).unwrap();
        let attempts = |is_short| {
            let space = VmapSpace::<_, Standard>::new(all, all, &machine).unwrap();
            let areas: Vec<_> =
                (0..2000).map(|_| space.alloc(0, &Request::pages(1).unwrap()).unwrap()).collect();
            areas.into_iter().for_each(|area| space.free_in(Context::Atomic, area).unwrap());
            let mut attempts = 0;
            let made = space.make_space(
                is_short,
                |_| None,
                || {
                    attempts += 1;
                    None::<()>
                },
            );
            assert!(made.is_err());
            attempts
        };
        let (short, long) = (attempts(true), attempts(false));
        assert!(short > 50 && long < 20, "{short} {long}");
    }

    #[test]
    fn a_purge_that_is_not_finished_may_free_more() {
        let machine = TestMachine::default();
        let all = VaRange::from_pages(16, 16 + 64).unwrap();
        // Areas without an owner go to the index.
        let request = Request::pages(1).unwrap().within(VaRange::from_pages(16, 48).unwrap());
        let mut seen = [false; 2];
        for count in 1..20 {
            let space = VmapSpace::<_, WithLazyMax<Standard, 0>>::new(all, all, &machine).unwrap();
            let _last = space.alloc_at(VaRange::from_pages(79, 80).unwrap()).unwrap();
            let areas: Vec<_> = (0..count).map(|_| space.alloc(0, &request).unwrap()).collect();
            areas.into_iter().for_each(|area| space.free_in(Context::Atomic, area).unwrap());
            while space.lazy_pages().get() > 0 {
                space.tick();
            }
            let failed = space.alloc(0, &Request::pages(64).unwrap().context(Context::Atomic)).unwrap_err();
            let purging = space.purging.load(Ordering::Relaxed);
            assert_eq!(matches!(failed, SpaceError::WouldBlock { .. }), purging, "{count}: {failed}");
            seen[usize::from(purging)] = true;
        }
        assert_eq!(seen, [true; 2]);
    }
}
