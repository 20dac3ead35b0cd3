//! The moment at which a purge begins, the rounds of magazines, the decay of pools, and the counts that are returned.

use crate::{Standard, ask, at, space};
use va_base::{LockClass, Pages, VaRange};
use va_sim::machine::{SimMachine, lockings};
use va_space::config::WithLazyMax;
use va_space::{Magazine, Purge, Purged, VmapSpace};

const MAX: u64 = 64;
type Eager<'m> = VmapSpace<&'m SimMachine, WithLazyMax<Standard, MAX>>;
type EagerMagazine<'s, 'm> = Magazine<'s, &'m SimMachine, WithLazyMax<Standard, MAX>>;

/// Returns a space in which a purge is due when more than 64 pages are lazy.
fn eager(machine: &SimMachine) -> Eager<'_> {
    let all = VaRange::new(at(0), at(1 << 20)).unwrap();
    VmapSpace::new(all, all, machine).unwrap()
}

/// Frees areas of a page into a magazine until its round ends, or so many; returns how many.
fn free_round(space: &Eager<'_>, magazine: &mut EagerMagazine<'_, '_>, most: u64) -> u64 {
    let (before, mut freed) = (space.lazy_pages(), 0);
    while space.lazy_pages() == before && freed < most {
        magazine.free(space.alloc(0, &ask(1)).unwrap()).unwrap();
        freed += 1;
    }
    freed
}

#[test]
fn a_purge_begins_with_the_page_above_the_threshold() {
    for pages in [MAX, MAX + 1] {
        let free = |worker: bool, then: fn(&Eager<'_>)| {
            let machine = SimMachine::new(1);
            machine.drain_elsewhere(worker);
            let space = eager(&machine);
            space.free(space.alloc(0, &ask(pages)).unwrap()).unwrap();
            assert_eq!(machine.drains(), u64::from(pages > MAX));
            then(&space);
            (machine.flushes(), space.stats().purges)
        };
        let due = u64::from(pages > MAX);
        assert_eq!(free(false, |_| ()), (due, due), "by a free of {pages}");
        assert_eq!(free(true, |_| ()), (0, 0), "a worker was woken");
        assert_eq!(free(true, |space| _ = space.tick()), (due, due), "by a tick");
        assert_eq!(free(true, |space| _ = space.drain()), (due, due), "by a worker");
        let alloc = |space: &Eager<'_>| _ = space.magazine(0).unwrap().alloc(&ask(1)).unwrap();
        assert_eq!(free(true, alloc), (due, due), "by an alloc");
    }
}

#[test]
fn a_round_that_ends_counts_what_others_hold() {
    for (sealed, flushes) in [(24, 0), (25, 1)] {
        let machine = SimMachine::new(1);
        let space = eager(&machine);
        let [mut first, mut second] = [(); 2].map(|()| space.magazine(0).unwrap());
        // The first round had 65 pages when it began, and the second has 16.
        for (magazine, pages) in [(&mut first, 40), (&mut second, sealed)] {
            let area = space.alloc(0, &ask(pages)).unwrap();
            magazine.free(area).unwrap();
        }
        assert_eq!((machine.flushes(), machine.drains()), (flushes, flushes), "{sealed}");
    }
}

#[test]
fn a_worker_that_finds_nothing_due_is_woken_again() {
    for answer in [|space: &Eager<'_>| _ = space.tick(), |space: &Eager<'_>| _ = space.drain()] {
        let machine = SimMachine::new(1);
        machine.drain_elsewhere(true);
        let space = eager(&machine);
        let [mut first, mut second] = [(); 2].map(|()| space.magazine(0).unwrap());
        // The end of the second round counts what the first one holds; no more is lazy than may be.
        for (magazine, pages) in [(&mut first, 40), (&mut second, 25)] {
            let area = space.alloc(0, &ask(pages)).unwrap();
            magazine.free(area).unwrap();
        }
        assert_eq!((machine.drains(), space.lazy_pages().get()), (1, 25));
        answer(&space);
        let area = space.alloc(0, &ask(100)).unwrap();
        space.free(area).unwrap();
        assert_eq!((machine.drains(), machine.flushes()), (2, 0));
        answer(&space);
        assert!(machine.flushes() > 0);
    }
}

