//! Advice to the kernel: to release pages, to make them fault, or to use huge pages.
//!
//! # Theory
//! `process_madvise` releases many runs under one flush. It accepts the calling process from Linux 6.13 on, which is
//! named by a constant from 6.14 on and by a descriptor before. After a failure (an older kernel, a seccomp profile),
//! runs are released one by one. Locked memory is released by another advice.
//!
//! A guard is a page table entry, not a mapping: guards do not split a mapping. A test on a page of our own finds once
//! whether the kernel has them.
//! # Source
//! `man 2 process_madvise`, `man 2 madvise`.

use super::linux::{Linux, errno, madvise, mmap, pointer, process_id};
use super::plain::{is_plain, unless_plain};
use super::{Errno, Huge, Span};
use core::ffi::{c_int, c_long};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// Names this process to `process_madvise` (`PIDFD_SELF_THREAD`), from Linux 6.14 on.
const PIDFD_SELF: c_int = -10_000;
/// Drops pages of locked memory too (`MADV_DONTNEED_LOCKED`), from Linux 5.18 on.
const DONTNEED_LOCKED: c_int = 24;
/// `MADV_GUARD_INSTALL` and `MADV_GUARD_REMOVE`, from Linux 6.13 on.
const GUARD_INSTALL: c_int = 102;
const GUARD_REMOVE: c_int = 103;
/// Spans in one call.
const BATCH: usize = 64;
/// The process is named by a constant.
const BY_NAME: u8 = 0;
/// It is named by a descriptor, opened for each batch. None is kept open: a fork or a `close` by the program would
/// invalidate it.
const BY_DESCRIPTOR: u8 = 1;
const ONE_BY_ONE: u8 = 2;

const UNKNOWN: u8 = 0;
const YES: u8 = 1;
const NO: u8 = 2;

/// The kinds of advice that the kernel supports. Protocol PR-ONCE.
#[derive(Debug)]
pub(super) struct Advisor {
    // Atomic, hint only.
    /// The method that releases many spans: one of `BY_NAME`, `BY_DESCRIPTOR`, `ONE_BY_ONE`.
    batches: AtomicU8,
    /// Support for guards (pages that fault): one of `UNKNOWN`, `YES`, `NO`.
    guards: AtomicU8,
    /// True if the kernel did not hide pages from a child (before Linux 4.14).
    inherits: AtomicBool,
}

impl Advisor {
    pub(super) const fn new() -> Self {
        Self {
            batches: AtomicU8::new(BY_NAME),
            guards: AtomicU8::new(UNKNOWN),
            inherits: AtomicBool::new(false),
        }
    }

    /// Releases the pages of spans. An error has the number of spans that were released before it.
    ///
    /// # Safety
    /// They are mapped, and no reference to them exists.
    pub(super) unsafe fn discard(&self, spans: &[Span]) -> Result<(), (usize, Errno)> {
        let next = self.discard_batches(spans);
        let mut rest = spans.iter().enumerate().skip(next);
        rest.try_for_each(|(at, &span)| discard_one(span).map_err(|error| (at, error)))
    }

    /// Returns true if pages can be hidden from a child, as far as is known.
    pub(super) fn can_disinherit(&self) -> bool {
        !self.inherits.load(Ordering::Relaxed) && !is_plain()
    }

    /// Advises whether a child of a fork inherits the pages of a span or reads zeros.
    ///
    /// # Safety
    /// As [`discard`](Self::discard).
    pub(super) unsafe fn inherit(&self, span: Span, inherited: bool) -> Result<(), Errno> {
        let advice = if inherited { libc::MADV_KEEPONFORK } else { libc::MADV_WIPEONFORK };
        // SAFETY: the caller owns the span exclusively.
        let advised = unsafe { madvise(span, advice) };
        if advised == Err(Errno(libc::EINVAL)) {
            self.inherits.store(true, Ordering::Relaxed);
        }
        advised
    }

