//! The state of an index, restored in another one.

use va_base::{Align, AllocError, Heap, Pages, Request, Va, VaRange};
use va_sim::model::{ModelIndex, PageIndex};
use va_sim::op::Rng;
use va_sim::platform::{Fail, FailingPlatform};
use va_tree::rb::Linux;
use va_tree::{BTreeIndex, BTreeIndex32, FreeIndex, RbIndex};

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
    assert!(matches!(after.restore(&taken, u64::MAX), Err(AllocError::NoMeta { .. })));
    assert_eq!((after.live(), after.holes().collect()), (0, vec![space()]));
}
