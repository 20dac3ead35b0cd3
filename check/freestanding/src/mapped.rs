//! Areas with pages behind them, on the page tables that the guest has.
//!
//! The numbers of checks go on from those of [`boot`](crate::boot).

use crate::boot::Boot;
use crate::machine::{self, FRAMES, One};
use va_base::{PAGE_SIZE, Va, VaRange};
use va_map::{AreaRequest, Fill, MapSpace, PageTable, Piece};
use vmalloc_guest::tables::{READ_ONLY, READ_WRITE, Tables};

/// The number of a check that does not hold.
type Failed = i32;

const PAGES: u64 = 2048;

/// Maps in the window from `start` on.
pub(crate) fn run(start: Va) -> Result<(), Failed> {
    let window = VaRange::from_size(start, PAGES * PAGE_SIZE).ok_or(1)?;
    let mut map = const { MapSpace::<Boot, Tables<One>>::empty() };
    let tables = machine::tables().ok_or(2)?;
    map.init(window, Boot, tables, &[]).map_err(|_| 2)?;
    let request = AreaRequest::new(5 * PAGE_SIZE).range_bytes(20 * PAGE_SIZE);
    let at = map.vmalloc(0, &request).map_err(|_| 3)?;
    if map.vrealloc(0, at, 9 * PAGE_SIZE, Fill::Any) != Ok(at) {
        return Err(4);
    }
    // More pages than there are: nothing changes.
    let much = AreaRequest::new((FRAMES.free_count() as u64 + 1) * PAGE_SIZE);
    if map.vmalloc(0, &much).is_ok() || map.stats().allocated_pages.get() != 9 {
        return Err(5);
    }
    let ring = map.vmap(0, [700, 701, 700, 701].as_slice(), READ_ONLY, 0).map_err(|_| 6)?;
    let small = map.vm_map_ram(0, [900].as_slice(), READ_WRITE).map_err(|_| 7)?;
    let mut last = None;
    map.read(VaRange::from_size(ring, 4 * PAGE_SIZE).ok_or(8)?, |piece| last = Some(piece));
    if last != Some(Piece::Page { frame: 701, from: 0, bytes: PAGE_SIZE }) || map.validate().is_err() {
        return Err(8);
    }
    if tables.leaf(small).map(|leaf| leaf.first) != Some(900) {
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
