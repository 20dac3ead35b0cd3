//! A global allocator by the kernel's rule: small things elsewhere, large things here.
//!
//! # Theory
//! The kernel's `kvmalloc` asks the slab allocator first and falls back to `vmalloc` where that has
//! no contiguous pages. So callers of any size have one function, and `kvfree` tells the allocator
//! by the address. Here the boundary is a size, 64 KiB by default, and the fallback goes the other
//! way. Where no large memory can be allocated here (no address space, a frontier that does not
//! move), the other allocator is asked. The address tells the allocator in both.
//!
//! No other allocator is ever asked for a record, so none is entered twice.
//! # Source
//! Linux `mm/slub.c`, `mm/util.c` (`__kvmalloc_node`, `kvfree`, `kvrealloc`).

use crate::error::FreeError;
use crate::os::abort_with;
use crate::vmalloc::Vmalloc;
use core::alloc::{GlobalAlloc, Layout};
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicBool, Ordering};

/// Sizes from which memory comes from here.
pub const LARGE_BYTES: usize = 64 << 10;

/// The default allocator could not be made: nobody tries again for each allocation.
static HOPELESS: AtomicBool = AtomicBool::new(false);

/// A `GlobalAlloc` that asks `A` for small things and [`Vmalloc::global`] for large ones.
///
/// ```
/// use std::alloc::System;
/// use vmalloc::LargeAlloc;
///
/// #[global_allocator]
/// static ALLOCATOR: LargeAlloc<System> = LargeAlloc::new(System);
///
/// let large = vec![1u8; 1 << 20];
/// let memory = vmalloc::Vmalloc::try_global().unwrap();
/// assert!(memory.contains(large.as_ptr()));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct LargeAlloc<A> {
    small: A,
    large_bytes: usize,
}

impl<A> LargeAlloc<A> {
    /// Large is what has [`LARGE_BYTES`] or more.
    pub const fn new(small: A) -> Self {
        Self::with_threshold(small, LARGE_BYTES)
    }

    /// Large is what has `large_bytes` or more; whole pages are used for it, whatever that is.
    pub const fn with_threshold(small: A, large_bytes: usize) -> Self {
        Self { small, large_bytes }
    }

    #[inline(always)]
    fn is_large(&self, bytes: usize) -> bool {
        // An alignment of more than a page is met there, too, if the size is.
        bytes >= self.large_bytes && bytes > 0
    }
}

#[inline(always)]
fn large() -> Option<&'static Vmalloc> {
    Vmalloc::try_global().or_else(make)
}

#[cold]
fn make() -> Option<&'static Vmalloc> {
    if HOPELESS.load(Ordering::Relaxed) {
        return None;
    }
    let made = Vmalloc::global().ok();
    HOPELESS.store(made.is_none(), Ordering::Relaxed);
    made
}

/// The allocator of the process, if the address is its.
#[inline(always)]
fn owner(at: *mut u8) -> Option<(&'static Vmalloc, NonNull<u8>)> {
    let memory = Vmalloc::try_global().filter(|memory| memory.contains(at))?;
    Some((memory, NonNull::new(at)?))
}

#[cold]
fn bad_free(error: &FreeError) -> ! {
    abort_with(format_args!("bad free: {error}"))
}

// SAFETY: memory comes from `A` or from an area of its own, and goes back to where its address says that it came from. Nothing
// here unwinds.
unsafe impl<A: GlobalAlloc> GlobalAlloc for LargeAlloc<A> {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if self.is_large(layout.size())
            && let Some(area) = large().and_then(|memory| memory.alloc(layout).ok())
        {
            return area.as_ptr();
        }
        // SAFETY: this function's contract.
        unsafe { self.small.alloc(layout) }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if self.is_large(layout.size())
            && let Some(area) = large().and_then(|memory| memory.alloc_zeroed(layout).ok())
        {
            return area.as_ptr();
        }
        // SAFETY: this function's contract.
        unsafe { self.small.alloc_zeroed(layout) }
    }

    #[inline]
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        let Some((memory, area)) = owner(at) else {
            // SAFETY: this function's contract; the address is not ours, so it came from there.
            return unsafe { self.small.dealloc(at, layout) };
        };
        // SAFETY: this function's contract.
        if let Err(error) = unsafe { memory.free(area) } {
            bad_free(&error);
        }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        let Ok(new) = Layout::from_size_align(bytes, layout.align()) else { return null_mut() };
        let ours = owner(at);
        match ours {
            None if !self.is_large(bytes) => {
                // SAFETY: this function's contract.
                return unsafe { self.small.realloc(at, layout, bytes) };
            }
            // Half of the boundary, so that nobody goes to and fro.
            Some((memory, area)) if bytes >= self.large_bytes / 2 => {
                // SAFETY: this function's contract.
                let resized = unsafe { memory.grow(area, new) };
                match resized {
                    Ok(area) => return area.as_ptr(),
                    // A smaller size is in it anyway.
                    Err(_) if bytes <= layout.size() => return at,
                    Err(_) => {}
                }
            }
            _ => {}
        }
        // SAFETY: the new layout has a size, as this function's contract says.
        let to = unsafe { self.alloc(new) };
        if to.is_null() {
            return null_mut();
        }
        // SAFETY: both have that many bytes, and are two allocations.
        unsafe { to.copy_from_nonoverlapping(at, layout.size().min(bytes)) };
        // SAFETY: this function's contract.
        unsafe { self.dealloc(at, layout) };
        to
    }
}
