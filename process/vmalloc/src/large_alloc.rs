//! A global allocator by the kernel's rule: small allocations from another allocator, large ones from this one.
//!
//! # Theory
//! The kernel's `kvmalloc` calls the slab allocator first and falls back to `vmalloc` if that has no contiguous pages.
//! So callers of any size have one function, and `kvfree` finds the allocator by the address. Here the boundary is a
//! size, 64 KiB by default, and the fallback is the reverse. If a large allocation fails here (no address space, a
//! frontier that does not move), the other allocator serves it. The address identifies the allocator in both.
//!
//! Records never come from another allocator, so none is re-entered.
//! # Source
//! Linux `mm/slub.c`, `mm/util.c` (`__kvmalloc_node`, `kvfree`, `kvrealloc`).

use crate::error::FreeError;
use crate::vmalloc::Vmalloc;
use core::alloc::{GlobalAlloc, Layout};
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicBool, Ordering};
use vmalloc_os::os::abort_with;

/// The default size from which an allocation is large.
pub const LARGE_BYTES: usize = 64 << 10;

/// Set when the default allocator could not be created, so that later allocations do not try again. Protocol PR-HINT.
static CREATE_FAILED: AtomicBool = AtomicBool::new(false);

/// A `GlobalAlloc` that takes small allocations from `A` and large ones from [`Vmalloc::global`].
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
///
/// A library that is loaded at run time must not be unloaded while its allocator's thread runs
/// ([`Options::background_thread`](crate::Options::background_thread)): link it with
/// `-C link-arg=-Wl,-z,nodelete`.
#[derive(Clone, Copy, Debug)]
pub struct LargeAlloc<A> {
    small: A,
    large_bytes: usize,
}

impl<A> LargeAlloc<A> {
    /// Makes an allocator for which an allocation of [`LARGE_BYTES`] or more is large.
    pub const fn new(small: A) -> Self {
        Self::with_threshold(small, LARGE_BYTES)
    }

    /// Makes an allocator for which an allocation of `large_bytes` or more is large. A large one takes whole pages,
    /// even below a page.
    pub const fn with_threshold(small: A, large_bytes: usize) -> Self {
        Self { small, large_bytes }
    }

    #[inline(always)]
    fn is_large(&self, bytes: usize) -> bool {
        // Only the size decides: a large allocation may also have an alignment above a page.
        bytes >= self.large_bytes && bytes > 0
    }
}

#[inline(always)]
fn large() -> Option<&'static Vmalloc> {
    Vmalloc::try_global().or_else(make)
}

#[cold]
fn make() -> Option<&'static Vmalloc> {
    if CREATE_FAILED.load(Ordering::Relaxed) {
        return None;
    }
    let made = Vmalloc::global().ok();
    CREATE_FAILED.store(made.is_none(), Ordering::Relaxed);
    made
}

/// Returns the allocator of the process, if the address is in its arena.
#[inline(always)]
fn owner(at: *mut u8) -> Option<(&'static Vmalloc, NonNull<u8>)> {
    let memory = Vmalloc::try_global().filter(|memory| memory.contains(at))?;
    Some((memory, NonNull::new(at)?))
}

#[cold]
fn bad_free(error: &FreeError) -> ! {
    abort_with(format_args!("bad free: {error}"))
}

// SAFETY: each allocation comes from `A` or is an area of `Vmalloc`, and its address identifies the allocator that
// frees it. Nothing here unwinds.
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
            // SAFETY: this function's contract; the address is outside our arena, so `A` allocated it.
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
            // Half of the boundary, so that a size near it does not move between the allocators at each call.
            Some((memory, area)) if bytes >= self.large_bytes / 2 => {
                // SAFETY: this function's contract.
                let resized = unsafe { memory.grow(area, new) };
                match resized {
                    Ok(area) => return area.as_ptr(),
                    // The area already contains the smaller size.
                    Err(_) if bytes <= layout.size() => return at,
                    Err(_) => {}
                }
            }
            _ => {}
        }
        // SAFETY: the new layout's size is not 0, by this function's contract.
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
