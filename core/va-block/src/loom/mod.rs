//! Interleavings, each small enough to try all of them (with at most two or three preemptions).
//!
//! Run: `RUSTFLAGS="--cfg loom" cargo test -p va-block --lib loom`. Blocks have two strips here at most; which of two
//! threads allocates a table is not modelled, so records and slots are allocated before the threads begin.

mod others;

use crate::config::{Config, Hashed};
use crate::{BlockError, Blocks, Lane, UnmapError};
use loom::thread;
use std::boxed::Box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::vec::Vec;
use va_base::{HeapMachine, Pages, Platform, Va, VaRange, Watch};
use va_space::decay::Quarter;
use va_space::node::HashedZones;
use va_space::{Purge, VmapSpace};
use va_tree::BTreeIndex;

/// Records which pages are mapped, and which are stale.
#[derive(Default)]
struct Watcher {
    stale: AtomicU64,
    mapped: AtomicU64,
}

impl Watcher {
    fn map(&self, at: Va, pages: u64) {
        let bits = (1 << pages) - 1 << at.page_floor();
        assert_eq!(self.stale.load(Ordering::SeqCst) & bits, 0, "SP2: allocated before a flush");
        assert_eq!(self.mapped.fetch_or(bits, Ordering::SeqCst) & bits, 0, "SP1: allocated twice");
    }

    fn unmap(&self, at: Va, pages: u64) {
        let bits = (1 << pages) - 1 << at.page_floor();
        self.mapped.fetch_and(!bits, Ordering::SeqCst);
        self.stale.fetch_or(bits, Ordering::SeqCst);
    }
}

impl Watch for Watcher {
    fn flushed(&self, ranges: &[VaRange]) {
        for range in ranges {
            let (first, end) = range.whole_pages();
            for page in first..end {
                self.stale.fetch_and(!(1 << page), Ordering::SeqCst);
            }
        }
    }
}

struct TinySpace;

impl va_space::Config for TinySpace {
    type Base = va_space::config::Standard;
    type Index<P: Platform + Clone + Send> = BTreeIndex<P>;
    type Zone = HashedZones;
    type Decay = Quarter;
    type Lookup<P: va_base::Machine> = va_space::lookup::MapLookup;
    const NODES_MAX: u32 = 1;
    const POOL_ON_ONE_NODE: bool = false;
    const POOL_PAGES_MAX: u64 = 0;
    const POOL_TRIES: u32 = 1;
    const SLICE_AREAS: u64 = 8;
    fn lazy_max(_cpus: u32) -> Pages {
        Pages::new(1000)
    }
}

/// Blocks of four pages.
macro_rules! tiny {
    ($name:ident, $reuse:expr) => {
        struct $name;
        impl Config for $name {
            type Base = crate::config::Standard;
            type Space = TinySpace;
            type Spread = Hashed;
            const REUSE: bool = $reuse;
            const SLICE_BLOCKS: u32 = 8;
            const REPORT_PAGES: u64 = 100;
            fn block_pages(_cpus: u32) -> u64 {
                4
            }
        }
    };
}

tiny!(Reusing, true);
tiny!(Dying, false);

type Machine = HeapMachine<parking_lot::RawMutex, Watcher>;
type Tiny<C> = Blocks<&'static Machine, C>;

/// Room for two blocks, with all tables allocated.
fn blocks<C: Config<Space = TinySpace>>() -> (Arc<Tiny<C>>, &'static Watcher) {
    let machine: &'static Machine =
        Box::leak(Box::new(Machine::watched(2, Watcher::default()).with_online(1)));
    let watcher = &machine.watcher;
    let Some(window) = VaRange::from_pages(4, 12) else { panic!("pages") };
    let Ok(space) = VmapSpace::new(window, window, machine) else { panic!("no space") };
    let Ok(blocks) = Tiny::<C>::new(space, machine) else { panic!("no blocks") };
    let all: Vec<Va> = (0..2).map(|_| alloc(&blocks, watcher, 4)).collect();
    for at in all {
        free(&blocks, watcher, at, 4);
    }
    blocks.shrink();
    blocks.space().purge(Purge::Full);
    (Arc::new(blocks), watcher)
}

