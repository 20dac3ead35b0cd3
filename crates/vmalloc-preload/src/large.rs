//! The allocator of the process, and who may use it when.

use crate::conf::Conf;
use crate::filter::call;
use crate::hot::HOT;
use crate::next::Next;
use core::cell::UnsafeCell;
use core::ffi::{c_int, c_long};
use core::mem::MaybeUninit;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use core::time::Duration;
use vmalloc::{Hardened, HugePages, Options, Profile, Stats, Vmalloc};

/// The address of the allocator, once it was made.
static MADE: AtomicPtr<Vmalloc> = AtomicPtr::new(null_mut());
/// A thread made it, is making it, or found out that it cannot be.
static TRIED: AtomicBool = AtomicBool::new(false);
/// The constructor has run, so the C library is ready for whoever asks it.
static BEGUN: AtomicBool = AtomicBool::new(false);
static PLACE: Place = Place(UnsafeCell::new(MaybeUninit::uninit()));

struct Place(UnsafeCell<MaybeUninit<Vmalloc>>);

// SAFETY: written once, by whoever set TRIED first; shared only after that, by MADE.
unsafe impl Sync for Place {}

static KEPT_MAX: AtomicUsize = AtomicUsize::new(Conf::DEFAULT.budget_bytes);
/// The allocator is made with the hardened profile.
static HARDENED: AtomicBool = AtomicBool::new(Conf::DEFAULT.hardened);
/// The allocator zeroes what is freed.
static ZEROES: AtomicBool = AtomicBool::new(Conf::DEFAULT.zero_on_free);
/// Milliseconds; 0 is none.
static DECAY: AtomicU64 = AtomicU64::new(milliseconds(Conf::DEFAULT.decay));
/// A thread sees to it.
static THREAD: AtomicBool = AtomicBool::new(Conf::DEFAULT.background_thread);
/// As `HugePages` has them in a number.
static HUGE: AtomicU8 = AtomicU8::new(Conf::DEFAULT.huge_pages as u8);
/// Calls are counted.
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
    /// Large, but the next malloc had to serve it.
    PassedOn,
}

/// Calls are timed.
static TIMING: AtomicBool = AtomicBool::new(false);
static NANOSECONDS: AtomicU64 = AtomicU64::new(0);

static COUNTS: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];
/// Bytes that had been purged when this process was forked.
static PURGED_BEFORE: AtomicU64 = AtomicU64::new(0);

/// A time as `DECAY` has it.
const fn milliseconds(time: Option<Duration>) -> u64 {
    match time {
        Some(time) => time.as_millis() as u64,
        None => 0,
    }
}

/// Sets what a user chose. For allocations from now on.
pub(crate) fn configure(conf: &Conf) {
    HOT.set_threshold(conf.threshold_bytes);
    KEPT_MAX.store(conf.budget_bytes, Ordering::Relaxed);
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

/// The time of the calling thread's call, if anybody wants to know: from when this is made to when it goes.
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
    let _told = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Nanoseconds in the calls that were timed.
pub(crate) fn nanoseconds() -> u64 {
    NANOSECONDS.load(Ordering::Relaxed)
}

/// In the child of a fork: what its parent did is told by the parent.
extern "C" fn begin_anew() {
    for count in &COUNTS {
        count.store(0, Ordering::Relaxed);
    }
    NANOSECONDS.store(0, Ordering::Relaxed);
}

/// The same for what only the allocator counts. Called behind its own handlers, when no lock is held any more, but by a
/// call that a signal interrupted. A child of such a handler says that it purged nothing.
extern "C" fn begin_anew_behind() {
    let purged = get().map_or(0, |memory| memory.try_stats().map_or(u64::MAX, |stats| stats.purged_bytes));
    PURGED_BEFORE.store(purged, Ordering::Relaxed);
}

/// Returns the bytes that this process has purged, of all that `stats` counts.
pub(crate) fn given_back(stats: &Stats) -> u64 {
    stats.purged_bytes.saturating_sub(PURGED_BEFORE.load(Ordering::Relaxed))
}

/// Tells whether large memory is of the hardened profile.
pub(crate) fn is_hardened() -> bool {
    HARDENED.load(Ordering::Relaxed)
}

/// Tells whether a size is large.
#[inline(always)]
pub(crate) fn is_large(bytes: usize) -> bool {
    bytes >= HOT.threshold()
}

/// Sizes from which what is here already stays here: half, so that nobody goes to and fro.
pub(crate) fn stays(bytes: usize) -> bool {
    bytes >= HOT.threshold() / 2
}

/// Counts, if anybody wants to know.
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

/// The allocator, if it was made.
#[inline(always)]
pub(crate) fn get() -> Option<&'static Vmalloc> {
    // Acquire pairs with the release of `make`.
    let made = MADE.load(Ordering::Acquire);
    // SAFETY: null, or an allocator that is never dropped.
    unsafe { made.as_ref() }
}

/// The allocator; made by the first who asks. Nobody waits for it: meanwhile, and if it cannot be made, there is none.
#[inline(always)]
pub(crate) fn allocator() -> Option<&'static Vmalloc> {
    get().or_else(make)
}

