//! Interleavings of deferred frees and of small mappings, each small enough to try all of them (with at most two preemptions).
//!
//! Run: `RUSTFLAGS="--cfg loom" cargo test -p va-map --lib loom`. Memory for records is allocated before the threads
//! begin.

use crate::{
    AreaRequest, Entries, Leaf, MapSpace, PageRequest, PageSource, PageTable, Protection, Run, Stopped,
};
use loom::thread;
use std::boxed::Box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use va_base::{HeapMachine, PAGE_SIZE, Pages, Platform, Va, VaRange};
use va_block::config::Hashed;
use va_space::VmapSpace;
use va_space::decay::Quarter;
use va_space::node::HashedZones;
use va_tree::BTreeIndex;

/// Page tables and pages. A page has the number of its address, and a bit each.
#[derive(Default)]
struct Watcher {
    /// loom's: others run between two calls.
    mapped: loom::sync::atomic::AtomicU64,
    /// Pages allocated from the source.
    out: AtomicU64,
    next: AtomicU64,
}

impl PageTable for Watcher {
    const LEAF_SIZES: &'static [u32] = &[0];

    fn map(&self, at: Va, entries: Entries) -> Result<(), Stopped> {
        let bits = (1 << entries.run.pages) - 1 << at.page_floor();
        assert_eq!(self.mapped.fetch_or(bits, Ordering::SeqCst) & bits, 0, "mapped twice");
        Ok(())
    }

    fn unmap(&self, range: VaRange, gone: &mut dyn FnMut(Leaf)) {
        let (first, end) = range.whole_pages();
        for page in first..end {
            let had = self.mapped.fetch_and(!(1 << page), Ordering::SeqCst);
            assert_eq!(had >> page & 1, 1, "page {page} is unmapped twice");
            gone(Leaf { first: page, pages_log2: 0 });
        }
    }

    fn leaf(&self, at: Va) -> Option<Leaf> {
        let page = at.page_floor();
        let there = page < 64 && self.mapped.load(Ordering::SeqCst) >> page & 1 == 1;
        there.then_some(Leaf { first: page, pages_log2: 0 })
    }
}

impl PageSource for Watcher {
    fn alloc(&self, frames: &mut [u64], _request: PageRequest) -> usize {
        self.out.fetch_add(frames.len() as u64, Ordering::SeqCst);
        frames.fill_with(|| self.next.fetch_add(1, Ordering::SeqCst));
        frames.len()
    }

    fn alloc_run(&self, _pages_log2: u32, _request: PageRequest) -> Option<u64> {
        None
    }

    fn free(&self, run: Run) {
        assert!(self.out.fetch_sub(run.pages, Ordering::SeqCst) >= run.pages, "more came back than was out");
    }

    fn clear(&self, _frame: u64, _from: u64, _to: u64) {}
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
    const STEAL: bool = false;
    const SLICE_AREAS: u64 = 8;
    fn lazy_max(_cpus: u32) -> Pages {
        Pages::new(1000)
    }
}

struct Tiny;

impl va_block::Config for Tiny {
    type Base = va_block::config::Standard;
    type Space = TinySpace;
    type Spread = Hashed;
    const SLICE_BLOCKS: u32 = 8;
    const REPORT_PAGES: u64 = 100;
    fn block_pages(_cpus: u32) -> u64 {
        4
    }
}

type Machine = HeapMachine<parking_lot::RawMutex>;
type Map = MapSpace<&'static Machine, &'static Watcher, Tiny>;

fn map() -> (Arc<Map>, &'static Watcher) {
    let machine: &'static Machine = Box::leak(Box::new(Machine::new(1)));
    let watcher: &'static Watcher = Box::leak(Box::default());
    let Some(window) = VaRange::from_pages(4, 12) else { panic!("pages") };
    let Ok(space) = VmapSpace::new(window, window, machine) else { panic!("no space") };
    let Ok(map) = Map::new(space, machine, watcher) else { panic!("no map") };
    (Arc::new(map), watcher)
}

