//! A space behind one lock: `va-percpu` says which bytes are whose, the system maps chunks.
//!
//! # Theory
//! A chunk is one mapping of all units. Pages come when they are touched, so a CPU that nobody runs on costs addresses only, and
//! populating is nothing to do. Pages that the balance takes away are discarded, in all units.
//!
//! What would make the system bring more than the touched page:
//! - *Transparent huge pages*: one would be eight units, so that the first who touches his brings those of seven others. A chunk is
//!   advised against them; where that is refused, it costs memory and nothing else.
//! - `vm.overcommit_memory` = 2: no page comes, but all units of a chunk count as committed from when it is mapped, and a chunk
//!   beyond the limit is refused ([`Error::Refused`], [`Error::NoChunk`]). Fewer units by `Options` count less. Otherwise chunks
//!   count nothing.
//! - `mlockall(MCL_FUTURE)`: all units come when the chunk is mapped, and count against
//!   `RLIMIT_MEMLOCK`. The balance releases none, since locked pages cannot be discarded (an object
//!   is zeroed all the same). With `MCL_ONFAULT` they come when touched.
//!
//! One lock is in front, so that a fork can hold it: then the child's space is in order. The locks that `va-percpu` takes are never
//! contended behind it and cost nothing.
//!
//! # Invariants
//! - **PP2 behind-one** the index is used by one thread at a time: whoever holds the lock.

use super::Error;
use super::hot::Hot;
use super::locks::Locks;
use super::shape::{STRIDE, UNITS_MAX};
use crate::fork::{self, Hold, Link};
use crate::lock::{Fork, Mutex};
use crate::os::{Call, Errno, Huge, Os, Span};
use crate::records::Host;
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

/// Standard; who populates costs nothing, so no page is kept ready for who cannot wait.
pub(super) enum InProcess {}
impl Config for InProcess {
    type Engine = <Standard as Config>::Engine;
    const SPARE_PAGES_LOW: u32 = 0;
    const CLASS_WORDS: u32 = <Standard as Config>::CLASS_WORDS;
}

type Index<O> = PercpuSpace<Keeper<O>, Chunks<O>, InProcess>;

/// See the head of the module. It lives in its own records, where it stays.
pub(super) struct Core<O: Os> {
    // Constant after `open`, but for what is atomic in it.
    pub(super) hot: Hot,
    host: Host<O>,
    base: usize,
    /// Of counters and references.
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
        let host = Host::open(os).map_err(|(call, errno)| Error::Refused { call, errno, bytes: 0 })?;
        let opened = Self::build(host, hot);
        if opened.is_err() {
            // SAFETY: what was built with it is gone.
            unsafe { host.close() };
        }
        opened
    }

    /// Memory for a value in the records of the space, which lives as long as they do.
    pub(super) fn alloc_place<T>(&self) -> Option<NonNull<T>> {
        self.host.alloc_place()
    }

    fn build(host: Host<O>, hot: Hot) -> Result<NonNull<Self>, Error> {
        let chunks = Chunks { host, units: hot.units() as usize, newest: Cell::new(0) };
        let place = host.alloc_place::<Self>().ok_or(Error::NoRecords)?;
        let link = host.alloc_place::<Link>().ok_or(Error::NoRecords)?;
        let base = chunks.map()?;
        let unit = STRIDE as u32;
        let sizes = Sizes {
            unit,
            fixed: 0,
            reserved: 0,
            // A page less: the balance may unmake a chunk that is wholly free, and this one is to stay, since offsets count from it.
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
                let chunk = Span { at: base, bytes: bytes_of(hot.units() as usize) };
                // SAFETY: mapped above, and nobody has it.
                unsafe { host.os().unmap(chunk) };
                return Err(error);
            }
        };
        // SAFETY: allocated for this.
        unsafe { place.write(Self { hot, host, base, locks: Locks::new(), index: Mutex::new(index) }) };
        fork::register(place, link);
        Ok(place)
    }

    /// Unmaps everything.
    ///
    /// # Safety
    /// `open` returned it, and nobody uses it or anything of its chunks any more.
    pub(super) unsafe fn close(this: NonNull<Self>) {
        fork::unregister(this);
        // SAFETY: nobody else uses it, and nobody will.
        let core = unsafe { this.read() };
        let Self { host, index, .. } = core;
        let index = index.into_inner();
        index.backend().unmap_all();
        drop(index);
        // SAFETY: all that was allocated has come back or is never looked at again.
        unsafe { host.close() };
    }

    /// The object that starts there, in unit 0.
    #[inline]
    pub(super) fn first(&self, offset: Offset) -> NonNull<u8> {
        let at = offset.at(Va::new(self.base as u64)).get() as usize;
        // An object is in a chunk, and none is at 0.
        NonNull::new(with_exposed_provenance_mut(at)).unwrap_or(NonNull::dangling())
    }

    /// The offset of what is at an address in unit 0: [`first`](Self::first) the other way round.
    pub(super) fn offset_of(&self, first: NonNull<u8>) -> Offset {
        Offset::new((first.addr().get() as u64).wrapping_sub(self.base as u64))
    }

    /// Gives out an object, zeros in all units.
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
            // SAFETY: the unit of a chunk that lives.
            let place = unsafe { first.add(unit as usize * STRIDE) };
            // Checks PP1: above the mark all is zeros.
            // SAFETY: these bytes are this object's, which nobody has yet.
            unsafe { place.write_bytes(0, layout.size()) };
        }
        Ok(offset)
    }

    /// Takes an object back.
    ///
    /// # Safety
    /// Nobody uses it any more.
    pub(super) unsafe fn free(&self, offset: Offset) -> bool {
        self.index.lock().free(offset).is_ok()
    }

    /// Gives pages back that nobody needs; returns steps done.
    pub(super) fn trim(&self) -> u64 {
        let index = self.index.lock();
        index.balance()
    }

    /// Bytes mapped for records.
    pub(super) fn records_bytes(&self) -> usize {
        self.host.mapped_bytes()
    }

    /// Counts.
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

