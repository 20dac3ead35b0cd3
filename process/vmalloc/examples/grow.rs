//! Growth to 256 MiB by half each time, with every page touched, compared with the system's allocator.
//!
//! `cargo run --profile dist -p vmalloc --example grow` prints a table: milliseconds a growth from 64 KiB to 256 MiB,
//! the least of several rounds, and the methods of growth. **alone** is one area; **walls** allocates another area
//! after each step; **two** areas grow in turn; **reused** grows into the memory of a freed area of that size.
//! **faults** is a fresh mapping of the same size, touched once: a lower bound. **zeros** is a pair of `alloc_zeroed`
//! and a free, compared with a `memset` of as many resident bytes.

use std::alloc::{GlobalAlloc, Layout, System};
use vmalloc::{LargeAlloc, Options, Vmalloc};

const FIRST: usize = 64 << 10;
const LAST: usize = 256 << 20;
const PAGE: usize = 4096;

fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes, 16).unwrap_or(Layout::new::<u128>())
}

/// An allocator under test.
trait Memory {
    fn take(&self, bytes: usize) -> *mut u8;
    fn grow(&self, at: *mut u8, old: usize, new: usize) -> *mut u8;
    fn give(&self, at: *mut u8, bytes: usize);
}

impl<A: GlobalAlloc> Memory for A {
    fn take(&self, bytes: usize) -> *mut u8 {
        // SAFETY: a layout with a size.
        unsafe { self.alloc(layout(bytes)) }
    }

    fn grow(&self, at: *mut u8, old: usize, new: usize) -> *mut u8 {
        // SAFETY: allocated above, of that layout.
        unsafe { self.realloc(at, layout(old), new) }
    }

    fn give(&self, at: *mut u8, bytes: usize) {
        // SAFETY: allocated above, of that layout.
        unsafe { self.dealloc(at, layout(bytes)) }
    }
}

fn touch(at: *mut u8, from: usize, to: usize) {
    assert!(!at.is_null(), "no memory");
    for byte in (from..to).step_by(PAGE) {
        // SAFETY: inside the allocation.
        let place = unsafe { at.add(byte) };
        // SAFETY: as before.
        unsafe { place.write_volatile(1) };
    }
}

/// Grows several areas in turn, and allocates a wall of `wall` bytes after each step.
fn grow(memory: &impl Memory, areas: usize, wall: usize) {
    let mut bytes = FIRST;
    let mut places: Vec<_> = (0..areas).map(|_| memory.take(bytes)).collect();
    places.iter().for_each(|&at| touch(at, 0, bytes));
    let mut walls = Vec::new();
    while bytes < LAST / areas {
        let more = (bytes + bytes / 2).min(LAST / areas);
        for place in &mut places {
            if wall > 0 {
                walls.push(memory.take(wall));
            }
            *place = memory.grow(*place, bytes, more);
            touch(*place, bytes, more);
        }
        bytes = more;
    }
    places.into_iter().for_each(|at| memory.give(at, bytes));
    walls.into_iter().for_each(|at| memory.give(at, wall));
}

/// Returns the milliseconds of CPU time and the page faults of this thread.
fn cost(work: impl FnOnce()) -> (f64, i64) {
    let read = || {
        let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: writes the usage of this thread.
        unsafe { libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) };
        // SAFETY: all zeros are a valid value, too.
        let usage = unsafe { usage.assume_init() };
        let milliseconds = |time: libc::timeval| time.tv_sec as f64 * 1e3 + time.tv_usec as f64 / 1e3;
        (milliseconds(usage.ru_utime) + milliseconds(usage.ru_stime), usage.ru_minflt)
    };
    let (started, before) = read();
    work();
    let (ended, after) = read();
    (ended - started, after - before)
}

fn least(one: (f64, i64), other: (f64, i64)) -> (f64, i64) {
    (one.0.min(other.0), one.1.min(other.1))
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let rounds = std::env::args().nth(1).map_or(Ok(5), |text| text.parse())?;
    static OURS: LargeAlloc<System> = LargeAlloc::new(System);
    let memory = Vmalloc::global()?;
    println!(
        "{:>8} {:>9} {:>7} {:>9} {:>7} {:>9} {:>7} {:>7}",
        "", "ours ms", "faults", "system ms", "faults", "in place", "moved", "copied"
    );
    for (name, areas, wall, keep) in [
        ("alone", 1, 0, false),
        ("walls", 1, 1 << 20, false),
        ("walls64K", 1, 64 << 10, false),
        ("two", 2, 0, false),
        ("four", 4, 0, false),
        ("reused", 1, 0, true),
    ] {
        let (mut our, mut their) = ((f64::MAX, i64::MAX), (f64::MAX, i64::MAX));
        let before = memory.stats();
        for _ in 0..rounds {
            if !keep {
                memory.trim();
            }
            our = least(our, cost(|| grow(&OURS, areas, wall)));
            their = least(their, cost(|| grow(&System, areas, wall)));
        }
        let after = memory.stats();
        println!(
            "{name:>8} {:>9.2} {:>7} {:>9.2} {:>7} {:>9} {:>7} {:>7}",
            our.0,
            our.1,
            their.0,
            their.1,
            after.grown_in_place - before.grown_in_place,
            after.grown_by_move - before.grown_by_move,
            after.copies - before.copies
        );
    }
    for (name, huge) in [("faults", false), ("huge", true)] {
        let mut bare = (f64::MAX, i64::MAX);
        for _ in 0..rounds {
            let options = Options::default();
            let fresh = Vmalloc::new(options)?;
            let area = if huge { fresh.alloc_huge(layout(LAST)) } else { fresh.alloc(layout(LAST)) }?;
            bare = least(bare, cost(|| touch(area.as_ptr(), 0, LAST)));
        }
        println!("{name:>8} {:>9.2} {:>7}", bare.0, bare.1);
    }
    println!("{:>8} {:>11} {:>11}", "zeros", "alloc us", "memset us");
    for bytes in [256 << 10, 4 << 20, 64 << 20] {
        let calls = (1 << 30) / bytes;
        let other = memory.alloc(layout(bytes))?;
        let (mut zeroed, mut set) = (f64::MAX, f64::MAX);
        for _ in 0..rounds + 2 {
            let pairs = cost(|| {
                for _ in 0..calls {
                    if let Ok(area) = memory.alloc_zeroed(layout(bytes)) {
                        // SAFETY: our own.
                        unsafe { area.write_volatile(1) };
                        // SAFETY: our own, and no reference to it exists.
                        let _freed = unsafe { memory.free(area) };
                    }
                }
            });
            let sets = cost(|| {
                for _ in 0..calls {
                    // SAFETY: our own.
                    unsafe { other.write_bytes(0, bytes) };
                    std::hint::black_box(other);
                }
            });
            (zeroed, set) = (zeroed.min(pairs.0 / calls as f64), set.min(sets.0 / calls as f64));
        }
        println!("{:>7}K {:>11.2} {:>11.2}", bytes >> 10, zeroed * 1e3, set * 1e3);
    }
    Ok(())
}