fn alloc<C: Config>(blocks: &Tiny<C>, machine: &Watcher, pages: u64) -> Va {
    map(machine, blocks.alloc(0, pages), pages)
}

fn map(machine: &Watcher, got: Result<Va, BlockError>, pages: u64) -> Va {
    match got {
        Ok(at) => {
            machine.map(at, pages);
            at
        }
        Err(error) => panic!("{error}"),
    }
}

fn free<C: Config>(blocks: &Tiny<C>, machine: &Watcher, at: Va, pages: u64) {
    machine.unmap(at, pages);
    if let Err(error) = blocks.free(0, at, pages) {
        panic!("{error}");
    }
}

/// In machine words.
const STACK_WORDS: usize = 1 << 17;

/// Spawns a thread with a stack large enough for a space: loom's own stacks have 32 KiB.
fn spawn<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> thread::JoinHandle<T> {
    match thread::Builder::new().stack_size(STACK_WORDS).spawn(body) {
        Ok(handle) => handle,
        Err(error) => panic!("{error}"),
    }
}

fn model(preemptions: usize, body: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    // `cargo xtask ci` sets a limit by LOOM_MAX_PREEMPTIONS, which `new` has read.
    let limit = builder.preemption_bound.unwrap_or(usize::MAX);
    builder.preemption_bound = Some(limit.min(preemptions));
    builder.max_branches = 20_000;
    let body = Arc::new(body);
    // Not loom's atomic: this one counts over all interleavings.
    let tried = Arc::new(AtomicU64::new(0));
    let count = tried.clone();
    builder.check(move || {
        count.fetch_add(1, Ordering::Relaxed);
        let body = body.clone();
        // A failure printed its message already.
        assert!(spawn(move || body()).join().is_ok());
    });
    assert!(tried.load(Ordering::Relaxed) > 1, "there was nothing to try");
}

/// An open block without live mappings: one thread releases it, the other allocates pages.
fn alloc_against_a_fragmented_purge<C: Config<Space = TinySpace>>() {
    let (blocks, machine) = blocks::<C>();
    let old = alloc(&blocks, machine, 1);
    free(&blocks, machine, old, 1);
    let theirs = blocks.clone();
    let purger = spawn(move || theirs.shrink().blocks);
    let mine = alloc(&blocks, machine, 2);
    let purged = purger.join().unwrap_or(u64::MAX);
    assert!(purged <= 1, "one block was empty at most");
    assert_eq!(blocks.stats().live_pages, Pages::new(2));
    assert_eq!(blocks.validate(), Ok(()));
    free(&blocks, machine, mine, 2);
    blocks.shrink();
    assert_eq!((blocks.stats().blocks, blocks.validate()), (0, Ok(())));
}

#[test]
fn alloc_against_a_fragmented_purge_where_pages_are_reused() {
    model(3, alloc_against_a_fragmented_purge::<Reusing>);
}

#[test]
fn alloc_against_a_fragmented_purge_where_blocks_die() {
    model(3, alloc_against_a_fragmented_purge::<Dying>);
}

#[test]
fn sp2_free_against_unmap_aliases() {
    model(3, || {
        let (blocks, machine) = blocks::<Reusing>();
        let (first, second) = (alloc(&blocks, machine, 2), alloc(&blocks, machine, 1));
        free(&blocks, machine, first, 2);
        let theirs = blocks.clone();
        let flusher = spawn(move || theirs.unmap_aliases());
        free(&blocks, machine, second, 1);
        assert!(flusher.join().is_ok_and(|collected| !collected.waiting));
        // Pages that were freed too late for this collection are on the stack for the next.
        assert_eq!(blocks.validate(), Ok(()));
        blocks.unmap_aliases();
        let stats = blocks.stats();
        assert_eq!((stats.dead_pages, machine.stale.load(Ordering::SeqCst)), (Pages::new(0), 0));
        alloc(&blocks, machine, 4);
    });
}

