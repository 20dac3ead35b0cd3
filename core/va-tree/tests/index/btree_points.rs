//! Faults of prototypes of an END-keyed B+tree with gap summaries, one test each, with fanout 8 so that few holes
//! make a deep tree. Every step is compared with the linear model, and every invariant is walked.

use va_base::{Align, AllocError, Request, Va, VaRange};
use va_sim::effort::stride;
use va_sim::model::ModelIndex;
use va_sim::platform::HeapPlatform;
use va_tree::FreeIndex;
use va_tree::btree::BTree;

/// Pages from one hole's start to the next.
const STEP: u64 = 16;

/// A tree and its model, which do everything together.
struct Pair {
    tree: BTree<u64, 8, HeapPlatform>,
    model: ModelIndex,
}

impl Pair {
    /// `holes` holes `[16 n + 4, 16 n + 10)`, nothing else free below the top.
    fn new(holes: u64) -> Self {
        let space = VaRange::from_pages(0, holes * STEP + 1000).unwrap();
        let tree = BTree::new(space, space, HeapPlatform::default()).unwrap();
        let model = ModelIndex::new(space, space).unwrap();
        let mut pair = Self { tree, model };
        let mut end = 0;
        for n in 0..holes {
            pair.take(end, n * STEP + 4);
            end = n * STEP + 10;
        }
        pair.take(end, holes * STEP);
        // Areas here are freed in fragments.
        pair.tree.reserve_splits(holes).unwrap();
        pair.model.reserve_splits(holes).unwrap();
        pair
    }

    fn check(&self) {
        self.tree.validate().unwrap();
        assert!(self.tree.holes().eq(self.model.holes()));
        assert_eq!(self.tree.largest_hole(), self.model.largest_hole());
    }

    fn take(&mut self, from: u64, to: u64) {
        let range = VaRange::from_pages(from, to).unwrap();
        let fit = self.tree.take(range);
        assert!(fit.is_ok(), "[{from}, {to}): {fit:?}");
        assert_eq!(fit, self.model.take(range));
        self.check();
    }

    fn back(&mut self, from: u64, to: u64) {
        let range = VaRange::from_pages(from, to).unwrap();
        assert_eq!(self.tree.free(range), Ok(()), "[{from}, {to})");
        assert_eq!(self.model.free(range), Ok(()));
        self.check();
    }

    fn alloc(&mut self, pages: u64, align_pages: u64) -> Result<u64, AllocError> {
        let request = Request::pages(pages).unwrap().aligned(Align::new(align_pages << 12).unwrap());
        let at = self.tree.alloc(&request);
        assert_eq!(at, self.model.alloc(&request));
        self.check();
        at.map(va_base::Va::page_floor)
    }
}

/// Enough for three levels at fanout 8.
const HOLES: u64 = 150;

#[test]
fn point_1_a_cut_of_a_leafs_first_hole_makes_a_smaller_end() {
    // Of every hole, so of the first of every leaf: its right edge, or its middle.
    for n in (0..HOLES).step_by(stride()) {
        let mut pair = Pair::new(HOLES);
        pair.take(n * STEP + 6, n * STEP + 10);
        // The range freed next to it is searched for on the right side of the separator.
        pair.back(n * STEP + 6, n * STEP + 8);
        let mut pair = Pair::new(HOLES);
        pair.take(n * STEP + 6, n * STEP + 8);
        pair.back(n * STEP + 6, n * STEP + 8);
    }
}

#[test]
fn point_2_an_end_grows_past_its_separator() {
    // Of every hole, so of the last of every leaf, and of subtrees of every height; up to the next hole and then into
    // it.
    for n in (0..HOLES - 1).step_by(stride()) {
        let mut pair = Pair::new(HOLES);
        pair.back(n * STEP + 10, n * STEP + 19);
        pair.back(n * STEP + 19, n * STEP + 20);
    }
}

