//! The guarantees of blocks, one test each: address space, locks, flushes, failures.

use parking_lot::Mutex;
use std::sync::Arc;
use va_base::{Context, LockClass, PAGE_SIZE, Pages, Request, Va, VaRange};
use va_block::config::{Linux64, OneMap63, Standard};
use va_block::{BlockError, Blocks, CPUS_MAX, Config, UnmapError};
use va_sim::machine::{Flushing, SimMachine, lockings};
use va_space::{Purge, SpaceError, State, VmapSpace};

const FIRST: u64 = 0xf_ffc9_0000_0000;

fn pages(first: u64, end: u64) -> VaRange {
    VaRange::from_pages(FIRST + first, FIRST + end).unwrap()
}

pub(crate) fn blocks<C: Config>(machine: &SimMachine, size: u64) -> Blocks<&SimMachine, C> {
    Blocks::new(VmapSpace::new(pages(0, size), pages(0, size), machine).unwrap(), machine).unwrap()
}

fn range(at: Va, pages: u64) -> VaRange {
    VaRange::from_size(at, pages * PAGE_SIZE).unwrap()
}

/// Returns the pages between the first and the last of 2,000 lasting pages, each followed by 1,023 short-lived ones.
fn pinned<C: Config>() -> u64 {
    let machine = SimMachine::new(1);
    let blocks = blocks::<C>(&machine, 4_000_000);
    let mut lasting = Vec::new();
    for _ in 0..2000 {
        lasting.push(blocks.alloc(0, 1).unwrap().page_floor());
        for _ in 0..1023 {
            let short = blocks.alloc(0, 1).unwrap();
            blocks.free(0, short, 1).unwrap();
        }
    }
    assert_eq!(blocks.validate(), Ok(()));
    lasting.iter().max().unwrap() - lasting.iter().min().unwrap() + 1
}

#[test]
fn lasting_pages_pin_little_address_space() {
    let (ours, linux) = (pinned::<Standard>(), pinned::<Linux64>());
    assert!(ours <= (64 << 20) / PAGE_SIZE, "{ours} pages");
    // A block of 4 MiB each.
    assert_eq!(linux, 1999 * 1024 + 1);
}

/// Returns the number of times that `calls` takes locks, by class.
pub(crate) fn counted(calls: impl FnOnce()) -> [u64; LockClass::COUNT] {
    let before = lockings();
    calls();
    let after = lockings();
    std::array::from_fn(|class| after[class] - before[class])
}

#[test]
fn a_pair_takes_the_lock_of_its_lane_or_of_its_cpu() {
    const PAIRS: u64 = 100_000;
    let machine = SimMachine::new(4);
    let blocks = blocks::<Standard>(&machine, 1_000_000);
    let mut lane = blocks.lane(1).unwrap();
    let locks = counted(|| {
        for _ in 0..PAIRS {
            let at = lane.alloc(5).unwrap();
            lane.free(at, 5).unwrap();
        }
    });
    let own = locks[LockClass::Owner as usize];
    assert!((PAIRS..PAIRS + PAIRS / 20).contains(&own), "{locks:?}");
    assert!(locks.iter().sum::<u64>() - own < PAIRS / 20, "{locks:?}");
    let locks = counted(|| {
        for _ in 0..PAIRS {
            let at = blocks.alloc(2, 5).unwrap();
            blocks.free(3, at, 5).unwrap();
        }
    });
    let own = locks[LockClass::Queue as usize];
    assert!((PAIRS..PAIRS + PAIRS / 20).contains(&own), "{locks:?}");
    assert!(locks.iter().sum::<u64>() - own < PAIRS / 20, "{locks:?}");
}

#[test]
fn the_lookup_is_locked_twice_in_the_life_of_a_block() {
    fn taken<C: Config>() -> u64 {
        let machine = SimMachine::new(4);
        let blocks = blocks::<C>(&machine, 1_000_000);
        let locks = counted(|| {
            for n in 0..128_000 {
                let at = blocks.alloc(n, 5).unwrap();
                blocks.free(n, at, 5).unwrap();
            }
        });
        locks[LockClass::Lookup as usize]
    }
    // There, 5 pages use up 8: 128 mappings and two takings a block, except for the last block of each CPU.
    assert_eq!([taken::<Linux64>(), taken::<OneMap63>()], [2 * 1000; 2]);
    // Here nothing is rounded up: 640,000 pages.
    assert!(taken::<Standard>() <= 2 * 640);
}