#[test]
fn sp2_unmap_aliases_beside_another_free_in_the_block() {
    model(3, || {
        let (blocks, machine) = blocks::<Reusing>();
        let (first, second) = (alloc(&blocks, machine, 1), alloc(&blocks, machine, 1));
        alloc(&blocks, machine, 2);
        let theirs = blocks.clone();
        // One of the two frees puts the block on the stack; the other relies on that.
        let other = spawn(move || free(&theirs, machine, second, 1));
        free(&blocks, machine, first, 1);
        assert!(!blocks.unmap_aliases().waiting);
        let stale = machine.stale.load(Ordering::SeqCst);
        assert_eq!(stale & 1 << first.page_floor(), 0, "freed before the call, and stale");
        assert!(other.join().is_ok());
        assert_eq!(blocks.validate(), Ok(()));
    });
}

#[test]
fn sp2_unmap_aliases_beside_the_burial_of_the_block() {
    model(3, || {
        let (blocks, machine) = blocks::<Dying>();
        let (first, last) = (alloc(&blocks, machine, 3), alloc(&blocks, machine, 1));
        let theirs = blocks.clone();
        let other = spawn(move || free(&theirs, machine, last, 1));
        free(&blocks, machine, first, 3);
        assert!(!blocks.unmap_aliases().waiting);
        let stale = machine.stale.load(Ordering::SeqCst);
        assert_eq!(stale & 7 << first.page_floor(), 0, "freed before the call, and stale");
        assert!(other.join().is_ok());
        assert_eq!(blocks.validate(), Ok(()));
    });
}

#[test]
fn vb8_two_requests_for_a_block_where_one_may_begin() {
    model(2, || {
        let (blocks, machine) = blocks::<Reusing>();
        let theirs = blocks.clone();
        // All pages of the first block are dead when the two requests begin.
        let first = alloc(&blocks, machine, 4);
        free(&blocks, machine, first, 4);
        let other = spawn(move || theirs.alloc(0, 3).map(|at| machine.map(at, 3)));
        let mine = blocks.alloc(0, 3).map(|at| machine.map(at, 3));
        let theirs = other.join().unwrap_or(Err(BlockError::NoTable));
        assert_eq!((mine, theirs), (Ok(()), Ok(())));
        assert_eq!((blocks.present(), blocks.validate()), (2, Ok(())));
    });
}

#[test]
fn a_lane_against_a_drain() {
    model(2, || {
        let (blocks, machine) = blocks::<Reusing>();
        let theirs = blocks.clone();
        let owner = spawn(move || {
            let Ok(mut lane) = theirs.lane(0) else { panic!("no lane") };
            for _ in 0..2 {
                let Ok(at) = lane.alloc(1) else { panic!("no room") };
                machine.map(at, 1);
            }
        });
        blocks.drain_lanes(None);
        assert!(owner.join().is_ok());
        let stats = blocks.stats();
        assert_eq!((stats.laned, stats.live_pages.get(), blocks.validate()), (0, 2, Ok(())));
    });
}

/// One thread frees the last page of a block. The other purges first, and begins a block at the same place on another
/// CPU.
fn burial(then: fn(&Tiny<Dying>, &Watcher) -> u64) {
    model(2, move || {
        let (blocks, machine) = blocks::<Dying>();
        let (first, last) = (alloc(&blocks, machine, 3), alloc(&blocks, machine, 1));
        free(&blocks, machine, first, 3);
        let theirs = blocks.clone();
        let purger = spawn(move || {
            theirs.unmap_aliases();
            theirs.space().purge(Purge::Full);
            then(&theirs, machine)
        });
        free(&blocks, machine, last, 1);
        let live = purger.join().unwrap_or(u64::MAX);
        let stats = blocks.stats();
        assert_eq!((stats.blocks, stats.live_pages.get()), (live.min(1), live));
        assert_eq!(blocks.validate(), Ok(()));
    });
}

#[test]
fn the_last_free_of_a_block_against_a_new_block_there() {
    burial(|blocks, machine| {
        map(machine, blocks.alloc(1, 2), 2);
        2
    });
}

