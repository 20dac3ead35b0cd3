//! The errors of C: `errno`, or the end of the program.

use core::ffi::c_int;
use core::fmt::{self, Write};
use core::ptr::null_mut;
use vmalloc::percpu::{self, RefError};
use vmalloc::{AllocError, Errno, ResizeError, VmapError};

/// Saves `errno` of the calling thread, and restores it when dropped. Checks CA2.
pub(crate) struct KeepErrno(c_int);

impl KeepErrno {
    pub(crate) fn new() -> Self {
        // SAFETY: the thread's own variable.
        Self(unsafe { *errno() })
    }

    /// Restores it, unless a call failed: then the error is for the caller.
    pub(crate) fn unless(self, failed: bool) {
        if failed {
            core::mem::forget(self);
        }
    }
}

impl Drop for KeepErrno {
    fn drop(&mut self) {
        set_errno(self.0);
    }
}

fn errno() -> *mut c_int {
    // SAFETY: returns an address, which is valid as long as the thread.
    unsafe { libc::__errno_location() }
}

fn set_errno(number: c_int) {
    // SAFETY: the thread's own variable.
    unsafe { *errno() = number };
}

/// Sets `errno`, and returns `NULL`.
pub(crate) fn null_with<T>(number: c_int) -> *mut T {
    set_errno(number);
    null_mut()
}

/// Sets `errno`, and returns -1.
pub(crate) fn minus_one_with(number: c_int) -> c_int {
    set_errno(number);
    -1
}

/// Returns the `errno` value of a failed allocation.
pub(crate) fn number_of(error: &AllocError) -> c_int {
    match error {
        AllocError::ZeroSize => libc::EINVAL,
        // The system's reason (a limit of mappings, of address space) makes no difference to a caller of malloc.
        _ => libc::ENOMEM,
    }
}

/// Returns the `errno` value of an error of mappings.
pub(crate) fn number_of_vmap(error: &VmapError) -> c_int {
    match error {
        VmapError::Nothing | VmapError::BadFrame { .. } => libc::EINVAL,
        VmapError::OtherProcess => libc::EPERM,
        // The program closed the memory file.
        VmapError::CallFailed { errno: Errno(libc::EBADF), .. } => libc::EBADF,
        _ => libc::ENOMEM,
    }
}

/// Returns the `errno` value of an error of per-CPU memory.
pub(crate) fn number_of_percpu(error: &percpu::Error) -> c_int {
    match error {
        percpu::Error::BadSize { .. } | percpu::Error::BadAlign { .. } => libc::EINVAL,
        _ => libc::ENOMEM,
    }
}

/// Returns the `errno` value of an error of reference counts.
pub(crate) fn number_of_ref(error: &RefError) -> c_int {
    match error {
        RefError::Dead => libc::EALREADY,
        RefError::NotZero { .. } => libc::EBUSY,
        RefError::NoBarrier => libc::EPERM,
        _ => libc::EINVAL,
    }
}

/// Reports a failed resize: `NULL` if there is no memory, the end of the program if there is no area.
pub(crate) fn not_resized<T>(what: &str, error: &ResizeError) -> *mut T {
    match error {
        ResizeError::Free(error) => bad_pointer(what, error),
        ResizeError::Alloc(error) => null_with(number_of(error)),
        _ => null_with(libc::ENOMEM),
    }
}

/// Reports an address at which no area begins, and ends the process.
#[cold]
pub(crate) fn bad_pointer(what: &str, error: &dyn fmt::Display) -> ! {
    stop(format_args!("{what}: bad pointer: {error}"))
}

/// Writes a line to stderr, and ends the process.
#[cold]
pub(crate) fn stop(what: fmt::Arguments<'_>) -> ! {
    // One write for the line, since other threads may write, too.
    let mut line = Line { text: [0; 200], len: 0 };
    let _cut_if_long = writeln!(line, "{what}");
    let stderr = libc::STDERR_FILENO;
    // By its number: the function is a cancellation point, which would end a cancelled thread before the abort.
    // SAFETY: reads as many bytes of `line` as were written.
    let _written = unsafe { libc::syscall(libc::SYS_write, stderr, line.text.as_ptr(), line.len) };
    // SAFETY: ends the process.
    unsafe { libc::abort() }
}

/// A line of text on the stack, truncated if it is too long.
struct Line {
    text: [u8; 200],
    len: usize,
}

impl fmt::Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let to = self.text.get_mut(self.len..).unwrap_or_default();
        let count = text.len().min(to.len());
        to[..count].copy_from_slice(&text.as_bytes()[..count]);
        self.len += count;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ca2_errno_is_restored_when_the_guard_is_dropped() {
        set_errno(libc::EBADF);
        let keep = KeepErrno::new();
        assert!(null_with::<u8>(libc::ENOMEM).is_null());
        // SAFETY: the thread's own variable.
        assert_eq!(unsafe { *errno() }, libc::ENOMEM);
        drop(keep);
        // SAFETY: as before.
        assert_eq!(unsafe { *errno() }, libc::EBADF);
    }

    #[test]
    fn a_line_that_is_too_long_is_cut() {
        let mut line = Line { text: [0; 200], len: 0 };
        for _ in 0..50 {
            write!(line, "0123456789").unwrap();
        }
        assert_eq!((line.len, &line.text[190..]), (200, &b"0123456789"[..]));
    }
}
