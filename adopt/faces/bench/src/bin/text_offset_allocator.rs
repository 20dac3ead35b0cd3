//! A program that allocates and frees by `offset-allocator`, ours or the original.

#[cfg(not(feature = "original"))]
use faces_bench::offset_allocator_of::ours as offset_allocator;
#[cfg(feature = "original")]
use faces_bench::offset_allocator_of::theirs as offset_allocator;
use offset_allocator::Allocator;
use std::hint::black_box;

fn main() {
    let mut allocator: Allocator = Allocator::with_max_allocs(black_box(1 << 20), 1000);
    let mut sum = 0;
    for at in 0..black_box(100u32) {
        if let Some(area) = allocator.allocate(black_box(1 + at % 7)) {
            sum += area.offset;
            if black_box(at) % 3 == 0 {
                allocator.free(area);
            }
        }
    }
    std::process::exit(i32::from(sum == 1));
}
