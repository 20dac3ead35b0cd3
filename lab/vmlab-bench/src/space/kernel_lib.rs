//! An allocator behind the C interface of a kernel's whole space: Linux's own library, or any other that exports it.
//!
//! ```c
//! struct kv_config { uint64_t start, end; uint32_t cpus, nodes, work; };  /* work: 0 the caller drains, 1 a thread */
//! int      kv_init(const struct kv_config *);           /* replaces the space by an empty one; 0 */
//! void     kv_thread_init(int cpu);                     /* before any other call of a thread, and when it moves */
//! void     kv_thread_exit(void);
//! uint64_t kv_alloc(uint64_t size, uint64_t align, uint64_t start, uint64_t end);  /* 0: nothing; [0, 0): anywhere */
//! int      kv_free(uint64_t addr);                      /* 0 */
//! int      kv_find(uint64_t addr, uint64_t *start, uint64_t *end);                 /* 0 */
//! void     kv_purge(int mode);                          /* 1: all, pools emptied */
//! void     kv_stats(struct kv_stats *);                 /* numbers, see `Stats` */
//! uint64_t kv_map_ram(uint32_t pages);                  /* 0: nothing; optional */
//! void     kv_unmap_ram(uint64_t addr, uint32_t pages); /* optional */
//! /* 0; optional */
//! int      kv_pcpu_areas(const uint64_t *offs, const uint64_t *sizes, int n, uint64_t align, uint64_t *out);
//! ```
//! Sizes and addresses are bytes. A library has one space: the latest. The user decides what it was built from.

use super::subject::{Driver, OwnLock, Setup, Subject};
use crate::indexes::Drained;
use crate::library::{function, load};
use anyhow::{Result, bail};
use libloading::Library;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use va_base::{PAGE_SIZE, Request, Va};
use va_tree::Congruent;
use vmlab_machine::LockStats;

#[repr(C)]
struct KvConfig {
    start: u64,
    end: u64,
    cpus: u32,
    nodes: u32,
    work: u32,
}

/// Classes of locks that a library may count.
const CLASSES: usize = 9;
/// The names of the classes that belong to a space.
const NAMES: [(usize, &str); 5] = [
    (0, "free_vmap_area_lock"),
    (1, "vn->busy.lock"),
    (2, "vn->lazy.lock"),
    (3, "vn->pool_lock"),
    (7, "vmap_purge_lock"),
];

#[repr(C)]
#[derive(Default)]
struct Stats {
    busy: u64,
    lazy: u64,
    lazy_pages: u64,
    pooled: u64,
    free_areas: u64,
    free_largest: u64,
    purges: u64,
    purged_areas: u64,
    work_runs: u64,
    flushes: u64,
    vunmap_pages: u64,
    vmap_pages: u64,
    lock_slow: [u64; CLASSES],
    lock_yield: u64,
    warns: u64,
    lock_acq: [u64; CLASSES],
    free_height: u64,
    /// Reserved for additions of later libraries.
    more: [u64; 32],
}

type Init = unsafe extern "C" fn(*const KvConfig) -> i32;
type ThreadInit = unsafe extern "C" fn(i32);
type ThreadExit = unsafe extern "C" fn();
type Alloc = unsafe extern "C" fn(u64, u64, u64, u64) -> u64;
type Free = unsafe extern "C" fn(u64) -> i32;
type Find = unsafe extern "C" fn(u64, *mut u64, *mut u64) -> i32;
type PurgeAll = unsafe extern "C" fn(i32);
type StatsOf = unsafe extern "C" fn(*mut Stats);
type MapRam = unsafe extern "C" fn(u32) -> u64;
type UnmapRam = unsafe extern "C" fn(u64, u32);
type Areas = unsafe extern "C" fn(*const u64, *const u64, i32, u64, *mut u64) -> i32;

/// The functions of a library. Each call obeys the interface above.
#[derive(Clone)]
pub struct KernelLib {
    init: Init,
    thread_init: ThreadInit,
    thread_exit: ThreadExit,
    alloc: Alloc,
    free: Free,
    find: Find,
    purge: PurgeAll,
    stats: StatsOf,
    areas: Option<Areas>,
    ram: Option<(MapRam, UnmapRam)>,
    /// Keeps the library loaded.
    _library: Arc<Library>,
}

impl KernelLib {
    /// Loads the library at `path`.
    pub(crate) fn load(path: &Path) -> Result<Self> {
        load(path, |library| {
            Ok(Self {
                init: function(library, "kv_init")?,
                thread_init: function(library, "kv_thread_init")?,
                thread_exit: function(library, "kv_thread_exit")?,
                alloc: function(library, "kv_alloc")?,
                free: function(library, "kv_free")?,
                find: function(library, "kv_find")?,
                purge: function(library, "kv_purge")?,
                stats: function(library, "kv_stats")?,
                areas: function(library, "kv_pcpu_areas").ok(),
                ram: function(library, "kv_map_ram").ok().zip(function(library, "kv_unmap_ram").ok()),
                _library: Arc::clone(library),
            })
        })
    }

