//! The state of an index, restored in another one.

use std::fmt::Debug;
use va_base::{Align, AllocError, Heap, LimitedHeap, PAGE_SIZE, Pages, Request, Va, VaRange};
use va_sim::effort::some;
use va_sim::model::{ModelIndex, PageIndex};
use va_sim::op::{Op, Rng, Space};
use va_sim::platform::{Fail, FailingPlatform};
use va_sim::run::{Walk, assert_same};
use va_tree::rb::{Exact, Linux};
use va_tree::{BTreeIndex, BTreeIndex32, BestFitIndex, FlatIndex, FreeIndex, InPlace, RbIndex};

const PAGES: u64 = 4000;

fn space() -> VaRange {
    VaRange::from_pages(7, 7 + PAGES).unwrap()
}

/// Allocates and frees at random, and returns the areas.
fn work(index: &mut impl FreeIndex, seed: u64) -> Vec<VaRange> {
    let (mut rng, mut areas) = (Rng::new(seed), Vec::new());
    for _ in 0..900 {
        let size = 1 + rng.next_u64() % 9;
        if let Ok(at) = index.alloc(&Request::pages(size).unwrap()) {
            areas.push(VaRange::from_size(at, size * 4096).unwrap());
        }
        if rng.next_u64() % 5 < 2 && !areas.is_empty() {
            let area = areas.swap_remove((rng.next_u64() % areas.len() as u64) as usize);
            index.free(area).unwrap();
        }
    }
    areas
}

#[test]
fn sp3_a_restored_index_frees_every_area_and_has_the_same_holes() {
    fn restored<I: FreeIndex>(seed: u64, fresh: impl Fn() -> I) {
        let (mut before, mut after) = (fresh(), fresh());
        let areas = work(&mut before, seed);
        let taken: Vec<_> = before.taken().collect();
        let pages: u64 = taken.iter().map(|range| range.len_bytes() / 4096).sum();
        assert_eq!(pages + before.free_pages().get(), PAGES);
        assert!(taken.windows(2).all(|pair| pair[0].end() < pair[1].start()), "maximal and in order");
        assert!((taken.len() as u64) < before.live(), "areas beside each other are one range");
        after.restore(&taken, before.live()).unwrap();
        assert!(after.holes().eq(before.holes()));
        assert_eq!(after.live(), before.live());
        after.validate().unwrap();
        areas.into_iter().for_each(|area| assert_eq!(after.free(area), Ok(())));
        assert_eq!((after.live(), after.holes().collect()), (0, vec![space()]));
        // A full index and an empty one.
        assert_eq!(after.taken().count(), 0);
        after.take(space()).unwrap();
        assert!(after.taken().eq([space()]));
    }
    for seed in 1..9 {
        restored(seed, || BTreeIndex::new(space(), space(), Heap).unwrap());
        restored(seed, || BTreeIndex32::new(space(), space(), Heap).unwrap());
        restored(seed, || RbIndex::<Linux, _>::new(space(), space(), Heap).unwrap());
        restored(seed, || ModelIndex::new(space(), space()).unwrap());
        restored(seed, || PageIndex::new(space(), space()).unwrap());
    }
}

#[test]
fn a_state_is_saved_and_read() {
    let mut before = BTreeIndex::new(space(), space(), Heap).unwrap();
    work(&mut before, 5);
    let state: (Vec<VaRange>, u64) = (before.taken().collect(), before.live());
    let text = serde_json::to_string(&state).unwrap();
    let (taken, live): (Vec<VaRange>, u64) = serde_json::from_str(&text).unwrap();
    let mut after = BTreeIndex32::new(space(), space(), Heap).unwrap();
    after.restore(&taken, live).unwrap();
    assert!(after.holes().eq(before.holes()));

    let units = (Va::new(u64::MAX), Pages::new(7), Align::new(1 << 63).unwrap(), VaRange::ALL);
    let text = serde_json::to_string(&units).unwrap();
    assert_eq!(text, format!("[{0},7,{1},[0,{0}]]", u64::MAX, 1u64 << 63));
    assert_eq!(serde_json::from_str::<(Va, Pages, Align, VaRange)>(&text).unwrap(), units);
    let message = |bad: serde_json::Error| bad.to_string();
    let bad = serde_json::from_str::<VaRange>("[9, 8]").map_err(message);
    assert_eq!(bad, Err("(9, 8) is a range whose end is below its start".to_string()));
    let bad = serde_json::from_str::<Align>("12").map_err(message);
    assert_eq!(bad, Err("12 is no power of two".to_string()));
    assert!(serde_json::from_str::<Va>("-1").is_err() && serde_json::from_str::<VaRange>("[1]").is_err());
}

