//! Allocation of areas that no magazine has: from dirty runs first, from clean addresses next.
//!
//! Clean addresses are allocated and freed in whole blocks: huge pages, or 64 KiB in the zone of small areas. The rest
//! of an area's last block becomes dirty. So no small clean fragments lie between dirty runs, and no part of a huge
//! page is released.

use super::cold::Cold;
use super::{Heap, Held, VISITS};
use crate::PAGE_BYTES;
use crate::arena::{Arena, HUGE, KINDS, Run, SMALL, address};
use crate::error::{AllocError, CreateError};
use crate::magazine::{BIG_PAGES, Kinds, Out};
use crate::page_word::Word;
use crate::space_config::Process;
use core::alloc::Layout;
use core::sync::atomic::Ordering;
#[cfg(test)]
use va_base::InvariantViolation;
use va_base::{Align, Request, Va, VaRange};
use va_space::{Purge, SpaceError, VmapSpace};
use va_tree::{BTreeIndex, FreeIndex};
use vmalloc_os::os::{Call, Errno, Os, Span, abort_with};
use vmalloc_os::records::{Host, Placed};

/// Pages from which a request is first tried as a separate mapping: 1 GiB.
const PROBED_PAGES: u64 = 1 << 18;

/// The state that the lock of a zone guards.
pub(super) struct Central<O: Os> {
    /// The addresses of areas. Free addresses are clean, in whole blocks.
    pub(super) space: Placed<VmapSpace<Host<O>, Process>>,
    /// Dirty runs, as holes of an index.
    pub(super) dirty: Placed<BTreeIndex<Host<O>>>,
    /// The dirty blocks.
    pub(super) cold: Cold<Host<O>>,
    /// First page of the zone, and pages of a block.
    first: u64,
    pub(super) block_pages: u64,
    /// Areas that the index of dirty runs counts as allocated, beyond the runs that exist: at least one for each clean
    /// gap.
    pub(super) spare: u64,
    /// Upper bound of the number of clean gaps.
    pub(super) gaps: u64,
    /// Number of times that pages became clean, or came below the frontier, since access to clean pages was last
    /// removed.
    cleaned: u64,
    /// Fewest dirty pages since the last decay; with several nodes, of whole blocks.
    pub(super) low: u64,
    /// Pages that a failed move made unusable, or that were released.
    pub(super) retired: u64,
    /// Pages that a purge is releasing.
    pub(super) leaving: u64,
    /// Small misses until cold blocks are considered again.
    pub(super) small_pause: u64,
    /// Pages of another node than node 0 that all CPUs know to be cached (`nodes.rs`).
    pub(super) published: u64,
    /// Pages that became dirty since all CPUs were last notified.
    pub(super) freed: u64,
    /// Pages ever moved to other addresses by refills.
    pub(super) refilled: u64,
    /// Pages ever released, and failed attempts to release pages.
    pub(super) purged: u64,
    pub(super) failed: u64,
}

/// Pages allocated from clean addresses: a run, and the rest of its last block.
pub(super) struct Fresh {
    pub(super) page: u64,
    /// The blocks that contain the run and are clean, unless the run is partly dirty.
    pub(super) clean: VaRange,
    pub(super) rest: VaRange,
}

impl<O: Os> Central<O> {
    pub(super) const EMPTY: Self = Self {
        space: Placed::NOWHERE,
        dirty: Placed::NOWHERE,
        cold: Cold::new(Host::NOWHERE),
        first: 0,
        block_pages: 1,
        spare: 1,
        gaps: 1,
        cleaned: 0,
        low: 0,
        retired: 0,
        leaving: 0,
        small_pause: 0,
        published: 0,
        freed: 0,
        refilled: 0,
        purged: 0,
        failed: 0,
    };

