//! Tests of the placement of rooms, and of open granules.

use super::tests::*;
use super::*;
use std::collections::BTreeMap;
use vmalloc_os::os::Call;
use vmalloc_os::os::shim::Shim;

/// Returns the chi-square statistic of counts and their expected values.
fn chi_square(counts: &[u64], want: impl Fn(usize) -> f64) -> f64 {
    counts.iter().enumerate().map(|(at, &count)| (count as f64 - want(at)).powi(2) / want(at)).sum()
}

#[test]
fn places_are_drawn_evenly_in_tables_that_are_drawn_evenly_from_the_whole_window() {
    const PARTS: u64 = 16;
    const DRAWS: u64 = 60_000;
    let shim = Shim::default();
    let hard = make(&shim, Plan { cache_bytes_max: 0, quarantine_areas_max: 0, ..plan(None) });
    if !has_granules(&hard) {
        return;
    }
    let table = (2 * MIB / PAGE_BYTES) as u64;
    let tables = hard.window.window_pages() / table;
    let mut seen: BTreeMap<u64, u64> = BTreeMap::new();
    let (mut parts, mut inside) = ([0; PARTS as usize], [0; 64]);
    for nth in 0..DRAWS {
        let at = alloc(&hard, 1);
        let page = (at / PAGE_BYTES) as u64 - hard.window.first();
        // A table without an area for that long was drawn again.
        if seen.insert(page / table, nth).is_none_or(|last| nth - last > 1000) {
            parts[(page / table * PARTS / tables) as usize] += 1;
        }
        inside[(page % table * 64 / table) as usize] += 1;
        free(&hard, at).unwrap();
    }
    // A table is left when its pages were allocated twice; an area takes three.
    let drawn: u64 = parts.iter().sum();
    assert!((DRAWS * 3 / (2 * table)..).contains(&drawn), "{drawn}");
    // Chi square is above 45 in one of ten thousand seeds for 15 degrees of freedom, and above 120 for 63;
    // this seed is fixed.
    let even = chi_square(&parts, |_| drawn as f64 / PARTS as f64);
    assert!(even < 45.0, "chi square {even} of {parts:?}");
    // The first and the last page of a table are walls.
    let pages = |part| if part == 0 || part == 63 { 7.0 } else { 8.0 };
    let even = chi_square(&inside, |part| DRAWS as f64 * pages(part) / 510.0);
    assert!(even < 120.0, "chi square {even} of {inside:?}");
    // The same seed yields the same addresses, another seed others.
    let first = |seed| alloc(&make(&shim, Plan { seed: Some(seed), ..plan(None) }), 1) & (2 * MIB - 1);
    let base = |seed| (first(seed), first(seed));
    assert!((0..8).all(|seed| base(seed).0 == base(seed).1));
    assert!((1..8).any(|seed| first(seed) != first(0)));
    end(hard, &shim);
}

#[test]
fn large_places_are_drawn_evenly_from_the_whole_window() {
    const PARTS: u64 = 16;
    const DRAWS: u64 = 4000;
    let shim = Shim::default();
    for wall in [None, Some(Wall::Protection)] {
        let hard = make(&shim, Plan { cache_bytes_max: 0, quarantine_areas_max: 0, ..plan(wall) });
        let long = alloc(&hard, 64 * MIB);
        let window = hard.window.window_pages();
        let mut counts = [0; PARTS as usize];
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..DRAWS {
            let at = alloc(&hard, MIB);
            let page = (at / PAGE_BYTES) as u64 - hard.window.first();
            counts[(page * PARTS / window) as usize] += 1;
            seen.insert(page);
            free(&hard, at).unwrap();
        }
        // A long area occupies one of the sixteen ranges, or overlaps two.
        let even: Vec<_> = counts.into_iter().filter(|&count| count > DRAWS / PARTS * 3 / 4).collect();
        assert!(even.len() >= 14, "{counts:?}");
        let mean = even.iter().sum::<u64>() as f64 / even.len() as f64;
        let chi = chi_square(&even, |_| mean);
        assert!(chi < 45.0, "chi square {chi} of {counts:?}");
        // Among 2^18 addresses, 4,000 draws repeat one about thirty times.
        assert!(seen.len() > 3900, "{} of {DRAWS}", seen.len());
        free(&hard, long).unwrap();
        end(hard, &shim);
    }
}

/// Returns the number of mappings in the allocator's arena.
fn mappings(hard: &Hard<Shim>) -> usize {
    let extent = hard.window.extent();
    vmalloc_os::os::shim::mappings_in(extent.start().get() as usize, extent.end().get() as usize)
}

/// Returns true if the system supports granules. Else it prints that the test is skipped.
fn has_granules(hard: &Hard<Shim>) -> bool {
    let has = hard.window.wall() == Wall::Markers;
    if !has {
        eprintln!("SKIPPED: there are no guards here, and no granules");
    }
    has
}

