//! Tests of reading an allocator's memory by address: live areas, holes, freed areas, and concurrent frees.
#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use vmalloc::{Buffer, Options, Vmalloc};

const PAGE: usize = 4096;

fn filled(memory: &Vmalloc, bytes: usize, byte: u8) -> Buffer<'_> {
    let mut buffer = memory.buffer(bytes).unwrap();
    buffer.fill(byte);
    buffer
}

#[test]
fn live_bytes_are_read_and_all_others_are_zeros() {
    let memory = Vmalloc::new(Options::default()).unwrap();
    let mut areas: Vec<_> = (1..7).map(|n| Some(filled(&memory, n * PAGE * 2, n as u8))).collect();
    let range = |area: &Buffer<'_>| (area.as_ptr().addr(), area.as_ptr().addr() + area.len());
    let low = areas.iter().flatten().map(|area| range(area).0).min().unwrap();
    let high = areas.iter().flatten().map(|area| range(area).1).max().unwrap();
    let start = areas.iter().flatten().map(|area| area.as_ptr()).min().unwrap();
    // Freed areas may still have pages, but are not readable here.
    for gone in [usize::MAX, 2, 0, 4] {
        if let Some(area) = areas.get_mut(gone) {
            *area = None;
        }
        for (from, len) in [(0, high - low + PAGE), (3 * PAGE + 5, 9 * PAGE), (17, 1), (high - low, 64)] {
            let mut want = vec![0u8; len];
            for area in areas.iter().flatten() {
                let (first, end) = range(area);
                for at in first.max(low + from)..end.min(low + from + len) {
                    want[at - low - from] = area[0];
                }
            }
            let mut seen = vec![9u8; len];
            let count = memory.vread(start.wrapping_add(from), &mut seen);
            assert_eq!(count, want.iter().filter(|&&byte| byte != 0).count(), "{len} bytes from {from}");
            assert!(seen == want, "{len} bytes from {from}");
        }
    }
    let mut seen = [7u8; 100];
    let local = [1u8; 100];
    assert_eq!((memory.vread(local.as_ptr(), &mut seen), seen), (0, [0; 100]), "not of this allocator");
    assert_eq!(memory.vread(std::ptr::null(), &mut seen), 0);
}

#[test]
fn reading_what_others_free_does_not_fault() {
    let memory = Vmalloc::new(Options::default().cache_bytes_max(0)).unwrap();
    let at = filled(&memory, 64 * PAGE, 1).as_ptr().addr();
    let start = filled(&memory, 64 * PAGE, 1).as_ptr();
    let start = start.with_addr(at.min(start.addr()));
    let (memory, stop) = (&memory, &std::sync::atomic::AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(move || {
            for round in 0..400usize {
                drop(filled(memory, (1 + round % 64) * PAGE, 1));
                if round % 16 == 0 {
                    memory.trim();
                }
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        let mut seen = vec![0u8; 100 * PAGE];
        while !stop.load(std::sync::atomic::Ordering::Relaxed) {
            let count = memory.vread(start, &mut seen);
            assert!(count <= seen.len() && seen.iter().all(|&byte| byte <= 1));
        }
    });
}

#[test]
fn in_the_hardened_profile_what_was_freed_is_zeros() {
    let options = Options::default().profile(vmalloc::Profile::Hardened(vmalloc::Hardened::default()));
    let memory = Vmalloc::new(options).unwrap();
    let area = filled(&memory, 3 * PAGE, 7);
    let start = area.as_ptr();
    let mut seen = vec![1u8; 3 * PAGE];
    assert_eq!((memory.vread(start, &mut seen), seen.iter().all(|&byte| byte == 7)), (3 * PAGE, true));
    // A wall follows its end.
    let mut beyond = vec![1u8; 4 * PAGE];
    assert_eq!(memory.vread(start, &mut beyond), 3 * PAGE);
    drop(area);
    assert_eq!((memory.vread(start, &mut seen), seen.iter().all(|&byte| byte == 0)), (0, true));
}
