//! Areas that are resized.
//!
//! ```text
//!   within its pages   |##r##|  ->  |####r|            only the requested size
//!   within its range   |###|....g|  ->  |#####|..g|     more pages; at addresses unmapped before, after a flush
//!   beyond             |###|g|free  ->  |######|g|      a larger range, if what is above is free
//!   elsewhere          |###|g|BBBB  ->  |######|g|      its pages mapped at another range, then unmapped here
//!   smaller            |#####|g|    ->  |###|..g|       pages freed; the range remains, to grow into
//! ```

use super::MapSpace;
use super::area::Sizes;
use super::fill::{How, Supply};
use crate::error::MapError;
use crate::ladder;
use crate::machine::{Fill, Leaf, PageRequest, PageSource, PageTable, Run};
use crate::record::{Entry, Kind};
use crate::request::{AreaRequest, Leaves};
use va_base::{Machine, PAGE_SIZE, Pages, RequestError, Va, VaRange};
use va_block::Config;
use va_space::ReshapeError;

impl Entry {
    /// Returns the settings by which its pages are mapped.
    fn how(&self, fill: Fill) -> How {
        let pages = PageRequest { fill, numa_id: self.numa_id };
        How { leaves: self.leaves, pages, protection: self.protection, direct_map: self.direct_map }
    }
}

