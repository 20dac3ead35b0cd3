//! The allocator of the process: its creation, its limits and its counts.

use crate::call::call;
use crate::conf::Conf;
use crate::hot::HOT;
use crate::next::Next;
use core::cell::UnsafeCell;
use core::ffi::{c_int, c_long};
use core::mem::MaybeUninit;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use core::time::Duration;
use vmalloc::{Hardened, HugePages, Options, Profile, Stats, Vmalloc};

/// The address of the allocator; null before it is created. Protocol PR-PUBLISH.
static MADE: AtomicPtr<Vmalloc> = AtomicPtr::new(null_mut());
/// Set by the one thread that creates it, also if that fails. Protocol PR-PUBLISH.
static TRIED: AtomicBool = AtomicBool::new(false);
/// The constructor has run, so functions of the C library can be called. Protocol PR-CONF.
static BEGUN: AtomicBool = AtomicBool::new(false);
static PLACE: Place = Place(UnsafeCell::new(MaybeUninit::uninit()));

struct Place(UnsafeCell<MaybeUninit<Vmalloc>>);

// SAFETY: written once, by the thread that set TRIED; shared only after that, by MADE.
unsafe impl Sync for Place {}

/// The most bytes that are cached. Protocol PR-CONF.
static CACHED_MAX: AtomicUsize = AtomicUsize::new(Conf::DEFAULT.budget_bytes);
/// The allocator has the hardened profile. Protocol PR-CONF.
static HARDENED: AtomicBool = AtomicBool::new(Conf::DEFAULT.hardened);
/// The allocator zeroes freed memory. Protocol PR-CONF.
static ZEROES: AtomicBool = AtomicBool::new(Conf::DEFAULT.zero_on_free);
/// The decay time in milliseconds; 0 for none. Protocol PR-CONF.
static DECAY: AtomicU64 = AtomicU64::new(milliseconds(Conf::DEFAULT.decay));
/// A background thread performs the decay. Protocol PR-CONF.
static THREAD: AtomicBool = AtomicBool::new(Conf::DEFAULT.background_thread);
/// A [`HugePages`], as a number. Protocol PR-CONF.
static HUGE: AtomicU8 = AtomicU8::new(Conf::DEFAULT.huge_pages as u8);
/// Calls are counted. Protocol PR-CONF.
static COUNTING: AtomicBool = AtomicBool::new(false);

/// An event that is counted.
#[derive(Clone, Copy)]
pub(crate) enum Event {
    /// Allocated.
    Served,
    /// Freed.
    Freed,
    /// Resized here.
    Resized,
    /// Large, and served by the next malloc.
    PassedOn,
}

/// Calls are timed. Protocol PR-CONF.
static TIMING: AtomicBool = AtomicBool::new(false);
/// The time of all calls. A counter.
static NANOSECONDS: AtomicU64 = AtomicU64::new(0);

/// The number of each event. A counter.
static COUNTS: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];
/// Bytes purged before this process was forked. A counter.
static PURGED_BEFORE: AtomicU64 = AtomicU64::new(0);

/// Returns a time in the unit of `DECAY`.
const fn milliseconds(time: Option<Duration>) -> u64 {
    match time {
        Some(time) => time.as_millis() as u64,
        None => 0,
    }
}

/// Sets the user's options, for allocations from now on.
pub(crate) fn configure(conf: &Conf) {
    HOT.set_threshold(conf.threshold_bytes);
    CACHED_MAX.store(conf.budget_bytes, Ordering::Relaxed);
    HARDENED.store(conf.hardened, Ordering::Relaxed);
    ZEROES.store(conf.zero_on_free, Ordering::Relaxed);
    DECAY.store(milliseconds(conf.decay), Ordering::Relaxed);
    THREAD.store(conf.background_thread, Ordering::Relaxed);
    HUGE.store(conf.huge_pages as u8, Ordering::Relaxed);
    COUNTING.store(conf.statistics, Ordering::Relaxed);
    if conf.plain {
        vmalloc::plain_calls_only();
    }
}

/// Counts and times calls from now on.
pub(crate) fn measure() {
    COUNTING.store(true, Ordering::Relaxed);
    TIMING.store(true, Ordering::Relaxed);
}

