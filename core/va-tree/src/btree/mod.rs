//! The B+tree of holes: the exact lowest fit for every size, alignment and window, in O(log n).
//!
//! # Theory
//! **Why a B+tree.** A binary tree of holes costs a cache miss a level and has 19 levels at a million holes. A tree of
//! nodes with 16 or 32 entries costs a few misses a level and has three to five. A binary tree stores the longest hole
//! below each node. Here it is stored per child, in an array that one scan passes.
//!
//! **Why keyed by the end.** Nearly every allocation cuts the left edge of a hole. Its end stays, so the key stays:
//! one size is written and no separator moves.
//!
//! **The top hole** touches the end of the extent and is outside the tree. A young space allocates from it, and there
//! an allocation is an addition.
//!
//! **Searching.** The search enters the first child whose maximum is large enough. The maximum of a whole subtree is
//! exact, so the search never goes back. Two limits clip a hole. The window's start cuts at most one hole, which is
//! tested on the path to the first leaf. The window's end needs no search: if the lowest fit ends past it, so does
//! every other.
//!
//! ```text
//!   window start .....v                          1 walk to the first hole that ends above it, test it clipped
//!   holes   ##  ####  ###   #    #######   ##    2 the rest of that leaf
//!                     1     2    3 climb         3 up until a child to the right is large enough, then down
//! ```
//!
//! **Alignment** has its own rows, one for each power of two (see `rows`). They cost memory and time, so each is built
//! on demand. The first request of its alignment that would otherwise visit more than a constant number of leaves begins
//! it. Requests of that alignment then build it in steps, and are exact meanwhile (see `build`). It is dropped when the
//! tree has shrunk to one inner node, where no search is long. Or all rows exist from the beginning
//! ([`BTree::with_rows`]). A space that aligns little or is small pays for none.
//!
//! **Shape** (see `cost` for the bounds). A full node splits in halves. A node below 3F/8 joins a neighbour, or the two
//! share their entries. So every height and every reserve is guaranteed, not expected.
//!
//! # Invariants
//! - **BT1 routed** `sep[i]` lies between the ends in child `i` and the starts in child `i + 1`; the last is `MAX`.
//! - **BT2 filled** every node but the root has at least 3F/8 entries, an inner root at least two, all leaves one
//!   depth.
//! - **BT3 gap** `gap[i]` is the longest hole below child `i`, and `longest` that of the whole tree.
//! - **BT5 top** the hole that touches the end of the extent is outside the tree, every other inside.
//! - **BT6 last-end** no hole of the tree ends above `last_end`.
//!
//! # Cost
//! An index is 3.5 KiB with the first 29 holes inside it (59 with 32-bit keys). [`BTree::empty`] is a constant for a
//! `static`, and [`BTree::init`] works in place. With `n` holes and fanout F, every operation is O(F log n) and changes
//! O(log n) nodes. There are three exceptions. While the row of its alignment is not whole, a request also looks into
//! the holes below its result that none has looked into before: O(n) for all requests together.
//! [`BTree::alloc_step`](FreeIndex::alloc_step) does a bounded part of that. Alignments above 1 GiB may walk O(n) holes.
//! Congruent areas pass the holes above the result that could hold one of them.
//! # Source
//! Our own; Linux has a red-black tree here (see [`rb`](crate::rb)). Measurements:
//! `docs/decisions/0001-index-structure.md`.

mod alloc;
mod balance;
#[cfg(test)]
mod broken;
mod build;
#[cfg(feature = "certify")]
mod certify;
mod change;
mod cost;
mod key;
mod memory;
mod node;
mod path;
mod rows;
mod search;
mod validate;

pub use key::{Byte, Key};
pub use memory::BTreeSupply;

use crate::free_index::ample;
use crate::ledger::Ledger;
use crate::slab::Slab;
use crate::{Fit, FreeIndex, IndexMemory, Unit};
use core::fmt;
use key::fits;
use node::{Inner, Leaf};
use path::Path;
use rows::{Classes, Row};
use search::Search;
use va_base::{
    Align, AllocError, FreeError, InvariantViolation, Late, PAGE_SHIFT, Pages, Platform, Request, Va, VaRange,
};

