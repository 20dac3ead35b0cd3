//! Objects by address, for callers whose language has no lifetimes: C.
//!
//! The caller must ensure what the compiler proves for [`PerCpuBox`] and [`Local`]. The address of an object is that of
//! its copy in unit 0.

use super::shape::STRIDE;
use super::{Local, PerCpuBox, PerCpuRef, RefError, Space};
use core::ptr::NonNull;

impl PerCpuBox<'_> {
    /// Returns the address of the object, and leaves it to the caller: only [`Space::free_at`] frees it.
    #[must_use]
    pub fn into_address(self) -> NonNull<u8> {
        // Checks PP1: the caller may write to the copy in unit 0.
        self.space.hot().touch(0);
        let first = self.first();
        core::mem::forget(self);
        first
    }
}

impl Space {
    /// Frees an object. Returns `false`, and changes nothing, if no object begins at that address.
    ///
    /// # Locks
    /// That of a cache; for a flush that of the index.
    /// # Safety
    /// If an object begins there, [`PerCpuBox::into_address`] returned it to the caller, and it is not used any more.
    #[must_use]
    pub unsafe fn free_at(&self, object: NonNull<u8>) -> bool {
        // SAFETY: this function's contract.
        unsafe { self.free_address(object) }
    }

    /// Returns the copy of a unit, if the unit exists. The unit counts as used from now on. `inside` may be any byte of
    /// the object in unit 0.
    ///
    /// # Safety
    /// The object is live.
    #[must_use]
    pub unsafe fn copy_at(&self, inside: NonNull<u8>, unit: u32) -> Option<NonNull<u8>> {
        if unit >= self.units() {
            return None;
        }
        self.hot().touch(unit);
        // SAFETY: a unit of the chunk of a live object.
        Some(unsafe { inside.byte_add(unit as usize * STRIDE) })
    }

    /// Returns the operations on the word at an address of an object in unit 0, or `None` if the address is not aligned
    /// to 8.
    ///
    /// # Safety
    /// The object is live while the value is used and has eight bytes at the address, which only such values change.
    #[inline(always)]
    #[must_use]
    pub unsafe fn local_at(&self, word: NonNull<u8>) -> Option<Local<'_>> {
        if !word.addr().get().is_multiple_of(align_of::<u64>()) {
            return None;
        }
        // SAFETY: aligned as checked above; the rest is this function's contract.
        Some(unsafe { Local::new(self.hot(), word) })
    }
}

impl<R: Fn()> PerCpuRef<'_, R> {
    /// Puts references, and returns true if they were the last ones. It does not call the release: the caller does what
    /// that would do, and may free the count itself.
    #[inline(always)]
    #[must_use]
    pub fn put_without_release(&self, references: u32) -> bool {
        self.counted().put(i64::from(references))
    }

    /// Kills the count as [`kill_and_confirm`](Self::kill_and_confirm) does, and returns true if the first reference
    /// was the last one. It does not call the release.
    ///
    /// # Errors
    /// As [`kill`](Self::kill).
    pub fn kill_without_release(&self, confirm: impl FnOnce()) -> Result<bool, RefError> {
        self.counted().kill(confirm)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::Options;
    use super::*;
    use core::alloc::Layout;

    #[test]
    fn objects_by_address_are_zeros_counted_in_and_freed_once() {
        let space = Space::new(Options::default()).unwrap();
        let layout = Layout::from_size_align(24, 8).unwrap();
        let object = space.alloc(layout).unwrap().into_address();
        // SAFETY: the object is live; eight bytes at 8 are inside.
        let word = unsafe { object.add(8) };
        // SAFETY: as before.
        let local = unsafe { space.local_at(word) }.unwrap();
        local.add(5);
        local.add(u64::MAX);
        assert_eq!(local.sum(), 4);
        // SAFETY: inside the object.
        let odd = unsafe { object.add(1) };
        // SAFETY: the call fails, since the address is not aligned.
        assert!(unsafe { space.local_at(odd) }.is_none());
        let mut sum = 0;
        for unit in 0..space.units() {
            // SAFETY: the object is live.
            let copy = unsafe { space.copy_at(word, unit) }.unwrap();
            // SAFETY: eight bytes of the copy.
            sum += unsafe { copy.cast::<u64>().read() };
        }
        assert_eq!(sum, 4);
        // SAFETY: the call fails, since the unit does not exist.
        assert!(unsafe { space.copy_at(word, space.units()) }.is_none());
        assert_eq!(space.counts().0, 1);
        // SAFETY: no object begins there, so the call fails.
        assert!(!unsafe { space.free_at(word) });
        // SAFETY: our own object, which is not used any more.
        assert!(unsafe { space.free_at(object) });
        // SAFETY: the object was freed, so the call fails.
        assert!(!unsafe { space.free_at(object) });
        assert_eq!(space.counts().0, 0);
    }
}
