//! The steps of a request for which no hole fits, and those that are left out.

use crate::{Linux69, Standard, ask, at, lazy, pages, space};
use va_base::{Context, Machine, Pages, Platform, Request, VaRange};
use va_sim::machine::SimMachine;
use va_space::{Config, Purge, SpaceError};

/// The largest size that is pooled.
const POOLED: u64 = 1 << 14;

fn aligned(size: u64, align: u64) -> Request {
    Request::new(size << 12, align << 12).unwrap()
}

#[test]
fn a_failure_is_known_for_requests_that_are_no_easier() {
    let window = |first, end| VaRange::new(at(first), at(end)).unwrap();
    let failing = aligned(8, 4).within(window(8, 56));
    let known = [
        (failing, true),
        (aligned(9, 4).within(window(8, 56)), true),
        (aligned(7, 4).within(window(8, 56)), false),
        (aligned(8, 8).within(window(8, 56)), true),
        (aligned(8, 2).within(window(8, 56)), false),
        (aligned(8, 4).within(window(12, 52)), true),
        (aligned(8, 4).within(window(12, 60)), false),
        (aligned(8, 4).within(window(4, 52)), false),
    ];
    let machine = SimMachine::new(1);
    machine.set_online(lazy(64));
    for (request, is_known) in known {
        let space = space::<Standard>(&machine, 64);
        let mut areas: Vec<_> = (0..64).map(|_| space.alloc(0, &ask(1)).unwrap()).collect();
        let purges = |request: &Request| {
            let before = space.stats().purges;
            assert!(matches!(space.alloc(0, request), Err(SpaceError::NoSpace { .. })));
            space.stats().purges - before
        };
        assert_eq!((purges(&failing), purges(&request)), (1, u64::from(!is_known)), "{request:?}");
        // A free, and slices that may have brought something back.
        space.free(areas.pop().unwrap()).unwrap();
        assert_eq!(purges(&failing), 1);
        space.purge(Purge::Drain);
        assert_eq!((purges(&failing), purges(&failing)), (1, 0));
    }
}

#[test]
fn a_window_above_the_space_is_impossible() {
    let machine = SimMachine::new(1);
    let space = space::<Standard>(&machine, 64);
    for (window, possible) in [(pages(64, 70), false), (pages(65, 70), false), (pages(63, 70), true)] {
        let got = space.alloc(0, &ask(1).within(window));
        assert_eq!(got.is_ok(), possible, "{got:?}");
        assert!(possible || matches!(got, Err(SpaceError::Impossible { .. })), "{got:?}");
    }
}

#[test]
fn the_largest_size_that_is_pooled_comes_from_another_node() {
    let machine = SimMachine::new(2);
    let space = space::<Standard>(&machine, 2 * POOLED);
    let area = space.alloc(0, &ask(POOLED)).unwrap();
    let (start, _rest) = (area.start(), space.alloc(0, &ask(POOLED)).unwrap());
    space.free(area).unwrap();
    space.purge(Purge::Drain);
    let got = space.alloc(1, &ask(POOLED).context(Context::Atomic)).unwrap();
    assert_eq!((got.start(), space.stats().purges), (start, 1));
}

#[test]
fn an_area_of_another_node_has_the_owner_that_requests_it_if_that_has_a_node() {
    for (used, owner) in [(true, Some(1)), (false, None)] {
        let machine = SimMachine::new(2);
        let space = space::<Standard>(&machine, 64);
        let area = space.alloc(0, &ask(32)).unwrap();
        let _rest = (space.alloc(u32::from(used), &ask(1)).unwrap(), space.alloc(0, &ask(31)).unwrap());
        space.free(area).unwrap();
        space.purge(Purge::Drain);
        // It makes no node.
        let got = space.alloc(1, &ask(32).context(Context::Atomic)).unwrap();
        assert_eq!(space.find(got.start()).map(|seen| seen.owner), Some(owner));
    }
}

/// Standard, without pools.
struct NoPools;

impl Config for NoPools {
    type Base = Standard;
    type Index<P: Platform + Clone + Send> = <Standard as Config>::Index<P>;
    type Zone = <Standard as Config>::Zone;
    type Decay = <Standard as Config>::Decay;
    type Lookup<P: Machine> = <Standard as Config>::Lookup<P>;
    const POOL_PAGES_MAX: u64 = 0;
}

#[test]
fn without_pools_no_area_has_an_owner() {
    let machine = SimMachine::new(2);
    let space = space::<NoPools>(&machine, 64);
    let area = space.alloc(1, &ask(3)).unwrap();
    assert_eq!(space.find(area.start()).map(|seen| seen.owner), Some(None));
}

#[test]
fn the_largest_size_that_is_pooled_comes_from_a_magazine() {
    let machine = SimMachine::new(2);
    let space = space::<Standard>(&machine, 8 * POOLED);
    let mut magazine = space.magazine(1).unwrap();
    let area = magazine.alloc(&ask(POOLED)).unwrap();
    let (start, _rest) = (area.start(), space.alloc(0, &ask(7 * POOLED)).unwrap());
    magazine.free(area).unwrap();
    space.purge(Purge::Drain);
    let before = space.stats();
    assert_eq!(before.cached_pages, Pages::new(POOLED));
    let got = space.alloc(0, &ask(POOLED)).unwrap();
    assert_eq!((got.start(), space.stats().purges), (start, before.purges));
}

#[test]
fn a_policy_that_does_not_steal_purges() {
    let machine = SimMachine::new(2);
    let space = space::<Linux69>(&machine, 64);
    let area = space.alloc(0, &ask(32)).unwrap();
    let _rest = space.alloc(0, &ask(32)).unwrap();
    space.free(area).unwrap();
    space.purge(Purge::Drain);
    let before = space.stats();
    assert_eq!(before.pooled_areas, 1);
    assert!(space.alloc(1, &ask(32)).is_ok());
    assert_eq!(space.stats().purges, before.purges + 1);
}

#[test]
fn a_policy_that_does_not_steal_purges_what_a_drain_of_magazines_brings() {
    let machine = SimMachine::new(2);
    let space = space::<Linux69>(&machine, 64);
    let areas = [(); 3].map(|()| space.alloc(0, &ask(4)).unwrap());
    let _rest = space.alloc(0, &ask(52)).unwrap();
    areas.into_iter().for_each(|area| space.free(area).unwrap());
    space.purge(Purge::Drain);
    let mut magazine = space.magazine(0).unwrap();
    // Refills of one and two.
    let _two = [(); 2].map(|()| magazine.alloc(&ask(4)).unwrap());
    let before = space.stats();
    assert_eq!((before.cached_areas, before.pooled_areas), (1, 0));
    assert!(space.alloc(0, &ask(4)).is_ok());
    assert_eq!(space.stats().purges, before.purges + 1);
}

#[test]
fn a_failure_stays_known_when_an_empty_magazine_is_drained() {
    let machine = SimMachine::new(1);
    let space = space::<Standard>(&machine, 64);
    let mut magazine = space.magazine(0).unwrap();
    let _all = space.alloc(0, &ask(64)).unwrap();
    let mut purges = || {
        let before = space.stats().purges;
        assert!(space.alloc(0, &ask(1)).is_err());
        magazine.drain();
        space.stats().purges - before
    };
    assert_eq!([(); 3].map(|()| purges()), [1, 0, 0]);
}
