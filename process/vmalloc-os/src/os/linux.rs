//! Linux: system calls through libc, and the CPU number from the restartable-sequence area that libc registered.
//!
//! # Theory
//! The kernel writes the number of the CPU into a thread's rseq area whenever the thread moves. Reading it is one load.
//! libc registers the area (glibc from 2.35 on); nothing is ever registered or written here, since a second user of an
//! area breaks the first. Without an area, the number comes from `sched_getcpu`.
//!
//! **Cancellation.** A thread that was cancelled ends at the next cancellation point, with every lock that it holds.
//! No call may be one. So `open`, `read`, `write`, `close`, `getrandom` and the like are made by their numbers, here and
//! in the crates above. Only the C library's functions of these names are cancellation points.
//!
//! Advice is in `advice.rs`, moving pages in `uffd.rs`, the one thread in `thread.rs`, the area in `rseq.rs`.
//! # Source
//! `man 2 mremap`, `man 2 rseq`; kernel `include/uapi/linux/rseq.h` for the layout.

use super::advice::{Advisor, discard_one};
use super::available::available;
use super::plain::{is_plain, unless_plain};
#[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
use super::rseq::rseq_area;
use super::uffd::{Mover, close, raise};
use super::{Entry, Errno, Huge, Os, Room, Span, Stopped, ThreadName, moves, policy, thread};
use core::ffi::{CStr, c_int, c_void};
use core::ptr::with_exposed_provenance_mut;

/// The offset of the CPU number in an rseq area (`cpu_id`).
#[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
const RSEQ_CPU_AT: isize = 4;

/// The number of CPUs where it cannot be queried.
const PLAIN_CPUS: core::ffi::c_long = 16;

/// The running kernel.
#[derive(Debug)]
pub struct Linux {
    // Constant after `new`.
    /// Distance of the thread's CPU number from its thread pointer.
    #[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
    cpu_at: Option<isize>,
    cpus: usize,
    // Atomic, hint only.
    pub(super) advisor: Advisor,
    mover: Mover,
}

impl Linux {
    /// Detects the features of the system.
    #[must_use]
    pub fn new() -> Self {
        // SAFETY: reads a number.
        let ask = || unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) };
        let cpus = unless_plain(ask).unwrap_or(PLAIN_CPUS);
        Self {
            #[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
            cpu_at: rseq_area().map(|offset| offset + RSEQ_CPU_AT),
            cpus: usize::try_from(cpus).unwrap_or(1).max(1),
            advisor: Advisor::new(),
            mover: Mover::new(),
        }
    }
}

impl Default for Linux {
    fn default() -> Self {
        Self::new()
    }
}

impl Os for Linux {
    fn reserve(&self, bytes: usize) -> Result<usize, Errno> {
        mmap(0, bytes, libc::PROT_NONE, libc::MAP_NORESERVE)
    }

    fn map(&self, bytes: usize) -> Result<usize, Errno> {
        mmap(0, bytes, libc::PROT_READ | libc::PROT_WRITE, 0)
    }

    unsafe fn unmap(&self, span: Span) -> bool {
        // SAFETY: the caller's mapping, to which no reference exists.
        unsafe { libc::munmap(pointer(span.at), span.bytes) == 0 }
    }

