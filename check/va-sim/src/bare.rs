//! A minimal machine: memory from the heap, and flushes that end at once.

use std::sync::atomic::{AtomicU64, Ordering};
use va_base::{Epoch, LockClass, Machine, Platform, Record, Table, VaRange};

/// A test's hooks in a [`Bare`] machine: calls that it observes, and requests for memory that it fails.
pub trait Watch: Send + Sync {
    /// Returns true if a slab of so many bytes, or a table, may be allocated.
    fn admits(&self, _bytes: usize) -> bool {
        true
    }

    /// A slab of so many bytes was freed.
    fn returned(&self, _bytes: usize) {}

    /// These ranges are flushed.
    fn flushed(&self, _ranges: &[VaRange]) {}

    /// A lock of this class is about to be taken.
    fn locking(&self, _class: LockClass) {}
}

impl Watch for () {}

/// Allocates from the heap if its watcher permits, and leaks it.
#[derive(Debug, Default)]
pub struct Bare<W = ()> {
    /// The watcher.
    pub watcher: W,
    possible: u32,
    online: u32,
    flushes: AtomicU64,
}

impl<W> Bare<W> {
    /// Creates a machine of `possible` CPUs, of which `online` are online.
    pub const fn new(possible: u32, online: u32, watcher: W) -> Self {
        Self { watcher, possible, online, flushes: AtomicU64::new(0) }
    }

    /// Returns the number of flushes.
    pub fn flushes(&self) -> u64 {
        self.flushes.load(Ordering::Relaxed)
    }
}

impl<W: Watch> Platform for Bare<W> {
    fn alloc_meta<T: Record>(&self, min: usize) -> Option<&'static mut [T]> {
        self.watcher.admits(min * size_of::<T>()).then(|| vec![T::EMPTY; min].leak())
    }

    fn free_meta<T: Record>(&self, slab: &'static mut [T]) {
        self.watcher.returned(size_of_val(slab));
    }
}

impl<W: Watch> Machine for Bare<W> {
    type Lock = parking_lot::RawMutex;
    type PurgeLock = parking_lot::RawMutex;
    type OwnerLock = Self::Lock;

    fn cpus_possible(&self) -> u32 {
        self.possible
    }

    fn cpus_online(&self) -> u32 {
        self.online
    }

    fn alloc_table<T: Table>(&self) -> Option<&'static T> {
        self.watcher.admits(size_of::<T>()).then(|| &*Box::leak(Box::new(T::empty())))
    }

    fn free_table<T: Table>(&self, _table: &'static T) {}

    fn flush(&self, ranges: &[VaRange]) -> Epoch {
        self.watcher.flushed(ranges);
        Epoch(self.flushes.fetch_add(1, Ordering::Relaxed))
    }

    fn completed(&self, _epoch: Epoch) -> bool {
        true
    }

    #[inline]
    fn locking(&self, class: LockClass) {
        self.watcher.locking(class);
    }
}
