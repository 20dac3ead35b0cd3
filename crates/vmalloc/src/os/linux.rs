//! Linux: system calls through libc, the CPU number from the area that libc registered for restartable sequences.
//!
//! # Theory
//! The kernel writes the number of the CPU into a thread's rseq area whenever the thread moves. Reading it is one load. libc
//! registers the area (glibc from 2.35 on); nothing is ever registered or written here, since a second user of an area
//! breaks the first. Where there is none, the number comes from `sched_getcpu`.
//!
//! `process_madvise` gives many runs back under one flush, of this process from Linux 6.13 on, which it names by a number from
//! 6.14 on and by a descriptor before; whoever refuses it once (an older kernel, a seccomp profile) is asked run by run from then
//! on. Memory that is locked is given back by an advice of its own.
//! # Source
//! `man 2 process_madvise`, `man 2 mremap`, `man 2 rseq`; kernel `include/uapi/linux/rseq.h` for the layout.

use super::uffd::Mover;
use super::{Entry, Errno, Huge, Os, Span, Stopped, ThreadName, thread};
use core::ffi::{CStr, c_int, c_long, c_void};
use core::ptr::{null_mut, with_exposed_provenance_mut};
use core::sync::atomic::{AtomicU8, AtomicU32, Ordering};

/// Names this process to `process_madvise` (`PIDFD_SELF_THREAD`), from Linux 6.14 on.
const PIDFD_SELF: c_int = -10_000;
/// Drops pages of locked memory too (`MADV_DONTNEED_LOCKED`), from Linux 5.18 on.
const DONTNEED_LOCKED: c_int = 24;
/// `MADV_GUARD_INSTALL` and `MADV_GUARD_REMOVE`, from Linux 6.13 on.
const GUARD_INSTALL: c_int = 102;
const GUARD_REMOVE: c_int = 103;
/// Spans in one call.
const BATCH: usize = 64;
/// Where the CPU number is in an rseq area (`cpu_id`).
#[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
const RSEQ_CPU_AT: isize = 4;

/// The running kernel.
pub(crate) struct Linux {
    // Constant after `new`.
    /// Distance of the thread's CPU number from its thread pointer.
    #[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
    cpu_at: Option<isize>,
    cpus: usize,
    // Atomic, hint only.
    /// How many spans can be given back by one call: one of `BY_NAME`, `BY_DESCRIPTOR`, `ONE_BY_ONE`.
    batches: AtomicU8,
    /// Whether pages can be made to fault: one of `UNKNOWN`, `YES`, `NO`.
    guards: AtomicU8,
    mover: Mover,
}

/// The process is told by a number that is always its own.
const BY_NAME: u8 = 0;
/// It is told by a descriptor, opened for each batch: none is kept, which a fork or somebody's `close` would make another's.
const BY_DESCRIPTOR: u8 = 1;
const ONE_BY_ONE: u8 = 2;

const UNKNOWN: u8 = 0;
const YES: u8 = 1;
const NO: u8 = 2;

