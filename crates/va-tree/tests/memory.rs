//! The memory of an index: pieces of a page alone, failures for a while, memory handed in, memory freed.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::cell::Cell;
use std::rc::Rc;
use va_base::{Align, AllocError, NoSlabs, Platform, Record, Request, VaRange};
use va_sim::op::Rng;
use va_tree::btree::BTree;
use va_tree::rb::{Exact, Linux};
use va_tree::{BTreeIndex, BTreeIndex32, FreeIndex, RbIndex, Supplied};

/// Has pieces of at most `limit` bytes, fails every `nth` request, and counts the bytes that are out.
#[derive(Clone)]
struct Buddy(Rc<State>);

struct State {
    limit: Cell<usize>,
    nth: Cell<u64>,
    asked: Cell<u64>,
    out: Cell<usize>,
}

impl Buddy {
    fn new(limit: usize) -> Self {
        let state =
            State { limit: Cell::new(limit), nth: Cell::new(0), asked: Cell::new(0), out: Cell::new(0) };
        Self(Rc::new(state))
    }
}

impl Platform for Buddy {
    fn alloc_meta<T: Record>(&self, min: usize) -> Option<&'static mut [T]> {
        let State { limit, nth, asked, out } = &*self.0;
        asked.set(asked.get() + 1);
        let bytes = min * size_of::<T>();
        if bytes > limit.get() || (nth.get() > 0 && asked.get().is_multiple_of(nth.get())) {
            return None;
        }
        out.set(out.get() + bytes);
        Some(vec![T::EMPTY; min].leak())
    }

    fn free_meta<T: Record>(&self, slab: &'static mut [T]) {
        self.0.out.set(self.0.out.get() - size_of_val(slab));
    }
}

const PAGE: usize = 4096;

fn all() -> VaRange {
    VaRange::from_pages(16, 1 << 31).unwrap()
}

fn pages(first: u64, count: u64) -> VaRange {
    VaRange::from_pages(first, first + count).unwrap()
}

/// Runs `$check` on an index of each kind.
macro_rules! each {
    ($platform:expr, $check:ident $(, $more:expr)*) => {
        $check("btree", || BTreeIndex::new(all(), all(), $platform).unwrap() $(, $more)*);
        $check("btree32", || BTreeIndex32::new(all(), all(), $platform).unwrap() $(, $more)*);
        $check("rb-linux", || RbIndex::<Linux, _>::new(all(), all(), $platform).unwrap() $(, $more)*);
        $check("rb-exact", || RbIndex::<Exact, _>::new(all(), all(), $platform).unwrap() $(, $more)*);
    };
}

/// The areas of a test: fewer where each operation walks the whole index.
fn some_of(areas: u64) -> u64 {
    if va_tree::WALKS_INVARIANTS { areas / 100 } else { areas }
}

#[test]
fn a_million_areas_need_no_piece_above_a_page_and_the_memory_comes_back() {
    fn check<I: Supplied>(name: &str, fresh: impl Fn() -> I, heap: &Buddy) {
        let mut index = fresh();
        let one = Request::pages(1).unwrap();
        let areas = some_of(1_000_000);
        for n in 0..areas {
            assert!(index.alloc(&one).is_ok(), "{name}: area {n}");
        }
        let full = index.memory().allocated_bytes;
        // As many holes as there can be: all that was reserved is used.
        for parity in [0, 1] {
            (0..areas / 2).for_each(|n| index.free(pages(16 + 2 * n + parity, 1)).unwrap());
            index.validate().unwrap();
        }
        while index.shrink(10_000) > 0 || index.memory().allocated_bytes > 8 * PAGE {}
        index.validate().unwrap();
        assert!(full as u64 > 8 * areas && heap.0.out.get() <= 4 * PAGE, "{name}: {}", heap.0.out.get());
        drop(index);
        assert_eq!(heap.0.out.get(), 0, "{name}");
    }
    let heap = Buddy::new(PAGE);
    each!(heap.clone(), check, &heap);
}

