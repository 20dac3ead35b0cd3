//! Each documented behaviour of Asterinas' range allocator, and its addresses against a sorted list of free ranges.

mod allocations;

use ports::asterinas::{RangeAllocator, RangeFreeError};
use std::ops::Range;
use va_sim::op::Rng;

const ALL: Range<usize> = 0xffff_ffe0_0000_0000..0xffff_ffe1_0000_0000;

/// A static, as the kernel has it.
static KVIRT_AREA_ALLOCATOR: RangeAllocator = RangeAllocator::new(ALL);

#[test]
fn new_is_a_constant_and_the_first_call_works() {
    assert_eq!(KVIRT_AREA_ALLOCATOR.fullrange(), &ALL);
    let range = KVIRT_AREA_ALLOCATOR.alloc(0x4000).unwrap();
    assert!(ALL.start <= range.start && range.end <= ALL.end && range.len() == 0x4000);
    KVIRT_AREA_ALLOCATOR.free(range);
}

#[test]
fn fullrange_is_that_of_new() {
    assert_eq!(RangeAllocator::new(5..9).fullrange(), &(5..9));
}

#[test]
fn alloc_is_first_fit_and_takes_the_end_of_the_range() {
    let ranges = RangeAllocator::new(0x1000..0x9000);
    ranges.alloc_specific(&(0x2000..0x3000)).unwrap();
    ranges.alloc_specific(&(0x5000..0x6000)).unwrap();
    // Free: 0x1000 bytes, 0x2000 bytes, 0x3000 bytes.
    assert_eq!(ranges.alloc(0x1800).unwrap(), 0x3800..0x5000);
    assert_eq!(ranges.alloc(0x800).unwrap(), 0x1800..0x2000);
    assert_eq!(ranges.alloc(0x900).unwrap(), 0x8700..0x9000);
}

#[test]
fn alloc_fails_where_nothing_fits_and_for_no_bytes() {
    let ranges = RangeAllocator::new(0..0x1000);
    assert!(ranges.alloc(0x1001).is_err() && ranges.alloc(usize::MAX).is_err() && ranges.alloc(0).is_err());
    assert_eq!(ranges.alloc(0x1000).unwrap(), 0..0x1000);
    assert!(ranges.alloc(1).is_err());
    assert!(RangeAllocator::new(7..7).alloc(1).is_err());
}

#[test]
fn alloc_specific_takes_exactly_the_range_to_the_byte() {
    let ranges = RangeAllocator::new(0x1000..0x3000);
    ranges.alloc_specific(&(0x1000..0x1001)).unwrap();
    ranges.alloc_specific(&(0x2fff..0x3000)).unwrap();
    assert!(ranges.alloc_specific(&(0x1000..0x1001)).is_err());
    assert!(ranges.alloc_specific(&(0x0fff..0x1001)).is_err());
    assert!(ranges.alloc_specific(&(0x2fff..0x3001)).is_err());
    ranges.alloc_specific(&(0x1001..0x2fff)).unwrap();
    assert!(ranges.alloc(1).is_err());
}

#[test]
#[expect(clippy::reversed_empty_ranges, reason = "the kernel's callers pass what devices state")]
fn alloc_specific_of_an_empty_or_reversed_range_fails() {
    let ranges = RangeAllocator::new(0x4000_0000..0x4200_0000);
    for range in
        [0..0, usize::MAX..0, 0x4000_0000..0x4000_0000, 0x4100_0000..0x4000_0000, 0x41ff_f000..0x41ff_e000]
    {
        assert!(ranges.alloc_specific(&range).is_err(), "{range:x?}");
    }
    assert!(ranges.alloc(0x200_0000).is_ok(), "nothing has changed");
}

#[test]
fn free_makes_the_range_free_and_merges_it_with_its_neighbours() {
    let ranges = RangeAllocator::new(0..0x3000);
    let parts: Vec<_> = (0..3).map(|_| ranges.alloc(0x1000).unwrap()).collect();
    for at in [0, 2, 1] {
        ranges.free(parts[at].clone());
    }
    assert_eq!(ranges.alloc(0x3000).unwrap(), 0..0x3000);
}

#[test]
fn an_area_that_was_split_is_freed_in_parts() {
    let ranges = RangeAllocator::new(0..0x9000);
    let area = ranges.alloc(0x3000).unwrap();
    ranges.free(area.start..area.start + 0x1000);
    ranges.free(area.start + 0x1000..area.end);
    assert_eq!(ranges.alloc(0x9000).unwrap(), 0..0x9000);
    // Each byte by itself.
    ranges.free(0..0x1000);
    (0x1000..0x1100).step_by(2).for_each(|at| ranges.free(at..at + 1));
    (0x1001..0x1100).step_by(2).for_each(|at| ranges.free(at..at + 1));
    ranges.free(0x1100..0x9000);
    assert_eq!(ranges.alloc(0x9000).unwrap(), 0..0x9000);
}

