//! Areas that get another size.
//!
//! ```text
//!   within its pages   |##r##|  ->  |####r|            only the requested size
//!   within its range   |###|....g|  ->  |#####|..g|     more pages; where some were given up before, after a flush
//!   beyond             |###|g|free  ->  |######|g|      a larger range, if what is above is free
//!   elsewhere          |###|g|BBBB  ->  |######|g|      its pages mapped at another range, then unmapped here
//!   smaller            |#####|g|    ->  |###|..g|       pages given up; the range stays, to grow into
//! ```

use super::MapSpace;
use super::area::Sizes;
use super::fill::How;
use crate::error::MapError;
use crate::machine::{PageSource, PageTable, Run, Stopped};
use crate::record::{Entry, Kind};
use crate::request::{AreaRequest, Fill};
use va_base::{Machine, PAGE_SIZE, Pages, RequestError, Va, VaRange};
use va_block::Config;
use va_space::ReshapeError;

impl<P: Machine + Clone, C: Config, T: PageTable + PageSource> MapSpace<P, C, T> {
    /// Gives an area of [`vmalloc`](Self::vmalloc) another size, and returns where it is then. Its pages stay, wherever it is; nothing is
    /// copied. With [`Fill::Zeros`] all bytes beyond those requested before are zeros.
    ///
    /// # Errors
    /// [`MapError`]. The area is as it was, but for its range, which may have grown where lookups are by trees.
    /// # Locks
    /// As [`vmalloc`](Self::vmalloc) and [`vfree`](Self::vfree). Nobody finds the area during the call.
    /// Cost: the pages that come or go; all of them if it moves.
    pub fn vrealloc(&self, cpu: u32, at: Va, bytes: u64, fill: Fill) -> Result<Va, MapError> {
        let need = bytes.div_ceil(PAGE_SIZE);
        if need == 0 {
            return Err(RequestError::BadSize { size_bytes: bytes }.into());
        }
        let mut entry = self.claim(at, Kind::Vmalloc, true)?;
        let before = entry;
        let done = if need <= entry.mapped {
            self.shrink(&mut entry, need);
            Ok(())
        } else {
            self.grow(cpu, &mut entry, need, fill)
        };
        if done.is_ok() {
            if fill == Fill::Zeros {
                self.clear(&entry, before.requested, bytes.min(before.usable()));
            }
            entry.requested = bytes;
        }
        self.publish(entry);
        done.map(|()| entry.start())
    }

    /// Gives up what is behind an area from page `need` on, but no part of a huge page.
    fn shrink(&self, entry: &mut Entry, need: u64) {
        let keep = match self.table.leaf(entry.part(need - 1, need).start()) {
            Some(leaf) => (entry.page + need).next_multiple_of(1 << leaf.pages_log2) - entry.page,
            None => need,
        };
        if keep < entry.mapped {
            self.empty(entry.part(keep, entry.mapped));
            self.count(Kind::Vmalloc, entry.mapped - keep, false);
            entry.stale = entry.stale.max(entry.mapped);
            entry.mapped = keep;
        }
    }

    fn grow(&self, cpu: u32, entry: &mut Entry, need: u64, fill: Fill) -> Result<(), MapError> {
        let range = entry.pages;
        let pages = need.checked_add(entry.guard.pages()).filter(|&pages| pages < 1 << 52);
        let Some(pages) = pages else { return Err(RequestError::TooManyPages { pages: need }.into()) };
        if pages > range && !self.widen(entry, pages)? || !self.freshen(entry, need) {
            self.narrow(entry, range);
            return self.move_to(cpu, entry, need, fill);
        }
        let how = How { leaves: entry.leaves, fill, protection: entry.protection };
        if let Err(error) = self.fill(entry.part(entry.mapped, need), how) {
            // What was mapped of it was unmapped.
            entry.stale = entry.stale.max(need);
            self.narrow(entry, range);
            return Err(error);
        }
        self.count(Kind::Vmalloc, need - entry.mapped, true);
        entry.mapped = need;
        Ok(())
    }

    /// Makes the range larger; `false` if what is above is not free, or outside its window.
    fn widen(&self, entry: &mut Entry, pages: u64) -> Result<bool, MapError> {
        let inside = |window: VaRange| entry.page + pages <= window.end().page_floor();
        if !entry.window.is_none_or(inside) {
            return Ok(false);
        }
        match self.space().resize_at(entry.start(), Pages::new(pages)) {
            Ok(range) => {
                entry.pages = range.len_bytes() / PAGE_SIZE;
                Ok(true)
            }
            Err(ReshapeError::NoMeta(error)) => Err(error.into()),
            Err(_) => Ok(false),
        }
    }

