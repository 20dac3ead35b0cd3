//! Areas that are split, joined and resized, beside the reference model of the space: the same results, the same areas,
//! nothing lost.

use crate::{Standard, Whole, ask, at, lazy, pages};
use proptest::prelude::*;
use va_base::{Pages, Request, Va, VaRange};
use va_sim::effort::some;
use va_sim::machine::SimMachine;
use va_sim::model::ModelIndex;
use va_sim::space_model::SpaceModel;
use va_space::config::WithTrees;
use va_space::{Config, Purge, ReshapeError, SpaceError, State, VmapSpace};
use va_tree::FreeIndex;

/// A call that a test can make. Arguments are pages of the space, or the number of a busy area.
#[derive(Clone, Debug)]
enum Call {
    Alloc(u64),
    AllocAt(u64, u64),
    Split(u64),
    Join(u64),
    JoinArea(usize),
    Resize(u64, u64),
    ResizeArea(usize, u64),
    Free(usize),
    Purge,
}

fn call(size: u64) -> impl Strategy<Value = Call> {
    prop_oneof![
        4 => (1..12u64).prop_map(Call::Alloc),
        4 => (0..size, 1..12u64).prop_map(|(page, pages)| Call::AllocAt(page, pages)),
        6 => (0..size).prop_map(Call::Split),
        1 => (0..size).prop_map(Call::Join),
        4 => any::<usize>().prop_map(Call::JoinArea),
        1 => (0..size, 0..20u64).prop_map(|(page, pages)| Call::Resize(page, pages)),
        8 => (any::<usize>(), 0..20u64).prop_map(|(nth, pages)| Call::ResizeArea(nth, pages)),
        4 => any::<usize>().prop_map(Call::Free),
        1 => Just(Call::Purge),
    ]
}