/// Lends records to the index.
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

/// A lock behind another one (PP2): it only remembers whether it is held.
pub(super) struct Behind(AtomicBool);

// SAFETY: only the locks of an index have this type, which is inside a lock itself: so one thread at a time calls it (PP2), and who
// finds it held is stopped.
unsafe impl RawMutex for Behind {
    const INIT: Self = Self(AtomicBool::new(false));
    type GuardMarker = GuardSend;

    #[inline(always)]
    fn lock(&self) {
        if !self.try_lock() {
            crate::os::abort_with(format_args!("PP2: the index of per-CPU memory was entered twice"));
        }
    }

    #[inline(always)]
    fn try_lock(&self) -> bool {
        // Two steps, since nobody comes between.
        let free = !self.0.load(Ordering::Relaxed);
        self.0.store(true, Ordering::Relaxed);
        free
    }

    #[inline(always)]
    unsafe fn unlock(&self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// Maps chunks.
pub(super) struct Chunks<O: Os> {
    host: Host<O>,
    /// The strangers' too.
    units: usize,
    // Under the lock of the core.
    /// The newest chunk; each leads to the one before.
    newest: Cell<usize>,
}

/// Bytes of a chunk: its units, and a page that leads to the chunk before.
fn bytes_of(units: usize) -> usize {
    units * STRIDE + crate::PAGE_BYTES
}

impl<O: Os> Chunks<O> {
    /// Maps a chunk at a multiple of the stride.
    fn map(&self) -> Result<usize, Error> {
        let (os, bytes) = (self.host.os(), bytes_of(self.units));
        let refused = |call, errno: Errno| Error::Refused { call, errno, bytes };
        let whole = bytes + STRIDE;
        let start = os.reserve(whole).map_err(|errno| refused(Call::Reserve, errno))?;
        let at = start.next_multiple_of(STRIDE);
        // What is left over on both sides goes back.
        for (at, end) in [(start, at), (at + bytes, start + whole)] {
            if at < end {
                // SAFETY: reserved a moment ago, and nobody's.
                unsafe { os.unmap(Span { at, bytes: end - at }) };
            }
        }
        // Before access is given, since locked memory comes with it. If it is refused, more memory comes than needed.
        // SAFETY: reserved a moment ago.
        let _refused = unsafe { os.advise(Span { at, bytes }, Huge::No) };
        // SAFETY: reserved a moment ago.
        let committed = unsafe { os.commit(Span { at, bytes }) };
        if let Err(errno) = committed {
            self.unmap(at);
            return Err(refused(Call::Commit, errno));
        }
        // SAFETY: the last page of the chunk, which is in no unit.
        unsafe { self.before(at).write(self.newest.replace(at)) };
        Ok(at)
    }

    /// Returns the address at which a chunk leads to the one before.
    fn before(&self, at: usize) -> *mut usize {
        with_exposed_provenance_mut(at + self.units * STRIDE)
    }

    fn unmap(&self, at: usize) {
        // SAFETY: a chunk that `map` made, in which nothing lives.
        unsafe { self.host.os().unmap(Span { at, bytes: bytes_of(self.units) }) };
    }

    /// Takes a chunk out of the list.
    fn unlink(&self, at: usize) {
        // SAFETY: a chunk of ours that is in the list.
        let before = unsafe { self.before(at).read() };
        if self.newest.get() == at {
            self.newest.set(before);
            return;
        }
        let mut chunk = self.newest.get();
        while chunk != 0 {
            // SAFETY: as before.
            let next = unsafe { self.before(chunk).read() };
            if next == at {
                // SAFETY: as before.
                unsafe { self.before(chunk).write(before) };
                return;
            }
            chunk = next;
        }
    }

    fn unmap_all(&self) {
        let mut chunk = self.newest.replace(0);
        while chunk != 0 {
            // SAFETY: a chunk of ours.
            let next = unsafe { self.before(chunk).read() };
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

    /// Nothing: pages come when they are touched.
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
            // If it is refused the pages stay: an object is zeroed when it is given out.
            // SAFETY: pages of a chunk of ours, in which nothing lives.
            let _refused = unsafe { self.host.os().discard(spans) };
            unit += count;
        }
    }

    fn flush(&self, _geometry: &Geometry, _base: Va, _pages: Range<u32>) {}
}
