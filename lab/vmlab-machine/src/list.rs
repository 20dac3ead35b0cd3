//! The allocator that Linux had before 5.2: holes have no records, they are the gaps between busy areas.
//!
//! # Theory
//! Busy areas are in a list in address order, and in a tree for the lookup by address. An allocation walks the list
//! from some area on and takes the first gap that fits. The start of the walk decides the cost. The walk starts at the
//! area that was allocated last (or the one before the last freed one), if everything below is known to be too small.
//! The record for this is the largest gap passed below the cached area. The record is invalid as soon as a request is
//! smaller than that gap, less aligned, or begins lower than the one before.
//!
//! ```text
//!   |AAAA|  |BBB| |CC|    |DDDDDD|       E               cached: D, largest gap below: 4
//!         2      1    4          ^ begin here for 5 pages or more, else from the window's start
//! ```
//! So a run of equal sizes is fast, and a mix of sizes and alignments walks the whole list every time: O(n), which
//! Linux's rework removed. The result is not always the lowest fit either: a free below the cached area lowers the
//! cache, but not the record of gaps.
//!
//! What Linux spent its time on is this walk, so nothing else here may cost O(n) for each allocation or free. For
//! example, a purge frees 320 areas one by one, and the space asks for the number of holes after each. So the holes are
//! counted as areas come and go. [`take_visits`] tells the areas that the walk visited from those that all else did.
//!
//! Source: the description and the removed lines of the change that replaced it in Linux 5.2.

use super::visits::count as count_visits;
use std::collections::BTreeMap;
use va_base::{AllocError, FreeError, InvariantViolation, PAGE_SIZE, Pages, Platform, Request, Va, VaRange};
use va_tree::{Fit, FreeIndex, InPlace, IndexMemory, PieceWanted, Supplied};

pub use super::visits::{Visits, take as take_visits};

const NONE: usize = usize::MAX;

#[derive(Clone, Copy, Debug)]
struct Area {
    start: u64,
    end: u64,
    prev: usize,
    next: usize,
}

/// Busy areas in a list, with a cached start of the walk.
#[derive(Clone, Debug)]
pub struct ListIndex {
    extent: VaRange,
    default_window: VaRange,
    areas: Vec<Area>,
    unused: Vec<usize>,
    /// Start of an area to its index in `areas`.
    by_start: BTreeMap<u64, usize>,
    head: usize,
    live: u64,
    free_pages: u64,
    /// Gaps between areas, and before the first and after the last.
    hole_count: u64,
    // State that is cached between allocations.
    cached: usize,
    cached_hole: u64,
    cached_low: u64,
    cached_align: u64,
}

impl ListIndex {
    /// Creates an index of the whole pages of `extent`, all free.
    ///
    /// # Errors
    /// [`AllocError::BadRange`] if there is no whole page.
    pub fn new(extent: VaRange, default_window: VaRange) -> Result<Self, AllocError> {
        let mut index = Self::of_nothing();
        index.begin(extent, default_window)?;
        Ok(index)
    }

    /// Creates an index of no pages.
    const fn of_nothing() -> Self {
        Self {
            extent: VaRange::EMPTY,
            default_window: VaRange::EMPTY,
            areas: Vec::new(),
            unused: Vec::new(),
            by_start: BTreeMap::new(),
            head: NONE,
            live: 0,
            free_pages: 0,
            hole_count: 0,
            cached: NONE,
            cached_hole: 0,
            cached_low: 0,
            cached_align: 0,
        }
    }

    fn begin(&mut self, extent: VaRange, default_window: VaRange) -> Result<(), AllocError> {
        let (first, end) = extent.whole_pages();
        let bad = AllocError::BadRange { range: extent, extent: VaRange::ALL };
        let pages = VaRange::from_pages(first, end).filter(|pages| !pages.is_empty()).ok_or(bad)?;
        if !self.extent.is_empty() {
            return Err(AllocError::Occupied { range: extent });
        }
        (self.extent, self.default_window, self.free_pages) = (pages, default_window, end - first);
        self.hole_count = 1;
        Ok(())
    }

    /// Reads an area outside the walk.
    fn area(&self, at: usize) -> &Area {
        count_visits(0, 1);
        &self.areas[at]
    }

    /// Returns the end of the area `at`, or the start of the extent if there is none.
    fn end_of(&self, at: usize) -> u64 {
        if at == NONE { self.extent.start().get() } else { self.area(at).end }
    }