#[test]
fn hg1_hg2_hg3_tables_of_pages_and_mappings_go_with_the_last_room() {
    let shim = Shim::default();
    let patient = Plan { quarantine_areas_max: 1 << 12, quarantine_bytes_max: 1 << 29, ..plan(None) };
    let hard = make(&shim, Plan { cache_bytes_max: 0, ..patient });
    if !has_granules(&hard) {
        return;
    }
    let mappings = || mappings(&hard);
    let open = || (0..hard.window.granules()).filter(|&at| hard.window.is_open(at)).count() as u64;
    let table = granules::TABLE;
    assert_eq!((mappings(), open()), (1, 0));
    // Pairs of short-lived areas: at most 16 tables are open at a time, besides those with live areas.
    let mut held = std::collections::VecDeque::new();
    for nth in 0..2000 {
        held.push_back(alloc(&hard, 1 + nth * 7919 % 70_000));
        if held.len() > 20 {
            free(&hard, held.pop_front().unwrap()).unwrap();
        }
        assert!(open() <= (16 + 20) * table, "{} granules are open", open());
    }
    assert!(mappings() < 2 * (16 + 20) + 2, "{} mappings", mappings());
    assert_eq!(hard.validate(), Ok(()));
    // The granules inside a large area have no markers; those that it shares with others do.
    let large = alloc(&hard, 9 * MIB + 5000);
    assert!((4 * table..6 * table + 36 * table).contains(&open()));
    held.push_back(large);
    held.into_iter().for_each(|at| free(&hard, at).unwrap());
    hard.trim();
    assert_eq!((mappings(), open()), (1, 0));
    assert!(hard.stats().quarantined_areas > 1000);
    end(hard, &shim);
}

#[test]
fn where_there_are_mappings_enough_areas_are_beside_each_other() {
    let shim = Shim::default();
    shim.limit_mappings(400);
    let hard = make(&shim, Plan { arena_bytes_max: 1 << 34, quarantine_areas_max: 0, ..plan(None) });
    if !has_granules(&hard) {
        return;
    }
    let mappings = || mappings(&hard);
    let mut areas = Vec::new();
    for nth in 0..3000 {
        let size = if nth % 4 == 0 { 700_000 } else { 1 + nth * 997 % 300_000 };
        areas.push(alloc(&hard, size));
        assert!(mappings() <= 150, "{} mappings after {nth}", mappings());
    }
    assert_eq!(hard.validate(), Ok(()));
    // Every other area is freed, which does not split mappings beyond the limit.
    for at in areas.iter().step_by(2).chain(areas.iter().skip(1).step_by(2)) {
        free(&hard, *at).unwrap();
        assert!(!is_readable(*at) && mappings() <= 250, "{} mappings", mappings());
    }
    end(hard, &shim);
}

#[test]
fn a_large_area_that_goes_leaves_the_bundle_that_it_was_in() {
    let shim = Shim::default();
    shim.limit_mappings(800);
    let hard = make(&shim, Plan { cache_bytes_max: 0, arena_bytes_max: 1 << 34, ..plan(None) });
    if !has_granules(&hard) {
        return;
    }
    // An eighth of the limit of edges, so that a bundle has two tables.
    let spread: Vec<_> = (0..16).map(|_| alloc(&hard, 3 * MIB)).collect();
    let active = || (0..hard.window.granules()).filter(|&at| hard.window.granule(at).is_active()).count();
    let mut bundled = 0;
    for _ in 0..64 {
        let at = alloc(&hard, 800 << 10);
        let granule = ((at / PAGE_BYTES) as u64 - hard.window.first()) / granules::GRANULE_PAGES;
        bundled += u32::from(hard.window.granule(granule).is_active());
        let before = active();
        free(&hard, at).unwrap();
        assert_eq!(active(), before);
        assert!(!is_readable(at));
    }
    assert_eq!(bundled, 64);
    spread.iter().for_each(|&at| free(&hard, at).unwrap());
    end(hard, &shim);
}

#[test]
fn cached_memory_is_released_before_a_room_fails() {
    let shim = Shim::default();
    let hard = make(&shim, plan(None));
    if !has_granules(&hard) {
        return;
    }
    let small = alloc(&hard, MIB);
    bytes(small, MIB).fill(1);
    free(&hard, small).unwrap();
    let cached = hard.stats().cached_bytes;
    shim.fail_some(Call::Commit, 0, 1);
    let large = alloc(&hard, 64 * MIB);
    assert!(cached > 0 && hard.stats().cached_bytes == 0);
    // Without cached memory the allocation fails, and nothing has changed.
    free(&hard, large).unwrap();
    hard.trim();
    let before = hard.stats();
    shim.fail(Call::Commit, 0);
    let layout = Layout::from_size_align(64 * MIB, 1).unwrap();
    assert!(matches!(hard.alloc(layout), Err(AllocError::CallFailed { call: Call::Commit, .. })));
    shim.allow();
    assert_eq!((hard.stats().live_bytes, hard.stats().arena_bytes), (before.live_bytes, before.arena_bytes));
    end(hard, &shim);
}

