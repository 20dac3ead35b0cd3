//! The allocator.

use crate::slots::Slots;
use crate::{NodeIndex, NodeIndexNonMax, StorageReport, StorageReportFull};
use std::fmt;
use va_compat::BestFitUnits;

/// The allocations that [`Allocator::new`] permits, if their numbers do.
const MAX_ALLOCS: u32 = 128 * 1024;

/// An allocator of the units `[0, size)`.
///
/// A call takes one step for each of up to 1,024 free regions, or O(log n) for n of more.
pub struct Allocator<NI = u32>
where
    NI: NodeIndex,
{
    size: u32,
    max_allocs: u32,
    free: BestFitUnits,
    slots: Slots,
    number: std::marker::PhantomData<NI>,
}

/// One allocation.
#[derive(Clone, Copy)]
pub struct Allocation<NI = u32>
where
    NI: NodeIndex,
{
    /// The first unit. Higher bits are dropped if the type is too small for it, as in the original.
    pub offset: NI,
    metadata: NI::NonMax,
}

impl<NI: NodeIndex> Allocator<NI> {
    /// Creates an allocator of `size` units, for up to 131,072 allocations and free regions, or 65,533 with `u16`.
    pub fn new(size: u32) -> Self {
        Self::with_max_allocs(size, MAX_ALLOCS.min(NI::MAX - 2))
    }

    /// Creates an allocator of `size` units, for up to `max_allocs` allocations and free regions.
    ///
    /// # Panics
    /// If `max_allocs` is not less than [`NodeIndex::MAX`] - 1.
    pub fn with_max_allocs(size: u32, max_allocs: u32) -> Self {
        assert!(max_allocs < NI::MAX - 1, "{max_allocs} allocations have no numbers");
        let mut allocator = Self {
            size,
            max_allocs,
            free: BestFitUnits::new(),
            slots: Slots::default(),
            number: std::marker::PhantomData,
        };
        allocator.reset();
        allocator
    }

    /// Frees all allocations.
    pub fn reset(&mut self) {
        self.free = BestFitUnits::new();
        if self.size > 0 && self.free.add(0, u64::from(self.size)).is_err() {
            out_of_memory();
        }
        self.slots = Slots::default();
    }

    /// Allocates `size` units of the smallest free region that has as many. An allocation of size 0 takes no unit.
    ///
    /// `None` if no free region is long enough, if no number of an allocation is left, or if the global allocator fails.
    pub fn allocate(&mut self, size: u32) -> Option<Allocation<NI>> {
        if self.is_out_of_numbers() {
            return None;
        }
        let offset = match size {
            // In the original it is a free region of this size.
            0 if self.size == 0 => 0,
            0 => self.free.iter().next()?.0,
            _ => self.free.take_best(u64::from(size))?,
        } as u32;
        let id = NI::from_u32(self.slots.add(offset, size));
        Some(Allocation { offset: NI::from_u32(offset), metadata: id.try_into().unwrap_or_default() })
    }

    /// Frees an allocation. Nothing happens if it is free, or another allocation has its number at another offset.
    ///
    /// # Panics
    /// If the global allocator fails, as the collections of the standard library do.
    pub fn free(&mut self, allocation: Allocation<NI>) {
        let id = allocation.metadata.to_usize();
        let Some((offset, size)) = self.slots.get(id) else { return };
        if NI::from_u32(offset).to_usize() != allocation.offset.to_usize() {
            return;
        }
        let (start, end) = (u64::from(offset), u64::from(offset) + u64::from(size));
        if size > 0 && self.free.add(start, end).is_err() {
            out_of_memory();
        }
        self.slots.remove(id);
    }

    /// Returns the units of an allocation; 0 if it is free.
    pub fn allocation_size(&self, allocation: Allocation<NI>) -> u32 {
        self.slots.get(allocation.metadata.to_usize()).map_or(0, |(_, size)| size)
    }

    /// Returns the free space, and the largest size that can be allocated.
    pub fn storage_report(&self) -> StorageReport {
        if self.is_out_of_numbers() {
            return StorageReport { total_free_space: 0, largest_free_region: 0 };
        }
        StorageReport {
            total_free_space: self.free.total() as u32,
            largest_free_region: self.free.largest() as u32,
        }
    }

    /// Returns the number of free regions of each size. O(n log n) for n free regions.
    pub fn storage_report_full(&self) -> StorageReportFull {
        StorageReportFull::new(&self.free)
    }

    /// Returns true if no allocation is permitted: allocations and free regions have numbers, as in the original, which
    /// needs two spare ones.
    fn is_out_of_numbers(&self) -> bool {
        u64::from(self.slots.used()) + self.free.holes() + 2 > u64::from(self.max_allocs)
    }
}

/// Ends the program as the standard library does if a vector cannot grow.
fn out_of_memory() -> ! {
    std::alloc::handle_alloc_error(std::alloc::Layout::new::<BestFitUnits>())
}

impl<NI: NodeIndex> fmt::Debug for Allocator<NI> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.storage_report().fmt(f)
    }
}
