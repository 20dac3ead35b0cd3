//! The trait of an index of holes: its operations, their cost and their errors.
//!
//! # Theory
//! A space is an extent of pages. Each page is either *free*, inside exactly one maximal hole, or *live*, inside
//! exactly one allocated area. The index knows the holes. It does not know where one area ends and the next begins,
//! only how many are live.
//!
//! ```text
//!   extent  |=============================================|
//!   pages   |..AAAA......BBBBCC....DDDDDDDDDD.............|      A B C D: 4 live areas
//!   holes   |h1|  | h2  |    | h3 |         |     h4      |      4 holes <= live + 1
//! ```
//!
//! A hole is cut in one of four forms (strips: `#` hole, `=` the area).
//!
//! ```text
//!   Full       |=====|        the hole disappears                        records -1
//!   LeftEdge   |==###|        the hole starts later                               0
//!   RightEdge  |###==|        the hole ends earlier                               0
//!   NoEdge     |#==##|        the hole becomes two                               +1
//! ```
//!
//! # Why a free cannot fail (SP3)
//! A free may create a hole, and a hole needs records. Let `L` be the live areas and `h` the holes. An alloc changes
//! `L + h` by 0, 1 or 2; a free changes it by 0, -1 or -2 (no merge, one, both). So frees from now on, in any order,
//! can raise `h` to at most `(L + h + 1) / 2`: each new hole costs an area, and geometry demands `h <= L + 1`. Records
//! for that many holes, at the worst fill of the structure, are reserved before an area is taken. A failure is
//! [`AllocError::NoMeta`] and changes nothing. See `slab` and each structure for the records that a hole costs.
//!
//! # Invariants (of every implementation; each adds its own)
//! - **FT1 sorted** holes are in address order and disjoint.
//! - **FT2 maximal** no two holes touch.
//! - **FT4 inside** every hole lies in the extent and is not empty.
//! - **FT5 counted** free pages and the number of holes are those that a walk finds.
//! - **FT6 reserved** `holes <= live + 1`, and records for `(live + holes + 1) / 2` holes are reserved.
//!
//! # Locking
//! None here: changes take `&mut self`.
//! # Source
//! Linux `mm/vmalloc.c` (6.12: free tree, `va_clip`, `merge_or_add_vmap_area`); differences: `docs/kernel-map.md`.

pub(crate) mod ample;
pub(crate) mod best;
mod congruent;
pub(crate) mod highest;

pub use congruent::Congruent;

use crate::Unit;
use va_base::{Align, AllocError, FreeError, InvariantViolation, Pages, Request, Va, VaRange};

/// The position of an area in the hole from which it is cut.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Fit {
    /// The whole hole.
    Full,
    /// Its lowest pages.
    LeftEdge,
    /// Its highest pages.
    RightEdge,
    /// Neither edge: the hole becomes two.
    NoEdge,
}

impl Fit {
    /// Returns the number of holes after a cut at this position, of so many before.
    #[inline]
    pub(crate) fn holes_after(self, holes: u64) -> u64 {
        match self {
            Self::Full => holes - 1,
            Self::LeftEdge | Self::RightEdge => holes,
            Self::NoEdge => holes + 1,
        }
    }

    /// Returns the position of pages `[start, end)` in the hole `[hole_start, hole_end)`, which encloses them.
    #[inline]
    pub(crate) fn of(start: u64, end: u64, hole_start: u64, hole_end: u64) -> Self {
        match (start == hole_start, end == hole_end) {
            (true, true) => Self::Full,
            (true, false) => Self::LeftEdge,
            (false, true) => Self::RightEdge,
            (false, false) => Self::NoEdge,
        }
    }
}

/// Memory of an index for its records, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IndexMemory {
    /// Records that describe the current holes, without alignment rows.
    pub used_bytes: usize,
    /// Current alignment rows; 0 if the structure has none.
    pub row_bytes: usize,
    /// All slabs together: used, reserved for frees (SP3), and spare.
    pub allocated_bytes: usize,
}

