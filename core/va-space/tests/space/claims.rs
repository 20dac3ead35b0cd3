//! Calls that err beside others: each takes what it found, or nothing.

use super::ask;
use va_base::{Context, LockClass, Pages, Request, Va, VaRange};
use va_sim::pause::{Pause, PausingMachine};
use va_space::config::{Linux69, OneLock52, Standard};
use va_space::{Config, Purge, Release, ReleaseError, ReshapeError, VmapSpace};

const NOW: Context = Context::Sleeping;

fn pages(first: u64, end: u64) -> VaRange {
    VaRange::from_pages(first, end).unwrap()
}

fn page(page: u64) -> Va {
    Va::from_page(page)
}

fn space<C: Config>(machine: &PausingMachine) -> VmapSpace<&PausingMachine, C> {
    VmapSpace::new(pages(16, 1024), pages(16, 1024), machine).unwrap()
}

#[test]
fn a_restore_that_fails_frees_nothing_of_others() {
    fn by_policy<C: Config>() {
        for stops in 1..6 {
            let machine = Pause::machine(1);
            let space = space::<C>(&machine);
            let _busy = space.alloc_at(pages(100, 104)).unwrap();
            let saved = [(pages(16, 20), None), (pages(102, 106), Some(3))];
            let restores = || space.restore(&saved);
            let (restored, other) = machine.watcher.beside(LockClass::Free, stops, restores, || {
                // A late free of the first area, and a caller that gets the address.
                let _late = space.free_at(page(16));
                space.purge(Purge::Full);
                space.alloc(0, &ask(8)).unwrap()
            });
            assert!(restored.is_err(), "{stops}");
            assert_eq!(space.free(other), Ok(()), "stopped before the lock {stops}");
            // The rest is one hole again, without a flush of what was not used.
            assert_eq!(space.lazy_pages(), Pages::new(8));
            space.purge(Purge::Full);
            assert_eq!((space.stats().busy_pages, space.validate()), (Pages::new(4), Ok(())));
        }
    }
    by_policy::<Standard>();
    by_policy::<Linux69>();
    by_policy::<OneLock52>();
}

#[test]
fn a_restore_shows_all_areas_or_none() {
    let machine = Pause::machine(1);
    let space = space::<Standard>(&machine);
    let saved = [(pages(16, 20), Some(7)), (pages(30, 31), None), (pages(40, 44), Some(9))];
    let seen = || saved.map(|(range, _)| space.find(range.start()).is_some());
    for stops in 0..3 {
        let (restored, found) =
            machine.watcher.beside(LockClass::Free, stops, || space.restore(&saved), seen);
        assert_eq!((restored, found, seen()), (Ok(()), [false; 3], [true; 3]));
        for (range, note) in saved {
            assert_eq!(space.find(range.start()).unwrap().note, note);
            assert_eq!(space.free_at(range.start()), Ok(range));
        }
        space.purge(Purge::Full);
    }
    // Two that overlap.
    let twice = [(pages(16, 20), None), (pages(18, 22), None)];
    assert!(space.restore(&twice).is_err());
    assert_eq!((space.stats().areas, space.validate()), (0, Ok(())));
}

#[test]
fn a_resize_beside_a_free_leaves_an_area_around_its_cut_alone() {
    for stops in 0..4 {
        let machine = Pause::machine(1);
        let space = space::<Standard>(&machine);
        let _first = space.alloc_at(pages(64, 72)).unwrap();
        let resizes = || space.resize_at(page(64), Pages::new(3));
        let (resized, other) = machine.watcher.beside(LockClass::Free, stops, resizes, || {
            // Nothing begins at page 64 from here on, and page 67, the cut, is inside.
            let _freed = space.free_at(page(64));
            space.purge(Purge::Full);
            space.alloc_at(pages(65, 73)).ok()
        });
        assert!(matches!(resized, Ok(_) | Err(ReshapeError::NoArea { .. })), "{resized:?}");
        assert!(resized.is_err() || resized.unwrap().start() == page(64), "{resized:?}");
        if let Some(other) = other {
            assert_eq!(space.free(other), Ok(()), "stopped before the lock {stops}");
        }
        assert_eq!(space.validate(), Ok(()));
    }
}

#[test]
fn what_a_resize_cuts_off_is_lazy_and_was_never_busy() {
    fn by_policy<C: Config>() {
        let machine = Pause::machine(1);
        let space = space::<C>(&machine);
        let at = space.alloc(0, &ask(8)).unwrap().start();
        // Wherever it stops, no caller gets the upper part by its address.
        for (stops, size) in [(0, 6), (1, 4), (2, 2)] {
            let (first, cut) = (at.page_floor(), at.page_floor() + size);
            let resizes = || space.resize_at(at, Pages::new(size));
            let (resized, stolen) =
                machine.watcher.beside(LockClass::Free, stops, resizes, || space.free_at(page(cut)).is_ok());
            assert_eq!((resized, stolen), (Ok(pages(first, first + size)), false));
            assert_eq!(space.validate(), Ok(()));
        }
        assert_eq!(space.lazy_pages(), Pages::new(6));
        space.purge(Purge::Full);
        assert_eq!((space.stats().busy_pages, space.validate()), (Pages::new(2), Ok(())));
    }
    by_policy::<Standard>();
    by_policy::<Linux69>();
}

