//! The balance: at most one wholly free chunk without pages, two to four spare pages, in steps that call the backend
//! once.
//!
//! # Theory
//! A caller that cannot wait is served from populated pages alone, so a few spare ones are retained. Pages that were
//! populated for a peak load are depopulated. One pass goes through six phases, each a number of steps:
//!
//! 1. all wholly free chunks except the first are depopulated and destroyed;
//! 2. if many slots of slabs were freed, slabs are dissolved that keep a page in vain;
//! 3. each chunk with too many spare pages is read from its end and depopulated run by run, while the other chunks have
//!    enough spare pages. It is then sidelined, or put back among the others;
//! 4. pages are populated, lowest first in the fullest chunk that lacks some, until there are four spare pages;
//! 5. wholly free chunks without a populated page are destroyed, all but one, and that too if another is wholly free.
//!    With Linux's hints the first in the list is spared in any case, as there;
//! 6. if a magazine found pages without tables of states, they are allocated for every populated page.
//!
//! Between two steps no lock is held and everything may change; a step reads the state again. Two facts are recorded in
//! the state of the chunk before the backend is called. So [`alloc_at`](PercpuSpace::alloc_at), which may name any
//! address, finds them:
//!
//! - a chunk that is about to be destroyed is *leaving*: no address leads to it any more (PC7);
//! - pages that are about to be depopulated count as not populated: an object placed there waits for `grow` and has
//!   them populated again, after a flush. Its chunk counts again, and the balance skips it.
//!
//! # Source
//! Linux `mm/percpu.c` (6.12: `pcpu_balance_free`, `pcpu_reclaim_populated`, `pcpu_balance_populated`). There a pass is
//! one hold of the mutex.

use super::PercpuSpace;
use crate::backend::{Backend, Event};
use crate::chunk::{End, NIL, State};
use crate::config::Config;
use crate::engine::HintEngine;
use crate::store::class::Search;
use crate::store::{FIRST, RESERVED};
use core::ops::Range;
use va_base::sync::atomic::Ordering;
use va_base::{Machine, PAGE_SIZE, Va};

/// The progress of the balance: done, or more to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// Call again.
    More,
    /// The balance is done.
    Done,
}

/// The stage of a pass, from one step to the next.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Work {
    /// No pass.
    #[default]
    Idle,
    /// Wholly free chunks are taken one after the other.
    Free(Only),
    /// This chunk, in no list, is depopulated and destroyed.
    Destroy(u32, Only),
    /// Pages are searched for that slabs keep in vain.
    Search(Search),
    /// Chunks to depopulate are taken one after the other.
    Reclaim,
    /// This chunk is searched for spare pages.
    Depopulate(Look),
    /// The number of spare pages to populate is computed.
    Spare,
    /// Pages are populated.
    Populate { left: u32, slot: u8, row: u32 },
    /// Tables of states are allocated for the pages of a chunk from a page on, then for the next chunk.
    States { row: u32, page: u32 },
}

/// Pages of the chunk that begins at an address.
type Pages = (Va, Range<u32>);

/// The chunks that are destroyed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Only {
    All,
    Unpopulated,
}

/// The progress through a chunk: pages from `below` on are done, those of `gone` were depopulated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Look {
    row: u32,
    below: u32,
    gone: (u32, u32),
}

impl<P: Machine, B: Backend, C: Config> PercpuSpace<P, B, C> {
    /// Returns whether a thread should call [`tick`](Self::tick).
    pub fn is_balance_due(&self) -> bool {
        self.due.load(Ordering::Acquire)
    }

    /// Runs one step of the balance, which calls the backend at most twice (a flush after the last run of a chunk).
    ///
    /// # Locks
    /// `grow`, which may sleep; `chunks` within.
    /// Cost: pages of a chunk, and the backend's.
    pub fn tick(&self) -> Progress {
        let mut work = self.lock_grow();
        if *work == Work::Idle {
            // Calls for the balance from now on are for the next pass.
            if !self.due.swap(false, Ordering::AcqRel) {
                return Progress::Done;
            }
            *work = Work::Free(Only::All);
            // An idle slab, cached for later requests, may be all that a chunk holds.
            self.lock().release_idle();
        }
        let mut ready = None;
        *work = self.step(*work, &mut ready);
        let done = *work == Work::Idle;
        drop(work);
        if let Some((base, pages)) = ready {
            self.make_tables(base, pages);
        }
        if done && !self.is_balance_due() { Progress::Done } else { Progress::More }
    }

    /// Runs the remaining steps of the balance. Returns their number.
    pub fn balance(&self) -> u64 {
        let mut steps = 0;
        loop {
            steps += 1;
            if self.tick() == Progress::Done {
                return steps;
            }
        }
    }

