//! Callers that may not wait, workers that drain, and flushes that end later.

use crate::{FIRST, Linux69, OneLock52, Standard, ask, complete_round, pages, space};
use va_base::{AllocError, Context, LockClass, PAGE_SIZE, Pages, Request, VaRange};
use va_sim::machine::{Flushing, SimMachine, lockings};
use va_space::config::WithTrees;
use va_space::{Area, Config, Magazine, Purge, SpaceError, VmapSpace};
use va_tree::Congruent;

fn atomic(size: u64) -> Request {
    ask(size).context(Context::Atomic)
}

/// Allocates `count` areas of `size` pages.
fn areas<C: Config>(space: &VmapSpace<&SimMachine, C>, count: u64, size: u64) -> Vec<Area> {
    (0..count).map(|_| space.alloc(0, &ask(size)).unwrap()).collect()
}

/// Returns the classes of the locks that `call` takes, and how often.
fn locks_of(call: impl FnOnce()) -> Vec<(usize, u64)> {
    let before = lockings();
    call();
    let taken = lockings().into_iter().zip(before).map(|(after, before)| after - before);
    taken.enumerate().filter(|&(_, count)| count > 0).collect()
}

#[test]
fn an_atomic_request_fails_where_a_sleeping_one_would_purge() {
    fn fails<C: Config>() {
        let machine = SimMachine::new(2);
        let space = space::<C>(&machine, 64);
        let held = areas(&space, 4, 16);
        let full = space.alloc(0, &atomic(16)).unwrap_err();
        assert!(matches!(full, SpaceError::NoSpace { .. }), "all is busy, no caller could succeed: {full}");
        held.into_iter().for_each(|area| space.free(area).unwrap());
        let taken = locks_of(|| {
            let would = SpaceError::WouldBlock { requested: Pages::new(16), lazy: Pages::new(64) };
            assert_eq!(space.alloc(0, &atomic(16)), Err(would));
        });
        assert!(taken.iter().all(|&(class, _)| class != LockClass::Purge as usize), "{taken:?}");
        assert_eq!((machine.flushes(), space.stats().lazy_pages), (0, Pages::new(64)));
        let area = space.alloc(0, &ask(16)).unwrap();
        assert_eq!((area.size(), machine.flushes(), space.validate()), (Pages::new(16), 1, Ok(())));
    }
    fails::<Standard>();
    fails::<Linux69>();
    fails::<OneLock52>();
    fails::<WithTrees<Standard>>();
}

#[test]
fn an_atomic_request_that_fails_counts_what_magazines_have_freed() {
    let machine = SimMachine::new(1);
    let space = space::<Standard>(&machine, 1000);
    let mut magazine = space.magazine(0).unwrap();
    let _busy = space.alloc(0, &ask(900)).unwrap();
    let [first, second] = [40, 60].map(|size| space.alloc(0, &ask(size)).unwrap());
    space.free_in(Context::Atomic, first).unwrap();
    magazine.free(second).unwrap();
    assert_eq!(space.lazy_pages(), Pages::new(40), "the rest is in a magazine");
    let would = SpaceError::WouldBlock { requested: Pages::new(200), lazy: Pages::new(100) };
    assert_eq!(space.alloc(0, &atomic(200)), Err(would));
    assert_eq!(space.stats().lazy_pages, Pages::new(100));
}

#[test]
fn an_atomic_request_takes_from_the_index_and_from_every_pool() {
    let machine = SimMachine::new(2);
    let space = space::<Standard>(&machine, 64);
    let first = space.alloc(0, &ask(1)).unwrap();
    let held: Vec<_> = (0..63).map(|_| space.alloc(0, &atomic(1)).unwrap()).collect();
    held.into_iter().for_each(|area| space.free(area).unwrap());
    space.purge(Purge::Drain);
    // All of it is in the pool of node 0, from which a caller on CPU 1 may take exact sizes.
    assert_eq!(space.alloc(1, &atomic(1)).map(|area| area.size()), Ok(Pages::new(1)));
    assert!(matches!(space.alloc(1, &atomic(2)), Err(SpaceError::WouldBlock { .. })));
    space.free(first).unwrap();
    assert_eq!(space.validate(), Ok(()));
}