/// Adds the time until it is dropped to that of all calls, if calls are timed.
pub(crate) struct Timer(Option<u64>);

impl Timer {
    #[inline(always)]
    pub(crate) fn start() -> Self {
        Self(if TIMING.load(Ordering::Relaxed) { Some(now()) } else { None })
    }
}

impl Drop for Timer {
    #[inline(always)]
    fn drop(&mut self) {
        if let Some(began) = self.0 {
            NANOSECONDS.fetch_add(now().saturating_sub(began), Ordering::Relaxed);
        }
    }
}

#[cold]
fn now() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes a time.
    let _zero_if_failed = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Returns the nanoseconds of all timed calls.
pub(crate) fn nanoseconds() -> u64 {
    NANOSECONDS.load(Ordering::Relaxed)
}

/// Resets the counts in a child of a fork: the parent reports its own.
extern "C" fn reset_in_child() {
    for count in &COUNTS {
        count.store(0, Ordering::Relaxed);
    }
    NANOSECONDS.store(0, Ordering::Relaxed);
}

/// The same for the counts of the allocator. Called after its own handlers, when only a call that a signal interrupted
/// holds a lock. A child of such a handler reports that it purged nothing.
extern "C" fn reset_purged_in_child() {
    let purged = get().map_or(0, |memory| memory.try_stats().map_or(u64::MAX, |stats| stats.purged_bytes));
    PURGED_BEFORE.store(purged, Ordering::Relaxed);
}

/// Returns the bytes that this process has purged, of all that `stats` counts.
pub(crate) fn purged_here(stats: &Stats) -> u64 {
    stats.purged_bytes.saturating_sub(PURGED_BEFORE.load(Ordering::Relaxed))
}

/// Returns true if large memory has the hardened profile.
pub(crate) fn is_hardened() -> bool {
    HARDENED.load(Ordering::Relaxed)
}

/// Returns true if a size is large.
#[inline(always)]
pub(crate) fn is_large(bytes: usize) -> bool {
    bytes >= HOT.threshold()
}

/// Returns true if an allocation that is here already stays here when it is resized to that size. The bound is half the
/// threshold, so that a size around the threshold does not move each time.
pub(crate) fn stays(bytes: usize) -> bool {
    bytes >= HOT.threshold() / 2
}

/// Counts an event, if events are counted.
#[inline(always)]
pub(crate) fn count(event: Event) {
    if COUNTING.load(Ordering::Relaxed) {
        COUNTS[event as usize].fetch_add(1, Ordering::Relaxed);
    }
}

/// Returns the count of an event.
pub(crate) fn counted(event: Event) -> u64 {
    COUNTS[event as usize].load(Ordering::Relaxed)
}

/// Returns the allocator, if it exists.
#[inline(always)]
pub(crate) fn get() -> Option<&'static Vmalloc> {
    // Acquire pairs with the release of `make`.
    let made = MADE.load(Ordering::Acquire);
    // SAFETY: null, or an allocator that is never dropped.
    unsafe { made.as_ref() }
}

/// Returns the allocator, which the first call creates. During the creation, and if it fails, other calls get `None`
/// and do not wait.
#[inline(always)]
pub(crate) fn allocator() -> Option<&'static Vmalloc> {
    get().or_else(make)
}

