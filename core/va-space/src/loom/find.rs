//! Interleavings of lookups, iterations and notes with frees and purges.

use super::{Tiny, alloc, ask, free, model, model_within, space, space_of, spawn};
use crate::config::WithTrees;
use crate::{Purge, ReleaseError};
use std::sync::Arc;
use std::vec::Vec;
use va_base::{Pages, Va};

#[test]
fn an_iteration_meets_what_is_out_throughout_exactly_once() {
    model_within(2, || {
        let space = Arc::new(space(4, 1));
        let first = alloc(&space, 0, 1);
        let middle = alloc(&space, 0, 1);
        let last = alloc(&space, 0, 1);
        let throughout = [first.range(), last.range()];
        let theirs = space.clone();
        let reader = spawn(move || theirs.areas().map(|seen| seen.range).collect::<Vec<_>>());
        free(&space, middle);
        space.purge(Purge::Full);
        let Ok(met) = reader.join() else { panic!("the reader") };
        assert!(met.is_sorted_by(|low, high| low.start() < high.start()), "{met:?}");
        for range in throughout {
            assert_eq!(met.iter().filter(|met| **met == range).count(), 1, "{range} in {met:?}");
        }
    });
}

#[test]
fn a_note_is_read_with_its_area_or_not_at_all() {
    model(|| {
        let space = Arc::new(space(3, 1));
        let first = alloc(&space, 0, 1);
        let area = alloc(&space, 0, 1);
        let at = area.start();
        assert_eq!(space.note(at, 7), Ok(()));
        let theirs = space.clone();
        let reader = spawn(move || theirs.find(at).map(|seen| seen.note));
        // In the list after the area that is freed first, its link is not its note any more.
        free(&space, first);
        assert_eq!(space.note(at, 8), Ok(()));
        free(&space, area);
        let seen = reader.join().ok().flatten();
        assert!(seen.is_none_or(|note| [None, Some(7), Some(8)].contains(&note)), "{seen:?}");
        assert_eq!(space.validate(), Ok(()));
    });
}

#[test]
fn an_area_of_a_cache_is_found_with_its_note_or_not_at_all() {
    model(|| {
        let space = Arc::new(space(3, 1));
        let Ok(mut magazine) = space.magazine(0) else { panic!("no magazine") };
        // The second comes with a third, which stays in the cache.
        let Ok(first) = magazine.alloc(&ask(1)) else { panic!("no area") };
        let Ok(second) = magazine.alloc(&ask(1)) else { panic!("no area") };
        let at = second.range().end();
        let theirs = space.clone();
        let reader = spawn(move || theirs.find(at).map(|seen| seen.note));
        let Some(third) = magazine.take_noted(&ask(1), |_| 8) else { panic!("no area") };
        assert_eq!(third.start(), at);
        let seen = reader.join().ok().flatten();
        assert!(seen.is_none_or(|note| note == Some(8)), "{seen:?}");
        assert_eq!(space.find(at).map(|seen| seen.note), Some(Some(8)));
        for area in [first, second, third] {
            assert!(magazine.free(area).is_ok());
        }
        drop(magazine);
        assert_eq!(space.validate(), Ok(()));
    });
}

#[test]
fn of_a_note_a_detachment_and_a_free_each_has_the_area_alone() {
    model(|| {
        let space = Arc::new(space(2, 1));
        let area = alloc(&space, 0, 1);
        let at = area.start();
        let theirs = space.clone();
        let noter = spawn(move || theirs.note(at, 7).is_ok());
        let detached = space.detach(at);
        let noted = noter.join().unwrap_or(false);
        match detached {
            Ok(detached) => {
                assert_eq!(detached.note(), noted.then_some(7));
                assert!(space.find(at).is_none() && space.free(area).is_err());
                assert_eq!(space.release(va_base::Context::Sleeping, detached), Ok(()));
            }
            // The note was being written.
            Err(_) => {
                assert!(noted);
                free(&space, area);
            }
        }
        assert_eq!((space.lazy_pages(), space.validate()), (Pages::new(1), Ok(())));
    });
}

#[test]
fn a_free_beside_a_note_succeeds_or_may_be_repeated() {
    model(|| {
        let space = Arc::new(space(2, 1));
        let area = alloc(&space, 0, 1);
        let at = area.start();
        let theirs = space.clone();
        let noter = spawn(move || theirs.note(at, 7));
        let freed = space.free(area);
        let noted = noter.join().ok();
        match freed {
            Ok(()) => assert!(space.find(at).is_none()),
            // The note was being written, and the handle is gone.
            Err(error) => {
                assert_eq!((error, noted), (ReleaseError::NoArea { at, inside: None }, Some(Ok(()))));
                assert_eq!(space.find(at).map(|seen| seen.note), Some(Some(7)));
                assert!(space.free_at(at).is_ok());
            }
        }
        assert_eq!((space.lazy_pages(), space.validate()), (Pages::new(1), Ok(())));
    });
}

#[test]
fn lk1_trees_agree_with_the_map_after_a_free_against_a_lookup() {
    model(|| {
        let (space, _) = space_of::<WithTrees<Tiny>>(4, 1);
        let space = Arc::new(space);
        let old = alloc(&space, 0, 2);
        let live = alloc(&space, 0, 1);
        let (theirs, was, stays) = (space.clone(), old.range(), live.range());
        let reader = spawn(move || {
            assert_eq!(theirs.find_above(was.end()).map(|seen| seen.range), Some(stays));
            theirs.find_enclosing(Va::from_page(2)).map(|seen| seen.range)
        });
        free(&space, old);
        let new = alloc(&space, 0, 1);
        let seen = reader.join().ok().flatten();
        assert!(seen.is_none_or(|seen| seen == was), "{seen:?}");
        assert_eq!(space.find(new.start()).map(|seen| seen.range), Some(new.range()));
        assert_eq!(space.validate(), Ok(()));
    });
}
