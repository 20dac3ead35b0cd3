//! The choice of system calls that may be made: all, or those that the C library's malloc makes,
//! too.
//!
//! # Theory
//! A program that confines itself by a filter of system calls lists those that it needs, and is
//! killed for any other. Its author has seen the calls of malloc: `mmap`, `munmap`, `mremap`,
//! `mprotect`, `madvise`, `futex`, `getrandom`. The calls that serve memory better are not among
//! them: `userfaultfd` with its `ioctl`, `mincore`, `process_madvise`, `membarrier`, and reading a
//! limit or a file. A caller that knows that a filter is about to be installed reports it before.
//! From then on each of these calls fails, as on a kernel that lacks it.
//!
//! The flag is the process's, and is never taken back: no filter is.

use core::sync::atomic::{AtomicBool, Ordering};

static PLAIN: AtomicBool = AtomicBool::new(false);

/// Makes only the calls of the system that the C library's malloc makes, from now on, in all allocators of the process.
/// Areas that grow are copied more often then, and zeros are written where a look might have shown that they are there.
/// No thread is started any more. O(1), no lock; may be called in a handler of a signal.
pub fn plain_calls_only() {
    PLAIN.store(true, Ordering::Relaxed);
}

/// Tells whether only those calls are made.
#[inline(always)]
pub fn is_plain() -> bool {
    PLAIN.load(Ordering::Relaxed)
}
