//! The space of a process: a value, or the one of the process.

use super::core::Core;
use super::hot::Hot;
use super::locks::Shared;
use super::object::{PerCpu, PerCpuBox, Zeroable};
use super::{Error, find};
use crate::fork::{MAKING, prepare_for_forks};
use crate::os::Linux;
use core::alloc::Layout;
use core::fmt;
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicPtr, Ordering};
use va_percpu::Offset;

/// By what a thread finds its unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Index {
    /// The concurrency id (`mm_cid`, Linux 6.3 and later). The threads of the process that run at a
    /// moment have small numbers, so a process of two threads uses two units on a machine of any
    /// size. Where there is none, the CPU.
    #[default]
    ConcurrencyId,
    /// The CPU.
    Cpu,
}

/// The options of a space. Each field has a setter of the same name.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct Options {
    /// By what a thread finds its unit.
    pub index: Index,
    /// Units, from 1 to 8192; by default, as many as there can be CPUs. Threads with a number above share one more unit.
    pub units: Option<u32>,
    /// Uses atomic operations even where there are restartable sequences.
    pub atomics_only: bool,
}

impl Options {
    setters! {
        index: Index,
        units: Option<u32>,
        atomics_only: bool,
    }
}

/// A space from which per-CPU objects are allocated.
///
/// Addresses are reserved in chunks, a unit of 256 KiB for each possible CPU; memory comes when a
/// CPU touches a page. Freed memory is cached for the next object, until [`trim`](Self::trim).
pub struct Space {
    core: NonNull<Core<Linux>>,
}

// SAFETY: the core is shared by threads: what changes in it is atomic or under its lock.
unsafe impl Send for Space {}
// SAFETY: as before.
unsafe impl Sync for Space {}

/// Set under `MAKING`, which a fork holds.
static GLOBAL: AtomicPtr<Space> = AtomicPtr::new(null_mut());

impl Space {
    /// Opens a space.
    ///
    /// # Errors
    /// The number of units is not one, or the system refused memory.
    pub fn new(options: Options) -> Result<Self, Error> {
        let ids = options.units.unwrap_or_else(find::cpus_possible);
        let found = if options.atomics_only { None } else { find::area(options.index) };
        let hot = Hot::new(found.map(|found| found.0), found.map_or(options.index, |found| found.1), ids);
        Ok(Self { core: Core::open(Linux::new(), hot)? })
    }