#[test]
fn sp5_the_same_calls_give_the_same_addresses() {
    fn run<C: Config>() -> Vec<Va> {
        let machine = SimMachine::new(4);
        let blocks = blocks::<C>(&machine, 200_000);
        let (mut out, mut all, mut random) = (Vec::new(), Vec::new(), 7u64);
        for n in 0..20_000u32 {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let count = 1 + (random >> 40) % 70;
            let at = blocks.alloc(n % 4, count).unwrap();
            all.push(at);
            out.push((at, count));
            if out.len() > 200 {
                let (at, count) = out.swap_remove((random >> 33) as usize % out.len());
                blocks.free(n % 3, at, count).unwrap();
            }
        }
        all
    }
    assert_eq!(run::<Standard>(), run::<Standard>());
    assert_eq!(run::<Linux64>(), run::<Linux64>());
}

#[test]
fn up_to_64_pages_come_from_a_block_and_more_from_the_space() {
    let machine = SimMachine::new(1);
    let blocks = blocks::<Standard>(&machine, 100_000);
    let (small, large) = (blocks.alloc(0, 64).unwrap(), blocks.alloc(0, 65).unwrap());
    assert_eq!(blocks.stats().live_pages, Pages::new(64));
    assert_eq!(blocks.space().find(large).map(|seen| seen.range), Some(range(large, 65)));
    assert_eq!(blocks.find_enclosing(large), None);
    assert_eq!(blocks.find_enclosing(small), Some(range(small, 64)));
    let wrong = UnmapError::WrongCount { range: range(large, 65), pages: Pages::new(66) };
    assert_eq!([blocks.free(0, large, 66), blocks.free(0, large, 65)], [Err(wrong), Ok(())]);
    let gone = UnmapError::NotMapped { at: large, inside: None };
    assert_eq!([blocks.free(0, large, 65), blocks.free(0, small, 64)], [Err(gone), Ok(())]);
}

#[test]
fn a_short_area_of_the_space_is_no_mapping() {
    let machine = SimMachine::new(1);
    let blocks = blocks::<Standard>(&machine, 100_000);
    let area = blocks.space().alloc(0, &Request::pages(10).unwrap()).unwrap();
    let at = area.start();
    let own = range(at, 10);
    assert_eq!(blocks.free(0, at, 10), Err(UnmapError::NotMapped { at, inside: Some(own) }));
    let wrong = UnmapError::WrongCount { range: own, pages: Pages::new(9) };
    assert_eq!(blocks.free(0, at, 9), Err(wrong));
    blocks.space().free(area).unwrap();
    assert_eq!(blocks.free(0, at, 10), Err(UnmapError::NotMapped { at, inside: None }));
}

#[test]
fn one_flush_covers_what_died_in_all_blocks_and_none_is_asked_for_if_nothing_did() {
    let machine = SimMachine::new(8);
    let blocks = blocks::<Standard>(&machine, 100_000);
    let out: Vec<(u32, Va)> = (0..8).map(|cpu| (cpu, blocks.alloc(cpu, 3).unwrap())).collect();
    let full: Vec<Va> = (0..16).map(|_| blocks.alloc(0, 63).unwrap()).collect();
    blocks.unmap_aliases();
    assert_eq!(machine.flushes(), 0);
    for &(cpu, at) in &out {
        machine.map(range(at, 3)).unwrap();
        machine.unmap(range(at, 3));
        blocks.free(7 - cpu, at, 3).unwrap();
    }
    assert!(!blocks.unmap_aliases().waiting);
    assert_eq!((machine.flushes(), machine.unclean(pages(0, 100_000))), (1, 0));
    assert_eq!(blocks.stats().dead_pages, Pages::new(0));
    for at in full {
        blocks.free(0, at, 63).unwrap();
    }
}

