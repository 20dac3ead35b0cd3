//! Frames and mappings by numbers and addresses, for callers whose language has no lifetimes: C.
//!
//! The caller must ensure what the compiler proves for [`Frames`] and [`Mapping`](super::Mapping).

use super::error::VmapError;
use super::frames::Frames;
use super::mappings::{GLOBAL, Mappings};
use super::state::{List, Protection};
use crate::PAGE_BYTES;
use core::ops::Range;
use core::panic::Location;
use core::ptr::{NonNull, with_exposed_provenance_mut};
use va_base::Va;
use va_tree::FreeIndex;

impl Frames<'_> {
    /// Returns the numbers of the frames, and leaves the frames to the caller: only [`Mappings::free_frames`] frees
    /// them.
    #[must_use]
    pub fn into_numbers(self) -> Range<u64> {
        let numbers = self.numbers();
        core::mem::forget(self);
        numbers
    }
}

impl Mappings {
    /// Returns the global mappings of the process, if they were created.
    pub fn try_global() -> Option<&'static Self> {
        // SAFETY: mappings that are never dropped.
        GLOBAL.get().map(|global| unsafe { global.as_ref() })
    }

    /// Frees frames.
    ///
    /// # Errors
    /// [`VmapError::OtherProcess`]; [`VmapError::BadFrame`] with the first number that is not allocated. Frames of
    /// another caller are not detected. Freeing only a part of one allocation may abort the program.
    /// # Safety
    /// [`Frames::into_numbers`] of these mappings returned exactly these numbers, or some of them are not allocated. No
    /// mapping of the frames remains.
    pub unsafe fn free_frames(&self, numbers: Range<u64>) -> Result<(), VmapError> {
        self.0.own()?;
        if !numbers.is_empty() {
            self.check_out(&numbers)?;
            self.0.free_frames(numbers.start, numbers.end - numbers.start);
        }
        Ok(())
    }

    /// Maps frames contiguously, as [`vmap`](Self::vmap) does.
    ///
    /// # Errors
    /// As [`vmap`](Self::vmap); [`VmapError::BadFrame`] for a number that the file of the frames does not have.
    /// # Safety
    /// The caller owns the frames, which stay allocated until the mapping is unmapped.
    #[track_caller]
    pub unsafe fn vmap_numbers(
        &self,
        frames: &[u64],
        protection: Protection,
    ) -> Result<NonNull<u8>, VmapError> {
        self.check(frames)?;
        let list = List { count: frames.len(), number: |place: usize| frames[place] };
        self.0.vmap(&list, protection, Location::caller()).map(place)
    }

    /// Maps frames for a short time, as [`vm_map_ram`](Self::vm_map_ram) does.
    ///
    /// # Errors
    /// As [`vmap_numbers`](Self::vmap_numbers).
    /// # Safety
    /// As [`vmap_numbers`](Self::vmap_numbers).
    pub unsafe fn vm_map_ram_numbers(
        &self,
        frames: &[u64],
        protection: Protection,
    ) -> Result<NonNull<u8>, VmapError> {
        self.check(frames)?;
        let list = List { count: frames.len(), number: |place: usize| frames[place] };
        self.0.vm_map_ram(&list, protection).map(place)
    }

    /// Unmaps a mapping of [`vmap_numbers`](Self::vmap_numbers).
    ///
    /// # Errors
    /// [`VmapError::NotMapped`], [`VmapError::OtherProcess`].
    /// # Safety
    /// If such a mapping begins at the address, the caller owns it, and no reference to its bytes remains.
    pub unsafe fn vunmap_at(&self, at: NonNull<u8>) -> Result<(), VmapError> {
        self.0.own()?;
        let gone = self.0.map.vunmap(Va::new(at.addr().get() as u64));
        self.ended(gone.map_err(|_| VmapError::NotMapped { address: at.addr().get() }))
    }

    /// Unmaps a mapping of `pages` frames by [`vm_map_ram_numbers`](Self::vm_map_ram_numbers).
    ///
    /// # Errors
    /// [`VmapError::NotMapped`], also for another number of pages; [`VmapError::OtherProcess`].
    /// # Safety
    /// As [`vunmap_at`](Self::vunmap_at).
    pub unsafe fn vm_unmap_ram_at(&self, at: NonNull<u8>, pages: usize) -> Result<(), VmapError> {
        self.0.own()?;
        let va = Va::new(at.addr().get() as u64);
        let gone = self.0.map.vm_unmap_ram(self.0.cpu(), va, pages as u64);
        self.ended(gone.map_err(|_| VmapError::NotMapped { address: at.addr().get() }))
    }

    fn ended(&self, gone: Result<(), VmapError>) -> Result<(), VmapError> {
        if gone.is_ok() && self.0.table().is_due() {
            self.0.map.unmap_aliases();
        }
        gone
    }

    /// Checks that all these frames are allocated: a second free could free the frames of another caller.
    fn check_out(&self, range: &Range<u64>) -> Result<(), VmapError> {
        let numbers = self.0.numbers.lock();
        let pages = numbers.file_pages;
        let bad = |frame: u64| VmapError::BadFrame { frame: frame as usize, frames: pages as usize };
        if range.start == 0 {
            return Err(bad(0));
        }
        if range.end > pages {
            return Err(bad(range.end - 1));
        }
        match numbers.free.hole_after(Va::from_page(range.start)).map(|hole| hole.start().page_floor()) {
            Some(first) if first < range.end => Err(bad(first.max(range.start))),
            _ => Ok(()),
        }
    }

    /// Checks that the file has these frames: an access to one beyond its end is a fatal signal.
    fn check(&self, frames: &[u64]) -> Result<(), VmapError> {
        self.0.own()?;
        let pages = self.0.numbers.lock().file_pages;
        match frames.iter().find(|&&frame| frame == 0 || frame >= pages) {
            Some(&frame) => Err(VmapError::BadFrame { frame: frame as usize, frames: pages as usize }),
            None => Ok(()),
        }
    }
}

