//! The constructor, and the reports at the end of the process: a line of statistics, and a line for `vmlab run` in the
//! file that `VMALLOC_REPORT` names.
//!
//! The dynamic linker finds both functions in sections of the library. The constructor runs before that of the C
//! library, so it reads the environment from its arguments, not by `getenv`.

use crate::conf::Conf;
use crate::large::{self, Event};
use crate::words::{Errors, Identity, say, say_to};
use core::cell::OnceCell;
use core::ffi::{CStr, c_char, c_int};

/// A value that the constructor sets and the end of the process reads.
struct FromStart<T>(OnceCell<T>);

// SAFETY: the dynamic linker calls the constructor once, and the functions of the end after it has returned.
unsafe impl<T: Send + Sync> Sync for FromStart<T> {}

/// The descriptor for the statistics, if they are enabled.
static ERRORS: FromStart<(Errors, Option<Identity>)> = FromStart(OnceCell::new());

/// The file in which `vmlab run` collects lines. A copy, since programs may overwrite their environment.
static REPORT: FromStart<[u8; REPORT_BYTES_MAX]> = FromStart(OnceCell::new());
/// The size of its longest name, with the 0 at the end.
const REPORT_BYTES_MAX: usize = 256;

/// glibc's library of checks. The look-up of the next `malloc` skips it.
const DEBUG: &[u8] = b"libc_malloc_debug";

/// A constructor, with the arguments that glibc's linker passes.
type Start = unsafe extern "C" fn(c_int, *const *const c_char, *const *const c_char);

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".init_array")]
static START: Start = start;

#[cfg(not(test))]
#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;

// Only the statics name them.
#[cfg(test)]
const _: (Start, extern "C" fn()) = (start, end);

/// # Safety
/// `environment` is null, or an array of strings with a null at its end.
unsafe extern "C" fn start(_: c_int, _: *const *const c_char, environment: *const *const c_char) {
    // A set-user-ID program (AT_SECURE) ignores the environment of its user.
    // SAFETY: returns a number.
    let trusted = unsafe { libc::getauxval(libc::AT_SECURE) } == 0;
    if trusted {
        // SAFETY: this function's contract.
        if let Some(text) = unsafe { find(environment, b"VMALLOC_CONF=") } {
            let conf = Conf::read(text, |bad| say(format_args!("{bad}")));
            large::configure(&conf);
            if conf.statistics {
                let errors = if conf.plain { (Errors::STDERR, None) } else { Errors::aside() };
                let _once = ERRORS.0.set(errors);
            }
        }
        // SAFETY: this function's contract.
        let others = unsafe { find(environment, b"LD_PRELOAD=") }.unwrap_or_default();
        if others.windows(DEBUG.len()).any(|name| name == DEBUG) {
            say(format_args!(
                "libc_malloc_debug checks nothing of what is allocated here: preload one of the two"
            ));
        }
        // SAFETY: this function's contract.
        if let Some(name) = unsafe { find(environment, b"VMALLOC_REPORT=") } {
            let mut copy = [0; REPORT_BYTES_MAX];
            if name.len() < copy.len() && name.starts_with(b"/") {
                copy[..name.len()].copy_from_slice(name);
                let _once = REPORT.0.set(copy);
                large::measure();
            } else {
                say(format_args!(
                    "VMALLOC_REPORT: no absolute name of less than 256 bytes; nothing is reported"
                ));
            }
        }
    }
    large::begin();
}

/// Returns the value of the variable whose name, followed by `=`, is `name`.
///
/// # Safety
/// As [`start`]; the strings live as long as the program.
unsafe fn find(environment: *const *const c_char, name: &[u8]) -> Option<&'static [u8]> {
    let mut place = environment;
    if place.is_null() {
        return None;
    }
    loop {
        // SAFETY: this function's contract: an entry, or the null at the end.
        let entry = unsafe { *place };
        if entry.is_null() {
            return None;
        }
        // SAFETY: this function's contract: a string.
        let entry = unsafe { CStr::from_ptr(entry) };
        if let Some(value) = entry.to_bytes().strip_prefix(name) {
            return Some(value);
        }
        // SAFETY: not at the end of the array yet.
        place = unsafe { place.add(1) };
    }
}