#[test]
fn a_round_has_what_may_still_be_lazy_or_a_share() {
    for (magazines, lazy, round) in [(1, 0, 65), (1, 50, 15), (1, 63, 4), (2, 0, 16), (3, 0, 10)] {
        let machine = SimMachine::new(1);
        machine.drain_elsewhere(true);
        let space = eager(&machine);
        if lazy > 0 {
            space.free(space.alloc(0, &ask(lazy)).unwrap()).unwrap();
        }
        let mut all: Vec<_> = (0..magazines).map(|_| space.magazine(0).unwrap()).collect();
        let freed = free_round(&space, &mut all[magazines - 1], u64::MAX);
        assert_eq!((freed, space.lazy_pages().get()), (round, lazy + round), "{magazines} {lazy}");
    }
}

#[test]
fn a_threshold_that_no_purge_reaches_has_rounds_of_a_share() {
    let machine = SimMachine::new(1);
    let all = VaRange::new(at(0), at(1 << 20)).unwrap();
    let space = VmapSpace::<_, WithLazyMax<Standard, { u64::MAX }>>::new(all, all, &machine).unwrap();
    let mut magazine = space.magazine(0).unwrap();
    let freed = (1..).find(|_| {
        magazine.free(space.alloc(0, &ask(256)).unwrap()).unwrap();
        space.lazy_pages() > Pages::new(0)
    });
    assert_eq!((freed, space.lazy_pages(), machine.flushes()), (Some(128), Pages::new(1 << 15), 0));
    drop(magazine);
    assert_eq!(space.validate(), Ok(()));
}

#[test]
fn rounds_do_not_become_shorter_while_a_worker_is_on_its_way() {
    let machine = SimMachine::new(1);
    machine.drain_elsewhere(true);
    let space = eager(&machine);
    let mut magazine = space.magazine(0).unwrap();
    let mut free = |most: u64| free_round(&space, &mut magazine, most);
    // The first wakes the worker.
    assert_eq!([(); 4].map(|()| free(u64::MAX)), [MAX + 1; 4]);
    assert_eq!(machine.drains(), 1);
    // The one in which the worker runs is no shorter, and wakes it again.
    free(10);
    assert_eq!(space.drain().left, Pages::new(0));
    assert_eq!(([(); 2].map(|()| free(u64::MAX)), machine.drains()), ([MAX - 9, MAX + 1], 2));
    assert_eq!((space.drain().left, machine.flushes()), (Pages::new(0), 2));
    drop(magazine);
    assert_eq!(space.validate(), Ok(()));
}

#[test]
fn a_pool_loses_a_quarter_of_what_was_idle_since_16_passes() {
    let machine = SimMachine::new(1);
    let space = space::<Standard>(&machine, 1 << 20);
    let cycle = |count: u64| {
        let areas: Vec<_> = (0..count).map(|_| space.alloc(0, &ask(5)).unwrap()).collect();
        areas.into_iter().for_each(|area| space.free(area).unwrap());
    };
    let pass = |passes: u64| {
        (0..passes).for_each(|_| _ = space.purge(Purge::Drain));
        space.stats().pooled_areas
    };
    cycle(100);
    // Every sixteenth pass decays. The first finds no area, and the next one begins to count idle areas.
    assert_eq!([pass(17), pass(15), pass(1)], [100, 100, 75]);
    // Of 75, 60 are used: fifteen are idle.
    cycle(60);
    assert_eq!([pass(15), pass(1)], [75, 72]);
    // None is idle.
    cycle(72);
    assert_eq!([pass(15), pass(1)], [72, 72]);
    assert_eq!(space.shrink(), 72);
    assert_eq!((space.stats().pooled_areas, space.shrink()), (0, 0));
}