/// An index of the holes of one space.
///
/// All results are a function of the operations so far (SP5). On `Err` nothing has changed that another call could
/// observe (SP4); slabs that were allocated before a failure stay as spare capacity. No locks are taken: changes need
/// `&mut self`.
pub trait FreeIndex {
    /// Returns the range of whole pages that the index manages.
    fn extent(&self) -> VaRange;

    /// Returns the unit in which the index counts: where this trait says page, it is that unit. A page, but a byte in a
    /// [`ByteIndex`](crate::ByteIndex).
    fn unit(&self) -> Unit {
        Unit::PAGE
    }

    /// Returns the window of requests without one.
    fn default_window(&self) -> VaRange;

    /// Returns the lowest address at which `request` could be met now. O(log n); O(n) for an alignment above a page for
    /// which the structure has no summary (each structure names those).
    ///
    /// `Ok` does not guarantee that records for it are available; only [`alloc`](Self::alloc) finds that out.
    ///
    /// # Errors
    /// [`AllocError::NoSpace`].
    fn would_fit(&self, request: &Request) -> Result<Va, AllocError>;

    /// Takes the lowest range that meets `request` and returns its first address. O(log n), with the exceptions that
    /// the structure states.
    ///
    /// # Errors
    /// [`AllocError::NoSpace`] if nothing fits; [`AllocError::NoMeta`] if the platform has no memory for the area's
    /// records. The next call after there is memory succeeds. Without memory for alignment rows the search is O(n), and
    /// its result the same.
    fn alloc(&mut self, request: &Request) -> Result<Va, AllocError>;

    /// Does as much of [`alloc`](Self::alloc) as is short for any holes: `None` if more is left to do, which the next
    /// call continues. For a caller that holds a lock and can release it in between.
    ///
    /// For example, the first request of an alignment among 100,000 holes of a [`BTreeIndex`](crate::BTreeIndex) takes
    /// some hundred calls. Each returns `None` after a few microseconds, and the last one the address.
    ///
    /// # Errors
    /// Those of [`alloc`](Self::alloc).
    fn alloc_step(&mut self, request: &Request) -> Result<Option<Va>, AllocError> {
        self.alloc(request).map(Some)
    }

    /// Returns the highest address at which `request` could be met now. Cost: that of
    /// [`aligned_fit_below`](Self::aligned_fit_below), twice at most.
    ///
    /// # Errors
    /// [`AllocError::NoSpace`].
    fn highest_fit(&self, request: &Request) -> Result<Va, AllocError> {
        let (size, align) = (request.size(), request.align());
        let window = request.window().unwrap_or(self.default_window());
        let found = highest::find(self.unit(), window, request, |at| self.aligned_fit_below(at, size, align));
        found.ok_or_else(|| self.no_space(request))
    }

    /// Takes the highest range that meets `request` and returns its first address, as [`alloc`](Self::alloc) takes the
    /// lowest one. A method of its own, so that the lowest fit costs nothing more.
    ///
    /// # Errors
    /// Those of [`alloc`](Self::alloc).
    fn alloc_highest(&mut self, request: &Request) -> Result<Va, AllocError> {
        let at = self.highest_fit(request)?;
        self.take(range_at(self.unit(), at, request))?;
        Ok(at)
    }

    /// Does as much of [`alloc_highest`](Self::alloc_highest) as is short, as [`alloc_step`](Self::alloc_step) does of
    /// [`alloc`](Self::alloc).
    ///
    /// # Errors
    /// Those of [`alloc`](Self::alloc).
    fn alloc_highest_step(&mut self, request: &Request) -> Result<Option<Va>, AllocError> {
        self.alloc_highest(request).map(Some)
    }

    /// Returns the lowest address at which `request` could be met in the smallest hole that permits it; of holes of one
    /// size, in the lowest. The size is that of the whole hole, even where the window clips it. O(n); O(log n) in a
    /// [`BestFitIndex`](crate::BestFitIndex), with the exceptions that it states.
    ///
    /// # Errors
    /// [`AllocError::NoSpace`].
    fn best_fit(&self, request: &Request) -> Result<Va, AllocError> {
        let window = request.window().unwrap_or(self.default_window());
        best::find(self, window, request).ok_or_else(|| self.no_space(request))
    }

