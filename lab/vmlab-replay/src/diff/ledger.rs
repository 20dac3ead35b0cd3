//! The ledger of a policy: the state of a whole space without its locks, which can be corrected.
//!
//! # Theory
//! A space cannot accept another address than it chose: an allocated area would have to become lazy again. This ledger
//! can. It chooses by the same policies ([`Config`]) and has the state of a space. That is holes in the policy's own
//! index, busy areas, lazy ones in their node, and pools by node and size. A test compares it with the space, call by
//! call.
//!
//! # Invariants
//! - **BK1 apart** busy, lazy and pooled areas and the holes of the index are disjoint, and tile the extent.

use anyhow::{Context as _, Result};
use std::collections::{BTreeMap, VecDeque};
use va_base::{InvariantViolation, Pages, Request, Va, VaRange};
use va_space::NODES_LIMIT;
use va_space::config::{Config, Order};
use va_space::decay::Decay;
use va_space::node::{NodeMap, Zone};
use va_space::pool::{EXACT_PAGES_MAX, LARGE_PAGES_MAX, LARGE_SIZES};
use va_tree::{Congruent, FreeIndex};
use vmlab_machine::{LabMachine, PlainLock, Work};

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

/// A busy area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Busy {
    /// Bytes.
    pub size: u64,
    /// Its owner.
    pub owner: Owner,
}

/// A freed area that is not yet purged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lazy {
    /// Bytes.
    pub size: u64,
    /// Its owner.
    pub owner: Owner,
    /// The node whose lazy list contains it.
    pub node: u32,
    /// The time of its free: a number that grows.
    pub freed: u64,
}

/// A pooled area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pooled {
    /// Bytes.
    pub size: u64,
    /// The node of the pool; `None` if it is unknown.
    pub node: Option<u32>,
}

/// The state of a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// Busy, entirely or in part.
    Busy(u64, Busy),
    /// Lazy, entirely or in part.
    Lazy(u64, Lazy),
    /// Pooled, entirely or in part.
    Pooled(u64, Pooled),
    /// In a hole.
    Hole,
}

/// An answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Answer {
    /// First address.
    pub start: u64,
    /// The node whose pool it comes from; `None` if it comes from the index.
    pub pool: Option<u32>,
}

/// The ledger of a space under the policies `C`.
pub struct SpaceLedger<C: Config> {
    index: C::Index<LabMachine<PlainLock>>,
    nodes: NodeMap,
    window: VaRange,
    busy: BTreeMap<u64, Busy>,
    lazy: BTreeMap<u64, Lazy>,
    pooled: BTreeMap<u64, Pooled>,
    /// The pools of each node by pages; the next area to allocate is first.
    pools: Vec<BTreeMap<u64, VecDeque<u64>>>,
    clock: u64,
}

fn range(start: u64, size: u64) -> Option<VaRange> {
    VaRange::from_size(Va::new(start), size).filter(|range| range.is_page_aligned() && !range.is_empty())
}

fn overlapping<T: Copy>(
    map: &BTreeMap<u64, T>,
    size_of: impl Fn(T) -> u64,
    start: u64,
    end: u64,
) -> Option<(u64, T)> {
    let (&at, &held) = map.range(..end).next_back()?;
    (at.saturating_add(size_of(held)) > start).then_some((at, held))
}

impl<C: Config> SpaceLedger<C> {
    /// Creates an empty space of `cpus` CPUs.
    ///
    /// # Errors
    /// If the index cannot be created.
    pub fn new(extent: VaRange, window: VaRange, cpus: u32) -> Result<Self> {
        let count = cpus.clamp(1, C::NODES_MAX.min(NODES_LIMIT));
        let machine = LabMachine::new(count, u32::MAX, Work::Elsewhere);
        let nodes = NodeMap::new(count, Pages::new(16));
        Ok(Self {
            index: C::index(extent, window, machine)?,
            nodes: nodes.context("no nodes")?,
            window,
            busy: BTreeMap::new(),
            lazy: BTreeMap::new(),
            pooled: BTreeMap::new(),
            pools: vec![BTreeMap::new(); count as usize],
            clock: 0,
        })
    }

    /// Returns the number of nodes.
    pub fn nodes(&self) -> u32 {
        self.nodes.nodes()
    }

    /// Returns the index of holes.
    pub fn index(&self) -> &impl FreeIndex {
        &self.index
    }

    /// Returns the busy areas.
    pub fn busy(&self) -> &BTreeMap<u64, Busy> {
        &self.busy
    }

    /// Returns the lazy areas.
    pub fn lazy(&self) -> &BTreeMap<u64, Lazy> {
        &self.lazy
    }

