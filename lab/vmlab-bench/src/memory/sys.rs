//! Queries of a child to the system and the dynamic linker.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::{MaybeUninit, transmute};
use std::path::PathBuf;

/// Returns the CPU time of this process, in nanoseconds: background threads are a cost, too.
pub fn process_cpu_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the buffer is writable, and every Linux has this clock.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    assert_eq!(failed, 0);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Returns the page faults of this process, without those that read from a disk.
pub fn faults() -> u64 {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the buffer is writable.
    let failed = unsafe { libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) };
    assert_eq!(failed, 0);
    // SAFETY: all zeros is a valid value, and the call has written to it.
    unsafe { usage.assume_init() }.ru_minflt as u64
}

/// Returns the address of a function of this process.
fn symbol(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: the name is NUL-terminated; the handle stands for all loaded objects.
    let at = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!at.is_null()).then_some(at)
}

/// Returns the file that defines `malloc`.
pub fn malloc_library() -> Option<PathBuf> {
    let at = symbol(c"malloc")?;
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: any address is valid, and the buffer is writable.
    let found = unsafe { libc::dladdr(at, info.as_mut_ptr()) };
    // SAFETY: all zeros is a valid value.
    let info = unsafe { info.assume_init() };
    if found == 0 || info.dli_fname.is_null() {
        return None;
    }
    text(info.dli_fname).map(PathBuf::from)
}

/// Copies a static string of a library.
fn text(at: *const c_char) -> Option<String> {
    if at.is_null() {
        return None;
    }
    // SAFETY: the callers pass pointers from libraries that guarantee a NUL-terminated string, which is not modified.
    Some(unsafe { CStr::from_ptr(at) }.to_string_lossy().into_owned())
}

type Mallctl = unsafe extern "C" fn(*const c_char, *mut c_void, *mut usize, *mut c_void, usize) -> c_int;
type MiVersion = unsafe extern "C" fn() -> c_int;
type TcVersion = unsafe extern "C" fn(*mut c_int, *mut c_int, *mut *const c_char) -> *const c_char;

/// Returns the version of the allocator behind `malloc`, if it reports one.
pub fn version() -> Option<String> {
    if let Some(at) = symbol(c"mi_version") {
        // SAFETY: it has this type in every version of mimalloc.
        let version = unsafe { transmute::<*mut c_void, MiVersion>(at) };
        // SAFETY: it has no parameters and may be called at any time.
        let number = unsafe { version() };
        // One digit each, or two for each of the last two in later versions.
        let (major, minor, patch) = match number {
            ..10_000 => (number / 100, number / 10 % 10, number % 10),
            _ => (number / 10_000, number / 100 % 100, number % 100),
        };
        return Some(format!("{major}.{minor}.{patch}"));
    }
    if let Some(at) = symbol(c"tc_version") {
        // SAFETY: it has this type in every version of gperftools.
        let version = unsafe { transmute::<*mut c_void, TcVersion>(at) };
        let (mut major, mut minor, mut patch) = (0, 0, std::ptr::null());
        // SAFETY: all three buffers are writable.
        let whole = unsafe { version(&raw mut major, &raw mut minor, &raw mut patch) };
        return text(whole);
    }
    if let Some(at) = symbol(c"mallctl") {
        // SAFETY: it has this type in every version of jemalloc.
        let mallctl = unsafe { transmute::<*mut c_void, Mallctl>(at) };
        let mut version: *const c_char = std::ptr::null();
        let mut bytes = size_of::<*const c_char>();
        let place = (&raw mut version).cast();
        // SAFETY: the name is NUL-terminated; the buffer has the stated size, and nothing is set.
        let failed = unsafe { mallctl(c"version".as_ptr(), place, &raw mut bytes, std::ptr::null_mut(), 0) };
        return if failed == 0 { text(version) } else { None };
    }
    None
}

/// Returns the time stamp counter of the CPU, if it has one.
#[inline]
pub(crate) fn cycles() -> Option<u64> {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: every CPU of this architecture has the instruction, and it changes nothing.
        Some(unsafe { core::arch::x86_64::_rdtsc() })
    }
    #[cfg(not(target_arch = "x86_64"))]
    None
}

/// Returns the version of the C library.
pub fn libc_version() -> Option<String> {
    // SAFETY: it has no parameters, and returns a static string.
    text(unsafe { libc::gnu_get_libc_version() })
}