    /// The space of the process, by concurrency id, opened by the first who asks.
    ///
    /// # Errors
    /// As [`new`](Self::new); the next who asks tries again.
    pub fn global() -> Result<&'static Self, Error> {
        if let Some(space) = Self::try_global() {
            return Ok(space);
        }
        // Before the lock: whoever forks while this thread registers must not leave it locked in the child.
        prepare_for_forks();
        let _making = MAKING.lock();
        if let Some(space) = Self::try_global() {
            return Ok(space);
        }
        let space = Self::new(Options::default())?;
        let place = space.core().alloc_place::<Self>().ok_or(Error::NoRecords)?;
        // SAFETY: allocated for a space; this one lives in its own records and is never dropped.
        unsafe { place.write(space) };
        GLOBAL.store(place.as_ptr(), Ordering::Release);
        // SAFETY: written a moment ago, and never dropped.
        Ok(unsafe { place.as_ref() })
    }

    #[inline(always)]
    fn try_global() -> Option<&'static Self> {
        // Acquire pairs with the release of the thread that made it.
        let global = GLOBAL.load(Ordering::Acquire);
        // SAFETY: null, or a space that is never dropped.
        unsafe { global.as_ref() }
    }

    #[inline(always)]
    fn core(&self) -> &Core<Linux> {
        // SAFETY: it lives until this is dropped.
        unsafe { self.core.as_ref() }
    }

    #[inline(always)]
    pub(super) fn hot(&self) -> &Hot {
        &self.core().hot
    }

    /// The lock of the counter at an offset.
    pub(super) fn lock_of(&self, offset: Offset) -> Shared<'_> {
        self.core().locks.of(offset)
    }

    /// Gives out an object; where it is in unit 0.
    pub(super) fn alloc_raw(&self, layout: Layout) -> Result<(Offset, NonNull<u8>), Error> {
        let offset = self.core().alloc(layout)?;
        Ok((offset, self.core().first(offset)))
    }

    /// Takes an object back.
    ///
    /// # Safety
    /// [`alloc_raw`](Self::alloc_raw) gave it out, and nobody uses it any more.
    pub(super) unsafe fn free_raw(&self, offset: Offset) {
        // SAFETY: by this function's contract.
        if !unsafe { self.core().free(offset) } {
            crate::os::abort_with(format_args!("per-CPU memory: {offset} was freed twice"));
        }
    }

    /// Takes the object back that begins at an address in unit 0; `false` if there is none.
    ///
    /// # Safety
    /// Nobody uses it any more.
    pub(super) unsafe fn free_address(&self, first: NonNull<u8>) -> bool {
        // SAFETY: this function's contract.
        unsafe { self.core().free(self.core().offset_of(first)) }
    }

    /// Gives out zeroed bytes in each unit, which are freed when the value is dropped.
    ///
    /// # Errors
    /// A size or an alignment that no unit can hold (32 KiB, a page), or no memory; nothing has changed.
    /// # Locks
    /// The space's. Cost: tens of nanoseconds, and the zeroing of the units ever used.
    pub fn alloc(&self, layout: Layout) -> Result<PerCpuBox<'_>, Error> {
        PerCpuBox::new(self, layout)
    }

    /// Gives out a `T` in each unit, all zeros. Units that nobody ever used are not touched.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc).
    pub fn zeroed<T: Zeroable>(&self) -> Result<PerCpu<'_, T>, Error> {
        PerCpu::zeroed(self)
    }

    /// Gives out a `T` in each unit, made by `init` from the number of the unit. Touches all units.
    ///
    /// # Errors
    /// As [`alloc`](Self::alloc).
    pub fn with_init<T: Send + Sync>(&self, init: impl FnMut(u32) -> T) -> Result<PerCpu<'_, T>, Error> {
        PerCpu::with_init(self, init)
    }

    /// Units of an object; the last one is that of threads without a number of their own.
    pub fn units(&self) -> u32 {
        self.hot().units()
    }

    /// Units below the highest that was ever used, without the last one.
    pub fn units_used(&self) -> u32 {
        self.hot().mark.load(core::sync::atomic::Ordering::Relaxed)
    }

    /// By what units are found, as far as the system has it.
    pub fn index(&self) -> Index {
        self.hot().index
    }

    /// Returns true if operations are restartable sequences; else they are atomic operations.
    pub fn is_restartable(&self) -> bool {
        self.hot().at.is_some()
    }

    /// Gives memory back of pages in which nothing lives, but for the first chunk, one more, and a few pages.
    ///
    /// # Locks
    /// The space's.
    pub fn trim(&self) {
        self.core().trim();
    }

    /// Objects that live, and chunks.
    ///
    /// # Locks
    /// The space's. Cost: as [`stats`](Self::stats).
    pub fn counts(&self) -> (u64, u32) {
        let stats = self.stats();
        (stats.live, stats.chunks)
    }

    /// Returns the counts of the index, in bytes and pages of one unit. A page that it calls
    /// populated comes when a CPU touches it.
    ///
    /// # Locks
    /// The space's. Cost: chunks, and slabs with room.
    pub fn stats(&self) -> va_percpu::Stats {
        self.core().stats()
    }

    /// Bytes mapped for records, which are the space's own: none comes from the global allocator.
    pub fn records_bytes(&self) -> usize {
        self.core().records_bytes()
    }

    /// Checks every invariant of what is free where.
    ///
    /// # Errors
    /// The first rule broken.
    /// # Locks
    /// The space's, for O(bits of all chunks).
    pub fn validate(&self) -> Result<(), va_base::InvariantViolation> {
        self.core().validate()
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        // SAFETY: opened by `new`; objects borrow the space, so none is left.
        unsafe { Core::close(self.core) };
    }
}

impl fmt::Debug for Space {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Space").field("hot", self.hot()).finish_non_exhaustive()
    }
}

/// Times a section was begun again in this process, since a thread was preempted, moved or signalled in the midst of it.
pub fn restarts() -> u64 {
    super::rseq::restarts()
}
