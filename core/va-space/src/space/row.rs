//! Several areas of one size side by side, allocated under one hold of the index. A magazine takes them when it has none
//! of a size that is requested repeatedly.
//!
//! ```text
//!   hole  |...................................|      one search, one cut
//!   row   |=A=|=b=|=b=|=b=|...................|      A: busy, for the request; b: flushed, for the cache
//! ```
//!
//! Each returns to the index separately, so records are reserved for each as for an area of its own (SP3) before
//! anything is taken.

use super::VmapSpace;
use super::busy::Tables;
use super::locks::HeapGuard;
use crate::area::{Area, range_of};
use crate::config::Config;
use crate::error::SpaceError;
use crate::list::{AreaList, Flushed, UnlinkedArea};
use crate::lookup::Lookup;
use crate::map::{PageMap, State, Word};
use va_base::{Align, Context, Machine, Request, Va};
use va_tree::FreeIndex;

impl<P: Machine + Clone, C: Config> VmapSpace<P, C> {
    /// Takes `count` areas of `pages` pages, a multiple of `align` and together less than 2^23, for `owner`: the first
    /// busy, the others in a list. `None` if there is no hole for all of them, or no memory; then nothing has changed.
    pub(super) fn take_row(
        &self,
        pages: u64,
        align: Align,
        count: u64,
        owner: u32,
    ) -> Option<(Area, AreaList<Flushed>)> {
        // Each of them is freed separately.
        let splits = count.checked_sub(1)?;
        let all = count.checked_mul(pages)?;
        let request = Request::pages(all).ok()?.aligned(align);
        let mut guard = self.lock_free();
        let bytes = guard.index.memory().allocated_bytes;
        guard.index.reserve_splits(splits).ok()?;
        // A call that grew the index takes one area: growth and a row are each as long as a call should be.
        if guard.index.memory().allocated_bytes != bytes {
            let _released = guard.index.release_splits(splits);
            return None;
        }
        let Ok(Some(at)) = C::take_lowest(&mut guard.index, &request) else {
            let _released = guard.index.release_splits(splits);
            return None;
        };
        let first = at.page_floor();
        let page_of = |n: u64| first + n * pages;
        if Self::NOTIFIES_LOOKUP || !self.attach_slots(&mut guard, (0..count).map(page_of)) {
            let tables = Tables::Missing.or_leaves(!Self::NOTIFIES_LOOKUP && guard.marker.lacks_leaves());
            self.release_slots(&mut guard, (0..count).map(page_of));
            guard.transit_pages += all;
            drop(guard);
            let ready = self.ready_slots(count, page_of, pages, tables);
            let is_ready = ready.is_ok();
            guard = ready.unwrap_or_else(|_| self.lock_free());
            guard.transit_pages -= all;
            if !is_ready {
                self.put_back(&mut guard, range_of(first, all));
                let _released = guard.index.release_splits(splits);
                drop(guard);
                self.note_return();
                return None;
            }
        }
        let heap = &mut *guard;
        let mut list = AreaList::new();
        // The last first, so that the list is in the order of addresses.
        self.map.begin_row(
            &mut heap.marker,
            (1..count).rev().map(page_of),
            |generation| Word::new(pages, Some(owner), generation, State::Idle),
            |page, word, slot| list.push_front(UnlinkedArea::won(page, pages, word, slot)),
        );
        let word = Word::new(pages, Some(owner), self.map.last_generation(first) + 1, State::Busy);
        self.map.begin(&mut heap.marker, first, pages, word);
        Some((Area { page: first, pages, generation: word.generation() }, list))
    }

    /// Allocates entries and records for areas of `pages` pages, which start at `page_of` each number, and takes `free`
    /// with their slots. The lookup has the first, and a record for each of the others. After an error nothing has
    /// changed.
    #[inline(always)]
    pub(super) fn ready_slots(
        &self,
        count: u64,
        page_of: impl Fn(u64) -> u64,
        pages: u64,
        tables: Tables,
    ) -> Result<HeapGuard<'_, P, C>, SpaceError> {
        self.ready_row(count, &page_of, pages, tables)?;
        let ready = self.lock_with_slots(|| (0..count).map(&page_of), tables);
        if ready.is_err() {
            self.unready_row(count, &page_of);
        }
        ready
    }

    /// Allocates entries and records for each area of a row, or none; the lookup has the first, and a record for each
    /// other.
    fn ready_row(
        &self,
        count: u64,
        page_of: impl Fn(u64) -> u64,
        pages: u64,
        tables: Tables,
    ) -> Result<(), SpaceError> {
        let mut leaves = PageMap::one_a_leaf((0..count).map(&page_of));
        let has_tables = match tables {
            // The map has entries, unless they go meanwhile.
            Tables::None => (0..count).all(|n| self.lookup.has_table(Va::from_page(page_of(n)))),
            Tables::Missing | Tables::Leaves => leaves.all(|page| self.map.reserve(page, &self.machine)),
        };
        if !has_tables {
            return Err(SpaceError::NoTable);
        }
        let context = if tables == Tables::None { Context::Atomic } else { Context::Sleeping };
        for n in 0..count {
            if let Err(error) = self.lookup.admit(range_of(page_of(n), pages), context, &self.machine) {
                self.unready_row(n, &page_of);
                return Err(error.into());
            }
            if n > 0 {
                self.lookup.remove(Va::from_page(page_of(n)), &self.machine);
            }
        }
        Ok(())
    }

    fn unready_row(&self, count: u64, page_of: impl Fn(u64) -> u64) {
        if count > 0 {
            self.unready(page_of(0));
        }
        (1..count).for_each(|done| self.lookup.release(Va::from_page(page_of(done))));
    }
}
