//! Worked examples: the tree of five holes that the slides of the rework go through, and where Linux's search fails.

use va_base::{Align, AllocError, Pages, Request, Va, VaRange};
use va_sim::platform::HeapPlatform;
use va_sim::strip::leave;
use va_tree::btree::BTree;
use va_tree::rb::{Exact, Linux, Search};
use va_tree::{BTreeIndex, BTreeIndex32, Fit, FreeIndex, RbIndex};

/// N1 to N5, in the order that gives the tree of the slides: N4 above N2 and N5, N2 above N1 and N3.
const SLIDES: [(u64, u64); 5] = [(23, 26), (6, 9), (27, 38), (2, 4), (10, 22)];

fn extent() -> VaRange {
    VaRange::from_pages(1, 40).unwrap()
}

fn rb<S: Search>(holes: &[(u64, u64)]) -> RbIndex<S, HeapPlatform> {
    let mut index = RbIndex::new(extent(), extent(), HeapPlatform::default()).unwrap();
    leave(&mut index, holes);
    index
}

fn holes(index: &impl FreeIndex) -> Vec<(u64, u64)> {
    index.holes().map(VaRange::whole_pages).collect()
}

/// `(first page, depth)` of each hole.
fn shape<S: Search>(index: &RbIndex<S, HeapPlatform>) -> Vec<(u64, u32)> {
    index.shape().map(|(start, _, depth)| (start.page_floor(), depth)).collect()
}

/// Size, first page of the window, page of the result and how it is cut.
type Step = (u64, u64, Option<(u64, Fit)>);

const STEPS: [Step; 10] = [
    (1, 0, Some((2, Fit::LeftEdge))),
    (2, 0, Some((2, Fit::Full))),
    (3, 0, Some((6, Fit::Full))),
    (4, 0, Some((10, Fit::LeftEdge))),
    (12, 0, Some((10, Fit::Full))),
    (11, 11, Some((11, Fit::RightEdge))),
    (11, 12, Some((27, Fit::Full))),
    (4, 12, Some((12, Fit::NoEdge))),
    (12, 11, None),
    (13, 0, None),
];

/// Runs every step on a fresh index and checks address, fit and the remaining holes.
fn steps<I: FreeIndex>(fresh: impl Fn() -> I) {
    for (size, low, want) in STEPS {
        let mut index = fresh();
        let before = holes(&index);
        let window = VaRange::new(Va::from_page(low), extent().end()).unwrap();
        let request = Request::pages(size).unwrap().within(window);
        let got = index.alloc(&request);
        index.validate().unwrap();
        let Some((page, fit)) = want else {
            let largest = Pages::new(12);
            let no_space =
                AllocError::NoSpace { requested: Pages::new(size), align: Align::PAGE, window, largest };
            assert_eq!(got, Err(no_space), "{size} from {low}");
            assert_eq!(holes(&index), before);
            continue;
        };
        assert_eq!(got, Ok(Va::from_page(page)), "{size} from {low}");
        let by = |fit| match fit {
            Fit::Full => -1,
            Fit::LeftEdge | Fit::RightEdge => 0,
            Fit::NoEdge => 1,
        };
        assert_eq!(holes(&index).len() as i32 - before.len() as i32, by(fit), "{size} from {low}");
        // The taken pages are at the right place of the one hole that they were taken from.
        let (from, to) = before.into_iter().find(|&(from, to)| from <= page && page < to).unwrap();
        assert_eq!(
            (page == from, page + size == to),
            (matches!(fit, Fit::Full | Fit::LeftEdge), matches!(fit, Fit::Full | Fit::RightEdge))
        );
    }
}

#[test]
fn the_slides_tree_has_the_slides_shape() {
    assert_eq!(shape(&rb::<Linux>(&SLIDES)), [(2, 2), (6, 1), (10, 2), (23, 0), (27, 1)]);
}

#[test]
fn the_slides_requests_on_every_index() {
    steps(|| rb::<Linux>(&SLIDES));
    steps(|| rb::<Exact>(&SLIDES));
    let left = |mut index| {
        leave(&mut index, &SLIDES);
        index
    };
    steps(|| left(BTreeIndex::new(extent(), extent(), HeapPlatform::default()).unwrap()));
    let left = |mut index| {
        leave(&mut index, &SLIDES);
        index
    };
    steps(|| left(BTreeIndex32::new(extent(), extent(), HeapPlatform::default()).unwrap()));
}

#[test]
fn ft3_after_four_pages_the_largest_hole_is_n5() {
    let mut index = rb::<Linux>(&SLIDES);
    assert_eq!(index.largest_hole(), Pages::new(12));
    index.alloc(&Request::pages(4).unwrap()).unwrap();
    // N3 is [14, 22): N2 has 8 below it, and N4, the root, 11, which is N5's.
    assert_eq!(index.largest_hole(), Pages::new(11));
    assert_eq!(holes(&index)[2], (14, 22));
    index.validate().unwrap();
}

#[test]
fn the_middle_cut_leaves_both_sides() {
    let mut index = rb::<Linux>(&SLIDES);
    let window = VaRange::from_pages(12, 40).unwrap();
    index.alloc(&Request::pages(4).unwrap().within(window)).unwrap();
    assert_eq!(holes(&index)[2..4], [(10, 12), (16, 22)]);
}

