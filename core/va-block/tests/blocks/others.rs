//! Room in the blocks of other CPUs, for requests that find none elsewhere.

use crate::points::{blocks, counted};
use va_base::{Context, LockClass, PAGE_SIZE, Pages, Request, Va};
use va_block::config::{Linux64, SHARED_MOST, Standard};
use va_block::{BlockError, Blocks};
use va_sim::machine::SimMachine;
use va_space::{Purge, SpaceError};

fn is_full(got: &Result<Va, BlockError>) -> bool {
    matches!(got, Err(BlockError::Space(SpaceError::NoSpace { .. })))
}

#[test]
fn every_page_of_the_only_block_serves_each_cpu_and_each_lane() {
    let machine = SimMachine::new(4);
    let blocks = blocks::<Standard>(&machine, 1024);
    let first = blocks.alloc(0, 1).unwrap();
    let mut lane = blocks.lane(3).unwrap();
    let mut got = vec![first];
    for nth in 1..1024 {
        got.push(match nth % 4 {
            0 => blocks.alloc(2, 1).unwrap(),
            1 => blocks.alloc(1, 1).unwrap(),
            2 => blocks.alloc_in(Context::Atomic, 1, 1).unwrap(),
            _ => lane.alloc(1).unwrap(),
        });
    }
    let all = (0..1024).map(|page| Va::new(first.get() + page * PAGE_SIZE));
    assert!(got.iter().copied().eq(all), "each page once");
    for cpu in 0..4 {
        assert!(is_full(&blocks.alloc(cpu, 1)));
        assert_eq!(blocks.alloc_in(Context::Atomic, cpu, 1), Err(BlockError::WouldBlock));
    }
    assert!(is_full(&lane.alloc(1)) && !lane.holds());
    assert_eq!((blocks.present(), blocks.validate()), (1, Ok(())));
    got.into_iter().for_each(|at| lane.free(at, 1).unwrap());
    assert_eq!((blocks.alloc(1, 64), blocks.validate()), (Ok(first), Ok(())));
}

#[test]
fn a_request_gets_a_block_of_its_own_rather_than_pages_of_another_cpu() {
    let machine = SimMachine::new(2);
    let blocks = blocks::<Standard>(&machine, 2048);
    let first = blocks.alloc(0, 1).unwrap();
    // An area of the space, which is lazy when the request begins.
    let area = blocks.space().alloc(0, &Request::pages(1000).unwrap()).unwrap();
    blocks.space().free(area).unwrap();
    let own = blocks.alloc(1, 1).unwrap();
    assert!(own.page_floor() - first.page_floor() >= 1024);
    assert_eq!((blocks.present(), blocks.validate()), (2, Ok(())));
}

#[test]
fn requests_in_a_full_space_go_to_other_cpus_at_once_until_a_block_begins() {
    let machine = SimMachine::new(2);
    let blocks = blocks::<Standard>(&machine, 2048);
    let lives = blocks.alloc(0, 1).unwrap();
    let area = blocks.space().alloc(0, &Request::pages(1000).unwrap()).unwrap();
    let pairs = |count| {
        for _ in 0..count {
            let at = blocks.alloc(1, 1).unwrap();
            blocks.free(1, at, 1).unwrap();
        }
    };
    pairs(1);
    let flushes = machine.flushes();
    let locks = counted(|| pairs(200));
    // Its own queue, for the current block and for others, and that of CPU 0.
    assert_eq!((machine.flushes(), locks[LockClass::Queue as usize]), (flushes, 600));
    assert_eq!(locks.iter().sum::<u64>(), 600, "{locks:?}");
    // Where the space has room again, the request takes it once the other block has none.
    blocks.space().free(area).unwrap();
    blocks.space().purge(Purge::Full);
    pairs(1024);
    assert_eq!(blocks.present(), 2);
    let locks = counted(|| pairs(100));
    assert!(locks[LockClass::Queue as usize] < 110, "one for each pair: {locks:?}");
    blocks.free(0, lives, 1).unwrap();
    assert_eq!(blocks.validate(), Ok(()));
}

