//! Chunks that are numbers: no memory, no page, no translation.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use va_base::Va;
use va_percpu::{Backend, BackendError, Geometry};

/// Creates chunks at equal distances, and never one twice.
#[derive(Debug)]
pub struct Numbers {
    next: Mutex<u64>,
    step: i64,
}

impl Numbers {
    /// Creates a backend whose first chunk is at `first`, and each further one `step` bytes above the last.
    #[must_use]
    pub const fn new(first: u64, step: i64) -> Self {
        Self { next: Mutex::new(first), step }
    }
}

impl Backend for Numbers {
    const BY_PAGE: bool = true;

    fn create(&self, _geometry: &Geometry) -> Result<Va, BackendError> {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let base = *next;
        *next = base.wrapping_add_signed(self.step);
        Ok(Va::new(base))
    }

    fn destroy(&self, _geometry: &Geometry, _base: Va) {}

    fn populate(&self, _geometry: &Geometry, _base: Va, _pages: Range<u32>) -> Result<(), BackendError> {
        Ok(())
    }

    fn depopulate(&self, _geometry: &Geometry, _base: Va, _pages: Range<u32>) {}

    fn flush(&self, _geometry: &Geometry, _base: Va, _pages: Range<u32>) {}

    /// Does nothing: there is no memory.
    #[inline(always)]
    fn zero(&self, _geometry: &Geometry, _base: Va, _off: u32, _bytes: u32) {}
}