#[test]
fn point_2_a_start_falls_below_a_separator_that_was_raised() {
    // An end grows up to the next hole and shrinks again, which leaves its separator high; then the next hole grows
    // down.
    for n in (0..HOLES - 1).step_by(stride()) {
        let mut pair = Pair::new(HOLES);
        pair.back(n * STEP + 10, n * STEP + 19);
        pair.take(n * STEP + 10, n * STEP + 19);
        pair.back(n * STEP + 12, n * STEP + 20);
        // The same with a new hole instead of one that grows.
        let mut pair = Pair::new(HOLES);
        pair.back(n * STEP + 10, n * STEP + 19);
        pair.take(n * STEP + 10, n * STEP + 19);
        pair.take((n + 1) * STEP + 4, (n + 1) * STEP + 10);
        pair.back(n * STEP + 12, n * STEP + 14);
        pair.back(n * STEP + 16, n * STEP + 18);
    }
}

#[test]
fn point_3_the_last_child_goes() {
    // From the top down: each leaf, and each inner node, loses its last child in turn.
    let mut pair = Pair::new(HOLES);
    for n in (0..HOLES).rev() {
        pair.take(n * STEP + 4, n * STEP + 10);
        // Routing past the remaining children must not run off the node.
        pair.back(n * STEP + 6, n * STEP + 7);
        pair.take(n * STEP + 6, n * STEP + 7);
    }
    assert_eq!(pair.tree.hole_count(), 1);
    // And from the bottom up, and from the middle outward.
    let mut pair = Pair::new(HOLES);
    (0..HOLES).for_each(|n| pair.take(n * STEP + 4, n * STEP + 10));
    let mut pair = Pair::new(HOLES);
    let half = HOLES / 2;
    (0..half).flat_map(|n| [half + n, half - 1 - n]).for_each(|n| pair.take(n * STEP + 4, n * STEP + 10));
}

#[test]
fn point_4_a_hole_that_comes_and_goes_does_not_thrash() {
    // A split leaves halves and a join leaves at most 3/4: either is far from the next.
    for n in (0..HOLES).step_by(stride()) {
        let mut pair = Pair::new(HOLES);
        let (from, to) = (n * STEP + 12, n * STEP + 13);
        pair.back(from, to);
        let used = pair.tree.memory().used_bytes;
        for _ in 0..4 {
            pair.take(from, to);
            assert_eq!(pair.tree.memory().used_bytes, used, "hole {n}");
            pair.back(from, to);
        }
    }
}

#[test]
fn point_4_the_fill_stays_above_three_eighths() {
    let mut pair = Pair::new(HOLES);
    // Every third hole remains.
    for n in (0..HOLES).filter(|n| n % 3 != 0) {
        pair.take(n * STEP + 4, n * STEP + 10);
    }
    // 50 holes in leaves of at least three: 17 leaves of 128 bytes, their inner nodes under 192 bytes and an id each.
    let bytes = pair.tree.memory().used_bytes;
    assert!(bytes <= 17 * 128 + 8 * 256, "{bytes} bytes for 50 holes");
}

#[test]
fn point_5_nothing_is_remembered_from_the_operation_before() {
    // A finger would stay where the last operation was; far ends in turn, with splits and joins between.
    let mut pair = Pair::new(HOLES);
    for n in 0..HOLES / 2 {
        let far = HOLES - 1 - n;
        pair.take(n * STEP + 4, n * STEP + 10);
        pair.back(far * STEP + 12, far * STEP + 13);
        assert_eq!(pair.alloc(6, 1), Ok((n + 1) * STEP + 4));
        pair.back((n + 1) * STEP + 4, (n + 1) * STEP + 10);
    }
}

