//! The functions of `malloc`, each served here or by the next `malloc`.
//!
//! Large allocations are served here, or passed on to the next `malloc` if there is no memory here. Requests before the
//! next one is known are served from the boot arena. Invalid arguments (an alignment that is no power of two) are
//! passed on to the next one.

use crate::boot::Boot;
use crate::hot::HOT;
use crate::large::{self, Event, Timer, allocator, count, is_large, owner, stays};
use crate::next::Next;
use crate::small;
use crate::words::{KeepErrno, set_errno, stop};
use core::alloc::Layout;
use core::ffi::{c_int, c_void};
use core::ptr::{NonNull, null_mut};
use vmalloc::{FreeError, ResizeError, Vmalloc};

/// Serves requests while the next definitions are looked up.
static BOOT: Boot<{ 64 << 10 }> = Boot::new();

/// The alignment of every allocation: areas of the hardened profile end where their last page ends.
const SMALL_ALIGN: usize = 16;
/// The alignment of `valloc` and `pvalloc`.
const PAGE_BYTES: usize = 4096;

/// Allocates an area of that size and alignment. Returns `None` if the size is small, the arguments are invalid, or
/// there is no memory for it here.
#[inline(always)]
fn area(
    size: usize,
    align: usize,
    allocate: fn(&Vmalloc, Layout) -> Option<NonNull<u8>>,
) -> Option<NonNull<u8>> {
    if is_large(size) { area_large(size, align, allocate) } else { None }
}

#[inline(never)]
fn area_large(
    size: usize,
    align: usize,
    allocate: impl Fn(&Vmalloc, Layout) -> Option<NonNull<u8>>,
) -> Option<NonNull<u8>> {
    // Aligned for any object at least, as of the C library's malloc.
    let layout = Layout::from_size_align(size, align).ok()?.align_to(SMALL_ALIGN).ok()?;
    let timer = Timer::start();
    let keep = KeepErrno::new();
    let area = allocator().and_then(|memory| allocate(memory, layout));
    drop(keep);
    drop(timer);
    count(if area.is_some() { Event::Served } else { Event::PassedOn });
    area
}

#[inline(always)]
fn any(memory: &Vmalloc, layout: Layout) -> Option<NonNull<u8>> {
    memory.alloc(layout).ok()
}

/// Allocates from the boot arena, with the results of `malloc`.
#[cold]
fn boot(size: usize, align: usize) -> *mut c_void {
    let piece = BOOT.allocate(size, align);
    if piece.is_null() {
        set_errno(libc::ENOMEM);
    }
    piece.cast()
}

#[cold]
fn bad_pointer(what: &str, error: &FreeError) -> ! {
    stop(format_args!("{what}: bad pointer: {error}"))
}

/// `malloc`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn malloc(size: usize) -> *mut c_void {
    if is_large(size) {
        malloc_large(size)
    } else if small::is_due() {
        malloc_due(size)
    } else {
        HOT.malloc()(size)
    }
}

/// Does a part of the decay before a small call.
#[cold]
#[inline(never)]
fn malloc_due(size: usize) -> *mut c_void {
    small::pass_time();
    HOT.malloc()(size)
}

#[inline(never)]
fn malloc_large(size: usize) -> *mut c_void {
    area_large(size, SMALL_ALIGN, any).map_or_else(|| malloc_unknown(size), |area| area.as_ptr().cast())
}

/// Returns the bytes in which the C library finds an aligned piece.
fn aligned(size: usize, align: usize) -> usize {
    size.saturating_add(align)
}

/// Calls `ask` for `size` bytes again if it fails, a limit may be the reason, and the arena can release addresses.
fn again(size: usize, ask: impl Fn() -> *mut c_void) -> *mut c_void {
    large::ask_again(size, ask, |given| given.is_null())
}

