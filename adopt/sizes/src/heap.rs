//! The global allocator of the programs, for ports that have a heap.

use crate::arena::Arena;
use core::alloc::{GlobalAlloc, Layout};
use core::ptr::null_mut;
use va_base::{Platform, Record};

struct Heap;

/// A unit of memory.
#[derive(Clone)]
#[repr(align(64))]
struct Line(#[expect(dead_code, reason = "memory for others")] [u8; 64]);

impl Record for Line {
    const EMPTY: Self = Self([0; 64]);
}

// SAFETY: the arena returns memory that no other call returns, aligned to 64 bytes, and never uses it again.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.align() > align_of::<Line>() {
            return null_mut();
        }
        let lines = Arena.alloc_meta::<Line>(layout.size().div_ceil(size_of::<Line>()));
        lines.map_or(null_mut(), |lines| lines.as_mut_ptr().cast())
    }

    unsafe fn dealloc(&self, _ptr: *mut u8, _layout: Layout) {}
}

#[global_allocator]
static HEAP: Heap = Heap;
