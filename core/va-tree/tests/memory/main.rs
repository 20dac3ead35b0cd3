//! The memory of an index: pieces of a page alone, failures for a while, donated memory, freed memory.

#![expect(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod rows;

use std::fmt::Debug;
use va_base::{Align, AllocError, InvariantViolation, LimitedHeap, NoSlabs, Request, VaRange};
use va_sim::effort::is_full;
use va_sim::machine::SimMachine;
use va_sim::op::Rng;
use va_sim::platform::HeapPlatform;
use va_sim::soak::{self, Soak};
use va_tree::btree::BTree;
use va_tree::rb::{Exact, Linux};
use va_tree::{BTreeIndex, BTreeIndex32, BestFitIndex, Congruent, FreeIndex, InPlace, RbIndex, Supplied};

const PAGE: usize = 4096;

/// Has pieces of at most `limit` bytes.
fn heap(limit: usize) -> LimitedHeap {
    let heap = LimitedHeap::new();
    heap.limit(limit);
    heap
}

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
        let by_size = || BestFitIndex::new(BTreeIndex::new(all(), all(), $platform)?, $platform);
        $check("by size", || by_size().unwrap() $(, $more)*);
    };
}

/// Returns the areas of a test: fewer where operations walk the whole index.
fn some_of(areas: u64) -> u64 {
    match (va_tree::WALKS_INVARIANTS, is_full()) {
        (true, _) => areas.min(2000),
        (false, true) => areas,
        // A program that is not optimised takes minutes for all.
        (false, false) => areas / 10,
    }
}

#[test]
fn a_million_areas_need_no_piece_above_a_page_and_the_memory_comes_back() {
    fn check<I: Supplied>(name: &str, fresh: impl Fn() -> I, heap: &LimitedHeap) {
        let mut index = fresh();
        let one = Request::pages(1).unwrap();
        let areas = some_of(1_000_000);
        for n in 0..areas {
            assert!(index.alloc(&one).is_ok(), "{name}: area {n}");
        }
        let full = index.memory().allocated_bytes;
        // As many holes as possible: all that was reserved is used.
        for parity in [0, 1] {
            (0..areas / 2).for_each(|n| index.free(pages(16 + 2 * n + parity, 1)).unwrap());
            index.validate().unwrap();
        }
        loop {
            let before = index.memory().allocated_bytes;
            let freed = index.shrink(10_000);
            assert_eq!(freed, before - index.memory().allocated_bytes, "{name}");
            if freed == 0 && before <= 8 * PAGE {
                break;
            }
        }
        index.validate().unwrap();
        assert!(full as u64 > 8 * areas && heap.bytes() <= 4 * PAGE, "{name}: {}", heap.bytes());
        drop(index);
        assert_eq!(heap.bytes(), 0, "{name}");
    }
    let heap = heap(PAGE);
    each!(&heap, check, &heap);
}

#[test]
fn an_index_uses_the_donated_memory() {
    fn check<I: Supplied>(name: &str, fresh: impl Fn() -> I) {
        let heap = heap(PAGE);
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
        // Memory of another platform is not the index's to free.
        std::mem::forget(index);
    }
    each!(NoSlabs, check);
}

#[test]
fn every_nth_piece_may_fail_and_the_next_request_has_it() {
    fn check<I: Supplied>(name: &str, fresh: impl Fn() -> I, heap: &LimitedHeap) {
        let (areas, most) = if va_tree::WALKS_INVARIANTS { (800, 3) } else { (3000, 40) };
        for nth in 1..most {
            heap.fail_every(nth);
            let (mut index, mut failed) = (fresh(), 0);
            for n in 0..areas {
                let before = (index.live(), index.hole_count(), index.free_pages());
                if let Err(error) = index.take(pages(16 + 2 * n, 1)) {
                    assert!(matches!(error, AllocError::NoMeta { .. }), "{name}: {error}");
                    assert_eq!((index.live(), index.hole_count(), index.free_pages()), before);
                    index.validate().unwrap();
                    heap.fail_every(u64::MAX);
                    index.take(pages(16 + 2 * n, 1)).unwrap();
                    heap.fail_every(nth);
                    failed += 1;
                }
            }
            index.validate().unwrap();
            assert!(nth > 20 || failed > 0, "{name}: every {nth}th");
            heap.fail_every(u64::MAX);
        }
    }
    let heap = heap(PAGE);
    each!(&heap, check, &heap);
}