/// The B+tree with 64-bit page numbers: any extent.
pub type BTreeIndex<P> = BTree<u64, 16, P>;
/// The B+tree with 32-bit page numbers: extents up to 16 TiB, half the memory.
pub type BTreeIndex32<P> = BTree<u32, 32, P>;
/// The B+tree whose unit is one byte: where [`FreeIndex`] says page, it is a byte, or whatever else is numbered.
///
/// An extent is any range up to `[0, 2^64 - 1)`. Requests are [`Request::units`]. Errors show counts as pages.
///
/// ```
/// use va_base::{NoSlabs, Request, Va, VaRange};
/// use va_tree::{ByteIndex, FreeIndex};
///
/// // Handles from 1 up; the last number is never in a range.
/// let all = VaRange::try_from(1..u64::MAX)?;
/// let mut index = ByteIndex::new(all, all, NoSlabs)?;
/// assert_eq!(index.alloc(&Request::units(1, 1)?)?.get(), 1);
/// assert_eq!(index.alloc(&Request::units(100, 8)?)?.get(), 8);
/// assert_eq!(index.alloc_highest(&Request::units(3, 1)?)?.get(), u64::MAX - 3);
/// index.free(VaRange::try_from(8..108)?)?;
/// assert_eq!(index.alloc(&Request::units(1, 1 << 63)?)?.get(), 1 << 63);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub type ByteIndex<P> = BTree<Byte, 16, P>;

/// A B+tree of holes; `K` is the width of a page number inside, `F` the fanout: a multiple of 8, or 4 for tests of deep
/// trees. `L` leaves and `I` inner nodes are inside the value, which has 2.5 to 3.5 KiB, and its code 34 KiB;
/// [`FlatIndex`](crate::FlatIndex) has 448 bytes and 3 KiB.
/// ```
/// use va_base::{NoSlabs, Request, Va, VaRange};
/// use va_tree::{BTreeIndex, FreeIndex};
///
/// let space = VaRange::from_pages(0x100, 0x200).unwrap();
/// let mut index = BTreeIndex::new(space, space, NoSlabs)?;
/// let at = index.alloc(&Request::new(3 * 4096, 4096)?)?;
/// assert_eq!(at, Va::new(0x100_000));
/// let aligned = index.alloc(&Request::new(4096, 64 * 4096)?)?;
/// assert_eq!(aligned, Va::new(0x140_000));
/// index.free(VaRange::from_size(at, 3 * 4096).unwrap()).unwrap();
/// assert_eq!(index.hole_count(), 2);
/// # Ok::<(), va_base::AllocError>(())
/// ```
pub struct BTree<K: Key, const F: usize, P: Platform, const L: usize = 4, const I: usize = 1> {
    // Constant after `new`.
    /// First page of the extent.
    first: u64,
    /// Page after the last.
    end: u64,
    /// Base of every key: `first` rounded down to a multiple of `2^CLASSES` pages, so that relative alignment is
    /// alignment.
    base: u64,
    default_window: VaRange,
    /// The default window in the form of the search.
    default_pages: (u64, u64),
    platform: Late<P>,
    // The tree.
    leaves: Slab<Leaf<K, F>, L>,
    inners: Slab<Inner<K, F>, I>,
    rows: Slab<Row<K, F>, 0>,
    /// The alignment classes that have rows, in all inner nodes or in some (BT4).
    row_classes: Classes,
    /// Those of them that have rows in all (BT7).
    whole_classes: Classes,
    /// Times that rows were dropped: rows of nodes of an earlier epoch are gone.
    row_epoch: u64,
    /// Classes for which a request would have built rows if there had been memory.
    rows_missed: Classes,
    /// True if rows remain when the tree is small.
    rows_always: bool,
    #[cfg(test)]
    visits: core::cell::Cell<u64>,
    root: u32,
    /// Levels of inner nodes above the leaves.
    height: usize,
    /// Longest hole inside the tree, in pages (BT3).
    longest: u64,
    /// Upper bound of the ends in the tree, relative (BT6).
    last_end: u64,
    // Outside the tree.
    /// Start of the hole that touches the end of the extent, relative; the end itself if there is none (BT5).
    top_start: u64,
    ledger: Ledger,
}

