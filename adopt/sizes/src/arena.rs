//! A platform as a kernel has it at boot: a fixed piece of memory, allocated from the bottom up and never freed.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicUsize, Ordering};
use va_base::{Meta, Platform, Record, Table};

const ARENA_BYTES: usize = 1 << 20;

#[repr(align(4096))]
struct Memory(UnsafeCell<[u8; ARENA_BYTES]>);

// SAFETY: the bytes are reached through `Arena::carve` alone, which gives every byte to one borrower at most.
unsafe impl Sync for Memory {}

static MEMORY: Memory = Memory(UnsafeCell::new([0; ARENA_BYTES]));
/// Bytes allocated so far. It only grows, which is what makes each slab exclusive.
static ALLOCATED_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Allocates metadata memory from a static piece of memory, and reuses none that is freed.
#[derive(Clone, Copy)]
pub(crate) struct Arena;

impl Arena {
    /// Returns room for `count` values, aligned, which no other call returns.
    fn carve<T>(count: usize) -> Option<*mut T> {
        let size_bytes = count.checked_mul(size_of::<T>())?;
        if align_of::<T>() > 4096 {
            return None;
        }
        let place = |allocated: usize| -> Option<(usize, usize)> {
            let start = allocated.checked_next_multiple_of(align_of::<T>())?;
            let end = start.checked_add(size_bytes)?;
            (end <= ARENA_BYTES).then_some((start, end))
        };
        // Relaxed: the counter alone decides who gets which bytes, and nothing is read through it.
        let before = ALLOCATED_BYTES
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |allocated| {
                place(allocated).map(|(_, end)| end)
            })
            .ok()?;
        let (start, _) = place(before)?;
        // SAFETY: `start` is at most the size of the memory, by `place`.
        Some(unsafe { MEMORY.0.get().cast::<u8>().add(start) }.cast::<T>())
    }

    /// Allocates a table that is never freed.
    pub(crate) fn table<T: Table>() -> Option<&'static T> {
        let at = Self::carve::<T>(1)?;
        // A constant is copied to its place. `T::empty()` would put up to 32 KiB on the stack of a kernel.
        // SAFETY: room for one, aligned, which no other call returns (`carve`).
        unsafe { at.write(T::EMPTY) };
        // SAFETY: written just now, never written through again, and the memory is static.
        Some(unsafe { &*at })
    }
}

impl Platform for Arena {
    fn alloc_meta<T: Record>(&self, min: usize) -> Option<&'static mut [T]> {
        let first = Self::carve::<T>(min)?;
        for i in 0..min {
            // SAFETY: `i < min`, and `carve` found room for `min` records.
            let at = unsafe { first.add(i) };
            // SAFETY: inside the memory, aligned, and returned by no other call (`carve`).
            unsafe { at.write(T::EMPTY) };
        }
        // SAFETY: `min` records, aligned, written just now, allocated to no other caller, and the memory is static.
        Some(unsafe { core::slice::from_raw_parts_mut(first, min) })
    }

    fn free_meta<T: Record>(&self, _slab: Meta<&'static mut [T]>) {}
}
