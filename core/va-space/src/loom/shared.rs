//! Interleavings beside areas: the cells of magazines, the set of filled pools, promised records.

use super::{Arc, Tiny, VmapSpace, alloc, ask, free, model, model_within, space, space_of, spawn};
use crate::Purge;
use crate::config::WithTrees;

/// A magazine of another thread holds an area for ever, so it has a cell of its own.
#[test]
fn two_magazines_that_begin_at_once_have_a_cell_each() {
    model_within(1, || {
        let space = Arc::new(space(2, 1));
        // The cells of both: their insertion into the list is not modelled.
        let cells = [space.magazine(0), space.magazine(0)];
        assert!(cells.iter().all(Result::is_ok));
        drop(cells);
        let hold = |space: &VmapSpace<_, Tiny>| {
            let Ok(mut magazine) = space.magazine(0) else { panic!("no magazine") };
            let Ok(area) = magazine.alloc(&ask(1)) else { panic!("no area") };
            assert!(magazine.free(area).is_ok());
            core::mem::forget(magazine);
        };
        let theirs = space.clone();
        let other = spawn(move || hold(&theirs));
        hold(&space);
        assert!(other.join().is_ok());
        let drained = space.drain_magazines();
        assert_eq!((drained.magazines, drained.busy), (2, 0));
        assert_eq!(space.validate(), Ok(()));
    });
}

#[test]
fn po4_a_pool_that_fills_beside_one_that_empties_is_in_the_set() {
    model(|| {
        let space = Arc::new(space(2, 2));
        let (first, second) = (alloc(&space, 0, 1), alloc(&space, 1, 1));
        free(&space, first);
        space.purge(Purge::Drain);
        free(&space, second);
        let theirs = space.clone();
        let purger = spawn(move || theirs.purge(Purge::Drain));
        let mine = alloc(&space, 0, 1);
        assert!(purger.join().is_ok());
        assert_eq!(space.validate(), Ok(()));
        free(&space, mine);
    });
}

#[test]
fn lk2_a_record_is_promised_while_another_is_released() {
    model(|| {
        let (space, _) = space_of::<WithTrees<Tiny>>(4, 1);
        let space = Arc::new(space);
        let old = alloc(&space, 0, 2);
        free(&space, old);
        let theirs = space.clone();
        let purger = spawn(move || theirs.purge(Purge::Full));
        let mine = alloc(&space, 0, 1);
        assert!(purger.join().is_ok());
        assert_eq!(space.validate(), Ok(()));
        free(&space, mine);
    });
}