#[test]
fn sp4_a_restore_that_fails_takes_nothing() {
    let mut before = BTreeIndex::new(space(), space(), Heap).unwrap();
    work(&mut before, 3);
    let (mut taken, live): (Vec<_>, _) = (before.taken().collect(), before.live());
    for granted in 0.. {
        let platform = FailingPlatform::new(Fail::After(granted));
        let mut after = BTreeIndex::new(space(), space(), platform).unwrap();
        match after.restore(&taken, live) {
            Ok(()) => {
                assert!(granted > 0);
                break;
            }
            Err(error) => assert!(matches!(error, AllocError::NoMeta { .. }), "{error}"),
        }
        assert_eq!((after.live(), after.holes().collect()), (0, vec![space()]));
        after.validate().unwrap();
    }
    // A state that was changed.
    let mut after = BTreeIndex::new(space(), space(), Heap).unwrap();
    taken.push(taken[0]);
    assert_eq!(after.restore(&taken, live), Err(AllocError::Occupied { range: taken[0] }));
    taken.pop();
    let pages = Pages::new(space().len_bytes() / PAGE_SIZE);
    assert_eq!(after.restore(&taken, u64::MAX), Err(AllocError::TooManyAreas { live: u64::MAX, pages }));
    assert_eq!((after.live(), after.holes().collect()), (0, vec![space()]));
}

/// Compares an index that was worked on with its copy: its state, its answers from then on, and its frees.
fn copied<I: FreeIndex + InPlace<Heap> + PartialEq + Debug>(
    seed: u64,
    fresh: impl Fn(VaRange, VaRange) -> I,
) -> (I, I) {
    let space = Space::whole(space());
    let mut index = fresh(space.extent, space.default_window);
    let mut areas = work(&mut index, seed);
    areas.sort_unstable();
    let mut nth = 0;
    areas.retain(|&area| {
        nth += 1;
        nth % 2 == 0 || index.free(area).is_err()
    });
    assert!(index.hole_count() > 99, "{}", index.hole_count());
    let copy = index.try_clone(Heap).unwrap();
    copy.validate().unwrap();
    assert_eq!(copy, index);
    // The same answers from then on, though one of the two changes first.
    assert_same(
        &space,
        copy,
        index.try_clone(Heap).unwrap(),
        Op::from_seed(&space, seed).take(400),
        Walk::Every(20),
    );
    let mut copy = index.try_clone(Heap).unwrap();
    areas.iter().for_each(|&area| assert_eq!(copy.free(area), Ok(())));
    assert!(copy != index && index.live() == areas.len() as u64);
    index.validate().unwrap();
    assert_eq!(copy, fresh(space.extent, space.default_window));
    // One of the four differs.
    copy.reserve_splits(1).unwrap();
    assert_ne!(copy, fresh(space.extent, space.default_window), "live areas");
    assert_ne!(fresh(space.extent, VaRange::ALL), fresh(space.extent, space.default_window), "window");
    let shorter = VaRange::from_pages(7, 6 + PAGES).unwrap();
    assert_ne!(fresh(shorter, VaRange::ALL), fresh(space.extent, VaRange::ALL), "extent");
    copy.take(VaRange::from_pages(9, 10).unwrap()).unwrap();
    let mut other = fresh(space.extent, space.default_window);
    other.take(VaRange::from_pages(10, 11).unwrap()).unwrap();
    copy.release_splits(1);
    assert_eq!((copy.live(), copy.hole_count()), (other.live(), other.hole_count()));
    assert_ne!(copy, other, "holes");
    // An index without an extent, and a full one.
    assert_eq!(I::EMPTY.try_clone(Heap).unwrap(), I::EMPTY);
    let mut full = fresh(space.extent, space.default_window);
    full.take(space.extent).unwrap();
    assert_eq!(full.try_clone(Heap).unwrap(), full);
    (index.try_clone(Heap).unwrap(), index)
}

