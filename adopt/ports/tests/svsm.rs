//! Each documented behaviour of COCONUT-SVSM's virtual ranges, and their addresses against a bitmap.

use ports::stand_in::svsm::{
    PAGE_SHIFT, PAGE_SHIFT_2M, PAGE_SIZE, PAGE_SIZE_2M, SVSM_PERCPU_TEMP_BASE_2M, SVSM_PERCPU_TEMP_BASE_4K,
    SvsmError, VirtAddr, log, this_cpu,
};
use ports::svsm::{VIRT_ALIGN_2M, VIRT_ALIGN_4K, VRangeAlloc, VirtualRange, virt_log_usage};
use va_base::FreeError;
use va_sim::op::Rng;

const BASE: usize = 0x100_0000;

fn range(page_count: usize, page_shift: usize) -> VirtualRange {
    let mut range = VirtualRange::new();
    range.init(VirtAddr::new(BASE), page_count, page_shift);
    range
}

#[test]
fn new_has_no_pages() {
    let mut none = VirtualRange::new();
    assert_eq!((none.alloc(1, 0), none.used_pages()), (Err(SvsmError::Mem), 0));
    assert!(size_of::<VirtualRange>() <= 40);
}

#[test]
fn init_sets_the_pages_and_needs_no_memory_for_more_than_a_bitmap_has() {
    let mut large = range(1 << 20, PAGE_SHIFT);
    assert_eq!(large.alloc((1 << 20) - 1, 0), Ok(VirtAddr::new(BASE)));
    assert_eq!(large.used_pages(), 1 << 20);
    large.init(VirtAddr::new(2 * BASE), 16, PAGE_SHIFT_2M);
    assert_eq!((large.used_pages(), large.alloc(1, 0)), (0, Ok(VirtAddr::new(2 * BASE))));
}

#[test]
fn allocations_of_either_size_have_a_guard_page_between_them() {
    for (shift, size) in [(PAGE_SHIFT, PAGE_SIZE), (PAGE_SHIFT_2M, PAGE_SIZE_2M)] {
        let mut pages = range(1024, shift);
        let (first, second) = (pages.alloc(12, 0).unwrap(), pages.alloc(12, 0).unwrap());
        assert_eq!((first.bits(), second.bits()), (BASE, BASE + 13 * size));
        assert_eq!(pages.used_pages(), 26);
    }
}

#[test]
fn the_last_page_is_a_guard() {
    let mut pages = range(16, PAGE_SHIFT);
    assert_eq!(pages.alloc(16, 0), Err(SvsmError::Mem));
    assert_eq!(pages.alloc(15, 0), Ok(VirtAddr::new(BASE)));
}

#[test]
fn an_allocation_begins_at_a_multiple_of_its_alignment() {
    assert_eq!((VIRT_ALIGN_4K, VIRT_ALIGN_2M), (0, 9));
    let mut pages = range(1024, PAGE_SHIFT);
    pages.alloc(1, VIRT_ALIGN_4K).unwrap();
    for (count, align) in [(1, 4), (3, 4), (1, VIRT_ALIGN_2M)] {
        let at = pages.alloc(count, align).unwrap().bits() - BASE;
        assert!(at.is_multiple_of(PAGE_SIZE << align));
    }
    // More than the range has, and more than a number has.
    for align in [10, 51, 52, 64, usize::MAX] {
        assert_eq!(pages.alloc(1, align), Err(SvsmError::Mem), "{align}");
    }
    assert_eq!(pages.alloc(usize::MAX, 0), Err(SvsmError::Mem));
}

#[test]
fn free_counts_the_guard_and_takes_an_allocation_in_parts() {
    for (shift, size) in [(PAGE_SHIFT, PAGE_SIZE), (PAGE_SHIFT_2M, PAGE_SIZE_2M)] {
        let mut pages = range(1024, shift);
        let first = pages.alloc(26, 0).unwrap();
        assert_eq!(pages.used_pages(), 27);
        pages.free(first, 12);
        assert_eq!(pages.used_pages(), 14);
        pages.free(first + 13 * size, 13);
        assert_eq!(pages.used_pages(), 0);
    }
}

