//! Counts of the areas that the lists of a thread read: those of the walk, and all others.

use std::cell::Cell;

/// Areas that lists read on one thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Visits {
    /// Those that a walk for an allocation passed, on its way to a gap that fits.
    pub walk: u64,
    /// Those that everything else read: links of neighbours, looks for a hole.
    pub other: u64,
}

thread_local! {
    static VISITS: Cell<Visits> = const { Cell::new(Visits { walk: 0, other: 0 }) };
}

/// Returns the visits of this thread since the last call, of all lists.
pub fn take() -> Visits {
    VISITS.take()
}

/// Adds visits of this thread.
pub(super) fn count(walk: u64, other: u64) {
    let before = VISITS.get();
    VISITS.set(Visits { walk: before.walk + walk, other: before.other + other });
}
