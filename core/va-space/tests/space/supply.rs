//! Metadata that a space allocates with no lock held when it has none under one, and that a shrinker frees.

use crate::Standard;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use va_base::{Align, AllocError, Context, HeapMachine, LockClass, Pages, Request, Va, VaRange, Watch};
use va_sim::machine::{SimMachine, lockings};
use va_space::{Config, Purge, SpaceError, VmapSpace, config};
use va_tree::Congruent;

/// A call that is made before the next table is allocated.
type Instead = Option<Box<dyn FnOnce() + Send>>;

/// Has no memory for the requests of a call in its first hold of `free`, or in each second one.
struct Strict {
    holds: AtomicU64,
    each_second: AtomicBool,
    /// Requests for memory.
    asked: AtomicU64,
    instead: Mutex<Instead>,
}

impl Strict {
    /// Creates a machine with memory for every call, until `holds` is 0.
    fn machine() -> HeapMachine<parking_lot::RawMutex, Self> {
        HeapMachine::watched(
            1,
            Self {
                holds: AtomicU64::new(2),
                each_second: AtomicBool::new(false),
                asked: AtomicU64::new(0),
                instead: Mutex::new(None),
            },
        )
    }
}

impl Watch for Strict {
    fn admits(&self, _bytes: usize) -> bool {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let holds = self.holds.load(Ordering::Relaxed);
        if self.each_second.load(Ordering::Relaxed) { holds.is_multiple_of(2) } else { holds != 1 }
    }

    fn admits_table(&self, _bytes: usize) -> bool {
        let instead = self.instead.lock().take();
        let is_first = instead.is_some();
        instead.into_iter().for_each(|happens| happens());
        !is_first
    }

    fn locking(&self, class: LockClass) {
        if class == LockClass::Free {
            self.holds.fetch_add(1, Ordering::Relaxed);
        }
    }
}

fn window() -> VaRange {
    VaRange::from_pages(16, 1 << 24).unwrap()
}

#[test]
fn an_alloc_that_may_block_fetches_metadata_with_no_lock_held() {
    let machine = Strict::machine();
    let space = VmapSpace::<_, config::Standard>::new(window(), window(), &machine).unwrap();
    let mut magazine = space.magazine(0).unwrap();
    let large = Request::pages(300).unwrap();
    let mut areas = Vec::new();
    for n in 0..3000 {
        machine.watcher.holds.store(0, Ordering::Relaxed);
        let got = match n % 4 {
            0 => space.alloc(0, &large),
            1 => space.alloc_highest(&large),
            2 => space.alloc_best(&large),
            _ => magazine.alloc(&large),
        };
        areas.push(got.unwrap_or_else(|error| panic!("area {n}: {error}")));
    }
    // A request that may not block uses the present memory, and none is allocated for it.
    let mut failed = false;
    for n in 0..3000 {
        machine.watcher.holds.store(0, Ordering::Relaxed);
        let before = machine.watcher.asked.load(Ordering::Relaxed);
        let atomic = large.context(Context::Atomic);
        let got = if n % 2 == 0 { space.alloc(0, &atomic) } else { magazine.alloc(&atomic) };
        match got {
            Ok(area) => areas.push(area),
            Err(_) => failed = true,
        }
        assert!(machine.watcher.asked.load(Ordering::Relaxed) <= before + 1);
    }
    assert!(failed);
    machine.watcher.holds.store(2, Ordering::Relaxed);
    areas.into_iter().for_each(|area| space.free(area).unwrap());
    drop(magazine);
    space.validate().unwrap();
}

