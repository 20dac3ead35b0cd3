//! A reference model of blocks: a state for every page of every block, all of which a search reads.
//!
//! It returns what [`Blocks`](va_block::Blocks) with policies `C` returns, address for address and error for error,
//! when a collection and a purge are one slice and every flush ends at once. It has no lanes.

use crate::space_model::SpaceModel;
use std::collections::BTreeMap;
use std::marker::PhantomData;
use va_base::{Align, PAGE_SHIFT, PAGE_SIZE, Pages, Request, Va, VaRange};
use va_block::config::{ALLOC_PAGES_MAX, SHARED_MOST};
use va_block::{Config, UnmapError};
use va_space::Purge;
use va_tree::FreeIndex;

/// The state of a page of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Page {
    Free,
    /// In the open run.
    Run,
    /// In a mapping that starts at page `head` and has `size` pages, without those added by rounding up.
    Mapping {
        head: u64,
        size: u64,
        life: Life,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Life {
    Lives,
    Dead,
}

struct Block {
    cpu: usize,
    pages: Vec<Page>,
    /// Upper bound of the free runs other than the open one.
    fit: u64,
    /// `fit` may be too high: a run of that length may have been opened since.
    rough: bool,
    /// In a list of its CPU: the list, and when the block was put there.
    open: Option<(u64, u64)>,
}

/// The number of pages in each state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Shares {
    /// Blocks.
    pub blocks: u64,
    /// Pages that can be allocated.
    pub free: u64,
    /// Pages of live mappings.
    pub live: u64,
    /// Pages of freed mappings.
    pub dead: u64,
}

/// The reference model.
pub struct BlockModel<C: Config, I> {
    space: SpaceModel<C::Space, I>,
    block_pages: u64,
    /// By first page.
    blocks: BTreeMap<u64, Block>,
    /// Per CPU.
    current: Vec<Option<u64>>,
    freed: Vec<u64>,
    reported: u64,
    /// Touched blocks, in the order in which they were touched since they were last examined.
    touched: Vec<u64>,
    /// Blocks with dead pages, in the order in which they were examined.
    pending: Vec<u64>,
    /// Counts insertions into lists.
    stamp: u64,
    /// Counts blocks that began, and blocks released.
    moves: u64,
    /// `moves` when pages of another CPU were last taken, since no block could begin.
    full: Option<u64>,
    /// Requests that looked at other CPUs at once since then.
    shared: u32,
    /// Sizes of the areas allocated by the space itself, by first page.
    large: BTreeMap<u64, u64>,
    config: PhantomData<C>,
}

impl<C: Config, I> core::fmt::Debug for BlockModel<C, I> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("BlockModel").field("block_pages", &self.block_pages).finish_non_exhaustive()
    }
}

impl<C: Config, I: FreeIndex> BlockModel<C, I> {
    /// Creates the blocks of a machine with `cpus` CPUs, in `space`.
    pub fn new(space: SpaceModel<C::Space, I>, cpus: u32) -> Self {
        Self {
            space,
            block_pages: C::block_pages(cpus),
            blocks: BTreeMap::new(),
            current: vec![None; cpus as usize],
            freed: vec![0; cpus as usize],
            reported: 0,
            touched: Vec::new(),
            pending: Vec::new(),
            stamp: 0,
            moves: 0,
            full: None,
            shared: 0,
            large: BTreeMap::new(),
            config: PhantomData,
        }
    }

    fn alloc_max(&self) -> u64 {
        ALLOC_PAGES_MAX.min(self.block_pages)
    }

    /// Returns the address of a new mapping, if there is room.
    pub fn alloc(&mut self, cpu: u32, pages: u64) -> Option<Va> {
        if pages == 0 || pages > self.alloc_max() {
            let request = Request::pages(pages).ok()?;
            let at = self.space.alloc(cpu, &request).or_else(|| {
                self.shrink();
                self.space.alloc(cpu, &request)
            })?;
            self.large.insert(at.page_floor(), pages);
            return Some(at);
        }
        let cpu_index = cpu as usize % self.current.len();
        if !C::FIRST_FIT
            && let Some(current) = self.current[cpu_index]
            && let Some(at) = self.carve(current, pages)
        {
            return Some(at);
        }
        let is_full = self.full == Some(self.moves);
        self.shared += u32::from(is_full);
        if is_full && self.shared <= SHARED_MOST {
            let found = self.search(cpu_index, pages).or_else(|| self.search_others(cpu_index, pages));
            if found.is_some() {
                return found;
            }
        }
        let mut failed = None;
        loop {
            if let Some(at) = self.search(cpu_index, pages) {
                return Some(at);
            }
            if C::REUSE && self.reported >= C::dead_max(self.current.len() as u32).get() {
                self.collect();
                if let Some(at) = self.search(cpu_index, pages) {
                    return Some(at);
                }
            }
            while !self.may_begin() {
                let before = self.moves;
                self.reap(false);
                if let Some(at) = self.search(cpu_index, pages) {
                    return Some(at);
                }
                assert!(self.may_begin() || self.moves > before, "nothing more to reap");
            }
            let before = self.moves;
            if let Some(at) = self.begin(cpu, pages) {
                return Some(at);
            }
            if failed.is_some()
                && let Some(at) = self.search_others(cpu_index, pages)
            {
                (self.full, self.shared) = (Some(before), 0);
                return Some(at);
            }
            if failed == Some(before) {
                return None;
            }
            failed = Some(before);
            self.shrink();
            if C::REUSE {
                self.collect();
            }
        }
    }

