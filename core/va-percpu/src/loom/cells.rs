//! Interleavings of magazines that begin.

use super::magazines::magazine;
use super::{Arc, Space, join, model, space, spawn};
use crate::config::Standard;

#[test]
fn two_magazines_that_begin_at_once_have_a_cell_each() {
    model(|| {
        let space = Arc::new(space::<Standard>());
        // The cells of both: who allocates one is not modelled.
        let cells = [(); 2].map(|()| magazine(&space, 0));
        drop(cells);
        // They never end.
        let begin = |space: &Space<Standard>| core::mem::forget(magazine(space, 0));
        let theirs = space.clone();
        let other = spawn(move || begin(&theirs));
        begin(&space);
        join(other);
        assert_eq!(space.cells.each().count(), 2);
        // A free cell would be left if both had one.
        begin(&space);
        assert_eq!(space.cells.each().count(), 3);
    });
}
