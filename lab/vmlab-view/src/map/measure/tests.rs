//! Compares the numbers with a slow, simple computation, page by page.

use super::*;
use crate::map::listing::Builder;
use va_sim::op::Rng;

const PAGE: u64 = 4096;

/// The content of every page of a window: nothing, or the name of a caller.
type Pages = Vec<Option<u32>>;

/// Returns a listing of some pages from `first` on, in two windows with a separate page between, and the content of
/// each page.
fn some(rng: &mut Rng, first: u64) -> (Listing, Vec<(u64, Pages)>) {
    let mut builder = Builder::default();
    let names = ["a", "b", "c", "d"];
    let length = 8 + rng.below(120);
    let gap = 8 + rng.below(30);
    let mut windows = Vec::new();
    for start in [first, first + length + gap] {
        windows.push(Part { start: start * PAGE, end: (start + length) * PAGE });
        let mut page = start;
        while page < start + length {
            // A random pattern of areas; a window may be entirely free or entirely used.
            let size = 1 + rng.below(9);
            let end = (page + size).min(start + length);
            if rng.below(3) > 0 {
                let state = State::ALL[[0, 0, 0, 0, 1, 2][rng.below(6) as usize]];
                let part = Part { start: page * PAGE, end: end * PAGE };
                builder.add(part, state, names[rng.below(4) as usize]);
            }
            page = end;
        }
    }
    let listing = builder.finish(Some(windows.clone()));
    let pages = windows.iter().map(|window| {
        let what = |page: u64| {
            let mut areas = listing.areas.iter();
            areas
                .find(|area| area.part.start <= page * PAGE && page * PAGE < area.part.end)
                .map(|area| area.caller)
        };
        (window.start / PAGE, (window.start / PAGE..window.end / PAGE).map(what).collect())
    });
    let pages = pages.collect();
    (listing, pages)
}

/// Returns the runs of pages for which `free` holds.
fn runs(pages: &Pages, free: impl Fn(Option<u32>) -> bool) -> Vec<Vec<usize>> {
    let mut runs: Vec<Vec<usize>> = vec![Vec::new()];
    for (at, &page) in pages.iter().enumerate() {
        if free(page) {
            runs.last_mut().unwrap().push(at);
        } else {
            runs.push(Vec::new());
        }
    }
    runs.retain(|run| !run.is_empty());
    runs
}

#[test]
fn me1_numbers_are_those_of_a_count_page_by_page() {
    let mut rng = Rng::new(3);
    let mut apart = 0;
    for round in 0..400 {
        let first = [0, 1, 511, 0x000f_fa00_0000_0000, (1 << 52) - 700][round % 5] + rng.below(300);
        let (listing, windows) = some(&mut rng, first);
        let numbers = Numbers::of(&listing);
        let all: u64 = windows.iter().map(|(_, pages)| pages.len() as u64 * PAGE).sum();
        let sum = numbers.busy.bytes + numbers.lazy.bytes + numbers.pooled.bytes + numbers.holes.bytes;
        assert_eq!(sum, all, "ME1");
        let holes: Vec<(u64, u64)> = windows
            .iter()
            .flat_map(|(start, pages)| {
                runs(pages, |page| page.is_none())
                    .into_iter()
                    .map(move |run| (start + run[0] as u64, run.len() as u64))
            })
            .collect();
        assert_eq!(numbers.holes.areas, holes.len() as u64);
        assert_eq!(numbers.holes_by_size.iter().sum::<u64>(), holes.len() as u64);
        let mut sizes: Vec<u64> = holes.iter().map(|hole| hole.1 * PAGE).collect();
        sizes.extend([0, 0]);
        sizes.sort_unstable_by_key(|&size| std::cmp::Reverse(size));
        assert_eq!(numbers.largest_holes[..], sizes[..2]);
        for row in &numbers.aligned {
            // Each aligned page of each hole, and the number of pages from there to its end.
            let mut best = (0, None);
            let mut enough = 0;
            for &(start, length) in &holes {
                let places = (start..start + length).filter(|page| (page * PAGE).is_multiple_of(row.align));
                let rooms: Vec<(u64, u64)> =
                    places.map(|page| (page, (start + length - page) * PAGE)).collect();
                enough += u64::from(rooms.iter().any(|&(_, room)| room >= row.align));
                for (page, room) in rooms {
                    if room > best.0 {
                        best = (room, Some(page * PAGE));
                    }
                }
            }
            assert_eq!((row.bytes, row.at, row.holes), (best.0, best.1, enough), "align {}", row.align);
        }
        for row in &numbers.callers {
            let owned = listing.areas.iter().filter(|area| area.caller == row.number);
            assert_eq!(row.bytes, owned.clone().map(|area| area.part.bytes()).sum::<u64>());
            assert_eq!(
                (row.areas, Some(row.largest)),
                (owned.clone().count() as u64, owned.map(|area| area.part.bytes()).max())
            );
            // Without the caller: the holes that form one run, except the largest.
            let mut keeps = 0;
            for (_, pages) in &windows {
                for run in runs(pages, |page| page.is_none_or(|caller| caller == row.number)) {
                    let inside: Pages = run.iter().map(|&at| pages[at]).collect();
                    let lengths: Vec<u64> = runs(&inside, |page| page.is_none())
                        .iter()
                        .map(|hole| hole.len() as u64 * PAGE)
                        .collect();
                    keeps += lengths.iter().sum::<u64>() - lengths.iter().max().copied().unwrap_or(0);
                }
            }
            assert_eq!(row.keeps_apart, keeps, "{} in {windows:?}", row.name);
            apart += keeps;
        }
        assert!(numbers.callers.windows(2).all(|pair| pair[0].bytes >= pair[1].bytes));
        assert!(numbers.by_keeps_apart().windows(2).all(|pair| pair[0].keeps_apart >= pair[1].keeps_apart));
    }
    assert!(apart > 1000 * PAGE);
}

#[test]
fn the_example_of_the_module_head() {
    let mut builder = Builder::default();
    for (start, name) in [(0, "B"), (4, "A"), (6, "A"), (13, "B"), (16, "C")] {
        builder.add(Part { start: start * PAGE, end: (start + 1) * PAGE }, State::Busy, name);
    }
    let numbers = Numbers::of(&builder.finish(None));
    let callers: Vec<(&str, u64)> =
        numbers.by_keeps_apart().iter().map(|row| (row.name.as_str(), row.keeps_apart / PAGE)).collect();
    assert_eq!(callers, [("A", 4), ("B", 2)]);
    assert_eq!(numbers.largest_holes, [6 * PAGE, 3 * PAGE]);
}

#[test]
fn an_empty_listing_has_no_numbers_and_the_last_address_no_overflow() {
    assert_eq!(Numbers::of(&Listing::default()).holes, Amount::default());
    let mut builder = Builder::default();
    builder.add(Part { start: 0, end: PAGE }, State::Busy, "f");
    let listing = builder.finish(Some(vec![Part { start: 0, end: u64::MAX }]));
    let numbers = Numbers::of(&listing);
    assert_eq!(numbers.holes, Amount { areas: 1, bytes: u64::MAX - PAGE });
    assert_eq!(numbers.aligned[8].at, Some(512 << 30));
}
