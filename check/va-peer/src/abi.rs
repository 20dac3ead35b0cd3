//! The C functions. Each converts pointers and integers to the arguments of [`call`], and converts the result back;
//! there is nothing else here.
//!
//! Their names, arguments and results are those of the interface by which Linux's allocator is measured: an address or
//! 0, 0 or -1. Nothing is written through a null pointer.

use crate::call::{self, How};
use crate::host::{Lockings, Work};
use crate::peer::{Policy, Settings};
use std::ffi::c_int;
use va_base::{PAGE_SIZE, Va};

/// The settings of a caller; see [`Settings`].
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct KvConfig {
    /// First address of the default window, or 0.
    pub vmalloc_start: u64,
    /// Its end, or 0.
    pub vmalloc_end: u64,
    /// CPUs online, or 0.
    pub nr_cpus: u32,
    /// Nodes, or 0.
    pub nr_nodes: u32,
    /// The drain: 0 the caller, 1 a helper thread, 2 any caller of [`kv_run_work`].
    pub work_mode: u32,
}

/// The report to a caller. Counts without a counterpart in the space stay 0.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct KvStats {
    /// Busy areas.
    pub busy: u64,
    /// Lazy areas.
    pub lazy: u64,
    /// Their pages.
    pub lazy_pages: u64,
    /// Areas in pools and magazines.
    pub pooled: u64,
    /// Holes.
    pub free_areas: u64,
    /// Bytes of the largest.
    pub free_largest: u64,
    /// Passes of the purge.
    pub purges: u64,
    /// Areas that they settled.
    pub purged_areas: u64,
    /// Drains by a worker: 0 here, they are among the purges.
    pub work_runs: u64,
    /// Flushes.
    pub tlb_flush: u64,
    /// Pages unmapped: nothing is mapped here.
    pub vunmap_pages: u64,
    /// Pages mapped.
    pub vmap_pages: u64,
    /// Locks that were waited for, by class: not counted.
    pub lock_slow: [u64; 9],
    /// Times that a waiter let others run.
    pub lock_yield: u64,
    /// Warnings.
    pub warns: u64,
    /// Locks taken, by class: free, busy, lazy, pool, two of vmap blocks, percpu, the purge, others. Counting build
    /// only.
    pub lock_acq: [u64; 9],
    /// Height of the tree of holes.
    pub free_height: u64,
}

fn status(done: bool) -> c_int {
    if done { 0 } else { -1 }
}

/// Replaces the space by an empty one. 0, or -1.
///
/// # Safety
/// `config` is null or points to a configuration.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_init(config: *const KvConfig) -> c_int {
    // SAFETY: null or valid for a read, by this function's contract; plain numbers, so any bits are a configuration.
    let Some(config) = (unsafe { config.as_ref() }) else { return -1 };
    let work = match config.work_mode {
        0 => Work::Here,
        1 => Work::Helper,
        2 => Work::OnRequest,
        _ => return -1,
    };
    let Some(policy) = Policy::from_environment() else {
        eprintln!("va-peer: VA_PEER_POLICY is neither default nor linux");
        return -1;
    };
    let settings = Settings {
        start: config.vmalloc_start,
        end: config.vmalloc_end,
        cpus: config.nr_cpus,
        nodes: config.nr_nodes,
        work,
    };
    status(call::start(policy, &settings).is_some())
}

/// Assigns the calling thread to a CPU.
// SAFETY: no other symbol of the process has this name.
#[unsafe(no_mangle)]
pub extern "C" fn kv_thread_init(cpu: c_int) {
    call::enter(cpu.unsigned_abs());
}

/// Ends the use of the library by the calling thread.
#[unsafe(no_mangle)]
pub extern "C" fn kv_thread_exit() {
    call::leave();
}

/// Allocates an area: returns its start, or 0.
#[unsafe(no_mangle)]
pub extern "C" fn kv_alloc(size: u64, align: u64, vstart: u64, vend: u64) -> u64 {
    call::alloc(size, align, vstart, vend).map_or(0, Va::get)
}

/// Frees an area. Returns 0, or -1 if none starts there.
#[unsafe(no_mangle)]
pub extern "C" fn kv_free(addr: u64) -> c_int {
    status(call::free(Va::new(addr)))
}

/// Finds the area around an address: returns 0 and its ends, or -1.
///
/// # Safety
/// `start` and `end` are null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_find(addr: u64, start: *mut u64, end: *mut u64) -> c_int {
    let Some(range) = call::find(Va::new(addr)) else { return -1 };
    // SAFETY: null or valid for a write, by this function's contract.
    if let Some(start) = unsafe { start.as_mut() } {
        *start = range.start().get();
    }
    // SAFETY: as for `start`.
    if let Some(end) = unsafe { end.as_mut() } {
        *end = range.end().get();
    }
    0
}

