//! Records of an index from the kernel's heap, for a kernel with a global allocator.

use alloc::boxed::Box;
use alloc::vec::Vec;
use va_base::{Meta, Platform, Record};

/// A platform that allocates records from the global allocator. Before there is a heap it has none, and an index uses
/// the records inside itself.
#[derive(Clone, Copy, Debug)]
pub struct KernelHeap;

impl Platform for KernelHeap {
    fn alloc_meta<T: Record>(&self, min: usize) -> Option<&'static mut [T]> {
        let mut slab = Vec::new();
        slab.try_reserve_exact(min).ok()?;
        slab.resize(min, T::EMPTY);
        Some(Box::leak(slab.into_boxed_slice()))
    }

    fn free_meta<T: Record>(&self, slab: Meta<&'static mut [T]>) {
        let slab: *mut [T] = slab.take();
        // SAFETY: `alloc_meta` leaked it from a box of this length, and the core keeps no reference to it.
        drop(unsafe { Box::from_raw(slab) });
    }
}
