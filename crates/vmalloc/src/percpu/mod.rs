//! Per-CPU data: an object has a copy in each unit, and a thread works on that of the CPU it is on.
//!
//! # Theory
//! What many threads count in one word they pay for with locked instructions and cache lines that wander. A copy for each CPU costs
//! neither, if a thread can change the copy of its CPU without being moved in between. A kernel can forbid that; a process is told
//! of it: a *restartable sequence* is begun again if anything came between ([`Local`]). Sums are made by whoever wants to know.
//!
//! ```text
//!   chunk   | unit 0        | unit 1        | ...                  | strangers     |
//!             ..[X0].........  ..[X1].........                        ..[Xn]........
//!               '-- the handle   '-- + 256 KiB      pages come when they are touched
//! ```
//!
//! Which bytes are whose is said by `va-percpu`, with the size of a unit and Linux's limits: 32 KiB an object, aligned to a page.
//! A unit belongs to a *concurrency id*, of which the kernel gives the threads of a process that run at a moment the lowest numbers, or
//! to a CPU. Where there are no sections (no glibc 2.35, no x86-64, a filter of system calls), every operation is an atomic one with
//! the same result.
//!
//! | what | |
//! |---|---|
//! | [`Space`], [`Space::global`] | where objects come from |
//! | [`PerCpu`], [`PerCpuBox`], [`per_cpu!`](crate::per_cpu) | of a type, of a layout, static |
//! | [`View::with`], [`View::iter`] | the copy of this CPU, for atomics; all copies |
//! | [`Word`], [`Local`] | add, exchange, compare-exchange by sections |
//! | [`PerCpuList`] | a list of nodes in each unit, last in, first out |
//! | [`PerCpuCounter`], [`PerCpuRef`] | the kernel's `percpu_counter`, `percpu_ref` |
//!
//! # Signals
//! A handler that interrupts a thread in the midst of any call may do what takes no lock, and nothing else:
//!
//! | what | in a handler |
//! |---|---|
//! | [`Space::global`], [`Static::view`] | once the program has called them: the first call maps memory and takes locks |
//! | [`View`] and [`PerCpu`]: all methods; [`PerCpuBox::as_ptr`], [`PerCpuBox::local`] | yes, as far as what the caller does with the copy |
//! | [`Local`], [`Word`]: all methods | yes |
//! | [`PerCpuCounter::read`], [`read_positive`](PerCpuCounter::read_positive), [`batch`](PerCpuCounter::batch) | yes |
//! | [`PerCpuCounter::add_local`] | yes, while the unit's delta stays within 62 bits |
//! | [`PerCpuCounter`]: `add` and `add_batch`, which may pass the batch; sums, comparisons, `limited_add`, `sync` | no: a lock |
//! | [`PerCpuRef`]: all that get or put, and `is_dying`, `is_zero`, `is_percpu` | yes; a last put calls the release |
//! | [`PerCpuRef`]: `kill`, `kill_and_confirm`, `reinit`, `resurrect`, switches | no: a lock |
//! | [`PerCpuList`]: `push`, `pop` | no: where units are shared a bit of the head is a lock, and nodes are boxes |
//! | making and dropping spaces and objects, [`Space::trim`], [`Space::counts`], [`Space::stats`], [`Space::validate`] | no: locks, memory |
//!
//! Where there are no sections a thread's first operation touches a thread-local of this library, for which libc may have to
//! allocate if the library was loaded by `dlopen`.
//!
//! # fork
//! The child has copies of all units and goes on with them. A fork holds the locks of spaces and of
//! their counters and references, so that all of them can be used. It does not hold those of lists
//! whose units are shared. A lock that another thread held at that moment stays held in the child,
//! and a push or pop there waits for ever.
//!
//! Units are shared where there are no sections, or threads without a number of their own. There a
//! child that uses a list needs a fork at which no thread was in such a call.
//!
//! A program that unmaps the code of a section (`dlclose`) must end its threads first.
//!
//! # Source
//! Linux `include/linux/percpu-defs.h`, `lib/percpu_counter.c`, `lib/percpu-refcount.c` (6.12); differences: docs/kernel-map.md.

mod core;
mod counter;
mod error;
mod find;
mod hot;
mod list;
mod local;
mod locks;
#[cfg(all(test, loom))]
pub(crate) mod model {
    //! The items that loom explores.
    pub(crate) use super::counter::{Counter, Deltas};
    pub(crate) use super::locks::Lock;
    pub(crate) use super::reference::{Counted, RefMode, Units};
}
mod object;
mod raw;
mod reference;
#[cfg(not(all(target_arch = "x86_64", target_env = "gnu")))]
#[path = "norseq.rs"]
mod rseq;
#[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
mod rseq;
mod shape;
mod space;
#[cfg(all(test, not(loom)))]
mod tests;

pub use counter::PerCpuCounter;
pub use error::Error;
#[cfg(not(loom))]
pub(crate) use find::fence_all;
pub(crate) use find::{can_end_sections, has_concurrency_ids, has_sections};
pub use list::{Node, PerCpuList};
pub use local::{Local, Word};
pub use object::{PerCpu, PerCpuBox, Static, View, Zeroable};
pub use reference::{PerCpuRef, RefError, RefMode};
pub use space::{Index, Options, Space, restarts};