    /// Takes the [`best_fit`](Self::best_fit) and returns its first address.
    ///
    /// # Errors
    /// Those of [`alloc`](Self::alloc).
    fn alloc_best(&mut self, request: &Request) -> Result<Va, AllocError> {
        let at = self.best_fit(request)?;
        self.take(range_at(self.unit(), at, request))?;
        Ok(at)
    }

    /// Returns the lowest address at which `request` could be met in the lowest hole that is ample: within its window as
    /// long as size and alignment together, less one unit. Without an ample hole it is the lowest fit, as
    /// [`would_fit`](Self::would_fit) has it; so it is where size and alignment are 2^52 units and more. Without an
    /// alignment that is the same. O(log n) if there is an ample hole.
    ///
    /// # Errors
    /// [`AllocError::NoSpace`].
    fn ample_fit(&self, request: &Request) -> Result<Va, AllocError> {
        ample::find(self, request).map_or_else(|| self.would_fit(request), Ok)
    }

    /// Takes the [`ample_fit`](Self::ample_fit) and returns its first address. For a caller that aligns so often that
    /// the time of the exact lowest fit counts for more than the short holes that this one passes.
    ///
    /// # Errors
    /// Those of [`alloc`](Self::alloc).
    fn alloc_ample(&mut self, request: &Request) -> Result<Va, AllocError> {
        match self.take_ample(request)? {
            Some(at) => Ok(at),
            None => self.alloc(request),
        }
    }

    /// Takes the [`ample_fit`](Self::ample_fit) if there is an ample hole.
    ///
    /// # Errors
    /// Those of [`take`](Self::take).
    fn take_ample(&mut self, request: &Request) -> Result<Option<Va>, AllocError> {
        let Some(at) = ample::find(self, request) else { return Ok(None) };
        self.take(range_at(self.unit(), at, request)).map(|_| Some(at))
    }

    /// Takes exactly `range`, which must be free, and returns its position in its hole. O(log n).
    ///
    /// # Errors
    /// [`AllocError::BadRange`], [`AllocError::Occupied`]. [`AllocError::NoMeta`], but never for a whole hole: it frees
    /// the record that a later free needs.
    fn take(&mut self, range: VaRange) -> Result<Fit, AllocError>;

    /// Frees `range`: one area, as it was taken. Merges it with the holes that it touches. O(log n).
    ///
    /// Allocates nothing and cannot fail for lack of memory (SP3). An area may be freed in fragments only after
    /// [`reserve_splits`](Self::reserve_splits), and several areas at once only with
    /// [`release_splits`](Self::release_splits) after it.
    ///
    /// # Errors
    /// Only a caller's mistake: [`FreeError::BadRange`], [`FreeError::AlreadyFree`], [`FreeError::TooManySplits`].
    fn free(&mut self, range: VaRange) -> Result<(), FreeError>;

    /// Counts `pieces` more live areas, and reserves records for their frees: an area is about to be freed in
    /// `pieces + 1` fragments. O(1), plus the time of the platform to allocate memory.
    ///
    /// # Errors
    /// [`AllocError::TooManyAreas`] if there would be more live areas than pages. [`AllocError::NoMeta`] if the platform
    /// has no memory.
    fn reserve_splits(&mut self, pieces: u64) -> Result<(), AllocError>;

    /// Counts `pieces` live areas less: `pieces + 1` neighbouring areas were freed as one range. Returns how many were
    /// released, which is less than `pieces` if the current holes still need them. O(1).
    fn release_splits(&mut self, pieces: u64) -> u64;

    /// Returns the number of live areas, reserved fragments included, O(1).
    fn live(&self) -> u64;

    /// Returns the free pages, O(1).
    fn free_pages(&self) -> Pages;

    /// Returns the number of holes, O(1).
    fn hole_count(&self) -> u64;