#[test]
fn an_index_lives_on_what_is_handed_in() {
    fn check<I: Supplied>(name: &str, fresh: impl Fn() -> I) {
        let heap = Buddy::new(PAGE);
        let mut index = fresh();
        for n in 0..some_of(100_000) {
            index.supply(1, &heap).unwrap();
            let align = Align::new(4096 << (n % 4)).unwrap();
            let got = index.alloc(&Request::pages(1 + n % 3).unwrap().aligned(align));
            assert!(got.is_ok(), "{name}: area {n}: {got:?}");
        }
        index.validate().unwrap();
        assert_eq!(index.wanted(1), None, "{name}");
        let most = index.wanted(u64::MAX).or(index.wanted(1 << 53));
        assert_eq!(most, None, "{name}: no memory could help");
        // What came from another platform is not the index's to free.
        std::mem::forget(index);
    }
    each!(NoSlabs, check);
}

#[test]
fn every_nth_piece_may_fail_and_the_next_request_has_it() {
    fn check<I: Supplied>(name: &str, fresh: impl Fn() -> I, heap: &Buddy) {
        let steps = if va_tree::WALKS_INVARIANTS { 13 } else { 1 };
        for nth in (1..40).step_by(steps) {
            heap.0.nth.set(nth);
            let (mut index, mut failed) = (fresh(), 0);
            for n in 0..3000 {
                let before = (index.live(), index.hole_count(), index.free_pages());
                if let Err(error) = index.take(pages(16 + 2 * n, 1)) {
                    assert!(matches!(error, AllocError::NoMeta { .. }), "{name}: {error}");
                    assert_eq!((index.live(), index.hole_count(), index.free_pages()), before);
                    index.validate().unwrap();
                    heap.0.nth.set(0);
                    index.take(pages(16 + 2 * n, 1)).unwrap();
                    heap.0.nth.set(nth);
                    failed += 1;
                }
            }
            index.validate().unwrap();
            assert!(nth > 20 || failed > 0, "{name}: every {nth}th");
            heap.0.nth.set(0);
        }
    }
    let heap = Buddy::new(PAGE);
    each!(heap.clone(), check, &heap);
}

/// Operations of one run: few where each walks the whole index, more in release builds, ten million in `cargo xtask
/// soak`.
fn operations() -> u64 {
    match (std::env::var_os("VMALLOC_SOAK_SEEDS"), cfg!(debug_assertions)) {
        (Some(_), _) => 10_000_000,
        (None, true) => 60_000,
        (None, false) => 2_000_000,
    }
}

#[test]
fn memory_fails_for_a_while_and_no_answer_differs() {
    fn check<I: Supplied>(name: &str, fresh: impl Fn() -> I, heap: &Buddy, calm: impl Fn() -> I) {
        let (mut index, mut model) = (fresh(), calm());
        let (mut rng, mut out, mut failed) = (Rng::new(11), Vec::new(), 0u64);
        let total = operations();
        let calm_until = |n: u64| n % 20_000 < 8_000;
        for n in 0..total {
            // Pieces of a page, larger ones, every fifth, none.
            heap.0.nth.set(if calm_until(n) { 0 } else { 5 });
            heap.0.limit.set(match n / 4000 % 5 {
                0 | 1 => PAGE,
                2 => 1 << 20,
                3 => 8 * PAGE,
                _ => {
                    if calm_until(n) {
                        PAGE
                    } else {
                        0
                    }
                }
            });
            let draw = rng.next_u64();
            // It grows and shrinks by turns.
            let grow = if n / 15_000 % 2 == 0 { 5 } else { 2 };
            if draw % 7 < grow || out.is_empty() {
                let align = if draw & 256 == 0 {
                    Align::PAGE
                } else {
                    Align::new(PAGE as u64 * (1 << ((draw >> 9) % 6))).unwrap()
                };
                let request = Request::pages(1 + (draw >> 20) % 9).unwrap().aligned(align);
                match index.alloc(&request) {
                    Err(AllocError::NoMeta { .. }) => failed += 1,
                    answer => {
                        assert_eq!(answer, model.alloc(&request), "{name}: operation {n}");
                        out.extend(
                            answer.map(|at| {
                                VaRange::from_size(at, request.size().get() * PAGE as u64).unwrap()
                            }),
                        );
                    }
                }
            } else {
                let range = out.swap_remove((draw >> 20) as usize % out.len());
                assert_eq!((index.free(range), model.free(range)), (Ok(()), Ok(())), "{name}: {n}");
            }
            if draw >> 60 == 0 {
                index.shrink(draw as usize % 50);
            }
            if n % (total / 40) == 0 {
                index.validate().unwrap();
                assert_eq!(
                    (index.live(), index.hole_count()),
                    (model.live(), model.hole_count()),
                    "{name}: {n}"
                );
            }
        }
        assert!(failed > 0, "{name}: nothing failed");
        heap.0.nth.set(0);
        heap.0.limit.set(PAGE);
        out.into_iter().for_each(|range| index.free(range).unwrap());
        while index.shrink(1000) > 0 || index.memory().allocated_bytes > 8 * PAGE {}
        index.validate().unwrap();
        assert_eq!(index.holes().collect::<Vec<_>>(), [index.extent()], "{name}");
    }
    let heap = Buddy::new(PAGE);
    let rich = || Buddy::new(usize::MAX);
    check(
        "btree",
        || BTreeIndex::new(all(), all(), heap.clone()).unwrap(),
        &heap,
        || BTreeIndex::new(all(), all(), rich()).unwrap(),
    );
    check(
        "btree32",
        || BTreeIndex32::new(all(), all(), heap.clone()).unwrap(),
        &heap,
        || BTreeIndex32::new(all(), all(), rich()).unwrap(),
    );
    check(
        "rb-linux",
        || RbIndex::<Linux, _>::new(all(), all(), heap.clone()).unwrap(),
        &heap,
        || RbIndex::<Linux, _>::new(all(), all(), rich()).unwrap(),
    );
    check(
        "rb-exact",
        || RbIndex::<Exact, _>::new(all(), all(), heap.clone()).unwrap(),
        &heap,
        || RbIndex::<Exact, _>::new(all(), all(), rich()).unwrap(),
    );
}

