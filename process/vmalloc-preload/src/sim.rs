//! The next `malloc` in place of the C library's, under Miri, which has no `dlsym(RTLD_NEXT)` and no
//! `malloc_usable_size`.
//!
//! A piece is one allocation of Miri's, so an access beyond it is an error. Its size and alignment are in front of it.

use core::alloc::Layout;
use core::ffi::{CStr, c_int, c_void};
use core::ptr::null_mut;
use std::alloc::{alloc_zeroed, dealloc};

/// The least alignment of a piece, and the bytes in front of it.
const HEAD_BYTES: usize = 16;

/// Returns a function by its name; null if it has none.
pub(crate) fn find(name: &CStr) -> *mut c_void {
    match name.to_bytes() {
        b"malloc" => malloc as extern "C" fn(_) -> _ as *mut c_void,
        b"calloc" => calloc as extern "C" fn(_, _) -> _ as *mut c_void,
        b"realloc" => realloc as unsafe extern "C" fn(_, _) -> _ as *mut c_void,
        b"free" => free as unsafe extern "C" fn(_) as *mut c_void,
        b"posix_memalign" => posix_memalign as unsafe extern "C" fn(_, _, _) -> _ as *mut c_void,
        b"aligned_alloc" | b"memalign" => memalign as extern "C" fn(_, _) -> _ as *mut c_void,
        b"malloc_usable_size" => malloc_usable_size as unsafe extern "C" fn(_) -> _ as *mut c_void,
        // As a C library that lacks the others.
        _ => null_mut(),
    }
}

/// Returns the bytes in front of a piece, and the layout of both.
fn layout(size: usize, align: usize) -> Option<(usize, Layout)> {
    let head = align.max(HEAD_BYTES);
    Layout::from_size_align(head.checked_add(size)?, head).ok().map(|layout| (head, layout))
}

extern "C" fn memalign(align: usize, size: usize) -> *mut c_void {
    let Some((head, layout)) = layout(size, align) else { return null_mut() };
    // SAFETY: a size that is not 0.
    let memory = unsafe { alloc_zeroed(layout) };
    if memory.is_null() {
        return null_mut();
    }
    let piece = memory.wrapping_add(head);
    // SAFETY: in front of the piece, and aligned.
    unsafe { piece.wrapping_sub(HEAD_BYTES).cast::<[usize; 2]>().write([size, align]) };
    piece.cast()
}

extern "C" fn malloc(size: usize) -> *mut c_void {
    memalign(1, size)
}

extern "C" fn calloc(count: usize, size: usize) -> *mut c_void {
    let Some(bytes) = count.checked_mul(size) else { return null_mut() };
    malloc(bytes)
}

/// # Safety
/// A piece that is not freed.
unsafe fn head(piece: *mut c_void) -> [usize; 2] {
    // SAFETY: written by `memalign`.
    unsafe { piece.cast::<u8>().wrapping_sub(HEAD_BYTES).cast::<[usize; 2]>().read() }
}

unsafe extern "C" fn malloc_usable_size(piece: *mut c_void) -> usize {
    if piece.is_null() {
        return 0;
    }
    // SAFETY: this function's contract.
    let [size, _] = unsafe { head(piece) };
    size
}

unsafe extern "C" fn free(piece: *mut c_void) {
    if piece.is_null() {
        return;
    }
    // SAFETY: this function's contract.
    let [size, align] = unsafe { head(piece) };
    if let Some((head, layout)) = layout(size, align) {
        // SAFETY: allocated by `memalign` with this layout.
        unsafe { dealloc(piece.cast::<u8>().wrapping_sub(head), layout) };
    }
}

unsafe extern "C" fn realloc(piece: *mut c_void, size: usize) -> *mut c_void {
    // As glibc's: a size of 0 frees.
    let to = if size == 0 && !piece.is_null() { null_mut() } else { malloc(size) };
    if to.is_null() && size > 0 {
        return to;
    }
    // SAFETY: this function's contract.
    let bytes = unsafe { malloc_usable_size(piece) }.min(size);
    if bytes > 0 {
        // SAFETY: both have that many bytes.
        unsafe { to.cast::<u8>().copy_from_nonoverlapping(piece.cast(), bytes) };
    }
    // SAFETY: this function's contract.
    unsafe { free(piece) };
    to
}

unsafe extern "C" fn posix_memalign(to: *mut *mut c_void, align: usize, size: usize) -> c_int {
    let piece = memalign(align, size);
    if piece.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: this function's contract.
    unsafe { to.write(piece) };
    0
}
