//! Counts the allocations of a thread, and the bytes that it has.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local!(static COUNT: Cell<(u64, isize)> = const { Cell::new((0, 0)) });

struct Counting;

// SAFETY: it is the system's allocator, with counters that allocate nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let (count, bytes) = COUNT.get();
        COUNT.set((count + 1, bytes + layout.size() as isize));
        // SAFETY: by the contract of this function.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        let (count, bytes) = COUNT.get();
        COUNT.set((count, bytes - layout.size() as isize));
        // SAFETY: by the contract of this function.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Returns the allocations of this thread so far, and their bytes less those that it freed.
pub(crate) fn count() -> (u64, isize) {
    COUNT.get()
}
