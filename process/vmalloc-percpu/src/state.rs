//! A space behind one lock: `va-percpu` allocates offsets, and the system maps chunks.
//!
//! # Theory
//! A chunk is one mapping of all units. Pages become resident at the first access, so an unused CPU costs only
//! addresses, and there is no step of population. Pages that the balance releases are discarded in all units.
//!
//! Three settings make more than the accessed page resident, or charge more:
//! - *Transparent huge pages*: one would cover eight units, so that the first access to one makes those of seven others
//!   resident. A chunk is advised against them; if the advice fails, the only cost is memory.
//! - `vm.overcommit_memory` = 2: no more pages are resident, but all units of a chunk count as committed once it is
//!   mapped. Mapping a chunk beyond the limit fails ([`Error::CallFailed`], [`Error::NoChunk`]). Fewer units (`Options`)
//!   count less. With other values chunks are not charged.
//! - `mlockall(MCL_FUTURE)`: all units become resident when the chunk is mapped, and count against `RLIMIT_MEMLOCK`.
//!   The balance releases none, since locked pages cannot be discarded (an object is zeroed nevertheless). With
//!   `MCL_ONFAULT` they become resident at the first access.
//!
//! One lock protects the whole index, so that a fork can hold it and the child's space is consistent. Behind it the
//! locks that `va-percpu` takes are never contended, and cost almost nothing.
//!
//! # Invariants
//! - **PP2 behind-one** the index is used by one thread at a time: the holder of the lock.

use super::Error;
use super::hot::Hot;
use super::locks::Locks;
use super::shape::{STRIDE, UNITS_MAX};
use core::alloc::Layout;
use core::cell::Cell;
use core::fmt;
use core::ops::Range;
use core::ptr::{NonNull, with_exposed_provenance_mut};
use core::sync::atomic::{AtomicBool, Ordering};
use lock_api::{GuardSend, RawMutex};
use va_base::{Epoch, InvariantViolation, Machine, Platform, Record, Table, Va, VaRange};
use va_percpu::config::{Config, Standard};
use va_percpu::{AllocError, Backend, BackendError, Geometry, Offset, PercpuSpace, Request, Sizes, Stats};
use vmalloc_os::fork::{self, Hold, Link};
use vmalloc_os::lock::{Fork, Mutex};
use vmalloc_os::os::{Call, Errno, Huge, Os, Span};
use vmalloc_os::records::Host;

/// The standard policy without spare pages: population costs nothing, so no caller needs prepared pages.
pub(super) enum InProcess {}
impl Config for InProcess {
    type Engine = <Standard as Config>::Engine;
    const SPARE_PAGES_LOW: u32 = 0;
    const CLASS_WORDS: u32 = <Standard as Config>::CLASS_WORDS;
}

type Index<O> = PercpuSpace<Keeper<O>, Chunks<O>, InProcess>;

/// A space: see the head of the module. It is in its own records, and does not move.
pub(super) struct Core<O: Os> {
    // Constant after `open`, except for atomic fields in it.
    pub(super) hot: Hot,
    host: Host<O>,
    base: usize,
    /// The locks of counters and references.
    pub(super) locks: Locks,
    // Under its lock.
    index: Mutex<Index<O>>,
}

impl<O: Os> Core<O> {
    /// Opens a space.
    pub(super) fn open(os: O, hot: Hot) -> Result<NonNull<Self>, Error> {
        if hot.ids == 0 || hot.ids >= UNITS_MAX {
            return Err(Error::BadUnits { units: hot.ids });
        }
        fork::prepare_for_forks();
        let host = Host::open(os).map_err(|(call, errno)| Error::CallFailed { call, errno, bytes: 0 })?;
        let opened = Self::build(host, hot);
        if opened.is_err() {
            // SAFETY: nothing in the records is used any more.
            unsafe { host.close() };
        }
        opened
    }

    /// Allocates memory for a value in the records of the space, valid as long as they are.
    pub(super) fn alloc_place<T>(&self) -> Option<NonNull<T>> {
        self.host.alloc_place()
    }

    fn build(host: Host<O>, hot: Hot) -> Result<NonNull<Self>, Error> {
        let place = host.alloc_place::<Self>().ok_or(Error::NoRecords)?;
        let core = place.as_ptr().expose_provenance();
        let chunks = Chunks { host, core, units: hot.units() as usize, newest: Cell::new(0) };
        let link = host.alloc_place::<Link>().ok_or(Error::NoRecords)?;
        let base = chunks.map()?;
        let unit = STRIDE as u32;
        let sizes = Sizes {
            unit,
            fixed: 0,
            reserved: 0,
            // A page less than a unit: the balance may unmap a wholly free chunk, and the first one must stay, since
            // offsets are relative to it.
            dynamic: unit - crate::PAGE_BYTES as u32,
            atom: unit,
            alloc: unit,
            units: hot.units(),
        };
        let index =
            Geometry::new(sizes, Va::new(base as u64)).map_err(|_| Error::BadUnits { units: hot.ids });
        let index = index.and_then(|geometry| {
            PercpuSpace::new(geometry, Keeper(host), chunks).map_err(|_| Error::NoRecords)
        });
        let index = match index {
            Ok(index) => index,
            Err(error) => {
                // SAFETY: mapped above, and not used.
                unsafe { host.os().unmap(span_of(base, hot.units() as usize)) };
                return Err(error);
            }
        };
        // SAFETY: allocated for this.
        unsafe { place.write(Self { hot, host, base, locks: Locks::new(), index: Mutex::new(index) }) };
        // SAFETY: the link was allocated for this. The space stays valid until `close` unregisters it.
        unsafe { fork::register(place, link) };
        Ok(place)
    }

