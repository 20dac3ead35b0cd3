//! A space and its blocks from boot on: first with tables alone, then with a heap.
//!
//! The numbers of checks go on from those of [`selftest`](crate::selftest).

use crate::machine::{FORGOTTEN, One, PORT};
use core::sync::atomic::{AtomicBool, Ordering};
use va_base::{
    Align, AllocError, Epoch, Machine, Meta, PAGE_SIZE, Pages, Platform, Record, Request, Table, Va, VaRange,
};
use va_block::{Blocks, UnmapError};
use va_space::{Purge, ReleaseError, SpaceError};
use vmalloc_guest::port::Port;

/// The number of a check that does not hold.
type Failed = i32;

/// There is a heap, so slabs are allocated.
static HEAP: AtomicBool = AtomicBool::new(false);

/// A machine with one CPU that comes up: there are tables at once, and slabs once there is a heap.
#[derive(Clone, Copy)]
pub(crate) struct Boot;

impl Platform for Boot {
    fn alloc_meta<T: Record>(&self, min: usize) -> Option<&'static mut [T]> {
        if HEAP.load(Ordering::Relaxed) { PORT.alloc_meta(min) } else { None }
    }

    fn free_meta<T: Record>(&self, slab: Meta<&'static mut [T]>) {
        PORT.free_meta(slab);
    }
}

impl Machine for Boot {
    type Lock = <Port<One> as Machine>::Lock;
    type PurgeLock = <Port<One> as Machine>::PurgeLock;
    type OwnerLock = <Port<One> as Machine>::OwnerLock;

    fn cpus_possible(&self) -> u32 {
        PORT.cpus_possible()
    }

    fn cpus_online(&self) -> u32 {
        PORT.cpus_online()
    }

    fn alloc_table<T: Table>(&self) -> Option<&'static T> {
        PORT.alloc_table()
    }

    fn free_table<T: Table>(&self, table: Meta<&'static T>) {
        PORT.free_table(table);
    }

    fn flush(&self, ranges: &[VaRange]) -> Epoch {
        PORT.flush(ranges)
    }

    fn completed(&self, epoch: Epoch) -> bool {
        PORT.completed(epoch)
    }
}

/// Boots in the window from `start` on.
pub(crate) fn run(start: Va) -> Result<(), Failed> {
    let window = VaRange::from_size(start, 1 << 30).ok_or(1)?;
    // What the boot loader mapped is there before the space is.
    let image = VaRange::from_size(start, 3 * PAGE_SIZE).ok_or(1)?;
    let mut blocks = const { Blocks::<Boot>::empty() };
    blocks.init(window, Boot, &[image]).map_err(|_| 3)?;
    if blocks.space().find(start).map(|seen| seen.range) != Some(image) {
        return Err(2);
    }
    areas(&blocks)?;
    mappings(&blocks)?;
    let wanted = out_of_records(&blocks)?;
    HEAP.store(true, Ordering::Relaxed);
    // The same request, now that there is a heap.
    let late = blocks.space().alloc(0, &wanted).map_err(|_| 8)?;
    blocks.space().free(late).map_err(|_| 8)?;
    lasting_pages(&blocks)?;
    // All of it goes back.
    let busy = blocks.space().areas().count();
    for _ in 0..busy {
        let Some(seen) = blocks.space().find_above(start) else { break };
        blocks.space().free_at(seen.range.start()).map_err(|_| 10)?;
    }
    blocks.space().purge(Purge::Full);
    let stats = blocks.space().stats();
    if (stats.areas, stats.holes, stats.free_pages) != (0, 1, Pages::new(window.len_bytes() / PAGE_SIZE)) {
        return Err(11);
    }
    if blocks.validate().is_err() || FORGOTTEN.load(Ordering::Relaxed) == 0 {
        return Err(12);
    }
    Ok(())
}

type Booted = Blocks<Boot>;

/// An area of the space: allocated, found, freed once.
fn areas(blocks: &Booted) -> Result<(), Failed> {
    let request = Request::pages(5).map_err(|_| 4)?.aligned(Align::from_log2(16).ok_or(4)?);
    let area = blocks.space().alloc(0, &request).map_err(|_| 4)?;
    let (at, inside) = (area.start(), Va::new(area.start().get() + 4 * PAGE_SIZE));
    if !at.is_aligned(request.align()) || blocks.space().find_enclosing(inside).is_none() {
        return Err(4);
    }
    blocks.space().free(area).map_err(|_| 4)?;
    if blocks.space().free_at(at) != Err(ReleaseError::NoArea { at, inside: None }) {
        return Err(4);
    }
    Ok(())
}

/// A mapping of a block: allocated, found, freed once and with the right count.
fn mappings(blocks: &Booted) -> Result<(), Failed> {
    let at = blocks.alloc(0, 3).map_err(|_| 5)?;
    let range = VaRange::from_size(at, 3 * PAGE_SIZE).ok_or(5)?;
    if blocks.find_enclosing(Va::new(at.get() + 2 * PAGE_SIZE)) != Some(range) {
        return Err(5);
    }
    if blocks.free(0, at, 2) != Err(UnmapError::WrongCount { range, pages: Pages::new(2) }) {
        return Err(5);
    }
    blocks.free(0, at, 3).map_err(|_| 5)?;
    if blocks.free(0, at, 3) != Err(UnmapError::Twice { range }) {
        return Err(5);
    }
    // Once no CPU translates them, the pages are used again.
    if blocks.unmap_aliases().waiting || blocks.stats().dead_pages != Pages::new(0) {
        return Err(5);
    }
    Ok(())
}

/// Single pages with a page between them until a record is wanting, which changes nothing; the request that
/// failed.
fn out_of_records(blocks: &Booted) -> Result<Request, Failed> {
    let first = blocks.space().extent().start().page_floor() + 4096;
    for n in 0..2000 {
        let page = first + 2 * n;
        let window = VaRange::from_pages(page, page + 1).ok_or(6)?;
        let request = Request::pages(1).map_err(|_| 6)?.within(window);
        let before = blocks.space().stats();
        match blocks.space().alloc(0, &request) {
            Ok(_) => {}
            Err(SpaceError::Index(AllocError::NoMeta { .. })) if n > 0 => {
                let after = blocks.space().stats();
                let same = (before.areas, before.holes) == (after.areas, after.holes);
                if !same || blocks.validate().is_err() {
                    return Err(7);
                }
                return Ok(request);
            }
            Err(_) => return Err(6),
        }
    }
    Err(6)
}

/// One page of 1,024 lasts, the others come and go: the blocks stay few.
fn lasting_pages(blocks: &Booted) -> Result<(), Failed> {
    const LASTING: usize = 64;
    let mut lasting = [Va::ZERO; LASTING];
    let mut lane = blocks.lane(0).map_err(|_| 9)?;
    for at in &mut lasting {
        *at = lane.alloc(1).map_err(|_| 9)?;
        for _ in 0..1023 {
            let short = lane.alloc(1).map_err(|_| 9)?;
            lane.free(short, 1).map_err(|_| 9)?;
        }
    }
    if blocks.stats().blocks > 12 {
        return Err(9);
    }
    for at in lasting {
        lane.free(at, 1).map_err(|_| 9)?;
    }
    drop(lane);
    blocks.shrink();
    if blocks.stats().blocks == 0 { Ok(()) } else { Err(9) }
}