impl Linux {
    /// Finds out what the system has.
    pub(crate) fn new() -> Self {
        // SAFETY: asks for a number.
        let cpus = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) };
        Self {
            #[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
            cpu_at: rseq_offset().map(|offset| offset + RSEQ_CPU_AT),
            cpus: usize::try_from(cpus).unwrap_or(1).max(1),
            batches: AtomicU8::new(BY_NAME),
            guards: AtomicU8::new(UNKNOWN),
            mover: Mover::new(),
        }
    }

    /// Gives the first spans back, up to a batch; how many bytes. `how` is one of the ways of `batches`.
    fn discard_batch(spans: &[Span], how: u8) -> Result<usize, Errno> {
        let mut list = [libc::iovec { iov_base: null_mut(), iov_len: 0 }; BATCH];
        for (to, span) in list.iter_mut().zip(spans) {
            *to = libc::iovec { iov_base: pointer(span.at), iov_len: span.bytes };
        }
        let who = if how == BY_NAME { PIDFD_SELF } else { open_self()? };
        let count = spans.len().min(BATCH);
        // SAFETY: `list` holds `count` spans, which `discard`'s caller has to himself.
        let done = unsafe {
            libc::syscall(
                libc::SYS_process_madvise,
                c_long::from(who),
                list.as_ptr(),
                count,
                c_long::from(libc::MADV_DONTNEED),
                0 as c_long,
            )
        };
        let done = usize::try_from(done).map_err(|_| errno());
        if how != BY_NAME {
            // SAFETY: opened above.
            let _closed = unsafe { libc::close(who) };
        }
        done
    }

    /// Gives spans back by as few calls as the kernel takes; how many spans were done. The next one is told about by a call of
    /// its own.
    fn discard_batches(&self, spans: &[Span]) -> usize {
        let mut next = 0;
        while spans.len() - next > 1 {
            let how = self.batches.load(Ordering::Relaxed);
            if how >= ONE_BY_ONE {
                break;
            }
            let batch = &spans[next..spans.len().min(next + BATCH)];
            match Self::discard_batch(batch, how) {
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
                // A span that is locked, or nobody's, or advice that this kernel takes by no such call: the first span tells.
                Err(error)
                    if matches!(error.0, libc::EINVAL | libc::ENOMEM)
                        && discard_one(spans[next]).is_err() =>
                {
                    break;
                }
                // Descriptors run out, and come back.
                Err(error) if matches!(error.0, libc::EMFILE | libc::ENFILE) => break,
                Err(_) => {
                    let next_way = if how == BY_NAME { BY_DESCRIPTOR } else { ONE_BY_ONE };
                    self.batches.fetch_max(next_way, Ordering::Relaxed);
                }
            }
        }
        next
    }

    /// Asks the kernel by a page of our own whether pages can be made to fault.
    #[cold]
    fn ask_for_guards(&self) -> bool {
        let Ok(at) = self.map(crate::PAGE_BYTES) else { return false };
        let span = Span { at, bytes: crate::PAGE_BYTES };
        // SAFETY: mapped a moment ago.
        let guarded = unsafe { libc::madvise(pointer(at), span.bytes, GUARD_INSTALL) } == 0;
        // SAFETY: as before.
        unsafe { self.unmap(span) };
        self.guards.store(if guarded { YES } else { NO }, Ordering::Relaxed);
        guarded
    }
}

/// A descriptor of this process.
fn open_self() -> Result<c_int, Errno> {
    let me = c_long::from(process_id());
    // SAFETY: makes a descriptor, which an `exec` closes.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, me, 0 as c_long) };
    c_int::try_from(fd).ok().filter(|&fd| fd >= 0).ok_or_else(errno)
}

/// Gives a span back, locked or not. Whoever calls has it to himself.
fn discard_one(span: Span) -> Result<(), Errno> {
    // SAFETY: this function's contract; the pages become zeros.
    let gone = done(unsafe { libc::madvise(pointer(span.at), span.bytes, libc::MADV_DONTNEED) });
    if gone != Err(Errno(libc::EINVAL)) {
        return gone;
    }
    // SAFETY: as before. A kernel that does not know this says so, as it did of the other.
    done(unsafe { libc::madvise(pointer(span.at), span.bytes, DONTNEED_LOCKED) })
}

impl Os for Linux {
    fn reserve(&self, bytes: usize) -> Result<usize, Errno> {
        mmap(0, bytes, libc::PROT_NONE, libc::MAP_NORESERVE)
    }

    fn map(&self, bytes: usize) -> Result<usize, Errno> {
        mmap(0, bytes, libc::PROT_READ | libc::PROT_WRITE, 0)
    }

    unsafe fn unmap(&self, span: Span) {
        self.mover.unmapped(span);
        // SAFETY: the caller's mapping, to which nobody refers. It cannot fail for whole mappings.
        let _gone = unsafe { libc::munmap(pointer(span.at), span.bytes) };
    }

