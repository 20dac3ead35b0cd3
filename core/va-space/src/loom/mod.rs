//! Interleavings, each small enough to try all of them (with at most three preemptions).
//!
//! Run: `RUSTFLAGS="--cfg loom" cargo test -p va-space --lib loom`. The page map is small here (`map::shape`); which of
//! two threads allocates a table is not modelled, so the slots are allocated before the threads begin.

mod claims;
mod drain;
mod failed;
mod find;
mod leaf;
mod live;
mod shared;

use crate::config::{Config, Standard};
use crate::decay::Quarter;
use crate::lookup::MapLookup;
use crate::node::HashedZones;
use crate::testing::TestMachine;
use crate::{Area, Purge, ReleaseError, SpaceError, State, VmapSpace};
use loom::thread;
use std::sync::Arc;
use std::vec::Vec;
use va_base::sync::atomic::Ordering;
use va_base::{Context, Machine, Pages, Platform, Request, Va, VaRange};
use va_tree::BTreeIndex;

/// Standard, with slices of one area and no automatic purge.
struct Tiny;

impl Config for Tiny {
    type Base = Standard;
    type Index<P: Platform + Clone + Send> = BTreeIndex<P>;
    type Zone = HashedZones;
    type Decay = Quarter;
    type Lookup<P: Machine> = MapLookup;
    const NODES_MAX: u32 = 2;
    const POOL_PAGES_MAX: u64 = 256;
    const POOL_TRIES: u32 = 1;
    const SLICE_AREAS: u64 = 1;
    fn lazy_max(_cpus: u32) -> Pages {
        Pages::new(1000)
    }
}

/// The same with a threshold so low that each free ends the round of its magazine.
struct Tight;

impl Config for Tight {
    type Base = Tiny;
    type Index<P: Platform + Clone + Send> = BTreeIndex<P>;
    type Zone = HashedZones;
    type Decay = Quarter;
    type Lookup<P: Machine> = MapLookup;
    fn lazy_max(_cpus: u32) -> Pages {
        Pages::new(1)
    }
}

/// In machine words.
const STACK_WORDS: usize = 1 << 17;

type Space<C = Tiny> = VmapSpace<&'static TestMachine, C>;

/// Returns a space of `pages` pages from page 1 on, with all slots allocated.
fn space(pages: u64, cpus: u32) -> Space {
    space_of(pages, cpus).0
}

/// Returns the same with other policies, and its machine.
fn space_of<C: Config>(pages: u64, cpus: u32) -> (Space<C>, &'static TestMachine) {
    space_on(pages, TestMachine { cpus, ..TestMachine::default() })
}

/// Returns the same on a machine of its own kind.
fn space_on<C: Config>(pages: u64, machine: TestMachine) -> (Space<C>, &'static TestMachine) {
    let machine: &'static TestMachine = std::boxed::Box::leak(std::boxed::Box::new(machine));
    let Some(extent) = VaRange::from_pages(1, 1 + pages) else { panic!("pages") };
    let Ok(space) = Space::<C>::new(extent, extent, machine) else { panic!("no memory") };
    let singles: Vec<Area> = (0..pages).map(|_| alloc(&space, 0, 1)).collect();
    for area in singles {
        free(&space, area);
    }
    space.purge(Purge::Full);
    (space, machine)
}

fn ask(pages: u64) -> Request {
    match Request::pages(pages) {
        Ok(request) => request,
        Err(error) => panic!("{error}"),
    }
}

fn alloc<C: Config>(space: &Space<C>, cpu: u32, pages: u64) -> Area {
    match space.alloc(cpu, &ask(pages)) {
        Ok(area) => area,
        Err(error) => panic!("{error}"),
    }
}

fn free<C: Config>(space: &Space<C>, area: Area) {
    if let Err(error) = space.free(area) {
        panic!("{error}");
    }
}