    /// Returns the number of pooled areas.
    pub fn pooled(&self) -> usize {
        self.pooled.len()
    }

    /// Returns true if areas have owners.
    fn has_pools(&self) -> bool {
        C::POOL_PAGES_MAX > 0 && (C::POOL_ON_ONE_NODE || self.nodes() > 1)
    }

    /// Returns the owner of an area for this request.
    pub fn owner_for(&self, cpu: u16, request: &Request) -> Owner {
        if self.has_pools() && request.window().is_none_or(|window| window == self.window) {
            Owner::Node(u32::from(cpu) % self.nodes())
        } else {
            Owner::NoNode
        }
    }

    /// Allocates the area that the policy chooses, for a CPU.
    pub fn alloc(&mut self, cpu: u16, request: &Request) -> Option<Answer> {
        let owner = self.owner_for(cpu, request);
        let size = request.size().get() * va_base::PAGE_SIZE;
        let from_pool = match owner {
            Owner::Node(node) => self.take_pooled(node, request),
            Owner::NoNode | Owner::Unknown => None,
        };
        let answer = match from_pool {
            Some(start) => Answer { start, pool: self.pooled.remove(&start)?.node },
            None => match self.index.alloc(request) {
                Ok(start) => Answer { start: start.get(), pool: None },
                Err(_) => self.steal(owner, request)?,
            },
        };
        self.busy.insert(answer.start, Busy { size, owner });
        Some(answer)
    }

    /// Returns what [`alloc`](Self::alloc) would return, and changes nothing.
    pub fn peek(&self, cpu: u16, request: &Request) -> Option<Answer> {
        if let Owner::Node(node) = self.owner_for(cpu, request)
            && let Some(list) = self.pools[node as usize].get(&request.size().get())
            && let Some(&start) =
                list.iter().take(C::POOL_TRIES as usize).find(|&&at| Va::new(at).is_aligned(request.align()))
        {
            return Some(Answer { start, pool: Some(node) });
        }
        self.index.would_fit(request).ok().map(|start| Answer { start: start.get(), pool: None })
    }

    /// Sets the node of areas to unknown: of those of a size that precede `until` in a pool, or of all.
    pub fn forget(&mut self, node: u32, size: u64, until: Option<u64>) {
        let Some(list) = self.pools[node as usize].get_mut(&(size / va_base::PAGE_SIZE)) else { return };
        while let Some(start) = list.pop_front_if(|&mut start| Some(start) != until) {
            self.pooled.insert(start, Pooled { size, node: None });
        }
    }

    fn take_pooled(&mut self, node: u32, request: &Request) -> Option<u64> {
        let list = self.pools.get_mut(node as usize)?.get_mut(&request.size().get())?;
        for _ in 0..(C::POOL_TRIES as usize).min(list.len()) {
            let first = list.pop_front()?;
            if Va::new(first).is_aligned(request.align()) {
                return Some(first);
            }
            list.push_back(first);
        }
        None
    }

    fn steal(&mut self, owner: Owner, request: &Request) -> Option<Answer> {
        let Owner::Node(node) = owner else { return None };
        let start = (1..self.nodes())
            .filter(|_| C::STEAL)
            .find_map(|step| self.take_pooled((node + step) % self.nodes(), request))?;
        Some(Answer { start, pool: self.pooled.remove(&start)?.node })
    }

    /// Undoes the last `alloc`: the area returns to its previous state.
    pub fn undo(&mut self, answer: Answer) {
        let Some(Busy { size, .. }) = self.busy.remove(&answer.start) else { return };
        match answer.pool {
            Some(node) => {
                self.pooled.insert(answer.start, Pooled { size, node: Some(node) });
                let pool = &mut self.pools[node as usize];
                pool.entry(size / va_base::PAGE_SIZE).or_default().push_front(answer.start);
            }
            None => self.free_range(answer.start, size),
        }
    }

    fn free_range(&mut self, start: u64, size: u64) {
        if let Some(range) = range(start, size) {
            let back = self.index.free(range);
            // The index had allocated every range that the ledger holds.
            debug_assert!(back.is_ok(), "{back:?}");
        }
    }

    /// Returns the state of a range; if it has several, the first of busy, lazy, pooled.
    pub fn place(&self, start: u64, size: u64) -> Place {
        let end = start.saturating_add(size);
        if let Some((at, busy)) = overlapping(&self.busy, |busy| busy.size, start, end) {
            return Place::Busy(at, busy);
        }
        if let Some((at, lazy)) = overlapping(&self.lazy, |lazy| lazy.size, start, end) {
            return Place::Lazy(at, lazy);
        }
        match overlapping(&self.pooled, |pooled| pooled.size, start, end) {
            Some((at, pooled)) => Place::Pooled(at, pooled),
            None => Place::Hole,
        }
    }