#[test]
fn a_free_that_names_a_size_takes_no_other() {
    let machine = Pause::machine(1);
    let space = space::<Standard>(&machine);
    for size in [3, 1 << 30] {
        let all = pages(16, 1 << 40);
        let space = VmapSpace::<_>::new(all, all, &machine).unwrap();
        let area = space.alloc(0, &ask(size)).unwrap();
        let (at, range) = (area.start(), area.range());
        let wrong = space.free_as(Release::Sized(at, Pages::new(size + 1)), NOW);
        assert_eq!(wrong, Err(ReleaseError::WrongSize { area: range, requested: Pages::new(size + 1) }));
        assert_eq!(wrong.unwrap_err().to_string().matches("pages").count(), 1, "{}", wrong.unwrap_err());
        let inside = space.free_as(Release::Sized(page(at.page_floor() + 1), Pages::new(1)), NOW);
        assert!(matches!(inside, Err(ReleaseError::NoArea { inside: Some(_), .. })), "{inside:?}");
        assert_eq!(space.free_as(Release::Sized(at, Pages::new(size)), NOW), Ok(range));
        assert_eq!(space.validate(), Ok(()));
    }
    drop(space);
}

#[test]
fn an_owned_area_is_freed_whatever_its_size_is() {
    fn by_policy<C: Config>() {
        let machine = Pause::machine(1);
        let space = space::<C>(&machine);
        for size in [1, 3, 4, 9] {
            let owned = space.alloc_owned(0, &Request::pages(4).unwrap()).unwrap();
            let at = owned.range().start();
            let resized = space.resize_at(at, Pages::new(size)).unwrap();
            assert_eq!(resized.len_bytes(), size << 12);
            drop(owned);
            assert_eq!(space.find(at), None);
            space.purge(Purge::Full);
        }
        // Freed by its address, and another area is there: the drop takes nothing.
        let owned = space.alloc_owned(0, &Request::pages(4).unwrap()).unwrap();
        let at = owned.range().start();
        space.free_at(at).unwrap();
        space.purge(Purge::Full);
        let other = space.alloc(0, &ask(4)).unwrap();
        assert_eq!(other.start(), at);
        drop(owned);
        assert_eq!((space.free(other), space.validate()), (Ok(()), Ok(())));
        space.purge(Purge::Full);
        assert_eq!(space.stats().areas, 0);
    }
    by_policy::<Standard>();
    by_policy::<Linux69>();
    by_policy::<OneLock52>();
}

#[test]
fn an_area_that_is_held_is_found_and_not_taken() {
    fn by_policy<C: Config>() {
        let machine = Pause::machine(1);
        let space = space::<C>(&machine);
        let area = space.alloc(0, &ask(8)).unwrap();
        let (at, range) = (area.start(), area.range());
        let key = space.hold(&area).unwrap();
        let middle = page(at.page_floor() + 3);
        assert_eq!(space.find_enclosing(middle).map(|seen| seen.range), Some(range));
        assert!(space.free_at(at).is_err() && space.detach(at).is_err() && space.note(at, 7).is_err());
        assert!(space.free_as(Release::Sized(at, Pages::new(8)), NOW).is_err());
        assert!(space.split(middle).is_err() && space.grow_at(at, Pages::new(9)).is_err());
        assert!(space.free_as(Release::Held(at, key + 1), NOW).is_err());
        assert_eq!(
            (space.free_as(Release::Held(at, key), Context::Atomic), space.validate()),
            (Ok(range), Ok(()))
        );
        assert!(space.free_as(Release::Held(at, key), NOW).is_err());
        // The next area there has another key, and one that was freed cannot be held.
        space.purge(Purge::Full);
        let next = space.alloc(0, &ask(8)).unwrap();
        assert_eq!(next.start(), at);
        assert!(space.free_as(Release::Held(at, key), NOW).is_err());
        space.free_at(at).unwrap();
        assert!(matches!(space.hold(&next), Err(ReleaseError::NoArea { .. })));
    }
    by_policy::<Standard>();
    by_policy::<Linux69>();
}

#[test]
fn a_detachment_by_an_inner_address_takes_the_noted_area_around_it() {
    let machine = Pause::machine(1);
    let space = space::<Standard>(&machine);
    let at = space.alloc(0, &ask(8)).unwrap().start();
    let inner = Va::new(page(at.page_floor() + 3).get() + 77);
    assert_eq!(space.try_detach_noted(inner), None, "it has no note");
    space.note(at, 7).unwrap();
    let detached = space.try_detach_noted(inner).unwrap();
    assert_eq!((detached.range().start(), detached.note()), (at, Some(7)));
    assert_eq!((space.try_detach_noted(inner), space.find_enclosing(inner)), (None, None));
    assert_eq!((space.release(NOW, detached), space.validate()), (Ok(()), Ok(())));
}
