//! A process's allocator for large memory, after the Linux kernel's `vmalloc`.
//!
//! Address space is reserved once, and memory in it is cached between uses. In most cases neither
//! an allocation nor a free makes a system call. There is no `mmap`, `munmap` or `mprotect` for
//! each, and no page fault for memory that was used before.
//!
//! ```
//! use std::alloc::Layout;
//! use vmalloc::Vmalloc;
//!
//! let memory = Vmalloc::global()?;
//! let area = memory.alloc(Layout::from_size_align(1 << 20, 4096)?)?;
//! // SAFETY: a megabyte of our own.
//! unsafe { area.write_bytes(7, 1 << 20) };
//! // SAFETY: our own area, and no reference to it remains.
//! unsafe { memory.free(area) }?;
//!
//! // Or safely: a zeroed buffer that is freed on drop, and grows in place if it can.
//! let mut buffer = memory.buffer(1 << 20)?;
//! buffer[3] = 1;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | what | where |
//! |---|---|
//! | an allocator as a value, or that of the process | [`Vmalloc`], [`Vmalloc::global`], [`Options`] |
//! | a buffer that is freed on drop | [`Buffer`] |
//! | every large allocation of a program | [`LargeAlloc`] as `#[global_allocator]` |
//! | collections of `allocator-api2` | `&Vmalloc`, feature `allocator-api2` |
//! | chosen page frames in one range, a frame any number of times | [`Mappings`], [`Frames`], [`Mapping`] |
//! | reads of memory that may be unmapped, without a fault | [`Vmalloc::vread`], [`Mappings::vread`] |
//! | a copy of data for each CPU | [`percpu`], [`per_cpu!`] |
//! | gauges and counters of the crate `metrics` | [`Vmalloc`]'s `publish_metrics`, feature `metrics` |
//! | the features of this system, and the code paths that use them | [`machine()`] |
//! | counts and areas | [`Vmalloc::stats`], [`Vmalloc::vmallocinfo`] |
//! | guard pages; mistakes that fault or abort | [`Options::guards`], [`Options::profile`], [`Profile::Hardened`] |
//!
//! # Guarantees
//! - **Sizes.** The requested size ([`Vmalloc::requested_bytes`]), the usable size ([`Vmalloc::usable_bytes`], whole
//!   pages) and the occupied size are three numbers. Every power of two is a valid alignment.
//! - **Errors** are typed, carry their numbers and change nothing. A double free, or a free of an address where no area
//!   begins, is detected in O(1) and is such an error. [`LargeAlloc`] and the collections cannot return one, and abort
//!   with a message.
//! - **Cached memory** is freed memory that stays resident. It is bounded by [`Options::cache_bytes_max`], the
//!   magazines of CPUs included. Pages of a huge page that other areas use stay resident. Cached memory is released on
//!   demand (the longest unused first), after about [`Options::decay`] without use, when the system is short of memory,
//!   or by [`Vmalloc::trim`]. A background thread does the second, if [`Options::background_thread`] is set and 16 MiB
//!   are cached. All signals are blocked in it, and it ends with its allocator. While it sleeps, one area of less than
//!   2 MiB a CPU may stay, since a fast free does not wake it. Without the thread the program's own calls do it, and
//!   the cache of a program that makes no calls stays. The pages that a resize frees count as freed.
//! - **Huge pages** are used for areas from 64 KiB on, if the system has any, by [`Options::huge_pages`]. Adjacent
//!   areas can share one. The first access to a fresh huge page makes 2 MiB resident. `HugePages::Never` suits sparsely
//!   used large areas, `HugePages::System` unmodified programs.
//! - **Guards** ([`Options::guards`]): an inaccessible page behind each area. A million of them need only a few
//!   mappings (Linux 6.13). Earlier versions allow at most an eighth of `vm.max_map_count`, and areas beyond that have
//!   none.
//! - **Hardened** ([`Profile::Hardened`]): a byte past the end faults if the alignment lets the area end with its page;
//!   else the free aborts. Freed memory cannot be read by any caller. It faults until its addresses are reused, which
//!   is after 1 GiB of frees or 16,384 frees, or once a request finds no room without them. Areas are zeros. A small area is at one of at least 2^21.6 random
//!   addresses. Bad and double frees abort with a diagnosis of the address. A child of a fork leaks the areas that
//!   calls of other threads were using at that moment. An allocator created under `mlockall(MCL_FUTURE)` makes its
//!   walls by protection. A later `MCL_CURRENT` without `MCL_ONFAULT` would populate its whole window.
//! - **Records** never come from the global allocator, which this allocator may be. No thread-local variable has a
//!   destructor: a thread may exit at any time, and free areas that other threads allocated.
//! - **Growth**: in place where the addresses above are free; else the pages move to a range with room for twice the
//!   size, by `UFFDIO_MOVE` or `mremap`. Areas below 2 MiB, and the last 2 MiB of larger ones, are copied. [`Stats`]
//!   counts each of these.
//! - **fork**: the child can allocate and free, whatever other threads were doing. Areas that other threads were
//!   allocating or freeing at that moment stay allocated in the child. Each process has its own copy of an area.
//!   `vfork`, `clone` and `_Fork`, which call no handlers, must be followed by `exec` or `_exit`. Cached memory beyond
//!   a megabyte is hidden from the child, which would share it; the hardened profile releases it before the fork. A
//!   signal handler may fork during a call of its thread. libc's list of streams is locked together with our locks.
//!   While a fork is prepared all locks are held. A handler of `pthread_atfork` that was registered before the first
//!   allocator was made is called after ours. It must neither allocate from one nor free to it. Nor may it take a
//!   lock under which other threads do, or open or close streams. Either would deadlock. With [`LargeAlloc`] that is
//!   memory of [`LARGE_BYTES`] or more. Handlers registered later may; [`prepare_for_forks`] registers ours at once.
//! - **Signals**: a signal handler may call [`Vmalloc::contains`], [`Vmalloc::usable_bytes`] and
//!   [`Vmalloc::requested_bytes`], and must not allocate or free. These take no lock, but for the sizes in the hardened
//!   profile, unless the handler interrupted a call that holds it.
//! - **Descriptors**: a free that released much memory opens files of `/proc` and `/sys` briefly. Each occupies the
//!   lowest free number for the time of one call, which an `open` of another thread may observe.
//! - **Limits**: with `RLIMIT_AS` the arena is at most half of the limit, which also counts the addresses of freed
//!   areas. Where overcommit is denied (mode 2), and for `RLIMIT_DATA`, only memory below the frontier is charged, in
//!   steps of 2 MiB or more where those are granted. A step that fails is an error, and all existing memory stays
//!   usable. A control group is charged for live and cached memory, so the budget belongs well below its limit.
//!   `mlockall` populates the memory below the frontier; locked memory is released nevertheless (Linux 5.18).
//! - **Kernels and profiles** that lack or deny `userfaultfd`, `process_madvise`, `rseq`, guards, huge pages or
//!   `mremap` are detected at the first call. Then other calls do the work, with the same results. The program may
//!   close the userfaultfd that stays open; a file that later has its number is not touched. The memory file of
//!   [`Mappings`] must stay open.
//!
//! Linux 5.10 and later, with addresses of 64 bits. On x86-64 with glibc 2.35 and later, the CPU number is read without
//! a call.
//!
//! # Crates
//! [`percpu`] is the crate `vmalloc-percpu`. [`Mappings`] and its types are those of the crate `vmalloc-vmap`. The
//! features `percpu` and `vmap`, which are on by default, export them here. A program that needs one of them alone can
//! depend on that crate. All of them use the crate `vmalloc-os`.

