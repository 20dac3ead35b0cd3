//! The system calls that the allocator makes, behind a trait, so that a test can refuse each of them.
//!
//! | call | Linux | when |
//! |---|---|---|
//! | [`Os::reserve`] | `mmap(PROT_NONE, MAP_NORESERVE)` | once |
//! | [`Os::map`] | `mmap` | for records, in steps that double |
//! | [`Os::commit`] | `mprotect` | when the frontier advances, in steps of 2 to 64 MiB; where clean pages were shut |
//! | [`Os::map_at`] | `mmap(MAP_FIXED_NOREPLACE)` | when the frontier advances over addresses that were released |
//! | [`Os::spawn`] | `pthread_create` | once, when much is kept for the first time; again after a refusal that may pass, and in a child |
//! | [`Os::discard`] | `process_madvise`, `madvise(MADV_DONTNEED)` | at a purge, up to 64 runs at a time |
//! | [`Os::move_pages`] | `UFFDIO_MOVE` | when an area grows and cannot stay; when cold pages refill a fresh run; when a hardened area is freed |
//! | [`Os::remap`] | `mremap(MREMAP_DONTUNMAP)` | where that is refused |
//! | [`Os::renew`] | `mmap(MAP_FIXED)` | after a `remap`, and when what it moved is freed |
//! | [`Os::guard`], [`Os::unguard`] | `madvise(MADV_GUARD_INSTALL)` and `REMOVE` | when guarded addresses are carved |
//! | [`Os::advise`] | `madvise(MADV_HUGEPAGE)` and `NOHUGEPAGE` | once a zone, after a renewal, and once a chunk of per-CPU data |
//! | [`Os::forbid`] | `mprotect(PROT_NONE)` | where there are no guard markers, for a guard page, or for a hardened area that was freed; when clean pages are shut |
//! | [`Os::reset`] | `mmap(PROT_NONE, MAP_FIXED)` | when nothing of the hardened profile is open in a granule any more |
//! | [`Os::keep_policy`] | `get_mempolicy`, `mbind` | when an area moves or grows whose mappings the program changed |
//! | [`Os::resident`] | `mincore` | when a hardened area is freed; before zeros are written over 64 KiB or more, or pages moved; once a block, when more seems to be kept than may be |
//! | [`Os::now`] | `clock_gettime`, in the kernel's page | in slow frees, and one cached allocation of 128 |
//! | [`Os::available`] | `openat`, `read`, `close` | at 32 MiB more or less, and twice a second at most, in slow frees |
//! | [`Os::random`] | `getrandom` | when a hardened allocator is made, and in a child of a fork |
//!
//! Calls that an older kernel or a profile lacks are detected at the first call and not made again.
//! From then on they fail at no cost, and their callers do without.
//!
//! Where only plain calls may be made (`plain.rs`), each of the others answers as a kernel that lacks it.
//!
//! No address is given out, taken back or reused by a system call of its own.

mod advice;
mod available;
mod linux;
mod plain;
mod policy;
mod probe;
#[cfg(test)]
pub(crate) mod shim;
mod thread;
mod uffd;

pub use plain::{is_plain, plain_calls_only};
pub use probe::{Answer, Machine, machine};

pub(crate) use linux::Linux;
#[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
pub(crate) use linux::rseq_area;
pub(crate) use linux::{
    abort_with, done, errno, find, futex_wait, futex_wake, pointer, process_id, register_fork_handlers,
    thread_name,
};
pub(crate) use thread::{Entry, ThreadName, futex_wait_for, thread_number, yield_now};

use core::ffi::c_void;

/// An error number of the system.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Errno(pub i32);

impl Errno {
    /// Out of memory, of address space, or of mappings.
    pub(crate) const NOMEM: Self = Self(libc::ENOMEM);
}

impl core::fmt::Display for Errno {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "errno {}", self.0)
    }
}

