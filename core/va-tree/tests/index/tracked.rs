//! The index that knows its areas, against a table of pages.

use va_base::{Align, AllocError, Heap, LimitedHeap, NoSlabs, Pages, Request, Va, VaRange};
use va_sim::effort::some;
use va_sim::model::PageIndex;
use va_sim::op::Rng;
use va_sim::platform::{Fail, FailingPlatform};
use va_tree::rb::Exact;
use va_tree::{BTreeIndex, BestFitIndex, FreeIndex, RbIndex, TrackedError, TrackedIndex};

const FIRST: u64 = 9;
const PAGES: u64 = 700;

fn pages(first: u64, end: u64) -> VaRange {
    VaRange::from_pages(first, end).unwrap()
}

/// The number of the area of each page; 0 for a free one.
#[derive(Clone)]
struct Model {
    owner: Vec<u32>,
    next: u32,
}

impl Model {
    fn of(&self, page: u64) -> u32 {
        page.checked_sub(FIRST).and_then(|at| self.owner.get(at as usize)).copied().unwrap_or(0)
    }

    fn set(&mut self, first: u64, end: u64, owner: u32) {
        self.owner[(first - FIRST) as usize..(end - FIRST) as usize].fill(owner);
    }

    fn add(&mut self, range: VaRange) {
        let (first, end) = range.whole_pages();
        assert!((first..end).all(|page| self.of(page) == 0), "{range:?} is not free");
        self.next += 1;
        self.set(first, end, self.next);
    }

    fn areas(&self) -> Vec<VaRange> {
        let mut areas = Vec::new();
        let mut page = FIRST;
        while page < FIRST + PAGES {
            let owner = self.of(page);
            let end = (page..FIRST + PAGES).find(|&other| self.of(other) != owner).unwrap_or(FIRST + PAGES);
            if owner != 0 {
                areas.push(pages(page, end));
            }
            page = end;
        }
        areas
    }

    /// Returns an index of the same pages, for what fits.
    fn index(&self) -> PageIndex {
        let all = pages(FIRST, FIRST + PAGES);
        let mut index = PageIndex::new(all, all).unwrap();
        self.areas().into_iter().for_each(|area| _ = index.take(area).unwrap());
        index
    }

    /// Frees pages, and gives a new number to what is left above them.
    fn free(&mut self, range: VaRange) -> u64 {
        let (first, end) = range.whole_pages();
        let freed = (first..end).filter(|&page| self.of(page) != 0).count() as u64;
        if self.of(end) != 0 && self.of(end) == self.of(end - 1) {
            let owner = self.of(end);
            let last = (end..=FIRST + PAGES).find(|&page| self.of(page) != owner).unwrap();
            self.next += 1;
            self.set(end, last, self.next);
        }
        self.set(first, end, 0);
        freed
    }
}

fn no_memory(error: &TrackedError) -> bool {
    matches!(error, TrackedError::Index(AllocError::NoMeta { .. }))
}

