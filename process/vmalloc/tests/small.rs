//! Every way through the allocator with few and small areas, and with threads: for Miri, which executes a million
//! instructions in seconds, and for the sanitizers. The other tests do more of each.
#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::alloc::Layout;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;
use vmalloc::{FreeError, Hardened, Options, Profile, Vmalloc};

const PAGE: usize = 4096;

/// Pages of the largest area: Miri takes minutes for 700.
const LARGEST: usize = if cfg!(miri) { 20 } else { 700 };

/// Areas of each thread.
const ROUNDS: usize = if cfg!(miri) { 2 } else { 100 };

/// An arena of the smallest size.
fn options() -> Options {
    Options::default().arena_bytes_max(32 << 20).cache_bytes_max(8 << 20)
}

fn hardened() -> Options {
    let hardened = Hardened::default().window_bytes(32 << 20).quarantine_areas_max(2);
    options().profile(Profile::Hardened(hardened))
}

fn layout(bytes: usize, align: usize) -> Layout {
    Layout::from_size_align(bytes, align).unwrap()
}

/// An area whose first and last bytes have a value.
struct Area {
    at: NonNull<u8>,
    bytes: usize,
    value: u8,
}

// SAFETY: its owner is the only one who uses it.
unsafe impl Send for Area {}

impl Area {
    fn ends(&self) -> [*mut u8; 2] {
        [self.at.as_ptr(), self.at.as_ptr().wrapping_add(self.bytes - 1)]
    }

    fn new(memory: &Vmalloc, bytes: usize, value: u8) -> Self {
        Self::at(memory.alloc(layout(bytes, 1)).unwrap(), bytes, value)
    }

    fn at(at: NonNull<u8>, bytes: usize, value: u8) -> Self {
        let area = Self { at, bytes, value };
        for end in area.ends() {
            // SAFETY: in the area, which this value owns.
            unsafe { end.write(value) };
        }
        area
    }

    fn check(&self) {
        for end in self.ends() {
            // SAFETY: as before.
            assert_eq!(unsafe { end.read() }, self.value);
        }
    }

    fn resize(self, memory: &Vmalloc, bytes: usize) -> Self {
        self.check();
        // SAFETY: our own, and no reference to it exists.
        let grown = unsafe { memory.grow(self.at, layout(bytes, 1)) };
        let at = grown.unwrap_or_else(|_| {
            // SAFETY: as before.
            unsafe { memory.shrink(self.at, layout(bytes, 1)) }.unwrap()
        });
        // SAFETY: as before.
        assert_eq!(unsafe { at.as_ptr().read() }, self.value);
        Self::at(at, bytes, self.value)
    }

    fn free(self, memory: &Vmalloc) {
        self.check();
        // SAFETY: our own, and no reference to it exists.
        unsafe { memory.free(self.at) }.unwrap();
    }
}

/// Allocates, resizes and frees areas of some sizes, and releases memory in between. `reports` is true if a second free
/// is an error, which the hardened profile does not survive.
fn one_thread(memory: &Vmalloc, reports: bool) {
    let mut held = Vec::new();
    for (round, bytes) in
        [1, PAGE, PAGE + 1, 3 * PAGE, 16 * PAGE, 65 * PAGE, 700 * PAGE].into_iter().enumerate()
    {
        held.push(Area::new(memory, bytes.min(LARGEST * PAGE), round as u8 + 1));
    }
    let zeroed = memory.alloc_zeroed(layout(2 * PAGE, 64)).unwrap();
    let last = zeroed.as_ptr().wrapping_add(2 * PAGE - 1);
    // SAFETY: in the area that was allocated above.
    assert_eq!(unsafe { last.read() }, 0);
    held.push(Area::at(zeroed, 2 * PAGE, 99));
    let aligned = memory.alloc(layout(PAGE, 8 * PAGE)).unwrap();
    assert_eq!(aligned.addr().get() % (8 * PAGE), 0);
    held.push(Area::at(aligned, PAGE, 98));
    for (round, area) in held.split_off(2).into_iter().enumerate() {
        let bytes = [area.bytes / 2 + 1, area.bytes + 5 * PAGE, area.bytes][round % 3];
        held.push(area.resize(memory, bytes));
    }
    let wrong = held[0].at;
    for area in held {
        area.free(memory);
    }
    if reports {
        // SAFETY: a double free, which is detected.
        let again = unsafe { memory.free(wrong) };
        assert!(matches!(again, Err(FreeError::NoArea { .. } | FreeError::AlreadyFree { .. })), "{again:?}");
    }
    // From the cache, and after its release.
    Area::new(memory, 3 * PAGE, 7).free(memory);
    memory.trim();
    Area::new(memory, 3 * PAGE, 8).free(memory);
    memory.decay();
    let mut read = [1; 16];
    let area = Area::new(memory, PAGE, 9);
    assert_eq!(memory.vread(area.at.as_ptr(), &mut read), 16);
    assert_eq!(read[0], 9);
    assert!(memory.vmallocinfo().to_string().contains("vmalloc"));
    area.free(memory);
}

