//! Types of Hermit: those of the crates `free-list`, `hermit-sync` and `memory_addresses`, and of
//! `mm/page_range_alloc.rs`.

use core::marker::PhantomData;
use core::mem::ManuallyDrop;
use core::num::NonZeroUsize;
use core::ops::{Deref, Range};

/// Hermit's lock, which disables interrupts.
pub type InterruptTicketMutex<T> = lock_api::Mutex<super::lock::Spin, T>;

/// Bytes of a page.
pub const PAGE_SIZE: usize = 4096;

/// The error of `core::alloc`, which needs a nightly compiler.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AllocError;

/// A size or an alignment, or the ends of a range, are not whole pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NotPages;

/// A virtual address.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct VirtAddr(u64);

impl VirtAddr {
    /// Wraps an address.
    pub const fn new(addr: u64) -> Self {
        Self(addr)
    }

    /// Returns the address.
    pub const fn as_usize(self) -> usize {
        self.0 as usize
    }
}

/// Size and alignment, in bytes, of pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageLayout {
    size: usize,
    align: usize,
}

impl PageLayout {
    /// Returns a layout of `size` bytes.
    ///
    /// # Errors
    /// [`NotPages`] if `size` is not.
    pub fn from_size(size: usize) -> Result<Self, NotPages> {
        Self::from_size_align(size, PAGE_SIZE)
    }

    /// Returns a layout of `size` bytes, aligned to `align` bytes.
    ///
    /// # Errors
    /// [`NotPages`] if `size` is not whole pages, or if `align` is not a power of two of them.
    pub fn from_size_align(size: usize, align: usize) -> Result<Self, NotPages> {
        let good =
            size.is_multiple_of(PAGE_SIZE) && align.is_multiple_of(PAGE_SIZE) && align.is_power_of_two();
        if good { Ok(Self { size, align }) } else { Err(NotPages) }
    }

    /// Returns the size, in bytes.
    pub const fn size(&self) -> usize {
        self.size
    }

    /// Returns the alignment, in bytes.
    pub const fn align(&self) -> usize {
        self.align
    }
}

/// A range of whole pages that is not empty.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageRange {
    start: usize,
    end: usize,
}

impl PageRange {
    /// Returns the pages of `[start, end)`.
    ///
    /// # Errors
    /// [`NotPages`] if there is none, or an end is not on a page boundary.
    pub fn new(start: usize, end: usize) -> Result<Self, NotPages> {
        let good = start < end && start.is_multiple_of(PAGE_SIZE) && end.is_multiple_of(PAGE_SIZE);
        if good { Ok(Self { start, end }) } else { Err(NotPages) }
    }

    /// Returns the first address.
    pub const fn start(self) -> usize {
        self.start
    }

    /// Returns the address after the last.
    pub const fn end(self) -> usize {
        self.end
    }

    /// Returns the length, in bytes.
    pub fn len(self) -> NonZeroUsize {
        NonZeroUsize::new(self.end - self.start).unwrap_or(NonZeroUsize::MIN)
    }
}

impl TryFrom<Range<usize>> for PageRange {
    type Error = NotPages;

    fn try_from(range: Range<usize>) -> Result<Self, NotPages> {
        Self::new(range.start, range.end)
    }
}

/// An allocator of ranges of pages.
pub trait PageRangeAllocator {
    /// Adds the pages that there are.
    ///
    /// # Safety
    /// It is called once.
    unsafe fn init();

    /// Allocates pages.
    ///
    /// # Errors
    /// [`AllocError`].
    fn allocate(layout: PageLayout) -> Result<PageRange, AllocError>;

    /// Allocates the pages of `range`.
    ///
    /// # Errors
    /// [`AllocError`].
    fn allocate_at(range: PageRange) -> Result<(), AllocError>;

    /// Deallocates the pages of `range`.
    ///
    /// # Safety
    /// The pages are allocated from this allocator, and not used any more.
    unsafe fn deallocate(range: PageRange);
}

/// Pages of an allocator, which are deallocated when this is dropped.
#[derive(Debug)]
pub struct PageRangeBox<A: PageRangeAllocator>(PageRange, PhantomData<A>);

impl<A: PageRangeAllocator> PageRangeBox<A> {
    /// Allocates pages.
    ///
    /// # Errors
    /// [`AllocError`].
    pub fn new(layout: PageLayout) -> Result<Self, AllocError> {
        A::allocate(layout).map(|range| Self(range, PhantomData))
    }

    /// Owns pages of [`into_raw`](Self::into_raw) again.
    ///
    /// # Safety
    /// The pages are allocated from the allocator, and have no other owner.
    pub const unsafe fn from_raw(range: PageRange) -> Self {
        Self(range, PhantomData)
    }

    /// Returns the pages, which stay allocated.
    pub fn into_raw(boxed: Self) -> PageRange {
        ManuallyDrop::new(boxed).0
    }
}

impl<A: PageRangeAllocator> Deref for PageRangeBox<A> {
    type Target = PageRange;

    fn deref(&self) -> &PageRange {
        &self.0
    }
}

impl<A: PageRangeAllocator> Drop for PageRangeBox<A> {
    fn drop(&mut self) {
        // SAFETY: this owns the pages, and is dropped.
        unsafe { A::deallocate(self.0) };
    }
}