    /// Runs one step and returns the next stage. The caller holds `grow`, and allocates tables of states for the pages
    /// in `ready` after that.
    fn step(&self, work: Work, ready: &mut Option<Pages>) -> Work {
        match work {
            Work::Idle => Work::Idle,
            Work::Free(only) => self.unlink_free(only),
            Work::Destroy(row, only) => self.destroy(row, only),
            Work::Search(at) => self.lock().continue_search(at).map_or(Work::Reclaim, Work::Search),
            Work::Reclaim => {
                let store = self.lock();
                match store.lists.first[store.slots.to_depopulate as usize] {
                    NIL => Work::Spare,
                    row => {
                        let pages = store.chunk(row).pages;
                        Work::Depopulate(Look { row, below: pages, gone: (pages, 0) })
                    }
                }
            }
            Work::Depopulate(look) => self.depopulate(look),
            Work::Spare => self.spare(),
            Work::Populate { left, slot, row } => self.populate_spare(left, slot, row, ready),
            Work::States { row, page } => self.find_populated(row, page, ready),
        }
    }

    /// Takes one of the wholly free chunks, and spares another. If the first chunk of the space is among them, it is
    /// spared: it is never destroyed, and is wholly free where nothing is before or after its dynamic section. Else the
    /// chunk at the front is spared, or a chunk with pages in its place where those stay.
    fn unlink_free(&self, only: Only) -> Work {
        let mut store = self.lock();
        let front = store.lists.first[store.slots.free as usize];
        let find = |wanted: &dyn Fn(u32) -> bool| {
            let mut row = front;
            while row != NIL && !wanted(row) {
                row = store.chunk(row).next;
            }
            row
        };
        let has_pages = |row| only == Only::Unpopulated && store.chunk(row).empty != 0;
        let spared = match C::Engine::BY_FITS.then(|| find(&has_pages)) {
            _ if store.chunk(FIRST).slot == store.slots.free => FIRST,
            None | Some(NIL) => front,
            Some(row) => row,
        };
        let row = find(&|row| row != spared && !has_pages(row));
        match (row, only) {
            (NIL, Only::All) => store.search().map_or(Work::Reclaim, Work::Search),
            (NIL, Only::Unpopulated) if self.lacking.swap(false, Ordering::Relaxed) => {
                Work::States { row: FIRST, page: 0 }
            }
            (NIL, Only::Unpopulated) => Work::Idle,
            _ => {
                store.retire(row);
                Work::Destroy(row, only)
            }
        }
    }

    /// Depopulates a run of a chunk that is in no list, or destroys it.
    fn destroy(&self, row: u32, only: Only) -> Work {
        let mut store = self.lock();
        let chunk = store.chunk(row);
        debug_assert!(chunk.state == State::Leaving && chunk.live == 0);
        let (base, run) = (Va::new(chunk.base), store.run_of_pages(row, 0, chunk.pages, true));
        if let Some(run) = run {
            store.note_depopulated(row, run.clone());
            if B::BY_PAGE {
                drop(store);
                self.backend.depopulate(&self.geometry, base, run);
                return Work::Destroy(row, only);
            }
            // Populated as a whole, and depopulated as a whole.
        }
        store.remove(row);
        // No object is in it, live or cached.
        self.states.retire(base.get(), self.geometry.unit_bytes().into());
        drop(store);
        self.backend.destroy(&self.geometry, base);
        self.backend.event(Event::DestroyChunk { base });
        Work::Free(only)
    }

    /// Depopulates the next run of spare pages of a chunk, from its end.
    fn depopulate(&self, look: Look) -> Work {
        let Look { row, below, mut gone } = look;
        let mut store = self.lock();
        let base = Va::new(store.chunk(row).base);
        if !store.chunk(row).isolated {
            // An object was placed in it since the last step: it is in another list again, and its pages remain.
            drop(store);
            self.flush_gone(base, gone);
            return Work::Reclaim;
        }
        let (mut page, mut end, mut short) = (below, 0, false);
        while page > 0 {
            // Checked again for each page, though only a depopulated run changes it. As in Linux, a run in progress
            // remains if the spare pages become too few.
            if store.chunk(row).empty == 0 {
                end = 0;
                break;
            }
            if store.totals.spare_pages < i64::from(C::SPARE_PAGES_HIGH) {
                (short, end) = (true, 0);
                break;
            }
            if store.is_spare(row, page - 1) {
                if end == 0 {
                    end = page;
                }
            } else if end > 0 {
                break;
            }
            page -= 1;
        }
        if end > 0 {
            let run = page..end;
            // Recorded before the lock is released: an object placed there from now on finds its pages missing and
            // waits for `grow`.
            store.note_depopulated(row, run.clone());
            drop(store);
            self.backend.depopulate(&self.geometry, base, run.clone());
            gone = (gone.0.min(run.start), gone.1.max(run.end));
            // The page before the run was checked already.
            let below = run.start.saturating_sub(1);
            return Work::Depopulate(Look { row, below, gone });
        }
        drop(store);
        self.flush_gone(base, gone);
        let mut store = self.lock();
        if !store.chunk(row).isolated {
            return Work::Reclaim;
        }
        if short || store.chunk(row).free_bits == self.geometry.unit_bits() {
            store.reintegrate(row);
        } else {
            let slot = store.slots.sidelined;
            store.move_to(row, slot, End::Back);
        }
        Work::Reclaim
    }

