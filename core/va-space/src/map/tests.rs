//! Tests of the page map by itself.

use super::leaf::{SHEET, SLOTS};
use super::*;
use crate::testing::{TestMachine, at_look};
use std::boxed::Box;
use std::sync::Mutex;
use std::vec::Vec;

/// Returns a map with areas of two pages at these pages.
fn map(pages: &[u64]) -> (PageMap, Marker) {
    let machine = TestMachine::default();
    let (map, mut marker) = PageMap::new(0, &machine).unwrap();
    for &page in pages {
        map.ensure(&mut marker, page, &machine);
        map.begin(&mut marker, page, 2, Word::new(2, None, 1, State::Busy));
    }
    map.check().unwrap();
    (map, marker)
}

/// Near, in the next table, in another branch, and at the end of the address space.
const FAR_APART: [u64; 5] = [3, 1500, 1 << 22, 1 << 40, COVERED_PAGES - 3];

#[test]
fn tables_are_counted_as_they_come() {
    let machine = TestMachine::default();
    let (map, mut marker) = PageMap::new(1 << 22, &machine).unwrap();
    assert_eq!((map.tables(), map.count_tables()), (4, 4));
    for page in FAR_APART {
        // Twice: what is there is not counted again.
        (0..2).for_each(|_| map.ensure(&mut marker, page, &machine));
        assert_eq!(map.tables(), map.count_tables());
    }
    assert!(map.tables() > 12);
}

#[test]
fn a_near_table_far_above_serves_no_low_page() {
    let machine = TestMachine::default();
    // All bits of its number are high ones.
    let (map, mut marker) = PageMap::new(1 << 38, &machine).unwrap();
    for page in [16, (1 << 38) + 16] {
        map.ensure(&mut marker, page, &machine);
        map.begin(&mut marker, page, 2, Word::new(2, None, 1, State::Busy));
        assert_eq!(map.check(), Ok(()));
    }
    assert_eq!(map.next(0).map(|seen| seen.page), Some(16));
}

#[test]
fn pm2_a_bit_without_an_area_below_is_named() {
    let (map, mut marker) = map(&FAR_APART);
    // A table loses its start, and the tables above keep their bits.
    let index = (1u64 << 22) >> shape::Mid::LOG2;
    let mid = map.near[0].child(index as usize).unwrap();
    assert!(mid.unmark(0));
    let leaf = map.leaf(1 << 22).unwrap();
    marker.empties.push(leaf);
    assert_eq!(map.check().unwrap_err().rule, "PM2");
    mid.mark(0, 1);
    marker.empties.remove(leaf);
    map.check().unwrap();
}

#[test]
fn pm4_a_leaf_that_names_another_place_is_named_and_one_that_is_not_listed() {
    let (map, mut marker) = map(&FAR_APART);
    let leaf = map.leaf(1500).unwrap();
    leaf.serve(3, 0);
    assert_eq!(map.check().unwrap_err().rule, "PM4");
    leaf.serve(1500, 0);
    map.check().unwrap();
    marker.empties.push(leaf);
    assert_eq!(map.check().unwrap_err().rule, "PM4");
    marker.empties.remove(leaf);
    map.end(&mut marker, 1500);
    map.check().unwrap();
    marker.empties.remove(leaf);
    assert_eq!(map.check().unwrap_err().rule, "PM4");
}

#[test]
fn a_leaf_that_is_to_serve_is_not_taken_for_another_place() {
    let (map, mut marker) = map(&[3]);
    map.end(&mut marker, 3);
    // Itself, and those that were allocated with it and have no entry: an entry for each, and none for one more.
    let pages: Vec<u64> = (0..=SHEET as u64).map(|leaf| 3 + leaf * SLOTS as u64).collect();
    let [others @ .., more] = &*pages else { panic!("no leaf") };
    assert!(others.iter().all(|&page| map.attach(&mut marker, page)));
    assert!(!map.attach(&mut marker, *more) && map.attach(&mut marker, 3));
    map.release(&mut marker, 3);
    assert!(map.attach(&mut marker, *more) && !map.attach(&mut marker, 3));
    pages[1..].iter().for_each(|&page| map.release(&mut marker, page));
    map.check().unwrap();
}

