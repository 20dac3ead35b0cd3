//! Lanes beside other callers: their blocks are found, and end, in time.

use crate::points::{blocks, counted};
use std::sync::atomic::{AtomicU64, Ordering};
use va_base::{Context, LockClass, PAGE_SIZE, Pages, Va, VaRange};
use va_block::config::{Linux64, Standard};
use va_block::{Config, Lane};
use va_sim::block_run::Sliced;
use va_sim::machine::{Flushing, SimMachine};

#[test]
fn a_lane_releases_a_block_whose_last_page_died_in_it() {
    let machine = SimMachine::new(1);
    let blocks = blocks::<Linux64>(&machine, 1 << 16);
    let mut lane = blocks.lane(0).unwrap();
    let all: Vec<Va> = (0..16).map(|_| lane.alloc(64).unwrap()).collect();
    all.into_iter().for_each(|at| lane.free(at, 64).unwrap());
    assert_eq!((blocks.present(), blocks.validate()), (1, Ok(())));
    drop(lane);
    assert_eq!((blocks.present(), blocks.validate()), (0, Ok(())));
    // One that may not wait gives the block up that makes a purge due, and leaves the purge to others.
    let (space, block) = (blocks.space(), blocks.block_pages());
    let mut lane = blocks.lane(0).unwrap();
    let freed_with_the_next = || Pages::new(space.lazy_pages().get() + block.get());
    while !lane.holds() || freed_with_the_next() <= space.lazy_max() {
        let all: Vec<Va> = (0..16).map(|_| lane.alloc(64).unwrap()).collect();
        all.into_iter().for_each(|at| lane.free(at, 64).unwrap());
    }
    assert_eq!((machine.flushes(), blocks.present()), (0, 1));
    let lazy = freed_with_the_next();
    let taken = counted(|| _ = lane.alloc_in(Context::Atomic, 64));
    assert_eq!((machine.flushes(), taken[LockClass::Purge as usize]), (0, 0));
    assert!(space.lazy_pages() >= lazy, "and perhaps another block, for which there is no record");
    drop(lane);
    assert_eq!(blocks.validate(), Ok(()));
}

#[test]
fn vb8_lanes_keep_their_blocks_however_many_there_are() {
    const PAIRS: u64 = 40_000;
    for (cpus, count) in [(1, 3), (1, 64), (4, 10), (4, 64)] {
        let machine = SimMachine::new(cpus);
        let blocks = blocks::<Standard>(&machine, 1 << 24);
        let mut lanes: Vec<_> = (0..count).map(|lane| blocks.lane(lane as u32 % cpus).unwrap()).collect();
        let mut most = 0;
        for pair in 0..PAIRS {
            let lane = &mut lanes[pair as usize % count];
            let at = lane.alloc(1).unwrap();
            most = most.max(blocks.present());
            lane.free(at, 1).unwrap();
        }
        // No block holds a live page beside the one that begins.
        assert!(most <= 2 * (1 + u64::from(cpus) + count as u64), "{most} blocks of {count} lanes");
        assert!(lanes.iter().all(Lane::holds));
        // A block for 1,024 pairs, where one for each pair would be 40,000.
        let released = blocks.stats().released;
        assert!(released <= PAIRS / 1024 + 1, "{released} blocks of {count} lanes on {cpus} CPUs");
        assert!(machine.flushes() <= 5, "{} flushes", machine.flushes());
        drop(lanes);
        blocks.unmap_aliases();
        assert!(blocks.present() <= u64::from(cpus), "{} blocks", blocks.present());
        assert_eq!(blocks.validate(), Ok(()));
    }
}