#[test]
fn an_atomic_request_asks_for_no_table() {
    let machine = SimMachine::new(1);
    let space = space::<Standard>(&machine, 1 << 24);
    let tables = machine.tables();
    // The lowest pages have had their table since the space was created; elsewhere, a caller that sleeps allocates one.
    let far = VaRange::from_pages(FIRST + (1 << 22), FIRST + (1 << 23)).unwrap();
    let failed = space.alloc(0, &atomic(4).within(far)).unwrap_err();
    assert!(matches!(failed, SpaceError::WouldBlock { .. }), "{failed}");
    assert_eq!((machine.tables(), space.stats().holes, space.validate()), (tables, 1, Ok(())));
    let area = space.alloc(0, &ask(4).within(far)).unwrap();
    assert!(machine.tables() > tables);
    let beside = space.alloc(0, &atomic(4).within(far)).unwrap();
    assert_eq!(area.range().end(), beside.start());
}

#[test]
fn an_atomic_request_asks_for_no_tree() {
    fn asks_for_none<C: Config>() {
        let machine = SimMachine::new(4);
        let space = space::<C>(&machine, 1 << 14);
        // Some leaves of the page map, and the tree of one node.
        let _first = space.alloc(0, &ask(1)).unwrap();
        let tables = machine.tables();
        let zone = |nth: u64| pages(16 * nth, 16 * nth + 16);
        // Returns the zones of which a caller gets no page.
        let lacking = |context: Context| {
            let fails = |nth: u64| {
                let before = space.stats();
                let Err(failed) = space.alloc(0, &ask(1).context(context).within(zone(nth))) else {
                    return false;
                };
                assert!(matches!(failed, SpaceError::WouldBlock { .. }), "{failed}");
                assert_eq!((space.stats(), space.validate()), (before, Ok(())));
                true
            };
            (1..8).filter(|&nth| fails(nth)).count()
        };
        let without = lacking(Context::Atomic);
        assert_eq!((machine.tables(), without > 0), (tables, true));
        assert_eq!(lacking(Context::Sleeping), 0);
        assert!(machine.tables() > tables);
        assert_eq!((lacking(Context::Atomic), space.validate()), (0, Ok(())));
    }
    asks_for_none::<Linux69>();
    asks_for_none::<WithTrees<Standard>>();
}

#[test]
fn an_atomic_failure_reports_that_clients_could_free() {
    let machine = SimMachine::new(1);
    let space = space::<Standard>(&machine, 16);
    let _held = areas(&space, 1, 16);
    assert!(matches!(space.alloc(0, &atomic(1)), Err(SpaceError::NoSpace { .. })));
    machine.on_reclaim(Some(Box::new(|| panic!("a caller that may not wait must not ask others to free"))));
    assert!(matches!(space.alloc(0, &atomic(1)), Err(SpaceError::WouldBlock { .. })));
}

#[test]
fn a_free_in_an_interrupt_takes_the_lazy_lock_alone() {
    fn takes<C: Config>(locks: &[LockClass], by_address: bool) {
        let machine = SimMachine::new(1);
        let space = space::<C>(&machine, 1 << 20);
        let lazy_max = space.lazy_max().get();
        for area in areas(&space, 5 * lazy_max / 256, 256) {
            let taken = locks_of(|| {
                if by_address {
                    let range = area.range();
                    assert_eq!(space.free_at_in(Context::Atomic, range.start()), Ok(range));
                } else {
                    space.free_in(Context::Atomic, area).unwrap();
                }
            });
            let want: Vec<_> = locks.iter().map(|&class| (class as usize, 1)).collect();
            assert_eq!(taken, want);
        }
        assert_eq!((machine.flushes(), space.lazy_pages()), (0, Pages::new(5 * lazy_max)));
        assert_eq!(machine.drains(), 1, "the machine is asked once a pass");
        // The next callers that may wait run the remaining slices.
        let last = areas(&space, 200, 1);
        last.into_iter().for_each(|area| space.free(area).unwrap());
        assert!(machine.flushes() > 0 && space.lazy_pages().get() <= lazy_max);
        assert_eq!(space.validate(), Ok(()));
    }
    for by_address in [false, true] {
        takes::<Standard>(&[LockClass::Lazy], by_address);
        takes::<Linux69>(&[LockClass::Lazy, LockClass::Busy], by_address);
    }
}