    /// Initializes an empty value at its final address.
    pub(super) fn init(
        &mut self,
        host: Host<O>,
        extent: VaRange,
        block_pages: u64,
    ) -> Result<(), CreateError> {
        let no_records = |_| CreateError::NoRecords;
        let space = Placed::new(&host, || va_base::constant!(VmapSpace::empty()));
        let dirty = Placed::new(&host, || const { BTreeIndex::empty(Host::NOWHERE) });
        self.space = space.ok_or(CreateError::NoRecords)?;
        self.dirty = dirty.ok_or(CreateError::NoRecords)?;
        self.dirty.set_platform(host);
        self.cold.set_platform(host);
        self.space.init(extent, extent, host).map_err(|_| CreateError::NoRecords)?;
        self.dirty.init(extent, extent).map_err(no_records)?;
        // No page is dirty at the start.
        self.dirty.take(extent).map_err(no_records)?;
        (self.first, self.block_pages) = (extent.start().page_floor(), block_pages);
        Ok(())
    }

    pub(super) fn dirty_pages(&self) -> u64 {
        self.dirty.free_pages().get()
    }

    /// Returns the number of dirty pages, without those known to be absent.
    pub(super) fn resident_pages(&self) -> u64 {
        self.dirty_pages().saturating_sub(self.cold.absent())
    }

    /// Returns the number of dirty pages that a purge could release: those of whole blocks, without those known to be
    /// absent.
    pub(super) fn whole_pages(&self) -> u64 {
        (self.cold.len() * self.block_pages).saturating_sub(self.cold.absent())
    }

    /// Returns the pages of a block.
    pub(super) fn block(&self, block: u64) -> VaRange {
        let page = self.first + block * self.block_pages;
        VaRange::from_pages(page, page + self.block_pages).unwrap_or_default()
    }

    /// Returns the blocks that contain the pages `[start, end)`.
    pub(super) fn blocks_around(&self, start: u64, end: u64) -> core::ops::Range<u64> {
        (start - self.first) / self.block_pages..(end - self.first).div_ceil(self.block_pages)
    }

    /// Returns the blocks that lie wholly in `[start, end)`.
    fn blocks_inside(&self, start: u64, end: u64) -> core::ops::Range<u64> {
        (start - self.first).div_ceil(self.block_pages)..(end - self.first) / self.block_pages
    }

    /// Removes the blocks of a detached run, which is never used again, from the list of cold ones.
    #[cold]
    pub(super) fn forget_cold(&mut self, run: &Run) {
        let blocks = self.blocks_inside(run.page(), run.end());
        self.cold.remove(blocks);
    }

    /// Reserves the records for one more run and the rest of its last block, which may become dirty later: SP3.
    ///
    /// Neighbouring dirty runs are separated by other runs or clean gaps, so there is at most one more dirty run than
    /// separators. An allocation from clean addresses may add a gap.
    pub(super) fn pay(&mut self) -> Result<(), AllocError> {
        if self.spare < self.gaps + 3 {
            // More than needed now, because counting the gaps is expensive.
            self.gaps = self.space.stats().holes;
            let missing = (2 * self.gaps + 16).saturating_sub(self.spare);
            self.dirty.reserve_splits(missing).map_err(|_| AllocError::NoRecords)?;
            self.spare += missing;
        }
        self.gaps += 1;
        Ok(())
    }

    /// Checks VM3 for this number of runs.
    #[cfg(test)]
    pub(super) fn check_paid(&self, runs: u64) -> Result<(), InvariantViolation> {
        let counted = self.dirty.live() - self.spare;
        InvariantViolation::check(counted == runs, "VM3", Va::ZERO, runs, counted)?;
        let gaps = self.space.stats().holes;
        InvariantViolation::check(self.gaps >= gaps, "VM3", Va::ZERO, gaps, self.gaps)?;
        InvariantViolation::check(self.spare >= gaps, "VM3", Va::ZERO, gaps, self.spare)
    }

    /// Releases records that are reserved beyond the need.
    fn refund(&mut self) {
        if self.spare > 4 * self.gaps + 64 {
            self.gaps = self.space.stats().holes;
            let excess = self.spare.saturating_sub(2 * self.gaps + 16);
            self.spare -= self.dirty.release_splits(excess);
        }
    }

