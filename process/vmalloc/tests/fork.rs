//! Tests of forks, limits and threads, in processes of their own.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::alloc::Layout;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use va_sim::effort::some;
use vmalloc::{AllocError, CreateError, Options, Vmalloc};

/// Runs `child` in a child process, which has two minutes. Returns its exit status, 0 for success.
fn in_child(child: impl FnOnce() -> bool) -> i32 {
    // SAFETY: the child calls only functions that are allowed after a fork, and exits without returning.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        // SAFETY: a signal ends a child that waits forever for a lock.
        unsafe { libc::alarm(120) };
        let done = child();
        // SAFETY: ends the child.
        unsafe { libc::_exit(if done { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: waits for the child forked above.
    let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
    assert_eq!(waited, pid);
    status
}

fn layout(bytes: usize) -> Layout {
    Layout::from_size_align(bytes, 1).unwrap()
}

/// Allocates and frees in many sizes. Returns `false` at the first unexpected result.
fn work(memory: &Vmalloc, rounds: usize, seed: u64) -> bool {
    let mut state = seed | 1;
    let mut areas = [None; 8];
    for _ in 0..rounds {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let bytes = 1 + (state >> 33) as usize % if state >> 62 == 0 { 3 << 20 } else { 1 << 16 };
        let slot = &mut areas[(state >> 20) as usize % 8];
        let Ok(area) = memory.alloc(layout(bytes)) else { return false };
        // SAFETY: an area of our own, of at least a byte.
        unsafe { area.write(state as u8) };
        if let Some((old, byte)) = slot.replace((area, state as u8)) {
            // SAFETY: as before.
            let found = unsafe { old.read() };
            // SAFETY: our own, and no reference to it remains.
            if found != byte || unsafe { memory.free(old) }.is_err() {
                return false;
            }
        }
    }
    // SAFETY: as before.
    areas.into_iter().flatten().all(|(area, _)| unsafe { memory.free(area) }.is_ok())
}

#[test]
fn a_child_allocates_and_frees_whatever_the_threads_of_its_parent_did() {
    let memory = Vmalloc::new(Options::default().cache_bytes_max(8 << 20)).unwrap();
    let mut kept = memory.buffer(100_000).unwrap();
    kept[99_999] = 7;
    let (stop, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for seed in 0..64 {
            let (memory, stop, rounds) = (&memory, &stop, &rounds);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    assert!(work(memory, 20, seed));
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let surprise = (0..some(60)).map(|seed| {
            in_child(|| {
                // Earlier data is there; the child's writes are its own.
                let seen = kept[99_999] == 7;
                kept[99_999] = 8;
                // Releases the whole blocks that the threads left.
                memory.trim();
                let other = Vmalloc::new(Options::default()).is_ok_and(|other| work(&other, 5, 1));
                seen && work(&memory, 30, 1000 + seed) && other
            })
        });
        let surprise = surprise.enumerate().find(|&(_, status)| status != 0);
        // The threads must end first, or the test would wait for them instead of failing.
        stop.store(true, Ordering::Relaxed);
        assert_eq!(surprise, None, "the first child that did not end well");
    });
    assert_eq!(kept[99_999], 7);
    drop(kept);
    assert!(rounds.into_inner() > 64);
    memory.trim();
    let stats = memory.stats();
    assert_eq!((stats.live_bytes, stats.dirty_bytes, stats.cached_bytes), (0, 0, 0));
}

#[test]
fn the_default_allocator_can_be_made_in_a_child_and_by_many_threads_at_once() {
    let make = || {
        let made: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|_| scope.spawn(|| std::ptr::from_ref(Vmalloc::global().unwrap()).addr()))
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        made.iter().all(|&one| one == made[0]) && Vmalloc::try_global().is_some()
    };
    assert_eq!(in_child(|| Vmalloc::global().is_ok_and(|memory| work(memory, 10, 3))), 0);
    assert!(make());
    assert_eq!(in_child(|| Vmalloc::global().is_ok_and(|memory| work(memory, 10, 3))), 0);
}

#[test]
fn what_a_thread_leaves_behind_another_frees() {
    let memory = Vmalloc::new(Options::default()).unwrap();
    for round in 0..50 {
        let area = std::thread::scope(|scope| {
            scope.spawn(|| memory.alloc(layout(100_000 + round)).unwrap().addr()).join().unwrap()
        });
        let area = std::ptr::NonNull::<u8>::with_exposed_provenance(area);
        assert_eq!(memory.requested_bytes(area), Ok(100_000 + round));
        // SAFETY: the thread that allocated it has ended.
        unsafe { memory.free(area) }.unwrap();
    }
    assert_eq!(memory.stats().live_bytes, 0);
}

fn limit_addresses(bytes: u64) {
    let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
    // SAFETY: reads the limit, which is this process's own.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) }, 0);
}

#[test]
fn an_arena_fits_in_the_address_space_that_a_process_may_have() {
    let status = in_child(|| {
        limit_addresses(1 << 30);
        let memory = Vmalloc::new(Options::default()).unwrap();
        let arena = memory.stats().arena_bytes;
        // The arena has at most half of the limit.
        let fits = (64 << 20..=512 << 20).contains(&arena);
        let whole = memory.alloc(layout(arena + 1));
        // One area can have everything but the zone of small areas.
        let Err(AllocError::NoSpace { largest_bytes: most, .. }) = whole else { return false };
        let none = (arena / 16 * 15..=arena).contains(&most);
        let mut areas = Vec::new();
        while let Ok(area) = memory.alloc(layout(10 << 20)) {
            areas.push(area);
        }
        let full = areas.len() >= most / (10 << 20);
        // SAFETY: our own, and no reference to them exists.
        let freed = areas.into_iter().all(|area| unsafe { memory.free(area) }.is_ok());
        let again = memory.alloc(layout(most));
        let all = fits && none && full && freed && again.is_ok();
        if !all {
            // libtest does not capture this, unlike the output of a macro.
            let stats = memory.stats();
            writeln!(std::io::stderr(), "{fits} {none} {full} {freed}: {whole:?}, {again:?}, {stats:?}")
                .unwrap();
        }
        all
    });
    assert_eq!(status, 0);
    let status = in_child(|| {
        limit_addresses(48 << 20);
        // Less than an arena needs: an error with its numbers, and no other effect.
        match Vmalloc::new(Options::default()) {
            Err(CreateError::TooSmall { bytes, least_bytes }) => bytes == 24 << 20 && least_bytes == 32 << 20,
            _ => false,
        }
    });
    assert_eq!(status, 0);
}

#[test]
fn everything_locked_in_memory_is_no_more_than_was_used() {
    let status = in_child(|| {
        let memory = Vmalloc::new(Options::default()).unwrap();
        // SAFETY: locks the current memory; without the privilege the test ends here.
        if unsafe { libc::mlockall(libc::MCL_CURRENT) } != 0 {
            return true;
        }
        let resident = || {
            let text = std::fs::read_to_string("/proc/self/statm").unwrap();
            text.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
        };
        let done = work(&memory, 30, 1);
        // The system may not release locked pages: they stay, and later calls work.
        memory.trim();
        done && resident() < 1 << 30 && work(&memory, 30, 2)
    });
    assert_eq!(status, 0);
}