#[test]
fn the_last_free_of_a_block_against_that_of_the_next_block_there() {
    burial(|blocks, machine| {
        let at = map(machine, blocks.alloc(1, 4), 4);
        free(blocks, machine, at, 4);
        0
    });
}

#[test]
fn of_two_frees_one_loses() {
    model(3, || {
        let (blocks, machine) = blocks::<Reusing>();
        let at = alloc(&blocks, machine, 2);
        let range = VaRange::from_pages(4, 6).unwrap_or_default();
        machine.unmap(at, 2);
        let theirs = blocks.clone();
        let other = spawn(move || theirs.free(0, at, 2));
        let mine = blocks.free(0, at, 2);
        let theirs = other.join().unwrap_or(Ok(()));
        assert!(mine.is_ok() != theirs.is_ok(), "{mine:?} {theirs:?}");
        assert_eq!(mine.and(theirs), Err(UnmapError::Twice { range }));
        assert_eq!(blocks.stats().dead_pages, Pages::new(2));
        assert_eq!(blocks.validate(), Ok(()));
    });
}

/// A caller's second free, during which the pages may be recycled and allocated with another size.
fn late_second_free(neighbour: bool) {
    model(2, move || {
        let (blocks, machine) = blocks::<Reusing>();
        let at = alloc(&blocks, machine, 2);
        if neighbour {
            alloc(&blocks, machine, 1);
        }
        machine.unmap(at, 2);
        let theirs = blocks.clone();
        let other = spawn(move || theirs.free(0, at, 2));
        let mine = blocks.free(0, at, 2);
        blocks.unmap_aliases();
        let mut new = u64::from(neighbour);
        if mine.is_ok() {
            while alloc(&blocks, machine, 1) != at {
                new += 1;
            }
            new += 1;
        }
        let other = other.join().unwrap_or(Ok(()));
        assert!(mine.is_ok() != other.is_ok(), "{mine:?} {other:?}");
        assert_eq!(blocks.stats().live_pages.get(), new);
        assert_eq!(blocks.validate(), Ok(()));
    });
}

// A strip is recycled by two paths, with a live mapping in it and without.

#[test]
fn a_late_second_free_never_hits_another_mapping() {
    late_second_free(false);
}

#[test]
fn a_late_second_free_never_hits_another_mapping_beside_one_that_lives() {
    late_second_free(true);
}

#[test]
fn a_lane_against_a_collection() {
    model(2, || {
        let (blocks, machine) = blocks::<Reusing>();
        let theirs = blocks.clone();
        let owner = spawn(move || {
            let Ok(mut lane) = theirs.lane(0) else { panic!("no lane") };
            for _ in 0..2 {
                let Ok(at) = lane.alloc(3) else { panic!("no room") };
                machine.map(at, 3);
                machine.unmap(at, 3);
                assert_eq!(lane.free(at, 3), Ok(()));
            }
        });
        blocks.unmap_aliases();
        assert!(owner.join().is_ok());
        assert_eq!(blocks.validate(), Ok(()));
        blocks.shrink();
        assert_eq!((blocks.stats().blocks, blocks.validate()), (0, Ok(())));
    });
}

/// A lane's block with four mappings, of which one is dead and flushed, and not recycled.
fn held(
    lane: &mut Lane<'_, &'static Machine, Reusing>,
    blocks: &Tiny<Reusing>,
    machine: &Watcher,
) -> [Va; 4] {
    let all = [(); 4].map(|()| map(machine, lane.alloc(1), 1));
    free_of(lane, machine, all[0]);
    blocks.unmap_aliases();
    all
}

fn free_of(lane: &mut Lane<'_, &'static Machine, Reusing>, machine: &Watcher, at: Va) {
    machine.unmap(at, 1);
    assert_eq!(lane.free(at, 1), Ok(()));
}