/// A system call, by what it is for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Call {
    /// Reserving the arena.
    Reserve,
    /// Mapping memory for records.
    Map,
    /// Making more of the arena readable and writable.
    Commit,
    /// Giving pages back.
    Discard,
    /// Moving pages to other addresses.
    Move,
    /// Mapping fresh pages over what was moved.
    Renew,
    /// Taking the access to pages away.
    Forbid,
    /// Asking for random numbers.
    Random,
    /// Asking which pages are there.
    Resident,
    /// Moving a mapping to other addresses.
    Remap,
    /// Making pages fault.
    Guard,
    /// Making them usable again.
    Unguard,
    /// Making the thread that gives memory back.
    Spawn,
    /// Saying where huge pages are to be used.
    Advise,
}

/// The advice on huge pages for a span.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Huge {
    /// Huge pages, where whole ones fit.
    Yes,
    /// No huge pages.
    No,
}

/// The point at which a move stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Stopped {
    /// Whole pages that were moved before, in bytes: they are there, and no longer here.
    pub(crate) bytes: usize,
    /// The reason.
    pub(crate) errno: Errno,
}

/// Addresses `[at, at + bytes)`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Span {
    pub(crate) at: usize,
    pub(crate) bytes: usize,
}

/// The memory that a process could have more than it has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Room {
    /// About.
    pub(crate) bytes: u64,
    /// A control group is nearly full, or its tasks or those of the machine wait for memory.
    pub(crate) is_short: bool,
}

impl Room {
    /// No bound at all.
    pub(crate) const UNBOUNDED: Self = Self { bytes: u64::MAX, is_short: false };

    /// The room where both are bounds.
    pub(crate) fn and(self, other: Self) -> Self {
        Self { bytes: self.bytes.min(other.bytes), is_short: self.is_short || other.is_short }
    }
}

