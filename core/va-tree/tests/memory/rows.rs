//! The memory of alignment rows: it may be missing, and it returns.

use super::{PAGE, all, heap, pages, some_of};
use va_base::{Align, NoSlabs, Request, VaRange};
use va_tree::btree::BTree;
use va_tree::{BTreeIndex, FreeIndex, Supplied};

#[test]
fn a_shortage_does_not_poison_rows() {
    for donates in [false, true] {
        let heap = heap(PAGE);
        let mut index = BTreeIndex::new(all(), all(), &heap).unwrap();
        (0..some_of(20_000)).for_each(|n| assert!(index.take(pages(16 + 2 * n, 1)).is_ok()));
        // Odd pages are free: a search for an even one fails after all of them.
        heap.limit(0);
        for align in [2, 4] {
            let aligned = Request::pages(1).unwrap().aligned(Align::new(align * PAGE as u64).unwrap());
            let first = index.would_fit(&aligned).unwrap();
            assert_eq!(index.alloc(&aligned), Ok(first));
        }
        assert!(!index.has_rows());
        // The rows are built as soon as there is memory, and can be donated: those of both alignments.
        heap.limit(PAGE);
        assert!(index.wanted(1).is_some());
        if donates {
            index.supply(1, &heap).unwrap();
            heap.limit(0);
        }
        // A row also serves larger alignments.
        for align in [4, 2] {
            let aligned = Request::pages(1).unwrap().aligned(Align::new(align * PAGE as u64).unwrap());
            let before = index.memory().row_bytes;
            index.alloc(&aligned).unwrap();
            index.validate().unwrap();
            assert!(index.memory().row_bytes > before, "{align} {donates}");
        }
    }
}

#[test]
fn memory_of_rows_that_were_never_built_is_freed_by_a_shrink() {
    let heap = heap(PAGE);
    let mut index = BTreeIndex::new(all(), all(), &heap).unwrap();
    (0..some_of(20_000)).for_each(|n| assert!(index.take(pages(16 + 2 * n, 1)).is_ok()));
    let aligned = Request::pages(1).unwrap().aligned(Align::new(2 * PAGE as u64).unwrap());
    heap.limit(0);
    let at = index.alloc(&aligned).unwrap();
    // The rows failed, and are supplied. No request needs them any more.
    heap.limit(PAGE);
    let before = heap.bytes();
    index.supply(1, &heap).unwrap();
    assert!(heap.bytes() > before && !index.has_rows());
    index.free(VaRange::from_size(at, PAGE as u64).unwrap()).unwrap();
    (0..some_of(20_000)).for_each(|n| index.free(pages(16 + 2 * n, 1)).unwrap());
    (0..100).for_each(|_| _ = index.shrink(10_000));
    assert!(heap.bytes() <= 4 * PAGE, "{} bytes are kept", heap.bytes());
    index.validate().unwrap();
}

#[test]
fn rows_without_memory_are_not_requested() {
    let mut index = BTreeIndex::new(all(), all(), NoSlabs).unwrap();
    (0..14).for_each(|n| assert!(index.take(pages(16 + 2 * n, 1)).is_ok()));
    assert_eq!(index.wanted(1), None);
    assert!(index.add_all_rows().is_err());
    assert_eq!(index.wanted(1), None);
}

#[test]
fn a_shrink_drops_rows_unless_they_were_requested_for_good() {
    let heap = heap(PAGE);
    for always in [false, true] {
        let mut index = BTreeIndex::new(all(), all(), &heap).unwrap();
        if always {
            index.add_all_rows().unwrap();
        }
        (0..2000).for_each(|n| assert!(index.take(pages(16 + 2 * n, 1)).is_ok()));
        let aligned = Request::pages(1).unwrap().aligned(Align::new(2 * PAGE as u64).unwrap());
        index.alloc(&aligned).unwrap();
        assert!(index.has_rows());
        assert!(index.shrink(0) == 0 && index.has_rows(), "no step");
        // One for the rows; their memory takes others.
        assert!(always || (index.shrink(1) == 0 && !index.has_rows()), "one step");
        assert_eq!(index.shrink(0), 0);
        let before = index.memory().allocated_bytes;
        assert_eq!(index.shrink(1000), before - index.memory().allocated_bytes);
        assert_eq!(index.has_rows(), always);
        index.validate().unwrap();
        // Without inner nodes the rows that stay have no memory, either.
        let live: Vec<_> = index.holes().map(|hole| hole.whole_pages().1).collect();
        for at in live.into_iter().filter(|&at| at < all().whole_pages().1) {
            index.free(pages(at, 1)).unwrap();
        }
        (0..100).for_each(|_| _ = index.shrink(10_000));
        assert!(heap.bytes() <= 4 * PAGE, "{} bytes are kept", heap.bytes());
        index.validate().unwrap();
    }
}

#[test]
fn rows_give_way_to_a_take_that_lacks_memory_unless_they_were_requested_for_good() {
    for always in [false, true] {
        let mut dropped = 0;
        for granted in 0..20 {
            let heap = heap(PAGE);
            let mut index = BTree::<u64, 8, _>::new(all(), all(), &heap).unwrap();
            if always {
                index.add_all_rows().unwrap();
            }
            (0..400).for_each(|n| assert!(index.take(pages(16 + 2 * n, 1)).is_ok()));
            let aligned = Request::pages(1).unwrap().aligned(Align::new(2 * PAGE as u64).unwrap());
            index.alloc(&aligned).unwrap();
            assert!(index.has_rows());
            heap.fail_after(granted);
            let failed = (1000..1400).any(|n| index.take(pages(16 + 2 * n, 1)).is_err());
            dropped += u64::from(!index.has_rows());
            assert!(failed || granted > 0, "{granted}");
            index.validate().unwrap();
        }
        assert_eq!(dropped > 0, !always, "{dropped}");
    }
}
