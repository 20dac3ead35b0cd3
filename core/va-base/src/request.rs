//! Requests for address space, and their errors.

use crate::{Align, Pages, VaRange};
use core::fmt;

/// The context of a call: it states whether the caller may sleep.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Context {
    /// The caller may sleep: the call may request memory, run a purge, or wait for a flush.
    #[default]
    Sleeping,
    /// The caller may not sleep, flush or wait, as in an interrupt. It gets an area that is ready, or an error. The
    /// error shows whether a caller that may wait might succeed.
    Atomic,
}

/// A request for address space: its size, its alignment, and the window in which it must be met.
///
/// A value proves that the size is at least a page and that the alignment is a power of two. Only the index knows
/// whether it can be met.
///
/// ```
/// use va_base::{Request, Va, VaRange};
/// let module = VaRange::new(Va::new(0xffff_ffff_c000_0000), Va::new(0xffff_ffff_ff00_0000)).unwrap();
/// let request = Request::new(3 * 4096, 4096)?.within(module);
/// assert_eq!(request.size().get(), 3);
/// assert!(Request::new(100, 4096).is_err());
/// assert!(Request::new(4096, 24).is_err());
/// # Ok::<(), va_base::RequestError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Request {
    size: Pages,
    align: Align,
    window: Option<VaRange>,
    context: Context,
}

impl Request {
    /// Returns a request for `size_bytes` aligned to `align_bytes`, anywhere in the default window.
    ///
    /// An alignment below a page is valid and means page alignment. For an index whose units are bytes or handles, use
    /// [`units`](Self::units).
    ///
    /// # Errors
    /// [`RequestError::BadSize`] unless `size_bytes` is a whole number of pages and not zero;
    /// [`RequestError::BadAlign`] unless `align_bytes` is a power of two.
    #[inline]
    pub const fn new(size_bytes: u64, align_bytes: u64) -> Result<Self, RequestError> {
        let Some(align) = Align::new(align_bytes) else {
            return Err(RequestError::BadAlign { align_bytes });
        };
        match Pages::from_bytes(size_bytes) {
            Some(size) if size.get() > 0 => {
                Ok(Self { size, align, window: None, context: Context::Sleeping })
            }
            _ => Err(RequestError::BadSize { size_bytes }),
        }
    }

    /// Returns a request for `count` pages, page-aligned, anywhere in the default window.
    ///
    /// # Errors
    /// [`RequestError::BadSize`] if `count` is zero, [`RequestError::TooManyPages`] from `2^52` up.
    #[inline]
    pub const fn pages(count: u64) -> Result<Self, RequestError> {
        match Pages::new(count).checked_bytes() {
            Some(size_bytes) => Self::new(size_bytes, crate::PAGE_SIZE),
            None => Err(RequestError::TooManyPages { pages: count }),
        }
    }

    /// Returns a request for `count` units of an index, anywhere in the default window. The unit of most indexes is a
    /// page, that of `va_tree::ByteIndex` a byte. The alignment is in bytes.
    ///
    /// # Errors
    /// Those of [`pages`](Self::pages), whatever the unit, so no sum of a size and a page overflows;
    /// [`RequestError::BadAlign`].
    #[inline]
    pub const fn units(count: u64, align_bytes: u64) -> Result<Self, RequestError> {
        let Some(align) = Align::new(align_bytes) else {
            return Err(RequestError::BadAlign { align_bytes });
        };
        match Self::pages(count) {
            Ok(request) => Ok(request.aligned(align)),
            Err(error) => Err(error),
        }
    }

    /// Returns the same request with another alignment.
    #[inline]
    #[must_use]
    pub const fn aligned(self, align: Align) -> Self {
        Self { align, ..self }
    }

    /// Returns the same request, to be met inside `window` (its ends need not be page-aligned).
    #[inline]
    #[must_use]
    pub const fn within(self, window: VaRange) -> Self {
        Self { window: Some(window), ..self }
    }

    /// Returns the same request for a caller in `context`. An index alone never waits and ignores it.
    #[inline]
    #[must_use]
    pub const fn context(self, context: Context) -> Self {
        Self { context, ..self }
    }