    /// Unmaps everything.
    ///
    /// # Safety
    /// `open` returned it, and no thread uses it or memory of its chunks any more.
    pub(super) unsafe fn close(this: NonNull<Self>) {
        fork::unregister(this);
        // SAFETY: no other thread uses it, by this function's contract.
        let core = unsafe { this.read() };
        let Self { host, index, .. } = core;
        let index = index.into_inner();
        index.backend().unmap_all();
        drop(index);
        // SAFETY: all allocations were freed, or are never accessed again.
        unsafe { host.close() };
    }

    /// Returns the address of an object's copy in unit 0.
    #[inline]
    pub(super) fn first(&self, offset: Offset) -> NonNull<u8> {
        let at = offset.at(Va::new(self.base as u64)).get() as usize;
        // An object is in a chunk, and no chunk is at 0.
        NonNull::new(with_exposed_provenance_mut(at)).unwrap_or(NonNull::dangling())
    }

    /// Returns the core of the space that an object belongs to.
    ///
    /// # Safety
    /// An address that [`first`](Self::first) returned for a live object of a space on this `O`, which lives for `'s`.
    #[inline(always)]
    pub(super) unsafe fn of_object<'s>(first: NonNull<u8>) -> &'s Self {
        let place = core_place(first.addr().get() & !(STRIDE - 1));
        // SAFETY: an object is in unit 0 of a mapped chunk, which begins at a multiple of the stride; `map` wrote the
        // word, which does not change.
        let core = unsafe { place.read() };
        // SAFETY: the core of the chunk's space, by this function's contract.
        unsafe { &*with_exposed_provenance_mut::<Self>(core) }
    }

    /// Returns the offset of an address in unit 0: the inverse of [`first`](Self::first).
    pub(super) fn offset_of(&self, first: NonNull<u8>) -> Offset {
        Offset::new((first.addr().get() as u64).wrapping_sub(self.base as u64))
    }

    /// Allocates an object, with zeros in all units.
    pub(super) fn alloc(&self, layout: Layout) -> Result<Offset, Error> {
        let offset = self.index.lock().alloc(&Request::new(layout.size(), layout.align()));
        let offset = offset.map_err(|error| match error {
            AllocError::BadSize { bytes } => Error::BadSize { bytes },
            AllocError::BadAlign { align } => Error::BadAlign { align },
            AllocError::NoChunk { chunks } | AllocError::NoMeta { chunks } => Error::NoChunk { chunks },
            _ => Error::NoRecords,
        })?;
        let first = self.first(offset);
        for unit in self.hot.live_units() {
            // SAFETY: a unit of a mapped chunk.
            let place = unsafe { first.add(unit as usize * STRIDE) };
            // Checks PP1: the units above the mark are zeros.
            // SAFETY: these bytes belong to this object, which is not returned yet.
            unsafe { place.write_bytes(0, layout.size()) };
        }
        Ok(offset)
    }

    /// Frees an object.
    ///
    /// # Safety
    /// The object is not used any more.
    pub(super) unsafe fn free(&self, offset: Offset) -> bool {
        self.index.lock().free(offset).is_ok()
    }

    /// Releases unused pages. Returns the number of steps done.
    pub(super) fn trim(&self) -> u64 {
        let index = self.index.lock();
        index.balance()
    }

    /// Returns the bytes mapped for records.
    pub(super) fn records_bytes(&self) -> usize {
        self.host.mapped_bytes()
    }

    /// Returns the statistics.
    pub(super) fn stats(&self) -> Stats {
        self.index.lock().stats()
    }

    pub(super) fn validate(&self) -> Result<(), InvariantViolation> {
        self.index.lock().validate()
    }
}

impl<O: Os> Hold for Core<O> {
    fn is_mine(&self) -> bool {
        self.locks.all().iter().any(Fork::is_mine) || self.index.is_mine() || self.host.is_mine()
    }

    fn hold(&self, interrupted: bool) {
        for lock in self.locks.all() {
            lock.hold(interrupted);
        }
        self.index.hold(interrupted);
        self.host.hold(interrupted);
    }

    fn forget(&self, _held: bool) {
        self.host.os().forget();
    }

