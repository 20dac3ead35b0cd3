//! Rows: areas of one size that a magazine takes from the index at once.

use crate::magazine::space;
use crate::{FIRST, Standard, ask, complete_round, pages};
use va_base::{Request, VaRange};
use va_sim::machine::SimMachine;
use va_space::config::WithAmple;
use va_space::{Config, Purge, VmapSpace};

#[test]
fn a_run_from_the_index_is_contiguous_and_reserved() {
    let machine = SimMachine::new(1);
    let space = space(&machine, 4096);
    let mut magazine = space.magazine(0).unwrap();
    let areas: Vec<_> = (0..16).map(|_| magazine.alloc(&ask(3)).unwrap()).collect();
    let starts: Vec<u64> = areas.iter().map(|area| area.start().page_floor() - FIRST).collect();
    assert_eq!(starts, (0..16).map(|n| 3 * n).collect::<Vec<_>>());
    assert_eq!((space.validate(), space.stats().holes), (Ok(()), 1));
    // Every other one is freed, for which no slab is allocated any more.
    machine.fail_after(0, 0);
    for (n, area) in areas.into_iter().enumerate() {
        if n % 2 == 0 {
            magazine.free(area).unwrap();
        }
    }
    magazine.drain();
    space.purge(Purge::Full);
    assert_eq!((space.validate(), space.stats().holes), (Ok(()), 9));
}

#[test]
fn a_row_across_leaves_of_the_lowest_pages_is_found_whole() {
    let machine = SimMachine::new(1);
    let all = VaRange::from_pages(3, 100).unwrap();
    let space = VmapSpace::<_, Standard>::new(all, all, &machine).unwrap();
    let mut magazine = space.magazine(0).unwrap();
    // Pages 3, 4 to 5, 6 to 9, and 10 to 17: the first leaf ends at 16.
    let starts: Vec<_> = (0..15).map(|_| magazine.alloc(&ask(1)).unwrap().start().page_floor()).collect();
    assert_eq!(starts, (3..18).collect::<Vec<_>>());
    assert_eq!(space.validate(), Ok(()));
    // A leaf for each area: page 2, then 2 and 18, then these, 34 and 50.
    let all = VaRange::from_pages(2, 600).unwrap();
    let space = VmapSpace::<_, Standard>::new(all, all, &machine).unwrap();
    let mut magazine = space.magazine(0).unwrap();
    for others in [0, 1, 3] {
        let area = magazine.alloc(&ask(16)).unwrap();
        assert_eq!((space.stats().cached_areas, space.validate()), (others, Ok(())));
        magazine.free(area).unwrap();
        magazine.drain();
        space.purge(Purge::Full);
    }
}

#[test]
fn a_row_is_an_area_and_what_the_cache_may_hold() {
    let machine = SimMachine::new(1);
    // A share of 32 pages.
    let space = space(&machine, 256);
    let mut magazine = space.magazine(0).unwrap();
    // Of one, two, four, and again four.
    let _held: Vec<_> = (0..8).map(|_| magazine.alloc(&ask(10)).unwrap()).collect();
    assert_eq!((space.stats().cached_areas, space.stats().pooled_areas), (3, 0));
}

#[test]
fn a_row_has_128_pages_or_a_few_large_areas() {
    let machine = SimMachine::new(1);
    let space = space(&machine, 1 << 22);
    let mut magazine = space.magazine(0).unwrap();
    // Rows of one, two, four and eight, up to the longest.
    for (size, before, longest) in [(10, 15, 12), (2000, 7, 4)] {
        let held: Vec<_> = (0..before).map(|_| magazine.alloc(&ask(size)).unwrap()).collect();
        assert_eq!(space.stats().cached_areas, 0);
        let _next = magazine.alloc(&ask(size)).unwrap();
        assert_eq!(space.stats().cached_areas, longest - 1, "{size}");
        drop(held);
        magazine.drain();
    }
}

#[test]
fn an_alloc_from_what_is_available_takes_the_areas_of_a_row() {
    let machine = SimMachine::new(1);
    let space = space(&machine, 4096);
    let mut magazine = space.magazine(0).unwrap();
    // Rows of one, two and four: then the cache has three areas.
    let mut held: Vec<_> = (0..4).map(|_| magazine.alloc(&ask(10)).unwrap()).collect();
    assert_eq!(space.stats().cached_areas, 3);
    for left in (0..3).rev() {
        held.push(magazine.try_alloc(&ask(10)).unwrap());
        assert_eq!(space.stats().cached_areas, left);
    }
    assert!(held.windows(2).skip(3).all(|two| two[0].range().end() == two[1].start()));
    held.into_iter().for_each(|area| magazine.free(area).unwrap());
    assert_eq!(space.validate(), Ok(()));
}

