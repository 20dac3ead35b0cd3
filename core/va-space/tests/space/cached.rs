//! The areas that move into the cache of a magazine and out of it: how many, and which.

use crate::{Linux69, Standard, ask, complete_round, lazy, space};
use va_base::{Context, LockClass, Pages, Request};
use va_sim::machine::{SimMachine, lockings};
use va_space::{Area, Config, Magazine, Purge, VmapSpace, config};

type Space<'m> = VmapSpace<&'m SimMachine, Standard>;

fn aligned(size: u64, align: u64) -> Request {
    Request::new(size << 12, align << 12).unwrap()
}

/// Puts areas of this size into the pool of node 0.
fn pool(space: &Space<'_>, count: u64, size: u64) {
    let areas: Vec<_> = (0..count).map(|_| space.alloc(0, &ask(size)).unwrap()).collect();
    areas.into_iter().for_each(|area| space.free(area).unwrap());
    space.purge(Purge::Drain);
}

/// Frees areas of this size into a magazine. Returns their start pages.
fn free(
    space: &Space<'_>,
    magazine: &mut Magazine<'_, &SimMachine, Standard>,
    count: u64,
    size: u64,
) -> Vec<u64> {
    let areas: Vec<Area> = (0..count).map(|_| space.alloc(0, &ask(size)).unwrap()).collect();
    let starts = areas.iter().map(|area| area.start().page_floor()).collect();
    areas.into_iter().for_each(|area| magazine.free(area).unwrap());
    starts
}

#[test]
fn a_refill_has_so_many_pages_or_all_if_they_are_few() {
    let machine = SimMachine::new(1);
    let space = space::<Standard>(&machine, 1 << 22);
    pool(&space, 300, 100);
    let mut magazine = space.magazine(0).unwrap();
    let mut refills = Vec::new();
    while space.stats().pooled_areas > 0 {
        if space.stats().cached_areas == 0 {
            let _area = magazine.alloc(&ask(100)).unwrap();
            refills.push(1 + space.stats().cached_areas);
        }
        (0..space.stats().cached_areas).for_each(|_| _ = magazine.alloc(&ask(100)).unwrap());
    }
    // At most 2048 pages; all once they are a quarter of the 65,536 that the cache may hold.
    assert_eq!(refills, [1, 2, 4, 8, 16, 20, 20, 20, 20, 20, 20, 149]);
}

#[test]
fn a_completed_list_is_cached_up_to_the_share() {
    let machine = SimMachine::new(1);
    machine.set_online(lazy(10_000));
    // A share of 100 pages.
    let space = space::<Standard>(&machine, 800);
    let mut magazine = space.magazine(0).unwrap();
    free(&space, &mut magazine, 100, 1);
    space.purge(Purge::Drain);
    let _area = magazine.alloc(&ask(1)).unwrap();
    assert_eq!((space.stats().cached_areas, space.stats().pooled_areas), (99, 0));
}

#[test]
fn a_completed_list_above_a_share_that_became_smaller_is_cached_in_part() {
    let machine = SimMachine::new(1);
    machine.set_online(lazy(10_000));
    // A share of 200 pages, and then of 100.
    let space = space::<Standard>(&machine, 1600);
    let mut magazine = space.magazine(0).unwrap();
    free(&space, &mut magazine, 20, 10);
    let _other = space.magazine(0).unwrap();
    free(&space, &mut magazine, 20, 10);
    space.purge(Purge::Drain);
    let _area = magazine.alloc(&ask(10)).unwrap();
    assert_eq!((space.stats().cached_areas, space.stats().pooled_areas), (9, 30));
    assert_eq!(space.validate(), Ok(()));
}

#[test]
fn half_of_a_list_makes_room_of_small_areas_those_that_were_freed_first() {
    // Areas that are cached at first, those that stay beside one of another size, and the one that is allocated next.
    for (size, cached, other, stay, next) in [(256, 7, 1280, 3, 6), (264, 6, 500, 4, 4)] {
        let machine = SimMachine::new(1);
        machine.set_online(lazy(100_000));
        // A share of 2048 pages.
        let space = space::<Standard>(&machine, 1 << 14);
        let mut magazine = space.magazine(0).unwrap();
        pool(&space, 1, other);
        let starts = free(&space, &mut magazine, 8, size);
        space.purge(Purge::Drain);
        let mut alloc = |size| {
            let area = magazine.alloc(&ask(size)).unwrap();
            (area.start().page_floor(), space.stats().cached_areas)
        };
        assert_eq!(alloc(size), (starts[7], cached));
        assert_eq!(alloc(other).1, stay);
        assert_eq!(alloc(size), (starts[next], stay - 1));
    }
}

