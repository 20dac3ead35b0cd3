//! The port of `adopt/guest` on one CPU without privileges, with frames in static memory.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU64, Ordering};
use va_base::{PAGE_SIZE, Va};
use vmalloc_guest::cpus::Cpus;
use vmalloc_guest::frames::{self, Frames};
use vmalloc_guest::port::Port;
use vmalloc_guest::shootdown::Shootdown;
use vmalloc_guest::tables::Tables;

const MEMORY_BYTES: u64 = 4 << 20;

#[repr(align(4096))]
struct Memory(UnsafeCell<[u8; MEMORY_BYTES as usize]>);

// SAFETY: the bytes are reached through the frames alone, which give every byte to one owner at a time.
unsafe impl Sync for Memory {}

static MEMORY: Memory = Memory(UnsafeCell::new([0; MEMORY_BYTES as usize]));
/// The frames in it.
pub(crate) static FRAMES: Frames<One> = Frames::new();
static SHOOTDOWN: Shootdown<One> = Shootdown::new();
/// The machine.
pub(crate) static PORT: Port<One> = Port { frames: &FRAMES, shootdown: &SHOOTDOWN };
/// Times that translations were forgotten.
pub(crate) static FORGOTTEN: AtomicU64 = AtomicU64::new(0);

/// One CPU, which nothing interrupts and which translates nothing.
#[derive(Clone, Copy)]
pub(crate) enum One {}

impl Cpus for One {
    const POSSIBLE: usize = 1;

    fn online() -> u64 {
        1
    }

    fn this() -> usize {
        0
    }

    fn disable_interrupts() -> bool {
        true
    }

    fn enable_interrupts() {}

    fn takes_interrupts() -> bool {
        true
    }

    fn interrupt(_cpu: usize) {}

    fn forget(_at: Va) {
        FORGOTTEN.fetch_add(1, Ordering::Relaxed);
    }

    fn forget_all() {
        FORGOTTEN.fetch_add(1, Ordering::Relaxed);
    }
}

/// Adds the frames, and returns how many there are.
pub(crate) fn init() -> usize {
    let first = MEMORY.0.get().expose_provenance() as u64 / PAGE_SIZE;
    // SAFETY: the memory is used through its frames alone, and its addresses are those of the program.
    unsafe { FRAMES.add(first, first + MEMORY_BYTES / PAGE_SIZE) };
    FRAMES.free_count()
}

/// Returns empty page tables.
pub(crate) fn tables() -> Option<Tables<One>> {
    let root = FRAMES.alloc(0)?;
    // SAFETY: allocated just now.
    unsafe { frames::clear(root, 0, PAGE_SIZE) };
    // SAFETY: an empty table, which nothing else uses.
    Some(unsafe { Tables::new(&FRAMES, root) })
}
