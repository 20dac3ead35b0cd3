//! Memory from the global allocator for an index: tests, examples and the first steps of a port.
//!
//! # Theory
//! The core has no allocator. A test and an example have one, and need no more than this. A slab is a leaked vector. So
//! this module is compiled only with the feature `alloc`, and no crate of the core enables it outside tests. It needs no
//! atomics, as the index does not; a machine for a space is in `machine`.
//!
//! # Limits
//! Freed memory is not allocated again: turning a slice back into its box takes unsafe code, which the core forbids. A
//! port that runs for long frees it, as the page on porting shows.
#![cfg(any(feature = "alloc", test))]

extern crate alloc;

#[cfg(target_has_atomic = "64")]
mod machine;

#[cfg(target_has_atomic = "64")]
pub use machine::{HeapMachine, LimitedHeap, Watch};

use crate::{Meta, Platform, Record};
use alloc::vec::Vec;

/// A platform that allocates slabs from the global allocator, and leaks them.
///
/// ```
/// use va_base::{Heap, Platform, Record};
///
/// #[derive(Clone, Copy, PartialEq, Debug)]
/// struct Word(u64);
/// impl Record for Word {
///     const EMPTY: Self = Self(7);
/// }
/// assert_eq!(Heap.alloc_meta::<Word>(3).unwrap(), [Word(7); 3]);
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct Heap;

impl Platform for Heap {
    fn alloc_meta<T: Record>(&self, min: usize) -> Option<&'static mut [T]> {
        let mut records = Vec::new();
        records.try_reserve_exact(min).ok()?;
        records.resize(min, T::EMPTY);
        Some(Vec::leak(records))
    }

    fn free_meta<T: Record>(&self, _slab: Meta<&'static mut [T]>) {}
}
