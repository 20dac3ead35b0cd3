//! The parts that the crates `vmalloc`, `vmalloc-percpu` and `vmalloc-vmap` share: system calls, locks, records, forks.
//!
//! **This is no interface for others.** The crates of one version belong together, and any version may change anything
//! here. `vmalloc` exports the items that are for programs: [`os::Call`], [`os::Errno`], [`os::plain_calls_only`] and its
//! relatives, and [`fork::prepare_for_forks`].
//!
//! | module | what it is |
//! |---|---|
//! | [`os`] | the trait [`os::Os`] of system calls, and [`os::Linux`]; threads, futexes, restartable sequences |
//! | [`lock`] | a lock that parks waiting threads, and that a fork can hold |
//! | [`OwnerLock`] | a lock whose owner executes no locked operation |
//! | [`Published`] | a pointer to a value that one thread makes, and that all use |
//! | [`records`] | memory for records, which never comes from the global allocator |
//! | [`fork`] | the handlers that take all locks before a fork |
//! | [`vread`] | reads of memory that may be unmapped |
//! | `os::shim` | the same system calls with fault injection, with the feature `testing` |
//!
//! ```
//! use vmalloc_os::lock::Mutex;
//! use vmalloc_os::os::{Linux, Os, Span};
//!
//! static COUNT: Mutex<u32> = Mutex::new(0);
//!
//! let linux = Linux::new();
//! let span = Span { at: linux.map(4096)?, bytes: 4096 };
//! *COUNT.lock() += 1;
//! // SAFETY: mapped above, and no reference to it exists.
//! unsafe { linux.unmap(span) };
//! # Ok::<(), vmalloc_os::os::Errno>(())
//! ```
//!
//! # Trust
//! Some safe functions rely on their callers, which are the crates above: [`records::Host::NOWHERE`] and
//! [`records::Placed::NOWHERE`] must not be used, and a [`records::Host`] must not be used after it was closed. An
//! [`OwnerLock`] excludes no second owner: one thread calls `lock`, and not while it has the lock. Each says so.
//!
//! A function that a fast path calls is `#[inline]`, since the crates are compiled one by one.
//! # Source
//! Each module names its own.

// A shared library of C is smaller without the standard library.
#![cfg_attr(not(any(test, feature = "testing", miri)), no_std)]
#![cfg_attr(miri, allow(dead_code, reason = "the simulated system needs fewer parts"))]
#![warn(missing_debug_implementations, clippy::return_self_not_must_use)]

#[cfg(not(target_os = "linux"))]
compile_error!("the crates of a process make the system calls of Linux");

#[cfg(not(target_pointer_width = "64"))]
compile_error!("an arena is larger than addresses of 32 bits");

pub mod fork;
pub mod lock;
#[cfg(all(test, loom))]
mod loom;
pub mod os;
#[cfg_attr(all(loom, not(test)), expect(dead_code, reason = "without a constant it is no lock of a machine"))]
mod owner_lock;
mod published;
pub mod records;
pub mod vread;

pub use owner_lock::OwnerLock;
pub use published::{Pointer, Published};

/// Bytes of a page.
pub const PAGE_BYTES: usize = va_base::PAGE_SIZE as usize;

/// Defines setters of public fields, each named like its field, inside an `impl`.
#[macro_export]
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

/// The example of the README compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