#[test]
fn memory_that_an_index_does_not_use_is_freed() {
    fn check<I: Supplied>(name: &str, fresh: impl Fn() -> I) {
        let heap = heap(PAGE);
        let mut index = fresh();
        while let Some(wanted) = index.wanted(1000) {
            let before = heap.bytes();
            let [supply, other] = [(); 2].map(|()| I::alloc_supply(wanted, &heap).unwrap());
            assert!((64..=(heap.bytes() - before) / 2).contains(&wanted.bytes()), "{name}: {wanted:?}");
            assert!(index.donate(supply).is_ok());
            // The index has grown since.
            let Err(unused) = index.donate(other) else { panic!("{name}: {wanted:?} twice") };
            let before = (heap.bytes(), index.memory().allocated_bytes);
            I::free_supply(unused, &heap);
            assert!(heap.bytes() < before.0 && index.memory().allocated_bytes == before.1, "{name}");
        }
        assert!(heap.bytes() > PAGE, "{name}");
        // Memory of another platform is not the index's to free.
        std::mem::forget(index);
    }
    each!(NoSlabs, check);
}

#[test]
fn the_memory_of_an_index_with_rows_is_that_of_its_platform() {
    let heap = heap(PAGE);
    let mut index = BTreeIndex::new(all(), all(), &heap).unwrap().with_rows().unwrap();
    (0..600).for_each(|n| assert!(index.take(pages(16 + 2 * n, 1)).is_ok()));
    // Records do not fill every piece.
    let (records, pieces) = (index.memory().allocated_bytes, heap.bytes());
    assert!(records <= pieces && pieces < records * 5 / 4, "{records} {pieces}");
    let mut index = RbIndex::<Exact, _>::new(all(), all(), NoSlabs).unwrap();
    index.take(pages(20, 1)).unwrap();
    // Two holes of 16, each of 48 bytes.
    let memory = index.memory();
    assert_eq!((memory.used_bytes, memory.row_bytes, memory.allocated_bytes), (2 * 48, 0, 16 * 48));
    // Records of binary trees are in one piece.
    let heap = LimitedHeap::new();
    let mut index = RbIndex::<Exact, _>::new(all(), all(), &heap).unwrap();
    index.reserve_splits(5000).unwrap();
    assert_eq!(heap.asked(), 1);
}

/// Two areas at a fixed distance: offsets and bytes.
const PARTS: [(u64, u64); 2] = [(0, 8 * PAGE as u64), (64 * PAGE as u64, 4 * PAGE as u64)];

/// An index on a machine whose memory fails for a time, beside a reference model that always has memory: an index of
/// another kind where one gives the same addresses.
struct Run<'m, I, M> {
    machine: &'m SimMachine,
    index: I,
    model: M,
    /// Areas that are allocated.
    out: Vec<VaRange>,
    /// The areas that the run grows or shrinks to.
    aim: usize,
    /// One alloc in so many gets the best fit.
    best_every: u64,
    failures: u64,
}

