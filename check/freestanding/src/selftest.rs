//! Tests the core here: allocate, free and merge, first from inline records alone, then from frames. The tests
//! of a space and its blocks are in [`boot`], those of areas with pages in [`mapped`], those of per-CPU memory in
//! [`units`].

use crate::machine::{self, FRAMES, PORT};
use crate::{boot, mapped, units};
use va_base::{Align, AllocError, FreeError, NoSlabs, PAGE_SIZE, Pages, Request, Va, VaRange};
use va_space::lazy::lazy_max_pages;
use va_space::node::{NodeMap, Walk};
use va_tree::rb::{Exact, Linux};
use va_tree::{BTreeIndex, BTreeIndex32, Congruent, FreeIndex, RbIndex};

/// The number of a check that does not hold.
type Failed = i32;

/// Four-level x86-64 vmalloc space.
const SPACE: (u64, u64) = (0xffff_c900_0000_0000, 0xffff_e900_0000_0000);
/// A space that 32-bit page numbers can cover.
const SMALL: (u64, u64) = (0xffff_ffff_a000_0000, 0xffff_ffff_ff00_0000);

/// Runs every check; the number of the first that fails. The tens are the index.
pub(crate) fn run() -> Result<(), Failed> {
    let wide = range(SPACE).ok_or(1)?;
    let small = range(SMALL).ok_or(2)?;
    // Before there is any memory: records inside the index itself.
    at(10, inline_only(BTreeIndex::new(wide, wide, NoSlabs)))?;
    at(20, inline_only(RbIndex::<Exact, _>::new(wide, wide, NoSlabs)))?;
    at(30, inline_only(RbIndex::<Linux, _>::new(wide, wide, NoSlabs)))?;
    at(40, inline_only(BTreeIndex32::new(small, small, NoSlabs)))?;
    // With memory of our own, which all goes back.
    let frames = machine::init();
    at(50, many(BTreeIndex::new(wide, wide, PORT)))?;
    at(60, many(RbIndex::<Exact, _>::new(wide, wide, PORT)))?;
    at(70, many(BTreeIndex32::new(small, small, PORT)))?;
    if frames == 0 || FRAMES.free_count() != frames {
        return Err(3);
    }
    at(80, policies())?;
    // Not 101: that is a panic.
    at(110, boot::run(Va::new(SPACE.0)))?;
    at(130, mapped::run(Va::new(SPACE.0 + (1 << 30))))?;
    at(150, units::run(Va::new(SPACE.0 + (2 << 30))))
}

fn range((start, end): (u64, u64)) -> Option<VaRange> {
    VaRange::new(Va::new(start), Va::new(end))
}

/// Numbers the checks of one index.
fn at(base: Failed, result: Result<(), Failed>) -> Result<(), Failed> {
    result.map_err(|check| base + check)
}

/// The arithmetic of spaces.
fn policies() -> Result<(), Failed> {
    if lazy_max_pages(4) <= lazy_max_pages(1) {
        return Err(1);
    }
    let nodes = NodeMap::new(3, Pages::new(16)).ok_or(2)?;
    let at = Va::new(SPACE.0 + 16 * PAGE_SIZE);
    if nodes.decode(nodes.encode(nodes.node_of(at), 1)) != Ok(nodes.node_of(at)) {
        return Err(3);
    }
    if nodes.lookup_order(at, Walk::Up).count() != 3 {
        return Err(4);
    }
    Ok(())
}

