//! Chunks of contiguous memory, whole: Linux's backend `percpu-km`, for machines that cannot map.
//!
//! A chunk is a block of as many bytes as its units have, rounded up to a power of two. It is populated when it is
//! created and remains so, and there is one group.
//!
//! # Source
//! Linux `mm/percpu-km.c` (6.12).

use crate::backend::{Backend, BackendError, all_zero};
use crate::geometry::Geometry;
use core::ops::Range;
use va_base::Va;

/// Allocates contiguous memory.
pub trait Blocks {
    /// Allocates a block of so many bytes, a power of two, at a multiple of them.
    ///
    /// # Errors
    /// [`BackendError`].
    fn alloc(&self, bytes: u64) -> Result<Va, BackendError>;

    /// Frees a block.
    fn free(&self, at: Va, bytes: u64);

    /// Zeroes bytes: those of one CPU's copy of an object, or of several adjacent ones, before they are allocated. They
    /// are in a block, or in the first chunk, whose memory was there before the space. Called under no lock.
    fn zero(&self, at: Va, bytes: u64);

    /// Returns whether bytes are zero; `None` if there is no memory behind the addresses, or it cannot be read. Only
    /// `validate` and debug assertions call it, to check [`zero`](Self::zero).
    fn is_zero(&self, at: Va, bytes: u64) -> Option<bool> {
        let _ = (at, bytes);
        None
    }
}

/// The backend.
#[derive(Clone, Copy, Debug)]
pub struct KmChunks<M>(pub M);

/// Returns the address of a byte in each unit.
fn copies(geometry: &Geometry, base: Va, off: u32) -> impl Iterator<Item = Va> {
    let (first, unit) = (base.get() + u64::from(off), u64::from(geometry.unit_bytes()));
    (0..u64::from(geometry.sizes().units)).map(move |nth| Va::new(first + nth * unit))
}

fn block_bytes(geometry: &Geometry) -> u64 {
    (u64::from(geometry.unit_bytes()) * u64::from(geometry.sizes().units))
        .max(geometry.sizes().atom.into())
        .next_power_of_two()
}

impl<M: Blocks> Backend for KmChunks<M> {
    const BY_PAGE: bool = false;

    fn create(&self, geometry: &Geometry) -> Result<Va, BackendError> {
        self.0.alloc(block_bytes(geometry))
    }

    fn destroy(&self, geometry: &Geometry, base: Va) {
        self.0.free(base, block_bytes(geometry));
    }

    fn populate(&self, _geometry: &Geometry, _base: Va, _pages: Range<u32>) -> Result<(), BackendError> {
        Ok(())
    }

    fn depopulate(&self, _geometry: &Geometry, _base: Va, _pages: Range<u32>) {}

    fn flush(&self, _geometry: &Geometry, _base: Va, _pages: Range<u32>) {}

    fn zero(&self, geometry: &Geometry, base: Va, off: u32, bytes: u32) {
        copies(geometry, base, off).for_each(|at| self.0.zero(at, bytes.into()));
    }

    fn is_zero(&self, geometry: &Geometry, base: Va, off: u32, bytes: u32) -> Option<bool> {
        all_zero(copies(geometry, base, off).map(|at| self.0.is_zero(at, bytes.into())))
    }
}
