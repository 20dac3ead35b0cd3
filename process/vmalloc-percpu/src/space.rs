//! A space of per-CPU objects: a value, or the global one of the process.

use super::error::Error;
use super::find;
use super::hot::Hot;
use super::locks::Shared;
use super::options::{Index, Options};
use super::state::Core;
use core::alloc::Layout;
use core::fmt;
use core::ptr::NonNull;
use va_percpu::Offset;
use vmalloc_os::Published;
use vmalloc_os::fork::{MAKING, prepare_for_forks};
use vmalloc_os::os::Linux;

/// A space from which per-CPU objects are allocated.
///
/// Addresses are reserved in chunks, a unit of 256 KiB for each possible CPU; pages become resident when a CPU accesses
/// them. Freed memory is cached for the next object, until [`trim`](Self::trim). Small objects are in up to 64 caches,
/// each by a number of threads, of 2 to 32 KiB of each unit.
pub struct Space {
    core: NonNull<Core<Linux>>,
}

// SAFETY: the core is shared by threads: its mutable state is atomic or under its lock.
unsafe impl Send for Space {}
// SAFETY: as before.
unsafe impl Sync for Space {}

/// The global space, set under `MAKING`, which a fork holds. Protocol PR-PUBLISH.
static GLOBAL: Published<Space> = Published::new();

impl Space {
    /// Opens a space.
    ///
    /// # Errors
    /// The number of units is invalid, or the system has no memory.
    pub fn new(options: Options) -> Result<Self, Error> {
        let ids = options.units.unwrap_or_else(find::cpus_possible);
        let found = if options.atomics_only { None } else { find::area(options.index) };
        let hot = Hot::new(found.map(|found| found.0), found.map_or(options.index, |found| found.1), ids);
        Ok(Self { core: Core::open(Linux::new(), hot)? })
    }

    /// Returns the global space of the process, by concurrency id, which the first call opens.
    ///
    /// # Errors
    /// As [`new`](Self::new); the next call tries again.
    pub fn global() -> Result<&'static Self, Error> {
        if let Some(space) = Self::try_global() {
            return Ok(space);
        }
        // Before the lock: a fork by another thread during the registration must not leave the lock held in the child.
        prepare_for_forks();
        let _making = MAKING.lock();
        if let Some(space) = Self::try_global() {
            return Ok(space);
        }
        let space = Self::new(Options::default())?;
        let place = space.core().alloc_place::<Self>().ok_or(Error::NoRecords)?;
        // SAFETY: allocated for a space; this one is in its own records and is never dropped.
        unsafe { place.write(space) };
        let global = GLOBAL.publish(place).map_or_else(|other| other, |()| place);
        // SAFETY: written above, and never dropped.
        Ok(unsafe { global.as_ref() })
    }

    #[inline(always)]
    fn try_global() -> Option<&'static Self> {
        // SAFETY: a space that is never dropped.
        GLOBAL.get().map(|global| unsafe { global.as_ref() })
    }

    #[inline(always)]
    pub(super) fn core(&self) -> &Core<Linux> {
        // SAFETY: it lives until this is dropped.
        unsafe { self.core.as_ref() }
    }

    #[inline(always)]
    pub(super) fn hot(&self) -> &Hot {
        self.core().hot
    }

    /// Returns the lock of the counter at an offset.
    pub(super) fn lock_of(&self, offset: Offset) -> Shared<'_> {
        self.core().locks.of(offset)
    }

    /// Allocates an object. Returns its offset, and its address in unit 0.
    pub(super) fn alloc_raw(&self, layout: Layout) -> Result<(Offset, NonNull<u8>), Error> {
        let offset = self.core().alloc(layout)?;
        Ok((offset, self.core().first(offset)))
    }

    /// Frees an object.
    ///
    /// # Safety
    /// [`alloc_raw`](Self::alloc_raw) allocated it, and it is not used any more.
    pub(super) unsafe fn free_raw(&self, offset: Offset) {
        // SAFETY: by this function's contract.
        if !unsafe { self.core().free(offset) } {
            vmalloc_os::os::abort_with(format_args!("per-CPU memory: {offset} was freed twice"));
        }
    }

    /// Frees the object that begins at an address in unit 0. Returns `false` if there is none.
    ///
    /// # Safety
    /// The object is not used any more.
    pub(super) unsafe fn free_address(&self, first: NonNull<u8>) -> bool {
        // SAFETY: this function's contract.
        unsafe { self.core().free(self.core().offset_of(first)) }
    }

    /// Returns the number of units of an object. The last one is for threads without a number of their own.
    #[must_use]
    pub fn units(&self) -> u32 {
        self.hot().units()
    }

    /// Returns the number of units up to the highest one that was ever used, without the last one.
    #[must_use]
    pub fn units_used(&self) -> u32 {
        self.hot().mark.load(core::sync::atomic::Ordering::Relaxed)
    }

    /// Returns the number by which threads find their units, as the system supports it.
    #[must_use]
    pub fn index(&self) -> Index {
        self.hot().index
    }

    /// Returns true if operations are restartable sequences; else they are atomic operations.
    #[must_use]
    pub fn is_restartable(&self) -> bool {
        self.hot().at.is_some()
    }

    /// Drains the caches, and releases pages without live objects, except for the first chunk, one more, and a few
    /// pages. A cache that a thread uses at that moment is left.
    ///
    /// # Locks
    /// That of one cache, and those of the index.
    pub fn trim(&self) {
        self.core().trim();
    }

    /// Returns the numbers of live objects and of chunks.
    ///
    /// # Locks
    /// As [`stats`](Self::stats), and its cost.
    #[must_use]
    pub fn counts(&self) -> (u64, u32) {
        let stats = self.stats();
        (stats.live, stats.chunks)
    }

    /// Returns the counts of the index, in bytes and pages of one unit. A page that counts as populated becomes
    /// resident when a CPU accesses it.
    ///
    /// # Locks
    /// That of one cache, and that of the index. Cost: O(chunks and slabs with room).
    #[must_use]
    pub fn stats(&self) -> va_percpu::Stats {
        self.core().stats()
    }

    /// Returns the bytes mapped for the space's records, none of which come from the global allocator.
    #[must_use]
    pub fn records_bytes(&self) -> usize {
        self.core().records_bytes()
    }

    /// Checks every invariant of the index of free memory.
    ///
    /// # Errors
    /// The first violated invariant.
    /// # Locks
    /// Those of all caches, for O(bits of all chunks).
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

/// Returns the number of sections that were restarted in this process, because the thread was preempted, moved or
/// signalled.
#[must_use]
pub fn restarts() -> u64 {
    super::rseq::restarts()
}