/// Spawns a thread with a stack large enough for a space: loom's own stacks have 32 KiB.
fn spawn<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> thread::JoinHandle<T> {
    match thread::Builder::new().stack_size(STACK_WORDS).spawn(body) {
        Ok(handle) => handle,
        Err(error) => panic!("{error}"),
    }
}

fn model(body: impl Fn() + Send + Sync + 'static) {
    model_within(3, body);
}

/// With at most so many preemptions.
fn model_within(preemptions: usize, body: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    // `cargo xtask ci` sets a limit by LOOM_MAX_PREEMPTIONS, which `new` has read.
    let limit = builder.preemption_bound.unwrap_or(usize::MAX);
    builder.preemption_bound = Some(limit.min(preemptions));
    builder.max_branches = 20_000;
    let body = Arc::new(body);
    builder.check(move || {
        let body = body.clone();
        // A failure printed its message already.
        assert!(spawn(move || body()).join().is_ok());
    });
}

#[test]
fn sp1_alloc_and_free_against_a_purge() {
    model(|| {
        let space = Arc::new(space(4, 1));
        let lazy = alloc(&space, 0, 1);
        free(&space, lazy);
        let theirs = space.clone();
        let purger = spawn(move || theirs.purge(Purge::Drain));
        let mine = alloc(&space, 0, 1);
        let other = alloc(&space, 0, 1);
        assert_ne!(mine.start(), other.start());
        free(&space, mine);
        assert!(purger.join().is_ok_and(|purged| !purged.waiting));
        assert_eq!(space.find(other.start()).map(|seen| seen.state), Some(State::Busy));
        assert_eq!(space.validate(), Ok(()));
    });
}

#[test]
fn of_two_frees_one_loses() {
    model(|| {
        let space = Arc::new(space(2, 1));
        let area = alloc(&space, 0, 1);
        let (theirs, at) = (space.clone(), area.start());
        let other = spawn(move || theirs.free_at(at).is_ok());
        let mine = space.free(area);
        let theirs = other.join().unwrap_or(false);
        assert!(mine.is_ok() != theirs, "{mine:?} {theirs}");
        assert!(mine.is_ok() || mine == Err(ReleaseError::NoArea { at, inside: None }));
        assert_eq!(space.lazy_pages(), Pages::new(1));
        assert_eq!(space.validate(), Ok(()));
    });
}

#[test]
fn two_allocs_from_one_pool_get_two_areas() {
    model(|| {
        let space = Arc::new(space(4, 1));
        let area = alloc(&space, 0, 2);
        free(&space, area);
        space.purge(Purge::Drain);
        let theirs = space.clone();
        let other = spawn(move || alloc(&theirs, 0, 2).start());
        let mine = alloc(&space, 0, 2).start();
        assert!(other.join().is_ok_and(|theirs| theirs != mine));
        assert_eq!(space.validate(), Ok(()));
    });
}

#[test]
fn a_read_against_a_free_and_a_reuse_sees_one_of_both() {
    model(|| {
        let space = Arc::new(space(6, 1));
        let below = alloc(&space, 0, 1);
        let old = alloc(&space, 0, 3);
        let live = alloc(&space, 0, 2);
        let (theirs, inside) = (space.clone(), Va::from_page(4));
        let (below, live) = (below.range(), live.range());
        let was = old.range();
        let reader = spawn(move || {
            // An area that is live throughout is found, whatever other threads do.
            assert_eq!(theirs.find_enclosing(Va::from_page(6)).map(|seen| seen.range), Some(live));
            let seen = theirs.find_enclosing(inside).map(|seen| seen.range);
            assert_eq!(theirs.find_enclosing(below.start()).map(|seen| seen.range), Some(below));
            seen
        });
        free(&space, old);
        space.purge(Purge::Full);
        let new = alloc(&space, 0, 2);
        let newer = alloc(&space, 0, 1);
        let seen = reader.join().ok().flatten();
        // The page is in the old area, in none, or in the last one.
        assert!(seen.is_none_or(|seen| seen == was || seen == newer.range()), "{seen:?}");
        assert_eq!((new.start(), newer.start()), (Va::from_page(2), Va::from_page(4)));
        assert_eq!(space.validate(), Ok(()));
    });
}

