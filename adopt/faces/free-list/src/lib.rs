//! The interface of [free-list 0.3.4](https://docs.rs/free-list/0.3.4), over the index of holes.
//!
//! [`FreeList`] allocates page ranges, the lowest that fits, as the original does. It takes O(log n) where the original
//! visits each free range from the lowest on, once there are more than `N`. Paths, names and answers are those of the original. The differences are
//! in `docs/book/src/faces.md`.
//!
//! ```
//! use free_list::{FreeList, PageLayout, PageRange};
//! let mut frames = FreeList::<16>::new();
//! // SAFETY: no memory is behind these frames.
//! unsafe { frames.deallocate(PageRange::new(0x1000, 0x9000).unwrap()).unwrap() };
//! let layout = PageLayout::from_size_align(0x2000, 0x2000).unwrap();
//! assert_eq!(frames.allocate(layout).unwrap(), PageRange::new(0x2000, 0x4000).unwrap());
//! assert_eq!(frames.free_space(), 0x6000);
//! ```
#![no_std]
#![deny(unsafe_op_in_unsafe_fn)]
#![warn(missing_debug_implementations)]

#[cfg(all(target_arch = "x86_64", feature = "x86_64"))]
mod frame_allocator;
mod page_layout;
mod page_list;
mod page_range;

pub use self::page_layout::{PageLayout, PageLayoutError};
use self::page_list::PageList;
pub use self::page_range::{PageRange, PageRangeError, PageRangeSub};

use core::fmt;

/// Bytes in a page: the unit of every range and layout.
pub const PAGE_SIZE: usize = 4096;

/// A set of free pages, from which ranges are allocated.
///
/// The first `N` free ranges are in the value. With more, all are in an index with memory of the global allocator, until
/// no more than a quarter of `N` is left.
#[derive(Debug)]
pub struct FreeList<const N: usize> {
    list: PageList<N>,
}

/// No range fits, a range is not as the call needs it, or the global allocator fails.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct AllocError;

impl fmt::Display for AllocError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the pages cannot be allocated or freed")
    }
}

impl<const N: usize> FreeList<N> {
    /// Creates a list without free pages: a constant for a `static`.
    ///
    /// ```
    /// static FRAMES: std::sync::Mutex<free_list::FreeList<16>> =
    ///     std::sync::Mutex::new(free_list::FreeList::new());
    /// assert_eq!(FRAMES.lock().unwrap().free_space(), 0);
    /// ```
    pub const fn new() -> Self {
        Self { list: PageList::new() }
    }

    /// Frees a range: one that was allocated, any part of it, or pages that the list has not had yet. O(log n).
    ///
    /// # Errors
    /// [`AllocError`] if one of the pages is free, or if the global allocator fails. Nothing has changed.
    ///
    /// # Safety
    /// The caller owns the pages, and does not use them until they are allocated again.
    pub unsafe fn deallocate(&mut self, range: PageRange) -> Result<(), AllocError> {
        self.list.add(range)
    }

    /// Allocates the lowest range with a layout. O(log n).
    ///
    /// # Errors
    /// [`AllocError`] if nothing fits, if the size is zero, or if the global allocator fails.
    pub fn allocate(&mut self, layout: PageLayout) -> Result<PageRange, AllocError> {
        self.list.take_lowest(layout, 0, usize::MAX)
    }

    /// Allocates exactly `range`. O(log n).
    ///
    /// # Errors
    /// [`AllocError`] unless all of it is free; also if the global allocator fails.
    pub fn allocate_at(&mut self, range: PageRange) -> Result<(), AllocError> {
        self.list.remove(range)
    }

    /// Allocates the lowest range with a layout that does not overlap `range`. O(log n).
    ///
    /// # Errors
    /// Those of [`allocate`](Self::allocate).
    ///
    /// ```
    /// use free_list::{FreeList, PageLayout, PageRange};
    /// let mut frames = FreeList::<16>::new();
    /// unsafe { frames.deallocate(PageRange::new(0, 0x9000).unwrap()).unwrap() };
    /// let layout = PageLayout::from_size(0x2000).unwrap();
    /// let below = PageRange::new(0x1000, 0x4000).unwrap();
    /// assert_eq!(frames.allocate_outside_of(layout, below).unwrap(), PageRange::new(0x4000, 0x6000).unwrap());
    /// ```
    pub fn allocate_outside_of(
        &mut self,
        layout: PageLayout,
        range: PageRange,
    ) -> Result<PageRange, AllocError> {
        let below = self.list.take_lowest(layout, 0, range.start());
        below.or_else(|_| self.list.take_lowest(layout, range.end(), usize::MAX))
    }

    /// Allocates the first range that `f` returns, for one free range after the other. O(log n) a free range.
    ///
    /// # Errors
    /// [`AllocError`] if `f` returns none, or one that is not inside the free range that it was called for.
    ///
    /// ```
    /// use free_list::{FreeList, PageLayout, PageRange};
    /// let mut frames = FreeList::<16>::new();
    /// unsafe { frames.deallocate(PageRange::new(0, 0x9000).unwrap()).unwrap() };
    /// let highest = |free: PageRange| PageRange::new(free.end() - 0x1000, free.end()).ok();
    /// assert_eq!(frames.allocate_with(highest).unwrap(), PageRange::new(0x8000, 0x9000).unwrap());
    /// ```
    pub fn allocate_with<F>(&mut self, f: F) -> Result<PageRange, AllocError>
    where
        F: FnMut(PageRange) -> Option<PageRange>,
    {
        let mut f = f;
        let found = self.iter().find_map(|free| Some((free, f(free)?)));
        let (_, range) = found.filter(|(free, range)| free.contains(*range)).ok_or(AllocError)?;
        self.list.remove(range)?;
        Ok(range)
    }

    /// Iterates over the free ranges, in order; O(log n) each.
    pub fn iter(&self) -> impl Iterator<Item = PageRange> + use<'_, N> {
        self.list.iter()
    }

    /// Returns the free bytes. O(1), or one step for each of up to `N` free ranges.
    pub fn free_space(&self) -> usize {
        self.list.free_space()
    }
}

impl<const N: usize> Default for FreeList<N> {
    fn default() -> Self {
        Self::new()
    }
}

/// One line for each free range.
impl<const N: usize> fmt::Display for FreeList<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.list, f)
    }
}