fn place(at: usize) -> NonNull<u8> {
    debug_assert!(at.is_multiple_of(PAGE_BYTES));
    // No mapping is at address 0.
    NonNull::new(with_exposed_provenance_mut(at)).unwrap_or(NonNull::dangling())
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn frames_by_number_are_mapped_unmapped_and_freed_and_mistakes_change_nothing() {
        let mappings = Mappings::new(usize::MAX).unwrap();
        let numbers = mappings.frames(3).unwrap().into_numbers();
        assert_eq!((numbers.end - numbers.start, mappings.stats().frames), (3, 3));
        let list = [numbers.start + 2, numbers.start, numbers.start + 2];
        // SAFETY: our own frames, which stay allocated.
        let view = unsafe { mappings.vmap_numbers(&list, Protection::ReadWrite) }.unwrap();
        // SAFETY: our own three pages.
        unsafe { view.write(7) };
        // SAFETY: inside these pages.
        let third = unsafe { view.add(2 * PAGE_BYTES) };
        // SAFETY: as before.
        assert_eq!(unsafe { third.read() }, 7);
        // SAFETY: our own frames.
        let small = unsafe { mappings.vm_map_ram_numbers(&list[..2], Protection::Read) }.unwrap();
        // SAFETY: our own two pages.
        assert_eq!(unsafe { small.read() }, 7);
        for bad in [0, u64::MAX, numbers.end + 1000] {
            // SAFETY: the call fails, since the file has no such frame.
            let failed = unsafe { mappings.vmap_numbers(&[bad], Protection::Read) };
            assert!(matches!(failed, Err(VmapError::BadFrame { .. })), "{bad}: {failed:?}");
        }
        // SAFETY: the call fails, since the list is empty.
        assert_eq!(unsafe { mappings.vmap_numbers(&[], Protection::Read) }, Err(VmapError::Nothing));
        let before = mappings.stats().mapped_bytes;
        for failed in [
            // SAFETY: the call fails, since no mapping has that kind, address and size.
            unsafe { mappings.vunmap_at(small) },
            // SAFETY: as before.
            unsafe { mappings.vunmap_at(third) },
            // SAFETY: as before.
            unsafe { mappings.vm_unmap_ram_at(small, 1) },
            // SAFETY: as before.
            unsafe { mappings.vm_unmap_ram_at(view, 3) },
        ] {
            assert!(matches!(failed, Err(VmapError::NotMapped { .. })), "{failed:?}");
        }
        assert_eq!(mappings.stats().mapped_bytes, before);
        // SAFETY: our own mapping, and no reference to it remains.
        unsafe { mappings.vm_unmap_ram_at(small, 2) }.unwrap();
        // SAFETY: as before.
        unsafe { mappings.vunmap_at(view) }.unwrap();
        // SAFETY: the call fails, since it was unmapped above.
        assert!(unsafe { mappings.vunmap_at(view) }.is_err());
        let (start, end) = (numbers.start, numbers.end);
        for bad in [0..1, start - 1..end, start..end + 1, end..end + 1, start..end + 1000, 1..u64::MAX] {
            // SAFETY: the call fails, since some of them are not allocated.
            let failed = unsafe { mappings.free_frames(bad.clone()) };
            assert!(matches!(failed, Err(VmapError::BadFrame { .. })), "{bad:?}: {failed:?}");
        }
        assert_eq!(mappings.stats().frames, 3);
        // SAFETY: these numbers, and no mapping remains.
        unsafe { mappings.free_frames(numbers.clone()) }.unwrap();
        // SAFETY: the call fails, since they were freed above.
        let again = unsafe { mappings.free_frames(numbers) };
        assert_eq!(again, Err(VmapError::BadFrame { frame: start as usize, frames: 64 }));
        assert_eq!((mappings.stats().frames, mappings.stats().mapped_bytes), (0, 0));
    }
}
