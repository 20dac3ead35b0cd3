//! Linux's structure: a red-black tree of holes that knows the largest hole below each.
//!
//! # Theory
//! Linux has had this structure since 5.2: holes sorted by address in a red-black tree, each with the size of the
//! largest in its subtree. A list has the neighbours in O(1). The tree is in `tree`, and the two searches in
//! [`search`]. This module has the operations of the index.
//!
//! ```text
//!   pages   0....5....10...15...20...25...30          own size | largest below
//!   holes    ##   ######    ###     #                      3|6   the root: [14, 17)
//!           [1,3) [5,11)  [14,17) [25,26)              6|6     1|1
//!                                                    2|2
//! ```
//!
//! **A cut** keeps the record of the hole for the rest, so that a left or a right edge moves one number. Only a cut in
//! the middle links a second record, for the left section. **A merge** keeps the record of the left neighbour. If both
//! neighbours touch, the right one is unlinked first, and only then the left one grows.
//!
//! Addresses are in bytes, as in Linux, because its inflated length (`size + align - 1`) is a number of bytes.
//!
//! # Invariants
//! FT1 to FT6 (see [`FreeIndex`]), RB1 to RB4 (see `tree`).
//!
//! # Cost
//! A hole is one record of 48 bytes; the first 16 are inside the index, which is 1.5 KiB. Alloc and free: O(log n).
//! With [`Exact`] and an alignment above a page, O(n) at worst.
//! # Source
//! Linux `mm/vmalloc.c` (6.12); differences: `docs/kernel-map.md`.

mod areas;
#[cfg(test)]
mod broken;
#[cfg(feature = "certify")]
mod certify;
mod copy;
pub mod search;
mod sizes;
mod tree;

pub use areas::{AreaSupply, AreaTree, AreasWanted};
pub use search::{Exact, Linux, Search};
pub use sizes::SizeSupply;
pub(crate) use sizes::SizeTree;

use crate::free_index::units_of;
use crate::ledger::Ledger;
use crate::slab::NIL;
use crate::supply::{InPlace, PieceWanted, Supplied, Table};
use crate::{Fit, FreeIndex, IndexMemory};
use core::fmt;
use core::marker::PhantomData;
use search::{TreeRef, Wanted};
use tree::{Hole, INLINE_HOLES, Side, Tree};
use va_base::{
    AllocError, FreeError, InvariantViolation, Late, PAGE_SIZE, Pages, Platform, Request, Supply, Va, VaRange,
};

/// A red-black tree of holes with the search `S`.
///
/// ```
/// use va_base::{NoSlabs, Request, Va, VaRange};
/// use va_tree::{FreeIndex, RbIndex, rb};
///
/// let space = VaRange::from_pages(1, 9).unwrap();
/// let mut index = RbIndex::<rb::Linux, _>::new(space, space, NoSlabs)?;
/// assert_eq!(index.alloc(&Request::new(4096, 4 * 4096)?)?, Va::new(4 * 4096));
/// assert_eq!(index.alloc(&Request::new(4096, 4096)?)?, Va::new(4096));
/// # Ok::<(), va_base::AllocError>(())
/// ```
pub struct RbIndex<S: Search, P: Platform> {
    extent: VaRange,
    default_window: VaRange,
    platform: Late<P>,
    tree: Tree,
    ledger: Ledger,
    search: PhantomData<S>,
}

impl<S: Search, P: Platform> RbIndex<S, P> {
    /// Creates an index of the whole pages of `extent`, all free. The platform is not called yet.
    ///
    /// # Errors
    /// The errors of [`init`](Self::init).
    pub fn new(extent: VaRange, default_window: VaRange, platform: P) -> Result<Self, AllocError> {
        let mut index = Self::empty(platform);
        index.init(extent, default_window)?;
        Ok(index)
    }

    /// Creates an index of no pages at all: a constant for a `static`. [`init`](Self::init) sets its extent.
    ///
    /// ```
    /// use std::sync::Mutex;
    /// use va_base::NoSlabs;
    /// use va_tree::{RbIndex, rb};
    ///
    /// static INDEX: Mutex<RbIndex<rb::Linux, NoSlabs>> = Mutex::new(RbIndex::empty(NoSlabs));
    /// # drop(INDEX.lock());
    /// ```
    pub const fn empty(platform: P) -> Self {
        Self::of_no_pages(Late::new(platform))
    }

