//! A thousand forks of a process in which 64 threads allocate.

use std::alloc::Layout;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use vmalloc::{Options, Vmalloc};

const FORKS: u64 = 1000;
const THREADS: u64 = 64;

/// Allocates, grows and frees in many sizes. Returns `false` at the first unexpected result.
fn work(memory: &Vmalloc, rounds: u64, seed: u64, largest: usize) -> bool {
    let layout = |bytes| Layout::from_size_align(bytes, 1).unwrap_or(Layout::new::<u8>());
    let mut state = seed | 1;
    for _ in 0..rounds {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let bytes = 1 + (state >> 33) as usize % largest;
        let Ok(area) = memory.alloc(layout(bytes)) else { return false };
        // SAFETY: an area of our own, of at least a byte.
        unsafe { area.write(state as u8) };
        // SAFETY: our own, and no reference to it exists.
        let Ok(area) = (unsafe { memory.grow(area, layout(bytes + bytes / 2)) }) else { return false };
        // SAFETY: as before.
        let found = unsafe { area.read() };
        // SAFETY: our own, and no reference to it remains.
        if found != state as u8 || unsafe { memory.free(area) }.is_err() {
            return false;
        }
    }
    true
}

/// Each child allocates, grows, frees and trims; each of them has two minutes.
#[test]
fn a_thousand_children_of_threads_that_allocate_end_well() {
    let memory = Vmalloc::new(Options::default().cache_bytes_max(2 << 20)).unwrap();
    let mut kept = memory.buffer(100_000).unwrap();
    kept[99_999] = 7;
    let (stop, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    let surprise = std::thread::scope(|scope| {
        for seed in 0..THREADS {
            let (memory, stop, rounds) = (&memory, &stop, &rounds);
            scope.spawn(move || {
                // A failure ends the process: a scope would wait for the other threads, which wait for the forks.
                while !stop.load(Ordering::Relaxed) {
                    if !work(memory, 4, seed, 300_000) {
                        std::process::abort();
                    }
                    rounds.fetch_add(1, Ordering::Relaxed);
                    std::thread::yield_now();
                }
            });
        }
        let fork = |seed| {
            // SAFETY: the child calls only functions that are allowed after a fork, and exits without returning.
            let pid = unsafe { libc::fork() };
            if pid == 0 {
                // SAFETY: a signal ends a child that waits forever for a lock.
                unsafe { libc::alarm(120) };
                let seen = kept[99_999] == 7;
                // Some sizes are large enough that pages move, for which the child must not use its parent's
                // descriptor.
                let largest = if seed % 50 == 0 { 6 << 20 } else { 300_000 };
                let worked = work(&memory, 3, 1000 + seed, largest);
                // Blocks of pages that contain the other threads' areas stay dirty, since the child does not free
                // those.
                memory.trim();
                let trimmed = memory.stats().cached_bytes == 0;
                // SAFETY: ends the child.
                unsafe { libc::_exit(i32::from(!seen) | i32::from(!worked) << 1 | i32::from(!trimmed) << 2) };
            }
            let mut status = 0;
            // SAFETY: waits for the child forked above.
            let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
            (pid > 0 && waited == pid && status == 0).then_some(()).ok_or((seed, pid, status))
        };
        let surprise = (0..FORKS).try_for_each(fork);
        stop.store(true, Ordering::Relaxed);
        surprise
    });
    assert_eq!(
        surprise,
        Ok(()),
        "the first child that did not end well: its number, its process, its status"
    );
    assert_eq!(kept[99_999], 7);
    drop(kept);
    assert!(rounds.into_inner() > THREADS);
    memory.trim();
    let stats = memory.stats();
    assert_eq!((stats.live_bytes, stats.dirty_bytes, stats.cached_bytes), (0, 0, 0));
}