/// Random calls. If the platform fails, the call changes nothing, and succeeds again with memory.
fn run<I: FreeIndex>(seed: u64, fails: bool, fresh: impl Fn(FailingPlatform) -> I) -> u64 {
    let platform = FailingPlatform::new(Fail::Never);
    let mut index = TrackedIndex::new(fresh(platform.clone()), platform.clone());
    let mut model = Model { owner: vec![0; PAGES as usize], next: 0 };
    let (mut rng, mut failed) = (Rng::new(seed), 0);
    for step in 0..2500 {
        let mut random = |below: u64| rng.next_u64() % below;
        let what = random(12);
        let first = FIRST + random(PAGES);
        let any = pages(first, (first + 1 + random(20)).min(FIRST + PAGES));
        let align = Align::new(4096 << random(3)).unwrap();
        let request = Request::pages(1 + random(12)).unwrap().aligned(align);
        let areas = model.areas();
        let area = (!areas.is_empty()).then(|| areas[random(areas.len() as u64) as usize]);
        let size = Pages::new(random(16));
        if fails && random(3) == 0 {
            platform.set(Fail::All);
        }
        let call = |index: &mut TrackedIndex<I, _>, model: &mut Model| -> Result<(), TrackedError> {
            match (what, area) {
                (0..=3, _) => {
                    let (got, like) = match what {
                        1 => (index.alloc_ample(&request), model.index().ample_fit(&request)),
                        2 => (index.alloc_best(&request), model.index().best_fit(&request)),
                        3 => (index.alloc_highest(&request), model.index().highest_fit(&request)),
                        _ => (index.alloc(&request), model.index().would_fit(&request)),
                    };
                    match got {
                        Ok(area) => {
                            assert_eq!(Ok(area.start()), like);
                            model.add(area);
                        }
                        Err(error) if no_memory(&error.into()) => return Err(error.into()),
                        Err(error) => assert_eq!(Some(error), like.err()),
                    }
                }
                (4, _) => match index.take(any) {
                    Ok(()) => model.add(any),
                    Err(AllocError::Occupied { range }) => {
                        assert!(range == any && model.index().take(any).is_err());
                    }
                    Err(error) => return Err(error.into()),
                },
                (5 | 6, Some(area)) => {
                    assert_eq!(index.free(area.start()), Ok(area), "a free needs no memory");
                    model.free(area);
                }
                (7, _) => {
                    let begins = areas.iter().find(|area| area.start() == any.start());
                    let want = match begins {
                        Some(&area) if area != any => Err(TrackedError::OtherRange { range: any, area }),
                        Some(_) => Ok(()),
                        None => Err(TrackedError::NoArea { at: any.start() }),
                    };
                    assert_eq!(index.free_range(any), want);
                    want.iter().for_each(|()| _ = model.free(any));
                }
                (8 | 9, _) => {
                    let freed = index.free_any(any)?;
                    assert_eq!(freed.get(), model.free(any));
                }
                (10, Some(area)) => {
                    let (page, end) = area.whole_pages();
                    let to = page + size.get();
                    match index.grow_to(area.start(), size) {
                        Ok(grown) => {
                            assert_eq!(grown, pages(page, to));
                            let owner = model.of(page);
                            assert!((end..to).all(|page| model.of(page) == 0));
                            model.set(end, to, owner);
                        }
                        Err(TrackedError::BadSize { .. }) => assert!(to < end),
                        Err(TrackedError::Index(AllocError::Occupied { range })) => {
                            assert!(range == pages(end, to) && (end..to).any(|page| model.of(page) != 0));
                        }
                        Err(TrackedError::Index(AllocError::BadRange { .. })) => assert!(to > FIRST + PAGES),
                        Err(error) => return Err(error),
                    }
                }
                (11, Some(area)) => {
                    let (page, end) = area.whole_pages();
                    let to = page + size.get();
                    match index.shrink_to(area.start(), size) {
                        Ok(left) => {
                            assert_eq!(left, pages(page, to));
                            model.set(to, end, 0);
                        }
                        Err(TrackedError::BadSize { .. }) => assert!(to > end || size.get() == 0),
                        Err(error) => return Err(error),
                    }
                }
                _ => {}
            }
            Ok(())
        };
        if let Err(error) = call(&mut index, &mut model) {
            assert!(no_memory(&error), "{error}");
            assert!(index.areas().eq(areas.iter().copied()), "step {step}: {error} changed something");
            index.validate().unwrap();
            failed += 1;
            platform.set(Fail::Never);
            assert_eq!(call(&mut index, &mut model), Ok(()));
        }
        platform.set(Fail::Never);
        assert!(index.areas().eq(model.areas()), "step {step}, call {what}");
        assert_eq!(index.validate(), Ok(()), "step {step}, call {what}");
        assert_eq!((index.find(Va::ZERO), index.len()), (None, model.areas().len() as u64));
    }
    failed
}

fn by_size(platform: FailingPlatform) -> BestFitIndex<BTreeIndex<FailingPlatform>, FailingPlatform> {
    let all = pages(FIRST, FIRST + PAGES);
    BestFitIndex::new(BTreeIndex::new(all, all, platform.clone()).unwrap(), platform).unwrap()
}

#[test]
fn ti1_random_calls_equal_a_table_of_pages() {
    let all = pages(FIRST, FIRST + PAGES);
    for seed in 1..=some(5) {
        run(seed, false, |platform| BTreeIndex::new(all, all, platform).unwrap());
        run(seed, false, |platform| RbIndex::<Exact, _>::new(all, all, platform).unwrap());
        run(seed, false, by_size);
    }
}

#[test]
fn sp4_a_call_without_memory_changes_no_area() {
    let all = pages(FIRST, FIRST + PAGES);
    let failed: u64 = (1..=some(12))
        .map(|seed| run(seed, true, |platform| BTreeIndex::new(all, all, platform).unwrap()))
        .sum();
    assert!(failed > 0, "no memory was ever needed");
    let failed: u64 = (1..=some(12))
        .map(|seed| run(seed, true, |platform| RbIndex::<Exact, _>::new(all, all, platform).unwrap()))
        .sum();
    assert!(failed > 0, "no memory was ever needed");
    assert!(
        (1..=some(12)).map(|seed| run(seed, true, by_size)).sum::<u64>() > 0,
        "no memory was ever needed"
    );
}

