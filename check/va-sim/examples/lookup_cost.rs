//! Measures lookups: by the page map and by a tree in each node, one thread; the least of many batches.
//!
//! Areas of 1 to 64 pages at random, every tenth freed again, so that there are holes. Then random starts, random
//! Areas of 1 to 64 pages at random, every tenth freed again, so that there are holes. Then random starts, random
//! addresses inside areas, the next area above a random address, and pairs of free and alloc of random areas.
//! Run: `cargo run --profile dist -p va-sim --example lookup_cost`

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use va_base::{HeapMachine, LockClass, Request, Va, VaRange, Watch};
use va_space::config::{Standard, WithTrees};
use va_space::lookup::{Downward, Upward};
use va_space::{Area, Config, VmapSpace};

/// Counts the allocated bytes, and locks of trees.
#[derive(Default)]
struct Counts {
    allocated_bytes: AtomicU64,
    lockings: AtomicU64,
}

impl Watch for Counts {
    fn admits(&self, bytes: usize) -> bool {
        self.allocated_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        true
    }

    fn returned(&self, bytes: usize) {
        self.allocated_bytes.fetch_sub(bytes as u64, Ordering::Relaxed);
    }

    #[inline]
    fn locking(&self, class: LockClass) {
        if class == LockClass::Busy {
            // One thread: a load and a store are almost free.
            self.lockings.store(self.lockings.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
    }
}

type Counted = HeapMachine<parking_lot::RawMutex, Counts>;

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((u128::from(self.0 >> 16) * u128::from(bound)) >> 48) as u64
    }
}

const CALLS: u64 = 20_000;
const BATCHES: u64 = 20;

/// Returns nanoseconds a call, and locks of trees a call.
fn measure(machine: &Counted, mut call: impl FnMut()) -> (f64, f64) {
    let before = machine.watcher.lockings.load(Ordering::Relaxed);
    let mut least = f64::MAX;
    for _ in 0..BATCHES {
        let start = Instant::now();
        (0..CALLS).for_each(|_| call());
        least = least.min(start.elapsed().as_nanos() as f64 / CALLS as f64);
    }
    let locks = machine.watcher.lockings.load(Ordering::Relaxed) - before;
    (least, locks as f64 / (CALLS * BATCHES) as f64)
}

fn ask(pages: u64) -> Request {
    Request::pages(pages).unwrap_or_else(|error| panic!("{error}"))
}

fn alloc<C: Config>(space: &VmapSpace<&Counted, C>, cpu: u32, pages: u64) -> Area {
    space.alloc(cpu, &ask(pages)).unwrap_or_else(|error| panic!("{error}"))
}

fn free<C: Config>(space: &VmapSpace<&Counted, C>, area: Area) {
    space.free(area).unwrap_or_else(|error| panic!("{error}"));
}

fn with<C: Config>(what: &str, cpus: u32, live: u64) {
    let machine = Counted::watched(cpus, Counts::default()).with_online(2);
    let window = VaRange::from_pages(0xf_ffc9_0000_0000, 0xf_ffc9_0000_0000 + (1 << 33)).unwrap_or_default();
    let space = VmapSpace::<_, C>::new(window, window, &machine).unwrap_or_else(|error| panic!("{error}"));
    let mut random = Random(live);
    let mut areas: Vec<Area> = Vec::new();
    for n in 0..live * 10 / 9 {
        areas.push(alloc(&space, n as u32, 1 + random.below(64)));
        if n % 10 == 0 {
            let at = random.below(areas.len() as u64) as usize;
            free(&space, areas.swap_remove(at));
        }
    }
    let ranges: Vec<VaRange> = areas.iter().map(Area::range).collect();
    let end = ranges.iter().map(|range| range.end()).max().unwrap_or_default();
    let mut pick = Random(7);
    let start = measure(&machine, || {
        let range = ranges[pick.below(ranges.len() as u64) as usize];
        assert!(black_box(space.find(range.start())).is_some());
    });
    let inside = measure(&machine, || {
        let range = ranges[pick.below(ranges.len() as u64) as usize];
        let at = Va::new(range.start().get() + pick.below(range.len_bytes()));
        assert!(black_box(space.find_enclosing(at)).is_some());
    });
    let above = measure(&machine, || {
        let at = Va::new(window.start().get() + pick.below(end.get() - window.start().get()));
        assert!(black_box(space.find_above(at)).is_some());
    });
    let pair = measure(&machine, || {
        let at = pick.below(areas.len() as u64) as usize;
        let old = areas.swap_remove(at);
        let pages = old.size().get();
        free(&space, old);
        areas.push(alloc(&space, at as u32, pages));
    });
    let bytes = machine.watcher.allocated_bytes.load(Ordering::Relaxed) as f64 / ranges.len() as f64;
    println!(
        "| {what} | {cpus} | {live} | {:.0} ({:.1}) | {:.0} ({:.1}) | {:.0} ({:.1}) | {:.0} ({:.1}) | {bytes:.0} |",
        start.0, start.1, inside.0, inside.1, above.0, above.1, pair.0, pair.1
    );
}

fn main() {
    println!("ns a call (locks of trees a call); memory of the space, for each live area\n");
    println!(
        "| lookup | nodes | live areas | a start | inside | next above | alloc + free, random | bytes |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for live in [1000, 10_000, 100_000] {
        for cpus in [2, 16, 128] {
            with::<Standard>("page map", cpus, live);
            with::<WithTrees<Standard, Downward>>("trees, downward", cpus, live);
            with::<WithTrees<Standard, Upward>>("trees, upward", cpus, live);
        }
    }
}