impl<K: Key, const F: usize, P: Platform, const L: usize, const I: usize> BTree<K, F, P, L, I> {
    /// Creates an index of the whole pages of `extent`, all free.
    ///
    /// Requests without a window are met in `default_window`, clipped to the extent. The platform is not called yet.
    ///
    /// # Errors
    /// The errors of [`init`](Self::init).
    pub fn new(extent: VaRange, default_window: VaRange, platform: P) -> Result<Self, AllocError> {
        let mut tree = Self::empty(platform);
        tree.init(extent, default_window)?;
        Ok(tree)
    }

    /// Creates an index of no pages at all: a constant for a `static`. [`init`](Self::init) sets its extent.
    ///
    /// ```
    /// use std::sync::Mutex;
    /// use va_base::{NoSlabs, Request, Va, VaRange};
    /// use va_tree::{BTreeIndex, FreeIndex};
    ///
    /// static INDEX: Mutex<BTreeIndex<NoSlabs>> = Mutex::new(BTreeIndex::empty(NoSlabs));
    ///
    /// let space = VaRange::from_pages(0x100, 0x200).unwrap();
    /// let mut index = INDEX.lock().unwrap();
    /// assert!(index.alloc(&Request::pages(1).unwrap()).is_err());
    /// index.init(space, space)?;
    /// assert_eq!(index.alloc(&Request::pages(1).unwrap())?, Va::from_page(0x100));
    /// # Ok::<(), va_base::AllocError>(())
    /// ```
    pub const fn empty(platform: P) -> Self {
        Self::of_no_pages(Late::new(platform))
    }

    /// Creates an index of no pages.
    pub(crate) const fn of_no_pages(platform: Late<P>) -> Self {
        // Split halves must satisfy the minimum fill (`cost`), and shifts work on whole vectors; the first leaf is here.
        const { assert!((F == 4 || F >= 8 && F.is_multiple_of(8)) && L > 0) };
        Self {
            first: 0,
            end: 0,
            base: 0,
            default_window: VaRange::EMPTY,
            default_pages: (0, 0),
            platform,
            leaves: Slab::new(),
            inners: Slab::new(),
            rows: Slab::new(),
            row_classes: Classes::NONE,
            whole_classes: Classes::NONE,
            row_epoch: 0,
            rows_missed: Classes::NONE,
            rows_always: false,
            #[cfg(test)]
            visits: core::cell::Cell::new(0),
            root: 0,
            height: 0,
            longest: 0,
            last_end: 0,
            top_start: 0,
            ledger: Ledger { live: 0, holes: 0, free_pages: 0, reserved_holes: 0 },
        }
    }

    /// Sets the extent of an [`empty`](Self::empty) index, in place. Stack: some hundred bytes.
    ///
    /// # Errors
    /// [`AllocError::BadRange`] if `extent` holds no whole page, or, with 32-bit keys, if more than 16 TiB lie between
    /// its start rounded down to 1 GiB and its end. [`AllocError::Occupied`] if the index has an extent.
    pub fn init(&mut self, extent: VaRange, default_window: VaRange) -> Result<(), AllocError> {
        va_base::assert_pages::<P>();
        let (first, end) = K::UNIT.whole(extent);
        let base = first & !((1 << rows::CLASSES) - 1);
        let bad = AllocError::BadRange { range: extent, extent: VaRange::ALL };
        // The end of the extent itself is never a key: a hole that reaches it is the top hole.
        if first >= end || end - base - 1 > K::MAX.get() {
            return Err(bad);
        }
        if self.first < self.end {
            return Err(AllocError::Occupied { range: extent });
        }
        (self.first, self.end, self.base, self.top_start) = (first, end, base, first - base);
        self.default_window = default_window;
        self.default_pages = self.clip(default_window);
        (self.ledger.holes, self.ledger.free_pages) = (1, end - first);
        self.count_reserved();
        self.root = self.new_leaf();
        *self.leaves.get_mut(self.root) = Leaf::WITHOUT_HOLES;
        Ok(())
    }

