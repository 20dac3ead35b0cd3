//! What a process pays for per-CPU data, in nanoseconds: an increment beside a thread-local and an atomic one, and a counter
//! that is made, zeroed in every unit that was ever used, and dropped.
//!
//! `cargo run --release -p vmalloc --example percpu` prints a table: the least and the median of some rounds, which alternate
//! between the contenders, by one thread and by two.

use std::cell::Cell;
use std::hint::black_box;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use vmalloc::percpu::{Index, Options, PerCpuCounter, PerCpuRef, RefMode, Space, Word};

const ROUNDS: usize = 21;
const CALLS: u32 = 400_000;

thread_local! {
    static OWN: Cell<u64> = const { Cell::new(0) };
}

/// Nanoseconds a call.
fn time(calls: u32, mut call: impl FnMut()) -> f64 {
    let started = Instant::now();
    for _ in 0..calls {
        call();
    }
    started.elapsed().as_nanos() as f64 / f64::from(calls)
}

/// Rounds of all contenders in turn, by `threads` at once; the rounds of each.
fn rounds(threads: usize, contenders: &[(&str, &(dyn Fn() -> f64 + Sync))]) -> Vec<Vec<f64>> {
    let barrier = Barrier::new(threads);
    let run = || -> Vec<Vec<f64>> {
        let mut times = vec![Vec::new(); contenders.len()];
        for _ in 0..ROUNDS {
            for (times, (_, contender)) in times.iter_mut().zip(contenders) {
                barrier.wait();
                times.push(contender());
            }
        }
        times
    };
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(run)).collect();
        let mut all = run();
        for other in others {
            let Ok(times) = other.join() else { panic!("a thread failed") };
            for (all, times) in all.iter_mut().zip(times) {
                all.extend(times);
            }
        }
        all
    })
}

fn report(threads: usize, contenders: &[(&str, &(dyn Fn() -> f64 + Sync))]) {
    for (mut times, (name, _)) in rounds(threads, contenders).into_iter().zip(contenders) {
        times.sort_by(f64::total_cmp);
        println!("| {name} | {threads} | {:.2} | {:.2} |", times[0], times[times.len() / 2]);
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // As on a machine of 64 CPUs, of which two were ever used.
    let wide = Space::new(Options { units: Some(64), ..Options::default() })?;
    let by_cpu = Space::new(Options { index: Index::Cpu, ..Options::default() })?;
    let atomics = Space::new(Options { atomics_only: true, ..Options::default() })?;
    let (word, cpu, shard) = (wide.zeroed::<Word>()?, by_cpu.zeroed::<Word>()?, atomics.zeroed::<Word>()?);
    let (word, cpu, shard) = (word.word(), cpu.word(), shard.word());
    let one = AtomicU64::new(0);
    let counter = PerCpuCounter::new(&wide, 0)?;
    let count = PerCpuRef::new(&wide, RefMode::PerCpu, || {})?;
    let warm = wide.zeroed::<AtomicU64>()?;
    warm.get(1);

    println!("sections: {}, by {:?}\n", wide.is_restartable(), wide.index());
    println!("| what | threads | least ns | median ns |\n|---|---:|---:|---:|");
    let thread_local = || time(CALLS, || OWN.with(|own| own.set(black_box(own.get()) + 1)));
    let section = || time(CALLS, || word.add(black_box(1)));
    let section_by_cpu = || time(CALLS, || cpu.add(black_box(1)));
    let atomic = || {
        time(CALLS, || {
            one.fetch_add(black_box(1), Ordering::Relaxed);
        })
    };
    let sharded = || time(CALLS, || shard.add(black_box(1)));
    let batched = || time(CALLS, || counter.add(black_box(1)));
    let references = || {
        time(CALLS, || {
            count.get();
            count.put();
        })
    };
    let pair = || {
        time(CALLS / 8, || {
            if let Err(error) = wide.zeroed::<AtomicU64>().map(black_box) {
                panic!("{error}");
            }
        })
    };
    for threads in [1, 2] {
        report(
            threads,
            &[
                ("increment of a thread-local", &thread_local),
                ("increment by section, concurrency id", &section),
                ("increment by section, CPU", &section_by_cpu),
                ("atomic increment of one word", &atomic),
                ("increment where there are no sections", &sharded),
                ("`PerCpuCounter::add`", &batched),
                ("`PerCpuRef`, get and put", &references),
                ("zeroed counter of 64 units, 2 used, made and dropped", &pair),
            ],
        );
    }
    println!(
        "\nunits used: {} of {}; sections begun again: {}",
        wide.units_used(),
        wide.units(),
        vmalloc::percpu::restarts()
    );
    Ok(())
}
