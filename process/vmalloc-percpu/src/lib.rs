//! Per-CPU data of a process: an object has a copy in each unit, and a thread uses that of its current CPU.
//!
//! ```
//! use vmalloc_percpu::{PerCpuCounter, Space, Word};
//!
//! vmalloc_percpu::per_cpu! {
//!     static HITS: Word;
//! }
//! HITS.view()?.word().add(1);
//! let bytes = PerCpuCounter::new(Space::global()?, 0);
//! bytes.add(4096);
//! assert_eq!((HITS.view()?.word().sum(), bytes.sum()), (1, 4096));
//! # Ok::<(), vmalloc_percpu::Error>(())
//! ```
//! The crate `vmalloc` has this one as its module `percpu`.
//!
//! # Theory
//! A word that many threads change costs locked instructions, and its cache line moves between CPUs. A copy for each
//! CPU costs neither, if a thread can change the copy of its CPU without being moved meanwhile. A kernel can disable
//! preemption; for a process the kernel restarts a *restartable sequence* that was interrupted ([`Local`]). A reader
//! sums the copies.
//!
//! ```text
//!   chunk   | unit 0        | unit 1        | ...                  | strangers     |
//!             ..[X0].........  ..[X1].........                        ..[Xn]........
//!               '-- the handle   '-- + 256 KiB      pages become resident at the first access
//! ```
//!
//! `va-percpu` allocates the offsets, with the size of a unit and Linux's limits: objects of up to 32 KiB, aligned to
//! at most a page. A unit belongs to a CPU or to a *concurrency id*: the kernel assigns the lowest of these numbers to
//! the threads of a process that run at a time. If no sections are available (no glibc 2.35, no x86-64, a filter of
//! system calls), every operation is an atomic one with the same result.
//!
//! | what | |
//! |---|---|
//! | [`Space`], [`Space::global`] | the allocator of objects |
//! | [`PerCpu`], [`PerCpuBox`], [`per_cpu!`] | objects of a type, of a layout, static objects |
//! | [`View::with`], [`View::iter`] | the copy of this CPU, for atomics; all copies |
//! | [`Word`], [`Local`] | add, exchange, compare-exchange by sections |
//! | [`PerCpuList`] | a list of nodes in each unit, last in, first out |
//! | [`PerCpuCounter`], [`PerCpuRef`] | the kernel's `percpu_counter`, in one word while it is idle; its `percpu_ref` |
//!
//! # Signals
//! A signal handler, which may interrupt any call of its thread, may use only operations without a lock:
//!
//! | what | in a handler |
//! |---|---|
//! | [`Space::global`], [`Static::view`] | once the program has called them: the first call maps memory and takes locks |
//! | [`View`] and [`PerCpu`]: all methods; [`PerCpuBox::as_ptr`], [`PerCpuBox::local`] | yes, if the caller's use of the copy is safe there |
//! | [`Local`], [`Word`]: all methods | yes |
//! | [`PerCpuCounter::read`], [`read_positive`](PerCpuCounter::read_positive), [`batch`](PerCpuCounter::batch) | yes |
//! | [`PerCpuCounter::add_local`], [`try_add`](PerCpuCounter::try_add), [`is_percpu`](PerCpuCounter::is_percpu) | yes |
//! | [`PerCpuCounter`]: `add` and `add_batch`, which may promote or pass the batch; `promote`; sums, comparisons, `limited_add`, `sync` | no: a lock |
//! | [`PerCpuRef`]: all that get or put, and `is_dying`, `is_zero`, `is_percpu` | yes; a last put calls the release |
//! | [`PerCpuRef`]: `kill`, `kill_and_confirm`, `reinit`, `resurrect`, switches | no: a lock |
//! | [`PerCpuList`]: `push`, `pop` | no: where units are shared a bit of the head is a lock, and nodes are boxes |
//! | making and dropping spaces and objects, [`Space::trim`], [`Space::counts`], [`Space::stats`], [`Space::validate`] | no: locks, memory |
//!
//! Without sections, a thread's first operation accesses a thread-local variable of this library. For that, libc may
//! allocate memory if the library was loaded by `dlopen`.
//!
//! # fork
//! The child has copies of all units and continues with them. A fork holds the locks of spaces and of their counters
//! and references, so that all of them can be used in the child. It does not hold the locks of lists whose units are
//! shared. If another thread held such a lock at that moment, it stays held in the child, and a push or pop there waits
//! forever.
//!
//! Units are shared if no sections are available, or if threads have no number of their own. In these cases a child may
//! use a list only if no thread was in such a call at the fork.
//!
//! A program that unmaps the code of a section (`dlclose`) must end its threads first.
//!
//! # Source
//! Linux `include/linux/percpu-defs.h`, `lib/percpu_counter.c`, `lib/percpu-refcount.c` (6.12); differences:
//! docs/kernel-map.md.

// A shared library of C is smaller without the standard library.
#![cfg_attr(not(test), no_std)]
#![warn(missing_debug_implementations, clippy::return_self_not_must_use)]

extern crate alloc;

mod caches;
mod counter;
mod error;
mod find;
mod hot;
mod index;
mod list;
mod local;
mod locks;
#[cfg(all(test, loom))]
mod loom;
mod object;
mod options;
mod raw;
mod reference;
#[cfg(not(all(target_arch = "x86_64", target_env = "gnu", not(loom))))]
#[path = "norseq.rs"]
mod rseq;
#[cfg(all(target_arch = "x86_64", target_env = "gnu", not(loom)))]
mod rseq;
mod shape;
mod space;
mod state;
#[cfg(all(test, not(loom)))]
mod tests;

pub use counter::PerCpuCounter;
pub use error::Error;
pub use list::{Node, PerCpuList};
pub use local::{Local, Word};
pub use object::{PerCpu, PerCpuBox, Static, View, Zeroable};
pub use options::{Index, Options};
pub use reference::{PerCpuRef, RefError, RefMode};
pub use space::{Space, restarts};
#[doc(inline)]
pub use vmalloc_os::os::{Call, Errno};

use vmalloc_os::PAGE_BYTES;

/// The example of the README compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
