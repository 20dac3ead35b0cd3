//! Objects by address, for callers whose language has no lifetimes: C.
//!
//! What the compiler proves of [`PerCpuBox`] and [`Local`], whoever calls these promises. The address of an object is that of its
//! copy in unit 0.

use super::shape::STRIDE;
use super::{Local, PerCpuBox, Space};
use core::ptr::NonNull;

impl PerCpuBox<'_> {
    /// The address of the object, which is the caller's from now on: nothing frees it but [`Space::free_at`].
    pub fn into_address(self) -> NonNull<u8> {
        let first = self.first();
        core::mem::forget(self);
        first
    }
}

impl Space {
    /// Frees an object; `false` if none begins at that address, and nothing has changed.
    ///
    /// # Locks
    /// The space's.
    /// # Safety
    /// If there is an object it is the caller's, of [`PerCpuBox::into_address`], and nobody uses it any more.
    pub unsafe fn free_at(&self, object: NonNull<u8>) -> bool {
        // SAFETY: this function's contract.
        unsafe { self.free_address(object) }
    }

    /// The copy of a unit, if there is such a unit; it counts as used from now on. `inside` may be any byte of the object in unit 0.
    ///
    /// # Safety
    /// The object is there.
    pub unsafe fn copy_at(&self, inside: NonNull<u8>, unit: u32) -> Option<NonNull<u8>> {
        if unit >= self.units() {
            return None;
        }
        self.hot().touch(unit);
        // SAFETY: a unit of the chunk of an object that is there.
        Some(unsafe { inside.byte_add(unit as usize * STRIDE) })
    }

    /// The word at an address of an object in unit 0; `None` if no word is at such an address.
    ///
    /// # Safety
    /// The object is there as long as the value is used, has eight bytes there, and they are changed by such values only.
    #[inline(always)]
    pub unsafe fn local_at(&self, word: NonNull<u8>) -> Option<Local<'_>> {
        if !word.addr().get().is_multiple_of(align_of::<u64>()) {
            return None;
        }
        // SAFETY: aligned, and for the rest this function's contract.
        Some(unsafe { Local::new(self.hot(), word) })
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
        // SAFETY: the object is there; eight bytes at 8 are inside.
        let word = unsafe { object.add(8) };
        // SAFETY: as before.
        let local = unsafe { space.local_at(word) }.unwrap();
        local.add(5);
        local.add(u64::MAX);
        assert_eq!(local.sum(), 4);
        // SAFETY: inside the object.
        let odd = unsafe { object.add(1) };
        // SAFETY: refused.
        assert!(unsafe { space.local_at(odd) }.is_none());
        let mut sum = 0;
        for unit in 0..space.units() {
            // SAFETY: the object is there.
            let copy = unsafe { space.copy_at(word, unit) }.unwrap();
            // SAFETY: eight bytes of the copy.
            sum += unsafe { copy.cast::<u64>().read() };
        }
        assert_eq!(sum, 4);
        // SAFETY: refused.
        assert!(unsafe { space.copy_at(word, space.units()) }.is_none());
        assert_eq!(space.counts().0, 1);
        // SAFETY: no object begins there: refused.
        assert!(!unsafe { space.free_at(word) });
        // SAFETY: our own, which nobody uses any more.
        assert!(unsafe { space.free_at(object) });
        // SAFETY: there is none any more: refused.
        assert!(!unsafe { space.free_at(object) });
        assert_eq!(space.counts().0, 0);
    }
}
