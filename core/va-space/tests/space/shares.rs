//! Shares of magazines, which are smaller when there are more of them.

use crate::{Standard, ask, lazy, space};
use va_base::{LockClass, Pages};
use va_sim::machine::{SimMachine, lockings};
use va_space::{Drained, Magazine, Purge};

#[test]
fn mg1_a_magazine_that_is_added_makes_the_shares_of_idle_ones_smaller() {
    let machine = SimMachine::new(1);
    let space = space::<Standard>(&machine, 1 << 14);
    let mut first = space.magazine(0).unwrap();
    let areas: Vec<_> = (0..1000).map(|_| first.alloc(&ask(1)).unwrap()).collect();
    areas.into_iter().for_each(|area| first.free(area).unwrap());
    assert_eq!(space.stats().lazy_pages, Pages::new(1000));
    // A share is 2048 pages with one magazine, and 256 with eight, each of which may hold three.
    let _others: Vec<_> = (1..8).map(|cpu| space.magazine(cpu).unwrap()).collect();
    assert_eq!((space.drain_magazines(), space.validate()), (Drained::default(), Ok(())));
}

#[test]
fn mg1_a_magazine_that_is_added_leaves_a_small_one_what_it_holds() {
    let machine = SimMachine::new(1);
    let space = space::<Standard>(&machine, 1 << 14);
    let mut first = space.magazine(0).unwrap();
    let areas: Vec<_> = (0..100).map(|_| first.alloc(&ask(1)).unwrap()).collect();
    areas.into_iter().for_each(|area| first.free(area).unwrap());
    let before = space.stats();
    let _second = space.magazine(1).unwrap();
    assert_eq!(space.stats(), before);
    assert_eq!(space.lazy_pages(), Pages::new(0), "they are in its round");
}

#[test]
fn mg1_a_magazine_that_holds_its_new_share_three_times_is_left_alone() {
    for (size, drained) in [(3, 1), (4, 0)] {
        let machine = SimMachine::new(1);
        // A share of two magazines is a page.
        let space = space::<Standard>(&machine, 16);
        let mut first = space.magazine(0).unwrap();
        let area = first.alloc(&ask(size)).unwrap();
        first.free(area).unwrap();
        let _second = space.magazine(1).unwrap();
        assert_eq!(space.drain_magazines().magazines, drained, "{size} pages");
    }
}

#[test]
fn mg1_a_cache_above_a_share_that_became_smaller_is_moved_to_the_pool() {
    // Of areas up to 256 pages the pool has lists; a list of larger ones leaves in parts.
    for size in [1, 2, 100, 300] {
        let machine = SimMachine::new(1);
        machine.set_online(lazy(512));
        let space = space::<Standard>(&machine, 1 << 15);
        let mut first = space.magazine(0).unwrap();
        let round = |magazine: &mut Magazine<'_, _, _>, pages: u64| {
            let areas: Vec<_> = (0..pages / size).map(|_| magazine.alloc(&ask(size)).unwrap()).collect();
            areas.into_iter().for_each(|area| magazine.free(area).unwrap());
        };
        // Half of its share alone: more than a share of three, and less than three of those.
        (0..4).for_each(|_| round(&mut first, 1 << 11));
        let held = space.stats().cached_pages.get();
        let others: Vec<_> = (1..3).map(|cpu| space.magazine(cpu).unwrap()).collect();
        assert_eq!(space.stats().cached_pages.get(), held, "{size}");
        let share = (1 << 15) / 8 / 3;
        assert!(held > share, "{size}: {held}");
        for _ in 0..16 {
            let area = first.alloc(&ask(17)).unwrap();
            for _ in 0..64 {
                let small = first.alloc(&ask(3)).unwrap();
                first.free(small).unwrap();
            }
            first.free(area).unwrap();
        }
        let after = space.stats();
        assert!(after.cached_pages.get() <= share, "{size}: {after:?}");
        drop((first, others));
        assert_eq!(space.validate(), Ok(()));
    }
}

#[test]
fn mg1_a_list_for_which_a_call_makes_too_little_room_stays_in_the_pool() {
    let machine = SimMachine::new(1);
    // A share of 2048 pages.
    let space = space::<Standard>(&machine, 1 << 14);
    let mut magazine = space.magazine(0).unwrap();
    // The second area of a size comes with another one for the cache. A call moves fewer lists than these.
    let _held: Vec<_> = (2..62).flat_map(|size| [size; 2]).map(|size| magazine.alloc(&ask(size))).collect();
    machine.set_online(lazy(100_000));
    let large = [(); 3].map(|()| space.alloc(0, &ask(1000)).unwrap());
    large.into_iter().for_each(|area| magazine.free(area).unwrap());
    space.purge(Purge::Drain);
    assert_eq!(space.stats().cached_areas, 63);
    let before = space.stats().cached_pages.get();
    let _large = magazine.alloc(&ask(1000)).unwrap();
    let after = space.stats();
    // Some room was made, and not enough for the large ones.
    let pages = after.cached_pages.get();
    assert!(after.cached_areas > 0 && pages < before && pages > 2048 - 1000, "{before} {after:?}");
    assert_eq!(after.cached_areas + after.pooled_areas, 62);
    assert_eq!(space.validate(), Ok(()));
}

#[test]
fn a_size_that_makes_room_for_others_is_refilled_with_half_as_many() {
    let machine = SimMachine::new(1);
    // A share of 128 pages.
    let space = space::<Standard>(&machine, 1 << 10);
    let areas: Vec<_> = (0..200).map(|_| space.alloc(0, &ask(1)).unwrap()).collect();
    let large = space.alloc(0, &ask(120)).unwrap();
    areas.into_iter().chain([large]).for_each(|area| space.free(area).unwrap());
    space.purge(Purge::Drain);
    let mut magazine = space.magazine(0).unwrap();
    let mut alloc = |count: u64, pages: u64| {
        (0..count).for_each(|_| _ = magazine.alloc(&ask(pages)).unwrap());
        space.stats().cached_areas
    };
    // Refills of 1, 2, 4, 8 and 16; the next would be of 32.
    assert_eq!(alloc(16, 1), 15);
    // Seven of these stay.
    assert_eq!(alloc(1, 120), 7);
    assert_eq!(alloc(8, 1), 15);
}

#[test]
fn mg1_a_magazine_that_is_added_to_many_compares_a_few_of_them_in_turn() {
    let (machine, size) = (SimMachine::new(1), 1 << 18);
    // So much may be lazy that a round ends at a share.
    machine.set_online(256);
    let space = space::<Standard>(&machine, size);
    let mut all: Vec<_> = (0..32).map(|_| space.magazine(0).unwrap()).collect();
    for magazine in &mut all {
        let areas: Vec<_> = (0..900).map(|_| magazine.alloc(&ask(1)).unwrap()).collect();
        areas.into_iter().for_each(|area| magazine.free(area).unwrap());
    }
    let held = || (space.stats().lazy_pages.get() - space.lazy_pages().get()) + space.idle_pages().get();
    assert!(held() > 32 * 900);
    // They exceed three shares of 110 magazines all at once.
    let owners = || lockings()[LockClass::Owner as usize];
    let mut most = 0;
    while all.len() < 128 {
        let before = owners();
        all.push(space.magazine(0).unwrap());
        most = most.max(owners() - before);
        assert!(held() <= 2 * size / 5, "MG1: {} in {} magazines", held(), all.len());
    }
    assert!((2..=16).contains(&most), "{most} locks of magazines");
    assert_eq!(space.drain_magazines(), Drained::default());
    assert_eq!(space.validate(), Ok(()));
}
