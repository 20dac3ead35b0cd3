//! Areas with pages behind them, on a page table of one level and pages of a fixed number.
//!
//! The numbers of checks go on from those of [`boot`](crate::boot).

use crate::boot::Boot;
use core::sync::atomic::{AtomicU64, Ordering};
use va_base::{PAGE_SIZE, Va, VaRange};
use va_block::config::Standard;
use va_map::{
    AreaRequest, Entries, Fill, Leaf, MapSpace, PageRequest, PageSource, PageTable, PageTableError, Piece,
    Protection, Run, Stopped,
};

/// The number of a check that does not hold.
type Failed = i32;

const PAGES: usize = 2048;
const FRAMES: usize = 64;

/// One word for each page of the window: the number of what is behind it, plus one.
struct Memory {
    start: Va,
    entries: [AtomicU64; PAGES],
    taken: [AtomicU64; FRAMES],
}

impl Memory {
    fn entry(&self, at: Va) -> Option<&AtomicU64> {
        self.entries.get(at.page_floor().checked_sub(self.start.page_floor())? as usize)
    }
}

impl PageTable for Memory {
    const LEAF_SIZES: &'static [u32] = &[0];

    fn map(&self, at: Va, Entries { run, .. }: Entries) -> Result<(), Stopped> {
        for page in 0..run.pages {
            let stopped = Stopped { pages_done: page, why: PageTableError::NoMemory };
            let entry = self.entry(Va::from_page(at.page_floor() + page)).ok_or(stopped)?;
            entry.store(run.first + page + 1, Ordering::Relaxed);
        }
        Ok(())
    }

    fn unmap(&self, range: VaRange, gone: &mut dyn FnMut(Leaf)) {
        let (first, end) = range.whole_pages();
        for entry in (first..end).filter_map(|page| self.entry(Va::from_page(page))) {
            if let Some(first) = entry.swap(0, Ordering::Relaxed).checked_sub(1) {
                gone(Leaf { first, pages_log2: 0 });
            }
        }
    }

    fn leaf(&self, at: Va) -> Option<Leaf> {
        let first = self.entry(at)?.load(Ordering::Relaxed).checked_sub(1)?;
        Some(Leaf { first, pages_log2: 0 })
    }
}

impl PageSource for Memory {
    fn alloc(&self, frames: &mut [u64], _request: PageRequest) -> usize {
        let free = |frame: &usize| self.taken[*frame].swap(1, Ordering::Relaxed) == 0;
        let found = (0..FRAMES).filter(free);
        frames.iter_mut().zip(found).map(|(place, frame)| *place = frame as u64).count()
    }

    fn alloc_run(&self, _pages_log2: u32, _request: PageRequest) -> Option<u64> {
        None
    }

    fn free(&self, run: Run) {
        let came = self.taken.iter().skip(run.first as usize).take(run.pages as usize);
        came.for_each(|taken| taken.store(0, Ordering::Relaxed));
    }

    fn clear(&self, _frame: u64, _from: u64, _to: u64) {}
}

/// Maps in the window from `start` on.
pub(crate) fn run(start: Va) -> Result<(), Failed> {
    let window = VaRange::from_size(start, PAGES as u64 * PAGE_SIZE).ok_or(1)?;
    let memory = Memory {
        start,
        entries: [const { AtomicU64::new(0) }; PAGES],
        taken: [const { AtomicU64::new(0) }; FRAMES],
    };
    let mut map = const { MapSpace::<Boot, Standard, &Memory>::empty() };
    map.init(window, Boot, &memory, &[]).map_err(|_| 2)?;
    let request = AreaRequest { range_bytes: 20 * PAGE_SIZE, ..AreaRequest::new(5 * PAGE_SIZE) };
    let at = map.vmalloc(0, &request).map_err(|_| 3)?;
    if map.vrealloc(0, at, 9 * PAGE_SIZE, Fill::Any) != Ok(at) {
        return Err(4);
    }
    // More pages than there are: nothing changes.
    let much = AreaRequest::new((FRAMES as u64 + 1) * PAGE_SIZE);
    if map.vmalloc(0, &much).is_ok() || map.stats().allocated_pages.get() != 9 {
        return Err(5);
    }
    let ring = map.vmap(0, [700, 701, 700, 701].as_slice(), Protection(0), 0).map_err(|_| 6)?;
    let small = map.vm_map_ram(0, [900].as_slice(), Protection(0)).map_err(|_| 7)?;
    let mut last = None;
    map.read(VaRange::from_size(ring, 4 * PAGE_SIZE).ok_or(8)?, |piece| last = Some(piece));
    if last != Some(Piece::Page { frame: 701, from: 0, bytes: PAGE_SIZE }) || map.validate().is_err() {
        return Err(8);
    }
    map.vm_unmap_ram(0, small, 1).map_err(|_| 9)?;
    if map.vfree(ring).is_ok() || map.vunmap(ring).is_err() || map.vfree(at).is_err() {
        return Err(10);
    }
    map.purge();
    match (map.validate(), map.stats().allocated_pages.get()) {
        (Ok(()), 0) => Ok(()),
        _ => Err(11),
    }
}