    /// Makes exactly this range busy, whatever its state; the rests of areas that it cuts go to the index. Returns the
    /// number of areas that were busy there; `None` if the range is outside the extent.
    pub fn put(&mut self, start: u64, size: u64, owner: Owner) -> Option<u64> {
        let whole = range(start, size)?;
        let mut gone = 0;
        loop {
            match self.place(start, size) {
                Place::Hole => break,
                Place::Busy(at, busy) => {
                    self.busy.remove(&at);
                    self.free_range(at, busy.size);
                    gone += 1;
                }
                Place::Lazy(at, lazy) => {
                    self.lazy.remove(&at);
                    self.free_range(at, lazy.size);
                }
                Place::Pooled(at, pooled) => {
                    self.unpool(at, pooled);
                    self.free_range(at, pooled.size);
                }
            }
        }
        self.index.take(whole).ok()?;
        let owner = if self.has_pools() { owner } else { Owner::NoNode };
        self.busy.insert(start, Busy { size, owner });
        Some(gone)
    }

    fn unpool(&mut self, start: u64, pooled: Pooled) {
        self.pooled.remove(&start);
        if let Some(node) = pooled.node
            && let Some(list) = self.pools[node as usize].get_mut(&(pooled.size / va_base::PAGE_SIZE))
            && let Some(at) = list.iter().position(|&other| other == start)
        {
            list.remove(at);
        }
    }

    /// Makes a range lazy in a node. `false` if it is not free.
    pub fn put_lazy(&mut self, start: u64, size: u64, node: Option<u32>) -> bool {
        let owner = node.map_or(Owner::Unknown, |node| Owner::Node(node % self.nodes()));
        if self.place(start, size) != Place::Hole || self.put(start, size, owner).is_none() {
            return false;
        }
        self.free(start)
    }

    /// Frees the area that starts here; `false` if there is none.
    pub fn free(&mut self, start: u64) -> bool {
        let Some(Busy { size, owner }) = self.busy.remove(&start) else { return false };
        let node = match owner {
            Owner::Node(node) => node,
            Owner::NoNode | Owner::Unknown => C::Zone::node_of(&self.nodes, Va::new(start)),
        };
        self.clock += 1;
        self.lazy.insert(start, Lazy { size, owner, node, freed: self.clock });
        true
    }

    /// Drains. A part of each pool moves to the index. Then the `most` oldest lazy areas move to pools, or to the
    /// index; with `full`, everything moves to the index. Returns the number of lazy areas.
    pub fn purge(&mut self, full: bool, most: u64) -> u64 {
        let by_address = C::ORDER != Order::Newest;
        for node in 0..self.pools.len() {
            let mut out = self.decayed(node, full);
            if by_address {
                out.sort_unstable();
            }
            self.free_all(out, by_address);
        }
        if full {
            let unknown: Vec<u64> = self.pooled.keys().copied().collect();
            let out =
                unknown.into_iter().filter_map(|at| Some((at, self.pooled.remove(&at)?.size))).collect();
            self.free_all(out, true);
        }
        let mut out: Vec<(u64, Lazy)> = std::mem::take(&mut self.lazy).into_iter().collect();
        if (out.len() as u64) > most {
            sort_lazy(&mut out, Order::SliceByAddress);
            self.lazy.extend(out.split_off(usize::try_from(most).unwrap_or(usize::MAX)));
        }
        let count = out.len() as u64;
        sort_lazy(&mut out, C::ORDER);
        let mut rest: Vec<(u64, u64, u32)> = Vec::new();
        for (start, lazy) in out {
            let pages = lazy.size / va_base::PAGE_SIZE;
            match lazy.owner {
                Owner::Node(node) if !full && self.pool_takes(node, pages) => {
                    self.pooled.insert(start, Pooled { size: lazy.size, node: Some(node) });
                    self.pools[node as usize].entry(pages).or_default().push_front(start);
                }
                Owner::Unknown if !full && pages <= C::POOL_PAGES_MAX => {
                    self.pooled.insert(start, Pooled { size: lazy.size, node: None });
                }
                Owner::Node(_) | Owner::Unknown | Owner::NoNode => rest.push((start, lazy.size, lazy.node)),
            }
        }
        sort_rest(&mut rest, C::ORDER);
        let join = C::ORDER == Order::SliceByAddress;
        self.free_all(rest.into_iter().map(|(start, size, _)| (start, size)).collect(), join);
        count
    }