#[test]
fn idle_pages_are_in_magazines_and_pools_and_a_shrink_returns_them() {
    let machine = SimMachine::new(1);
    machine.set_online(lazy(10_000));
    let space = space::<Standard>(&machine, 800);
    let mut magazine = space.magazine(0).unwrap();
    assert_eq!(space.idle_pages(), Pages::new(0));
    free(&space, &mut magazine, 100, 1);
    assert_eq!(space.idle_pages(), Pages::new(0), "nothing is flushed");
    pool(&space, 10, 3);
    let _area = magazine.alloc(&ask(1)).unwrap();
    assert_eq!(space.idle_pages(), Pages::new(99 + 30));
    space.drain_magazines();
    space.shrink();
    assert_eq!((space.idle_pages(), space.validate()), (Pages::new(0), Ok(())));
}

#[test]
fn an_atomic_request_takes_a_completed_area_if_any_alignment_will_do() {
    let machine = SimMachine::new(1);
    let space = space::<Standard>(&machine, 800);
    let mut magazine = space.magazine(0).unwrap();
    let starts = free(&space, &mut magazine, 100, 1);
    space.purge(Purge::Drain);
    let mut alloc =
        |request: Request| magazine.alloc(&request.context(Context::Atomic)).unwrap().start().page_floor();
    let area = alloc(aligned(1, 8));
    assert!(area % 8 == 0 && !starts.contains(&area));
    assert_eq!(alloc(ask(1)), starts[99]);
}

#[test]
fn a_row_is_of_areas_side_by_side_and_two_large_ones_are_the_longest() {
    let machine = SimMachine::new(1);
    let space = space::<Standard>(&machine, 1 << 22);
    let mut magazine = space.magazine(0).unwrap();
    for (request, row) in [(aligned(8, 8), 1), (aligned(4, 8), 0), (ask(4096), 1), (ask(4097), 0)] {
        let before = space.stats().cached_areas;
        let _two = [(); 2].map(|()| magazine.alloc(&request).unwrap());
        assert_eq!(space.stats().cached_areas - before, row, "{request:?}");
    }
}

#[test]
fn a_size_that_no_completed_list_has_is_refilled_from_the_pool() {
    let machine = SimMachine::new(1);
    machine.set_online(lazy(10_000));
    let space = space::<Standard>(&machine, 800);
    let mut magazine = space.magazine(0).unwrap();
    free(&space, &mut magazine, 100, 1);
    pool(&space, 10, 3);
    assert_eq!(space.stats().cached_areas, 100);
    // Refills of one and two.
    let _two = [(); 2].map(|()| magazine.alloc(&ask(3)).unwrap());
    assert_eq!((space.stats().cached_areas, space.stats().pooled_areas), (101, 7));
}

#[test]
fn completed_lists_without_a_request_join_the_cache_while_it_has_room() {
    let machine = SimMachine::new(1);
    machine.set_online(lazy(10_000));
    // A share of 200 pages, which is a round.
    let space = space::<Standard>(&machine, 1600);
    let mut magazine = space.magazine(0).unwrap();
    let _held = [(); 2].map(|()| magazine.alloc(&ask(10)).unwrap());
    free(&space, &mut magazine, 10, 10);
    free(&space, &mut magazine, 5, 20);
    space.purge(Purge::Drain);
    let before = space.stats();
    assert_eq!((before.cached_areas, before.pooled_areas), (16, 0));
    free(&space, &mut magazine, 8, 25);
    let after = space.stats();
    assert_eq!((after.cached_areas, after.cached_pages.get(), after.pooled_areas), (11, 110, 5));
    assert_eq!(space.validate(), Ok(()));
}

#[test]
fn a_completed_list_is_cached_whole_where_others_make_room_for_it() {
    let machine = SimMachine::new(1);
    machine.set_online(lazy(100_000));
    // A share of 2048 pages.
    let space = space::<Standard>(&machine, 1 << 14);
    let mut magazine = space.magazine(0).unwrap();
    free(&space, &mut magazine, 6, 256);
    free(&space, &mut magazine, 1, 500);
    free(&space, &mut magazine, 1, 500);
    space.purge(Purge::Drain);
    let mut cached = |size| {
        let _area = magazine.alloc(&ask(size)).unwrap();
        (space.stats().cached_areas, space.stats().pooled_areas)
    };
    // With what is completed and not requested yet.
    assert_eq!(cached(256), (7, 0));
    assert_eq!(cached(500), (3, 3));
}

