//! Measures pairs of an allocation and a free, with one byte touched in between, compared with the system's allocator.
//!
//! `cargo run --profile dist -p vmalloc --example pair` prints a table: nanoseconds a pair, the least and the median of
//! several rounds, which alternate between the two.

use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::time::Instant;
use vmalloc::Vmalloc;

const ROUNDS: usize = 15;

/// Returns nanoseconds a call, after a few warm-up calls.
fn time(calls: u32, mut pair: impl FnMut()) -> f64 {
    (0..3).for_each(|_| pair());
    let started = Instant::now();
    (0..calls).for_each(|_| pair());
    started.elapsed().as_nanos() as f64 / f64::from(calls)
}

fn least_and_median(mut times: Vec<f64>) -> (f64, f64) {
    times.sort_by(f64::total_cmp);
    (times[0], times[times.len() / 2])
}

fn ours(memory: &Vmalloc, layout: Layout) {
    let Ok(area) = memory.alloc(black_box(layout)) else { panic!("no memory") };
    // SAFETY: an area of our own, of at least a byte.
    unsafe { area.write_volatile(1) };
    // SAFETY: our own, and no reference to it remains.
    if let Err(error) = unsafe { memory.free(black_box(area)) } {
        panic!("{error}");
    }
}

fn theirs(layout: Layout) {
    // SAFETY: a layout with a size.
    let area = unsafe { System.alloc(black_box(layout)) };
    assert!(!area.is_null(), "no memory");
    // SAFETY: an allocation of our own, of at least a byte.
    unsafe { area.write_volatile(1) };
    // SAFETY: our own, of that layout, and no reference to it remains.
    unsafe { System.dealloc(black_box(area), layout) };
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let memory = Vmalloc::global()?;
    println!(
        "{:>9} {:>10} {:>10} {:>12} {:>12} {:>9}",
        "size", "ours min", "median", "system min", "median", "ratio"
    );
    for log2 in 16..=26 {
        let layout = Layout::from_size_align(1 << log2, 1)?;
        let (mut our, mut their) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            our.push(time(20_000, || ours(memory, layout)));
            their.push(time(500, || theirs(layout)));
        }
        let ((least, median), (their_least, their_median)) = (least_and_median(our), least_and_median(their));
        let size =
            if log2 < 20 { format!("{} KiB", 1 << (log2 - 10)) } else { format!("{} MiB", 1 << (log2 - 20)) };
        let ratio = their_median / median;
        println!(
            "{size:>9} {least:>8.1}ns {median:>8.1}ns {their_least:>10.1}ns {their_median:>10.1}ns {ratio:>8.1}x"
        );
    }
    let stats = memory.stats();
    println!(
        "{} cached, {} dirty, {} committed bytes",
        stats.cached_bytes, stats.dirty_bytes, stats.committed_bytes
    );
    Ok(())
}