#[test]
fn a_free_in_an_interrupt_leaves_the_magazine_alone() {
    let machine = SimMachine::new(1);
    let space = space::<Standard>(&machine, 1 << 20);
    let lazy_max = space.lazy_max().get();
    let mut magazine = space.magazine(0).unwrap();
    for by_address in [false, true] {
        // More than any round may hold.
        for area in areas(&space, 5 * lazy_max / 256, 256) {
            let taken = locks_of(|| {
                if by_address {
                    let range = area.range();
                    assert_eq!(magazine.free_at_in(Context::Atomic, range.start()), Ok(range));
                } else {
                    magazine.free_in(Context::Atomic, area).unwrap();
                }
            });
            assert_eq!(taken, [(LockClass::Lazy as usize, 1)]);
        }
    }
    assert_eq!((machine.flushes(), space.lazy_pages()), (0, Pages::new(10 * lazy_max)));
    let (first, second) = (magazine.alloc(&ask(1)).unwrap(), magazine.alloc(&ask(1)).unwrap());
    let taken = locks_of(|| magazine.free_in(Context::Sleeping, first).unwrap());
    assert_eq!(taken, [(LockClass::Owner as usize, 1)]);
    magazine.free_at_in(Context::Sleeping, second.start()).unwrap();
    drop(magazine);
    assert_eq!(space.validate(), Ok(()));
}

#[test]
fn an_atomic_request_of_a_magazine_takes_one_lock_at_a_time() {
    let machine = SimMachine::new(1);
    let space = space::<Standard>(&machine, 1 << 20);
    let mut magazine = space.magazine(0).unwrap();
    let [owner, pool] = [LockClass::Owner, LockClass::Pool].map(|class| class as usize);
    let held = areas(&space, 40, 4);
    // From the completed areas of the magazine: that lock and no other, and the others are not moved.
    let freed = held.len() as u64;
    held.into_iter().for_each(|area| magazine.free(area).unwrap());
    complete_round(&space, &mut magazine);
    assert!(space.stats().cached_areas > freed);
    // `alloc` looks into the cache under a hold of its own.
    let calls = || [Magazine::alloc, Magazine::try_alloc].into_iter().zip([2, 1]);
    for (call, looks) in calls() {
        let taken = locks_of(|| _ = call(&mut magazine, &atomic(4)).unwrap());
        assert_eq!(taken, [(owner, looks)]);
    }
    // From the pool of the node, with the lock of the magazine released: nothing is refilled under it.
    magazine.drain();
    for (call, looks) in calls() {
        let taken = locks_of(|| _ = call(&mut magazine, &atomic(4)).unwrap());
        assert_eq!((taken, space.stats().cached_areas), (vec![(pool, 1), (owner, looks)], 0));
        // From the index, as far as there are slots, and one by one.
        let taken = locks_of(|| {
            let got = (0..70).filter(|_| {
                let _slots = space.alloc(0, &ask(1)).unwrap();
                call(&mut magazine, &atomic(5)).is_ok()
            });
            assert!(got.count() > 9);
        });
        assert!(
            taken.contains(&(owner, 70 * (looks + 1))) && space.stats().cached_areas == 0,
            "no row: {taken:?}"
        );
    }
    drop(magazine);
    assert_eq!(space.validate(), Ok(()));
}