    /// Creates an index of no pages.
    pub(crate) const fn of_no_pages(platform: Late<P>) -> Self {
        Self {
            extent: VaRange::EMPTY,
            default_window: VaRange::EMPTY,
            platform,
            tree: Tree::new(),
            ledger: Ledger { live: 0, holes: 0, free_pages: 0, reserved_holes: INLINE_HOLES as u64 },
            search: PhantomData,
        }
    }

    /// Sets the extent of an [`empty`](Self::empty) index, in place.
    ///
    /// # Errors
    /// [`AllocError::BadRange`] if `extent` holds no whole page. [`AllocError::Occupied`] if the index has an extent.
    pub fn init(&mut self, extent: VaRange, default_window: VaRange) -> Result<(), AllocError> {
        va_base::assert_pages::<P>();
        let (first, end) = extent.whole_pages();
        let bad = AllocError::BadRange { range: extent, extent: VaRange::ALL };
        let pages = VaRange::from_pages(first, end).filter(|pages| !pages.is_empty()).ok_or(bad)?;
        if !self.extent.is_empty() {
            return Err(AllocError::Occupied { range: extent });
        }
        (self.extent, self.default_window) = (pages, default_window);
        (self.ledger.holes, self.ledger.free_pages) = (1, end - first);
        let id = self.new_hole(pages.start().get(), pages.end().get());
        self.tree.insert(id, NIL, Side::Left);
        Ok(())
    }

    /// Sets the platform of an [`empty`](Self::empty) index. An index that has an extent retains its platform.
    pub fn set_platform(&mut self, platform: P) {
        if self.extent.is_empty() {
            self.platform = Late::new(platform);
        }
    }

