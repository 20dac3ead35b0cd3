//! Measures CPU time and resident memory of random sizes in a few live slots, with one byte of every page touched.
//!
//! `cargo run --profile dist -p vmalloc --example mix -- ours 64` runs this crate's allocator with a cache of that many
//! MiB; `-- system` runs the C library's allocator, or its `LD_PRELOAD` replacement. Further arguments are names of
//! workloads. Prints CPU time for an operation (a free and an allocation) and average and largest resident memory.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ptr::NonNull;
use vmalloc::{HugePages, Options, Vmalloc};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

struct Mix {
    name: &'static str,
    least: usize,
    most: usize,
    slots: usize,
    calls: u32,
    threads: usize,
}

const MIXES: [Mix; 5] = [
    Mix { name: "64K-4M", least: 64 * KIB, most: 4 * MIB, slots: 16, calls: 40_000, threads: 1 },
    Mix { name: "1M-16M", least: MIB, most: 16 * MIB, slots: 8, calls: 12_000, threads: 1 },
    Mix { name: "64K-64M", least: 64 * KIB, most: 64 * MIB, slots: 4, calls: 8_000, threads: 1 },
    Mix { name: "2x1M-16M", least: MIB, most: 16 * MIB, slots: 8, calls: 8_000, threads: 2 },
    Mix { name: "64x64K-4M", least: 64 * KIB, most: 4 * MIB, slots: 4, calls: 600, threads: 64 },
];

#[derive(Clone, Copy)]
enum Contender<'a> {
    Standard(&'a Vmalloc),
    System,
}

impl Contender<'_> {
    fn alloc(self, bytes: usize) -> Option<NonNull<u8>> {
        let layout = Layout::from_size_align(bytes, 1).ok()?;
        match self {
            Contender::Standard(memory) => memory.alloc(layout).ok(),
            // SAFETY: a layout with a size.
            Contender::System => NonNull::new(unsafe { System.alloc(layout) }),
        }
    }

    fn free(self, area: NonNull<u8>, bytes: usize) {
        match self {
            // SAFETY: allocated here, and no reference to it remains.
            Contender::Standard(memory) => assert!(unsafe { memory.free(area) }.is_ok()),
            Contender::System => {
                let Ok(layout) = Layout::from_size_align(bytes, 1) else { return };
                // SAFETY: as before.
                unsafe { System.dealloc(area.as_ptr(), layout) };
            }
        }
    }
}

/// Returns the CPU time of the calling thread.
fn thread_nanos() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes `now`.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn resident_bytes(file: &mut std::fs::File) -> u64 {
    use std::os::unix::fs::FileExt;
    let mut text = [0; 64];
    let count = file.read_at(&mut text, 0).unwrap_or(0);
    let text = std::str::from_utf8(&text[..count]).unwrap_or("");
    text.split(' ').nth(1).and_then(|pages| pages.parse().ok()).map_or(0, |pages: u64| pages * 4096)
}

/// Returns nanoseconds for an operation, and the average and largest resident bytes.
fn run(contender: Contender<'_>, mix: &Mix, seed: u64) -> (f64, u64, u64) {
    let Ok(mut file) = std::fs::File::open("/proc/self/statm") else { return (0.0, 0, 0) };
    let mut slots: Vec<Option<(NonNull<u8>, usize)>> = vec![None; mix.slots];
    let (mut state, mut started, mut spent, mut sum, mut peak, mut samples) = (seed, 0, 0, 0, 0, 0);
    let span = (mix.most as f64 / mix.least as f64).ln();
    let untouched = std::env::var_os("UNTOUCHED").is_some();
    for call in 0..mix.calls {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let slot = (state >> 40) as usize % mix.slots;
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let part = (state >> 11) as f64 / (1u64 << 53) as f64;
        let bytes = (mix.least as f64 * (span * part).exp()) as usize;
        if call % 16 == 0 {
            started = thread_nanos();
        }
        if let Some((area, bytes)) = slots[slot].take() {
            contender.free(area, bytes);
        }
        let Some(area) = contender.alloc(bytes) else { panic!("no memory") };
        for at in (0..if untouched { 1 } else { bytes }).step_by(4096) {
            // SAFETY: inside the area.
            let place = unsafe { area.add(at) };
            // SAFETY: as before, and owned exclusively.
            unsafe { place.write_volatile(1) };
        }
        slots[slot] = Some((area, bytes));
        // Excludes the time of reading the resident memory.
        if call % 16 == 15 && call >= mix.calls / 5 {
            spent += thread_nanos() - started;
            let resident = resident_bytes(&mut file);
            (sum, peak, samples) = (sum + resident, peak.max(resident), samples + 1);
        }
    }
    slots.into_iter().flatten().for_each(|(area, bytes)| contender.free(area, bytes));
    (spent as f64 / f64::from(mix.calls - mix.calls / 5), sum / samples, peak)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let ours = words.first().is_some_and(|word| word == "ours");
    let kept = words.get(1).and_then(|word| word.parse().ok()).unwrap_or(64usize);
    let names = &words[words.len().min(if ours { 2 } else { 1 })..];
    for mix in MIXES.iter().filter(|mix| names.is_empty() || names.iter().any(|name| name == mix.name)) {
        let huge_pages = match std::env::var("HUGE").as_deref() {
            Ok("always") => HugePages::Always,
            Ok("never") => HugePages::Never,
            _ => HugePages::Auto,
        };
        let memory = Vmalloc::new(Options::default().cache_bytes_max(kept * MIB).huge_pages(huge_pages))?;
        let contender = if ours { Contender::Standard(&memory) } else { Contender::System };
        let results: Vec<_> = std::thread::scope(|scope| {
            let runs: Vec<_> = (0..mix.threads)
                .map(|thread| scope.spawn(move || run(contender, mix, 7 + thread as u64)))
                .collect();
            runs.into_iter().filter_map(|run| run.join().ok()).collect()
        });
        let mean = results.iter().map(|(nanos, ..)| nanos).sum::<f64>() / results.len() as f64;
        let (_, average, peak) = results[0];
        println!(
            "{:>10} {:>8} {:>10.2} us/op {:>6} MiB average {:>6} MiB peak",
            mix.name,
            if ours { format!("ours {kept}") } else { "system".into() },
            mean / 1000.0,
            average >> 20,
            peak >> 20
        );
    }
    Ok(())
}
