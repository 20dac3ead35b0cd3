//! Changes of busy areas: allocated at an address of the caller's choice, split, joined, resized in place.
//!
//! # Theory
//! A machine with memory in its ranges caches freed memory for a while, as pages that are still mapped, and allocates
//! fragments of it to others without a flush. To the space all that remains busy. The addresses are freed only with the
//! pages. By then the areas that were allocated once may not fit the freed ranges: they are split or joined first.
//!
//! ```text
//!   split      |=========L=========|   ->  |====L====|====R====|        one area more; its records are reserved (SP3)
//!   join       |====L====|====R====|   ->  |=========L=========|        one less
//!   grow       |====L====|  hole   |   ->  |=======L=======|   |        its tail leaves the index
//!   shrink     |=======L=======|       ->  |====L====|~lazy~|           a split, and a free of the tail
//! ```
//!
//! A caller that changes an area owns it as if freeing it: the area leaves the busy state by the same compare-exchange.
//! So of a concurrent change and free one fails. Sizes and start bits change in one hold of `free` (SP1); then the area
//! is busy again. A lookup may miss it in between.
//!
//! An area with an owner is pooled when it is freed, and then allocated to a request without a window. So an area that
//! grows out of the default window has no owner any more.
//!
//! A handle ([`Area`]) has a size, so it frees nothing any more once its area has another; such areas are freed by
//! their start.
//! # Invariants
//! - **PO6 inside** an area with an owner is inside the default window.
//! # Source
//! Our own. Linux cuts areas only on their way back (`mm/vmalloc.c`, `va_clip`), and has no call for any of these.

use super::VmapSpace;
use super::busy::Tables;
use crate::area::{Area, range_of};
use crate::config::Config;
use crate::error::SpaceError;
use crate::list::{Unflushed, UnlinkedArea};
use crate::lookup::Lookup;
use crate::map::{Found, Marker, State, Word};
use core::fmt;
use va_base::{AllocError, Context, Machine, Pages, Va, VaRange};
use va_tree::FreeIndex;

/// The reason why an area was not changed. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ReshapeError {
    /// No busy area starts there, or, for a cut, is there.
    NoArea {
        /// The address.
        at: Va,
    },
    /// The address is no page boundary strictly inside the area.
    BadCut {
        /// The address of the cut.
        at: Va,
        /// The area.
        area: VaRange,
    },
    /// No busy area ends where this one starts.
    NoNeighbour {
        /// The area that the caller wanted to join to the one below it.
        area: VaRange,
    },
    /// The size is zero, or below that of an area that is to grow, or the area would end past the space.
    BadSize {
        /// The area.
        area: VaRange,
        /// Pages requested.
        requested: Pages,
    },
    /// The range above the area is not wholly free.
    Blocked {
        /// The area.
        area: VaRange,
        /// Pages requested.
        requested: Pages,
        /// The largest size that would have succeeded.
        possible: Pages,
    },
    /// The machine allocated no records or no table.
    NoMeta(SpaceError),
}

impl fmt::Display for ReshapeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoArea { at } => write!(f, "no area starts at {at}"),
            Self::BadCut { at, area } => write!(f, "{at} is no page boundary inside the area {area}"),
            Self::NoNeighbour { area } => write!(f, "no area ends where the area {area} starts"),
            Self::BadSize { area, requested } => {
                write!(
                    f,
                    "the area {area} cannot have {requested}: none, fewer by growing, or past the space"
                )
            }
            Self::Blocked { area, requested, possible } => {
                write!(f, "the area {area} cannot grow to {requested}, there is room for {possible}")
            }
            Self::NoMeta(error) => fmt::Display::fmt(error, f),
        }
    }
}

impl core::error::Error for ReshapeError {}

impl<P: Machine + Clone, C: Config> VmapSpace<P, C> {
    /// Allocates exactly `range`. The area has no owner. The caller may sleep.
    ///
    /// # Errors
    /// [`SpaceError::Index`] with [`AllocError::Occupied`] if any page of the range is busy, or is not free after
    /// everything was purged and magazines were drained. The same with [`AllocError::BadRange`] if the range is empty,
    /// not whole pages, or not in the extent. Otherwise the errors of [`alloc`](Self::alloc).
    /// # Locks
    /// `free`; all of them one after the other if pages of the range were freed and are not in the index yet. Cost:
    /// O(log holes). O(1) for each area in the range that is not busy, up to the first busy one; a purge if there is no
    /// busy one.
    pub fn alloc_at(&self, range: VaRange) -> Result<Area, SpaceError> {
        self.alloc_at_as(range, State::Busy)
    }

