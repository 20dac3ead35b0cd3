//! Requests, and their results.

use crate::bitmap::BIT_BYTES;
use crate::engine::Want;
use crate::error::AllocError;
use crate::geometry::UNIT_BYTES_MIN;
use core::fmt;
pub use va_base::Context;
use va_base::{PAGE_SIZE, Va};

/// The result of one allocation: the distance of an object from the beginning of the first chunk,
/// the same on every CPU.
///
/// The object of a CPU is at the beginning of its unit of the first chunk, plus this. The sum may wrap, since other
/// chunks may be lower. While a caller holds one, no other caller has the bytes, and their pages are populated.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Offset(u64);

impl Offset {
    /// Creates an offset from a number.
    #[must_use]
    pub const fn new(offset: u64) -> Self {
        Self(offset)
    }

    /// Returns the number, in bytes.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the address of the object of a CPU whose unit of the first chunk begins at `unit`.
    #[must_use]
    pub const fn at(self, unit: Va) -> Va {
        Va::new(unit.get().wrapping_add(self.0))
    }

    /// Returns the offset of the object at `at`, from the beginning of the first chunk.
    pub(crate) const fn between(first: Va, at: u64) -> Self {
        Self(at.wrapping_sub(first.get()))
    }
}

impl fmt::Display for Offset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

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

#[cfg(all(test, not(loom)))]
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

    #[test]
    fn an_offset_leads_below_the_first_chunk_too() {
        let first = Va::new(0x10_000);
        let offset = Offset::between(first, 0x4010);
        assert_eq!(offset.at(first), Va::new(0x4010));
        assert_eq!(offset.at(Va::new(0x30_000)), Va::new(0x2_4010));
    }
}
