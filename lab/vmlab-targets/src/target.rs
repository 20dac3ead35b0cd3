//! The interface of a target: any allocator, through the calls of the tests.
//!
//! # Theory
//! All threads share a [`Target`]. Each thread has its own [`Worker`], which stands for a CPU and may have data that
//! only it needs (a magazine, a lane, the list of its areas). A worker frees what it allocated: the suite never passes
//! an allocation to another thread, and defers a free by epochs of its own (`vmlab_bench::suite::rcu`).
//!
//! A target may have memory behind its allocations, or only addresses. With memory, every page is written when it is
//! allocated, since a kernel's `vmalloc` returns with pages behind every byte. Without memory, [`Worker::write`] does
//! nothing and [`Worker::holds`] returns true.
//!
//! To add a target, add an `Entry` to the list in `vmlab_bench::suite::target`.

use crate::case::Case;
use std::path::PathBuf;
use va_base::InvariantViolation;

/// A request to `vmalloc`: bytes, alignment in bytes (any power of two), and the meaning of the kernel's GFP flags.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ask {
    /// Bytes, at least 1.
    pub bytes: u64,
    /// A power of two, in bytes.
    pub align: u64,
    /// True if the memory must be zeroed (`__GFP_ZERO`).
    pub zero: bool,
    /// True if huge pages are allowed (`vmalloc_huge`).
    pub huge: bool,
    /// The caller cannot sleep (`GFP_ATOMIC`, `GFP_NOWAIT`).
    pub no_block: bool,
}

impl Ask {
    /// Requests `bytes` at a page's alignment.
    pub const fn bytes(bytes: u64) -> Self {
        Self { bytes, align: 1, zero: false, huge: false, no_block: false }
    }

    /// Requests zeroed memory at an alignment.
    pub const fn zeros(bytes: u64, align: u64) -> Self {
        Self { bytes, align, zero: true, huge: false, no_block: false }
    }
}

/// An allocator that threads share.
pub trait Target: Sync {
    /// Creates the handle of a thread, on that thread; the thread stands for CPU `cpu`.
    fn worker(&self, cpu: u32) -> Box<dyn Worker + '_>;

    /// Returns true if it can run a test.
    fn supports(&self, case: Case) -> bool;

    /// Returns the most workers that it can have at a time.
    fn workers_max(&self) -> u32 {
        u32::MAX
    }

    /// Finishes pending work after all workers have ended and everything is freed, and checks itself.
    ///
    /// # Errors
    /// The invariant that is broken, or the amount that is still allocated.
    fn settle(&self) -> Result<(), Unsettled>;
}

/// The error of a target whose allocations are all freed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Unsettled {
    /// An invariant of the target does not hold.
    InvariantViolation(InvariantViolation),
    /// This many pages and per-CPU objects are still allocated.
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

/// One thread's handle to a target. Allocations are identified by numbers: addresses if the target has them, never 0.
///
/// A double free, or the free of an unknown number, is an error of the suite; the target's reaction is unspecified.
pub trait Worker {
    /// Allocates; `None` on failure.
    fn vmalloc(&mut self, ask: &Ask) -> Option<u64>;

    /// Frees an allocation of [`vmalloc`](Self::vmalloc) or [`vrealloc`](Self::vrealloc).
    fn vfree(&mut self, at: u64);

    /// Writes the first byte.
    fn write(&mut self, at: u64, byte: u8);

    /// Returns true if the first byte is still the written one.
    fn holds(&mut self, at: u64, byte: u8) -> bool;

    /// Resizes an allocation from `had` bytes to `bytes`. On `None` it is unchanged.
    fn vrealloc(&mut self, at: u64, had: u64, bytes: u64) -> Option<u64>;

    /// Allocates `count` pages that can be mapped repeatedly.
    fn pages(&mut self, count: u64) -> Option<Box<dyn Ram + '_>>;

    /// Allocates a per-CPU object.
    fn pcpu_alloc(&mut self, bytes: u64, align: u64) -> Option<u64>;

    /// Frees an object of [`pcpu_alloc`](Self::pcpu_alloc).
    fn pcpu_free(&mut self, at: u64);
}

/// Pages that a worker allocated.
pub trait Ram {
    /// Maps all of them (`vm_map_ram`), writes a byte, and unmaps them (`vm_unmap_ram`). Returns false if mapping
    /// failed.
    fn map_write_unmap(&mut self, byte: u8) -> bool;
}

/// The set-up of a target.
#[derive(Clone, Debug)]
pub struct Setup {
    /// CPUs, possible and online: workers stand for the numbers below it.
    pub cpus: u32,
    /// A library with the C functions of a kernel's space (`kv_*`).
    pub kernel_lib: Option<PathBuf>,
    /// A library with the C functions of a kernel's per-CPU memory (`kp_*`).
    pub kernel_lib_percpu: Option<PathBuf>,
}