    /// Allocates exactly `range`, in a state: one that is not busy is in no lookup, and the caller's alone.
    pub(super) fn alloc_at_as(&self, range: VaRange, state: State) -> Result<Area, SpaceError> {
        let (page, end) = range.whole_pages();
        let attempt = || {
            let heap = self.twice(1, || {
                let mut heap = self.lock_free();
                heap.index.take(range).map(|_| heap)
            })?;
            self.begin_as(heap, (page, end - page), None, Tables::Missing, state)
        };
        let mut got = attempt();
        let is_occupied = |got: &_| matches!(got, Err(SpaceError::Index(AllocError::Occupied { .. })));
        // A purge frees no busy area; the machine's clients may.
        while is_occupied(&got) {
            if !self.is_busy_in(page, end) {
                let _freed = self.make_space(
                    true,
                    |_| None,
                    || {
                        got = attempt();
                        (!is_occupied(&got)).then_some(())
                    },
                );
                break;
            }
            if self.machine.reclaim() == 0 {
                break;
            }
            got = attempt();
        }
        got
    }

    /// Returns whether an area in `[page, end)` is busy.
    fn is_busy_in(&self, page: u64, end: u64) -> bool {
        let mut seen = self.map.covering(page).or_else(|| self.map.next(page));
        while let Some(area) = seen.filter(|area| area.page < end) {
            if area.word.is_busy() {
                return true;
            }
            seen = self.map.next(area.page + 1);
        }
        false
    }

    /// Splits the busy area that `at` is inside, and returns both halves. Both have its owner.
    ///
    /// # Errors
    /// [`ReshapeError::NoArea`], [`ReshapeError::BadCut`], [`ReshapeError::NoMeta`].
    /// # Locks
    /// `free`, and those of the lookup.
    /// Cost: O(1).
    pub fn split(&self, at: Va) -> Result<(VaRange, VaRange), ReshapeError> {
        let left = self.found_around(at, Word::is_steady).ok_or(ReshapeError::NoArea { at })?;
        let cut = at.page_floor();
        if cut == left.page || Va::from_page(cut) != at {
            return Err(ReshapeError::BadCut { at, area: range_of(left.page, left.pages) });
        }
        let high = self.cut(left, cut)?;
        let (page, pages, word, _) = high.parts();
        self.settle_as(page, pages, word);
        Ok((range_of(left.page, page - left.page), range_of(page, pages)))
    }

    /// Cuts the area that was found, strictly inside, and returns the upper part, which is the caller's alone. The lower
    /// one is busy again.
    fn cut(&self, left: Found, cut: u64) -> Result<UnlinkedArea<Unflushed>, ReshapeError> {
        let (at, end) = (Va::from_page(cut), left.page + left.pages);
        if !self.map.reserve(cut, &self.machine) {
            return Err(ReshapeError::NoMeta(SpaceError::NoTable));
        }
        if !self.seize(left) {
            return Err(ReshapeError::NoArea { at });
        }
        let undo = |error| {
            self.settle_as(left.page, left.pages, left.word);
            ReshapeError::NoMeta(error)
        };
        // For the upper part, which is put there when it is busy.
        let admitted = self.lookup.admit(range_of(cut, end - cut), Context::Sleeping, &self.machine);
        admitted.map_err(|error| undo(error.into()))?;
        self.lookup.remove(at, &self.machine);
        let reserved = self.twice(1, || self.lock_free().index.reserve_splits(1));
        let ready = reserved.map_err(SpaceError::from).and_then(|_| {
            let ready = self.lock_with_slots(|| core::iter::once(cut), Tables::Missing);
            if ready.is_err() {
                let _released = self.lock_free().index.release_splits(1);
            }
            ready
        });
        let mut guard = ready.map_err(|error| {
            self.lookup.release(at);
            undo(error)
        })?;
        let heap = &mut *guard;
        // The lower part first: its leaf may store the size of the upper one from then on.
        let word = self.resize_idle(&mut heap.marker, left, cut - left.page);
        let upper = Word::new(end - cut, left.word.owner(), self.map.last_generation(cut) + 1, State::Idle);
        let slot = self.map.begin(&mut heap.marker, cut, end - cut, upper);
        drop(guard);
        self.settle_as(left.page, cut - left.page, word);
        match slot {
            Some(slot) => Ok(UnlinkedArea::won(cut, end - cut, upper, slot)),
            None => self.machine.bug(format_args!("no leaf serves {at}, which was attached"), None),
        }
    }