#[test]
fn pm3_a_word_without_a_start_is_named_and_a_start_without_a_word() {
    let (map, _marker) = map(&FAR_APART);
    FAR_APART.into_iter().for_each(|page| map.check_bit(page).unwrap());
    map.put(4, Word::new(1, None, 1, State::Busy));
    assert_eq!(map.check_bit(4).unwrap_err().rule, "PM3");
    map.put(1500, Word::NONE);
    assert_eq!(map.check_bit(1500).unwrap_err().rule, "PM3");
}

#[test]
fn what_covers_a_page_is_found_however_far_its_neighbours_are() {
    let (map, mut marker) = map(&FAR_APART);
    for page in FAR_APART {
        let found = |page| map.covering(page).map(|seen| seen.page);
        assert_eq!([found(page), found(page + 1), found(page + 2)], [Some(page), Some(page), None]);
        assert_eq!(map.next(page).map(|seen| seen.page), Some(page));
    }
    assert_eq!(map.next(5).map(|seen| seen.page), Some(1500));
    map.end(&mut marker, 1500);
    assert_eq!(map.next(5).map(|seen| seen.page), Some(1 << 22));
    assert_eq!(map.covering(1500).map(|seen| seen.page), None);
    map.check().unwrap();
}

#[test]
fn what_covers_a_page_is_found_where_it_starts_in_another_table() {
    let machine = TestMachine::default();
    // From the second leaf to the third, and from the second table of leaves to the third; near, and far.
    let (leaf, table, near) = (SLOTS as u64, 1 << shape::Mid::LOG2, 1 << shape::Top::LOG2);
    for (start, pages) in [(leaf + 6, leaf), (table + 3, 2 * table), (5 * near + table + 3, 2 * table)] {
        let (map, mut marker) = PageMap::new(0, &machine).unwrap();
        map.ensure(&mut marker, start, &machine);
        map.begin(&mut marker, start, pages, Word::new(pages, None, 1, State::Busy));
        let last = start + pages - 1;
        for page in [start, start + leaf - 1, last] {
            assert_eq!(map.covering(page).map(|seen| seen.page), Some(start), "{page}");
        }
        assert_eq!(map.covering(last + 1).map(|seen| seen.page), None);
        map.check().unwrap();
    }
}

#[test]
fn the_table_behind_the_near_one_is_another() {
    let far = (1 << shape::Top::LOG2) + 3;
    let (map, _marker) = map(&[3, far]);
    assert_eq!(map.next(4).map(|seen| seen.page), Some(far));
    assert_eq!(map.covering(far + 1).map(|seen| seen.page), Some(far));
}

#[test]
fn the_next_busy_area_is_found_wherever_it_is_among_idle_and_detached_ones() {
    for (step, first) in [(1, 0), (1, 70), (2, 3), (5, 1)] {
        let starts: Vec<u64> = (0..200).map(|n| first + n * step).collect();
        let machine = TestMachine::default();
        let (map, mut marker) = PageMap::new(0, &machine).unwrap();
        for (n, &page) in starts.iter().enumerate() {
            map.ensure(&mut marker, page, &machine);
            let state = if n % 7 == 0 { State::Detached } else { State::Idle };
            map.begin(&mut marker, page, 1, Word::new(1, None, 1, state));
        }
        assert_eq!(map.next_busy(0), None);
        for &busy in &starts {
            let word = map.word(busy);
            map.put(busy, word.with_state(State::Busy));
            for from in [0, first, busy.saturating_sub(66), busy.saturating_sub(1), busy] {
                assert_eq!(map.next_busy(from).map(|seen| seen.page), Some(busy), "from {from}");
            }
            assert_eq!(map.next_busy(busy + 1), None);
            map.put(busy, word);
        }
    }
}

/// A map whose leaves are all in use: areas of two pages start at `SLOTS * 100` and its multiples.
struct Full {
    map: PageMap,
    marker: Mutex<Marker>,
}

