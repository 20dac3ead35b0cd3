//! The machine of mappings: records come from a `Host` of their own, and the table flushes.

use super::os::MapOs;
use super::table::Table;
use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};
use va_base::{Epoch, InvariantViolation, Machine, Meta, Platform, Record, Table as Allocated, VaRange};
use vmalloc_os::lock::Futex;
use vmalloc_os::os::{Linux, Os};
use vmalloc_os::records::Host;

/// The number of the next flush, which has ended at once. Protocol PR-NUMBER.
static EPOCH: AtomicU64 = AtomicU64::new(0);

/// The machine of mappings, by reference: copies refer to the same one.
pub(super) struct MapMachine<V: MapOs> {
    pub(super) host: Host<Linux>,
    /// In records that a drop of the mappings frees.
    pub(super) table: Meta<&'static Table<V>>,
}

impl<V: MapOs> Clone for MapMachine<V> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<V: MapOs> Copy for MapMachine<V> {}

impl<V: MapOs> Platform for MapMachine<V> {
    fn alloc_meta<T: Record>(&self, min: usize) -> Option<&'static mut [T]> {
        self.host.alloc_meta(min)
    }

    fn free_meta<T: Record>(&self, slab: Meta<&'static mut [T]>) {
        self.host.free_meta(slab);
    }

    fn bug(&self, what: fmt::Arguments<'_>, broken: Option<InvariantViolation>) -> ! {
        self.host.bug(what, broken)
    }
}

impl<V: MapOs> Machine for MapMachine<V> {
    type Lock = Futex;
    type PurgeLock = Futex;
    type OwnerLock = Self::Lock;

    fn cpus_possible(&self) -> u32 {
        u32::try_from(self.host.os().cpus()).unwrap_or(u32::MAX)
    }

    fn cpus_online(&self) -> u32 {
        self.cpus_possible()
    }

    fn alloc_table<T: Allocated>(&self) -> Option<&'static T> {
        self.host.alloc_table()
    }

    fn free_table<T: Allocated>(&self, table: Meta<&'static T>) {
        self.host.free_table(table);
    }

    fn flush(&self, ranges: &[VaRange]) -> Epoch {
        ranges.iter().for_each(|&range| self.table.flush(range));
        Epoch(EPOCH.fetch_add(1, Ordering::Relaxed))
    }

    fn completed(&self, _epoch: Epoch) -> bool {
        self.table.flushed()
    }
}
