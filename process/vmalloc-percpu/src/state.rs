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
//! **Caches.** A thread allocates and frees through the cache of its number (`caches`). A pair takes its lock, and no
//! other. `va-percpu` has locks of its own below, which are taken only by a holder of a lock here. So a fork that holds
//! all of these finds the index at rest, and the child's space is consistent.

use super::Error;
use super::caches::Caches;
use super::hot::Hot;
use super::index::{Chunks, Index, IndexMachine, core_place, span_of};
use super::locks::Locks;
use super::shape::{STRIDE, UNITS_MAX};
use core::alloc::Layout;
use core::ptr::{NonNull, with_exposed_provenance_mut};
use va_base::{InvariantViolation, Va};
use va_percpu::{AllocError, Geometry, Offset, PercpuSpace, Request, Sizes, Stats};
use vmalloc_os::fork::{self, Hold, Link};
use vmalloc_os::lock::Fork;
use vmalloc_os::os::Os;
use vmalloc_os::records::Host;

/// A space: see the head of the module. It is in its own records, and does not move.
pub(super) struct Core<O: Os> {
    // Constant after `open`, except for atomic fields in it.
    pub(super) hot: &'static Hot,
    host: Host<O>,
    base: usize,
    /// The locks of counters and references.
    pub(super) locks: Locks,
    /// Shared; each call of it is made under a lock of `caches`.
    index: Index<O>,
    caches: Caches<O>,
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
        let hot = {
            let place = host.alloc_place::<Hot>().ok_or(Error::NoRecords)?;
            // SAFETY: allocated for this.
            unsafe { place.write(hot) };
            // SAFETY: written above, and valid until the records are closed, after which nothing refers to it.
            unsafe { &*place.as_ptr() }
        };
        let caches = Caches::alloc(&host, hot.ids).ok_or(Error::NoRecords)?;
        let place = host.alloc_place::<Self>().ok_or(Error::NoRecords)?;
        let chunks = Chunks::new(host, hot, place.as_ptr().expose_provenance());
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
            PercpuSpace::new(geometry, IndexMachine::new(host), chunks).map_err(|_| Error::NoRecords)
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
        unsafe { place.write(Self { hot, host, base, locks: Locks::new(), index, caches }) };
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
        // SAFETY: valid until it is read below.
        unsafe { this.as_ref() }.caches.end();
        // SAFETY: no other thread uses it, by this function's contract, and no cache refers to the index.
        let core = unsafe { this.read() };
        let Self { host, index, .. } = core;
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
        let request = Request::new(layout.size(), layout.align());
        // SAFETY: the index stays where it is until `close`, which ends the caches first.
        let index = unsafe { NonNull::from(&self.index).as_ref() };
        let offset = self.caches.with(index, self.hot.number(), |own| own.alloc(&request));
        offset.map_err(|error| match error {
            AllocError::BadSize { bytes } => Error::BadSize { bytes },
            AllocError::BadAlign { align } => Error::BadAlign { align },
            AllocError::NoChunk { chunks } | AllocError::NoMeta { chunks } => Error::NoChunk { chunks },
            _ => Error::NoRecords,
        })
    }

    /// Frees an object.
    ///
    /// # Safety
    /// The object is not used any more.
    pub(super) unsafe fn free(&self, offset: Offset) -> bool {
        // SAFETY: as in `alloc`.
        let index = unsafe { NonNull::from(&self.index).as_ref() };
        self.caches.with(index, self.hot.number(), |own| own.free(offset)).is_ok()
    }

    /// Releases unused pages. Returns the number of steps done.
    pub(super) fn trim(&self) -> u64 {
        let _held = self.caches.hold_one();
        self.index.drain_magazines();
        self.index.balance()
    }

    /// Returns the bytes mapped for records.
    pub(super) fn records_bytes(&self) -> usize {
        self.host.mapped_bytes()
    }

    /// Returns the statistics.
    pub(super) fn stats(&self) -> Stats {
        let _held = self.caches.hold_one();
        self.index.stats()
    }

    pub(super) fn validate(&self) -> Result<(), InvariantViolation> {
        let _held = self.caches.hold_all();
        self.index.validate()
    }
}

impl<O: Os> Hold for Core<O> {
    fn is_mine(&self) -> bool {
        self.locks.all().iter().any(Fork::is_mine)
            || self.caches.each().any(Fork::is_mine)
            || self.host.is_mine()
    }

    fn hold(&self, interrupted: bool) {
        for lock in self.locks.all() {
            lock.hold(interrupted);
        }
        for lock in self.caches.each() {
            lock.hold(interrupted);
        }
        self.host.hold(interrupted);
    }

    fn forget(&self, _held: bool) {
        self.host.os().forget();
    }

    unsafe fn release(&self) {
        // SAFETY: held, by this function's contract.
        unsafe { self.host.release() };
        for lock in self.caches.each() {
            // SAFETY: as before.
            unsafe { lock.release() };
        }
        for lock in self.locks.all() {
            // SAFETY: as before.
            unsafe { lock.release() };
        }
    }
}