    /// Checks VB8, from counts of touched blocks.
    fn may_begin(&self) -> bool {
        let (present, cpus) = (self.blocks.len(), self.current.len());
        !C::REUSE || present < 2 * (present - self.touched.len()) + 2 * cpus
    }

    fn begin(&mut self, cpu: u32, pages: u64) -> Option<Va> {
        let align = Align::new(self.block_pages * PAGE_SIZE)?;
        let request = Request::pages(self.block_pages).ok()?.aligned(align);
        let start = self.space.alloc(cpu, &request)?.page_floor();
        // VB8, page by page.
        let live = self.blocks.values().filter(|block| block.count(Life::lives) > 0).count();
        let most = 2 * live + 2 * self.current.len();
        assert!(!C::REUSE || self.blocks.len() < most, "{} of {most}", self.blocks.len());
        let cpu = cpu as usize % self.current.len();
        let run = vec![Page::Run; self.block_pages as usize];
        self.blocks.insert(start, Block { cpu, pages: run, fit: 0, rough: false, open: None });
        self.moves += 1;
        let at = self.carve(start, pages);
        self.push(start);
        self.current[cpu] = Some(start);
        at
    }

    /// Puts a block at the end of the list of its class.
    fn push(&mut self, start: u64) {
        self.stamp += 1;
        let stamp = self.stamp;
        if let Some(block) = self.blocks.get_mut(&start) {
            block.open = Some((block.class::<C>(), stamp));
        }
    }

    /// Moves an open block into the right list.
    fn sort(&mut self, start: u64) {
        let Some(block) = self.blocks.get_mut(&start) else { return };
        block.measure();
        let class = block.class::<C>();
        if block.room() == 0 {
            self.unlink(start);
        } else if block.open.is_some_and(|(listed, _)| listed != class) {
            self.push(start);
        }
    }

    /// Allocates from the open run of one block.
    fn carve(&mut self, start: u64, pages: u64) -> Option<Va> {
        let consumed = u64::from(C::consumed(pages as u32));
        let block = self.blocks.get_mut(&start)?;
        let head = block.pages.iter().position(|page| *page == Page::Run)?;
        let end = head + consumed as usize;
        if block.pages.get(head..end)?.iter().any(|page| *page != Page::Run) {
            return None;
        }
        let head = start + head as u64;
        for page in &mut block.pages[(head - start) as usize..end] {
            *page = Page::Mapping { head, size: pages, life: Life::Lives };
        }
        Some(Va::from_page(head))
    }

    /// Returns the open blocks of one CPU: list, stamp, start.
    fn listed(&self, cpu: usize) -> Vec<(u64, u64, u64)> {
        let of = self.blocks.iter().filter(|(_, block)| block.cpu == cpu);
        let mut listed: Vec<_> =
            of.filter_map(|(&start, block)| block.open.map(|(class, at)| (class, at, start))).collect();
        listed.sort_unstable();
        listed
    }

    fn search(&mut self, cpu: usize, pages: u64) -> Option<Va> {
        let consumed = u64::from(C::consumed(pages as u32));
        if C::FIRST_FIT {
            for (_, _, start) in self.listed(cpu) {
                if let Some(at) = self.carve_in(start, pages, consumed) {
                    return Some(at);
                }
                if self.blocks.get(&start)?.room() == 0 {
                    self.unlink(start);
                }
            }
            return None;
        }
        let mut next = self.current[cpu].or_else(|| self.fitting(cpu, consumed));
        while let Some(start) = next {
            if let Some(at) = self.carve_in(start, pages, consumed) {
                return Some(at);
            }
            if self.current[cpu] == Some(start) {
                self.current[cpu] = None;
            }
            self.sort(start);
            next = self.fitting(cpu, consumed);
        }
        None
    }

    /// Searches the blocks of the CPUs above `own`, and of those below, that may have room.
    fn search_others(&mut self, own: usize, pages: u64) -> Option<Va> {
        if !C::REUSE {
            return None;
        }
        let want = u64::from(C::consumed(pages as u32));
        (own + 1..self.current.len()).chain(0..own).find_map(|cpu| {
            let shows = self.current[cpu].is_some() || self.fitting(cpu, want).is_some();
            if shows { self.search(cpu, pages) } else { None }
        })
    }

