//! A program whose large memory is all here, under an allocator that lets no record of ours through.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use vmalloc::{Kv, Options, Vmalloc};

thread_local! {
    /// This thread must not come to the system's allocator now.
    static FORBIDDEN: Cell<bool> = const { Cell::new(false) };
}

/// The system's allocator, which stops a thread that must not be there.
struct Watched;

impl Watched {
    fn watch() {
        if FORBIDDEN.get() {
            FORBIDDEN.set(false);
            panic!("a record came from the global allocator");
        }
    }
}

// SAFETY: the system's allocator.
unsafe impl GlobalAlloc for Watched {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::watch();
        // SAFETY: this function's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        Self::watch();
        // SAFETY: this function's contract.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Kv<Watched> = Kv::new(Watched);

fn is_ours<T>(at: *const T) -> bool {
    Vmalloc::global_if_made().is_some_and(|memory| memory.contains(at.cast()))
}

#[test]
fn small_things_are_elsewhere_and_large_ones_here_and_both_come_and_go() {
    let mut bytes = vec![1u8; 1000];
    assert!(!is_ours(bytes.as_ptr()));
    // Grows over the boundary, keeps what it had, and comes back.
    bytes.extend(std::iter::repeat_n(2, 10_000_000));
    assert!(is_ours(bytes.as_ptr()));
    assert_eq!(
        (bytes[999], bytes[1000], bytes.iter().map(|&byte| u64::from(byte)).sum::<u64>()),
        (1, 2, 20_001_000)
    );
    bytes.truncate(40_000);
    bytes.shrink_to_fit();
    assert!(is_ours(bytes.as_ptr()), "half of the boundary stays");
    bytes.truncate(1100);
    bytes.shrink_to_fit();
    assert!(!is_ours(bytes.as_ptr()));
    assert_eq!((bytes[999], bytes[1099]), (1, 2));
    // Zeros, also where others have been.
    for _ in 0..3 {
        let mut zeros = vec![0u64; 100_000];
        assert!(is_ours(zeros.as_ptr()) && zeros.iter().all(|&word| word == 0));
        zeros.fill(u64::MAX);
    }
    #[repr(align(2097152))]
    struct Aligned(u8);
    let aligned = Box::new(Aligned(3));
    assert!(
        is_ours(&raw const *aligned)
            && (&raw const *aligned).addr().is_multiple_of(2 << 20)
            && aligned.0 == 3
    );
    // Freed by another thread.
    let sent = vec![7u8; 200_000];
    std::thread::spawn(move || assert_eq!(sent[199_999], 7)).join().unwrap();
}

#[test]
fn no_record_comes_from_the_global_allocator() {
    FORBIDDEN.set(true);
    let memory = Vmalloc::new(Options { kept_bytes_max: 4 << 20, ..Options::default() }).unwrap();
    let mut areas = [None; 500];
    for round in 0..4000usize {
        let layout = Layout::from_size_align(1 + round * 7919 % 900_000, 1 << (round % 22)).unwrap();
        let place = &mut areas[round * 31 % 500];
        let area = match *place {
            // SAFETY: our own, and nobody refers to it.
            Some(area) if round % 3 == 0 => unsafe { memory.grow_zeroed(area, layout) }.unwrap(),
            _ => {
                if let Some(area) = place.take() {
                    // SAFETY: as before.
                    unsafe { memory.free(area) }.unwrap();
                }
                memory.alloc_zeroed(layout).unwrap()
            }
        };
        // SAFETY: as before.
        unsafe { area.write(1) };
        *place = Some(area);
    }
    memory.trim();
    let stats = memory.stats();
    drop(memory);
    let global = Vmalloc::global().is_ok();
    FORBIDDEN.set(false);
    assert!(stats.live_bytes > 0 && stats.purged_bytes > 0 && stats.grown_by_move > 0 && global, "{stats:?}");
}
