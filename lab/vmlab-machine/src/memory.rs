//! Memory with a static lifetime that is freed explicitly.
//!
//! A benchmark creates hundreds of spaces, some with a hundred nodes: the memory of each must be freed when it is
//! dropped.

use std::ptr::with_exposed_provenance_mut;
use va_base::{Record, Table};

/// Allocates a slab of unused records.
pub(super) fn alloc_meta<T: Record>(min: usize) -> &'static mut [T] {
    Box::leak(vec![T::EMPTY; min].into_boxed_slice())
}

/// Frees a slab.
///
/// # Safety
/// [`alloc_meta`] allocated it, and no reference into it is used any more.
pub(super) unsafe fn free_meta<T: Record>(slab: *mut [T]) {
    // SAFETY: it was a whole box, and there is no other reference to it, both by this function's contract.
    drop(unsafe { Box::from_raw(slab) });
}

/// Allocates an empty table.
pub(super) fn alloc_table<T: Table>() -> &'static T {
    let table = Box::into_raw(Box::new(T::empty()));
    let _address = table.expose_provenance();
    // SAFETY: it was just created as a box. It stays at its address until it is freed, when no other reference exists.
    unsafe { &*table }
}

/// Frees a table.
///
/// # Safety
/// [`alloc_table`] allocated it, and no reference to it is used any more.
pub(super) unsafe fn free_table<T: Table>(table: *const T) {
    let table = with_exposed_provenance_mut::<T>(table.addr());
    // SAFETY: it was a box whose provenance was exposed, and no other reference is used, both by this function's
    // contract.
    drop(unsafe { Box::from_raw(table) });
}