#[cold]
fn make() -> Option<&'static Vmalloc> {
    // Who asks while programs are relocated, as resolvers of functions (ifunc) do, is served by the next malloc.
    if !BEGUN.load(Ordering::Relaxed) || TRIED.load(Ordering::Relaxed) || TRIED.swap(true, Ordering::Relaxed)
    {
        // Another thread may be through with it by now.
        return get();
    }
    // Without them a child tells its parent's counts, too.
    begin_in_children(begin_anew);
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
        .cache_bytes_max(KEPT_MAX.load(Ordering::Relaxed))
        .zero_on_free(ZEROES.load(Ordering::Relaxed));
    let made = Vmalloc::new(options).ok()?;
    let place = PLACE.0.get().cast::<Vmalloc>();
    // SAFETY: only who set TRIED comes here.
    unsafe { place.write(made) };
    begin_in_children(begin_anew_behind);
    // SAFETY: written above.
    HOT.set_arena(&unsafe { &*place }.addresses());
    // Release pairs with the acquire of `get`.
    MADE.store(place, Ordering::Release);
    if [Limit::Addresses, Limit::Data].iter().any(|limit| limit.is_above(0)) {
        HOT.retry_small();
    } else {
        teach_next();
    }
    if hardened {
        vmalloc::unless_plain(crate::fault::handle);
    }
    get()
}

/// Lets the allocator be made from now on.
pub(crate) fn begin() {
    // Before anybody can: a fork, also by a handler of a signal, finds that it was done. And before it is made, since a
    // registration that it began itself would come here, too, and wait for itself.
    register_first();
    BEGUN.store(true, Ordering::Relaxed);
}

/// Registers what the allocator does at a fork before whoever registers something now. Its own registration comes here,
/// too.
pub(crate) fn register_first() {
    static DONE: AtomicBool = AtomicBool::new(false);
    if !DONE.load(Ordering::Relaxed) && !DONE.swap(true, Ordering::Relaxed) {
        vmalloc::prepare_for_forks();
    }
}

/// Has children of forks begin with a call, if anybody wants to know what they do.
fn begin_in_children(call: unsafe extern "C" fn()) {
    if COUNTING.load(Ordering::Relaxed)
        && let Some(next) = Next::get()
    {
        // SAFETY: stays loaded.
        let _zero = unsafe { next.register_atfork(None, None, Some(call), null_mut()) };
    }
}

/// Bytes that the C library maps at least for its own heap, about.
const NEXT_BYTES: usize = 1 << 20;

/// A limit of the process that the arena may be in the way of.
#[derive(Clone, Copy)]
enum Limit {
    /// Of addresses.
    Addresses,
    /// Of what can be written.
    Data,
}

impl Limit {
    fn number(self) -> c_int {
        match self {
            Self::Addresses => libc::RLIMIT_AS as c_int,
            Self::Data => libc::RLIMIT_DATA as c_int,
        }
    }

    /// Returns the limit; the largest number without one.
    fn current(self) -> libc::rlim_t {
        let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: writes `limit`.
        let read = unsafe { libc::getrlimit(self.number() as _, &raw mut limit) };
        if read == 0 { limit.rlim_cur } else { libc::RLIM_INFINITY }
    }

    /// Returns true if it is set, to more than `bytes`, as far as the system may be asked.
    fn is_above(self, bytes: usize) -> bool {
        let current = vmalloc::unless_plain(|| self.current()).unwrap_or(libc::RLIM_INFINITY);
        current != libc::RLIM_INFINITY && current > bytes as libc::rlim_t
    }

    /// Returns true if the system maps `bytes` bytes now, so that the limit is no reason for a failure (any more).
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

    /// Leaves to others what it counts and nobody uses; `true` if that is more than before.
    fn release(self) -> bool {
        let Some(memory) = get() else { return false };
        match self {
            Self::Addresses => memory.release_addresses(),
            Self::Data => memory.shut() > 0,
        }
    }
}

/// A limit that a program is about to set, and what it was before.
pub(crate) struct Limited {
    limit: Limit,
    before: libc::rlim_t,
}

/// Notes a limit before a program sets it; `None` if the arena is not in its way.
pub(crate) fn note_limit(resource: c_int) -> Option<Limited> {
    let limit = [Limit::Addresses, Limit::Data].into_iter().find(|limit| resource == limit.number())?;
    // A filter that lets the program set a limit lets it be read.
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
    // A request above the limit fails afterwards, too, and addresses would be released for nothing.
    let gives = |limit: Limit| limit.is_above(bytes) && (limit.has_room(bytes) || limit.release());
    !vmalloc::is_guest() && (gives(Limit::Addresses) | gives(Limit::Data))
}

/// Releases for one request: the hardened profile releases a part first, and everything the second time.
pub(crate) const RELEASES: usize = 2;

/// Asks for `bytes` bytes again after a failure, if a limit may be the reason and there is something to release.
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

/// Releases addresses before the caller locks all of them; `true` if there were any.
#[cold]
pub(crate) fn release_addresses() -> bool {
    let _keep = crate::words::KeepErrno::new();
    !vmalloc::is_guest() && Limit::Addresses.release()
}

/// Frees one large piece of the next `malloc`, untouched.
///
/// glibc releases the top of its heap at every free that leaves 128 KiB there, until the first
/// mapped piece is freed. From then on it keeps twice as much as that piece had. Since large pieces
/// are ours, it would never see one. Then a program whose small sizes come and go at that bound
/// faults the same pages in again and again. Packing in git has 22,000 faults or 1,000, as its heap
/// happens to lie, and 10,500 without the preload. This overrules no bounds that a user chose by an
/// environment or by a call (`mallopt`), as `mallopt` would.
///
/// Not under a limit: what is passed on for want of addresses here is a mapping there then, which a free unmaps. In its
/// heap it would keep the addresses below it.
#[cold]
fn teach_next() {
    const LESSON_BYTES: usize = 1 << 20;
    let Some(next) = Next::get() else { return };
    // SAFETY: asks for memory.
    let piece = unsafe { next.malloc(LESSON_BYTES) };
    // SAFETY: the next one's, or null; nobody else has it.
    unsafe { next.free(piece) };
}

/// The allocator, if an address is in its arena.
#[inline(always)]
pub(crate) fn owner(at: *const u8) -> Option<&'static Vmalloc> {
    get().filter(|memory| memory.contains(at))
}