/// Calls the next `malloc`, or the boot arena if that is not known yet.
pub(crate) extern "C" fn malloc_unknown(size: usize) -> *mut c_void {
    match Next::get() {
        // SAFETY: allocates memory.
        Some(next) => again(size, || unsafe { next.malloc(size) }),
        None => boot(size, SMALL_ALIGN),
    }
}

/// `calloc`. Pages fresh from the system are not written to.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn calloc(members: usize, size: usize) -> *mut c_void {
    // A product that overflows is large.
    if is_large(members.saturating_mul(size)) {
        calloc_large(members, size)
    } else {
        HOT.calloc()(members, size)
    }
}

#[inline(never)]
fn calloc_large(members: usize, size: usize) -> *mut c_void {
    let Some(bytes) = members.checked_mul(size) else {
        set_errno(libc::ENOMEM);
        return null_mut();
    };
    let zeroed = |memory: &Vmalloc, layout| memory.alloc_zeroed(layout).ok();
    area_large(bytes, SMALL_ALIGN, zeroed)
        .map_or_else(|| calloc_unknown(members, size), |area| area.as_ptr().cast())
}

/// Calls the next `calloc`, or the boot arena if that is not known yet.
pub(crate) extern "C" fn calloc_unknown(members: usize, size: usize) -> *mut c_void {
    match Next::get() {
        // SAFETY: allocates memory.
        Some(next) => again(members.saturating_mul(size), || unsafe { next.calloc(members, size) }),
        // Pieces of the boot arena are zeros.
        None => boot(members.saturating_mul(size), SMALL_ALIGN),
    }
}

/// `free`.
///
/// Checks LP1: the address of memory selects the allocator that frees it.
///
/// # Safety
/// `memory` is null, or of these functions, and it is not used any more.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn free(memory: *mut c_void) {
    if HOT.may_be_ours(memory) {
        // SAFETY: this function's contract.
        unsafe { free_large(memory) };
    } else if BOOT.contains(memory.cast()) {
        // Memory of the boot arena is never freed.
    } else {
        // SAFETY: this function's contract. The next one accepts null, too.
        unsafe { HOT.free()(memory) };
    }
}

#[inline(never)]
unsafe fn free_large(memory: *mut c_void) {
    let Some(at) = NonNull::new(memory.cast::<u8>()) else { return };
    let Some(owner) = owner(at.as_ptr()) else {
        // The arena's range was read during its creation.
        if !BOOT.contains(at.as_ptr()) {
            // SAFETY: this function's contract.
            unsafe { HOT.free()(memory) };
        }
        return;
    };
    let _keep = KeepErrno::new();
    let _timer = Timer::start();
    // SAFETY: this function's contract.
    if let Err(error) = unsafe { owner.free(at) } {
        bad_pointer("free", &error);
    }
    count(Event::Freed);
}

/// Calls the next `free`, if it is known.
///
/// # Safety
/// As [`free`], for memory outside the arena and the boot arena.
pub(crate) unsafe extern "C" fn free_unknown(memory: *mut c_void) {
    if let Some(next) = Next::get() {
        // SAFETY: this function's contract.
        unsafe { next.free(memory) };
    }
}

/// `realloc`. A size of 0 has the result of the next one, which is glibc's: the memory is freed, and null is returned.
///
/// # Safety
/// As [`free`], and no other thread uses the memory during the call.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn realloc(memory: *mut c_void, size: usize) -> *mut c_void {
    if HOT.may_be_ours(memory) || is_large(size) || BOOT.contains(memory.cast()) {
        // SAFETY: this function's contract.
        unsafe { realloc_large(memory, size) }
    } else {
        // SAFETY: this function's contract.
        unsafe { HOT.realloc()(memory, size) }
    }
}