#[test]
fn a_free_during_a_steal_loses_nothing() {
    model(|| {
        let space = Arc::new(space(2, 2));
        let pooled = alloc(&space, 1, 1);
        let other = alloc(&space, 1, 1);
        free(&space, pooled);
        space.purge(Purge::Drain);
        let theirs = space.clone();
        let freer = spawn(move || free(&theirs, other));
        // The index is empty; the only free area is in the other node's pool.
        let stolen = alloc(&space, 0, 1);
        assert!(freer.join().is_ok());
        let last = alloc(&space, 0, 1);
        assert_ne!(stolen.start(), last.start());
        assert_eq!(space.validate(), Ok(()));
    });
}

#[test]
fn a_shrinker_against_a_purge_loses_nothing() {
    model(|| {
        let space = Arc::new(space(3, 1));
        let areas: Vec<Area> = (0..3).map(|_| alloc(&space, 0, 1)).collect();
        for (n, area) in areas.into_iter().enumerate() {
            free(&space, area);
            if n == 1 {
                space.purge(Purge::Drain);
            }
        }
        let theirs = space.clone();
        let shrinker = spawn(move || theirs.shrink());
        let purged = space.purge(Purge::Drain);
        assert!(shrinker.join().is_ok_and(|shrunk| (2..=3).contains(&shrunk)));
        assert_eq!((purged.waiting, space.lazy_pages()), (false, Pages::new(0)));
        assert_eq!(space.validate(), Ok(()));
    });
}

#[test]
fn a_magazine_that_refills_against_a_shrinker() {
    model(|| {
        let space = Arc::new(space(2, 1));
        let areas: Vec<Area> = (0..2).map(|_| alloc(&space, 0, 1)).collect();
        for area in areas {
            free(&space, area);
        }
        space.purge(Purge::Drain);
        let Ok(mut magazine) = space.magazine(0) else { panic!("no magazine") };
        let theirs = space.clone();
        let other = spawn(move || theirs.shrink());
        // From the pool if the shrinker left it, else from the index, if the shrinker has freed it there by then.
        let mine = magazine.alloc(&ask(1));
        let shrunk = other.join().unwrap_or(u64::MAX);
        match mine {
            Ok(mine) => assert_eq!(space.find(mine.start()).map(|seen| seen.range), Some(mine.range())),
            Err(error) => panic!("both areas are free: {error}"),
        }
        assert!(shrunk <= 2 && space.stats().cached_areas + shrunk <= 2);
        assert_eq!(space.validate(), Ok(()));
    });
}

/// A round is sealed while a purge opens, flushes and completes a batch. An area that the magazine allocates then was
/// flushed since it was freed.
#[test]
fn sp2_a_round_that_is_sealed_against_a_purge_is_flushed_before_reuse() {
    model(|| {
        let machine: &'static TestMachine =
            std::boxed::Box::leak(std::boxed::Box::new(TestMachine { cpus: 1, ..TestMachine::default() }));
        let Some(extent) = VaRange::from_pages(1, 9) else { panic!("pages") };
        let Ok(space) = VmapSpace::<_, Tight>::new(extent, extent, machine) else { panic!("no memory") };
        let space = Arc::new(space);
        let Ok(mut magazine) = space.magazine(0) else { panic!("no magazine") };
        let Ok(area) = magazine.alloc(&ask(2)) else { panic!("no area") };
        let start = area.start();
        let theirs = space.clone();
        let other = spawn(move || theirs.purge(Purge::Drain));
        let before = machine.flushes.load(Ordering::Relaxed);
        assert!(magazine.free(area).is_ok());
        let Ok(again) = magazine.alloc(&ask(2)) else { panic!("no area") };
        let flushed = machine.flushes.load(Ordering::Relaxed) > before;
        assert!(again.start() != start || flushed, "allocated unflushed");
        assert!(other.join().is_ok());
        assert_eq!(space.validate(), Ok(()));
        drop(magazine);
        assert_eq!((space.validate(), space.stats().cached_areas), (Ok(()), 0));
    });
}