impl<I: Supplied, M: FreeIndex> Run<'_, I, M> {
    /// Compares two results, unless the first is a lack of memory. Returns the address, if there is one.
    fn same<T: PartialEq + Debug>(
        &mut self,
        fails: bool,
        got: Result<T, AllocError>,
        model: impl FnOnce(&mut M) -> Result<T, AllocError>,
    ) -> Option<T> {
        if let Err(AllocError::NoMeta { .. }) = got {
            assert!(fails, "memory is there");
            self.failures += 1;
            return None;
        }
        assert_eq!(got, model(&mut self.model));
        got.ok()
    }

    fn alloc(&mut self, rng: &mut Rng, fails: bool) {
        let mut request = Request::pages(1 + rng.below(9)).unwrap();
        if rng.below(2) == 0 {
            request = request.aligned(Align::new((PAGE as u64) << rng.below(6)).unwrap());
        }
        if rng.below(8) == 0 {
            request = request.within(pages(16 + rng.below(1 << 15), 1 + rng.below(200)));
        }
        let best = rng.below(self.best_every) == 0;
        let ample = rng.below(4) == 0;
        let got = match (best, ample) {
            (true, _) => self.index.alloc_best(&request),
            (false, true) => self.index.alloc_ample(&request),
            (false, false) => self.index.alloc(&request),
        };
        let like = |model: &mut M| match (best, ample) {
            (true, _) => model.alloc_best(&request),
            (false, true) => model.alloc_ample(&request),
            (false, false) => model.alloc(&request),
        };
        if let Some(at) = self.same(fails, got, like) {
            self.out.push(VaRange::from_size(at, request.size().get() * PAGE as u64).unwrap());
        }
    }

    fn take(&mut self, rng: &mut Rng, fails: bool) {
        let range = pages(16 + rng.below(1 << 16), 1 + rng.below(20));
        let got = self.index.take(range);
        if self.same(fails, got, |model| model.take(range)).is_some() {
            self.out.push(range);
        }
    }

    fn alloc_congruent(&mut self, fails: bool) {
        let areas = Congruent::new(&PARTS, 4 * PAGE as u64).unwrap();
        let got = self.index.alloc_congruent(&areas);
        if let Some(base) = self.same(fails, got, |model| model.alloc_congruent(&areas)) {
            self.out.extend(
                PARTS.map(|(at, bytes)| VaRange::from_size(base.checked_add(at).unwrap(), bytes).unwrap()),
            );
        }
    }

    /// Frees an area, at times in two fragments; this succeeds even if memory fails (SP3).
    fn free(&mut self, rng: &mut Rng, fails: bool) -> bool {
        if self.out.is_empty() {
            return false;
        }
        let range = self.out.swap_remove(rng.below(self.out.len() as u64) as usize);
        let (first, end) = range.whole_pages();
        let is_split = end - first > 1 && rng.below(10) == 0 && {
            let got = self.index.reserve_splits(1);
            self.same(fails, got, |model| model.reserve_splits(1)).is_some()
        };
        let cut = if is_split { first + 1 + rng.below(end - first - 1) } else { end };
        for (first, end) in [(first, cut), (cut, end)] {
            if first < end {
                let fragment = pages(first, end - first);
                assert_eq!((self.index.free(fragment), self.model.free(fragment)), (Ok(()), Ok(())));
            }
        }
        true
    }
}

impl<I: Supplied, M: FreeIndex> Soak for Run<'_, I, M> {
    fn step(&mut self, rng: &mut Rng, fails: bool) -> bool {
        if rng.below(1000) == 0 {
            // Fewer where each operation walks the whole index, and still more than there are records without memory.
            let most = if va_tree::WALKS_INVARIANTS { 400 } else { 5000 };
            self.aim = rng.below(most) as usize;
        }
        match rng.below(100) {
            0..4 => _ = self.index.shrink(rng.below(50) as usize),
            4 => {
                let got = self.index.supply(rng.below(100), &self.machine);
                self.same(fails, got, |_| Ok(()));
            }
            5 | 6 => self.take(rng, fails),
            7 => self.alloc_congruent(fails),
            way if way < if self.out.len() < self.aim { 75 } else { 35 } => self.alloc(rng, fails),
            _ => return self.free(rng, fails),
        }
        true
    }

    fn failures(&self) -> u64 {
        self.failures
    }

    /// An index that begins without spare records needs memory soon.
    fn set_fails(&mut self, rng: &mut Rng, fails: bool) {
        if fails && rng.below(2) == 0 {
            while self.index.shrink(1000) > 0 {}
        }
    }

    fn walk(&self) -> Result<(), InvariantViolation> {
        let counts = (self.index.live(), self.index.hole_count(), self.index.free_pages());
        assert_eq!(counts, (self.model.live(), self.model.hole_count(), self.model.free_pages()));
        assert!(self.index.holes().eq(self.model.holes()), "other holes than the model's");
        self.model.validate()?;
        self.index.validate()
    }
}

/// An alloc of the best fit walks over all holes of both, unless they are listed by size.
const BEST_EVERY: u64 = 64;

