//! A program that allocates and frees by `free-list`, ours or the original.

#[cfg(not(feature = "original"))]
use faces_bench::free_list_of::ours as free_list;
#[cfg(feature = "original")]
use faces_bench::free_list_of::theirs as free_list;
use free_list::{FreeList, PageLayout, PageRange};
use std::hint::black_box;

fn main() {
    let mut list = FreeList::<16>::new();
    let mut sum = 0;
    for at in 0..black_box(100) {
        if let Ok(range) = PageRange::from_start_len(black_box(at << 20), 0x8000) {
            // SAFETY: no memory is behind the pages.
            sum += usize::from(unsafe { list.deallocate(range) }.is_ok());
        }
        if let Ok(layout) = PageLayout::from_size_align(black_box(0x3000), black_box(0x1000)) {
            sum += list.allocate(layout).map_or(0, PageRange::start);
        }
    }
    std::process::exit(i32::from(sum == 1));
}
