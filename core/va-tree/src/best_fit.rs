//! An index that has its holes in order of size as well: the best fit in O(log n).
//!
//! # Theory
//! The smallest hole that is large enough is the first of that size or more in a tree ordered by size. A change of the
//! index changes at most three holes, and these are found in the index after the change:
//!
//! ```text
//!   take   |####hole####|  ->  |##|=area=|###|      in the tree: - hole, + the rests
//!   free   |##|=area=|###| ->  |####hole####|       in the tree: - the rests, + hole
//! ```
//! Both structures need a record a hole, so both reserve as many (SP3, see [`FreeIndex`]).
//!
//! # Invariants
//! - **BF1 mirrored** the tree has exactly the holes of the index, and records for all to which frees can lead.
//!
//! # Locking
//! None: `&mut self`.
//! # Cost
//! O(log n) a call, and 48 bytes a hole beside the index. [`best_fit`](FreeIndex::best_fit) takes the first hole that is
//! large enough, unless the window excludes it, or it is between `size` and `size + align` and not aligned. Then two
//! walks take a step in turn, and the first that ends has the answer:
//!
//! ```text
//!   by size      from the smallest hole that is large enough, to the first that the request permits     e steps
//!   by address   all holes of the window that are large enough, and the best of them                    w steps
//! ```
//! So that is O(log n (1 + min(e, w))). Here `e` counts the holes that are large enough, excluded, and smaller than the
//! answer; `w` counts the holes of the window that are large enough. A window of all has no `e`, and a narrow one has
//! few holes. The bound is O(n log n) where each is half of all; `docs/decisions/0064-the-price-of-a-window.md` states
//! why it stays. If nothing fits, the index finds that out at its own cost. Over an [`RbIndex`](crate::RbIndex) a step
//! by address passes smaller holes as well.
//! # Source
//! Our own; the policy is that of Knuth, *The Art of Computer Programming* 1, 2.5.

use crate::free_index::{best, range_at, units_of};
use crate::ledger::Ledger;
use crate::rb::{SizeSupply, SizeTree};
use crate::supply::{InPlace, PieceWanted, Supplied, Table};
use crate::{Fit, FreeIndex, IndexMemory, Unit};
use core::fmt;
use va_base::{
    Align, AllocError, FreeError, InvariantViolation, Late, Pages, Platform, Request, Va, VaRange,
};

/// An index `I`, and its holes in order of size.
///
/// ```
/// use va_base::{Heap, Request, VaRange};
/// use va_tree::{BTreeIndex, BestFitIndex, FreeIndex};
/// let space = VaRange::from_pages(16, 1 << 20).unwrap();
/// let mut index = BestFitIndex::new(BTreeIndex::new(space, space, Heap)?, Heap)?;
/// for (first, end) in [(16, 17), (17, 20), (20, 25), (25, 27), (27, 30)] {
///     index.take(VaRange::from_pages(first, end).unwrap())?;
/// }
/// index.free(VaRange::from_pages(17, 20).unwrap())?; // 3 pages
/// index.free(VaRange::from_pages(25, 27).unwrap())?; // 2 pages
/// assert_eq!(index.alloc_best(&Request::pages(2)?)?.page_floor(), 25);
/// assert_eq!(index.alloc(&Request::pages(1)?)?.page_floor(), 17);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct BestFitIndex<I: FreeIndex, P: Platform> {
    index: I,
    sizes: SizeTree,
    platform: Late<P>,
}

impl<I: FreeIndex, P: Platform> BestFitIndex<I, P> {
    /// Orders the holes of an index by size; `platform` allocates the records for it. O(n log n).
    ///
    /// # Errors
    /// [`AllocError::NoMeta`] if the platform has no memory. The index is dropped.
    pub fn new(index: I, platform: P) -> Result<Self, AllocError> {
        let mut this = Self { index, sizes: SizeTree::new(), platform: Late::new(platform) };
        this.copy_holes()?;
        Ok(this)
    }

    /// Returns the index, for what the tree of sizes does not change.
    pub fn index(&self) -> &I {
        &self.index
    }

