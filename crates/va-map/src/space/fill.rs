//! Pages behind addresses: taken and mapped, unmapped and given back.

use super::MapSpace;
use crate::error::MapError;
use crate::machine::{PageSource, PageTable, Protection, Refusal, Run, Stopped};
use crate::request::{Fill, Leaves, PageList};
use va_base::{Machine, Pages, Va, VaRange};
use va_block::Config;

/// Pages that are asked for at a time (Linux asks for up to 100 by one call).
const BATCH: usize = 64;

/// How an area is filled.
#[derive(Clone, Copy)]
pub(super) struct How {
    pub(super) leaves: Leaves,
    pub(super) fill: Fill,
    pub(super) protection: Protection,
}

/// Addresses that are filled, page by page.
struct Cursor {
    /// Where the next page goes.
    page: u64,
    end: u64,
}

impl Cursor {
    fn left(&self) -> u64 {
        self.end - self.page
    }
}

impl<P: Machine + Clone, C: Config, T: PageTable + PageSource> MapSpace<P, C, T> {
    /// Takes pages for all of `range` and maps them; on an error nothing of it is mapped, and all pages were given back.
    pub(super) fn fill(&self, range: VaRange, how: How) -> Result<(), MapError> {
        let (first, end) = range.whole_pages();
        let mut cursor = Cursor { page: first, end };
        self.fill_from(&mut cursor, how).map_err(|why| {
            let done = VaRange::from_pages(first, cursor.page).unwrap_or_default();
            self.empty(done);
            let (wanted, mapped) = (Pages::new(end - first), Pages::new(cursor.page - first));
            match why {
                Some(why) => MapError::Refused { wanted, mapped, why },
                None => MapError::NoPages { wanted, got: mapped },
            }
        })
    }

    /// Unmaps a range and gives the pages back that were behind it.
    pub(super) fn empty(&self, range: VaRange) {
        // Pages of consecutive numbers go back together.
        let mut run = Run { first: 0, pages: 0 };
        self.table.unmap(range, &mut |leaf| {
            let pages = 1 << leaf.pages_log2;
            if run.pages > 0 && run.first + run.pages == leaf.first {
                run.pages += pages;
                return;
            }
            let before = core::mem::replace(&mut run, Run { first: leaf.first, pages });
            if before.pages > 0 {
                self.table.give_back(before);
            }
        });
        if run.pages > 0 {
            self.table.give_back(run);
        }
    }

    /// On an error, the cursor tells what is mapped; `None` stands for a source without pages.
    fn fill_from(&self, cursor: &mut Cursor, how: How) -> Result<(), Option<Refusal>> {
        // A source that refused a huge page once is not asked again: the next one would be as hard to find.
        let mut huge = T::HUGE_LOG2 > 0 && how.leaves == Leaves::HugeWherePossible;
        while cursor.left() > 0 {
            let huge_pages = 1u64 << T::HUGE_LOG2;
            if huge && cursor.left() >= huge_pages && cursor.page.is_multiple_of(huge_pages) {
                huge = self.fill_huge(cursor, how)?;
            } else {
                // Up to where a huge page could begin.
                let edge = if huge { cursor.page / huge_pages * huge_pages + huge_pages } else { u64::MAX };
                self.fill_batch(cursor, edge, how)?;
            }
        }
        Ok(())
    }

    /// Maps one huge page, or its pages one by one; `false` if there is no huge page.
    fn fill_huge(&self, cursor: &mut Cursor, how: How) -> Result<bool, Option<Refusal>> {
        let zeroed = how.fill == Fill::Zeros;
        let Some(first) = self.table.take_huge(T::HUGE_LOG2, zeroed) else { return Ok(false) };
        let run = Run { first, pages: 1 << T::HUGE_LOG2 };
        let at = Va::from_page(cursor.page);
        if self.table.map_huge(at, first, how.protection).is_err() {
            self.map_own(cursor, run, how.protection)?;
        } else {
            cursor.page += run.pages;
        }
        Ok(true)
    }

    fn fill_batch(&self, cursor: &mut Cursor, edge: u64, how: How) -> Result<(), Option<Refusal>> {
        let mut frames = [0; BATCH];
        let want = (BATCH as u64).min(cursor.left()).min(edge - cursor.page) as usize;
        let got = self.table.take(&mut frames[..want], how.fill == Fill::Zeros);
        if got == 0 {
            return Err(None);
        }
        let list = &frames[..got];
        let mut place = 0;
        while place < list.count() {
            let run = list.run(place);
            if let Err(why) = self.map_own(cursor, run, how.protection) {
                frames[(place + run.pages) as usize..got]
                    .iter()
                    .for_each(|&first| self.table.give_back(Run { first, pages: 1 }));
                return Err(why);
            }
            place += run.pages;
        }
        Ok(())
    }

    /// Maps pages that were taken; gives back those that the page table refuses.
    fn map_own(&self, cursor: &mut Cursor, run: Run, protection: Protection) -> Result<(), Option<Refusal>> {
        let mapped = self.table.map(Va::from_page(cursor.page), run, protection);
        let done = mapped.map_or_else(|stopped| stopped.pages_done, |()| run.pages);
        cursor.page += done;
        mapped.map_err(|Stopped { why, .. }| {
            if done < run.pages {
                self.table.give_back(Run { first: run.first + done, pages: run.pages - done });
            }
            Some(why)
        })
    }
}

impl<P: Machine + Clone, C: Config, T: PageTable> MapSpace<P, C, T> {
    /// Maps the pages of a list from `at` on; on an error none is mapped.
    pub(super) fn map_list<L: PageList + ?Sized>(
        &self,
        at: Va,
        list: &L,
        protection: Protection,
    ) -> Result<(), MapError> {
        let (first, count) = (at.page_floor(), list.count());
        let mut place = 0;
        while place < count {
            let run = list.run(place);
            if let Err(stopped) = self.table.map(Va::from_page(first + place), run, protection) {
                let mapped = place + stopped.pages_done;
                let done = VaRange::from_pages(first, first + mapped).unwrap_or_default();
                self.forget(done);
                let (wanted, mapped) = (Pages::new(count), Pages::new(mapped));
                return Err(MapError::Refused { wanted, mapped, why: stopped.why });
            }
            place += run.pages;
        }
        Ok(())
    }

    /// Unmaps a range whose pages are a caller's, or are mapped elsewhere too.
    pub(super) fn forget(&self, range: VaRange) {
        if !range.is_empty() {
            self.table.unmap(range, &mut |_| {});
        }
    }
}
