//! Busy areas change their shape: taken at an address of the caller's choice, cut in two, made one, resized in place.
//!
//! # Theory
//! A machine with memory behind its ranges keeps what was freed for a while, as pages that are still there, and gives parts
//! of it to others without a flush. To the space all that stays busy. Only when pages are given back do their addresses
//! return, and then the areas that were once taken no longer fit what returns: they are cut or joined first.
//!
//! ```text
//!   split      |=========L=========|   ->  |====L====|====R====|        one area more is out, and paid for (SP3)
//!   join       |====L====|====R====|   ->  |=========L=========|        one less
//!   grow       |====L====|  hole   |   ->  |=======L=======|   |        its tail leaves the index
//!   shrink     |=======L=======|       ->  |====L====|~lazy~|           a split, and a free of the tail
//! ```
//!
//! Whoever changes a shape owns the area as if freeing it: it leaves the busy state by the same compare-exchange, so that of
//! a change and a free at a time one loses. It comes back busy in the same hold of `free`, and nobody under that lock sees
//! anything in between (SP1). A lookup, which takes no lock, may miss the area in that moment.
//!
//! A handle ([`Area`]) tells a size, so it frees nothing any more once its area has another; areas that change their shape
//! are given back by their start.
//! # Source
//! Our own. Linux cuts areas only on their way back (`mm/vmalloc.c`, `va_clip`), and has no call for any of these.

use super::{Purge, VmapSpace};
use crate::area::{Area, range_of};
use crate::config::Config;
use crate::error::SpaceError;
use crate::lookup::MapLookup;
use crate::map::{Seen, State, Word};
use core::fmt;
use va_base::{AllocError, Machine, Pages, Va, VaRange};
use va_tree::FreeIndex;

/// Why an area keeps its shape. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ReshapeError {
    /// No busy area starts there, or, for a cut, is there.
    NoArea {
        /// Where.
        at: Va,
    },
    /// The address is no page boundary strictly inside the area.
    BadCut {
        /// Where.
        at: Va,
        /// The area.
        area: VaRange,
    },
    /// No busy area ends where this one starts.
    NoNeighbour {
        /// The area that was to be joined to the one below it.
        area: VaRange,
    },
    /// The size is zero, or the area would end past the space.
    BadSize {
        /// The area.
        area: VaRange,
        /// Pages asked for.
        requested: Pages,
    },
    /// What is above the area is not wholly free.
    Blocked {
        /// The area.
        area: VaRange,
        /// Pages asked for.
        requested: Pages,
        /// Pages that it could have had.
        possible: Pages,
    },
    /// The machine lent no records or no table.
    NoMeta(SpaceError),
}

impl fmt::Display for ReshapeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoArea { at } => write!(f, "no area starts at {at}"),
            Self::BadCut { at, area } => write!(f, "{at} is no page boundary inside the area {area}"),
            Self::NoNeighbour { area } => write!(f, "no area ends where the area {area} starts"),
            Self::BadSize { area, requested } => {
                write!(f, "the area {area} cannot have {requested}: none, or past the space")
            }
            Self::Blocked { area, requested, possible } => {
                write!(f, "the area {area} cannot grow to {requested}, there is room for {possible}")
            }
            Self::NoMeta(error) => fmt::Display::fmt(error, f),
        }
    }
}

impl core::error::Error for ReshapeError {}

/// Under policies whose lookup is the page map: trees would have to learn of each new shape in the moment of the change.
impl<P: Machine + Clone, C: Config<Lookup<P> = MapLookup>> VmapSpace<P, C> {
    /// Gives out exactly `range`. The area has no owner.
    ///
    /// # Errors
    /// [`SpaceError::Index`] with [`AllocError::Occupied`] if part of it is not free, not even after a purge, with
    /// [`AllocError::BadRange`] if it is empty, not whole pages, or not in the extent; otherwise as [`alloc`](Self::alloc).
    /// # Locks
    /// `free`; all of them one after the other if the range is not free.
    /// Cost: O(log holes).
    pub fn alloc_at(&self, range: VaRange) -> Result<Area, SpaceError> {
        let (page, end) = range.whole_pages();
        let mut purged = false;
        loop {
            let mut heap = self.lock_free();
            match heap.index.take(range) {
                Ok(_) => return self.begin(heap, page, end - page, None),
                Err(AllocError::Occupied { .. }) if !purged => {
                    drop(heap);
                    self.purge(Purge::Full);
                    purged = true;
                }
                Err(error) => return Err(SpaceError::Index(error)),
            }
        }
    }