#[test]
fn an_alloc_from_what_is_available_takes_an_area_of_any_size_from_the_magazine() {
    let machine = SimMachine::new(1);
    let space = space(&machine, 1 << 22);
    let mut magazine = space.magazine(0).unwrap();
    // More than a pool has lists for.
    for pages in [300, 20_000] {
        let area = magazine.alloc(&ask(pages)).unwrap();
        let start = area.start();
        magazine.free(area).unwrap();
        complete_round(&space, &mut magazine);
        let area = magazine.try_alloc(&ask(pages)).unwrap();
        assert_eq!(area.start(), start, "{pages} pages");
        magazine.free(area).unwrap();
    }
    assert_eq!(space.validate(), Ok(()));
}

#[test]
fn a_large_area_of_the_pool_is_found_where_the_cache_has_no_list_left() {
    let machine = SimMachine::new(1);
    let space = space(&machine, 1 << 22);
    let pooled = space.alloc(0, &ask(5000)).unwrap();
    let start = pooled.start();
    space.free(pooled).unwrap();
    space.purge(Purge::Drain);
    let mut magazine = space.magazine(0).unwrap();
    // The second of each size is a row of two, so eight lists have an area.
    let mut held: Vec<_> = (0..16).map(|nth| magazine.alloc(&ask(300 + nth / 2)).unwrap()).collect();
    assert_eq!((space.stats().cached_areas, space.stats().pooled_areas), (8, 1));
    held.push(magazine.alloc(&ask(5000)).unwrap());
    assert_eq!((held[16].start(), space.stats().pooled_areas), (start, 0));
    held.into_iter().for_each(|area| magazine.free(area).unwrap());
    assert_eq!(space.validate(), Ok(()));
}

#[test]
fn an_old_handle_frees_no_area_of_a_row() {
    let machine = SimMachine::new(1);
    let space = space(&machine, 4096);
    let mut magazine = space.magazine(0).unwrap();
    let old: Vec<_> = (0..7).map(|_| magazine.alloc(&ask(2)).unwrap()).collect();
    old.iter().for_each(|area| _ = space.free_at(area.start()).unwrap());
    magazine.drain();
    space.purge(Purge::Full);
    // A row of eight where those were.
    let new: Vec<_> = (0..8).map(|_| magazine.alloc(&ask(2)).unwrap()).collect();
    assert!(new.iter().zip(&old).all(|(new, old)| new.start() == old.start() && new != old));
    assert!(old.into_iter().all(|area| space.free(area).is_err()));
}

/// Returns a request for `pages` at multiples of `align` pages.
fn ask_aligned(pages: u64, align: u64) -> Request {
    Request::new(pages << 12, align << 12).unwrap()
}

#[test]
fn large_areas_come_in_rows_where_a_size_repeats() {
    let machine = SimMachine::new(1);
    let space = space(&machine, 1 << 22);
    let mut magazine = space.magazine(0).unwrap();
    // Two sizes in turn, each with a list of its own: one, then rows of 2 and 4. Areas at 2 MiB come in rows where none
    // would lie apart from the next.
    let (mut areas, mut cached) = (Vec::new(), Vec::new());
    for _ in 0..15 {
        areas.extend([ask(300), ask_aligned(1024, 512)].map(|request| magazine.alloc(&request).unwrap()));
        cached.push(space.stats().cached_areas);
    }
    assert_eq!(cached, [0, 1, 0, 3, 2, 1, 0, 3, 2, 1, 0, 3, 2, 1, 0].map(|areas| 2 * areas));
    let starts: Vec<u64> = areas.iter().map(|area| area.start().page_floor()).collect();
    assert!((8..15).all(|n| n % 4 == 3 || starts[2 * n] == starts[2 * n - 2] + 300), "{starts:?}");
    assert!((8..15).all(|n| n % 4 == 3 || starts[2 * n + 1] == starts[2 * n - 1] + 1024), "{starts:?}");
    assert!(starts.iter().skip(1).step_by(2).all(|start| start % 512 == 0), "{starts:?}");
    // Sizes that come once each take no more than was requested, neither do those of more than a row.
    areas.extend((600..620).map(|pages| magazine.alloc(&ask(pages)).unwrap()));
    areas.extend((0..3).map(|_| magazine.alloc(&ask(4097)).unwrap()));
    assert_eq!(space.stats().cached_areas, 0);
    // All lists have had a size by now, and two that alternate still have one each.
    areas.extend([700, 701, 700, 701].map(|pages| magazine.alloc(&ask(pages)).unwrap()));
    assert_eq!(space.stats().cached_areas, 2);
    for area in areas {
        magazine.free(area).unwrap();
    }
    assert_eq!(space.validate(), Ok(()));
}

