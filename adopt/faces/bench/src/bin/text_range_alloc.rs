//! A program that allocates and frees by `range-alloc`, ours or the original.

#[cfg(not(feature = "original"))]
use faces_bench::range_alloc_of::ours as range_alloc;
#[cfg(feature = "original")]
use faces_bench::range_alloc_of::theirs as range_alloc;
use range_alloc::RangeAllocator;
use std::hint::black_box;

fn main() {
    let mut allocator = RangeAllocator::new(0..black_box(1u64 << 20));
    let mut sum = 0;
    for at in 0..black_box(100) {
        if let Ok(range) = allocator.allocate_range(black_box(1 + at % 7)) {
            sum += range.start;
            if black_box(at) % 3 == 0 {
                allocator.free_range(range);
            }
        }
    }
    std::process::exit(i32::from(sum == 1));
}