    /// Returns true if a pool has a list for areas of this size.
    fn pool_takes(&self, node: u32, pages: u64) -> bool {
        if pages <= EXACT_PAGES_MAX.min(C::POOL_PAGES_MAX) {
            return true;
        }
        let large =
            || self.pools[node as usize].range(EXACT_PAGES_MAX + 1..).filter(|(_, list)| !list.is_empty());
        let held: u64 = large().map(|(pages, list)| pages * list.len() as u64).sum();
        let has_list = large().count() < LARGE_SIZES || large().any(|(&other, _)| other == pages);
        pages <= C::POOL_PAGES_MAX && held + pages <= LARGE_PAGES_MAX && has_list
    }

    /// Moves every pool to the index, as a shrinker does.
    pub fn drain_pools(&mut self) {
        for node in 0..self.pools.len() {
            let mut out = self.decayed(node, true);
            out.sort_unstable();
            self.free_all(out, true);
        }
    }

    /// Returns the areas that leave the pool of a node, in order.
    fn decayed(&mut self, node: usize, full: bool) -> Vec<(u64, u64)> {
        let mut out = Vec::new();
        for (pages, list) in &mut self.pools[node] {
            let len = list.len() as u64;
            let quota = if full { len } else { C::Decay::quota(len) };
            for _ in 0..quota {
                let Some(start) = list.pop_front() else { break };
                self.pooled.remove(&start);
                out.push((start, pages * va_base::PAGE_SIZE));
            }
        }
        out
    }

    /// Frees areas in this order; with `join`, consecutive neighbours are freed as one range.
    fn free_all(&mut self, out: Vec<(u64, u64)>, join: bool) {
        let mut run: Option<(u64, u64, u64)> = None;
        for (start, size) in out {
            match &mut run {
                Some((at, len, count)) if join && *at + *len == start => {
                    *len += size;
                    *count += 1;
                }
                _ => {
                    if let Some(run) = run.replace((start, size, 1)) {
                        self.free_run(run);
                    }
                }
            }
        }
        if let Some(run) = run {
            self.free_run(run);
        }
    }

    fn free_run(&mut self, (start, size, count): (u64, u64, u64)) {
        self.free_range(start, size);
        let _released = self.index.release_splits(count - 1);
    }

    /// Returns the highest base for a percpu chunk of this size.
    pub fn find_chunk(&self, size: u64) -> Option<u64> {
        let areas = [(0, size)];
        let request = Congruent::new(&areas, 1 << size.trailing_zeros().min(63)).ok()?;
        self.index.find_congruent(&request.within(self.window)).ok().map(Va::get)
    }

    /// Checks BK1 with a full walk.
    ///
    /// # Errors
    /// The error of the index, or a range that is in two states or in none.
    pub fn validate(&self) -> std::result::Result<(), InvariantViolation> {
        self.index.validate()?;
        let held = self.busy.iter().map(|(&at, busy)| (at, busy.size));
        let lazy = self.lazy.iter().map(|(&at, lazy)| (at, lazy.size));
        let pooled = self.pooled.iter().map(|(&at, pooled)| (at, pooled.size));
        let holes = self.index.holes().map(|hole| (hole.start().get(), hole.len_bytes()));
        let mut all: Vec<(u64, u64)> = held.chain(lazy).chain(pooled).chain(holes).collect();
        all.sort_unstable();
        let extent = self.index.extent();
        let mut next = extent.start().get();
        for (start, size) in all {
            if start != next {
                return Err(InvariantViolation {
                    rule: "BK1",
                    at: Va::new(next),
                    expected: next,
                    actual: start,
                });
            }
            next = start + size;
        }
        let end = extent.end().get();
        let broken = InvariantViolation { rule: "BK1", at: Va::new(next), expected: end, actual: next };
        if next == end { Ok(()) } else { Err(broken) }
    }
}

/// Sorts lazy areas as a drain takes them. Outside the ledger, so that it is compiled once for all policies.
fn sort_lazy(areas: &mut [(u64, Lazy)], order: Order) {
    match order {
        Order::NodeByAddress => areas.sort_unstable_by_key(|&(start, lazy)| (lazy.node, start)),
        Order::Newest => areas.sort_unstable_by_key(|&(_, lazy)| std::cmp::Reverse(lazy.freed)),
        Order::SliceByAddress => areas.sort_unstable_by_key(|&(_, lazy)| lazy.freed),
    }
}

/// Sorts areas that no pool takes, each with its size and node, as a drain frees them.
fn sort_rest(areas: &mut [(u64, u64, u32)], order: Order) {
    match order {
        // Of each node, from the highest address down.
        Order::NodeByAddress => areas.sort_by_key(|&(start, _, node)| (node, std::cmp::Reverse(start))),
        Order::Newest => {}
        Order::SliceByAddress => areas.sort_unstable(),
    }
}