/// Few areas, many failures: what must work before a kernel has memory, and that running out of records is an error
/// that changes nothing.
fn inline_only<I: FreeIndex>(index: Result<I, AllocError>) -> Result<(), Failed> {
    let mut index = index.map_err(|_| 1)?;
    let (extent, free) = (index.extent(), index.free_pages());
    let three = Request::new(3 * PAGE_SIZE, PAGE_SIZE).map_err(|_| 2)?;
    let low = index.alloc(&three).map_err(|_| 2)?;
    let aligned = Request::pages(1).map_err(|_| 2)?.aligned(Align::from_log2(21).ok_or(2)?);
    let high = index.alloc(&aligned).map_err(|_| 2)?;
    let moved = Va::new(extent.start().get() + (2 << 20));
    if low != extent.start() || high.get() % (2 << 20) != 0 || high > moved {
        return Err(3);
    }
    let three_pages = VaRange::from_size(low, 3 * PAGE_SIZE).ok_or(4)?;
    index.free(three_pages).map_err(|_| 4)?;
    if !matches!(index.free(three_pages), Err(FreeError::AlreadyFree { .. })) {
        return Err(5);
    }
    index.free(VaRange::from_size(high, PAGE_SIZE).ok_or(4)?).map_err(|_| 4)?;
    // Single pages with a page between them, until a record is wanting.
    let mut taken = 0;
    let before = loop {
        let before = (index.live(), index.hole_count(), index.free_pages());
        let page = Va::new(extent.start().get() + (2 * taken + 1) * PAGE_SIZE);
        match index.take(VaRange::from_size(page, PAGE_SIZE).ok_or(6)?) {
            Ok(_) if taken < 10_000 => taken += 1,
            Err(AllocError::NoMeta { .. }) if taken > 0 => break before,
            _ => return Err(6),
        }
    };
    if before != (index.live(), index.hole_count(), index.free_pages()) {
        return Err(7);
    }
    index.validate().map_err(|_| 8)?;
    for n in 0..taken {
        let page = Va::new(extent.start().get() + (2 * n + 1) * PAGE_SIZE);
        index.free(VaRange::from_size(page, PAGE_SIZE).ok_or(9)?).map_err(|_| 9)?;
    }
    if (index.live(), index.hole_count(), index.free_pages()) != (0, 1, free) {
        return Err(9);
    }
    Ok(())
}

/// Enough areas for a tree of several levels, freed in an order that leaves as many holes as possible.
fn many<I: FreeIndex>(index: Result<I, AllocError>) -> Result<(), Failed> {
    const AREAS: u64 = 600;
    let before = FRAMES.free_count();
    let mut index = index.map_err(|_| 1)?;
    let (start, free) = (index.extent().start().get(), index.free_pages());
    for n in 0..AREAS {
        let request = Request::pages(1 + n % 4).map_err(|_| 2)?;
        index.alloc(&request).map_err(|_| 2)?;
    }
    // Areas of 1 2 3 4 1 2 3 4 ... pages, side by side.
    let area = |n: u64| {
        let pages_before = n / 4 * 10 + [0, 1, 3, 6][(n % 4) as usize];
        VaRange::from_size(Va::new(start + pages_before * PAGE_SIZE), (1 + n % 4) * PAGE_SIZE)
    };
    for n in (1..AREAS).step_by(2) {
        index.free(area(n).ok_or(3)?).map_err(|_| 3)?;
    }
    // Every second one, and what lies above them all, which the last one touches.
    if index.hole_count() != AREAS / 2 {
        return Err(4);
    }
    // Some of them are not in the index itself.
    if FRAMES.free_count() == before {
        return Err(5);
    }
    index.validate().map_err(|_| 5)?;
    let chunk = [(0, 4 * PAGE_SIZE), (64 * PAGE_SIZE, 4 * PAGE_SIZE)];
    let chunk = Congruent::new(&chunk, PAGE_SIZE).map_err(|_| 6)?;
    let base = index.alloc_congruent(&chunk).map_err(|_| 6)?;
    if base.get() + 68 * PAGE_SIZE != index.extent().end().get() {
        return Err(6);
    }
    for &(offset, size_bytes) in chunk.areas() {
        let range = VaRange::from_size(Va::new(base.get() + offset), size_bytes);
        index.free(range.ok_or(7)?).map_err(|_| 7)?;
    }
    for n in (0..AREAS).step_by(2) {
        index.free(area(n).ok_or(8)?).map_err(|_| 8)?;
    }
    let whole = (index.live(), index.hole_count(), index.free_pages(), index.largest_hole());
    if whole != (0, 1, free, Pages::new(free.get())) {
        return Err(9);
    }
    Ok(())
}