#[test]
fn vb8_a_request_takes_no_block_of_a_lane_while_the_space_has_room() {
    let machine = SimMachine::new(1);
    let blocks = blocks::<Standard>(&machine, 1 << 16);
    let mut lanes = [0; 2].map(|cpu| blocks.lane(cpu).unwrap());
    for lane in &mut lanes {
        let at = lane.alloc(64).unwrap();
        lane.free(at, 64).unwrap();
    }
    for _ in 0..40 {
        let all: Vec<Va> = (0..16).map(|_| blocks.alloc(0, 64).unwrap()).collect();
        // Two for the CPU, two for each lane, and two for each block that holds a live page.
        assert!(blocks.present() <= 8, "{}", blocks.present());
        all.into_iter().for_each(|at| blocks.free(0, at, 64).unwrap());
    }
    assert_eq!(lanes.each_ref().map(Lane::holds), [true; 2]);
}

#[test]
fn a_drain_visits_the_lanes_that_there_are() {
    let machine = SimMachine::new(1);
    let blocks = blocks::<Standard>(&machine, 4096);
    let visited = || counted(|| _ = blocks.drain_lanes(None))[LockClass::Owner as usize];
    let [first, middle, last] = [0; 3].map(|cpu| Some(blocks.lane(cpu).unwrap()));
    assert_eq!(visited(), 3);
    for (lane, left) in [(middle, 2), (first, 1), (last, 0)] {
        drop(lane);
        assert_eq!(visited(), left);
    }
}

#[test]
fn a_large_request_of_a_lane_gets_the_space_of_its_own_dead_block() {
    fn gets<C: Config>() {
        let machine = SimMachine::new(1);
        let blocks = blocks::<C>(&machine, 4096);
        let mut lane = blocks.lane(0).unwrap();
        let at = lane.alloc(7).unwrap();
        assert!(lane.alloc(4096).is_err() && lane.holds(), "seven pages live");
        lane.free(at, 7).unwrap();
        lane.alloc(4096).unwrap();
        assert_eq!((lane.holds(), blocks.present()), (false, 0));
    }
    gets::<Standard>();
    gets::<Linux64>();
}

#[test]
fn a_lane_takes_and_frees_at_hand_only_what_is_simple() {
    let machine = SimMachine::new(1);
    let blocks = blocks::<Standard>(&machine, 1 << 16);
    let mut lane = blocks.lane(0).unwrap();
    assert_eq!(lane.take(1), None, "no block yet");
    // Pages 0 to 2 of a block, which becomes the lane's.
    let first = lane.alloc(3).unwrap();
    let page = |nth: u64| Va::new(first.get() + nth * PAGE_SIZE);
    // 3 to 30, and one across the end of the strip: 31 to 34.
    assert_eq!((lane.take(28), lane.take(4)), (Some(page(3)), Some(page(31))));
    assert_eq!([lane.take(0), lane.take(u64::MAX)], [None, None]);
    // Wrong: another size, inside, inside a page, below, beyond all, free, behind the block. Right, and not at hand:
    // across strips.
    for (at, pages) in [
        (first, 2),
        (first, 0),
        (page(1), 2),
        (Va::new(first.get() + 1), 3),
        (Va::new(first.get() - PAGE_SIZE), 1),
        (Va::new(u64::MAX), 1),
        (page(35), 1),
        (page(1024), 3),
        (page(31), 4),
    ] {
        assert!(!lane.free_own(at, pages), "{pages} pages at {at}");
    }
    assert!(lane.free_own(first, 3) && !lane.free_own(first, 3) && lane.free_own(page(3), 28));
    assert_eq!(lane.free(page(31), 4), Ok(()));
    // Two blocks' worth: the pages that were freed are not at hand until they are flushed.
    let taken = (0..).map_while(|_| lane.take(64)).count();
    assert_eq!((taken, lane.take(64)), (15, None));
    assert_eq!(blocks.validate(), Ok(()));
}