    /// Iterates over the holes of at least `size` pages, the smallest first, and of one size the lowest first. O(log n)
    /// for the first, and O(1) for each of the others.
    ///
    /// It serves policies that are not among the methods: see [`best_fit`](FreeIndex::best_fit).
    pub fn holes_from(&self, size: Pages) -> impl Iterator<Item = VaRange> + '_ {
        // No hole has so many bytes.
        self.sizes.at_least(self.unit().bytes(size).unwrap_or(u64::MAX))
    }

    fn copy_holes(&mut self) -> Result<(), AllocError> {
        self.reserve(self.ledger().bound())?;
        let mut next = self.index.hole_after(Va::ZERO);
        while let Some(hole) = next {
            self.put(hole);
            next = self.index.hole_after(hole.end());
        }
        Ok(())
    }

    /// The counts from which the bound of holes follows.
    fn ledger(&self) -> Ledger {
        Ledger {
            live: self.index.live(),
            holes: self.index.hole_count(),
            free_pages: self.index.free_pages().get(),
            reserved_holes: self.sizes.capacity(),
        }
    }

    fn reserve(&mut self, holes: u64) -> Result<(), AllocError> {
        self.sizes.reserve(holes, &self.platform)
    }

    fn put(&mut self, hole: VaRange) {
        if !self.sizes.insert(hole) {
            self.platform.bug(format_args!("BF1: {hole} is there already, or has no record"), None);
        }
    }

    fn drop_hole(&mut self, hole: VaRange) {
        if !self.sizes.remove(hole) {
            self.platform.bug(format_args!("BF1: {hole} is not there"), None);
        }
    }

    /// Returns what is free right below `at`.
    fn below(&self, at: Va) -> Option<VaRange> {
        let last = self.unit().address(self.unit().floor(at).checked_sub(1)?);
        self.index.hole_below(last).filter(|hole| hole.end() == at)
    }

    /// Returns what is free right above `at`.
    fn above(&self, at: Va) -> Option<VaRange> {
        self.index.hole_after(at).filter(|hole| hole.start() == at)
    }

    /// Follows a cut of `taken` from a hole.
    fn was_cut(&mut self, taken: VaRange) {
        let (below, above) = (self.below(taken.start()), self.above(taken.end()));
        let start = below.map_or(taken.start(), VaRange::start);
        let end = above.map_or(taken.end(), VaRange::end);
        self.drop_hole(VaRange::new(start, end).unwrap_or_default());
        below.into_iter().chain(above).for_each(|rest| self.put(rest));
    }

    /// Follows a free of `freed`, which may have merged with other holes.
    fn was_freed(&mut self, freed: VaRange) {
        let hole = self.index.hole_below(freed.start()).unwrap_or_default();
        for rest in [VaRange::new(hole.start(), freed.start()), VaRange::new(freed.end(), hole.end())] {
            if let Some(rest) = rest.filter(|rest| !rest.is_empty()) {
                self.drop_hole(rest);
            }
        }
        self.put(hole);
    }

    /// Returns the best fit for a request that fits somewhere, and counts the holes that it looks at.
    fn best_of_two_walks(
        &self,
        window: VaRange,
        request: &Request,
        holes: impl Iterator<Item = VaRange>,
        looks: &mut u64,
    ) -> Option<Va> {
        let unit = self.unit();
        let mut by_size = holes.map(|hole| best::within(unit, hole, window, request));
        // Most often one of the next: a look at a hole costs less than a search.
        for fit in by_size.by_ref().take(Self::EAGER) {
            *looks += 1;
            if fit.is_some() {
                return fit;
            }
        }
        let last = |below: Va| Some(Va::new(below.get().checked_sub(1)?));
        let mut next = last(window.end());
        let mut best: Option<(u64, Va)> = None;
        loop {
            *looks += 2;
            // None is left: the walk by address finds the answer.
            if let Some(Some(at)) = by_size.next() {
                return Some(at);
            }
            let hole = next.and_then(|at| self.index.fit_below(at, request.size()));
            let Some(hole) = hole.filter(|hole| hole.end() > window.start()) else {
                return best.map(|(_, at)| at);
            };
            // Down from the top: of holes of one size the lowest is the last.
            if best.is_none_or(|(smallest, _)| hole.len_bytes() <= smallest)
                && let Some(at) = best::within(unit, hole, window, request)
            {
                best = Some((hole.len_bytes(), at));
            }
            next = last(hole.start());
        }
    }

    /// Holes in order of size that are tried before the walk by address begins.
    const EAGER: usize = 16;

    /// Takes an area by `take` from the index, with records for what may be left of its hole.
    fn cut_by(
        &mut self,
        request: &Request,
        take: impl FnOnce(&mut I) -> Result<Option<Va>, AllocError>,
    ) -> Result<Option<Va>, AllocError> {
        if let Err(no_memory) = self.reserve(self.ledger().bound_after_take()) {
            // A request that does not fit lacks no memory.
            self.index.would_fit(request)?;
            return Err(no_memory);
        }
        let taken = take(&mut self.index)?;
        if let Some(at) = taken {
            self.was_cut(range_at(self.unit(), at, request));
            self.check();
        }
        Ok(taken)
    }

    /// Stops, with the feature `validate`, at the first walk of the invariants that finds one broken.
    #[inline(always)]
    fn check(&self) {
        #[cfg(feature = "validate")]
        if let Err(broken) = self.ledger().walked(|| self.validate_sizes()) {
            self.platform.bug(format_args!("after an operation on the holes by size"), Some(broken));
        }
    }

    /// Checks BF1 and the tree with full walks.
    fn validate_sizes(&self) -> Result<(), InvariantViolation> {
        self.sizes.validate()?;
        let mut count = 0;
        for hole in self.sizes.at_least(0) {
            let like = self.index.hole_after(hole.start()).unwrap_or_default();
            InvariantViolation::check(like == hole, "BF1", hole.start(), like.end().get(), hole.end().get())?;
            count += 1;
        }
        let Ledger { holes, reserved_holes, .. } = self.ledger();
        InvariantViolation::check(count == holes, "BF1", Va::ZERO, holes, count)?;
        let bound = self.ledger().bound();
        InvariantViolation::check(bound <= reserved_holes, "BF1", Va::ZERO, bound, reserved_holes)
    }
}

