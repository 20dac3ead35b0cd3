//! Tests that count the steps of slow paths, and of a call between two steps of another.

use super::{Balance, Blocks};
use crate::BlockError;
use crate::config::{Config, Linux64, Standard};
use crate::testing::looks_of;
use std::vec::Vec;
use va_base::sync::atomic::Ordering;
use va_base::{Context, LockClass, Machine, Meta, Pages, VaRange};
use va_sim::machine::{SimMachine, lockings};
use va_space::VmapSpace;

type Held<'m, C> = Blocks<&'m SimMachine, C>;

/// Blocks on one CPU, with room for many.
fn blocks<C: Config>(machine: &SimMachine) -> Held<'_, C> {
    let window = VaRange::from_pages(1 << 20, 1 << 24).unwrap();
    Held::new(VmapSpace::new(window, window, machine).unwrap(), machine).unwrap()
}

#[test]
fn a_request_passes_over_the_blocks_without_room_for_it() {
    const BLOCKS: u64 = 4_000;
    let machine = SimMachine::new(1);
    let blocks = blocks::<Standard>(&machine);
    for _ in 0..BLOCKS {
        // Together a block minus a page.
        for _ in 1..blocks.block_pages().get() / 64 {
            blocks.alloc(0, 64).unwrap();
        }
        blocks.alloc(0, 63).unwrap();
    }
    assert_eq!(blocks.present(), BLOCKS);
    let (looks, _) = looks_of(|| blocks.alloc(0, 2).unwrap());
    assert_eq!(blocks.present(), BLOCKS + 1);
    assert!(looks <= 16, "{looks} blocks looked up");
    // The check of the lists looks up each block.
    assert!(looks_of(|| blocks.validate().unwrap()).0 >= BLOCKS);
}

/// Our policies, except that no number of dead pages begins a collection.
struct Reaped;

impl Config for Reaped {
    type Base = Standard;
    type Space = <Standard as Config>::Space;
    type Spread = <Standard as Config>::Spread;
    fn dead_max(_cpus: u32) -> Pages {
        Pages::new(u64::MAX)
    }
}

#[test]
fn a_reaping_looks_at_few_blocks_of_many_lanes() {
    const LANES: usize = 512;
    let machine = SimMachine::new(1);
    let blocks = blocks::<Reaped>(&machine);
    let mut lanes: Vec<_> = (0..LANES).map(|_| blocks.lane(0).unwrap()).collect();
    // A block of a lane is used up by 16 pairs.
    let mut pairs = |count: usize| {
        for pair in 0..count {
            let lane = &mut lanes[pair % LANES];
            let at = lane.alloc(64).unwrap();
            lane.free(at, 64).unwrap();
        }
    };
    // Until as many blocks are present as may be.
    pairs(64 * LANES);
    let (before, (looks, ())) = (blocks.stats().released, looks_of(|| pairs(64 * LANES)));
    let released = blocks.stats().released - before;
    assert!(released > 2 * LANES as u64, "{released}");
    assert!(looks < 40 * released, "{looks} looks for {released} blocks");
}

#[test]
fn a_request_that_reaps_in_vain_fails_while_another_thread_stands_still() {
    let machine = SimMachine::new(1);
    let blocks = blocks::<Standard>(&machine);
    // Two threads have counted their blocks as touched, and have not pushed them yet.
    blocks.balance.0.fetch_add(2 * (Balance::PRESENT + Balance::TOUCHED), Ordering::Relaxed);
    let collect = LockClass::Collect as usize;
    let before = lockings()[collect];
    assert_eq!(blocks.alloc(0, 1), Err(BlockError::Bound { present: 2, most: 2 }));
    assert_eq!(lockings()[collect] - before, 2, "each reaping is one slice");
    assert_eq!(blocks.alloc_in(Context::Atomic, 0, 1), Err(BlockError::WouldBlock));
    // A lane is entitled to a block of its own.
    assert!(blocks.lane(0).unwrap().alloc(1).is_ok());
    blocks.balance.0.fetch_sub(2 * (Balance::PRESENT + Balance::TOUCHED), Ordering::Relaxed);
    assert!(blocks.alloc(0, 1).is_ok());
    assert_eq!(blocks.validate(), Ok(()));
}

