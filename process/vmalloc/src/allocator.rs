//! The trait of the crate `allocator-api2`, for its collections.

use crate::vmalloc::Vmalloc;
use allocator_api2::alloc::{AllocError, Allocator};
use core::alloc::Layout;
use core::ptr::NonNull;

fn whole(memory: &Vmalloc, area: NonNull<u8>, layout: Layout) -> NonNull<[u8]> {
    // Returns all pages of the area, so that a collection uses them before it grows.
    let bytes = memory.usable_bytes(area).unwrap_or(layout.size());
    NonNull::slice_from_raw_parts(area, bytes)
}

fn nothing(layout: Layout) -> NonNull<[u8]> {
    let align = core::num::NonZeroUsize::new(layout.align()).unwrap_or(core::num::NonZeroUsize::MIN);
    NonNull::slice_from_raw_parts(NonNull::without_provenance(align), 0)
}

// SAFETY: an area does not move until it is freed or resized through this trait; a copied reference has the same areas.
unsafe impl Allocator for &Vmalloc {
    #[inline]
    fn allocate(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        if layout.size() == 0 {
            return Ok(nothing(layout));
        }
        let area = self.alloc(layout).map_err(|_| AllocError)?;
        Ok(whole(self, area, layout))
    }

    #[inline]
    fn allocate_zeroed(&self, layout: Layout) -> Result<NonNull<[u8]>, AllocError> {
        if layout.size() == 0 {
            return Ok(nothing(layout));
        }
        let area = self.alloc_zeroed(layout).map_err(|_| AllocError)?;
        // Only the requested bytes are known to be zeros.
        Ok(NonNull::slice_from_raw_parts(area, layout.size()))
    }

    #[inline]
    unsafe fn deallocate(&self, area: NonNull<u8>, layout: Layout) {
        if layout.size() == 0 {
            return;
        }
        // SAFETY: this function's contract.
        if let Err(error) = unsafe { self.free(area) } {
            vmalloc_os::os::abort_with(format_args!("bad free: {error}"));
        }
    }

    unsafe fn grow(&self, area: NonNull<u8>, old: Layout, new: Layout) -> Result<NonNull<[u8]>, AllocError> {
        if old.size() == 0 {
            return self.allocate(new);
        }
        // SAFETY: this function's contract.
        let area = unsafe { Vmalloc::grow(self, area, new) }.map_err(|_| AllocError)?;
        Ok(whole(self, area, new))
    }

    unsafe fn shrink(
        &self,
        area: NonNull<u8>,
        old: Layout,
        new: Layout,
    ) -> Result<NonNull<[u8]>, AllocError> {
        if old.size() == 0 {
            return Ok(nothing(new));
        }
        if new.size() == 0 {
            // SAFETY: this function's contract.
            unsafe { self.deallocate(area, old) };
            return Ok(nothing(new));
        }
        // SAFETY: this function's contract.
        let area = unsafe { Vmalloc::shrink(self, area, new) }.map_err(|_| AllocError)?;
        Ok(whole(self, area, new))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Options;

    #[test]
    fn what_a_collection_asks_for_is_met() {
        let memory = Vmalloc::new(Options::default()).unwrap();
        let by = &memory;
        let word = |area: NonNull<[u8]>, at: usize| {
            // SAFETY: an allocation of our own, of more bytes than that.
            let place = unsafe { area.cast::<u8>().add(at) };
            // SAFETY: as before, and set.
            unsafe { place.read() }
        };
        let (small, large) = (Layout::new::<[u64; 700]>(), Layout::new::<[u64; 90_000]>());
        let area = Allocator::allocate_zeroed(&by, small).unwrap();
        assert_eq!((area.len(), word(area, small.size() - 1)), (small.size(), 0));
        // SAFETY: our own area, which has that many usable bytes.
        unsafe { area.cast::<u8>().write_bytes(7, small.size()) };
        // SAFETY: our own area, of that layout.
        let area = unsafe { Allocator::grow_zeroed(&by, area.cast(), small, large) }.unwrap();
        assert_eq!(
            [0, small.size() - 1, small.size(), large.size() - 1].map(|at| word(area, at)),
            [7, 7, 0, 0]
        );
        // SAFETY: as before.
        let area = unsafe { Allocator::shrink(&by, area.cast(), large, small) }.unwrap();
        assert_eq!((area.len(), memory.stats().live_bytes, word(area, 9)), (8192, 8192, 7));
        // A grow preserves all bytes that were reported as usable.
        // SAFETY: as before.
        unsafe { area.cast::<u8>().write_bytes(9, area.len()) };
        let whole = Layout::from_size_align(area.len(), 8).unwrap();
        let _wall = Allocator::allocate(&by, small).unwrap();
        // SAFETY: as before.
        let area = unsafe { Allocator::grow(&by, area.cast(), whole, large) }.unwrap();
        assert_eq!((word(area, 0), word(area, 8191)), (9, 9));
        // SAFETY: as before.
        let none = unsafe { Allocator::shrink(&by, area.cast(), large, Layout::new::<[u64; 0]>()) }.unwrap();
        assert_eq!((none.len(), memory.stats().live_bytes), (0, 8192));
        // SAFETY: an allocation of size 0.
        let area = unsafe { Allocator::grow(&by, none.cast(), Layout::new::<[u64; 0]>(), small) }.unwrap();
        // SAFETY: our own area, of that layout.
        unsafe { Allocator::deallocate(&by, area.cast(), small) };
    }
}
