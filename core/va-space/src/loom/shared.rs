//! Interleavings beside areas: the cells of magazines, the set of filled pools, promised records.

use super::{Arc, Space, Tiny, alloc, free, model, model_within, space, space_of, spawn};
use crate::Purge;
use crate::config::WithTrees;

#[test]
fn two_magazines_that_begin_at_once_have_a_cell_each() {
    model_within(1, || {
        let space = Arc::new(space(1, 1));
        // The cells of both: who allocates one is not modelled.
        let cells = [space.magazine(0), space.magazine(0)];
        assert!(cells.iter().all(Result::is_ok));
        drop(cells);
        // They never end.
        let begin = |space: &Space| core::mem::forget(space.magazine(0));
        let theirs = space.clone();
        let other = spawn(move || begin(&theirs));
        begin(&space);
        assert!(other.join().is_ok());
        assert_eq!(space.live_cells(), 2);
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
