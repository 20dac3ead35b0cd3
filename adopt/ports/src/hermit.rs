//! Virtual pages of Hermit: `mm/virtualmem.rs`, over an index that knows its areas.
//!
//! The addresses are those of the free list that the kernel has: the lowest range that fits. A deallocation may be of
//! any part of one allocation or of several, as `sys_munmap` makes it.

use core::fmt;

use va_base::{AllocError as IndexError, Request, Va, VaRange};
use va_tree::{BTree, BTreeIndex, FreeIndex, TrackedError, TrackedIndex};

use crate::heap::KernelHeap;
// In the kernel: `core::alloc::AllocError`, `free_list`, `hermit_sync`, `memory_addresses`, `crate::mm`.
use crate::stand_in::hermit::{
    AllocError, InterruptTicketMutex, PageLayout, PageRange, PageRangeAllocator, PageRangeBox, VirtAddr,
};

static KERNEL_PAGES: InterruptTicketMutex<VirtualPages> = InterruptTicketMutex::new(VirtualPages::new());

/// The allocator of the kernel's virtual pages.
#[derive(Debug)]
pub struct PageAlloc;

impl PageRangeAllocator for PageAlloc {
    unsafe fn init() {
        let end = kernel_heap_end().as_usize();
        let range = PageRange::new(end.div_ceil(2), end + 1).expect("the kernel's addresses are pages");
        KERNEL_PAGES.lock().init(range).expect("the kernel's addresses are added once");
    }

    fn allocate(layout: PageLayout) -> Result<PageRange, AllocError> {
        KERNEL_PAGES.lock().allocate(layout)
    }

    fn allocate_at(range: PageRange) -> Result<(), AllocError> {
        KERNEL_PAGES.lock().allocate_at(range)
    }

    unsafe fn deallocate(range: PageRange) {
        KERNEL_PAGES.lock().deallocate(range).expect("the pages are allocated");
    }
}

impl fmt::Display for PageAlloc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PageAlloc free list:\n{}", KERNEL_PAGES.lock())
    }
}

/// Virtual pages that are deallocated when this is dropped.
pub type PageBox = PageRangeBox<PageAlloc>;

/// Returns the last address of the half of the address space that is the kernel's.
#[inline]
pub fn kernel_heap_end() -> VirtAddr {
    let addresses: u64 = if cfg!(target_arch = "riscv64") {
        256 << 30
    } else if cfg!(target_arch = "aarch64") {
        // Those that the first translation table can have.
        1 << 48
    } else if cfg!(feature = "common-os") {
        // One entry of the topmost page table.
        1 << 39
    } else {
        256 << 39
    };
    VirtAddr::new(addresses - 1)
}

/// The pages that are free, and those that are allocated. A constant until [`init`](Self::init).
#[derive(Debug)]
pub struct VirtualPages(TrackedIndex<BTreeIndex<KernelHeap>, KernelHeap>);

impl VirtualPages {
    /// Creates an allocator without pages.
    pub const fn new() -> Self {
        Self(TrackedIndex::new(BTree::empty(KernelHeap), KernelHeap))
    }

    /// Adds all pages, which are free. Needs no heap.
    ///
    /// # Errors
    /// [`IndexError::Occupied`] if there are pages already.
    pub fn init(&mut self, range: PageRange) -> Result<(), IndexError> {
        self.0.init(addresses(range), VaRange::ALL)
    }

    /// Allocates the lowest pages that meet `layout`. O(log n).
    ///
    /// # Errors
    /// [`AllocError`] if nothing fits, if the size is 0, or if there is no memory for a record.
    pub fn allocate(&mut self, layout: PageLayout) -> Result<PageRange, AllocError> {
        let request = Request::new(layout.size() as u64, layout.align() as u64).map_err(|_| AllocError)?;
        let area = self.0.alloc(&request).map_err(|_| AllocError)?;
        PageRange::try_from(area.start().get() as usize..area.end().get() as usize).map_err(|_| AllocError)
    }

    /// Allocates the pages of `range`. O(log n).
    ///
    /// # Errors
    /// [`AllocError`] if one of them is not free, or if there is no memory for a record.
    pub fn allocate_at(&mut self, range: PageRange) -> Result<(), AllocError> {
        self.0.take(addresses(range)).map_err(|_| AllocError)
    }

    /// Deallocates pages: an allocation, a part of one, or several. O(log n) an allocation.
    ///
    /// # Errors
    /// [`DeallocateError`]. Nothing has changed.
    pub fn deallocate(&mut self, range: PageRange) -> Result<(), DeallocateError> {
        let range = addresses(range);
        let hole = self.0.index().hole_after(range.start()).filter(|hole| hole.start() < range.end());
        if let Some(hole) = hole {
            return Err(DeallocateError::AlreadyFree { range, hole });
        }
        self.0.free_any(range).map(|_| ()).map_err(DeallocateError::Index)
    }

    /// Returns the free bytes.
    pub fn free_space(&self) -> usize {
        self.0.index().holes().map(|hole| hole.len_bytes() as usize).sum()
    }
}

impl Default for VirtualPages {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Display for VirtualPages {
    /// Writes a line for each free range.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.index().holes().enumerate().try_for_each(|(at, hole)| {
            let (start, end, bytes) = (hole.start().get(), hole.end().get(), hole.len_bytes());
            let line = if at == 0 { "" } else { "\n" };
            let pages = bytes / va_base::PAGE_SIZE;
            write!(f, "{line}{start:#18x}..{end:#18x} (len = {bytes:#18x}, pages = {pages:16})")
        })
    }
}

/// The reason why no page was deallocated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeallocateError {
    /// Some of the pages are free.
    AlreadyFree {
        /// The pages of the call.
        range: VaRange,
        /// The lowest free range among them.
        hole: VaRange,
    },
    /// The pages are not the kernel's, or there is no memory for the record of a part that stays.
    Index(TrackedError),
}

fn addresses(range: PageRange) -> VaRange {
    // A page range is ordered.
    VaRange::new(Va::new(range.start() as u64), Va::new(range.end() as u64)).unwrap_or_default()
}