    fn fitting(&self, cpu: usize, want: u64) -> Option<u64> {
        self.listed(cpu).into_iter().find(|(class, ..)| *class >= want).map(|(.., start)| start)
    }

    fn carve_in(&mut self, start: u64, pages: u64, consumed: u64) -> Option<Va> {
        if self.blocks.get(&start)?.room() < consumed {
            return None;
        }
        let got = self.carve(start, pages).or_else(|| {
            let block = self.blocks.get_mut(&start)?;
            if block.fit < consumed || !block.open_run(consumed) {
                return None;
            }
            self.carve(start, pages)
        });
        if got.is_some() {
            let cpu = self.blocks.get(&start)?.cpu;
            self.current[cpu] = Some(start);
        }
        got
    }

    fn unlink(&mut self, start: u64) {
        let Some(block) = self.blocks.get_mut(&start) else { return };
        block.open = None;
        if self.current[block.cpu] == Some(start) {
            self.current[block.cpu] = None;
        }
    }

    fn release(&mut self, start: u64) {
        self.unlink(start);
        self.blocks.remove(&start);
        self.pending.retain(|pending| *pending != start);
        self.moves += 1;
        self.space.free_at(Va::from_page(start));
    }

    /// Frees a mapping.
    ///
    /// # Errors
    /// Those of `Blocks`.
    pub fn free(&mut self, cpu: u32, at: Va, pages: u64) -> Result<(), UnmapError> {
        let page = at.page_floor();
        let aligned = at.get().is_multiple_of(PAGE_SIZE);
        let start = page - page % self.block_pages;
        let Some(block) = self.blocks.get_mut(&start).filter(|_| aligned) else {
            return self.free_large(at, pages);
        };
        if pages == 0 {
            return Err(UnmapError::BadCount { pages });
        }
        let (head, size, life) = match block.pages[(page - start) as usize] {
            Page::Mapping { head, size, life } if page < head + size => (head, size, life),
            _ => return Err(UnmapError::NotMapped { at, inside: None }),
        };
        let range = VaRange::from_pages(head, head + size).unwrap_or_default();
        if head != page {
            let inside = (life == Life::Lives).then_some(range);
            return Err(UnmapError::NotMapped { at, inside });
        }
        if life != Life::Lives {
            return Err(UnmapError::Twice { range });
        }
        if size != pages {
            return Err(UnmapError::WrongCount { range, pages: Pages::new(pages) });
        }
        block.each_of(head, |life| *life = Life::Dead);
        if !self.touched.contains(&start) {
            self.touched.push(start);
        }
        if C::REUSE {
            let freed = &mut self.freed[cpu as usize % self.current.len()];
            *freed += pages;
            if *freed >= C::REPORT_PAGES {
                self.reported += *freed;
                *freed = 0;
            }
        } else if block.count(Life::is_dead) == self.block_pages {
            self.release(start);
        }
        Ok(())
    }

    fn free_large(&mut self, at: Va, pages: u64) -> Result<(), UnmapError> {
        if pages == 0 || pages > u64::MAX >> PAGE_SHIFT {
            return Err(UnmapError::BadCount { pages });
        }
        let page = at.page_floor();
        let around = self.large.range(..=page).next_back().filter(|(start, size)| page < *start + **size);
        let range = around.and_then(|(&start, &size)| VaRange::from_pages(start, start + size));
        match range {
            Some(range) if range.start() == at => {
                if range.len_bytes() / PAGE_SIZE != pages {
                    return Err(UnmapError::WrongCount { range, pages: Pages::new(pages) });
                }
                self.large.remove(&page);
                self.space.free_at(at);
                Ok(())
            }
            inside
                if self
                    .blocks
                    .range(..=page)
                    .next_back()
                    .is_none_or(|(start, _)| page >= start + self.block_pages) =>
            {
                Err(UnmapError::NotMapped { at, inside })
            }
            // Unaligned, in a block: the space has the block.
            _ => {
                let start = page - page % self.block_pages;
                Err(UnmapError::NotMapped {
                    at,
                    inside: VaRange::from_pages(start, start + self.block_pages),
                })
            }
        }
    }

    /// Flushes all dead pages, and all lazy areas.
    pub fn unmap_aliases(&mut self) {
        self.collect();
        self.space.purge(Purge::Aliases);
    }

    /// Releases all blocks without live mappings.
    pub fn shrink(&mut self) {
        self.reap(true);
    }