#[test]
fn one_flush_covers_a_range_of_the_callers_too() {
    let machine = SimMachine::new(1);
    let blocks = blocks::<Standard>(&machine, 100_000);
    let (block, area) =
        (blocks.alloc(0, 3).unwrap(), blocks.space().alloc(0, &Request::new(4096, 4096).unwrap()));
    let (block, area) = (range(block, 3), area.unwrap().range());
    let unmapped = |range: VaRange| {
        machine.map(range).unwrap();
        machine.unmap(range);
    };
    // Alone, and together with pages of a block.
    unmapped(area);
    assert!(!blocks.unmap_aliases_and(area).waiting);
    assert_eq!((machine.flushes(), machine.unclean(pages(0, 100_000))), (1, 0));
    unmapped(area);
    unmapped(block);
    blocks.free(0, block.start(), 3).unwrap();
    assert!(!blocks.unmap_aliases_and(area).waiting);
    assert_eq!((machine.flushes(), machine.unclean(pages(0, 100_000))), (2, 0));
}

#[test]
fn sp2_dead_pages_wait_for_a_flush_that_ends_late() {
    let machine = SimMachine::new(1);
    machine.set_flushing(Flushing::OnRequest);
    // There is room for one block only.
    let blocks = blocks::<Standard>(&machine, 1024);
    let out: Vec<Va> = (0..16).map(|_| blocks.alloc(0, 64).unwrap()).collect();
    let again = |at: Va| {
        machine.unmap(range(at, 64));
        blocks.free(0, at, 64).unwrap();
    };
    out.iter().for_each(|&at| machine.map(range(at, 64)).unwrap());
    again(out[3]);
    assert!(blocks.unmap_aliases().waiting);
    again(out[4]);
    assert_eq!(blocks.alloc_in(Context::Atomic, 0, 1), Err(BlockError::WouldBlock));
    machine.complete_flushes();
    assert!(!blocks.tick().waiting);
    // Pages that died before the flush began, and none that died after.
    let got = blocks.alloc(0, 64).unwrap();
    assert_eq!((got, machine.map(range(got, 64))), (out[3], Ok(())));
    assert_eq!(blocks.alloc_in(Context::Atomic, 0, 64), Err(BlockError::WouldBlock));
    // A caller that may sleep waits for the flush.
    let waits = machine.waits();
    assert_eq!(blocks.alloc(0, 64), Ok(out[4]));
    assert!(machine.waits() > waits);
    assert!(matches!(blocks.alloc(0, 1), Err(BlockError::Space(SpaceError::NoSpace { .. }))));
}

#[test]
fn an_unforced_purge_takes_dead_blocks_that_are_mostly_used_up() {
    let machine = SimMachine::new(1);
    let blocks = blocks::<Linux64>(&machine, 100_000);
    // 13 and 12 of 16 parts used: a quarter unused saves a block.
    for (parts, blocks_left) in [(13, 0), (12, 1)] {
        let out: Vec<Va> = (0..parts).map(|_| blocks.alloc(0, 64).unwrap()).collect();
        out.iter().for_each(|&at| blocks.free(0, at, 64).unwrap());
        blocks.unmap_aliases();
        assert_eq!(blocks.stats().blocks, blocks_left, "{parts} parts");
    }
    assert_eq!(blocks.shrink().blocks, 1, "a forced one takes it all the same");
}

#[test]
fn under_linux_policies_blocks_go_back_before_the_purge_and_under_ours_after_it() {
    fn lazy_when_asked<C: Config>() -> Vec<bool> {
        let machine: &'static SimMachine = Box::leak(Box::new(SimMachine::new(1)));
        let blocks = Arc::new(blocks::<C>(machine, 4096));
        let (theirs, seen) = (Arc::downgrade(&blocks), Arc::new(Mutex::new(Vec::new())));
        let notes = seen.clone();
        machine.on_reclaim(Some(Box::new(move || {
            notes.lock().push(theirs.upgrade().is_some_and(|blocks| blocks.space().lazy_pages().get() > 0));
            0
        })));
        let area = blocks.space().alloc(0, &Request::pages(9).unwrap()).unwrap();
        let _lives = blocks.space().alloc(0, &Request::pages(9).unwrap()).unwrap();
        blocks.space().free(area).unwrap();
        assert!(blocks.space().alloc(0, &Request::pages(4096).unwrap()).is_err());
        seen.lock().clone()
    }
    assert_eq!(lazy_when_asked::<Linux64>(), [true, false]);
    assert_eq!(lazy_when_asked::<OneMap63>(), [true, false]);
    assert_eq!(lazy_when_asked::<Standard>(), [false]);
}

