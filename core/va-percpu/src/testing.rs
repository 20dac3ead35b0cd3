//! For tests of this crate: memory for records that can fail.

use std::vec::Vec;
use va_base::sync::atomic::{AtomicU64, Ordering};
use va_base::{Platform, Record};

/// Memory from the heap; counts allocated slabs.
#[derive(Debug)]
pub(crate) struct Heap {
    left: AtomicU64,
    /// Bytes of the longest allocation.
    limit: AtomicU64,
    allocated: AtomicU64,
}

impl Default for Heap {
    fn default() -> Self {
        Self { left: AtomicU64::new(u64::MAX), limit: AtomicU64::new(u64::MAX), allocated: AtomicU64::new(0) }
    }
}

impl Heap {
    pub(crate) fn fail_after(&self, slabs: u64) {
        self.left.store(slabs, Ordering::Relaxed);
    }

    pub(crate) fn limit(&self, bytes: u64) {
        self.limit.store(bytes, Ordering::Relaxed);
    }

    pub(crate) fn allocated(&self) -> u64 {
        self.allocated.load(Ordering::Relaxed)
    }
}

impl Platform for Heap {
    fn alloc_meta<T: Record>(&self, min: usize) -> Option<&'static mut [T]> {
        if (min * size_of::<T>()) as u64 > self.limit.load(Ordering::Relaxed) {
            return None;
        }
        let left = self.left.load(Ordering::Relaxed).checked_sub(1)?;
        self.left.store(left, Ordering::Relaxed);
        self.allocated.fetch_add(1, Ordering::Relaxed);
        let mut records = Vec::new();
        records.resize(min, T::EMPTY);
        Some(Vec::leak(records))
    }

    fn free_meta<T: Record>(&self, _slab: &'static mut [T]) {
        self.allocated.fetch_sub(1, Ordering::Relaxed);
    }
}