impl<I: FreeIndex, P: Platform> FreeIndex for BestFitIndex<I, P> {
    fn extent(&self) -> VaRange {
        self.index.extent()
    }

    fn unit(&self) -> Unit {
        self.index.unit()
    }

    fn default_window(&self) -> VaRange {
        self.index.default_window()
    }

    fn would_fit(&self, request: &Request) -> Result<Va, AllocError> {
        self.index.would_fit(request)
    }

    fn alloc(&mut self, request: &Request) -> Result<Va, AllocError> {
        loop {
            if let Some(at) = self.alloc_step(request)? {
                return Ok(at);
            }
        }
    }

    fn alloc_step(&mut self, request: &Request) -> Result<Option<Va>, AllocError> {
        self.cut_by(request, |index| index.alloc_step(request))
    }

    fn highest_fit(&self, request: &Request) -> Result<Va, AllocError> {
        self.index.highest_fit(request)
    }

    fn alloc_highest(&mut self, request: &Request) -> Result<Va, AllocError> {
        loop {
            if let Some(at) = self.alloc_highest_step(request)? {
                return Ok(at);
            }
        }
    }

    fn alloc_highest_step(&mut self, request: &Request) -> Result<Option<Va>, AllocError> {
        self.cut_by(request, |index| index.alloc_highest_step(request))
    }

    fn best_fit(&self, request: &Request) -> Result<Va, AllocError> {
        let window = request.window().unwrap_or(self.default_window());
        let Some(bytes) = self.unit().bytes(request.size()) else { return self.index.would_fit(request) };
        let mut holes = self.sizes.at_least(bytes);
        if let Some(at) = holes.next().and_then(|hole| best::within(self.unit(), hole, window, request)) {
            return Ok(at);
        }
        // Those that the window or the alignment exclude may be many: first, whether there is another.
        let lowest = self.index.would_fit(request)?;
        Ok(self.best_of_two_walks(window, request, holes, &mut 0).unwrap_or(lowest))
    }