    /// Makes accesses to a span fault.
    ///
    /// # Safety
    /// As [`discard`](Self::discard).
    pub(super) unsafe fn guard(&self, span: Span) -> Result<(), Errno> {
        if !self.can_guard() {
            return Err(Errno(libc::ENOSYS));
        }
        // SAFETY: the caller owns the span exclusively.
        unsafe { madvise(span, GUARD_INSTALL) }
    }

    /// Makes the span usable again.
    ///
    /// # Safety
    /// As [`discard`](Self::discard).
    pub(super) unsafe fn unguard(&self, span: Span) -> Result<(), Errno> {
        // SAFETY: the caller owns the span exclusively.
        unsafe { madvise(span, GUARD_REMOVE) }
    }

    pub(super) fn can_guard(&self) -> bool {
        match self.guards.load(Ordering::Relaxed) {
            UNKNOWN => self.ask_for_guards(),
            known => known == YES,
        }
    }

    /// Returns how many spans one call releases, as far as is known.
    pub(super) fn batch(&self) -> usize {
        if self.batches.load(Ordering::Relaxed) >= ONE_BY_ONE { 1 } else { BATCH }
    }

    /// Advises whether a span is to have huge pages.
    ///
    /// # Safety
    /// The caller has reserved it.
    pub(super) unsafe fn advise(span: Span, huge: Huge) -> Result<(), Errno> {
        let advice = match huge {
            Huge::Yes => libc::MADV_HUGEPAGE,
            Huge::No => libc::MADV_NOHUGEPAGE,
        };
        // SAFETY: the caller's reservation, of which no byte changes.
        unsafe { madvise(span, advice) }
    }

    /// Releases the first spans, up to a batch. Returns the number of bytes. `how` is one of the methods of `batches`.
    fn discard_batch(spans: &[Span], how: u8) -> Result<usize, Errno> {
        let mut list = [libc::iovec { iov_base: null_mut(), iov_len: 0 }; BATCH];
        for (to, span) in list.iter_mut().zip(spans) {
            *to = libc::iovec { iov_base: pointer(span.at), iov_len: span.bytes };
        }
        let process = if how == BY_NAME { PIDFD_SELF } else { open_self()? };
        let count = spans.len().min(BATCH);
        // SAFETY: `list` has `count` spans, which `discard`'s caller owns exclusively.
        let done = unsafe {
            libc::syscall(
                libc::SYS_process_madvise,
                c_long::from(process),
                list.as_ptr(),
                count,
                c_long::from(libc::MADV_DONTNEED),
                0 as c_long,
            )
        };
        let done = usize::try_from(done).map_err(|_| errno());
        if how != BY_NAME {
            super::uffd::close(process);
        }
        done
    }

    /// Releases spans by as few calls as the kernel supports. Returns the number of spans released. The caller releases
    /// the next one by a call of its own.
    fn discard_batches(&self, spans: &[Span]) -> usize {
        let mut next = 0;
        while spans.len() - next > 1 {
            let how = self.batches.load(Ordering::Relaxed);
            if how >= ONE_BY_ONE {
                break;
            }
            let batch = &spans[next..spans.len().min(next + BATCH)];
            let Some(discarded) = unless_plain(|| Self::discard_batch(batch, how)) else { break };
            match discarded {
                Ok(mut bytes) => {
                    let whole = batch.iter().take_while(|span| {
                        let fits = bytes >= span.bytes;
                        bytes = bytes.saturating_sub(span.bytes);
                        fits
                    });
                    let whole = whole.count();
                    next += whole;
                    if whole < batch.len() {
                        break;
                    }
                }
                // The first span is locked or not mapped, or this kernel does not support the advice by this call. A
                // call for the first span alone distinguishes the two.
                Err(error)
                    if matches!(error.0, libc::EINVAL | libc::ENOMEM)
                        && discard_one(spans[next]).is_err() =>
                {
                    break;
                }
                // A shortage of descriptors is temporary.
                Err(error) if matches!(error.0, libc::EMFILE | libc::ENFILE) => break,
                Err(_) => {
                    let next_way = if how == BY_NAME { BY_DESCRIPTOR } else { ONE_BY_ONE };
                    self.batches.fetch_max(next_way, Ordering::Relaxed);
                }
            }
        }
        next
    }