    /// Sets the platform of an [`empty`](Self::empty) index. An index that has an extent retains its platform.
    pub fn set_platform(&mut self, platform: P) {
        if self.first == self.end {
            self.platform = Late::new(platform);
        }
    }

    /// Returns the same index with [`add_all_rows`](Self::add_all_rows). For a new index: a failure drops it.
    ///
    /// # Errors
    /// [`AllocError::NoMeta`] if the platform has no memory.
    pub fn with_rows(mut self) -> Result<Self, AllocError> {
        self.add_all_rows()?;
        Ok(self)
    }

    /// Adds the alignment rows of every class, for any number of holes. O(n) now, O(1) for a young space;
    /// no later request builds a row. [`Supplied::shrink`](crate::Supplied::shrink) frees none of their memory while there
    /// are more holes than a leaf has.
    ///
    /// # Errors
    /// [`AllocError::NoMeta`] if the platform has no memory; nothing has changed.
    pub fn add_all_rows(&mut self) -> Result<(), AllocError> {
        let missed = self.rows_missed;
        let begun = self.begin_rows(Classes::ALL, self.ledger.bound());
        if begun.is_ok() {
            self.build_all();
            self.rows_always = true;
        } else {
            self.rows_missed = missed;
        }
        begun
    }

    /// Returns true if the index has alignment rows of any class.
    pub fn has_rows(&self) -> bool {
        !self.row_classes.is_empty()
    }

    /// End of the extent, relative.
    #[inline(always)]
    fn top_end(&self) -> u64 {
        self.end - self.base
    }

    /// Returns the pages of the top hole.
    #[inline(always)]
    fn top_size(&self) -> u64 {
        self.top_end() - self.top_start
    }

    /// Returns the address of relative page `page`.
    #[inline(always)]
    fn va(&self, page: u64) -> Va {
        K::UNIT.address(self.base + page)
    }

    /// Returns the range of relative pages `[start, end)`, which lie in the extent.
    fn range(&self, start: u64, end: u64) -> VaRange {
        VaRange::new(self.va(start), self.va(end)).unwrap_or_default()
    }

    /// Returns the relative pages of `range` if it is a non-empty run of whole pages in the extent.
    #[inline]
    fn checked_pages(&self, range: VaRange) -> Option<(u64, u64)> {
        let (start, end) = (K::UNIT.floor(range.start()), K::UNIT.floor(range.end()));
        let inside = K::UNIT.is_whole(range) && self.first <= start && start < end && end <= self.end;
        inside.then(|| (start - self.base, end - self.base))
    }

    /// Returns the pages of `window` that are in the extent, relative. An empty window remains empty: nothing fits
    /// between its ends, and the search reads only those.
    #[inline]
    fn clip(&self, window: VaRange) -> (u64, u64) {
        let (low, high) = K::UNIT.whole(window);
        let (low, high) = (low.max(self.first), high.min(self.end));
        (low.min(self.end) - self.base, high.max(self.base) - self.base)
    }

    /// Returns a request in the form of the search.
    #[inline]
    fn wanted(&self, request: &Request) -> search::Wanted {
        let (low, high) = match request.window() {
            None => self.default_pages,
            Some(window) => self.clip(window),
        };
        search::Wanted {
            size: request.size().get(),
            align_log2: K::UNIT.align_log2(request.align()),
            low,
            high,
        }
    }

    /// Stops, with the feature `validate`, at the first walk of the invariants that finds one broken.
    #[inline(always)]
    fn check(&self) {
        #[cfg(feature = "validate")]
        if let Err(broken) = self.ledger.walked(|| self.validate()) {
            self.platform.bug(format_args!("after an operation on the B+tree"), Some(broken));
        }
    }
}

impl<K: Key, const F: usize, P: Platform, const L: usize, const I: usize> FreeIndex for BTree<K, F, P, L, I> {
    fn extent(&self) -> VaRange {
        self.range(self.first - self.base, self.top_end())
    }

    fn unit(&self) -> Unit {
        K::UNIT
    }

    fn default_window(&self) -> VaRange {
        self.default_window
    }