#[test]
fn a_row_is_built_in_many_short_holds_of_the_index() {
    const HOLES: u64 = 20_000;
    let busy: Vec<_> = (0..HOLES).map(|n| VaRange::from_pages(19 + 4 * n, 21 + 4 * n).unwrap()).collect();
    let two = Request::pages(2).unwrap().aligned(Align::new(2 << 12).unwrap());
    for highest in [false, true] {
        let machine = Strict::machine();
        machine.watcher.holds.store(2, Ordering::Relaxed);
        let space = VmapSpace::<_, config::Standard>::with_busy(window(), window(), &machine, &busy).unwrap();
        let below = VaRange::from_pages(18, 18 + 4 * HOLES).unwrap();
        let holds = |request: &Request| {
            let before = machine.watcher.holds.load(Ordering::Relaxed);
            let got = if highest { space.alloc_highest(request) } else { space.alloc(0, request) }
                .map(|area| area.start());
            (got, machine.watcher.holds.load(Ordering::Relaxed) - before)
        };
        // In the window is no fit. 20,000 holes are at least 1,250 leaves, and a step is 64 of them.
        let (got, first) = holds(&two.within(below));
        assert!(got.is_err() && first > 1_250 / 64, "{got:?} in {first} holds");
        // From now on a request is one search.
        let above = VaRange::from_pages(18, 1 << 24).unwrap();
        let (got, next) = holds(&two.within(above));
        let end = if highest { (1 << 24) - 2 } else { 22 + 4 * (HOLES - 1) };
        // One more where the map lacks a leaf.
        assert_eq!((got.map(Va::page_floor), next < 3), (Ok(end), true), "highest: {highest}, {next} holds");
        space.validate().unwrap();
    }
}

#[test]
fn other_calls_fetch_metadata_with_no_lock_held_too() {
    let machine = Strict::machine();
    let space = VmapSpace::<_, config::Standard>::new(window(), window(), &machine).unwrap();
    let whole = space.alloc(0, &Request::pages(4000).unwrap()).unwrap();
    let first = whole.range().whole_pages().0;
    let parts = [(0, 4096), (8192, 4096)];
    for n in 1..2000 {
        let holds = || machine.watcher.holds.store(0, Ordering::Relaxed);
        holds();
        space.split(Va::from_page(first + n)).unwrap_or_else(|error| panic!("split {n}: {error}"));
        holds();
        let at = VaRange::from_pages(100_000 + 4 * n, 100_002 + 4 * n).unwrap();
        let _kept = space.alloc_at(at).unwrap_or_else(|error| panic!("at {n}: {error}"));
        holds();
        let parts = Congruent::new(&parts, 4096).unwrap();
        space.alloc_congruent(&parts).unwrap_or_else(|error| panic!("congruent {n}: {error}"));
    }
    let all = [
        (VaRange::from_pages(90_000, 90_003).unwrap(), Some(3)),
        (VaRange::from_pages(90_004, 90_009).unwrap(), None),
    ];
    machine.watcher.each_second.store(true, Ordering::Relaxed);
    space.restore(&all).unwrap();
    let boot: Vec<_> = (0..500).map(|n| VaRange::from_pages(100 + 4 * n, 102 + 4 * n).unwrap()).collect();
    assert!(VmapSpace::<_, config::Standard>::with_busy(window(), window(), &machine, &boot).is_ok());
    let too_many = space.supply(window().len_bytes() / 4096 + 1);
    assert!(matches!(too_many, Err(SpaceError::Index(AllocError::NoMeta { .. }))), "{too_many:?}");
    assert_eq!(space.supply(u64::MAX), Err(AllocError::NoMeta { records: usize::MAX }.into()));
    space.validate().unwrap();
}

#[test]
fn a_growth_fetches_metadata_with_no_lock_held_too() {
    for first in [20, 21] {
        let machine = Strict::machine();
        let space = VmapSpace::<_, config::Standard>::new(window(), window(), &machine).unwrap();
        // With one area or two, since each adds two records to what is needed, and memory comes in powers of two.
        for page in 20..=first {
            let _kept = space.alloc_at(VaRange::from_pages(page, page + 1).unwrap()).unwrap();
        }
        for n in 1..2000 {
            let at = VaRange::from_pages(100 + 8 * n, 102 + 8 * n).unwrap();
            machine.watcher.holds.store(2, Ordering::Relaxed);
            let _kept = space.alloc_at(at).unwrap();
            machine.watcher.holds.store(0, Ordering::Relaxed);
            space.grow_at(at.start(), Pages::new(4)).unwrap_or_else(|error| panic!("{n}: {error}"));
        }
        space.validate().unwrap();
    }
}