/// A magazine seals its round while aliases are purged: areas freed before are flushed when the purge returns.
#[test]
fn sp2_aliases_of_a_round_that_is_sealed_meanwhile_are_flushed() {
    model(|| {
        // A share of 16 pages is two: a round of one page stays open.
        let (space, machine) = space_of::<Tight>(16, 1);
        let space = Arc::new(space);
        // A lazy area in the node, so that the purge has a batch of its own.
        let lazy = alloc(&space, 0, 1);
        let Ok(mut magazine) = space.magazine(0) else { panic!("no magazine") };
        let Ok(early) = magazine.alloc(&ask(1)) else { panic!("no area") };
        let Ok(late) = magazine.alloc(&ask(2)) else { panic!("no area") };
        machine.unmap(lazy.range());
        machine.unmap(early.range());
        free(&space, lazy);
        let range = early.range();
        // The round is open until the next free.
        assert!(magazine.free(early).is_ok());
        assert_eq!(space.lazy_pages(), Pages::new(1));
        let theirs = space.clone();
        let other = spawn(move || {
            theirs.purge(Purge::Aliases);
            assert!(!machine.is_stale(range), "SP2: {range} was freed before the call");
        });
        machine.unmap(late.range());
        assert!(magazine.free(late).is_ok());
        assert!(other.join().is_ok());
        drop(magazine);
        assert_eq!(space.validate(), Ok(()));
    });
}

/// A free beside a purge of aliases, which may cover it or not: the next purge covers it if need be.
#[test]
fn sp2_aliases_of_a_free_beside_a_purge_are_flushed_by_the_next() {
    model(|| {
        let (space, machine) = space_of::<Tiny>(16, 1);
        let space = Arc::new(space);
        let Ok(mut magazine) = space.magazine(0) else { panic!("no magazine") };
        let Ok(area) = magazine.alloc(&ask(1)) else { panic!("no area") };
        let theirs = space.clone();
        let other = spawn(move || theirs.purge(Purge::Aliases));
        let range = area.range();
        machine.unmap(range);
        assert!(magazine.free(area).is_ok());
        space.purge(Purge::Aliases);
        assert!(!machine.is_stale(range), "SP2: {range} was freed before the call");
        assert!(other.join().is_ok());
        let flushes = machine.flushes.load(Ordering::Relaxed);
        space.purge(Purge::Aliases);
        assert_eq!(machine.flushes.load(Ordering::Relaxed), flushes, "nothing was freed since");
    });
}

/// A round ends beside a purge of aliases, and the next is as large: the next purge covers it.
#[test]
fn sp2_aliases_of_a_round_as_large_as_the_last_are_flushed() {
    model_within(2, || {
        let (space, machine) = space_of::<Tiny>(16, 1);
        let space = Arc::new(space);
        let Ok(mut magazine) = space.magazine(0) else { panic!("no magazine") };
        let (Ok(early), Ok(late)) = (magazine.alloc(&ask(1)), magazine.alloc(&ask(1))) else {
            panic!("no area")
        };
        assert!(magazine.free(early).is_ok());
        let theirs = space.clone();
        let other = spawn(move || theirs.purge(Purge::Aliases));
        magazine.drain();
        let range = late.range();
        machine.unmap(range);
        assert!(magazine.free(late).is_ok());
        space.purge(Purge::Aliases);
        assert!(!machine.is_stale(range), "SP2: {range} was freed before the call");
        assert!(other.join().is_ok());
    });
}

