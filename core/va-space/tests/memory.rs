//! The memory of a space's metadata: supplied from outside the lock, freed by a shrinker, reused leaves of the page
//! map.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use va_base::{Request, Va, VaRange};
use va_sim::machine::SimMachine;
use va_space::{Config, Purge, VmapSpace, config};

fn pages(first: u64, count: u64) -> VaRange {
    VaRange::from_pages(first, first + count).unwrap()
}

/// Returns the areas of a test: fewer where each operation walks the whole index.
fn some_of(areas: u64) -> u64 {
    if va_tree::WALKS_INVARIANTS { areas / 100 } else { areas }
}

/// Compiles only if a space is `Sync` under any policy.
fn shared_by_generic_code<C: Config>() {
    let machine = SimMachine::new(2);
    let space = VmapSpace::<_, C>::new(pages(16, 4096), pages(16, 4096), &machine).unwrap();
    std::thread::scope(|scope| {
        for cpu in 0..2 {
            let space = &space;
            scope.spawn(move || {
                let area = space.alloc(cpu, &Request::pages(2).unwrap()).unwrap();
                space.free(area).unwrap();
            });
        }
    });
    space.validate().unwrap();
}

#[test]
fn generic_code_shares_a_space_among_threads() {
    shared_by_generic_code::<config::Standard>();
    shared_by_generic_code::<config::Linux69>();
    shared_by_generic_code::<config::OneLock52>();
}

#[test]
fn a_space_is_supplied_outside_its_lock_and_frees_index_memory_to_a_shrinker() {
    let machine = SimMachine::new(1);
    let all = pages(16, 1 << 21);
    let space = VmapSpace::<_, config::Standard>::new(all, all, &machine).unwrap();
    space.supply(5000).unwrap();
    // From here on the machine allocates nothing under the lock.
    machine.fail_after(0, u64::MAX);
    let areas: Vec<_> = (0..5000).map(|_| space.alloc(0, &Request::pages(300).unwrap()).unwrap()).collect();
    areas.into_iter().for_each(|area| space.free(area).unwrap());
    space.purge(Purge::Full);
    let freed: usize = (0..100).map(|_| space.shrink_index(1000)).sum();
    assert!(freed > 50_000, "{freed}");
    space.validate().unwrap();
}

#[test]
fn leaves_of_the_page_map_serve_other_places_when_nothing_starts_in_them() {
    let machine = SimMachine::new(1);
    let all = pages(16, 1 << 31);
    let space = VmapSpace::<_, config::Standard>::new(all, all, &machine).unwrap();
    let (areas, size) = (some_of(30_000), 512);
    let start_of = |place: u64, n: u64| (place << 24) + n * size;
    let mut peak = 0;
    for place in 1..=6 {
        for n in 0..areas {
            let _by_address = space.alloc_at(pages(start_of(place, n), size)).unwrap();
        }
        if place == 1 {
            peak = machine.tables();
            // Twelve leaves a page, a table for each 2^14 pages, and the tables of an empty space.
            assert!(peak <= areas / 12 + areas * size / (1 << 14) + 20, "{peak}");
        }
        // Entries for leaves are tables that remain: one for each 2^14 pages, and one above for each 2^25.
        assert!(machine.tables() <= peak + (place - 1) * (areas * size / (1 << 14) + 2), "place {place}");
        space.validate().unwrap();
        for n in 0..areas {
            let at = Va::from_page(start_of(place, n));
            assert_eq!(space.find_enclosing(at).map(|seen| seen.range.start()), Some(at));
            let gone = Va::from_page(start_of(place - 1, n));
            assert!(space.find(gone).is_none() && space.free_at(gone).is_err());
            space.free_at(at).unwrap();
        }
        space.purge(Purge::Full);
        space.validate().unwrap();
    }
    drop(space);
    assert_eq!(machine.tables(), 0);
}

#[test]
fn a_handle_outlives_the_leaf_of_its_page_and_frees_nothing() {
    let machine = SimMachine::new(1);
    let all = pages(16, 1 << 31);
    let space = VmapSpace::<_, config::Standard>::new(all, all, &machine).unwrap();
    // Twelve leaves are allocated at a time, and the one that is empty longest moves: with one entry more, to another
    // one each time.
    let places: [_; 13] = core::array::from_fn(|n| pages(1 << (12 + n), 2));
    let mut handles = [const { None }; 13];
    for round in 0..20 {
        // The only area, at each entry in turn.
        for (range, handle) in places.into_iter().zip(&mut handles) {
            let new = space.alloc_at(range).unwrap();
            if let Some(old) = handle.replace(new) {
                assert!(
                    space.free(old).is_err(),
                    "round {round}: a handle of before frees what is at {range}"
                );
            }
            space.free_at(range.start()).unwrap();
            space.purge(Purge::Full);
            // At times they return to the machine, and others come.
            if round % 3 == 2 {
                assert!((0..2).map(|_| space.shrink_map(9)).sum::<usize>() > 0, "round {round}");
            }
        }
    }
    space.validate().unwrap();
}