#[test]
fn shrink_holds_its_lock_for_a_slice_at_a_time() {
    const BLOCKS: u64 = 40 * Standard::SLICE_BLOCKS as u64 + 1;
    let machine = SimMachine::new(1);
    let blocks = blocks::<Standard>(&machine);
    let mut mapped = std::vec::Vec::new();
    while blocks.present() < BLOCKS {
        mapped.push(blocks.alloc(0, 64).unwrap());
    }
    mapped.into_iter().for_each(|at| blocks.free(0, at, 64).unwrap());
    let [collect, queue] = [LockClass::Collect, LockClass::Queue].map(|class| class as usize);
    let before = lockings();
    assert_eq!(blocks.shrink().blocks, BLOCKS);
    let after = lockings();
    // One for the lanes, and one for each slice; each block takes the queue once.
    assert_eq!(after[queue] - before[queue], BLOCKS);
    assert_eq!(after[collect] - before[collect], 1 + 41);
}

#[test]
fn sp2_a_block_that_the_space_has_not_received_yet_is_flushed() {
    let machine = SimMachine::new(1);
    let blocks = blocks::<Linux64>(&machine);
    let at = blocks.alloc(0, 64).unwrap();
    let (block, _) = blocks.block_at(at).unwrap();
    let range = blocks.range(block, 0, 64);
    machine.map(range).unwrap();
    machine.unmap(range);
    blocks.free(0, at, 64).unwrap();
    // A free of the last page of a block ends it, and then releases its area.
    let (mut queue, place) = blocks.lock_home(block);
    assert!(blocks.end(&mut queue, block, place));
    drop(queue);
    blocks.balance.0.fetch_sub(Balance::PRESENT, Ordering::Relaxed);
    blocks.unmap_aliases();
    assert_eq!(machine.unclean(range), 0, "no CPU translates what was freed before the call");
    blocks.release(Context::Sleeping, block);
    assert_eq!((blocks.present(), blocks.validate()), (0, Ok(())));
}

#[test]
fn the_end_of_a_lane_passes_no_other_lane() {
    let machine = SimMachine::new(1);
    let blocks = blocks::<Standard>(&machine);
    let mut lanes: std::collections::VecDeque<_> = (0..1000).map(|_| blocks.lane(0).unwrap()).collect();
    assert!(looks_of(|| blocks.drain_lanes(None)).0 >= 1000, "a drain passes all");
    while let Some(oldest) = lanes.pop_front() {
        assert_eq!(looks_of(|| drop(oldest)).0, 0, "{} are left", lanes.len());
        drop(lanes.pop_back());
    }
    assert_eq!((blocks.drain_lanes(None), blocks.validate()), (0, Ok(())));
}

#[test]
fn a_drain_holds_its_lock_for_a_slice_of_the_lanes_at_a_time() {
    const LANES: usize = 3 * Standard::SLICE_BLOCKS as usize + 1;
    let machine = SimMachine::new(1);
    let blocks = blocks::<Standard>(&machine);
    let _lanes: Vec<_> = (0..LANES).map(|_| blocks.lane(0).unwrap()).collect();
    let [collect, owner] = [LockClass::Collect, LockClass::Owner].map(|class| class as usize);
    let before = lockings();
    blocks.drain_lanes(None);
    let after = lockings();
    assert_eq!((after[owner] - before[owner], after[collect] - before[collect]), (LANES as u64, 4));
}

#[test]
fn a_lane_that_ends_where_drains_pause_is_freed_by_the_last_of_them() {
    let machine = SimMachine::new(1);
    let blocks = blocks::<Standard>(&machine);
    let [oldest, middle, newest] = [0; 3].map(|cpu| blocks.lane(cpu).unwrap());
    let before = machine.tables();
    let slot = middle.slot();
    // Two drains unlock the collection at this lane, which ends then, as do both of its neighbours.
    slot.pause();
    slot.pause();
    drop([middle, oldest, newest]);
    assert_eq!(machine.tables(), before - 2, "a drain goes on from there");
    let later = blocks.lane(0).unwrap();
    assert!(!blocks.lock_collection().lanes.go_on(slot), "the other drain is there still");
    assert!(blocks.lock_collection().lanes.go_on(slot));
    machine.free_table(Meta::new(slot));
    let visited = looks_of(|| blocks.drain_lanes(None)).0;
    drop(later);
    assert_eq!((visited, machine.tables()), (1, before - 3));
}
