//! The space: one offset, a copy of the object on each CPU.
//!
//! # Theory
//! There are two locks. The short one, `chunks`, guards the chunks and their free bits; every call takes it, most only
//! once. The long one, `grow`, is for callers that call the backend: it creates and destroys chunks, populates and
//! depopulates pages, and may sleep. A call takes an object first and populates its pages afterwards. No thread
//! depopulates a page that is in use, or destroys a chunk that holds an object. So a take does not need the long lock.
//! (Linux takes its mutex for every allocation that may sleep.)
//!
//! ```text
//!   alloc   chunks: take --- all pages there? ---yes---> done
//!                                |no
//!                              grow: populate missing pages, chunk by chunk of pages; if that fails, free and report it
//!
//!   tick    grow: one of   destroy an unneeded chunk
//!                          depopulate a run of spare pages of a chunk with too many
//!                          populate up to 4 spare pages, for callers that cannot wait
//! ```
//! Callers that own a [`Magazine`] take neither lock for most calls.
//!
//! A due balance is recorded and the backend woken. Some thread then calls [`tick`](PercpuSpace::tick) until that
//! reports that it is done.
//!
//! # Locks
//! `grow` > `chunks`. The backend and the platform are not called under `chunks`, not even [`Backend::event`].
//!
//! # Source
//! Linux `mm/percpu.c` (6.12: `pcpu_alloc_noprof`, `free_percpu`, `pcpu_balance_workfn`); differences:
//! docs/kernel-map.md.

mod balance;
pub(crate) mod magazine;
mod reserve;
mod stats;
mod take;

pub use balance::Progress;
pub use magazine::{Drained, MAGAZINE_BYTES_MAX, MAGAZINE_BYTES_MIN, Magazine};
pub use reserve::Reserve;
pub use stats::{ChunkKind, ChunkStats, MagazineStats, Stats, StatsText};

use crate::backend::{Backend, Event};
use crate::bitmap::{BIT_BYTES, PAGE_BITS};
use crate::config::{Config, Standard};
use crate::error::{AllocError, FreeError, NewError};
use crate::geometry::Geometry;
use crate::offset::Offset;
use crate::request::{Context, Place, Request};
use crate::store::class::Class;
use crate::store::{RESERVED, Store};
use balance::Work;
use core::fmt;
use magazine::cell::Cells;
use magazine::state::States;
use take::Wanted;
use va_base::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use va_base::sync::{Mutex, MutexGuard};
use va_base::{InvariantViolation, LockClass, Machine, PAGE_SIZE, Va};

/// Per-CPU memory on a machine `P`, supplied by `B`, with policies `C`.
pub struct PercpuSpace<P: Machine, B: Backend, C: Config = Standard> {
    // Constant after new.
    pub(crate) geometry: Geometry,
    pub(crate) machine: P,
    pub(crate) backend: B,
    /// The stage of the balance. Held by callers that call the backend.
    grow: Mutex<P::PurgeLock, Work>,
    /// The chunks, and their free bits.
    chunks: Mutex<P::Lock, Store<C>>,
    // Atomic, each alone: hints for the balance.
    /// The balance has something to do. Protocol PR-DUE.
    due: AtomicBool,
    /// A request that cannot wait failed. Protocol PR-HINT.
    failed: AtomicBool,
    /// Pages with objects for magazines lack tables of states. Protocol PR-HINT.
    lacking: AtomicBool,
    /// The count of takings of `grow`. A counter.
    grow_locks: AtomicU64,
    // Of magazines; their locks are their own.
    pub(crate) cells: Cells<P::OwnerLock>,
    pub(crate) states: States,
}

/// The location of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// The first chunk is 0, the reserved section -1, the others are counted in the order of their creation.
    pub chunk: i64,
    /// The address at which the bitmap of the chunk begins, in its first unit.
    pub base: Va,
    /// Bytes from there.
    pub off: u32,
}

impl<P: Machine, B: Backend, C: Config> PercpuSpace<P, B, C> {
    /// Creates a space whose first chunk exists already, populated as `geometry` describes.
    ///
    /// Stack: up to 12 KiB in release builds, since the value is moved; [`EarlyPercpu::init`](crate::EarlyPercpu::init)
    /// takes less than 4 KiB.
    ///
    /// # Errors
    /// [`NewError::Placement`] if the units of the backend are not those of the geometry, or fewer than the machine's
    /// possible CPUs. [`NewError::NoMeta`] if the platform allocates no records.
    pub fn new(geometry: Geometry, machine: P, backend: B) -> Result<Self, NewError> {
        let mut space = Self::unbegun(geometry, machine, backend);
        space.begin()?;
        Ok(space)
    }

