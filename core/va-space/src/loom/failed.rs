//! Interleavings of a request that would fail with a magazine whose areas leave it. Each area was freed before the
//! request began, so no earlier failure counts, and its error is not `NoSpace`.

use super::{Space, Tight, Tiny, alloc, ask, model_within, space, space_of, spawn};
use crate::config::Config;
use crate::testing::TestMachine;
use crate::{Magazine, Purge, SpaceError};
use va_base::{Context, Pages};

type Owned = Magazine<'static, &'static TestMachine, Tiny>;

pub(super) fn leaked<C: Config>(space: Space<C>) -> &'static Space<C> {
    std::boxed::Box::leak(std::boxed::Box::new(space))
}

pub(super) fn magazine_of<C: Config>(space: &'static Space<C>) -> Magazine<'static, &'static TestMachine, C> {
    match space.magazine(0) {
        Ok(magazine) => magazine,
        Err(error) => panic!("{error}"),
    }
}

/// Returns a full space, whose last failure is remembered, and a magazine with one page that was freed since.
fn full_with_a_page_in_a_round() -> (&'static Space, Owned) {
    let space = leaked(space(16, 1));
    let mut magazine = magazine_of(space);
    let _busy = alloc(space, 0, 15);
    let area = alloc(space, 0, 1);
    assert!(space.alloc(0, &ask(1)).is_err() && space.is_known_to_fail(&ask(1)));
    assert!(magazine.free(area).is_ok());
    assert!(space.lazy_pages() == Pages::new(0) && !space.is_known_to_fail(&ask(1)));
    (space, magazine)
}

/// Returns a space without holes, and a magazine with two pages that were flushed in its last round.
fn full_with_two_flushed_pages() -> (&'static Space, Owned) {
    let space = leaked(space(16, 1));
    let mut magazine = magazine_of(space);
    let _busy = alloc(space, 0, 14);
    let areas = [alloc(space, 0, 1), alloc(space, 0, 1)];
    assert!(areas.into_iter().all(|area| magazine.free(area).is_ok()));
    space.purge(Purge::Drain);
    (space, magazine)
}

/// Requests `pages` pages for a caller that may not wait: there are too few at hand, and some that wait.
fn would_block<C: Config>(space: &Space<C>, pages: u64) {
    let got = space.alloc(0, &ask(pages).context(Context::Atomic));
    assert!(matches!(got, Err(SpaceError::WouldBlock { .. })), "{got:?}");
}

#[test]
fn no_failure_is_remembered_past_a_free_beside_a_drain_of_its_magazine() {
    model_within(2, || {
        let (space, mut magazine) = full_with_a_page_in_a_round();
        let other = spawn(move || assert!(!space.is_known_to_fail(&ask(1))));
        magazine.drain();
        assert!(other.join().is_ok());
        core::mem::forget(magazine);
    });
}

#[test]
fn no_failure_is_remembered_past_a_free_beside_the_end_of_its_magazine() {
    model_within(2, || {
        let (space, magazine) = full_with_a_page_in_a_round();
        let other = spawn(move || assert!(!space.is_known_to_fail(&ask(1))));
        drop(magazine);
        assert!(other.join().is_ok());
    });
}

#[test]
fn no_failure_is_remembered_past_a_free_beside_an_end_and_a_begin() {
    model_within(1, || {
        let (space, magazine) = full_with_a_page_in_a_round();
        let end = spawn(move || drop(magazine));
        let begin = spawn(move || core::mem::forget(magazine_of(space)));
        assert!(!space.is_known_to_fail(&ask(1)));
        assert!(end.join().is_ok() && begin.join().is_ok());
    });
}

#[test]
fn a_freed_area_that_leaves_a_round_is_seen() {
    model_within(2, || {
        let (space, mut magazine) = full_with_a_page_in_a_round();
        let other = spawn(move || would_block(space, 1));
        magazine.drain();
        assert!(other.join().is_ok());
        core::mem::forget(magazine);
    });
}

#[test]
fn flushed_areas_that_leave_a_magazine_are_seen() {
    for cached in [false, true] {
        model_within(2, move || {
            let (space, mut magazine) = full_with_two_flushed_pages();
            if cached {
                // Both are cached now, and one is busy.
                assert!(magazine.alloc(&ask(1)).is_ok());
            }
            let held = if cached { 1 } else { 2 };
            assert_eq!((space.lazy_pages(), space.idle_pages()), (Pages::new(0), Pages::new(held)));
            let other = spawn(move || would_block(space, 2));
            magazine.drain();
            assert!(other.join().is_ok());
            core::mem::forget(magazine);
        });
    }
}

/// A round ends, and the areas of the last one, which were flushed, become cache.
#[test]
fn flushed_areas_that_make_way_for_a_round_are_seen() {
    // With two it would take gigabytes, since each try leaks its space.
    model_within(1, || {
        let space = leaked(space_of::<Tight>(16, 1).0);
        let mut magazine = magazine_of(space);
        let _busy = alloc(space, 0, 12);
        let [first, second] = [alloc(space, 0, 2), alloc(space, 0, 2)];
        assert!(magazine.free(first).is_ok());
        space.purge(Purge::Drain);
        assert_eq!((space.lazy_pages(), space.idle_pages()), (Pages::new(0), Pages::new(2)));
        let other = spawn(move || would_block(space, 4));
        assert!(magazine.free(second).is_ok());
        assert!(other.join().is_ok());
        core::mem::forget(magazine);
    });
}

/// An area moves from the sealed ones of a magazine into its cache.
#[test]
fn a_magazine_with_an_area_is_not_seen_empty_while_the_area_moves() {
    model_within(2, || {
        let (space, mut magazine) = full_with_two_flushed_pages();
        let other = spawn(move || {
            let drained = space.drain_magazines();
            assert!(drained.magazines + drained.busy > 0);
        });
        assert!(magazine.alloc(&ask(1)).is_ok());
        assert!(other.join().is_ok());
        core::mem::forget(magazine);
    });
}
