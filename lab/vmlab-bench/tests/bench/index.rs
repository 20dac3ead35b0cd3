//! Indexes of holes, and those for comparison only.

use va_base::{Align, PAGE_SHIFT, Request, Va, VaRange};
use va_sim::effort::is_full;
use va_sim::model::ModelIndex;
use va_sim::op::Rng;
use va_sim::platform::HeapPlatform;
use va_tree::{BTreeIndex, FreeIndex};
use vmlab_bench::harness::Summary;
use vmlab_bench::index::contenders::all;
use vmlab_bench::index::print::memory;
use vmlab_bench::index::workloads::ALL;
use vmlab_bench::indexes::Holes;
use vmlab_bench::indexes::first_fit::FirstFit;
use vmlab_bench::indexes::splay::Splay;
use vmlab_bench::indexes::treap::{Cached, Eager, Lazy, Treap};
use vmlab_bench::stream::workload::{FREE, Op};
use vmlab_bench::stream::{Cell, measure};

const ROUNDS: usize = 2;

#[test]
fn exact_indexes_agree_on_every_quick_workload() {
    // A program that is not optimised takes a minute for all.
    for spec in ALL.iter().filter(|spec| spec.quick && (is_full() || spec.n <= 1000)) {
        let workload = spec.make(ROUNDS);
        // The others need not return the same addresses, and some take seconds where these take milliseconds.
        let exact: Vec<_> = all().into_iter().filter(|c| c.exact(&workload)).collect();
        assert!(exact.iter().any(|c| c.name == "btree") && exact.len() >= 8, "{}", workload.name);
        let cells = measure(&workload, &exact, ROUNDS, &mut Vec::new()).unwrap();
        // Only contenders that ran every round were compared.
        assert_eq!(cells.len(), exact.len(), "{}", workload.name);
        assert!(cells.iter().all(|cell| cell.ns.count == ROUNDS), "{}", workload.name);
        assert!(cells.iter().all(|cell| cell.ns.min.is_finite() && cell.ns.min <= cell.ns.median));
    }
}

#[test]
fn every_contender_runs_on_the_small_workloads() {
    let contenders = all();
    for spec in ALL.iter().filter(|spec| spec.n <= 100) {
        let workload = spec.make(ROUNDS);
        let cells = measure(&workload, &contenders, ROUNDS, &mut Vec::new()).unwrap();
        let able = contenders.iter().filter(|c| c.aligns || !workload.aligned).count();
        assert_eq!(cells.len(), able, "{}", workload.name);
        assert!(cells.iter().all(|cell| cell.ns.min.is_finite() && cell.ns.min <= cell.ns.median));
    }
}

#[test]
fn memory_is_shown_wherever_holes_are_many() {
    let used = va_tree::IndexMemory { used_bytes: 300, row_bytes: 120, ..Default::default() };
    let cell = |workload: &str| Cell {
        workload: workload.to_string(),
        contender: "btree",
        ns: Summary::of([1.0]).unwrap(),
        raw_min: 1.0,
        harness: 0.0,
        memory: Some((used, 10)),
        drained: None,
    };
    let table = memory(&["rand-1k", "rows-1M", "aligns-1k", "empty"].map(cell));
    assert_eq!(table.rows().len(), 3);
    assert_eq!(table.rows()[1], ["rows-1M", "btree", "10", "30.0", "12.0", "0.0"]);
    let rows = ALL.iter().filter(|spec| spec.name.starts_with("rows-"));
    assert_eq!(rows.map(|spec| spec.n).max(), Some(1_000_000));
}

#[test]
fn what_was_freed_in_the_window_is_the_only_fit_among_many_holes() {
    let spec = ALL.iter().find(|spec| spec.name == "window").unwrap();
    let workload = spec.make(2);
    let (low, high) = workload.window.unwrap();
    assert_eq!(high - low, 16_000);
    let space = VaRange::from_pages(0, workload.pages).unwrap();
    let window = VaRange::from_pages(low, high).unwrap();
    let mut index = BTreeIndex::new(space, space, HeapPlatform::default()).unwrap();
    let mut at = vec![0; workload.slots];
    let mut step = |index: &mut BTreeIndex<HeapPlatform>, op: &Op, window| {
        let (slot, size) = (op.slot as usize, u64::from(op.size));
        if op.align_log2 == FREE {
            index.free(VaRange::from_pages(at[slot], at[slot] + size).unwrap()).unwrap();
        } else {
            let request = Request::pages(size).unwrap().within(window);
            let before = std::mem::replace(&mut at[slot], index.alloc(&request).unwrap().page_floor());
            return (before, at[slot]);
        }
        (0, 0)
    };
    for op in &workload.setup {
        step(&mut index, op, space);
    }
    let holes = index.hole_count();
    let inside = |index: &BTreeIndex<HeapPlatform>, from: u64, to: u64| {
        let mut sizes = Vec::new();
        let mut at = Va::from_page(from);
        while let Some(hole) = index.hole_after(at).filter(|hole| hole.end().page_floor() <= to) {
            sizes.push(hole.end().page_floor() - hole.start().page_floor());
            at = hole.end();
        }
        sizes
    };
    for (from, to, least) in [(0, low, 1000), (low, high, 700), (high, 4 * low, 1000)] {
        let sizes = inside(&index, from, to);
        assert!(sizes.len() > least && sizes.iter().all(|&pages| pages == 1), "{from}: {}", sizes.len());
    }
    for op in workload.rounds.iter().flatten() {
        let (before, now) = step(&mut index, op, window);
        assert_eq!(before, now);
    }
    assert_eq!(index.hole_count(), holes);
}

fn agrees_with_the_model(mut index: impl Holes, seed: u64) {
    let space = VaRange::from_pages(0, 3000).unwrap();
    let mut model = ModelIndex::new(space, space).unwrap();
    let mut rng = Rng::new(seed);
    let mut out: Vec<(u64, u64)> = Vec::new();
    for _ in 0..6000 {
        if out.is_empty() || rng.below(100) < 52 {
            let (size, align) = (1 + rng.below(40), rng.below(5) as u32 * u32::from(rng.below(3) == 0));
            let low = if rng.below(4) == 0 { rng.below(3000) } else { 0 };
            let high = (low + rng.below(3001 - low)).max(low + 1).min(3000);
            let high = if rng.below(3) == 0 { high } else { 3000 };
            let window = VaRange::from_pages(low, high).unwrap();
            let align_bytes = Align::from_log2(align + PAGE_SHIFT).unwrap();
            let request = Request::pages(size).unwrap().aligned(align_bytes).within(window);
            let want = model.alloc(&request).ok().map(Va::page_floor);
            assert_eq!(index.alloc(size, align, (low, high)), want);
            out.extend(want.map(|at| (at, size)));
        } else {
            let at = rng.below(out.len() as u64) as usize;
            let (start, size) = out.swap_remove(at);
            index.free(start, size);
            model.free(VaRange::from_pages(start, start + size).unwrap()).unwrap();
        }
    }
}

#[test]
fn every_exact_index_finds_the_lowest_fit() {
    for seed in 0..4 {
        agrees_with_the_model(FirstFit::new(3000), seed);
        agrees_with_the_model(Splay::new(3000), seed);
        agrees_with_the_model(Treap::<Eager>::new(3000), seed);
        agrees_with_the_model(Treap::<Lazy>::new(3000), seed);
        agrees_with_the_model(Treap::<Cached>::new(3000), seed);
    }
}
