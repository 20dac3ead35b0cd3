//! Ranges of virtual pages of COCONUT-SVSM: `kernel/src/mm/virtualrange.rs`, over the index of holes.
//!
//! The addresses are those of the bitmap that the kernel has: the lowest range that fits. The index is in a page of its
//! own, which the first allocation requests, since the kernel's per-CPU data have only one page.

use core::fmt::Debug;
use core::num::NonZeroUsize;
use core::ptr::NonNull;

use va_base::{Align, FreeError, Meta, Platform, Record, Request, VaRange};
use va_tree::{BTree, BTreeIndex32, FreeIndex};

// In the kernel: `crate::address`, `crate::cpu::percpu`, `crate::error`, `crate::mm`, `crate::types`, `crate::utils`.
use crate::stand_in::svsm::{
    MemoryRegion, PAGE_SHIFT, PAGE_SHIFT_2M, PAGE_SIZE, PAGE_SIZE_2M, PageBox, SVSM_PERCPU_TEMP_BASE_2M,
    SVSM_PERCPU_TEMP_BASE_4K, SVSM_PERCPU_TEMP_END_2M, SVSM_PERCPU_TEMP_END_4K, SvsmError, VirtAddr, log,
    this_cpu,
};

/// Alignment of a page of 4 KiB, as the binary logarithm of such pages.
pub const VIRT_ALIGN_4K: usize = PAGE_SHIFT - 12;
/// Alignment of a page of 2 MiB, as the binary logarithm of pages of 4 KiB.
pub const VIRT_ALIGN_2M: usize = PAGE_SHIFT_2M - 12;

/// Records of an index from the page allocator.
#[derive(Clone, Copy, Debug)]
struct Pages;

impl Platform for Pages {
    fn alloc_meta<T: Record>(&self, min: usize) -> Option<&'static mut [T]> {
        let slab = PageBox::try_new_slice(T::EMPTY, NonZeroUsize::new(min)?).ok()?;
        Some(PageBox::leak(slab))
    }

    fn free_meta<T: Record>(&self, slab: Meta<&'static mut [T]>) {
        let slab = NonNull::from(slab.take());
        // SAFETY: `alloc_meta` leaked it from a box of pages, and the core keeps no reference to it.
        drop(unsafe { PageBox::from_raw(slab) });
    }
}

type Index = BTreeIndex32<Pages>;

/// A range of virtual pages of one size. Each allocation has one page more, a guard that stays unmapped.
#[derive(Debug, Default)]
pub struct VirtualRange {
    start_virt: VirtAddr,
    page_count: usize,
    page_shift: usize,
    /// Page 0 of the index is the first page of the range. It exists from the first allocation on.
    index: Option<PageBox<Index>>,
}

impl VirtualRange {
    /// The most pages of a range.
    pub const CAPACITY: usize = 1 << 32;

    /// Creates a range without pages: a constant for a `static`.
    pub const fn new() -> VirtualRange {
        VirtualRange { start_virt: VirtAddr::null(), page_count: 0, page_shift: PAGE_SHIFT, index: None }
    }

    /// Sets the pages of the range, all free. Needs no memory.
    pub fn init(&mut self, start_virt: VirtAddr, page_count: usize, page_shift: usize) {
        *self = VirtualRange { start_virt, page_count, page_shift, index: None };
    }

    /// Allocates `page_count` pages and a guard page above them: the lowest ones at a multiple of `2^alignment` pages
    /// from the start of the range. O(log n).
    ///
    /// # Errors
    /// [`SvsmError::Mem`] if nothing fits, or if there is no memory for a record.
    pub fn alloc(&mut self, page_count: usize, alignment: usize) -> Result<VirtAddr, SvsmError> {
        let log2 = u32::try_from(alignment).ok().and_then(|log2| log2.checked_add(va_base::PAGE_SHIFT));
        let pages = (page_count as u64).checked_add(1).and_then(|pages| Request::pages(pages).ok());
        let align = log2.and_then(Align::from_log2);
        let (request, align) = pages.zip(align).ok_or(SvsmError::Mem)?;
        let at = self.index()?.alloc(&request.aligned(align)).map_err(|_| SvsmError::Mem)?;
        Ok(self.start_virt + ((at.page_floor() as usize) << self.page_shift))
    }

    /// Frees `page_count` pages and the page above them: an allocation, or a part of one that ends with a page that
    /// serves as its guard. O(log n).
    ///
    /// # Panics
    /// If one of the pages is not allocated, with the numbers of [`FreeError`], as that is a bug of the kernel.
    pub fn free(&mut self, vaddr: VirtAddr, page_count: usize) {
        if let Err(error) = self.try_free(vaddr, page_count) {
            panic!("{page_count} virtual pages at {vaddr:?} are not freed: {error}");
        }
    }

