//! Ranges of whole pages.

use crate::{PAGE_SIZE, PageLayout};
use core::cmp::Ordering;
use core::fmt;
use core::num::NonZeroUsize;
use core::ops::{Add, Range, Sub};

/// The addresses are out of order, equal, or not those of pages.
#[non_exhaustive]
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PageRangeError;

impl fmt::Display for PageRangeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the addresses are no range of one page or more")
    }
}

/// The pages `[start, end)`, at least one.
///
/// ```
/// use free_list::{PageLayout, PageRange};
/// let range = PageRange::new(0x1000, 0x5000).unwrap();
/// assert_eq!((range.len().get(), range.pages().get()), (0x4000, 4));
/// assert!(range.touches(PageRange::new(0x5000, 0x6000).unwrap()));
/// assert_eq!(PageRange::containing(0x1234, 0x4001).unwrap(), range);
/// let layout = PageLayout::from_size_align(0x1000, 0x4000).unwrap();
/// assert_eq!(range.fit(layout).unwrap(), PageRange::try_from(0x4000..0x5000).unwrap());
/// assert!(PageRange::new(0x1000, 0x1000).is_err());
/// ```
#[derive(Copy, Clone, PartialEq, Eq, Hash)]
pub struct PageRange {
    start: usize,
    end: NonZeroUsize,
}

impl PageRange {
    /// Returns the pages of the addresses `[start, end)`.
    ///
    /// # Errors
    /// [`PageRangeError`] unless `start` is below `end`, and both are multiples of [`PAGE_SIZE`].
    pub const fn new(start: usize, end: usize) -> Result<Self, PageRangeError> {
        match NonZeroUsize::new(end) {
            Some(end) if start < end.get() && (start | end.get()).is_multiple_of(PAGE_SIZE) => {
                Ok(Self { start, end })
            }
            _ => Err(PageRangeError),
        }
    }

    /// Returns the `len` bytes from `start` on.
    ///
    /// # Errors
    /// [`PageRangeError`] unless both are multiples of [`PAGE_SIZE`], `len` is not zero, and the sum has an address.
    pub const fn from_start_len(start: usize, len: usize) -> Result<Self, PageRangeError> {
        match start.checked_add(len) {
            Some(end) => Self::new(start, end),
            None => Err(PageRangeError),
        }
    }

    /// Returns the pages that contain the addresses `[start, end)`.
    ///
    /// # Errors
    /// [`PageRangeError`] if there is none, or the last one ends past the largest address.
    pub const fn containing(start: usize, end: usize) -> Result<Self, PageRangeError> {
        match end.checked_next_multiple_of(PAGE_SIZE) {
            Some(end) => Self::new(start - start % PAGE_SIZE, end),
            None => Err(PageRangeError),
        }
    }

    /// Returns the first address.
    pub const fn start(self) -> usize {
        self.start
    }

    /// Returns the address after the last.
    pub const fn end(self) -> usize {
        self.end.get()
    }

    /// Returns the bytes.
    #[expect(clippy::missing_panics_doc, reason = "no range is empty, so there is none")]
    pub const fn len(self) -> NonZeroUsize {
        NonZeroUsize::new(self.end() - self.start).expect("a range is not empty")
    }

    /// Returns the number of pages.
    #[expect(clippy::missing_panics_doc, reason = "no range is empty, so there is none")]
    pub const fn pages(self) -> NonZeroUsize {
        NonZeroUsize::new((self.end() - self.start) / PAGE_SIZE).expect("a range is not empty")
    }

    /// Returns true if the two have a page in common.
    pub const fn overlaps(self, other: Self) -> bool {
        self.start < other.end() && other.start < self.end()
    }

    /// Returns true if one begins where the other ends.
    pub const fn touches(self, other: Self) -> bool {
        self.start == other.end() || other.start == self.end()
    }

    /// Returns true if all of `other` is inside.
    pub const fn contains(self, other: Self) -> bool {
        self.start <= other.start && other.end() <= self.end()
    }

    /// Returns the lowest range with a layout inside this one.
    pub const fn fit(self, layout: PageLayout) -> Option<PageRange> {
        let Some(start) = self.start.checked_next_multiple_of(layout.align()) else { return None };
        match Self::from_start_len(start, layout.size()) {
            Ok(range) if self.contains(range) => Some(range),
            _ => None,
        }
    }

    /// Returns the pages that both have.
    pub const fn and(self, rhs: Self) -> Option<Self> {
        let start = if self.start > rhs.start { self.start } else { rhs.start };
        let end = if self.end() < rhs.end() { self.end() } else { rhs.end() };
        match Self::new(start, end) {
            Ok(range) => Some(range),
            Err(_) => None,
        }
    }
}

impl TryFrom<Range<usize>> for PageRange {
    type Error = PageRangeError;

    fn try_from(range: Range<usize>) -> Result<Self, PageRangeError> {
        Self::new(range.start, range.end)
    }
}

impl fmt::Debug for PageRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&(self.start..self.end()), f)
    }
}

/// The alternate form has columns.
impl fmt::Display for PageRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (start, end, len, pages) = (self.start, self.end, self.len(), self.pages());
        if f.alternate() {
            write!(f, "{start:#18x}..{end:#18x} (len = {len:#18x}, pages = {pages:16})")
        } else {
            write!(f, "{start:#x}..{end:#x} (len = {len:#x}, pages = {pages})")
        }
    }
}

/// One range is less than another if it ends before it. Ranges that overlap have no order, unless they are equal.
impl PartialOrd for PageRange {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        match self {
            _ if self == other => Some(Ordering::Equal),
            _ if self.end() <= other.start => Some(Ordering::Less),
            _ if other.end() <= self.start => Some(Ordering::Greater),
            _ => None,
        }
    }
}

/// The range of both, if they overlap or touch.
impl Add for PageRange {
    type Output = Option<Self>;

    fn add(self, rhs: Self) -> Option<Self> {
        let together = self.overlaps(rhs) || self.touches(rhs);
        together.then(|| Self { start: self.start.min(rhs.start), end: self.end.max(rhs.end) })
    }
}

/// The pages of the first that the second does not have.
impl Sub for PageRange {
    type Output = PageRangeSub;

    fn sub(self, rhs: Self) -> PageRangeSub {
        if !self.overlaps(rhs) {
            return PageRangeSub::One(self);
        }
        match (Self::new(self.start, rhs.start), Self::new(rhs.end(), self.end())) {
            (Ok(below), Ok(above)) => PageRangeSub::Two(below, above),
            (Ok(rest), Err(_)) | (Err(_), Ok(rest)) => PageRangeSub::One(rest),
            (Err(_), Err(_)) => PageRangeSub::None,
        }
    }
}

/// A difference of two ranges.
#[derive(Debug)]
pub enum PageRangeSub {
    /// No page is left.
    None,
    /// One range is left.
    One(PageRange),
    /// A range is left below, and one above.
    Two(PageRange, PageRange),
}