/// A request fails while another holds all of the space, which frees it for lack of a table.
#[test]
fn a_failure_is_not_remembered_past_what_was_put_back() {
    type Space = VmapSpace<&'static HeapMachine<parking_lot::RawMutex, Strict>, config::Standard>;
    let machine: &'static _ = Box::leak(Box::new(Strict::machine()));
    let all = VaRange::from_pages(16, 80).unwrap();
    let space: &'static Space = Box::leak(Box::new(Space::new(all, all, machine).unwrap()));
    let ask = |pages| Request::pages(pages).unwrap();
    *machine.watcher.instead.lock() = Some(Box::new(move || {
        let failed = space.alloc(0, &ask(62));
        assert!(matches!(failed, Err(SpaceError::NoSpace { .. })), "{failed:?}");
    }));
    assert_eq!(space.alloc(0, &ask(64)), Err(SpaceError::NoTable));
    assert!(machine.watcher.instead.lock().is_none());
    // A single page, then a row of two, of which one goes to the pool: nothing was freed since the failure.
    let mut magazine = space.magazine(0).unwrap();
    let _held = [(); 2].map(|()| magazine.alloc(&ask(1)).unwrap());
    magazine.drain();
    assert_eq!(space.stats().pooled_areas, 1);
    assert_eq!(space.alloc(0, &ask(62)).map(|area| area.range().start()), Ok(Va::from_page(18)));
    drop(magazine);
    space.validate().unwrap();
}

#[test]
fn a_shrinker_gets_index_memory_back() {
    let machine = SimMachine::new(1);
    let space = VmapSpace::<_, Standard>::new(window(), window(), &machine).unwrap();
    let large = Request::pages(300).unwrap();
    let areas: Vec<_> = (0..5000).map(|_| space.alloc(0, &large).unwrap()).collect();
    areas.into_iter().for_each(|area| space.free(area).unwrap());
    space.purge(Purge::Full);
    space.shrink();
    let left: usize = (0..100).map(|_| space.shrink_index(1000)).sum();
    assert_eq!(left, 0, "bytes that were not needed");
    space.validate().unwrap();
}

/// With many more steps than there are, a shrinker stops where nothing is left, also if the machine has no shorter slab.
#[test]
fn a_shrinker_without_a_limit_ends_when_nothing_is_left() {
    fn check<C: Config>(has_memory: bool) {
        let machine = SimMachine::new(1);
        let space = VmapSpace::<_, C>::new(window(), window(), &machine).unwrap();
        let large = Request::pages(300).unwrap();
        let areas: Vec<_> = (0..2000).map(|_| space.alloc(0, &large).unwrap()).collect();
        areas.into_iter().for_each(|area| space.free(area).unwrap());
        space.purge(Purge::Full);
        machine.fail_after(if has_memory { u64::MAX } else { 0 }, u64::MAX);
        let locked = |steps| {
            let before = lockings()[LockClass::Free as usize];
            let freed = space.shrink_index(steps);
            (lockings()[LockClass::Free as usize] - before, freed)
        };
        let (locks, _) = locked(1 << 20);
        assert!(locks < 4000, "{locks} times");
        assert_eq!((locked(1 << 20), locked(usize::MAX)), ((1, 0), (1, 0)));
        space.validate().unwrap();
    }
    for has_memory in [true, false] {
        check::<config::Standard>(has_memory);
        check::<config::Linux69>(has_memory);
        check::<config::WithBestFit<config::Standard>>(has_memory);
    }
}
