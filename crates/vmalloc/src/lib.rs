//! Large memory for a process, as the Linux kernel has `vmalloc` for its own.
//!
//! Address space is reserved once, memory in it is kept between uses, and in most cases neither an allocation nor a free makes
//! a system call: no `mmap`, `munmap` or `mprotect` for each, no page faults for what was used before.
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
//! | every large allocation of a program | [`Kv`] as `#[global_allocator]` |
//! | collections of `allocator-api2` | `&Vmalloc`, feature `allocator-api2` |
//! | what there is | [`Vmalloc::stats`], [`Vmalloc::vmallocinfo`] |
//! | guard pages; mistakes that fault or abort | [`Options::guards`], [`Options::profile`], [`Profile::Hardened`] |
//!
//! # What holds
//! - **Sizes.** What was requested ([`Vmalloc::requested_bytes`]), what can be used ([`Vmalloc::usable_bytes`], whole
//!   pages) and what is occupied are kept apart. Any power of two is an alignment.
//! - **Errors** are typed, tell their numbers and change nothing. Freeing twice, or what is no area, is found in O(1) and is
//!   such an error ([`Kv`] and the collections, which cannot tell, abort with a message).
//! - **Memory kept** after it was freed is bounded by [`Options::kept_bytes_max`] and 2 MiB a CPU, by address range: pages that
//!   nobody touched count as if they were there. It goes back by demand (what nobody needed for a while, a quarter at a
//!   time) or by [`Vmalloc::trim`]. No thread is started; a process that stops allocating keeps what it has until then.
//! - **Guards**, where asked for: a page behind every area that nobody may touch. A million of them make a handful of mappings (Linux
//!   6.13); before that there are an eighth of `vm.max_map_count`, and areas beyond have none.
//! - **Hardened**, where asked for: a byte past the end faults if the alignment lets the area end with its page, and else aborts at the
//!   free; freed memory cannot be read, by anybody, and faults until others get its addresses, which is after 1 GiB of frees or
//!   16,384 of them; areas are zeros; a small one is at one of 2^21.6 places or more; bad and double frees abort with what is known of the address.
//!   A child of a fork leaves behind what other threads had in hand. Made under
//!   `mlockall(MCL_FUTURE)`, it has walls by protection; `MCL_CURRENT` without `MCL_ONFAULT`, later, would populate its whole window.
//! - **Records** never come from the global allocator, which this may be. No thread-local variable has a destructor: threads
//!   may come and go, and free what others allocated.
//! - **fork**: the child allocates and frees, whatever other threads were doing. `vfork`, `clone` and `_Fork`, which tell
//!   nobody, must be followed by `exec` or the end. Areas are private: each process has its own copy.
//! - **Signals**: a handler may call [`Vmalloc::contains`], [`Vmalloc::usable_bytes`] and [`Vmalloc::requested_bytes`], which
//!   take no lock, and must not allocate or free.
//! - **Limits**: with `RLIMIT_AS` the arena is at most half of the limit; with overcommit refused (mode 2) only what is below
//!   the frontier is charged, in steps of 2 MiB or more where those are granted; `mlockall` populates no more than that.
//!
//! Not there yet: `vmap` of chosen pages.
//!
//! Linux 5.10 and later. On x86-64 with glibc 2.35 and later, the CPU is read without a call.

#[cfg(feature = "allocator-api2")]
mod allocator;
mod arena;
mod buffer;
mod error;
mod fork;
mod hardened;
mod heap;
mod kv;
mod lock;
mod magazine;
mod os;
mod records;
mod vmalloc;
mod word;

pub use buffer::Buffer;
pub use error::{AllocError, CreateError, FreeError, ResizeError};
pub use heap::Stats;
pub use kv::{Kv, LARGE_BYTES};
pub use os::{Call, Errno};
pub use vmalloc::{Hardened, HugePages, Options, Profile, Vmalloc, Walls};

/// Bytes of a page.
const PAGE_BYTES: usize = va_base::PAGE_SIZE as usize;
