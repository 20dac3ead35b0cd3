//! Pages that are released to the system, and addresses that are released where a limit counts them (`RLIMIT_AS`,
//! locked memory).
//!
//! # Theory
//! ```text
//!   first time     all but: areas, quarantine, and a reserved range for new areas, a sixteenth of the limit
//!   next time      that range, and the quarantine with it
//! ```
//! A limit counts reserved addresses as if they were used, and this profile reserves many: areas are far apart. What
//! is released is allocated in the space for good, so no area is placed there again: others may map there. New areas
//! are drawn from the reserved range, and fail when it is full. Its place is drawn, too. What is left of the window
//! stays inaccessible around areas: an access past a wall faults for the rest of its granule at least.
//!
//! Released ranges are disjoint and whole granules, so there is at most one for each granule of the window.
//!
//! # Locking
//! The one lock.

use super::granules::GRANULE_PAGES;
use super::tag::Tag;
use super::window::Wall;
use super::{Hard, State};
use crate::PAGE_BYTES;
use core::sync::atomic::Ordering;
use lock_api::MutexGuard;
use va_base::VaRange;
use vmalloc_os::fork::Hold;
use vmalloc_os::lock::{Fork, Futex};
use vmalloc_os::os::Os;

/// Pages that become warm or are purged until the available memory is read again: 32 MiB.
const LOOK_PAGES: u64 = 8192;
/// The fraction of the available memory that may be warm.
const WARM_SHARE: u64 = 4;
/// The fraction of the limit that is reserved for new areas.
const RANGE_SHARE: usize = 16;
/// Pages of a table: the reserved range begins with one.
const TABLE_PAGES: u64 = (2 << 20) / PAGE_BYTES as u64;

impl<O: Os> Hard<O> {
    /// The addresses of the arena.
    pub(crate) fn arena(&self) -> VaRange {
        self.window.extent()
    }

    /// Returns true if an address is in the arena and was not released. A released one may be another mapping's.
    #[inline]
    pub(crate) fn contains(&self, at: usize) -> bool {
        self.window.locate(at).is_some_and(|(page, _)| !self.window.is_released(page))
    }

    /// Prevents that another thread unmaps tags, while the result lives. A tag of the caller's own area needs no lock.
    /// Any other may be unmapped between the look at its granule and the read. A handler of a signal that interrupted
    /// the holder of the lock goes on without: then only its own thread could unmap tags.
    pub(super) fn tags_stay(&self) -> Option<MutexGuard<'_, Futex, State<O>>> {
        (!self.state.is_mine()).then(|| self.state.lock())
    }

    /// Returns the tag of any page, for which it takes the lock.
    pub(super) fn tag_of(&self, page: u64) -> Tag {
        let _tags = self.tags_stay();
        self.window.get(page)
    }

    /// Reads how much memory is available, after 32 MiB were freed. A quarter of it may be warm, or nothing where
    /// it is short, as in the ordinary profile. Called without the lock.
    pub(super) fn look_around(&self) {
        let seen = || {
            let state = self.state.lock();
            [state.warm.pages(), state.warm.pages() + state.purged]
        };
        let [warm, freed] = seen();
        if freed.abs_diff(self.asked.load(Ordering::Relaxed)) <= LOOK_PAGES {
            return;
        }
        let room = self.host.os().available();
        let most = room.map_or(u64::MAX, |room| {
            let available = room.bytes / PAGE_BYTES as u64;
            if room.is_short || available < warm { 0 } else { (available + warm) / WARM_SHARE }
        });
        self.state.lock().warm.bound(most);
        loop {
            let surplus = self.state.lock().warm.surplus();
            let Some(held) = surplus else { break };
            self.cool_one(held);
        }
        self.asked.store(seen()[1], Ordering::Relaxed);
    }

    /// Releases the pages of warm rooms, and returns their number. The quarantine has none.
    pub(crate) fn trim(&self) -> u64 {
        self.rest(&mut self.state.lock())[0]
    }

    /// Releases these pages, and closes idle granules. Returns the number of pages of both.
    pub(crate) fn shut(&self) -> u64 {
        if self.is_mine() {
            return 0;
        }
        self.rest(&mut self.state.lock()).iter().sum()
    }

    /// Releases the pages of warm rooms, and closes idle granules. Returns the number of pages of each.
    pub(super) fn rest(&self, state: &mut State<O>) -> [u64; 2] {
        let before = state.purged;
        self.cool(state);
        let closed = state.granules.rest(&self.window);
        [state.purged - before, closed]
    }

    /// Releases addresses that no area has. Returns `false` if there were none.
    pub(crate) fn release_addresses(&self) -> bool {
        if self.is_mine() {
            // A signal handler that interrupted a call under the lock.
            return false;
        }
        let state = &mut *self.state.lock();
        let is_first = self.window.close_above();
        state.keep = Some(if is_first { self.draw_range(state) } else { [self.window.first(); 2] });
        // The quarantine is released only if there is nothing else.
        while !is_first && self.relent(state) {}
        self.rest(state);
        self.release_holes(state) || is_first
    }

    /// Draws the range in which new areas are placed.
    fn draw_range(&self, state: &mut State<O>) -> [u64; 2] {
        let (first, pages) = (self.window.first(), self.window.window_pages());
        let bytes = self.host.os().address_limit().unwrap_or(0) / RANGE_SHARE;
        let pages_kept = ((bytes / PAGE_BYTES) as u64 / TABLE_PAGES * TABLE_PAGES).min(pages);
        let start = first + state.draw.below((pages - pages_kept) / TABLE_PAGES + 1) * TABLE_PAGES;
        [start, start + pages_kept]
    }

    /// Releases the whole granules between allocated ranges. Returns `false` if there are none.
    fn release_holes(&self, state: &mut State<O>) -> bool {
        let (mut from, end) = (self.window.first(), self.window.first() + self.window.window_pages());
        let [first_kept, keep_end] = state.keep.unwrap_or([end; 2]);
        let mut any = false;
        while from < end {
            let taken = state.places.above(from).map_or((end, end), VaRange::whole_pages);
            let stop = taken.0.clamp(from, end);
            for (from, stop) in [(from, stop.min(first_kept)), (from.max(keep_end), stop)] {
                any |= self.release_hole(state, from, stop);
            }
            from = taken.1;
        }
        any
    }

    /// Releases the closed granules that are wholly between two pages.
    fn release_hole(&self, state: &mut State<O>, from: u64, stop: u64) -> bool {
        let first = self.window.first();
        let page = |granule: u64| first + granule * GRANULE_PAGES;
        let (mut at, end) =
            ((from - first).div_ceil(GRANULE_PAGES), stop.saturating_sub(first) / GRANULE_PAGES);
        let mut any = false;
        while at < end {
            let is_open = self.window.is_open(at);
            let next = (at..end).find(|&other| self.window.is_open(other) != is_open).unwrap_or(end);
            let range = VaRange::from_pages(page(at), page(next)).unwrap_or_default();
            if !is_open && state.places.take_for_good(range) {
                if self.window.wall() == Wall::Markers {
                    state.granules.count_used(&self.window, range);
                }
                state.retired_pages += page(next) - page(at);
                self.window.release_granules(&(at..next));
                any = true;
            }
            at = next;
        }
        any
    }
}
