//! The trait of an index of holes: what may be asked, what it costs, what can go wrong.
//!
//! # Theory
//! A space is an extent of pages. Each page is either *free*, inside exactly one maximal hole, or *out*, inside
//! exactly one area that somebody took. The index knows the holes; it does not know where one area ends and the next
//! begins, only how many are out.
//!
//! ```text
//!   extent  |=============================================|
//!   pages   |..AAAA......BBBBCC....DDDDDDDDDD.............|      A B C D: 4 areas out (live = 4)
//!   holes   |h1|  | h2  |    | h3 |         |     h4      |      4 holes <= live + 1
//! ```
//!
//! Four fits: a hole is cut in one of four ways (strips: `#` hole, `=` what is taken).
//!
//! ```text
//!   Full       |=====|        the hole disappears                        records -1
//!   LeftEdge   |==###|        the hole starts later                               0
//!   RightEdge  |###==|        the hole ends earlier                               0
//!   NoEdge     |#==##|        the hole becomes two                               +1
//! ```
//!
//! # Why giving back cannot fail (SP3)
//! Giving back may create a hole, and a hole needs records. Let `L` be the areas out and `h` the holes. Taking an
//! area changes `L + h` by 0, 1 or 2; giving one back changes it by 0, -1 or -2 (no merge, one, both). So whatever is
//! given back from now on, in whatever order, `h` can reach at most `(L + h + 1) / 2`: each new hole costs an area, and
//! geometry demands `h <= L + 1`. That many holes are paid for, in records of the structure at its worst fill, before
//! anything is taken; a refusal is [`AllocError::NoMeta`] and changes nothing. See `slab` and each structure for
//! what a hole costs in records.
//!
//! # Invariants (of every implementation; each adds its own)
//! - **FT1 sorted** holes are in address order and disjoint.
//! - **FT2 maximal** no two holes touch.
//! - **FT4 inside** every hole lies in the extent and is not empty.
//! - **FT5 counted** free pages and the number of holes are what a walk finds.
//! - **FT6 paid** `holes <= live + 1`, and the records for `(live + holes + 1) / 2` holes are in hand.
//!
//! # Locking
//! None here: changes take `&mut self`.
//! # Source
//! Linux `mm/vmalloc.c` (6.12: free tree, `va_clip`, `merge_or_add_vmap_area`); differences: `docs/kernel-map.md`.

use crate::Congruent;
use va_base::{AllocError, Broken, FreeError, Pages, Request, Va, VaRange};

/// How an area lies in the hole that it is cut from.
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
    /// Returns how pages `[start, end)` lie in the hole `[hole_start, hole_end)`, which encloses them.
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

/// Memory that an index holds for its records, in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IndexMemory {
    /// In records that describe the holes of this moment, alignment rows aside.
    pub used_bytes: usize,
    /// In alignment rows of this moment; 0 for a structure or a time without.
    pub row_bytes: usize,
    /// In all slabs together, used, reserved for what may be given back (SP3), and spare.
    pub lent_bytes: usize,
}

/// An index of the holes of one space.
///
/// All answers are a function of the operations so far (SP5). On `Err` nothing has changed that any other call could tell
/// (SP4); slabs lent before a refusal stay as spare capacity. No locks are taken: changes need `&mut self`.
pub trait FreeIndex {
    /// The whole pages that the index manages.
    fn extent(&self) -> VaRange;

    /// Where a request without a window is met.
    fn default_window(&self) -> VaRange;

    /// Returns the lowest address at which `request` could be met now. O(log n); O(n) for an alignment above a page of
    /// which the structure keeps no summary (each structure says which those are).
    ///
    /// `Ok` does not promise that records for it are at hand; only [`alloc`](Self::alloc) finds that out.
    ///
    /// # Errors
    /// [`AllocError::NoSpace`].
    fn would_fit(&self, request: &Request) -> Result<Va, AllocError>;

    /// Takes the lowest range that meets `request` and returns its first address. O(log n), with the exceptions that the
    /// structure states.
    ///
    /// # Errors
    /// [`AllocError::NoSpace`] if nothing fits; [`AllocError::NoMeta`] if the platform has no memory for the area's records.
    /// The next call after there is memory succeeds. Without memory for what finds aligned ranges the search is long, O(n),
    /// and its answer the same.
    fn alloc(&mut self, request: &Request) -> Result<Va, AllocError>;