#[cold]
fn make() -> Option<&'static Vmalloc> {
    // Calls during relocation, as by resolvers of functions (ifunc), are served by the next malloc.
    if !BEGUN.load(Ordering::Relaxed) || TRIED.load(Ordering::Relaxed) || TRIED.swap(true, Ordering::Relaxed)
    {
        // Another thread may have finished it by now.
        return get();
    }
    // Otherwise a child would report its parent's counts, too.
    run_in_children(reset_in_child);
    let hardened = HARDENED.load(Ordering::Relaxed);
    let profile = if hardened { Profile::Hardened(Hardened::default()) } else { Profile::Ordinary };
    let huge_pages = [HugePages::Never, HugePages::Auto, HugePages::Always]
        .into_iter()
        .find(|&huge| huge as u8 == HUGE.load(Ordering::Relaxed))
        .unwrap_or(HugePages::System);
    let options = Options::default()
        .decay(Some(DECAY.load(Ordering::Relaxed)).filter(|&ms| ms > 0).map(Duration::from_millis))
        .background_thread(THREAD.load(Ordering::Relaxed))
        .huge_pages(huge_pages)
        .profile(profile)
        .cache_bytes_max(CACHED_MAX.load(Ordering::Relaxed))
        .zero_on_free(ZEROES.load(Ordering::Relaxed));
    let made = Vmalloc::new(options).ok()?;
    let place = PLACE.0.get().cast::<Vmalloc>();
    // SAFETY: only the thread that set TRIED gets here.
    unsafe { place.write(made) };
    run_in_children(reset_purged_in_child);
    // SAFETY: written above.
    HOT.set_arena(&unsafe { &*place }.addresses());
    // Release pairs with the acquire of `get`.
    MADE.store(place, Ordering::Release);
    if [Limit::Addresses, Limit::Data].iter().any(|limit| limit.is_above(0)) {
        HOT.retry_small();
    } else {
        prime_mmap_threshold();
    }
    if hardened {
        vmalloc::unless_plain(crate::fault::handle);
    }
    get()
}

/// Allows the creation of the allocator from now on.
pub(crate) fn begin() {
    // First, so that the handlers are registered at any fork, also in a signal handler. And before the creation, whose
    // own registration would call this code and wait for itself.
    register_first();
    BEGUN.store(true, Ordering::Relaxed);
}

/// Registers the allocator's fork handlers before those that the caller is about to register. Its own registration
/// calls this, too.
pub(crate) fn register_first() {
    /// Set by the one call that registers. Protocol PR-PUBLISH.
    static DONE: AtomicBool = AtomicBool::new(false);
    if !DONE.load(Ordering::Relaxed) && !DONE.swap(true, Ordering::Relaxed) {
        vmalloc::prepare_for_forks();
    }
}

/// Registers a call at the start of each child of a fork, if events are counted.
fn run_in_children(call: unsafe extern "C" fn()) {
    if COUNTING.load(Ordering::Relaxed)
        && let Some(next) = Next::get()
    {
        // SAFETY: stays loaded.
        let _zero = unsafe { next.register_atfork(None, None, Some(call), null_mut()) };
    }
}

/// The least that the C library maps for its own heap, approximately.
const NEXT_BYTES: usize = 1 << 20;

/// A limit of the process that the arena may use up.
#[derive(Clone, Copy)]
enum Limit {
    /// Of address space: `RLIMIT_AS`.
    Addresses,
    /// Of private writable memory: `RLIMIT_DATA`.
    Data,
}

impl Limit {
    fn number(self) -> c_int {
        match self {
            Self::Addresses => libc::RLIMIT_AS as c_int,
            Self::Data => libc::RLIMIT_DATA as c_int,
        }
    }

    /// Returns the limit; `RLIM_INFINITY` without one.
    fn current(self) -> libc::rlim_t {
        // Miri has no limits.
        if cfg!(miri) {
            return libc::RLIM_INFINITY;
        }
        let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: writes `limit`.
        let read = unsafe { libc::getrlimit(self.number() as _, &raw mut limit) };
        if read == 0 { limit.rlim_cur } else { libc::RLIM_INFINITY }
    }

    /// Returns true if it is set, to more than `bytes`. Returns false if it cannot be read, because only plain calls are
    /// made.
    fn is_above(self, bytes: usize) -> bool {
        let current = vmalloc::unless_plain(|| self.current()).unwrap_or(libc::RLIM_INFINITY);
        current != libc::RLIM_INFINITY && current > bytes as libc::rlim_t
    }

    /// Returns true if the system maps `bytes` bytes now, so that the limit is no reason for a failure (any more).
    #[inline(never)]
    fn has_room(self, bytes: usize) -> bool {
        let access = match self {
            Self::Addresses => libc::PROT_NONE,
            Self::Data => libc::PROT_READ | libc::PROT_WRITE,
        };
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let bytes = bytes.max(NEXT_BYTES).cast_signed() as c_long;
        // SAFETY: a mapping of its own, at an address that the system chooses.
        let at = unsafe { call(libc::SYS_mmap, [0, bytes, access.into(), flags.into(), -1, 0]) };
        if at != -1 {
            // SAFETY: mapped above, and not used.
            let _unmapped = unsafe { call(libc::SYS_munmap, [at, bytes, 0, 0, 0, 0]) };
        }
        at != -1
    }

