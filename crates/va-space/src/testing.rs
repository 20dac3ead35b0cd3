//! The machine of this crate's own tests: it lends what is asked, and its flush ends at once.

use std::boxed::Box;
use std::vec;
use va_base::sync::atomic::{AtomicU64, Ordering};
use va_base::{Epoch, Machine, Platform, Record, Table, VaRange};

/// Lends from the heap and never takes anything back.
pub(crate) struct TestMachine {
    pub(crate) cpus: u32,
    pub(crate) flushes: AtomicU64,
}

impl Default for TestMachine {
    fn default() -> Self {
        Self { cpus: 2, flushes: AtomicU64::new(0) }
    }
}

impl Platform for TestMachine {
    fn lend_slab<T: Record>(&self, min: usize) -> Option<&'static mut [T]> {
        Some(Box::leak(vec![T::EMPTY; min].into_boxed_slice()))
    }

    fn take_back_slab<T: Record>(&self, _slab: &'static mut [T]) {}
}

impl Machine for TestMachine {
    type Lock = parking_lot::RawMutex;
    type PurgeLock = parking_lot::RawMutex;

    fn cpus_possible(&self) -> u32 {
        self.cpus
    }

    fn cpus_online(&self) -> u32 {
        self.cpus
    }

    fn lend_table<T: Table>(&self) -> Option<&'static T> {
        Some(Box::leak(Box::new(T::empty())))
    }

    fn take_back_table<T: Table>(&self, _table: &'static T) {}

    fn flush(&self, _ranges: &[VaRange]) -> Epoch {
        Epoch(self.flushes.fetch_add(1, Ordering::Relaxed))
    }

    fn completed(&self, _epoch: Epoch) -> bool {
        true
    }
}
