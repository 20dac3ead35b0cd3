//! A reference model of a space: its areas in sorted maps and stacks, purged all at once.
//!
//! It returns what a space with policies `C` returns, address for address, when a purge is one slice
//! (`SLICE_AREAS == u64::MAX`) and every flush ends at once. Its index is the simplest one with the same search. For
//! policies whose search is exact that is [`ModelIndex`](crate::model::ModelIndex). Otherwise it is the index of `C`
//! itself, since then the order of the frees to it is compared.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use va_base::{Align, PAGE_SIZE, Request, Va, VaRange};
use va_space::Config;
use va_space::Purge;
use va_space::config::Order;
use va_space::decay::Decay;
use va_space::node::{NodeMap, Zone};
use va_space::pool::{EXACT_PAGES_MAX, LARGE_PAGES_MAX, LARGE_SIZES};
use va_tree::FreeIndex;

/// An area that is no longer busy.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Old {
    page: u64,
    pages: u64,
    owner: Option<u32>,
}

/// The reference model.
pub struct SpaceModel<C, I> {
    index: I,
    nodes: NodeMap,
    /// Pages and owner by first page.
    busy: BTreeMap<u64, (u64, Option<u32>)>,
    /// Per node, the newest last.
    lazy: Vec<Vec<Old>>,
    /// Per node and size; the last is allocated first.
    pool: Vec<BTreeMap<u64, Vec<u64>>>,
    cpus: u32,
    config: PhantomData<C>,
}

impl<C, I> core::fmt::Debug for SpaceModel<C, I> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("SpaceModel").finish_non_exhaustive()
    }
}

impl<C: Config, I: FreeIndex> SpaceModel<C, I> {
    /// Creates a space on `index`, all free, of a machine with `cpus` CPUs.
    ///
    /// # Panics
    /// If there is no CPU.
    pub fn new(index: I, cpus: u32) -> Self {
        let count = cpus.clamp(1, C::NODES_MAX);
        let Some(nodes) = NodeMap::new(count, va_base::Pages::new(16)) else { panic!("no node") };
        Self {
            index,
            nodes,
            busy: BTreeMap::new(),
            lazy: vec![Vec::new(); count as usize],
            pool: vec![BTreeMap::new(); count as usize],
            cpus,
            config: PhantomData,
        }
    }

    /// Returns the address of a new area, if there is room.
    pub fn alloc(&mut self, cpu: u32, request: &Request) -> Option<Va> {
        let count = self.nodes.nodes();
        let tagged = C::POOL_PAGES_MAX > 0 && (C::POOL_ON_ONE_NODE || count > 1);
        let default = request.window().is_none_or(|window| window == self.index.default_window());
        let owner = (tagged && default).then_some(cpu % count);
        let page = self.find(request, owner)?;
        self.busy.insert(page, (request.size().get(), owner));
        Some(Va::from_page(page))
    }

    fn find(&mut self, request: &Request, owner: Option<u32>) -> Option<u64> {
        let (size, align) = (request.size().get(), request.align());
        let poolable = size <= C::POOL_PAGES_MAX;
        if let Some(node) = owner.filter(|_| poolable)
            && let Some(page) = self.pooled(node, size, align)
        {
            return Some(page);
        }
        if let Ok(at) = self.index.alloc(request) {
            return Some(at.page_floor());
        }
        // A request that could never be met changes nothing.
        if C::FAIL_FAST && !self.could_fit(request) {
            return None;
        }
        if C::STEAL
            && let Some(node) = owner.filter(|_| poolable)
        {
            let count = self.nodes.nodes();
            let stolen = (1..count).find_map(|step| self.pooled((node + step) % count, size, align));
            if stolen.is_some() {
                return stolen;
            }
        }
        self.purge(Purge::Full);
        self.index.alloc(request).ok().map(Va::page_floor)
    }

    fn could_fit(&self, request: &Request) -> bool {
        let window = request.window().unwrap_or(self.index.default_window());
        let (low, high) = window.whole_pages();
        let (first, end) = self.index.extent().whole_pages();
        let aligned = |page: &u64| Va::from_page(*page).is_aligned(request.align());
        (low.max(first)..high.min(end))
            .find(aligned)
            .is_some_and(|page| page + request.size().get() <= high.min(end))
    }