    /// Joins the busy area that starts at `at` to the busy area that ends there. The result has the owner of the lower
    /// one, or none if it is not inside the default window.
    ///
    /// # Errors
    /// [`ReshapeError::NoArea`], [`ReshapeError::NoNeighbour`], [`ReshapeError::NoMeta`].
    /// # Locks
    /// `free`, and those of the lookup.
    /// Cost: O(1).
    pub fn join(&self, at: Va) -> Result<VaRange, ReshapeError> {
        let right = self.starting(at)?;
        let lonely = ReshapeError::NoNeighbour { area: range_of(right.page, right.pages) };
        let below = right.page.checked_sub(1).map(Va::from_page);
        let left = below.and_then(|at| self.found_around(at, Word::is_steady)).ok_or(lonely)?;
        let pages = left.pages + right.pages;
        if !self.seize(right) {
            return Err(ReshapeError::NoArea { at });
        }
        if !self.seize(left) {
            self.settle_as(right.page, right.pages, right.word);
            return Err(lonely);
        }
        let mut guard = self.lock_free();
        let heap = &mut *guard;
        self.map.end(&mut heap.marker, right.page);
        let word = self.resize_idle(&mut heap.marker, left, pages);
        let _forgotten = heap.index.release_splits(1);
        drop(guard);
        self.lookup.release(at);
        self.settle_as(left.page, pages, word);
        Ok(range_of(left.page, pages))
    }

    /// Resizes the busy area that starts at `at` without moving it. Pages that it loses are freed; pages that it gains
    /// were free, and need no flush.
    ///
    /// # Errors
    /// Those of [`split`](Self::split) or [`grow_at`](Self::grow_at); [`ReshapeError::BadSize`] for a size of 0.
    /// # Locks
    /// `free`, and those of the lookup; to shrink, also those of [`free`](Self::free).
    /// Cost: O(log holes).
    pub fn resize_at(&self, at: Va, size: Pages) -> Result<VaRange, ReshapeError> {
        let seen = self.starting(at)?;
        let end = seen.page.checked_add(size.get()).filter(|&end| end > seen.page && size.get() < seen.pages);
        let Some(end) = end else { return self.grow(seen, size) };
        // What is cut off was never busy: no other call can have taken it.
        let tail = self.cut(seen, end)?;
        self.make_lazy(tail);
        self.after_free(Context::Sleeping);
        Ok(range_of(seen.page, end - seen.page))
    }

    /// Grows the busy area that starts at `at` to `size` without moving it. The pages that it gains were free, and need
    /// no flush. If these are a whole hole of the index, it needs no memory. Otherwise it reserves a record for the time
    /// of the call. An area that is not inside the default window any more has no owner.
    ///
    /// # Errors
    /// [`ReshapeError::NoArea`], [`ReshapeError::NoMeta`]; [`ReshapeError::BadSize`] if the area is larger;
    /// [`ReshapeError::Blocked`] if the pages above it are not free (lazy ones are not: purge and try again).
    /// # Locks
    /// `free`, and those of the lookup.
    /// Cost: O(log holes).
    pub fn grow_at(&self, at: Va, size: Pages) -> Result<VaRange, ReshapeError> {
        self.grow(self.starting(at)?, size)
    }

