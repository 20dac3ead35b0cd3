//! A kernel that boots and does one thing: it runs the core on four CPUs, over its own page tables.
//!
//! The command line chooses what to break: `flush=none` leaves out every flush, `flush=skip-one` leaves out one CPU.
#![no_std]
#![no_main]

mod cpus;
mod hw;
mod memory;
mod traps;

use core::arch::global_asm;
use core::ffi::CStr;
use core::ptr::with_exposed_provenance;
use core::sync::atomic::Ordering::Relaxed;
use va_base::PAGE_SIZE;
use vmalloc_guest::{shootdown::Shootdown, tables::Tables};

global_asm!(
    ".set CPUS, {cpus}",
    ".set START, {start}",
    include_str!("boot.s"),
    cpus = const cpus::CPUS,
    start = const cpus::START_FRAME * PAGE_SIZE,
    options(att_syntax)
);

#[panic_handler]
fn panic(info: &core::panic::PanicInfo<'_>) -> ! {
    hw::fail(format_args!("{info}"))
}

unsafe extern "C" {
    static root: u8;
    static image_end: u8;
}

/// Reads a word of the loader's data, which is in the first 4 GiB and not yet written over.
fn loaded(at: u64) -> u64 {
    // SAFETY: the loader wrote it there, aligned.
    unsafe { *with_exposed_provenance(at as usize) }
}

/// Called by `boot.s` on each CPU. `info` is the loader's data on the first, and 0 on the others.
// SAFETY: no other function of the program has this name.
#[unsafe(no_mangle)]
extern "sysv64" fn enter(cpu: usize, info: u64) -> ! {
    if info == 0 {
        cpus::join(cpu);
        cpus::serve(cpu);
    }
    let began = hw::cycles();
    // SAFETY: the text of the command line, which ends with a zero.
    let line = unsafe { CStr::from_ptr(with_exposed_provenance(loaded(info + 24) as usize)) };
    let (omitted, flush) = match line.to_bytes() {
        b"flush=none" => (u64::MAX, "left out"),
        b"flush=skip-one" => (1 << (cpus::CPUS - 1), "one CPU too few"),
        _ => (0, "all CPUs"),
    };
    // The map of memory: 24 bytes for each range, its start, its length and its kind. The frames are above the image.
    let above = (&raw const image_end).addr() as u64;
    let ranges = (0..loaded(info + 48) as u32).map(|place| loaded(info + 40) + u64::from(place) * 24);
    let mut ranges = ranges.map(|at| loaded(at)..loaded(at) + loaded(at + 8));
    let end = ranges.find(|range| range.contains(&above)).expect("memory above the image").end / PAGE_SIZE;
    // SAFETY: memory at its own addresses, with nothing in it but the loader's data, which is not read any more.
    unsafe { memory::FRAMES.add(above / PAGE_SIZE, end) };
    // SAFETY: the tables of the boot are of this form, and nothing else changes them.
    let tables = unsafe { Tables::new(&memory::FRAMES, (&raw const root).addr() as u64 / PAGE_SIZE) };
    let memory = memory::init(tables);
    hw::mask_devices();
    cpus::join(0);
    cpus::start_others();
    hw::print(format_args!("guest: {} CPUs up, flush: {flush}", cpus::CPUS));
    cpus::SHOOTDOWN.omitted.store(omitted, Relaxed);
    let from = hw::cycles();
    hw::wait_ms(10);
    let cycles_per_ms = (hw::cycles() - from) / 10;
    if port_check::stale(&memory) > 0 {
        hw::end(hw::STALE);
    }
    port_check::load(&memory);
    let Shootdown { number: flushes, interrupts, .. } = &cpus::SHOOTDOWN;
    let ms = (hw::cycles() - began) / cycles_per_ms;
    hw::print(format_args!("GOOD {flushes:?} flushes by {interrupts:?} interrupts, {ms} ms"));
    hw::end(hw::GOOD)
}