    /// Releases unused memory that it counts. Returns true if there was any.
    fn release(self) -> bool {
        let Some(memory) = get() else { return false };
        match self {
            Self::Addresses => memory.release_addresses(),
            Self::Data => memory.shut() > 0,
        }
    }
}

/// A limit that a program is about to set, and its value before.
pub(crate) struct Limited {
    limit: Limit,
    before: libc::rlim_t,
}

/// Reads a limit before a program sets it. Returns `None` if the arena does not count in it.
pub(crate) fn note_limit(resource: c_int) -> Option<Limited> {
    let limit = [Limit::Addresses, Limit::Data].into_iter().find(|limit| resource == limit.number())?;
    // A filter that allows the program to set a limit allows it to be read.
    Some(Limited { limit, before: limit.current() })
}

/// Releases cached memory after the program has lowered a limit, which that memory would use up.
#[cold]
pub(crate) fn limit_changed(Limited { limit, before }: Limited) {
    let _keep = crate::words::KeepErrno::new();
    if limit.current() < before {
        HOT.retry_small();
        limit.release();
    }
}

/// Releases cached memory that limits count, after a request for `bytes` bytes failed. Returns true if it may succeed
/// now; also if another thread released memory meanwhile.
#[cold]
fn release(bytes: usize) -> bool {
    let _keep = crate::words::KeepErrno::new();
    // A request above the limit fails afterwards, too, and addresses would be released for nothing. Another thread may
    // release the last ones in between, so the room is looked for twice.
    let makes_room =
        |limit: Limit| limit.is_above(bytes) && (0..2).any(|_| limit.has_room(bytes) || limit.release());
    !vmalloc::is_guest() && (makes_room(Limit::Addresses) | makes_room(Limit::Data))
}

/// The most releases for one request: the hardened profile releases a part first, and everything the second time.
pub(crate) const RELEASES: usize = 2;

/// Repeats a request for `bytes` bytes after a failure, if a limit may be the reason and memory could be released.
#[inline]
pub(crate) fn ask_again<T>(bytes: usize, ask: impl Fn() -> T, failed: impl Fn(&T) -> bool) -> T {
    let keep = crate::words::KeepErrno::new();
    let mut answer = ask();
    for _ in 0..RELEASES {
        if !failed(&answer) || !release(bytes) {
            break;
        }
        answer = ask();
    }
    keep.unless(failed(&answer));
    answer
}

/// Releases addresses before the caller locks all of them. Returns true if there were any.
#[cold]
pub(crate) fn release_addresses() -> bool {
    let _keep = crate::words::KeepErrno::new();
    !vmalloc::is_guest() && Limit::Addresses.release()
}

/// Raises glibc's dynamic thresholds: allocates and frees one untouched chunk of the next `malloc` that is mapped.
///
/// glibc trims the top of its heap at every free that leaves 128 KiB there, until the first mapped chunk is freed. From
/// then on it trims above twice the size of that chunk. Large allocations are served here, so it would never free such a
/// chunk. A program whose small memory grows and shrinks around the bound would fault in the same pages again and again.
/// Packing in git has 22,000 faults or 1,000, depending on the layout of its heap, and 10,500 without the preload.
/// `mallopt` would overrule a threshold that the user set by the environment or by a call. This does not.
///
/// It is not done under a limit. Then a large allocation that is passed on is a mapping, whose free returns the
/// addresses. In the C library's heap it would occupy them.
#[cold]
fn prime_mmap_threshold() {
    const CHUNK_BYTES: usize = 1 << 20;
    let Some(next) = Next::get() else { return };
    // SAFETY: allocates memory.
    let chunk = unsafe { next.malloc(CHUNK_BYTES) };
    // SAFETY: allocated above, or null, and not used.
    unsafe { next.free(chunk) };
}

/// Returns the allocator if an address is in its arena.
#[inline(always)]
pub(crate) fn owner(at: *const u8) -> Option<&'static Vmalloc> {
    get().filter(|memory| memory.contains(at))
}
