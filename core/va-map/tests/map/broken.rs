//! A page table that was changed behind the map's back: `validate` names the rule that no longer holds.

use crate::points::{Map, new_map};
use va_base::{Va, VaRange};
use va_map::{AreaRequest, Entries, Leaves, PageTable, Protection, Run};
use va_sim::machine::SimMachine;
use va_sim::pages::SimPages;

const PAGE: u64 = va_base::PAGE_SIZE;

/// Replaces the entries of some pages of an area by one, and returns the rule that is broken then, and its numbers.
fn replaced(request: AreaRequest, pages_log2: u32, from: u64, first: u64) -> (&'static str, u64, u64) {
    let machine = SimMachine::new(1);
    let pages = SimPages::new(&machine, 100);
    let map: Map<'_, '_> = new_map(&machine, &pages, 0x1010);
    let at = map.vmalloc(0, &request).unwrap();
    assert_eq!((at, map.validate()), (Va::from_page(0x10), Ok(())));
    let start = Va::from_page(0x10 + from);
    pages.unmap(VaRange::from_size(start, PAGE << pages_log2).unwrap(), &mut |_| ());
    let run = Run { first, pages: 1 << pages_log2 };
    pages.map(start, Entries { run, pages_log2, protection: Protection(0) }).unwrap();
    let found = map.validate().unwrap_err();
    (found.rule, found.expected, found.actual)
}

#[test]
fn mp4_an_entry_off_its_size_in_address_or_page_number_or_past_the_end_is_found() {
    let area = AreaRequest::new(9 * PAGE);
    assert_eq!(replaced(area, 1, 3, 50), ("MP4", 2, 3), "begins at an odd address");
    assert_eq!(replaced(area, 1, 4, 51), ("MP4", 2, 4), "begins with an odd page");
    assert_eq!(replaced(area, 1, 8, 50), ("MP4", 2, 8), "ends past the last page");
}

#[test]
fn mp2_an_entry_beyond_the_requested_bytes_is_found() {
    // One byte has an entry of eight pages; then an entry of two in place of it, and another.
    let machine = SimMachine::new(1);
    let pages = SimPages::new(&machine, 100);
    let map = new_map(&machine, &pages, 0x1010);
    let large = AreaRequest::new(8 * PAGE).leaves(Leaves::LargeWherePossible);
    let at = map.vmalloc(0, &large).unwrap();
    map.vrealloc(0, at, 2 * PAGE, va_map::Fill::Any).unwrap();
    assert_eq!((map.info(at).unwrap().usable_bytes, map.validate()), (8 * PAGE, Ok(())));
    let first = pages.leaf(at).unwrap().first;
    pages.unmap(VaRange::from_size(at, 8 * PAGE).unwrap(), &mut |_| ());
    let run = Run { first, pages: 8 };
    pages.map(at, Entries { run, pages_log2: 1, protection: Protection(0) }).unwrap();
    let found = map.validate().unwrap_err();
    assert_eq!((found.rule, found.expected, found.actual), ("MP2", 2 * PAGE, 4 * PAGE));
}

#[test]
fn mp1_a_page_that_is_missing_and_one_too_many_are_found() {
    let machine = SimMachine::new(1);
    let pages = SimPages::new(&machine, 100);
    let map = new_map(&machine, &pages, 0x1010);
    let at = map.vmalloc(0, &AreaRequest::new(3 * PAGE)).unwrap();
    let guard = Va::from_page(0x13);
    let one = Entries { run: Run { first: 50, pages: 1 }, pages_log2: 0, protection: Protection(0) };
    pages.map(guard, one).unwrap();
    let found = map.validate().unwrap_err();
    assert_eq!((found.rule, found.expected, found.actual), ("MP1", 3, 3));
    pages.unmap(VaRange::from_size(guard, PAGE).unwrap(), &mut |_| ());
    assert_eq!(map.validate(), Ok(()));
    pages.unmap(VaRange::from_size(Va::new(at.get() + PAGE), PAGE).unwrap(), &mut |_| ());
    let found = map.validate().unwrap_err();
    assert_eq!((found.rule, found.expected, found.actual), ("MP1", 3, 1));
}
