//! The C functions of per-CPU memory. Each converts its arguments to those of [`pcpu`], and converts the result back.
//!
//! Their names, arguments and results are those of the interface by which Linux's per-CPU allocator is measured. A
//! pointer there is an offset here, and 0 is none. Nothing is written through a null pointer.

use crate::host::Work;
use crate::pcpu::{self, Settings};
use std::ffi::c_int;
use va_percpu::Offset;

/// The settings of a caller. Zeros mean Linux's values.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct KpConfig {
    /// Units, or 0: 4.
    pub nr_units: u32,
    /// Bytes of a unit, or 0.
    pub unit_size: u32,
    /// Bytes of static data, or 0.
    pub static_size: u32,
    /// Bytes of the reserved section, or all ones.
    pub reserved_size: u32,
    /// Bytes of the dynamic section, or 0.
    pub dyn_size: u32,
    /// The balance: 0 the caller, 1 a helper thread, 2 any caller of [`kp_run_work`].
    pub work_mode: u32,
}

/// The place of an object.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct KpPtr {
    /// The offset, or 0.
    pub addr: u64,
    /// -1 the reserved section, 0 the first chunk, others in the order of their creation; -2 nothing.
    pub chunk: i32,
    /// Bytes from the beginning of the bitmap of the chunk; -2 nothing.
    pub off: i32,
}

/// The report to a caller.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct KpStats {
    /// Chunks.
    pub nr_chunks: u64,
    /// Free bytes of a unit in them.
    pub free_bytes: u64,
    /// Populated pages of a unit in them: in Linux's library only those of dynamic sections.
    pub populated_pages: u64,
    /// The spare ones among them.
    pub empty_pop_pages: u64,
    /// Chunks created.
    pub chunks_created: u64,
    /// Chunks destroyed.
    pub chunks_destroyed: u64,
    /// Pages of all units populated.
    pub populate_pages: u64,
    /// Pages of all units depopulated.
    pub depopulate_pages: u64,
    /// Passes of the balance.
    pub work_runs: u64,
    /// Bytes that would have been zeroed.
    pub memset_bytes: u64,
    /// Warnings.
    pub warns: u64,
    /// The longest run of a chunk by its engine, in words of 4 bytes.
    pub max_contig_bits: u64,
    /// Chunks isolated.
    pub isolated: u64,
}

/// Replaces the space by an empty one. 0, or -1.
///
/// # Safety
/// `config` is null or points to a configuration.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kp_init(config: *const KpConfig) -> c_int {
    // SAFETY: null or valid for a read, by this function's contract; plain numbers, so any bits are a configuration.
    let Some(config) = (unsafe { config.as_ref() }) else { return -1 };
    let work = match config.work_mode {
        0 => Work::Here,
        1 => Work::Helper,
        2 => Work::OnRequest,
        _ => return -1,
    };
    let or = |asked, usual| if asked == 0 { usual } else { asked };
    let reserved = if config.reserved_size == u32::MAX { 8192 } else { config.reserved_size };
    let settings = Settings {
        units: or(config.nr_units, 4),
        unit: or(config.unit_size, 262_144),
        parts: [or(config.static_size, 221_184), reserved, or(config.dyn_size, 28_672)],
        work,
    };
    if pcpu::start(&settings).is_some() { 0 } else { -1 }
}

/// Assigns the calling thread to a CPU; no state here belongs to one.
// SAFETY: no other symbol of the process has this name.
#[unsafe(no_mangle)]
pub extern "C" fn kp_thread_init(_cpu: c_int) {}

/// Ends the use of the library by the calling thread.
#[unsafe(no_mangle)]
pub extern "C" fn kp_thread_exit() {}

/// Allocates an object: returns its offset, or 0. Flags: 1 the caller cannot wait, 2 from the reserved section.
#[unsafe(no_mangle)]
pub extern "C" fn kp_alloc_fast(size: u64, align: u64, flags: c_int) -> u64 {
    pcpu::alloc(size, align, flags & 1 != 0, flags & 2 != 0).map_or(0, Offset::get)
}

/// Does the same, and writes where the object is: returns 0, or -1.
///
/// # Safety
/// `out` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kp_alloc(size: u64, align: u64, flags: c_int, out: *mut KpPtr) -> c_int {
    let got = pcpu::alloc(size, align, flags & 1 != 0, flags & 2 != 0);
    let found = got.and_then(pcpu::find);
    // SAFETY: null or valid for a write, by this function's contract.
    if let Some(out) = unsafe { out.as_mut() } {
        *out = KpPtr { addr: got.map_or(0, Offset::get), chunk: -2, off: -2 };
        if let Some(found) = found {
            out.chunk = i32::try_from(found.chunk).unwrap_or(-2);
            out.off = found.off.cast_signed();
        }
    }
    if got.is_some() { 0 } else { -1 }
}

/// Frees an object; does nothing if there is none.
#[unsafe(no_mangle)]
pub extern "C" fn kp_free(addr: u64) {
    pcpu::free(Offset::new(addr));
}

/// Balances, where the caller does this: returns the number of passes.
#[unsafe(no_mangle)]
pub extern "C" fn kp_run_work() -> c_int {
    pcpu::run_work().cast_signed()
}

/// Returns the counts.
///
/// # Safety
/// `out` is null or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kp_stats(out: *mut KpStats) {
    // SAFETY: null or valid for a write, by this function's contract.
    let Some(out) = (unsafe { out.as_mut() }) else { return };
    *out = KpStats::default();
    let Some(count) = pcpu::count() else { return };
    let stats = count.stats;
    *out = KpStats {
        nr_chunks: stats.chunks.into(),
        free_bytes: stats.free_bytes,
        populated_pages: stats.chunk_pages,
        empty_pop_pages: stats.spare_pages.max(0).cast_unsigned(),
        chunks_created: stats.chunks_made.into(),
        chunks_destroyed: count.destroyed,
        populate_pages: count.pages[0],
        depopulate_pages: count.pages[1],
        work_runs: count.passes,
        memset_bytes: stats.bytes * u64::from(count.units),
        warns: 0,
        max_contig_bits: (stats.longest_bytes / va_percpu::BIT_BYTES).into(),
        isolated: stats.isolated.into(),
    };
}
