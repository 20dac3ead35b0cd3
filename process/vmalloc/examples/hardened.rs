//! Measures the cost of guards and of the hardened profile.
//!
//! `cargo run --profile dist -p vmalloc --example hardened` prints two tables. The first has nanoseconds of CPU time
//! for a pair of an allocation and a free, the least of several rounds. Its columns are the ordinary profile, that with
//! guards, the hardened one, and the hardened one with walls by protection, which is the design of `MADV_DONTNEED` and
//! `mprotect`. The second is about a million live areas with a guard each.
//!
//! With `reuse` and `plain`, `guards`, `hardened` or `protection` it makes 20,000 pairs of an area
//! of 64 KiB and nothing else, for tools that count. A number of bytes after these replaces 64 KiB,
//! and then `pages` touches all pages.

use std::alloc::Layout;
use std::hint::black_box;
use std::ptr::NonNull;
use vmalloc::{Hardened, Options, Profile, Vmalloc, Walls};

const PAGE_BYTES: usize = 4096;
const ROUNDS: usize = 9;
const AREAS: usize = 1_000_000;
const REUSES: usize = 20_000;

type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// The bytes of an area that are touched.
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
    // SAFETY: our own, and no reference to it remains.
    Ok(unsafe { memory.free(black_box(area)) }?)
}

/// Returns the CPU time of this thread in nanoseconds, without that of other threads.
fn cpu_time() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes `time`.
    let _always = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

/// Returns the least nanoseconds a pair of several rounds.
fn least(memory: &Vmalloc, layout: Layout, touch: Touch) -> Outcome<f64> {
    let calls = ((64 << 20) / layout.size()).clamp(8, 400);
    let mut least = f64::INFINITY;
    // Fills the quarantine first: from then on, one area leaves it for each that enters.
    for _ in 0..(5 << 28) / layout.size() {
        pair(memory, layout, touch)?;
    }
    for _ in 0..ROUNDS {
        let started = cpu_time();
        for _ in 0..calls {
            pair(memory, layout, touch)?;
        }
        least = least.min((cpu_time() - started) / calls as f64);
    }
    Ok(least)
}

fn hardened(walls: Walls) -> Options {
    Options::default().profile(Profile::Hardened(Hardened::default().walls(walls)))
}

fn pairs() -> Outcome<()> {
    println!("| size | touched | ordinary | guards | hardened | by protection | protection / hardened |");
    println!("|---|---|---:|---:|---:|---:|---:|");
    let guards = Options::default().guards(true);
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

/// Returns a line of `/proc/self/status`.
fn status(name: &str) -> Outcome<String> {
    let text = std::fs::read_to_string("/proc/self/status")?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    Ok(line.trim_start_matches(':').trim().to_owned())
}

fn million() -> Outcome<()> {
    let memory = Vmalloc::new(Options::default().guards(true))?;
    let before = mappings()?;
    let layout = Layout::from_size_align(PAGE_BYTES, 1)?;
    let mut areas = Vec::with_capacity(AREAS);
    let started = cpu_time();
    for _ in 0..AREAS {
        areas.push(memory.alloc(layout)?);
    }
    let each = (cpu_time() - started) / AREAS as f64;
    let (stats, after) = (memory.stats(), mappings()?);
    println!("| guarded areas | without | mappings before | mappings | ns each | page tables |");
    println!("|---:|---:|---:|---:|---:|---:|");
    let tables = status("VmPTE")?;
    println!("| {} | {} | {before} | {after} | {each:.0} | {tables} |", stats.guards, stats.unguarded_areas);
    let started = cpu_time();
    for area in areas {
        // SAFETY: our own, and no reference to it exists.
        unsafe { memory.free(area) }?;
    }
    println!("\nFreed at {:.0} ns each.", (cpu_time() - started) / AREAS as f64);
    Ok(())
}

fn main() -> Outcome<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.first().is_some_and(|word| word == "reuse") {
        let which = words.get(1).map_or("plain", String::as_str);
        let guards = which == "guards";
        let options = match which {
            "hardened" => hardened(Walls::Best),
            "protection" => hardened(Walls::Protection),
            _ => Options::default().guards(guards),
        };
        let memory = Vmalloc::new(options)?;
        let bytes = words.get(2).map_or(Ok(1 << 16), |word| word.parse())?;
        let touch = if words.get(3).is_some_and(|word| word == "pages") { Touch::Pages } else { Touch::Byte };
        let layout = Layout::from_size_align(bytes, 1)?;
        for _ in 0..REUSES {
            pair(&memory, layout, touch)?;
        }
        return Ok(());
    }
    pairs()?;
    println!();
    million()
}
