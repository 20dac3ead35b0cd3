//! The calls of blocks and of a lane.

use crate::arena::{Arena, fine, pages};
use crate::depths::Depths;
use crate::space::Space;
use va_base::{Context, Va, VaRange};
use va_block::{Blocks, Config, EarlyBlocks, Lane};

type Held<C> = Blocks<&'static Arena, C>;

/// Pages of the largest mapping that a block has room for.
const LARGEST: u64 = va_block::config::ALLOC_PAGES_MAX;

fn blocks<C: Config>(arena: &'static Arena, extent: VaRange) -> &'static Held<C> {
    let blocks: &'static mut Held<C> = Box::leak(Box::new(Blocks::empty()));
    fine(blocks.init(extent, arena, &[]));
    blocks
}

/// Frees mappings, one in seven of which outlives the others in its block.
fn free_some<C: Config>(blocks: &Held<C>, count: u64) {
    let mapped: Vec<_> =
        (0..count).map(|nth| (fine(blocks.alloc(0, 1 + nth % LARGEST)), 1 + nth % LARGEST)).collect();
    let last = |nth: &usize| nth.is_multiple_of(7);
    let each = |nth: usize| fine(blocks.free(1, mapped[nth].0, mapped[nth].1));
    (0..mapped.len()).filter(|nth| !last(nth)).for_each(each);
    let _ = blocks.tick();
    (0..mapped.len()).filter(last).for_each(each);
}

pub(crate) fn rows<C: Config>(table: &mut Depths) {
    let arena = Arena::leaked();
    let all = pages(16, 1 << 28);
    let space = || Space::<C::Space>::new(all, all, arena).ok();
    let place: &'static EarlyBlocks<&'static Arena, C> = Box::leak(Box::new(EarlyBlocks::new()));
    table.row("EarlyBlocks::init", || assert!(place.init(all, arena, &[]).is_ok()));
    table.row("EarlyBlocks::get", || assert!(place.get().is_ok()));
    let mut empty = Held::<C>::empty();
    table.row("Blocks::init", || fine(empty.init(all, arena, &[])));
    let mut empty = Held::<C>::empty();
    table.row("Blocks::init_within", || fine(empty.init_within(all, all, arena, &[])));
    let mut empty = Held::<C>::empty();
    table.row("Blocks::init_once", || fine(empty.init_once(all, all, arena, &[])));
    let (mut made, mut spaces) = (None, [space(), space()]);
    // By value.
    let mut next = || spaces.iter_mut().find_map(Option::take).unwrap_or_else(|| panic!("no space"));
    table.row_within("Blocks::new", 32 << 10, || made = Held::<C>::new(next(), arena).ok());
    table.row_within("Blocks::with_cpus", 32 << 10, || made = Held::<C>::with_cpus(next(), arena, 2).ok());
    let Some(blocks) = &made else { panic!("no blocks") };
    call_rows(table, blocks);
    lane_rows(table, blocks);
    table.row("Blocks::stats", || _ = blocks.stats());
    table.row("Blocks::validate", || assert!(blocks.validate().is_ok()));
    let mut made = made.map(Box::new);
    table.row("Blocks::drop", || drop(made.take()));
    // A few blocks.
    let small = self::blocks::<C>(arena, pages(1 << 14, (1 << 14) + 4096));
    let mut mapped = Vec::with_capacity(5000);
    table.row("Blocks::alloc, no room", || {
        mapped.extend(std::iter::from_fn(|| small.alloc(0, 1).ok()));
        assert!(!mapped.is_empty());
    });
    table
        .row("Blocks::alloc_in, atomic, no room", || assert!(small.alloc_in(Context::Atomic, 0, 1).is_err()));
    mapped.drain(1..).for_each(|at| fine(small.free(0, at, 1)));
    table.row("Blocks::alloc, no room before a flush", || {
        arena.flush_late();
        mapped.push(fine(small.alloc(0, 1)));
    });
}

fn call_rows<C: Config>(table: &mut Depths, blocks: &Held<C>) {
    let mut at = Va::ZERO;
    table.row("Blocks::alloc, first", || at = fine(blocks.alloc(0, 3)));
    table.row("Blocks::free", || fine(blocks.free(0, at, 3)));
    table.row("Blocks::alloc", || at = fine(blocks.alloc(0, 3)));
    table.row("Blocks::find_enclosing", || assert!(blocks.find_enclosing(at).is_some()));
    table.row("Blocks::free_in", || fine(blocks.free_in(Context::Sleeping, 1, at, 3)));
    table.row("Blocks::alloc_in", || at = fine(blocks.alloc_in(Context::Sleeping, 0, 3)));
    let on_new = 3;
    table.row("Blocks::free_in, atomic", || fine(blocks.free_in(Context::Atomic, on_new, at, 3)));
    table.row("Blocks::alloc_in, atomic", || {
        (0..2000).for_each(|_| _ = blocks.alloc_in(Context::Atomic, 0, LARGEST));
    });
    table.row("Blocks::alloc, large", || at = fine(blocks.alloc(0, LARGEST + 1)));
    table.row("Blocks::free, large", || fine(blocks.free(0, at, LARGEST + 1)));
    let large = || fine(blocks.alloc(0, LARGEST + 1));
    let at = large();
    table.row("Blocks::free_in, atomic, large", || {
        fine(blocks.free_in(Context::Atomic, 0, at, LARGEST + 1));
    });
    // Many enough that an alloc collects.
    table.row("Blocks::alloc, and frees, many", || free_some(blocks, 4000));
    table.row("Blocks::tick", || (0..1000).for_each(|_| _ = blocks.tick()));
    free_some(blocks, 400);
    table.row("Blocks::unmap_aliases", || _ = blocks.unmap_aliases());
    table.row("Blocks::unmap_aliases_and", || _ = blocks.unmap_aliases_and(pages(1 << 20, 1 << 21)));
    free_some(blocks, 400);
    table.row("Blocks::shrink", || _ = blocks.shrink());
}

fn lane_rows<C: Config>(table: &mut Depths, blocks: &Held<C>) {
    let mut made: Option<Lane<'_, &'static Arena, C>> = None;
    table.row("Blocks::lane", || made = blocks.lane(0).ok());
    let Some(lane) = &mut made else { panic!("no lane") };
    let mut at = Va::ZERO;
    table.row("Lane::alloc", || at = fine(lane.alloc(3)));
    table.row("Lane::free", || fine(lane.free(at, 3)));
    table.row("Lane::take", || at = lane.take(3).unwrap_or_default());
    let mut own = false;
    table.row("Lane::free_own", || own = lane.free_own(at, 3));
    // It leaves all to `free` where freed pages are not used again.
    assert_eq!(own, C::REUSE);
    if !own {
        fine(lane.free(at, 3));
    }
    table.row("Lane::alloc_in", || at = fine(lane.alloc_in(Context::Sleeping, 3)));
    table.row("Lane::free_in", || fine(lane.free_in(Context::Sleeping, at, 3)));
    table.row("Lane::alloc_in, atomic", || {
        (0..2000).for_each(|_| _ = lane.alloc_in(Context::Atomic, LARGEST));
    });
    at = fine(lane.alloc(2));
    table.row("Lane::free_in, atomic", || fine(lane.free_in(Context::Atomic, at, 2)));
    table.row("Lane::alloc, large", || at = fine(lane.alloc(LARGEST + 1)));
    table.row("Lane::free, large", || fine(lane.free(at, LARGEST + 1)));
    table.row("Lane::alloc, many", || {
        let mapped: Vec<_> =
            (0..2000).map(|nth| (fine(lane.alloc(1 + nth % LARGEST)), 1 + nth % LARGEST)).collect();
        mapped.into_iter().for_each(|(at, count)| fine(lane.free(at, count)));
    });
    let _lives = fine(lane.alloc(1));
    table.row("Lane::holds", || assert!(lane.holds()));
    table.row("Blocks::drain_lanes", || assert_eq!(blocks.drain_lanes(Some(0)), 1));
    let _lives = fine(lane.alloc(1));
    table.row("Lane::park", || lane.park());
    let _lives = fine(lane.alloc(1));
    table.row("Lane::drop", || drop(made.take()));
}