impl<P: Machine + Clone, T: PageTable + PageSource, C: Config> MapSpace<P, T, C> {
    /// Resizes an area of [`vmalloc`](Self::vmalloc), and returns its address then. Its pages are the same, wherever it
    /// is; nothing is copied. With [`Fill::Zeros`] all bytes beyond those requested before are zeros.
    ///
    /// # Errors
    /// [`MapError`]. The area is unchanged, except that its range remains larger if the machine has no memory.
    /// # Locks
    /// Those of [`vmalloc`](Self::vmalloc) and [`vfree`](Self::vfree). No other caller finds the area during the call.
    /// Cost: the pages that are added or removed; all of them if it moves.
    pub fn vrealloc(&self, cpu: u32, at: Va, bytes: u64, fill: Fill) -> Result<Va, MapError> {
        let need = bytes.div_ceil(PAGE_SIZE);
        if need == 0 {
            return Err(RequestError::BadSize { size_bytes: bytes }.into());
        }
        let mut entry = self.claim(at, Kind::Vmalloc, true)?;
        let before = entry;
        let done = if need <= entry.mapped {
            self.cut(&mut entry, need);
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

    /// Unmaps the pages of an area from page `need` on, in whole entries only.
    fn cut(&self, entry: &mut Entry, need: u64) {
        let remaining = match self.pages().leaf(entry.part(need - 1, need).start()) {
            Some(leaf) => (entry.page + need).next_multiple_of(1 << leaf.pages_log2) - entry.page,
            None => need,
        };
        if remaining < entry.mapped {
            self.retire(entry.part(remaining, entry.mapped), entry.direct_map, entry.aliased);
            self.count(Kind::Vmalloc, entry.mapped - remaining, false);
            entry.stale = entry.stale.max(entry.mapped);
            entry.mapped = remaining;
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
        let how = entry.how(fill);
        if let Err(error) = self.fill(entry.part(entry.mapped, need), how, Supply::none::<T>(how)) {
            // Its mapped pages were unmapped.
            entry.stale = entry.stale.max(need);
            self.narrow(entry, range);
            return Err(error);
        }
        self.count(Kind::Vmalloc, need - entry.mapped, true);
        entry.mapped = need;
        Ok(())
    }

    /// Enlarges the range; `false` if the range above is not free, or outside its window.
    fn widen(&self, entry: &mut Entry, pages: u64) -> Result<bool, MapError> {
        let window = entry.window.unwrap_or(self.space().default_window());
        if entry.page + pages > window.end().page_floor() {
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

    /// Restores the old size of the range. The space may need a table or a record for the old end. If the machine has
    /// no memory for it, the range remains larger, and only addresses are lost until the free.
    fn narrow(&self, entry: &mut Entry, pages: u64) {
        if pages < entry.pages && self.space().resize_at(entry.start(), Pages::new(pages)).is_ok() {
            entry.pages = pages;
            entry.stale = entry.stale.min(pages);
        }
    }

    /// Ensures that no CPU translates earlier mappings of the pages that are about to be mapped; `false` if that takes
    /// time. Checks MP6.
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

    /// Maps the pages of an area at another range, adds more after them, and frees the old range.
    fn move_to(&self, cpu: u32, entry: &mut Entry, need: u64, fill: Fill) -> Result<(), MapError> {
        let request = AreaRequest {
            align: entry.align,
            guard: entry.guard,
            leaves: entry.leaves,
            window: entry.window,
            ..AreaRequest::new(need * PAGE_SIZE)
        };
        let area = self.place(cpu, &request, Sizes::of(&request)?, self.best_moved(entry, need))?;
        let (page, pages) = (area.start().page_floor(), area.size().get());
        // Whether it moves or not, its pages are unmapped at one range of the two, and no flush covers that yet (MP7).
        entry.aliased = true;
        let new = Entry { page, pages, mapped: need, stale: 0, ..*entry };
        let how = entry.how(fill);
        let moved = self.alias(entry, &new).and_then(|()| {
            self.fill(new.part(entry.mapped, need), how, Supply::none::<T>(how))
                .inspect_err(|_| self.forget(new.part(0, entry.mapped)))
        });
        if let Err(error) = moved {
            self.cancel_area(area);
            return Err(error);
        }
        // The reservation made with the new addresses; the area has its own.
        self.records().cancel();
        self.forget(entry.part(0, entry.mapped));
        self.release(entry);
        self.count(Kind::Vmalloc, need - entry.mapped, true);
        *entry = new;
        Ok(())
    }

    /// Returns the largest rung of which an area could have an entry if it moved and had `need` pages.
    fn best_moved(&self, entry: &Entry, need: u64) -> usize {
        let sizes = T::LEAF_SIZES;
        if entry.leaves == Leaves::Small {
            return 0;
        }
        let (mut done, new) = (0, Run { first: entry.mapped, pages: need - entry.mapped });
        let mut best = ladder::best(sizes, entry.mapped, new);
        while done < entry.mapped && best + 1 < sizes.len() {
            let run = self.leaf_of(entry, done).run();
            best = best.max(ladder::best(sizes, done, run));
            done += run.pages;
        }
        best
    }

    /// Maps all pages of an area at another range too; on an error none.
    fn alias(&self, entry: &Entry, new: &Entry) -> Result<(), MapError> {
        let mut top = if entry.leaves == Leaves::Small { 0 } else { T::LEAF_SIZES.len() - 1 };
        let mut done = 0;
        while done < entry.mapped {
            let run = self.leaf_of(entry, done).run();
            if let Err(stopped) = self.map_run(new.page + done, run, entry.protection, &mut top) {
                let mapped = done + stopped.pages_done;
                self.forget(new.part(0, mapped));
                let (wanted, mapped) = (Pages::new(entry.mapped), Pages::new(mapped));
                return Err(MapError::PageTable { wanted, mapped, why: stopped.why });
            }
            done += run.pages;
        }
        Ok(())
    }

    /// Returns the entry of page `page` of an area. Checks MP1.
    fn leaf_of(&self, entry: &Entry, page: u64) -> Leaf {
        let leaf = self.pages().leaf(entry.part(page, entry.mapped).start());
        leaf.unwrap_or_else(|| self.broken("MP1", entry.range()))
    }

    /// Zeroes the bytes `[from, to)` of an area.
    fn clear(&self, entry: &Entry, from: u64, to: u64) {
        let start = entry.start().get();
        let range = VaRange::new(Va::new(start + from), Va::new(start + to.max(from))).unwrap_or_default();
        let mut at = range.start();
        while at < range.end() {
            let page = Va::from_page(at.page_floor());
            let end = (page.get() + PAGE_SIZE).min(range.end().get());
            let Some(leaf) = self.pages().leaf(page) else { self.broken("MP1", entry.range()) };
            let frame = leaf.first + (page.page_floor() & ((1 << leaf.pages_log2) - 1));
            self.pages().clear(frame, at.get() - page.get(), end - page.get());
            at = Va::new(end);
        }
    }
}
