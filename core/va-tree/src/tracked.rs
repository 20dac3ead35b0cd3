//! An index that knows its areas: it frees what was allocated and nothing else, and any part of it on request.
//!
//! # Theory
//! An index of holes does not know where one area ends and the next begins. Its caller does, and a caller's mistake
//! that frees a part of an area, or two at once, may look right. Here a tree of areas stands beside the index:
//!
//! ```text
//!   areas   |==A==|====B====|     |==C==|          a free of A, of B, of C; nothing else
//!   holes                   |.....|     |......|
//!   free_any      ^--------------------^           the end of A stays, B goes, the start of C goes
//! ```
//! A free needs no memory. An area that loses its middle becomes two, which needs a record in each structure. These are
//! reserved before anything changes.
//!
//! # Invariants
//! - **TI1 tile** areas and holes tile the extent, and the index counts as many live areas as there are.
//!
//! # Locking
//! None: `&mut self`.
//! # Cost
//! O(log n) a call, and 48 bytes an area beside the index.
//! # Source
//! Our own; Linux has a tree of busy areas as well (`mm/vmalloc.c`, 6.12: `vn->busy`).

use crate::free_index::range_at;
use crate::rb::AreaTree;
use crate::{FreeIndex, InPlace, Supplied};
use core::fmt;
use va_base::{AllocError, InvariantViolation, Pages, Platform, Request, Va, VaRange};

/// The reason why a [`TrackedIndex`] changed nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum TrackedError {
    /// No area begins at the address.
    NoArea {
        /// The address.
        at: Va,
    },
    /// The area that begins where the range begins is another one.
    OtherRange {
        /// The range of the call.
        range: VaRange,
        /// The area.
        area: VaRange,
    },
    /// An area of no pages, or one that a growth would make smaller, or a shrinking larger.
    BadSize {
        /// The area.
        area: VaRange,
        /// The requested size.
        requested: Pages,
    },
    /// The index, or the tree of areas, fails.
    Index(AllocError),
}

impl fmt::Display for TrackedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoArea { at } => write!(f, "no area begins at {at}"),
            Self::OtherRange { range, area } => write!(f, "{range} is not the area {area}"),
            Self::BadSize { area, requested } => {
                write!(f, "the area {area} cannot get {requested} by this call")
            }
            Self::Index(error) => fmt::Display::fmt(error, f),
        }
    }
}

impl core::error::Error for TrackedError {}

impl From<AllocError> for TrackedError {
    fn from(error: AllocError) -> Self {
        Self::Index(error)
    }
}

/// An index and the tree of its areas.
///
/// ```
/// use va_base::{Heap, Pages, Request, VaRange};
/// use va_tree::{BTreeIndex, FreeIndex, TrackedIndex};
/// let space = VaRange::from_pages(16, 1 << 20).unwrap();
/// let mut index = TrackedIndex::new(BTreeIndex::new(space, space, Heap)?, Heap);
/// let area = index.alloc(&Request::pages(8)?)?;
/// assert!(index.free(area.start().checked_add(4096).unwrap()).is_err());
/// let grown = index.grow_to(area.start(), Pages::new(10))?;
/// // Its middle: two areas are left.
/// assert_eq!(index.free_any(VaRange::from_pages(18, 22).unwrap())?, Pages::new(4));
/// assert!(index.areas().eq([VaRange::from_pages(16, 18).unwrap(), VaRange::from_pages(22, 26).unwrap()]));
/// assert_eq!(grown, VaRange::from_pages(16, 26).unwrap());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct TrackedIndex<I: FreeIndex, P: Platform> {
    index: I,
    areas: AreaTree,
    platform: P,
}

impl<I: FreeIndex + InPlace<P>, P: Platform + Clone> TrackedIndex<I, P> {
    /// Sets the extent of an index that has none yet, in place. So a static can begin as a constant:
    ///
    /// ```
    /// use std::sync::Mutex;
    /// use va_base::{NoSlabs, Request, VaRange};
    /// use va_tree::{BTree, BTreeIndex, TrackedIndex};
    ///
    /// static INDEX: Mutex<TrackedIndex<BTreeIndex<NoSlabs>, NoSlabs>> =
    ///     Mutex::new(TrackedIndex::new(BTree::empty(NoSlabs), NoSlabs));
    ///
    /// let mut index = INDEX.lock().unwrap();
    /// let space = VaRange::from_pages(16, 1 << 20).unwrap();
    /// index.init(space, space)?;
    /// assert_eq!(index.alloc(&Request::pages(8)?)?, VaRange::from_pages(16, 24).unwrap());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`InPlace::init`].
    pub fn init(&mut self, extent: VaRange, default_window: VaRange) -> Result<(), AllocError> {
        InPlace::init(&mut self.index, extent, default_window, self.platform.clone())
    }
}