    /// Removes exactly these pages from the dirty ones. Returns false if no record is available.
    #[inline(never)]
    pub(super) fn take_dirty_at(&mut self, range: VaRange) -> bool {
        let taken = self.dirty.take(range).is_ok();
        if taken {
            self.leave_cold(range);
        }
        taken
    }

    /// Removes the blocks from the list that are no longer wholly dirty: CD1.
    fn leave_cold(&mut self, range: VaRange) {
        let (start, end) = range.whole_pages();
        self.cold.remove(self.blocks_around(start, end));
    }

    /// Reserves the record for one more run, cut off from another.
    pub(super) fn part(&mut self) -> Result<(), AllocError> {
        self.dirty.reserve_splits(1).map_err(|_| AllocError::NoRecords)
    }

    /// Records that this many runs became parts of others. Their reserved records become spare ones.
    pub(super) fn record_merged(&mut self, runs: u64) {
        self.spare += runs - self.dirty.release_splits(runs);
    }

    /// Adds a run to the dirty ones. Its record is reserved.
    pub(super) fn add_dirty(&mut self, run: Run) {
        self.add_dirty_range(run.range());
    }

    pub(super) fn add_dirty_range(&mut self, range: VaRange) {
        // The run merged with its neighbours, so blocks at its ends may be wholly dirty now: CD1.
        let Some(hole) = self.free_dirty(range) else { return };
        let ((start, end), (low, high)) = (range.whole_pages(), hole.whole_pages());
        let (around, inside) = (self.blocks_around(start, end), self.blocks_inside(low, high));
        self.cold.add(around.start.max(inside.start)..around.end.min(inside.end));
    }

    /// Adds pages to the index of dirty ones, and returns the dirty run that contains them now.
    pub(super) fn free_dirty(&mut self, range: VaRange) -> Option<VaRange> {
        if let Err(error) = self.dirty.free(range) {
            abort_with(format_args!("a run without an owner is dirty already: {error}"));
        }
        self.dirty.hole_below(range.start())
    }

    /// Allocates the lowest dirty pages that fit.
    pub(super) fn take_dirty(&mut self, request: &Request) -> Option<u64> {
        if self.dirty.largest_hole() < request.size() {
            return None;
        }
        let page = self.dirty.alloc(request).ok()?.page_floor();
        self.leave_cold(VaRange::from_pages(page, page + request.size().get()).unwrap_or_default());
        self.low = self.low.min(self.dirty_pages());
        Some(page)
    }

    /// Allocates the lowest clean blocks that fit, and moves the frontier above them. The record for the rest of the
    /// last block is reserved. The caller makes the rest dirty.
    pub(super) fn take_clean(&mut self, arena: &Arena<O>, request: &Request) -> Result<Fresh, AllocError> {
        self.pay()?;
        let pages = request.size().get().next_multiple_of(self.block_pages);
        let align =
            request.align().max(Align::from_log2(address(self.block_pages).ilog2()).unwrap_or(Align::PAGE));
        let blocks = Request::pages(pages).map_err(|_| AllocError::NoRecords)?.aligned(align);
        let area = self.space.alloc(0, &blocks).map_err(|error| self.alloc_error(error, request))?;
        let (page, end) = area.range().whole_pages();
        if !self.cold.reserve((end - self.first) / self.block_pages) {
            self.free_clean(area.range());
            return Err(AllocError::NoRecords);
        }
        self.cleaned += 1;
        if let Err((errno, bytes)) = arena.commit(area.range()) {
            self.free_clean(area.range());
            return Err(AllocError::CallFailed { call: Call::Commit, errno, bytes });
        }
        // One spare record is now this run's, and another is that of the rest.
        self.spare -= 1;
        let rest = VaRange::from_pages(page + request.size().get(), end).unwrap_or_default();
        self.spare -= u64::from(!rest.is_empty());
        Ok(Fresh { page, clean: area.range(), rest })
    }

    fn alloc_error(&self, error: SpaceError, request: &Request) -> AllocError {
        let largest = match error {
            SpaceError::NoSpace { largest, .. } => largest,
            // The small zone of a small arena is shorter than many requests that the other zone has no room for.
            SpaceError::Impossible { .. } => self.space.stats().largest_hole,
            _ => return AllocError::NoRecords,
        };
        AllocError::NoSpace {
            requested_bytes: address(request.size().get()),
            align_bytes: request.align().bytes() as usize,
            largest_bytes: address(largest.get()),
        }
    }