    unsafe fn commit(&self, span: Span) -> Result<(), Errno> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: part of the caller's reservation; making it accessible affects no other user.
        unsafe { protect(span, access) }
    }

    unsafe fn discard(&self, spans: &[Span]) -> Result<(), (usize, Errno)> {
        // SAFETY: this function's contract.
        unsafe { self.advisor.discard(spans) }
    }

    unsafe fn move_pages(&self, from: Span, to: usize) -> Result<(), Stopped> {
        // SAFETY: this function's contract.
        unsafe { moves::move_pages(&self.mover, from, to) }
    }

    fn can_move(&self) -> bool {
        self.mover.is_on()
    }

    unsafe fn remap(&self, from: Span, to: usize) -> Result<(), Errno> {
        let how = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP;
        // SAFETY: the caller owns both spans exclusively.
        let moved = unsafe { libc::mremap(pointer(from.at), from.bytes, from.bytes, how, pointer(to)) };
        if moved == libc::MAP_FAILED { Err(errno()) } else { Ok(()) }
    }

    unsafe fn guard(&self, span: Span) -> Result<(), Errno> {
        // SAFETY: this function's contract.
        unsafe { self.advisor.guard(span) }
    }

    unsafe fn unguard(&self, span: Span) -> Result<(), Errno> {
        // SAFETY: this function's contract.
        unsafe { self.advisor.unguard(span) }
    }

    fn can_guard(&self) -> bool {
        self.advisor.can_guard()
    }

    unsafe fn advise(&self, span: Span, huge: Huge) -> Result<(), Errno> {
        // SAFETY: this function's contract.
        unsafe { Advisor::advise(span, huge) }
    }

    unsafe fn inherit(&self, span: Span, inherited: bool) -> Result<(), Errno> {
        // SAFETY: this function's contract.
        unsafe { self.advisor.inherit(span, inherited) }
    }

    fn can_disinherit(&self) -> bool {
        self.advisor.can_disinherit()
    }

    fn forget(&self) {
        self.mover.forget();
    }

    unsafe fn renew(&self, span: Span) -> Result<(), Errno> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        mmap(span.at, span.bytes, access, libc::MAP_FIXED | libc::MAP_NORESERVE)?;
        Ok(())
    }

    unsafe fn keep_policy(&self, from: Span, to: Span) -> bool {
        // SAFETY: this function's contract.
        unless_plain(|| unsafe { policy::keep(from, to) }).unwrap_or(false)
    }

    unsafe fn reset(&self, span: Span) -> Result<(), Errno> {
        let fresh = mmap(span.at, span.bytes, libc::PROT_NONE, libc::MAP_FIXED | libc::MAP_NORESERVE);
        if fresh != Err(Errno(libc::ENOMEM)) {
            return fresh.map(|_| ());
        }
        // While the limit of address space is exceeded, Linux fails every `mmap`, even one that replaces as many pages.
        // Locked pages are not released, and an error must leave the access to each part of the span as it is.
        discard_one(span)?;
        // SAFETY: this function's contract.
        unsafe { self.forbid(span) }?;
        // Again, because of stray writes in between. If this fails, the pages were locked since.
        let _locked_since = discard_one(span);
        // SAFETY: as before. A kernel without guards fails this, and has none to remove.
        let _none = unsafe { self.advisor.unguard(span) };
        Ok(())
    }

    unsafe fn mend(&self, span: Span) -> bool {
        // SAFETY: this function's contract.
        unsafe { self.map_at(span) }.is_ok()
    }

    unsafe fn map_at(&self, span: Span) -> Result<(), Errno> {
        let access = libc::PROT_READ | libc::PROT_WRITE;
        mmap(span.at, span.bytes, access, libc::MAP_FIXED_NOREPLACE | libc::MAP_NORESERVE)?;
        Ok(())
    }

    unsafe fn spawn(&self, stack: Span, entry: Entry, argument: *mut c_void) -> Result<ThreadName, Errno> {
        // SAFETY: this function's contract.
        let spawn = || unsafe { thread::spawn(stack, entry, argument) };
        unless_plain(spawn).unwrap_or(Err(Errno(libc::ENOSYS)))
    }

    unsafe fn join(&self, thread: ThreadName) {
        // SAFETY: this function's contract.
        unsafe { thread::join(thread) };
    }

    unsafe fn forbid(&self, span: Span) -> Result<(), Errno> {
        // SAFETY: the caller owns the span exclusively.
        unsafe { protect(span, libc::PROT_NONE) }
    }

    fn resident(&self, span: Span, seen: &mut [u8]) -> Result<(), Errno> {
        let bytes = span.bytes.min(seen.len() * crate::PAGE_BYTES);
        // SAFETY: the kernel writes a byte of `seen` for each page, and reads no page.
        let ask = || done(unsafe { libc::mincore(pointer(span.at), bytes, seen.as_mut_ptr()) });
        unless_plain(ask).unwrap_or(Err(Errno(libc::ENOSYS)))
    }

    fn random(&self) -> Result<[u64; 2], Errno> {
        let mut words = [0u64; 2];
        // SAFETY: the kernel writes as many bytes as `words` has.
        let count = unsafe { libc::syscall(libc::SYS_getrandom, words.as_mut_ptr(), size_of_val(&words), 0) };
        // For so few bytes the call returns all or none.
        if usize::try_from(count) == Ok(size_of_val(&words)) { Ok(words) } else { Err(errno()) }
    }

    #[inline(always)]
    fn cpu(&self) -> usize {
        #[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
        if let Some(at) = self.cpu_at {
            let cpu: u32;
            // SAFETY: libc has an rseq area at this distance from every thread's pointer, and reading it changes
            // nothing.
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
        unless_plain(|| unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut limit) })?;
        (limit.rlim_cur != libc::RLIM_INFINITY).then(|| usize::try_from(limit.rlim_cur).unwrap_or(usize::MAX))
    }

    fn available(&self) -> Option<Room> {
        unless_plain(available)?
    }

    fn now(&self) -> Option<u64> {
        // SAFETY: asks for a number.
        if is_plain() && unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) } == 0 {
            // Without the kernel's page of code it is a call of the system, and not one of malloc's.
            return None;
        }
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: writes a time.
        let failed = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC_COARSE, &raw mut time) };
        (failed == 0).then(|| time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)
    }

    fn mappings_max(&self) -> u64 {
        const USUAL: u64 = 65_530;
        unless_plain(|| read_number(c"/proc/sys/vm/max_map_count")).flatten().unwrap_or(USUAL)
    }
}

