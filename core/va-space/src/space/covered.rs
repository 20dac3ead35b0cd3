//! Flushes for aliases: the hull of a magazine's open round is in one only if an area was freed there since the last.
//!
//! # Theory
//! An area remains in the open round after a flush for aliases, and so does the hull. So a purge remembers a **count**
//! of each cell, which it read before it added the hull to the next flush: the seals, and the pages of the open round.
//! Each free adds pages, and each seal adds one to the seals. If the count is the same again, nothing was freed since.
//! That flush may be about to begin, or in flight: the pass of the purge includes the one, and waits for the other.
//!
//! # Locking
//! `purge` for what is remembered. The owner of the cell publishes under its lock.

use super::VmapSpace;
use super::cell::Cell;
use crate::config::Config;
use va_base::sync::RawMutex;
use va_base::sync::atomic::{AtomicU64, Ordering};
use va_base::{Machine, VaRange};

/// The frees of a cell that a flush for aliases covers.
pub(super) struct Covered {
    /// Seals of a round, or of some of its areas. Protocol PR-HULL.
    seals: AtomicU64,
    /// The count up to which a flush covers the hull: seals. Under `purge`. Protocol PR-LOCK.
    covered_seals: AtomicU64,
    /// And pages of the open round. Under `purge`. Protocol PR-LOCK.
    covered_pages: AtomicU64,
}

impl Covered {
    va_base::const_fn! {
        pub(super) fn new() -> Self {
            let (covered_seals, covered_pages) = (AtomicU64::new(0), AtomicU64::new(0));
            Self { seals: AtomicU64::new(0), covered_seals, covered_pages }
        }
    }

    /// Counts a seal whose pages are published. Under the lock of the cell.
    pub(super) fn note_seal(&self) {
        let seals = self.seals.load(Ordering::Relaxed) + 1;
        // Release pairs with `uncovered`: a thread that sees it reads the pages of this round or of a later one.
        self.seals.store(seals, Ordering::Release);
    }
}

impl<R: RawMutex + Send + Sync + 'static> Cell<R> {
    /// Returns the hull of the open round, unless a flush that has begun, or the next, covers all that was freed there
    /// before the call. The caller adds it to the ranges of the next. Under `purge`.
    fn uncovered(&self) -> Option<VaRange> {
        let covered = &self.covered;
        // Before the hull and the flush. Acquire pairs with `note_seal` and `publish_lazy`: each free that is counted
        // here comes before the flush, and is in the hull unless the node covers it. Seals first: later seals with the
        // pages of an earlier round would count frees that are still to come.
        let seals = covered.seals.load(Ordering::Acquire);
        let pages = self.lazy_pages.load(Ordering::Acquire);
        let known = [&covered.covered_seals, &covered.covered_pages].map(|at| at.load(Ordering::Relaxed));
        if known == [seals, pages] {
            return None;
        }
        covered.covered_seals.store(seals, Ordering::Relaxed);
        covered.covered_pages.store(pages, Ordering::Relaxed);
        self.hull.read()
    }
}

impl<P: Machine + Clone, C: Config> VmapSpace<P, C> {
    /// Calls `with` for the hull of each magazine's open round in which an area was freed that no flush covers. `with`
    /// adds it to the next flush, under `purge`. Takes no lock.
    pub(super) fn each_uncovered(&self, with: impl FnMut(VaRange)) {
        self.cells.live().filter_map(Cell::uncovered).for_each(with);
    }
}
