//! Purges: pages are released, many blocks by one call, one thread at a time, away from the locks
//! of the zones.
//!
//! # Theory
//! ```text
//!   zone:    take the coldest dirty blocks, cut the areas of the space at their ends   up to 64 runs of them
//!   (purge): release their pages
//!   zone:    free their addresses in the space, as clean
//! ```
//! Between the two acquisitions of the lock the runs are in no list, and their first words record their size (VM1).
//! Threads that release pages at the same time make each other's flushes larger. So a thread that finds a purge in
//! progress leaves it alone. Only refills that may not move pages release some beside it.
//!
//! The zones of other nodes release their part, by their dirty blocks. Then the zone of small areas releases what it has
//! beyond half of the budget. Then the zone of large areas is purged: to release a huge page and to fault in another
//! costs a tenth of the same for its 512 pages.
//!
//! Runs that cannot be cut because no record is available, and runs that the system fails to release, become dirty
//! again; nothing is lost. A purge releases no page of a block that is partly in use. A trim does: it releases pages
//! where it cannot release blocks. Their addresses stay dirty, and nothing records that there are no pages, so a purge
//! that did so would do it again each time. With a budget of 0 each run is released before it is dirty.
//! # Source
//! Our own; Linux releases the pages of vmalloc areas in `vfree`, and purges addresses alone
//! (`__purge_vmap_area_lazy`).

use super::carve::Central;
use super::{BATCH, Heap, REFILLS};
use crate::arena::{HUGE, Run, SMALL};
use crate::magazine::{DRAINS, Kinds, Out};
use crate::page_word::Word;
use core::sync::atomic::{AtomicBool, Ordering};
use lock_api::MutexGuard;
use va_base::VaRange;
use va_tree::FreeIndex;
use vmalloc_os::fork::Hold;
use vmalloc_os::lock::Futex;
use vmalloc_os::os::Os;

/// Number of times that the budget is freed before pages that were not reused meanwhile count as idle. A smaller number
/// would release pages that a mix of sizes needs soon after, and each would cost a page fault.
const DECAY_TURNS: u64 = 16;

/// Change in cached pages after which the available memory is read again: 32 MiB.
const LOOK_PAGES: u64 = 8192;
/// Cached pages from which the clock makes it read again: 4 MiB.
const LOOK_AGAIN_PAGES: u64 = 1024;
/// The divisor of the available memory that bounds the cache.
const SHARE: u64 = 4;

/// The locks of all threads that move cached runs.
pub(super) struct Settled<'a> {
    closed: &'a AtomicBool,
    _refills: [MutexGuard<'a, Futex, ()>; REFILLS],
    _purge: MutexGuard<'a, Futex, ()>,
}

impl Drop for Settled<'_> {
    fn drop(&mut self) {
        self.closed.store(false, Ordering::Relaxed);
    }
}

impl<O: Os> Heap<O> {
    /// Balances the cache after this many pages became dirty that were in no magazine, and wakes the thread. Called
    /// under no lock.
    pub(super) fn settle(&self, pages: u64) {
        self.freed.fetch_add(pages, Ordering::Relaxed);
        self.balance();
        self.poke();
        self.pass_time();
    }

    /// Purges if too many pages are cached, or if some were not reused for long.
    pub(super) fn balance(&self) {
        self.look_around();
        let most = self.allowed.load(Ordering::Relaxed);
        if most > 0 && self.cached_hint() > most {
            self.measure();
        }
        let cached = self.cached_hint();
        if cached > most {
            let gone = self.purge_some(if most > 0 { cached - most + most / 16 } else { u64::MAX });
            // The system is asked again once the released pages equal those that its answer took from the budget.
            self.released.fetch_add(if most < self.cached_max { gone } else { 0 }, Ordering::Relaxed);
        }
        if self.freed.load(Ordering::Relaxed) > DECAY_TURNS * self.cached_max
            && let Some(_alone) = self.purge.try_lock()
        {
            self.freed.store(0, Ordering::Relaxed);
            for zone in self.zones() {
                let idle = self.zone(zone).idle();
                self.purge_alone(zone, idle / 4, u64::MAX);
            }
        }
    }

