//! The reference model of a space: its areas by state, purged all at once, and corrected on request.
//!
//! # Theory
//! It returns what a space with policies `C` returns, address for address, when a purge is one slice
//! (`SLICE_AREAS == u64::MAX`) and every flush ends at once. Its index is the simplest one with the same search. For
//! policies whose search is exact that is [`ModelIndex`](crate::model::ModelIndex). Otherwise it is the index of `C`
//! itself, since then the order of the frees to it is compared.
//!
//! A space cannot accept another address than it chose: an allocated area would have to become lazy again. This model
//! can (`correct`). So `vmlab replay --diff` follows a kernel with it, and corrects it after each difference.
//!
//! # Invariants
//! - **BK1 tiled** busy, lazy and pooled areas and the holes of the index are disjoint, and tile the extent.
//! - **BK2 listed** the lists of a node's pool have its pooled areas, by their pages. Those of no known node are in none.

mod correct;

use crate::areas::{Placed, SpaceAreas};
use std::cmp::Reverse;
use std::collections::{BTreeMap, VecDeque};
use std::marker::PhantomData;
use va_base::{InvariantViolation, PAGE_SIZE, Pages, Request, Va, VaRange};
use va_space::config::Order;
use va_space::decay::Decay;
use va_space::node::NodeMap;
use va_space::pool::{EXACT_PAGES_MAX, LARGE_PAGES_MAX, LARGE_SIZES};
use va_space::{Config, NODES_LIMIT, Purge};
use va_tree::FreeIndex;

/// The node to whose pool a freed area moves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Owner {
    /// This node.
    Node(u32),
    /// No node.
    NoNode,
    /// An unknown node: the area was allocated before the trace.
    Unknown,
}

/// The value of a freed area that is not yet purged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lazy {
    /// The node to whose pool it moves.
    pub owner: Owner,
    /// The node whose lazy list contains it.
    pub node: u32,
    /// The time of its free: a number that grows.
    freed: u64,
}

/// The state of a range, with the first address and the bytes of the area that it overlaps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "an area, and the node of its list or pool, if it is known")]
pub enum Place {
    /// Busy, entirely or in part.
    Busy { start: u64, size: u64 },
    /// Lazy, entirely or in part.
    Lazy { start: u64, size: u64, node: u32 },
    /// Pooled, entirely or in part.
    Pooled { start: u64, size: u64, node: Option<u32> },
    /// In a hole.
    Hole,
}

/// The address of a new area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Answer {
    /// First address.
    pub start: u64,
    /// The node whose pool it comes from; `None` if it comes from the index.
    pub pool: Option<u32>,
}

/// The areas of a model: the owners of busy ones, and the nodes of pooled ones, `None` if unknown.
type Areas = SpaceAreas<Owner, Lazy, Option<u32>>;

/// The reference model.
pub struct SpaceModel<C, I> {
    index: I,
    nodes: NodeMap,
    areas: Areas,
    /// The pools of each node by pages; the next area to allocate is first.
    pools: Vec<BTreeMap<u64, VecDeque<u64>>>,
    /// The fewest areas that each list of each pool had since the last decay.
    least: Vec<BTreeMap<u64, u64>>,
    /// Drains that ended.
    drains: u64,
    /// CPUs online, by which the threshold is.
    online: u32,
    clock: u64,
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
    /// Never: there is at least one node.
    pub fn new(index: I, cpus: u32) -> Self {
        let count = cpus.clamp(1, C::NODES_MAX.min(NODES_LIMIT));
        let Some(nodes) = NodeMap::new(count, Pages::new(16)) else { panic!("no node") };
        Self {
            index,
            nodes,
            areas: Areas::default(),
            pools: vec![BTreeMap::new(); count as usize],
            least: vec![BTreeMap::new(); count as usize],
            drains: 0,
            online: cpus,
            clock: 0,
            config: PhantomData,
        }
    }

    /// Sets how many CPUs are online.
    pub fn set_online(&mut self, cpus: u32) {
        self.online = cpus;
    }

