//! System calls, made without the C library's function for them, which this library replaces.

use crate::words::set_errno;
use core::ffi::{c_int, c_long};

/// Makes a system call, with the results of the C library's `syscall`.
///
/// # Safety
/// As the system call of that number.
#[inline(always)]
pub(crate) unsafe fn call(number: c_long, [a, b, c, d, e, f]: [c_long; 6]) -> c_long {
    let answer: c_long;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: this function's contract.
    unsafe {
        core::arch::asm!("syscall", inlateout("rax") number => answer, in("rdi") a, in("rsi") b, in("rdx") c,
            in("r10") d, in("r8") e, in("r9") f, lateout("rcx") _, lateout("r11") _);
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as before.
    unsafe {
        core::arch::asm!("svc 0", in("x8") number, inlateout("x0") a => answer, in("x1") b, in("x2") c,
            in("x3") d, in("x4") e, in("x5") f);
    }
    if (-4095..0).contains(&answer) {
        set_errno(-answer as c_int);
        return -1;
    }
    answer
}