    /// Returns the pages of the largest hole, O(1); zero if nothing is free.
    fn largest_hole(&self) -> Pages;

    /// Returns the lowest hole that ends above `at`. O(log n).
    fn hole_after(&self, at: Va) -> Option<VaRange>;

    /// Returns the highest hole that starts at or below `at`. O(log n).
    fn hole_below(&self, at: Va) -> Option<VaRange>;

    /// Returns the highest hole of at least `size` that starts at or below `at`. O(log n) if the structure knows the
    /// longest hole of each subtree; the default takes one step a hole.
    fn fit_below(&self, at: Va, size: Pages) -> Option<VaRange> {
        let mut hole = self.hole_below(at)?;
        loop {
            let (start, end) = self.unit().whole(hole);
            if end - start >= size.get() {
                return Some(hole);
            }
            hole = self.hole_below(self.unit().address(start.checked_sub(1)?))?;
        }
    }

    /// Returns the highest hole that starts at or below `at` and encloses a run of `size` aligned to `align`. O(log n)
    /// if the structure has a summary for the alignment; the default takes one step a hole that is long enough.
    fn aligned_fit_below(&self, at: Va, size: Pages, align: Align) -> Option<VaRange> {
        let (mut at, size) = (at, size.max(Pages::new(1)));
        loop {
            let hole = self.fit_below(at, size)?;
            let start = hole.start().align_up(align);
            let run = start.and_then(|start| VaRange::from_size(start, self.unit().bytes(size)?));
            if run.is_some_and(|run| hole.encloses(run)) {
                return Some(hole);
            }
            at = self.unit().address(self.unit().floor(hole.start()).checked_sub(1)?);
        }
    }

    /// Iterates over all holes in address order, O(log n) each.
    fn holes(&self) -> impl Iterator<Item = VaRange> + '_
    where
        Self: Sized,
    {
        let mut next = self.hole_after(Va::ZERO);
        core::iter::from_fn(move || {
            let hole = next?;
            next = self.hole_after(hole.end());
            Some(hole)
        })
    }

    /// Iterates over what is between the holes in address order, O(log n) each: areas beside each other are one range.
    fn taken(&self) -> impl Iterator<Item = VaRange> + '_
    where
        Self: Sized,
    {
        let end = self.extent().end();
        let mut from = self.extent().start();
        core::iter::from_fn(move || {
            while from < end {
                let hole = self.hole_after(from).unwrap_or(VaRange::new(end, end)?);
                let taken = VaRange::new(from, hole.start())?;
                from = hole.end();
                if !taken.is_empty() {
                    return Some(taken);
                }
            }
            None
        })
    }

    /// Takes the ranges that were [`taken`](Self::taken) in another index, and reserves the records of its
    /// [`live`](Self::live) areas; at least one for each range. An index of the same extent and default window has the
    /// same holes then, and the same answers, unless they depend on the shape of a tree ([`Linux`](crate::rb::Linux)).
    ///
    /// ```
    /// use va_base::{Heap, Request, VaRange};
    /// use va_tree::{BTreeIndex, FreeIndex};
    /// let space = VaRange::from_pages(16, 1 << 20).unwrap();
    /// let mut before = BTreeIndex::new(space, space, Heap)?;
    /// let first = before.alloc(&Request::pages(3)?)?;
    /// let second = before.alloc(&Request::pages(5)?)?;
    /// // A virtual machine is saved, and goes on elsewhere.
    /// let (taken, live): (Vec<VaRange>, u64) = (before.taken().collect(), before.live());
    /// let mut after = BTreeIndex::new(space, space, Heap)?;
    /// after.restore(&taken, live)?;
    /// after.free(VaRange::new(first, second).unwrap())?;
    /// assert_eq!(after.alloc(&Request::pages(2)?)?, first);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`take`](Self::take) and [`reserve_splits`](Self::reserve_splits). Nothing is taken then; rows for
    /// alignments, which are a cache, may be gone.
    fn restore(&mut self, taken: &[VaRange], live: u64) -> Result<(), AllocError> {
        let pages = units_of(self);
        if live > pages {
            return Err(AllocError::TooManyAreas { live, pages: Pages::new(pages) });
        }
        let mut done = taken.iter().try_fold(0, |done, &range| match self.take(range) {
            Ok(_) => Ok(done + 1),
            Err(error) => Err((done, error)),
        });
        if let Ok(all) = done
            && let Err(error) = self.reserve_splits(live.saturating_sub(all as u64))
        {
            done = Err((all, error));
        }
        done.map(|_| ()).map_err(|(done, error)| {
            for &range in &taken[..done] {
                // It was taken above.
                let _free = self.free(range);
            }
            error
        })
    }

