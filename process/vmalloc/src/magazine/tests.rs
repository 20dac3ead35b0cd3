//! Tests of magazines, with runs that are only numbers.

use super::*;
use vmalloc_os::os::shim::Shim;
use vmalloc_os::records::Host;

const FIRST: u64 = 1 << 20;

fn run(page: u64, pages: u64) -> Run {
    // SAFETY: no memory is touched in these tests: runs are numbers here.
    unsafe { Run::claim(FIRST + page, pages) }
}

fn magazine() -> &'static Magazine {
    &Host::open(Shim::default()).unwrap().alloc_zeroed::<Magazine>(1).unwrap()[0]
}

#[test]
fn mz1_what_has_no_room_pushes_out_others_and_nothing_is_lost() {
    let (magazine, big) = (magazine(), Big::new(4 * BIG_PAGES, u64::MAX / 2));
    let (mut state, mut inside, mut page) = (7u64, std::collections::BTreeMap::new(), 0);
    for round in 0..20_000 {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        let pages = match state >> 60 {
            0..8 => 1 + (state >> 33) % 9,
            8..14 => 1 + (state >> 33) % 300,
            _ => (state >> 33) % (5 * BIG_PAGES) + 1,
        };
        if round % 3 == 2 {
            if let Some(run) = magazine.take(pages, 1, FIRST, &big, || ()) {
                assert_eq!((run.pages(), inside.remove(&run.page())), (pages, Some(pages)));
            }
        } else {
            let mut out = Out::new(FIRST);
            page += pages;
            inside.insert(FIRST + page - pages, pages);
            if let Err(run) = magazine.put(run(page - pages, pages), FIRST) {
                magazine.push(run, SMALL_PAGES_MAX, &big, &mut out);
            }
            out.for_each(|run| assert_eq!(inside.remove(&run.page()), Some(run.pages())));
        }
        assert_eq!(magazine.check(), Ok(()));
        let held = magazine.held();
        assert_eq!((held.pages, held.items), (inside.values().sum(), inside.len() as u64));
        assert!(big.has_room(0));
    }
    assert!(magazine.held().hits > 1000);
    while magazine.held().items > 0 {
        let mut out = Out::new(FIRST);
        magazine.drain(Kinds::All, &big, &mut out);
        out.for_each(|run| assert_eq!(inside.remove(&run.page()), Some(run.pages())));
    }
    assert_eq!((inside.len(), big.pages()), (0, 0));
}

/// Frees runs of these sizes, one after the other. Returns the most runs that one call evicted.
fn free_all(magazine: &Magazine, big: &Big, sizes: impl Iterator<Item = u64>) -> usize {
    let (mut page, mut most) = (0, 0);
    for pages in sizes {
        let mut out = Out::new(FIRST);
        let fresh = run(page, pages);
        page += pages;
        if let Err(run) = magazine.put(fresh, FIRST) {
            magazine.push(run, SMALL_PAGES_MAX, big, &mut out);
        }
        assert_eq!(magazine.check(), Ok(()));
        assert!(big.has_room(0));
        most = most.max(out.count());
    }
    most
}

#[test]
fn mz1_more_than_two_sets_come_out_at_once() {
    let (magazine, big) = (magazine(), Big::new(32 * BIG_PAGES, u64::MAX / 2));
    // The last run fits only after all big items are evicted. The previous item leaves the front slot for its set,
    // which is full.
    let sizes = [(513, 8), (526, 8), (521, 9), (10_500, 1)];
    let most =
        free_all(magazine, &big, sizes.iter().flat_map(|&(pages, count)| (0..count).map(move |_| pages)));
    assert!((2 * WAYS + 1..=OUT_MAX).contains(&most), "{most}");
}

#[test]
fn mz1_a_budget_of_many_big_items_holds_and_so_does_what_comes_out() {
    let (magazine, big) = (magazine(), Big::new(32 * BIG_PAGES, u64::MAX / 2));
    let mut state = 11u64;
    let most = free_all(
        magazine,
        &big,
        (0..100_000).map(|_| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            match state >> 59 {
                0 => 9000 + (state >> 33) % (16 * BIG_PAGES),
                1..4 => 1 + (state >> 33) % 511,
                _ => [513, 526, 521][(state >> 33) as usize % 3],
            }
        }),
    );
    assert!((WAYS..=OUT_MAX).contains(&most), "{most}");
}

#[test]
fn mz2_a_count_that_is_wrong_is_seen() {
    let (magazine, big) = (magazine(), Big::new(BIG_PAGES, u64::MAX / 2));
    (0..2).for_each(|page| magazine.push(run(3 * page, 3), SMALL_PAGES_MAX, &big, &mut Out::new(FIRST)));
    assert_eq!(magazine.check(), Ok(()));
    magazine.sets.lock().small = 4;
    assert_eq!(magazine.check(), Err((3, 0)));
}

#[test]
fn the_newest_of_a_size_is_taken_first_and_aligned() {
    let (magazine, big) = (magazine(), Big::new(0, u64::MAX / 2));
    for page in [16, 3, 5] {
        magazine.push(run(page, 2), SMALL_PAGES_MAX, &big, &mut Out::new(FIRST));
    }
    assert_eq!(magazine.take(2, 16, FIRST, &big, || ()), Some(run(16, 2)));
    assert_eq!(magazine.take(2, 1, FIRST, &big, || ()), Some(run(5, 2)));
    assert_eq!(magazine.take(2, 2, FIRST, &big, || ()), None);
    assert_eq!(magazine.take(3, 1, FIRST, &big, || ()), None);
    let mut out = Out::new(FIRST);
    // No budget for big items: the run is not cached.
    magazine.push(run(100, BIG_PAGES), SMALL_PAGES_MAX, &big, &mut out);
    assert_eq!(out.next(), Some(run(100, BIG_PAGES)));
    assert_eq!(
        magazine.take(2, 1, FIRST, &big, || ()),
        Some(run(3, 2)),
        "a small one did not give way to it"
    );
}
