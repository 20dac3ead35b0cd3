//! Pages for a fresh run without faults: those of cold dirty blocks are moved there, or released where they cannot
//! move.
//!
//! # Theory
//! ```text
//!   before   |~~cold~~|live|~~cold~~|live| ...  |-- fresh: clean blocks --|rest|       no dirty run is long enough
//!   after    | clean  |live| clean  |live| ...  |======= live ============|~~~~|       the same pages, elsewhere
//! ```
//! Dirty pages may be many and yet scattered when a requested area is longer than each run of them. To release some and
//! fault in others costs tens of microseconds per huge page; to move one costs one microsecond. So cached pages serve
//! requests of any shape. The size of the cache follows from the amount that is requested, not from how it is cut.
//!
//! Sources with few resident pages are released, too: to walk over absent pages costs as much as to move them. For a
//! run of up to 2 MiB they stay dirty instead, and the next small misses skip the search for sources. The next few
//! small misses after a move skip it as well: the cache grows, within the budget, until a mix of sizes finds its runs
//! there.
//!
//! **Several nodes** divide the budget, and the live memory of each rises and falls. A node that needs pages would fault
//! in fresh ones while another has cold blocks, and a purge would release as many. So once three quarters of the budget
//! are cached, a refill goes on with the cold blocks of the node that has most of them. Small misses do not pause then.
//! Pages move from one node to another as within one.
//!
//! A huge page that moves to where a table of small pages is becomes small ones, which leave a table behind.
//! With many moves few huge pages are left. So with several nodes the destination is discarded first: Linux 6.14 and
//! later drops empty tables then.
//!
//! Several threads refill at a time, each with sources that it removed from all lists. The first words of these, and of
//! the rest of the last fresh block, record their sizes meanwhile, as in a purge (VM1). A refill holds no lock that
//! another miss waits for. It holds one of [`REFILLS`] locks that a miss only tries. If all are held, the pages are
//! faulted in. So a fork finds no refill in progress, since a child would lose the sources. A request that would fail
//! holds all, too. The addresses that it needs may be among the sources of other threads, or among items that they
//! removed from a magazine. So threads that drain a magazine, or whose free moves items out of one, hold such a lock
//! until these are in a zone. If all are held, a free adds its own run to the zone, and no magazine is drained.
//!
//! A move can fail (an old kernel, a seccomp profile, pages that a child still shares, a program that advised half of
//! the pages). Then the rest of the run is left to page faults, and no moves are tried for a while. Pages that are not
//! moved are released meanwhile. Either way, a run that needs pages adds none to the cached ones. Moves end for good
//! only where the system reports that it can never move any (`Os::can_move`). The cause of one failure (locked pages, a
//! descriptor that the program closed) may be gone at the next move.
//! # Source
//! Our own. Figures: `docs/decisions/0014-two-zones.md`.

use super::carve::{Central, Fresh};
use super::{BATCH, Heap, Held, REFILLS};
use crate::arena::{KINDS, Run};
use crate::page_word::Word;
use core::sync::atomic::Ordering;
use lock_api::MutexGuard;
use vmalloc_os::lock::Futex;
use vmalloc_os::os::Os;

/// A source is released if less than one page in this many is resident: to move a page, or to find it absent, costs a
/// quarter of a fault.
const SPARSE_SHARE: u64 = 4;
/// Misses without a move after a move failed.
const PAUSE: u64 = 64;
/// Pages that a small miss needs at most: 2 MiB. The system calls of such a miss cost more than the few pages of sparse
/// sources are worth, which stay within the budget.
const SMALL_PAGES_MAX: u64 = 512;
/// Small misses that leave cold blocks alone after one that found only sparse ones.
const SPARSE_PAUSE: u64 = 64;
/// Small misses that leave cold blocks alone after one that moved pages. A move adds no page to the cache. If each miss
/// moved, the cache would stay too small for a mix of sizes. Then a tenth of all allocs would miss for ever, at three
/// system calls and a flush of all CPUs each.
const DENSE_PAUSE: u64 = 4;