#[cold]
fn slow_cpu() -> usize {
    if is_plain() {
        // A number that is constant for the thread.
        return super::thread_name() >> 12;
    }
    // SAFETY: reads a number.
    usize::try_from(unsafe { libc::sched_getcpu() }).unwrap_or(0)
}

fn read_number(path: &CStr) -> Option<u64> {
    let mut text = [0; 32];
    core::str::from_utf8(read_text(path, &mut text)?).ok()?.trim().parse().ok()
}

/// Returns true if the three standard streams are open. A program that closes one expects its number from its next
/// `open`.
fn has_standard_streams() -> bool {
    // SAFETY: reads flags.
    (0..3).all(|file| unsafe { libc::fcntl(file, libc::F_GETFD) } >= 0)
}

/// Reads the beginning of a file, as much as `text` has room for.
pub(super) fn read_text<'t>(path: &CStr, text: &'t mut [u8]) -> Option<&'t [u8]> {
    read_and_close(open_high(path)?, text)
}

/// Reads the beginning of a file, even if a standard stream is closed: then the file has its number meanwhile.
pub fn read_start<'t>(path: &CStr, text: &'t mut [u8]) -> Option<&'t [u8]> {
    read_and_close(open(path)?, text)
}

fn read_and_close(file: c_int, text: &mut [u8]) -> Option<&[u8]> {
    // SAFETY: writes at most as many bytes as there are.
    let count = unsafe { libc::syscall(libc::SYS_read, file, text.as_mut_ptr(), text.len()) };
    close(file);
    text.get(..usize::try_from(count).ok()?)
}

/// Opens a file at a descriptor that programs hardly use.
fn open_high(path: &CStr) -> Option<c_int> {
    if !has_standard_streams() {
        return None;
    }
    open(path).map(raise)
}

fn open(path: &CStr) -> Option<c_int> {
    let (place, how) = (libc::AT_FDCWD, libc::O_RDONLY | libc::O_CLOEXEC);
    // SAFETY: a path that ends with 0.
    let file = unsafe { libc::syscall(libc::SYS_openat, place, path.as_ptr(), how) };
    c_int::try_from(file).ok().filter(|&file| file >= 0)
}