    fn take(&mut self, range: VaRange) -> Result<Fit, AllocError> {
        let hole = self.index.hole_below(range.start()).filter(|hole| hole.encloses(range));
        if let Some(hole) = hole.filter(|_| !range.is_empty()) {
            let [start, end, hole_start, hole_end] = [range.start(), range.end(), hole.start(), hole.end()];
            let fit = Fit::of(start.get(), end.get(), hole_start.get(), hole_end.get());
            self.reserve(self.ledger().bound_after_cut(fit))?;
        }
        let fit = self.index.take(range)?;
        self.was_cut(range);
        self.check();
        Ok(fit)
    }

    fn free(&mut self, range: VaRange) -> Result<(), FreeError> {
        self.index.free(range)?;
        self.was_freed(range);
        self.check();
        Ok(())
    }

    fn reserve_splits(&mut self, pieces: u64) -> Result<(), AllocError> {
        let want = self.ledger().with_splits(pieces, units_of(self))?;
        self.reserve(want.bound())?;
        self.index.reserve_splits(pieces)
    }

    fn release_splits(&mut self, pieces: u64) -> u64 {
        self.index.release_splits(pieces)
    }

    fn live(&self) -> u64 {
        self.index.live()
    }

    fn free_pages(&self) -> Pages {
        self.index.free_pages()
    }

    fn hole_count(&self) -> u64 {
        self.index.hole_count()
    }

    fn largest_hole(&self) -> Pages {
        self.index.largest_hole()
    }

    fn hole_after(&self, at: Va) -> Option<VaRange> {
        self.index.hole_after(at)
    }

    fn hole_below(&self, at: Va) -> Option<VaRange> {
        self.index.hole_below(at)
    }

    fn fit_below(&self, at: Va, size: Pages) -> Option<VaRange> {
        self.index.fit_below(at, size)
    }

    fn aligned_fit_below(&self, at: Va, size: Pages, align: Align) -> Option<VaRange> {
        self.index.aligned_fit_below(at, size, align)
    }

    fn memory(&self) -> IndexMemory {
        let (used, allocated) = self.sizes.bytes();
        let mut memory = self.index.memory();
        memory.used_bytes += used;
        memory.allocated_bytes += allocated;
        memory
    }

    fn validate(&self) -> Result<(), InvariantViolation> {
        self.index.validate()?;
        self.validate_sizes()
    }

    fn bug(&self, what: fmt::Arguments<'_>) -> ! {
        self.platform.bug(what, None)
    }
}

/// Memory for a [`BestFitIndex`].
#[derive(Debug)]
pub struct BestFitSupply<S>(Of<S>);

#[derive(Debug)]
enum Of<S> {
    Index(S),
    Sizes(SizeSupply),
}

impl<I: Supplied, P: Platform> Supplied for BestFitIndex<I, P>
where
    SizeSupply: Send,
{
    type Supply = BestFitSupply<I::Supply>;

    fn wanted(&self, areas: u64) -> Option<PieceWanted> {
        // Each area may be one hole more, too.
        let bound = self.ledger().with_pieces(areas.checked_mul(2)?)?.bound();
        let sizes = self.sizes.next(bound);
        sizes
            .map(|(next, bytes)| PieceWanted { table: Table::Sizes, next, bytes })
            .or_else(|| self.index.wanted(areas))
    }

    fn alloc_supply(wanted: PieceWanted, platform: &impl Platform) -> Option<Self::Supply> {
        let supply = match wanted.table {
            Table::Sizes => Of::Sizes(SizeSupply::alloc(wanted.next, platform)?),
            _ => Of::Index(I::alloc_supply(wanted, platform)?),
        };
        Some(BestFitSupply(supply))
    }

    fn donate(&mut self, supply: Self::Supply) -> Result<(), Self::Supply> {
        let unused = match supply.0 {
            Of::Sizes(supply) => self.sizes.add(supply).map_err(Of::Sizes),
            Of::Index(supply) => self.index.donate(supply).map_err(Of::Index),
        };
        unused.map_err(BestFitSupply)
    }

    fn free_supply(supply: Self::Supply, platform: &impl Platform) {
        match supply.0 {
            Of::Sizes(supply) => supply.free(platform),
            Of::Index(supply) => I::free_supply(supply, platform),
        }
    }

    fn shrink_counted(&mut self, steps: &mut usize) -> usize {
        // The memory that one more area could need remains, so that a shrinker and an alloc do not alternate.
        let need = self.ledger().bound_after_take();
        let freed = self.sizes.shrink(need, steps, &self.platform);
        let freed = freed + self.index.shrink_counted(steps);
        self.check();
        freed
    }
}