    /// Tests on a page of our own whether the kernel can make pages fault.
    #[cold]
    fn ask_for_guards(&self) -> bool {
        let bytes = crate::PAGE_BYTES;
        let Ok(at) = mmap(0, bytes, libc::PROT_READ | libc::PROT_WRITE, 0) else { return false };
        // SAFETY: mapped just above.
        let guarded = unsafe { madvise(Span { at, bytes }, GUARD_INSTALL) }.is_ok();
        // SAFETY: as before.
        let _gone = unsafe { libc::munmap(pointer(at), bytes) };
        self.guards.store(if guarded { YES } else { NO }, Ordering::Relaxed);
        guarded
    }
}

impl Linux {
    /// Returns the most runs of pages that one call releases, as far as is known.
    pub fn discard_batch(&self) -> usize {
        self.advisor.batch()
    }
}

/// Opens a descriptor of this process.
fn open_self() -> Result<c_int, Errno> {
    let me = process_id() as c_long;
    // SAFETY: makes a descriptor, which an `exec` closes.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, me, 0 as c_long) };
    c_int::try_from(fd).ok().filter(|&fd| fd >= 0).ok_or_else(errno)
}

/// Releases a span, locked or not. The caller owns it exclusively.
pub(super) fn discard_one(span: Span) -> Result<(), Errno> {
    // SAFETY: this function's contract; the pages become zeros.
    let gone = unsafe { madvise(span, libc::MADV_DONTNEED) };
    if gone != Err(Errno(libc::EINVAL)) {
        return gone;
    }
    // SAFETY: as before. A kernel without this advice returns the same error as for the first call.
    unsafe { madvise(span, DONTNEED_LOCKED) }
}

#[cfg(test)]
mod tests {
    use super::super::Os;
    use super::*;
    use core::ptr::with_exposed_provenance_mut;

    #[test]
    fn many_spans_are_released_with_the_batch_call_and_without() {
        let linux = Linux::new();
        let page = crate::PAGE_BYTES;
        let base = linux.map(400 * page).unwrap();
        for batches in [BY_NAME, BY_DESCRIPTOR, ONE_BY_ONE] {
            linux.advisor.batches.store(batches, Ordering::Relaxed);
            let place = |n: usize| with_exposed_provenance_mut::<u8>(base + n * page + 17);
            for n in 0..400 {
                // SAFETY: the mapping made above.
                unsafe { place(n).write(7) };
            }
            // Every other page, in more spans than one call takes.
            let spans: Vec<_> = (0..150).map(|n| Span { at: base + 2 * n * page, bytes: page }).collect();
            // SAFETY: the same.
            assert_eq!(unsafe { linux.discard(&spans) }, Ok(()));
            for n in 0..400 {
                let want = if n < 300 && n % 2 == 0 { 0 } else { 7 };
                // SAFETY: the same.
                assert_eq!(unsafe { place(n).read() }, want, "page {n}, batches {batches}");
            }
        }
        // A span that is not mapped is reported, whichever method released the others.
        for batches in [BY_NAME, BY_DESCRIPTOR, ONE_BY_ONE] {
            linux.advisor.batches.store(batches, Ordering::Relaxed);
            // Below all that the kernel maps of itself, for other threads too.
            let unmapped = page;
            let spans = [base, base + page, unmapped, base + 2 * page].map(|at| Span { at, bytes: page });
            // SAFETY: nothing is mapped at the span that is not ours.
            assert_eq!(unsafe { linux.discard(&spans) }, Err((2, Errno::NOMEM)), "batches {batches}");
        }
        // SAFETY: no reference to it exists any more.
        unsafe { linux.unmap(Span { at: base, bytes: 400 * page }) };
    }