    /// Iterates over the shape of the tree, to compare it with a kernel's: `(start, end, depth)` of each hole, in
    /// address order.
    pub fn shape(&self) -> impl Iterator<Item = (Va, Va, u32)> + '_ {
        let mut id = self.tree.first();
        core::iter::from_fn(move || {
            if id == NIL {
                return None;
            }
            let hole = self.tree.get(id);
            let (mut depth, mut up) = (0, hole.parent);
            while up != NIL {
                depth += 1;
                up = self.tree.get(up).parent;
            }
            id = hole.next;
            Some((Va::new(hole.start), Va::new(hole.end), depth))
        })
    }

    /// Takes a reserved record for `[start, end)`.
    #[inline]
    fn new_hole(&mut self, start: u64, end: u64) -> u32 {
        let Some(id) = self.tree.slab.take() else {
            self.platform.bug(format_args!("SP3: the tree needs a record that was not paid for"), None);
        };
        let hole: &mut Hole = self.tree.get_mut(id);
        (hole.start, hole.end) = (start, end);
        id
    }

    #[inline]
    fn reserve_holes(&mut self, holes: u64) -> Result<(), AllocError> {
        if holes <= self.ledger.reserved_holes { Ok(()) } else { self.reserve_holes_slow(holes) }
    }

    #[cold]
    fn reserve_holes_slow(&mut self, holes: u64) -> Result<(), AllocError> {
        let want = usize::try_from(holes).map_err(|_| AllocError::NoMeta { records: usize::MAX })?;
        let allocated = self.tree.slab.reserve(want, &self.platform);
        self.ledger.reserved_holes = self.tree.slab.capacity() as u64;
        allocated.map_err(|records| AllocError::NoMeta { records })
    }

    #[inline]
    fn find(&self, request: &Request) -> Option<(u32, u64)> {
        let window = request.window().unwrap_or(self.default_window);
        let size = request.size().checked_bytes()?;
        // An alignment below a page requires no more than a page: holes are pages.
        let wanted = Wanted {
            size,
            align: request.align().bytes().max(PAGE_SIZE),
            low: window.start().get(),
            high: window.end().get(),
        };
        S::find(&TreeRef(&self.tree), &wanted)
    }

    /// Cuts `[start, end)` from the hole that encloses it. Its records are reserved.
    #[inline]
    fn cut(&mut self, id: u32, start: u64, end: u64) -> Fit {
        let hole = self.tree.get_mut(id);
        let hole_start = hole.start;
        let fit = Fit::of(start, end, hole_start, hole.end);
        match fit {
            Fit::Full => {
                self.tree.erase(id);
                self.tree.slab.put(id);
                self.ledger.holes -= 1;
            }
            Fit::LeftEdge => {
                hole.start = end;
                self.tree.propagate(id);
            }
            Fit::RightEdge => {
                hole.end = start;
                self.tree.propagate(id);
            }
            Fit::NoEdge => {
                hole.start = end;
                self.tree.propagate(id);
                let left = self.new_hole(hole_start, start);
                // The fragment on the left comes right before the hole: no need to walk from the root.
                let link = self.tree.find_link(id, hole_start, start);
                let Some((parent, side)) = link else {
                    self.platform
                        .bug(format_args!("FT1: {hole_start:#x} overlaps what it was cut from"), None);
                };
                self.tree.insert(left, parent, side);
                self.ledger.holes += 1;
            }
        }
        self.ledger.live += 1;
        self.ledger.free_pages -= (end - start) / PAGE_SIZE;
        fit
    }

    fn is_inside(&self, range: VaRange) -> bool {
        range.is_page_aligned() && !range.is_empty() && self.extent.encloses(range)
    }

    #[inline]
    fn accept(&mut self, range: VaRange, merged: u64) -> Result<(), FreeError> {
        if !self.ledger.may_return(merged) {
            return Err(FreeError::TooManySplits { range, live: self.ledger.live });
        }
        self.ledger.live -= 1;
        self.ledger.holes = self.ledger.holes + 1 - merged;
        self.ledger.free_pages += range.len_bytes() / PAGE_SIZE;
        Ok(())
    }

    /// Merges `range` with the holes that it touches, or links it on its own.
    #[inline]
    fn merge(&mut self, range: VaRange) -> Result<(), FreeError> {
        let (start, end) = (range.start().get(), range.end().get());
        if self.tree.root == NIL {
            self.accept(range, 0)?;
            let id = self.new_hole(start, end);
            self.tree.insert(id, NIL, Side::Left);
            return Ok(());
        }
        let Some((parent, side)) = self.tree.find_link(self.tree.root, start, end) else {
            return Err(self.already_free(range));
        };
        let (prev, next) = self.tree.neighbours(parent, side);
        let prev = if prev != NIL && self.tree.get(prev).end == start { prev } else { NIL };
        let next = if next != NIL && self.tree.get(next).start == end { next } else { NIL };
        match (prev, next) {
            (NIL, NIL) => {
                self.accept(range, 0)?;
                let id = self.new_hole(start, end);
                self.tree.insert(id, parent, side);
            }
            (NIL, next) => {
                self.accept(range, 1)?;
                self.tree.get_mut(next).start = start;
                self.tree.propagate(next);
            }
            (prev, NIL) => {
                self.accept(range, 1)?;
                self.tree.get_mut(prev).end = end;
                self.tree.propagate(prev);
            }
            (prev, next) => {
                self.accept(range, 2)?;
                // The right one is erased first: a rotation that this causes must see sizes that agree with the maxima.
                let end = self.tree.get(next).end;
                self.tree.erase(next);
                self.tree.slab.put(next);
                self.tree.get_mut(prev).end = end;
                self.tree.propagate(prev);
            }
        }
        Ok(())
    }

    #[cold]
    fn already_free(&self, range: VaRange) -> FreeError {
        let hole = self.hole_after(range.start()).unwrap_or_default();
        FreeError::AlreadyFree { range, hole }
    }

    fn range_of(&self, id: u32) -> Option<VaRange> {
        if id == NIL {
            return None;
        }
        let hole = self.tree.get(id);
        VaRange::new(Va::new(hole.start), Va::new(hole.end))
    }

    /// Stops, with the feature `validate`, at the first walk of the invariants that finds one broken.
    #[inline(always)]
    fn check(&self) {
        #[cfg(feature = "validate")]
        if let Err(broken) = self.ledger.walked(|| self.validate()) {
            self.platform.bug(format_args!("after an operation on the red-black tree"), Some(broken));
        }
    }
}