    fn pooled(&mut self, node: u32, size: u64, align: Align) -> Option<u64> {
        let stack = self.pool[node as usize].get_mut(&size)?;
        for _ in 0..(C::POOL_TRIES as usize).min(stack.len()) {
            let page = stack.pop()?;
            if Va::from_page(page).is_aligned(align) {
                return Some(page);
            }
            stack.insert(0, page);
        }
        None
    }

    /// Frees the area that starts at `at`; returns its addresses, if there is one.
    pub fn free_at(&mut self, at: Va) -> Option<VaRange> {
        if !at.get().is_multiple_of(PAGE_SIZE) {
            return None;
        }
        let page = at.page_floor();
        let (pages, owner) = self.busy.remove(&page)?;
        let node = owner.unwrap_or_else(|| C::Zone::node_of(&self.nodes, at));
        self.lazy[node as usize].push(Old { page, pages, owner });
        if self.lazy_pages() > C::lazy_max(self.cpus).get() {
            self.purge(Purge::Drain);
        }
        VaRange::from_pages(page, page + pages)
    }

    /// Takes exactly `range`; returns whether it was free, after a purge if need be.
    pub fn alloc_at(&mut self, range: VaRange) -> bool {
        let (page, end) = range.whole_pages();
        if self.index.take(range).is_err() {
            // A purge frees no busy area.
            if self.busy.iter().any(|(&start, &(pages, _))| start < end && page < start + pages) {
                return false;
            }
            self.purge(Purge::Full);
            if self.index.take(range).is_err() {
                return false;
            }
        }
        self.busy.insert(page, (end - page, None));
        true
    }

    /// Splits the busy area around `at`, if it is a page inside one.
    pub fn split(&mut self, at: Va) -> bool {
        let cut = at.page_floor();
        let Some((&page, &(pages, owner))) = self.busy.range(..cut).next_back() else { return false };
        if Va::from_page(cut) != at || page + pages <= cut {
            return false;
        }
        if let Err(error) = self.index.reserve_splits(1) {
            panic!("the model's platform failed: {error}");
        }
        self.busy.insert(page, (cut - page, owner));
        self.busy.insert(cut, (page + pages - cut, owner));
        true
    }

    /// Joins the busy areas that end and start at `at`, if there are.
    pub fn join(&mut self, at: Va) -> bool {
        let page = at.page_floor();
        let Some((&start, &(below, owner))) = self.busy.range(..page).next_back() else { return false };
        if Va::from_page(page) != at || start + below != page {
            return false;
        }
        let Some((pages, _)) = self.busy.remove(&page) else { return false };
        self.index.release_splits(1);
        self.busy.insert(start, (below + pages, owner));
        true
    }

    /// Resizes the busy area at `at`, if possible.
    pub fn resize(&mut self, at: Va, size: u64) -> bool {
        let page = at.page_floor();
        let Some(&(pages, owner)) = self.busy.get(&page).filter(|_| Va::from_page(page) == at) else {
            return false;
        };
        if size < pages {
            let tail = Va::from_page(page + size);
            return size > 0 && self.split(tail) && self.free_at(tail).is_some();
        }
        if size > pages {
            let tail = VaRange::from_pages(page + pages, page + size).unwrap_or_default();
            if self.index.take(tail).is_err() {
                return false;
            }
            self.index.release_splits(1);
            self.busy.insert(page, (size, owner));
        }
        true
    }

