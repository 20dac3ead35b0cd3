//! The memory of an index, apart from its operations: allocated with no lock held, and freed if there is too much.
//!
//! # Theory
//! An index requests memory from its platform in the middle of an operation. A caller that holds a spin lock may have
//! to avoid that. It can query the missing memory ([`Supplied::wanted`]), release the lock, and allocate
//! ([`Supplied::alloc_supply`]). Then it donates the memory under the lock ([`Supplied::donate`]): one piece at a time,
//! until nothing is missing. Another thread may have used up the memory in between; then more is wanted. Linux does the
//! same for its one record (`ne_fit_preload_node`).
//!
//! The other direction is [`Supplied::shrink`]: records move out of the topmost pieces, and the pieces are freed, as
//! far as the live areas leave memory to spare (SP3).
//!
//! # Source
//! Linux `mm/vmalloc.c` (6.12: `preload_this_cpu_lock`).

use crate::FreeIndex;
use va_base::{AllocError, Next, Platform, VaRange};

/// One piece of memory that an index needs. Plain data, stale once the index has grown otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PieceWanted {
    pub(crate) table: Table,
    pub(crate) next: Next,
    pub(crate) bytes: usize,
}

impl PieceWanted {
    /// Returns the bytes of the smallest memory that is enough; an index may request a larger piece first.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// The table of records that needs memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Table {
    Leaves,
    Inners,
    Rows,
    Holes,
    Sizes,
}

/// An index whose memory can be donated and freed apart from its operations.
///
/// ```
/// use va_base::{LimitedHeap, Meta, Platform, Record, Request, VaRange};
/// use va_tree::{BTreeIndex, FreeIndex, Supplied};
///
/// /// Memory of a heap that cannot be called under the lock of the index, but can free there.
/// struct Donated<'a>(&'a LimitedHeap);
/// impl Platform for Donated<'_> {
///     fn alloc_meta<T: Record>(&self, _min: usize) -> Option<&'static mut [T]> {
///         None
///     }
///     fn free_meta<T: Record>(&self, slab: Meta<&'static mut [T]>) {
///         self.0.free_meta(slab);
///     }
/// }
///
/// let (heap, space) = (LimitedHeap::new(), VaRange::from_pages(1, 1 << 30).unwrap());
/// let mut index = BTreeIndex::new(space, space, Donated(&heap))?;
/// for _ in 0..10_000 {
///     while let Some(wanted) = index.wanted(1) {
///         let supply = BTreeIndex::<Donated>::alloc_supply(wanted, &heap).unwrap();
///         assert!(index.donate(supply).is_ok());
///     }
///     index.alloc(&Request::pages(1).unwrap())?;
/// }
/// drop(index);
/// assert_eq!(heap.bytes(), 0);
/// # Ok::<(), va_base::AllocError>(())
/// ```
pub trait Supplied: FreeIndex {
    /// Memory for one step of growth.
    type Supply: Send;

    /// Returns the first piece that is missing for `areas` more areas, or for alignment rows that could not be built.
    /// `None` means that none is missing, or that no memory could help. O(log n).
    ///
    /// Then calls for so many areas do not call the platform, except the first request of an alignment that builds a
    /// row. If the platform has no memory for the row, that request takes O(n), with the same result, and the row is
    /// wanted from then on. [`BTree::add_all_rows`](crate::btree::BTree::add_all_rows) builds them all in advance.
    fn wanted(&self, areas: u64) -> Option<PieceWanted>;

    /// Allocates the wanted piece. Call it with no lock held. `None` if the platform has no memory.
    fn alloc_supply(wanted: PieceWanted, platform: &impl Platform) -> Option<Self::Supply>;

    /// Adds the memory to the index. O(1), except for the first piece, into which the records inside the index move.
    ///
    /// The index frees it by its own platform, when it shrinks or is dropped. So `free_meta` must take this memory, even
    /// if `alloc_meta` has none.
    ///
    /// # Errors
    /// The memory itself, if the index has grown otherwise since: [`free_supply`](Self::free_supply) frees it.
    fn donate(&mut self, supply: Self::Supply) -> Result<(), Self::Supply>;

    /// Frees memory that was not used.
    fn free_supply(supply: Self::Supply, platform: &impl Platform);

    /// Frees memory that the index does not need, in at most `steps` steps: a step moves one record, O(log n), or frees
    /// one piece. Returns the freed bytes. Repeat until
    /// [`IndexMemory::allocated_bytes`](crate::IndexMemory::allocated_bytes) stops falling: one call may move records
    /// and free nothing yet. Rows of every class (`add_all_rows`) do not move.
    ///
    /// One step of a red-black tree is longer: when half of its slab is unused, it copies the other half. The platform
    /// allocates the new slab in that step, 3 MiB at most. If it has none, nothing is copied. [`RbIndex`](crate::RbIndex)
    /// and [`BestFitIndex`](crate::BestFitIndex) have such trees, and
    /// [`TrackedIndex::shrink`](crate::TrackedIndex::shrink) has one.
    fn shrink(&mut self, mut steps: usize) -> usize {
        self.shrink_counted(&mut steps)
    }

    /// Frees memory as [`shrink`](Self::shrink) does, and leaves in `steps` those that it did not do: any that are left
    /// tell that no more can be freed now.
    fn shrink_counted(&mut self, steps: &mut usize) -> usize;

    /// Allocates and donates all memory that is missing for `areas` more areas, from `platform`.
    ///
    /// # Errors
    /// [`AllocError::NoMeta`] with the records of the table that could not grow.
    fn supply(&mut self, areas: u64, platform: &impl Platform) -> Result<(), AllocError> {
        while let Some(wanted) = self.wanted(areas) {
            let supply = Self::alloc_supply(wanted, platform).ok_or(AllocError::NoMeta { records: 1 })?;
            if let Err(unused) = self.donate(supply) {
                Self::free_supply(unused, platform);
            }
        }
        Ok(())
    }
}

/// An index that begins as a constant, without an extent or a platform, and gets both in place. So its caller needs no
/// stack for it.
pub trait InPlace<P>: Sized {
    /// An index without pages and without a platform: every request fails.
    const EMPTY: Self;

    /// Initializes an empty index in place, with the whole pages of `extent` and a platform.
    ///
    /// # Errors
    /// [`AllocError::BadRange`] if there are none, or more than the index can hold; [`AllocError::Occupied`] if it has
    /// an extent.
    fn init(&mut self, extent: VaRange, default_window: VaRange, platform: P) -> Result<(), AllocError>;

    /// Copies the index; `platform` allocates the records of the copy. It has the same state and gives the same
    /// answers, without alignment rows that were built on demand. O(n log n).
    ///
    /// `Clone` cannot fail, and memory for records can be missing. So an index that owns records does not implement it.
    ///
    /// ```
    /// use va_base::{Heap, Request, VaRange};
    /// use va_tree::{BTreeIndex, FreeIndex, InPlace};
    /// let space = VaRange::from_pages(16, 1 << 20).unwrap();
    /// let mut index = BTreeIndex::new(space, space, Heap)?;
    /// let area = index.alloc(&Request::pages(3)?)?;
    /// let copy = index.try_clone(Heap)?;
    /// assert_eq!(copy, index);
    /// index.free(VaRange::from_size(area, 3 * 4096).unwrap())?;
    /// assert_ne!(copy, index);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`AllocError::NoMeta`] if the platform has no memory: nothing is copied.
    fn try_clone(&self, platform: P) -> Result<Self, AllocError>;
}