    /// O(log n) without an alignment above a page, or if its class has a row. Otherwise O(n): a walk over the holes
    /// that are long enough, up to the first that fits. [`alloc`](Self::alloc) builds rows; this call changes nothing.
    ///
    /// Above 1 GiB both calls may walk, since rows have no such class and only exclude holes without a multiple of 1
    /// GiB. One more class would cost 128 bytes an inner node and an update a change, for requests that no kernel
    /// makes.
    fn would_fit(&self, request: &Request) -> Result<Va, AllocError> {
        match self.find_lowest_patiently(&self.wanted(request), &mut Path::new()) {
            Some(found) => Ok(self.va(found.at)),
            None => Err(self.no_space(request)),
        }
    }

    /// O(log n) once the row of the alignment is whole. Until then a request looks into the holes that no request of its
    /// alignment has passed: O(n) once, and O(n) each time without memory for the row.
    #[inline]
    fn alloc(&mut self, request: &Request) -> Result<Va, AllocError> {
        let wanted = self.wanted(request);
        // Nothing in the tree is large enough: a young space, or a large request. Then it is the top hole or nothing.
        if wanted.size > self.longest
            && let at = self.top_start
            && self.first_at(at, &wanted) == at
        {
            if !fits::<K>(at, wanted.size, wanted.high.min(self.top_end())) {
                return Err(self.no_space(request));
            }
            self.reserve_holes(self.ledger.bound_after_take())?;
            self.cut_top_edge(wanted.size);
            self.check();
            return Ok(self.va(at));
        }
        let mut path = Path::new();
        let mut search = self.find_lowest(&wanted, &mut path);
        if let Search::NeedsRow = search {
            search = self.find_in_steps(&wanted, &mut path, usize::MAX);
        }
        let Search::Found(found) = search else { return Err(self.no_space(request)) };
        self.take_found(&found, &mut path, wanted.size)
    }

    /// O(log n), and the rows of 64 leaves. O(n) for alignments above 1 GiB, and without memory for the row.
    #[inline]
    fn alloc_step(&mut self, request: &Request) -> Result<Option<Va>, AllocError> {
        let wanted = self.wanted(request);
        if wanted.class().is_some_and(|class| !self.whole_classes.has(class)) && self.height > 1 {
            return self.alloc_in_step(&wanted, request);
        }
        self.alloc(request).map(Some)
    }

    /// O(log n), without a row.
    fn take_ample(&mut self, request: &Request) -> Result<Option<Va>, AllocError> {
        let Some(size) = ample::units(K::UNIT, request) else { return Ok(None) };
        let wanted = self.wanted(request);
        let mut path = Path::new();
        match self.find_lowest(&search::Wanted { size, align_log2: 0, ..wanted }, &mut path) {
            Search::Found(mut found) => {
                found.at = self.first_at(found.start, &wanted);
                self.take_found(&found, &mut path, wanted.size).map(Some)
            }
            Search::Nothing | Search::NeedsRow => Ok(None),
        }
    }

    /// O(log n) once the row of the alignment is whole. A request that would step over more than a constant number of
    /// holes builds it, O(n), even if nothing fits.
    fn alloc_highest(&mut self, request: &Request) -> Result<Va, AllocError> {
        loop {
            if let Some(at) = self.try_alloc_highest(request, usize::MAX)? {
                return Ok(at);
            }
        }
    }

    /// As [`alloc_step`](Self::alloc_step).
    fn alloc_highest_step(&mut self, request: &Request) -> Result<Option<Va>, AllocError> {
        self.try_alloc_highest(request, Self::STEP_NODES)
    }

    fn take(&mut self, range: VaRange) -> Result<Fit, AllocError> {
        let bad = AllocError::BadRange { range, extent: self.extent() };
        let (start, end) = self.checked_pages(range).ok_or(bad)?;
        let mut path = Path::new();
        let found = self.find_enclosing(start, end, &mut path).ok_or(AllocError::Occupied { range })?;
        self.reserve_holes(self.ledger.bound_after_cut(Fit::of(start, end, found.start, found.end)))?;
        let fit = self.cut(&found, &mut path, end - start);
        self.check();
        Ok(fit)
    }