impl<I: FreeIndex + InPlace<P>, P: Platform + Clone> InPlace<P> for BestFitIndex<I, P> {
    const EMPTY: Self = Self { index: I::EMPTY, sizes: SizeTree::new(), platform: Late::NONE };

    fn init(&mut self, extent: VaRange, default_window: VaRange, platform: P) -> Result<(), AllocError> {
        self.index.init(extent, default_window, platform.clone())?;
        self.platform = Late::new(platform);
        // One hole: its record is inside the tree.
        self.copy_holes()
    }

    fn try_clone(&self, platform: P) -> Result<Self, AllocError> {
        let index = self.index.try_clone(platform.clone())?;
        Self::new(index, platform)
    }
}

/// The same extent, window, holes and number of areas; see [`FreeIndex::same_state`].
impl<I: FreeIndex, P: Platform> PartialEq for BestFitIndex<I, P> {
    fn eq(&self, other: &Self) -> bool {
        self.same_state(other)
    }
}

impl<I: FreeIndex, P: Platform> Eq for BestFitIndex<I, P> {}

impl<I: FreeIndex, P: Platform> fmt::Debug for BestFitIndex<I, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BestFitIndex")
            .field("extent", &self.extent())
            .field("live", &self.live())
            .field("holes", &self.hole_count())
            .field("free_pages", &self.free_pages())
            .field("largest_hole", &self.largest_hole())
            .finish_non_exhaustive()
    }
}

impl<I: FreeIndex, P: Platform> Drop for BestFitIndex<I, P> {
    fn drop(&mut self) {
        self.sizes.clear(&self.platform);
    }
}

/// The cover of the index below: the tree of sizes only orders what it finds.
#[cfg(feature = "certify")]
impl<I: crate::certify::Certify, P: Platform> crate::certify::Certify for BestFitIndex<I, P> {
    fn cover(&self, covered: crate::certify::Covered, each: &mut dyn FnMut(crate::certify::Bound)) {
        self.index.cover(covered, each);
    }