#[test]
fn stray_writes_behind_a_failed_wall_are_in_no_later_area() {
    for discards in [true, false] {
        let shim = Shim::default();
        let hard = make(&shim, Plan { window_bytes: 32 * MIB, arena_bytes_max: 32 * MIB, ..plan(None) });
        if hard.window.wall() != Wall::Markers {
            eprintln!("SKIPPED: there are no guards here");
            continue;
        }
        let areas: Vec<_> = (0..60).map(|nth| alloc(&hard, 1 + nth * 5000)).collect();
        shim.fail(Call::Guard, 0);
        shim.fail(Call::Forbid, 0);
        areas.iter().for_each(|&at| free(&hard, at).unwrap());
        shim.allow();
        // The rooms stayed open, and were zeroed when they were freed.
        assert!(hard.stats().failed_purges > 0);
        areas.iter().filter(|&&at| is_readable(at)).for_each(|&at| bytes(at, 1)[0] = 7);
        if !discards {
            shim.fail(Call::Discard, 0);
        }
        let areas: Vec<_> = (0..120).map(|nth| (alloc(&hard, 1 + nth * 900), 1 + nth * 900)).collect();
        for &(at, size) in &areas {
            assert!(bytes(at, size).iter().all(|&byte| byte == 0), "{size} bytes");
        }
        shim.allow();
        areas.iter().for_each(|&(at, _)| free(&hard, at).unwrap());
        end(hard, &shim);
    }
}

#[test]
fn hd2_only_areas_of_the_window_are_accessible() {
    for wall in [None, Some(Wall::Protection)] {
        let shim = Shim::default();
        let tight =
            Plan { arena_bytes_max: 64 * MIB, window_bytes: 64 * MIB, cache_bytes_max: 0, ..plan(wall) };
        let hard = make(&shim, tight);
        assert_eq!(readable_pages(&hard), []);
        let sizes = (0..30).map(|nth| 1 + nth * 10_000).chain([5 * MIB, 2 * MIB, 600_000]);
        let mut areas: Vec<_> = sizes.map(|size| (alloc(&hard, size), size)).collect();
        while !areas.is_empty() {
            let pages = |&(at, size): &(usize, usize)| {
                let first = (at / PAGE_BYTES) as u64 - hard.window.first();
                first..first + size.div_ceil(PAGE_BYTES) as u64
            };
            let mut want: Vec<_> = areas.iter().flat_map(pages).collect();
            want.sort_unstable();
            assert_eq!(readable_pages(&hard), want);
            assert_eq!(hard.validate(), Ok(()));
            let keep = areas.len() * 2 / 3;
            areas.drain(keep..).for_each(|(at, _)| free(&hard, at).unwrap());
        }
        assert_eq!(readable_pages(&hard), []);
        end(hard, &shim);
    }
}

#[test]
fn a_fork_copies_few_markers_and_tables_for_areas_that_live_long() {
    let shim = Shim::default();
    let patient = Plan { quarantine_areas_max: 1 << 13, quarantine_bytes_max: 1 << 29, ..plan(None) };
    let hard = make(&shim, Plan { window_bytes: 1 << 33, cache_bytes_max: 0, ..patient });
    if !has_granules(&hard) {
        return;
    }
    let mut draw = Draw::new([1, 2]);
    let mut areas: Vec<_> = (0..400).map(|_| alloc(&hard, 1)).collect();
    for _ in 0..6000 {
        let area = &mut areas[draw.below(400) as usize];
        free(&hard, *area).unwrap();
        *area = alloc(&hard, 1 + draw.below(70_000) as usize);
    }
    // In a process of these areas, what a fork copies: all pages that are accessible or marked.
    let is_open = |at: &u64| hard.window.is_open(*at);
    let open = (0..hard.window.granules()).filter(is_open).count() as u64 * granules::GRANULE_PAGES;
    let tables = (0..hard.window.granules() / granules::TABLE)
        .filter(|table| (table * granules::TABLE..(table + 1) * granules::TABLE).any(|at| is_open(&at)))
        .count() as u64;
    let live = (hard.stats().live_bytes / PAGE_BYTES) as u64;
    // The seed is fixed. With granules of 32 pages, or bundles that are left with the first area that does not fit,
    // more pages are open and marked.
    assert!(open * 10 <= live * 34 && tables <= 50, "{open} pages in {tables} tables for {live} live ones");
    assert!(mappings(&hard) <= 180, "{} mappings", mappings(&hard));
    areas.into_iter().for_each(|at| free(&hard, at).unwrap());
    end(hard, &shim);
}