/// Blocks that their machine calls when a request of the space would fail.
fn reclaiming(size: u64) -> (Arc<Blocks<&'static SimMachine, Standard>>, &'static SimMachine) {
    let machine: &'static SimMachine = Box::leak(Box::new(SimMachine::new(2)));
    let space = VmapSpace::new(pages(0, size), pages(0, size), machine).unwrap();
    let blocks = Arc::new(Blocks::<_, Standard>::new(space, machine).unwrap());
    let theirs = Arc::downgrade(&blocks);
    machine.on_reclaim(Some(Box::new(move || {
        theirs.upgrade().map_or(0, |blocks| blocks.shrink().blocks * blocks.block_pages().get())
    })));
    (blocks, machine)
}

#[test]
fn a_request_of_the_space_gets_the_blocks_in_which_nothing_lives_any_more() {
    let (blocks, _) = reclaiming(4096);
    let all = Request::pages(4096).unwrap();
    for _ in 0..3 {
        let at = blocks.alloc(1, 7).unwrap();
        // The second fails without a purge, since the first was in vain.
        assert!(blocks.space().alloc(0, &all).is_err() && blocks.space().alloc(0, &all).is_err());
        blocks.free(0, at, 7).unwrap();
        let area = blocks.space().alloc(0, &all).unwrap();
        blocks.space().free(area).unwrap();
    }
}

#[test]
fn a_request_takes_the_block_of_a_sleeping_lane() {
    let (blocks, _) = reclaiming(4096);
    let all = Request::pages(4096).unwrap();
    let mut lane = blocks.lane(1).unwrap();
    let at = lane.alloc(7).unwrap();
    lane.free(at, 7).unwrap();
    assert!(lane.holds());
    let area = blocks.space().alloc(0, &all).unwrap();
    assert!(!lane.holds());
    assert!(matches!(lane.alloc(1), Err(BlockError::Space(SpaceError::NoSpace { .. }))));
    blocks.space().free(area).unwrap();
    assert!(lane.alloc(1).is_ok());
}

#[test]
fn pages_in_a_lane_serve_others_before_a_request_fails() {
    let machine = SimMachine::new(1);
    let blocks = blocks::<Standard>(&machine, 1024);
    let mut lane = blocks.lane(0).unwrap();
    let lives = lane.alloc(3).unwrap();
    assert!(blocks.alloc(0, 64).is_ok() && !lane.holds());
    assert_eq!(lane.alloc(1), Ok(Va::new(lives.get() + 67 * PAGE_SIZE)));
    assert_eq!((blocks.drain_lanes(Some(1)), blocks.drain_lanes(Some(0)), blocks.stats().laned), (0, 1, 0));
    drop(lane);
    assert_eq!(blocks.validate(), Ok(()));
}

#[test]
fn the_memory_of_a_lane_goes_back_with_it() {
    let machine = SimMachine::new(1);
    let blocks = blocks::<Standard>(&machine, 4096);
    let before = machine.tables();
    let lanes: Vec<_> = (0..3).map(|_| blocks.lane(0).unwrap()).collect();
    assert_eq!(machine.tables(), before + 3);
    // Out of order: from the middle of the list, its end and its beginning.
    let mut lanes = lanes.into_iter();
    let (first, middle, last) = (lanes.next(), lanes.next(), lanes.next());
    drop(middle);
    drop(first);
    drop(last);
    assert_eq!((machine.tables(), blocks.drain_lanes(None)), (before, 0));
    machine.fail_after(u64::MAX, 0);
    assert!(matches!(blocks.lane(0), Err(BlockError::NoTable)));
}

