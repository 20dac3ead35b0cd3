//! The index with holes in order of size and its reference models give the same results.

use va_base::{Align, Heap, NoSlabs, Pages, Request, Va, VaRange};
use va_certify::Certified;
use va_sim::effort::some;
use va_sim::model::{ModelIndex, PageIndex};
use va_sim::op::{Op, Space};
use va_sim::run::{Walk, assert_same};
use va_sim::soak::seeds;
use va_tree::rb::Exact;
use va_tree::{BTreeIndex, BestFitIndex, FreeIndex, InPlace, RbIndex};

type BySize<I> = BestFitIndex<I, Heap>;

fn pages(first: u64, end: u64) -> VaRange {
    VaRange::from_pages(first, end).unwrap()
}

fn btree(space: &Space) -> BySize<BTreeIndex<Heap>> {
    BestFitIndex::new(BTreeIndex::new(space.extent, space.default_window, Heap).unwrap(), Heap).unwrap()
}

fn rb(space: &Space) -> BySize<RbIndex<Exact, Heap>> {
    BestFitIndex::new(RbIndex::new(space.extent, space.default_window, Heap).unwrap(), Heap).unwrap()
}

#[test]
fn bf1_it_equals_the_models() {
    for seed in 0..seeds(2) {
        for size in [1, 2, 16, 40, 300] {
            let space = Space::whole(pages(size % 5, size % 5 + size));
            let ops = || Op::from_seed(&space, seed).take(some(1000));
            let model = PageIndex::new(space.extent, space.default_window).unwrap();
            assert_same(&space, Certified::new(btree(&space)), model, ops(), Walk::Always);
            let model = ModelIndex::new(space.extent, space.default_window).unwrap();
            assert_same(&space, Certified::new(rb(&space)), model, ops(), Walk::Always);
        }
        let linux = Space {
            extent: VaRange::new(Va::new(1), Va::new(u64::MAX)).unwrap(),
            default_window: VaRange::new(Va::new(0xffff_c900_0000_0000), Va::new(0xffff_e8ff_ffff_ffff))
                .unwrap(),
        };
        for space in [Space::whole(pages(5, 5000)), Space::whole(VaRange::ALL), linux] {
            let model = ModelIndex::new(space.extent, space.default_window).unwrap();
            assert_same(
                &space,
                Certified::new(btree(&space)),
                model,
                Op::from_seed(&space, seed).take(some(4000)),
                Walk::Every(50),
            );
        }
    }
}

#[test]
fn bf1_an_index_with_holes_is_ordered_too() {
    let all = pages(100, 10_000);
    let mut index = BTreeIndex::new(all, all, Heap).unwrap();
    (0..900).for_each(|n| assert!(index.take(pages(100 + 11 * n, 101 + 11 * n + n % 9)).is_ok()));
    // The hole before area 8 is the first of 10 pages - 8: one of 2 pages.
    let mut index = BestFitIndex::new(index, Heap).unwrap();
    index.validate().unwrap();
    let two = Request::pages(2).unwrap();
    let lowest = index.index().holes().find(|hole| hole.len_bytes() == 2 * 4096).unwrap();
    assert_eq!(index.alloc_best(&two), Ok(lowest.start()));
    index.validate().unwrap();
    // Without memory for its records it cannot begin.
    let mut index = BTreeIndex::new(all, all, Heap).unwrap();
    (0..900).for_each(|n| assert!(index.take(pages(100 + 11 * n, 101 + 11 * n)).is_ok()));
    assert!(BestFitIndex::new(index, NoSlabs).is_err());
}

#[test]
fn bf1_it_begins_as_a_constant() {
    type Index = BestFitIndex<BTreeIndex<NoSlabs>, NoSlabs>;
    static INDEX: std::sync::Mutex<Index> = std::sync::Mutex::new(<Index as InPlace<NoSlabs>>::EMPTY);
    let mut index = INDEX.lock().unwrap();
    let one = Request::pages(1).unwrap();
    assert!(index.alloc_best(&one).is_err() && index.alloc(&one).is_err());
    assert_eq!(index.validate(), Ok(()));
    index.init(pages(5, 50), pages(5, 50), NoSlabs).unwrap();
    assert_eq!(index.alloc_best(&one), Ok(Va::from_page(5)));
    assert!(index.init(pages(5, 50), pages(5, 50), NoSlabs).is_err());
    assert_eq!(index.validate(), Ok(()));
}

#[test]
fn the_smallest_hole_is_chosen_where_the_window_and_the_alignment_permit_it() {
    let all = pages(0, 1000);
    let mut index = btree(&Space::whole(all));
    index.take(pages(0, 900)).unwrap();
    index.reserve_splits(8).unwrap();
    // 6 pages, 3 pages, 3 pages that begin at an odd page, 4 pages.
    for hole in [(100, 106), (200, 203), (301, 304), (400, 404)] {
        index.free(pages(hole.0, hole.1)).unwrap();
    }
    let ask =
        |size: u64, align: u64| Request::pages(size).unwrap().aligned(Align::new(align * 4096).unwrap());
    let at = |request: Request| index.best_fit(&request).map(Va::page_floor).ok();
    let by_size = |size| index.holes_from(Pages::new(size)).map(|hole| hole.start().page_floor());
    assert!(by_size(0).eq([200, 301, 400, 100, 900]));
    assert!(by_size(4).eq([400, 100, 900]));
    assert!(by_size(101).next().is_none() && by_size(u64::MAX).next().is_none());
    assert_eq!(at(ask(3, 1)), Some(200));
    assert_eq!(at(ask(3, 1).within(pages(201, 1000))), Some(301));
    assert_eq!(at(ask(3, 4).within(pages(201, 1000))), Some(400));
    assert_eq!(at(ask(4, 1)), Some(400));
    assert_eq!(at(ask(5, 1)), Some(100));
    assert_eq!(at(ask(2, 1).within(pages(102, 202))), Some(200));
    assert_eq!(at(ask(2, 1).within(pages(102, 201))), Some(102));
    assert_eq!(at(ask(101, 1)), None);
    assert_eq!(at(ask(5, 1).within(pages(200, 900))), None);
}
