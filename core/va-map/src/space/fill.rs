//! The pages of address ranges: allocated and mapped, unmapped and freed.
//!
//! # Theory
//! **Large entries.** The largest run of pages that the source has for an area is allocated before its addresses are
//! chosen. The addresses are aligned to the run, so a fragmented source costs no address space. The same call does not
//! try again a size that the source did not have, or the page table did not map. Another run of that size would be as
//! hard to find.
//!
//! **Pages whose permissions are reset** ([`DirectMap::ResetOnFree`](crate::DirectMap)) are freed only when no CPU can
//! access them with the old permissions. The entries remain, without access, since they are the only list of the pages:
//!
//! ```text
//!   hide the area    no access in the direct map    one flush of both    unmap    default access in the direct map    to the source
//! ```
//! Pages of an area that moved, or failed to, were also mapped at other addresses. So that flush covers all addresses
//! of the map then.

use super::MapSpace;
use crate::error::MapError;
use crate::ladder;
use crate::machine::{
    DirectAccess, Entries, PageRequest, PageSource, PageTable, PageTableError, Protection, Run, Stopped,
};
use crate::request::{AreaRequest, DirectMap, Leaves, PageList};
use va_base::{Machine, Pages, Va, VaRange};
use va_block::Config;

/// Pages that are requested at a time (Linux requests up to 100 by one call).
const BATCH: usize = 64;

/// The settings by which an area is filled.
#[derive(Clone, Copy)]
pub(super) struct How {
    pub(super) leaves: Leaves,
    pub(super) pages: PageRequest,
    pub(super) protection: Protection,
    pub(super) direct_map: DirectMap,
}

impl How {
    pub(super) fn of(request: &AreaRequest) -> Self {
        let pages = PageRequest { fill: request.fill, numa_id: request.numa_id };
        Self { leaves: request.leaves, pages, protection: request.protection, direct_map: request.direct_map }
    }
}

/// The pages taken from the source for the beginning of an area.
#[derive(Clone, Copy)]
pub(super) struct Supply {
    /// The run that was allocated.
    first: Option<Run>,
    /// The largest rung of the ladder to try.
    pub(super) top: usize,
}

impl Supply {
    /// Creates an empty supply, for addresses that are fixed already.
    pub(super) fn none<T: PageTable>(how: How) -> Self {
        let top = match how.leaves {
            Leaves::Small => 0,
            Leaves::LargeWherePossible => T::LEAF_SIZES.len() - 1,
        };
        Self { first: None, top }
    }
}

/// Progress through the addresses to fill, page by page.
struct Cursor {
    /// The number of the address page that is filled next.
    page: u64,
    end: u64,
}

impl Cursor {
    fn left(&self) -> u64 {
        self.end - self.page
    }
}

/// Joins pages that arrive in order into runs of consecutive numbers.
struct Joined<F: FnMut(Run)> {
    run: Run,
    each: F,
}

impl<F: FnMut(Run)> Joined<F> {
    fn new(each: F) -> Self {
        Self { run: Run { first: 0, pages: 0 }, each }
    }

    fn push(&mut self, next: Run) {
        if self.run.pages > 0 && self.run.first + self.run.pages == next.first {
            self.run.pages += next.pages;
        } else {
            self.end();
            self.run = next;
        }
    }

    fn end(&mut self) {
        let run = core::mem::replace(&mut self.run, Run { first: 0, pages: 0 });
        if run.pages > 0 {
            (self.each)(run);
        }
    }
}

impl<P: Machine + Clone, T: PageTable + PageSource, C: Config> MapSpace<P, T, C> {
    /// Allocates the largest run of pages that the source has for an area of `pages` pages and that one entry can map.
    pub(super) fn supply(&self, how: How, pages: u64) -> Supply {
        if how.leaves == Leaves::LargeWherePossible {
            let largest = ladder::rung(T::LEAF_SIZES, T::LEAF_SIZES.len() - 1, 0, pages);
            for top in (1..=largest).rev() {
                if let Some(first) = self.pages().alloc_run(T::LEAF_SIZES[top], how.pages) {
                    return Supply { first: Some(Run { first, pages: 1 << T::LEAF_SIZES[top] }), top };
                }
            }
        }
        Supply { first: None, top: 0 }
    }

