//! Giving pages back: many runs by one call, one thread at a time, away from the lock of the heap.
//!
//! # Theory
//! ```text
//!   central: take the highest dirty runs, cut the areas of the space at their ends   up to 64 of them
//!   (purge): give their pages back
//!   central: give their addresses to the space, as clean
//! ```
//! Between the two holds the runs are in nobody's list, and their first words tell their size (VM1). Two threads that give
//! pages back at a time make each other's flushes larger, so whoever finds a purge under way leaves it alone.
//!
//! What cannot be cut for want of records, and what the system refuses to take, is dirty again; nothing is lost.
//! # Source
//! Our own; Linux gives vmalloc pages back in `vfree`, and purges addresses alone (`__purge_vmap_area_lazy`).

use super::{BATCH, Heap};
use crate::arena::Run;
use crate::magazine::Out;
use crate::os::Os;
use crate::word::Word;
use va_base::{Va, VaRange};
use va_tree::FreeIndex;

impl<O: Os> Heap<O> {
    /// Gives back that many dirty pages, or all; returns how many. None if a purge is under way.
    pub(super) fn purge_some(&self, pages: u64) -> u64 {
        match self.purge.try_lock() {
            Some(_alone) => self.purge_alone(pages),
            None => 0,
        }
    }

    /// Empties every magazine and gives all dirty pages back; returns how many pages changed hands.
    pub(crate) fn release_all(&self) -> u64 {
        let _alone = self.purge.lock();
        let mut drained = 0;
        for magazine in self.magazines {
            loop {
                let mut out = Out::new(self.arena.first());
                magazine.drain(&self.big, &mut out);
                let before = drained;
                let mut central = self.central.lock();
                for run in out {
                    drained += run.pages();
                    central.add_dirty(run);
                }
                if drained == before {
                    break;
                }
            }
        }
        drained + self.purge_alone(u64::MAX)
    }

    /// Does the work, under `purge`.
    fn purge_alone(&self, pages: u64) -> u64 {
        let mut left = pages;
        while left > 0 {
            let mut batch = [const { Run::NOTHING }; BATCH];
            let count = self.detach(&mut batch, left);
            let runs = &mut batch[..count];
            if count == 0 {
                break;
            }
            let (done, refused) = match self.arena.discard(runs) {
                Ok(()) => (count, false),
                Err((done, _)) => (done, true),
            };
            let mut central = self.central.lock();
            central.refused += u64::from(refused);
            let (gone, kept) = runs.split_at(done);
            let pages = |runs: &[Run]| runs.iter().map(Run::pages).sum::<u64>();
            central.leaving -= pages(runs);
            central.purged += pages(gone);
            left = left.saturating_sub(pages(gone));
            central.give_clean(gone.iter().map(Run::range));
            kept.iter().for_each(|run| central.give_dirty(run.range()));
            drop(central);
            if refused {
                break;
            }
        }
        pages - left
    }

    /// Takes the highest dirty runs, `pages` together at most, out of the hands of everybody else; returns how many runs.
    fn detach(&self, batch: &mut [Run; BATCH], pages: u64) -> usize {
        let (mut count, mut left) = (0, pages);
        let mut central = self.central.lock();
        while count < BATCH
            && left > 0
            && let Some(hole) = central.dirty.hole_below(Va::MAX)
        {
            let (start, end) = hole.whole_pages();
            let page = end - left.min(end - start);
            let range = VaRange::from_pages(page, end).unwrap_or_default();
            if !central.take_dirty_at(range) {
                break;
            }
            if !central.cut(range) {
                central.give_dirty(range);
                break;
            }
            self.arena.put(page, Word::free(end - page));
            central.leaving += end - page;
            left -= end - page;
            // SAFETY: it was dirty, so below the frontier, and is not any more.
            batch[count] = unsafe { Run::claim(page, end - page) };
            count += 1;
        }
        count
    }
}
