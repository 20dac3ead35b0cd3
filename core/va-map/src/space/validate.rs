//! Counts, and a check of every invariant.

use super::MapSpace;
use crate::machine::PageTable;
use crate::record::{Entry, Kind};
use va_base::{InvariantViolation, Machine, PAGE_SIZE, Pages, Va};
use va_block::Config;

/// Counts of areas and pages. Each number is exact at a moment of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Stats {
    /// Areas with records: all but small mappings.
    pub areas: u64,
    /// Areas among them whose free waits for [`run_deferred`](MapSpace::run_deferred).
    pub deferred_areas: u64,
    /// Pages of areas that the source allocated (`nr_vmalloc_pages`).
    pub allocated_pages: Pages,
    /// Pages of callers in mappings, each as often as it is mapped.
    pub foreign_pages: Pages,
    /// Pages of address range that are busy.
    pub busy_pages: Pages,
    /// Pages of address range that wait for a flush.
    pub lazy_pages: Pages,
}

impl<P: Machine + Clone, T: PageTable, C: Config> MapSpace<P, T, C> {
    /// Returns the counts. Takes every lock of the space, one after the other.
    pub fn stats(&self) -> Stats {
        let (allocated_pages, foreign_pages) = self.counted();
        let (areas, deferred_areas) = {
            let records = self.records();
            (records.live() as u64, records.deferred())
        };
        let space = self.space().stats();
        Stats {
            areas,
            deferred_areas,
            allocated_pages,
            foreign_pages,
            busy_pages: space.busy_pages,
            lazy_pages: self.space().lazy_pages(),
        }
    }

    /// Checks MP1, MP2, MP4, MP5 and the invariants of the space and the records, with full walks. Call it while no
    /// other thread calls.
    ///
    /// # Errors
    /// The first rule that does not hold.
    pub fn validate(&self) -> Result<(), InvariantViolation> {
        self.blocks.validate()?;
        self.records().validate()?;
        let (mut areas, mut allocated, mut foreign) = (0, 0, 0);
        let mut from = self.extent().start();
        while let Some(seen) = self.space().find_above(from) {
            from = seen.range.end();
            if let Some(entry) = self.record_of(seen.range) {
                areas += 1;
                *if entry.kind == Kind::Vmalloc { &mut allocated } else { &mut foreign } += entry.mapped;
                self.check_area(&entry)?;
                continue;
            }
            for page in seen.range.start().page_floor()..from.page_floor() {
                let at = Va::from_page(page);
                let (small, leaf) =
                    (self.blocks.find_enclosing(at).is_some(), self.pages().leaf(at).is_some());
                InvariantViolation::check(small == leaf, "MP1", at, small.into(), leaf.into())?;
                foreign += u64::from(small);
            }
        }
        let reserved = self.records().reserved() as u64;
        InvariantViolation::check(reserved == 0, "RD2", Va::ZERO, 0, reserved)?;
        let live = self.records().live() as u64;
        InvariantViolation::check(live == areas, "MP5", Va::ZERO, live, areas)?;
        let counted = self.counted();
        InvariantViolation::check(counted.0.get() == allocated, "MP3", Va::ZERO, allocated, counted.0.get())?;
        InvariantViolation::check(counted.1.get() == foreign, "MP3", Va::ZERO, foreign, counted.1.get())
    }

    fn check_area(&self, entry: &Entry) -> Result<(), InvariantViolation> {
        let at = entry.start();
        let fits = entry.requested > 0
            && entry.requested <= entry.usable()
            && entry.mapped + entry.guard.pages() <= entry.pages;
        InvariantViolation::check(fits, "MP2", at, entry.requested, entry.usable())?;
        let mut page = 0;
        while page < entry.mapped {
            let leaf = self.pages().leaf(entry.part(page, entry.mapped).start());
            let Some(leaf) = leaf else {
                return Err(InvariantViolation { rule: "MP1", at, expected: entry.mapped, actual: page });
            };
            let size = 1 << leaf.pages_log2;
            let whole = (entry.page + page).is_multiple_of(size)
                && leaf.first.is_multiple_of(size)
                && page + size <= entry.mapped;
            InvariantViolation::check(whole, "MP4", at, size, page)?;
            page += size;
            // A whole leaf beyond the requested bytes would have been freed.
            let needed = (page - size) * PAGE_SIZE < entry.requested;
            InvariantViolation::check(needed, "MP2", at, entry.requested, page * PAGE_SIZE)?;
        }
        for page in entry.mapped..entry.pages {
            let free = self.pages().leaf(entry.part(page, entry.pages).start()).is_none();
            InvariantViolation::check(free, "MP1", at, entry.mapped, page)?;
        }
        Ok(())
    }
}