// A shared library of C is smaller without the standard library.
#![cfg_attr(not(any(test, feature = "std")), no_std)]
#![warn(missing_debug_implementations, clippy::return_self_not_must_use)]

#[cfg(feature = "allocator-api2")]
mod allocator;
mod arena;
mod buffer;
mod empty;
mod error;
mod frontier;
mod hardened;
mod heap;
mod large_alloc;
#[cfg(all(test, loom))]
mod loom;
mod magazine;
#[cfg(feature = "metrics")]
mod metrics;
mod options;
mod page_word;
mod probe;
mod space_config;
mod tagged;
mod vmalloc;

pub use buffer::Buffer;
pub use error::{AllocError, CreateError, FreeError, ResizeError};
pub use heap::Stats;
pub use large_alloc::{LARGE_BYTES, LargeAlloc};
pub use options::{Hardened, HugePages, Options, Profile, Walls};
pub use probe::{Answer, Machine, machine};
pub use vmalloc::Vmalloc;
#[doc(hidden)]
pub use vmalloc_os::fork::is_guest;
#[doc(inline)]
pub use vmalloc_os::fork::prepare_for_forks;
#[doc(inline)]
pub use vmalloc_os::os::{Call, Errno, is_plain, plain_calls_only, unless_plain};
#[cfg(feature = "percpu")]
#[doc(inline)]
pub use vmalloc_percpu::{self as percpu, per_cpu};
#[cfg(feature = "vmap")]
#[doc(inline)]
pub use vmalloc_vmap::{Frame, Frames, Mapping, MappingStats, Mappings, Protection, VmapCall, VmapError};

use vmalloc_os::PAGE_BYTES;

/// Pages that may stay cached while the process forks: 1 MiB.
const FORK_CACHED_MAX: u64 = 256;

/// The example of the README compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// The parts of Rust's runtime that a shared library without the standard library must define: a panic is passed to
/// `$stop`, which takes `fmt::Arguments` and does not return. For this workspace's own libraries.
#[doc(hidden)]
#[macro_export]
macro_rules! without_std {
    ($stop:path) => {
        #[panic_handler]
        fn panicked(info: &::core::panic::PanicInfo<'_>) -> ! {
            $stop(::core::format_args!("{info}"))
        }

        // The precompiled `core` refers to an unwinding routine, which is never called: a panic does not unwind. The
        // symbol is weak and hidden, so that it does not clash with a Rust program's or another such library's.
        ::core::arch::global_asm!(
            ".weak rust_eh_personality",
            ".hidden rust_eh_personality",
            "rust_eh_personality:"
        );
    };
}