#[test]
fn ranges_outside_and_empty_ones_are_errors() {
    let all = pages(FIRST, FIRST + PAGES);
    let platform = FailingPlatform::new(Fail::Never);
    let mut index = TrackedIndex::new(BTreeIndex::new(all, all, platform.clone()).unwrap(), platform);
    let whole = index.alloc(&Request::pages(PAGES).unwrap()).unwrap();
    let inside = Va::from_page(FIRST + 1);
    let odd = VaRange::new(Va::new(inside.get() + 1), all.end()).unwrap();
    for range in [pages(FIRST - 1, FIRST + 1), pages(FIRST, FIRST + PAGES + 1), pages(20, 20), odd] {
        let error = index.free_any(range).unwrap_err();
        assert_eq!(error, AllocError::BadRange { range, extent: all }.into());
    }
    assert_eq!(index.free(inside), Err(TrackedError::NoArea { at: inside }));
    let huge = Pages::new(u64::MAX);
    for error in [
        index.grow_to(whole.start(), huge),
        index.shrink_to(whole.start(), huge),
        index.shrink_to(whole.start(), Pages::new(0)),
    ] {
        assert!(matches!(error, Err(TrackedError::BadSize { .. })), "{error:?}");
    }
    assert_eq!(index.enclosing(inside), Some(whole));
    assert_eq!(index.free_any(all), Ok(Pages::new(PAGES)));
    assert!(index.is_empty() && index.index().holes().eq([all]));
}

#[test]
fn a_free_of_whole_areas_needs_no_memory() {
    let space = pages(FIRST, FIRST + PAGES);
    let mut index = TrackedIndex::new(BTreeIndex::new(space, space, NoSlabs).unwrap(), NoSlabs);
    while index.alloc(&Request::pages(3).unwrap()).is_ok() {}
    let areas: Vec<_> = index.areas().collect();
    let (first, end) = areas[0].whole_pages();
    assert_eq!(index.free_any(pages(first + 1, end - 1)), Err(AllocError::NoMeta { records: 1 }.into()));
    assert_eq!(index.free_any(areas[0]), Ok(Pages::new(3)));
    assert_eq!(index.free_any(VaRange::new(areas[1].start(), areas[2].end()).unwrap()), Ok(Pages::new(6)));
    assert!(!index.is_empty() && index.areas().eq(areas[3..].iter().copied()));
}

#[test]
fn what_never_fits_is_an_error_of_the_index_without_memory_too() {
    let space = pages(FIRST, FIRST + PAGES);
    let mut index = TrackedIndex::new(BTreeIndex::new(space, space, NoSlabs).unwrap(), NoSlabs);
    while index.alloc(&Request::pages(3).unwrap()).is_ok() {}
    let before: Vec<_> = index.areas().collect();
    let error = index.alloc(&Request::pages(PAGES).unwrap());
    assert!(matches!(error, Err(AllocError::NoSpace { .. })), "{error:?}");
    assert_eq!(index.take(before[0]), Err(AllocError::Occupied { range: before[0] }));
    assert!(matches!(index.take(pages(1, 2)), Err(AllocError::BadRange { .. })));
    assert_eq!(index.alloc(&Request::pages(3).unwrap()), Err(AllocError::NoMeta { records: 1 }));
    assert!(index.areas().eq(before));
    index.validate().unwrap();
}

#[test]
fn memory_of_areas_that_are_gone_is_freed_by_a_shrink() {
    let (heap, space) = (LimitedHeap::new(), pages(FIRST, 1 << 30));
    let mut index = TrackedIndex::new(BTreeIndex::new(space, space, &heap).unwrap(), &heap);
    let count: u64 = some(20_000);
    (0..count).for_each(|at| index.take(pages(FIRST + 2 * at, FIRST + 2 * at + 1)).unwrap());
    let peak = heap.bytes();
    (0..count).for_each(|at| _ = index.free(pages(FIRST + 2 * at, FIRST + 2 * at + 1).start()).unwrap());
    assert_eq!(heap.bytes(), peak);
    let mut freed = 0;
    (0..100).for_each(|_| freed += index.shrink(10_000));
    // The last step leaves records inside the value: they are no memory of the heap.
    assert!(freed <= peak - heap.bytes() && freed > peak / 2, "{freed} of {peak}");
    assert!(heap.bytes() <= 4 * 4096, "{} bytes are kept of {peak}", heap.bytes());
    assert_eq!(index.shrink(0), 0);
    index.validate().unwrap();
}