#[test]
fn point_6_a_neighbour_may_be_in_the_next_leaf() {
    // The gap between any two holes is freed at once: both merge, wherever a leaf ends.
    for n in (0..HOLES - 1).step_by(stride()) {
        let mut pair = Pair::new(HOLES);
        pair.back(n * STEP + 10, n * STEP + 20);
        assert_eq!(pair.tree.hole_count(), HOLES);
        // And one that only touches the right one.
        let mut pair = Pair::new(HOLES);
        pair.back(n * STEP + 12, n * STEP + 20);
    }
    // All of them, one after the other, until one hole is left.
    let mut pair = Pair::new(HOLES);
    for n in (0..HOLES - 1).rev() {
        pair.back(n * STEP + 10, n * STEP + 20);
    }
    pair.back(0, 4);
    pair.back((HOLES - 1) * STEP + 10, HOLES * STEP);
    assert_eq!(pair.tree.hole_count(), 1);
}

#[test]
fn point_7_a_row_falls_when_its_hole_shrinks() {
    // Page 8 of every hole is the one that is aligned to 8: two pages fit there. Rows that stayed where they were would
    // promise a fit in holes that have lost it, and the descent would end in nothing.
    let mut pair = Pair::new(HOLES);
    assert!(!pair.tree.has_rows());
    for n in 0..HOLES {
        assert_eq!(pair.alloc(2, 8), Ok(n * STEP + 8));
    }
    assert_eq!(pair.alloc(2, 8), Ok(HOLES * STEP));
    // Every other one is freed, and is found again, in order.
    for n in (0..HOLES).step_by(2) {
        pair.back(n * STEP + 8, n * STEP + 10);
    }
    for n in (0..HOLES).step_by(2) {
        assert_eq!(pair.alloc(1, 8), Ok(n * STEP + 8));
    }
}

/// Returns a tree of 1,000 holes [16 n + 1, 16 n + 9), and a request of 8 pages aligned to 8: none fits, which only rows
/// show.
fn misleading() -> (BTree<u64, 8, HeapPlatform>, Request) {
    let space = VaRange::from_pages(0, 1 << 16).unwrap();
    let mut tree = BTree::<u64, 8, _>::new(space, space, HeapPlatform::default()).unwrap();
    for n in 0..1000 {
        tree.take(VaRange::from_pages(n * STEP, n * STEP + 1).unwrap()).unwrap();
        tree.take(VaRange::from_pages(n * STEP + 9, n * STEP + 16).unwrap()).unwrap();
    }
    assert!(!tree.has_rows());
    (tree, Request::pages(8).unwrap().aligned(Align::new(8 << 12).unwrap()))
}

#[test]
fn bt4_rows_come_when_an_aligned_search_is_long() {
    let (mut tree, request) = misleading();
    // A query changes nothing; an allocation builds them.
    let lowest = tree.would_fit(&request).unwrap();
    assert!(!tree.has_rows());
    assert_eq!(tree.alloc(&request), Ok(lowest));
    assert!(tree.has_rows());
    assert_eq!(lowest.page_floor(), 16_000);
    tree.validate().unwrap();
}

#[test]
fn bt4_no_row_comes_where_a_search_ends_with_its_window() {
    let (mut tree, request) = misleading();
    for from in [0, 8000] {
        let narrow = request.within(VaRange::from_pages(from, from + 20 * STEP).unwrap());
        assert!(matches!(tree.alloc(&narrow), Err(AllocError::NoSpace { .. })) && !tree.has_rows(), "{from}");
    }
}