    /// Returns the start of the area `at`, or the end of the extent if there is none.
    fn start_of(&self, at: usize) -> u64 {
        if at == NONE { self.extent.end().get() } else { self.area(at).start }
    }

    /// Returns the number of holes that touch an area between `prev` and `next`: below it, above it.
    fn holes_beside(&self, start: u64, end: u64, prev: usize, next: usize) -> u64 {
        u64::from(self.end_of(prev) < start) + u64::from(end < self.start_of(next))
    }

    /// Finds the address at which the walk ends; updates the cached hole on the way.
    fn walk(&mut self, size: u64, align: u64, low: u64, high: u64) -> Option<u64> {
        let up = |at: u64| Some(at.checked_add(align - 1)? & !(align - 1));
        if self.cached == NONE
            || size < self.cached_hole
            || low < self.cached_low
            || align < self.cached_align
        {
            self.forget();
        }
        (self.cached_low, self.cached_align) = (low, align);
        let mut first = self.cached;
        let mut at = 0;
        if first != NONE {
            at = up(self.area(first).end)?;
            if at < low {
                self.forget();
                first = NONE;
            }
        }
        if first == NONE {
            at = up(low)?;
            // Start at the first area that ends at or above `at`.
            let below = self.by_start.range(..=at).next_back().map(|(_, &area)| area);
            first = match below {
                Some(area) if self.area(area).end >= at => area,
                Some(area) => self.area(area).next,
                None => self.head,
            };
        }
        // An address that overflows ends the walk, and its count.
        let mut passed = 0;
        while first != NONE {
            passed += 1;
            let area = self.areas[first];
            let end = at.checked_add(size)?;
            if end <= area.start || end > high {
                break;
            }
            // The gap that was passed was too small.
            self.cached_hole = self.cached_hole.max(area.start.saturating_sub(at));
            at = up(area.end)?;
            first = area.next;
        }
        count_visits(passed, 0);
        (at.checked_add(size)? <= high && at >= low).then_some(at)
    }

    fn forget(&mut self) {
        self.cached = NONE;
        self.cached_hole = 0;
    }

    fn link(&mut self, start: u64, end: u64) -> usize {
        let prev = self.by_start.range(..start).next_back().map_or(NONE, |(_, &area)| area);
        let next = if prev == NONE { self.head } else { self.area(prev).next };
        // One hole becomes those that remain of it.
        self.hole_count = self.hole_count - 1 + self.holes_beside(start, end, prev, next);
        let area = Area { start, end, prev, next };
        let at = match self.unused.pop() {
            Some(at) => {
                self.areas[at] = area;
                at
            }
            None => {
                self.areas.push(area);
                self.areas.len() - 1
            }
        };
        if prev == NONE {
            self.head = at;
        } else {
            self.areas[prev].next = at;
        }
        if next != NONE {
            self.areas[next].prev = at;
        }
        self.by_start.insert(start, at);
        at
    }

    fn unlink(&mut self, at: usize) {
        let area = *self.area(at);
        // Those beside it become one, which also exists if there was none.
        self.hole_count = self.hole_count + 1 - self.holes_beside(area.start, area.end, area.prev, area.next);
        if self.cached != NONE {
            if area.end < self.cached_low {
                self.cached = NONE;
            } else if area.start <= self.area(self.cached).start {
                self.cached = area.prev;
            }
        }
        if area.prev == NONE {
            self.head = area.next;
        } else {
            self.areas[area.prev].next = area.next;
        }
        if area.next != NONE {
            self.areas[area.next].prev = area.prev;
        }
        self.by_start.remove(&area.start);
        self.unused.push(at);
    }

    /// Returns the area with the highest start at or below `at`.
    fn area_below(&self, at: u64) -> Option<Area> {
        self.by_start.range(..=at).next_back().map(|(_, &area)| *self.area(area))
    }

    fn is_inside(&self, range: VaRange) -> bool {
        range.is_page_aligned() && !range.is_empty() && self.extent.encloses(range)
    }

    /// Returns true if `range` contains no byte of an area.
    fn is_free(&self, range: VaRange) -> bool {
        self.area_below(range.end().get() - 1).is_none_or(|area| area.end <= range.start().get())
    }
}

/// Records come from the heap.
impl Supplied for ListIndex {
    type Supply = ();

    fn wanted(&self, _areas: u64) -> Option<PieceWanted> {
        None
    }

    fn alloc_supply(_wanted: PieceWanted, _platform: &impl Platform) -> Option<()> {
        None
    }

