//! A program whose large allocations are all areas, with a system allocator that detects allocations of records.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use vmalloc::{LARGE_BYTES, LargeAlloc, Options, Vmalloc};

thread_local! {
    /// Set while this thread must not call the system's allocator.
    static FORBIDDEN: Cell<bool> = const { Cell::new(false) };
}

/// The system's allocator, which ends the process if a thread must not call it.
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
static ALLOCATOR: LargeAlloc<Watched> = LargeAlloc::new(Watched);

fn is_ours<T>(at: *const T) -> bool {
    Vmalloc::try_global().is_some_and(|memory| memory.contains(at.cast()))
}

#[test]
fn small_things_are_elsewhere_and_large_ones_here_and_both_come_and_go() {
    let mut bytes = vec![1u8; 1000];
    assert!(!is_ours(bytes.as_ptr()));
    // Grows above the threshold and shrinks below it, with the same contents.
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
    // Zeros, even at reused addresses.
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
    let memory = Vmalloc::new(Options::default().cache_bytes_max(4 << 20)).unwrap();
    let mut areas = [None; 500];
    for round in 0..4000usize {
        let largest = if round % 40 == 0 { 9_000_000 } else { 900_000 };
        let layout = Layout::from_size_align(1 + round * 7919 % largest, 1 << (round % 22)).unwrap();
        let place = &mut areas[round * 31 % 500];
        let area = match *place {
            // SAFETY: our own, and no reference to it exists.
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
    assert!(
        stats.live_bytes > 0 && stats.purged_bytes > 0 && stats.grown_in_place > 0 && global,
        "{stats:?}"
    );
}

/// A text buffer on the stack. Bytes beyond its size are only counted.
struct Page {
    bytes: [u8; 4096],
    len: usize,
}

impl std::fmt::Write for Page {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        for byte in text.bytes() {
            if let Some(place) = self.bytes.get_mut(self.len) {
                *place = byte;
            }
            self.len += 1;
        }
        Ok(())
    }
}

/// Calls every public function, including failures and their texts.
#[test]
fn no_call_whatsoever_comes_to_the_global_allocator() {
    use std::alloc::{alloc, alloc_zeroed, dealloc, realloc};
    use std::fmt::Write;
    let layout = |bytes, align| Layout::from_size_align(bytes, align).unwrap();
    FORBIDDEN.set(true);
    let options = Options::default().arena_bytes_max(256 << 20).cache_bytes_max(64 << 20);
    let memory = Vmalloc::new(options).unwrap();
    let mut text = Page { bytes: [0; 4096], len: 0 };
    let too_small = Vmalloc::new(Options::default().arena_bytes_max(1 << 20)).err().unwrap();
    write!(text, "{too_small} {too_small:?}").unwrap();
    let none = memory.alloc(layout(0, 1)).unwrap_err();
    let full = memory.alloc_zeroed(layout(1 << 30, 1 << 30)).unwrap_err();
    write!(text, "{none} {full} {full:?}").unwrap();
    let mut buffer = memory.buffer(1_000_000).unwrap();
    buffer[999_999] = 1;
    buffer.resize(30 << 20).unwrap();
    assert!(buffer.resize(1 << 40).is_err());
    let wall = memory.alloc_huge(layout(5 << 20, 1)).unwrap();
    // Grows past the wall, which moves its pages, and shrinks again.
    buffer.resize(60 << 20).unwrap();
    assert_eq!((buffer[999_999], buffer[(60 << 20) - 1]), (1, 0));
    buffer.resize(10).unwrap();
    // SAFETY: our own, and no reference to it exists.
    let wall = unsafe { memory.shrink(wall, layout(70_000, 1)) }.unwrap();
    let known = (memory.usable_bytes(wall), memory.requested_bytes(wall), memory.contains(wall.as_ptr()));
    assert_eq!(known, (Ok(73_728), Ok(70_000), true));
    // SAFETY: as before.
    unsafe { memory.free(wall) }.unwrap();
    // SAFETY: the call fails, since the area is free.
    let twice = unsafe { memory.free(wall) }.unwrap_err();
    // SAFETY: the call fails, since the area is free.
    let gone = unsafe { memory.grow(wall, layout(1, 1)) }.unwrap_err();
    write!(text, "{twice} {twice:?} {gone}").unwrap();
    write!(text, "{:?} {:?} {}", memory, buffer, memory.vmallocinfo()).unwrap();
    buffer.clear();
    memory.trim();
    drop(buffer);
    drop(memory);
    // The same through the global allocator: large allocations never reach the other allocator.
    for bytes in [LARGE_BYTES, 1 << 20, 9 << 20] {
        // SAFETY: a layout with a size.
        let first = unsafe { alloc(layout(bytes, 64)) };
        // SAFETY: as before.
        let zeros = unsafe { alloc_zeroed(layout(bytes, 1 << 21)) };
        // SAFETY: our own, of that layout.
        let first = unsafe { realloc(first, layout(bytes, 64), 3 * bytes) };
        assert!(!first.is_null() && !zeros.is_null() && zeros.addr().is_multiple_of(1 << 21));
        // SAFETY: our own, of that layout.
        unsafe { dealloc(first, layout(3 * bytes, 64)) };
        // SAFETY: our own, of that layout.
        unsafe { dealloc(zeros, layout(bytes, 1 << 21)) };
    }
    FORBIDDEN.set(false);
    assert!((500..4096).contains(&text.len), "{} bytes were written", text.len);
    let text = std::str::from_utf8(&text.bytes[..text.len]).unwrap();
    assert!(text.contains("was freed before") && text.contains(" vmalloc\n"), "{text}");
}

/// Sizes and alignments at their edges, through every entry of the global allocator.
#[test]
fn zeroed_areas_are_zero_and_growth_retains_contents_at_every_edge() {
    use std::alloc::{alloc, alloc_zeroed, dealloc, realloc};
    let at = |area: *mut u8, byte: usize| {
        // SAFETY: inside the area.
        unsafe { area.add(byte) }
    };
    let edges = [
        LARGE_BYTES - 1,
        LARGE_BYTES,
        LARGE_BYTES + 1,
        (1 << 20) - 1,
        1 << 20,
        (2 << 20) + 1,
        (5 << 20) - 4096,
    ];
    for align in [1, 16, 4096, 8192, 1 << 16, 1 << 21, 1 << 23] {
        for &bytes in &edges {
            let layout = Layout::from_size_align(bytes, align).unwrap();
            // The previous contents there are not zeros.
            // SAFETY: a layout with a size.
            let dirty = unsafe { alloc(layout) };
            assert!(!dirty.is_null());
            // SAFETY: our own.
            unsafe { dirty.write_bytes(0xa5, bytes) };
            // SAFETY: our own, of that layout.
            unsafe { dealloc(dirty, layout) };
            // SAFETY: a layout with a size.
            let area = unsafe { alloc_zeroed(layout) };
            assert!(!area.is_null() && area.addr().is_multiple_of(align), "{bytes} {align}");
            // SAFETY: all of it is initialized.
            let all = unsafe { std::slice::from_raw_parts(area, bytes) };
            assert!(all.iter().all(|&byte| byte == 0), "{bytes} {align}");
            // SAFETY: our own.
            unsafe { at(area, bytes - 1).write(9) };
            let (mut area, mut old, mut is) = (area, bytes, 9);
            for &new in &edges {
                // SAFETY: our own, of that layout.
                area = unsafe { realloc(area, Layout::from_size_align(old, align).unwrap(), new) };
                assert!(!area.is_null() && area.addr().is_multiple_of(align), "{bytes} {align} {old} {new}");
                let last = old.min(new) - 1;
                if old <= new {
                    // SAFETY: inside it, and initialized.
                    let found = unsafe { at(area, last).read() };
                    assert_eq!(found, is, "{bytes} {align} {old} {new}");
                }
                is = new as u8 | 1;
                // SAFETY: inside it.
                unsafe { at(area, new - 1).write(is) };
                old = new;
            }
            // SAFETY: our own, of that layout.
            unsafe { dealloc(area, Layout::from_size_align(old, align).unwrap()) };
        }
    }
}