fn area(map: &Map) -> Va {
    match map.vmalloc(0, &AreaRequest::new(PAGE_SIZE)) {
        Ok(at) => at,
        Err(error) => panic!("{error}"),
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

fn all_is_back(map: &Map, machine: &Watcher) {
    assert_eq!(map.validate(), Ok(()));
    assert_eq!((machine.out.load(Ordering::SeqCst), machine.mapped.load(Ordering::SeqCst)), (0, 0));
}

#[test]
fn rd3_a_deferred_free_beside_a_worker_is_ended_once() {
    model(2, || {
        let (map, machine) = map();
        let (one, other) = (area(&map), area(&map));
        assert_eq!(map.vfree_atomic(one), Ok(1));
        let theirs = map.clone();
        let worker = spawn(move || theirs.run_deferred());
        let waiting = map.vfree_atomic(other);
        assert!(matches!(waiting, Ok(1 | 2)), "{waiting:?}");
        let ended = worker.join().unwrap_or(u64::MAX);
        assert!(ended == 1 || ended == 2);
        // A wake for each list that was empty is enough: the areas that wait now are those that the worker did not see.
        assert_eq!(ended + map.run_deferred(), 2);
        all_is_back(&map, machine);
    });
}

#[test]
fn rd3_of_two_workers_one_ends_an_area() {
    model(2, || {
        let (map, machine) = map();
        let at = area(&map);
        assert_eq!(map.vfree_atomic(at), Ok(1));
        let theirs = map.clone();
        let worker = spawn(move || theirs.run_deferred());
        let mine = map.run_deferred();
        assert_eq!(worker.join().unwrap_or(u64::MAX).wrapping_add(mine), 1);
        all_is_back(&map, machine);
    });
}

#[test]
fn rd3_of_a_free_and_a_deferred_one_of_the_same_area_one_succeeds() {
    model(2, || {
        let (map, machine) = map();
        let at = area(&map);
        let theirs = map.clone();
        let freer = spawn(move || theirs.vfree(at).is_ok());
        let deferred = map.vfree_atomic(at).is_ok();
        let ended = map.run_deferred();
        let freed = freer.join().is_ok_and(|freed| freed);
        assert!(freed != deferred);
        assert_eq!(ended, u64::from(deferred));
        all_is_back(&map, machine);
    });
}

#[test]
fn mp5_of_two_unmaps_of_a_small_mapping_one_succeeds_and_no_later_one_is_cut() {
    model(2, || {
        let (map, machine) = map();
        let small = |pages: u64| match map.vm_map_ram(0, &[9; 4][..pages as usize], Protection(0)) {
            Ok(at) => at,
            Err(error) => panic!("{error}"),
        };
        let at = small(4);
        let theirs = map.clone();
        let other = spawn(move || theirs.vm_unmap_ram(0, at, 4).is_ok());
        let own = map.vm_unmap_ram(0, at, 4).is_ok();
        map.unmap_aliases();
        let next = small(2);
        let freed = other.join().is_ok_and(|freed| freed);
        assert!(own != freed);
        assert_eq!(map.vm_unmap_ram(0, next, 2), Ok(()));
        all_is_back(&map, machine);
    });
}

#[test]
fn mp5_of_two_unmaps_of_a_large_mapping_one_succeeds_and_no_larger_one_is_cut() {
    // Records are taken under one lock: a thread is preempted before or after.
    model(1, || {
        let (map, machine) = map();
        let large = |pages: u64| map.vm_map_ram(0, &[9; 6][..pages as usize], Protection(0));
        let Ok(at) = large(5) else { panic!("the map is empty") };
        let two = [(); 2].map(|()| {
            let theirs = map.clone();
            spawn(move || theirs.vm_unmap_ram(0, at, 5).is_ok())
        });
        map.purge();
        // A third caller, who errs in nothing, and has room once the first mapping is gone.
        if let Ok(other) = large(6) {
            assert_eq!(map.vm_unmap_ram(0, other, 6), Ok(()));
        }
        let [first, second] = two.map(|thread| thread.join().is_ok_and(|unmapped| unmapped));
        assert!(first != second);
        all_is_back(&map, machine);
    });
}
