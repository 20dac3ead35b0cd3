//! Threads of the allocator: made without the global allocator, which may be this one, and woken through one word.
//!
//! The standard library's threads allocate. libc's use a stack from the caller, and inherit the caller's signal mask.
//! All signals are blocked while the thread is made, so no handler of the program ever runs on it.
//! # Source
//! `man 3 pthread_attr_setstack`, `man 2 futex`.

use super::plain::InProgress;
use super::{Errno, Span, unless_plain};
use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use core::ptr::{null_mut, with_exposed_provenance_mut, without_provenance};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The number of the next thread. Protocol PR-NUMBER.
static NEXT: AtomicU32 = AtomicU32::new(0);
/// One more than the key of the threads' numbers; 0 before it is made. Protocol PR-PUBLISH.
static KEY: AtomicU64 = AtomicU64::new(0);

/// The state of a thread that a cancellation does not end.
const PTHREAD_CANCEL_DISABLE: c_int = 1;

// The crate `libc` lacks it for Linux.
unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

/// The function that a thread runs.
pub type Entry = extern "C" fn(*mut c_void) -> *mut c_void;

/// A thread as libc names it: a number, or with musl an address.
pub type ThreadName = usize;

/// The first function of a thread, at the bottom of its stack until the thread starts.
struct Start {
    entry: Entry,
    argument: *mut c_void,
    /// Before its first function, the thread makes calls that are not plain: the C library registers it.
    begins: InProgress,
}

/// The first function of every thread.
extern "C" fn begin(start: *mut c_void) -> *mut c_void {
    // SAFETY: `spawn` wrote it there for this thread, which reads it once.
    let Start { entry, argument, begins } = unsafe { start.cast::<Start>().read() };
    drop(begins);
    entry(argument)
}

/// Starts a thread. Its start counts as a call in progress, until it runs `entry`.
///
/// # Safety
/// No other thread uses the stack until this one is joined, or was left behind by a fork. It is mapped memory, aligned
/// to pages. `argument` is as `entry` requires.
pub(super) unsafe fn spawn(stack: Span, entry: Entry, argument: *mut c_void) -> Result<ThreadName, Errno> {
    let mut attributes = MaybeUninit::<libc::pthread_attr_t>::uninit();
    // SAFETY: writes the attributes.
    check(unsafe { libc::pthread_attr_init(attributes.as_mut_ptr()) })?;
    let bottom = with_exposed_provenance_mut::<c_void>(stack.at);
    // SAFETY: initialized just above; the caller provides the stack.
    let code = unsafe { libc::pthread_attr_setstack(attributes.as_mut_ptr(), bottom, stack.bytes) };
    let made = check(code).and_then(|()| {
        let begins = InProgress::begin().ok_or(Errno(libc::ENOSYS))?;
        let start = bottom.cast::<Start>();
        // SAFETY: the caller provides the stack, whose top the C library uses.
        unsafe { start.write(Start { entry, argument, begins }) };
        let old = block_signals();
        let mut thread = MaybeUninit::<libc::pthread_t>::zeroed();
        // SAFETY: this function's contract.
        let code =
            unsafe { libc::pthread_create(thread.as_mut_ptr(), attributes.as_ptr(), begin, start.cast()) };
        restore_signals(&old);
        if code != 0 {
            // SAFETY: no thread was started that reads it.
            drop(unsafe { start.read() });
        }
        // SAFETY: all zeros is a number and a pointer, and so is what was written.
        check(code).map(|()| unsafe { thread.assume_init() } as ThreadName)
    });
    // SAFETY: initialized above, and not used any more.
    unsafe { libc::pthread_attr_destroy(attributes.as_mut_ptr()) };
    made
}

/// Yields the CPU to another thread.
#[cold]
pub fn yield_now() {
    /// The time of a wait where a thread may not yield.
    const NANOS: u64 = 50_000;
    // SAFETY: has no precondition.
    let yielded = unless_plain(|| unsafe { libc::sched_yield() });
    if yielded.is_none() {
        futex_wait_for(&AtomicU32::new(0), 0, NANOS);
    }
}

