//! A platform that fails slabs: a free never needs one (SP3), and a failure changes nothing (SP4).

use va_base::{Align, AllocError, PAGE_SIZE, Pages, Request, Va, VaRange};
use va_sim::effort::some;
use va_sim::model::{ModelIndex, PageIndex};
use va_sim::op::Rng;
use va_sim::platform::{Fail, FailingPlatform};
use va_tree::btree::BTree;
use va_tree::rb::{Exact, Linux};
use va_tree::{BTreeIndex, BTreeIndex32, BestFitIndex, Congruent, FlatIndex, FreeIndex, RbIndex};

/// Areas that are allocated before everything fails: enough for three levels at fanout 16.
const AREAS: u64 = 3000;

fn space() -> VaRange {
    VaRange::from_pages(64, 64 + 2 * AREAS).unwrap()
}

/// Returns an order in which areas are freed: numbers below `AREAS`, each once.
fn orders() -> Vec<(&'static str, Vec<u64>)> {
    let all = || 0..AREAS;
    let mut shuffled: Vec<u64> = all().collect();
    let mut rng = Rng::new(7);
    for n in (1..shuffled.len()).rev() {
        shuffled.swap(n, (rng.next_u64() % (n as u64 + 1)) as usize);
    }
    let odd_last = |order: Box<dyn Iterator<Item = u64>>| {
        let (even, odd): (Vec<u64>, Vec<u64>) = order.partition(|n| n % 2 == 0);
        [even, odd].concat()
    };
    vec![
        ("upward", all().collect()),
        ("downward", all().rev().collect()),
        // As many holes as there can be, and then one merge of three after the other.
        ("every other first", odd_last(Box::new(all()))),
        ("every other first, downward", odd_last(Box::new(all().rev()))),
        ("every third, then the rest", [0, 1, 2].into_iter().flat_map(|r| (r..AREAS).step_by(3)).collect()),
        ("shuffled", shuffled),
    ]
}

/// Holes by size beside a B+tree.
fn by_size<const F: usize>(
    platform: FailingPlatform,
) -> BestFitIndex<BTree<u64, F, FailingPlatform>, FailingPlatform> {
    let index = BTree::new(space(), space(), platform.clone()).unwrap();
    BestFitIndex::new(index, platform).unwrap()
}

/// Takes areas of one page, fails every slab, and frees them in every order.
fn sp3<I: FreeIndex>(fresh: impl Fn(FailingPlatform) -> I) {
    for (name, order) in orders() {
        let platform = FailingPlatform::new(Fail::Never);
        let mut index = fresh(platform.clone());
        for _ in 0..AREAS {
            index.alloc(&Request::pages(1).unwrap()).unwrap();
        }
        platform.set(Fail::All);
        let first = index.extent().start().page_floor();
        for (step, n) in order.into_iter().enumerate() {
            let back = index.free(VaRange::from_pages(first + n, first + n + 1).unwrap());
            assert_eq!(back, Ok(()), "{name}: area {n}");
            if step % 64 == 0 {
                index.validate().unwrap();
            }
        }
        index.validate().unwrap();
        assert_eq!(
            (index.live(), index.hole_count(), index.holes().next()),
            (0, 1, Some(index.extent())),
            "{name}"
        );
    }
}

#[test]
fn sp3_a_free_never_needs_a_slab() {
    sp3(|platform| RbIndex::<Linux, _>::new(space(), space(), platform).unwrap());
    sp3(|platform| RbIndex::<Exact, _>::new(space(), space(), platform).unwrap());
    sp3(|platform| BTree::<u64, 8, _>::new(space(), space(), platform).unwrap());
    sp3(|platform| BTree::<u64, 8, _>::new(space(), space(), platform).unwrap().with_rows().unwrap());
    sp3(|platform| BTreeIndex::new(space(), space(), platform).unwrap());
    sp3(|platform| BTreeIndex32::new(space(), space(), platform).unwrap().with_rows().unwrap());
    sp3(by_size::<16>);
    // As many as the bound of that many areas and one hole.
    sp3(|_| FlatIndex::<{ (AREAS as usize + 2) / 2 }>::new(space(), space()).unwrap());
}

