//! Calls that err beside one that gets the address anew: two that take what was there, and one that reuses it.
//!
//! In each model the third caller makes no mistake. What it holds stays as it was, and its own free succeeds.

use super::{alloc, ask, model_within, space, spawn};
use crate::{Area, DetachedArea, Purge, Release, SpaceError};
use std::sync::Arc;
use va_base::{Context, Pages, Va, VaRange};

type Space = super::Space;
const NOW: Context = Context::Sleeping;

fn page(page: u64) -> Va {
    Va::from_page(page)
}

fn pages(first: u64, end: u64) -> VaRange {
    VaRange::from_pages(first, end).unwrap_or_default()
}

/// Returns an area of that size, if the index has one.
fn reuse(space: &Space, size: u64) -> Option<Area> {
    space.alloc(0, &ask(size).context(Context::Atomic)).ok()
}

/// The area of that size at page 1, as two callers that both believe to own it have it.
fn copies(space: &Space, size: u64) -> [Area; 2] {
    let Area { page, pages, generation } = alloc(space, 0, size);
    assert_eq!(page, 1);
    [(); 2].map(|()| Area { page, pages, generation })
}

/// Frees `area` at once and calls `late` in threads, and `third` beside them. Returns whether the free succeeded, and what
/// the late call returned.
fn beside<T: Send + 'static>(
    space: &Arc<Space>,
    area: Area,
    late: impl FnOnce(&Space) -> T + Send + 'static,
    third: impl FnOnce(&Space),
) -> (bool, T) {
    let theirs = space.clone();
    let frees = spawn(move || theirs.free_unused(area).is_ok());
    let theirs = space.clone();
    let errs = spawn(move || late(&theirs));
    third(space);
    match (frees.join(), errs.join()) {
        (Ok(freed), Ok(got)) => (freed, got),
        _ => panic!("a call failed"),
    }
}

/// Frees an area that no other call may have changed.
fn is_ours(space: &Space, area: Option<Area>) {
    let freed = area.map(|area| space.free(area));
    assert!(matches!(freed, None | Some(Ok(()))), "{freed:?}");
}

#[test]
fn a_late_free_that_names_a_size_takes_no_area_of_another() {
    model_within(2, || {
        let space = Arc::new(space(4, 1));
        let [first, _] = copies(&space, 2);
        let late = |space: &Space| space.free_as(Release::Sized(page(1), Pages::new(2)), NOW).is_ok();
        let (freed, took) = beside(&space, first, late, |space| is_ours(space, reuse(space, 3)));
        assert!(freed != took);
        assert_eq!(space.validate(), Ok(()));
    });
}

#[test]
fn a_late_free_of_a_handle_takes_nothing_that_began_later() {
    model_within(2, || {
        let space = Arc::new(space(4, 1));
        let [first, copy] = copies(&space, 2);
        let late = |space: &Space| space.free(copy).is_ok();
        let (freed, took) = beside(&space, first, late, |space| is_ours(space, reuse(space, 2)));
        assert!(freed != took);
        assert_eq!(space.validate(), Ok(()));
    });
}

#[test]
fn a_late_resize_cuts_no_area_that_begins_elsewhere() {
    model_within(2, || {
        let space = Arc::new(space(4, 1));
        let [first, _] = copies(&space, 3);
        let late = |space: &Space| space.resize_at(page(1), Pages::new(2)).map(|range| range.start());
        let third = |space: &Space| {
            // What is at the address of the resize may be resized; what is around the cut may not.
            let at_the_address = reuse(space, 1).filter(|area| area.page == 1);
            if at_the_address.is_some() {
                is_ours(space, reuse(space, 3));
            }
        };
        let (_, resized) = beside(&space, first, late, third);
        assert!(resized.is_err() || resized == Ok(page(1)), "{resized:?}");
        assert_eq!(space.validate(), Ok(()));
    });
}

#[test]
fn a_restore_that_fails_frees_nothing_of_others() {
    model_within(2, || {
        let space = Arc::new(space(4, 1));
        let theirs = space.clone();
        let restores = spawn(move || theirs.restore(&[(pages(1, 3), None), (pages(9, 10), None)]));
        // A late free of what was there, and a caller that gets the address.
        let _late = space.free_at(page(1));
        space.purge(Purge::Drain);
        is_ours(&space, reuse(&space, 2));
        let restored = restores.join().ok();
        assert!(matches!(restored, Some(Err(SpaceError::Index(_)))), "{restored:?}");
        assert_eq!((space.stats().busy_pages.get(), space.validate()), (0, Ok(())));
    });
}

#[test]
fn an_area_that_is_held_is_not_taken_by_a_late_free() {
    model_within(2, || {
        let space = Arc::new(space(2, 1));
        let [first, _] = copies(&space, 2);
        let late = |space: &Space| space.free_as(Release::Sized(page(1), Pages::new(2)), NOW).is_ok();
        let third = |space: &Space| {
            // A late free may take it before it is held, and not afterwards.
            let Some(Ok(key)) = reuse(space, 2).map(|area| space.hold(&area)) else { return };
            assert!(space.find(page(1)).is_some());
            let mine = space.free_as(Release::Held(page(1), key), NOW);
            assert!(mine.is_ok(), "{mine:?}");
        };
        let (freed, took) = beside(&space, first, late, third);
        assert!(freed || took);
        assert_eq!(space.validate(), Ok(()));
    });
}

#[test]
fn a_detachment_by_an_inner_address_takes_the_area_around_it() {
    model_within(2, || {
        let space = Arc::new(space(4, 1));
        let [_, first] = copies(&space, 3);
        assert_eq!(space.note(page(1), 7), Ok(()));
        let theirs = space.clone();
        // A split: then the part around the address is another area, without a note.
        let splits = spawn(move || theirs.split(page(2)).is_ok());
        let late = space.clone();
        let detaches = spawn(move || late.try_detach_noted(page(3)).map(|area| (area.range(), area.note())));
        let seen = space.find_enclosing(page(3)).map(|seen| seen.range);
        assert!(seen.is_none_or(|seen| seen == pages(1, 4) || seen == pages(2, 4)), "{seen:?}");
        let (split, got) = (splits.join().ok(), detaches.join().ok().flatten());
        assert!(split.is_some() && first.page == 1);
        // The upper part has no note; the lower one, which has it, is not around the address.
        assert!(got.is_none_or(|got| got == (pages(1, 4), Some(7))), "{got:?}");
        assert_eq!(space.validate(), Ok(()));
    });
}

#[test]
fn a_detached_area_is_released_by_the_one_that_has_it() {
    model_within(2, || {
        let space = Arc::new(space(2, 1));
        let area = alloc(&space, 0, 2);
        let Ok(first) = space.detach(area.start()) else { panic!("it is busy") };
        let copy = DetachedArea { note: None, ..first };
        let theirs = space.clone();
        let errs = spawn(move || theirs.release(NOW, copy).is_ok());
        let theirs = space.clone();
        let releases = spawn(move || theirs.release(NOW, first).is_ok());
        space.purge(Purge::Drain);
        if let Some(area) = reuse(&space, 2) {
            let mine = space.detach(area.start()).and_then(|mine| space.release(NOW, mine));
            assert!(mine.is_ok(), "{mine:?}");
        }
        let (erred, released) = (errs.join().ok(), releases.join().ok());
        assert!(erred != released, "{erred:?} {released:?}");
        assert_eq!(space.validate(), Ok(()));
    });
}