#[test]
fn a_shortage_does_not_poison_rows() {
    let heap = Buddy::new(PAGE);
    let mut index = BTreeIndex::new(all(), all(), heap.clone()).unwrap();
    (0..20_000).for_each(|n| assert!(index.take(pages(16 + 2 * n, 1)).is_ok()));
    // Odd pages are free: one at an even page is looked for in vain, up to the end of them all.
    let aligned = Request::pages(1).unwrap().aligned(Align::new(2 * PAGE as u64).unwrap());
    heap.0.limit.set(0);
    let first = index.would_fit(&aligned).unwrap();
    assert_eq!(index.alloc(&aligned), Ok(first));
    assert!(!index.has_rows());
    // The rows are wanted as soon as there is memory, and can be handed in.
    heap.0.limit.set(PAGE);
    assert!(index.wanted(1).is_some());
    let vain = Request::pages(1).unwrap().aligned(Align::new(8 * PAGE as u64).unwrap());
    let _ = index.alloc(&vain);
    index.validate().unwrap();
    assert!(index.has_rows());
}

#[test]
fn a_shrink_needs_no_memory_where_the_inline_records_are_enough() {
    let heap = Buddy::new(usize::MAX);
    let mut index = RbIndex::<Linux, _>::new(all(), all(), heap.clone()).unwrap();
    (0..200).for_each(|n| assert!(index.take(pages(16 + 2 * n, 1)).is_ok()));
    (0..200).for_each(|n| index.free(pages(16 + 2 * n, 1)).unwrap());
    heap.0.limit.set(0);
    while index.shrink(1000) > 0 {}
    assert_eq!(heap.0.out.get(), 0);
}

#[test]
fn a_piece_of_another_index_is_not_donated_if_it_is_too_short() {
    let mut big = BTree::<u64, 32, _>::new(all(), all(), NoSlabs).unwrap();
    let wanted = (0..)
        .find_map(|n| {
            let wanted = big.wanted(1);
            if wanted.is_none() {
                big.take(pages(16 + 2 * n, 1)).unwrap();
            }
            wanted
        })
        .unwrap();
    let mut small = BTree::<u64, 8, _>::new(all(), all(), NoSlabs).unwrap();
    let supply = BTree::<u64, 8, NoSlabs>::alloc_supply(wanted, &Buddy::new(PAGE)).unwrap();
    assert!(small.donate(supply).is_err());
}

#[test]
fn rows_that_cannot_be_kept_are_not_wanted() {
    let mut index = BTreeIndex::new(all(), all(), NoSlabs).unwrap();
    (0..14).for_each(|n| assert!(index.take(pages(16 + 2 * n, 1)).is_ok()));
    assert_eq!(index.wanted(1), None);
    assert!(index.add_all_rows().is_err());
    assert_eq!(index.wanted(1), None);
}