/// `mmap`, by its number: the preload has a function of that name, for the program's own calls.
pub(super) fn mmap(at: usize, bytes: usize, access: c_int, flags: c_int) -> Result<usize, Errno> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | flags;
    // Whole words, as the variadic function requires.
    let [access, flags, none, start] = [access, flags, -1, 0].map(core::ffi::c_long::from);
    // SAFETY: at a fixed address only under the contract of `renew` or `mend`; else at a new one.
    let mapped = unsafe { libc::syscall(libc::SYS_mmap, pointer(at), bytes, access, flags, none, start) };
    if mapped == -1 {
        return Err(errno());
    }
    let mapped = mapped.cast_unsigned() as usize;
    if at != 0 && mapped != at {
        // A kernel without MAP_FIXED_NOREPLACE treats the address as a hint.
        // SAFETY: mapped just above.
        let _gone = unsafe { libc::munmap(pointer(mapped), bytes) };
        return Err(Errno(libc::EEXIST));
    }
    Ok(mapped)
}

/// `mprotect`, by its number: the preload has a function of that name, for the program's own calls.
///
/// # Safety
/// The caller owns the span exclusively, or only adds access.
unsafe fn protect(span: Span, access: c_int) -> Result<(), Errno> {
    let (at, bytes) = (pointer(span.at), span.bytes);
    // SAFETY: this function's contract.
    done(unsafe { libc::syscall(libc::SYS_mprotect, at, bytes, access) } as c_int)
}

/// `madvise`, in the same way.
///
/// # Safety
/// As the advice.
pub(super) unsafe fn madvise(span: Span, advice: c_int) -> Result<(), Errno> {
    let (at, bytes) = (pointer(span.at), span.bytes);
    // SAFETY: this function's contract.
    done(unsafe { libc::syscall(libc::SYS_madvise, at, bytes, advice) } as c_int)
}

/// Returns an address as a pointer for the system.
#[must_use]
pub fn pointer(at: usize) -> *mut c_void {
    with_exposed_provenance_mut(at)
}

/// Returns the result of a call that returned 0 or -1.
pub fn done(code: c_int) -> Result<(), Errno> {
    if code == 0 { Ok(()) } else { Err(errno()) }
}

/// Returns the error of the call that failed last in this thread.
#[must_use]
pub fn errno() -> Errno {
    // SAFETY: the thread's own variable, always there.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: as before.
    Errno(unsafe { *place })
}

/// Returns the number of this process.
#[must_use]
pub fn process_id() -> u32 {
    // SAFETY: reads a number.
    (unsafe { libc::getpid() }) as u32
}

/// Returns the symbol of libc of that name, or null.
pub(crate) fn find(name: &CStr) -> *mut c_void {
    // SAFETY: looks up a name.
    unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }
}

/// Registers functions that are called around every fork. Returns `false` if libc fails.
pub(crate) fn register_fork_handlers(
    prepare: extern "C" fn(),
    parent: extern "C" fn(),
    child: extern "C" fn(),
) -> bool {
    // SAFETY: functions that live as long as the program and have no parameters.
    let code = unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
    code == 0
}

/// Writes a message without allocating, and stops the process.
#[cold]
pub fn abort_with(message: core::fmt::Arguments<'_>) -> ! {
    struct Stderr;
    impl core::fmt::Write for Stderr {
        fn write_str(&mut self, text: &str) -> core::fmt::Result {
            let stderr = libc::STDERR_FILENO;
            // SAFETY: reads `text`.
            let _written = unsafe { libc::syscall(libc::SYS_write, stderr, text.as_ptr(), text.len()) };
            Ok(())
        }
    }
    let _said = core::fmt::Write::write_fmt(&mut Stderr, format_args!("vmalloc: {message}\n"));
    // SAFETY: has no precondition.
    unsafe { libc::abort() }
}

#[cfg(test)]
mod tests {
    use super::super::plain::calls_in_progress;
    use super::super::uffd::HIGH;
    use super::*;

    /// Ends a child of a fork, with success if a condition holds there.
    fn end_child(holds: bool) -> ! {
        // SAFETY: exits the child.
        unsafe { libc::_exit(i32::from(!holds)) }
    }

    /// Waits for the end of a child, and panics if it was without success.
    fn wait_for(child: libc::pid_t) {
        let mut status = 1;
        // SAFETY: writes a number.
        let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!((waited, status), (child, 0));
    }