/// Compares spaces of `size` pages, whose default window ends at page `window`.
fn compare<C: Config>(size: u64, window: u64, calls: &[Call]) -> Result<(), TestCaseError> {
    let machine = SimMachine::new(1);
    let space = VmapSpace::<_, C>::new(pages(0, size), pages(0, window), &machine).unwrap();
    let index = ModelIndex::new(pages(0, size), pages(0, window)).unwrap();
    let mut model = SpaceModel::<C, _>::new(index, 1);
    // More than there are.
    machine.set_online(lazy(8192));
    model.set_online(lazy(8192));
    for call in calls {
        let areas: Vec<_> = model.busy().collect();
        let nth = |nth: usize| areas[nth % areas.len()].start();
        match call {
            &Call::Alloc(size) => {
                let request = Request::pages(size).unwrap();
                let got = space.alloc(0, &request).ok().map(|area| area.range());
                prop_assert_eq!(got.map(VaRange::start), model.alloc(0, &request));
                prop_assert!(got.is_none_or(|area| pages(0, window).encloses(area)), "{:?}", got);
            }
            &Call::AllocAt(page, size_wanted) => {
                let range = pages(page, (page + size_wanted).min(size));
                let got = space.alloc_at(range);
                prop_assert_eq!(got.is_ok(), model.alloc_at(range), "{:?}: {:?}", call, got);
                prop_assert!(got.is_ok_and(|area| area.range() == range) || space.alloc_at(range).is_err());
            }
            &Call::Split(page) => {
                let got = space.split(at(page));
                prop_assert_eq!(got.is_ok(), model.split(at(page)), "{:?}: {:?}", call, got);
            }
            Call::Join(_) | Call::JoinArea(_) => {
                let place = match *call {
                    Call::Join(page) => at(page),
                    Call::JoinArea(n) if !areas.is_empty() => nth(n),
                    _ => continue,
                };
                let got = space.join(place);
                prop_assert_eq!(got.is_ok(), model.join(place), "{:?}: {:?}", call, got);
            }
            Call::Resize(..) | Call::ResizeArea(..) => {
                let (place, want) = match *call {
                    Call::Resize(page, want) => (at(page), want),
                    Call::ResizeArea(n, want) if !areas.is_empty() => (nth(n), want),
                    _ => continue,
                };
                let got = space.resize_at(place, Pages::new(want));
                prop_assert_eq!(got.is_ok(), model.resize(place, want), "{:?}: {:?}", call, got);
                if let Err(ReshapeError::Blocked { area, requested, possible }) = got {
                    prop_assert!(area.len_bytes() >> 12 <= possible.get() && possible < requested);
                    // The size reported as possible is possible, and one page more is not.
                    prop_assert!(space.resize_at(place, Pages::new(possible.get() + 1)).is_err());
                    prop_assert!(space.resize_at(place, possible).is_ok());
                    prop_assert!(model.resize(place, possible.get()));
                }
            }
            &Call::Free(n) if !areas.is_empty() => {
                prop_assert_eq!(space.free_at(nth(n)).ok(), model.free_at(nth(n)));
            }
            Call::Free(_) => {}
            Call::Purge => {
                space.purge(Purge::Full);
                model.purge(Purge::Full);
            }
        }
        prop_assert_eq!(space.validate(), Ok(()), "{:?}", call);
        prop_assert_eq!(model.validate(), Ok(()), "{:?}", call);
        let busy: Vec<_> =
            space.areas().filter(|seen| seen.state == State::Busy).map(|seen| seen.range).collect();
        prop_assert_eq!(busy, model.busy().collect::<Vec<_>>(), "{:?}", call);
        prop_assert_eq!(space.stats().holes, model.index().hole_count(), "{:?}", call);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: some(128), failure_persistence: None, max_shrink_iters: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn a_space_whose_areas_change_shape_equals_its_model(
        (size, calls) in (30..200u64).prop_flat_map(|size| (Just(size), prop::collection::vec(call(size), 1..200)))
    ) {
        for window in [size, size / 2] {
            compare::<Whole>(size, window, &calls)?;
            compare::<WithTrees<Whole>>(size, window, &calls)?;
        }
    }
}

#[test]
fn an_area_that_leaves_the_default_window_has_no_owner_and_is_not_pooled() {
    for joins in [false, true] {
        let machine = SimMachine::new(1);
        let window = pages(0, 84);
        let space = VmapSpace::<_, Standard>::new(pages(0, 1000), window, &machine).unwrap();
        let start = space.alloc(0, &ask(84)).unwrap().start();
        assert!(space.find(start).is_some_and(|seen| seen.owner == Some(0)));
        if joins {
            let above = space.alloc(0, &ask(116).within(pages(84, 1000))).unwrap().start();
            assert_eq!(space.join(above), Ok(pages(0, 200)));
        } else {
            assert_eq!(space.grow_at(start, Pages::new(200)), Ok(pages(0, 200)));
        }
        assert!(space.find(start).is_some_and(|seen| seen.owner.is_none()));
        assert_eq!(space.validate(), Ok(()));
        // Neither has a half of it.
        space.split(at(84)).unwrap();
        assert!(space.areas().all(|seen| seen.owner.is_none()));
        assert_eq!(space.free_at(at(84)), Ok(pages(84, 200)));
        space.purge(Purge::Drain);
        assert_eq!(space.stats().pooled_areas, 0);
        let got = space.alloc(0, &ask(116));
        assert!(matches!(got, Err(SpaceError::Impossible { .. })), "{got:?}");
    }
}

#[test]
fn an_area_that_grows_in_the_default_window_keeps_its_owner() {
    let machine = SimMachine::new(1);
    let space = VmapSpace::<_, Standard>::new(pages(0, 1000), pages(0, 84), &machine).unwrap();
    let start = space.alloc(0, &ask(20)).unwrap().start();
    assert_eq!(space.grow_at(start, Pages::new(40)), Ok(pages(0, 40)));
    let above = space.alloc(0, &ask(44)).unwrap().start();
    assert_eq!(space.join(above), Ok(pages(0, 84)));
    assert!(space.find(start).is_some_and(|seen| seen.owner == Some(0)));
}

#[test]
fn sp3_areas_cut_to_pages_come_back_without_anything_from_the_machine() {
    let machine = SimMachine::new(1);
    let space = VmapSpace::<_, Standard>::new(pages(0, 4000), pages(0, 4000), &machine).unwrap();
    let start = space.alloc(0, &Request::pages(4000).unwrap()).unwrap().start();
    for page in 1..4000 {
        space.split(at(page)).unwrap();
    }
    machine.fail_after(0, 0);
    for page in (0..4000).step_by(2).chain((1..4000).step_by(2)) {
        space.free_at(at(page)).unwrap();
    }
    space.purge(Purge::Full);
    assert_eq!((space.validate(), space.stats().holes, start), (Ok(()), 1, at(0)));
}

#[test]
fn sp4_a_change_of_shape_that_fails_changes_nothing() {
    let machine = SimMachine::new(1);
    let size = 1 << 20;
    let space = VmapSpace::<_, Standard>::new(pages(0, size), pages(0, size), &machine).unwrap();
    let start = space.alloc(0, &Request::pages(size).unwrap()).unwrap().start();
    machine.fail_after(0, 0);
    let seen = |space: &VmapSpace<_, _>| (space.find(start), space.stats());
    // Far from the start, in tables that were never allocated; then near it, until the index needs records.
    let mut failed = Vec::new();
    for page in [size / 2].into_iter().chain(1..3000) {
        let before = seen(&space);
        match space.split(at(page)) {
            Ok(_) => {}
            Err(error) => {
                assert_eq!(seen(&space), before);
                failed.push(error);
            }
        }
        assert!(failed.len() < 5000);
    }
    assert!(failed.contains(&ReshapeError::NoMeta(SpaceError::NoTable)), "{failed:?}");
    machine.fail_after(u64::MAX, u64::MAX);
    assert_eq!(space.validate(), Ok(()));
    let unchanged = |error: ReshapeError| (error, space.validate()).1 == Ok(());
    assert!(unchanged(space.split(Va::new(at(3).get() + 1)).unwrap_err()));
    assert!(unchanged(space.split(start).unwrap_err()));
    assert!(unchanged(space.join(start).unwrap_err()));
    assert!(unchanged(space.resize_at(start, Pages::new(0)).unwrap_err()));
    assert!(unchanged(space.resize_at(start, Pages::new(u64::MAX)).unwrap_err()));
    assert!(unchanged(space.resize_at(Va::new(start.get() + 1), Pages::new(1)).unwrap_err()));
    let blocked = space.resize_at(start, Pages::new(9)).unwrap_err();
    assert!(
        matches!(blocked, ReshapeError::Blocked { possible, .. } if possible == Pages::new(1)),
        "{blocked}"
    );
}

#[test]
fn an_area_grows_to_the_end_of_the_space_and_no_further() {
    let machine = SimMachine::new(1);
    let space = crate::space::<Standard>(&machine, 64);
    let area = space.alloc(0, &ask(60)).unwrap().range();
    let past = ReshapeError::BadSize { area, requested: Pages::new(65) };
    assert_eq!(space.grow_at(area.start(), Pages::new(65)), Err(past));
    assert_eq!(space.grow_at(area.start(), Pages::new(64)), Ok(pages(0, 64)));
    let none = ReshapeError::BadSize { area: pages(0, 64), requested: Pages::new(0) };
    assert_eq!(space.resize_at(area.start(), Pages::new(0)), Err(none));
}

#[test]
fn an_old_handle_frees_no_half_and_no_congruent_area() {
    let machine = SimMachine::new(1);
    let space = crate::space::<Standard>(&machine, 64);
    let old = space.alloc_at(pages(4, 8)).unwrap();
    space.free_at(at(4)).unwrap();
    space.purge(Purge::Full);
    let _whole = space.alloc_at(pages(0, 8)).unwrap();
    assert_eq!(space.split(at(4)), Ok((pages(0, 4), pages(4, 8))));
    assert!(space.free(old).is_err());
    let old = space.alloc_highest(&ask(4)).unwrap();
    let start = old.start();
    space.free_at(start).unwrap();
    space.purge(Purge::Full);
    let parts = [(0, 4 * va_base::PAGE_SIZE)];
    let areas = va_tree::Congruent::new(&parts, va_base::PAGE_SIZE).unwrap();
    assert_eq!(space.alloc_congruent(&areas), Ok(start));
    assert!(space.free(old).is_err());
}