    #[test]
    fn a_guarded_page_faults_where_the_kernel_has_guards_and_the_mapping_stays_one() {
        let linux = Linux::new();
        let page = crate::PAGE_BYTES;
        let base = linux.map(8 * page).unwrap();
        let place = |n: usize| with_exposed_provenance_mut::<u8>(base + n * page);
        // SAFETY: the mapping made above.
        (0..8).for_each(|n| unsafe { place(n).write(3) });
        // SAFETY: as before, and no reference to it exists.
        let guarded = unsafe { linux.guard(Span { at: base + 2 * page, bytes: page }) };
        assert_eq!(guarded.is_ok(), linux.can_guard());
        // The kernel reads the byte, so that a fault becomes an error.
        let readable = |n: usize| {
            let mut ends = [0; 2];
            // SAFETY: two descriptors.
            assert_eq!(unsafe { libc::pipe(ends.as_mut_ptr()) }, 0);
            // SAFETY: the mapping made above.
            let wrote = unsafe { libc::write(ends[1], place(n).cast(), 1) };
            for end in ends {
                // SAFETY: made above.
                unsafe { libc::close(end) };
            }
            wrote == 1
        };
        let seen: Vec<_> = (0..8).map(readable).collect();
        let want: Vec<_> = (0..8).map(|n| n != 2 || guarded.is_err()).collect();
        assert_eq!(seen, want);
        if guarded.is_ok() {
            // SAFETY: as before.
            unsafe { linux.unguard(Span { at: base, bytes: 8 * page }) }.unwrap();
            // SAFETY: as before.
            let bytes = [1, 2, 3].map(|n| unsafe { place(n).read() });
            assert_eq!(bytes, [3, 0, 3]);
        } else {
            eprintln!("this kernel has no guards: their absence was tested");
        }
        // SAFETY: no reference to it exists any more.
        unsafe { linux.unmap(Span { at: base, bytes: 8 * page }) };
    }

    #[test]
    fn locked_memory_is_released_too() {
        let linux = Linux::new();
        let page = crate::PAGE_BYTES;
        let base = linux.map(8 * page).unwrap();
        // SAFETY: the mapping made above.
        if unsafe { libc::mlock(pointer(base), 4 * page) } != 0 {
            eprintln!("nothing may be locked here: nothing was tested");
            return;
        }
        let spans = [0, 2, 5].map(|n| Span { at: base + n * page, bytes: page });
        for batches in [BY_NAME, BY_DESCRIPTOR, ONE_BY_ONE] {
            linux.advisor.batches.store(batches, Ordering::Relaxed);
            let place = |n: usize| with_exposed_provenance_mut::<u8>(base + n * page);
            // SAFETY: the mapping made above.
            (0..8).for_each(|n| unsafe { place(n).write(3) });
            // SAFETY: as before.
            assert_eq!(unsafe { linux.discard(&spans) }, Ok(()));
            // SAFETY: as before.
            let bytes = [0, 1, 2, 3, 4, 5, 6, 7].map(|n| unsafe { place(n).read() });
            assert_eq!(bytes, [0, 3, 0, 3, 3, 0, 3, 3], "{batches}");
        }
        // SAFETY: no reference to it exists any more.
        unsafe { linux.unmap(Span { at: base, bytes: 8 * page }) };
    }

    #[test]
    fn a_frontier_of_one_advice_is_one_mapping() {
        let linux = Linux::new();
        let base = linux.reserve(16 << 20).unwrap();
        let span = Span { at: base, bytes: 16 << 20 };
        for huge in [Huge::Yes, Huge::No] {
            // SAFETY: reserved above.
            let advised = unsafe { linux.advise(span, huge) };
            // A kernel without huge pages returns an error.
            assert!(matches!(advised, Ok(()) | Err(Errno(libc::EINVAL))), "{advised:?}");
        }
        // SAFETY: no reference to it exists.
        unsafe { linux.unmap(span) };
    }
}
