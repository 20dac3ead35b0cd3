//! The end of a full pass: leaving areas are swept or sorted into the index, and do not wait for a later batch.

use crate::{FIRST, Standard, ask, lazy};
use va_base::{LockClass, Pages, Request, VaRange};
use va_sim::machine::{Flushing, SimMachine, lockings};
use va_space::{Area, Purge, VmapSpace};

fn space(machine: &SimMachine, size: u64) -> VmapSpace<&SimMachine, Standard> {
    let extent = VaRange::from_pages(FIRST, FIRST + size).unwrap();
    VmapSpace::new(extent, extent, machine).unwrap()
}

/// Allocates `count` adjacent areas of 1 to 3 pages.
fn row(space: &VmapSpace<&SimMachine, Standard>, count: u64) -> Vec<Area> {
    (0..count).map(|n| space.alloc(0, &Request::pages(1 + n % 3).unwrap()).unwrap()).collect()
}

/// Frees every `step`th area into the pool, in no order; returns the others.
fn pool_every(space: &VmapSpace<&SimMachine, Standard>, areas: Vec<Area>, step: usize) -> Vec<Area> {
    let (mut freed, mut busy) = (Vec::new(), Vec::new());
    for (n, area) in areas.into_iter().enumerate() {
        if n % step == 0 { freed.push(area) } else { busy.push(area) }
    }
    let len = freed.len();
    let mut freed: Vec<Option<Area>> = freed.into_iter().map(Some).collect();
    for n in 0..len {
        // 37 and the lengths here have no common factor.
        if let Some(area) = freed[n * 37 % len].take() {
            space.free(area).unwrap();
        }
    }
    assert!(freed.iter().all(Option::is_none));
    space.purge(Purge::Drain);
    assert_eq!(space.stats().pooled_areas, len as u64);
    busy
}

#[test]
fn whether_swept_or_sorted_all_comes_back_and_neighbours_merge() {
    // Of 1,000 areas all, each second, each fifth, and so few that a sweep would mostly pass areas in use.
    for (step, holes) in [(1, 1), (2, 501), (5, 201), (10, 101), (50, 21)] {
        let machine = SimMachine::new(1);
        let space = space(&machine, 1 << 20);
        let areas = row(&space, 1000);
        let busy = pool_every(&space, areas, step);
        let before = space.stats();
        space.purge(Purge::Full);
        let stats = space.stats();
        assert_eq!((space.validate(), stats.holes, stats.pooled_areas), (Ok(()), holes, 0), "each {step}th");
        assert_eq!(stats.busy_pages, before.busy_pages);
        assert_eq!(stats.areas, busy.len() as u64);
        for area in busy {
            space.free(area).unwrap();
        }
        space.purge(Purge::Full);
        assert_eq!((space.validate(), space.stats().holes), (Ok(()), 1));
    }
}

#[test]
fn what_is_flushed_does_not_wait_for_the_flight_of_the_rest() {
    let machine = SimMachine::new(1);
    let space = space(&machine, 1 << 20);
    let areas = row(&space, 300);
    let mut busy = pool_every(&space, areas, 2);
    machine.set_flushing(Flushing::OnRequest);
    let lazy = busy.pop().unwrap();
    let pages = lazy.size();
    space.free(lazy).unwrap();
    assert!(space.purge(Purge::Full).waiting);
    let stats = space.stats();
    assert_eq!((space.validate(), stats.pooled_areas, stats.lazy_pages), (Ok(()), 0, pages));
    assert_eq!(stats.holes, 151, "149 areas and the one in flight part what came back");
    machine.complete_flushes();
    assert!(!space.purge(Purge::Drain).waiting);
    assert_eq!((space.validate(), space.stats().lazy_pages), (Ok(()), Pages::new(0)));
}

#[test]
fn pu1_a_slice_of_a_sweep_is_as_short_as_any() {
    let machine = SimMachine::new(1);
    machine.drain_elsewhere(true);
    let space = space(&machine, 1 << 20);
    let areas = row(&space, 2000);
    let busy = pool_every(&space, areas, 1);
    assert!(busy.is_empty());
    // An impossible request begins a full pass; a call that stops it early leaves the rest to ticks.
    let low = VaRange::from_pages(FIRST, FIRST + 1000).unwrap();
    let early = space.alloc(0, &Request::pages(900).unwrap().within(low)).unwrap();
    let mut free = space.stats().free_pages.get();
    assert!(space.stats().lazy_pages.get() > 1000, "{:?}", space.stats());
    for _ in 0..100 {
        space.tick();
        let now = space.stats().free_pages.get();
        assert!(now - free <= 3 * 256, "PU1: {} pages in one slice", now - free);
        free = now;
        assert_eq!(space.validate(), Ok(()));
    }
    assert_eq!(space.stats().lazy_pages, Pages::new(0));
    space.free(early).unwrap();
    space.purge(Purge::Full);
    assert_eq!((space.validate(), space.stats().holes), (Ok(()), 1));
}

#[test]
fn a_full_purge_sorts_few_areas_among_many_and_sweeps_over_many() {
    let machine = SimMachine::new(1);
    machine.set_online(lazy(100_000));
    // Areas that leave, of 2000, and the slices that a sweep takes more than, or a sort.
    for (leave, at_least, at_most) in [(20, 1, 10), (2000, 50, 200)] {
        let space = space(&machine, 1 << 20);
        let areas: Vec<_> = (0..2000).map(|_| space.alloc(0, &ask(2)).unwrap()).collect();
        areas.into_iter().step_by(2000 / leave).for_each(|area| space.free(area).unwrap());
        let before = lockings()[LockClass::Purge as usize];
        space.purge(Purge::Full);
        let slices = lockings()[LockClass::Purge as usize] - before;
        assert!((at_least..=at_most).contains(&slices), "{slices} slices for {leave} areas");
        assert_eq!(space.stats().areas, 2000 - leave as u64);
    }
}
