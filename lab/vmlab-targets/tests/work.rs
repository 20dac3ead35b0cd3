//! Each target of a past kernel does its work where that kernel did: counts of visits and of lock acquisitions.
//!
//! One thread stands for two CPUs in turn, so every count is exact. A lock that both CPUs use *bounces* each time the
//! CPU changes; a lock of one CPU never does.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use va_base::LockClass;
use vmlab_machine::list::{Visits, take_visits};
use vmlab_machine::{LockStats, stand_for_cpu, take_lock_stats};
use vmlab_targets::{Ask, Era, Setup, Worker};

const CPUS: u64 = 2;

/// Runs `work` on each CPU in turn, `warm` times uncounted and `loops` times counted.
fn count(era: Era, warm: u64, loops: u64, work: impl Fn(&mut dyn Worker)) -> (LockStats, Visits) {
    let setup = Setup { cpus: CPUS as u32, kernel_lib: None, kernel_lib_percpu: None };
    let target = era.make_watched(&setup).unwrap();
    let mut workers = [0, 1].map(|cpu| target.worker(cpu));
    let mut run = |loops: u64| {
        for _ in 0..loops {
            for (cpu, worker) in (0..).zip(&mut workers) {
                stand_for_cpu(cpu);
                work(&mut **worker);
            }
        }
        (take_lock_stats(), take_visits())
    };
    run(warm);
    run(loops)
}

/// Returns acquisitions and bounces of a class.
fn of(locks: &LockStats, class: LockClass) -> (u64, u64) {
    let seen = &locks[class as usize];
    (seen.acquisitions, seen.acq_bounces)
}

/// Loops of areas, of 33 pages each with its guard page: 497 are lazy before a purge.
const AREAS: u64 = 1000;

/// Allocates and frees areas.
fn areas(era: Era) -> (LockStats, Visits) {
    count(era, 2 * AREAS, AREAS, |worker| {
        let at = worker.vmalloc(&Ask::bytes(32 << 12)).unwrap();
        worker.vfree(at);
    })
}

/// Blocks that each CPU begins and ends, and the loops of each: 5 pages take 8 of 1,024.
const BLOCKS: u64 = 100;
const LOOPS_PER_BLOCK: u64 = 128;

/// Maps and unmaps five pages.
fn mappings(era: Era) -> LockStats {
    let map = |worker: &mut dyn Worker| assert!(worker.pages(5).unwrap().map_write_unmap(b'a'));
    count(era, 10 * LOOPS_PER_BLOCK, BLOCKS * LOOPS_PER_BLOCK, map).0
}

/// Loops of an area of 100 pages and one of a page: 159 of them are lazy before a purge.
const BESIDE: u64 = 640;

/// Frees every second of `2 * live` areas, then allocates what fits in no hole and what fits in all.
///
/// This is what `full_fit_alloc_test` leaves to `long_busy_list_alloc_test` in the suite.
fn beside_holes(era: Era, live: u64) -> Visits {
    let setup = Setup { cpus: CPUS as u32, kernel_lib: None, kernel_lib_percpu: None };
    let target = era.make_watched(&setup).unwrap();
    let mut worker = target.worker(0);
    let mut junk = Vec::new();
    for _ in 0..live {
        worker.vmalloc(&Ask::bytes(1)).unwrap();
        junk.push(worker.vmalloc(&Ask::bytes(32 << 12)).unwrap());
    }
    junk.into_iter().for_each(|at| worker.vfree(at));
    take_visits();
    for _ in 0..BESIDE {
        let pair = [100 << 12, 1].map(|bytes| worker.vmalloc(&Ask::bytes(bytes)).unwrap());
        pair.into_iter().for_each(|at| worker.vfree(at));
    }
    take_visits()
}

#[test]
fn the_list_walks_the_busy_areas_and_does_nothing_else_in_proportion_to_them() {
    let mut before = None;
    for live in [1000, 2000, 4000] {
        let Visits { walk, other } = beside_holes(Era::List, live);
        // Each of the four calls of a loop reads a few neighbours, however many areas there are.
        assert!(other <= 4 * 10 * BESIDE, "{live}: {other}");
        assert!(walk > 10 * other, "{live}: {walk} {other}");
        if let Some(half) = before.replace(walk) {
            assert!(walk > half * 3 / 2, "{live}: {walk}, {half}");
        }
    }
    for era in [Era::OneLock, Era::Hashed, Era::Nodes] {
        assert_eq!(beside_holes(era, 1000), Visits::default(), "{}", era.name());
    }
}

#[test]
fn with_one_lock_every_area_takes_the_locks_that_all_cpus_share() {
    let pairs = CPUS * AREAS;
    for era in [Era::List, Era::OneLock, Era::Hashed] {
        let (locks, _) = areas(era);
        let name = era.name();
        // The search, and the slot of the area: two holds in a row. A purge is one more.
        let purges = of(&locks, LockClass::Purge).0;
        assert!((1..10).contains(&purges), "{name}: {purges}");
        assert_eq!(of(&locks, LockClass::Free), (2 * pairs + purges, pairs), "{name}");
        // In at the allocation, out at the free.
        assert_eq!(of(&locks, LockClass::Busy), (2 * pairs, pairs), "{name}");
        assert_eq!(of(&locks, LockClass::Lazy), (pairs + purges, pairs), "{name}");
        assert_eq!(of(&locks, LockClass::Pool), (0, 0), "{name}");
    }
}

#[test]
fn with_nodes_an_area_comes_from_the_pool_of_its_cpu_and_no_search_is_left() {
    let pairs = CPUS * AREAS;
    let (locks, _) = areas(Era::Nodes);
    for class in [LockClass::Pool, LockClass::Lazy] {
        let (taken, bounced) = of(&locks, class);
        assert!((pairs..pairs + pairs / 100).contains(&taken) && bounced < pairs / 100, "{taken} {bounced}");
    }
    assert!(of(&locks, LockClass::Free).0 < pairs / 100, "{:?}", of(&locks, LockClass::Free));
}

#[test]
fn blocks_are_looked_up_under_one_lock_until_it_is_hashed() {
    let changes = 2 * CPUS * BLOCKS;
    for (era, bounces) in [(Era::List, changes), (Era::OneLock, changes), (Era::Hashed, 0), (Era::Nodes, 0)] {
        let locks = mappings(era);
        // A block enters the lookup, and leaves it when all its pages were used.
        assert_eq!(of(&locks, LockClass::Lookup), (changes, bounces), "{}", era.name());
        // Which block has room is the CPU's own matter in all of them.
        assert_eq!(of(&locks, LockClass::Queue).1, 0, "{}", era.name());
    }
}