    /// Creates an empty space. The previous one ceases to exist, with its drivers.
    pub(crate) fn begin(&self, setup: &Setup) -> Result<Self> {
        let work = u32::from(setup.helper);
        let config = KvConfig { start: 0, end: 0, cpus: setup.cpus, nodes: setup.nodes, work };
        // SAFETY: the function is loaded, the pointer is to a configuration that outlives the call, and one benchmark
        // at a time uses the library.
        if unsafe { (self.init)(&raw const config) } != 0 {
            bail!("kv_init fails with {} nodes", setup.nodes);
        }
        Ok(self.clone())
    }

    /// Returns true if it supports small mappings.
    pub(crate) fn has_ram(&self) -> bool {
        self.ram.is_some()
    }

    fn stats(&self) -> Stats {
        let mut stats = Stats::default();
        // SAFETY: the function is loaded and writes fewer numbers than `stats` has room for.
        unsafe { (self.stats)(&raw mut stats) };
        stats
    }

    fn stand_for(&self, cpu: u32) {
        // SAFETY: the function is loaded and takes a number.
        unsafe { (self.thread_init)(cpu as i32) };
    }
}

pub struct KernelDriver<'a>(&'a KernelLib);

impl Subject for KernelLib {
    type Driver<'a> = KernelDriver<'a>;

    fn driver(&self, cpu: u32) -> KernelDriver<'_> {
        self.stand_for(cpu);
        KernelDriver(self)
    }

    fn drained(&self) -> Drained {
        let stats = self.stats();
        Drained { purges: stats.purges, flushes: stats.flushes }
    }

    /// The library's own thread drains.
    fn help(&self, done: &dyn Fn() -> bool) -> LockStats {
        while !done() {
            std::thread::park_timeout(Duration::from_millis(5));
        }
        LockStats::default()
    }

    fn own_locks(&self) -> Option<Vec<OwnLock>> {
        let stats = self.stats();
        let counts = stats.lock_acq.iter().any(|&count| count > 0);
        let lock = |(at, name): (usize, &'static str)| OwnLock {
            name,
            contentions: stats.lock_slow[at],
            acquisitions: counts.then_some(stats.lock_acq[at]),
        };
        Some(NAMES.map(lock).to_vec())
    }
}

impl Driver for KernelDriver<'_> {
    fn move_to(&mut self, cpu: u32) {
        self.0.stand_for(cpu);
    }

    #[inline(always)]
    fn alloc(&mut self, request: &Request) -> Option<Va> {
        let size = request.size().get() * PAGE_SIZE;
        let (start, end) =
            request.window().map_or((0, 0), |window| (window.start().get(), window.end().get()));
        // SAFETY: the function is loaded, this thread has registered its CPU, and all parameters are integers.
        let at = unsafe { (self.0.alloc)(size, request.align().bytes(), start, end) };
        (at != 0).then(|| Va::new(at))
    }

    #[inline(always)]
    fn free(&mut self, at: Va) {
        // SAFETY: as above; the library itself checks that an area starts there.
        let freed = unsafe { (self.0.free)(at.get()) };
        debug_assert_eq!(freed, 0);
    }

    fn purge(&mut self) {
        // SAFETY: as above.
        unsafe { (self.0.purge)(1) };
    }

    #[inline(always)]
    fn find(&self, at: Va) -> Option<Va> {
        let (mut start, mut end) = (0, 0);
        // SAFETY: as above; both pointers are valid for a write while the call lasts.
        let found = unsafe { (self.0.find)(at.get(), &raw mut start, &raw mut end) };
        (found == 0).then(|| Va::new(start))
    }

    fn congruent(&mut self, areas: &Congruent<'_>) -> Option<Va> {
        let call = self.0.areas?;
        let (offsets, sizes): (Vec<u64>, Vec<u64>) = areas.areas().iter().copied().unzip();
        let mut out = vec![0; offsets.len()];
        let align = areas.align().bytes();
        // SAFETY: the function is loaded, and each pointer is valid for the number of elements passed.
        let done =
            unsafe { call(offsets.as_ptr(), sizes.as_ptr(), offsets.len() as i32, align, out.as_mut_ptr()) };
        (done == 0).then(|| Va::new(out[0].wrapping_sub(offsets[0])))
    }
}

impl KernelDriver<'_> {
    /// Maps `pages` pages for a short time.
    #[inline(always)]
    pub(crate) fn map_ram(&mut self, pages: u32) -> Option<u64> {
        let (map, _) = self.0.ram?;
        // SAFETY: the function is loaded, this thread has registered its CPU, and the parameter is an integer.
        let at = unsafe { map(pages) };
        (at != 0).then_some(at)
    }

    /// Unmaps a mapping that `map_ram` made of as many pages.
    #[inline(always)]
    pub(crate) fn unmap_ram(&mut self, at: u64, pages: u32) {
        if let Some((_, unmap)) = self.0.ram {
            // SAFETY: as above.
            unsafe { unmap(at, pages) };
        }
    }
}

impl Drop for KernelDriver<'_> {
    fn drop(&mut self) {
        // SAFETY: the function is loaded, and this thread will not call before it registers a CPU again.
        unsafe { (self.0.thread_exit)() };
    }
}
