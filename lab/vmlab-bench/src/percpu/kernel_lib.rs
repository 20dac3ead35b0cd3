//! An allocator behind the C interface of a kernel's per-CPU memory: Linux's own library, or any other that exports it.
//!
//! ```c
//! /* work_mode: 0 the caller balances */
//! struct kp_config { uint32_t nr_units, unit_size, static_size, reserved_size, dyn_size, work_mode; };
//! int      kp_init(const struct kp_config *);           /* replaces the allocator by an empty one; 0 */
//! void     kp_thread_init(int cpu);                     /* before any other call of a thread */
//! void     kp_thread_exit(void);                        /* after its last call */
//! uint64_t kp_alloc_fast(uint64_t size, uint64_t align, int flags);   /* 0: nothing; flag 1: cannot sleep */
//! void     kp_free(uint64_t);
//! void     kp_stats(struct kp_stats *);                 /* thirteen numbers, see `Stats` */
//! ```
//! A library has one allocator: the latest. The user decides what it was built from.

use super::subject::{Counts, Shape, Subject};
use crate::library::{function, load};
use anyhow::{Result, bail};
use libloading::Library;
use std::path::Path;
use std::sync::Arc;

#[repr(C)]
struct KpConfig {
    units: u32,
    unit: u32,
    parts: [u32; 3],
    work: u32,
}

#[repr(C)]
#[derive(Default)]
struct Stats {
    chunks: u64,
    free_bytes: u64,
    populated_pages: u64,
    others: [u64; 10],
    /// Reserved for additions of later libraries.
    more: [u64; 32],
}

type Init = unsafe extern "C" fn(*const KpConfig) -> i32;
type ThreadInit = unsafe extern "C" fn(i32);
type ThreadExit = unsafe extern "C" fn();
type Alloc = unsafe extern "C" fn(u64, u64, i32) -> u64;
type Free = unsafe extern "C" fn(u64);
type StatsOf = unsafe extern "C" fn(*mut Stats);

/// The functions of a library. Each call obeys the interface above.
#[derive(Clone)]
pub struct KernelLib {
    init: Init,
    thread_init: ThreadInit,
    thread_exit: ThreadExit,
    alloc: Alloc,
    free: Free,
    stats: StatsOf,
    /// Keeps the library loaded.
    _library: Arc<Library>,
}

/// Makes malloc cache freed memory, so that after the first round no contender waits for the system to supply pages for
/// records. This applies to our records, which come from malloc, and to those of a library. In a kernel, too, memory
/// for records is available.
pub(super) fn cache_freed_memory() {
    // The first value is glibc's maximum; the second is never reached.
    for (what, bytes) in [(libc::M_MMAP_THRESHOLD, 32 << 20), (libc::M_TRIM_THRESHOLD, 1 << 30)] {
        // SAFETY: two integers; unknown values are an error without effect.
        let _set = unsafe { libc::mallopt(what, bytes) };
    }
}

impl KernelLib {
    /// Loads the library at `path`.
    pub(crate) fn load(path: &Path) -> Result<Self> {
        load(path, |library| {
            Ok(Self {
                init: function(library, "kp_init")?,
                thread_init: function(library, "kp_thread_init")?,
                thread_exit: function(library, "kp_thread_exit")?,
                alloc: function(library, "kp_alloc_fast")?,
                free: function(library, "kp_free")?,
                stats: function(library, "kp_stats")?,
                _library: Arc::clone(library),
            })
        })
    }

    /// Registers the CPU that this thread stands for, before its first call.
    pub(crate) fn stand_for(&self, cpu: u32) {
        // SAFETY: the function is loaded and takes a number.
        unsafe { (self.thread_init)(cpu as i32) };
    }

    /// Deregisters this thread, which must register a CPU again before its next call.
    pub(crate) fn leave(&self) {
        // SAFETY: the function is loaded, and the thread is registered.
        unsafe { (self.thread_exit)() };
    }

    /// Creates an empty allocator. The previous one ceases to exist.
    pub(crate) fn begin(&self, shape: Shape, units: u32) -> Result<Self> {
        let config = KpConfig { units, unit: shape.unit, parts: shape.parts, work: 0 };
        // SAFETY: the function is loaded, the pointer is to a configuration that outlives the call, and one benchmark
        // at a time uses the library.
        if unsafe { (self.init)(&raw const config) } != 0 {
            bail!("kp_init fails with units of {} bytes", shape.unit);
        }
        Ok(self.clone())
    }
}

impl Subject for KernelLib {
    #[inline(always)]
    fn alloc(&self, size: u32, align: u32) -> u64 {
        // SAFETY: the function is loaded, this thread created the allocator, and all parameters are integers.
        unsafe { (self.alloc)(size.into(), align.into(), 0) }
    }

    #[inline(always)]
    fn alloc_atomic(&self, size: u32, align: u32) -> u64 {
        // SAFETY: as above.
        unsafe { (self.alloc)(size.into(), align.into(), 1) }
    }

    #[inline(always)]
    fn free(&self, at: u64) {
        // SAFETY: as above; the workloads free each object once.
        unsafe { (self.free)(at) };
    }

    fn counts(&self) -> Counts {
        let mut stats = Stats::default();
        // SAFETY: the function is loaded and writes fewer numbers than `stats` has room for.
        unsafe { (self.stats)(&raw mut stats) };
        Counts { chunks: stats.chunks, free_bytes: stats.free_bytes, pages: stats.populated_pages }
    }
}
