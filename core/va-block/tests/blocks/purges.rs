//! Collections that a count of dead pages begins.

use crate::points::blocks;
use va_base::{Pages, Va};
use va_block::config::Standard;
use va_block::{BlockError, Blocks, Config};
use va_sim::machine::SimMachine;
use va_space::VmapSpace;

/// Allocates and returns whole mappings of 64 pages.
fn mappings(blocks: &Blocks<&SimMachine, Standard>, count: u64) -> Vec<Va> {
    (0..count).map(|_| blocks.alloc(0, 64).unwrap()).collect()
}

#[test]
fn pages_of_a_block_that_was_released_are_no_longer_counted_as_dead() {
    let machine = SimMachine::new(1);
    let blocks = blocks::<Standard>(&machine, 1 << 20);
    let dead_max = Standard::dead_max(1).get();
    let per_block = blocks.block_pages().get() / 64;
    let full = dead_max / 64 / per_block + 1;
    let lives = mappings(&blocks, full * per_block);
    let half = mappings(&blocks, per_block / 2);
    let free = |at: Va| blocks.free(0, at, 64).unwrap();
    // One mapping of each full block lives on, and as much dies as begins a collection.
    let dies = lives.chunks(per_block as usize).flat_map(|block| &block[1..]).take((dead_max / 64) as usize);
    dies.for_each(|&at| free(at));
    half.into_iter().for_each(free);
    // This releases half a block of dead pages, and the others are as many as before.
    assert_eq!((blocks.shrink().blocks, blocks.stats().dead_pages), (1, Pages::new(dead_max)));
    assert_eq!(machine.flushes(), 0);
    assert!(!blocks.tick().waiting);
    assert_eq!((machine.flushes(), blocks.stats().dead_pages), (1, Pages::new(0)));
}

#[test]
fn a_tick_returns_the_blocks_that_it_released() {
    let machine = SimMachine::new(1);
    let blocks = blocks::<Standard>(&machine, 1 << 20);
    let per_block = blocks.block_pages().get() / 64;
    let full = Standard::dead_max(1).get() / 64 / per_block;
    for _ in 0..3 {
        mappings(&blocks, full * per_block).into_iter().for_each(|at| blocks.free(0, at, 64).unwrap());
        assert_eq!((blocks.tick().blocks, blocks.present()), (full, 0));
    }
}

#[test]
fn a_window_with_more_blocks_than_the_lookup_covers_is_an_error() {
    let machine = SimMachine::new(1);
    let made = |blocks: u64| {
        let window = va_base::VaRange::from_pages(1024, (1 + blocks) * 1024).unwrap();
        let space = VmapSpace::<_, <Standard as Config>::Space>::new(window, window, &machine).unwrap();
        Blocks::<_, Standard>::new(space, &machine).map(drop)
    };
    let limit = (1 << 32) - 1;
    assert_eq!(made(limit - 1), Ok(()));
    assert!(matches!(made(limit), Err(BlockError::TooWide { limit: of, .. }) if of == limit));
    assert_eq!(machine.tables(), 0);
}