#[test]
fn a_purge_returns_what_it_settled_and_left() {
    let machine = SimMachine::new(1);
    let space = space::<Standard>(&machine, 1 << 20);
    let mut settled = 0;
    for (how, count) in [(Purge::Drain, 3), (Purge::Full, 5), (Purge::Drain, 40), (Purge::Aliases, 2)] {
        let areas: Vec<_> = (0..count).map(|_| space.alloc(0, &ask(7)).unwrap()).collect();
        areas.into_iter().for_each(|area| space.free(area).unwrap());
        settled += count;
        let done = Purged { areas: settled, left: Pages::new(0), waiting: false };
        assert_eq!((space.purge(how), space.stats().purged_areas), (done, settled));
        assert_eq!(space.tick(), done, "nothing is due");
    }
}

#[test]
fn a_size_above_the_largest_that_is_pooled_goes_to_the_index() {
    let machine = SimMachine::new(1);
    let space = space::<Standard>(&machine, 1 << 20);
    for (size, pooled) in [(1 << 14, 1), ((1 << 14) + 1, 0)] {
        space.free(space.alloc(0, &ask(size)).unwrap()).unwrap();
        space.purge(Purge::Drain);
        assert_eq!((space.stats().pooled_areas, space.shrink()), (pooled, pooled));
    }
}

#[test]
fn a_size_above_the_largest_that_is_pooled_goes_from_a_magazine_to_the_index() {
    // The cache has room for none, or for three.
    for (size, drains) in [(70_000, false), (20_000, true), (20_000, false)] {
        let machine = SimMachine::new(1);
        let space = space::<Standard>(&machine, 1 << 22);
        let mut magazine = space.magazine(0).unwrap();
        let starts: Vec<_> = (0..20)
            .map(|_| {
                let area = magazine.alloc(&ask(size)).unwrap();
                let start = area.start();
                magazine.free(area).unwrap();
                start
            })
            .collect();
        assert_eq!((space.stats().pooled_areas, space.validate()), (0, Ok(())), "{size}");
        assert!(starts[10..].iter().max() <= starts[..10].iter().max(), "{starts:?}");
        if drains {
            assert!(space.stats().cached_areas > 0);
            magazine.drain();
            space.purge(Purge::Drain);
            assert_eq!((space.stats().pooled_areas, space.stats().holes), (0, 1));
        }
    }
}

#[test]
fn a_free_that_ends_a_round_of_many_lists_leaves_the_slice_to_the_next() {
    let machine = SimMachine::new(1);
    let all = VaRange::new(at(0), at(1 << 20)).unwrap();
    let space = VmapSpace::<_, WithLazyMax<Standard, 200>>::new(all, all, &machine).unwrap();
    let mut magazine = space.magazine(0).unwrap();
    let mut slices_of = |size: u64| {
        let area = space.alloc(0, &ask(size)).unwrap();
        let before = lockings()[LockClass::Purge as usize];
        magazine.free(area).unwrap();
        lockings()[LockClass::Purge as usize] - before
    };
    // A round of 210 pages in twenty lists ends, and is flushed.
    assert_eq!((1..=20).map(&mut slices_of).sum::<u64>(), 1);
    assert_eq!((space.lazy_pages(), space.stats().cached_areas), (Pages::new(0), 20));
    // The next one moves those lists into the cache.
    assert_eq!([201, 1, 1].map(slices_of), [0, 1, 0]);
    assert_eq!(space.lazy_pages(), Pages::new(0));
}

#[test]
fn a_drain_of_a_magazine_purges_to_the_end() {
    let machine = SimMachine::new(1);
    let space = eager(&machine);
    let mut magazine = space.magazine(0).unwrap();
    // Without an owner each goes to the index by itself, which takes several slices.
    let window = VaRange::new(at(0), at(1 << 10)).unwrap();
    let single: Vec<_> = (0..20).map(|_| space.alloc(0, &ask(3).within(window)).unwrap()).collect();
    magazine.free(space.alloc(0, &ask(40)).unwrap()).unwrap();
    single.into_iter().for_each(|area| space.free(area).unwrap());
    assert_eq!((space.lazy_pages(), machine.flushes()), (Pages::new(60), 0));
    magazine.drain();
    assert_eq!((space.lazy_pages(), space.stats().purges), (Pages::new(0), 1));
}
