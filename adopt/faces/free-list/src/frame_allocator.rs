//! The traits of the crate `x86_64` for frames.
#![expect(unsafe_code, reason = "the traits are unsafe")]

use crate::{FreeList, PageLayout, PageRange};
use x86_64::PhysAddr;
use x86_64::structures::paging::{FrameAllocator, FrameDeallocator, PageSize, PhysFrame};

// SAFETY: the list allocates no page twice before it is freed. It has only pages that its owner freed to it, which are
// unused by the contract of that call.
unsafe impl<S: PageSize, const N: usize> FrameAllocator<S> for FreeList<N> {
    /// Allocates the lowest frame. `None` if there is none, or the list has addresses that are not physical.
    fn allocate_frame(&mut self) -> Option<PhysFrame<S>> {
        let size = usize::try_from(S::SIZE).ok()?;
        let range = self.allocate(PageLayout::from_size_align(size, size).ok()?).ok()?;
        PhysFrame::from_start_address(PhysAddr::try_new(range.start() as u64).ok()?).ok()
    }
}

impl<S: PageSize, const N: usize> FrameDeallocator<S> for FreeList<N> {
    /// # Panics
    /// If a page of the frame is free, as the original does: the trait has no error.
    unsafe fn deallocate_frame(&mut self, frame: PhysFrame<S>) {
        // SAFETY: the frame is unused, by the contract of the trait.
        let freed = unsafe { self.deallocate(frame.into()) };
        assert!(freed.is_ok(), "{frame:?} cannot be freed");
    }
}

impl<S: PageSize> From<PhysFrame<S>> for PageRange {
    /// # Panics
    /// If the frame ends past the addresses of this machine, which no frame of an `x86_64` does.
    fn from(frame: PhysFrame<S>) -> Self {
        let start = frame.start_address().as_u64() as usize;
        Self::from_start_len(start, frame.size() as usize).expect("a frame is one page or more")
    }
}