    /// Frees pages that were allocated for an area for which there are no addresses.
    pub(super) fn cancel(&self, supply: Supply) {
        if let Some(run) = supply.first {
            self.pages().free(run);
        }
    }

    /// Allocates pages for all of `range` and maps them. On an error none of it is mapped, and all pages were freed.
    pub(super) fn fill(&self, range: VaRange, how: How, supply: Supply) -> Result<(), MapError> {
        let (first, end) = range.whole_pages();
        let mut cursor = Cursor { page: first, end };
        self.fill_from(&mut cursor, how, supply).map_err(|why| {
            let done = VaRange::from_pages(first, cursor.page).unwrap_or_default();
            if !done.is_empty() {
                self.retire(done, how.direct_map, false);
            }
            let (wanted, mapped) = (Pages::new(end - first), Pages::new(cursor.page - first));
            match why {
                Some(why) => MapError::PageTable { wanted, mapped, why },
                None => MapError::NoPages { wanted, got: mapped },
            }
        })
    }

    /// Unmaps a range of an area and frees its pages; where permissions are reset, after a flush. That covers all
    /// addresses of the map if the pages are `aliased`.
    pub(super) fn retire(&self, range: VaRange, direct_map: DirectMap, aliased: bool) {
        match direct_map {
            DirectMap::Unchanged => self.unmap_pages(range),
            DirectMap::ResetOnFree => self.reset(range, if aliased { self.extent() } else { range }),
        }
    }

    /// Unmaps a range and frees its pages.
    fn unmap_pages(&self, range: VaRange) {
        // Pages of consecutive numbers are freed together.
        let mut joined = Joined::new(|run| self.pages().free(run));
        self.pages().unmap(range, &mut |leaf| joined.push(leaf.run()));
        joined.end();
    }

    /// Does the same, once no CPU accesses the pages at `stale` addresses, which include the range, nor with old
    /// permissions in the direct map. Checks MP7.
    fn reset(&self, range: VaRange, stale: VaRange) {
        self.pages().hide(range);
        let mut dirty: Option<VaRange> = None;
        let mut joined = Joined::new(|run| {
            let part = self.pages().set_direct(run, DirectAccess::Invalid);
            dirty = Some(dirty.map_or(part, |dirty| hull(dirty, part)));
        });
        let (mut page, end) = range.whole_pages();
        while page < end {
            let Some(leaf) = self.pages().leaf(Va::from_page(page)) else { self.broken("MP1", range) };
            joined.push(leaf.run());
            page += leaf.run().pages;
        }
        joined.end();
        self.flush(&[stale, dirty.unwrap_or_default()]);
        let mut joined = Joined::new(|run| {
            // A page without access cannot be translated: making it accessible needs no flush.
            _ = self.pages().set_direct(run, DirectAccess::Default);
            self.pages().free(run);
        });
        self.pages().unmap(range, &mut |leaf| joined.push(leaf.run()));
        joined.end();
    }

    /// Fills a range. On an error, the cursor shows how much is mapped; `None` means that the source has no pages.
    fn fill_from(&self, cursor: &mut Cursor, how: How, supply: Supply) -> Result<(), Option<PageTableError>> {
        let sizes = T::LEAF_SIZES;
        let mut top = supply.top;
        if let Some(run) = supply.first {
            self.map_own(cursor, run, how.protection, &mut top)?;
        }
        while cursor.left() > 0 {
            let rung = ladder::rung(sizes, top, cursor.page, cursor.left());
            if rung == 0 {
                let want = ladder::edge(sizes, 0, top, cursor.page, cursor.left());
                self.fill_batch(cursor, want, how)?;
            } else if let Some(first) = self.pages().alloc_run(sizes[rung], how.pages) {
                let run = Run { first, pages: 1 << sizes[rung] };
                self.map_own(cursor, run, how.protection, &mut top)?;
            } else {
                top = rung - 1;
            }
        }
        Ok(())
    }

