//! Detects that the program is about to install a filter of system calls: from then on only plain calls are made.
//!
//! # Theory
//! A filter that kills lists the calls that its author observed. The C library has three methods to install one:
//! `prctl`, `syscall` with the number of `seccomp`, and `syscall` with that of `prctl`. This library also defines both
//! functions. They check the arguments and make the call themselves, with the maximal number of arguments, since the
//! actual number is unknown. A filter that a program installs by its own assembly is not detected: it needs
//! `calls:plain` in `VMALLOC_CONF`.
//!
//! A filter can be for all threads (`SECCOMP_FILTER_FLAG_TSYNC`). So the functions first wait until no thread makes a
//! call that is not plain, for about a second at most (`vmalloc::plain_calls_only`).
//!
//! The functions have a fixed number of arguments where C's are variadic: these CPUs' calling conventions pass both
//! alike.
//! # Source
//! `man 2 seccomp`, `man 2 prctl`, `man 2 syscall` for the registers.

use crate::call::call;
use crate::words::{KeepErrno, is_errno};
use core::ffi::{c_int, c_long, c_ulong};
use core::ptr::{with_exposed_provenance, with_exposed_provenance_mut};

/// Operations of `seccomp` that install a filter: strict mode, and a program.
const INSTALLS: core::ops::RangeInclusive<c_long> = 0..=1;

/// Prepares for a filter, which may be for all threads: waits until none of them makes another call than it allows.
#[cold]
fn prepare() {
    let _keep = KeepErrno::new();
    vmalloc::plain_calls_only();
}

/// `syscall`.
///
/// # Safety
/// As the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn syscall(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    if number == libc::SYS_seccomp && INSTALLS.contains(&a)
        || number == libc::SYS_prctl && a == c_long::from(libc::PR_SET_SECCOMP)
    {
        prepare();
    }
    let at = |word: c_long| word.cast_unsigned() as usize;
    if number == libc::SYS_prlimit64 {
        let (limit, old) = (with_exposed_provenance(at(c)), with_exposed_provenance_mut(at(d)));
        // SAFETY: this function's contract.
        return unsafe { prlimit(a as libc::pid_t, b as c_int, limit, old) }.into();
    }
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    if number == libc::SYS_setrlimit {
        // SAFETY: as before.
        return unsafe { setrlimit(a as c_int, with_exposed_provenance(at(b))) }.into();
    }
    crate::change::note_number(number, a, b);
    // SAFETY: this function's contract.
    unsafe { call(number, [a, b, c, d, e, f]) }
}

/// `setrlimit`: the arena's addresses would use up a limit of addresses.
///
/// # Safety
/// As the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn setrlimit(resource: c_int, limit: *const libc::rlimit) -> c_int {
    // SAFETY: this function's contract.
    unsafe { prlimit(0, resource, limit, core::ptr::null_mut()) }
}

/// `prlimit`.
///
/// # Safety
/// As the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
#[inline(never)]
pub unsafe extern "C" fn prlimit(
    process: libc::pid_t,
    resource: c_int,
    limit: *const libc::rlimit,
    old: *mut libc::rlimit,
) -> c_int {
    let (to, old) = (limit.addr().cast_signed() as c_long, old.addr().cast_signed() as c_long);
    let words = [process.into(), resource.into(), to, old, 0, 0];
    let noted = if limit.is_null() { None } else { crate::large::note_limit(resource) };
    // SAFETY: this function's contract.
    let answer = unsafe { call(libc::SYS_prlimit64, words) };
    // After the call, in which the system checked the pointers, so that this code need not read through them.
    // SAFETY: returns a number.
    let is_own = || process == 0 || process == unsafe { libc::getpid() };
    // A child of vfork limits itself, not the parent, whose memory it uses.
    if let Some(noted) = noted.filter(|_| answer == 0 && is_own() && !vmalloc::is_guest()) {
        crate::large::limit_changed(noted);
    }
    answer as c_int
}

/// `setrlimit64`, the same on 64-bit CPUs.
///
/// # Safety
/// As the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn setrlimit64(resource: c_int, limit: *const libc::rlimit) -> c_int {
    // SAFETY: this function's contract.
    unsafe { prlimit(0, resource, limit, core::ptr::null_mut()) }
}

/// `prlimit64`.
///
/// # Safety
/// As the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn prlimit64(
    process: libc::pid_t,
    resource: c_int,
    limit: *const libc::rlimit,
    old: *mut libc::rlimit,
) -> c_int {
    // SAFETY: this function's contract.
    unsafe { prlimit(process, resource, limit, old) }
}

/// `mlockall`: if locked memory is limited, the system counts all addresses of the process. Without a limit the arena
/// is unchanged.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub extern "C" fn mlockall(flags: c_int) -> c_int {
    // SAFETY: the call changes no contents of memory.
    let lock = || unsafe { call(libc::SYS_mlockall, [flags.into(), 0, 0, 0, 0, 0]) };
    let keep = KeepErrno::new();
    let mut answer = lock();
    for _ in 0..crate::large::RELEASES {
        if answer >= 0 || !is_errno(libc::ENOMEM) || !crate::large::release_addresses() {
            break;
        }
        answer = lock();
    }
    keep.unless(answer < 0);
    answer as c_int
}

/// `prctl`.
///
/// # Safety
/// As the C library's function.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C" fn prctl(what: c_int, a: c_ulong, b: c_ulong, c: c_ulong, d: c_ulong) -> c_int {
    if what == libc::PR_SET_SECCOMP {
        prepare();
    }
    let [a, b, c, d] = [a, b, c, d].map(c_ulong::cast_signed);
    // SAFETY: this function's contract.
    let answer = unsafe { call(libc::SYS_prctl, [c_long::from(what), a, b, c, d, 0]) };
    answer as c_int
}