    fn donate(&mut self, (): ()) -> Result<(), ()> {
        Ok(())
    }

    fn free_supply((): (), _platform: &impl Platform) {}

    fn shrink_counted(&mut self, _steps: &mut usize) -> usize {
        0
    }
}

impl<P> InPlace<P> for ListIndex {
    const EMPTY: Self = Self::of_nothing();

    fn init(&mut self, extent: VaRange, default_window: VaRange, _: P) -> Result<(), AllocError> {
        self.begin(extent, default_window)
    }

    fn try_clone(&self, _: P) -> Result<Self, AllocError> {
        Ok(self.clone())
    }
}

impl FreeIndex for ListIndex {
    fn extent(&self) -> VaRange {
        self.extent
    }

    fn default_window(&self) -> VaRange {
        self.default_window
    }

    /// Returns the lowest fit, which [`alloc`](Self::alloc) does not always choose.
    fn would_fit(&self, request: &Request) -> Result<Va, AllocError> {
        let window = request.window().unwrap_or(self.default_window);
        let size = request.size().get() * PAGE_SIZE;
        let fit = |hole: VaRange| {
            let at = hole.start().max(window.start()).align_up(request.align())?;
            let at = Va::from_page(at.page_ceil());
            let end = at.checked_add(size)?;
            (end <= hole.end() && end <= window.end()).then_some(at)
        };
        self.holes().find_map(fit).ok_or_else(|| self.no_space(request))
    }

    fn alloc(&mut self, request: &Request) -> Result<Va, AllocError> {
        let window = request.window().unwrap_or(self.default_window);
        let (low, high) = window.whole_pages();
        let (first, end) = self.extent.whole_pages();
        let (low, high) = (low.max(first) * PAGE_SIZE, high.min(end) * PAGE_SIZE);
        let size = request.size().get() * PAGE_SIZE;
        let Some(at) = self.walk(size, request.align().bytes().max(PAGE_SIZE), low, high) else {
            return Err(self.no_space(request));
        };
        self.cached = self.link(at, at + size);
        self.live += 1;
        self.free_pages -= request.size().get();
        Ok(Va::new(at))
    }

    fn take(&mut self, range: VaRange) -> Result<Fit, AllocError> {
        if !self.is_inside(range) {
            return Err(AllocError::BadRange { range, extent: self.extent });
        }
        if !self.is_free(range) {
            return Err(AllocError::Occupied { range });
        }
        let hole = self.hole_below(range.start()).unwrap_or(range);
        self.link(range.start().get(), range.end().get());
        self.live += 1;
        self.free_pages -= range.len_bytes() / PAGE_SIZE;
        Ok(match (hole.start() == range.start(), hole.end() == range.end()) {
            (true, true) => Fit::Full,
            (true, false) => Fit::LeftEdge,
            (false, true) => Fit::RightEdge,
            (false, false) => Fit::NoEdge,
        })
    }

    /// Frees one whole area in O(log n), or any other range by cutting it out of its areas, O(n).
    fn free(&mut self, range: VaRange) -> Result<(), FreeError> {
        if !self.is_inside(range) {
            return Err(FreeError::BadRange { range, extent: self.extent });
        }
        let (start, end) = (range.start().get(), range.end().get());
        if let Some(&at) = self.by_start.get(&start)
            && self.area(at).end == end
            && self.live >= self.by_start.len() as u64
        {
            self.unlink(at);
        } else {
            let hole = self.hole_after(range.start()).filter(|hole| hole.start() < range.end());
            if let Some(hole) = hole {
                return Err(FreeError::AlreadyFree { range, hole });
            }
            let touches = |hole: Option<VaRange>, edge: fn(VaRange) -> Va, at: Va| {
                u64::from(hole.is_some_and(|hole| edge(hole) == at))
            };
            let merged = touches(self.hole_below(range.start()), VaRange::end, range.start())
                + touches(self.hole_after(range.start()), VaRange::start, range.end());
            if self.live == 0 || self.hole_count() + 1 > self.live + merged {
                return Err(FreeError::TooManySplits { range, live: self.live });
            }
            let cut: Vec<usize> = self
                .by_start
                .range(..end)
                .rev()
                .take_while(|&(_, &area)| self.area(area).end > start)
                .map(|(_, &area)| area)
                .collect();
            for at in cut {
                let area = *self.area(at);
                self.unlink(at);
                if area.start < start {
                    self.link(area.start, start);
                }
                if area.end > end {
                    self.link(end, area.end);
                }
            }
        }
        self.live -= 1;
        self.free_pages += range.len_bytes() / PAGE_SIZE;
        Ok(())
    }