    /// Does the same as [`free`](Self::free), and returns an error instead of a panic. Its ranges are those of the
    /// index, in which pages of 4 KiB begin at address 0.
    ///
    /// # Errors
    /// [`FreeError`]. Nothing has changed.
    pub fn try_free(&mut self, vaddr: VirtAddr, page_count: usize) -> Result<(), FreeError> {
        let extent = self.index.as_ref().map_or(VaRange::EMPTY, |index| index.extent());
        let range = self.pages(vaddr, page_count);
        let (Some(index), Some(range)) = (&mut self.index, range) else {
            return Err(FreeError::BadRange { range: range.unwrap_or_default(), extent });
        };
        let mut freed = index.free(range);
        // A part of an allocation. The other parts are counted now, twice at most, if there is memory for their records.
        while matches!(freed, Err(FreeError::TooManySplits { .. })) && index.reserve_splits(1).is_ok() {
            freed = index.free(range);
        }
        freed
    }

    /// Returns the number of pages that are allocated, guards included.
    pub fn used_pages(&self) -> usize {
        self.index.as_ref().map_or(0, |index| self.page_count - index.free_pages().get() as usize)
    }

    /// Returns the index, which is made once.
    fn index(&mut self) -> Result<&mut Index, SvsmError> {
        if self.index.is_none() {
            let pages = VaRange::from_pages(0, self.page_count as u64).ok_or(SvsmError::Mem)?;
            let mut index = PageBox::try_new(const { BTree::empty(Pages) })?;
            index.init(pages, pages).map_err(|_| SvsmError::Mem)?;
            self.index = Some(index);
        }
        self.index.as_deref_mut().ok_or(SvsmError::Mem)
    }

    /// Returns the pages of the index for so many pages and a guard.
    fn pages(&self, vaddr: VirtAddr, page_count: usize) -> Option<VaRange> {
        let first = (vaddr.bits().checked_sub(self.start_virt.bits())? >> self.page_shift) as u64;
        VaRange::from_pages(first, first.checked_add(page_count as u64)?.checked_add(1)?)
    }
}

/// Logs the pages that this CPU has allocated.
pub fn virt_log_usage() {
    log::info!(
        "[CPU {}] Virtual memory pages used: {} * 4K, {} * 2M",
        this_cpu().get_cpu_index(),
        this_cpu().vrange_4k().used_pages(),
        this_cpu().vrange_2m().used_pages()
    );
}

/// Virtual pages of this CPU, which are freed when this is dropped.
#[derive(Debug)]
pub struct VRangeAlloc {
    region: MemoryRegion<VirtAddr>,
    huge: bool,
}

impl VRangeAlloc {
    /// Returns a virtual memory region in the 4K virtual range.
    ///
    /// # Errors
    /// [`SvsmError::Mem`] if `size` is not whole pages, and that of [`VirtualRange::alloc`].
    pub fn new_4k(size: usize, align: usize) -> Result<Self, SvsmError> {
        if !size.is_multiple_of(PAGE_SIZE) {
            return Err(SvsmError::Mem);
        }
        let addr = this_cpu().vrange_4k_mut().alloc(size >> PAGE_SHIFT, align)?;
        Ok(Self { region: MemoryRegion::new(addr, size), huge: false })
    }

    /// Returns a virtual memory region in the 2M virtual range.
    ///
    /// # Errors
    /// [`SvsmError::Mem`] if `size` is not whole pages of 2 MiB, and that of [`VirtualRange::alloc`].
    pub fn new_2m(size: usize, align: usize) -> Result<Self, SvsmError> {
        if !size.is_multiple_of(PAGE_SIZE_2M) {
            return Err(SvsmError::Mem);
        }
        let addr = this_cpu().vrange_2m_mut().alloc(size >> PAGE_SHIFT_2M, align)?;
        Ok(Self { region: MemoryRegion::new(addr, size), huge: true })
    }

    /// Returns the virtual memory region that this allocation spans, without its guard.
    pub const fn region(&self) -> MemoryRegion<VirtAddr> {
        self.region
    }

    /// Returns true if the allocation was made from the huge (2M) virtual range.
    pub const fn huge(&self) -> bool {
        self.huge
    }
}

impl Drop for VRangeAlloc {
    fn drop(&mut self) {
        let (start, bytes) = (self.region.start(), self.region.len());
        if self.huge {
            this_cpu().vrange_2m_mut().free(start, bytes >> PAGE_SHIFT_2M);
        } else {
            this_cpu().vrange_4k_mut().free(start, bytes >> PAGE_SHIFT);
        }
    }
}

// The ranges of a CPU are small enough.
const _: () = {
    assert!(
        (SVSM_PERCPU_TEMP_END_4K.bits() - SVSM_PERCPU_TEMP_BASE_4K.bits()) / PAGE_SIZE
            < VirtualRange::CAPACITY
    );
    assert!(
        (SVSM_PERCPU_TEMP_END_2M.bits() - SVSM_PERCPU_TEMP_BASE_2M.bits()) / PAGE_SIZE_2M
            < VirtualRange::CAPACITY
    );
    // An index, and the kernel's page box, fit in a page.
    assert!(size_of::<Index>() <= PAGE_SIZE);
};
