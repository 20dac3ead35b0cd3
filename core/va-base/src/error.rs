//! Errors with their numbers. When a call returns one, the allocator is unchanged (SP4).

use crate::{Align, Pages, RequestError, Va, VaRange};
use core::fmt;

/// The reason why no address range was allocated. The index is unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum AllocError {
    /// The request makes no sense in any space.
    BadRequest(RequestError),
    /// No free range inside the window fits.
    NoSpace {
        /// Requested pages.
        requested: Pages,
        /// Requested alignment.
        align: Align,
        /// The window of the request.
        window: VaRange,
        /// Largest free range anywhere in the space, in pages, regardless of its alignment.
        largest: Pages,
    },
    /// The exact requested range is not wholly free.
    Occupied {
        /// The requested range.
        range: VaRange,
    },
    /// The exact requested range is empty, not page-aligned, or not inside the space.
    BadRange {
        /// The requested range.
        range: VaRange,
        /// The space.
        extent: VaRange,
    },
    /// No memory for the index's own records: [`Platform::alloc_meta`](crate::Platform::alloc_meta) returned `None`.
    NoMeta {
        /// Records that were missing, of the type that was requested.
        records: usize,
    },
    /// More live areas than pages: a caller reserved splits, or restored a state, that no areas of the space can need.
    TooManyAreas {
        /// Live areas, reserved fragments included, that there would be.
        live: u64,
        /// All pages of the space.
        pages: Pages,
    },
}

impl fmt::Display for AllocError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadRequest(error) => fmt::Display::fmt(error, f),
            Self::NoSpace { requested, align, window, largest } => write!(
                f,
                "no free range of {requested} aligned to {align} in {window}, the largest is {largest}"
            ),
            Self::Occupied { range } => write!(f, "range {range} is not wholly free"),
            Self::BadRange { range, extent } => {
                write!(f, "range {range} is not a non-empty run of whole pages inside {extent}")
            }
            Self::NoMeta { records } => {
                write!(f, "the platform allocated no slab for {records} index records")
            }
            Self::TooManyAreas { live, pages } => {
                write!(f, "{live} live areas are more than {pages} can hold")
            }
        }
    }
}

impl core::error::Error for AllocError {}

impl From<RequestError> for AllocError {
    fn from(error: RequestError) -> Self {
        Self::BadRequest(error)
    }
}

/// The reason why a range was not freed. It is always a caller's mistake; the index is unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum FreeError {
    /// The range is empty, not page-aligned, or not inside the space.
    BadRange {
        /// The range of the free.
        range: VaRange,
        /// The space.
        extent: VaRange,
    },
    /// Part of the range is free already.
    AlreadyFree {
        /// The range of the free.
        range: VaRange,
        /// The lowest free range that it overlaps.
        hole: VaRange,
    },
    /// More fragments are freed than areas were allocated: a part of an area was freed by itself. See `reserve_splits`
    /// of the index.
    TooManySplits {
        /// The range of the free.
        range: VaRange,
        /// Live areas, as far as the index knows.
        live: u64,
    },
}

impl fmt::Display for FreeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadRange { range, extent } => {
                write!(f, "range {range} is not a non-empty run of whole pages inside {extent}")
            }
            Self::AlreadyFree { range, hole } => write!(f, "range {range} overlaps the free range {hole}"),
            Self::TooManySplits { range, live } => {
                write!(f, "freeing {range} would leave more holes than the {live} live areas account for")
            }
        }
    }
}

impl core::error::Error for FreeError {}

/// An invariant that does not hold: the first one that a check found, and its place.
///
/// Only `validate` returns this. On a working path a broken invariant is a bug and calls [`Platform::bug`].
///
/// [`Platform::bug`]: crate::Platform::bug
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InvariantViolation {
    /// Id of the rule, as in the module that states it, for example `"FT3"`.
    pub rule: &'static str,
    /// Address of the fault, or the nearest one.
    pub at: Va,
    /// Value that the rule demands.
    pub expected: u64,
    /// Value that was found.
    pub actual: u64,
}

impl InvariantViolation {
    /// Returns `Ok` if `holds`, else the broken rule.
    ///
    /// # Errors
    /// The broken rule, unless `holds`.
    #[inline]
    pub fn check(holds: bool, rule: &'static str, at: Va, expected: u64, actual: u64) -> Result<(), Self> {
        if holds { Ok(()) } else { Err(Self { rule, at, expected, actual }) }
    }
}

impl fmt::Display for InvariantViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "invariant {} broken at {}: expected {:#x}, actual {:#x}",
            self.rule, self.at, self.expected, self.actual
        )
    }
}

impl core::error::Error for InvariantViolation {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString;

    #[test]
    fn errors_say_their_numbers() {
        let window = VaRange::from_pages(1, 9).unwrap();
        let error = AllocError::NoSpace {
            requested: Pages::new(12),
            align: Align::PAGE,
            window,
            largest: Pages::new(8),
        };
        assert_eq!(
            error.to_string(),
            "no free range of 12 pages aligned to 2^12 bytes in [0x1000, 0x9000), the largest is 8 pages"
        );
        let error = FreeError::AlreadyFree { range: window, hole: window };
        assert_eq!(error.to_string(), "range [0x1000, 0x9000) overlaps the free range [0x1000, 0x9000)");
        let broken = InvariantViolation { rule: "FT3", at: Va::new(0x7000), expected: 2, actual: 1 };
        assert_eq!(broken.to_string(), "invariant FT3 broken at 0x7000: expected 0x2, actual 0x1");
    }
}