/// Threads take areas from each other by a shared place, and by a channel, and one of them releases memory.
fn threads(memory: &Vmalloc) {
    let shared: [AtomicPtr<Area>; 2] = Default::default();
    let put = |place: usize, area: Option<Area>| {
        let new = area.map_or(std::ptr::null_mut(), |area| Box::into_raw(Box::new(area)));
        let old = shared[place].swap(new, Ordering::AcqRel);
        if !old.is_null() {
            // SAFETY: a box that was put there once, and is taken once.
            unsafe { Box::from_raw(old) }.free(memory);
        }
    };
    let (send, receive) = channel::<Area>();
    std::thread::scope(|scope| {
        for thread in 0..2usize {
            let (put, send) = (&put, send.clone());
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    let bytes = [PAGE, 5 * PAGE, 20 * PAGE][(round + thread) % 3];
                    let area = Area::new(memory, bytes, round as u8 | 1);
                    put(
                        round % 2,
                        Some(if round % 3 == 0 { area.resize(memory, bytes + PAGE) } else { area }),
                    );
                    send.send(Area::new(memory, PAGE, 77)).unwrap();
                }
            });
        }
        drop(send);
        for (round, area) in receive.into_iter().enumerate() {
            area.free(memory);
            if round == 3 {
                memory.trim();
            }
        }
    });
    (0..2).for_each(|place| put(place, None));
}

#[test]
fn areas_of_all_sizes_are_allocated_resized_released_and_freed() {
    one_thread(&Vmalloc::new(options()).unwrap(), true);
}

#[test]
fn the_same_with_guards_and_callers_and_zeros_at_free() {
    let options = options().guards(true).caller_tags(true).zero_on_free(true);
    one_thread(&Vmalloc::new(options).unwrap(), true);
}

#[test]
fn the_same_with_the_hardened_profile() {
    one_thread(&Vmalloc::new(hardened()).unwrap(), false);
}

#[test]
fn threads_free_the_areas_of_others() {
    threads(&Vmalloc::new(options()).unwrap());
}

#[test]
fn threads_free_the_areas_of_others_with_guards_and_callers() {
    threads(&Vmalloc::new(options().guards(true).caller_tags(true)).unwrap());
}

#[test]
fn threads_free_the_areas_of_others_with_the_hardened_profile() {
    threads(&Vmalloc::new(hardened()).unwrap());
}

#[test]
#[cfg_attr(miri, ignore = "it does not end in 90 seconds of a processor")]
fn a_thread_releases_what_is_unused_while_others_allocate() {
    let decay = Some(Duration::from_millis(1));
    let options = options().cache_bytes_max(64 * PAGE).decay(decay).background_thread(true);
    let memory = Vmalloc::new(options).unwrap();
    for round in 0..2u8 {
        // More than is cached.
        let held: Vec<_> = (0..5).map(|_| Area::new(&memory, 20 * PAGE, round)).collect();
        held.into_iter().for_each(|area| area.free(&memory));
    }
    threads(&memory);
}

#[test]
fn buffers_grow_and_are_cloned() {
    let memory = Vmalloc::new(options()).unwrap();
    let mut buffer = memory.buffer(10).unwrap();
    buffer.fill(3);
    buffer.extend_from_slice(&[4; PAGE]).unwrap();
    buffer.resize(3 * PAGE).unwrap();
    let clone = buffer.try_clone().unwrap();
    buffer.resize(5).unwrap();
    assert_eq!((&buffer[..], clone[9], clone[10], clone[10 + PAGE]), (&[3; 5][..], 3, 4, 0));
    drop((buffer, clone));
    // An allocator that is an argument when its records are freed.
    drop(memory);
}