    unsafe fn commit(&self, span: Span) -> Result<(), Errno> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: part of the caller's reservation; giving access to it takes nothing from anybody.
        done(unsafe { libc::mprotect(pointer(span.at), span.bytes, access) })
    }

    unsafe fn discard(&self, spans: &[Span]) -> Result<(), (usize, Errno)> {
        let next = self.discard_batches(spans);
        let mut rest = spans.iter().enumerate().skip(next);
        rest.try_for_each(|(at, &span)| discard_one(span).map_err(|error| (at, error)))
    }

    unsafe fn move_pages(&self, within: Span, from: Span, to: usize) -> Result<(), Stopped> {
        // SAFETY: this function's contract.
        let stopped = match unsafe { self.mover.move_pages(within, from, to) } {
            Err(stopped) if stopped.errno.0 == libc::EEXIST => stopped,
            done => return done,
        };
        // There are pages where nobody has written: a huge one that a neighbour began, or zeros of memory that is locked.
        let rest = |at: usize| Span { at: at + stopped.bytes, bytes: from.bytes - stopped.bytes };
        discard_one(rest(to)).map_err(|errno| Stopped { errno, ..stopped })?;
        // SAFETY: this function's contract.
        let moved = unsafe { self.mover.move_pages(within, rest(from.at), to + stopped.bytes) };
        moved.map_err(|more| Stopped { bytes: stopped.bytes + more.bytes, ..more })
    }

    fn can_move(&self) -> bool {
        self.mover.is_on()
    }

    unsafe fn remap(&self, from: Span, to: usize) -> Result<(), Errno> {
        let how = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
        // SAFETY: the caller has both spans to himself.
        let moved = unsafe { libc::mremap(pointer(from.at), from.bytes, from.bytes, how, pointer(to)) };
        if moved == libc::MAP_FAILED { Err(errno()) } else { Ok(()) }
    }

    unsafe fn guard(&self, span: Span) -> Result<(), Errno> {
        if !self.can_guard() {
            return Err(Errno(libc::ENOSYS));
        }
        // SAFETY: the caller has it to himself.
        done(unsafe { libc::madvise(pointer(span.at), span.bytes, GUARD_INSTALL) })
    }

    unsafe fn unguard(&self, span: Span) -> Result<(), Errno> {
        // SAFETY: the caller has it to himself.
        done(unsafe { libc::madvise(pointer(span.at), span.bytes, GUARD_REMOVE) })
    }

    fn can_guard(&self) -> bool {
        match self.guards.load(Ordering::Relaxed) {
            UNKNOWN => self.ask_for_guards(),
            known => known == YES,
        }
    }

    unsafe fn advise(&self, span: Span, huge: Huge) -> Result<(), Errno> {
        let advice = match huge {
            Huge::Yes => libc::MADV_HUGEPAGE,
            Huge::No => libc::MADV_NOHUGEPAGE,
        };
        // SAFETY: the caller's reservation, of which no byte changes.
        done(unsafe { libc::madvise(pointer(span.at), span.bytes, advice) })
    }

    fn forget(&self) {
        self.mover.forget();
    }

    unsafe fn renew(&self, span: Span) -> Result<(), Errno> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        mmap(span.at, span.bytes, access, libc::MAP_FIXED | libc::MAP_NORESERVE)?;
        self.mover.rearm(span);
        Ok(())
    }

    unsafe fn mend(&self, span: Span) -> bool {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let mended =
            mmap(span.at, span.bytes, access, libc::MAP_FIXED_NOREPLACE | libc::MAP_NORESERVE).is_ok();
        if mended {
            self.mover.rearm(span);
        }
        mended
    }

    unsafe fn spawn(&self, stack: Span, entry: Entry, argument: *mut c_void) -> Result<ThreadName, Errno> {
        // SAFETY: this function's contract.
        unsafe { thread::spawn(stack, entry, argument) }
    }

    unsafe fn join(&self, thread: ThreadName) {
        // SAFETY: this function's contract.
        unsafe { thread::join(thread) };
    }

    unsafe fn forbid(&self, span: Span) -> Result<(), Errno> {
        // SAFETY: the caller has the span to himself.
        done(unsafe { libc::mprotect(pointer(span.at), span.bytes, libc::PROT_NONE) })
    }

    fn resident(&self, span: Span, seen: &mut [u8]) -> Result<(), Errno> {
        let bytes = span.bytes.min(seen.len() * crate::PAGE_BYTES);
        // SAFETY: the kernel writes a byte of `seen` for each page, and looks at no page.
        done(unsafe { libc::mincore(pointer(span.at), bytes, seen.as_mut_ptr()) })
    }

    fn random(&self) -> Result<[u64; 2], Errno> {
        let mut words = [0u64; 2];
        // SAFETY: the kernel writes as many bytes as `words` has.
        let count = unsafe { libc::getrandom(words.as_mut_ptr().cast(), size_of_val(&words), 0) };
        // Of so few bytes it gives all or none.
        if usize::try_from(count) == Ok(size_of_val(&words)) { Ok(words) } else { Err(errno()) }
    }

    #[inline(always)]
    fn cpu(&self) -> usize {
        #[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
        if let Some(at) = self.cpu_at {
            let cpu: u32;
            // SAFETY: libc keeps an rseq area at this distance from every thread's pointer, and reads harm nobody.
            unsafe {
                core::arch::asm!("mov {cpu:e}, dword ptr fs:[{at}]", cpu = out(reg) cpu, at = in(reg) at,
                    options(nostack, preserves_flags, readonly));
            }
            // Negative while the area of this thread is not registered.
            if cpu <= i32::MAX as u32 {
                return cpu as usize;
            }
        }
        slow_cpu()
    }

    fn cpus(&self) -> usize {
        self.cpus
    }

    fn address_limit(&self) -> Option<usize> {
        let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: writes `limit`.
        let _kept_on_error = unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut limit) };
        (limit.rlim_cur != libc::RLIM_INFINITY).then(|| usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX))
    }

    fn mappings_max(&self) -> u64 {
        read_number(c"/proc/sys/vm/max_map_count").unwrap_or(65_530)
    }
}

