//! Reports to callers and users: `errno`, and lines on stderr without an allocation.
//!
//! Files are opened, read, written and closed by the numbers of these calls: the C library's functions are cancellation
//! points, and neither an allocation nor an abort may be one.

use core::ffi::c_int;
use core::fmt;

fn errno() -> *mut c_int {
    // SAFETY: returns an address, which is valid as long as the thread.
    unsafe { libc::__errno_location() }
}

/// Sets the calling thread's `errno`.
pub(crate) fn set_errno(number: c_int) {
    // SAFETY: the thread's own variable.
    unsafe { *errno() = number };
}

/// Returns true if the calling thread's `errno` is that number.
pub(crate) fn is_errno(number: c_int) -> bool {
    // SAFETY: the thread's own variable.
    unsafe { *errno() == number }
}

/// Saves `errno`, and restores it when dropped. Checks LP3.
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

/// A file to which lines are written.
#[derive(Clone, Copy)]
pub(crate) struct Errors(c_int);

/// The identity of a descriptor's file: device and inode number.
pub(crate) type Identity = (libc::dev_t, libc::ino_t);

impl Errors {
    /// The stderr of the process.
    pub(crate) const STDERR: Self = Self(libc::STDERR_FILENO);
    /// The least descriptor for a copy, above those that programs usually use.
    const ASIDE_MIN: c_int = 500;

    /// Returns a copy of stderr, for the time after a program has closed it: many do before they end.
    pub(crate) fn aside() -> (Self, Option<Identity>) {
        let _keep = KeepErrno::new();
        // SAFETY: duplicates a descriptor.
        let aside = unsafe { libc::fcntl(libc::STDERR_FILENO, libc::F_DUPFD_CLOEXEC, Self::ASIDE_MIN) };
        let aside = if aside < 0 { Self::STDERR } else { Self(aside) };
        (aside, aside.identity())
    }

    /// Opens an existing file to append to it.
    pub(crate) fn append_to(name: &core::ffi::CStr) -> Option<Self> {
        let _keep = KeepErrno::new();
        let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_CLOEXEC | libc::O_NOFOLLOW | libc::O_NONBLOCK;
        open(name, flags)
    }

    /// Reads the beginning of a file, as much as `to` has room for. Returns no bytes if it cannot be read.
    pub(crate) fn read_from<'t>(name: &core::ffi::CStr, to: &'t mut [u8]) -> &'t [u8] {
        let _keep = KeepErrno::new();
        let Some(file) = open(name, libc::O_RDONLY | libc::O_CLOEXEC) else { return &[] };
        // SAFETY: writes at most as many bytes as `to` has.
        let read = unsafe { libc::syscall(libc::SYS_read, file.0, to.as_mut_ptr(), to.len()) };
        file.close();
        to.get(..usize::try_from(read).unwrap_or(0)).unwrap_or_default()
    }

    /// Closes a file that [`append_to`](Self::append_to) opened.
    pub(crate) fn close(self) {
        let _keep = KeepErrno::new();
        // SAFETY: opened there, and not used elsewhere.
        let _closed = unsafe { libc::syscall(libc::SYS_close, self.0) };
    }

    /// Returns the identity of its file: a program that closes all descriptors may have opened
    /// another file since.
    pub(crate) fn identity(self) -> Option<Identity> {
        let _keep = KeepErrno::new();
        let mut stat = core::mem::MaybeUninit::<libc::stat>::zeroed();
        // SAFETY: writes a `stat`.
        let known = unsafe { libc::fstat(self.0, stat.as_mut_ptr()) } == 0;
        // SAFETY: all fields are numbers, for which any bits are valid.
        let stat = unsafe { stat.assume_init() };
        known.then_some((stat.st_dev, stat.st_ino))
    }
}

/// Opens a file.
fn open(name: &core::ffi::CStr, flags: c_int) -> Option<Errors> {
    // SAFETY: a name that ends with 0.
    let file = unsafe { libc::syscall(libc::SYS_openat, libc::AT_FDCWD, name.as_ptr(), flags) };
    c_int::try_from(file).ok().filter(|&file| file >= 0).map(Errors)
}

/// Writes `vmalloc: ` and a line to stderr in one call, since other threads may write, too.
#[cold]
pub(crate) fn say(what: fmt::Arguments<'_>) {
    say_to(Errors::STDERR, what);
}

/// Writes `vmalloc: ` and a line to another file in one call.
#[cold]
pub(crate) fn say_to(to: Errors, what: fmt::Arguments<'_>) {
    let _keep = KeepErrno::new();
    let mut line = Line::new();
    let _cut_if_long = fmt::write(&mut line, format_args!("vmalloc: {what}"));
    let text = line.ended();
    // SAFETY: reads `text`.
    let _written = unsafe { libc::syscall(libc::SYS_write, to.0, text.as_ptr(), text.len()) };
}

/// Reports an error that cannot be returned to a C caller, and ends the process.
#[cold]
pub(crate) fn stop(what: fmt::Arguments<'_>) -> ! {
    say(what);
    // SAFETY: ends the process.
    unsafe { libc::abort() }
}

/// A line of text, truncated if it is too long.
struct Line {
    text: [u8; 400],
    len: usize,
}

impl Line {
    fn new() -> Self {
        Self { text: [0; 400], len: 0 }
    }

    fn ended(&mut self) -> &[u8] {
        let end = self.len.min(self.text.len() - 1);
        self.text[end] = b'\n';
        &self.text[..=end]
    }
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
    use fmt::Write;

    #[test]
    fn a_line_ends_even_if_it_was_cut() {
        let mut line = Line::new();
        write!(line, "short").unwrap();
        assert_eq!(line.ended(), b"short\n");
        let mut line = Line::new();
        for _ in 0..100 {
            write!(line, "0123456789").unwrap();
        }
        assert_eq!((line.ended().len(), line.ended()[399]), (400, b'\n'));
    }

    #[test]
    fn lp3_errno_is_restored_when_the_guard_is_dropped() {
        set_errno(libc::EBADF);
        let keep = KeepErrno::new();
        set_errno(libc::ENOMEM);
        drop(keep);
        assert_eq!(KeepErrno::new().0, libc::EBADF);
    }
}