#[test]
fn vb8_blocks_are_bounded_by_those_that_hold_a_live_page() {
    let machine = SimMachine::new(2);
    let blocks = blocks::<Standard>(&machine, 1 << 20);
    let mut most = 0;
    for n in 0..100 * 1024 {
        let at = blocks.alloc(n % 2, 1).unwrap();
        most = most.max(blocks.present());
        blocks.free(n % 2, at, 1).unwrap();
    }
    // At most one block holds a live page beside the one that begins.
    assert!(most <= 2 + 2 * 2, "{most} blocks");
    let live: Vec<Va> = (0..20 * 1024).map(|n| blocks.alloc(n % 2, 1).unwrap()).collect();
    assert!((20..=24).contains(&blocks.present()), "{}", blocks.present());
    live.into_iter().for_each(|at| blocks.free(0, at, 1).unwrap());
    // One purge, without waiting for a lock of the space.
    blocks.unmap_aliases();
    assert!(blocks.present() <= 2, "{} blocks", blocks.present());
    blocks.shrink();
    assert_eq!((blocks.present(), blocks.validate()), (0, Ok(())));
}

#[test]
fn vb8_a_purge_leaves_each_cpu_one_block_in_which_nothing_lives() {
    let machine = SimMachine::new(1);
    let blocks = blocks::<Standard>(&machine, 1 << 16);
    let mut lane = blocks.lane(0).unwrap();
    let (first, second) = (lane.alloc(1).unwrap(), blocks.alloc(0, 1).unwrap());
    drop(lane);
    [first, second].into_iter().for_each(|at| blocks.free(0, at, 1).unwrap());
    assert_eq!(blocks.present(), 2, "both open and mostly unused");
    blocks.unmap_aliases();
    assert_eq!((blocks.present(), blocks.validate()), (1, Ok(())));
}

#[test]
fn no_more_flushes_than_where_blocks_die_whole() {
    fn flushes<C: Config>() -> u64 {
        let machine = SimMachine::new(2);
        let blocks = blocks::<C>(&machine, 1 << 22);
        for _ in 0..300 * 1024 {
            let at = blocks.alloc(0, 1).unwrap();
            blocks.free(0, at, 1).unwrap();
        }
        machine.flushes()
    }
    assert!(flushes::<Standard>() <= flushes::<Linux64>(), "{}", flushes::<Standard>());
}

#[test]
fn a_request_takes_the_open_block_that_fits_best() {
    let machine = SimMachine::new(1);
    let blocks = blocks::<Standard>(&machine, 1 << 16);
    let all: Vec<Va> = (0..5 * 1024).map(|_| blocks.alloc(0, 1).unwrap()).collect();
    // Runs of 1, 7, 2 and 4 pages in four blocks; the fifth is full.
    for (block, pages) in [1, 7, 2, 4].into_iter().enumerate() {
        all[block * 1024 + 100..][..pages].iter().for_each(|&at| blocks.free(0, at, 1).unwrap());
    }
    blocks.unmap_aliases();
    let in_block = |pages| blocks.alloc(0, pages).unwrap().page_floor() / 1024 - all[0].page_floor() / 1024;
    assert_eq!([2, 3, 6, 1].map(in_block), [2, 3, 1, 1]);
    assert_eq!(blocks.validate(), Ok(()));
}

#[test]
fn one_flush_covers_blocks_and_what_is_lazy_in_the_space() {
    let machine = SimMachine::new(1);
    let blocks = blocks::<Standard>(&machine, 1 << 16);
    let (at, lives) = (blocks.alloc(0, 3).unwrap(), blocks.alloc(0, 3).unwrap());
    let area = blocks.space().alloc(0, &Request::pages(5).unwrap()).unwrap();
    for range in [range(at, 3), area.range()] {
        machine.map(range).unwrap();
        machine.unmap(range);
    }
    blocks.free(0, at, 3).unwrap();
    blocks.space().free(area).unwrap();
    assert!(!blocks.unmap_aliases().waiting);
    assert_eq!((machine.flushes(), machine.unclean(pages(0, 1 << 16))), (1, 0));
    assert_eq!((blocks.stats().dead_pages, blocks.stats().flushes), (Pages::new(0), 1));
    blocks.free(0, lives, 3).unwrap();
}

