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
//! The flag is the process's, and is never cleared, since no filter can be removed.
//!
//! A filter can be installed for all threads at once (`SECCOMP_FILTER_FLAG_TSYNC`). A thread that saw the flag clear
//! must have made its call before that. So such calls are counted while they are in progress, and setting the flag
//! waits for them. The wait is bounded, since a call may be of a thread that is stopped. It may also be of the waiting
//! thread itself, if a handler of a signal installs the filter. `clock_gettime` and `sched_getcpu` are not counted:
//! they read memory wherever libc has an rseq area, or the kernel a page of code.

use super::word::Word;
use core::sync::atomic::{AtomicU32, Ordering};

/// 1 once other calls are not allowed any more. Protocol PR-PLAIN.
static PLAIN: AtomicU32 = AtomicU32::new(0);
/// Calls in progress that are not plain. Protocol PR-PLAIN.
static CALLS: AtomicU32 = AtomicU32::new(0);

/// The number of times that [`plain_calls_only`] waits for calls in progress, and the time of each.
const PATIENCE: u32 = 1000;
const PATIENCE_NANOS: u64 = 1_000_000;

/// Makes only the calls of the system that the C library's malloc makes, from now on, in all allocators of the process.
/// Areas that grow are copied more often then, and zeros are written where a look might have shown that they are there.
/// No thread is started any more, and nothing is read by `vread`. Two uses need other calls all the same: mappings of
/// chosen pages, and the first space of per-CPU memory, which counts the CPUs.
///
/// Returns when no other call is in progress in any thread, so that a filter for all threads may follow. Waits for
/// about a second at most: a handler of a signal may have interrupted such a call, which may end the process after the
/// filter. Changes `errno`. O(1), no lock; may be called in a handler of a signal.
pub fn plain_calls_only() {
    forbid(&PLAIN, &CALLS);
}

/// Forbids calls that are not plain, and waits for those in progress.
pub(crate) fn forbid(plain: &impl Word, calls: &impl Word) {
    // SeqCst pairs with `begin`, which sees the flag, or whose call is counted below.
    plain.store(1, Ordering::SeqCst);
    for _ in 0..PATIENCE {
        let count = calls.load(Ordering::SeqCst);
        if count == 0 {
            return;
        }
        calls.wait(count, PATIENCE_NANOS);
    }
}

/// Counts a call that is not plain. If such calls are forbidden it returns `false`, and the caller makes none.
pub(crate) fn begin(plain: &impl Word, calls: &impl Word) -> bool {
    // SeqCst pairs with `forbid`.
    calls.add(1, Ordering::SeqCst);
    plain.load(Ordering::SeqCst) == 0
}

/// Counts the end of a call.
pub(crate) fn end(calls: &impl Word) {
    // Not below 0: a call that a handler interrupted, and forked in, is not counted in the child.
    let mut count = calls.load(Ordering::Relaxed);
    // Release: the call has been made.
    while count > 0 && !calls.replace(count, count - 1, Ordering::Release) {
        count = calls.load(Ordering::Relaxed);
    }
}

/// Returns true if only those calls are made. For decisions: other calls are made in [`unless_plain`].
#[inline(always)]
pub fn is_plain() -> bool {
    PLAIN.load(Ordering::Relaxed) != 0
}

/// Makes other calls of the system than those, unless they are not allowed any more: then `None`.
/// [`plain_calls_only`] waits until they end. O(1), no lock.
pub fn unless_plain<T>(calls: impl FnOnce() -> T) -> Option<T> {
    let _until_it_ends = InProgress::begin()?;
    Some(calls())
}

/// A call that is counted, or the start of a thread: that thread makes calls before its first function.
pub(super) struct InProgress;

impl InProgress {
    /// Counts a call, unless it is not allowed any more.
    #[inline(never)]
    pub(super) fn begin() -> Option<Self> {
        if is_plain() {
            return None;
        }
        let allowed = begin(&PLAIN, &CALLS);
        let counted = Self;
        allowed.then_some(counted)
    }
}

impl Drop for InProgress {
    #[inline(never)]
    fn drop(&mut self) {
        end(&CALLS);
    }
}

/// Forgets the calls of other threads, which a child of a fork does not have.
pub(crate) fn forget_calls() {
    CALLS.store(0, Ordering::Relaxed);
}

/// Returns the number of calls in progress.
#[cfg(test)]
pub(super) fn calls_in_progress() -> u32 {
    CALLS.load(Ordering::Relaxed)
}