#[cold]
fn slow_cpu() -> usize {
    // SAFETY: asks for a number.
    usize::try_from(unsafe { libc::sched_getcpu() }).unwrap_or(0)
}

/// Where libc keeps the rseq area of a thread, from its thread pointer, if it registered one.
#[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
fn rseq_offset() -> Option<isize> {
    let find = |name: &CStr| {
        // SAFETY: looks a name up.
        let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
        (!found.is_null()).then_some(found)
    };
    let (offset, size) = (find(c"__rseq_offset")?, find(c"__rseq_size")?);
    // SAFETY: libc's constant of that name and type.
    let size = unsafe { size.cast::<core::ffi::c_uint>().read() };
    // SAFETY: as before.
    let offset = unsafe { offset.cast::<isize>().read() };
    // 0 if nothing was registered, by the kernel's or the user's wish.
    (size >= 8).then_some(offset)
}

fn read_number(path: &CStr) -> Option<u64> {
    // SAFETY: a path that ends with 0.
    let file = unsafe { libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    if file < 0 {
        return None;
    }
    let mut text = [0u8; 32];
    // SAFETY: writes at most as many bytes as there are.
    let count = unsafe { libc::read(file, text.as_mut_ptr().cast(), text.len()) };
    // SAFETY: the file that was opened here.
    let _closed = unsafe { libc::close(file) };
    let text = text.get(..usize::try_from(count).ok()?)?;
    core::str::from_utf8(text).ok()?.trim().parse().ok()
}

fn mmap(at: usize, bytes: usize, access: c_int, flags: c_int) -> Result<usize, Errno> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags;
    // SAFETY: at an address only with the promise of `renew` or `mend` that it is the caller's; else at a new one.
    let mapped = unsafe { libc::mmap(pointer(at), bytes, access, flags, -1, 0) };
    if mapped == libc::MAP_FAILED {
        return Err(errno());
    }
    let mapped = mapped.expose_provenance();
    if at != 0 && mapped != at {
        // A kernel that does not know MAP_FIXED_NOREPLACE takes the address for a wish.
        // SAFETY: what was mapped a moment ago.
        let _gone = unsafe { libc::munmap(pointer(mapped), bytes) };
        return Err(Errno(libc::EEXIST));
    }
    Ok(mapped)
}