#[test]
fn a_caller_that_may_not_sleep_never_flushes_and_its_debt_is_repaid() {
    let machine = SimMachine::new(1);
    let blocks = blocks::<Standard>(&machine, 1 << 16);
    // The lowest blocks have records from here on, so a failure is due to the bound.
    let all: Vec<Va> = (0..4 * 1024).map(|_| blocks.alloc(0, 1).unwrap()).collect();
    all.into_iter().for_each(|at| blocks.free(0, at, 1).unwrap());
    blocks.shrink();
    blocks.space().purge(Purge::Full);
    let flushes = machine.flushes();
    let mut failed = 0;
    let locks = counted(|| {
        for _ in 0..10 * 1024 {
            match blocks.alloc_in(Context::Atomic, 0, 1) {
                Ok(at) => blocks.free_in(Context::Atomic, 0, at, 1).unwrap(),
                Err(error) => {
                    assert_eq!(error, BlockError::WouldBlock);
                    failed += 1;
                }
            }
        }
    });
    assert!(failed > 1024 && blocks.present() == 2, "{failed}, {}", blocks.present());
    assert_eq!(
        (machine.flushes() - flushes, locks[LockClass::Collect as usize], locks[LockClass::Purge as usize]),
        (0, 0, 0)
    );
    // The next caller that may sleep reaps; then there is room again.
    let at = blocks.alloc(0, 1).unwrap();
    assert!(blocks.present() <= 2);
    assert!(blocks.alloc_in(Context::Atomic, 0, 64).is_ok());
    blocks.free(0, at, 1).unwrap();
    assert_eq!(blocks.alloc_in(Context::Atomic, 0, (1 << 16) - 9), Err(BlockError::WouldBlock));
}

#[test]
fn a_caller_that_may_not_sleep_never_gets_no_space() {
    let machine = SimMachine::new(1);
    // There is room for one block only, and all of it is live.
    let blocks = blocks::<Standard>(&machine, 1024);
    let _live: Vec<Va> = (0..16).map(|_| blocks.alloc(0, 64).unwrap()).collect();
    for pages in [1, 64, 65] {
        assert_eq!(blocks.alloc_in(Context::Atomic, 0, pages), Err(BlockError::WouldBlock));
        let full = blocks.alloc(0, pages);
        assert!(matches!(full, Err(BlockError::Space(SpaceError::NoSpace { .. }))), "{full:?}");
    }
}

#[test]
fn a_free_in_an_interrupt_takes_one_lock_at_most_and_never_flushes() {
    let machine = SimMachine::new(1);
    let blocks = blocks::<Standard>(&machine, 1 << 20);
    let all: Vec<Va> = (0..200 * 1024).map(|_| blocks.alloc(0, 1).unwrap()).collect();
    let large: Vec<Va> = (0..40).map(|_| blocks.alloc(0, 1000).unwrap()).collect();
    let flushes = machine.flushes();
    let most = |taken: [u64; LockClass::COUNT]| {
        let sum: u64 = taken.iter().sum();
        assert!(sum <= 1 && taken[LockClass::Collect as usize] + taken[LockClass::Purge as usize] == 0);
        sum
    };
    let small: u64 =
        all.iter().map(|&at| most(counted(|| blocks.free_in(Context::Atomic, 0, at, 1).unwrap()))).sum();
    assert_eq!(small, 200, "the first free in each block");
    for at in large {
        most(counted(|| blocks.free_in(Context::Atomic, 0, at, 1000).unwrap()));
    }
    assert_eq!(machine.flushes(), flushes);
}