impl<I: FreeIndex + InPlace<P>, P: Platform + Clone> TrackedIndex<I, P> {
    /// Copies the index and its areas; `platform` allocates the records of the copy. See [`InPlace::try_clone`].
    ///
    /// # Errors
    /// [`AllocError::NoMeta`].
    pub fn try_clone(&self, platform: P) -> Result<Self, AllocError> {
        let mut copy = Self::new(self.index.try_clone(platform.clone())?, platform);
        copy.areas.reserve(self.len(), &copy.platform)?;
        self.areas().for_each(|area| copy.put(area));
        Ok(copy)
    }
}

impl<I: FreeIndex + Supplied, P: Platform> TrackedIndex<I, P> {
    /// Frees memory of the areas and of the index that is not needed, in at most `steps` steps, and returns the bytes.
    /// See [`Supplied::shrink`].
    pub fn shrink(&mut self, mut steps: usize) -> usize {
        // The memory that one more area could need remains, so that a shrinker and an alloc do not alternate.
        let freed = self.areas.shrink(self.len() + 1, &mut steps, &self.platform);
        freed + self.index.shrink(steps)
    }
}

impl<I: FreeIndex, P: Platform> TrackedIndex<I, P> {
    /// Tracks the areas of an index that has none yet; `platform` allocates the records of areas.
    pub const fn new(index: I, platform: P) -> Self {
        Self { index, areas: AreaTree::new(), platform }
    }

    /// Returns the index: its holes, and what would fit.
    pub fn index(&self) -> &I {
        &self.index
    }

    /// Allocates the lowest range that meets a request.
    ///
    /// # Errors
    /// Those of [`FreeIndex::alloc`].
    pub fn alloc(&mut self, request: &Request) -> Result<VaRange, AllocError> {
        self.allocate(request, I::alloc)
    }

    /// Allocates from the lowest hole that holds the range wherever it starts.
    ///
    /// # Errors
    /// Those of [`FreeIndex::alloc_ample`].
    pub fn alloc_ample(&mut self, request: &Request) -> Result<VaRange, AllocError> {
        self.allocate(request, I::alloc_ample)
    }

    /// Allocates the highest range that meets a request.
    ///
    /// # Errors
    /// Those of [`FreeIndex::alloc_highest`].
    pub fn alloc_highest(&mut self, request: &Request) -> Result<VaRange, AllocError> {
        self.allocate(request, I::alloc_highest)
    }

    /// Allocates the best fit: in the smallest hole that permits it.
    ///
    /// # Errors
    /// Those of [`FreeIndex::alloc_best`].
    pub fn alloc_best(&mut self, request: &Request) -> Result<VaRange, AllocError> {
        self.allocate(request, I::alloc_best)
    }

    /// Allocates exactly `range`.
    ///
    /// # Errors
    /// Those of [`FreeIndex::take`].
    pub fn take(&mut self, range: VaRange) -> Result<(), AllocError> {
        self.add(|index| index.take(range).map(|_| range)).map(|_| ())
    }

    /// Takes the [`areas`](Self::areas) of another index, whose state was saved.
    ///
    /// ```
    /// use va_base::{Heap, Request, VaRange};
    /// use va_tree::{BTreeIndex, TrackedIndex};
    /// let space = VaRange::from_pages(16, 1 << 20).unwrap();
    /// let fresh = || BTreeIndex::new(space, space, Heap).map(|index| TrackedIndex::new(index, Heap));
    /// let mut before = fresh()?;
    /// before.alloc(&Request::pages(3)?)?;
    /// before.alloc(&Request::pages(5)?)?;
    /// let saved: Vec<VaRange> = before.areas().collect();
    /// let mut after = fresh()?;
    /// after.restore(&saved)?;
    /// assert_eq!(after, before);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`FreeIndex::take`] for the first area that cannot be taken. Nothing is taken then.
    pub fn restore(&mut self, areas: &[VaRange]) -> Result<(), AllocError> {
        for (done, &area) in areas.iter().enumerate() {
            if let Err(error) = self.take(area) {
                for area in &areas[..done] {
                    // It was taken above.
                    let _area = self.free(area.start());
                }
                return Err(error);
            }
        }
        Ok(())
    }

    /// Frees the area that begins at `at`, and returns it. Needs no memory.
    ///
    /// # Errors
    /// [`TrackedError::NoArea`].
    pub fn free(&mut self, at: Va) -> Result<VaRange, TrackedError> {
        let area = self.areas.remove(at).ok_or(TrackedError::NoArea { at })?;
        self.free_in_index(area);
        Ok(area)
    }