#[test]
fn sp3_records_of_splits_are_reserved_at_once() {
    fn pieces<I: FreeIndex>(fresh: impl Fn(FailingPlatform) -> I) {
        let platform = FailingPlatform::new(Fail::Never);
        let mut index = fresh(platform.clone());
        let all = index.extent();
        index.take(all).unwrap();
        index.reserve_splits(AREAS).unwrap();
        platform.set(Fail::All);
        let (first, _) = all.whole_pages();
        // One area is freed page by page, every other page first.
        for parity in [0, 1] {
            for n in (parity..AREAS).step_by(2) {
                index.free(VaRange::from_pages(first + n, first + n + 1).unwrap()).unwrap();
            }
            index.validate().unwrap();
        }
        assert_eq!(index.holes().next().map(VaRange::whole_pages), Some((first, first + AREAS)));
    }
    pieces(|platform| RbIndex::<Exact, _>::new(space(), space(), platform).unwrap());
    pieces(|platform| BTreeIndex::new(space(), space(), platform).unwrap());
    pieces(by_size::<16>);
    pieces(|platform| BTree::<u64, 8, _>::new(space(), space(), platform).unwrap().with_rows().unwrap());
}

#[test]
fn sp3_a_whole_hole_is_taken_without_memory() {
    fn take_all<I: FreeIndex>(fresh: impl Fn(FailingPlatform) -> I) {
        let platform = FailingPlatform::new(Fail::Never);
        let mut index = fresh(platform.clone());
        let page = |n: u64| VaRange::from_pages(64 + 2 * n, 65 + 2 * n).unwrap();
        (0..AREAS / 2).for_each(|n| assert!(index.take(page(n)).is_ok()));
        platform.set(Fail::All);
        // Until no record is left, not even a spare one.
        let taken = (AREAS / 2..).find(|&n| index.take(page(n)).is_err()).unwrap();
        let holes: Vec<_> = index.holes().collect();
        assert_eq!(holes.len() as u64, taken);
        // From the top down, so that each is the highest.
        for (nth, &hole) in holes.iter().rev().enumerate() {
            if nth % 2 == 0 {
                assert_eq!(index.take(hole), Ok(va_tree::Fit::Full), "{hole:?}");
            } else {
                let all = Request::pages(hole.len_bytes() / 4096).unwrap();
                assert_eq!(index.alloc_highest(&all), Ok(hole.start()));
            }
        }
        assert_eq!((index.hole_count(), index.free_pages().get()), (0, 0));
        index.validate().unwrap();
        // The records that the frees need exist.
        holes.into_iter().for_each(|hole| assert_eq!(index.free(hole), Ok(())));
        (0..taken).for_each(|n| assert_eq!(index.free(page(n)), Ok(())));
        index.validate().unwrap();
        assert_eq!((index.live(), index.hole_count()), (0, 1));
    }
    take_all(|platform| RbIndex::<Linux, _>::new(space(), space(), platform).unwrap());
    take_all(|platform| BTreeIndex::new(space(), space(), platform).unwrap());
    take_all(|platform| BTreeIndex32::new(space(), space(), platform).unwrap());
    take_all(by_size::<16>);
}

/// Returns all observable state of an index, including its rows.
fn seen(index: &impl FreeIndex) -> (u64, u64, u64, usize, Vec<VaRange>) {
    (
        index.live(),
        index.free_pages().get(),
        index.hole_count(),
        index.memory().row_bytes,
        index.holes().collect(),
    )
}

/// Operations that need records of all kinds: allocations, aligned ones (which build rows), cuts in the middle,
/// fragments.
fn script<I: FreeIndex>(index: &mut I, step: u64) -> Result<Option<Va>, AllocError> {
    match step % 6 {
        5 => index.alloc_ample(&Request::pages(1).unwrap().aligned(Align::new(4 << 12).unwrap())).map(Some),
        0 => index.alloc(&Request::pages(1 + step % 3).unwrap()).map(Some),
        1 => index.alloc_best(&Request::pages(1 + step % 3).unwrap()).map(Some),
        2 => index.alloc(&Request::pages(1).unwrap().aligned(Align::new(4 << 12).unwrap())).map(Some),
        3 => {
            let at = 64 + 2 * AREAS - 3 * step;
            index.take(VaRange::from_pages(at, at + 1).unwrap()).map(|_| None)
        }
        _ => index.reserve_splits(step % 7).map(|()| None),
    }
}

