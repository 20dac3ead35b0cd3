//! Detects changes of memory mappings by the program, so that the next owner of the addresses does not inherit them.
//!
//! # Theory
//! The C library unmaps large memory when it is freed. That ends its access, locks, policies and behaviour at a fork,
//! and programs rely on that. So this library also defines the functions that change these. They notify the allocator,
//! which maps fresh pages over such an area at its free, and make the call. A change that affects neither contents nor
//! faults is not reported. Examples are advice for huge pages (NumPy uses it for each of its large arrays) and for
//! read-ahead. Another is access to read and write, which all areas have.
//!
//! Calls of `mprotect` and `madvise` by number are not detected, and the allocator makes its own calls so. The program
//! must undo mappings over an area (`mmap` with `MAP_FIXED`) and effects of `process_madvise` itself.
//! # Source
//! `man 2 mprotect`, `man 2 madvise`, `man 2 mlock`, `man 2 mbind`; kernel `include/uapi/asm-generic/mman-common.h`.

use crate::call::call;
use crate::large;
use crate::words::KeepErrno;
use core::ffi::{c_int, c_long, c_uint, c_void};

/// Advice that would harm the next owner.
const ADVICE: [c_int; 5] = [
    libc::MADV_DONTFORK,
    libc::MADV_WIPEONFORK,
    libc::MADV_DONTDUMP,
    libc::MADV_MERGEABLE,
    // `MADV_GUARD_INSTALL`
    102,
];

/// System calls whose numbers are checked in `syscall`. Each has an address and a number of bytes as its first
/// arguments.
const NUMBERS: [c_long; 6] = [
    libc::SYS_mbind,
    libc::SYS_mlock,
    libc::SYS_mlock2,
    libc::SYS_pkey_mprotect,
    // `set_mempolicy_home_node`, `mseal`
    450,
    462,
];

fn note(at: *const c_void, bytes: usize) {
    if let Some(memory) = large::get() {
        // Waiting for a lock of the hardened profile may set `errno`, and the following call may succeed.
        let _keep = KeepErrno::new();
        memory.renew_at_free(at.cast(), bytes);
    }
}

/// Notifies the allocator before a system call by its number.
pub(crate) fn note_number(number: c_long, at: c_long, bytes: c_long) {
    if NUMBERS.contains(&number) {
        note(core::ptr::without_provenance(at.cast_unsigned() as usize), bytes.cast_unsigned() as usize);
    }
}

/// Makes a system call with an address and a number of bytes.
///
/// # Safety
/// As the system call of that number.
unsafe fn change(number: c_long, at: *const c_void, bytes: usize, more: [c_int; 2]) -> c_int {
    let [more, most] = more.map(c_long::from);
    let (at, bytes) = (at.addr().cast_signed() as c_long, bytes.cast_signed() as c_long);
    // SAFETY: this function's contract.
    let answer = unsafe { call(number, [at, bytes, more, most, 0, 0]) };
    answer as c_int
}

/// `mprotect`.
///
/// # Safety
/// As the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn mprotect(at: *mut c_void, bytes: usize, access: c_int) -> c_int {
    if access != libc::PROT_READ | libc::PROT_WRITE {
        note(at, bytes);
    }
    // SAFETY: this function's contract.
    unsafe { change(libc::SYS_mprotect, at, bytes, [access, 0]) }
}

/// `pkey_mprotect`. Without a key it is `mprotect`, which also works on a kernel without keys.
///
/// # Safety
/// As the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn pkey_mprotect(at: *mut c_void, bytes: usize, access: c_int, key: c_int) -> c_int {
    if key == -1 {
        // SAFETY: this function's contract.
        return unsafe { mprotect(at, bytes, access) };
    }
    note(at, bytes);
    // SAFETY: as before.
    unsafe { change(libc::SYS_pkey_mprotect, at, bytes, [access, key]) }
}

/// `madvise`.
///
/// # Safety
/// As the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn madvise(at: *mut c_void, bytes: usize, advice: c_int) -> c_int {
    if ADVICE.contains(&advice) {
        note(at, bytes);
    }
    // SAFETY: this function's contract.
    unsafe { change(libc::SYS_madvise, at, bytes, [advice, 0]) }
}

/// `mlock`.
///
/// # Safety
/// As the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn mlock(at: *const c_void, bytes: usize) -> c_int {
    note(at, bytes);
    // SAFETY: this function's contract.
    unsafe { change(libc::SYS_mlock, at, bytes, [0, 0]) }
}

/// `mlock2`.
///
/// # Safety
/// As the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn mlock2(at: *const c_void, bytes: usize, flags: c_uint) -> c_int {
    note(at, bytes);
    // SAFETY: this function's contract.
    unsafe { change(libc::SYS_mlock2, at, bytes, [flags.cast_signed(), 0]) }
}