impl Full {
    fn new() -> &'static Self {
        let pages: Vec<_> = (1..=SHEET as u64).map(|nth| nth * SLOTS as u64 * 100).collect();
        let (map, marker) = map(&pages);
        Box::leak(Box::new(Self { map, marker: Mutex::new(marker) }))
    }

    /// Ends the area at `from`. Its leaf moves to `to`, where an area of four pages begins.
    fn shift(&self, from: u64, to: u64) {
        let marker = &mut self.marker.lock().unwrap();
        self.map.end(marker, from);
        self.map.ensure(marker, to, &TestMachine::default());
        self.map.begin(marker, to, 4, Word::new(4, None, 1, State::Busy));
    }
}

#[test]
fn a_lookup_during_which_the_leaf_moves_finds_what_is_there_afterwards() {
    let full = Full::new();
    let (map, page, other) = (&full.map, SLOTS as u64 * 100, SLOTS as u64 * 200);
    // The leaf has an area in the same slot, of other pages.
    at_look(1, || full.shift(SLOTS as u64 * 100, 16));
    assert_eq!(map.covering(page + 1), None);
    at_look(2, || full.shift(16, 32));
    assert_eq!(map.at(16), None);
    // Another leaf is there, with an area.
    at_look(1, || full.shift(SLOTS as u64 * 200, SLOTS as u64 * 100));
    assert_eq!(map.at(page).map(|seen| seen.pages), Some(4));
    at_look(1, || {
        full.shift(SLOTS as u64 * 100, SLOTS as u64 * 200);
        full.shift(SLOTS as u64 * 300, SLOTS as u64 * 100);
    });
    assert_eq!(map.covering(page + 3).map(|seen| seen.page), Some(page));
    assert_eq!(map.at(other).map(|seen| seen.pages), Some(4));
    map.check().unwrap();
}

#[test]
fn a_step_of_a_pass_looks_at_the_entries_of_one_table_at_each_level() {
    let top = 1 << shape::Top::LOG2;
    let pages = [3, 2 * top + 5, 5 * top, (1 << shape::High::LOG2) + 7];
    let (map, mut marker) = map(&pages);
    pages.into_iter().for_each(|page| map.end(&mut marker, page));
    let mut pass = || {
        let (mut steps, mut returned) = (0, 0);
        loop {
            match map.retire(&mut marker) {
                Step::End => return (steps, returned),
                Step::Leaves(_) | Step::LeavesInUse => {}
                Step::Table(_) => (steps, returned) = (steps + 1, returned + 1),
                Step::NoTable => steps += 1,
            }
        }
    };
    let (steps, returned) = pass();
    assert_eq!(returned, pages.len());
    // Nothing is left but what is above: each table there is passed in a step of its own.
    let above = [4, 2, 1, 1].into_iter().sum::<usize>();
    assert_eq!((steps, pass()), (returned + above, (above, 0)));
    map.check().unwrap();
}

#[test]
fn starts_whose_area_has_just_ended_are_passed() {
    // As a reader sees it that read the start bits a moment ago: two of these areas have ended, and the lowest has grown.
    let (map, mut marker) = map(&[3, 7, 10, 30]);
    [7, 10].into_iter().for_each(|page| map.put(page, Word::NONE));
    map.resize(&mut marker, 3, 17, Word::new(17, None, 2, State::Busy));
    let start = |seen: Option<Seen>| seen.map(|seen| seen.page);
    assert_eq!(
        [4, 7, 11, 19, 20, 30].map(|page| start(map.covering(page))),
        [Some(3), Some(3), Some(3), Some(3), None, Some(30)]
    );
    assert_eq!((start(map.next(4)), start(map.next_busy(4))), (Some(30), Some(30)));
}

#[test]
fn a_busy_area_that_ends_when_it_is_found_is_passed() {
    let (map, marker) = map(&[0, 30]);
    let (map, marker): (&'static PageMap, _) = (Box::leak(Box::new(map)), Mutex::new(marker));
    at_look(2, move || map.end(&mut marker.lock().unwrap(), 0));
    assert_eq!(map.next_busy(0).map(|seen| seen.page), Some(30));
}

#[test]
fn li1_any_page_can_be_lost_and_so_can_the_end_of_a_list() {
    let map = PageMap::empty();
    assert_eq!(map.lost(), None);
    for page in [0, 7, u64::MAX] {
        assert_eq!((map.lose::<()>(page), map.lost()), (None, Some(page)));
    }
}