impl<S: Search, P: Platform> FreeIndex for RbIndex<S, P> {
    fn extent(&self) -> VaRange {
        self.extent
    }

    fn default_window(&self) -> VaRange {
        self.default_window
    }

    fn would_fit(&self, request: &Request) -> Result<Va, AllocError> {
        self.find(request).map(|(_, at)| Va::new(at)).ok_or_else(|| self.no_space(request))
    }

    #[inline]
    fn alloc(&mut self, request: &Request) -> Result<Va, AllocError> {
        let Some((id, at)) = self.find(request) else {
            return Err(self.no_space(request));
        };
        self.reserve_holes(self.ledger.bound_after_take())?;
        // The search saw that this ends inside the hole.
        self.cut(id, at, at + request.size().get() * PAGE_SIZE);
        self.check();
        Ok(Va::new(at))
    }

    fn take(&mut self, range: VaRange) -> Result<Fit, AllocError> {
        if !self.is_inside(range) {
            return Err(AllocError::BadRange { range, extent: self.extent });
        }
        let (start, end) = (range.start().get(), range.end().get());
        let id = self.tree.last_starting_to(start);
        if id == NIL || self.tree.get(id).end < end {
            return Err(AllocError::Occupied { range });
        }
        let hole = self.tree.get(id);
        self.reserve_holes(self.ledger.bound_after_cut(Fit::of(start, end, hole.start, hole.end)))?;
        let fit = self.cut(id, start, end);
        self.check();
        Ok(fit)
    }

    #[inline]
    fn free(&mut self, range: VaRange) -> Result<(), FreeError> {
        if !self.is_inside(range) {
            return Err(FreeError::BadRange { range, extent: self.extent });
        }
        self.merge(range)?;
        self.check();
        Ok(())
    }

    fn reserve_splits(&mut self, pieces: u64) -> Result<(), AllocError> {
        let want = self.ledger.with_splits(pieces, units_of(self))?;
        self.reserve_holes(want.bound())?;
        self.ledger.live = want.live;
        Ok(())
    }

    fn release_splits(&mut self, pieces: u64) -> u64 {
        self.ledger.release(pieces)
    }

    fn live(&self) -> u64 {
        self.ledger.live
    }

    fn free_pages(&self) -> Pages {
        Pages::new(self.ledger.free_pages)
    }

    fn hole_count(&self) -> u64 {
        self.ledger.holes
    }

    fn largest_hole(&self) -> Pages {
        Pages::new(self.tree.max_size(self.tree.root) / PAGE_SIZE)
    }

    fn hole_after(&self, at: Va) -> Option<VaRange> {
        self.range_of(self.tree.first_ending_above(at.get()))
    }

    fn hole_below(&self, at: Va) -> Option<VaRange> {
        self.range_of(self.tree.last_starting_to(at.get()))
    }

    fn memory(&self) -> IndexMemory {
        IndexMemory {
            used_bytes: self.tree.slab.used() * size_of::<Hole>(),
            row_bytes: 0,
            allocated_bytes: self.tree.slab.bytes(),
        }
    }

    fn validate(&self) -> Result<(), InvariantViolation> {
        let (mut count, mut pages) = (0, 0);
        self.tree.walk(|hole, below| {
            let at = Va::new(hole.start);
            let range = VaRange::new(at, Va::new(hole.end)).unwrap_or_default();
            InvariantViolation::check(self.is_inside(range), "FT4", at, hole.end, hole.start)?;
            if let Some(Hole { end: last, .. }) = below {
                InvariantViolation::check(hole.start >= *last, "FT1", at, *last, hole.start)?;
                InvariantViolation::check(hole.start != *last, "FT2", at, *last, hole.start)?;
            }
            (count, pages) = (count + 1, pages + hole.size() / PAGE_SIZE);
            Ok(())
        })?;
        let (holes, free) = (self.ledger.holes, self.ledger.free_pages);
        InvariantViolation::check(count == holes, "FT5", Va::ZERO, count, holes)?;
        InvariantViolation::check(pages == free, "FT5", Va::ZERO, pages, free)?;
        self.ledger.validate()
    }