#[test]
fn a_shortage_that_has_ended_leaves_each_cpu_a_block_of_its_own() {
    let machine = SimMachine::new(2);
    let blocks = blocks::<Standard>(&machine, 16_384);
    let _lives = blocks.alloc(0, 1).unwrap();
    let request = Request::pages(512).unwrap();
    let areas: Vec<_> = std::iter::from_fn(|| blocks.space().alloc(0, &request).ok()).collect();
    let pair = |at: u64| {
        let mapped = blocks.alloc(1, 1).unwrap();
        blocks.free(1, mapped, 1).unwrap();
        // The pages of the block of CPU 0 are there again and again.
        if at % 100 == 99 {
            blocks.unmap_aliases();
        }
    };
    (0..100).for_each(pair);
    assert_eq!(blocks.present(), 1, "the space is full");
    for area in areas {
        blocks.space().free(area).unwrap();
    }
    blocks.space().purge(Purge::Full);
    (0..2 * u64::from(SHARED_MOST)).for_each(pair);
    assert_eq!((blocks.present(), blocks.validate()), (2, Ok(())));
}

#[test]
fn a_request_locks_only_queues_that_show_room_for_it() {
    const CPUS: u32 = 300;
    let machine = SimMachine::new(CPUS);
    let blocks = blocks::<Standard>(&machine, 1024 * u64::from(CPUS));
    // A block of each CPU is used up but for one page.
    for cpu in 0..CPUS {
        (0..15).for_each(|_| _ = blocks.alloc(cpu, 64).unwrap());
        blocks.alloc(cpu, 63).unwrap();
        assert!(blocks.alloc_in(Context::Atomic, cpu, 2).is_err(), "its queue shows one page from here on");
    }
    let queues = |context, pages, fails| {
        let mut got = Err(BlockError::WouldBlock);
        let locks = counted(|| got = blocks.alloc_in(context, 7, pages));
        assert_eq!(got.is_err(), fails);
        locks[LockClass::Queue as usize]
    };
    // Its own: for the current block, for others, and when the space was purged.
    assert_eq!(queues(Context::Sleeping, 2, true), 3);
    // The last free page of the CPU, and then one of the next, which one that may not sleep does not know yet.
    assert_eq!(queues(Context::Sleeping, 1, false), 2);
    assert_eq!(queues(Context::Atomic, 1, true), 2);
    assert_eq!(queues(Context::Sleeping, 1, false), 4);
    // Of the other CPU that has a current block the queue is locked in vain, once.
    assert_eq!(queues(Context::Atomic, 1, false), 4);
    assert_eq!(queues(Context::Atomic, 2, true), 4);
    assert_eq!(queues(Context::Atomic, 2, true), 3);
    assert_eq!(blocks.stats().free_pages, Pages::new(u64::from(CPUS) - 3));
    // Its own last page, then that of the next CPU above, also in another group, and from the last on that of the first.
    let first = blocks.space().extent().start().page_floor();
    for (cpu, of) in [(254, 254), (254, 255), (255, 256), (299, 299), (299, 0)] {
        assert_eq!(blocks.alloc(cpu, 1).unwrap().page_floor() - first, 1024 * of + 1023);
    }
    assert_eq!(blocks.validate(), Ok(()));
}

#[test]
fn a_caller_that_may_not_sleep_is_sent_to_where_it_may_rather_than_to_another_cpu() {
    let machine = SimMachine::new(2);
    let blocks = blocks::<Standard>(&machine, 1 << 16);
    let first = blocks.alloc(0, 1).unwrap();
    let mut lane = blocks.lane(1).unwrap();
    // The block that it would begin has no record.
    assert_eq!(lane.alloc_in(Context::Atomic, 1), Err(BlockError::WouldBlock));
    let own = blocks.alloc(1, 1).unwrap();
    assert_eq!(own.page_floor() - first.page_floor(), 1024);
    assert!(lane.alloc_in(Context::Atomic, 1).is_ok() && lane.holds());
}

#[test]
fn under_linux_policies_a_request_takes_no_page_of_another_cpu() {
    let machine = SimMachine::new(2);
    let blocks: Blocks<&SimMachine, Linux64> = blocks(&machine, 1024);
    blocks.alloc(0, 1).unwrap();
    assert!(is_full(&blocks.alloc(1, 1)));
    assert!(blocks.alloc(0, 1).is_ok());
}