/// Reports the statistics, if they are enabled.
extern "C" fn end() {
    let (errors, report) = (ERRORS.0.get(), REPORT.0.get());
    if errors.is_none() && report.is_none() {
        return;
    }
    // A signal handler may end the program during a call, which may hold locks.
    let counted = large::get().map_or_else(|| Some(Default::default()), vmalloc::Vmalloc::try_stats);
    if counted.and_then(|stats| vmalloc::unless_plain(|| report_all(&stats))).is_none() {
        // More system calls may end a program that installed a filter, so only a count of our own is reported.
        if let Some(&(errors, _)) = errors {
            say_to(errors, format_args!("served {}", large::counted(Event::Served)));
        }
    }
}

/// Reports the numbers of the allocator and the system.
fn report_all(stats: &vmalloc::Stats) {
    let (errors, file) = (ERRORS.0.get(), REPORT.0.get());
    let mut usage = core::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: writes a `rusage`.
    let _zeros_if_failed = unsafe { libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) };
    // SAFETY: all fields are numbers, for which any bits are valid.
    let usage = unsafe { usage.assume_init() };
    let purged = large::purged_here(stats);
    let peak_kib = own_peak_kib().unwrap_or(usage.ru_maxrss as u64);
    let what = format_args!(
        "served {} freed {} resized {} passed on {}; bytes live {} cached {} purged {}; peak resident {} KiB, \
         page faults {}",
        large::counted(Event::Served),
        large::counted(Event::Freed),
        large::counted(Event::Resized),
        large::counted(Event::PassedOn),
        stats.live_bytes,
        stats.cached_bytes + stats.dirty_bytes,
        purged,
        peak_kib,
        usage.ru_minflt,
    );
    if let Some(&(errors, identity)) = errors
        && errors.identity() == identity
    {
        say_to(errors, what);
    }
    if let Some(name) = file.and_then(|name| CStr::from_bytes_until_nul(name).ok())
        && let Some(to) = Errors::append_to(name)
    {
        // Read by `vmlab run`: pairs of a key and a number.
        let what = format_args!(
            "report served {} freed {} resized {} passed_on {} nanoseconds {} live {} cached {} purged {} \
             peak_kib {} faults {}",
            large::counted(Event::Served),
            large::counted(Event::Freed),
            large::counted(Event::Resized),
            large::counted(Event::PassedOn),
            large::nanoseconds(),
            stats.live_bytes,
            stats.cached_bytes + stats.dirty_bytes,
            purged,
            peak_kib,
            usage.ru_minflt,
        );
        say_to(to, what);
        to.close();
    }
}

/// Returns the peak of resident memory since the program began. `ru_maxrss` also counts the memory of the process that
/// started it, which it shared until then.
fn own_peak_kib() -> Option<u64> {
    // The line is in the first kilobyte, unless a user has very many groups.
    let mut text = [0; 4096];
    let status = Errors::read_from(c"/proc/self/status", &mut text);
    number_of(status, b"\nVmHWM:")
}

/// Returns the number after a key in a text.
fn number_of(text: &[u8], key: &[u8]) -> Option<u64> {
    let at = text.windows(key.len()).position(|part| part == key)?;
    let rest = text.get(at + key.len()..)?.trim_ascii_start();
    // A number at the end of the text may be cut.
    let end = rest.iter().position(|byte| !byte.is_ascii_digit())?;
    core::str::from_utf8(&rest[..end]).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_peak_is_a_number_and_what_is_cut_is_none() {
        assert_eq!(number_of(b"VmPeak: 1 kB\nVmHWM:\t  2048 kB\n", b"\nVmHWM:"), Some(2048));
        assert_eq!(number_of(b"VmPeak: 1 kB\nVmHWM:\t  20", b"\nVmHWM:"), None);
        assert_eq!(number_of(b"VmPeak: 1 kB\n", b"\nVmHWM:"), None);
        assert!(own_peak_kib().is_some_and(|kib| kib > 100));
    }

    #[test]
    fn a_variable_is_found_by_its_whole_name() {
        let entries = [c"VMALLOC_CONFIG=no", c"XVMALLOC_CONF=no", c"VMALLOC_CONF=stats:true", c"A=b"];
        let mut list: Vec<_> = entries.iter().map(|entry| entry.as_ptr()).collect();
        list.push(core::ptr::null());
        // SAFETY: static strings, and a null at the end.
        assert_eq!(unsafe { find(list.as_ptr(), b"VMALLOC_CONF=") }, Some(&b"stats:true"[..]));
        // SAFETY: the same.
        assert_eq!(unsafe { find(list.as_ptr(), b"VMALLOC=") }, None);
        // SAFETY: null is allowed.
        assert_eq!(unsafe { find(core::ptr::null(), b"A=") }, None);
    }
}