#[test]
fn an_index_gets_its_extent_in_place_and_once() {
    let platform = FailingPlatform::new(Fail::Never);
    let mut index = TrackedIndex::new(BTreeIndex::empty(platform.clone()), platform.clone());
    assert!(index.alloc(&Request::pages(1).unwrap()).is_err(), "there are no pages yet");
    index.init(pages(9, 9 + PAGES), pages(20, 30)).unwrap();
    let again = index.init(pages(2000, 3000), pages(2000, 3000)).unwrap_err();
    assert!(matches!(again, AllocError::Occupied { .. }), "{again:?}");
    assert_eq!(index.index().extent(), pages(9, 9 + PAGES));
    assert_eq!(index.alloc(&Request::pages(4).unwrap()), Ok(pages(20, 24)), "in the default window");
    // More areas than records inside: the platform is the one of the value.
    (0..200).for_each(|at| index.take(pages(40 + 2 * at, 41 + 2 * at)).unwrap());
    assert_eq!((index.validate(), index.len()), (Ok(()), 201));
    let empty = VaRange::EMPTY;
    let mut linux = TrackedIndex::new(RbIndex::<Exact, _>::empty(platform.clone()), platform);
    assert!(matches!(linux.init(empty, empty), Err(AllocError::BadRange { .. })));
    linux.init(pages(9, 99), pages(9, 99)).unwrap();
    assert_eq!(linux.alloc(&Request::pages(90).unwrap()), Ok(pages(9, 99)));
}

#[test]
fn sp4_a_copy_and_a_restored_index_have_the_same_areas() {
    let space = pages(FIRST, FIRST + PAGES);
    let heaps = [&LimitedHeap::default(), &LimitedHeap::default()];
    let fresh = |heap| TrackedIndex::new(BTreeIndex::new(space, space, heap).unwrap(), heap);
    let (mut rng, mut index) = (Rng::new(4), fresh(heaps[0]));
    for _ in 0..400 {
        let _full = index.alloc(&Request::pages(1 + rng.below(4)).unwrap());
        let first = FIRST + rng.below(PAGES);
        let _freed = index.free_any(pages(first, (first + rng.below(5) + 1).min(FIRST + PAGES))).unwrap();
    }
    let saved: Vec<VaRange> = index.areas().collect();
    assert!(saved.len() > 100);
    for granted in 0.. {
        heaps[1].fail_after(granted);
        match index.try_clone(heaps[1]) {
            Ok(mut copy) => {
                assert!(granted > 0);
                assert_eq!(copy, index);
                copy.validate().unwrap();
                copy.free(saved[7].start()).unwrap();
                assert_ne!(copy, index);
                // The same pages as two areas.
                let (first, end) = saved[9].whole_pages();
                copy.take(saved[7]).unwrap();
                assert_eq!(copy, index);
                copy.free_any(pages(first, first + 1)).unwrap();
                copy.take(pages(first, first + 1)).unwrap();
                assert_eq!(copy == index, end == first + 1);
                break;
            }
            Err(error) => assert!(matches!(error, AllocError::NoMeta { .. }), "{error}"),
        }
        assert_eq!(heaps[1].bytes(), 0);
    }
    // A state that was saved, and one that is wrong.
    let mut after = fresh(heaps[0]);
    after.restore(&saved).unwrap();
    assert_eq!(after, index);
    after.validate().unwrap();
    let mut wrong = fresh(heaps[0]);
    let again = [&saved[..], &saved[..1]].concat();
    assert_eq!(wrong.restore(&again), Err(AllocError::Occupied { range: saved[0] }));
    assert_eq!(wrong, fresh(heaps[0]));
    wrong.validate().unwrap();
}

#[test]
fn two_indexes_with_equal_holes_and_other_areas_differ() {
    let tracked = |areas: [VaRange; 2]| {
        let space = pages(FIRST, FIRST + PAGES);
        let mut index = TrackedIndex::new(BTreeIndex::new(space, space, Heap).unwrap(), Heap);
        areas.into_iter().for_each(|area| index.take(area).unwrap());
        index
    };
    let [low, high] = [pages(FIRST, FIRST + 1), pages(FIRST + 1, FIRST + 3)];
    let [longer, shorter] = [pages(FIRST, FIRST + 2), pages(FIRST + 2, FIRST + 3)];
    assert_eq!(tracked([low, high]), tracked([high, low]));
    assert_ne!(tracked([low, high]), tracked([longer, shorter]));
}