    /// Allocates `want` pages or fewer and maps them one by one.
    fn fill_batch(&self, cursor: &mut Cursor, want: u64, how: How) -> Result<(), Option<PageTableError>> {
        let mut frames = [0; BATCH];
        let want = (BATCH as u64).min(want) as usize;
        let got = self.pages().alloc(&mut frames[..want], how.pages);
        if got == 0 {
            return Err(None);
        }
        let list = &frames[..got];
        let mut place = 0;
        while place < list.count() {
            let run = list.run(place);
            if let Err(why) = self.map_own(cursor, run, how.protection, &mut 0) {
                frames[(place + run.pages) as usize..got]
                    .iter()
                    .for_each(|&first| self.pages().free(Run { first, pages: 1 }));
                return Err(why);
            }
            place += run.pages;
        }
        Ok(())
    }

    /// Maps allocated pages; frees those that the page table did not map.
    fn map_own(
        &self,
        cursor: &mut Cursor,
        run: Run,
        protection: Protection,
        top: &mut usize,
    ) -> Result<(), Option<PageTableError>> {
        let mapped = self.map_run(cursor.page, run, protection, top);
        let done = mapped.map_or_else(|stopped| stopped.pages_done, |()| run.pages);
        cursor.page += done;
        mapped.map_err(|Stopped { why, .. }| {
            if done < run.pages {
                self.pages().free(Run { first: run.first + done, pages: run.pages - done });
            }
            Some(why)
        })
    }
}

impl<P: Machine + Clone, T: PageTable, C: Config> MapSpace<P, T, C> {
    /// Maps a run at address page `page`, by entries up to rung `top` of the ladder and as large as possible. A size
    /// that the page table does not map is not tried again.
    ///
    /// # Errors
    /// The errors of [`PageTable::map`]: not even single pages can be mapped.
    pub(super) fn map_run(
        &self,
        page: u64,
        run: Run,
        protection: Protection,
        top: &mut usize,
    ) -> Result<(), Stopped> {
        let mut done = 0;
        while done < run.pages {
            let rest = Run { first: run.first + done, pages: run.pages - done };
            let step = ladder::step(T::LEAF_SIZES, *top, page + done, rest);
            let run = Run { pages: step.pages, ..rest };
            let entries = Entries { run, pages_log2: T::LEAF_SIZES[step.rung], protection };
            match self.pages().map(Va::from_page(page + done), entries) {
                Ok(()) => done += step.pages,
                Err(Stopped { pages_done, why }) => {
                    done += pages_done;
                    if step.rung == 0 {
                        return Err(Stopped { pages_done: done, why });
                    }
                    *top = step.rung - 1;
                }
            }
        }
        Ok(())
    }

    /// Maps the pages of a list from `at` on; on an error none is mapped.
    pub(super) fn map_list<L: PageList + ?Sized>(
        &self,
        at: Va,
        list: &L,
        protection: Protection,
    ) -> Result<(), MapError> {
        let (first, count) = (at.page_floor(), list.count());
        let (mut place, mut top) = (0, T::LEAF_SIZES.len() - 1);
        while place < count {
            let run = list.run(place);
            if let Err(stopped) = self.map_run(first + place, run, protection, &mut top) {
                let mapped = place + stopped.pages_done;
                let done = VaRange::from_pages(first, first + mapped).unwrap_or_default();
                self.forget(done);
                let (wanted, mapped) = (Pages::new(count), Pages::new(mapped));
                return Err(MapError::PageTable { wanted, mapped, why: stopped.why });
            }
            place += run.pages;
        }
        Ok(())
    }

    /// Unmaps a range whose pages belong to a caller, or are also mapped elsewhere.
    pub(super) fn forget(&self, range: VaRange) {
        if !range.is_empty() {
            self.pages().unmap(range, &mut |_| {});
        }
    }

    /// Flushes ranges and waits until that is done. Callers hold no lock and may sleep.
    pub(super) fn flush(&self, ranges: &[VaRange]) {
        let epoch = self.machine.flush(ranges);
        if !self.machine.completed(epoch) {
            self.machine.wait(epoch);
        }
    }
}

/// Returns the smallest range that covers two.
fn hull(one: VaRange, other: VaRange) -> VaRange {
    match (one.is_empty(), other.is_empty()) {
        (true, _) => other,
        (_, true) => one,
        _ => VaRange::new(one.start().min(other.start()), one.end().max(other.end())).unwrap_or_default(),
    }
}