#[test]
fn sp5_a_copy_equals_the_index_and_answers_as_it_does() {
    for seed in 1..some(7) + 1 {
        copied(seed, |extent, window| BTreeIndex::new(extent, window, Heap).unwrap());
        copied(seed, |extent, window| BTreeIndex32::new(extent, window, Heap).unwrap());
        copied(seed, |extent, window| RbIndex::<Exact, _>::new(extent, window, Heap).unwrap());
        let (copy, index) =
            copied(seed, |extent, window| RbIndex::<Linux, _>::new(extent, window, Heap).unwrap());
        assert!(copy.shape().eq(index.shape()));
        copied(seed, |extent, window| {
            BestFitIndex::new(BTreeIndex::new(extent, window, Heap).unwrap(), Heap).unwrap()
        });
    }
    // Rows that were asked for at the beginning are in the copy, too.
    let index = BTreeIndex::new(space(), space(), Heap).unwrap().with_rows().unwrap();
    assert!(index.try_clone(Heap).unwrap().has_rows());
    // Areas that touch and were counted as one: fewer live areas than ranges between holes.
    let mut index = BTreeIndex::new(space(), space(), Heap).unwrap();
    for page in [7, 20, 6 + PAGES] {
        index.take(VaRange::from_pages(page, page + 1).unwrap()).unwrap();
    }
    assert_eq!(index.release_splits(9), 2);
    assert_eq!((index.live(), index.taken().count()), (1, 3));
    assert_eq!(index.try_clone(Heap).unwrap(), index);
}

#[test]
fn sp4_a_copy_that_fails_leaves_the_index_and_the_memory() {
    fn attempt<'a, I: FreeIndex + InPlace<&'a LimitedHeap> + PartialEq + Debug>(
        [first, second]: [&'a LimitedHeap; 2],
        fresh: impl Fn(&'a LimitedHeap) -> I,
    ) {
        let mut index = fresh(first);
        work(&mut index, 4);
        let before = first.bytes();
        for granted in 0.. {
            second.fail_after(granted);
            match index.try_clone(second) {
                Ok(copy) => {
                    assert_eq!(copy, index);
                    assert!(granted > 0 && second.bytes() > 0);
                    break;
                }
                Err(error) => assert!(matches!(error, AllocError::NoMeta { .. }), "{error}"),
            }
            assert_eq!(second.bytes(), 0);
            index.validate().unwrap();
        }
        assert_eq!((first.bytes(), second.bytes()), (before, 0));
    }
    let heaps = [&LimitedHeap::default(), &LimitedHeap::default()];
    attempt(heaps, |platform| BTreeIndex::new(space(), space(), platform).unwrap());
    attempt(heaps, |platform| RbIndex::<Linux, _>::new(space(), space(), platform).unwrap());
    attempt(heaps, |platform| {
        let index = BTreeIndex::new(space(), space(), platform).unwrap();
        BestFitIndex::new(index, platform).unwrap()
    });
}

#[test]
fn an_index_retains_the_platform_that_it_was_initialized_with() {
    fn attempt<'a, I: FreeIndex + InPlace<&'a LimitedHeap>>(first: &'a LimitedHeap, second: &'a LimitedHeap) {
        let mut index = I::EMPTY;
        index.init(space(), space(), first).unwrap();
        let occupied = AllocError::Occupied { range: space() };
        assert_eq!(index.init(space(), space(), second), Err(occupied));
        work(&mut index, 5);
        assert!(first.bytes() > 0 && second.asked() == 0);
    }
    let heaps = [(); 4].map(|()| LimitedHeap::default());
    attempt::<BTreeIndex<_>>(&heaps[0], &heaps[3]);
    attempt::<RbIndex<Linux, _>>(&heaps[1], &heaps[3]);
    attempt::<BestFitIndex<BTreeIndex<_>, _>>(&heaps[2], &heaps[3]);
}

#[test]
fn states_of_different_structures_are_compared() {
    let mut btree = BTreeIndex::new(space(), space(), Heap).unwrap();
    work(&mut btree, 3);
    let mut flat = FlatIndex::<2000>::new(space(), space()).unwrap();
    assert!(!btree.same_state(&flat));
    flat.restore(&btree.taken().collect::<Vec<_>>(), btree.live()).unwrap();
    assert!(btree.same_state(&flat) && flat.same_state(&btree));
}