    /// Returns true if `other` has the same extent, default window, holes and number of live areas: the state that
    /// [`restore`](Self::restore) makes again. The structures may differ. O(n log n).
    fn same_state(&self, other: &impl FreeIndex) -> bool
    where
        Self: Sized,
    {
        (self.extent(), self.default_window(), self.live())
            == (other.extent(), other.default_window(), other.live())
            && self.hole_count() == other.hole_count()
            && self.holes().eq(other.holes())
    }

    /// Returns the highest base at which every range of `areas` is free, without taking anything. Cost: (holes above
    /// the result that could hold an area + 1) x areas lookups.
    ///
    /// # Errors
    /// [`AllocError::NoSpace`].
    fn find_congruent(&self, areas: &Congruent<'_>) -> Result<Va, AllocError> {
        congruent::find_base(self, areas)
    }

    /// Takes several ranges at fixed distances from one base, the highest base possible (`pcpu_get_vm_areas`).
    ///
    /// All or nothing. Cost: that of [`find_congruent`](Self::find_congruent).
    ///
    /// # Errors
    /// [`AllocError::NoSpace`], [`AllocError::NoMeta`].
    fn alloc_congruent(&mut self, areas: &Congruent<'_>) -> Result<Va, AllocError> {
        congruent::take_all(self, areas)
    }

    /// Returns the memory of the index, O(1).
    fn memory(&self) -> IndexMemory;

    /// Checks every invariant with full walks, O(n). `Err` names the first broken rule and its address.
    ///
    /// # Errors
    /// [`InvariantViolation`].
    fn validate(&self) -> Result<(), InvariantViolation>;

    /// Returns the error of a request that does not fit now. Cost: that of [`largest_hole`](Self::largest_hole).
    #[cold]
    fn no_space(&self, request: &Request) -> AllocError {
        AllocError::NoSpace {
            requested: request.size(),
            align: request.align(),
            window: request.window().unwrap_or(self.default_window()),
            largest: self.largest_hole(),
        }
    }

    /// Stops, since an invariant does not hold. An index on a platform calls [`Platform::bug`](va_base::Platform::bug).
    #[doc(hidden)]
    fn bug(&self, what: core::fmt::Arguments<'_>) -> ! {
        panic!("{what}");
    }
}

/// Brings an index in which nothing is taken to the state of another one of its extent.
///
/// # Errors
/// [`AllocError::NoMeta`]. Some of it is taken then.
pub(crate) fn copy_state(to: &mut impl FreeIndex, from: &impl FreeIndex) -> Result<(), AllocError> {
    for range in from.taken() {
        to.take(range)?;
    }
    to.reserve_splits(from.live().saturating_sub(to.live()))?;
    // A caller may have released more than the ranges between the holes: `holes <= live + 1` is all that is promised.
    to.release_splits(to.live().saturating_sub(from.live()));
    Ok(())
}

/// Returns how many units an index manages.
pub(crate) fn units_of(index: &(impl FreeIndex + ?Sized)) -> u64 {
    index.unit().count(index.extent())
}

/// Returns the range of a request that is met at `at`, in units.
pub(crate) fn range_at(unit: Unit, at: Va, request: &Request) -> VaRange {
    unit.range(unit.floor(at), unit.floor(at) + request.size().get()).unwrap_or_default()
}