    /// Moves a fresh run down over the dirty run that ends at its start, because dirty pages are resident. Returns the
    /// number of pages.
    ///
    /// ```text
    ///   |~~dirty~~|== fresh ==|rest|     ->     |~|== fresh ==|  rest, blocks of it clean again  |
    /// ```
    pub(super) fn reach_down(&mut self, fresh: &mut Fresh, request: &Request) -> u64 {
        let (page, pages) = (fresh.page, request.size().get());
        let last = Va::from_page(page - 1);
        let Some(below) = self.dirty.hole_below(last).filter(|hole| hole.contains(last)) else {
            return 0;
        };
        let start = below.start().page_floor().max(page.saturating_sub(pages - 1));
        let start = start.next_multiple_of(1 << request.align().page_log2());
        if start >= page || !self.take_dirty_at(VaRange::from_pages(start, page).unwrap_or_default()) {
            return 0;
        }
        // The dirty run was a run of its own, and is part of this one now.
        self.record_merged(1);
        let end = fresh.rest.end().page_floor().max(page + pages);
        let keep = self.block(self.blocks_around(page, start + pages).end).start().page_floor();
        let over = VaRange::from_pages(keep, end).unwrap_or_default();
        let had_rest = !fresh.rest.is_empty();
        fresh.page = start;
        let clean = !over.is_empty() && self.cut(over);
        if clean {
            self.free_clean(over);
        }
        let end = if clean { keep } else { end };
        fresh.clean = VaRange::from_pages(page, end).unwrap_or_default();
        fresh.rest = VaRange::from_pages(start + pages, end).unwrap_or_default();
        // The record for the rest was reserved only if there was a rest before.
        match (had_rest, !fresh.rest.is_empty()) {
            (true, false) => self.spare += 1,
            (false, true) => self.spare -= 1,
            _ => {}
        }
        page - start
    }

    /// Allocates exactly these clean blocks for the caller's area, and moves the frontier above them. Returns false if
    /// that fails.
    pub(super) fn take_clean_at(&mut self, arena: &Arena<O>, range: VaRange) -> bool {
        let end = range.end().page_floor();
        self.cold.reserve((end - self.first).div_ceil(self.block_pages))
            && arena.commit(range).is_ok()
            && self.space.alloc_at(range).is_ok()
    }

    /// Makes dirty blocks clean that have no resident pages.
    pub(super) fn make_clean(&mut self, range: VaRange) {
        let (start, end) = range.whole_pages();
        let blocks = self.blocks_inside(start, end);
        if blocks.is_empty() {
            return;
        }
        let pages = VaRange::new(self.block(blocks.start).start(), self.block(blocks.end).start());
        let pages = pages.unwrap_or_default();
        if self.take_dirty_at(pages) {
            if self.cut(pages) {
                self.purged += (blocks.end - blocks.start) * self.block_pages;
                self.add_clean([pages].into_iter());
            } else {
                self.add_dirty_range(pages);
            }
        }
    }

    /// Makes runs clean that contain zeros or no pages.
    pub(super) fn add_clean(&mut self, ranges: impl Iterator<Item = VaRange>) {
        for range in ranges {
            self.free_areas(range);
            self.spare += 1;
            self.gaps += 1;
            self.cleaned += 1;
        }
        self.space.purge(Purge::Full);
        self.refund();
    }