/// Purges: 0 as a drain, 1 all, 2 until no freed address is translated, 3 pools alone. Others do nothing.
#[unsafe(no_mangle)]
pub extern "C" fn kv_purge(mode: c_int) {
    match mode {
        0 => call::purge(How::Drain),
        1 => call::purge(How::Full),
        2 => call::purge(How::Aliases),
        3 => call::purge(How::Shrink),
        _ => {}
    }
}

/// Allocates pages for a short-lived mapping: returns its start, or 0.
#[unsafe(no_mangle)]
pub extern "C" fn kv_map_ram(pages: u32) -> u64 {
    call::map(u64::from(pages)).map_or(0, Va::get)
}

/// Frees such a mapping; a wrong address or size changes nothing.
#[unsafe(no_mangle)]
pub extern "C" fn kv_unmap_ram(addr: u64, pages: u32) {
    // The function has no result.
    let _unmapped = call::unmap(Va::new(addr), u64::from(pages));
}

/// Returns the counts.
///
/// # Safety
/// `out` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_stats(out: *mut KvStats) {
    // SAFETY: null or valid for a write, by this function's contract.
    let Some(out) = (unsafe { out.as_mut() }) else { return };
    *out = KvStats::default();
    let Some((count, flushes, lockings)) = call::count() else { return };
    out.busy = count.busy;
    out.lazy = count.lazy;
    out.lazy_pages = count.lazy_pages;
    out.pooled = count.pooled;
    out.free_areas = count.holes;
    out.free_largest = count.largest_bytes;
    out.purges = count.purges;
    out.purged_areas = count.purged;
    out.tlb_flush = flushes;
    call::print_counts(flushes, lockings);
    let Lockings { pool, lazy, free, purge, queue, lookup, collect } = lockings;
    out.lock_acq = [free, 0, lazy, pool, queue, lookup, 0, purge, collect];
}

/// Allocates an area with a guard page after it: returns its start, or 0.
#[unsafe(no_mangle)]
pub extern "C" fn kv_vm_alloc(size: u64, align: u64) -> u64 {
    let whole = size.checked_next_multiple_of(PAGE_SIZE).and_then(|size| size.checked_add(PAGE_SIZE));
    let Some(whole) = whole.filter(|_| size > 0) else { return 0 };
    kv_alloc(whole, align, 0, 0)
}

/// Frees such an area, or one of [`kv_pcpu_areas`]: returns 0, or -1.
#[unsafe(no_mangle)]
pub extern "C" fn kv_vm_free(addr: u64) -> c_int {
    kv_free(addr)
}

/// Runs the drain that is due, where the caller drains: returns how many there were.
#[unsafe(no_mangle)]
pub extern "C" fn kv_run_work() -> c_int {
    c_int::from(call::run_work())
}

/// Allocates `n` areas at fixed distances: returns 0 and the start of each, or -1.
///
/// # Safety
/// `offs` and `sizes` are valid for `n` reads, `out` for `n` writes, and they do not overlap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_pcpu_areas(
    offs: *const u64,
    sizes: *const u64,
    n: c_int,
    align: u64,
    out: *mut u64,
) -> c_int {
    let Ok(n) = usize::try_from(n) else { return -1 };
    if offs.is_null() || sizes.is_null() || out.is_null() || n == 0 {
        return -1;
    }
    // SAFETY: not null, and valid for `n` reads by this function's contract.
    let offs = unsafe { std::slice::from_raw_parts(offs, n) };
    // SAFETY: as for `offs`.
    let sizes = unsafe { std::slice::from_raw_parts(sizes, n) };
    let mut areas: Vec<(u64, u64)> = offs.iter().copied().zip(sizes.iter().copied()).collect();
    let Some(base) = call::congruent(&mut areas, align) else { return -1 };
    // SAFETY: not null, valid for `n` writes, and apart from the others by this function's contract.
    let out = unsafe { std::slice::from_raw_parts_mut(out, n) };
    for (out, off) in out.iter_mut().zip(offs) {
        *out = base.get() + off;
    }
    0
}

/// Writes up to `max` holes as pairs of ends in address order, and returns how many there are.
///
/// The first begins and the last ends at the same address as Linux's, which are not whole pages.
///
/// # Safety
/// `pairs` is null or valid for `2 * max` writes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kv_dump_free(pairs: *mut u64, max: u64) -> u64 {
    let holes = call::holes();
    let Ok(room) = usize::try_from(max) else { return holes.len() as u64 };
    if !pairs.is_null() {
        // SAFETY: not null, and valid for `2 * max` writes by this function's contract.
        let pairs = unsafe { std::slice::from_raw_parts_mut(pairs, 2 * room) };
        for (pair, hole) in pairs.chunks_exact_mut(2).zip(&holes) {
            let (first, last) = (hole.start().get(), hole.end().get());
            pair[0] = if first == PAGE_SIZE { 1 } else { first };
            pair[1] = if last == u64::MAX - (PAGE_SIZE - 1) { u64::MAX } else { last };
        }
    }
    holes.len() as u64
}