    fn bug(&self, what: fmt::Arguments<'_>) -> ! {
        self.platform.bug(what, None)
    }
}

/// Memory for the holes of an [`RbIndex`].
#[derive(Debug)]
pub struct RbSupply(Supply<Hole>);

impl<S: Search, P: Platform> Supplied for RbIndex<S, P> {
    type Supply = RbSupply;

    fn wanted(&self, areas: u64) -> Option<PieceWanted> {
        // Each area may be one hole more, too.
        let bound = self.ledger.with_pieces(areas.checked_mul(2)?)?.bound();
        if bound <= self.ledger.reserved_holes {
            return None;
        }
        let next = self.tree.slab.next(usize::try_from(bound).ok()?)?;
        Some(PieceWanted { table: Table::Holes, next, bytes: next.bytes::<Hole>() })
    }

    fn alloc_supply(wanted: PieceWanted, platform: &impl Platform) -> Option<RbSupply> {
        match wanted.table {
            Table::Holes => wanted.next.alloc(platform).map(RbSupply),
            Table::Leaves | Table::Inners | Table::Rows | Table::Sizes => None,
        }
    }

    fn donate(&mut self, supply: RbSupply) -> Result<(), RbSupply> {
        let unused = self.tree.slab.add(supply.0).map_err(RbSupply);
        self.ledger.reserved_holes = self.tree.slab.capacity() as u64;
        unused
    }

    fn free_supply(supply: RbSupply, platform: &impl Platform) {
        supply.0.free(platform);
    }

    fn shrink_counted(&mut self, steps: &mut usize) -> usize {
        // The memory that one more area could need remains, so that a shrinker and an alloc do not alternate.
        let Ok(need) = usize::try_from(self.ledger.bound_after_take()) else { return 0 };
        let freed = self.tree.shrink(need, steps, &self.platform);
        self.ledger.reserved_holes = self.tree.slab.capacity() as u64;
        self.check();
        freed
    }
}

impl<S: Search, P: Platform> InPlace<P> for RbIndex<S, P> {
    const EMPTY: Self = Self::of_no_pages(Late::NONE);

    fn init(&mut self, extent: VaRange, default_window: VaRange, platform: P) -> Result<(), AllocError> {
        self.set_platform(platform);
        self.init(extent, default_window)
    }

    /// O(n). The tree of the copy has the same shape, on which the answers of [`Linux`] depend.
    fn try_clone(&self, platform: P) -> Result<Self, AllocError> {
        let mut copy = Self::empty(platform);
        copy.reserve_holes(self.ledger.bound())?;
        if copy.tree.copy(&self.tree).is_none() {
            copy.platform.bug(format_args!("SP3: the copy needs a record that was not paid for"), None);
        }
        (copy.extent, copy.default_window) = (self.extent, self.default_window);
        copy.ledger = Ledger { reserved_holes: copy.ledger.reserved_holes, ..self.ledger };
        copy.check();
        Ok(copy)
    }
}

/// The same extent, window, holes and number of areas; see [`FreeIndex::same_state`].
impl<S: Search, P: Platform> PartialEq for RbIndex<S, P> {
    fn eq(&self, other: &Self) -> bool {
        self.same_state(other)
    }
}

impl<S: Search, P: Platform> Eq for RbIndex<S, P> {}

impl<S: Search, P: Platform> fmt::Debug for RbIndex<S, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RbIndex")
            .field("extent", &self.extent)
            .field("live", &self.ledger.live)
            .field("holes", &self.ledger.holes)
            .field("free_pages", &self.ledger.free_pages)
            .field("largest_hole", &self.largest_hole())
            .finish_non_exhaustive()
    }
}

impl<S: Search, P: Platform> Drop for RbIndex<S, P> {
    fn drop(&mut self) {
        self.tree.slab.return_all(&self.platform);
    }
}