    /// Returns the address of a new area, if there is room, after a purge if need be.
    pub fn alloc(&mut self, cpu: u32, request: &Request) -> Option<Va> {
        let mut answer = self.try_alloc(cpu, request);
        if answer.is_none() && self.may_fit(request) {
            self.purge(Purge::Full);
            answer = self.try_alloc(cpu, request);
        }
        answer.map(|answer| Va::new(answer.start))
    }

    /// Returns false for a request that could never be met, and so changes nothing.
    fn may_fit(&self, request: &Request) -> bool {
        let window = request.window().unwrap_or(self.index.default_window());
        let (low, high) = window.whole_pages();
        let (first, end) = self.index.extent().whole_pages();
        let (low, high) = (low.max(first), high.min(end));
        let fits = || {
            let lowest = Va::from_page(low).align_up(request.align());
            lowest.is_some_and(|at| at.page_floor() + request.size().get() <= high)
        };
        !C::FAIL_FAST || low < high && fits()
    }

    /// Frees the area that starts at `at`; returns its addresses, if there is one. Purges above the threshold.
    pub fn free_at(&mut self, at: Va) -> Option<VaRange> {
        let (size, _) = self.areas.busy.get(at.get())?;
        self.free(at.get());
        if self.lazy_pages() > C::lazy_max(self.online).get() {
            self.purge(Purge::Drain);
        }
        VaRange::from_size(at, size)
    }

    /// Takes exactly `range`; returns whether it was free, after a purge if need be.
    pub fn alloc_at(&mut self, range: VaRange) -> bool {
        let (start, size) = (range.start().get(), range.len_bytes());
        if self.index.take(range).is_err() {
            // A purge frees no busy area.
            if self.areas.busy.overlap(start, size).is_some() {
                return false;
            }
            self.purge(Purge::Full);
            if self.index.take(range).is_err() {
                return false;
            }
        }
        self.insert(start, size, Owner::NoNode);
        true
    }

    /// Splits the busy area around `at`, if it is a page inside one.
    pub fn split(&mut self, at: Va) -> bool {
        let cut = at.get();
        let Some((start, size, &owner)) = self.areas.busy.overlap(cut, 1) else { return false };
        if !cut.is_multiple_of(PAGE_SIZE) || start == cut {
            return false;
        }
        if let Err(error) = self.index.reserve_splits(1) {
            panic!("the model's platform failed: {error}");
        }
        self.areas.busy.remove(start);
        self.insert(start, cut - start, owner);
        self.insert(cut, start + size - cut, owner);
        true
    }

    /// Joins the busy areas that end and start at `at`, if there are.
    pub fn join(&mut self, at: Va) -> bool {
        let busy = &mut self.areas.busy;
        let below = at.get().checked_sub(1).and_then(|last| busy.overlap(last, 1));
        let Some((start, below, &owner)) = below.filter(|&(start, size, _)| start + size == at.get()) else {
            return false;
        };
        let Some((size, _)) = busy.remove(at.get()) else { return false };
        self.index.release_splits(1);
        busy.remove(start);
        self.insert_grown(start, below + size, owner);
        true
    }

    /// Resizes the busy area at `at` to a number of pages, if possible.
    pub fn resize(&mut self, at: Va, pages: u64) -> bool {
        let (start, want) = (at.get(), pages * PAGE_SIZE);
        let Some((size, &owner)) = self.areas.busy.get(start) else { return false };
        if want < size {
            let tail = Va::new(start + want);
            return want > 0 && self.split(tail) && self.free_at(tail).is_some();
        }
        if want > size {
            let tail = VaRange::from_size(Va::new(start + size), want - size).unwrap_or_default();
            if self.index.take(tail).is_err() {
                return false;
            }
            self.index.release_splits(1);
            self.areas.busy.remove(start);
            self.insert_grown(start, want, owner);
        }
        true
    }

    /// Inserts a busy area that has grown: outside the default window it has no owner.
    fn insert_grown(&mut self, start: u64, size: u64, owner: Owner) {
        let range = VaRange::from_size(Va::new(start), size);
        let inside = range.is_some_and(|range| self.index.default_window().encloses(range));
        self.insert(start, size, if inside { owner } else { Owner::NoNode });
    }

    /// Inserts a busy area whose range is not in the index.
    fn insert(&mut self, start: u64, size: u64, owner: Owner) {
        if let Err(error) = self.areas.busy.insert(start, size, owner) {
            panic!("the model allocated what was busy: {error}");
        }
    }

