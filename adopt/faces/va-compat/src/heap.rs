//! Memory for records from the global allocator, freed with the index.
//!
//! No code outside this crate can name the type, or make a value of it. So the only slabs that it frees are those that an
//! index got from it.
#![expect(unsafe_code, reason = "a slab is freed by turning it back into its box")]

use alloc::boxed::Box;
use alloc::vec::Vec;
use va_base::{Meta, Platform, Record};

/// A platform over the global allocator.
#[derive(Debug)]
pub struct Heap(());

impl Heap {
    /// The one value.
    pub(crate) const NEW: Self = Self(());
}

impl Platform for Heap {
    fn alloc_meta<T: Record>(&self, min: usize) -> Option<&'static mut [T]> {
        let mut records = Vec::new();
        records.try_reserve_exact(min).ok()?;
        records.resize(min, T::EMPTY);
        Some(Box::leak(records.into_boxed_slice()))
    }

    fn free_meta<T: Record>(&self, slab: Meta<&'static mut [T]>) {
        let slab: *mut [T] = slab.take();
        // SAFETY: an index frees whole slabs that `alloc_meta` leaked as boxes, each once, and no other code can name
        // this type.
        drop(unsafe { Box::from_raw(slab) });
    }
}
