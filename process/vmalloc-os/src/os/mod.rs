//! The system calls of the allocator, behind a trait, so that a test can let each of them fail.
//!
//! | call | Linux | when |
//! |---|---|---|
//! | [`Os::reserve`] | `mmap(PROT_NONE, MAP_NORESERVE)` | once |
//! | [`Os::map`] | `mmap` | for records, in steps that double |
//! | [`Os::commit`] | `mprotect` | when the frontier advances, in steps of 2 to 64 MiB; where clean pages were shut |
//! | [`Os::map_at`] | `mmap(MAP_FIXED_NOREPLACE)` | when the frontier advances over addresses that were released |
//! | [`Os::spawn`] | `pthread_create` | once, when much is cached for the first time; again after a temporary failure, and in a child |
//! | [`Os::discard`] | `process_madvise`, `madvise(MADV_DONTNEED)` | at a purge, up to 64 runs at a time |
//! | [`Os::move_pages`] | `UFFDIO_MOVE` | when an area grows and cannot stay; when cold pages refill a fresh run; when a hardened area is freed |
//! | [`Os::remap`] | `mremap(MREMAP_DONTUNMAP)` | where pages cannot move |
//! | [`Os::renew`] | `mmap(MAP_FIXED)` | after a `remap`, and when the moved area is freed |
//! | [`Os::guard`], [`Os::unguard`] | `madvise(MADV_GUARD_INSTALL)` and `REMOVE` | when guarded addresses are carved |
//! | [`Os::advise`] | `madvise(MADV_HUGEPAGE)` and `NOHUGEPAGE` | once a zone, after a renewal, and once a chunk of per-CPU data |
//! | [`Os::forbid`] | `mprotect(PROT_NONE)` | where there are no guard markers, for a guard page, or for a hardened area that was freed; when clean pages are shut |
//! | [`Os::reset`] | `mmap(PROT_NONE, MAP_FIXED)` | when no page of a granule of the hardened profile is accessible any more |
//! | [`Os::keep_policy`] | `get_mempolicy`, `mbind` | when an area moves or grows whose mappings the program changed |
//! | [`Os::resident`] | `mincore` | when a hardened area is freed; before zeros are written over 64 KiB or more, or pages moved; once a block, when the cache seems to exceed its budget |
//! | [`Os::now`] | `clock_gettime`, in the kernel's page | in slow frees, and one cached allocation of 128 |
//! | [`Os::available`] | `openat`, `read`, `close` | when 32 MiB more or fewer are cached, and twice a second at most, in slow frees |
//! | [`Os::random`] | `getrandom` | when a hardened allocator is made, and in a child of a fork |
//!
//! Calls that an older kernel or a profile lacks are detected at the first call and not made again. From then on they
//! fail at no cost, and their callers use another method.
//!
//! If only plain calls may be made (`plain.rs`), each of the others answers as a kernel that lacks it.
//! Each is made in [`unless_plain`].
//!
//! No address is allocated, freed or reused by a system call of its own.

#[cfg(not(miri))]
mod advice;
#[cfg(not(miri))]
mod available;
#[cfg_attr(miri, path = "sim.rs")]
mod linux;
#[cfg(not(miri))]
mod moves;
mod once;
mod plain;
#[cfg(not(miri))]
mod policy;
mod rseq;
#[cfg(any(test, feature = "testing"))]
pub mod shim;
mod thread;
#[cfg(not(miri))]
mod uffd;
mod word;

#[cfg(miri)]
pub(crate) use linux::read_memory;
pub use linux::{Linux, abort_with, done, errno, pointer, process_id, read_start};
pub(crate) use linux::{find, register_fork_handlers};
pub use once::Once;
#[cfg(all(test, loom))]
pub(crate) use once::{UNKNOWN, known_or};
pub(crate) use plain::forget_calls;
#[cfg(all(test, loom))]
pub(crate) use plain::{begin as begin_call, end as end_call, forbid as forbid_calls};
pub use plain::{is_plain, plain_calls_only, unless_plain};
#[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
pub use rseq::rseq_area;
pub use rseq::{can_end_sections, end_sections, fence_all, has_concurrency_ids, has_sections};
pub(crate) use thread::thread_name;
pub use thread::{Entry, ThreadName, futex_wait, futex_wait_for, futex_wake, thread_number, yield_now};
#[cfg(not(miri))]
pub use uffd::{close, raise};
pub(crate) use word::Word;

use core::ffi::c_void;

/// An error number of the system.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Errno(pub i32);

impl Errno {
    /// Out of memory, of address space, or of mappings.
    pub const NOMEM: Self = Self(libc::ENOMEM);
}