    /// Makes pages clean that belong to no run.
    pub(super) fn free_clean(&mut self, range: VaRange) {
        self.free_areas(range);
        self.gaps += 1;
        self.cleaned += 1;
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

    /// Cuts the areas of the space at both ends of `range`, so that whole areas tile it. Returns false if no record is
    /// available.
    pub(super) fn cut(&mut self, range: VaRange) -> bool {
        [range.start(), range.end()].into_iter().all(|at| {
            let around = self.space.find_enclosing(at).filter(|area| area.range.start() < at);
            around.is_none() || self.space.split(at).is_ok()
        })
    }

    /// Returns true if pages became clean since the last time.
    pub(super) fn has_cleaned(&mut self) -> bool {
        core::mem::take(&mut self.cleaned) > 0
    }

    /// Returns the fewest dirty pages that there were since the last call: as many were not reused.
    pub(super) fn idle(&mut self) -> u64 {
        let dirty = self.dirty_pages();
        core::mem::replace(&mut self.low, dirty).min(dirty)
    }
}

impl<O: Os> Heap<O> {
    /// Allocates a live run for a layout. Returns also the number of pages, from the first on, that may have contents.
    /// The others are zeros and not resident.
    pub(super) fn carve(&self, layout: Layout, clean: bool) -> Result<(Run, u64), AllocError> {
        let pages = self.run_pages(layout.size());
        self.carve_in(self.arena.kind_for(pages), layout, clean)
    }

    /// Does the same, with the kind of zone to try first.
    pub(super) fn carve_in(
        &self,
        kind: usize,
        layout: Layout,
        clean: bool,
    ) -> Result<(Run, u64), AllocError> {
        let pages = self.run_pages(layout.size());
        let align = Align::new(layout.align() as u64).unwrap_or(Align::PAGE);
        // Either may be the larger one.
        let [small, huge] = [SMALL, HUGE].map(|kind| self.arena.extent(kind).len_bytes());
        let extent = small.max(huge);
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
        probe(self.host.os(), pages)?;
        let home = self.home(kind, pages);
        let in_zone = |zone, clean| self.carve_once(zone, &request, layout.size(), clean);
        let once = |clean: bool| match in_zone(kind, clean) {
            // A full zone does not keep a request from the other one. The error with the larger hole is returned.
            Err(error @ AllocError::NoSpace { .. }) => {
                in_zone(1 - kind, clean).map_err(|other| error.larger(other))
            }
            done => done,
        };
        let at_home = if home == kind { None } else { in_zone(home, clean).ok() };
        let once_dirty = |error| if clean { once(false) } else { Err(error) };
        let done = at_home.map_or_else(|| once(clean), Ok).or_else(once_dirty).or_else(|error| {
            // Cached pages may lie below a frontier that cannot move, or another thread may be moving them between
            // lists.
            let _settled = self.hold_settled();
            if self.is_blocked(&error, pages) {
                self.drain_all();
            } else {
                self.release_alone();
            }
            let other = || self.noded_zones().find_map(|zone| in_zone(zone, false).ok());
            once(false).or_else(|error| other().ok_or(error)).inspect_err(|error| self.note_blocked(error))
        });
        done.map(|(mut run, used)| {
            self.guard(&mut run);
            (run, used)
        })
    }

    /// Returns true if foreign mappings blocked a frontier at its current position before, and fewer than `pages` pages
    /// were cached since. Releasing all pages again would mostly be futile then: it would help only where they and
    /// clean pages beside them suffice together.
    fn is_blocked(&self, error: &AllocError, pages: u64) -> bool {
        is_others(error)
            && self.blocked_at.load(Ordering::Relaxed) == self.arena.committed_all()
            && self.cached_hint() < self.blocked_cached.load(Ordering::Relaxed) + pages
    }

    /// Records that foreign mappings block a frontier even after all cached pages are released. Called after such a
    /// release, or where a release would not help.
    fn note_blocked(&self, error: &AllocError) {
        let at = self.arena.committed_all();
        if is_others(error) && self.blocked_at.swap(at, Ordering::Relaxed) != at {
            self.blocked_cached.store(self.cached_hint(), Ordering::Relaxed);
        }
    }