#[test]
fn a_free_of_a_magazine_runs_one_slice_at_most() {
    let machine = SimMachine::new(1);
    let space = space::<Standard>(&machine, 1 << 22);
    // Pools that decay, so that a pass has many slices.
    let pooled: Vec<_> = (0..4096).map(|n| space.alloc(0, &ask(1 + n % 256)).unwrap()).collect();
    pooled.into_iter().for_each(|area| space.free(area).unwrap());
    space.purge(Purge::Drain);
    let mut magazine = space.magazine(0).unwrap();
    let (mut slices, flushes) = (0, machine.flushes());
    for _ in 0..4 {
        let areas: Vec<_> = (0..512).map(|n| magazine.alloc(&ask(1 + n * 7 % 256)).unwrap()).collect();
        for area in areas {
            let taken = locks_of(|| magazine.free(area).unwrap());
            let purge = taken.iter().find(|&&(class, _)| class == LockClass::Purge as usize);
            let count = purge.map_or(0, |&(_, count)| count);
            assert!(count <= 1, "{count} slices");
            slices += count;
        }
    }
    let flushes = machine.flushes() - flushes;
    assert!(flushes > 2 && slices > 2 * flushes, "{slices} slices in {flushes} passes");
    drop(magazine);
    assert_eq!(space.validate(), Ok(()));
}

#[test]
fn a_worker_is_woken_once_a_pass_and_no_free_does_its_work() {
    fn honoured<C: Config>() {
        let machine = SimMachine::new(1);
        machine.drain_elsewhere(true);
        let space = space::<C>(&machine, 1 << 20);
        let lazy_max = space.lazy_max().get();
        for pass in 1..=3 {
            for area in areas(&space, 30 * lazy_max / 256, 256) {
                let taken = locks_of(|| space.free(area).unwrap());
                assert!(taken.iter().all(|&(class, _)| class != LockClass::Purge as usize), "{taken:?}");
            }
            // While the worker does not run, all of it waits: that is the bound.
            assert_eq!((machine.flushes(), space.lazy_pages().get()), (pass - 1, 30 * lazy_max));
            assert_eq!(machine.drains(), pass, "one wake a pass");
            assert_eq!((space.drain().left, machine.flushes()), (Pages::new(0), pass));
            assert_eq!(space.validate(), Ok(()));
        }
    }
    honoured::<Standard>();
    honoured::<Linux69>();
    honoured::<OneLock52>();
}

#[test]
fn a_request_that_may_wait_waits_for_a_flush_that_ends_later() {
    fn waits<C: Config>() {
        let machine = SimMachine::new(2);
        let space = space::<C>(&machine, 64);
        machine.set_flushing(Flushing::OnRequest);
        for round in 1..=3 {
            let whole = space.alloc(0, &ask(64)).unwrap();
            machine.map(whole.range()).unwrap();
            machine.unmap(whole.range());
            space.free(whole).unwrap();
            assert!(matches!(space.alloc(0, &atomic(64)), Err(SpaceError::WouldBlock { .. })));
            assert_eq!(machine.waits(), round - 1, "a caller that may not wait does not");
            let again = space.alloc(0, &ask(64)).unwrap();
            assert_eq!((machine.map(again.range()), machine.waits()), (Ok(()), round));
            machine.unmap(again.range());
            space.free(again).unwrap();
            space.purge(Purge::Full);
            machine.complete_flushes();
            assert!(!space.purge(Purge::Full).waiting);
        }
        assert_eq!(space.validate(), Ok(()));
    }
    waits::<Standard>();
    waits::<Linux69>();
    waits::<OneLock52>();
}