    fn reserve_splits(&mut self, pieces: u64) -> Result<(), AllocError> {
        let pages = Pages::new(self.extent.len_bytes() / PAGE_SIZE);
        let live = self.live.saturating_add(pieces);
        if pieces > 0 && live > pages.get() {
            return Err(AllocError::TooManyAreas { live, pages });
        }
        self.live = live;
        Ok(())
    }

    fn release_splits(&mut self, pieces: u64) -> u64 {
        let released = pieces.min((self.live + 1).saturating_sub(self.hole_count()).min(self.live));
        self.live -= released;
        released
    }

    fn live(&self) -> u64 {
        self.live
    }

    fn free_pages(&self) -> Pages {
        Pages::new(self.free_pages)
    }

    fn hole_count(&self) -> u64 {
        self.hole_count
    }

    /// O(n): holes have no records.
    fn largest_hole(&self) -> Pages {
        Pages::new(self.holes().map(|hole| hole.len_bytes() / PAGE_SIZE).max().unwrap_or(0))
    }

    fn hole_after(&self, at: Va) -> Option<VaRange> {
        let at = at.max(self.extent.start());
        // Skip the run of areas that covers `at`, or start at the end of the area below it.
        let below = self.by_start.range(..=at.get()).next_back().map(|(_, &area)| area);
        let (mut start, mut next) = match below {
            Some(area) => (self.area(area).end, self.area(area).next),
            None => (self.extent.start().get(), self.head),
        };
        while next != NONE && self.area(next).start == start {
            (start, next) = (self.area(next).end, self.area(next).next);
        }
        let end = self.start_of(next);
        let hole = VaRange::new(Va::new(start), Va::new(end)).filter(|hole| !hole.is_empty())?;
        (hole.end() > at).then_some(hole)
    }

    fn hole_below(&self, at: Va) -> Option<VaRange> {
        let mut area = self.area_below(at.get());
        loop {
            let (start, next) = match area {
                Some(area) => (area.end, area.next),
                None => (self.extent.start().get(), self.head),
            };
            let end = self.start_of(next);
            if start < end && start <= at.get() {
                return VaRange::new(Va::new(start), Va::new(end));
            }
            area = match area?.prev {
                NONE => None,
                prev => Some(*self.area(prev)),
            };
        }
    }

    fn memory(&self) -> IndexMemory {
        // The memory of a busy area; holes have none.
        let area = size_of::<Area>() + size_of::<(u64, usize)>();
        IndexMemory {
            used_bytes: self.by_start.len() * area,
            row_bytes: 0,
            allocated_bytes: self.areas.capacity() * area,
        }
    }