#[test]
fn nothing_to_shrink_is_found_without_a_lock() {
    let machine = SimMachine::new(2);
    let blocks = blocks::<Standard>(&machine, 10_000);
    let (at, _lives) = (blocks.alloc(0, 7).unwrap(), blocks.alloc(1, 7).unwrap());
    blocks.free(0, at, 7).unwrap();
    assert_eq!(blocks.shrink().blocks, 1);
    let locks = counted(|| assert_eq!(blocks.shrink().blocks, 0));
    assert_eq!(locks, [0; LockClass::COUNT]);
}

#[test]
fn what_a_cpu_has_is_made_when_it_comes_up() {
    let machine = SimMachine::new(CPUS_MAX as u32);
    machine.set_online(1);
    let blocks = blocks::<Standard>(&machine, 1 << 20);
    let (before, last) = (machine.tables(), CPUS_MAX as u32 - 1);
    assert_eq!(blocks.alloc_in(Context::Atomic, last, 1), Err(BlockError::WouldBlock));
    let at = blocks.alloc(0, 1).unwrap();
    blocks.free(last, at, 1).unwrap();
    // Tables for a lookup, a block and CPU 0, and none for the last CPU.
    assert!(machine.tables() - before <= 5, "{before}");
    machine.fail_after(u64::MAX, 0);
    // A page of CPU 0's block. A caller that may not sleep tries again where it may.
    assert_eq!(blocks.alloc(last, 1), Ok(Va::new(at.get() + PAGE_SIZE)));
    assert_eq!(blocks.alloc_in(Context::Atomic, last, 1), Err(BlockError::WouldBlock));
    machine.fail_after(u64::MAX, u64::MAX);
    let at = blocks.alloc(last, 1).unwrap();
    assert_eq!(blocks.alloc_in(Context::Atomic, last, 1), Ok(Va::new(at.get() + PAGE_SIZE)));
    assert_eq!((blocks.stats().blocks, blocks.validate()), (2, Ok(())));
    assert!(size_of_val(&blocks) < size_of_val(blocks.space()) + 1024);
    drop(blocks);
    assert_eq!(machine.tables(), 0);
}

#[test]
fn a_cpu_beyond_those_that_are_possible_shares_with_one_that_is() {
    let machine = SimMachine::new(1 << 20);
    let blocks = blocks::<Standard>(&machine, 1 << 20);
    let at = blocks.alloc(3, 1).unwrap();
    assert_eq!(blocks.alloc(3 + CPUS_MAX as u32, 1), Ok(Va::new(at.get() + PAGE_SIZE)));
    assert!(blocks.alloc(u32::MAX, 1).is_ok());
    assert_eq!(blocks.stats().blocks, 2);
    assert_eq!(blocks.validate(), Ok(()));
}

#[test]
fn sp4_a_failed_creation_of_blocks_frees_everything() {
    let made = |machine: &SimMachine, tables| {
        let space = VmapSpace::<_, <Standard as Config>::Space>::new(pages(0, 9000), pages(0, 9000), machine)
            .unwrap();
        let of_space = machine.tables();
        machine.fail_after(u64::MAX, tables);
        let made = Blocks::<_, Standard>::new(space, machine).map(drop);
        assert_eq!(machine.tables(), 0, "{of_space} of the space");
        made
    };
    for tables in 0..5 {
        assert_eq!(made(&SimMachine::new(4), tables), Err(BlockError::NoTable));
    }
    assert_eq!(made(&SimMachine::new(4), 5), Ok(()));
}

#[test]
fn sp4_a_failed_record_changes_nothing() {
    let machine = SimMachine::new(1);
    let blocks = blocks::<Standard>(&machine, 9000);
    let mut failed = 0;
    for attempt in 0.. {
        assert!(attempt < 9);
        machine.fail_after(u64::MAX, attempt);
        match blocks.alloc(0, 1) {
            Ok(_) => break,
            Err(BlockError::NoTable) => failed += 1,
            // The space needed a table of its own.
            Err(BlockError::Space(SpaceError::NoTable)) => {}
            Err(error) => panic!("{error}"),
        }
        // The area for the block is lazy at most.
        let busy = blocks.space().areas().filter(|seen| seen.state == State::Busy).count();
        assert_eq!((blocks.stats().blocks, busy, blocks.validate()), (0, 0, Ok(())));
    }
    assert!(failed > 0);
}
