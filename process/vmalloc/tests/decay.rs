//! A test of the memory that stays resident after a burst, in a process of its own.
#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::alloc::Layout;
use std::time::{Duration, Instant};
use vmalloc::{Options, Vmalloc};

const MIB: usize = 1 << 20;

fn resident_bytes() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

fn burst(memory: &Vmalloc, bytes: usize, count: usize) {
    let layout = Layout::from_size_align(bytes, 1).unwrap();
    let areas: Vec<_> = (0..count).map(|_| memory.alloc(layout).unwrap()).collect();
    for area in areas {
        // SAFETY: our own.
        unsafe { area.write_bytes(1, bytes) };
        // SAFETY: our own, and no reference to it remains.
        unsafe { memory.free(area) }.unwrap();
    }
}

/// Waits until a condition holds, with a limit that suits a machine under load.
fn wait_until(mut holds: impl FnMut() -> bool) -> bool {
    let started = Instant::now();
    while !holds() {
        if started.elapsed() > Duration::from_secs(120) {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

/// A single test, since others in this process would be counted, too.
#[test]
fn a_burst_leaves_little_in_parent_and_child_and_no_thread_when_its_allocator_goes() {
    let before = (resident_bytes(), threads());
    let memory = Vmalloc::new(Options::default().cache_bytes_max(512 * MIB)).unwrap();
    // Less memory than a background thread is started for.
    burst(&memory, MIB, 4);
    assert_eq!(threads(), before.1);
    burst(&memory, 4 * MIB, 64);
    let stats = memory.stats();
    assert!(stats.dirty_bytes + stats.cached_bytes + stats.purged_bytes as usize >= 256 * MIB, "{stats:?}");
    assert_eq!(threads(), before.1 + 1);
    assert!(wait_until(|| resident_bytes() < before.0 + 20 * MIB), "{:?}", memory.stats());
    // A child starts a thread of its own.
    burst(&memory, 4 * MIB, 32);
    // SAFETY: the child calls only functions that are allowed after a fork, and exits.
    let child = unsafe { libc::fork() };
    if child == 0 {
        burst(&memory, 4 * MIB, 64);
        let alone = threads() == 2 && wait_until(|| memory.stats().dirty_bytes == 0);
        // SAFETY: ends this process.
        unsafe { libc::_exit(if alone { 0 } else { 1 }) };
    }
    let mut status = 0;
    // SAFETY: writes the status.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    burst(&memory, 4 * MIB, 32);
    drop(memory);
    assert!(wait_until(|| threads() == before.1), "{} threads", threads());
    // No thread is started without decay.
    let memory = Vmalloc::new(Options::default().decay(None)).unwrap();
    burst(&memory, 4 * MIB, 16);
    assert_eq!(threads(), before.1);
}