/// Eight pages aligned to eight, with `[1, 2)` and `[8, 16)` free.
fn eight_in_eight() -> Request {
    Request::pages(8).unwrap().aligned(Align::from_log2(15).unwrap())
}

#[test]
fn linux_fails_falsely_when_the_fit_is_the_right_child() {
    // Linux requires 8 pages and 7 more and a bit of the right side; it has 8.
    let mut index = rb::<Linux>(&[(1, 2), (8, 16)]);
    assert_eq!(shape(&index), [(1, 0), (8, 1)]);
    assert!(matches!(index.alloc(&eight_in_eight()), Err(AllocError::NoSpace { .. })));
    assert_eq!(holes(&index), [(1, 2), (8, 16)]);
}

#[test]
fn linux_finds_it_when_it_is_the_root() {
    let mut index = rb::<Linux>(&[(8, 16), (1, 2)]);
    assert_eq!(shape(&index), [(1, 1), (8, 0)]);
    assert_eq!(index.alloc(&eight_in_eight()), Ok(Va::from_page(8)));
}

#[test]
fn an_exact_search_finds_it_in_both_shapes() {
    fn finds<I: FreeIndex>(fresh: impl Fn() -> I) {
        for order in [[(1, 2), (8, 16)], [(8, 16), (1, 2)]] {
            let mut index = fresh();
            leave(&mut index, &order);
            assert_eq!(index.would_fit(&eight_in_eight()), Ok(Va::from_page(8)));
            assert_eq!(index.alloc(&eight_in_eight()), Ok(Va::from_page(8)));
            assert_eq!(holes(&index), [(1, 2)]);
        }
    }
    let platform = HeapPlatform::default;
    finds(|| RbIndex::<Exact, _>::new(extent(), extent(), platform()).unwrap());
    finds(|| BTree::<u64, 8, _>::new(extent(), extent(), platform()).unwrap());
    finds(|| BTreeIndex::new(extent(), extent(), platform()).unwrap());
    finds(|| BTreeIndex::new(extent(), extent(), platform()).unwrap().with_rows().unwrap());
    finds(|| BTreeIndex32::new(extent(), extent(), platform()).unwrap());
}

#[test]
fn linux_searches_an_exact_window_with_the_bare_size() {
    // The same tree, but the window is the request: no inflated length, and so it is found.
    let mut index = rb::<Linux>(&[(1, 2), (8, 16)]);
    let exact = VaRange::from_pages(8, 16).unwrap();
    assert_eq!(index.alloc(&eight_in_eight().within(exact)), Ok(Va::from_page(8)));
    // One page more of window, and it is not.
    let mut index = rb::<Linux>(&[(1, 2), (8, 16)]);
    let wider = VaRange::from_pages(8, 17).unwrap();
    assert!(index.alloc(&eight_in_eight().within(wider)).is_err());
}

#[test]
fn linux_does_not_look_below_a_hole_that_starts_with_the_window() {
    // The root is too small, and would not be left again to its right side after a look at its left side.
    let mut index = rb::<Linux>(&[(20, 21), (2, 10), (30, 38)]);
    assert_eq!(shape(&index), [(2, 1), (20, 0), (30, 1)]);
    let window = VaRange::from_pages(20, 40).unwrap();
    assert_eq!(index.alloc(&Request::pages(8).unwrap().within(window)), Ok(Va::from_page(30)));
}

#[test]
fn windows_at_both_ends_of_the_whole_space() {
    fn ends<I: FreeIndex>(mut index: I) {
        let last = (1 << 52) - 1;
        assert_eq!(index.extent().whole_pages(), (0, last));
        let window = |first, end| VaRange::new(Va::new(first), Va::new(end)).unwrap();
        let one = Request::pages(1).unwrap();
        assert_eq!(index.alloc(&one.within(window(0, 4096))), Ok(Va::ZERO));
        assert!(index.alloc(&one.within(window(0, 4096))).is_err());
        assert!(index.alloc(&one.within(window(1, 8191))).is_err());
        assert_eq!(index.alloc(&one.within(window(1, 8192))), Ok(Va::from_page(1)));
        let top = window(u64::MAX - 8191, u64::MAX);
        assert_eq!(index.alloc(&one.within(top)), Ok(Va::from_page(last - 1)));
        assert!(index.alloc(&one.within(top)).is_err());
        let huge = Request::pages(1).unwrap().aligned(Align::from_log2(63).unwrap());
        assert_eq!(index.alloc(&huge), Ok(Va::new(1 << 63)));
        assert!(index.alloc(&huge).is_err());
        let rest = last - 4;
        assert_eq!((index.free_pages().get(), index.live(), index.hole_count()), (rest, 4, 2));
        index.validate().unwrap();
    }
    let platform = HeapPlatform::default;
    ends(RbIndex::<Exact, _>::new(VaRange::ALL, VaRange::ALL, platform()).unwrap());
    ends(BTreeIndex::new(VaRange::ALL, VaRange::ALL, platform()).unwrap());
    ends(BTree::<u64, 8, _>::new(VaRange::ALL, VaRange::ALL, platform()).unwrap().with_rows().unwrap());
}