    unsafe fn release(&self) {
        // SAFETY: held, by this function's contract.
        unsafe { self.host.release() };
        // SAFETY: as before.
        unsafe { self.index.release() };
        for lock in self.locks.all() {
            // SAFETY: as before.
            unsafe { lock.release() };
        }
    }
}

/// The platform of the index, which allocates its records.
pub(super) struct Keeper<O: Os>(Host<O>);

impl<O: Os> Platform for Keeper<O> {
    fn alloc_meta<T: Record>(&self, min: usize) -> Option<&'static mut [T]> {
        self.0.alloc_meta(min)
    }

    fn free_meta<T: Record>(&self, slab: &'static mut [T]) {
        self.0.free_meta(slab);
    }

    fn bug(&self, what: fmt::Arguments<'_>, broken: Option<InvariantViolation>) -> ! {
        self.0.bug(what, broken)
    }
}

impl<O: Os> Machine for Keeper<O> {
    type Lock = Behind;
    type PurgeLock = Behind;
    type OwnerLock = Self::Lock;

    fn cpus_possible(&self) -> u32 {
        1
    }

    fn cpus_online(&self) -> u32 {
        1
    }

    fn alloc_table<T: Table>(&self) -> Option<&'static T> {
        self.0.alloc_table()
    }

    fn free_table<T: Table>(&self, table: &'static T) {
        self.0.free_table(table);
    }

    fn flush(&self, ranges: &[VaRange]) -> Epoch {
        self.0.flush(ranges)
    }

    fn completed(&self, epoch: Epoch) -> bool {
        self.0.completed(epoch)
    }
}

/// A lock behind another one (PP2): it only stores whether it is held.
pub(super) struct Behind(AtomicBool);

// SAFETY: only the locks of an index have this type, which is behind a lock itself. So one thread at a time calls it
// (PP2), and a second entry aborts.
unsafe impl RawMutex for Behind {
    const INIT: Self = Self(AtomicBool::new(false));
    type GuardMarker = GuardSend;

    #[inline(always)]
    fn lock(&self) {
        if !self.try_lock() {
            vmalloc_os::os::abort_with(format_args!("PP2: the index of per-CPU memory was entered twice"));
        }
    }

    #[inline(always)]
    fn try_lock(&self) -> bool {
        // Two steps, since no other thread is here (PP2).
        let free = !self.0.load(Ordering::Relaxed);
        self.0.store(true, Ordering::Relaxed);
        free
    }

    #[inline(always)]
    unsafe fn unlock(&self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// The mappings of chunks.
pub(super) struct Chunks<O: Os> {
    host: Host<O>,
    /// The address of the core.
    core: usize,
    /// The number of units, the strangers' included.
    units: usize,
    // Under the lock of the core.
    /// The newest chunk; each one links to the one before.
    newest: Cell<usize>,
}

/// Returns the place of a chunk's core, the last word before its units: an object leads to it by its address alone.
#[inline(always)]
fn core_place(at: usize) -> *mut usize {
    with_exposed_provenance_mut(at - size_of::<usize>())
}

/// Returns the place of a chunk's link to the next older one, or 0, in the word before the core.
fn link_place(at: usize) -> *mut usize {
    with_exposed_provenance_mut(at - 2 * size_of::<usize>())
}

/// Returns the mapping of a chunk whose units begin at an address: a page with these two words, and the units.
fn span_of(at: usize, units: usize) -> Span {
    Span { at: at - crate::PAGE_BYTES, bytes: crate::PAGE_BYTES + units * STRIDE }
}

impl<O: Os> Chunks<O> {
    /// Maps a chunk at a multiple of the stride.
    fn map(&self) -> Result<usize, Error> {
        let (os, bytes) = (self.host.os(), span_of(STRIDE, self.units).bytes);
        let failed = |call, errno: Errno| Error::CallFailed { call, errno, bytes };
        let whole = bytes + STRIDE;
        let start = os.reserve(whole).map_err(|errno| failed(Call::Reserve, errno))?;
        let at = (start + crate::PAGE_BYTES).next_multiple_of(STRIDE);
        let span = span_of(at, self.units);
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
        unsafe { link_place(at).write(self.newest.replace(at)) };
        Ok(at)
    }

    fn unmap(&self, at: usize) {
        // SAFETY: a chunk that `map` made, without live objects.
        unsafe { self.host.os().unmap(span_of(at, self.units)) };
    }

    /// Removes a chunk from the list.
    fn unlink(&self, at: usize) {
        // SAFETY: a chunk of this space, in the list.
        let before = unsafe { link_place(at).read() };
        if self.newest.get() == at {
            self.newest.set(before);
            return;
        }
        let mut chunk = self.newest.get();
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

    fn unmap_all(&self) {
        let mut chunk = self.newest.replace(0);
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
        while unit < self.units {
            let count = BATCH.min(self.units - unit);
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
}
