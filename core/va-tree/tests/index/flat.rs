//! The sorted array and its reference models give the same results, and a full array changes nothing.

use va_base::{AllocError, Request, Va, VaRange};
use va_certify::Certified;
use va_sim::effort::some;
use va_sim::model::{ModelIndex, PageIndex};
use va_sim::op::{Op, Rng, Space};
use va_sim::run::{Walk, assert_same};
use va_sim::soak::seeds;
use va_tree::{FlatIndex, FreeIndex};

fn pages(first: u64, end: u64) -> VaRange {
    VaRange::from_pages(first, end).unwrap()
}

#[test]
fn it_equals_the_models() {
    for seed in 0..seeds(2) {
        for size in [1, 2, 16, 40, 300] {
            let space = Space::whole(pages(size % 5, size % 5 + size));
            let ops = || Op::from_seed(&space, seed).take(some(1500));
            let index = FlatIndex::<400>::new(space.extent, space.default_window).unwrap();
            let model = PageIndex::new(space.extent, space.default_window).unwrap();
            assert_same(&space, Certified::new(index), model, ops(), Walk::Always);
        }
        let linux = Space {
            extent: VaRange::new(Va::new(1), Va::new(u64::MAX)).unwrap(),
            default_window: VaRange::new(Va::new(0xffff_c900_0000_0000), Va::new(0xffff_e8ff_ffff_ffff))
                .unwrap(),
        };
        for space in [Space::whole(pages(5, 5000)), Space::whole(VaRange::ALL), linux] {
            let index = FlatIndex::<6000>::new(space.extent, space.default_window).unwrap();
            let model = ModelIndex::new(space.extent, space.default_window).unwrap();
            assert_same(
                &space,
                Certified::new(index),
                model,
                Op::from_seed(&space, seed).take(some(4000)),
                Walk::Every(50),
            );
        }
    }
}

#[test]
fn sp4_a_full_array_changes_nothing_and_every_area_can_be_freed() {
    let all = pages(7, 207);
    for seed in 0..200 {
        let (mut rng, mut full) = (Rng::new(seed), 0);
        let mut index = FlatIndex::<6>::new(all, all).unwrap();
        let mut areas = Vec::new();
        for _ in 0..200 {
            let before = index.clone();
            let first = 7 + rng.below(190);
            let range = pages(first, first + 1 + rng.below(9));
            let got = match rng.below(3) {
                0 => index.alloc(&Request::pages(1 + rng.below(4)).unwrap()).map(|at| {
                    let page = at.page_floor();
                    pages(page, page + before.free_pages().get() - index.free_pages().get())
                }),
                1 => index.take(range).map(|_| range),
                _ if areas.is_empty() => continue,
                _ => {
                    let area = areas.swap_remove(rng.below(areas.len() as u64) as usize);
                    assert_eq!(index.free(area), Ok(()));
                    continue;
                }
            };
            match got {
                Ok(area) => areas.push(area),
                Err(error) => {
                    full += u32::from(matches!(error, AllocError::NoMeta { .. }));
                    assert_eq!(index, before, "{error}");
                }
            }
            index.validate().unwrap();
        }
        assert!(full > 0, "seed {seed}: it was never full");
        while let Some(area) = areas.pop() {
            assert_eq!(index.free(area), Ok(()));
        }
        assert_eq!(index, FlatIndex::new(all, all).unwrap());
    }
}

#[test]
fn indexes_that_differ_in_holes_or_areas_are_not_equal() {
    let index = |taken| {
        let mut index = FlatIndex::<6>::new(pages(1, 9), pages(1, 9)).unwrap();
        index.take(taken).unwrap();
        index
    };
    let mut other = index(pages(3, 4));
    assert!(other == index(pages(3, 4)) && other != index(pages(4, 5)));
    other.reserve_splits(1).unwrap();
    assert_ne!(other, index(pages(3, 4)));
}

#[test]
fn it_is_small_and_begins_as_zeros() {
    assert_eq!(size_of::<FlatIndex<24>>(), 448);
    let mut index = FlatIndex::<24>::EMPTY;
    assert!(index.alloc(&Request::pages(1).unwrap()).is_err());
    assert!(index.take(pages(0, 1)).is_err() && index.free(pages(0, 1)).is_err());
    assert_eq!((index.validate(), index.hole_after(Va::ZERO), index.largest_hole().get()), (Ok(()), None, 0));
    let nothing = VaRange::new(Va::new(1), Va::new(4097)).unwrap();
    assert!(matches!(index.init(nothing, nothing), Err(AllocError::BadRange { .. })));
    index.init(pages(1, 9), pages(1, 9)).unwrap();
    assert!(matches!(index.init(pages(1, 9), pages(1, 9)), Err(AllocError::Occupied { .. })));
    let memory = index.memory();
    assert_eq!((memory.used_bytes, memory.row_bytes, memory.allocated_bytes), (16, 0, 0), "one hole");
    assert_eq!(index.alloc(&Request::pages(8).unwrap()), Ok(Va::from_page(1)));
}