    /// Grows the area that was found.
    fn grow(&self, seen: Found, size: Pages) -> Result<VaRange, ReshapeError> {
        let at = Va::from_page(seen.page);
        let (page, have, want) = (seen.page, seen.pages, size.get());
        let bad = ReshapeError::BadSize { area: range_of(page, have), requested: size };
        let Some(end) = page.checked_add(want).filter(|_| want >= have) else { return Err(bad) };
        if want == have {
            return Ok(range_of(page, have));
        }
        if end > self.extent.end().page_floor() {
            return Err(bad);
        }
        if !self.seize(seen) {
            return Err(ReshapeError::NoArea { at });
        }
        let tail = range_of(page + have, want - have);
        let mut room = 0;
        let taken = self.twice(1, || {
            let mut guard = self.lock_free();
            let taken = guard.index.take(tail);
            if taken.is_err() {
                let hole = guard.index.hole_below(tail.start()).filter(|hole| hole.contains(tail.start()));
                room = hole.map_or(0, |hole| hole.end().page_floor() - (page + have));
            }
            taken.map(|_| guard)
        });
        let mut guard = match taken {
            Ok(guard) => guard,
            Err(error) => {
                self.settle_as(page, have, seen.word);
                return Err(match error {
                    AllocError::Occupied { .. } => {
                        let possible = Pages::new(have + room);
                        ReshapeError::Blocked { area: range_of(page, have), requested: size, possible }
                    }
                    error => ReshapeError::NoMeta(error.into()),
                });
            }
        };
        let heap = &mut *guard;
        // The tail was taken as an area of its own; it is adjacent to this one, so no hole needs its record.
        let _forgotten = heap.index.release_splits(1);
        let word = self.resize_idle(&mut heap.marker, seen, want);
        drop(guard);
        self.settle_as(page, want, word);
        Ok(range_of(page, want))
    }

    /// Finds the busy area that starts at `at`.
    fn starting(&self, at: Va) -> Result<Found, ReshapeError> {
        self.found_at(at, Word::is_steady).ok_or(ReshapeError::NoArea { at })
    }

    /// Removes the area that was found from lookups and frees. `false` if it is not as it was found: another call freed or
    /// changed it first.
    fn seize(&self, found: Found) -> bool {
        let won = found.exchange(found.word.with_state(State::Idle)).is_ok();
        if won {
            self.lookup.remove(Va::from_page(found.page), &self.machine);
        }
        won
    }

    /// Sets the size of a seized area, under `free`, and returns its word, which keeps PO6.
    #[inline(never)]
    fn resize_idle(&self, marker: &mut Marker, seen: Found, pages: u64) -> Word {
        let inside = self.default_window.encloses(range_of(seen.page, pages));
        let word = if inside { seen.word } else { seen.word.without_owner() };
        let word = word.resized(pages, marker.next_shape()).with_state(State::Idle);
        self.map.resize(marker, seen.page, pages, word);
        word
    }