    /// Creates a space without its first chunk. Inlined, with a constant for its large fields: so it takes little
    /// stack.
    #[inline(always)]
    pub(crate) fn unbegun(geometry: Geometry, machine: P, backend: B) -> Self {
        Self {
            geometry,
            machine,
            backend,
            grow: Mutex::new(Work::Idle),
            chunks: va_base::constant!(Mutex::new(Store::EMPTY)),
            due: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            lacking: AtomicBool::new(false),
            grow_locks: AtomicU64::new(0),
            cells: Cells::new(),
            states: States::new().with_grain(geometry.grain_shift()),
        }
    }

    /// Creates the first chunk.
    #[inline(never)]
    pub(crate) fn begin(&mut self) -> Result<(), NewError> {
        self.backend.check(&self.geometry, self.machine.cpus_possible())?;
        // No other thread has the space: no lock is taken.
        let store = self.chunks.get_mut();
        store.init(self.geometry, B::BY_PAGE);
        let more = store.need().alloc(&self.machine).ok_or(NewError::NoMeta)?;
        store.grow(more).free(&self.machine);
        store.begin();
        Ok(())
    }

    /// Returns the sizes of units, sections and lists.
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Returns the machine.
    pub fn machine(&self) -> &P {
        &self.machine
    }

    /// Returns the backend, which supplies chunks and pages.
    pub fn backend(&self) -> &B {
        &self.backend
    }