#[test]
fn a_row_that_lacks_a_table_leaves_nothing_taken() {
    for request in [ask(16), ask_aligned(16, 16)] {
        let machine = SimMachine::new(1);
        let space = space(&machine, 1 << 22);
        let mut magazine = space.magazine(0).unwrap();
        let taken: Vec<_> = (0..63).map(|_| magazine.alloc(&request).unwrap()).collect();
        machine.fail_after(u64::MAX, 0);
        // The next 4 MiB have no slots: the row fails, then the single area.
        let before = space.stats();
        let more: Vec<_> = (0..20).map_while(|_| magazine.alloc(&request).ok()).collect();
        assert!(more.len() < 20, "{before:?}");
        assert_eq!(space.validate(), Ok(()));
        machine.fail_after(u64::MAX, u64::MAX);
        assert!(magazine.alloc(&request).is_ok());
        for area in taken.into_iter().chain(more) {
            magazine.free(area).unwrap();
        }
        drop(magazine);
        assert_eq!(space.validate(), Ok(()));
    }
}

#[test]
fn areas_that_would_lie_apart_come_alone() {
    let machine = SimMachine::new(1);
    let space = space(&machine, 1 << 12);
    let mut magazine = space.magazine(0).unwrap();
    // Stacks, between which three pages are free for others.
    let mut held: Vec<_> = (0..16).map(|_| magazine.alloc(&ask_aligned(5, 4)).unwrap()).collect();
    assert_eq!((space.stats().cached_areas, space.stats().holes), (0, 16));
    let starts: Vec<_> = held.iter().map(|area| area.start().page_floor()).collect();
    assert!(starts.windows(2).all(|two| two[1] - two[0] == 8) && starts[0] % 4 == 0, "{starts:?}");
    let between = magazine.alloc(&ask(3)).unwrap();
    assert_eq!(between.start().page_floor(), starts[0] + 5);
    // Nor is there a row for another alignment each time, though areas of one of them would be side by side.
    let align = |nth| if nth % 2 == 0 { 32 } else { 2 };
    held.extend((0..4).map(|nth| magazine.alloc(&ask_aligned(30, align(nth))).unwrap()));
    assert_eq!(space.stats().cached_areas, 0);
    // One that repeats has one, of four.
    held.push(magazine.alloc(&ask_aligned(30, 2)).unwrap());
    assert_eq!(space.stats().cached_areas, 3);
    assert_eq!(space.validate(), Ok(()));
    for area in held.into_iter().chain([between]) {
        magazine.free(area).unwrap();
    }
    drop(magazine);
    space.purge(Purge::Full);
    assert_eq!((space.validate(), space.stats().holes), (Ok(()), 1));
}

#[test]
fn an_aligned_row_of_ample_holes_passes_one_where_it_just_fits() {
    fn starts<C: Config>() -> Vec<u64> {
        let machine = SimMachine::new(1);
        let space = crate::space::<C>(&machine, 4096);
        let _busy = space.alloc(0, &ask(1).within(pages(13, 14))).unwrap();
        let mut magazine = space.magazine(0).unwrap();
        // One, and a row of two: eight pages, the first of them aligned.
        let areas: Vec<_> = (0..3).map(|_| magazine.alloc(&ask_aligned(4, 4)).unwrap()).collect();
        areas.iter().map(|area| area.start().page_floor() - FIRST).collect()
    }
    assert_eq!(starts::<Standard>(), [0, 4, 8]);
    assert_eq!(starts::<WithAmple<Standard>>(), [0, 16, 20]);
}

#[test]
fn rows_reserve_no_more_than_their_areas_need() {
    for request in [ask(3), ask_aligned(4, 4)] {
        let machine = SimMachine::new(1);
        let space = space(&machine, 1 << 16);
        let mut magazine = space.magazine(0).unwrap();
        let mut round = || {
            let areas: Vec<_> = (0..40).map(|_| magazine.alloc(&request).unwrap()).collect();
            areas.into_iter().for_each(|area| magazine.free(area).unwrap());
            magazine.drain();
            space.purge(Purge::Full);
            space.shrink();
            machine.allocated()
        };
        let first = round();
        assert!((0..100).all(|_| round() == first), "what was reserved for a row is not released");
    }
}