impl core::fmt::Display for Errno {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "errno {}", self.0)
    }
}

/// A system call, by its purpose.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Call {
    /// Reserving the arena.
    Reserve,
    /// Mapping memory for records.
    Map,
    /// Making more of the arena accessible.
    Commit,
    /// Releasing pages.
    Discard,
    /// Moving pages to other addresses.
    Move,
    /// Mapping fresh pages over a moved range.
    Renew,
    /// Making pages inaccessible.
    Forbid,
    /// Reading random numbers.
    Random,
    /// Reading which pages are resident.
    Resident,
    /// Moving a mapping to other addresses.
    Remap,
    /// Making pages fault.
    Guard,
    /// Making guarded pages usable again.
    Unguard,
    /// Starting the thread that releases memory.
    Spawn,
    /// Advising on huge pages.
    Advise,
    /// Unmapping.
    Unmap,
}

/// The advice on huge pages for a span.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Huge {
    /// Huge pages, where whole ones fit.
    Yes,
    /// No huge pages.
    No,
}

/// The point at which a move stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stopped {
    /// The bytes of whole pages that were moved before it: they are at the destination only.
    pub bytes: usize,
    /// The cause.
    pub errno: Errno,
}

/// Addresses `[at, at + bytes)`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// The first address.
    pub at: usize,
    /// The number of bytes.
    pub bytes: usize,
}

/// The memory that is available to a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Room {
    /// Approximate.
    pub bytes: u64,
    /// True if a control group is nearly full, or if its tasks or those of the machine wait for memory.
    pub is_short: bool,
}

impl Room {
    /// No bound.
    pub(crate) const UNBOUNDED: Self = Self { bytes: u64::MAX, is_short: false };

    /// Returns the room under both bounds.
    pub(crate) fn and(self, other: Self) -> Self {
        Self { bytes: self.bytes.min(other.bytes), is_short: self.is_short || other.is_short }
    }
}

