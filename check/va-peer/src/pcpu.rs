//! Per-CPU spaces for the C functions: their chunks, their balance and their policies.
//!
//! # Theory
//! Nothing is mapped and nothing zeroed here, as in the library of Linux's allocator with which this one is compared.
//! Chunks are numbers, allocated from the top, the highest free address first. A new space replaces the one before.
//! Spaces remain until the process ends, so that a call finds the current one without a lock, and without unsafe code.

use crate::host::{Host, Work};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::{self, Thread};
use va_base::Va;
use va_percpu::config::{Linux612, Runs, Scan, Standard};
use va_percpu::{
    AllocError, Backend, BackendError, Config, Context, Found, Geometry, Offset, PercpuSpace, Place, Request,
    Sizes, Stats,
};

/// Address of the first chunk, as in Linux's library.
const FIRST: Va = Va::new(0xffff_8880_4000_0000);
/// End of the others.
const TOP: u64 = 0xffff_e8ff_0000_0000;
/// Spaces that a process can create.
const SPACES: usize = 1 << 14;
/// Granularity of address space.
const ATOM: u32 = 2 << 20;
/// Names a policy.
const POLICY_VARIABLE: &str = "VA_PEER_POLICY";

/// The settings of the caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// Units.
    pub units: u32,
    /// Bytes of a unit.
    pub unit: u32,
    /// Bytes of the sections of the first chunk.
    pub parts: [u32; 3],
    /// The thread that balances.
    pub work: Work,
}

/// Chunks that are numbers.
#[derive(Debug)]
pub struct Numbers {
    /// From the beginning of one chunk to the next.
    stride: u64,
    /// Addresses that were used and are free, the highest first; and how many were ever used.
    places: Mutex<(BTreeSet<u64>, u64)>,
    populated: AtomicU64,
    depopulated: AtomicU64,
    destroyed: AtomicU64,
    helper: OnceLock<Thread>,
}

impl Numbers {
    fn new(sizes: &Sizes) -> Self {
        let bytes = (u64::from(sizes.unit) * u64::from(sizes.units)).next_multiple_of(u64::from(sizes.atom));
        Self {
            stride: bytes.next_power_of_two(),
            places: Mutex::default(),
            populated: AtomicU64::new(0),
            depopulated: AtomicU64::new(0),
            destroyed: AtomicU64::new(0),
            helper: OnceLock::new(),
        }
    }
}

impl Backend for Numbers {
    const BY_PAGE: bool = true;

    fn create(&self, _geometry: &Geometry) -> Result<Va, BackendError> {
        let mut places = self.places.lock();
        let place = places.0.pop_first().unwrap_or_else(|| {
            places.1 += 1;
            places.1
        });
        let base =
            place.checked_mul(self.stride).and_then(|below| TOP.checked_sub(below)).ok_or(BackendError)?;
        Ok(Va::new(base))
    }

    fn destroy(&self, _geometry: &Geometry, base: Va) {
        self.places.lock().0.insert((TOP - base.get()) / self.stride);
        self.destroyed.fetch_add(1, Ordering::Relaxed);
    }

    fn populate(&self, geometry: &Geometry, _base: Va, pages: Range<u32>) -> Result<(), BackendError> {
        let pages = u64::from(pages.end - pages.start) * u64::from(geometry.sizes().units);
        self.populated.fetch_add(pages, Ordering::Relaxed);
        Ok(())
    }

    fn depopulate(&self, geometry: &Geometry, _base: Va, pages: Range<u32>) {
        let pages = u64::from(pages.end - pages.start) * u64::from(geometry.sizes().units);
        self.depopulated.fetch_add(pages, Ordering::Relaxed);
    }

    fn flush(&self, _geometry: &Geometry, _base: Va, _pages: Range<u32>) {}

    /// Does nothing: there is no memory.
    #[inline(always)]
    fn zero(&self, _geometry: &Geometry, _base: Va, _off: u32, _bytes: u32) {}

    fn wake(&self) {
        if let Some(helper) = self.helper.get() {
            helper.unpark();
        }
    }
}

type Space<C> = PercpuSpace<Host, Numbers, C>;

/// A space under one of the policies.
enum AnySpace {
    Linux(Space<Linux612>),
    Scan(Space<Scan>),
    Runs(Space<Runs>),
    Standard(Space<Standard>),
}

macro_rules! on {
    ($any:expr, $space:ident => $do:expr) => {
        match $any {
            AnySpace::Linux($space) => $do,
            AnySpace::Scan($space) => $do,
            AnySpace::Runs($space) => $do,
            AnySpace::Standard($space) => $do,
        }
    };
}

struct Running {
    space: AnySpace,
    work: Work,
    passes: AtomicU64,
    stop: AtomicBool,
}

static RUNNING: [OnceLock<Arc<Running>>; SPACES] = [const { OnceLock::new() }; SPACES];
/// The current space.
static NOW: AtomicUsize = AtomicUsize::new(0);
/// Held while a space is created.
static BEGIN: Mutex<()> = Mutex::new(());

#[inline]
fn now() -> Option<&'static Running> {
    // Pairs with the Release of `start`: the new space is visible.
    RUNNING[NOW.load(Ordering::Acquire)].get().map(|running| &**running)
}

