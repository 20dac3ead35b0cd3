//! Collections that a count of dead pages begins, and those that do not wait for their flush.

use crate::points::blocks;
use va_base::{PAGE_SIZE, Pages, Request, Va, VaRange};
use va_block::config::{Linux64, Standard};
use va_block::{BlockError, Blocks, Config};
use va_sim::machine::{Flushing, SimMachine};
use va_space::{Purge, VmapSpace};

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

/// Unmaps pages on a machine whose flushes end late, in a call that meets the flush of an earlier one.
fn met_flush<C: Config>() {
    let machine = SimMachine::new(1);
    let blocks = blocks::<C>(&machine, 1 << 20);
    let space = blocks.space();
    let block = blocks.block_pages().get() / 64;
    // The last two blocks hold one mapping each, which dies.
    let mut small: Vec<Va> = (0..2 * block).map(|_| blocks.alloc(0, 64).unwrap()).collect();
    small.drain(1..block as usize);
    let area = space.alloc(0, &Request::pages(9).unwrap()).unwrap();
    let dirty = space.alloc(0, &Request::pages(7).unwrap()).unwrap().range();
    let unmapped = |range: VaRange| {
        machine.map(range).unwrap();
        machine.unmap(range);
        range
    };
    let dies = |at: Va| {
        unmapped(VaRange::from_size(at, 64 * PAGE_SIZE).unwrap());
        blocks.free(0, at, 64).unwrap();
    };
    machine.set_flushing(Flushing::OnRequest);
    dies(small[0]);
    assert!(blocks.unmap_aliases().waiting);
    // A block that dies whole, an area, and a range of the caller's.
    small[1..].iter().for_each(|&at| dies(at));
    unmapped(area.range());
    space.free(area).unwrap();
    unmapped(dirty);
    assert!(blocks.unmap_aliases_and(dirty).waiting, "the first flush has not ended");
    let flushes = machine.flushes();
    let mut calls = 0;
    loop {
        machine.complete_flushes();
        if !blocks.unmap_aliases().waiting {
            break;
        }
        calls += 1;
        assert!(calls < 20, "no end");
    }
    assert_eq!(machine.unclean(space.extent()), 0);
    assert!(machine.flushes() <= flushes + 3, "{} after {flushes}", machine.flushes());
    assert_eq!(blocks.validate(), Ok(()));
    // Nothing is left to do.
    let flushes = machine.flushes();
    assert_eq!((blocks.tick().waiting, blocks.unmap_aliases().waiting), (false, false));
    assert_eq!(machine.flushes(), flushes);
}

#[test]
fn sp2_all_that_was_freed_before_a_call_that_met_a_flush_is_flushed_when_none_is_waiting() {
    met_flush::<Standard>();
    met_flush::<Linux64>();
}

#[test]
fn sp2_a_purge_of_aliases_that_is_called_again_without_its_range_ends() {
    let machine = SimMachine::new(1);
    let blocks = blocks::<Standard>(&machine, 1 << 20);
    let space = blocks.space();
    let dirty = space.alloc(0, &Request::pages(7).unwrap()).unwrap().range();
    machine.set_flushing(Flushing::OnRequest);
    let mut first = space.purge_aliases(&[dirty]);
    for purges_and_waits in [false, true] {
        machine.map(dirty).unwrap();
        machine.unmap(dirty);
        // It meets the flush of the one before.
        assert!(first.waiting && space.purge_aliases(&[dirty]).waiting);
        let flushes = machine.flushes();
        if purges_and_waits {
            space.purge_and_wait(Purge::Aliases);
        } else {
            machine.complete_flushes();
            assert!(space.purge_aliases(&[]).waiting, "its own flush has begun");
            machine.complete_flushes();
            assert!(!space.purge_aliases(&[]).waiting);
        }
        assert_eq!((machine.unclean(dirty), machine.flushes()), (0, flushes + 1));
        first = space.purge_aliases(&[dirty]);
    }
}
