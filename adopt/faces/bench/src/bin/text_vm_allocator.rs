//! A program that allocates and frees by `vm-allocator`, ours or the original.

#[cfg(not(feature = "original"))]
use faces_bench::vm_allocator_of::ours as vm_allocator;
#[cfg(feature = "original")]
use faces_bench::vm_allocator_of::theirs as vm_allocator;
use std::hint::black_box;
use vm_allocator::{AddressAllocator, AllocPolicy};

fn main() {
    let mut sum = 0;
    if let Ok(mut allocator) = AddressAllocator::new(black_box(0x1000), black_box(1 << 20)) {
        for at in 0..black_box(100u64) {
            let policy = [AllocPolicy::FirstMatch, AllocPolicy::LastMatch][usize::from(at % 2 == 0)];
            if let Ok(range) = allocator.allocate(black_box(2 + at % 8), 2, black_box(policy)) {
                sum += range.start();
                if black_box(at) % 3 == 0 {
                    _ = allocator.free(&range);
                }
            }
        }
    }
    std::process::exit(i32::from(sum == 1));
}
