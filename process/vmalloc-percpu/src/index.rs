//! The index of a space: its policy, its records, and the mappings of its chunks.

use super::Error;
use super::hot::Hot;
use super::shape::STRIDE;
use core::fmt;
use core::ops::Range;
use core::ptr::with_exposed_provenance_mut;
use core::sync::atomic::{AtomicUsize, Ordering};
use va_base::{Epoch, InvariantViolation, Machine, Meta, Platform, Record, Table, Va, VaRange};
use va_percpu::config::{Config, Standard};
use va_percpu::{Backend, BackendError, Geometry, PercpuSpace};
use vmalloc_os::lock::Futex;
use vmalloc_os::os::{Call, Errno, Huge, Os, Span};
use vmalloc_os::records::Host;

/// The standard policy without spare pages: population costs nothing, so no caller needs prepared pages.
pub(super) enum InProcess {}
impl Config for InProcess {
    type Engine = <Standard as Config>::Engine;
    const SPARE_PAGES_LOW: u32 = 0;
    const CLASS_WORDS: u32 = <Standard as Config>::CLASS_WORDS;
    const CACHE_BYTES: u32 = <Standard as Config>::CACHE_BYTES;
}

pub(super) type Index<O> = PercpuSpace<IndexMachine<O>, Chunks<O>, InProcess>;

/// The platform of the index, which allocates its records.
pub(super) struct IndexMachine<O: Os>(Host<O>);

impl<O: Os> IndexMachine<O> {
    pub(super) fn new(host: Host<O>) -> Self {
        Self(host)
    }
}

impl<O: Os> Platform for IndexMachine<O> {
    fn alloc_meta<T: Record>(&self, min: usize) -> Option<&'static mut [T]> {
        self.0.alloc_meta(min)
    }

    fn free_meta<T: Record>(&self, slab: Meta<&'static mut [T]>) {
        self.0.free_meta(slab);
    }

    fn bug(&self, what: fmt::Arguments<'_>, broken: Option<InvariantViolation>) -> ! {
        self.0.bug(what, broken)
    }
}

impl<O: Os> Machine for IndexMachine<O> {
    type Lock = Futex;
    type PurgeLock = Futex;
    #[cfg(not(loom))]
    type OwnerLock = vmalloc_os::OwnerLock;
    #[cfg(loom)]
    type OwnerLock = Futex;

    fn cpus_possible(&self) -> u32 {
        1
    }

    fn cpus_online(&self) -> u32 {
        1
    }

    fn alloc_table<T: Table>(&self) -> Option<&'static T> {
        self.0.alloc_table()
    }

    fn free_table<T: Table>(&self, table: Meta<&'static T>) {
        self.0.free_table(table);
    }

    fn flush(&self, ranges: &[VaRange]) -> Epoch {
        self.0.flush(ranges)
    }

    fn completed(&self, epoch: Epoch) -> bool {
        self.0.completed(epoch)
    }
}

/// The mappings of chunks.
pub(super) struct Chunks<O: Os> {
    host: Host<O>,
    hot: &'static Hot,
    /// The address of the core.
    core: usize,
    /// The newest chunk; each one links to the one before. Changed under `grow` of the index. Protocol PR-LOCK.
    newest: AtomicUsize,
}

/// Returns the place of a chunk's core, the last word before its units: an object leads to it by its address alone.
#[inline(always)]
pub(super) fn core_place(at: usize) -> *mut usize {
    with_exposed_provenance_mut(at - size_of::<usize>())
}

/// Returns the place of a chunk's link to the next older one, or 0, in the word before the core.
fn link_place(at: usize) -> *mut usize {
    with_exposed_provenance_mut(at - 2 * size_of::<usize>())
}

/// Returns the mapping of a chunk whose units begin at an address: a page with these two words, and the units.
pub(super) fn span_of(at: usize, units: usize) -> Span {
    Span { at: at - crate::PAGE_BYTES, bytes: crate::PAGE_BYTES + units * STRIDE }
}

impl<O: Os> Chunks<O> {
    pub(super) fn new(host: Host<O>, hot: &'static Hot, core: usize) -> Self {
        Self { host, hot, core, newest: AtomicUsize::new(0) }
    }

    /// Returns the number of units, the strangers' included.
    fn units(&self) -> usize {
        self.hot.units() as usize
    }