#[test]
fn bt4_the_highest_aligned_fit_builds_a_row_and_equals_the_model() {
    let mut pair = Pair::new(HOLES);
    // Holes [16 n + 4, 16 n + 10): two pages aligned to 4 fit at 16 n + 4 and 16 n + 8, four at 16 n + 4 alone.
    let window = VaRange::from_pages(3, HOLES * STEP - 7).unwrap();
    let of = |pages, align: u64| {
        Request::pages(pages).unwrap().aligned(Align::new(align << 12).unwrap()).within(window)
    };
    for (request, lowest) in [(of(2, 4), 4), (of(6, 1), 4), (of(4, 4), 4), (of(1, 8), 8)] {
        let mut last = u64::MAX;
        loop {
            assert_eq!(pair.tree.highest_fit(&request), pair.model.highest_fit(&request));
            let at = pair.tree.alloc_highest(&request);
            assert_eq!(at, pair.model.alloc_highest(&request));
            let Ok(at) = at else { break };
            assert!(at.page_floor() < last, "downward");
            last = at.page_floor();
            pair.check();
        }
        assert_eq!(last, lowest);
        pair = Pair::new(HOLES);
    }
    // A short search builds no row. A long one does, even if nothing fits: the next one needs only the row to fail.
    assert!(pair.tree.alloc_highest(&of(4, 4)).is_ok() && !pair.tree.has_rows());
    assert!(pair.tree.alloc_highest(&of(4, 8)).is_err() && pair.tree.has_rows());
    // With one inner node no search is long.
    let mut small = Pair::new(30);
    let window = VaRange::from_pages(0, 30 * STEP).unwrap();
    assert!(small.tree.alloc_highest(&of(4, 8).within(window)).is_err() && !small.tree.has_rows());
}

#[test]
fn bt4_rows_go_when_one_inner_node_is_left() {
    let mut pair = Pair::new(HOLES);
    // Nothing of 4 pages aligned to 8 in any hole: every leaf is visited, or a row built.
    let end = HOLES * STEP;
    assert_eq!(pair.alloc(4, 8), Ok(end));
    assert!(pair.tree.has_rows());
    let with_rows = pair.tree.memory();
    assert!(with_rows.row_bytes > 0);
    // At fanout 8 one inner node has at most 64 holes, and at least nine in the worst case.
    let mut left = HOLES;
    while pair.tree.has_rows() {
        left -= 1;
        assert!(left >= 9, "rows are kept for {left} holes");
        pair.take(left * STEP + 4, left * STEP + 10);
    }
    assert_eq!(pair.tree.memory().row_bytes, 0);
    // Rows are built again when they are needed again.
    for n in left..HOLES {
        pair.back(n * STEP + 4, n * STEP + 10);
    }
    assert!(!pair.tree.has_rows());
    assert_eq!(pair.alloc(4, 8), Ok(end + 8));
    assert!(pair.tree.has_rows());
}

#[test]
fn bt4_permanent_rows_remain() {
    let space = VaRange::from_pages(0, 1 << 16).unwrap();
    let mut tree =
        BTree::<u64, 8, _>::new(space, space, HeapPlatform::default()).unwrap().with_rows().unwrap();
    let range = |n| VaRange::from_pages(n * STEP, n * STEP + 1).unwrap();
    (1..200).for_each(|n| assert!(tree.take(range(n)).is_ok()));
    (1..200).for_each(|n| assert!(tree.free(range(n)).is_ok()));
    assert!(tree.has_rows());
    tree.validate().unwrap();
}

#[test]
fn bt6_a_window_may_begin_at_the_last_page_of_the_last_hole() {
    let all = VaRange::from_pages(16, 1 << 20).unwrap();
    let mut tree = BTree::<u64, 8, _>::new(all, all, HeapPlatform::default()).unwrap();
    // Holes of 2 pages after each 8; none touches the end.
    tree.take(all).unwrap();
    tree.reserve_splits(1000).unwrap();
    for nth in 0..500u64 {
        tree.free(VaRange::from_pages(24 + 10 * nth, 26 + 10 * nth).unwrap()).unwrap();
    }
    let last = 25 + 10 * 499;
    for (page, low) in [(last, last), (last - 1, last - 1), (last - 1, last - 9), (35, 35)] {
        let request = Request::pages(1).unwrap().within(VaRange::from_pages(low, 1 << 20).unwrap());
        assert_eq!(tree.would_fit(&request), Ok(Va::from_page(page)), "from {low}");
    }
    let request = Request::pages(1).unwrap().within(VaRange::from_pages(last + 1, 1 << 20).unwrap());
    assert!(tree.would_fit(&request).is_err());
}
