//! Where areas come from when no magazine has one: dirty runs first, clean addresses next.

use super::Heap;
use crate::PAGE_BYTES;
use crate::arena::{Arena, Run, address};
use crate::error::{AllocError, CreateError};
use crate::magazine::Out;
use crate::os::{Call, Os, abort_with};
use crate::records::Host;
use crate::word::Word;
use core::alloc::Layout;
use va_base::{Align, AllocError as IndexError, Machine, Pages, Platform, Request, VaRange};
use va_space::config::Order;
use va_space::decay::Quarter;
use va_space::lookup::MapLookup;
use va_space::node::Spread;
use va_space::{Config, Purge, SpaceError, VmapSpace};
use va_tree::{BTreeIndex, FreeIndex};

/// How the space of a process works: no pools, since what is kept is kept busy; nothing lazy for long, since pages went
/// before addresses.
pub(crate) struct Process;

impl Config for Process {
    type Index<P: Platform> = BTreeIndex<P>;
    type Zone = Spread;
    type Decay = Quarter;
    type Lookup<P: Machine> = MapLookup;
    const NODES_MAX: u32 = 1;
    const POOL_ON_ONE_NODE: bool = false;
    const POOL_PAGES_MAX: u64 = 0;
    const POOL_TRIES: u32 = 0;
    const STEAL: bool = false;
    const ORDER: Order = Order::SliceByAddress;
    const SLICE_AREAS: u64 = u64::MAX;
    const FAIL_FAST: bool = true;

    /// Whoever frees here purges when he has freed all.
    fn lazy_max(_cpus: u32) -> Pages {
        Pages::new(1 << 40)
    }

    fn index<P: Platform>(
        extent: VaRange,
        default_window: VaRange,
        platform: P,
    ) -> Result<Self::Index<P>, IndexError> {
        BTreeIndex::new(extent, default_window, platform)
    }
}

/// What the lock of the heap guards.
pub(super) struct Central<O: Os> {
    /// Whose addresses are whose; what is free in it is clean.
    pub(super) space: VmapSpace<Host<O>, Process>,
    /// Dirty runs, as holes.
    pub(super) dirty: BTreeIndex<Host<O>>,
    /// Runs that may become dirty one by one: live, in magazines, leaving, retired.
    runs: u64,
    /// Fewest dirty pages since the last decay, and pages that became dirty since.
    low: u64,
    freed: u64,
    /// Areas, and parts of them, whose pages are a mapping of their own.
    pub(super) moved: u64,
    /// Pages that a failed move made useless.
    pub(super) retired: u64,
    /// Pages in the hands of a purge.
    pub(super) leaving: u64,
    /// Pages ever given back, and refusals to take them.
    pub(super) purged: u64,
    pub(super) refused: u64,
}

impl<O: Os> Central<O> {
    pub(super) fn new(host: Host<O>, arena: &Arena<O>) -> Result<Self, CreateError> {
        let extent = arena.extent();
        let space = VmapSpace::new(extent, extent, host).map_err(|_| CreateError::NoRecords)?;
        let mut dirty = BTreeIndex::new(extent, extent, host).map_err(|_| CreateError::NoRecords)?;
        // Nothing is dirty yet.
        dirty.take(extent).map_err(|_| CreateError::NoRecords)?;
        let (runs, low, freed, moved, retired, leaving, purged, refused) = (0, 0, 0, 0, 0, 0, 0, 0);
        Ok(Self { space, dirty, runs, low, freed, moved, retired, leaving, purged, refused })
    }

    pub(super) fn dirty_pages(&self) -> u64 {
        self.dirty.free_pages().get()
    }

    /// Pays for what may become dirty after one more run was taken from clean addresses: SP3.
    ///
    /// There are never more dirty runs than what lies between them, and one. Between them are other runs and clean gaps, of
    /// which the taking may make one more.
    fn pay(&mut self) -> Result<(), AllocError> {
        let want = self.runs + self.space.stats().holes + 2;
        let missing = want.saturating_sub(self.dirty.live());
        self.dirty.reserve_pieces(missing).map_err(|_| AllocError::NoRecords)
    }

    /// Gives back what was paid for runs that became clean, but for the gap that each may be.
    fn refund(&mut self) {
        let want = self.runs + self.space.stats().holes;
        self.dirty.release_pieces(self.dirty.live().saturating_sub(want));
    }

    /// Takes exactly these pages from the dirty ones; `false` for want of records.
    pub(super) fn take_dirty_at(&mut self, range: VaRange) -> bool {
        let taken = self.dirty.take(range).is_ok();
        self.runs += u64::from(taken);
        taken
    }

    /// Pays for one more run, cut off from another.
    pub(super) fn part(&mut self) -> Result<(), AllocError> {
        self.dirty.reserve_pieces(1).map_err(|_| AllocError::NoRecords)?;
        self.runs += 1;
        Ok(())
    }

    /// Takes back what was paid for as many runs, which became parts of others.
    pub(super) fn unite(&mut self, runs: u64) {
        self.runs -= runs;
        self.dirty.release_pieces(runs);
    }

    /// Adds a run to the dirty ones. Its return was paid for.
    pub(super) fn add_dirty(&mut self, run: Run) {
        self.freed += run.pages();
        self.give_dirty(run.range());
    }