    /// Purges everything.
    pub fn purge(&mut self, how: Purge) {
        let full = how == Purge::Full;
        for node in 0..self.pool.len() {
            self.decay(node, full);
        }
        let mut all = Vec::new();
        for lazy in &mut self.lazy {
            let mut lazy = core::mem::take(lazy);
            match C::ORDER {
                Order::Newest => lazy.reverse(),
                Order::NodeByAddress => lazy.sort_unstable(),
                Order::SliceByAddress => {}
            }
            all.extend(lazy);
        }
        let mut rest = Vec::new();
        let (mut part, mut part_of) = (Vec::new(), 0);
        for old in all {
            match old.owner.filter(|_| !full && old.pages <= C::POOL_PAGES_MAX) {
                Some(owner) if self.has_list(owner, old.pages) => {
                    self.pool[owner as usize].entry(old.pages).or_default().push(old.page);
                }
                _ => {
                    let at = Va::from_page(old.page);
                    let node = old.owner.unwrap_or_else(|| C::Zone::node_of(&self.nodes, at));
                    if node != part_of {
                        rest.append(&mut part);
                        part_of = node;
                    }
                    // A node's areas are returned from the highest address down.
                    let place = if C::ORDER.sorts_lazy() { 0 } else { part.len() };
                    part.insert(place, (old.page, old.page + old.pages, 1));
                }
            }
        }
        rest.append(&mut part);
        if C::ORDER.sorts_slices() {
            rest = joined(rest);
        }
        self.put_back(rest);
    }

    /// Empties the pools; returns how many areas were in them.
    pub fn shrink(&mut self) -> u64 {
        let count = self.pooled_areas();
        for node in 0..self.pool.len() {
            self.decay(node, true);
        }
        count
    }

    fn has_list(&self, owner: u32, pages: u64) -> bool {
        if pages <= EXACT_PAGES_MAX {
            return true;
        }
        let large = || {
            self.pool[owner as usize]
                .iter()
                .filter(|(size, list)| **size > EXACT_PAGES_MAX && !list.is_empty())
        };
        let held: u64 = large().map(|(size, list)| size * list.len() as u64).sum();
        held + pages <= LARGE_PAGES_MAX
            && (large().any(|(&size, _)| size == pages) || large().count() < LARGE_SIZES)
    }

    fn decay(&mut self, node: usize, full: bool) {
        let mut out = Vec::new();
        for (&size, stack) in &mut self.pool[node] {
            let len = stack.len() as u64;
            for _ in 0..if full { len } else { C::Decay::quota(len) } {
                out.extend(stack.pop().map(|page| (page, page + size, 1)));
            }
        }
        if C::ORDER.sorts_decayed() {
            out = joined(out);
        }
        self.put_back(out);
    }

    fn put_back(&mut self, runs: Vec<(u64, u64, u64)>) {
        for (page, end, areas) in runs {
            let range = VaRange::from_pages(page, end).unwrap_or_default();
            if let Err(error) = self.index.free(range) {
                panic!("the model freed what was not busy: {error}");
            }
            self.index.release_splits(areas - 1);
        }
    }

    /// Returns the area that starts at `at`, contains it, or is next above it.
    pub fn find_above(&self, at: Va) -> Option<VaRange> {
        let below = self.busy.range(..=at.page_floor()).next_back();
        let inside = below.filter(|&(&page, &(pages, _))| at.page_floor() < page + pages);
        let found = inside.or_else(|| self.busy.range(at.page_floor() + 1..).next());
        found.and_then(|(&page, &(pages, _))| VaRange::from_pages(page, page + pages))
    }

    /// Returns the busy areas in address order.
    pub fn busy(&self) -> impl Iterator<Item = VaRange> + '_ {
        self.busy.iter().filter_map(|(&page, &(pages, _))| VaRange::from_pages(page, page + pages))
    }

    /// Returns the pages that are lazy.
    pub fn lazy_pages(&self) -> u64 {
        self.lazy.iter().flatten().map(|old| old.pages).sum()
    }

    /// Returns the number of areas in pools.
    pub fn pooled_areas(&self) -> u64 {
        self.pool.iter().flat_map(BTreeMap::values).map(|stack| stack.len() as u64).sum()
    }

    /// Returns the index.
    pub fn index(&self) -> &I {
        &self.index
    }
}

/// Joins neighbours, in address order, each with its number of areas.
fn joined(mut runs: Vec<(u64, u64, u64)>) -> Vec<(u64, u64, u64)> {
    runs.sort_unstable();
    let mut out: Vec<(u64, u64, u64)> = Vec::new();
    for (page, end, areas) in runs {
        match out.last_mut() {
            Some(last) if last.1 == page => (last.1, last.2) = (end, last.2 + areas),
            _ => out.push((page, end, areas)),
        }
    }
    out
}
