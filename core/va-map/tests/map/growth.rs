//! Growth of an area: what it takes, and where it goes.

use crate::points::{Map, new_map};
use va_base::{LockClass, RequestError, Va, VaRange};
use va_map::{AreaRequest, Fill, Guard, Leaves, MapError, MapSpace, Piece, Protection};
use va_sim::machine::{SimMachine, lockings};
use va_sim::pages::{Ask, FOREIGN, SimPages};
use va_space::VmapSpace;

const PAGE: u64 = va_base::PAGE_SIZE;

#[test]
fn growth_within_its_range_takes_no_lock_of_the_space() {
    let machine = SimMachine::new(1);
    let pages = SimPages::new(&machine, 100);
    let map = new_map(&machine, &pages, 0x1010);
    let at = map.vmalloc(0, &AreaRequest::new(2 * PAGE).range_bytes(10 * PAGE)).unwrap();
    // Up to the last page below the guard.
    for bytes in [9 * PAGE, 10 * PAGE] {
        let mut want = lockings();
        assert_eq!(map.vrealloc(0, at, bytes, Fill::Any), Ok(at));
        // Taken from the records, and put back.
        want[LockClass::Records as usize] += 2;
        assert_eq!(lockings(), want, "{bytes}");
    }
    map.validate().unwrap();
}

#[test]
fn mp6_addresses_that_the_space_has_flushed_are_not_flushed_again() {
    let machine = SimMachine::new(1);
    let pages = SimPages::new(&machine, 100);
    let map = new_map(&machine, &pages, 0x1010);
    let at = map.vmalloc(0, &AreaRequest::new(4 * PAGE).guard(Guard::None)).unwrap();
    // It grows in place, fails with three pages mapped, and its range shrinks to what it was.
    pages.fail_after(Ask::Pages, 3);
    assert!(matches!(map.vrealloc(0, at, 12 * PAGE, Fill::Any), Err(MapError::NoPages { .. })));
    assert_eq!(map.info(at).unwrap().range.len_bytes(), 4 * PAGE);
    pages.fail_after(Ask::Pages, u64::MAX);
    // The addresses above are the space's, which flushes them.
    map.purge();
    let flushes = machine.flushes();
    assert_eq!(map.vrealloc(0, at, 12 * PAGE, Fill::Any), Ok(at));
    assert_eq!((machine.flushes(), pages.faults()), (flushes, Vec::new()));
    map.validate().unwrap();
}

#[test]
fn mp4_an_area_that_moves_is_aligned_to_entries_that_its_pages_can_have_and_no_further() {
    let machine = SimMachine::new(1);
    let pages = SimPages::new(&machine, 100);
    let map = new_map(&machine, &pages, 0x1010);
    let at = map.vmalloc(0, &AreaRequest::new(PAGE).leaves(Leaves::LargeWherePossible)).unwrap();
    let wall = map.vmalloc(0, &AreaRequest::new(PAGE)).unwrap();
    assert_eq!([at, wall].map(Va::page_floor), [0x10, 0x12]);
    // The next six are below a multiple of eight, so no entry of eight pages begins and ends among pages 1 to 13.
    let to = map.vrealloc(0, at, 14 * PAGE, Fill::Any).unwrap();
    assert_eq!((to.page_floor(), pages.faults()), (0x14, Vec::new()));
    map.validate().unwrap();
}

#[test]
fn growth_without_a_window_stays_in_the_default_one() {
    let machine = SimMachine::new(1);
    let pages = SimPages::new(&machine, 100);
    let window = VaRange::from_pages(0x10, 0x20).unwrap();
    let space = VmapSpace::new(VaRange::from_pages(0x10, 0x1010).unwrap(), window, &machine).unwrap();
    let map: Map<'_, '_> = MapSpace::new(space, &machine, &pages).unwrap();
    let at = map.vmalloc(0, &AreaRequest::new(12 * PAGE)).unwrap();
    assert_eq!(map.vrealloc(0, at, 15 * PAGE, Fill::Any), Ok(at));
    let beyond = map.vrealloc(0, at, 16 * PAGE, Fill::Any);
    assert!(matches!(beyond, Err(MapError::Space(_))), "{beyond:?}");
    assert_eq!(map.info(at).unwrap().range, window);
    map.validate().unwrap();
}

#[test]
fn an_area_cannot_have_as_many_pages_as_there_are_addresses() {
    let machine = SimMachine::new(1);
    let pages = SimPages::new(&machine, 100);
    let map = new_map(&machine, &pages, 0x1010);
    let at = map.vmalloc(0, &AreaRequest::new(PAGE)).unwrap();
    for need in [(1 << 52) - 1, 1 << 52] {
        let error = RequestError::TooManyPages { pages: need };
        let bytes = (need - 1) * PAGE + 1;
        assert_eq!(map.vrealloc(0, at, bytes, Fill::Any), Err(error.into()));
    }
    let large = map.vrealloc(0, at, ((1 << 52) - 2) * PAGE, Fill::Any);
    assert!(matches!(large, Err(MapError::Space(_))), "{large:?}");
    assert_eq!(map.info(at).unwrap().usable_bytes, PAGE);
}

#[test]
fn a_read_reports_no_empty_fragment() {
    let machine = SimMachine::new(1);
    let pages = SimPages::new(&machine, 100);
    let map = new_map(&machine, &pages, 0x1010);
    let at = map.vmalloc(0, &AreaRequest::new(3 * PAGE).guard(Guard::None)).unwrap();
    let small = map.vm_map_ram(0, [FOREIGN, FOREIGN + 1].as_slice(), Protection(0)).unwrap();
    for (start, bytes) in [(at, 3 * PAGE), (small, 2 * PAGE), (small, 3 * PAGE), (at, 0x1000 * PAGE)] {
        let mut seen = 0;
        map.read(VaRange::from_size(start, bytes).unwrap(), |piece| {
            let (Piece::Hole { bytes } | Piece::Page { bytes, .. }) = piece;
            assert!(bytes > 0, "{piece:?}");
            seen += bytes;
        });
        assert_eq!(seen, bytes);
    }
}