    /// Releases blocks without live mappings, all or except those about to be used.
    fn reap(&mut self, all: bool) {
        let touched = core::mem::take(&mut self.touched);
        for start in touched.into_iter().rev() {
            let Some(block) = self.blocks.get(&start) else { continue };
            let (dead, free) = (block.count(Life::lives) == 0, block.free());
            let current = self.current[block.cpu] == Some(start);
            let needed = (!C::REUSE || current) && !C::is_fragmented(free, self.block_pages);
            let gone = block.count(Life::is_dead);
            if dead && (all || !needed) {
                self.reported = self.reported.saturating_sub(self.block_pages - free);
                self.release(start);
                continue;
            }
            if dead {
                self.touched.push(start);
            }
            if gone > 0 && !self.pending.contains(&start) {
                self.pending.push(start);
            }
        }
    }

    /// Purges the space.
    pub fn purge(&mut self, how: Purge) {
        self.space.purge(how);
    }

    fn collect(&mut self) {
        self.reported = 0;
        self.reap(false);
        let pending = core::mem::take(&mut self.pending);
        if !C::REUSE {
            return;
        }
        for start in pending {
            let Some(block) = self.blocks.get_mut(&start) else { continue };
            for page in &mut block.pages {
                if matches!(page, Page::Mapping { life: Life::Dead, .. }) {
                    *page = Page::Free;
                }
            }
            (block.fit, block.rough) = (1024, true);
            if block.open.is_none() {
                block.measure();
                self.push(start);
            } else if self.current[block.cpu] != Some(start) {
                self.sort(start);
            }
        }
    }

    /// Returns the mapping that is around `at`.
    pub fn find_enclosing(&self, at: Va) -> Option<VaRange> {
        let page = at.page_floor();
        let start = page - page % self.block_pages;
        match self.blocks.get(&start)?.pages[(page - start) as usize] {
            Page::Mapping { head, size, life: Life::Lives } if page < head + size => {
                VaRange::from_pages(head, head + size)
            }
            _ => None,
        }
    }

    /// Returns the counts.
    pub fn shares(&self) -> Shares {
        let mut shares = Shares { blocks: self.blocks.len() as u64, ..Shares::default() };
        for block in self.blocks.values() {
            shares.free += block.free();
            shares.live += block.count(Life::lives);
            shares.dead += block.count(Life::is_dead);
        }
        shares
    }

    /// Returns the space below.
    pub fn space(&self) -> &SpaceModel<C::Space, I> {
        &self.space
    }
}

impl Life {
    fn lives(self) -> bool {
        self == Life::Lives
    }

    fn is_dead(self) -> bool {
        self != Life::Lives
    }
}

impl Block {
    fn count(&self, which: fn(Life) -> bool) -> u64 {
        let of = |page: &&Page| matches!(page, Page::Mapping { life, .. } if which(*life));
        self.pages.iter().filter(of).count() as u64
    }

    fn free(&self) -> u64 {
        self.pages.iter().filter(|page| matches!(page, Page::Free | Page::Run)).count() as u64
    }

    fn run(&self) -> u64 {
        self.pages.iter().filter(|page| **page == Page::Run).count() as u64
    }

    fn room(&self) -> u64 {
        self.run().max(self.fit)
    }

    /// Returns the list for the contiguous pages that can be allocated.
    fn class<C: Config>(&self) -> u64 {
        if C::FIRST_FIT { 1 } else { self.room().clamp(1, ALLOC_PAGES_MAX) }
    }

    /// Makes `fit` exact: the longest row of pages that belong to no mapping, for which no run is open then.
    fn measure(&mut self) {
        if self.rough {
            self.close_run();
            let runs = self.pages.split(|page| *page != Page::Free);
            (self.fit, self.rough) = (runs.map(|run| run.len() as u64).max().unwrap_or(0), false);
        }
    }

    fn each_of(&mut self, of: u64, change: impl Fn(&mut Life)) {
        for page in &mut self.pages {
            if let Page::Mapping { head, life, .. } = page
                && *head == of
            {
                change(life);
            }
        }
    }

    /// Makes the pages of the open run free ones.
    fn close_run(&mut self) {
        for page in &mut self.pages {
            if *page == Page::Run {
                *page = Page::Free;
            }
        }
    }

    /// Opens the lowest free run of at least `want` pages instead of the open one.
    fn open_run(&mut self, want: u64) -> bool {
        self.fit = self.fit.max(self.run());
        self.close_run();
        let (mut longest, mut start) = (0, 0);
        while start < self.pages.len() {
            let len = self.pages[start..].iter().take_while(|page| **page == Page::Free).count();
            if len as u64 >= want {
                self.pages[start..start + len].fill(Page::Run);
                self.rough |= len as u64 >= self.fit;
                return true;
            }
            longest = longest.max(len as u64);
            start += len.max(1);
        }
        (self.fit, self.rough) = (longest, false);
        false
    }
}