    /// The shape of the index below, and the holes by size: how their tree is balanced changes no answer.
    fn shape(&self, each: &mut dyn FnMut(u64)) {
        self.index.shape(each);
        self.sizes.at_least(0).for_each(|hole| each(hole.start().get()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::BTreeIndex;
    use va_base::{Heap, NoSlabs};

    fn pages(first: u64, end: u64) -> VaRange {
        VaRange::from_pages(first, end).unwrap()
    }

    /// Returns the rule that the walk names after `spoil`.
    fn broken(
        spoil: impl FnOnce(&mut BestFitIndex<BTreeIndex<NoSlabs>, NoSlabs>),
    ) -> Result<(), &'static str> {
        let space = pages(0, 1000);
        let mut index = BestFitIndex::new(BTreeIndex::new(space, space, NoSlabs).unwrap(), NoSlabs).unwrap();
        index.take(pages(10, 20)).unwrap();
        index.validate().unwrap();
        spoil(&mut index);
        index.validate().map_err(|broken| broken.rule)
    }

    #[test]
    fn bf1_a_hole_that_differs_is_named() {
        assert_eq!(broken(|_| ()), Ok(()));
        // One too few, one too many, another one, and too few records.
        assert_eq!(broken(|index| index.drop_hole(pages(0, 10))), Err("BF1"));
        assert_eq!(broken(|index| index.put(pages(12, 15))), Err("BF1"));
        let moved = |index: &mut BestFitIndex<_, _>| {
            index.drop_hole(pages(0, 10));
            index.put(pages(0, 11));
        };
        assert_eq!(broken(moved), Err("BF1"));
        assert_eq!(broken(|index| index.index.reserve_splits(40).unwrap()), Err("BF1"));
    }

    #[test]
    fn the_memory_is_that_of_both_structures() {
        let space = pages(0, 1000);
        let mut index = BestFitIndex::new(BTreeIndex::new(space, space, Heap).unwrap(), Heap).unwrap();
        index.take(pages(10, 20)).unwrap();
        index.take(pages(30, 40)).unwrap();
        // Three of the 16 records inside, of 48 bytes.
        let (all, below) = (index.memory(), index.index().memory());
        assert_eq!(all.used_bytes - below.used_bytes, 3 * 48);
        assert_eq!(all.allocated_bytes - below.allocated_bytes, 16 * 48);
    }

    #[cfg(feature = "validate")]
    #[test]
    #[should_panic(expected = "after an operation on the holes by size: invariant BF1")]
    fn bf1_an_operation_stops_at_a_hole_that_is_missing() {
        _ = broken(|index| {
            index.drop_hole(pages(0, 10));
            _ = index.take(pages(500, 600));
        });
    }

    /// Looks at holes for a best fit in `window`, and its address.
    fn looks(index: &BestFitIndex<BTreeIndex<Heap>, Heap>, window: VaRange, request: &Request) -> (u64, u64) {
        let (mut looks, request) = (0, request.within(window));
        let holes = index.holes_from(request.size());
        let at = index.best_of_two_walks(window, &request, holes, &mut looks).unwrap();
        assert_eq!(Some(at), best::find(index, window, &request));
        assert_eq!(index.best_fit(&request), Ok(at));
        (looks, at.page_floor())
    }

    #[test]
    fn bf1_the_shorter_of_two_walks_ends_the_search() {
        let space = pages(0, 1 << 20);
        let index = BTreeIndex::new(space, space, Heap).unwrap();
        let mut index = BestFitIndex::new(index, Heap).unwrap();
        index.take(space).unwrap();
        index.reserve_splits(3_000).unwrap();
        // 500 holes of 3 pages at odd pages, then five in a window, then 500 larger ones.
        (0..500).for_each(|n| index.free(pages(8 * n + 1, 8 * n + 4)).unwrap());
        for (first, size) in [(100_000, 9), (100_020, 4), (100_040, 2), (100_060, 4), (100_080, 7)] {
            index.free(pages(first, first + size)).unwrap();
        }
        (0..500).for_each(|n| index.free(pages(200_000 + 8 * n, 200_005 + 8 * n)).unwrap());
        let (eager, three) = (16, Request::pages(3).unwrap());
        // Few holes in the window: 500 are excluded, and four of the five looked at. The lower of two equals.
        assert_eq!(looks(&index, pages(90_000, 110_000), &three), (eager + 2 * 5, 100_020));
        assert_eq!(looks(&index, pages(100_021, 110_000), &three), (eager + 2 * 4, 100_021));
        assert_eq!(looks(&index, pages(100_024, 110_000), &three), (eager + 2 * 3, 100_060));
        // All holes in the window, and few that are excluded.
        assert_eq!(looks(&index, pages(16, 1 << 20), &three), (3, 17));
        let aligned = Request::pages(2).unwrap().aligned(Align::from_log2(12 + 3).unwrap());
        assert_eq!(looks(&index, pages(100_000, 1 << 20), &aligned).1, 100_040);
        // The worst case: half of the holes are excluded, and the others are in the window.
        assert_eq!(looks(&index, pages(110_000, 1 << 20), &aligned).1, 200_000);
        // None is excluded.
        assert_eq!(looks(&index, pages(0, 1 << 20), &three), (1, 1));
    }
}
