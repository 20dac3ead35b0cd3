//! Memory allocated without a lifetime, and taken back.
//!
//! A benchmark makes hundreds of spaces, some with a hundred nodes: what each of them was allocated must come back when
//! it is dropped.

use std::ptr::with_exposed_provenance_mut;
use va_base::{Record, Table};

/// A slab of unused records.
pub(super) fn alloc_meta<T: Record>(min: usize) -> &'static mut [T] {
    Box::leak(vec![T::EMPTY; min].into_boxed_slice())
}

/// Frees a slab.
///
/// # Safety
/// [`alloc_meta`] made it, and nobody keeps a reference into it.
pub(super) unsafe fn free_meta<T: Record>(slab: &'static mut [T]) {
    // SAFETY: it was a box, whole, and this is the only reference to it, both by this function's contract.
    drop(unsafe { Box::from_raw(slab) });
}

/// An empty table.
pub(super) fn alloc_table<T: Table>() -> &'static T {
    let table = Box::into_raw(Box::new(T::empty()));
    let _address = table.expose_provenance();
    // SAFETY: it was a box a moment ago, and stays where it is until it is taken back, when nobody refers to it any
    // more.
    unsafe { &*table }
}

/// Frees a table.
///
/// # Safety
/// [`alloc_table`] made it, and nobody uses it any more.
pub(super) unsafe fn free_table<T: Table>(table: &'static T) {
    let table = with_exposed_provenance_mut::<T>((&raw const *table).addr());
    // SAFETY: it was a box whose provenance was exposed, and nobody uses it, both by this function's contract.
    drop(unsafe { Box::from_raw(table) });
}