/// Another CPU drains a magazine beside a pair of its owner.
#[test]
fn sp2_a_pair_of_an_owner_against_a_drain_of_its_magazine() {
    model_within(1, || {
        let (space, machine) = space_of::<Tight>(6, 1);
        let space = Arc::new(space);
        let Ok(mut magazine) = space.magazine(0) else { panic!("no magazine") };
        let Ok(early) = magazine.alloc(&ask(1)) else { panic!("no area") };
        machine.unmap(early.range());
        assert!(magazine.free(early).is_ok());
        let theirs = space.clone();
        let other = spawn(move || theirs.drain_magazines());
        let Ok(area) = magazine.alloc(&ask(1)) else { panic!("no area") };
        assert!(!machine.is_stale(area.range()), "SP2: {}", area.range());
        machine.unmap(area.range());
        assert!(magazine.free(area).is_ok());
        let Ok(again) = magazine.alloc(&ask(1)) else { panic!("no area") };
        assert!(!machine.is_stale(again.range()), "SP2: {}", again.range());
        assert!(other.join().is_ok_and(|drained| drained.magazines + drained.busy <= 1));
        assert_eq!(space.validate(), Ok(()));
        drop(magazine);
        assert_eq!(space.validate(), Ok(()));
    });
}

/// A request that waits for a flush beside the thread that ends it.
#[test]
fn sp2_a_request_that_waits_for_a_flush_gets_what_it_flushed() {
    model(|| {
        let late = TestMachine { cpus: 1, late: true, ..TestMachine::default() };
        let machine: &'static TestMachine = std::boxed::Box::leak(std::boxed::Box::new(late));
        let Some(extent) = VaRange::from_pages(1, 3) else { panic!("pages") };
        let Ok(space) = Space::<Tiny>::new(extent, extent, machine) else { panic!("failed") };
        let space = Arc::new(space);
        let (low, high) = (alloc(&space, 0, 1), alloc(&space, 0, 1));
        machine.unmap(low.range());
        free(&space, low);
        let theirs = space.clone();
        let waits = spawn(move || {
            let got = theirs.alloc(0, &ask(1));
            if let Ok(area) = &got {
                assert!(!machine.is_stale(area.range()), "SP2: {}", area.range());
            }
            got.is_ok()
        });
        while machine.flushes.load(Ordering::Acquire) == 0 {
            thread::yield_now();
        }
        machine.end_flushes();
        assert!(waits.join().is_ok_and(|got| got), "nothing but the flush was in the way");
        assert_eq!(space.free_in(Context::Atomic, high), Ok(()));
        assert_eq!(space.validate(), Ok(()));
    });
}

/// A request finds the areas of an idle magazine beside its owner's drain, and no failure is remembered past that.
#[test]
fn a_failure_is_not_remembered_past_a_return() {
    model_within(1, || {
        let space = Arc::new(space(2, 1));
        let areas: Vec<Area> = (0..2).map(|_| alloc(&space, 0, 1)).collect();
        for area in areas {
            free(&space, area);
        }
        space.purge(Purge::Drain);
        let Ok(mut magazine) = space.magazine(0) else { panic!("no magazine") };
        // Both pages are in the magazine: one flushed, one lazy.
        let Ok(area) = magazine.alloc(&ask(1)) else { panic!("no area") };
        assert!(magazine.free(area).is_ok());
        let theirs = space.clone();
        let other = spawn(move || theirs.alloc(0, &ask(2)).map(|area| theirs.free(area)));
        magazine.drain();
        let early = other.join().ok();
        let late = space.alloc(0, &ask(2));
        assert!(late.is_ok(), "early: {early:?}, late: {late:?}, {:?}", space.stats());
    });
}

#[test]
fn a_failure_is_not_remembered_past_a_free() {
    model(|| {
        let space = Arc::new(space(2, 1));
        let area = alloc(&space, 0, 2);
        let theirs = space.clone();
        let other = spawn(move || free(&theirs, area));
        // Which thread is first decides whether it fails.
        let early = space.alloc(0, &ask(1)).is_ok();
        assert!(other.join().is_ok());
        // By now the free is done: a request that fails now would fail for ever.
        let late = space.alloc(0, &ask(1));
        assert!(late.is_ok(), "early: {early}, late: {late:?}, {:?}", space.stats());
    });
}