/// Fails the nth slab, for every n until the script needs no more. The error changes nothing; after
/// it the same operation succeeds, and everything is as if nothing had failed.
fn sp4<I: FreeIndex>(name: &str, fresh: impl Fn(FailingPlatform) -> I) {
    let steps = some(1500);
    let mut calm = fresh(FailingPlatform::new(Fail::Never));
    let answers: Vec<_> = (0..steps).map(|step| script(&mut calm, step)).collect();
    assert!(answers.iter().all(Result::is_ok), "{name}: the script fails without failures of the platform");
    let mut failures = 0;
    for granted in 0.. {
        let platform = FailingPlatform::new(Fail::After(granted));
        let mut index = fresh(platform.clone());
        let mut failed = false;
        for step in 0..steps {
            let before = seen(&index);
            let mut answer = script(&mut index, step);
            if let Err(AllocError::NoMeta { records }) = answer {
                assert!(records > 0);
                assert!(!failed, "{name}: only one failure was planned");
                assert_eq!(
                    seen(&index),
                    before,
                    "{name}: step {step} got no slab {granted} and changed something"
                );
                index.validate().unwrap();
                failed = true;
                platform.set(Fail::Never);
                answer = script(&mut index, step);
            }
            assert_eq!(answer, answers[step as usize], "{name}: step {step}, slab {granted} failed");
        }
        index.validate().unwrap();
        assert_eq!(seen(&index), seen(&calm), "{name}: slab {granted} failed");
        if !failed {
            break;
        }
        failures += 1;
    }
    assert!(failures >= 2, "{name}: {failures} slabs were ever asked for");
}

#[test]
fn sp4_a_failed_slab_changes_nothing() {
    sp4("rb-linux", |platform| RbIndex::<Linux, _>::new(space(), space(), platform).unwrap());
    sp4("rb-exact", |platform| RbIndex::<Exact, _>::new(space(), space(), platform).unwrap());
    sp4("btree of 8", |platform| BTree::<u64, 8, _>::new(space(), space(), platform).unwrap());
    sp4("btree", |platform| BTreeIndex::new(space(), space(), platform).unwrap());
    sp4("btree32", |platform| BTreeIndex32::new(space(), space(), platform).unwrap());
    sp4("by size", by_size::<16>);
    sp4("by size of 8", by_size::<8>);
}

#[test]
fn sp4_rows_that_fail_are_no_rows() {
    let platform = FailingPlatform::new(Fail::Never);
    let mut index = BTreeIndex::new(space(), space(), platform.clone()).unwrap();
    for n in 0..AREAS {
        let at = 64 + 2 * n;
        index.take(VaRange::from_pages(at, at + 1).unwrap()).unwrap();
    }
    // Odd pages are free; a search for an even one fails, which without rows takes too long.
    let aligned = Request::pages(1).unwrap().aligned(Align::new(2 << 12).unwrap());
    let before = seen(&index);
    platform.set(Fail::All);
    // No memory for a row: the search is long, and its result the same.
    assert!(matches!(index.alloc(&aligned), Err(AllocError::NoSpace { .. })));
    assert!(!index.has_rows());
    assert_eq!(seen(&index), before);
    index.validate().unwrap();
    platform.set(Fail::Never);
    // A row that was built remains, and makes the next failure fast; nothing else has changed.
    assert!(matches!(index.alloc(&aligned), Err(AllocError::NoSpace { .. })));
    assert!(index.has_rows());
    assert_eq!(seen(&index).4, before.4);
    index.validate().unwrap();
}

#[test]
fn sp4_an_area_without_memory_leaves_no_row_behind() {
    let large = VaRange::from_pages(64, 1 << 20).unwrap();
    let aligned = Request::pages(1).unwrap().aligned(Align::new(2 << 12).unwrap());
    for granted in 0.. {
        let platform = FailingPlatform::new(Fail::Never);
        let mut index = BTreeIndex::new(large, large, platform.clone()).unwrap();
        // Odd pages are free, and an even one is not found without a row or a long walk.
        for n in 0..AREAS {
            index.take(VaRange::from_pages(64 + 2 * n, 65 + 2 * n).unwrap()).unwrap();
        }
        platform.set(Fail::All);
        while index.alloc(&Request::pages(2).unwrap()).is_ok() {}
        // The next area needs memory, and so does its row.
        let before = seen(&index);
        platform.set(Fail::After(granted));
        let answer = index.alloc(&aligned);
        index.validate().unwrap();
        if answer.is_ok() {
            assert!(granted > 0, "no memory was needed");
            return;
        }
        assert!(matches!(answer, Err(AllocError::NoMeta { .. })));
        assert_eq!((seen(&index), index.has_rows()), (before, false), "{granted} pieces");
    }
}