    /// Maps a chunk at a multiple of the stride.
    pub(super) fn map(&self) -> Result<usize, Error> {
        let (os, bytes) = (self.host.os(), span_of(STRIDE, self.units()).bytes);
        let failed = |call, errno: Errno| Error::CallFailed { call, errno, bytes };
        let whole = bytes + STRIDE;
        let start = os.reserve(whole).map_err(|errno| failed(Call::Reserve, errno))?;
        let at = (start + crate::PAGE_BYTES).next_multiple_of(STRIDE);
        let span = span_of(at, self.units());
        // The rest on both sides is unmapped.
        for (at, end) in [(start, span.at), (span.at + bytes, start + whole)] {
            if at < end {
                // SAFETY: reserved above, and unused.
                unsafe { os.unmap(Span { at, bytes: end - at }) };
            }
        }
        // Before the commit, which populates locked memory. If the advice fails, more memory becomes resident than
        // needed.
        // SAFETY: reserved above.
        let _failed = unsafe { os.advise(span, Huge::No) };
        // SAFETY: reserved above.
        let committed = unsafe { os.commit(span) };
        if let Err(errno) = committed {
            self.unmap(at);
            return Err(failed(Call::Commit, errno));
        }
        // SAFETY: in the page before the units.
        unsafe { core_place(at).write(self.core) };
        // SAFETY: as before.
        unsafe { link_place(at).write(self.newest.swap(at, Ordering::Relaxed)) };
        Ok(at)
    }

    fn unmap(&self, at: usize) {
        // SAFETY: a chunk that `map` made, without live objects.
        unsafe { self.host.os().unmap(span_of(at, self.units())) };
    }

    /// Removes a chunk from the list.
    fn unlink(&self, at: usize) {
        // SAFETY: a chunk of this space, in the list.
        let before = unsafe { link_place(at).read() };
        if self.newest.load(Ordering::Relaxed) == at {
            self.newest.store(before, Ordering::Relaxed);
            return;
        }
        let mut chunk = self.newest.load(Ordering::Relaxed);
        while chunk != 0 {
            // SAFETY: as before.
            let next = unsafe { link_place(chunk).read() };
            if next == at {
                // SAFETY: as before.
                unsafe { link_place(chunk).write(before) };
                return;
            }
            chunk = next;
        }
    }

    pub(super) fn unmap_all(&self) {
        let mut chunk = self.newest.swap(0, Ordering::Relaxed);
        while chunk != 0 {
            // SAFETY: a chunk of this space.
            let next = unsafe { link_place(chunk).read() };
            self.unmap(chunk);
            chunk = next;
        }
    }
}

impl<O: Os> Backend for Chunks<O> {
    const BY_PAGE: bool = true;

    fn create(&self, _geometry: &Geometry) -> Result<Va, BackendError> {
        self.map().map(|at| Va::new(at as u64)).map_err(|_| BackendError)
    }

    fn destroy(&self, _geometry: &Geometry, base: Va) {
        self.unlink(base.get() as usize);
        self.unmap(base.get() as usize);
    }

    /// Does nothing: pages become resident at the first access.
    fn populate(&self, _geometry: &Geometry, _base: Va, _pages: Range<u32>) -> Result<(), BackendError> {
        Ok(())
    }

    fn depopulate(&self, _geometry: &Geometry, base: Va, pages: Range<u32>) {
        const BATCH: usize = 64;
        let bytes = pages.len() * crate::PAGE_BYTES;
        let first = base.get() as usize + pages.start as usize * crate::PAGE_BYTES;
        let mut unit = 0;
        while unit < self.units() {
            let count = BATCH.min(self.units() - unit);
            let spans: [Span; BATCH] =
                core::array::from_fn(|n| Span { at: first + (unit + n % count) * STRIDE, bytes });
            let spans = spans.get(..count).unwrap_or_default();
            // If it fails, the pages stay: an object is zeroed when it is allocated.
            // SAFETY: pages of a chunk of this space, without live objects.
            let _failed = unsafe { self.host.os().discard(spans) };
            unit += count;
        }
    }

    fn flush(&self, _geometry: &Geometry, _base: Va, _pages: Range<u32>) {}

    fn zero(&self, _geometry: &Geometry, base: Va, off: u32, bytes: u32) {
        let first: *mut u8 = with_exposed_provenance_mut(base.get() as usize + off as usize);
        for unit in self.hot.live_units() {
            // SAFETY: a unit of a mapped chunk.
            let place = unsafe { first.add(unit as usize * STRIDE) };
            // Checks PP1: the units above the mark are zeros, and stay so until an object there is allocated.
            // SAFETY: these bytes belong to objects that no caller has.
            unsafe { place.write_bytes(0, bytes as usize) };
        }
    }

    fn is_zero(&self, _geometry: &Geometry, base: Va, off: u32, bytes: u32) -> Option<bool> {
        let first: *const u8 = with_exposed_provenance_mut(base.get() as usize + off as usize);
        Some(self.hot.live_units().all(|unit| {
            // SAFETY: a unit of a mapped chunk.
            let place = unsafe { first.add(unit as usize * STRIDE) };
            // SAFETY: these bytes belong to an object that no caller has.
            let copy = unsafe { core::slice::from_raw_parts(place, bytes as usize) };
            copy.iter().all(|&byte| byte == 0)
        }))
    }
}