    pub(super) fn give_dirty(&mut self, range: VaRange) {
        self.runs -= 1;
        if let Err(error) = self.dirty.give_back(range) {
            abort_with(format_args!("a run that nobody had is dirty already: {error}"));
        }
    }

    /// The lowest dirty pages that fit.
    fn take_dirty(&mut self, request: &Request) -> Option<u64> {
        if self.dirty.largest_hole() < request.size() {
            return None;
        }
        let page = self.dirty.alloc(request).ok()?.page_floor();
        self.runs += 1;
        self.low = self.low.min(self.dirty_pages());
        Some(page)
    }

    /// The lowest clean addresses that fit, below the frontier from now on.
    fn take_clean(&mut self, arena: &Arena<O>, request: &Request) -> Result<u64, AllocError> {
        self.pay()?;
        let area = self.space.alloc(0, request).map_err(|error| refusal(error, request))?;
        if let Err((errno, bytes)) = arena.commit(area.range().end().page_floor()) {
            self.free_clean(area.range());
            return Err(AllocError::Refused { call: Call::Commit, errno, bytes });
        }
        self.runs += 1;
        Ok(area.start().page_floor())
    }

    /// Makes runs clean that hold zeros, or no pages.
    pub(super) fn give_clean(&mut self, ranges: impl Iterator<Item = VaRange>) {
        for range in ranges {
            self.runs -= 1;
            self.free_areas(range);
        }
        self.space.purge(Purge::Full);
        self.refund();
    }

    /// Makes clean what belonged to no run yet.
    pub(super) fn free_clean(&mut self, range: VaRange) {
        self.free_areas(range);
        self.space.purge(Purge::Full);
    }

    /// Frees areas of the space that tile `range`.
    fn free_areas(&mut self, range: VaRange) {
        let mut at = range.start();
        while at < range.end() {
            match self.space.free_at(at) {
                Ok(freed) => at = freed.end(),
                Err(error) => abort_with(format_args!("clean pages that the space does not know: {error}")),
            }
        }
    }

    /// Cuts the areas of the space at both ends of `range`, so that some of them tile it; `false` for want of records.
    pub(super) fn cut(&mut self, range: VaRange) -> bool {
        [range.start(), range.end()].into_iter().all(|at| {
            let around = self.space.find_enclosing(at).filter(|area| area.range.start() < at);
            around.is_none() || self.space.split(at).is_ok()
        })
    }

    /// How many pages a purge is to give back now, for dirty pages that may be `max`.
    pub(super) fn surplus(&mut self, max: u64) -> u64 {
        let dirty = self.dirty_pages();
        if dirty > max {
            return dirty - max / 4 * 3;
        }
        if self.freed < 2 * max {
            return 0;
        }
        let idle = core::mem::replace(&mut self.low, dirty).min(dirty);
        self.freed = 0;
        idle / 4
    }
}

impl<O: Os> Heap<O> {
    /// Gives out a run for a layout, live already, and tells whether it is all zeros.
    pub(super) fn carve(&self, layout: Layout, clean: bool) -> Result<(Run, bool), AllocError> {
        let pages = layout.size().div_ceil(PAGE_BYTES) as u64;
        let align = Align::new(layout.align() as u64).unwrap_or(Align::PAGE);
        let extent = self.arena.extent().len_bytes();
        let request = Request::pages(pages).map(|request| request.aligned(align));
        let Ok(request) = request
            .map_err(|_| ())
            .and_then(|request| if pages as usize > address_pages(extent) { Err(()) } else { Ok(request) })
        else {
            return Err(AllocError::NoSpace {
                requested_bytes: layout.size(),
                align_bytes: layout.align(),
                largest_bytes: extent as usize,
            });
        };
        match self.carve_once(&request, layout.size(), clean) {
            // What is kept may be in the way, or below a frontier that cannot move.
            Err(_) if self.release_all() > 0 => self.carve_once(&request, layout.size(), false),
            done => done,
        }
    }

    fn carve_once(&self, request: &Request, size: usize, clean: bool) -> Result<(Run, bool), AllocError> {
        let mut central = self.central.lock();
        let dirty = if clean { None } else { central.take_dirty(request) };
        let (page, is_clean) = match dirty {
            Some(page) => (page, false),
            None => (central.take_clean(&self.arena, request)?, true),
        };
        // Under the lock, so that whoever has it finds a word at every area (VM1).
        self.arena.put(page, Word::live(request.size().get(), size));
        // SAFETY: it was dirty, or free in the space, and is neither now; it is below the frontier.
        Ok((unsafe { Run::claim(page, request.size().get()) }, is_clean))
    }

    /// Makes runs dirty, and purges if there are too many.
    pub(super) fn make_dirty(&self, runs: Out) {
        let mut central = self.central.lock();
        runs.for_each(|run| central.add_dirty(run));
        let surplus = central.surplus(self.dirty_max);
        drop(central);
        if surplus > 0 {
            self.purge_some(surplus);
        }
    }
}

fn address_pages(bytes: u64) -> usize {
    (bytes / PAGE_BYTES as u64) as usize
}

fn refusal(error: SpaceError, request: &Request) -> AllocError {
    match error {
        SpaceError::NoSpace { largest, .. } => AllocError::NoSpace {
            requested_bytes: address(request.size().get()),
            align_bytes: request.align().bytes() as usize,
            largest_bytes: address(largest.get()),
        },
        _ => AllocError::NoRecords,
    }
}