#[test]
fn a_free_of_what_is_free_or_elsewhere_is_an_error_with_its_numbers() {
    let ranges = RangeAllocator::new(0x1000..0x9000);
    let outside = RangeFreeError::Outside { fullrange: 0x1000..0x9000 };
    assert_eq!(ranges.try_free(&(0x9000..0xa000)), Err(outside.clone()));
    assert_eq!(ranges.try_free(&(0x2000..0x2000)), Err(outside));
    ranges.alloc_specific(&(0x2000..0x4000)).unwrap();
    let free = 0x4000..0x9000;
    assert_eq!(ranges.try_free(&(0x3000..0x5000)), Err(RangeFreeError::AlreadyFree { free }));
    ranges.free(0x2000..0x4000);
}

#[test]
#[should_panic(expected = "AlreadyFree")]
fn a_second_free_stops_the_kernel_with_the_numbers() {
    let ranges = RangeAllocator::new(0..0x1000);
    let range = ranges.alloc(16).unwrap();
    ranges.free(range.clone());
    ranges.free(range);
}

#[test]
#[should_panic(expected = "is not freed")]
fn a_free_before_any_allocation_stops_the_kernel() {
    RangeAllocator::new(0..0x1000).free(0..16);
}

#[test]
fn a_free_needs_no_memory() {
    let ranges = RangeAllocator::new(0..1 << 40);
    let mut live: Vec<_> = (0..4000).map(|_| ranges.alloc(0x2000).unwrap()).collect();
    let split: Vec<_> = (0..100).map(|at| live[40 * at].clone()).collect();
    split.iter().for_each(|_| ranges.reserve_split().unwrap());
    let mut parts = Vec::with_capacity(5000);
    for (at, range) in live.drain(..).enumerate() {
        let middle = if at % 40 == 0 { range.start + 0x1000 } else { range.end };
        parts.extend([range.start..middle, middle..range.end].into_iter().filter(|part| !part.is_empty()));
    }
    let before = allocations::count().0;
    // Every second one first, so that there are as many holes as can be.
    parts.iter().step_by(2).chain(parts.iter().skip(1).step_by(2)).for_each(|part| ranges.free(part.clone()));
    assert_eq!(allocations::count().0 - before, 0);
    assert_eq!(ranges.alloc(1 << 40).unwrap(), 0..1 << 40);
}

#[test]
fn a_drop_frees_the_memory_of_the_records() {
    let (_, before) = allocations::count();
    let ranges = RangeAllocator::new(0..1 << 30);
    (0..1000).for_each(|n| ranges.alloc_specific(&(n * 10..n * 10 + 5)).unwrap());
    assert!(allocations::count().1 > before);
    drop(ranges);
    assert_eq!(allocations::count().1, before);
}

#[test]
fn threads_share_one_allocator() {
    static SHARED: RangeAllocator = RangeAllocator::new(0..1 << 30);
    let taken: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| scope.spawn(|| (0..500).map(|_| SHARED.alloc(0x1000).unwrap()).collect::<Vec<_>>()))
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    let mut starts: Vec<_> = taken.iter().map(|range| range.start).collect();
    starts.sort_unstable();
    assert!(starts.windows(2).all(|two| two[0] + 0x1000 <= two[1]), "two areas overlap");
    taken.into_iter().for_each(|range| SHARED.free(range));
    assert!(SHARED.alloc(1 << 30).is_ok());
}

#[test]
fn the_addresses_are_those_of_a_sorted_list_cut_at_the_end_of_the_first_fit() {
    const BYTES: usize = 1000;
    let ranges = RangeAllocator::new(50..50 + BYTES);
    let mut free = vec![true; BYTES];
    let mut live: Vec<Range<usize>> = Vec::new();
    let mut rng = Rng::new(3);
    let mut random = |below: usize| rng.below(below as u64) as usize;
    let mut failed = 0;
    for _ in 0..20_000 {
        if random(2) == 0 {
            let size = 1 + random(40);
            // The first hole of this size: its end is where the next byte is not free.
            let start = (0..=BYTES - size).find(|&at| free[at..at + size].iter().all(|&free| free));
            let end = start.map(|at| (at..BYTES).find(|&at| !free[at]).unwrap_or(BYTES));
            assert_eq!(ranges.alloc(size).ok(), end.map(|end| 50 + end - size..50 + end));
            failed += u32::from(end.is_none());
            if let Some(end) = end {
                free[end - size..end].fill(false);
                live.push(end - size..end);
            }
        } else if !live.is_empty() {
            let range = live.swap_remove(random(live.len()));
            let middle = range.start + random(range.len());
            let part =
                if random(3) == 0 && middle > range.start { range.start..middle } else { range.clone() };
            if part.end < range.end {
                live.push(part.end..range.end);
            }
            ranges.free(50 + part.start..50 + part.end);
            free[part].fill(true);
        }
    }
    assert!(failed > 100, "the range was never full: {failed}");
}