/// Calls the next `realloc`, or the boot arena if that is not known yet.
///
/// # Safety
/// As [`realloc`], for memory outside the arena and the boot arena.
pub(crate) unsafe extern "C" fn realloc_unknown(memory: *mut c_void, size: usize) -> *mut c_void {
    match Next::get() {
        // SAFETY: this function's contract; after a failure the memory is unchanged. A size of 0 frees it, so that call
        // is not repeated.
        Some(next) if size > 0 => again(size, || unsafe { next.realloc(memory, size) }),
        // SAFETY: as before.
        Some(next) => unsafe { next.realloc(memory, size) },
        None if memory.is_null() => boot(size, SMALL_ALIGN),
        None => {
            set_errno(libc::ENOMEM);
            null_mut()
        }
    }
}

/// # Safety
/// As [`realloc`].
#[inline(never)]
unsafe fn realloc_large(memory: *mut c_void, size: usize) -> *mut c_void {
    let Some(at) = NonNull::new(memory.cast::<u8>()) else { return malloc(size) };
    let held_bytes = if let Some(owner) = owner(at.as_ptr()) {
        if size == 0 {
            // SAFETY: this function's contract.
            unsafe { free(memory) };
            return null_mut();
        }
        let held_bytes = usable_bytes(owner, at).unwrap_or_else(|error| bad_pointer("realloc", &error));
        if stays(size) {
            // SAFETY: this function's contract.
            if let Some(answer) = unsafe { resize(owner, at, size, held_bytes) } {
                return answer;
            }
        }
        held_bytes
    } else if BOOT.contains(at.as_ptr()) {
        // SAFETY: a piece of the boot arena, by this function's contract.
        unsafe { BOOT.size_of_piece(at.as_ptr()) }
    } else {
        // Memory of the next one that is already large stays there: the next one moves its pages better than we copy
        // them.
        // SAFETY: this function's contract.
        let held_bytes = Next::get().map_or(0, |next| unsafe { next.malloc_usable_size(memory) });
        if !is_large(size) || is_large(held_bytes) || held_bytes == 0 {
            // SAFETY: this function's contract.
            return unsafe { realloc_unknown(memory, size) };
        }
        held_bytes
    };
    let to = malloc(size);
    if to.is_null() {
        return to;
    }
    // SAFETY: both have that many bytes, and are two allocations.
    unsafe { to.cast::<u8>().copy_from_nonoverlapping(at.as_ptr(), held_bytes.min(size)) };
    // SAFETY: this function's contract.
    unsafe { free(memory) };
    to
}

/// Returns what can be used of an area. The hardened profile takes a lock for it, whose wait may set `errno`.
fn usable_bytes(owner: &Vmalloc, at: NonNull<u8>) -> Result<usize, FreeError> {
    let _keep = KeepErrno::new();
    owner.usable_bytes(at)
}

/// Resizes an area here. Returns `None` if the memory must move to the next `malloc`.
///
/// # Safety
/// The caller owns the area, and no other thread uses it meanwhile.
unsafe fn resize(owner: &Vmalloc, at: NonNull<u8>, size: usize, held_bytes: usize) -> Option<*mut c_void> {
    let layout = Layout::from_size_align(size, SMALL_ALIGN).ok()?;
    let _keep = KeepErrno::new();
    let _timer = Timer::start();
    // SAFETY: this function's contract.
    match unsafe { owner.grow(at, layout) } {
        Ok(area) => {
            count(Event::Resized);
            Some(area.as_ptr().cast())
        }
        Err(ResizeError::Free(error)) => bad_pointer("realloc", &error),
        // The area already contains a smaller size. The hardened profile checks the size, so it must record it.
        Err(_) if size <= held_bytes && !large::is_hardened() => Some(at.as_ptr().cast()),
        Err(_) => None,
    }
}

/// `reallocarray`.
///
/// # Safety
/// As [`realloc`].
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn reallocarray(memory: *mut c_void, members: usize, size: usize) -> *mut c_void {
    let Some(bytes) = members.checked_mul(size) else {
        set_errno(libc::ENOMEM);
        return null_mut();
    };
    // SAFETY: this function's contract.
    unsafe { realloc(memory, bytes) }
}