    /// Flushes the pages of a chunk from the first to the last depopulated one, if any.
    fn flush_gone(&self, base: Va, gone: (u32, u32)) {
        if gone.0 < gone.1 {
            self.backend.flush(&self.geometry, base, gone.0..gone.1);
        }
    }

    /// Flushes the depopulated pages of a chunk before some of it is populated again. Otherwise a CPU that translates
    /// the old page would read and write there. The caller holds `grow`.
    pub(super) fn flush_before_populating(&self, work: &mut Work, row: u32, base: Va) {
        if let Work::Depopulate(look) = work
            && look.row == row
        {
            self.flush_gone(base, look.gone);
            look.gone = (self.geometry.unit_pages(), 0);
        }
    }

    /// Computes the number of spare pages to populate.
    fn spare(&self) -> Work {
        let high = C::SPARE_PAGES_HIGH;
        // The lists are read from now on.
        self.lock().settle();
        let left = if self.failed.swap(false, Ordering::Relaxed) {
            high
        } else {
            (i64::from(high) - self.lock().totals.spare_pages).clamp(0, high.into()) as u32
        };
        let slot = self.geometry.slots().of(PAGE_SIZE as u32);
        Work::Populate { left, slot, row: NIL }
    }

    /// Populates one run, of the chunk in progress or of the first in the list that lacks pages.
    fn populate_spare(&self, left: u32, slot: u8, row: u32, ready: &mut Option<Pages>) -> Work {
        let (last, done) = (self.geometry.slots().free, Work::Free(Only::Unpopulated));
        if left == 0 {
            return done;
        }
        if slot > last {
            // All is populated: one more chunk, and from the beginning.
            return if self.make().is_ok() { Work::Spare } else { done };
        }
        let (slot, row, base, run) = {
            let store = self.lock();
            let lacks = |row: u32| {
                store.chunk(row).is_in_use() && store.chunk(row).populated < store.chunk(row).pages
            };
            // One chunk of each list is populated at a time; it is done once it lacks no page.
            let (mut slot, mut found) = if row == NIL || lacks(row) { (slot, row) } else { (slot + 1, NIL) };
            while found == NIL && slot <= last {
                found = store.lists.first[slot as usize];
                while found != NIL && !lacks(found) {
                    found = store.chunk(found).next;
                }
                slot += u8::from(found == NIL);
            }
            if found == NIL {
                return Work::Populate { left, slot, row: NIL };
            }
            let chunk = store.chunk(found);
            (slot, found, Va::new(chunk.base), store.run_of_pages(found, 0, chunk.pages, false))
        };
        let Some(Range { start, end }) = run else { return done };
        let run = start..end.min(start + left);
        match self.backend.populate(&self.geometry, base, run.clone()) {
            Ok(()) => {
                let left = left - (run.end - run.start);
                self.lock().note_populated(row, run.clone());
                *ready = Some((base, run));
                Work::Populate { left, slot, row }
            }
            Err(_) => done,
        }
    }

    /// Finds the next run of populated pages, from a page of a chunk on.
    fn find_populated(&self, row: u32, page: u32, ready: &mut Option<Pages>) -> Work {
        let store = self.lock();
        // Stops where the machine had no memory: the next pass tries again.
        if !store.rows().contains(&row) || self.lacking.load(Ordering::Relaxed) {
            return Work::Idle;
        }
        let chunk = store.chunk(row);
        let run = match row != RESERVED && chunk.is_in_use() {
            true => store.run_of_pages(row, page, chunk.pages, true),
            false => None,
        };
        let Some(run) = run else { return Work::States { row: row + 1, page: 0 } };
        let page = run.end;
        *ready = Some((Va::new(chunk.base), run));
        Work::States { row, page }
    }
}