/// Returns the number of this thread among those that called this. Returns 0 to every thread if the C library has no
/// free key.
#[inline]
pub fn thread_number() -> u32 {
    // Acquire pairs with the exchange in `make_key`.
    let Some(key) = KEY.load(Ordering::Acquire).checked_sub(1).or_else(make_key) else { return 0 };
    let key = key as libc::pthread_key_t;
    // SAFETY: a key that is never deleted.
    let known = unsafe { libc::pthread_getspecific(key) }.addr();
    if known > 0 {
        return known as u32 - 1;
    }
    let number = NEXT.fetch_add(1, Ordering::Relaxed) & (u32::MAX >> 1);
    // SAFETY: as before; the value is a number, and is never dereferenced.
    let _another_next_time =
        unsafe { libc::pthread_setspecific(key, without_provenance(number as usize + 1)) };
    number
}

#[cold]
fn make_key() -> Option<u64> {
    let mut key = 0;
    // SAFETY: writes a key, whose values need no destructor.
    check(unsafe { libc::pthread_key_create(&raw mut key, None) }).ok()?;
    let made = u64::from(key) + 1;
    match KEY.compare_exchange(0, made, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => Some(made - 1),
        Err(other) => {
            // SAFETY: created above, and no other thread knows it.
            let _deleted = unsafe { libc::pthread_key_delete(key) };
            Some(other - 1)
        }
    }
}

/// Waits until a thread has ended.
///
/// # Safety
/// `spawn` started it in this process, and it was not joined.
pub(super) unsafe fn join(thread: ThreadName) {
    let mut old = 0;
    // The C library's wait is a cancellation point, and the caller releases the stack next.
    // SAFETY: writes a number.
    let _off = unsafe { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &raw mut old) };
    // SAFETY: this function's contract.
    let _ended = unsafe { libc::pthread_join(thread as libc::pthread_t, null_mut()) };
    // SAFETY: as before.
    let _restored = unsafe { pthread_setcancelstate(old, null_mut()) };
}

/// Returns libc's number for this thread: never 0, the same in a child that it forks, and without a
/// system call.
#[inline(always)]
pub(crate) fn thread_name() -> usize {
    // Every acquisition of a lock reads it: one instruction, where a call would clobber registers, too.
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        let thread: usize;
        // SAFETY: the first word at the thread pointer is the pointer itself (ELF TLS), which libc returns.
        unsafe {
            core::arch::asm!("mov {}, qword ptr fs:[0]", out(reg) thread,
                options(pure, readonly, nostack, preserves_flags));
        }
        thread
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    {
        // SAFETY: reads the thread's name.
        (unsafe { libc::pthread_self() }) as usize
    }
}

/// Waits until another thread wakes `word`, if it still has `value`.
#[cold]
pub fn futex_wait(word: &AtomicU32, value: u32) {
    let how = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    let forever = core::ptr::null::<libc::timespec>();
    // SAFETY: the kernel compares a word that lives as long as this call.
    let _woken = unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), how, value, forever) };
}

/// Wakes one thread that waits for `word`.
#[cold]
pub fn futex_wake(word: &AtomicU32) {
    let how = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the kernel uses the address as a name.
    let _count = unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), how, 1) };
}

/// Waits until another thread wakes `word`, if it still has `value`, for at most this time.
#[cold]
pub fn futex_wait_for(word: &AtomicU32, value: u32, nanos: u64) {
    let how = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // The type of seconds has different names in different libcs. A longer time is cut to a year.
    let time = libc::timespec {
        tv_sec: (nanos / 1_000_000_000).min(31_536_000) as _,
        tv_nsec: (nanos % 1_000_000_000) as _,
    };
    // SAFETY: the kernel compares a word, and reads a time, that live as long as this call.
    let _woken = unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), how, value, &raw const time) };
}

fn block_signals() -> libc::sigset_t {
    let mut all = MaybeUninit::<libc::sigset_t>::zeroed();
    let mut old = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: writes the set.
    let _filled = unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY: reads one set and writes the other.
    let _set = unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), old.as_mut_ptr()) };
    // SAFETY: all zeros is a set, and so is what was written.
    unsafe { old.assume_init() }
}

fn restore_signals(old: &libc::sigset_t) {
    // SAFETY: reads the set.
    let _set = unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, old, null_mut()) };
}

fn check(code: c_int) -> Result<(), Errno> {
    if code == 0 { Ok(()) } else { Err(Errno(code)) }
}
