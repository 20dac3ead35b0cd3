//! Chunks of contiguous memory, whole: Linux's backend `percpu-km`, for machines that cannot map.
//!
//! A chunk is a block of as many bytes as its units have, rounded up to a power of two. It is populated when it is
//! created and remains so, and there is one group.
//!
//! # Source
//! Linux `mm/percpu-km.c` (6.12).

use crate::backend::{Backend, BackendError};
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
}

/// The backend.
#[derive(Clone, Copy, Debug)]
pub struct KmChunks<M>(pub M);

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
}