    /// Makes the range as large as it was. Records that were in use a moment ago are in hand, so a space that finds areas by its
    /// page map does not refuse; one with trees may, and then the range stays.
    fn narrow(&self, entry: &mut Entry, pages: u64) {
        if pages < entry.pages && self.space().resize_at(entry.start(), Pages::new(pages)).is_ok() {
            entry.pages = pages;
            entry.stale = entry.stale.min(pages);
        }
    }

    /// Sees to it that no CPU translates what was mapped before in the pages that are to be mapped; `false` if that takes time. Checks MP6.
    fn freshen(&self, entry: &mut Entry, need: u64) -> bool {
        if entry.stale > entry.mapped {
            let part = entry.part(entry.mapped, entry.stale.max(need));
            let epoch = self.machine.flush(&[part]);
            if !self.machine.completed(epoch) {
                return false;
            }
            entry.stale = 0;
        }
        true
    }

    /// Maps the pages of an area at another range, more behind them, and gives the old one back.
    fn move_to(&self, cpu: u32, entry: &mut Entry, need: u64, fill: Fill) -> Result<(), MapError> {
        let request = AreaRequest {
            align: entry.align,
            guard: entry.guard,
            leaves: entry.leaves,
            window: entry.window,
            ..AreaRequest::new(need * PAGE_SIZE)
        };
        let (area, align) = self.place(cpu, &request, Sizes::of(&request)?)?;
        let (page, pages) = (area.start().page_floor(), area.size().get());
        let new = Entry { page, pages, mapped: need, stale: 0, align, ..*entry };
        let how = How { leaves: entry.leaves, fill, protection: entry.protection };
        let moved = self.alias(entry, &new).and_then(|()| {
            self.fill(new.part(entry.mapped, need), how)
                .inspect_err(|_| self.forget(new.part(0, entry.mapped)))
        });
        if let Err(error) = moved {
            self.abandon(area);
            return Err(error);
        }
        // The promise that came with the new addresses; the area keeps its own.
        self.records.lock().forgive();
        self.forget(entry.part(0, entry.mapped));
        self.release(entry);
        self.count(Kind::Vmalloc, need - entry.mapped, true);
        *entry = new;
        Ok(())
    }

    /// Maps all pages of an area at another range too; on an error none.
    fn alias(&self, entry: &Entry, new: &Entry) -> Result<(), MapError> {
        let mut done = 0;
        while done < entry.mapped {
            let leaf = self.table.leaf(entry.part(done, entry.mapped).start());
            let Some(leaf) = leaf else { self.broken("MP1", entry.range()) };
            let run = Run { first: leaf.first, pages: 1 << leaf.pages_log2 };
            let at = Va::from_page(new.page + done);
            let huge = leaf.pages_log2 > 0
                && at.page_floor().is_multiple_of(run.pages)
                && self.table.map_huge(at, leaf.first, entry.protection).is_ok();
            let mapped = if huge { Ok(()) } else { self.table.map(at, run, entry.protection) };
            if let Err(Stopped { pages_done, why }) = mapped {
                let mapped = done + pages_done;
                self.forget(new.part(0, mapped));
                let (wanted, mapped) = (Pages::new(entry.mapped), Pages::new(mapped));
                return Err(MapError::Refused { wanted, mapped, why });
            }
            done += run.pages;
        }
        Ok(())
    }

    /// Makes zeros of the bytes `[from, to)` of an area.
    fn clear(&self, entry: &Entry, from: u64, to: u64) {
        let start = entry.start().get();
        let range = VaRange::new(Va::new(start + from), Va::new(start + to.max(from))).unwrap_or_default();
        let mut at = range.start();
        while at < range.end() {
            let page = Va::from_page(at.page_floor());
            let end = (page.get() + PAGE_SIZE).min(range.end().get());
            let Some(leaf) = self.table.leaf(page) else { self.broken("MP1", entry.range()) };
            let frame = leaf.first + (page.page_floor() & ((1 << leaf.pages_log2) - 1));
            self.table.clear(frame, at.get() - page.get(), end - page.get());
            at = Va::new(end);
        }
    }
}