#[test]
fn sp2_unmap_aliases_twice_beside_a_free_in_the_block_of_an_idle_lane() {
    model(3, || {
        let (blocks, machine) = blocks::<Reusing>();
        let Ok(mut lane) = blocks.lane(0) else { panic!("no lane") };
        let all = held(&mut lane, &blocks, machine);
        let theirs = blocks.clone();
        let other = spawn(move || theirs.unmap_aliases());
        free_of(&mut lane, machine, all[1]);
        assert!(!blocks.unmap_aliases().waiting);
        let stale = machine.stale.load(Ordering::SeqCst);
        assert_eq!(stale & 1 << all[1].page_floor(), 0, "freed before the call, and stale");
        assert!(other.join().is_ok());
    });
}

#[test]
fn sp2_unmap_aliases_beside_a_lane_that_recycles() {
    model(2, || {
        let (blocks, machine) = blocks::<Reusing>();
        let Ok(mut lane) = blocks.lane(0) else { panic!("no lane") };
        let all = held(&mut lane, &blocks, machine);
        free_of(&mut lane, machine, all[1]);
        let theirs = blocks.clone();
        let other = spawn(move || {
            theirs.unmap_aliases();
            free(&theirs, machine, all[2], 1);
            theirs.unmap_aliases();
            let stale = machine.stale.load(Ordering::SeqCst);
            assert_eq!(stale & 1 << all[2].page_floor(), 0, "freed before the call, and stale");
        });
        assert_eq!(map(machine, lane.alloc(1), 1), all[0], "recycled");
        assert!(other.join().is_ok());
        assert_eq!(blocks.validate(), Ok(()));
    });
}

#[test]
fn vb8_a_collection_beside_a_lane_that_recycles_its_dead_block() {
    model(2, || {
        let (blocks, machine) = blocks::<Reusing>();
        let Ok(mut lane) = blocks.lane(0) else { panic!("no lane") };
        let all = held(&mut lane, &blocks, machine);
        for at in &all[1..] {
            free_of(&mut lane, machine, *at);
        }
        let theirs = blocks.clone();
        let other = spawn(move || theirs.unmap_aliases());
        // The lane recycles a page; a request for two pages needs another block. This one holds no live page.
        map(machine, lane.alloc(2), 2);
        assert!(other.join().is_ok());
        assert_eq!(blocks.validate(), Ok(()));
        blocks.shrink();
        assert_eq!(blocks.present(), 1, "the dead block was released");
    });
}

#[test]
fn what_died_during_a_shrink_is_news_for_the_next() {
    model(3, || {
        let (blocks, machine) = blocks::<Reusing>();
        let at = alloc(&blocks, machine, 2);
        let theirs = blocks.clone();
        let shrinker = spawn(move || theirs.shrink().blocks);
        free(&blocks, machine, at, 2);
        let first = shrinker.join().unwrap_or(u64::MAX);
        assert_eq!(first + blocks.shrink().blocks, 1);
        assert_eq!((blocks.stats().blocks, blocks.validate()), (0, Ok(())));
    });
}

#[test]
fn two_allocs_of_one_cpu_get_different_pages() {
    model(3, || {
        let (blocks, machine) = blocks::<Reusing>();
        let theirs = blocks.clone();
        let other = spawn(move || alloc(&theirs, machine, 2));
        let mine = alloc(&blocks, machine, 2);
        assert!(other.join().is_ok_and(|theirs| theirs != mine));
        assert_eq!(blocks.validate(), Ok(()));
    });
}

/// Two blocks have room for two requests at any moment, though one of them changes its block meanwhile.
#[test]
fn a_request_beside_one_that_changes_its_block_does_not_fail() {
    model(1, || {
        let (blocks, machine) = blocks::<Reusing>();
        let (first, old) = (alloc(&blocks, machine, 4), alloc(&blocks, machine, 4));
        // A block whose pages are all dead, and one of the other thread.
        free(&blocks, machine, first, 4);
        let theirs = blocks.clone();
        let other = spawn(move || {
            free(&theirs, machine, old, 4);
            theirs.alloc(0, 4).map(|at| machine.map(at, 4))
        });
        let mine = blocks.alloc(0, 4).map(|at| machine.map(at, 4));
        let theirs = other.join().unwrap_or(Err(BlockError::NoTable));
        assert_eq!((mine, theirs), (Ok(()), Ok(())));
        assert_eq!(blocks.validate(), Ok(()));
    });
}