#[test]
fn leaves_of_the_page_map_return_to_a_machine_that_waits_for_readers() {
    let machine = SimMachine::new(1);
    let all = pages(16, 1 << 31);
    let space = VmapSpace::<_, config::Standard>::new(all, all, &machine).unwrap();
    let empty = space.stats().tables;
    let (areas, size) = (some_of(30_000), 512);
    let alloc = |n| space.alloc_at(pages(16 + n * size, size)).unwrap();
    let mut old: Vec<_> = (0..areas).map(alloc).collect();
    let used = machine.tables();
    assert_eq!(space.shrink_map(usize::MAX), 0, "all are in use");
    // Every fiftieth remains, and so do the twelve leaves of its page.
    let stays = |n: &u64| n.is_multiple_of(50);
    (0..areas).filter(|n| !stays(n)).for_each(|n| _ = space.free_at(Va::from_page(16 + n * size)).unwrap());
    space.purge(Purge::Full);
    let mut freed = 0;
    // A few a call, until a pass has ended.
    (0..2 * areas).for_each(|_| freed += space.shrink_map(3));
    let left = used - machine.tables();
    assert!(freed as u64 >= left * 3800 && left > areas / 12 / 2, "{freed} bytes of {left} pages");
    space.validate().unwrap();
    for n in 0..areas {
        let at = Va::from_page(16 + n * size);
        assert_eq!(space.find(at).is_some(), stays(&n));
    }
    // Others begin at the same addresses: a handle of before is of none of them.
    for n in (0..areas).filter(|n| !stays(n)) {
        let _by_its_start = alloc(n);
    }
    for (n, handle) in (0..areas).zip(old.drain(..)) {
        assert_eq!(space.free(handle).is_ok(), stays(&n));
    }
    (0..areas).filter(|n| !stays(n)).for_each(|n| _ = space.free_at(Va::from_page(16 + n * size)).unwrap());
    space.purge(Purge::Full);
    space.shrink();
    assert_eq!(space.stats().tables, empty, "no leaf is left, and no table of leaves");
    space.validate().unwrap();
    drop(space);
    assert_eq!(machine.tables(), 0);
}

#[test]
fn a_table_without_areas_returns_though_its_leaves_were_allocated_with_one_in_use() {
    let machine = SimMachine::new(1);
    let all = pages(16, 1 << 31);
    let space = VmapSpace::<_, config::Standard>::new(all, all, &machine).unwrap();
    // Twelve leaves are allocated at a time.
    let low: Vec<_> = (0..11).map(|n| space.alloc_at(pages(32 + 16 * n, 2)).unwrap()).collect();
    let _high = space.alloc_at(pages(1 << 20, 2)).unwrap();
    let before = machine.tables();
    low.into_iter().for_each(|area| space.free(area).unwrap());
    space.purge(Purge::Full);
    assert!((0..2).map(|_| space.shrink_map(usize::MAX)).sum::<usize>() > 0);
    assert_eq!(machine.tables(), before - 1);
    space.validate().unwrap();
}

#[test]
fn tables_of_leaves_return_however_far_they_are_from_the_default_window() {
    let machine = SimMachine::new(1);
    let all = pages(16, (1 << 52) - 32);
    let space = VmapSpace::<_, config::Standard>::new(all, pages(16, 1 << 20), &machine).unwrap();
    // Each is in another table at every level; the last is in the last table of all.
    let places = [1 << 15, 1 << 26, 1 << 35, 1 << 43, (1 << 52) - 64];
    let stays = space.alloc_at(pages((1 << 26) + (1 << 15), 2)).unwrap();
    for round in 0..3 {
        let areas = places.map(|page| space.alloc_at(pages(page, 2)).unwrap());
        space.shrink();
        let used = space.stats().tables;
        areas.into_iter().for_each(|area| space.free(area).unwrap());
        space.purge(Purge::Full);
        space.shrink();
        assert_eq!(space.stats().tables, used - places.len() as u64, "round {round}");
        space.validate().unwrap();
        assert!(space.find(stays.start()).is_some());
    }
}

#[test]
fn a_long_pool_decays_by_a_share_of_all_that_is_idle() {
    let machine = SimMachine::new(1);
    let all = pages(16, 1 << 20);
    let space = VmapSpace::<_, config::Standard>::new(all, all, &machine).unwrap();
    let count = some_of(200_000);
    let areas: Vec<_> = (0..count).map(|_| space.alloc(0, &Request::pages(1).unwrap()).unwrap()).collect();
    areas.into_iter().for_each(|area| space.free(area).unwrap());
    // A quarter of them, once in 16 drains: of all of it three tenths are left after five.
    (0..5 * 16).for_each(|_| _ = space.purge(Purge::Drain));
    let pooled = space.stats().pooled_areas;
    assert!(pooled > 0 && pooled < count / 2, "{pooled} of {count}");
    space.validate().unwrap();
}

#[test]
fn a_shrinker_of_the_map_looks_at_no_more_than_it_asks_for() {
    let machine = SimMachine::new(1);
    let all = pages(16, 1 << 31);
    let space = VmapSpace::<_, config::Standard>::new(all, all, &machine).unwrap();
    // Three allocations of twelve leaves.
    let areas: Vec<_> = (0..36).map(|n| space.alloc_at(pages(32 + 16 * n, 2)).unwrap()).collect();
    areas.into_iter().for_each(|area| space.free(area).unwrap());
    space.purge(Purge::Full);
    let tables = machine.tables();
    assert_eq!(
        ([(); 3].map(|()| space.shrink_map(1)).map(|freed| freed > 0), machine.tables()),
        ([true; 3], tables - 3)
    );
    space.validate().unwrap();
}