    /// Frees the area `range`. Needs no memory.
    ///
    /// # Errors
    /// [`TrackedError::NoArea`]; [`TrackedError::OtherRange`] if the area that begins there ends elsewhere.
    pub fn free_range(&mut self, range: VaRange) -> Result<(), TrackedError> {
        let area = self.find(range.start()).ok_or(TrackedError::NoArea { at: range.start() })?;
        if area != range {
            return Err(TrackedError::OtherRange { range, area });
        }
        self.free(range.start()).map(|_| ())
    }

    /// Frees what areas have of `range`: whole areas, and parts of those at its ends. What is free stays free. Returns
    /// the number of pages that were freed. Cost: O(log n) an area.
    ///
    /// # Errors
    /// [`AllocError::BadRange`]. [`AllocError::NoMeta`] if an area would be cut, and there is no memory for its record.
    pub fn free_any(&mut self, range: VaRange) -> Result<Pages, TrackedError> {
        let (extent, unit) = (self.index.extent(), self.index.unit());
        let (page, end) = unit.whole(range);
        if page >= end || unit.range(page, end) != Some(range) || !extent.encloses(range) {
            return Err(AllocError::BadRange { range, extent }.into());
        }
        let below = self.enclosing(range.start()).filter(|area| area.start() < range.start());
        let above = self.enclosing(unit.address(end - 1)).filter(|area| area.end() > range.end());
        if below.is_some() && below == above {
            self.areas.reserve(self.areas.len() + 1, &self.platform)?;
        }
        // From here on nothing can fail: each rest of an area has its record.
        self.index.reserve_splits(u64::from(below.is_some()) + u64::from(above.is_some()))?;
        let mut freed = 0;
        while let Some(area) = self.areas.above(range.start()).filter(|area| area.start() < range.end()) {
            self.areas.remove(area.start());
            let (from, to) = (area.start().max(range.start()), area.end().min(range.end()));
            for (start, end) in [(area.start(), from), (to, area.end())] {
                VaRange::new(start, end)
                    .filter(|rest| !rest.is_empty())
                    .into_iter()
                    .for_each(|rest| self.put(rest));
            }
            let part = VaRange::new(from, to).unwrap_or_default();
            self.free_in_index(part);
            freed += unit.count(part);
        }
        Ok(Pages::new(freed))
    }

    /// Grows the area that begins at `at` to `size`, in place, and returns it.
    ///
    /// # Errors
    /// [`TrackedError::NoArea`], [`TrackedError::BadSize`] if it has more pages, and those of [`FreeIndex::take`] for
    /// the pages above it.
    pub fn grow_to(&mut self, at: Va, size: Pages) -> Result<VaRange, TrackedError> {
        let area = self.find(at).ok_or(TrackedError::NoArea { at })?;
        let unit = self.index.unit();
        let (page, end) = unit.whole(area);
        let wanted = page.checked_add(size.get()).filter(|&wanted| wanted >= end);
        let Some(grown) = wanted.and_then(|wanted| unit.range(page, wanted)) else {
            return Err(TrackedError::BadSize { area, requested: size });
        };
        if let Some(more) = VaRange::new(area.end(), grown.end()).filter(|more| !more.is_empty()) {
            self.index.take(more)?;
            // Both parts are one area.
            self.index.release_splits(1);
            self.areas.remove(at);
            self.put(grown);
        }
        Ok(grown)
    }

    /// Shrinks the area that begins at `at` to `size`, in place, and returns it.
    ///
    /// # Errors
    /// [`TrackedError::NoArea`], [`TrackedError::BadSize`] if it has fewer pages or would have none,
    /// [`AllocError::NoMeta`].
    pub fn shrink_to(&mut self, at: Va, size: Pages) -> Result<VaRange, TrackedError> {
        let area = self.find(at).ok_or(TrackedError::NoArea { at })?;
        let unit = self.index.unit();
        let (page, end) = unit.whole(area);
        let kept = page.checked_add(size.get()).filter(|&kept| kept > page && kept <= end);
        let Some(left) = kept.and_then(|kept| unit.range(page, kept)) else {
            return Err(TrackedError::BadSize { area, requested: size });
        };
        if let Some(tail) = VaRange::new(left.end(), area.end()).filter(|tail| !tail.is_empty()) {
            self.free_any(tail)?;
        }
        Ok(left)
    }

    /// Returns the area that begins at `at`.
    pub fn find(&self, at: Va) -> Option<VaRange> {
        self.areas.find(at)
    }

    /// Returns the area that contains `at`.
    pub fn enclosing(&self, at: Va) -> Option<VaRange> {
        self.areas.enclosing(at)
    }

