//! Each documented behaviour of Hermit's page allocator, and its addresses against a list of pages.
#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod allocations;

use ports::hermit::{DeallocateError, PageAlloc, PageBox, VirtualPages, kernel_heap_end};
use ports::stand_in::hermit::{AllocError, PAGE_SIZE, PageLayout, PageRange, PageRangeAllocator};
use std::sync::{Mutex, MutexGuard, PoisonError};
use va_base::{AllocError as IndexError, VaRange};
use va_sim::op::Rng;
use va_tree::TrackedError;

fn pages(first: usize, end: usize) -> PageRange {
    PageRange::new(first * PAGE_SIZE, end * PAGE_SIZE).unwrap()
}

fn layout(count: usize, align: usize) -> PageLayout {
    PageLayout::from_size_align(count * PAGE_SIZE, align * PAGE_SIZE).unwrap()
}

fn of_pages(first: usize, end: usize) -> VirtualPages {
    let mut all = VirtualPages::new();
    all.init(pages(first, end)).unwrap();
    all
}

/// Owns the kernel's one allocator for a test.
fn kernel() -> MutexGuard<'static, ()> {
    static READY: Mutex<bool> = Mutex::new(false);
    static ONE: Mutex<()> = Mutex::new(());
    let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut ready = READY.lock().unwrap();
    if !*ready {
        assert_eq!(PageAlloc::allocate(layout(1, 1)), Err(AllocError), "before init there is no page");
        // SAFETY: once, as `READY` says.
        unsafe { PageAlloc::init() };
        *ready = true;
    }
    one
}

#[test]
fn kernel_heap_end_is_the_last_address_of_the_kernel() {
    let end = kernel_heap_end().as_usize();
    assert!((end + 1).is_power_of_two());
    let _kernel = kernel();
    let first = end.div_ceil(2);
    let all = PageRange::new(first, end + 1).unwrap();
    PageAlloc::allocate_at(all).unwrap();
    assert_eq!(PageAlloc::allocate(layout(1, 1)), Err(AllocError));
    // SAFETY: allocated above, and nothing is there.
    unsafe { PageAlloc::deallocate(all) };
}

#[test]
fn allocate_meets_the_size_and_the_alignment_of_the_layout() {
    let _kernel = kernel();
    let one = PageAlloc::allocate(layout(1, 1)).unwrap();
    for (count, align) in [(1, 1), (3, 1), (1, 512), (7, 16), (512, 512), (5, 1 << 18)] {
        let range = PageAlloc::allocate(layout(count, align)).unwrap();
        assert_eq!(range.len().get(), count * PAGE_SIZE);
        assert!(range.start().is_multiple_of(align * PAGE_SIZE), "{range:?} {align}");
        // SAFETY: allocated above, and nothing is there.
        unsafe { PageAlloc::deallocate(range) };
    }
    // SAFETY: allocated above, and nothing is there.
    unsafe { PageAlloc::deallocate(one) };
}

#[test]
fn allocate_fails_for_no_pages_and_where_nothing_fits() {
    let mut all = of_pages(16, 32);
    assert_eq!(all.allocate(layout(0, 1)), Err(AllocError));
    assert_eq!(all.allocate(layout(17, 1)), Err(AllocError));
    assert_eq!(all.allocate(layout(16, 1)), Ok(pages(16, 32)));
    assert_eq!(all.allocate(layout(1, 1)), Err(AllocError));
    assert_eq!(all.free_space(), 0);
}

#[test]
fn allocate_at_takes_exactly_the_range() {
    let mut all = of_pages(1, 5);
    all.allocate_at(pages(3, 4)).unwrap();
    assert_eq!(all.allocate_at(pages(3, 4)), Err(AllocError), "it is taken");
    assert_eq!(all.allocate_at(pages(2, 4)), Err(AllocError), "a part of it is");
    assert_eq!(all.allocate_at(pages(4, 6)), Err(AllocError), "a part is not the kernel's");
    all.allocate_at(pages(1, 3)).unwrap();
    assert_eq!(all.free_space(), PAGE_SIZE);
}

#[test]
fn deallocate_makes_the_pages_free_to_be_allocated_again() {
    let mut all = of_pages(16, 32);
    let first = all.allocate(layout(4, 1)).unwrap();
    let second = all.allocate(layout(4, 1)).unwrap();
    all.deallocate(first).unwrap();
    assert_eq!(all.allocate(layout(4, 1)), Ok(first));
    all.deallocate(second).unwrap();
    all.deallocate(first).unwrap();
    assert_eq!(all.allocate(layout(16, 1)), Ok(pages(16, 32)), "all merged");
}

#[test]
fn deallocate_of_pages_that_are_free_is_an_error_and_changes_nothing() {
    let mut all = of_pages(16, 32);
    all.allocate_at(pages(20, 24)).unwrap();
    for (first, end) in [(16, 17), (19, 21), (23, 25), (16, 32)] {
        let error = all.deallocate(pages(first, end)).unwrap_err();
        let range = VaRange::from_pages(first as u64, end as u64).unwrap();
        assert!(matches!(error, DeallocateError::AlreadyFree { range: of, .. } if of == range), "{error:?}");
    }
    let outside = all.deallocate(pages(100, 101)).unwrap_err();
    assert!(matches!(outside, DeallocateError::Index(TrackedError::Index(IndexError::BadRange { .. }))));
    assert_eq!(all.free_space(), 12 * PAGE_SIZE);
    all.deallocate(pages(20, 24)).unwrap();
}

