//! The allocator of the process, and who may use it when.

use crate::conf::Conf;
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use vmalloc::{Hardened, Options, Profile, Vmalloc};

/// Where the allocator is, once it was made.
static MADE: AtomicPtr<Vmalloc> = AtomicPtr::new(null_mut());
/// Somebody made it, is making it, or found out that it cannot be.
static TRIED: AtomicBool = AtomicBool::new(false);
static PLACE: Place = Place(UnsafeCell::new(MaybeUninit::uninit()));

struct Place(UnsafeCell<MaybeUninit<Vmalloc>>);

// SAFETY: written once, by whoever set TRIED first; shared only after that, by MADE.
unsafe impl Sync for Place {}

/// Sizes from which memory comes from the allocator.
static THRESHOLD: AtomicUsize = AtomicUsize::new(Conf::DEFAULT.threshold_bytes);
static KEPT_MAX: AtomicUsize = AtomicUsize::new(Conf::DEFAULT.budget_bytes);
/// The allocator is made with the hardened profile.
static HARDENED: AtomicBool = AtomicBool::new(Conf::DEFAULT.hardened);
/// Calls are counted.
static COUNTING: AtomicBool = AtomicBool::new(false);

/// What is counted.
#[derive(Clone, Copy)]
pub(crate) enum Event {
    /// Given out.
    Served,
    /// Taken back.
    Freed,
    /// Resized here.
    Resized,
    /// Large, but the next malloc had to serve it.
    PassedOn,
}

static COUNTS: [AtomicU64; 4] = [const { AtomicU64::new(0) }; 4];

/// Sets what a user chose. For allocations from now on.
pub(crate) fn configure(conf: &Conf) {
    THRESHOLD.store(conf.threshold_bytes, Ordering::Relaxed);
    KEPT_MAX.store(conf.budget_bytes, Ordering::Relaxed);
    HARDENED.store(conf.hardened, Ordering::Relaxed);
    COUNTING.store(conf.statistics, Ordering::Relaxed);
}

/// Tells whether a size is large.
#[inline(always)]
pub(crate) fn is_large(bytes: usize) -> bool {
    bytes >= THRESHOLD.load(Ordering::Relaxed)
}

/// Sizes from which what is here already stays here: half, so that nobody goes to and fro.
pub(crate) fn stays(bytes: usize) -> bool {
    bytes >= THRESHOLD.load(Ordering::Relaxed) / 2
}

/// Counts, if anybody wants to know.
#[inline(always)]
pub(crate) fn count(event: Event) {
    if COUNTING.load(Ordering::Relaxed) {
        COUNTS[event as usize].fetch_add(1, Ordering::Relaxed);
    }
}

/// What was counted.
pub(crate) fn counted(event: Event) -> u64 {
    COUNTS[event as usize].load(Ordering::Relaxed)
}

/// The allocator, if it was made.
#[inline(always)]
pub(crate) fn if_made() -> Option<&'static Vmalloc> {
    // Acquire pairs with the release of `make`.
    let made = MADE.load(Ordering::Acquire);
    // SAFETY: null, or an allocator that is never dropped.
    unsafe { made.as_ref() }
}

/// The allocator; made by the first who asks. Nobody waits for it: meanwhile, and if it cannot be made, there is none.
#[inline(always)]
pub(crate) fn allocator() -> Option<&'static Vmalloc> {
    if_made().or_else(make)
}

#[cold]
fn make() -> Option<&'static Vmalloc> {
    if TRIED.load(Ordering::Relaxed) || TRIED.swap(true, Ordering::Relaxed) {
        // Another thread may be through with it by now.
        return if_made();
    }
    // No thread: whoever runs a program as it is did not ask for one, and some calls (unshare) are refused to programs with two.
    let hardened = HARDENED.load(Ordering::Relaxed);
    let profile = if hardened { Profile::Hardened(Hardened::default()) } else { Profile::Ordinary };
    let options = Options {
        decay: None,
        profile,
        kept_bytes_max: KEPT_MAX.load(Ordering::Relaxed),
        ..Options::default()
    };
    let made = Vmalloc::new(options).ok()?;
    let place = PLACE.0.get().cast::<Vmalloc>();
    // SAFETY: only who set TRIED comes here.
    unsafe { place.write(made) };
    // Release pairs with the acquire of `if_made`.
    MADE.store(place, Ordering::Release);
    if_made()
}

/// The allocator, if an address is in its arena.
#[inline(always)]
pub(crate) fn owner(at: *const u8) -> Option<&'static Vmalloc> {
    if_made().filter(|memory| memory.contains(at))
}
