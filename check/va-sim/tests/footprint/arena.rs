//! The machine: it allocates memory from one arena; a test sets when its flushes end.

use std::alloc::{Layout, alloc_zeroed};
use std::any::type_name;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use va_base::{Drain, Epoch, Machine, Meta, Platform, Record, Request, Table, VaRange};

/// Memory of the machine.
const ARENA_BYTES: usize = 256 << 20;

/// Allocates memory from one arena and frees none; records tables that are not zeros.
pub(crate) struct Arena {
    base: usize,
    used: AtomicUsize,
    flushes: AtomicU64,
    not_zero: Mutex<Vec<&'static str>>,
    /// Another thread drains lazy pages.
    drains_elsewhere: AtomicBool,
    /// A flush ends when a thread waits for it.
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

    /// Sets whether another thread drains lazy pages.
    pub(crate) fn drain_elsewhere(&self, elsewhere: bool) {
        self.drains_elsewhere.store(elsewhere, Ordering::Relaxed);
    }

    /// Makes flushes from now on end when a thread waits for them; after that they end at once again.
    pub(crate) fn flush_late(&self) {
        self.flushes_late.store(true, Ordering::Relaxed);
    }

    /// Returns how often a thread waited for a flush.
    pub(crate) fn waits(&self) -> u64 {
        self.waits.load(Ordering::Relaxed)
    }

    /// Returns the tables that are not zeros.
    pub(crate) fn not_zero(&self) -> Vec<&'static str> {
        self.not_zero.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Allocates unused memory for `layout`, all zeros.
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
            // SAFETY: inside the allocation, which has room for `min` records.
            let place = unsafe { at.add(n) };
            // SAFETY: as above; aligned, since an allocation begins at a page.
            unsafe { place.write(T::EMPTY) };
        }
        // SAFETY: written a moment ago, never freed, and no other reference to the allocation exists.
        Some(unsafe { std::slice::from_raw_parts_mut(at, min) })
    }

    fn free_meta<T: Record>(&self, _slab: Meta<&'static mut [T]>) {}
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
        // SAFETY: an allocation of that size and alignment, to which no other reference exists.
        unsafe { at.write(T::EMPTY) };
        let bytes = at.cast::<u8>();
        // SAFETY: the allocation was zeros before, so even bytes that a write leaves out can be read.
        let bytes = unsafe { std::slice::from_raw_parts(bytes, size_of::<T>()) };
        if bytes.iter().any(|&byte| byte != 0) {
            self.not_zero.lock().unwrap_or_else(PoisonError::into_inner).push(type_name::<T>());
        }
        // SAFETY: written above, never freed.
        Some(unsafe { &*at })
    }

    fn free_table<T: Table>(&self, _table: Meta<&'static T>) {}

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
