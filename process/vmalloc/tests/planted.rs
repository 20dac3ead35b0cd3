//! Mistakes that Miri and the sanitizers must report. `cargo xtask miri` and `cargo xtask sanitize` run each by its name,
//! and fail if it is not reported. Nothing else runs them.
#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::alloc::Layout;
use std::ptr::NonNull;
use std::sync::Barrier;
use vmalloc::{Hardened, Options, Profile, Vmalloc};

const PAGE: usize = 4096;

fn memory() -> Vmalloc {
    Vmalloc::new(Options::default().arena_bytes_max(32 << 20)).unwrap()
}

fn area(memory: &Vmalloc) -> NonNull<u8> {
    memory.alloc(Layout::from_size_align(5 * PAGE, 1).unwrap()).unwrap()
}

#[test]
#[ignore = "a mistake, for Miri"]
fn a_write_to_an_area_that_was_freed() {
    let hardened = Profile::Hardened(Hardened::default().window_bytes(32 << 20));
    let memory = Vmalloc::new(Options::default().arena_bytes_max(32 << 20).profile(hardened)).unwrap();
    let area = area(&memory);
    // SAFETY: in the area.
    unsafe { area.as_ptr().write(1) };
    // SAFETY: our own.
    unsafe { memory.free(area) }.unwrap();
    // SAFETY: none. This is the mistake.
    unsafe { area.as_ptr().write(1) };
}

#[test]
#[ignore = "a mistake, for Miri"]
fn a_read_above_the_frontier() {
    let memory = memory();
    let _below = area(&memory);
    let last = std::ptr::with_exposed_provenance::<u8>(memory.addresses().end - PAGE);
    // SAFETY: none. This is the mistake.
    assert_ne!(unsafe { last.read() }, 1);
}

#[test]
#[ignore = "a mistake, for Miri and the sanitizer of threads"]
fn two_threads_write_to_an_area() {
    let memory = memory();
    let place = area(&memory).addr().get();
    let begin = Barrier::new(2);
    std::thread::scope(|scope| {
        for value in 0..2 {
            let begin = &begin;
            scope.spawn(move || {
                begin.wait();
                for _ in 0..20 {
                    // SAFETY: none. This is the mistake.
                    unsafe { std::ptr::with_exposed_provenance_mut::<u8>(place).write_volatile(value) };
                    std::thread::yield_now();
                }
            });
        }
    });
}

#[test]
#[ignore = "a mistake, for the sanitizer of addresses"]
fn a_write_behind_a_box() {
    let bytes = Box::leak(vec![0u8; 24].into_boxed_slice());
    let behind = std::hint::black_box(bytes.as_mut_ptr().wrapping_add(24));
    // SAFETY: none. This is the mistake.
    unsafe { behind.write_volatile(1) };
}