    /// Releases up to this many dirty pages in whole blocks, and returns how many. Releases none if a purge is in
    /// progress.
    pub(super) fn purge_some(&self, pages: u64) -> u64 {
        let Some(_alone) = self.purge.try_lock() else { return 0 };
        let done = self.purge_noded(pages);
        let small = self.zone(SMALL).resident_pages().saturating_sub(self.cached_max / 2);
        let done = done + self.purge_alone(SMALL, small.min(pages.saturating_sub(done)), u64::MAX);
        let done = done + self.purge_alone(HUGE, pages.saturating_sub(done), u64::MAX);
        done + self.purge_alone(SMALL, pages.saturating_sub(done), u64::MAX)
    }

    /// Releases from the other nodes their part of this many cached pages. Called under `purge`.
    fn purge_noded(&self, pages: u64) -> u64 {
        let all = self.dirty_hint().max(1);
        // A zone releases whole blocks. What is less is left to the next one.
        let mut owed = 0;
        let part = |zone| {
            let central = self.zone(zone);
            let (whole, block) = (central.whole_pages(), central.block_pages);
            drop(central);
            owed += (pages.min(all) * whole / all).min(whole);
            let done = self.purge_alone(zone, owed - owed % block, u64::MAX);
            owed = owed.saturating_sub(done);
            done
        };
        self.noded_zones().map(part).sum()
    }

    /// Empties every magazine and releases all dirty blocks. Returns how many pages were drained or released.
    pub(crate) fn release_all(&self) -> u64 {
        let _alone = self.purge.lock();
        self.release_alone()
    }

    /// Does the same. Called under `purge`.
    pub(super) fn release_alone(&self) -> u64 {
        let drained = self.drain_all();
        self.zones().rev().map(|zone| self.purge_alone(zone, u64::MAX, u64::MAX)).sum::<u64>() + drained
    }