/// `posix_memalign`.
///
/// # Safety
/// `to` points to a pointer to write to.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn posix_memalign(to: *mut *mut c_void, align: usize, size: usize) -> c_int {
    if !align.is_power_of_two() || align < size_of::<*mut c_void>() {
        return libc::EINVAL;
    }
    let memory = match (area(size, align, any), Next::get()) {
        (Some(area), _) => area.as_ptr().cast(),
        (None, Some(next)) => {
            // SAFETY: this function's contract.
            let ask = || unsafe { next.posix_memalign(to, align, size) };
            return large::ask_again(aligned(size, align), ask, |&answer| answer == libc::ENOMEM);
        }
        (None, None) => {
            let _keep = KeepErrno::new();
            boot(size, align)
        }
    };
    if memory.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: this function's contract.
    unsafe { *to = memory };
    0
}

/// `aligned_alloc`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn aligned_alloc(align: usize, size: usize) -> *mut c_void {
    match (area(size, align, any), Next::get()) {
        (Some(area), _) => area.as_ptr().cast(),
        // SAFETY: allocates memory.
        (None, Some(next)) => again(aligned(size, align), || unsafe { next.aligned_alloc(align, size) }),
        (None, None) => boot(size, align),
    }
}

/// `memalign`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn memalign(align: usize, size: usize) -> *mut c_void {
    match (area(size, align, any), Next::get()) {
        (Some(area), _) => area.as_ptr().cast(),
        // SAFETY: allocates memory.
        (None, Some(next)) => again(aligned(size, align), || unsafe { next.memalign(align, size) }),
        (None, None) => boot(size, align),
    }
}

/// `valloc`: aligned to a page.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn valloc(size: usize) -> *mut c_void {
    match (area(size, PAGE_BYTES, any), Next::get()) {
        (Some(area), _) => area.as_ptr().cast(),
        // SAFETY: allocates memory.
        (None, Some(next)) => again(size, || unsafe { next.valloc(size) }),
        (None, None) => boot(size, PAGE_BYTES),
    }
}

/// `pvalloc`: whole pages, aligned to a page.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn pvalloc(size: usize) -> *mut c_void {
    let pages = size.checked_next_multiple_of(PAGE_BYTES);
    match (pages.and_then(|bytes| area(bytes, PAGE_BYTES, any)), Next::get()) {
        (Some(area), _) => area.as_ptr().cast(),
        // SAFETY: allocates memory.
        (None, Some(next)) => again(size, || unsafe { next.pvalloc(size) }),
        (None, None) => {
            boot(size.max(1).checked_next_multiple_of(PAGE_BYTES).unwrap_or(usize::MAX), PAGE_BYTES)
        }
    }
}

/// `malloc_usable_size`.
///
/// # Safety
/// `memory` is null, or of these functions.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn malloc_usable_size(memory: *mut c_void) -> usize {
    let Some(at) = NonNull::new(memory.cast::<u8>()) else { return 0 };
    if let Some(owner) = owner(at.as_ptr()) {
        return usable_bytes(owner, at).unwrap_or_else(|error| bad_pointer("malloc_usable_size", &error));
    }
    if BOOT.contains(at.as_ptr()) {
        // SAFETY: a piece of the boot arena, by this function's contract.
        return unsafe { BOOT.size_of_piece(at.as_ptr()) };
    }
    // SAFETY: this function's contract.
    Next::get().map_or(0, |next| unsafe { next.malloc_usable_size(memory) })
}

/// `malloc_trim`: returns 1 if any memory was released to the system.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn malloc_trim(pad: usize) -> c_int {
    let _keep = KeepErrno::new();
    let here = large::get().is_some_and(|memory| memory.trim() > 0);
    // SAFETY: releases unused memory.
    let there = Next::get().is_some_and(|next| unsafe { next.malloc_trim(pad) } != 0);
    c_int::from(here || there)
}

/// `free_sized` of C23. Only the hardened profile checks the size.
///
/// # Safety
/// As [`free`].
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn free_sized(memory: *mut c_void, size: usize) {
    check_size("free_sized", memory, 1, size);
    // SAFETY: this function's contract.
    unsafe { free(memory) };
}

