//! The targets of the suite: any allocator, as the tests call it.
//!
//! # Theory
//! All threads share a [`Target`]. Each thread has its own [`Worker`], which stands for a CPU and may have data that
//! only it needs (a magazine, a lane, the list of its areas). A worker frees what it allocated: the suite never passes
//! an allocation to another thread, and defers a free by epochs of its own ([`super::rcu`]).
//!
//! A target may have memory behind its allocations, or only addresses. With memory, every page is written when it is
//! allocated, since a kernel's `vmalloc` returns with pages behind every byte. Without, [`Worker::write`] does nothing
//! and [`Worker::holds`] returns true.
//!
//! To add a target, add an [`Entry`] to [`targets`].

use super::case::Case;
use super::{history, linux, process, space};
use anyhow::Result;
use std::path::PathBuf;
use va_base::InvariantViolation;

/// A request to `vmalloc`: bytes, alignment in bytes (any power of two), and the meaning of the kernel's GFP flags.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ask {
    /// Bytes, at least 1.
    pub bytes: u64,
    /// A power of two, in bytes.
    pub align: u64,
    /// All zeros (`__GFP_ZERO`).
    pub zero: bool,
    /// Huge pages are welcome (`vmalloc_huge`).
    pub huge: bool,
    /// The caller cannot sleep (`GFP_ATOMIC`, `GFP_NOWAIT`).
    pub no_block: bool,
}

impl Ask {
    /// So many bytes, at a page's alignment.
    pub const fn bytes(bytes: u64) -> Self {
        Self { bytes, align: 1, zero: false, huge: false, no_block: false }
    }

    /// Zeros, at an alignment.
    pub const fn zeros(bytes: u64, align: u64) -> Self {
        Self { bytes, align, zero: true, huge: false, no_block: false }
    }
}

/// An allocator that threads share.
pub trait Target: Sync {
    /// Makes what a thread calls it by, on that thread; the thread stands for CPU `cpu`.
    fn worker(&self, cpu: u32) -> Box<dyn Worker + '_>;

    /// Returns true if it can run a test.
    fn supports(&self, case: Case) -> bool;

    /// The most workers that it can have at a time.
    fn workers_max(&self) -> u32 {
        u32::MAX
    }

    /// Comes to rest after all workers have gone, and checks itself. Everything was freed then.
    ///
    /// # Errors
    /// The rule that is broken, or how much is still there.
    fn settle(&self) -> Result<(), Unsettled>;
}

/// The reason why a target is not as it should be when all is freed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Unsettled {
    /// A rule of the target does not hold.
    InvariantViolation(InvariantViolation),
    /// So many pages and per-CPU objects are still out.
    Left(u64),
}

impl std::fmt::Display for Unsettled {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::InvariantViolation(broken) => write!(f, "{broken}"),
            Self::Left(count) => write!(f, "{count} pages and per-CPU objects are out though all were freed"),
        }
    }
}

impl std::error::Error for Unsettled {}

/// One thread's way to a target. Allocations are known by numbers: addresses where the target has some, never 0.
///
/// What is freed twice or was never given out is a mistake of the suite, which the target may answer as it likes.
pub trait Worker {
    /// Allocates; `None` if that is refused.
    fn vmalloc(&mut self, ask: &Ask) -> Option<u64>;

    /// Gives back what [`vmalloc`](Self::vmalloc) or [`vrealloc`](Self::vrealloc) gave out.
    fn vfree(&mut self, at: u64);

    /// Writes the first byte.
    fn write(&mut self, at: u64, byte: u8);

    /// Returns true if the first byte is what was written there.
    fn holds(&mut self, at: u64, byte: u8) -> bool;

    /// Makes `bytes` of an allocation that has `had` bytes. On `None` it is as it was.
    fn vrealloc(&mut self, at: u64, had: u64, bytes: u64) -> Option<u64>;

    /// Gets so many pages to be mapped again and again.
    fn pages(&mut self, count: u64) -> Option<Box<dyn Ram + '_>>;

    /// Allocates a per-CPU object.
    fn pcpu_alloc(&mut self, bytes: u64, align: u64) -> Option<u64>;

    /// Gives back what [`pcpu_alloc`](Self::pcpu_alloc) gave out.
    fn pcpu_free(&mut self, at: u64);
}

/// Pages that a worker got.
pub trait Ram {
    /// Maps all of them (`vm_map_ram`), writes a byte, and unmaps them (`vm_unmap_ram`). Whether they could be mapped.
    fn map_write_unmap(&mut self, byte: u8) -> bool;
}

/// The set-up of a target.
#[derive(Clone, Debug)]
pub struct Setup {
    /// CPUs, possible and online: workers stand for the numbers below.
    pub cpus: u32,
    /// A library with the C functions of a kernel's space (`kv_*`).
    pub kernel_lib: Option<PathBuf>,
    /// A library with those of a kernel's per-CPU memory (`kp_*`).
    pub kernel_lib_percpu: Option<PathBuf>,
}

/// A target by name.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Its name.
    pub name: &'static str,
    /// Its description, in a line.
    pub about: &'static str,
    /// Makes an empty one. An error tells what is missing.
    pub make: fn(&Setup) -> Result<Box<dyn Target>>,
}

/// All targets, in the order of the tables.
pub fn targets() -> Vec<Entry> {
    vec![
        Entry { name: "space", about: "our address space: addresses only", make: space::make },
        Entry {
            name: "process",
            about: "our memory of a process: every page written to",
            make: process::make,
        },
        Entry { name: "list", about: "as Linux up to 5.1: busy areas are walked", make: history::list },
        Entry {
            name: "one-lock",
            about: "as Linux 5.2 to 6.3: a tree of holes, one lock",
            make: history::one_lock,
        },
        Entry {
            name: "hashed",
            about: "as Linux 6.4 to 6.8: lookups of blocks by CPU",
            make: history::hashed,
        },
        Entry { name: "nodes", about: "as Linux 6.9 to 6.12: nodes and pools", make: history::nodes },
        Entry {
            name: "linux",
            about: "Linux's own code from a C library (--kern): addresses only",
            make: linux::make,
        },
    ]
}