fn pointer(at: usize) -> *mut c_void {
    with_exposed_provenance_mut(at)
}

fn done(code: c_int) -> Result<(), Errno> {
    if code == 0 { Ok(()) } else { Err(errno()) }
}

pub(super) fn errno() -> Errno {
    // SAFETY: the thread's own variable, always there.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: as before.
    Errno(unsafe { *place })
}

/// Waits until somebody wakes `word`, if it still holds `value`.
#[cold]
pub(crate) fn futex_wait(word: &AtomicU32, value: u32) {
    let how = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    let forever = core::ptr::null::<libc::timespec>();
    // SAFETY: the kernel compares a word that lives as long as this call.
    let _woken = unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), how, value, forever) };
}

/// Wakes one who waits for `word`.
#[cold]
pub(crate) fn futex_wake(word: &AtomicU32) {
    let how = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the kernel uses the address as a name.
    let _count = unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), how, 1) };
}

/// The number of this process.
pub(crate) fn process_id() -> u32 {
    // SAFETY: asks for a number.
    (unsafe { libc::getpid() }) as u32
}

/// The number of this thread.
pub(crate) fn thread_id() -> u32 {
    // SAFETY: asks for a number.
    (unsafe { libc::syscall(libc::SYS_gettid) }) as u32
}

/// Has these called around every fork; `false` if libc refuses.
pub(crate) fn register_fork_handlers(
    prepare: extern "C" fn(),
    parent: extern "C" fn(),
    child: extern "C" fn(),
) -> bool {
    // SAFETY: functions that live as long as the program and take nothing.
    let code = unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
    code == 0
}