/// Requests what nothing fits of an index that has memory for no more areas.
fn no_space_before_no_memory<I: FreeIndex>(name: &str, fresh: impl Fn(FailingPlatform, VaRange) -> I) {
    let large = VaRange::from_pages(64, 1 << 20).unwrap();
    let platform = FailingPlatform::new(Fail::Never);
    let mut index = fresh(platform.clone(), large);
    // Odd pages are free, and no even one below the top hole.
    for n in 0..AREAS {
        index.take(VaRange::from_pages(64 + 2 * n, 65 + 2 * n).unwrap()).unwrap();
    }
    platform.set(Fail::All);
    while index.reserve_splits(1).is_ok() {}
    let before = seen(&index);
    let one = Request::pages(1).unwrap().aligned(Align::new(2 << 12).unwrap());
    let nowhere = one.within(VaRange::from_pages(64, 64 + 2 * AREAS - 1).unwrap());
    let no_space = index.would_fit(&nowhere).unwrap_err();
    assert!(matches!(no_space, AllocError::NoSpace { .. }), "{name}: {no_space:?}");
    assert_eq!(index.alloc(&nowhere), Err(no_space), "{name}");
    assert_eq!(index.alloc_ample(&nowhere), Err(no_space), "{name}");
    assert_eq!(index.alloc_highest(&nowhere), Err(no_space), "{name}");
    // In the middle of the top hole.
    let somewhere = one.within(VaRange::from_pages(1 << 19, (1 << 19) + 4).unwrap());
    assert!(matches!(index.alloc(&somewhere), Err(AllocError::NoMeta { .. })), "{name}");
    assert_eq!(seen(&index), before, "{name}");
}

#[test]
fn sp4_nothing_fits_with_or_without_memory() {
    no_space_before_no_memory("btree", |platform, all| BTreeIndex::new(all, all, platform).unwrap());
    no_space_before_no_memory("btree 8", |platform, all| {
        BTree::<u64, 8, _>::new(all, all, platform).unwrap()
    });
    no_space_before_no_memory("rb", |platform, all| RbIndex::<Exact, _>::new(all, all, platform).unwrap());
    no_space_before_no_memory("rb linux", |platform, all| {
        RbIndex::<Linux, _>::new(all, all, platform).unwrap()
    });
    no_space_before_no_memory("by size", |platform, all| {
        BestFitIndex::new(BTreeIndex::new(all, all, platform.clone()).unwrap(), platform).unwrap()
    });
}

#[test]
fn sp4_rows_for_ever_fail_without_a_trace() {
    let platform = FailingPlatform::new(Fail::Never);
    let mut index = BTreeIndex::new(space(), space(), platform.clone()).unwrap();
    (0..AREAS)
        .for_each(|n| assert!(index.take(VaRange::from_pages(64 + 2 * n, 65 + 2 * n).unwrap()).is_ok()));
    platform.set(Fail::All);
    let before = seen(&index);
    assert!(matches!(index.add_all_rows(), Err(AllocError::NoMeta { .. })));
    assert_eq!(seen(&index), before);
    platform.set(Fail::Never);
    index.add_all_rows().unwrap();
    assert!(index.has_rows());
    index.validate().unwrap();
}

#[test]
fn sp4_more_splits_than_there_can_be_are_errors() {
    fn malformed<I: FreeIndex>(mut index: I) {
        index.alloc(&Request::pages(3).unwrap()).unwrap();
        let before = seen(&index);
        let pages = space().len_bytes() / PAGE_SIZE;
        let too_many = |live| Err(AllocError::TooManyAreas { live, pages: Pages::new(pages) });
        // One area is live. The records for 2^40 more would be all memory that there is.
        for pieces in [u64::MAX, u64::MAX - 1, 1 << 63, 1 << 52, 1 << 40, pages] {
            assert_eq!(index.reserve_splits(pieces), too_many(pieces.saturating_add(1)), "{pieces}");
            assert_eq!(seen(&index), before);
        }
        for live in [u64::MAX, 1 << 52, 1 << 40, pages + 1] {
            assert_eq!(index.restore(&[], live), too_many(live), "{live}");
            assert_eq!(seen(&index), before);
        }
        let one = index.alloc(&Request::pages(1).unwrap()).unwrap();
        index.free(VaRange::from_size(one, 4096).unwrap()).unwrap();
        index.validate().unwrap();
    }
    let platform = || FailingPlatform::new(Fail::Never);
    malformed(RbIndex::<Linux, _>::new(space(), space(), platform()).unwrap());
    malformed(BTreeIndex::new(space(), space(), platform()).unwrap());
    malformed(BTreeIndex32::new(space(), space(), platform()).unwrap().with_rows().unwrap());
    malformed(by_size::<16>(platform()));
    malformed(FlatIndex::<4>::new(space(), space()).unwrap());
    malformed(RbIndex::<Exact, _>::new(space(), space(), platform()).unwrap());
    malformed(ModelIndex::new(space(), space()).unwrap());
    malformed(PageIndex::new(space(), space()).unwrap());
}

