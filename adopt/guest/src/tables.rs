//! Page tables of x86-64: four levels, pages of 4 KiB and 2 MiB, changed by atomic words and without a lock.
//!
//! A missing table is added by one exchange, and the loser frees its own. A table is never freed, so a walk on another
//! CPU, in software or in the processor, meets no frame with another use. That costs a page for each 2 MiB.
//!
//! An entry that was absent needs no flush, and none is global: a CPU that loads its root again forgets all of them.

use crate::cpus::Cpus;
use crate::frames::{self, Frames};
use core::sync::atomic::{AtomicU64, Ordering::*};
use va_base::{PAGE_SIZE, Va, VaRange};
use va_map::{
    Entries, Fill, Leaf, PageRequest, PageSource, PageTable, PageTableError, Protection, Run, Stopped,
};

const PRESENT: u64 = 1;
const WRITABLE: u64 = 1 << 1;
const LARGE: u64 = 1 << 7;
const NO_EXECUTE: u64 = 1 << 63;
/// Binary logarithm of the entries of a table.
const ENTRIES_LOG2: u32 = 9;

/// Permits reads and writes.
pub const READ_WRITE: Protection = Protection(0);
/// Permits reads alone.
pub const READ_ONLY: Protection = Protection(1);

/// The page tables under a root, with frames for tables and for pages.
#[derive(Clone, Copy)]
pub struct Tables<C: Cpus> {
    frames: &'static Frames<C>,
    root: u64,
}

impl<C: Cpus> Tables<C> {
    /// Uses the tables under frame `root`.
    ///
    /// # Safety
    /// The root is a table of four levels for good, and all who change tables under it do so by values of this type.
    pub unsafe fn new(frames: &'static Frames<C>, root: u64) -> Self {
        Self { frames, root }
    }

    /// Returns the entry at which a walk for `page` ends, its value then, and its level: of a page, or an absent one.
    /// Read again, an absent one may be a table that another CPU added for a neighbour.
    fn find(&self, page: u64) -> (&'static AtomicU64, u64, u32) {
        let (mut table, mut level) = (self.root, 3);
        loop {
            let place = page >> (ENTRIES_LOG2 * level) & ((1 << ENTRIES_LOG2) - 1);
            // SAFETY: the root, or a table that an entry named. None is freed, and all of them are atomic words.
            let entry = unsafe { frames::word(table, place as usize) };
            let value = entry.load(Acquire);
            if level == 0 || value == 0 || value & LARGE != 0 {
                return (entry, value, level);
            }
            (table, level) = (leaf(value, level).first, level - 1);
        }
    }

    /// Returns the absent entry of a level for `page`, and adds missing tables above it.
    fn reach(&self, page: u64, level: u32) -> Result<&'static AtomicU64, PageTableError> {
        loop {
            let (entry, value, ended) = self.find(page);
            if ended <= level {
                // Where a table was, it stays.
                return if (ended, value) == (level, 0) { Ok(entry) } else { Err(PageTableError::NoLarge) };
            }
            let table = self.frames.alloc(0).ok_or(PageTableError::NoMemory)?;
            self.clear(table, 0, PAGE_SIZE);
            // Release: a CPU that finds the table finds it cleared.
            let value = (table * PAGE_SIZE) | PRESENT | WRITABLE;
            if entry.compare_exchange(0, value, AcqRel, Acquire).is_err() {
                self.frames.free(Run { first: table, pages: 1 });
            }
        }
    }
}

/// Returns what an entry of a level says.
fn leaf(value: u64, level: u32) -> Leaf {
    Leaf { first: (value & !NO_EXECUTE) / PAGE_SIZE, pages_log2: ENTRIES_LOG2 * level }
}

impl<C: Cpus> PageTable for Tables<C> {
    const LEAF_SIZES: &'static [u32] = &[0, ENTRIES_LOG2];

    fn map(&self, at: Va, Entries { run, pages_log2, protection }: Entries) -> Result<(), Stopped> {
        let writable = if protection == READ_ONLY { 0 } else { WRITABLE };
        let bits = PRESENT | NO_EXECUTE | writable | if pages_log2 > 0 { LARGE } else { 0 };
        for done in (0..run.pages).step_by(1 << pages_log2) {
            let entry = self.reach(at.page_floor() + done, pages_log2 / ENTRIES_LOG2);
            let entry = entry.map_err(|why| Stopped { pages_done: done, why })?;
            entry.store(((run.first + done) * PAGE_SIZE) | bits, Release);
        }
        Ok(())
    }
    fn unmap(&self, range: VaRange, gone: &mut dyn FnMut(Leaf)) {
        let (mut page, end) = range.whole_pages();
        while page < end {
            let (entry, value, level) = self.find(page);
            if value != 0 {
                gone(leaf(entry.swap(0, AcqRel), level));
            }
            page = ((page >> (ENTRIES_LOG2 * level)) + 1) << (ENTRIES_LOG2 * level);
        }
    }
    fn leaf(&self, at: Va) -> Option<Leaf> {
        let (_, value, level) = self.find(at.page_floor());
        (value != 0).then(|| leaf(value, level))
    }
}

impl<C: Cpus> PageSource for Tables<C> {
    fn alloc(&self, frames: &mut [u64], request: PageRequest) -> usize {
        let supply = core::iter::from_fn(|| self.alloc_run(0, request));
        frames.iter_mut().zip(supply).map(|(place, frame)| *place = frame).count()
    }
    fn alloc_run(&self, pages_log2: u32, request: PageRequest) -> Option<u64> {
        let first = self.frames.alloc(pages_log2)?;
        if request.fill == Fill::Zeros {
            (first..first + (1 << pages_log2)).for_each(|frame| self.clear(frame, 0, PAGE_SIZE));
        }
        Some(first)
    }
    fn free(&self, run: Run) {
        self.frames.free(run);
    }
    fn clear(&self, frame: u64, from: u64, to: u64) {
        // SAFETY: the core passes frames that it allocated here and has not freed.
        unsafe { frames::clear(frame, from, to) };
    }
}
