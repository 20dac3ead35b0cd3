//! Large memory for a process, as the Linux kernel has `vmalloc` for its own.
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
//! // SAFETY: our own, and nobody refers to it any more.
//! unsafe { memory.free(area) }?;
//!
//! // Or safely: zeros that free themselves, and grow in place where they can.
//! let mut buffer = memory.buffer(1 << 20)?;
//! buffer[3] = 1;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | what | where |
//! |---|---|
//! | an allocator as a value, or that of the process | [`Vmalloc`], [`Vmalloc::global`], [`Options`] |
//! | bytes that free themselves | [`Buffer`] |
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
//!   pages) and the occupied size are three numbers. Any power of two is an alignment.
//! - **Errors** are typed, carry their numbers and change nothing. A double free, or a free of an address where no area
//!   begins, is found in O(1) and is such an error. [`LargeAlloc`] and the collections cannot return one, and abort
//!   with a message.
//! - **Cached memory** is freed memory that stays resident. It is bounded by [`Options::cache_bytes_max`], the
//!   magazines of CPUs included. Parts of a huge page that other areas use stay. It is released on demand (the longest
//!   unused first), after about [`Options::decay`] without use, when the system is short of memory, or by
//!   [`Vmalloc::trim`]. A thread does the second, if [`Options::background_thread`] is set and 16 MiB are cached. All
//!   signals are blocked in it, and it ends with its allocator. While it sleeps, one area of less than 2 MiB a CPU may
//!   stay, since a fast free does not wake it. Without a thread the program's own calls do it, and a program that makes
//!   none keeps its cache. The pages that a resize frees count as freed.
//! - **Huge pages** are behind areas from 64 KiB on, if the system has any, by [`Options::huge_pages`]. Neighbours
//!   share one. The first byte touched of a fresh one makes 2 MiB resident. `HugePages::Never` suits large areas of
//!   which little is touched, `HugePages::System` unmodified programs.
//! - **Guards** ([`Options::guards`]): an inaccessible page behind each area. A million of them are a few mappings
//!   (Linux 6.13). Before that there are at most an eighth of `vm.max_map_count`, and areas beyond have none.
//! - **Hardened** ([`Profile::Hardened`]): a byte past the end faults if the alignment lets the area end
//!   with its page, and else aborts at the free. Freed memory cannot be read by any caller. It
//!   faults until others get its addresses, which is after 1 GiB of frees or 16,384 of them. Areas
//!   are zeros. A small area is at one of 2^21.6 places or more. Bad and double frees abort with a
//!   diagnosis of the address. A child of a fork leaves behind what other threads were using in
//!   calls at that moment. An allocator that is made under `mlockall(MCL_FUTURE)` has walls by
//!   protection; `MCL_CURRENT` without `MCL_ONFAULT`, later, would populate its whole window.
//! - **Records** never come from the global allocator, which this may be. No thread-local variable has a destructor:
//!   threads may come and go, and free what others allocated.
//! - **Growth**: in place where the addresses above are free; else the pages move to where twice as
//!   much fits, by `UFFDIO_MOVE` or `mremap`. What is below 2 MiB, and the last 2 MiB of what is
//!   larger, is copied. [`Stats`] counts each of these.
//! - **fork**: the child can allocate and free, whatever other threads were doing. Areas that these
//!   were allocating or freeing at that moment stay allocated in the child. Each process has its own copy of an area.
//!   `vfork`, `clone` and `_Fork`, which call no handlers, must be followed by `exec` or the end.
//!   Cached memory beyond a megabyte is released before a fork, which would share it. A handler of
//!   a signal may fork in the midst of a call of its thread, and the list of libc's streams is held
//!   with our locks. While a fork is prepared all locks are held. A handler of `pthread_atfork`
//!   that was registered before the first allocator was made is called after ours. It must neither
//!   allocate from one nor free to it: it would wait for its own thread. With [`LargeAlloc`] that is memory
//!   of [`LARGE_BYTES`] or more. Handlers registered later may.
//! - **Signals**: a handler may call [`Vmalloc::contains`], [`Vmalloc::usable_bytes`] and [`Vmalloc::requested_bytes`],
//!   which take no lock, and must not allocate or free.
//! - **Descriptors**: a free that released much opens files of `/proc` and `/sys` for a moment. Each is at the lowest
//!   free number for the time of one call, which an `open` of another thread may see.
//! - **Limits**: with `RLIMIT_AS` the arena is at most half of the limit, which addresses count that areas had. Where
//!   overcommit is denied (mode 2), and for `RLIMIT_DATA`, only memory below the frontier is charged, in steps of 2 MiB
//!   or more where those are granted. A step that fails is an error, after which all existing memory serves on. A
//!   control group is charged for live and cached memory, so the budget belongs well below its limit. `mlockall`
//!   populates the memory below the frontier; locked memory is released all the same (Linux 5.18).
//! - **Kernels and profiles** that lack or deny `userfaultfd`, `process_madvise`, `rseq`, guards,
//!   huge pages or `mremap` are detected at the first call. Then other calls do the work, with the
//!   same results. The program may close the userfaultfd that is kept open, and the file that has
//!   its number then is left alone. The memory file of [`Mappings`] must stay open.
//!
//! Linux 5.10 and later, with addresses of 64 bits. On x86-64 with glibc 2.35 and later, the CPU is read without a call.