    #[inline]
    #[track_caller]
    pub(crate) fn lock(&self) -> MutexGuard<'_, P::Lock, Store<C>> {
        self.machine.locking(LockClass::Chunks);
        let mut store = self.chunks.lock();
        store.totals.locks += 1;
        store
    }

    #[track_caller]
    fn lock_grow(&self) -> MutexGuard<'_, P::PurgeLock, Work> {
        self.machine.locking(LockClass::Grow);
        self.grow_locks.fetch_add(1, Ordering::Relaxed);
        self.grow.lock()
    }

    /// Returns the takings of `chunks` and `grow` so far: the locks that all callers share.
    ///
    /// # Locks
    /// `chunks`, which counts.
    pub fn shared_locks(&self) -> u64 {
        self.lock().totals.locks + self.grow_locks.load(Ordering::Relaxed)
    }

    /// Allocates an object: `size` bytes at a multiple of `align`, zeroed by the backend on every CPU.
    ///
    /// # Errors
    /// A bad request; or a failure of the machine or the backend, before which all magazines were drained, but for those
    /// whose owner is in a call. No object has changed. Idle slabs may have been freed. A chunk or pages may have been
    /// added, and then the balance is due.
    /// # Locks
    /// `chunks`; if the caller can wait and pages or a chunk are missing, `grow`. Before a failure those of
    /// [`drain_magazines`](Self::drain_magazines).
    /// Cost: the engine's; with `grow`, the backend's.
    pub fn alloc(&self, request: &Request) -> Result<Offset, AllocError> {
        self.alloc_once(request).or_else(|error| self.retry(request, error, || self.alloc_once(request)))
    }

    /// Tries again once after a failure, if objects in magazines were all that was missing.
    #[cold]
    #[inline(never)]
    fn retry<T>(
        &self,
        request: &Request,
        error: AllocError,
        again: impl FnOnce() -> Result<T, AllocError>,
    ) -> Result<T, AllocError> {
        if matches!(error, AllocError::BadSize { .. } | AllocError::BadAlign { .. }) {
            return Err(error);
        }
        let outcome = if self.drain_magazines().objects > 0 { again() } else { Err(error) };
        outcome.map_err(|error| self.note_failure(request, error))
    }

    /// Allocates an object, with the objects of magazines left where they are.
    #[inline(always)]
    pub(crate) fn alloc_once(&self, request: &Request) -> Result<Offset, AllocError> {
        let want = request.want()?;
        let atomic = request.context == Context::Atomic;
        let bytes = want.bits * BIT_BYTES;
        let class = Class::of(want, C::CLASS_WORDS).filter(|_| request.place == Place::Anywhere);
        let mut looked = 0;
        loop {
            if let Some(class) = class
                && let Some(slot) = self.take_slot(class, want, atomic)
            {
                return Ok(self.publish(request, slot.base, slot.off, bytes));
            }
            let mut store = self.lock();
            let reserved = request.place == Place::Reserved && store.has_reserved();
            let wanted = if reserved { Wanted::Reserved(want) } else { Wanted::Anywhere(want) };
            if let Some(taken) = wanted.take(&mut store, atomic) {
                match class {
                    Some(class) => store.note_single(class, taken),
                    None => store.classes.larger += u64::from(want.bits),
                }
                if taken.missing && !atomic {
                    match self.populate_object(request, store, wanted, taken) {
                        Ok(None) => continue,
                        Ok(Some(offset)) => return Ok(offset),
                        Err(error) => return Err(error),
                    }
                }
                store.totals.count(want);
                let (off, base) = (taken.at * BIT_BYTES, Va::new(store.chunk(taken.row).base));
                let low = store.totals.spare_pages < i64::from(C::SPARE_PAGES_LOW);
                drop(store);
                if low {
                    self.call_for_balance();
                }
                return Ok(self.publish(request, base, off, bytes));
            }
            // Before the request fails or a chunk is created: frees idle slabs, then dissolves sparse ones.
            if !reserved && let Some(due) = store.release_idle() {
                drop(store);
                if due {
                    self.call_for_balance();
                }
                continue;
            }
            if !reserved && C::CLASS_WORDS > 0 {
                match self.dissolve(store, want, atomic, &mut looked) {
                    Ok(()) => continue,
                    Err(same) => store = same,
                }
            }
            let free = store.chunk(RESERVED).free_bits * BIT_BYTES;
            let (spare_pages, made) = (store.totals.spare_pages, store.totals.made);
            drop(store);
            let error = if reserved {
                AllocError::ReservedFull { bytes, free }
            } else if atomic {
                AllocError::NoneInReach { bytes, spare_pages }
            } else {
                match self.make_one_if_none(made) {
                    Ok(()) => continue,
                    Err(error) => error,
                }
            };
            return Err(error);
        }
    }

    /// Allocates the `size` bytes at an offset: for a caller that needs an object at a given offset, as in a replay of
    /// another allocator's calls. A small object also has the bytes up to a multiple of its alignment.
    ///
    /// # Errors
    /// [`AllocError::NotFree`] if they are not all free, or not in one chunk; a bad size; a failure of the machine. No
    /// object has changed; the rest is as after a failed [`alloc`](Self::alloc).
    /// # Locks
    /// Those of [`alloc`](Self::alloc). Cost: the engine's; words of the object where slabs are.
    pub fn alloc_at(&self, offset: Offset, size: usize) -> Result<(), AllocError> {
        let request = Request::new(size, 1);
        let place = || self.place(&request, offset);
        place().or_else(|error| self.retry(&request, error, place))
    }

    /// Allocates the bytes of a request at an offset.
    fn place(&self, request: &Request, offset: Offset) -> Result<(), AllocError> {
        let want = request.want()?;
        let bytes = want.bits * BIT_BYTES;
        let at = offset.at(self.geometry.base()).get();
        let wanted = Wanted::At(at, want);
        let mut store = self.lock();
        let (mut taken, mut due) = (wanted.take(&mut store, false), false);
        if taken.is_none() && C::CLASS_WORDS > 0 {
            // Slabs may have these bytes, though no object has.
            due = store.release_idle() == Some(true);
            store.dissolve_at(at, want.bits);
            taken = wanted.take(&mut store, false);
        }
        let placed = match taken {
            Some(taken) if taken.missing => self.populate_object(request, store, wanted, taken),
            Some(taken) => {
                store.totals.count(want);
                let base = Va::new(store.chunk(taken.row).base);
                drop(store);
                Ok(Some(self.publish(request, base, taken.at * BIT_BYTES, bytes)))
            }
            None => {
                drop(store);
                Ok(None)
            }
        };
        if due {
            self.call_for_balance();
        }
        placed?.map(drop).ok_or(AllocError::NotFree { offset, bytes })
    }

    /// Zeroes an object, reports it to the backend, and returns its offset.
    #[inline(always)]
    fn publish(&self, request: &Request, base: Va, off: u32, bytes: u32) -> Offset {
        self.backend.zero(&self.geometry, base, off, bytes);
        debug_assert!(self.backend.is_zero(&self.geometry, base, off, bytes) != Some(false));
        let offset = Offset::between(self.geometry.base(), base.get() + u64::from(off));
        self.backend.event(Event::Alloc { request: *request, base, off, offset });
        offset
    }

    /// Records a failure.
    fn note_failure(&self, request: &Request, error: AllocError) -> AllocError {
        if request.context == Context::Atomic {
            self.failed.store(true, Ordering::Relaxed);
            self.call_for_balance();
        }
        self.backend.event(Event::AllocFail { request: *request });
        error
    }

    /// Frees an object, in any context.
    ///
    /// An offset has no generation. So a second free is an error until the bytes are allocated again, and after that it
    /// frees the object that is there.
    ///
    /// # Errors
    /// The offset is not the start of a live object; nothing has changed.
    /// # Locks
    /// `chunks`. Cost: the engine's.
    pub fn free(&self, offset: Offset) -> Result<(), FreeError> {
        self.free_if(offset, |at| self.states.free_in_space(at))
    }

    /// Frees an object that was none of magazines a moment ago. If it is one by now, the bytes were freed and are
    /// another caller's: an error.
    // Not inlined: a magazine calls it for what is no object of it.
    #[inline(never)]
    pub(crate) fn free_plain(&self, offset: Offset) -> Result<(), FreeError> {
        self.free_if(offset, |at| self.states.is_plain(at))
    }

    /// Frees an object for which `claim` returns true, under the same hold of `chunks`.
    #[inline(always)]
    fn free_if(&self, offset: Offset, claim: impl FnOnce(u64) -> bool) -> Result<(), FreeError> {
        let mut store = self.lock();
        if !claim(offset.at(self.geometry.base()).get()) {
            return Err(FreeError::NoObject { offset, inside: None });
        }
        let freed = store.free(offset);
        drop(store);
        let freed = freed.map_err(|error| self.outside_of_cached(error))?;
        self.backend.event(Event::Free { base: freed.base, off: freed.off, offset });
        if freed.balance {
            self.call_for_balance();
        }
        Ok(())
    }

    /// Returns the error of a free for the caller, to whom an object in a magazine is free.
    #[cold]
    fn outside_of_cached(&self, error: FreeError) -> FreeError {
        match error {
            FreeError::NoObject { offset, inside: Some(start) }
                if self.states.is_cached(start.at(self.geometry.base()).get()) =>
            {
                FreeError::NoObject { offset, inside: None }
            }
            _ => error,
        }
    }

    #[cold]
    pub(crate) fn call_for_balance(&self) {
        // A caller that finds it set need not wake: the worker woken before sees this change too, through the locks.
        if !self.due.swap(true, Ordering::AcqRel) {
            self.backend.wake();
        }
    }

    /// Returns the chunk that an offset is in, whether or not an object is there.
    ///
    /// # Locks
    /// `chunks`.
    pub fn find(&self, offset: Offset) -> Option<Found> {
        self.lock().find(offset)
    }

    /// Checks every invariant with a full walk, O(bits of all chunks). No other thread may be in a call.
    ///
    /// # Errors
    /// The first violation.
    /// # Locks
    /// Both.
    pub fn validate(&self) -> Result<(), InvariantViolation> {
        let _grow = self.lock_grow();
        self.lock().validate()?;
        self.validate_magazines()
    }
}

impl<P: Machine, B: Backend, C: Config> Drop for PercpuSpace<P, B, C> {
    fn drop(&mut self) {
        // The backend's chunks remain: the owner of the space disposes of their addresses.
        self.chunks.get_mut().free_memory(&self.machine);
        self.states.free_memory(&self.machine);
        self.cells.free_memory(&self.machine);
    }
}

impl<P: Machine, B: Backend, C: Config> fmt::Debug for PercpuSpace<P, B, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PercpuSpace").field("geometry", &self.geometry).finish_non_exhaustive()
    }
}

/// Bits of a page hold a whole page.
const _: () = assert!(PAGE_BITS as u64 * BIT_BYTES as u64 == PAGE_SIZE);