    /// Cuts the busy area that `at` is inside in two, and returns both. Both have the owner that it had.
    ///
    /// # Errors
    /// [`ReshapeError::NoArea`], [`ReshapeError::BadCut`], [`ReshapeError::NoMeta`].
    /// # Locks
    /// `free`.
    /// Cost: O(1).
    pub fn split(&self, at: Va) -> Result<(VaRange, VaRange), ReshapeError> {
        let seen = self.map.covering(at.page_floor()).filter(|seen| seen.word.is_busy());
        let Some(left) = seen else { return Err(ReshapeError::NoArea { at }) };
        let (cut, end) = (at.page_floor(), left.page + left.pages);
        if cut == left.page || Va::from_page(cut) != at {
            return Err(ReshapeError::BadCut { at, area: range_of(left.page, left.pages) });
        }
        if !self.map.reserve(cut, end - cut, &self.machine) {
            return Err(ReshapeError::NoMeta(SpaceError::NoTable));
        }
        let mut guard = self.lock_free();
        let heap = &mut *guard;
        heap.index.reserve_pieces(1).map_err(|error| ReshapeError::NoMeta(error.into()))?;
        if !self.seize(&left) {
            let _forgotten = heap.index.release_pieces(1);
            return Err(ReshapeError::NoArea { at });
        }
        let right = Word::new(end - cut, left.word.owner(), self.map.last_generation(cut) + 1, State::Busy);
        // First what is left of it, whose old size may stand where the other begins.
        self.resettle(&left, cut - left.page);
        self.map.begin(&mut heap.marker, cut, end - cut, right);
        Ok((range_of(left.page, cut - left.page), range_of(cut, end - cut)))
    }

    /// Makes one of the busy area that starts at `at` and the busy area that ends there. It has the owner of the lower one.
    ///
    /// # Errors
    /// [`ReshapeError::NoArea`], [`ReshapeError::NoNeighbour`], [`ReshapeError::NoMeta`].
    /// # Locks
    /// `free`.
    /// Cost: O(1).
    pub fn join(&self, at: Va) -> Result<VaRange, ReshapeError> {
        let right = self.starting(at)?;
        let lonely = ReshapeError::NoNeighbour { area: range_of(right.page, right.pages) };
        let below = right.page.checked_sub(1).and_then(|page| self.map.covering(page));
        let Some(left) = below.filter(|seen| seen.word.is_busy()) else { return Err(lonely) };
        let pages = left.pages + right.pages;
        if !self.map.reserve(left.page, pages, &self.machine) {
            return Err(ReshapeError::NoMeta(SpaceError::NoTable));
        }
        let mut guard = self.lock_free();
        let heap = &mut *guard;
        if !self.seize(&right) {
            return Err(ReshapeError::NoArea { at });
        }
        if !self.seize(&left) {
            self.map.put(right.page, right.word);
            return Err(lonely);
        }
        self.map.end(&mut heap.marker, right.page, right.pages);
        self.resettle(&left, pages);
        let _forgotten = heap.index.release_pieces(1);
        Ok(range_of(left.page, pages))
    }

    /// Gives the busy area that starts at `at` another size without moving it. What it loses is freed; what it gains was
    /// free, and no flush is due for it.
    ///
    /// # Errors
    /// [`ReshapeError::NoArea`], [`ReshapeError::BadSize`], [`ReshapeError::NoMeta`]; [`ReshapeError::Blocked`] if the pages
    /// above it are not free (lazy ones are not: purge and try again).
    /// # Locks
    /// `free`; to shrink, also those of [`free`](Self::free).
    /// Cost: O(log holes).
    pub fn resize_at(&self, at: Va, size: Pages) -> Result<VaRange, ReshapeError> {
        let seen = self.starting(at)?;
        let (page, have, want) = (seen.page, seen.pages, size.get());
        let bad = ReshapeError::BadSize { area: range_of(page, have), requested: size };
        let Some(end) = page.checked_add(want).filter(|_| want > 0) else { return Err(bad) };
        if want == have {
            return Ok(range_of(page, have));
        }
        if want < have {
            let (left, tail) = self.split(Va::from_page(end))?;
            self.free_at(tail.start()).map_err(|_| ReshapeError::NoArea { at: tail.start() })?;
            return Ok(left);
        }
        if end > self.extent.end().page_floor() {
            return Err(bad);
        }
        if !self.map.reserve(page, want, &self.machine) {
            return Err(ReshapeError::NoMeta(SpaceError::NoTable));
        }
        let mut guard = self.lock_free();
        let heap = &mut *guard;
        if !self.seize(&seen) {
            return Err(ReshapeError::NoArea { at });
        }
        let tail = range_of(page + have, want - have);
        if let Err(error) = heap.index.take(tail) {
            self.map.put(page, seen.word);
            return Err(match error {
                AllocError::Occupied { .. } => {
                    let hole = heap.index.hole_below(tail.start()).filter(|hole| hole.contains(tail.start()));
                    let room = hole.map_or(0, |hole| hole.end().page_floor() - (page + have));
                    let possible = Pages::new(have + room);
                    ReshapeError::Blocked { area: range_of(page, have), requested: size, possible }
                }
                error => ReshapeError::NoMeta(error.into()),
            });
        }
        // The tail came out as an area of its own; it touches this one, so no hole needs it.
        let _forgotten = heap.index.release_pieces(1);
        self.resettle(&seen, want);
        Ok(range_of(page, want))
    }