#[test]
fn a_range_that_lacks_a_table_has_no_client_free_anything() {
    let machine = SimMachine::new(1);
    let space = space::<Standard>(&machine, 1 << 17);
    machine.on_reclaim(Some(Box::new(|| panic!("no page is missing"))));
    // A table has the entries of 2^14 pages.
    let lazy = space.alloc_at(pages(1 << 16, (1 << 16) + 10)).unwrap();
    space.free(lazy).unwrap();
    machine.fail_after(u64::MAX, 0);
    assert_eq!(space.alloc_at(pages((1 << 16) - 10, (1 << 16) + 10)), Err(SpaceError::NoTable));
    assert_eq!(space.validate(), Ok(()));
}

#[test]
fn a_purge_waits_for_its_flush_if_it_is_to() {
    let machine = SimMachine::new(1);
    let space = space::<Standard>(&machine, 64);
    machine.set_flushing(Flushing::OnRequest);
    for how in [Purge::Drain, Purge::Full, Purge::Aliases] {
        let area = space.alloc(0, &ask(8)).unwrap();
        machine.map(area.range()).unwrap();
        machine.unmap(area.range());
        let range = area.range();
        space.free(area).unwrap();
        assert!(space.purge(how).waiting);
        assert_eq!(machine.unclean(range), 8);
        let done = space.purge_and_wait(how);
        assert_eq!((done.waiting, done.left, machine.unclean(range)), (false, Pages::new(0), 0));
        assert_eq!(space.stats().pooled_areas, u64::from(how != Purge::Full));
    }
    assert_eq!(space.validate(), Ok(()));
}

#[test]
fn the_machine_hears_of_each_area_once_after_its_flush_and_before_its_reuse() {
    fn hears<C: Config>(by_magazine: bool) {
        let machine = SimMachine::new(2);
        machine.hear_settled();
        let space = space::<C>(&machine, 1 << 20);
        let mut freed = Vec::new();
        for round in 0..4 {
            let mut magazine = by_magazine.then(|| space.magazine(0).unwrap());
            let areas: Vec<_> = (0..300)
                .map(|n| match &mut magazine {
                    Some(magazine) => magazine.alloc(&ask(1 + n * 7 % 400)).unwrap(),
                    None => space.alloc(n as u32 % 2, &ask(1 + n * 7 % 400)).unwrap(),
                })
                .collect();
            for area in areas {
                machine.map(area.range()).unwrap();
                machine.unmap(area.range());
                freed.push(area.range());
                match &mut magazine {
                    Some(magazine) => magazine.free(area).unwrap(),
                    None => space.free(area).unwrap(),
                }
            }
            drop(magazine);
            space.purge(if round % 2 == 0 { Purge::Drain } else { Purge::Full });
            assert_eq!((space.validate(), space.lazy_pages()), (Ok(()), Pages::new(0)));
            let mut settled = machine.take_settled();
            let reused = settled.iter().map(|&range| machine.unclean(range)).sum::<u64>();
            assert_eq!(reused, 0, "reported before its flush");
            settled.sort_unstable_by_key(|range| range.start());
            freed.sort_unstable_by_key(|range| range.start());
            assert_eq!(settled, freed, "each of them once");
            freed.clear();
        }
    }
    for by_magazine in [false, true] {
        hears::<Standard>(by_magazine);
        hears::<Linux69>(by_magazine);
        hears::<OneLock52>(by_magazine);
    }
}

#[test]
fn a_busy_range_is_found_busy_without_a_purge() {
    let machine = SimMachine::new(1);
    let space = space::<Standard>(&machine, 1 << 16);
    let busy = space.alloc(0, &ask(4)).unwrap();
    let held = areas(&space, 200, 2);
    held.into_iter().for_each(|area| space.free(area).unwrap());
    space.purge(Purge::Drain);
    let pooled = space.stats().pooled_areas;
    let over = VaRange::from_pages(FIRST + 2, FIRST + 100).unwrap();
    for range in [busy.range(), over] {
        let taken = locks_of(|| {
            let failed = space.alloc_at(range);
            assert!(matches!(failed, Err(SpaceError::Index(AllocError::Occupied { .. }))), "{failed:?}");
        });
        assert_eq!(taken, [(LockClass::Free as usize, 1)]);
    }
    assert_eq!((pooled, space.stats().pooled_areas, machine.flushes()), (200, 200, 1));
    // Areas that are not busy are freed for the caller.
    let pooled = VaRange::from_pages(FIRST + 10, FIRST + 101).unwrap();
    assert_eq!(space.alloc_at(pooled).map(|area| area.range()), Ok(pooled));
    assert_eq!(space.validate(), Ok(()));
}

