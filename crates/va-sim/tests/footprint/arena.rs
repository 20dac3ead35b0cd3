//! The machine: it supplies memory from one piece, and flushes when it is told to.

use std::alloc::{Layout, alloc_zeroed};
use std::any::type_name;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use va_base::{Drain, Epoch, Machine, Platform, Record, Request, Table, VaRange};

/// Memory of the machine.
const ARENA_BYTES: usize = 256 << 20;

/// Supplies memory from one piece and takes none back; knows which tables are not zeros.
pub(crate) struct Arena {
    base: usize,
    used: AtomicUsize,
    flushes: AtomicU64,
    not_zero: Mutex<Vec<&'static str>>,
    /// Too many lazy pages are somebody else's work.
    drains_elsewhere: AtomicBool,
    /// A flush ends when it is waited for.
    flushes_late: AtomicBool,
    waits: AtomicU64,
}

impl Arena {
    pub(crate) fn leaked() -> &'static Self {
        let Ok(layout) = Layout::from_size_align(ARENA_BYTES, 4096) else { panic!("layout") };
        // SAFETY: the size is not 0.
        let base = unsafe { alloc_zeroed(layout) };
        assert!(!base.is_null());
        Box::leak(Box::new(Self {
            base: base.expose_provenance(),
            used: AtomicUsize::new(0),
            flushes: AtomicU64::new(0),
            not_zero: Mutex::new(Vec::new()),
            drains_elsewhere: AtomicBool::new(false),
            flushes_late: AtomicBool::new(false),
            waits: AtomicU64::new(0),
        }))
    }

    /// Sets whether too many lazy pages are somebody else's work.
    pub(crate) fn drain_elsewhere(&self, elsewhere: bool) {
        self.drains_elsewhere.store(elsewhere, Ordering::Relaxed);
    }

    /// Has the flushes from now on end when they are waited for; then they end at once again.
    pub(crate) fn flush_late(&self) {
        self.flushes_late.store(true, Ordering::Relaxed);
    }

    /// Returns how often a flush was waited for.
    pub(crate) fn waits(&self) -> u64 {
        self.waits.load(Ordering::Relaxed)
    }

    /// Returns the tables that are not zeros.
    pub(crate) fn not_zero(&self) -> Vec<&'static str> {
        self.not_zero.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Memory for `layout` that is nobody's, all zeros.
    fn piece(&self, layout: Layout) -> Option<*mut u8> {
        let size = layout.size().next_multiple_of(4096);
        let at = self.used.fetch_add(size, Ordering::Relaxed);
        assert!(layout.align() <= 4096);
        (at + size <= ARENA_BYTES).then(|| std::ptr::with_exposed_provenance_mut(self.base + at))
    }
}

impl Platform for Arena {
    fn alloc_meta<T: Record>(&self, min: usize) -> Option<&'static mut [T]> {
        let at = self.piece(Layout::array::<T>(min).ok()?)?.cast::<T>();
        for n in 0..min {
            // SAFETY: inside the piece, which has room for `min` records.
            let place = unsafe { at.add(n) };
            // SAFETY: as above; aligned, since a piece begins at a page.
            unsafe { place.write(T::EMPTY) };
        }
        // SAFETY: written a moment ago, never freed, and nobody else has the piece.
        Some(unsafe { std::slice::from_raw_parts_mut(at, min) })
    }

    fn free_meta<T: Record>(&self, _slab: &'static mut [T]) {}
}

impl Machine for Arena {
    type Lock = parking_lot::RawMutex;
    type PurgeLock = parking_lot::RawMutex;
    type OwnerLock = Self::Lock;

    fn cpus_possible(&self) -> u32 {
        4
    }

    fn cpus_online(&self) -> u32 {
        4
    }

    fn alloc_table<T: Table>(&self) -> Option<&'static T> {
        let at = self.piece(Layout::new::<T>())?.cast::<T>();
        // SAFETY: a piece of that size and alignment, which nobody else has.
        unsafe { at.write(T::EMPTY) };
        let bytes = at.cast::<u8>();
        // SAFETY: the piece was zeros before, so even what a write leaves out is there to be read.
        let bytes = unsafe { std::slice::from_raw_parts(bytes, size_of::<T>()) };
        if bytes.iter().any(|&byte| byte != 0) {
            self.not_zero.lock().unwrap_or_else(PoisonError::into_inner).push(type_name::<T>());
        }
        // SAFETY: written above, never freed.
        Some(unsafe { &*at })
    }

    fn free_table<T: Table>(&self, _table: &'static T) {}

    fn flush(&self, _ranges: &[VaRange]) -> Epoch {
        Epoch(self.flushes.fetch_add(1, Ordering::Relaxed))
    }

    fn completed(&self, _epoch: Epoch) -> bool {
        !self.flushes_late.load(Ordering::Relaxed)
    }

    fn wait(&self, _epoch: Epoch) {
        self.waits.fetch_add(1, Ordering::Relaxed);
        self.flushes_late.store(false, Ordering::Relaxed);
    }

    fn drain(&self) -> Drain {
        if self.drains_elsewhere.load(Ordering::Relaxed) { Drain::Elsewhere } else { Drain::Here }
    }
}

pub(crate) fn fine<T, E: std::fmt::Display>(got: Result<T, E>) -> T {
    got.unwrap_or_else(|error| panic!("{error}"))
}

pub(crate) fn pages(first: u64, end: u64) -> VaRange {
    VaRange::from_pages(first, end).unwrap_or_default()
}

pub(crate) fn ask(count: u64) -> Request {
    fine(Request::pages(count))
}
