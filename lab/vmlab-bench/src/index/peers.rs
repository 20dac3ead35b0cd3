//! Range allocators from other crates, behind the minimal interface of holes.
//!
//! - range-alloc: best fit, no alignment, no window.
//! - vm-allocator: first fit with alignment, no window; addresses are bytes and ranges inclusive.
//! - offset-allocator: two-level segregated fit in constant time, no alignment, no window; not the lowest fit.

use crate::indexes::Holes;
use offset_allocator::{Allocation, Allocator};
use range_alloc::RangeAllocator;
use std::collections::HashMap;
use vm_allocator::{AddressAllocator, AllocPolicy, RangeInclusive};

pub(super) struct RangePeer(RangeAllocator<u64>);

impl RangePeer {
    pub(super) fn new(pages: u64) -> Self {
        Self(RangeAllocator::new(0..pages))
    }
}

impl Holes for RangePeer {
    fn alloc(&mut self, size: u64, _: u32, _: (u64, u64)) -> Option<u64> {
        self.0.allocate_range(size).ok().map(|range| range.start)
    }

    fn free(&mut self, start: u64, size: u64) {
        self.0.free_range(start..start + size);
    }
}

/// Start of its space, in pages, which serve as its unit: its `free` underflows if a merged range begins at 0.
const VM_BASE: u64 = 1 << 40;

pub(super) struct VmPeer(AddressAllocator);

impl VmPeer {
    pub(super) fn new(pages: u64) -> Option<Self> {
        AddressAllocator::new(VM_BASE, pages).ok().map(Self)
    }
}

impl Holes for VmPeer {
    fn alloc(&mut self, size: u64, align_log2: u32, _: (u64, u64)) -> Option<u64> {
        let range = self.0.allocate(size, 1 << align_log2, AllocPolicy::FirstMatch).ok()?;
        Some(range.start() - VM_BASE)
    }

    fn free(&mut self, start: u64, size: u64) {
        let start = start + VM_BASE;
        let freed = RangeInclusive::new(start, start + size - 1).and_then(|range| self.0.free(&range));
        debug_assert!(freed.is_ok(), "{start}+{size}: {freed:?}");
    }
}

pub(super) struct OffsetPeer {
    allocator: Allocator,
    /// Its `free` needs its own handle, which is not the address.
    out: HashMap<u64, Allocation>,
}

impl OffsetPeer {
    pub(super) fn new(pages: u64) -> Option<Self> {
        let allocator = Allocator::with_max_allocs(u32::try_from(pages).ok()?, 4 << 20);
        Some(Self { allocator, out: HashMap::new() })
    }
}

impl Holes for OffsetPeer {
    fn alloc(&mut self, size: u64, _: u32, _: (u64, u64)) -> Option<u64> {
        let allocation = self.allocator.allocate(u32::try_from(size).ok()?)?;
        let at = u64::from(allocation.offset);
        self.out.insert(at, allocation);
        Some(at)
    }

    fn free(&mut self, start: u64, _: u64) {
        if let Some(allocation) = self.out.remove(&start) {
            self.allocator.free(allocation);
        }
    }
}