    /// Purges everything.
    pub fn purge(&mut self, how: Purge) {
        self.purge_oldest(how == Purge::Full, u64::MAX);
    }

    /// Drains: [`Self::begin_purge`], then [`Self::end_purge`].
    pub fn purge_oldest(&mut self, full: bool, most: u64) -> u64 {
        self.begin_purge(full);
        self.end_purge(full, most)
    }

    /// Begins a drain: a part of each pool moves to the index, if it is time for that; with `full`, all of it.
    pub fn begin_purge(&mut self, full: bool) {
        if full || self.drains.is_multiple_of(C::Decay::DRAINS) {
            for node in 0..self.pools.len() {
                self.decay(node, full);
            }
        }
    }

    /// Ends a drain: the `most` oldest lazy areas move to pools, or to the index; with `full`, everything moves to the
    /// index. Returns the number of lazy areas.
    pub fn end_purge(&mut self, full: bool, most: u64) -> u64 {
        self.drains += 1;
        if full {
            // Those of unknown nodes are left.
            let out = self.areas.pooled.take().map(|(start, size, _)| (start, size)).collect();
            self.free_all(out, true);
        }
        let mut out: Vec<Placed<Lazy>> = self.areas.lazy.take().collect();
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        if out.len() > most {
            sort_lazy(&mut out, Order::SliceByAddress);
            for (start, size, lazy) in out.split_off(most) {
                self.areas.lazy.replace(start, size, lazy);
            }
        }
        let count = out.len() as u64;
        sort_lazy(&mut out, C::ORDER);
        let mut rest = Vec::new();
        for (start, size, lazy) in out {
            let pages = size / PAGE_SIZE;
            let pool = match lazy.owner {
                Owner::Node(node) if !full && self.has_list(node, pages) => Some(node),
                Owner::Unknown if !full && pages <= C::POOL_PAGES_MAX => None,
                Owner::Node(_) | Owner::Unknown | Owner::NoNode => {
                    rest.push((start, size, lazy.node));
                    continue;
                }
            };
            self.areas.pooled.replace(start, size, pool);
            if let Some(node) = pool {
                self.pools[node as usize].entry(pages).or_default().push_front(start);
            }
        }
        if C::ORDER.sorts_lazy() {
            // A node's areas are returned from the highest address down.
            rest.sort_by_key(|&(start, _, node)| (node, Reverse(start)));
        }
        self.free_all(
            rest.into_iter().map(|(start, size, _)| (start, size)).collect(),
            C::ORDER.sorts_slices(),
        );
        count
    }

    /// Empties the pools, as a shrinker does; returns how many areas were in them.
    pub fn shrink(&mut self) -> u64 {
        let count = self.pooled_areas();
        for node in 0..self.pools.len() {
            self.decay(node, true);
        }
        count - self.pooled_areas()
    }

    /// Returns true if a pool has a list for areas of this size.
    fn has_list(&self, node: u32, pages: u64) -> bool {
        if pages <= EXACT_PAGES_MAX.min(C::POOL_PAGES_MAX) {
            return true;
        }
        let large =
            || self.pools[node as usize].range(EXACT_PAGES_MAX + 1..).filter(|(_, list)| !list.is_empty());
        let held: u64 = large().map(|(pages, list)| pages * list.len() as u64).sum();
        let has_list = large().count() < LARGE_SIZES || large().any(|(&other, _)| other == pages);
        pages <= C::POOL_PAGES_MAX && held + pages <= LARGE_PAGES_MAX && has_list
    }

    /// Moves a part of a node's pool to the index, or all of it.
    fn decay(&mut self, node: usize, full: bool) {
        let mut out = Vec::new();
        for (pages, list) in &mut self.pools[node] {
            let least = self.least[node].entry(*pages).or_default();
            let len = list.len() as u64;
            for _ in 0..if full { len } else { C::Decay::quota(len, (*least).min(len)) } {
                let Some(start) = list.pop_front() else { break };
                out.extend(self.areas.pooled.remove(start).map(|(size, _)| (start, size)));
            }
            *least = list.len() as u64;
        }
        self.free_all(out, C::ORDER.sorts_decayed());
    }