impl<O: Os> Heap<O> {
    /// Moves cold pages into the clean blocks of a fresh run, whose word is set. Releases the lock meanwhile. The rest
    /// of the last block is dirty afterwards. Returns into how many pages, from the first of the clean ones on,
    /// something was moved.
    pub(super) fn refill<'a>(&'a self, mut central: Held<'a, O>, fresh: &Fresh) -> u64 {
        let wanted = fresh.clean.len_bytes() / crate::PAGE_BYTES as u64;
        let (small, full) = (wanted <= SMALL_PAGES_MAX, self.is_noded() && self.is_nearly_full());
        if small && central.pauses(full) {
            central.add_rest(fresh);
            return 0;
        }
        // Before any block leaves the lists. The lock is only tried, so it may be taken after that of the zone.
        let Some(_refill) = self.begin_refill() else {
            central.add_rest(fresh);
            return 0;
        };
        let mut batch = [const { Run::NOTHING }; BATCH];
        let count = self.detach(&mut central, &mut batch, wanted, u64::MAX);
        let donor = if full { self.donor(central.zone) } else { None };
        if count == 0 && donor.is_none() {
            central.add_rest(fresh);
            return 0;
        }
        let (rest, end) = fresh.rest.whole_pages();
        if rest < end {
            self.arena.put(rest, Word::free(end - rest));
            central.leaving += end - rest;
        }
        let first = fresh.clean.start().page_floor();
        let mut moved = Some(0);
        if count > 0 {
            drop(central);
            (central, moved) = self.move_sources(&mut batch[..count], first, small);
        }
        if let (Some(donor), Some(own)) = (donor, moved)
            && own < wanted
            && self.refill_pause.load(Ordering::Relaxed) == 0
        {
            drop(central);
            let count = self.detach(&mut self.zone(donor), &mut batch, wanted - own, u64::MAX);
            if count > 0 {
                let (_, shared) = self.move_sources(&mut batch[..count], first + own, small);
                moved = shared.map(|shared| own + shared).or(moved.filter(|&own| own > 0));
            }
            central = self.zone_of(fresh.page);
        }
        if small {
            central.small_pause = if moved.is_some() { DENSE_PAUSE } else { SPARSE_PAUSE };
        }
        central.leaving -= end - rest;
        central.add_rest(fresh);
        moved.unwrap_or(0)
    }

    /// Returns another zone of the same kind: the one with the most dirty pages in whole blocks, if pages can move.
    fn donor(&self, zone: usize) -> Option<usize> {
        if !self.arena.can_move() {
            return None;
        }
        let whole = |zone: usize| self.zone_at(zone).dirty.load(Ordering::Relaxed);
        let others = self.zones().filter(|&other| other % KINDS == zone % KINDS && other != zone);
        others.max_by_key(|&other| whole(other)).filter(|&other| whole(other) > 0)
    }

    /// Moves sources of one zone to the pages of a fresh run from `at` on, and releases those that are not worth it or
    /// do not move. Returns the lock of that zone, and how many pages were moved. If all sources of a small miss have
    /// few resident pages, they stay dirty, and the result is `None`.
    fn move_sources(&self, sources: &mut [Run], at: u64, small: bool) -> (Held<'_, O>, Option<u64>) {
        let zone = self.arena.zone_of(sources[0].page());
        // Sources with few resident pages are not worth the walk over all of their pages.
        let mut dense = 0;
        for next in 0..sources.len() {
            if !self.arena.is_sparse(&sources[next], SPARSE_SHARE) {
                sources.swap(dense, next);
                dense += 1;
            }
        }
        if dense == 0 && small {
            let mut central = self.zone(zone);
            central.attach_dirty(sources);
            return (central, None);
        }
        // One source may move in part.
        let (mut to_page, mut moved, mut half) = (at, 0, 0);
        let movable = if dense > 0 && !self.pauses() { dense } else { 0 };
        if movable > 0 && self.is_noded() && self.arena.has_huge_pages(zone) {
            let pages = sources[..movable].iter().map(Run::pages).sum();
            // SAFETY: part of the fresh run and its rest, below the frontier and owned by the caller alone.
            let _tables = self.arena.discard(&mut [unsafe { Run::claim(at, pages) }]);
        }
        for source in &mut sources[..movable] {
            let pages = source.pages();
            // SAFETY: part of the fresh run and its rest, below the frontier and owned by the caller alone.
            let mut to = unsafe { Run::claim(to_page, pages) };
            if let Err((some, _)) = self.arena.move_pages(source, &mut to) {
                half = some;
                to_page += some;
                self.refill_failed();
                break;
            }
            to_page += pages;
            moved += 1;
        }
        // Sources that did not move are released: the run faults in as many pages.
        let (gone, unmoved) = sources.split_at_mut(moved);
        let discarded = match self.arena.discard(unmoved) {
            Ok(()) => unmoved.len(),
            Err((done, _)) => done,
        };
        let (released, resident) = unmoved.split_at(discarded);
        let pages = |runs: &[Run]| runs.iter().map(Run::pages).sum::<u64>();
        let mut central = self.zone(zone);
        central.failed += u64::from(!resident.is_empty());
        central.refilled += pages(gone) + half;
        central.purged += pages(released).saturating_sub(half);
        central.attach_clean(gone);
        central.attach_clean(released);
        central.attach_dirty(resident);
        (central, Some(to_page - at))
    }

    /// Begins a refill, or another move of cached runs between lists, unless [`REFILLS`] are in progress or a thread
    /// waits for all of them to end. It ends when the returned lock is released.
    pub(super) fn begin_refill(&self) -> Option<MutexGuard<'_, Futex, ()>> {
        // Otherwise later threads could take each lock before a thread that waits for it.
        if self.refills_closed.load(Ordering::Relaxed) {
            return None;
        }
        let cpu = self.cpu();
        (0..REFILLS).find_map(|step| self.refills[(cpu + step) % REFILLS].0.try_lock())
    }

    /// Returns true if the pause after a failed move has misses left, and counts one of them.
    fn pauses(&self) -> bool {
        let misses = self.refill_pause.load(Ordering::Relaxed);
        if misses > 0 && misses < u64::MAX {
            self.refill_pause.store(misses - 1, Ordering::Relaxed);
        }
        misses > 0
    }

    #[cold]
    fn refill_failed(&self) {
        self.refill_pause.store(if self.arena.can_move() { PAUSE } else { u64::MAX }, Ordering::Relaxed);
    }
}

impl<O: Os> Central<O> {
    /// Returns true if small misses leave cold blocks alone, and counts one of them. With `full` they do so only where
    /// these are sparse.
    fn pauses(&mut self, full: bool) -> bool {
        let pauses = self.small_pause > if full { DENSE_PAUSE } else { 0 };
        self.small_pause = self.small_pause.saturating_sub(1);
        pauses
    }

    /// Makes the rest of the last block of a fresh run dirty.
    pub(super) fn add_rest(&mut self, fresh: &Fresh) {
        if !fresh.rest.is_empty() {
            self.add_dirty_range(fresh.rest);
        }
    }
}