    /// Checks FT1, FT5 and FT6.
    fn validate(&self) -> Result<(), InvariantViolation> {
        let (mut at, mut last, mut count, mut pages) = (self.head, self.extent.start().get(), 0, 0);
        while at != NONE {
            let area = self.areas[at];
            if area.start < last || area.end <= area.start || count > self.by_start.len() {
                return Err(InvariantViolation {
                    rule: "FT1",
                    at: Va::new(area.start),
                    expected: last,
                    actual: area.start,
                });
            }
            pages += (area.end - area.start) / PAGE_SIZE;
            (last, count, at) = (area.end, count + 1, area.next);
        }
        let all = self.extent.len_bytes() / PAGE_SIZE;
        if all - pages != self.free_pages {
            return Err(InvariantViolation {
                rule: "FT5",
                at: Va::ZERO,
                expected: all - pages,
                actual: self.free_pages,
            });
        }
        let holes = self.holes().count() as u64;
        InvariantViolation::check(self.hole_count == holes, "FT5", Va::ZERO, holes, self.hole_count)?;
        if self.hole_count() > self.live + 1 {
            return Err(InvariantViolation {
                rule: "FT6",
                at: Va::ZERO,
                expected: self.live + 1,
                actual: self.hole_count(),
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use va_sim::model::ModelIndex;
    use va_sim::op::{Op, Space};
    use va_sim::run::{Driver, Outcome};

    #[test]
    fn more_splits_than_pages_are_errors() {
        let mut list = list_of([]);
        let too_many = |live| Err(AllocError::TooManyAreas { live, pages: Pages::new(600) });
        assert_eq!(list.reserve_splits(601), too_many(601));
        assert_eq!(list.restore(&[], u64::MAX), too_many(u64::MAX));
        assert_eq!((list.live(), list.reserve_splits(600)), (0, Ok(())));
    }

    /// The result is not always the lowest fit. The model checks that it fits, and everything else.
    #[test]
    fn the_list_never_allocates_what_is_taken() {
        let space = Space::whole(VaRange::from_pages(4, 600).unwrap());
        let (mut same, mut other) = (0, 0);
        for seed in 0..20 {
            let mut list = Driver::new(ListIndex::new(space.extent, space.extent).unwrap());
            let mut model = Driver::new(ModelIndex::new(space.extent, space.extent).unwrap());
            for op in Op::from_seed(&space, seed).take(1500) {
                let (got, want) = (list.run(&op), model.run(&op));
                let size = match &op {
                    Op::Alloc(ask) => ask.size,
                    _ => 0,
                };
                match (&got, &want) {
                    (Outcome::At(Ok(ours)), Outcome::At(Ok(lowest))) if size > 0 && ours != lowest => {
                        other += 1;
                        assert!(ours > lowest);
                        model.index.free(VaRange::from_size(*lowest, size).unwrap()).unwrap();
                        model.index.take(VaRange::from_size(*ours, size).unwrap()).unwrap();
                        model.out = list.out.clone();
                    }
                    (Outcome::At(Err(_)), Outcome::At(Ok(lowest))) if size > 0 => {
                        other += 1;
                        model.index.free(VaRange::from_size(*lowest, size).unwrap()).unwrap();
                        model.out = list.out.clone();
                    }
                    _ => {
                        same += 1;
                        assert_eq!(got, want, "seed {seed}, {op}");
                    }
                }
                list.index.validate().unwrap();
                assert_eq!(list.index.holes().collect::<Vec<_>>(), model.index.holes().collect::<Vec<_>>());
            }
        }
        assert!(same > 10_000 && other < same / 10, "{same} the same, {other} other");
    }

    /// A list of 600 pages with areas `[at, at + 2)` for `at` in `areas`.
    fn list_of(areas: impl IntoIterator<Item = u64>) -> ListIndex {
        let extent = VaRange::from_pages(4, 604).unwrap();
        let mut list = ListIndex::new(extent, extent).unwrap();
        for at in areas {
            list.take(VaRange::from_pages(at, at + 2).unwrap()).unwrap();
        }
        list
    }

    #[test]
    fn ft5_the_number_of_holes_is_that_of_a_walk_wherever_an_area_comes_or_goes() {
        // At both ends, beside another area, between two, alone; then parts of one and of several.
        let mut list = list_of([4, 602, 6, 10, 8, 100]);
        for (free, holes) in [((8, 10), 3), ((4, 6), 4), ((602, 604), 4), ((6, 8), 3), ((10, 12), 2)] {
            list.free(VaRange::from_pages(free.0, free.1).unwrap()).unwrap();
            assert_eq!((list.hole_count(), list.holes().count()), (holes, holes as usize), "{free:?}");
        }
        list.reserve_splits(9).unwrap();
        list.free(VaRange::from_pages(100, 101).unwrap()).unwrap();
        list.take(VaRange::from_pages(102, 110).unwrap()).unwrap();
        list.free(VaRange::from_pages(101, 105).unwrap()).unwrap();
        assert_eq!((list.hole_count(), list.holes().count(), list.validate()), (2, 2, Ok(())));
        assert_eq!(ListIndex::of_nothing().hole_count(), 0);
    }

    #[test]
    fn a_number_of_holes_that_is_wrong_is_found() {
        let mut list = list_of([4]);
        list.hole_count += 1;
        assert!(list.validate().is_err_and(|broken| (broken.rule, broken.actual) == ("FT5", 2)));
    }

    #[test]
    fn only_the_walk_visits_areas_in_proportion_to_their_number() {
        // A hole of one page is below each area, so a request of 2 pages passes them all.
        for areas in [50, 100, 150] {
            let mut list = list_of((0..areas).map(|area| 5 + 3 * area));
            take_visits();
            let got = list.alloc(&Request::pages(2).unwrap()).unwrap();
            let walk = take_visits();
            list.free(VaRange::from_size(got, 2 * PAGE_SIZE).unwrap()).unwrap();
            let _live = (list.reserve_splits(1), list.release_splits(1));
            let free = take_visits();
            assert_eq!((walk.walk, free.walk, walk.other + free.other < 20), (areas, 0, true));
        }
    }
}