#[test]
fn a_free_of_what_is_not_allocated_is_an_error_and_changes_nothing() {
    let mut pages = range(64, PAGE_SHIFT);
    let at = |page: usize| VirtAddr::new(BASE + page * PAGE_SIZE);
    assert!(matches!(pages.try_free(at(0), 1), Err(FreeError::BadRange { .. })), "there is no index yet");
    let first = pages.alloc(4, 0).unwrap();
    assert!(matches!(pages.try_free(at(10), 1), Err(FreeError::AlreadyFree { .. })));
    assert!(matches!(pages.try_free(first, 7), Err(FreeError::AlreadyFree { .. })));
    assert!(matches!(pages.try_free(at(64), 1), Err(FreeError::BadRange { .. })));
    assert!(matches!(pages.try_free(VirtAddr::new(0), 1), Err(FreeError::BadRange { .. })));
    assert!(matches!(pages.try_free(first, usize::MAX), Err(FreeError::BadRange { .. })));
    assert_eq!(pages.used_pages(), 5);
    pages.free(first, 4);
    assert_eq!(pages.used_pages(), 0);
}

#[test]
#[should_panic(expected = "overlaps the free range")]
fn a_second_free_stops_the_kernel_with_the_numbers() {
    let mut pages = range(64, PAGE_SHIFT);
    let first = pages.alloc(4, 0).unwrap();
    pages.free(first, 4);
    pages.free(first, 4);
}

/// The data of the CPU are shared by all tests, so this is one.
#[test]
fn a_range_alloc_is_of_this_cpu_and_is_freed_when_it_is_dropped() {
    this_cpu().initialize_vm_ranges();
    let small = VRangeAlloc::new_4k(3 * PAGE_SIZE, 0).unwrap();
    assert_eq!((small.region().start(), small.region().len()), (SVSM_PERCPU_TEMP_BASE_4K, 3 * PAGE_SIZE));
    assert!(!small.huge());
    let large = VRangeAlloc::new_2m(2 * PAGE_SIZE_2M, 0).unwrap();
    assert_eq!((large.region().start(), large.region().len()), (SVSM_PERCPU_TEMP_BASE_2M, 2 * PAGE_SIZE_2M));
    assert!(large.huge());
    virt_log_usage();
    assert_eq!(*log::LAST.lock(), "[CPU 0] Virtual memory pages used: 4 * 4K, 3 * 2M");
    // A size that is not whole pages.
    assert_eq!(VRangeAlloc::new_4k(PAGE_SIZE + 1, 0).err(), Some(SvsmError::Mem));
    assert_eq!(VRangeAlloc::new_2m(PAGE_SIZE, 0).err(), Some(SvsmError::Mem));
    // As many pages as a CPU has, without the guard.
    assert_eq!(VRangeAlloc::new_4k(512 * PAGE_SIZE, 0).err(), Some(SvsmError::Mem));
    drop((small, large));
    assert_eq!((this_cpu().vrange_4k().used_pages(), this_cpu().vrange_2m().used_pages()), (0, 0));
    drop(VRangeAlloc::new_4k(511 * PAGE_SIZE, 0).unwrap());
}

#[test]
fn the_addresses_are_those_of_a_bitmap_searched_from_the_lowest_bit() {
    const PAGES: usize = 512;
    let mut pages = range(PAGES, PAGE_SHIFT);
    let mut used = vec![false; PAGES];
    let mut live: Vec<(usize, usize)> = Vec::new();
    let mut rng = Rng::new(5);
    let mut random = |below: usize| rng.below(below as u64) as usize;
    let mut failed = 0;
    for _ in 0..20_000 {
        if random(2) == 0 {
            let (count, align) = (random(10), random(5));
            let fits =
                |&at: &usize| used.get(at..=at + count).is_some_and(|bits| bits.iter().all(|&used| !used));
            let expected = (0..PAGES).step_by(1 << align).find(fits);
            let got = pages.alloc(count, align).ok();
            assert_eq!(got, expected.map(|at| VirtAddr::new(BASE + at * PAGE_SIZE)));
            failed += u32::from(expected.is_none());
            if let Some(at) = expected {
                used[at..=at + count].fill(true);
                live.push((at, count));
            }
        } else if !live.is_empty() {
            let (at, all) = live.swap_remove(random(live.len()));
            // A part of it at times, whose last page serves as its guard; the rest follows later.
            let count = if random(3) == 0 { random(all + 1) } else { all };
            if count < all {
                live.push((at + count + 1, all - count - 1));
            }
            pages.free(VirtAddr::new(BASE + at * PAGE_SIZE), count);
            used[at..=at + count].fill(false);
        }
        assert_eq!(pages.used_pages(), used.iter().filter(|&&used| used).count());
    }
    assert!(failed > 100, "the range was never full: {failed}");
}