/// Creates a space that replaces the current one.
pub(crate) fn start(settings: &Settings) -> Option<()> {
    let _one = BEGIN.lock();
    let [fixed, reserved, dynamic] = settings.parts;
    let (unit, units) = (settings.unit, settings.units);
    let sizes = Sizes { unit, fixed, reserved, dynamic, atom: ATOM, alloc: unit.checked_mul(units)?, units };
    let geometry = Geometry::new(sizes, FIRST).ok()?;
    fn space<C: Config>(geometry: Geometry, settings: &Settings) -> Option<Space<C>> {
        let host = Host::new(settings.units, settings.units, settings.work);
        PercpuSpace::new(geometry, host, Numbers::new(geometry.sizes())).ok()
    }
    let space = match std::env::var(POLICY_VARIABLE).as_deref() {
        Ok("linux") => AnySpace::Linux(space(geometry, settings)?),
        Ok("runs") => AnySpace::Runs(space(geometry, settings)?),
        Ok("scan") => AnySpace::Scan(space(geometry, settings)?),
        Err(_) | Ok("" | "default") => AnySpace::Standard(space(geometry, settings)?),
        Ok(_) => return None,
    };
    let old = NOW.load(Ordering::Relaxed);
    let next = old + usize::from(RUNNING[old].get().is_some());
    if next == SPACES {
        return None;
    }
    let running = Arc::new(Running {
        space,
        work: settings.work,
        passes: AtomicU64::new(0),
        stop: AtomicBool::new(false),
    });
    if let Some(old) = RUNNING[old].get() {
        old.stop.store(true, Ordering::SeqCst);
        on!(&old.space, space => space.backend().wake());
    }
    if settings.work == Work::Helper {
        let theirs = running.clone();
        let work = move || {
            while !theirs.stop.load(Ordering::SeqCst) {
                if !theirs.balance() {
                    thread::park();
                }
            }
        };
        let helper = thread::Builder::new().name("va-peer balance".into()).spawn(work).ok()?;
        // The space was just created, so no helper was set before.
        let _first = on!(&running.space, space => space.backend().helper.set(helper.thread().clone()));
    }
    RUNNING[next].set(running).ok()?;
    NOW.store(next, Ordering::Release);
    Some(())
}

impl Running {
    /// Runs the due balance. `false` if none was due.
    fn balance(&self) -> bool {
        on!(&self.space, space => {
            let due = space.is_balance_due();
            if due {
                space.balance();
                self.passes.fetch_add(1, Ordering::Relaxed);
            }
            due
        })
    }

    #[inline]
    fn after(&self) {
        if self.work == Work::Here {
            on!(&self.space, space => if space.is_balance_due() { self.balance_here() });
        }
    }

    #[cold]
    fn balance_here(&self) {
        self.balance();
    }
}

/// Allocates an object.
#[inline]
pub(crate) fn alloc(size: u64, align: u64, atomic: bool, reserved: bool) -> Option<Offset> {
    let running = now()?;
    let (size, align) = (usize::try_from(size).ok()?, usize::try_from(align).ok()?);
    let context = if atomic { Context::Atomic } else { Context::Sleeping };
    let place = if reserved { Place::Reserved } else { Place::Anywhere };
    let request = Request::new(size, align).context(context).place(place);
    let got: Result<Offset, AllocError> = on!(&running.space, space => space.alloc(&request));
    running.after();
    got.ok()
}

/// Frees an object. `false` if there is none.
#[inline]
pub(crate) fn free(offset: Offset) -> bool {
    let Some(running) = now() else { return false };
    let freed = on!(&running.space, space => space.free(offset)).is_ok();
    running.after();
    freed
}

/// Returns the place of an object.
pub(crate) fn find(offset: Offset) -> Option<Found> {
    on!(&now()?.space, space => space.find(offset))
}

/// Runs the due balance; returns the number of passes.
pub(crate) fn run_work() -> u32 {
    now().is_some_and(Running::balance).into()
}

/// Counts of a space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Count {
    /// Of the space.
    pub stats: Stats,
    /// Pages of all units populated, and depopulated, since the beginning; those of the first chunk existed before.
    pub pages: [u64; 2],
    /// Chunks destroyed.
    pub destroyed: u64,
    /// Passes of the balance.
    pub passes: u64,
    /// Units.
    pub units: u32,
}

/// Returns the counts, once a helper has nothing to do.
pub(crate) fn count() -> Option<Count> {
    let running = now()?;
    if running.work == Work::Helper {
        while on!(&running.space, space => space.is_balance_due()) {
            thread::yield_now();
        }
    }
    on!(&running.space, space => {
        // A pass releases its lock between steps, so this waits until no pass is due.
        let backend = space.backend();
        let [populated, depopulated, destroyed] =
            [&backend.populated, &backend.depopulated, &backend.destroyed].map(|count| count.load(Ordering::Relaxed));
        Some(Count {
            stats: space.stats(),
            pages: [populated, depopulated],
            destroyed,
            passes: running.passes.load(Ordering::Relaxed),
            units: space.geometry().sizes().units,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_space_begins_anew_and_serves() {
        let settings = Settings { units: 4, unit: 262_144, parts: [221_184, 8192, 28_672], work: Work::Here };
        for _ in 0..2 {
            start(&settings).unwrap();
            let offsets: Vec<Offset> = (0..100_000).map(|_| alloc(16, 16, false, false).unwrap()).collect();
            let count = count().unwrap();
            // Seven are full except 1.5 KiB; the eighth was created for spare pages.
            assert_eq!((count.stats.live, count.stats.chunks), (100_000, 8));
            assert_eq!(find(offsets[0]).unwrap().chunk, 0);
            assert_eq!(find(offsets[99_999]).unwrap().chunk, 6);
            assert!(!free(Offset::new(offsets[7].get() + 4)));
            assert!(offsets.iter().all(|&offset| free(offset)));
            assert!(!free(offsets[7]));
            assert_eq!((count.units, run_work()), (4, 0));
            on!(&now().unwrap().space, space => space.validate().unwrap());
        }
    }
}