    /// Returns true if the caller may wait.
    #[inline]
    #[must_use]
    pub const fn waits(&self) -> bool {
        matches!(self.context, Context::Sleeping)
    }

    /// Returns the number of pages.
    #[inline]
    #[must_use]
    pub const fn size(&self) -> Pages {
        self.size
    }

    /// Returns the alignment.
    #[inline]
    #[must_use]
    pub const fn align(&self) -> Align {
        self.align
    }

    /// Returns the window; `None` is the default window of the space.
    #[inline]
    #[must_use]
    pub const fn window(&self) -> Option<VaRange> {
        self.window
    }
}

/// The reason why a request is invalid in every space.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum RequestError {
    /// The size is zero, not whole pages, or too large for any address space.
    BadSize {
        /// The requested size, in bytes.
        size_bytes: u64,
    },
    /// The number of pages does not fit an address space.
    TooManyPages {
        /// The requested number.
        pages: u64,
    },
    /// The alignment is not a power of two.
    BadAlign {
        /// The requested alignment, in bytes.
        align_bytes: u64,
    },
    /// One of several areas at fixed distances is empty, not a multiple of their alignment, or past the end of the
    /// address space. Or it begins before the previous one ends.
    BadArea {
        /// Its beginning, from the common base, in bytes.
        offset_bytes: u64,
        /// Its size, in bytes.
        size_bytes: u64,
        /// The common alignment, in bytes.
        align_bytes: u64,
    },
    /// A request for several areas contains none.
    NoArea,
}

impl fmt::Display for RequestError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadSize { size_bytes } => {
                write!(
                    f,
                    "size {size_bytes} is not a whole, non-zero number of {}-byte pages",
                    crate::PAGE_SIZE
                )
            }
            Self::TooManyPages { pages } => write!(f, "{pages} pages do not fit a 64-bit address space"),
            Self::BadAlign { align_bytes } => write!(f, "align {align_bytes} is not a power of two"),
            Self::BadArea { offset_bytes, size_bytes, align_bytes } => write!(
                f,
                "area of {size_bytes:#x} bytes at offset {offset_bytes:#x} is empty, not in multiples of {align_bytes:#x}, \
                 past the address space, or before the end of the area before it"
            ),
            Self::NoArea => f.write_str("a request for several areas names none"),
        }
    }
}

impl core::error::Error for RequestError {}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{PAGE_SIZE, Va};
    use std::string::ToString;

    #[test]
    fn a_request_is_whole_pages_and_a_power_of_two() {
        for size_bytes in [0, 1, PAGE_SIZE - 1, PAGE_SIZE + 1, u64::MAX] {
            assert_eq!(Request::new(size_bytes, PAGE_SIZE), Err(RequestError::BadSize { size_bytes }));
        }
        for align_bytes in [0, 3, 4097, u64::MAX] {
            assert_eq!(Request::new(PAGE_SIZE, align_bytes), Err(RequestError::BadAlign { align_bytes }));
        }
        let request = Request::new(PAGE_SIZE << 51, 1 << 63).unwrap();
        assert_eq!(
            (request.size(), request.align().log2(), request.window()),
            (Pages::new(1 << 51), 63, None)
        );
        assert_eq!(Request::pages(1 << 52), Err(RequestError::TooManyPages { pages: 1 << 52 }));
        assert_eq!(Request::pages(0), Err(RequestError::BadSize { size_bytes: 0 }));
    }

    #[test]
    fn align_one_is_legal() {
        assert_eq!(Request::new(PAGE_SIZE, 1).unwrap().align().page_log2(), 0);
    }

    #[test]
    fn within_and_aligned_change_only_their_field() {
        let window = VaRange::new(Va::new(5), Va::new(50)).unwrap();
        let request = Request::pages(7).unwrap().within(window).aligned(Align::from_log2(20).unwrap());
        assert_eq!((request.size().get(), request.align().log2(), request.window()), (7, 20, Some(window)));
    }

    #[test]
    fn errors_read_as_one_clear_line() {
        assert_eq!(Request::new(PAGE_SIZE, 3).unwrap_err().to_string(), "align 3 is not a power of two");
        assert_eq!(
            Request::new(5, 1).unwrap_err().to_string(),
            "size 5 is not a whole, non-zero number of 4096-byte pages"
        );
    }
}
