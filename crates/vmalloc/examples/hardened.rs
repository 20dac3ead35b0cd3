//! What guards and the hardened profile cost.
//!
//! `cargo run --release -p vmalloc --example hardened` prints two tables: nanoseconds for a pair of an allocation and a free, the least of
//! some rounds, in the ordinary profile, in the hardened one, and in the hardened one with walls by protection, which is the design of
//! `MADV_DONTNEED` and `mprotect`; and a million areas with a guard each, held at once. With `reuse` and `plain` or `guards` it
//! makes 100,000 pairs and nothing else, for a tool that counts instructions.

use std::alloc::Layout;
use std::hint::black_box;
use std::ptr::NonNull;
use std::time::Instant;
use vmalloc::{Hardened, Options, Profile, Vmalloc, Walls};

const PAGE_BYTES: usize = 4096;
const ROUNDS: usize = 9;
const AREAS: usize = 1_000_000;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// How much of an area is touched.
#[derive(Clone, Copy)]
enum Touch {
    Byte,
    Pages,
}

fn pair(memory: &Vmalloc, layout: Layout, touch: Touch) -> Outcome<()> {
    let area: NonNull<u8> = memory.alloc(black_box(layout))?;
    let step = match touch {
        Touch::Byte => layout.size(),
        Touch::Pages => PAGE_BYTES,
    };
    for at in (0..layout.size()).step_by(step) {
        // SAFETY: inside an area of our own.
        let place = unsafe { area.add(at) };
        // SAFETY: as before.
        unsafe { place.write_volatile(1) };
    }
    // SAFETY: our own, and nobody refers to it any more.
    Ok(unsafe { memory.free(black_box(area)) }?)
}

/// The least nanoseconds a pair of some rounds.
fn least(memory: &Vmalloc, layout: Layout, touch: Touch) -> Outcome<f64> {
    let calls = ((64 << 20) / layout.size()).clamp(8, 400);
    let mut least = f64::INFINITY;
    for _ in 0..ROUNDS {
        let started = Instant::now();
        for _ in 0..calls {
            pair(memory, layout, touch)?;
        }
        least = least.min(started.elapsed().as_nanos() as f64 / calls as f64);
    }
    Ok(least)
}

fn hardened(walls: Walls) -> Options {
    Options { profile: Profile::Hardened(Hardened { walls, ..Hardened::default() }), ..Options::default() }
}

fn pairs() -> Outcome<()> {
    println!("| size | touched | ordinary | guards | hardened | by protection | protection / hardened |");
    println!("|---|---|---:|---:|---:|---:|---:|");
    let guards = Options { guards: true, ..Options::default() };
    let memories = [Options::default(), guards, hardened(Walls::Best), hardened(Walls::Protection)];
    let memories = memories.map(Vmalloc::new);
    for (bytes, name) in [(64 << 10, "64 KiB"), (1 << 20, "1 MiB"), (16 << 20, "16 MiB")] {
        for (touch, touched) in [(Touch::Byte, "a byte"), (Touch::Pages, "every page")] {
            let mut times = Vec::new();
            for memory in &memories {
                let memory = memory.as_ref().map_err(|error| *error)?;
                times.push(least(memory, Layout::from_size_align(bytes, 16)?, touch)?);
            }
            print!("| {name} | {touched} |");
            for time in &times {
                print!(" {time:.0} ns |");
            }
            println!(" {:.1} |", times[3] / times[2]);
        }
    }
    Ok(())
}

fn mappings() -> Outcome<usize> {
    Ok(std::fs::read_to_string("/proc/self/maps")?.lines().count())
}

/// A line of `/proc/self/status`.
fn status(name: &str) -> Outcome<String> {
    let text = std::fs::read_to_string("/proc/self/status")?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    Ok(line.trim_start_matches(':').trim().to_owned())
}

fn million() -> Outcome<()> {
    let memory = Vmalloc::new(Options { guards: true, ..Options::default() })?;
    let before = mappings()?;
    let layout = Layout::from_size_align(PAGE_BYTES, 1)?;
    let mut areas = Vec::with_capacity(AREAS);
    let started = Instant::now();
    for _ in 0..AREAS {
        areas.push(memory.alloc(layout)?);
    }
    let each = started.elapsed().as_nanos() as f64 / AREAS as f64;
    let (stats, after) = (memory.stats(), mappings()?);
    println!("| guarded areas | without | mappings before | mappings | ns each | page tables |");
    println!("|---:|---:|---:|---:|---:|---:|");
    let tables = status("VmPTE")?;
    println!("| {} | {} | {before} | {after} | {each:.0} | {tables} |", stats.guards, stats.unguarded_areas);
    let started = Instant::now();
    for area in areas {
        // SAFETY: our own, and nobody refers to it.
        unsafe { memory.free(area) }?;
    }
    println!("\nFreed at {:.0} ns each.", started.elapsed().as_nanos() as f64 / AREAS as f64);
    Ok(())
}

fn main() -> Outcome<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.first().is_some_and(|word| word == "reuse") {
        let guards = words.get(1).is_some_and(|word| word == "guards");
        let memory = Vmalloc::new(Options { guards, ..Options::default() })?;
        let layout = Layout::from_size_align(1 << 16, 1)?;
        for _ in 0..100_000 {
            pair(&memory, layout, Touch::Byte)?;
        }
        return Ok(());
    }
    pairs()?;
    println!();
    million()
}