/// The system calls of the allocator. Every span is whole pages.
pub trait Os: Send + Sync + 'static {
    /// Reserves address space that can be committed, and returns its address.
    fn reserve(&self, bytes: usize) -> Result<usize, Errno>;

    /// Maps zeroed, writable memory, and returns its address.
    fn map(&self, bytes: usize) -> Result<usize, Errno>;

    /// Unmaps a mapping, or part of one. Returns `false` if the system does not: a hole in a mapping makes two of it, of
    /// which there may be only so many. Then all of it is as before.
    ///
    /// # Safety
    /// `reserve` or `map` returned it, and no reference to it exists any more.
    unsafe fn unmap(&self, span: Span) -> bool;

    /// Makes part of a reservation readable and writable.
    ///
    /// # Safety
    /// It is part of a range that `reserve` returned.
    unsafe fn commit(&self, span: Span) -> Result<(), Errno>;

    /// Releases the pages of `spans`; they read as zeros afterwards. An error has the number of spans that were
    /// released.
    ///
    /// # Safety
    /// They were committed, and no reference to them exists.
    unsafe fn discard(&self, spans: &[Span]) -> Result<(), (usize, Errno)>;

    /// Moves the pages of `from` to `to`, within the same mapping, and drops the pages there. `from` reads as zeros
    /// afterwards. An error has the number of bytes that were moved.
    ///
    /// It always fails where the kernel lacks it (before 6.8), and for pages that a child of a fork still shares.
    ///
    /// # Safety
    /// Both are committed, disjoint, and in one reservation; no reference to either exists.
    unsafe fn move_pages(&self, from: Span, to: usize) -> Result<(), Stopped>;

    /// Returns true if [`move_pages`](Self::move_pages) may succeed: the kernel has not turned out to lack it.
    fn can_move(&self) -> bool;

    /// Moves `from` to `to` as a mapping of its own, and drops the pages there. `from` reads as zeros afterwards. On an
    /// error, `from` is unchanged, and `to` may have become a hole: see [`mend`](Self::mend).
    ///
    /// # Safety
    /// `to` and as many bytes were committed, and no reference to either exists.
    unsafe fn remap(&self, from: Span, to: usize) -> Result<(), Errno>;

    /// Makes every access to a span fault, and drops its pages. The mapping is not split.
    ///
    /// It always fails where the kernel lacks it (before 6.13), and for locked memory.
    ///
    /// # Safety
    /// It was committed, and no reference to it exists.
    unsafe fn guard(&self, span: Span) -> Result<(), Errno>;

    /// Makes pages usable again that [`guard`](Self::guard) made fault; they read as zeros. Other pages of the span are
    /// unchanged.
    ///
    /// # Safety
    /// As [`guard`](Self::guard).
    unsafe fn unguard(&self, span: Span) -> Result<(), Errno>;

    /// Returns true if [`guard`](Self::guard) may succeed. The first call tests it.
    fn can_guard(&self) -> bool;

    /// Advises whether a span is to have huge pages. If the advice differs from that of its neighbours, the span
    /// becomes a mapping of its own.
    ///
    /// # Safety
    /// It is part of a range that `reserve` returned.
    unsafe fn advise(&self, span: Span, huge: Huge) -> Result<(), Errno>;

    /// Advises whether a child of a fork inherits the pages of a span or reads zeros.
    ///
    /// # Safety
    /// They were committed, and no reference to them exists.
    unsafe fn inherit(&self, span: Span, inherited: bool) -> Result<(), Errno>;

    /// Returns true if [`inherit`](Self::inherit) may succeed.
    fn can_disinherit(&self) -> bool;

    /// Drops state that a child of a fork does not have. Called in the child, before anything else.
    fn forget(&self);

    /// Maps fresh pages over a span, so that it merges with the mapping around it.
    ///
    /// # Safety
    /// It was committed, and no reference to it exists.
    unsafe fn renew(&self, span: Span) -> Result<(), Errno>;

    /// Sets the memory policy of `from` on pages that are faulted in at `to` from now on. Returns `false` if `from` has
    /// none, or more than one, or the system call fails.
    ///
    /// # Safety
    /// Both are part of a range that `reserve` returned; the caller owns `to` exclusively.
    unsafe fn keep_policy(&self, from: Span, to: Span) -> bool;

    /// Maps a span again as [`reserve`](Self::reserve) does. Its pages, page tables and guards are dropped. On an error
    /// its access is unchanged, and its pages may be dropped.
    ///
    /// # Safety
    /// It is part of a range that `reserve` returned, and no reference to it exists.
    unsafe fn reset(&self, span: Span) -> Result<(), Errno>;

    /// Maps fresh pages where a failed move may have left a hole. Returns `false` if something is mapped there: the old
    /// mapping, or one that another thread made in the hole.
    ///
    /// # Safety
    /// As [`renew`](Self::renew).
    unsafe fn mend(&self, span: Span) -> bool;

    /// Maps fresh pages where nothing is mapped; fails if something is.
    ///
    /// # Safety
    /// Code that accesses addresses in the span must be correct with the new pages there.
    unsafe fn map_at(&self, span: Span) -> Result<(), Errno>;

    /// Makes pages inaccessible; their contents are preserved.
    ///
    /// # Safety
    /// They were reserved, and no reference to them exists.
    unsafe fn forbid(&self, span: Span) -> Result<(), Errno>;

    /// Writes for each page of a span, as the lowest bit of a byte of `seen`, whether it is in memory. Swapped-out
    /// pages are not.
    fn resident(&self, span: Span, seen: &mut [u8]) -> Result<(), Errno>;

    /// Returns random numbers that cannot be predicted.
    fn random(&self) -> Result<[u64; 2], Errno>;

    /// Starts a thread on a stack, with all signals blocked. libc's memory for it does not come from the global
    /// allocator.
    ///
    /// # Safety
    /// The stack is mapped, and no other thread uses it until this one is joined, or a fork left it behind. `argument`
    /// is as `entry` requires.
    unsafe fn spawn(&self, stack: Span, entry: Entry, argument: *mut c_void) -> Result<ThreadName, Errno>;

    /// Waits until a thread has ended.
    ///
    /// # Safety
    /// `spawn` started it in this process, and it was not joined.
    unsafe fn join(&self, thread: ThreadName);

    /// Returns the CPU that the caller runs on, or ran on a moment ago.
    fn cpu(&self) -> usize;

    /// Returns the number of possible CPUs.
    fn cpus(&self) -> usize;

    /// Returns the limit of address space in bytes, if there is one.
    fn address_limit(&self) -> Option<usize>;

    /// Returns the memory that is available to this process, if the system reports it.
    fn available(&self) -> Option<Room>;

    /// Returns the nanoseconds of a monotonic clock with a resolution of some milliseconds. Returns `None` if the clock
    /// must not be read.
    fn now(&self) -> Option<u64>;

    /// Returns the greatest number of mappings of the process.
    fn mappings_max(&self) -> u64;
}

/// Held by each test that forks, and by those that move pages: none can be moved that a child shares.
#[cfg(test)]
fn alone() -> std::sync::MutexGuard<'static, ()> {
    static FORKS: std::sync::Mutex<()> = std::sync::Mutex::new(());
    FORKS.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}