    /// Waits until each cached run is in a list: another thread may purge, move runs between lists, or have hidden some
    /// for a fork. No thread moves runs until the returned locks are released.
    pub(super) fn hold_settled(&self) -> Settled<'_> {
        let purge = self.purge.lock();
        self.refills_closed.store(true, Ordering::Relaxed);
        let refills = self.refills.each_ref().map(|refill| refill.0.lock());
        self.show_hidden(self.hidden.lock());
        Settled { closed: &self.refills_closed, _refills: refills, _purge: purge }
    }

    /// Reads the available memory, if 32 MiB more or fewer are cached than at the last time. It does so also after 32
    /// MiB were released because of that value. The cache may hold a quarter of the sum of available and cached memory,
    /// or nothing where memory is short. Called under no lock, after a free.
    #[inline]
    pub(super) fn look_around(&self) {
        let cached = self.cached_hint();
        if cached.abs_diff(self.asked.load(Ordering::Relaxed)) > LOOK_PAGES
            || self.released.load(Ordering::Relaxed) > LOOK_PAGES
        {
            self.look_in_time(cached);
        }
    }

    /// Does the same at most once in a tick of the coarse clock, which has some milliseconds. A reading takes a tenth
    /// of one, and some programs free 32 MiB in each call. Where the last value lowers the bound of the cache, and
    /// where it changed by 128 MiB, no tick is waited for.
    #[cold]
    fn look_in_time(&self, cached: u64) {
        let now = self.host.os().now();
        let is_same_tick = now.is_some_and(|now| now == self.asked_at.load(Ordering::Relaxed));
        let is_bounded = self.allowed.load(Ordering::Relaxed) < self.cached_max;
        let changed = cached.abs_diff(self.asked.load(Ordering::Relaxed));
        if !is_same_tick || is_bounded || changed > 4 * LOOK_PAGES {
            self.asked_at.store(now.unwrap_or(u64::MAX), Ordering::Relaxed);
            self.look(cached);
        }
    }

    /// Does the same by the clock, if 4 MiB are cached.
    pub(super) fn look_again(&self) {
        let cached = self.cached_hint();
        if cached >= LOOK_AGAIN_PAGES {
            self.look(cached);
        }
    }

    #[cold]
    fn look(&self, cached: u64) {
        self.asked.store(cached, Ordering::Relaxed);
        self.released.store(0, Ordering::Relaxed);
        let Some(room) = self.host.os().available() else {
            // As in a process that never could read it; the last value may be out of date.
            return self.allowed.store(self.cached_max, Ordering::Relaxed);
        };
        let available = room.bytes / crate::PAGE_BYTES as u64;
        let is_short = room.is_short || available < cached;
        let most = if is_short { 0 } else { ((available + cached) / SHARE).min(self.cached_max) };
        self.allowed.store(most, Ordering::Relaxed);
        if cached > most {
            // Big items have a budget of their own, half of the whole, and small ones another, a quarter. All CPUs are
            // drained, since the value is a bound. The memory is read after 32 MiB or half a second only, and reading
            // costs more.
            let moves = self.begin_refill();
            match moves {
                // As many threads as may move runs already; the next reading drains the magazines.
                None => {}
                Some(_) if is_short || self.big.small_pages() > most / 4 => _ = self.drain_all(),
                Some(_) => self.with_big.visit(usize::MAX, |cpu| _ = self.drain(cpu, Kinds::Big)),
            }
            drop(moves);
            // Absent pages are not counted, and are in the coldest blocks.
            self.purge_some(if is_short { u64::MAX } else { cached - most });
            self.asked.store(self.cached_hint(), Ordering::Relaxed);
        }
    }

    /// Does the same, and releases also the dirty pages of blocks that are partly in use.
    pub(crate) fn trim(&self) {
        self.release_all();
        let _alone = self.purge.lock();
        self.zones().rev().for_each(|zone| self.purge_parts(zone));
    }

    /// Asks the system how many pages of the coldest unmeasured blocks are absent: these do not count. If it does not
    /// report, all pages of a block count. Called under no lock.
    #[cold]
    pub(super) fn measure(&self) {
        for zone in self.zones() {
            let mut blocks = [(0, 0); BATCH];
            let mut central = self.zone(zone);
            let next = core::iter::from_fn(|| central.cold.next_unmeasured());
            let count = blocks.iter_mut().zip(next).map(|(place, block)| *place = block).count();
            let ranges = blocks.map(|(block, _)| central.block(block));
            let pages = central.block_pages;
            drop(central);
            if count == 0 {
                continue;
            }
            let mut absent = [0; BATCH];
            for (absent, &range) in absent[..count].iter_mut().zip(&ranges) {
                // Another thread may have allocated the block since: then nothing is recorded.
                *absent = pages - self.arena.resident_in(range, pages).unwrap_or(pages).min(pages);
            }
            let mut central = self.zone(zone);
            for (&(block, epoch), &absent) in blocks[..count].iter().zip(&absent) {
                central.cold.note_absent(block, epoch, absent);
            }
        }
    }

    /// Releases the pages of all dirty runs of a zone, which stay dirty. Called under `purge`.
    fn purge_parts(&self, zone: usize) {
        let mut from = self.arena.extent(zone).start();
        loop {
            let mut batch = [const { Run::NOTHING }; BATCH];
            let mut count = 0;
            let mut central = self.zone(zone);
            while count < batch.len()
                && let Some(hole) = central.dirty.hole_after(from)
            {
                from = hole.end();
                // The run stays unchanged if no record is available.
                if central.take_dirty_at(hole) {
                    batch[count] = self.claim_dirty(&mut central, hole);
                    count += 1;
                }
            }
            drop(central);
            let runs = &mut batch[..count];
            if runs.is_empty() {
                return;
            }
            // Where the system does not report residency, no page counts: each trim would count the same ones again.
            let resident = runs.iter().filter_map(|run| self.arena.resident_pages(run, run.pages()));
            let before: u64 = resident.sum();
            let gone = self.arena.discard(runs);
            let mut central = self.zone(zone);
            central.failed += u64::from(gone.is_err());
            central.purged += gone.map_or(0, |()| before);
            central.attach_dirty(runs);
        }
    }

    /// Releases all cached pages, and removes access from clean pages. Returns how many lost access at most.
    pub(crate) fn shut(&self) -> u64 {
        if self.is_mine() {
            // As in `release_addresses`.
            return 0;
        }
        self.trim();
        // Each splits a mapping into three: half of the possible ones are left to the program.
        let mut holes = 2 * self.moved_max;
        self.zones().map(|zone| self.shut_zone(zone, &mut holes)).sum()
    }

    fn shut_zone(&self, zone: usize, holes: &mut u64) -> u64 {
        let mut central = self.zone(zone);
        if !central.has_cleaned() {
            return 0;
        }
        self.take_clean_ranges(zone, &mut central, holes, |_, clean| self.arena.shut(clean))
    }

    /// Makes the contents of all magazines dirty, and returns the number of pages. Called as [`drain`](Self::drain).
    pub(super) fn drain_all(&self) -> u64 {
        (0..self.magazines.len()).map(|cpu| self.drain(cpu, Kinds::All)).sum()
    }

    /// Makes the contents of a CPU's magazine dirty, and returns the number of pages. Called under `purge` or one of
    /// `refills`: a request that would fail waits until the items are in a zone.
    pub(super) fn drain(&self, cpu: usize, kinds: Kinds) -> u64 {
        if kinds != Kinds::Small {
            // First, so that a push at the same time adds it again (MZ3).
            self.with_big.remove(cpu);
        }
        let mut drained = 0;
        // Bounded by the contents at the start, though other threads may add items.
        for _ in 0..DRAINS {
            let mut out = Out::new(self.arena.first());
            self.magazines[cpu].drain(kinds, &self.big, &mut out);
            let pages = out.pages();
            if pages == 0 {
                break;
            }
            self.add_dirty(out);
            drained += pages;
        }
        drained
    }

    /// Releases `pages` of a zone that became dirty in epoch `until` or before. Called under `purge`.
    pub(super) fn purge_alone(&self, zone: usize, pages: u64, until: u64) -> u64 {
        // Bounded by the dirty pages at the start: other threads may free as fast as this one releases, while a fork
        // waits.
        let most = pages.min(self.zone(zone).dirty_pages());
        let mut left = most;
        while left > 0 {
            let mut batch = [const { Run::NOTHING }; BATCH];
            let count = self.detach(&mut self.zone(zone), &mut batch, left, until);
            let runs = &mut batch[..count];
            if count == 0 {
                break;
            }
            let (done, failed) = match self.arena.discard(runs) {
                Ok(()) => (count, false),
                Err((done, _)) => (done, true),
            };
            let mut central = self.zone(zone);
            central.failed += u64::from(failed);
            let (gone, rest) = runs.split_at(done);
            let pages = |runs: &[Run]| runs.iter().map(Run::pages).sum::<u64>();
            central.purged += pages(gone);
            left = left.saturating_sub(pages(gone));
            central.attach_clean(gone);
            central.attach_dirty(rest);
            drop(central);
            if failed {
                break;
            }
        }
        most - left
    }

    /// Removes the coldest dirty blocks from all lists: `pages`, and the rest of the last block. Returns the number of
    /// runs. The first words record their sizes (VM1).
    pub(super) fn detach(
        &self,
        central: &mut Central<O>,
        batch: &mut [Run],
        pages: u64,
        until: u64,
    ) -> usize {
        let (mut count, mut left) = (0, pages);
        while count < batch.len()
            && left > 0
            && let Some(first) = central.cold.coldest(until)
        {
            let (page, mut end) = central.block(first).whole_pages();
            let mut taken = 0;
            loop {
                // Blocks that became dirty together are adjacent.
                let block = first + taken;
                if taken > 0
                    && (left <= taken * central.block_pages || central.cold.coldest(until) != Some(block))
                {
                    break;
                }
                central.cold.remove(block..block + 1);
                end = central.block(block).end().page_floor();
                taken += 1;
            }
            let range = VaRange::from_pages(page, end).unwrap_or_default();
            if !central.take_dirty_at(range) {
                central.cold.add(first..first + taken);
                break;
            }
            if !central.cut(range) {
                central.add_dirty_range(range);
                break;
            }
            left = left.saturating_sub(end - page);
            batch[count] = self.claim_dirty(central, range);
            count += 1;
        }
        count
    }

    /// Claims pages that were removed from the index of dirty ones. Until they return to an index, the word of the
    /// first page records their size (VM1).
    pub(super) fn claim_dirty(&self, central: &mut Central<O>, range: VaRange) -> Run {
        let (page, end) = range.whole_pages();
        self.arena.put(page, Word::free(end - page));
        central.leaving += end - page;
        // SAFETY: the run was dirty until now, so it is below the frontier and has no other owner.
        unsafe { Run::claim(page, end - page) }
    }
}

impl<O: Os> Central<O> {
    /// Makes detached runs clean, whose pages were released or moved.
    pub(super) fn attach_clean(&mut self, runs: &[Run]) {
        self.leaving -= runs.iter().map(Run::pages).sum::<u64>();
        self.add_clean(runs.iter().map(Run::range));
    }

    /// Makes detached runs dirty again.
    pub(super) fn attach_dirty(&mut self, runs: &[Run]) {
        self.leaving -= runs.iter().map(Run::pages).sum::<u64>();
        runs.iter().for_each(|run| self.add_dirty_range(run.range()));
    }
}