    #[inline(never)]
    fn carve_once(
        &self,
        zone: usize,
        request: &Request,
        size: usize,
        clean: bool,
    ) -> Result<(Run, u64), AllocError> {
        let mut central = self.zone_for_request(zone);
        let pages = request.size().get();
        let mut dirty = if clean { None } else { central.take_dirty(request) };
        if dirty.is_none() && !clean {
            drop(central);
            self.drain_for(zone);
            central = self.zone(zone);
            dirty = central.take_dirty(request);
        }
        if let Some(page) = dirty {
            // Under the lock, so that the next owner of the lock finds a word at every area (VM1).
            self.arena.put(page, Word::live(pages, size).tailed(self.guards.tail));
            // SAFETY: the run was dirty until now, so it is below the frontier and has no other owner.
            return Ok((unsafe { Run::claim(page, pages) }, pages));
        }
        let mut fresh = central.take_clean(&self.arena, request)?;
        let mut used = if clean { 0 } else { central.reach_down(&mut fresh, request) };
        self.arena.put(fresh.page, Word::live(pages, size).tailed(self.guards.tail));
        if clean {
            central.add_rest(&fresh);
        } else {
            used += self.refill(central, &fresh);
        }
        // SAFETY: the run was free in the space, or dirty, and is neither now; it is below the frontier.
        Ok((unsafe { Run::claim(fresh.page, pages) }, used.min(pages)))
    }

    /// Makes runs in magazines dirty before pages are requested of the system: small items of this CPU's magazine. Big
    /// items, if they might be in this zone, come from this CPU and, for a zone of node 0, from a few others.
    pub(super) fn drain_for(&self, zone: usize) {
        let Some(_moves) = self.begin_refill() else { return };
        let cpu = self.cpu();
        // A run that becomes dirty loses its guard, and would need a new one when it is allocated again.
        let kind = zone % KINDS;
        if kind == SMALL || self.guards.tail == 0 {
            self.drain(cpu, Kinds::Small);
        }
        if (kind == HUGE || kind == self.arena.kind_for(BIG_PAGES)) && self.big.pages() > 0 {
            self.drain(cpu, Kinds::Big);
            if zone < KINDS {
                self.with_big.visit(VISITS, |cpu| _ = self.drain(cpu, Kinds::Big));
            }
        }
        // The thread may have looked while the runs were in neither list: WK1.
        self.wake();
    }

    /// Adds runs to the dirty ones of their zones.
    pub(super) fn add_dirty(&self, runs: Out) {
        let mut held: Option<(usize, Held<'_, O>)> = None;
        for mut run in runs {
            if self.guards.tail > 0 {
                // Under no lock; the guard page alone does not put a run into the zone of large areas.
                drop(held.take());
                if !self.unguard(&mut run) {
                    self.retire(&mut self.zone_of(run.page()), run);
                    continue;
                }
            }
            if self.cached_max == 0 {
                // Blocks that are partly in use are not released. A run that the system fails to release stays cached.
                drop(held.take());
                let _stay = self.arena.discard(core::slice::from_mut(&mut run));
            }
            let zone = self.arena.zone_of(run.page());
            if held.as_ref().is_none_or(|(same, _)| *same != zone) {
                // The previous lock is released first: locks of zones never nest.
                drop(held.take());
            }
            let (_, central) = held.get_or_insert_with(|| (zone, self.zone(zone)));
            central.freed += run.pages();
            central.add_dirty(run);
        }
    }
}

/// Returns true if a frontier did not move because a foreign mapping is in its path.
fn is_others(error: &AllocError) -> bool {
    matches!(error, AllocError::CallFailed { call: Call::Commit, errno: Errno(libc::EEXIST), .. })
}

/// Tries to map this many pages separately, if they are many. Pages that the system denies to such a call could not be
/// faulted in either.
#[inline]
pub(crate) fn probe(os: &impl Os, pages: u64) -> Result<(), AllocError> {
    if pages < PROBED_PAGES { Ok(()) } else { probe_many(os, address(pages)) }
}

#[cold]
fn probe_many(os: &impl Os, bytes: usize) -> Result<(), AllocError> {
    let at = os.map(bytes).map_err(|errno| AllocError::CallFailed { call: Call::Map, errno, bytes })?;
    // SAFETY: mapped just above, and no reference to it exists.
    unsafe { os.unmap(Span { at, bytes }) };
    Ok(())
}

fn address_pages(bytes: u64) -> usize {
    (bytes / PAGE_BYTES as u64) as usize
}