#[test]
#[should_panic(expected = "AlreadyFree")]
fn a_second_deallocate_stops_the_kernel_with_the_numbers() {
    let _kernel = kernel();
    let range = PageAlloc::allocate(layout(2, 1)).unwrap();
    // SAFETY: allocated above, and nothing is there.
    unsafe { PageAlloc::deallocate(range) };
    // SAFETY: nothing is there. The call is the mistake that this test is about.
    unsafe { PageAlloc::deallocate(range) };
}

#[test]
fn munmap_deallocates_any_part_and_several_at_once() {
    let mut all = of_pages(16, 64);
    let ranges: Vec<_> = (0..3).map(|_| all.allocate(layout(8, 1)).unwrap()).collect();
    assert_eq!((ranges[0], ranges[2]), (pages(16, 24), pages(32, 40)));
    all.deallocate(pages(18, 20)).unwrap();
    all.deallocate(pages(22, 36)).unwrap();
    for (first, end) in [(16, 18), (20, 22), (36, 40)] {
        all.deallocate(pages(first, end)).unwrap();
    }
    assert_eq!(all.allocate(layout(48, 1)), Ok(pages(16, 64)));
}

#[test]
fn init_adds_the_pages_once() {
    let mut all = of_pages(16, 32);
    assert!(matches!(all.init(pages(64, 128)), Err(IndexError::Occupied { .. })));
    assert_eq!(all.free_space(), 16 * PAGE_SIZE);
}

#[test]
fn the_display_has_a_line_for_each_free_range() {
    let mut all = of_pages(16, 32);
    all.allocate_at(pages(20, 24)).unwrap();
    let text = all.to_string();
    let lines: Vec<_> = text.lines().collect();
    assert_eq!(lines.len(), 2);
    assert!(lines[0].contains("0x10000..") && lines[0].contains("0x14000 (len ="), "{text}");
    assert!(lines[1].contains("0x18000..") && lines[1].ends_with("pages =                8)"), "{text}");
    assert!(PageAlloc.to_string().starts_with("PageAlloc free list:\n"));
}

#[test]
fn a_page_box_deallocates_its_pages_when_it_is_dropped() {
    let _kernel = kernel();
    let boxed = PageBox::new(layout(3, 1)).unwrap();
    let range = *boxed;
    assert_eq!(PageAlloc::allocate_at(range), Err(AllocError));
    drop(boxed);
    PageAlloc::allocate_at(range).unwrap();
    // SAFETY: allocated above, and nothing else owns it.
    let boxed = unsafe { PageBox::from_raw(range) };
    assert_eq!(PageBox::into_raw(boxed), range);
    assert_eq!(PageAlloc::allocate_at(range), Err(AllocError), "still allocated");
    // SAFETY: allocated above, and nothing is there.
    unsafe { PageAlloc::deallocate(range) };
}

/// The pages one by one, searched from the lowest as a list of free ranges is.
struct Model(Vec<bool>);

impl Model {
    fn fit(&self, count: usize, align: usize) -> Option<usize> {
        (0..self.0.len())
            .step_by(align)
            .find(|&at| self.0.get(at..at + count).is_some_and(|pages| pages.iter().all(|&free| free)))
    }
}

#[test]
fn the_addresses_are_those_of_the_first_fit_in_a_list_of_free_ranges() {
    const PAGES: usize = 512;
    let mut all = of_pages(1024, 1024 + PAGES);
    let mut model = Model(vec![true; PAGES]);
    let mut live: Vec<(usize, usize)> = Vec::new();
    let mut rng = Rng::new(7);
    let mut random = |below: usize| rng.below(below as u64) as usize;
    let mut failed = 0;
    for _ in 0..20_000 {
        if random(2) == 0 {
            let (count, align) = (1 + random(12), 1 << random(5));
            let expected = model.fit(count, align);
            let got = all.allocate(layout(count, align));
            assert_eq!(got.ok(), expected.map(|at| pages(1024 + at, 1024 + at + count)));
            failed += u32::from(expected.is_none());
            if let Some(at) = expected {
                model.0[at..at + count].fill(false);
                live.push((at, at + count));
            }
        } else if !live.is_empty() {
            let (from, to) = live.swap_remove(random(live.len()));
            // A part of it at times; the rest follows later.
            let middle = from + random(to - from);
            let (from, to, rest) =
                if random(3) == 0 { (from, middle, Some((middle, to))) } else { (from, to, None) };
            live.extend(rest);
            if from < to {
                all.deallocate(pages(1024 + from, 1024 + to)).unwrap();
                model.0[from..to].fill(true);
            }
        }
        assert_eq!(all.free_space(), PAGE_SIZE * model.0.iter().filter(|&&free| free).count());
    }
    assert!(failed > 100, "the space was never full: {failed}");
}

#[test]
fn before_there_is_a_heap_the_records_inside_are_enough_for_the_first_areas() {
    // What the kernel allocates before its heap: the heap. A dozen areas need no memory.
    let mut all = of_pages(1 << 20, 1 << 30);
    let before = allocations::count().0;
    let ranges: Vec<_> = {
        let mut ranges = Vec::with_capacity(12);
        let capacity = allocations::count().0 - before;
        ranges.extend((0..12).map(|_| all.allocate(layout(512, 512)).unwrap()));
        assert_eq!(allocations::count().0 - before, capacity);
        ranges
    };
    ranges.into_iter().for_each(|range| all.deallocate(range).unwrap());
}
