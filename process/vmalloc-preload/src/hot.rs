//! The state that every call reads, in one cache line: the range of the arena, the threshold of large sizes, and the
//! functions for small sizes.
//!
//! A program allocates small memory millions of times a second, and each of these calls pays the overhead of this
//! library. So a small `malloc` is a comparison and a jump, and a small `free` two range checks and a jump, with no
//! stack frame. Less common paths are behind calls that are not inlined. The addresses of the jumps are always valid.
//! Before the next definitions are known they are those of functions that look these up.

use core::ffi::c_void;
use core::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// `malloc`.
pub(crate) type Malloc = extern "C" fn(usize) -> *mut c_void;
/// `calloc`.
pub(crate) type Calloc = extern "C" fn(usize, usize) -> *mut c_void;
/// `free`.
pub(crate) type Free = unsafe extern "C" fn(*mut c_void);
/// `realloc`.
pub(crate) type Realloc = unsafe extern "C" fn(*mut c_void, usize) -> *mut c_void;

/// The state that every call reads, in a cache line.
#[repr(C, align(64))]
pub(crate) struct Hot {
    // Atomic, independent of each other: an address of the arena is allocated only after both are written.
    /// The first address of the arena. Protocol PR-PUBLISH.
    first: AtomicUsize,
    /// The bytes of the arena; 0 before there is one. Protocol PR-PUBLISH.
    bytes: AtomicUsize,
    /// The least large size. Protocol PR-CONF.
    threshold: AtomicUsize,
    // Atomic, independent of each other: a function of this library or of the next, of the type with the field's name.
    /// Allocates. Protocol PR-PUBLISH.
    malloc: AtomicPtr<c_void>,
    /// Frees. Protocol PR-PUBLISH.
    free: AtomicPtr<c_void>,
    /// Resizes. Protocol PR-PUBLISH.
    realloc: AtomicPtr<c_void>,
    /// Allocates zeros. Protocol PR-PUBLISH.
    calloc: AtomicPtr<c_void>,
}

/// The state of the process. `#[used]` prevents the compiler from splitting it into separate variables.
#[used]
pub(crate) static HOT: Hot = Hot {
    first: AtomicUsize::new(0),
    bytes: AtomicUsize::new(0),
    threshold: AtomicUsize::new(crate::conf::Conf::DEFAULT.threshold_bytes),
    malloc: AtomicPtr::new(crate::abi::malloc_unknown as Malloc as *mut c_void),
    free: AtomicPtr::new(crate::abi::free_unknown as Free as *mut c_void),
    realloc: AtomicPtr::new(crate::abi::realloc_unknown as Realloc as *mut c_void),
    calloc: AtomicPtr::new(crate::abi::calloc_unknown as Calloc as *mut c_void),
};

impl Hot {
    /// Returns the least large size.
    #[inline(always)]
    pub(crate) fn threshold(&self) -> usize {
        self.threshold.load(Ordering::Relaxed)
    }

    /// Sets the least large size.
    pub(crate) fn set_threshold(&self, bytes: usize) {
        self.threshold.store(bytes, Ordering::Relaxed);
    }

    /// Sets the range of the arena, before any allocation from it.
    pub(crate) fn set_arena(&self, arena: &core::ops::Range<usize>) {
        self.first.store(arena.start, Ordering::Relaxed);
        self.bytes.store(arena.end.saturating_sub(arena.start), Ordering::Release);
    }

    /// Returns true for every address in the arena. During [`set_arena`](Self::set_arena) it may also return true for
    /// others.
    #[inline(always)]
    pub(crate) fn may_be_ours(&self, at: *const c_void) -> bool {
        at.addr().wrapping_sub(self.first.load(Ordering::Relaxed)) < self.bytes.load(Ordering::Relaxed)
    }

    /// Sets the next definitions as the functions for small sizes.
    ///
    /// # Safety
    /// The pointers are the C functions of these names.
    pub(crate) unsafe fn set_next(&self, [malloc, free, realloc, calloc]: [*mut c_void; 4]) {
        self.malloc.store(malloc, Ordering::Release);
        self.free.store(free, Ordering::Release);
        self.realloc.store(realloc, Ordering::Release);
        self.calloc.store(calloc, Ordering::Release);
    }

    /// From now on, small calls that fail release addresses of the arena and try again.
    pub(crate) fn retry_small(&self) {
        self.malloc.store(crate::abi::malloc_unknown as Malloc as *mut c_void, Ordering::Release);
        self.realloc.store(crate::abi::realloc_unknown as Realloc as *mut c_void, Ordering::Release);
        self.calloc.store(crate::abi::calloc_unknown as Calloc as *mut c_void, Ordering::Release);
    }

    #[inline(always)]
    pub(crate) fn malloc(&self) -> Malloc {
        // SAFETY: a function of that type, by `set_next`'s contract.
        unsafe { core::mem::transmute::<*mut c_void, Malloc>(self.malloc.load(Ordering::Relaxed)) }
    }

    #[inline(always)]
    pub(crate) fn free(&self) -> Free {
        // SAFETY: as before.
        unsafe { core::mem::transmute::<*mut c_void, Free>(self.free.load(Ordering::Relaxed)) }
    }

    #[inline(always)]
    pub(crate) fn realloc(&self) -> Realloc {
        // SAFETY: as before.
        unsafe { core::mem::transmute::<*mut c_void, Realloc>(self.realloc.load(Ordering::Relaxed)) }
    }

    #[inline(always)]
    pub(crate) fn calloc(&self) -> Calloc {
        // SAFETY: as before.
        unsafe { core::mem::transmute::<*mut c_void, Calloc>(self.calloc.load(Ordering::Relaxed)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::ptr::null_mut;

    #[test]
    fn an_address_is_ours_from_the_first_byte_to_the_last() {
        let hot = Hot {
            first: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            threshold: AtomicUsize::new(0),
            malloc: AtomicPtr::new(null_mut()),
            free: AtomicPtr::new(null_mut()),
            realloc: AtomicPtr::new(null_mut()),
            calloc: AtomicPtr::new(null_mut()),
        };
        let at = core::ptr::without_provenance::<c_void>;
        assert!(!hot.may_be_ours(at(0)) && !hot.may_be_ours(at(usize::MAX)));
        hot.set_arena(&(0x10000..0x20000));
        let seen =
            [0, 0xffff, 0x10000, 0x1ffff, 0x20000, usize::MAX].map(|address| hot.may_be_ours(at(address)));
        assert_eq!(seen, [false, false, true, true, false, false]);
    }
}
