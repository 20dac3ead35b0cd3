//! Ten million idle counters beside as many plain words: their memory, and an addition to each.
//!
//! Then two threads add to one counter, which promotes it, and one thread adds in the same loop by other means.
//! `results/percpu-counters.md` has the output.

use core::cell::Cell;
use core::hint::black_box;
use core::sync::atomic::{AtomicI64, Ordering};
use std::time::Instant;
use vmalloc_percpu::{Error, PerCpuCounter, Space, Word};

const COUNTERS: usize = 10_000_000;
const ROUNDS: usize = 15;

/// Returns the resident bytes of this process, whose pages have 4 KiB.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok());
    pages.unwrap_or(0) * 4096
}

/// Makes values, and prints their memory and the time of an addition to each, the least of several rounds.
fn measure<T>(name: &str, make: impl Fn() -> T, add: impl Fn(&T)) {
    let before = resident();
    let values: Vec<T> = (0..COUNTERS).map(|_| make()).collect();
    let bytes = resident() - before;
    let least = (0..ROUNDS).map(|_| {
        let start = Instant::now();
        values.iter().for_each(&add);
        start.elapsed().as_nanos() as f64 / COUNTERS as f64
    });
    let least = least.fold(f64::INFINITY, f64::min);
    let grown = resident() - before - bytes;
    println!(
        "{name:<46} {:>6.1} bytes each, {grown} more after the additions; {least:.2} ns an addition",
        bytes as f64 / COUNTERS as f64
    );
}

/// Prints the time of an addition in a loop, the least of many rounds, and returns it.
#[inline(always)]
fn in_loop(name: &str, mut add: impl FnMut()) -> f64 {
    const ADDITIONS: u32 = 100_000;
    let least = (0..200).map(|_| {
        let start = Instant::now();
        (0..ADDITIONS).for_each(|_| add());
        start.elapsed().as_nanos() as f64 / f64::from(ADDITIONS)
    });
    let least = least.fold(f64::INFINITY, f64::min);
    println!("{name:<46} {least:>6.2} ns an addition");
    least
}

thread_local! {
    static OWN: Cell<u64> = const { Cell::new(0) };
}

fn main() -> Result<(), Error> {
    let space = Space::global()?;
    println!("{COUNTERS} values, {} units", space.units());
    measure(
        "plain words, atomic additions",
        || AtomicI64::new(1),
        |word| {
            black_box(word.fetch_add(1, Ordering::Relaxed));
        },
    );
    measure("`PerCpuCounter`, idle", || PerCpuCounter::new(space, 0), |counter| counter.add(1));
    println!("objects in the space: {}", space.counts().0);
    let counter = PerCpuCounter::new(space, 0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !counter.is_percpu() {
                    (0..1_000).for_each(|_| counter.add(1));
                }
            });
        }
    });
    println!(
        "after two threads: promoted {}; {} units used; sum {}",
        counter.is_percpu(),
        space.units_used(),
        counter.sum()
    );
    let own = in_loop("thread-local", || OWN.with(|own| own.set(own.get().wrapping_add(black_box(1)))));
    in_loop("thread-local, loaded and stored apart", || {
        OWN.with(|own| own.set(black_box(own.get()).wrapping_add(black_box(1))));
    });
    let word = space.zeroed::<Word>()?;
    let word = word.word();
    let section = in_loop("section", || word.add(black_box(1)));
    let plain = AtomicI64::new(0);
    in_loop("atomic", || {
        plain.fetch_add(black_box(1), Ordering::Relaxed);
    });
    let idle = PerCpuCounter::new(space, 0);
    in_loop("`PerCpuCounter`, in one word", || idle.add(black_box(1)));
    in_loop("`PerCpuCounter`, promoted", || counter.add(black_box(1)));
    println!("a section takes {:.2} times what a thread-local takes", section / own);
    Ok(())
}
