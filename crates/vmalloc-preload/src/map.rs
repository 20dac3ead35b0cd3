//! Mappings and threads that the program asks for where limits count addresses: what the arena has cached is released
//! for them.
//!
//! # Theory
//! Under `RLIMIT_AS` the C library's `free` of large memory makes room for the next `mmap`. Here such memory stays
//! mapped for the next allocation. So these functions are here as well. Where the system has no room, they release what
//! nobody uses, and ask again; else they only make the call. The stack of a thread is mapped inside the C library.
//!
//! The allocator maps by the number of the call, and is not served here.
//! # Source
//! `man 2 mmap`, `man 3 pthread_create`.

use crate::filter::call;
use crate::large;
use crate::next::{Next, Start};
use crate::words::{KeepErrno, is_errno};
use core::ffi::{c_int, c_long, c_void};

/// Bytes of a stack of a thread that asks for no other, about: no limit below it is worth a release.
const STACK_BYTES: usize = 1 << 20;

/// `mmap`.
///
/// # Safety
/// As the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn mmap(
    at: *mut c_void,
    bytes: usize,
    access: c_int,
    flags: c_int,
    file: c_int,
    offset: libc::off_t,
) -> *mut c_void {
    let (address, size) = (at.addr().cast_signed() as c_long, bytes.cast_signed() as c_long);
    let words = [address, size, access.into(), flags.into(), file.into(), offset as c_long];
    let keep = KeepErrno::new();
    // SAFETY: this function's contract.
    let ask = || unsafe { call(libc::SYS_mmap, words) };
    let mapped = large::ask_again(bytes, ask, |&answer| answer == -1 && is_errno(libc::ENOMEM));
    if mapped == -1 {
        core::mem::forget(keep);
    }
    core::ptr::with_exposed_provenance_mut(mapped.cast_unsigned() as usize)
}

/// `mmap64`, the same on processors of 64 bits.
///
/// # Safety
/// As the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn mmap64(
    at: *mut c_void,
    bytes: usize,
    access: c_int,
    flags: c_int,
    file: c_int,
    offset: libc::off64_t,
) -> *mut c_void {
    // SAFETY: this function's contract.
    unsafe { mmap(at, bytes, access, flags, file, offset) }
}

/// `pthread_create`.
///
/// # Safety
/// As the C library's.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    start: Start,
    argument: *mut c_void,
) -> c_int {
    let Some(next) = Next::get() else { return libc::EAGAIN };
    // SAFETY: this function's contract.
    let ask = || unsafe { next.pthread_create(thread, attributes, start, argument) };
    large::ask_again(STACK_BYTES, ask, |&answer| answer == libc::EAGAIN)
}