#[test]
fn lanes_that_end_beside_drains_in_slices_are_freed_once() {
    let machine = SimMachine::new(2);
    let blocks = blocks::<Sliced>(&machine, 1 << 14);
    let done = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for cpu in 0..2 {
            let (blocks, done) = (&blocks, &done);
            scope.spawn(move || {
                // Frees its oldest and its newest lane, and one between.
                let mut lanes: Vec<_> = (0..6).map(|_| blocks.lane(cpu).unwrap()).collect();
                for turn in 0..3000 {
                    lanes[turn % 6] = blocks.lane(cpu).unwrap();
                    let at = lanes[turn % 5].alloc(1).unwrap();
                    lanes[turn % 4].free(at, 1).unwrap();
                }
                drop(lanes);
                done.fetch_add(1, Ordering::Relaxed);
            });
        }
        for cpu in [None, Some(1)] {
            let (blocks, done) = (&blocks, &done);
            scope.spawn(move || {
                while done.load(Ordering::Relaxed) < 2 {
                    blocks.drain_lanes(cpu);
                }
            });
        }
    });
    blocks.shrink();
    assert_eq!((blocks.present(), blocks.validate()), (0, Ok(())));
    drop(blocks);
    assert_eq!(machine.tables(), 0);
}

/// Frees mappings of two pages of an idle lane's block, which are unmapped.
fn free_pairs(machine: &SimMachine, lane: &mut Lane<'_, &SimMachine, Standard>, all: &[Va]) {
    for &at in all {
        let range = VaRange::from_size(at, 2 * PAGE_SIZE).unwrap();
        machine.map(range).unwrap();
        machine.unmap(range);
        lane.free(at, 2).unwrap();
    }
}

#[test]
fn sp2_the_dead_pages_of_an_idle_lane_are_flushed_once_for_each_free() {
    // Of some mappings one lives on, of others none does.
    for lives in [1, 0] {
        let machine = SimMachine::new(1);
        let blocks = blocks::<Standard>(&machine, 1 << 16);
        let mut lane = blocks.lane(0).unwrap();
        let all: Vec<Va> = (0..8 + lives).map(|_| lane.alloc(2).unwrap()).collect();
        let mut begun = 0;
        // Its owner does not see that the first flush is completed. The last are inside the bounds of those before.
        for frees in [&all[..2], &all[6..8], &all[2..3], &all[3..6]] {
            free_pairs(&machine, &mut lane, frees);
            begun += 1;
            for _ in 0..4 {
                assert!(!blocks.unmap_aliases().waiting);
                assert_eq!((machine.flushes(), machine.unclean(blocks.space().extent())), (begun, 0));
                assert_eq!(blocks.validate(), Ok(()));
            }
        }
        assert!(lane.holds() && blocks.stats().dead_pages == Pages::new(16));
        // Those that its owner has not seen are noted when it sees the others, and then used again.
        lane.park();
        assert_eq!(blocks.stats().dead_pages, Pages::new(12));
        blocks.unmap_aliases();
        assert_eq!((blocks.stats().dead_pages, blocks.validate()), (Pages::new(0), Ok(())));
    }
}

#[test]
fn sp2_a_call_waits_for_the_flush_that_covers_the_dead_pages_of_a_lane() {
    let machine = SimMachine::new(1);
    let blocks = blocks::<Standard>(&machine, 1 << 16);
    let mut lane = blocks.lane(0).unwrap();
    let all: Vec<Va> = (0..5).map(|_| lane.alloc(2).unwrap()).collect();
    free_pairs(&machine, &mut lane, &all[..1]);
    blocks.unmap_aliases();
    machine.set_flushing(Flushing::OnRequest);
    let unclean = || machine.unclean(blocks.space().extent());
    free_pairs(&machine, &mut lane, &all[1..2]);
    while blocks.unmap_aliases().waiting {
        assert_ne!(unclean(), 0);
        machine.complete_flushes();
    }
    let begun = machine.flushes();
    (0..3).for_each(|_| assert!(!blocks.unmap_aliases().waiting));
    assert_eq!((machine.flushes(), unclean()), (begun, 0));
    // After that flush began.
    free_pairs(&machine, &mut lane, &all[2..3]);
    assert!(blocks.unmap_aliases().waiting);
    free_pairs(&machine, &mut lane, &all[3..4]);
    while blocks.unmap_aliases().waiting {
        assert_ne!(unclean(), 0);
        machine.complete_flushes();
    }
    assert_eq!((unclean(), blocks.validate()), (0, Ok(())));
}