    /// Frees areas to the index in this order; with `join`, in address order, neighbours as one.
    fn free_all(&mut self, mut out: Vec<(u64, u64)>, join: bool) {
        if join {
            out.sort_unstable();
        }
        for run in out.chunk_by(|&(start, size), next| join && start + size == next.0) {
            self.free_range(run[0].0, run.iter().map(|(_, size)| size).sum());
            self.index.release_splits(run.len() as u64 - 1);
        }
    }

    fn free_range(&mut self, start: u64, size: u64) {
        if let Err(error) = self.index.free(VaRange::from_size(Va::new(start), size).unwrap_or_default()) {
            panic!("the model freed what was not busy: {error}");
        }
    }

    /// Returns the area that starts at `at`, contains it, or is next above it.
    pub fn find_above(&self, at: Va) -> Option<VaRange> {
        let (start, size, _) = self.areas.busy.at_or_above(at.get())?;
        VaRange::from_size(Va::new(start), size)
    }

    /// Returns the busy areas in address order.
    pub fn busy(&self) -> impl Iterator<Item = VaRange> + '_ {
        self.areas.busy.iter().filter_map(|(start, size, _)| VaRange::from_size(Va::new(start), size))
    }

    /// Returns the pages that are lazy.
    pub fn lazy_pages(&self) -> u64 {
        self.areas.lazy.bytes() / PAGE_SIZE
    }

    /// Returns the number of areas in pools.
    pub fn pooled_areas(&self) -> u64 {
        self.areas.pooled.len() as u64
    }

    /// Returns the index.
    pub fn index(&self) -> &I {
        &self.index
    }

    /// Returns the areas that are not free in the index.
    pub fn areas(&self) -> &SpaceAreas<Owner, Lazy, Option<u32>> {
        &self.areas
    }

    /// Returns the number of nodes.
    pub fn nodes(&self) -> u32 {
        self.nodes.nodes()
    }

    /// Checks BK1 and BK2 with a full walk.
    ///
    /// # Errors
    /// The error of the index, a range that is in two states or in none, or a pool whose lists are not its areas.
    pub fn validate(&self) -> Result<(), InvariantViolation> {
        self.index.validate()?;
        let Areas { busy, lazy, pooled } = &self.areas;
        let held = busy.iter().map(|(start, size, _)| (start, size));
        let held = held.chain(lazy.iter().map(|(start, size, _)| (start, size)));
        let held = held.chain(pooled.iter().map(|(start, size, _)| (start, size)));
        let holes = self.index.holes().map(|hole| (hole.start().get(), hole.len_bytes()));
        let mut all: Vec<(u64, u64)> = held.chain(holes).collect();
        all.sort_unstable();
        let extent = self.index.extent();
        let mut next = extent.start().get();
        for (start, size) in all {
            InvariantViolation::check(start == next, "BK1", Va::new(next), next, start)?;
            next = start + size;
        }
        let end = extent.end().get();
        InvariantViolation::check(next == end, "BK1", Va::new(next), end, next)?;
        let mut listed = 0;
        for (node, lists) in (0..).zip(&self.pools) {
            for (&pages, start) in
                lists.iter().flat_map(|(pages, list)| list.iter().map(move |at| (pages, at)))
            {
                let is_pooled = pooled.get(*start) == Some((pages * PAGE_SIZE, &Some(node)));
                InvariantViolation::check(is_pooled, "BK2", Va::new(*start), pages, node.into())?;
                listed += 1;
            }
        }
        let known = pooled.iter().filter(|(.., node)| node.is_some()).count() as u64;
        InvariantViolation::check(listed == known, "BK2", Va::ZERO, known, listed)
    }
}

/// Sorts lazy areas as a drain takes them. Outside the model, so that it is compiled once for all policies.
fn sort_lazy(areas: &mut [Placed<Lazy>], order: Order) {
    match order {
        Order::NodeByAddress => areas.sort_unstable_by_key(|&(start, _, lazy)| (lazy.node, start)),
        Order::Newest => areas.sort_unstable_by_key(|&(.., lazy)| Reverse(lazy.freed)),
        Order::SliceByAddress => areas.sort_unstable_by_key(|&(.., lazy)| lazy.freed),
    }
}