#[test]
fn requests_at_a_place_use_magazines_and_callers_free_on_demand() {
    let machine: &SimMachine = Box::leak(Box::new(SimMachine::new(1)));
    let space: &VmapSpace<_, Standard> = Box::leak(Box::new(space(machine, 1024)));
    let parts = [(0, 64 * PAGE_SIZE), (128 * PAGE_SIZE, 64 * PAGE_SIZE)];
    let parts = Congruent::new(&parts, 64 * PAGE_SIZE).unwrap();
    let want = VaRange::from_pages(FIRST + 100, FIRST + 110).unwrap();
    for at in [true, false] {
        let mut magazine = space.magazine(0).unwrap();
        let areas: Vec<_> = (0..1024).map(|_| magazine.alloc(&ask(1)).unwrap()).collect();
        areas.into_iter().for_each(|area| magazine.free(area).unwrap());
        // The owner calls often enough to notice it.
        for _ in 0..3 {
            let got = if at {
                space.alloc_at(want).map(|area| space.free(area).unwrap())
            } else {
                space.alloc_congruent(&parts).map(|base| {
                    space.free_at(base).unwrap();
                    space.free_at(va_base::Va::new(base.get() + 128 * PAGE_SIZE)).unwrap();
                })
            };
            if got.is_ok() {
                break;
            }
            let _heard = magazine.alloc(&ask(3)).map(|area| magazine.free(area));
        }
        drop(magazine);
        let (free, cached) = (space.stats().cached_areas, space.stats().lazy_pages);
        assert!(cached.get() < 1024 && free < 1024, "the magazine was drained");
        space.purge(Purge::Full);
        // A client holds all of it.
        let all = space.alloc(0, &ask(1024)).unwrap();
        let start = all.start();
        machine.on_reclaim(Some(Box::new(move || space.free_at(start).map_or(0, |_| 1024))));
        let made = if at {
            space.alloc_at(want).map(|area| space.free(area).unwrap())
        } else {
            space.alloc_congruent(&parts).map(|base| {
                space.free_at(base).unwrap();
                space.free_at(va_base::Va::new(base.get() + 128 * PAGE_SIZE)).unwrap();
            })
        };
        assert_eq!(made, Ok(()));
        machine.on_reclaim(None);
        space.purge(Purge::Full);
        assert_eq!((space.validate(), space.stats().holes), (Ok(()), 1));
    }
}

#[test]
fn a_lookup_inside_an_area_takes_the_locks_of_the_nodes_in_their_order() {
    fn takes<C: Config>(locks: u64) {
        let machine = SimMachine::new(4);
        let space = space::<C>(&machine, 1 << 10);
        // Zones of sixteen pages: the first is over three of them, the others are in nodes 2, 3 and 1.
        let pages = [(8, 40), (40, 41), (48, 49), (80, 81)];
        for (first, end) in pages {
            let range = VaRange::from_pages(FIRST + first, FIRST + end).unwrap();
            let _by_address = space.alloc_at(range).unwrap();
        }
        let taken = locks_of(|| assert!(space.find_enclosing(va_base::Va::from_page(FIRST + 17)).is_some()));
        assert_eq!(taken, [(LockClass::Busy as usize, locks)]);
    }
    takes::<Linux69>(4);
    takes::<WithTrees<Linux69>>(2);
}
