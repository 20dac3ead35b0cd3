//! Checks of a port, for a kernel to run once it has booted: on its CPUs, its page tables and its memory.
//!
//! | function | checks |
//! |---|---|
//! | [`stale`] | no CPU translates an address as before once the address is used again |
//! | [`load`] | contents are right while all CPUs allocate and free areas, small mappings and per-CPU objects |
//!
//! A kernel implements [`Kernel`]. `adopt/guest` does so, and runs both in QEMU.
#![no_std]

mod load;
#[cfg(all(test, loom))]
mod loom;
mod stale;

pub use load::load;
pub use stale::stale;

use core::fmt::Arguments;
use core::sync::atomic::AtomicU64;
use va_base::{Machine, PAGE_SIZE, Va};
use va_map::{MapSpace, PageSource, PageTable};
use va_percpu::{Backend, PercpuSpace};
use va_space::VmapSpace;

/// Work for a CPU, which is passed its number.
pub type Work<'a> = &'a (dyn Fn(usize) + Sync);

/// A kernel with the core in it.
///
/// # Safety
/// The pages of the map and of per-CPU memory are frames of the page table, mapped as it says, for every CPU.
/// [`direct`](Self::direct) returns the address of a frame's memory.
pub unsafe trait Kernel: Sync {
    /// The machine of the core.
    type Machine: Machine + Clone;
    /// Page tables, and the source of frames.
    type Table: PageTable + PageSource + Sync;
    /// The chunks of per-CPU memory.
    type Chunks: Backend + Sync;
    /// The number of CPUs, all of which are online.
    const CPUS: usize;

    /// Returns the areas with pages.
    fn map(&self) -> &MapSpace<Self::Machine, Self::Table>;
    /// Returns per-CPU memory.
    fn percpu(&self) -> &PercpuSpace<Self::Machine, Self::Chunks>;
    /// Returns the space of the addresses of chunks.
    fn space(&self) -> &VmapSpace<Self::Machine>;
    /// Returns the address of a CPU's unit in the first chunk.
    fn unit(&self, cpu: usize) -> Va;
    /// Returns the address of a frame in the mapping of all memory.
    fn direct(&self, frame: u64) -> *mut u8;
    /// Calls `work` on every CPU, and returns when all have returned.
    fn each(&self, work: Work<'_>);
    /// Reads a word by the CPU that calls it. If that faults, returns the address that the processor reports.
    fn read(&self, at: Va) -> Result<u64, Va>;
    /// Prints a line.
    fn print(&self, line: Arguments<'_>);
}

/// Returns the page tables.
fn table<K: Kernel>(kernel: &K) -> &K::Table {
    kernel.map().table().expect("a map that has page tables")
}

/// Allocates a frame of the caller's.
fn frame(kernel: &impl Kernel) -> u64 {
    table(kernel).alloc_run(0, va_map::PageRequest::default()).expect("a frame")
}

/// Frees frames of [`frame`].
fn free(kernel: &impl Kernel, frames: &[u64]) {
    frames.iter().for_each(|&first| table(kernel).free(va_map::Run { first, pages: 1 }));
}

/// Returns the first word of a frame, through the mapping of all memory.
fn first_word(kernel: &impl Kernel, frame: u64) -> &'static AtomicU64 {
    // SAFETY: the memory of a frame that a check owns, which uses its words atomically.
    unsafe { &*kernel.direct(frame).cast() }
}

/// Returns the word of a page of an area at a place.
fn word(at: Va, page: u64, place: u64) -> &'static AtomicU64 {
    let at = (at.get() + page * PAGE_SIZE + 8 * place) as usize;
    // SAFETY: a word of an area, a mapping or an object that a check owns, and mapped as the kernel promises.
    unsafe { &*core::ptr::with_exposed_provenance(at) }
}