/// Writes a message, allocating nothing, and stops the process.
#[cold]
pub(crate) fn abort_with(message: core::fmt::Arguments<'_>) -> ! {
    struct Stderr;
    impl core::fmt::Write for Stderr {
        fn write_str(&mut self, text: &str) -> core::fmt::Result {
            // SAFETY: reads `text`.
            let _written = unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) };
            Ok(())
        }
    }
    let _said = core::fmt::Write::write_fmt(&mut Stderr, format_args!("vmalloc: {message}\n"));
    // SAFETY: stops.
    unsafe { libc::abort() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_spans_are_given_back_with_the_batch_call_and_without() {
        let linux = Linux::new();
        let page = crate::PAGE_BYTES;
        let base = linux.map(400 * page).unwrap();
        for batches in [BY_NAME, BY_DESCRIPTOR, ONE_BY_ONE] {
            linux.batches.store(batches, Ordering::Relaxed);
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
        // A span that is nobody's is told apart, however the others were done.
        for batches in [BY_NAME, BY_DESCRIPTOR, ONE_BY_ONE] {
            linux.batches.store(batches, Ordering::Relaxed);
            let nobody = linux.reserve(page).unwrap();
            // SAFETY: reserved a moment ago.
            unsafe { linux.unmap(Span { at: nobody, bytes: page }) };
            let spans = [base, base + page, nobody, base + 2 * page].map(|at| Span { at, bytes: page });
            // SAFETY: nothing is mapped at the one that is not ours.
            assert_eq!(unsafe { linux.discard(&spans) }, Err((2, Errno::NOMEM)), "batches {batches}");
        }
        // SAFETY: nobody refers to it any more.
        unsafe { linux.unmap(Span { at: base, bytes: 400 * page }) };
    }

    #[test]
    fn a_thread_is_on_a_cpu_that_there_is_whoever_is_asked() {
        let linux = Linux::new();
        assert!(linux.cpus() >= 1 && linux.mappings_max() > 1000);
        for _ in 0..1000 {
            assert!(linux.cpu() < 1 << 16 && slow_cpu() < 1 << 16);
        }
        // Pinned, both say the same.
        let mut set = core::mem::MaybeUninit::<libc::cpu_set_t>::zeroed();
        let cpu = slow_cpu();
        // SAFETY: all zeros is a set.
        let bits = unsafe { set.assume_init_mut() };
        // SAFETY: the CPU is one of a set.
        unsafe { libc::CPU_SET(cpu, bits) };
        // SAFETY: reads the set; of this test's thread alone.
        let pinned = unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), set.as_ptr()) };
        if pinned == 0 {
            assert_eq!((linux.cpu(), slow_cpu()), (cpu, cpu));
        }
    }

    #[test]
    fn pages_move_and_leave_zeros_and_what_cannot_move_stays() {
        let linux = Linux::new();
        let bytes = 16 * crate::PAGE_BYTES;
        let base = linux.map(3 * bytes).unwrap();
        let place = |part: usize| with_exposed_provenance_mut::<u8>(base + part * bytes + 9);
        // SAFETY: the mapping made above.
        unsafe { place(0).write(5) };
        // SAFETY: the same, and nobody refers to it.
        unsafe { linux.remap(Span { at: base, bytes }, base + 2 * bytes) }.unwrap();
        for (part, want) in [(0, 0), (1, 0), (2, 5)] {
            // SAFETY: the same.
            assert_eq!(unsafe { place(part).read() }, want);
        }
        // What is mapped is not mended; a hole is.
        // SAFETY: the same.
        assert!(!unsafe { linux.mend(Span { at: base, bytes }) });
        // SAFETY: the same.
        unsafe { linux.unmap(Span { at: base + bytes, bytes }) };
        // SAFETY: the same.
        assert!(unsafe { linux.mend(Span { at: base + bytes, bytes }) });
        // SAFETY: the same.
        unsafe { linux.renew(Span { at: base, bytes: 3 * bytes }) }.unwrap();
        // SAFETY: the same.
        assert_eq!(unsafe { place(2).read() }, 0);
        // SAFETY: the same, and nobody refers to it any more.
        unsafe { linux.unmap(Span { at: base, bytes: 3 * bytes }) };
    }

    #[test]
    fn a_guarded_page_faults_where_the_kernel_has_guards_and_the_mapping_stays_one() {
        let linux = Linux::new();
        let page = crate::PAGE_BYTES;
        let base = linux.map(8 * page).unwrap();
        let place = |n: usize| with_exposed_provenance_mut::<u8>(base + n * page);
        // SAFETY: the mapping made above.
        (0..8).for_each(|n| unsafe { place(n).write(3) });
        // SAFETY: as before, and nobody refers to it.
        let guarded = unsafe { linux.guard(Span { at: base + 2 * page, bytes: page }) };
        assert_eq!(guarded.is_ok(), linux.can_guard());
        // The kernel reads it for us, so that the fault is an error.
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
        // SAFETY: nobody refers to it any more.
        unsafe { linux.unmap(Span { at: base, bytes: 8 * page }) };
    }

    #[test]
    fn what_is_locked_is_given_back_too() {
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
            linux.batches.store(batches, Ordering::Relaxed);
            let place = |n: usize| with_exposed_provenance_mut::<u8>(base + n * page);
            // SAFETY: the mapping made above.
            (0..8).for_each(|n| unsafe { place(n).write(3) });
            // SAFETY: as before.
            assert_eq!(unsafe { linux.discard(&spans) }, Ok(()));
            // SAFETY: as before.
            let bytes = [0, 1, 2, 3, 4, 5, 6, 7].map(|n| unsafe { place(n).read() });
            assert_eq!(bytes, [0, 3, 0, 3, 3, 0, 3, 3], "{batches}");
        }
        // SAFETY: nobody refers to it any more.
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
            // A kernel without huge pages says so.
            assert!(matches!(advised, Ok(()) | Err(Errno(libc::EINVAL))), "{advised:?}");
        }
        // SAFETY: nobody refers to it.
        unsafe { linux.unmap(span) };
    }
}
