//! Cached pages that a child of a fork does not inherit, and that its parent caches on.
//!
//! # Theory
//! A fork copies a page table entry for each page, and later either process copies each page that it writes to. For
//! cached pages that work is useless. So before a fork the longest dirty runs leave the index, and the kernel is
//! advised to show zeros to a child instead (`MADV_WIPEONFORK`). Afterwards the runs return, in the parent with their
//! pages and in the child without. Meanwhile no memory is allocated from them, not even by fork handlers of other
//! libraries.
//!
//! Where the kernel does not take the advice, all cached pages are released before a fork.
//! # Source
//! `man 2 madvise`.

use super::{BATCH, FORK_CACHED_MAX, Heap};
use crate::arena::Run;
use crate::page_word::Word;
use lock_api::MutexGuard;
use va_base::Pages;
use va_tree::FreeIndex;
use vmalloc_os::lock::Futex;
use vmalloc_os::os::Os;

/// The minimum lengths of hidden runs, tried one after the other in all zones: 8 MiB, 1 MiB, 256 KiB. Shorter runs are
/// shared with the child.
const LONG: [u64; 3] = [2048, 256, 64];

/// The runs that are hidden at present.
pub(super) struct Hidden {
    runs: [Run; BATCH],
    len: usize,
    /// So many of them, from the first on, may be marked.
    marked: usize,
}

impl Hidden {
    pub(super) const NOTHING: Self = Self { runs: [const { Run::NOTHING }; BATCH], len: 0, marked: 0 };
}

impl<O: Os> Heap<O> {
    /// Hides the longest dirty runs from a child, if more than [`FORK_CACHED_MAX`] are cached. Called under no lock but
    /// those of a fork.
    pub(super) fn hide(&self) {
        // Not the hint: pages of blocks that are partly in use are shared with a child, too.
        let dirty: u64 = self.zones().map(|zone| self.zone(zone).resident_pages()).sum();
        if dirty + self.big.pages() <= FORK_CACHED_MAX {
            return;
        }
        if !self.host.os().can_disinherit() {
            self.release_all();
            return;
        }
        // Until the runs are hidden, a request that would fail waits for them.
        let _alone = self.purge.lock();
        self.drain_all();
        // The thread may have looked while the runs were in neither list: WK1.
        self.wake();
        // In a child of a fork that began in a signal handler, the lock may be held for ever.
        let Some(mut hidden) = self.hidden.try_lock() else { return };
        if hidden.len > 0 {
            // A signal handler forks during a fork.
            return;
        }
        let Hidden { runs, len, marked } = &mut *hidden;
        for (long, zone) in LONG.into_iter().flat_map(|long| self.zones().map(move |zone| (long, zone))) {
            *len += self.detach_long(zone, long, &mut runs[*len..]);
        }
        for run in &runs[..*len] {
            *marked += 1;
            if self.arena.inherit(run, false).is_err() {
                // The runs are shared with the child, as shorter ones are.
                self.show_hidden(hidden);
                return;
            }
        }
    }

    /// Returns the hidden runs to the index, in the parent and in the child.
    pub(super) fn show(&self) {
        if let Some(hidden) = self.hidden.try_lock() {
            self.show_hidden(hidden);
        }
    }

    pub(super) fn show_hidden(&self, mut hidden: MutexGuard<'_, Futex, Hidden>) {
        // First, so that no run is returned twice: another fork may begin meanwhile.
        let (len, marked) = (core::mem::take(&mut hidden.len), core::mem::take(&mut hidden.marked));
        for (nth, run) in hidden.runs[..len].iter_mut().enumerate() {
            // A child of a later fork would read zeros where its parent wrote, so the mark must not stay.
            let is_marked = nth < marked && self.arena.inherit(run, true).is_err();
            let mut central = self.zone_of(run.page());
            central.leaving -= run.pages();
            if is_marked {
                central.forget_cold(run);
                drop(central);
                let word = Word::live(run.pages(), 0).changed();
                let _dirty = self.free_renewed(core::mem::replace(run, Run::NOTHING), word);
                continue;
            }
            // Its blocks stayed in the list of cold ones. Where it merged with a new neighbour, those at its ends may
            // be wholly dirty now: CD1.
            let Some(hole) = central.free_dirty(run.range()) else { continue };
            for page in [run.page(), run.end() - 1] {
                let block = central.blocks_around(page, page + 1).start;
                if hole.encloses(central.block(block)) && !central.cold.contains(block) {
                    central.cold.add(block..block + 1);
                }
            }
        }
    }

    /// Removes dirty runs of at least `long` pages from the index of a zone, and returns how many. Their blocks stay in
    /// the list of cold ones, from which none can be allocated meanwhile.
    fn detach_long(&self, zone: usize, long: u64, runs: &mut [Run]) -> usize {
        let (mut central, mut from, mut count) = (self.zone(zone), self.arena.extent(zone).end(), 0);
        while count < runs.len()
            && let Some(hole) = central.dirty.fit_below(from, Pages::new(long))
        {
            from = hole.start();
            if central.dirty.take(hole).is_err() {
                break;
            }
            runs[count] = self.claim_dirty(&mut central, hole);
            count += 1;
        }
        count
    }
}