/// The calls that the allocator makes to the system. Every span is whole pages.
pub(crate) trait Os: Send + Sync + 'static {
    /// Reserves address space that can be committed, and returns where.
    fn reserve(&self, bytes: usize) -> Result<usize, Errno>;

    /// Maps zeroed, writable memory, and returns where.
    fn map(&self, bytes: usize) -> Result<usize, Errno>;

    /// Gives a mapping back.
    ///
    /// # Safety
    /// `reserve` or `map` returned it, and nobody refers to it any more.
    unsafe fn unmap(&self, span: Span);

    /// Makes part of what was reserved readable and writable.
    ///
    /// # Safety
    /// It is part of what `reserve` returned.
    unsafe fn commit(&self, span: Span) -> Result<(), Errno>;

    /// Gives the pages of `spans` back; they read as zeros afterwards. On an error, tells how many spans were done.
    ///
    /// # Safety
    /// They were committed, and nobody else refers to them.
    unsafe fn discard(&self, spans: &[Span]) -> Result<(), (usize, Errno)>;

    /// Moves the pages of `from` to `to`, in the same mapping, and what was there is dropped; `from` reads as zeros
    /// afterwards. On an error, tells how much of it was moved.
    ///
    /// It is refused for good where the kernel lacks it (before 6.8), and for pages that a child of a fork still has a
    /// share in.
    ///
    /// # Safety
    /// Both are committed, apart, and in one reservation; nobody else refers to either.
    unsafe fn move_pages(&self, from: Span, to: usize) -> Result<(), Stopped>;

    /// Returns true if [`move_pages`](Self::move_pages) may succeed: nobody refused it for good yet.
    fn can_move(&self) -> bool;

    /// Moves `from` to `to` as a mapping of its own; what was there is dropped. `from` reads as zeros afterwards. On an
    /// error, `from` is as it was, and `to` may have become a hole: see [`mend`](Self::mend).
    ///
    /// # Safety
    /// `to` and as many bytes were committed, and nobody else refers to either.
    unsafe fn remap(&self, from: Span, to: usize) -> Result<(), Errno>;

    /// Makes every access to a span fault, and drops its pages. The mapping stays one.
    ///
    /// It is refused for good where the kernel lacks it (before 6.13), and for memory that is locked.
    ///
    /// # Safety
    /// It was committed, and nobody else refers to it.
    unsafe fn guard(&self, span: Span) -> Result<(), Errno>;

    /// Makes what [`guard`](Self::guard) took usable again; it reads as zeros. Other pages of the span stay as they
    /// are.
    ///
    /// # Safety
    /// As [`guard`](Self::guard).
    unsafe fn unguard(&self, span: Span) -> Result<(), Errno>;

    /// Returns true if [`guard`](Self::guard) may succeed: asks the kernel once.
    fn can_guard(&self) -> bool;

    /// Says whether huge pages are to be behind a span. Another answer than its neighbours' makes it a mapping of its
    /// own.
    ///
    /// # Safety
    /// It is part of what `reserve` returned.
    unsafe fn advise(&self, span: Span, huge: Huge) -> Result<(), Errno>;

    /// Advises whether a child of a fork has the pages of a span, or zeros.
    ///
    /// # Safety
    /// They were committed, and nobody else refers to them.
    unsafe fn inherit(&self, span: Span, inherited: bool) -> Result<(), Errno>;

    /// Returns true if [`inherit`](Self::inherit) may succeed.
    fn can_disinherit(&self) -> bool;

    /// Forgets what a child of a fork does not have. Called in the child, before anything else.
    fn forget(&self);

    /// Maps fresh pages over a span, so that it is one mapping with what is around it.
    ///
    /// # Safety
    /// It was committed, and nobody else refers to it.
    unsafe fn renew(&self, span: Span) -> Result<(), Errno>;

    /// Sets the memory policy of `from` on the pages of `to` that come from now on. Returns `false` if `from` has none,
    /// or more than one, or the system refuses.
    ///
    /// # Safety
    /// Both are part of what `reserve` returned; the caller has `to` to itself.
    unsafe fn keep_policy(&self, from: Span, to: Span) -> bool;

    /// Maps a span anew as [`reserve`](Self::reserve) does. Its pages, its tables of pages and its guards go.
    /// On an error it is as it was.
    ///
    /// # Safety
    /// It is part of what `reserve` returned, and nobody refers to it.
    unsafe fn reset(&self, span: Span) -> Result<(), Errno>;

    /// Maps fresh pages where a move that failed may have left a hole. `false` if something is mapped there: what
    /// always was, or what another thread put into the hole.
    ///
    /// # Safety
    /// As [`renew`](Self::renew).
    unsafe fn mend(&self, span: Span) -> bool;

    /// Maps fresh pages where nothing is mapped; fails if something is.
    ///
    /// # Safety
    /// Whoever finds memory there takes it for what it is.
    unsafe fn map_at(&self, span: Span) -> Result<(), Errno>;

    /// Makes pages neither readable nor writable; what is in them stays.
    ///
    /// # Safety
    /// They were reserved, and nobody else refers to them.
    unsafe fn forbid(&self, span: Span) -> Result<(), Errno>;

    /// Tells for each page of a span, by the lowest bit of a byte of `seen`, whether it is in memory. What was swapped
    /// out is not.
    fn resident(&self, span: Span, seen: &mut [u8]) -> Result<(), Errno>;

    /// Numbers that nobody can guess.
    fn random(&self) -> Result<[u64; 2], Errno>;

    /// Makes a thread on a stack, with all signals blocked. What libc needs for it does not come from the global
    /// allocator.
    ///
    /// # Safety
    /// The stack was mapped and nobody else uses it until the thread was joined, or a fork left it behind; `argument`
    /// is what `entry` expects.
    unsafe fn spawn(&self, stack: Span, entry: Entry, argument: *mut c_void) -> Result<ThreadName, Errno>;

    /// Waits until a thread has ended.
    ///
    /// # Safety
    /// `spawn` made it, in this process, and nobody joined it.
    unsafe fn join(&self, thread: ThreadName);

    /// The CPU that the caller runs on, or ran on a moment ago.
    fn cpu(&self) -> usize;

    /// CPUs that there can be.
    fn cpus(&self) -> usize;

    /// Bytes of address space that the process may have, if they are limited.
    fn address_limit(&self) -> Option<usize>;

    /// The memory that the system could give this process more than it has, if it tells.
    fn available(&self) -> Option<Room>;

    /// Nanoseconds of a clock that never goes back, exact to some milliseconds; `None` if nobody may ask.
    fn now(&self) -> Option<u64>;

    /// Mappings that the process may have.
    fn mappings_max(&self) -> u64;
}