/// `free_aligned_sized` of C23. Only the hardened profile checks the size and the alignment.
///
/// # Safety
/// As [`free`].
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn free_aligned_sized(memory: *mut c_void, align: usize, size: usize) {
    check_size("free_aligned_sized", memory, align, size);
    // SAFETY: this function's contract.
    unsafe { free(memory) };
}

/// Ends the process if an area of the hardened profile is freed with a wrong size or alignment. `free` reports
/// addresses of no area.
fn check_size(what: &str, memory: *mut c_void, align: usize, size: usize) {
    // The size is read under a lock, whose wait may set it.
    let _keep = KeepErrno::new();
    if let Some(at) = NonNull::new(memory.cast::<u8>())
        && large::is_hardened()
        && let Some(owner) = owner(at.as_ptr())
        && let Ok(bytes) = owner.requested_bytes(at)
        && (bytes != size || !align.is_power_of_two() || !memory.addr().is_multiple_of(align))
    {
        stop(format_args!(
            "{what}: bad size: {memory:p} is an area of {bytes} bytes, not {size} aligned to {align}"
        ));
    }
}

/// The function that `pthread_atfork` calls. It registers our own handlers first. So they run last before a fork and
/// first after it, and the handler that is registered here may allocate. Our own registration calls this function, too.
///
/// # Safety
/// The handlers can be called as long as `library` is loaded.
#[cfg(target_env = "gnu")]
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn __register_atfork(
    before: Option<unsafe extern "C" fn()>,
    parent: Option<unsafe extern "C" fn()>,
    child: Option<unsafe extern "C" fn()>,
    library: *mut c_void,
) -> c_int {
    large::register_first();
    let Some(next) = Next::get() else { return libc::ENOMEM };
    // SAFETY: this function's contract.
    unsafe { next.register_atfork(before, parent, child, library) }
}

/// glibc's second names of the same functions, for libraries that wrap `malloc`. Programs may mix both sets of names,
/// so both must use the same memory.
pub mod internal {
    use super::{c_void, calloc, free, malloc, memalign, pvalloc, realloc, valloc};

    /// `malloc`.
    #[cfg_attr(not(test), unsafe(no_mangle))]
    pub extern "C" fn __libc_malloc(size: usize) -> *mut c_void {
        malloc(size)
    }

    /// `calloc`.
    #[cfg_attr(not(test), unsafe(no_mangle))]
    pub extern "C" fn __libc_calloc(members: usize, size: usize) -> *mut c_void {
        calloc(members, size)
    }

    /// `realloc`.
    ///
    /// # Safety
    /// As the function without the prefix.
    #[cfg_attr(not(test), unsafe(no_mangle))]
    pub unsafe extern "C" fn __libc_realloc(memory: *mut c_void, size: usize) -> *mut c_void {
        // SAFETY: this function's contract.
        unsafe { realloc(memory, size) }
    }

    /// `free`.
    ///
    /// # Safety
    /// As the function without the prefix.
    #[cfg_attr(not(test), unsafe(no_mangle))]
    pub unsafe extern "C" fn __libc_free(memory: *mut c_void) {
        // SAFETY: this function's contract.
        unsafe { free(memory) };
    }

    /// `memalign`.
    #[cfg_attr(not(test), unsafe(no_mangle))]
    pub extern "C" fn __libc_memalign(align: usize, size: usize) -> *mut c_void {
        memalign(align, size)
    }

    /// `valloc`.
    #[cfg_attr(not(test), unsafe(no_mangle))]
    pub extern "C" fn __libc_valloc(size: usize) -> *mut c_void {
        valloc(size)
    }

    /// `pvalloc`.
    #[cfg_attr(not(test), unsafe(no_mangle))]
    pub extern "C" fn __libc_pvalloc(size: usize) -> *mut c_void {
        pvalloc(size)
    }
}