    /// Makes an area that the caller alone has busy, with that size and word.
    fn settle_as(&self, page: u64, pages: u64, word: Word) {
        self.lookup.insert(range_of(page, pages), &self.machine);
        self.map.put(page, word.with_state(State::Busy));
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::Purge;
    use crate::config::Standard;
    use crate::error::ReleaseError;
    use crate::testing::TestMachine;
    use va_base::Request;

    fn pages(first: u64, end: u64) -> VaRange {
        VaRange::from_pages(first, end).unwrap()
    }

    #[test]
    fn huge_areas_have_the_same_size_in_every_shape() {
        let machine = TestMachine::default();
        let all = pages(16, 1 << 40);
        let space = VmapSpace::<_, Standard>::new(all, all, &machine).unwrap();
        let huge = 1 << 34;
        let area = space.alloc(0, &Request::pages(huge).unwrap()).unwrap();
        let start = area.start().page_floor();
        // The second page's word has the size; the upper half begins there.
        let (left, right) = space.split(Va::from_page(start + 1)).unwrap();
        assert_eq!((left, right), (pages(start, start + 1), pages(start + 1, start + huge)));
        assert_eq!(space.validate(), Ok(()));
        assert_eq!(space.find_enclosing(Va::from_page(start + huge - 1)).unwrap().range, right);
        assert_eq!(space.join(right.start()), Ok(pages(start, start + huge)));
        assert_eq!(space.resize_at(left.start(), Pages::new(3)), Ok(pages(start, start + 3)));
        space.purge(Purge::Full);
        assert_eq!(space.grow_at(left.start(), Pages::new(3)), Ok(pages(start, start + 3)));
        let smaller = ReshapeError::BadSize { area: pages(start, start + 3), requested: Pages::new(2) };
        assert_eq!(space.grow_at(left.start(), Pages::new(2)), Err(smaller));
        assert_eq!(space.resize_at(left.start(), Pages::new(huge)), Ok(pages(start, start + huge)));
        assert_eq!(space.validate(), Ok(()));
        assert_eq!(
            space.find_enclosing(Va::from_page(start + 7)).unwrap().range.whole_pages().1,
            start + huge
        );
        // The handle has the size that the area has again, and frees it.
        space.free(area).unwrap();
        assert_eq!(space.validate(), Ok(()));
    }

    #[test]
    fn a_handle_of_a_huge_area_that_has_another_size_frees_nothing() {
        let machine = TestMachine::default();
        let all = pages(16, 1 << 40);
        let space = VmapSpace::<_, Standard>::new(all, all, &machine).unwrap();
        let huge = 1 << 33;
        let area = space.alloc(0, &Request::pages(2 * huge).unwrap()).unwrap();
        let (start, handle) = (area.start(), area.range());
        let word = space.map.word(start.page_floor());
        space.resize_at(start, Pages::new(huge)).unwrap();
        let smaller = space.map.word(start.page_floor());
        space.purge(Purge::Full);
        let other = space.alloc(0, &Request::pages(huge).unwrap()).unwrap();
        assert_eq!(space.free(area), Err(ReleaseError::Reused { handle }));
        assert_eq!((space.lazy_pages().get(), space.validate()), (0, Ok(())));
        // A thread that read the word before both changes cannot free with it, though size and generation are the same
        // again.
        space.free(other).unwrap();
        space.purge(Purge::Full);
        space.resize_at(start, Pages::new(2 * huge)).unwrap();
        let again = space.map.word(start.page_floor());
        assert!(again != word && again != smaller && again.generation() == word.generation());
        assert_eq!(space.free_at(start), Ok(handle));
        space.purge(Purge::Full);
        assert_eq!((space.stats().areas, space.validate()), (0, Ok(())));
    }

    #[test]
    fn a_handle_of_another_shape_frees_nothing() {
        let machine = TestMachine::default();
        let all = pages(16, 1 << 16);
        let space = VmapSpace::<_, Standard>::new(all, all, &machine).unwrap();
        let area = space.alloc(0, &Request::pages(8).unwrap()).unwrap();
        let (left, right) = space.split(Va::from_page(20)).unwrap();
        assert!(space.free(area).is_err());
        assert_eq!(space.free_at(right.start()), Ok(right));
        assert_eq!(space.free_at(left.start()), Ok(left));
        assert_eq!(space.validate(), Ok(()));
    }

    #[test]
    fn a_change_and_a_free_of_an_area_at_a_time_leave_one_winner() {
        use std::sync::atomic::{AtomicU64, Ordering};
        let machine = TestMachine::default();
        let all = pages(16, 1 << 16);
        let space = VmapSpace::<_, Standard>::new(all, all, &machine).unwrap();
        let (cut, whole) = (AtomicU64::new(0), AtomicU64::new(0));
        for _ in 0..300 {
            let start = space.alloc_at(pages(64, 72)).unwrap().start();
            let middle = Va::from_page(68);
            std::thread::scope(|scope| {
                let frees = scope.spawn(|| space.free_at(start).map(VaRange::len_bytes));
                let splits = scope.spawn(|| space.split(middle));
                let (freed, split) = (frees.join().unwrap(), splits.join().unwrap());
                let rest = match (freed, split) {
                    // Freed whole, before or after it was cut.
                    (Ok(0x8000), Err(ReshapeError::NoArea { .. })) => &[][..],
                    (Ok(0x4000), Ok(_)) => &[middle][..],
                    // The free ran during the cut.
                    (Err(_), Ok(_)) => &[start, middle][..],
                    other => panic!("{other:?}"),
                };
                if rest.is_empty() { &whole } else { &cut }.fetch_add(1, Ordering::Relaxed);
                rest.iter().for_each(|&at| _ = space.free_at(at).unwrap());
            });
            assert_eq!(space.validate(), Ok(()));
        }
        assert_eq!(cut.into_inner() + whole.into_inner(), 300);
    }
}