#[test]
fn sp2_a_free_during_a_purge_is_not_reused_before_a_flush_that_covers_it() {
    model(|| {
        let (space, machine) = space_of::<Tiny>(3, 1);
        let space = Arc::new(space);
        let early = alloc(&space, 0, 1);
        let late = alloc(&space, 0, 1);
        machine.unmap(early.range());
        free(&space, early);
        let theirs = space.clone();
        let freer = spawn(move || {
            machine.unmap(late.range());
            free(&theirs, late);
        });
        space.purge(Purge::Drain);
        // From the pool: one of the two that were freed, or the third page.
        for _ in 0..2 {
            let area = alloc(&space, 0, 1);
            assert!(!machine.is_stale(area.range()), "SP2: {}", area.range());
        }
        assert!(freer.join().is_ok());
        assert_eq!(space.validate(), Ok(()));
    });
}

#[test]
fn a_magazine_that_refills_against_one_that_is_drained() {
    // With two, the test machine would allocate and leak more than 20 GiB before all interleavings are tried.
    model_within(1, || {
        let space = Arc::new(space(3, 1));
        let areas: Vec<Area> = (0..3).map(|_| alloc(&space, 0, 1)).collect();
        for area in areas {
            free(&space, area);
        }
        space.purge(Purge::Drain);
        // The cells of both magazines: who allocates one is not modelled.
        let cells = [space.magazine(0), space.magazine(0)];
        assert!(cells.iter().all(Result::is_ok));
        drop(cells);
        let theirs = space.clone();
        let other = spawn(move || {
            let Ok(mut magazine) = theirs.magazine(0) else { panic!("no magazine") };
            // There are three areas and two are allocated; the third may be in the other's cache, or on its way there.
            match magazine.alloc(&ask(1)) {
                Ok(area) => assert!(magazine.free(area).is_ok()),
                Err(SpaceError::NoSpace { cached, .. }) => assert!(cached <= Pages::new(2), "{cached}"),
                Err(error) => panic!("{error}"),
            }
            // Its cache goes to the index, its freed areas to the node.
            magazine.drain();
        });
        let Ok(mut magazine) = space.magazine(0) else { panic!("no magazine") };
        let mine: Vec<Area> = (0..2).filter_map(|_| magazine.alloc(&ask(1)).ok()).collect();
        assert!(other.join().is_ok());
        assert!(mine.len() == 2 && mine[0].start() != mine[1].start(), "{mine:?}");
        drop(magazine);
        assert_eq!(space.validate(), Ok(()));
    });
}

/// A magazine takes the areas that an idle owner has, while that owner makes a call again: no area is lost, and there
/// are enough for both.
#[test]
fn an_owner_that_is_idle_no_more_and_a_thief_both_get_an_area() {
    // More preemptions would take more memory than there is: each try leaks its space.
    model_within(1, || {
        let space: &'static Space = std::boxed::Box::leak(std::boxed::Box::new(space(64, 2)));
        // Eight pages, and caches that may hold four.
        let _most = alloc(space, 0, 56);
        let (Ok(mut theirs), Ok(mut mine)) = (space.magazine(1), space.magazine(0)) else {
            panic!("no magazine")
        };
        // The last is one of a row of four, and the others of that are left.
        let busy: Vec<Area> = (0..4).filter_map(|_| theirs.alloc(&ask(1)).ok()).collect();
        // The last page. What the idle owner has is noted at this miss.
        assert!(busy.len() == 4 && mine.alloc(&ask(1)).is_ok());
        let other = spawn(move || theirs.alloc(&ask(1)));
        let got = mine.alloc(&ask(1));
        let Ok(theirs) = other.join() else { panic!("no thread") };
        // A request tries only a few times while another thread is in a call.
        let [got, theirs] = [got, theirs].map(|area| area.unwrap_or_else(|_| alloc(space, 0, 1)));
        assert!(got.start() != theirs.start());
        assert_eq!(space.validate(), Ok(()));
    });
}
