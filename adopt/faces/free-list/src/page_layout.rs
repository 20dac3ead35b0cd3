//! Sizes and alignments in whole pages.

use crate::PAGE_SIZE;
use core::alloc::Layout;
use core::fmt;

/// A size or an alignment is not in whole pages, or is no valid one.
#[non_exhaustive]
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PageLayoutError;

impl fmt::Display for PageLayoutError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the size and the alignment are no layout in whole pages")
    }
}

/// A [`Layout`] whose size and alignment are multiples of [`PAGE_SIZE`].
///
/// ```
/// use free_list::PageLayout;
/// let layout = PageLayout::from_size_align(0x3000, 0x2000).unwrap();
/// assert_eq!((layout.size(), layout.align()), (0x3000, 0x2000));
/// assert!(PageLayout::from_size(0x1001).is_err());
/// assert!(PageLayout::from_size_align(0x1000, 0x3000).is_err());
/// ```
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct PageLayout(Layout);

impl PageLayout {
    /// Returns the layout of `size` bytes aligned to `align` bytes.
    ///
    /// # Errors
    /// [`PageLayoutError`] unless both are multiples of [`PAGE_SIZE`], `align` is a power of two, and `size` rounded up
    /// to it is at most `isize::MAX`.
    #[inline]
    pub const fn from_size_align(size: usize, align: usize) -> Result<Self, PageLayoutError> {
        if !(size | align).is_multiple_of(PAGE_SIZE) {
            return Err(PageLayoutError);
        }
        match Layout::from_size_align(size, align) {
            Ok(layout) => Ok(Self(layout)),
            Err(_) => Err(PageLayoutError),
        }
    }

    /// Returns the layout without a check.
    ///
    /// # Safety
    /// [`from_size_align`](Self::from_size_align) of the same numbers is no error.
    #[must_use]
    #[inline]
    pub const unsafe fn from_size_align_unchecked(size: usize, align: usize) -> Self {
        // SAFETY: a layout of pages is a valid layout, by this function's contract.
        Self(unsafe { Layout::from_size_align_unchecked(size, align) })
    }

    /// Returns the layout of `size` bytes aligned to a page.
    ///
    /// # Errors
    /// Those of [`from_size_align`](Self::from_size_align).
    #[inline]
    pub const fn from_size(size: usize) -> Result<Self, PageLayoutError> {
        Self::from_size_align(size, PAGE_SIZE)
    }

    /// Returns the size in bytes.
    #[must_use]
    #[inline]
    pub const fn size(&self) -> usize {
        self.0.size()
    }

    /// Returns the alignment in bytes.
    #[must_use]
    #[inline]
    pub const fn align(&self) -> usize {
        self.0.align()
    }
}

impl TryFrom<Layout> for PageLayout {
    type Error = PageLayoutError;

    #[inline]
    fn try_from(layout: Layout) -> Result<Self, PageLayoutError> {
        Self::from_size_align(layout.size(), layout.align())
    }
}

impl From<PageLayout> for Layout {
    #[inline]
    fn from(layout: PageLayout) -> Self {
        layout.0
    }
}
