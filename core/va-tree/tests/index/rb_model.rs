//! The red-black tree with the exact search and its reference models give the same results. With Linux's search it
//! gives the same up to page alignment, and never a result that does not fit.

use va_base::{Align, PAGE_SIZE, Request, Va, VaRange};
use va_certify::Certified;
use va_sim::effort::some;
use va_sim::model::ModelIndex;
use va_sim::op::{Op, Space};
use va_sim::platform::HeapPlatform;
use va_sim::run::{Driver, Outcome, Walk, assert_same};
use va_sim::soak::seeds;
use va_tree::rb::{Exact, Linux, Search};
use va_tree::{BTreeIndex, FreeIndex, RbIndex};

fn pages(first: u64, end: u64) -> Space {
    Space::whole(VaRange::from_pages(first, end).unwrap())
}

fn bytes(start: u64, end: u64) -> VaRange {
    VaRange::new(Va::new(start), Va::new(end)).unwrap()
}

fn model(space: &Space) -> ModelIndex {
    ModelIndex::new(space.extent, space.default_window).unwrap()
}

fn tree<S: Search>(space: &Space) -> RbIndex<S, HeapPlatform> {
    RbIndex::new(space.extent, space.default_window, HeapPlatform::default()).unwrap()
}

/// The exact search, whose answers have certificates.
fn certified(space: &Space) -> Certified<RbIndex<Exact, HeapPlatform>> {
    Certified::new(tree(space))
}

#[test]
fn in_tiny_spaces() {
    for size in [1, 2, 16, 40, 300] {
        for seed in 0..seeds(2) {
            let space = pages(size % 5, size % 5 + size);
            let ops = Op::from_seed(&space, seed).take(some(3000));
            assert_same(&space, certified(&space), model(&space), ops, Walk::Always);
        }
    }
}

#[test]
fn in_large_spaces() {
    let linux = Space {
        extent: bytes(1, u64::MAX),
        default_window: bytes(0xffff_c900_0000_0000, 0xffff_e8ff_ffff_ffff),
    };
    for space in
        [pages(5, 5000), Space::whole(VaRange::ALL), linux, Space::whole(bytes(0x1234, 0x9_ffff_ffff))]
    {
        for seed in 0..seeds(2) {
            let ops = Op::from_seed(&space, seed).take(some(6000));
            assert_same(&space, certified(&space), model(&space), ops, Walk::Every(50));
        }
    }
}

#[test]
fn the_two_exact_indexes_agree_where_the_model_is_too_slow() {
    for seed in 0..seeds(2) {
        let space = pages(0, 1 << 20);
        let btree = BTreeIndex::new(space.extent, space.extent, HeapPlatform::default()).unwrap();
        let ops = Op::from_seed(&space, seed).take(some(25_000));
        assert_same(&space, certified(&space), Certified::new(btree), ops, Walk::Every(5_000));
    }
}

/// Up to page alignment Linux's search is the lowest fit; above, all that it finds fits, and misses are counted. Either
/// way the exact index then takes the same areas, so that the run continues.
#[test]
fn linuxs_search_is_the_lowest_fit_up_to_page_alignment() {
    let (mut higher, mut missed, mut same) = (0, 0, 0);
    for seed in 0..seeds(2) {
        let space = pages(3, 900);
        let (mut linux, mut exact) = (Driver::new(tree::<Linux>(&space)), Driver::new(model(&space)));
        for op in Op::from_seed(&space, seed).take(4000) {
            let Op::Alloc(ask) = &op else {
                if !matches!(op, Op::WouldFit(_)) {
                    assert_eq!(linux.run(&op), exact.run(&op));
                }
                continue;
            };
            let (got, want) = (linux.run(&op), exact.run(&op));
            if got == want {
                same += 1;
                continue;
            }
            assert!(ask.align > PAGE_SIZE, "{op}: {got:?}, lowest {want:?}");
            let Outcome::At(Ok(lowest)) = want else { panic!("{op}: {got:?} where nothing fits") };
            let lowest_range = VaRange::from_size(lowest, ask.size).unwrap();
            exact.index.free(lowest_range).unwrap();
            exact.out = linux.out.clone();
            if let Outcome::At(Ok(at)) = got {
                assert!(at > lowest && at.get().is_multiple_of(ask.align));
                exact.index.take(VaRange::from_size(at, ask.size).unwrap()).unwrap();
                higher += 1;
            } else {
                missed += 1;
            }
            linux.index.validate().unwrap();
        }
    }
    assert!(same > 1000 && higher > 10 && missed > 0, "{same} same, {higher} higher, {missed} missed");
}

#[test]
fn linuxs_search_enters_a_side_whose_hole_has_the_size_and_the_alignment() {
    let mut index = tree::<Linux>(&pages(16, 99));
    // Three pages on the left of the root.
    index.take(VaRange::from_pages(19, 20).unwrap()).unwrap();
    let request = Request::pages(1).unwrap().aligned(Align::new(2 * PAGE_SIZE).unwrap());
    assert_eq!(index.alloc(&request), Ok(Va::from_page(16)));
    // Two are less than the search wants of a side, whatever they begin with.
    assert_eq!(index.alloc(&request), Ok(Va::from_page(20)));
}