    /// Takes exactly `range`, which must be free, and tells how it lay in its hole. O(log n).
    ///
    /// # Errors
    /// [`AllocError::BadRange`], [`AllocError::Occupied`], [`AllocError::NoMeta`].
    fn take(&mut self, range: VaRange) -> Result<Fit, AllocError>;

    /// Gives `range` back: one area, as it was taken. Merges it with the holes that it touches. O(log n).
    ///
    /// Allocates nothing and cannot fail for want of anything (SP3). An area may come back in pieces only after
    /// [`reserve_pieces`](Self::reserve_pieces), and several areas at once only with
    /// [`release_pieces`](Self::release_pieces) after it.
    ///
    /// # Errors
    /// Only a caller's mistake: [`FreeError::BadRange`], [`FreeError::AlreadyFree`], [`FreeError::TooManyPieces`].
    fn give_back(&mut self, range: VaRange) -> Result<(), FreeError>;

    /// Counts `pieces` more areas as out, and pays for their return: an area is about to come back in
    /// `pieces + 1` parts. O(1), and what the platform takes to lend.
    ///
    /// # Errors
    /// [`AllocError::NoMeta`] if the platform refuses a slab.
    fn reserve_pieces(&mut self, pieces: u64) -> Result<(), AllocError>;

    /// Counts `pieces` areas less as out: `pieces + 1` neighbouring areas came back as one range. Returns how many
    /// were forgotten, which is less than `pieces` where the holes of this moment still need them. O(1).
    fn release_pieces(&mut self, pieces: u64) -> u64;

    /// Areas that are out, pieces reserved included, O(1).
    fn live(&self) -> u64;

    /// Free pages, O(1).
    fn free_pages(&self) -> Pages;

    /// Number of holes, O(1).
    fn hole_count(&self) -> u64;

    /// Pages of the largest hole, O(1); zero if nothing is free.
    fn largest_hole(&self) -> Pages;

    /// Returns the lowest hole that ends above `at`. O(log n).
    fn hole_after(&self, at: Va) -> Option<VaRange>;

    /// Returns the highest hole that starts at or below `at`. O(log n).
    fn hole_below(&self, at: Va) -> Option<VaRange>;

    /// Returns the highest hole of at least `size` that starts at or below `at`. O(log n) where the structure knows the longest
    /// hole of a part of it; here one step a hole.
    fn fit_below(&self, at: Va, size: Pages) -> Option<VaRange> {
        let mut hole = self.hole_below(at)?;
        loop {
            let (start, end) = hole.whole_pages();
            if end - start >= size.get() {
                return Some(hole);
            }
            hole = self.hole_below(Va::from_page(start.checked_sub(1)?))?;
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

    /// Returns the highest base at which every range of `areas` is free, without taking anything. Cost: (holes above the
    /// answer that could hold an area + 1) x areas lookups.
    ///
    /// # Errors
    /// [`AllocError::NoSpace`].
    fn find_congruent(&self, areas: &Congruent<'_>) -> Result<Va, AllocError> {
        crate::congruent::find_base(self, areas)
    }

    /// Takes several ranges at fixed distances from one base, the highest base possible (`pcpu_get_vm_areas`).
    ///
    /// All or nothing. Cost: as [`find_congruent`](Self::find_congruent).
    ///
    /// # Errors
    /// [`AllocError::NoSpace`], [`AllocError::NoMeta`].
    fn alloc_congruent(&mut self, areas: &Congruent<'_>) -> Result<Va, AllocError> {
        crate::congruent::take_all(self, areas)
    }

    /// Bytes of memory that the index holds, O(1).
    fn memory(&self) -> IndexMemory;

    /// Checks every invariant with full walks, O(n). `Err` names the first rule broken and where.
    ///
    /// # Errors
    /// [`Broken`].
    fn validate(&self) -> Result<(), Broken>;

    /// Stops: an invariant does not hold. An index on a platform hands this to [`Platform::bug`](va_base::Platform::bug).
    #[doc(hidden)]
    fn bug(&self, what: core::fmt::Arguments<'_>) -> ! {
        panic!("{what}");
    }
}