// A shared library of C is smaller without the standard library.
#![cfg_attr(not(any(test, feature = "std")), no_std)]
#![warn(missing_debug_implementations)]

extern crate alloc;

#[cfg(not(target_pointer_width = "64"))]
compile_error!("an arena is larger than addresses of 32 bits");

/// Setters of public fields, each named like its field.
macro_rules! setters {
    ($($field:ident: $type:ty,)+) => { $(
        #[doc = concat!("Sets [`", stringify!($field), "`](#structfield.", stringify!($field), ").")]
        #[must_use]
        pub const fn $field(mut self, $field: $type) -> Self {
            self.$field = $field;
            self
        }
    )+ };
}

#[cfg(feature = "allocator-api2")]
mod allocator;
mod arena;
mod buffer;
mod error;
mod fork;
mod hardened;
mod heap;
mod large_alloc;
mod lock;
#[cfg(all(test, loom))]
mod loom;
mod magazine;
#[cfg(feature = "metrics")]
mod metrics;
mod os;
mod owner_lock;
pub mod percpu;
mod places;
mod records;
mod tagged;
mod vmalloc;
mod vmap;
mod vread;
mod word;

pub use buffer::Buffer;
pub use error::{AllocError, CreateError, FreeError, ResizeError};
#[doc(hidden)]
pub use fork::is_guest;
pub use fork::prepare_for_forks;
pub use heap::Stats;
pub use large_alloc::{LARGE_BYTES, LargeAlloc};
pub use os::{Answer, Call, Errno, Machine, is_plain, machine, plain_calls_only};
pub use owner_lock::OwnerLock;
pub use vmalloc::{Hardened, HugePages, Options, Profile, Vmalloc, Walls};
pub use vmap::{Frame, Frames, Mapping, MappingStats, Mappings, Protection, VmapCall, VmapError};

/// Bytes of a page.
const PAGE_BYTES: usize = va_base::PAGE_SIZE as usize;

/// The example of the README compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// The parts of Rust's runtime that a shared library without the standard library brings itself: a panic is
/// passed to `$stop`, which takes `fmt::Arguments` and does not return. For this workspace's own libraries.
#[doc(hidden)]
#[macro_export]
macro_rules! without_std {
    ($stop:path) => {
        #[panic_handler]
        fn panicked(info: &::core::panic::PanicInfo<'_>) -> ! {
            $stop(::core::format_args!("{info}"))
        }

        // The precompiled `core` names a routine of unwinding, which is never called: a panic does not unwind. Weak
        // and hidden, so that neither a program of Rust nor another such library meets it.
        ::core::arch::global_asm!(
            ".weak rust_eh_personality",
            ".hidden rust_eh_personality",
            "rust_eh_personality:"
        );
    };
}
