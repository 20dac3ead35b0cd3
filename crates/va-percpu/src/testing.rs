//! For tests of this crate: memory for records that can be refused, and a backend that counts.

use crate::backend::{Backend, Refused};
use crate::geometry::Geometry;
use core::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::vec::Vec;
use va_base::{Epoch, Machine, Platform, Record, Table, Va, VaRange};

/// Memory from the heap; counts slabs that are out.
#[derive(Debug)]
pub(crate) struct Heap {
    left: AtomicU64,
    lent: AtomicU64,
}

impl Default for Heap {
    fn default() -> Self {
        Self { left: AtomicU64::new(u64::MAX), lent: AtomicU64::new(0) }
    }
}

impl Heap {
    pub(crate) fn refuse_after(&self, slabs: u64) {
        self.left.store(slabs, Ordering::Relaxed);
    }

    pub(crate) fn lent(&self) -> u64 {
        self.lent.load(Ordering::Relaxed)
    }
}

impl Platform for Heap {
    fn lend_slab<T: Record>(&self, min: usize) -> Option<&'static mut [T]> {
        let left = self.left.load(Ordering::Relaxed).checked_sub(1)?;
        self.left.store(left, Ordering::Relaxed);
        self.lent.fetch_add(1, Ordering::Relaxed);
        let mut records = Vec::new();
        records.resize(min, T::EMPTY);
        Some(Vec::leak(records))
    }

    fn take_back_slab<T: Record>(&self, _slab: &'static mut [T]) {
        self.lent.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Machine for Heap {
    type Lock = parking_lot::RawMutex;
    type PurgeLock = parking_lot::RawMutex;
    fn cpus_possible(&self) -> u32 {
        1
    }
    fn cpus_online(&self) -> u32 {
        1
    }
    fn lend_table<T: Table>(&self) -> Option<&'static T> {
        None
    }
    fn take_back_table<T: Table>(&self, _table: &'static T) {}
    fn flush(&self, _ranges: &[VaRange]) -> Epoch {
        Epoch(0)
    }
    fn completed(&self, _epoch: Epoch) -> bool {
        true
    }
}

/// What a [`Numbers`] was asked for, one line each.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Asked {
    Create(Va),
    Destroy(Va),
    Populate(Va, Range<u32>),
    Depopulate(Va, Range<u32>),
    Flush(Va, Range<u32>),
}

/// Chunks that are numbers, each a unit below the one before.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    pub(crate) asked: Mutex<Vec<Asked>>,
    bases: Mutex<Vec<bool>>,
    /// How many more are granted; creations and populations count alike.
    pub(crate) left: Mutex<Option<u64>>,
}

impl Numbers {
    pub(crate) const TOP: u64 = 0x7000_0000_0000;

    fn granted(&self) -> Option<()> {
        if let Some(left) = self.left.lock().unwrap().as_mut() {
            *left = left.checked_sub(1)?;
        }
        Some(())
    }

    fn note(&self, what: Asked) {
        self.asked.lock().unwrap().push(what);
    }
}

impl Backend for Numbers {
    const BY_PAGE: bool = true;

    fn create(&self, geometry: &Geometry) -> Result<Va, Refused> {
        self.granted().ok_or(Refused)?;
        let mut bases = self.bases.lock().unwrap();
        let at = bases.iter().position(|used| !used).unwrap_or(bases.len());
        if at == bases.len() {
            bases.push(true);
        }
        bases[at] = true;
        let base = Va::new(Self::TOP - (at as u64 + 1) * u64::from(geometry.unit_bytes()));
        self.note(Asked::Create(base));
        Ok(base)
    }

    fn destroy(&self, geometry: &Geometry, base: Va) {
        let at = (Self::TOP - base.get()) / u64::from(geometry.unit_bytes()) - 1;
        assert!(core::mem::take(&mut self.bases.lock().unwrap()[at as usize]));
        self.note(Asked::Destroy(base));
    }

    fn populate(&self, _geometry: &Geometry, base: Va, pages: Range<u32>) -> Result<(), Refused> {
        self.granted().ok_or(Refused)?;
        self.note(Asked::Populate(base, pages));
        Ok(())
    }

    fn depopulate(&self, _geometry: &Geometry, base: Va, pages: Range<u32>) {
        self.note(Asked::Depopulate(base, pages));
    }

    fn flush(&self, _geometry: &Geometry, base: Va, pages: Range<u32>) {
        self.note(Asked::Flush(base, pages));
    }
}