#[test]
fn a_completed_list_of_the_whole_share_leaves_nothing_else_in_the_cache() {
    let machine = SimMachine::new(1);
    machine.set_online(lazy(100_000));
    // A share of 2048 pages.
    let space = space::<Standard>(&machine, 1 << 14);
    let mut magazine = space.magazine(0).unwrap();
    let _two = [(); 2].map(|()| magazine.alloc(&ask(1)).unwrap());
    assert_eq!(space.stats().cached_areas, 1);
    free(&space, &mut magazine, 8, 256);
    space.purge(Purge::Drain);
    let _area = magazine.alloc(&ask(256)).unwrap();
    assert_eq!((space.stats().cached_areas, space.stats().pooled_areas), (7, 1));
    assert_eq!(space.validate(), Ok(()));
}

#[test]
fn a_size_too_large_for_a_row_takes_no_list_from_another() {
    let machine = SimMachine::new(1);
    let space = space::<Standard>(&machine, 1 << 20);
    let mut magazine = space.magazine(0).unwrap();
    // One, and a row of two. The sizes differ by a multiple of eight, so both would have the same list.
    let _three = [(); 3].map(|()| magazine.alloc(&ask(300)).unwrap());
    let _large = magazine.alloc(&ask(10_004)).unwrap();
    let _fourth = magazine.alloc(&ask(300)).unwrap();
    assert_eq!(space.stats().cached_areas, 3);
}

#[test]
fn an_order_of_frees_that_matters_permits_no_row_and_no_round() {
    let machine = SimMachine::new(2);
    let space = space::<Linux69>(&machine, 1 << 12);
    let mut magazine = space.magazine(0).unwrap();
    let areas = [(); 2].map(|()| magazine.alloc(&ask(3)).unwrap());
    assert_eq!(space.stats().cached_areas, 0);
    areas.into_iter().for_each(|area| magazine.free(area).unwrap());
    assert_eq!(space.lazy_pages().get(), 6);
}

#[test]
fn a_size_above_the_largest_that_is_pooled_comes_from_the_index() {
    let machine = SimMachine::new(1);
    let space = space::<Standard>(&machine, 1 << 20);
    let mut magazine = space.magazine(0).unwrap();
    for (size, again) in [(1 << 14, true), ((1 << 14) + 1, false)] {
        let starts = free(&space, &mut magazine, 1, size);
        space.purge(Purge::Drain);
        assert_eq!(space.stats().cached_pages.get(), size);
        let area = magazine.alloc(&ask(size)).unwrap();
        assert_eq!(area.start().page_floor() == starts[0], again);
    }
}

/// The pool has eight large sizes, so no list for another. A magazine has 210 completed areas of another, and its cache
/// has no room for all of them.
#[test]
fn an_alloc_and_a_drain_free_a_few_areas_in_the_index_at_a_time() {
    let machine = SimMachine::new(16);
    machine.drain_elsewhere(true);
    let space = space::<config::Standard>(&machine, 1 << 24);
    let large: Vec<_> = (311..319).map(|pages| space.alloc(0, &ask(pages)).unwrap()).collect();
    large.into_iter().for_each(|area| space.free(area).unwrap());
    space.purge(Purge::Drain);
    let mut magazine = space.magazine(0).unwrap();
    // A page of another node behind each area, so that no two merge.
    let alloc = |pages, count| -> Vec<_> {
        let area = |_| (space.alloc(0, &ask(pages)).unwrap(), space.alloc(3, &ask(1)).unwrap());
        (0..count).map(area).map(|(area, _between)| area).collect()
    };
    let [second, first] = [alloc(302, 100), alloc(300, 210)];
    second.into_iter().for_each(|area| magazine.free(area).unwrap());
    complete_round(&space, &mut magazine);
    let kept = magazine.try_alloc(&ask(302)).unwrap();
    first.into_iter().for_each(|area| magazine.free(area).unwrap());
    complete_round(&space, &mut magazine);
    let before = space.stats().areas;
    let last = magazine.try_alloc(&ask(300)).unwrap();
    let after = space.stats().areas;
    assert!(before - after <= config::Standard::SLICE_AREAS, "an alloc freed {} areas", before - after);
    let holds = || lockings()[LockClass::Free as usize];
    let begun = holds();
    magazine.drain();
    let (freed, holds) = (after - space.stats().areas, holds() - begun);
    assert!(freed > 50 && holds > freed / (config::Standard::SLICE_AREAS + 1), "{freed} in {holds}");
    [kept, last].into_iter().for_each(|area| space.free(area).unwrap());
    drop(magazine);
    space.validate().unwrap();
}
