//! The machine of this crate's own tests: it allocates all that is requested, and its flush ends at once. It records
//! pages that a test unmapped and that were not flushed since.

use std::boxed::Box;
use std::collections::BTreeSet;
use std::sync::PoisonError;
use va_base::sync::atomic::{AtomicU64, Ordering};
use va_base::{Drain, Epoch, Heap, Machine, Meta, Platform, Record, Table, Va, VaRange};

/// Allocates from the heap and frees nothing.
pub(crate) struct TestMachine {
    pub(crate) cpus: u32,
    pub(crate) flushes: AtomicU64,
    /// Flushes that have ended, where they end later.
    pub(crate) ended: AtomicU64,
    /// Flushes end when a thread calls [`end_flushes`](TestMachine::end_flushes), not before.
    pub(crate) late: bool,
    /// A worker drains; `drains` counts the calls.
    pub(crate) elsewhere: bool,
    pub(crate) drains: AtomicU64,
    /// Pages that a CPU may still translate. Not a lock of the model: no thread holds it during any other operation.
    pub(crate) stale: std::sync::Mutex<BTreeSet<u64>>,
}

// Calls from models of interleavings.
#[cfg(loom)]
impl TestMachine {
    /// Ends every flush that has begun; all that was unmapped before is flushed then.
    pub(crate) fn end_flushes(&self) {
        self.stale.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.ended.store(self.flushes.load(Ordering::Acquire), Ordering::Release);
    }

    /// Unmaps an area that is about to be freed.
    pub(crate) fn unmap(&self, range: VaRange) {
        let (first, end) = range.whole_pages();
        self.stale.lock().unwrap_or_else(PoisonError::into_inner).extend(first..end);
    }

    /// Returns true if any page of an area may still be translated (SP2 is broken if the area was just allocated).
    pub(crate) fn is_stale(&self, range: VaRange) -> bool {
        let (first, end) = range.whole_pages();
        self.stale.lock().unwrap_or_else(PoisonError::into_inner).range(first..end).next().is_some()
    }
}

impl Default for TestMachine {
    fn default() -> Self {
        Self {
            cpus: 2,
            flushes: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            late: false,
            elsewhere: false,
            drains: AtomicU64::new(0),
            stale: std::sync::Mutex::default(),
        }
    }
}

impl Platform for TestMachine {
    fn alloc_meta<T: Record>(&self, min: usize) -> Option<&'static mut [T]> {
        Heap.alloc_meta(min)
    }

    fn free_meta<T: Record>(&self, _slab: Meta<&'static mut [T]>) {}
}

impl Machine for TestMachine {
    type Lock = parking_lot::RawMutex;
    type PurgeLock = parking_lot::RawMutex;
    type OwnerLock = Self::Lock;

    fn cpus_possible(&self) -> u32 {
        self.cpus
    }

    fn cpus_online(&self) -> u32 {
        self.cpus
    }

    fn alloc_table<T: Table>(&self) -> Option<&'static T> {
        Some(Box::leak(Box::new(T::empty())))
    }

    fn free_table<T: Table>(&self, _table: Meta<&'static T>) {}

    const RETIRES: bool = true;

    fn retire_table<T: Table>(&self, table: Meta<&'static T>) {
        self.free_table(table);
    }

    fn flush(&self, ranges: &[VaRange]) -> Epoch {
        let covered = |page: &u64| ranges.iter().any(|range| range.contains(Va::from_page(*page)));
        if !self.late {
            self.stale.lock().unwrap_or_else(PoisonError::into_inner).retain(|page| !covered(page));
        }
        Epoch(self.flushes.fetch_add(1, Ordering::Release) + 1)
    }

    fn completed(&self, epoch: Epoch) -> bool {
        !self.late || self.ended.load(Ordering::Acquire) >= epoch.0
    }

    #[cfg(loom)]
    fn wait(&self, epoch: Epoch) {
        while !self.completed(epoch) {
            loom::thread::yield_now();
        }
    }

    fn drain(&self) -> Drain {
        self.drains.fetch_add(1, Ordering::Relaxed);
        if self.elsewhere { Drain::Elsewhere } else { Drain::Here }
    }
}

/// A look, by number, and what happens just before it.
#[cfg(not(loom))]
type Meanwhile = (u64, Box<dyn FnOnce()>);

#[cfg(not(loom))]
std::thread_local! {
    static LOOKS: core::cell::Cell<u64> = const { core::cell::Cell::new(0) };
    static MEANWHILE: core::cell::RefCell<Option<Meanwhile>> = const { core::cell::RefCell::new(None) };
}

/// Counts a read of a leaf of the page map, or of the path to one.
#[cfg(not(loom))]
pub(crate) fn look() {
    LOOKS.set(LOOKS.get() + 1);
    let due = MEANWHILE.with(|meanwhile| meanwhile.borrow_mut().take_if(|(at, _)| *at == LOOKS.get()));
    if let Some((_, meanwhile)) = due {
        meanwhile();
    }
}

/// Calls `meanwhile` just before the `nth` look from now on, as another CPU may act then.
#[cfg(not(loom))]
pub(crate) fn at_look(nth: u64, meanwhile: impl FnOnce() + 'static) {
    MEANWHILE.set(Some((LOOKS.get() + nth, Box::new(meanwhile))));
}

/// Returns how many leaves, and paths to leaves, `call` reads: its duration depends on the machine.
#[cfg(not(loom))]
pub(crate) fn looks_of<T>(call: impl FnOnce() -> T) -> (u64, T) {
    let before = LOOKS.get();
    let got = call();
    (LOOKS.get() - before, got)
}
