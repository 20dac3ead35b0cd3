//! Measures the alloc and the free of a small mapping: the least and the median of many batches, one thread.
//!
//! Run: `cargo run --profile dist -p va-sim --example block_pair`

use std::hint::black_box;
use std::time::Instant;
use va_base::{HeapMachine, Va, VaRange};
use va_block::config::{Linux64, Standard};
use va_block::{Blocks, Config};
use va_space::VmapSpace;

type Machine = HeapMachine<parking_lot::RawMutex>;

const PAIRS: u64 = 40_000;

fn measure(name: &str, machine: &Machine, mut pair: impl FnMut(u64)) {
    let flushes = machine.flushes();
    let mut batches: Vec<f64> = (0..200)
        .map(|_| {
            let start = Instant::now();
            (0..PAIRS).for_each(&mut pair);
            start.elapsed().as_nanos() as f64 / PAIRS as f64
        })
        .collect();
    batches.sort_by(f64::total_cmp);
    let flushes = machine.flushes() - flushes;
    let each = 200 * PAIRS / flushes.max(1);
    println!(
        "{name:<34} least {:6.2} ns, median {:6.2} ns, a flush each {each} pairs",
        batches[0], batches[100]
    );
}

fn with<C: Config>(what: &str) {
    let window = VaRange::from_pages(0xf_ffc9_0000_0000, 0xf_ffc9_0000_0000 + (1 << 33)).unwrap_or_default();
    for pages in [1, 4, 16] {
        let machine = Machine::new(2);
        let Ok(space) = VmapSpace::new(window, window, &machine) else { panic!("no space") };
        let Ok(blocks) = Blocks::<_, C>::new(space, &machine) else { panic!("no blocks") };
        let fine = |got: Result<Va, _>| match got {
            Ok(at) => at,
            Err(error) => panic!("{error}"),
        };
        measure(&format!("{what}, {pages} pages, by CPU"), &machine, |_| {
            let at = black_box(fine(blocks.alloc(0, black_box(pages))));
            let _ = black_box(blocks.free(0, at, pages));
        });
        let mut lane = blocks.lane(0).unwrap_or_else(|error| panic!("{error}"));
        measure(&format!("{what}, {pages} pages, in a lane"), &machine, |_| {
            let at = black_box(fine(lane.alloc(black_box(pages))));
            let _ = black_box(lane.free(at, pages));
        });
        let mut live: Vec<Va> = (0..2048).map(|_| fine(lane.alloc(pages))).collect();
        let mut random = 1u64;
        measure(&format!("{what}, {pages} pages, 2048 live"), &machine, |_| {
            random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let at = &mut live[(random >> 53) as usize];
            let _ = black_box(lane.free(*at, pages));
            *at = fine(lane.alloc(black_box(pages)));
        });
        let stats = blocks.stats();
        println!("{:>34} {} blocks, {} dead, {} free", "", stats.blocks, stats.dead_pages, stats.free_pages);
    }
}

fn main() {
    with::<Standard>("ours");
    with::<Linux64>("linux 6.4");
}
