//! The worst call of each kind that a purge can delay, counted by callgrind.
//!
//! ```sh
//! cargo build --profile dist -p va-sim --example slices
//! valgrind --tool=callgrind --callgrind-out-file=slices.%p --toggle-collect='*measured*' \
//!   --dump-before=slices::measured --dump-after=slices::measured target/dist/examples/slices CASE
//! ```
//!
//! The dump options take the plain name of a function, no pattern. Each call of `measured` leaves a dump; the largest
//! of their totals is the worst call. Without a case, all of them run.

#![expect(clippy::unwrap_used, reason = "an example may")]

use std::hint::black_box;
use va_base::{Request, VaRange};
use va_sim::machine::SimMachine;
use va_space::config::Standard;
use va_space::{Area, Purge, VmapSpace};

const FIRST: u64 = 0xf_ffc9_0000_0000;
/// Frees and slices counted in each case.
const COUNTED: usize = 600;

type Space<'m> = VmapSpace<&'m SimMachine, Standard>;

/// Runs one call, under a name that callgrind can select.
#[inline(never)]
fn measured<T>(call: impl FnOnce() -> T) -> T {
    call()
}

fn space(machine: &SimMachine) -> Space<'_> {
    let extent = VaRange::from_pages(FIRST, FIRST + (1 << 26)).unwrap();
    VmapSpace::new(extent, extent, machine).unwrap()
}

/// Allocates `count` areas of `size_of(n)` pages, by the CPUs in turn.
fn areas(space: &Space<'_>, count: u64, size_of: impl Fn(u64) -> u64) -> Vec<Area> {
    let ask = |n| Request::pages(size_of(n)).unwrap();
    (0..count).map(|n| space.alloc(n as u32 % 128, &ask(n)).unwrap()).collect()
}

/// Frees until the threshold is passed, then counts each free, and then each slice of a worker.
fn count(space: &Space<'_>, machine: &SimMachine, mut areas: Vec<Area>) {
    machine.drain_elsewhere(true);
    while space.lazy_pages().get() < 65_000 && areas.len() > COUNTED {
        space.free(areas.pop().unwrap()).unwrap();
    }
    machine.drain_elsewhere(false);
    for area in areas.drain(..COUNTED.min(areas.len())) {
        measured(|| space.free(area)).unwrap();
    }
    machine.drain_elsewhere(true);
    areas.into_iter().for_each(|area| space.free(area).unwrap());
    for _ in 0..COUNTED {
        black_box(measured(|| space.tick()));
    }
}

fn shuffled(mut areas: Vec<Area>) -> Vec<Area> {
    let mut state = 88_172_645_463_325_252_u64;
    for at in (1..areas.len()).rev() {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        areas.swap(at, state as usize % (at + 1));
    }
    areas
}

fn run(case: &str) {
    let cpus = if case == "one" { 1 } else { 128 };
    let machine = SimMachine::new(cpus);
    let space = space(&machine);
    match case {
        // One size on one node, and on 128.
        "one" | "pages" => count(&space, &machine, shuffled(areas(&space, 1 << 17, |_| 1))),
        // Every size that has a list, on each node.
        "sizes" => count(&space, &machine, shuffled(areas(&space, 1 << 14, |n| 1 + n / 128 % 256))),
        // Sizes that no pool takes, and an area in use between any two.
        "large" => {
            let all = areas(&space, 1 << 12, |n| 300 + n % 61);
            let (mut even, mut odd) = (Vec::new(), Vec::new());
            all.into_iter()
                .enumerate()
                .for_each(|(n, area)| if n % 2 == 0 { &mut even } else { &mut odd }.push(area));
            count(&space, &machine, shuffled(even));
            black_box(odd);
        }
        // Full pools decay.
        "decay" => {
            for area in areas(&space, 1 << 16, |n| 1 + n % 3) {
                space.free(area).unwrap();
            }
            space.purge(Purge::Drain);
            let more = areas(&space, 1 << 10, |_| 100);
            count(&space, &machine, more);
        }
        // A full pass that a request began and left: areas are freed by address.
        "leave" => {
            let low = VaRange::from_pages(FIRST, FIRST + 4000).unwrap();
            let all = areas(&space, 1 << 16, |_| 1);
            machine.drain_elsewhere(true);
            shuffled(all).into_iter().for_each(|area| space.free(area).unwrap());
            machine.drain_elsewhere(false);
            let request = Request::pages(64).unwrap().within(low);
            let _early = space.alloc(0, &request);
            let more = areas(&space, 2000, |_| 2);
            more.into_iter().for_each(|area| measured(|| space.free(area)).unwrap());
            machine.drain_elsewhere(true);
            for _ in 0..COUNTED {
                black_box(measured(|| space.tick()));
            }
        }
        // Rounds of a magazine with every size that has a list; beside it ("magazines") seven idle ones with full
        // caches.
        "magazine" => magazine(&space, &machine, 0),
        "magazines" => magazine(&space, &machine, 7),
        _ => eprintln!("{CASES:?}"),
    }
}

/// Counts the frees of a magazine whose rounds contain all sizes, some more often than others.
fn magazine(space: &Space<'_>, machine: &SimMachine, idle: u32) {
    let size_of = |n: u64| 1 + n * n % 264;
    let ask = |n| Request::pages(size_of(n)).unwrap();
    let mut magazine = space.magazine(0).unwrap();
    machine.drain_elsewhere(false);
    let mut out: Vec<_> = (0..1024).map(|n| magazine.alloc(&ask(n)).unwrap()).collect();
    let mut others = Vec::new();
    for round in 0..8 {
        // All shuffled, so that no round frees one size alone.
        out = shuffled(out);
        let later = out.split_off(1024);
        out.into_iter().for_each(|area| measured(|| magazine.free(area)).unwrap());
        out = later;
        out.extend((0..1024).map(|n| magazine.alloc(&ask(n + round)).unwrap()));
        if round == 4 {
            // The shares are smaller from here on.
            others.extend((0..idle).map(|cpu| space.magazine(1 + cpu).unwrap()));
        }
    }
    out.into_iter().for_each(|area| magazine.free(area).unwrap());
}

const CASES: [&str; 8] = ["one", "pages", "sizes", "large", "decay", "leave", "magazine", "magazines"];

fn main() {
    match std::env::args().nth(1) {
        Some(case) => run(&case),
        None => CASES.into_iter().for_each(run),
    }
}