/// Random operations beside the model while memory fails for a time. The driver is `va_sim::soak`.
fn soaks<I: Supplied, M: FreeIndex>(
    name: &str,
    best_every: u64,
    fresh: impl Fn(&'static SimMachine) -> I,
    model: impl Fn() -> M,
) {
    soak::all(name, 1, |seed| {
        let machine: &'static SimMachine = Box::leak(Box::new(SimMachine::new(1)));
        let (index, model) = (fresh(machine), model());
        let mut run = Run { machine, index, model, out: Vec::new(), aim: 0, best_every, failures: 0 };
        let tally = soak::run(&mut run, machine, seed);
        let Run { mut index, out, .. } = run;
        out.into_iter().for_each(|range| index.free(range).unwrap());
        let is_small = (0..1000).any(|_| {
            index.shrink(1000);
            index.memory().allocated_bytes <= 8 * PAGE
        });
        assert!(is_small, "{name}, seed {seed}: {:?} of an index without areas", index.memory());
        index.validate().unwrap();
        assert!(index.holes().eq([index.extent()]), "{name}, seed {seed}: a hole is lost");
        drop(index);
        assert_eq!(machine.allocated(), 0, "{name}, seed {seed}: memory is lost");
        tally
    });
}

#[test]
fn memory_that_fails_for_a_while_leaves_btree_as_its_model() {
    let model = || RbIndex::<Exact, _>::new(all(), all(), HeapPlatform::default()).unwrap();
    soaks("index, btree", BEST_EVERY, |machine| BTreeIndex::new(all(), all(), machine).unwrap(), model);
}

#[test]
fn memory_that_fails_for_a_while_leaves_holes_by_size_as_their_model() {
    let model = || RbIndex::<Exact, _>::new(all(), all(), HeapPlatform::default()).unwrap();
    let fresh = |machine| BestFitIndex::new(BTreeIndex::new(all(), all(), machine)?, machine);
    soaks("index, by size", 4, |machine| fresh(machine).unwrap(), model);
}

#[test]
fn memory_that_fails_for_a_while_leaves_btree32_as_its_model() {
    let model = || RbIndex::<Exact, _>::new(all(), all(), HeapPlatform::default()).unwrap();
    soaks("index, btree32", BEST_EVERY, |machine| BTreeIndex32::new(all(), all(), machine).unwrap(), model);
}

#[test]
fn memory_that_fails_for_a_while_leaves_rb_exact_as_its_model() {
    let model = || BTreeIndex::new(all(), all(), HeapPlatform::default()).unwrap();
    soaks(
        "index, rb-exact",
        BEST_EVERY,
        |machine| RbIndex::<Exact, _>::new(all(), all(), machine).unwrap(),
        model,
    );
}

/// Linux's search misses particular holes, so that no other kind is its model.
#[test]
fn memory_that_fails_for_a_while_leaves_rb_linux_as_it_is_with_memory() {
    let model = || RbIndex::<Linux, _>::new(all(), all(), HeapPlatform::default()).unwrap();
    soaks(
        "index, rb-linux",
        BEST_EVERY,
        |machine| RbIndex::<Linux, _>::new(all(), all(), machine).unwrap(),
        model,
    );
}

#[test]
fn after_a_supply_only_the_first_request_of_an_alignment_calls_the_platform() {
    // A platform whose memory cannot be had under the lock, and another that is called outside.
    let (inside, outside) = (heap(0), heap(PAGE));
    let mut index = BTreeIndex::new(all(), all(), &inside).unwrap();
    index.supply(1000, &outside).unwrap();
    for n in 0..1000 {
        index.take(pages(16 + 2 * n, 1)).unwrap();
    }
    // Even pages are not free, except far above.
    let aligned = Request::pages(1).unwrap().aligned(Align::new(2 * PAGE as u64).unwrap());
    for is_first in [true, false, false] {
        assert_eq!(index.wanted(1), None);
        let (before, lowest) = (inside.asked(), index.would_fit(&aligned).unwrap());
        assert_eq!(index.alloc(&aligned), Ok(lowest));
        assert_eq!((inside.asked() > before, index.has_rows()), (is_first, !is_first));
        index.supply(1, &outside).unwrap();
    }
    // Memory of another platform is not the index's to free.
    std::mem::forget(index);
}

#[test]
fn a_shrink_needs_no_memory_where_the_inline_records_are_enough() {
    let heap = heap(usize::MAX);
    let mut index = RbIndex::<Linux, _>::new(all(), all(), &heap).unwrap();
    (0..200).for_each(|n| assert!(index.take(pages(16 + 2 * n, 1)).is_ok()));
    (0..200).for_each(|n| index.free(pages(16 + 2 * n, 1)).unwrap());
    heap.limit(0);
    while index.shrink(1000) > 0 {}
    assert_eq!(heap.bytes(), 0);
}

#[test]
fn a_piece_that_another_index_wants_is_as_long_as_the_own() {
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
    let supply = || BTree::<u64, 8, NoSlabs>::alloc_supply(wanted, &heap(PAGE)).unwrap();
    assert!(small.donate(supply()).is_ok());
    assert!(small.donate(supply()).is_err(), "it has a piece there");
    (0..14).for_each(|n| assert!(small.take(pages(16 + 2 * n, 1)).is_ok()));
    assert_eq!(small.validate(), Ok(()));
}

#[test]
fn a_shrink_tells_by_the_steps_that_are_left_that_it_has_ended() {
    fn check<I: Supplied>(name: &str, fresh: impl Fn() -> I, heap: &LimitedHeap) {
        heap.limit(usize::MAX);
        let mut index = fresh();
        let holes = some_of(20_000);
        (0..holes).for_each(|n| assert!(index.take(pages(16 + 4 * n, 2)).is_ok()));
        (holes / 8..holes).for_each(|n| index.free(pages(16 + 4 * n, 2)).unwrap());
        // With no memory for a shorter slab, and with it.
        for limit in [0, usize::MAX] {
            heap.limit(limit);
            let (before, mut calls, mut steps) = (index.memory().allocated_bytes, 0, 0);
            let mut freed = 0;
            while steps == 0 {
                steps = 100;
                freed += index.shrink_counted(&mut steps);
                calls += 1;
                assert!(calls <= holes, "{name}: no end with memory of {limit}");
            }
            assert_eq!(freed, before - index.memory().allocated_bytes, "{name}");
            let (mut steps, asked) = (100, heap.asked());
            assert_eq!((index.shrink_counted(&mut steps), steps), (0, 100), "{name}: nothing is left");
            assert!(heap.asked() - asked <= 2, "{name}");
        }
        index.validate().unwrap();
    }
    let heap = heap(usize::MAX);
    each!(&heap, check, &heap);
}

#[test]
fn a_step_of_a_shrink_requests_half_a_slab_at_most_and_only_for_a_tree() {
    fn check<I: Supplied>(name: &str, fresh: impl Fn() -> I, heap: &LimitedHeap) {
        heap.limit(usize::MAX);
        let mut index = fresh();
        let holes = some_of(20_000);
        (0..holes).for_each(|n| assert!(index.take(pages(16 + 4 * n, 2)).is_ok()));
        (holes / 8..holes).for_each(|n| index.free(pages(16 + 4 * n, 2)).unwrap());
        let (first, mut requests, mut idle) = (index.memory().allocated_bytes, 0, 0);
        while idle < holes {
            let (before, asked) = (index.memory().allocated_bytes, heap.asked());
            heap.limit(usize::MAX);
            idle = if index.shrink(1) == 0 { idle + 1 } else { 0 };
            requests += heap.asked() - asked;
            assert!(heap.asked() - asked <= 1 && heap.longest() <= before / 2, "{name}: {}", heap.longest());
        }
        assert!(index.memory().allocated_bytes < first / 2, "{name}");
        // Once for each time that a slab became half as long, at most.
        assert!(if name.starts_with("btree") { requests == 0 } else { requests <= 8 }, "{name}: {requests}");
        index.validate().unwrap();
    }
    let heap = heap(usize::MAX);
    each!(&heap, check, &heap);
}

#[test]
fn a_copy_has_reserved_what_it_states() {
    let (many, few) = (heap(PAGE), heap(PAGE));
    let mut index = RbIndex::<Exact, _>::new(all(), all(), &many).unwrap();
    (0..1000).for_each(|n| assert!(index.take(pages(16 + n, 1)).is_ok()));
    (0..1000).for_each(|n| index.free(pages(16 + n, 1)).unwrap());
    // The index has records for a thousand holes, and the copy for those that it needs.
    let mut copy = index.try_clone(&few).unwrap();
    assert!(few.bytes() * 4 < many.bytes());
    // It reserves others as it needs them.
    (0..1000).for_each(|n| assert!(copy.take(pages(16 + n, 1)).is_ok()));
    (0..500).for_each(|n| copy.free(pages(16 + 2 * n, 1)).unwrap());
    copy.validate().unwrap();
}