    /// Iterates over all areas, in address order.
    pub fn areas(&self) -> impl Iterator<Item = VaRange> + '_ {
        self.areas.areas()
    }

    /// Returns the number of areas.
    pub fn len(&self) -> u64 {
        self.areas.len()
    }

    /// Returns true if there is no area.
    pub fn is_empty(&self) -> bool {
        self.areas.is_empty()
    }

    /// Checks TI1 and the invariants of both structures with full walks.
    ///
    /// # Errors
    /// [`InvariantViolation`] names the first rule that does not hold.
    pub fn validate(&self) -> Result<(), InvariantViolation> {
        self.index.validate()?;
        self.areas.validate()?;
        let live = self.index.live();
        InvariantViolation::check(live == self.len(), "TI1", Va::ZERO, self.len(), live)?;
        let mut pages = self.index.free_pages().get();
        for area in self.areas() {
            let hole = self.index.hole_after(area.start()).filter(|hole| hole.start() < area.end());
            let at = hole.map_or(Va::ZERO, VaRange::start);
            InvariantViolation::check(hole.is_none(), "TI1", at, area.end().get(), at.get())?;
            pages += self.index.unit().count(area);
        }
        let all = self.index.unit().count(self.index.extent());
        InvariantViolation::check(pages == all, "TI1", self.index.extent().start(), all, pages)
    }

    /// Adds the area that `alloc` takes from the index for a request.
    fn allocate(
        &mut self,
        request: &Request,
        alloc: impl FnOnce(&mut I, &Request) -> Result<Va, AllocError>,
    ) -> Result<VaRange, AllocError> {
        self.add(|index| {
            let at = alloc(index, request)?;
            Ok(range_at(index.unit(), at, request))
        })
    }

    /// Takes a range from the index as a new area. Where the record of that lacks, the range is free again.
    fn add(
        &mut self,
        take: impl FnOnce(&mut I) -> Result<VaRange, AllocError>,
    ) -> Result<VaRange, AllocError> {
        // First: what never fits is an error of the index, with memory or without.
        let area = take(&mut self.index)?;
        if let Err(error) = self.areas.reserve(self.areas.len() + 1, &self.platform) {
            self.free_in_index(area);
            return Err(error);
        }
        self.put(area);
        Ok(area)
    }

    fn put(&mut self, area: VaRange) {
        if let Err(error) = self.areas.insert(area) {
            self.platform.bug(format_args!("TI1: an area of the index: {error}"), None);
        }
    }

    fn free_in_index(&mut self, part: VaRange) {
        if let Err(error) = self.index.free(part) {
            self.platform.bug(format_args!("TI1: a part of an area: {error}"), None);
        }
    }
}

/// The same state of the index ([`FreeIndex::same_state`]) and the same areas.
impl<I: FreeIndex, P: Platform> PartialEq for TrackedIndex<I, P> {
    fn eq(&self, other: &Self) -> bool {
        self.index.same_state(&other.index) && self.areas().eq(other.areas())
    }
}

impl<I: FreeIndex, P: Platform> Eq for TrackedIndex<I, P> {}

impl<I: FreeIndex, P: Platform> Drop for TrackedIndex<I, P> {
    fn drop(&mut self) {
        self.areas.clear(&self.platform);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BTreeIndex;
    use va_base::NoSlabs;

    #[test]
    fn ti1_areas_and_holes_that_do_not_tile_are_named() {
        let pages = |first, end| VaRange::from_pages(first, end).unwrap();
        let broken = |spoil: &dyn Fn(&mut BTreeIndex<NoSlabs>)| {
            let index = BTreeIndex::new(pages(9, 99), pages(9, 99), NoSlabs).unwrap();
            let mut index = TrackedIndex::new(index, NoSlabs);
            index.take(pages(20, 25)).unwrap();
            index.take(pages(30, 32)).unwrap();
            spoil(&mut index.index);
            index.validate().map_err(|broken| (broken.rule, broken.expected, broken.actual))
        };
        assert_eq!(broken(&|_| ()), Ok(()));
        // Another number of areas; an area whose last page is free; pages of no area.
        assert_eq!(broken(&|index| index.reserve_splits(1).unwrap()), Err(("TI1", 2, 3)));
        let with_hole = |index: &mut BTreeIndex<NoSlabs>| {
            index.reserve_splits(1).unwrap();
            index.free(pages(24, 25)).unwrap();
        };
        assert_eq!(broken(&with_hole), Err(("TI1", 25 << 12, 24 << 12)));
        let without_area = |index: &mut BTreeIndex<NoSlabs>| {
            index.take(pages(32, 42)).unwrap();
            index.release_splits(1);
        };
        assert_eq!(broken(&without_area), Err(("TI1", 90, 80)));
    }
}