    #[test]
    fn no_file_is_opened_while_a_standard_stream_is_closed() {
        let _alone = crate::os::alone();
        // In a child, since other tests use the streams.
        // SAFETY: the child makes only system calls, and exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: no code of the child uses it.
            let closed = unsafe { libc::close(0) } == 0;
            end_child(closed && open_high(c"/proc/meminfo").is_none());
        }
        wait_for(child);
    }

    #[test]
    fn a_child_of_a_fork_has_no_call_in_progress_and_ends_its_own() {
        let _alone = crate::os::alone();
        crate::fork::prepare_for_forks();
        let fork = || {
            assert!(calls_in_progress() > 0);
            // SAFETY: the child looks at a number, and ends.
            (unsafe { libc::fork() }, calls_in_progress())
        };
        let (child, in_child) = unless_plain(fork).unwrap();
        if child == 0 {
            end_child(in_child == 0 && calls_in_progress() == 0);
        }
        wait_for(child);
    }

    #[test]
    fn a_reset_above_a_limit_of_addresses_removes_access_or_leaves_it_as_it_is() {
        let _alone = crate::os::alone();
        let linux = Linux::new();
        let page = crate::PAGE_BYTES;
        let at = linux.reserve(2 * page).unwrap();
        // SAFETY: the first page of the range reserved above.
        unsafe { linux.commit(Span { at, bytes: page }) }.unwrap();
        // SAFETY: the child makes only system calls, and exits. The limit holds for it alone.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let mut ends = [0; 2];
            // SAFETY: writes two numbers.
            unsafe { libc::pipe(ends.as_mut_ptr()) };
            // SAFETY: reads one byte, or fails with EFAULT.
            let has_access = |page: usize| unsafe { libc::write(ends[1], pointer(page), 1) } == 1;
            let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            // SAFETY: reads two numbers.
            let limited = unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const none) } == 0;
            // SAFETY: changes no contents. Only kernels from 5.18 on release locked pages.
            let _if_allowed = unsafe { libc::mlock(pointer(at), page) };
            // SAFETY: the range reserved above, without references.
            let reset = unsafe { linux.reset(Span { at, bytes: 2 * page }) }.is_ok();
            end_child(limited && has_access(at) != reset && !has_access(at + page));
        }
        wait_for(child);
        // SAFETY: the range reserved above.
        unsafe { linux.unmap(Span { at, bytes: 2 * page }) };
    }

    #[test]
    fn a_file_is_read_at_a_high_number() {
        let file = open_high(c"/proc/meminfo").unwrap();
        assert!(file >= HIGH[3], "{file}");
        close(file);
        assert_eq!(open_high(c"/proc/no such file"), None);
    }

    #[test]
    fn every_source_names_an_existing_cpu() {
        let linux = Linux::new();
        assert!(linux.cpus() >= 1 && linux.mappings_max() > 1000);
        for _ in 0..1000 {
            assert!(linux.cpu() < 1 << 16 && slow_cpu() < 1 << 16);
        }
        // While the thread is pinned, both return the same number.
        let mut set = core::mem::MaybeUninit::<libc::cpu_set_t>::zeroed();
        let cpu = slow_cpu();
        // SAFETY: all zeros is a valid set.
        let bits = unsafe { set.assume_init_mut() };
        // SAFETY: the CPU number is within a set.
        unsafe { libc::CPU_SET(cpu, bits) };
        // SAFETY: reads the set; changes this test's thread alone.
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
        // SAFETY: the same, and no reference to it exists.
        unsafe { linux.remap(Span { at: base, bytes }, base + 2 * bytes) }.unwrap();
        for (part, want) in [(0, 0), (1, 0), (2, 5)] {
            // SAFETY: the same.
            assert_eq!(unsafe { place(part).read() }, want);
        }
        // A mapped range is left alone; a hole is filled.
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
        // SAFETY: the same, and no reference to it exists any more.
        unsafe { linux.unmap(Span { at: base, bytes: 3 * bytes }) };
    }
}
