//! Requests.

use crate::bitmap::BIT_BYTES;
use crate::engine::Want;
use crate::error::AllocError;
use crate::geometry::UNIT_BYTES_MIN;
pub use va_base::Context;
use va_base::PAGE_SIZE;

/// The section of the space to search.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Place {
    /// The dynamic section of the first chunk, and all other chunks.
    #[default]
    Anywhere,
    /// The reserved section, if there is one.
    Reserved,
}

/// A request: a size, an alignment, and whether the caller can wait.
///
/// ```
/// use va_percpu::{Context, Request};
/// let request = Request::new(16, 16).context(Context::Atomic);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    pub(crate) size: usize,
    pub(crate) align: usize,
    pub(crate) context: Context,
    pub(crate) place: Place,
}

impl Request {
    /// Creates a request for `size` bytes at a multiple of `align`, which may be less than 4.
    #[must_use]
    pub const fn new(size: usize, align: usize) -> Self {
        Self { size, align, context: Context::Sleeping, place: Place::Anywhere }
    }

    /// Sets whether the caller can wait.
    #[must_use]
    pub const fn context(mut self, context: Context) -> Self {
        self.context = context;
        self
    }

    /// Sets the section to search.
    #[must_use]
    pub const fn place(mut self, place: Place) -> Self {
        self.place = place;
        self
    }

    /// Returns size and alignment, in bytes.
    #[must_use]
    pub const fn parts(&self) -> (usize, usize) {
        (self.size, self.align)
    }

    /// Returns true if the caller can wait.
    #[must_use]
    pub const fn waits(&self) -> bool {
        matches!(self.context, Context::Sleeping)
    }

    /// Returns the request in bits. As in Linux, the limit applies to whole words: 32 KiB minus a byte is legal.
    #[inline]
    pub(crate) fn want(&self) -> Result<Want, AllocError> {
        let Self { size: bytes, align, .. } = *self;
        if bytes == 0 || bytes > UNIT_BYTES_MIN as usize {
            return Err(AllocError::BadSize { bytes });
        }
        // An alignment of 0 means none.
        let aligned = align.max(BIT_BYTES as usize);
        if !aligned.is_power_of_two() || aligned > PAGE_SIZE as usize {
            return Err(AllocError::BadAlign { align });
        }
        Ok(Want { bits: (bytes as u32).div_ceil(BIT_BYTES), align: aligned as u32 / BIT_BYTES })
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn what_no_chunk_can_hold_is_an_error() {
        let want = |size, align| Request::new(size, align).want();
        assert_eq!(want(0, 4), Err(AllocError::BadSize { bytes: 0 }));
        assert_eq!(want(32_769, 4), Err(AllocError::BadSize { bytes: 32_769 }));
        assert_eq!(want(usize::MAX, 4), Err(AllocError::BadSize { bytes: usize::MAX }));
        assert_eq!(want(4, 12), Err(AllocError::BadAlign { align: 12 }));
        assert_eq!(want(4, 8192), Err(AllocError::BadAlign { align: 8192 }));
        assert_eq!(want(32_768, 4096), Ok(Want { bits: 8192, align: 1024 }));
        for align in 0..=4 {
            assert_eq!(want(1, align), Ok(Want { bits: 1, align: 1 }));
        }
    }
}