#[test]
fn congruent_areas_may_take_every_page() {
    fn whole<I: FreeIndex>(mut index: I) {
        let pages = index.free_pages().get();
        let areas: Vec<(u64, u64)> = (0..pages).map(|page| (page * PAGE_SIZE, PAGE_SIZE)).collect();
        let areas = Congruent::new(&areas, PAGE_SIZE).unwrap();
        // Two records for each area would be more than there are pages.
        index.alloc_congruent(&areas).unwrap();
        assert_eq!((index.live(), index.hole_count()), (pages, 0));
        assert!(index.alloc_congruent(&areas).is_err());
        for page in (0..pages).step_by(2).chain((1..pages).step_by(2)) {
            let start = index.extent().start().page_floor() + page;
            index.free(VaRange::from_pages(start, start + 1).unwrap()).unwrap();
        }
        assert_eq!((index.live(), index.hole_count()), (0, 1));
        index.validate().unwrap();
    }
    for pages in 1..80 {
        let space = VaRange::from_pages(64, 64 + pages).unwrap();
        whole(BTree::<u64, 4, _>::new(space, space, FailingPlatform::new(Fail::Never)).unwrap());
        whole(RbIndex::<Linux, _>::new(space, space, FailingPlatform::new(Fail::Never)).unwrap());
        whole(ModelIndex::new(space, space).unwrap());
    }
}

#[test]
fn congruent_areas_beside_needless_splits_are_all_taken_or_none() {
    let space = VaRange::from_pages(64, 64 + 256).unwrap();
    let areas: Vec<(u64, u64)> = (0..120).map(|nth| (2 * nth * PAGE_SIZE, PAGE_SIZE)).collect();
    let areas = Congruent::new(&areas, PAGE_SIZE).unwrap();
    let mut outcomes = [0, 0];
    for granted in 0..12 {
        let platform = FailingPlatform::new(Fail::After(granted));
        let mut index = BTree::<u64, 4, _>::new(space, space, platform).unwrap();
        // As many live areas as pages, none of which is out.
        if index.reserve_splits(256).is_err() {
            continue;
        }
        let before = seen(&index);
        let got = index.alloc_congruent(&areas);
        match got {
            Ok(_) => assert_eq!(index.live(), 256 + 120),
            Err(error) => {
                assert!(matches!(error, AllocError::NoMeta { .. }), "{error}");
                assert_eq!(seen(&index), before, "{granted}");
            }
        }
        outcomes[usize::from(got.is_ok())] += 1;
        index.validate().unwrap();
    }
    assert!(outcomes.iter().all(|&times| times > 0), "{outcomes:?}");
}

#[test]
fn the_sizes_that_the_docs_name() {
    use va_base::NoSlabs;
    let kib = |bytes: usize| bytes as f64 / 1024.0;
    assert!(kib(size_of::<BTreeIndex<NoSlabs>>()) < 3.6);
    assert!(kib(size_of::<BTreeIndex32<NoSlabs>>()) < 3.7);
    assert!(kib(size_of::<RbIndex<Linux, NoSlabs>>()) < 1.6);
    let holes = |index: &mut dyn FnMut(VaRange) -> bool| {
        (1..).find(|&n| !index(VaRange::from_pages(64 + 2 * n, 65 + 2 * n).unwrap())).unwrap()
    };
    let mut wide = BTreeIndex::new(space(), space(), NoSlabs).unwrap();
    let mut narrow = BTreeIndex32::new(space(), space(), NoSlabs).unwrap();
    let mut tree = RbIndex::<Linux, _>::new(space(), space(), NoSlabs).unwrap();
    let counts = [
        holes(&mut |range| wide.take(range).is_ok()),
        holes(&mut |range| narrow.take(range).is_ok()),
        holes(&mut |range| tree.take(range).is_ok()),
    ];
    assert_eq!(counts, [29, 59, 16]);
}

#[test]
fn a_full_inline_index_returns_an_error() {
    let mut index = BTreeIndex::new(space(), space(), va_base::NoSlabs).unwrap();
    let mut taken = 0;
    let error = loop {
        let at = 64 + 2 * taken;
        match index.take(VaRange::from_pages(at, at + 1).unwrap()) {
            Ok(_) => taken += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, AllocError::NoMeta { .. }), "{error}");
    // A kernel boots with more than a handful before it has a heap.
    assert!(taken >= 20, "{taken}");
    index.validate().unwrap();
}
