//! The moves of leaves between entries of the page map, under the lock of the free index.

use super::leaf::{Leaf, SLOTS, Sheet};
use super::table::Subtree;
use super::{COVERED_PAGES, Marker, Mid, PageMap};
use va_base::sync::AtomicRef;
use va_base::sync::atomic::Ordering;
use va_base::{Machine, Meta};

/// Leaves that the machine allocated and that are not in a map yet.
#[must_use]
pub(crate) struct Allocated(&'static Sheet);

/// Empty leaves that one step takes out of a table.
const TAKEN_A_STEP: usize = 64;

/// The result of one step of [`PageMap::retire`].
#[must_use]
pub(crate) enum Step {
    /// Leaves that are out of the map; a reader may still hold them.
    Leaves(Meta<&'static Sheet>),
    /// A table, likewise.
    Table(Meta<&'static Mid>),
    /// Leaves that remain.
    LeavesInUse,
    /// A table that remains, or no table at all in a part of the map.
    NoTable,
    /// Nothing was left in this pass.
    End,
}

impl PageMap {
    /// Ensures that a leaf serves `page`; `false` if there is no entry for it or no leaf is empty. The leaf is removed
    /// from the list of empty ones: an area begins in it before the lock is released, or the caller
    /// [`release`](Self::release)s it.
    #[inline(always)]
    pub(crate) fn attach(&self, marker: &mut Marker, page: u64) -> bool {
        let Some(place) = self.place(page) else { return false };
        let Some(leaf) = place.load() else { return self.move_to(marker, page, place) };
        if leaf.is_empty() {
            marker.empties.remove(leaf);
        }
        true
    }

    /// Returns of ascending pages the first in each leaf, which speaks for the others there.
    pub(crate) fn one_a_leaf(pages: impl Iterator<Item = u64>) -> impl Iterator<Item = u64> {
        let mut last = None;
        pages.filter(move |page| {
            let leaf = Some(page / SLOTS as u64);
            core::mem::replace(&mut last, leaf) != leaf
        })
    }

    /// Moves the leaf that is empty longest to a new entry.
    #[cold]
    fn move_to(&self, marker: &mut Marker, page: u64, place: &AtomicRef<Leaf>) -> bool {
        let Some(leaf) = marker.empties.pop() else { return false };
        self.take_out(marker, leaf);
        leaf.serve(page, marker.generation);
        place.store(Some(leaf));
        true
    }

    /// Takes a leaf in which no area starts out of its entry, if it has one.
    fn take_out(&self, marker: &mut Marker, leaf: &'static Leaf) {
        let Some(left) = leaf.first_page() else { return };
        if let Some(left) = self.place(left) {
            left.store(None);
        }
        // Release: a thread that sees the count finds the leaf gone. Before any write to the leaf.
        let moves = self.moves.load(Ordering::Relaxed);
        self.moves.store(moves.wrapping_add(1), Ordering::Release);
        marker.generation = marker.generation.max(leaf.leave());
    }

    /// Takes a sheet out of the map in whose leaves no area starts, or a table of leaves in which none does, for
    /// [`Machine::retire_table`]. A step looks at one, and in a pass each has its turn, the sheets first.
    pub(crate) fn retire(&self, marker: &mut Marker) -> Step {
        let Some(sheet) = self.sheets.load() else { return self.retire_table(marker) };
        self.sheets.store(sheet.older.load());
        if !sheet.leaves.iter().all(Leaf::is_empty) {
            sheet.older.store(self.passed.load());
            self.passed.store(Some(sheet));
            return Step::LeavesInUse;
        }
        for leaf in &sheet.leaves {
            marker.empties.remove(leaf);
            self.take_out(marker, leaf);
        }
        self.tables.fetch_sub(1, Ordering::Relaxed);
        Step::Leaves(Meta::new(sheet))
    }

    fn retire_table(&self, marker: &mut Marker) -> Step {
        let Some(far) = self.far.filter(|_| marker.lowest < COVERED_PAGES) else {
            marker.lowest = 0;
            self.sheets.store(self.passed.load());
            self.passed.store(None);
            return Step::End;
        };
        let (page, table) = far.next_lowest(marker.lowest);
        marker.lowest = page;
        let Some(table) = table else { return Step::NoTable };
        marker.lowest += 1 << Mid::LOG2;
        if table.has_any() {
            return Step::NoTable;
        }
        for (taken, leaf) in table.leaves().enumerate() {
            // The rest in the next pass.
            if taken == TAKEN_A_STEP {
                return Step::NoTable;
            }
            self.take_out(marker, leaf);
        }
        far.remove_lowest(page);
        self.tables.fetch_sub(1, Ordering::Relaxed);
        Step::Table(Meta::new(table))
    }

    /// Puts the leaf that serves `page` into the list of empty ones, if no area starts in it.
    pub(crate) fn release(&self, marker: &mut Marker, page: u64) {
        if let Some(leaf) = self.leaf(page).filter(|leaf| leaf.is_empty()) {
            marker.empties.push(leaf);
        }
    }

    /// Allocates leaves from the machine for [`add`](Self::add).
    pub(crate) fn alloc(machine: &impl Machine) -> Option<Allocated> {
        machine.alloc_table::<Sheet>().map(Allocated)
    }

    /// Adds leaves to the empty ones.
    pub(crate) fn add(&self, marker: &mut Marker, Allocated(sheet): Allocated) {
        sheet.older.store(self.sheets.load());
        self.sheets.store(Some(sheet));
        self.tables.fetch_add(1, Ordering::Relaxed);
        sheet.leaves.iter().for_each(|leaf| marker.empties.push(leaf));
    }

    /// Ensures that a leaf serves a page, with one from the machine if need be.
    #[cfg(test)]
    pub(crate) fn ensure(&self, marker: &mut Marker, page: u64, machine: &impl Machine) {
        assert!(self.reserve(page, machine));
        if !self.attach(marker, page) {
            self.add(marker, Self::alloc(machine).unwrap_or_else(|| panic!("no memory")));
            assert!(self.attach(marker, page));
        }
    }
}