    /// The busy area that starts at `at`.
    fn starting(&self, at: Va) -> Result<Seen, ReshapeError> {
        let seen = self.map.at(at.page_floor()).filter(|seen| seen.word.is_busy());
        seen.filter(|seen| Va::from_page(seen.page) == at).ok_or(ReshapeError::NoArea { at })
    }

    /// Takes a busy area out of everybody's reach, under `free`. `false` if somebody freed it first.
    fn seize(&self, seen: &Seen) -> bool {
        let idle = seen.word.with_state(State::Idle);
        self.map.slot(seen.page).is_some_and(|slot| slot.exchange(seen.word, idle).is_ok())
    }

    /// Makes a seized area busy again, with another size. The slots for it are there.
    fn resettle(&self, seen: &Seen, pages: u64) {
        let word = Word::new(pages, seen.word.owner(), seen.word.generation(), State::Busy);
        // The word of the second page has the size of a huge area and is empty under any other.
        if word.pages().is_none() {
            self.map.put(seen.page + 1, Word::size_escape(pages));
        } else if seen.word.pages().is_none() {
            self.map.put(seen.page + 1, Word::NONE);
        }
        self.map.put(seen.page, word);
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::config::Default as Ours;
    use crate::testing::TestMachine;
    use va_base::Request;

    fn pages(first: u64, end: u64) -> VaRange {
        VaRange::from_pages(first, end).unwrap()
    }

    #[test]
    fn huge_areas_keep_their_size_through_every_shape() {
        let machine = TestMachine::default();
        let all = pages(16, 1 << 40);
        let space = VmapSpace::<_, Ours>::new(all, all, &machine).unwrap();
        let huge = 1 << 34;
        let area = space.alloc(0, &Request::pages(huge).unwrap()).unwrap();
        let start = area.start().page_floor();
        // The second page's word has the size; it is where the other half begins.
        let (left, right) = space.split(Va::from_page(start + 1)).unwrap();
        assert_eq!((left, right), (pages(start, start + 1), pages(start + 1, start + huge)));
        assert_eq!(space.validate(), Ok(()));
        assert_eq!(space.find_enclosing(Va::from_page(start + huge - 1)).unwrap().range, right);
        assert_eq!(space.join(right.start()), Ok(pages(start, start + huge)));
        assert_eq!(space.resize_at(left.start(), Pages::new(3)), Ok(pages(start, start + 3)));
        space.purge(Purge::Full);
        assert_eq!(space.resize_at(left.start(), Pages::new(huge)), Ok(pages(start, start + huge)));
        assert_eq!(space.validate(), Ok(()));
        assert_eq!(
            space.find_enclosing(Va::from_page(start + 7)).unwrap().range.whole_pages().1,
            start + huge
        );
        // The handle tells the size that it has again, and frees.
        space.free(area).unwrap();
        assert_eq!(space.validate(), Ok(()));
    }

    #[test]
    fn a_handle_of_another_shape_frees_nothing() {
        let machine = TestMachine::default();
        let all = pages(16, 1 << 16);
        let space = VmapSpace::<_, Ours>::new(all, all, &machine).unwrap();
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
        let space = VmapSpace::<_, Ours>::new(all, all, &machine).unwrap();
        let (cut, whole) = (AtomicU64::new(0), AtomicU64::new(0));
        for _ in 0..300 {
            let start = space.alloc_at(pages(64, 72)).unwrap().start();
            let middle = Va::from_page(68);
            std::thread::scope(|scope| {
                let frees = scope.spawn(|| space.free_at(start).map(|range| range.len_bytes()));
                let splits = scope.spawn(|| space.split(middle));
                let (freed, split) = (frees.join().unwrap(), splits.join().unwrap());
                let rest = match (freed, split) {
                    // Freed whole, before or after it was cut.
                    (Ok(0x8000), Err(ReshapeError::NoArea { .. })) => &[][..],
                    (Ok(0x4000), Ok(_)) => &[middle][..],
                    // The free came in the moment of the cut.
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
