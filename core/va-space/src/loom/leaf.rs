//! Interleavings of lookups with a leaf of the page map that moves to other pages (`map::leaf`). Leaves have 8 slots
//! here.

use super::{model, spawn};
use crate::State;
use crate::map::{Marker, PageMap, Step, Word};
use crate::testing::TestMachine;
use std::sync::Arc;

/// Returns the word of a busy area of two pages.
fn busy(map: &PageMap, page: u64) -> Word {
    Word::new(2, None, map.last_generation(page) + 1, State::Busy)
}

/// Begins an area of two pages, in a leaf that is in place or empty.
fn begin(map: &PageMap, marker: &mut Marker, page: u64) -> Word {
    assert!(map.attach(marker, page), "no leaf for page {page}");
    let word = busy(map, page);
    map.begin(marker, page, 2, word);
    word
}

/// Returns a map with entries for pages up to 31 and one empty leaf, which serves pages 8 to 15, and the word of an
/// earlier area at 11.
fn map() -> (Arc<PageMap>, Marker, Word) {
    let machine = TestMachine::default();
    let Some((map, mut marker)) = PageMap::new(0, &machine) else { panic!("no memory") };
    assert!(map.reserve(16, &machine) && map.reserve(0, &machine));
    map.ensure(&mut marker, 11, &machine);
    let old = begin(&map, &mut marker, 11);
    map.end(&mut marker, 11);
    (Arc::new(map), marker, old)
}

#[test]
fn a_leaf_that_leaves_shows_no_reader_an_area_of_its_next_place() {
    model(|| {
        let (map, mut marker, _) = map();
        let theirs = map.clone();
        let reader = spawn(move || (theirs.at(11), theirs.at(27)));
        let word = begin(&map, &mut marker, 27);
        let Ok((here, there)) = reader.join() else { panic!("the reader") };
        assert_eq!(here, None, "nothing starts there");
        assert!(there.is_none_or(|seen| (seen.page, seen.pages, seen.word) == (27, 2, word)), "{there:?}");
        assert_eq!(map.check(), Ok(()));
    });
}

#[test]
fn a_leaf_that_left_and_came_back_shows_nothing_of_where_it_was() {
    model(|| {
        let (map, mut marker, _) = map();
        let theirs = map.clone();
        let reader = spawn(move || theirs.at(11));
        begin(&map, &mut marker, 27);
        map.end(&mut marker, 27);
        assert!(map.attach(&mut marker, 11));
        map.release(&mut marker, 11);
        assert_eq!(reader.join().ok().flatten(), None, "nothing starts there");
        assert_eq!(map.check(), Ok(()));
    });
}

#[test]
fn what_covers_a_page_is_found_though_a_leaf_between_leaves() {
    model(|| {
        let (map, mut marker, _) = map();
        map.add(&mut marker, PageMap::alloc(&TestMachine::default()).unwrap_or_else(|| panic!("no memory")));
        // Another leaf for the first entry: the list has the first leaf, which just became empty, in front.
        begin(&map, &mut marker, 11);
        assert!(map.attach(&mut marker, 1));
        let word = Word::new(14, None, 1, State::Busy);
        map.end(&mut marker, 11);
        map.begin(&mut marker, 1, 14, word);
        let theirs = map.clone();
        let reader = spawn(move || theirs.covering(12));
        begin(&map, &mut marker, 26);
        let seen = reader.join().ok().flatten();
        assert_eq!(seen.map(|seen| (seen.page, seen.pages)), Some((1, 14)));
        assert_eq!(map.check(), Ok(()));
    });
}

#[test]
fn a_handle_of_before_is_no_handle_of_what_its_slot_is_of_now() {
    model(|| {
        let (map, mut marker, old) = map();
        let theirs = map.clone();
        let holder = spawn(move || {
            // As `VmapSpace::free` does with a handle that was used before.
            theirs.slot(11).is_some_and(|slot| slot.word().is_of(2, old.generation()))
        });
        let new = begin(&map, &mut marker, 27);
        assert!(!holder.join().unwrap_or(true), "{old:?} and {new:?}");
        assert_eq!(map.check(), Ok(()));
    });
}

#[test]
fn a_free_by_address_gets_nothing_of_where_its_leaf_was() {
    model(|| {
        let (map, mut marker, _) = map();
        let theirs = map.clone();
        let freer = spawn(move || {
            let found = theirs.found(11, Word::is_steady)?;
            found.exchange(found.word.with_state(State::Idle)).is_ok().then_some(found.word)
        });
        // Its leaf moves to other pages, and then back, for another area.
        begin(&map, &mut marker, 27);
        map.end(&mut marker, 27);
        let back = begin(&map, &mut marker, 11);
        let freed = freer.join().ok().flatten();
        assert!(freed.is_none_or(|freed| freed == back), "{freed:?} is not {back:?}");
        assert_eq!(map.check(), Ok(()));
    });
}

#[test]
fn a_leaf_that_returns_to_the_machine_shows_no_reader_an_area() {
    model(|| {
        let (map, mut marker, old) = map();
        let machine = TestMachine::default();
        let theirs = map.clone();
        let reader = spawn(move || theirs.at(11));
        // The machine keeps it as long as the reader runs.
        assert!(matches!(map.retire(&mut marker), Step::Leaves(_)));
        // So do the two tables above.
        (0..2).for_each(|_| assert!(matches!(map.retire(&mut marker), Step::Table(_))));
        // Parts of the map without a table are passed one by one.
        let end =
            std::iter::repeat_with(|| map.retire(&mut marker)).find(|step| !matches!(step, Step::NoTable));
        assert!(matches!(end, Some(Step::End)) && !map.attach(&mut marker, 11));
        assert!(map.reserve(11, &machine) && !map.attach(&mut marker, 11), "a leaf is left");
        map.add(&mut marker, PageMap::alloc(&machine).unwrap_or_else(|| panic!("no memory")));
        let word = begin(&map, &mut marker, 11);
        assert!(word.generation() > old.generation(), "{word:?} after {old:?}");
        let seen = reader.join().ok().flatten();
        assert!(seen.is_none_or(|seen| (seen.page, seen.pages, seen.word) == (11, 2, word)), "{seen:?}");
        assert_eq!(map.check(), Ok(()));
    });
}