    #[inline]
    fn free(&mut self, range: VaRange) -> Result<(), FreeError> {
        let Some((start, end)) = self.checked_pages(range) else {
            return Err(FreeError::BadRange { range, extent: self.extent() });
        };
        self.merge(start, end, range)?;
        self.check();
        Ok(())
    }

    fn reserve_splits(&mut self, pieces: u64) -> Result<(), AllocError> {
        let want = self.ledger.with_splits(pieces, self.end - self.first)?;
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
        Pages::new(self.longest.max(self.top_size()))
    }

    fn hole_after(&self, at: Va) -> Option<VaRange> {
        let page = K::UNIT.floor(at);
        if page >= self.end {
            return None;
        }
        // A hole ends above `at` when it ends above its page: ends are page boundaries.
        let page = page.max(self.first) - self.base;
        let (start, end) = self.first_hole_from(page + 1).or_else(|| self.top_hole())?;
        Some(self.range(start, end))
    }

    fn hole_below(&self, at: Va) -> Option<VaRange> {
        let page = K::UNIT.floor(at);
        if page < self.first {
            return None;
        }
        let (start, end) = self.last_hole_to(page.min(self.end) - self.base)?;
        Some(self.range(start, end))
    }

    fn fit_below(&self, at: Va, size: Pages) -> Option<VaRange> {
        let page = Some(K::UNIT.floor(at)).filter(|&page| page >= self.first)?.min(self.end) - self.base;
        self.last_fit_to(page, size.get().max(1), None).map(|(start, end)| self.range(start, end))
    }

    /// O(log n) with the whole row of the alignment, which [`alloc_highest`](Self::alloc_highest) builds. Without it, one step
    /// a hole that is long enough.
    fn aligned_fit_below(&self, at: Va, size: Pages, align: Align) -> Option<VaRange> {
        let mut holes = usize::MAX;
        self.aligned_within(at, size, align, &mut holes)
    }

    fn memory(&self) -> IndexMemory {
        let leaf = size_of::<Leaf<K, F>>();
        let inner = size_of::<Inner<K, F>>();
        let row = size_of::<Row<K, F>>();
        IndexMemory {
            used_bytes: self.leaves.used() * leaf + self.inners.used() * inner,
            row_bytes: self.rows.used() * row,
            allocated_bytes: self.leaves.bytes() + self.inners.bytes() + self.rows.bytes(),
        }
    }

    fn validate(&self) -> Result<(), InvariantViolation> {
        // Before `init` there is nothing to check.
        if self.first == self.end { Ok(()) } else { self.walk() }
    }

    fn bug(&self, what: fmt::Arguments<'_>) -> ! {
        self.platform.bug(what, None)
    }
}

/// The same extent, window, holes and number of areas; see [`FreeIndex::same_state`].
impl<K: Key, const F: usize, P: Platform, const L: usize, const I: usize> PartialEq for BTree<K, F, P, L, I> {
    fn eq(&self, other: &Self) -> bool {
        self.same_state(other)
    }
}

impl<K: Key, const F: usize, P: Platform, const L: usize, const I: usize> Eq for BTree<K, F, P, L, I> {}

impl<K: Key, const F: usize, P: Platform, const L: usize, const I: usize> fmt::Debug
    for BTree<K, F, P, L, I>
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BTree")
            .field("extent", &self.extent())
            .field("live", &self.ledger.live)
            .field("holes", &self.ledger.holes)
            .field("free_pages", &self.ledger.free_pages)
            .field("largest_hole", &self.largest_hole())
            .field("height", &self.height)
            .field("rows", &self.whole_classes)
            .finish_non_exhaustive()
    }
}

impl<K: Key, const F: usize, P: Platform, const L: usize, const I: usize> Drop for BTree<K, F, P, L, I> {
    fn drop(&mut self) {
        self.leaves.return_all(&self.platform);
        self.inners.return_all(&self.platform);
        self.rows.return_all(&self.platform);
    }
}

// Sums of two page numbers never overflow.
const _: () = assert!(PAGE_SHIFT >= 12);
