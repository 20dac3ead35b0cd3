//! Interleavings of magazines that begin and end beside a walk over those that live.
//!
//! The first models are of small cells: a space takes so much memory that few interleavings would be tried.

use super::failed::{leaked, magazine_of};
use super::{Tight, ask, model, model_within, space_of, spawn};
use crate::Purge;
use crate::space::{Place, Placed, Row};
use std::boxed::Box;
use std::sync::Arc;
use std::vec::Vec;
use va_base::Table;
use va_base::sync::{AtomicRef, Mutex};

/// A cell without a magazine.
struct Small {
    at: AtomicRef<Place<Self>>,
    place: Place<Self>,
}

impl Table for Small {
    va_base::empty_table!(Self { at: AtomicRef::new(), place: Place::new() });
}

impl Placed for Small {
    fn at(&self) -> &AtomicRef<Place<Self>> {
        &self.at
    }

    fn place(&self) -> &Place<Self> {
        &self.place
    }
}

/// The cells of a space, and the lock under which they begin and end.
struct Cells {
    row: Row<Small>,
    free: Mutex<parking_lot::RawMutex, ()>,
}

impl Cells {
    /// Returns `live` cells that live.
    fn new<const LIVE: usize>() -> (Arc<Self>, [&'static Small; LIVE]) {
        let cells = Self { row: Row::new(), free: Mutex::new(()) };
        let live = [(); LIVE].map(|()| {
            cells.row.add(Box::leak(Box::new(Small::empty())));
            cells.begin()
        });
        (Arc::new(cells), live)
    }

    fn begin(&self) -> &'static Small {
        let _free = self.free.lock();
        match self.row.begin() {
            Some(cell) => cell,
            None => panic!("no cell is free"),
        }
    }

    fn end(&self, cell: &'static Small) {
        let _free = self.free.lock();
        assert!(self.row.end(cell));
    }

    /// Walks: at most `steps`, and each of `live` is met.
    fn walk(&self, live: &[&Small], steps: usize) {
        let met: Vec<_> = self.row.live().collect();
        let is_met = |cell: &&Small| met.iter().any(|&other| core::ptr::eq(*cell, other));
        assert!(live.iter().all(is_met) && met.len() <= steps, "{} steps", met.len());
    }
}

// The walk is in a thread of its own: loom tries more where the first thread writes. It remembers the last read of an
// atomic only, so a thread that reads what it then writes hides a read before.

/// The last cell moves to the place of one that ends, beside one that begins there.
#[test]
fn a_walk_meets_who_lives_beside_an_end_and_a_begin() {
    model(|| {
        let (cells, [ends, stays, moves]) = Cells::new();
        let (theirs, others) = (cells.clone(), cells.clone());
        let begin = spawn(move || {
            // The one that ended, if it has by then.
            let _free = others.free.lock();
            others.row.begin().is_some()
        });
        let walk = spawn(move || theirs.walk(&[stays, moves], 3));
        cells.end(ends);
        let Ok(begun) = begin.join() else { panic!("no thread") };
        assert!(walk.join().is_ok());
        assert_eq!((cells.row.magazines(), cells.row.check_places()), (2 + usize::from(begun), Ok(())));
        cells.walk(&[stays, moves], 3);
    });
}

/// The last cell moves down twice, and the first that ended begins again.
#[test]
fn a_walk_meets_who_lives_beside_two_that_end() {
    model(|| {
        let (cells, [first, stays, second, moves]) = Cells::new();
        let (theirs, others) = (cells.clone(), cells.clone());
        let other = spawn(move || others.end(second));
        let walk = spawn(move || theirs.walk(&[stays, moves], 4));
        cells.end(first);
        cells.begin();
        assert!(other.join().is_ok() && walk.join().is_ok());
        assert_eq!((cells.row.magazines(), cells.row.check_places()), (3, Ok(())));
        cells.walk(&[stays, moves], 3);
    });
}

/// A magazine ends and another has its cell, while aliases are purged: what was freed before is flushed.
#[test]
fn sp2_aliases_of_a_magazine_whose_cell_another_takes_are_flushed() {
    // Each try leaks its space.
    model_within(1, || {
        // A round of one page stays open.
        let (space, machine) = space_of::<Tight>(16, 1);
        let space = leaked(space);
        let mut magazine = magazine_of(space);
        let Ok(early) = magazine.alloc(&ask(1)) else { panic!("no area") };
        let range = early.range();
        machine.unmap(range);
        assert!(magazine.free(early).is_ok());
        let end = spawn(move || drop(magazine));
        let begin = spawn(move || core::mem::forget(magazine_of(space)));
        space.purge(Purge::Aliases);
        assert!(!machine.is_stale(range), "SP2: {range} was freed before the call");
        assert!(end.join().is_ok() && begin.join().is_ok());
        assert_eq!(space.validate(), Ok(()));
    });
}
