//! Ranges of addresses of Asterinas: `ostd/src/util/range_alloc.rs`, over the index of holes.
//!
//! Ranges are in bytes, as those of I/O memory are, so a page of the index is one byte here. Memory for records is
//! allocated with no lock held. A free allocates none, so it may run in an interrupt handler.

use core::ops::Range;

use va_base::{FreeError, Meta, Platform, Record, Request, Va, VaRange};
use va_tree::{BTreeIndex, FreeIndex, Supplied};

use crate::heap::KernelHeap;
// In the kernel: `crate::sync`.
use crate::stand_in::asterinas::{PreemptDisabled, SpinLock, SpinLockGuard};

type Index = BTreeIndex<Donated>;

/// The platform of an index under the lock, where it cannot call the heap: it has no memory, and frees what was donated.
#[derive(Clone, Copy, Debug)]
struct Donated;

impl Platform for Donated {
    fn alloc_meta<T: Record>(&self, _min: usize) -> Option<&'static mut [T]> {
        None
    }

    /// Called when the allocator is dropped, with no lock held: it never shrinks its index.
    fn free_meta<T: Record>(&self, slab: Meta<&'static mut [T]>) {
        KernelHeap.free_meta(slab);
    }
}

/// An allocator of ranges inside one range of addresses.
#[derive(Debug)]
pub struct RangeAllocator {
    fullrange: Range<usize>,
    index: SpinLock<Index>,
}

/// An error that is returned when allocating from a [`RangeAllocator`]. Nothing has changed.
#[derive(Debug)]
pub struct RangeAllocError;

impl RangeAllocator {
    /// Creates an allocator of the addresses of `fullrange`, all free: a constant for a `static`.
    ///
    /// # Panics
    /// If the range has 2^52 bytes or more. For a `static` the compiler reports it.
    pub const fn new(fullrange: Range<usize>) -> Self {
        assert!((fullrange.end.saturating_sub(fullrange.start) as u64) < 1 << 52);
        Self { fullrange, index: SpinLock::new(Index::empty(Donated)) }
    }

    /// Returns the range from which it allocates.
    pub const fn fullrange(&self) -> &Range<usize> {
        &self.fullrange
    }

    /// Allocates exactly `allocate_range`. O(log n).
    ///
    /// # Errors
    /// [`RangeAllocError`] if the range is empty, if a byte of it is not free, or if there is no memory for a record.
    pub fn alloc_specific(&self, allocate_range: &Range<usize>) -> Result<(), RangeAllocError> {
        let range = self.pages(allocate_range).ok_or(RangeAllocError)?;
        self.index_with_room().take(range).map(|_| ()).map_err(|_| RangeAllocError)
    }

    /// Allocates `size` bytes: the end of the first free range that is long enough. O(log n).
    ///
    /// # Errors
    /// [`RangeAllocError`] if the size is 0, if nothing fits, or if there is no memory for a record.
    pub fn alloc(&self, size: usize) -> Result<Range<usize>, RangeAllocError> {
        let request = Request::pages(size as u64).map_err(|_| RangeAllocError)?;
        let mut index = self.index_with_room();
        // `alloc` alone would return the beginning of the same range.
        let first = index.would_fit(&request).map_err(|_| RangeAllocError)?;
        let hole = index.hole_after(first).ok_or(RangeAllocError)?;
        let end = hole.end().page_floor();
        let range = VaRange::from_pages(end - size as u64, end).ok_or(RangeAllocError)?;
        index.take(range).map_err(|_| RangeAllocError)?;
        Ok(self.addresses(range))
    }

    /// Frees `range`, which was allocated, or a part of it. Needs no memory, unless it is such a part and
    /// [`reserve_split`](Self::reserve_split) was not called for it. O(log n).
    ///
    /// # Panics
    /// If the range is not allocated, with the numbers of [`RangeFreeError`], as that is a bug of the kernel.
    pub fn free(&self, range: Range<usize>) {
        if let Err(error) = self.try_free(&range) {
            panic!("{range:#x?} is not freed: {error:#x?}");
        }
    }

    /// Does the same as [`free`](Self::free), and returns an error instead of a panic.
    ///
    /// # Errors
    /// [`RangeFreeError`]. Nothing has changed.
    pub fn try_free(&self, range: &Range<usize>) -> Result<(), RangeFreeError> {
        let outside = || RangeFreeError::Outside { fullrange: self.fullrange.clone() };
        let pages = self.pages(range).ok_or_else(outside)?;
        let mut freed = self.lock().free(pages);
        // A part of an allocation. The other parts are counted now, twice at most, if there is memory for their records.
        while matches!(freed, Err(FreeError::TooManySplits { .. })) && self.reserve_split().is_ok() {
            freed = self.lock().free(pages);
        }
        freed.map_err(|error| match error {
            FreeError::AlreadyFree { hole, .. } => RangeFreeError::AlreadyFree { free: self.addresses(hole) },
            FreeError::TooManySplits { live, .. } => RangeFreeError::NoMemory { live },
            _ => outside(),
        })
    }

    /// Counts an allocation that is freed in two parts, and reserves the memory for the second. `KVirtArea::split`
    /// calls it, so that no free needs memory.
    ///
    /// # Errors
    /// [`RangeAllocError`] if there is no memory.
    pub fn reserve_split(&self) -> Result<(), RangeAllocError> {
        self.index_with_room().reserve_splits(1).map_err(|_| RangeAllocError)
    }

    /// Returns the index, with the records that one more allocation or split needs, if the heap has them.
    fn index_with_room(&self) -> SpinLockGuard<'_, Index, PreemptDisabled> {
        loop {
            let index = self.lock();
            let Some(wanted) = index.wanted(1) else { return index };
            drop(index);
            // No lock is held here, so the heap may take any.
            let Some(supply) = Index::alloc_supply(wanted, &KernelHeap) else { return self.lock() };
            let donated = self.lock().donate(supply);
            if let Err(unused) = donated {
                Index::free_supply(unused, &KernelHeap);
            }
        }
    }

    /// Returns the index. The first call sets its extent.
    fn lock(&self) -> SpinLockGuard<'_, Index, PreemptDisabled> {
        let mut index = self.index.lock();
        if index.extent().is_empty()
            && let Some(all) = self.pages(&self.fullrange)
        {
            // It fails only if it has an extent.
            let _first = index.init(all, all);
        }
        index
    }

    /// Returns the pages of the index for a range of addresses, or `None` if it is empty or not inside.
    fn pages(&self, range: &Range<usize>) -> Option<VaRange> {
        let all = &self.fullrange;
        if range.is_empty() || range.start < all.start || range.end > all.end {
            return None;
        }
        VaRange::from_pages((range.start - all.start) as u64, (range.end - all.start) as u64)
    }

    /// Returns the addresses of pages of the index.
    fn addresses(&self, pages: VaRange) -> Range<usize> {
        let address = |at: Va| self.fullrange.start + at.page_floor() as usize;
        address(pages.start())..address(pages.end())
    }
}

/// The reason why a range was not freed. Nothing has changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum RangeFreeError {
    /// The range is empty, or not inside the allocator's.
    Outside {
        /// The allocator's range.
        fullrange: Range<usize>,
    },
    /// A part of the range is free.
    AlreadyFree {
        /// The lowest free range in it.
        free: Range<usize>,
    },
    /// The range is a part of an allocation, and there is no memory for the record of another part.
    NoMemory {
        /// The number of allocations.
        live: u64,
    },
}
