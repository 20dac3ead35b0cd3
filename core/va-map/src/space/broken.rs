//! Each invariant of areas, broken on purpose: `validate` names it, with what it expected.

use super::MapSpace;
use crate::machine::{Entries, Leaf, PageRequest, PageSource, PageTable, Run, Stopped};
use crate::record::Entry;
use crate::request::AreaRequest;
use std::collections::BTreeMap;
use va_base::sync::atomic::Ordering;
use va_base::{HeapMachine, PAGE_SIZE, Pages, Va, VaRange};
use va_space::VmapSpace;

type Machine = HeapMachine<parking_lot::RawMutex>;

/// The page at each address; the source has all numbers.
#[derive(Default)]
struct Flat(parking_lot::Mutex<BTreeMap<u64, u64>>);

impl PageTable for Flat {
    const LEAF_SIZES: &'static [u32] = &[0];

    fn map(&self, at: Va, Entries { run, .. }: Entries) -> Result<(), Stopped> {
        self.0.lock().extend((0..run.pages).map(|nth| (at.page_floor() + nth, run.first + nth)));
        Ok(())
    }

    fn unmap(&self, range: VaRange, gone: &mut dyn FnMut(Leaf)) {
        let (first, end) = range.whole_pages();
        for page in first..end {
            let frame = self.0.lock().remove(&page);
            frame.into_iter().for_each(|first| gone(Leaf { first, pages_log2: 0 }));
        }
    }

    fn leaf(&self, at: Va) -> Option<Leaf> {
        self.0.lock().get(&at.page_floor()).map(|&first| Leaf { first, pages_log2: 0 })
    }
}

impl PageSource for Flat {
    fn alloc(&self, frames: &mut [u64], _request: PageRequest) -> usize {
        (7..).zip(frames).map(|(number, frame)| *frame = number).count()
    }

    fn alloc_run(&self, _pages_log2: u32, _request: PageRequest) -> Option<u64> {
        None
    }

    fn free(&self, _run: Run) {}

    fn clear(&self, _frame: u64, _from: u64, _to: u64) {}
}

type Map<'m> = MapSpace<&'m Machine, Flat>;

/// The first page of an area of three pages, of which 9,000 bytes were requested, and a guard page.
const AT: u64 = 16;

/// Returns the rule that `change` breaks in a map with that area, one page of a caller, and the numbers of the report.
fn broken(change: impl FnOnce(&Map<'_>)) -> (&'static str, u64, u64) {
    let machine = Machine::new(1);
    let window = VaRange::from_pages(AT, 4096).unwrap();
    let space = VmapSpace::new(window, window, &machine).unwrap();
    let map: Map<'_> = MapSpace::new(space, &machine, Flat::default()).unwrap();
    let at = map.vmalloc(0, &AreaRequest::new(9000)).unwrap();
    map.vmap(0, [5].as_slice(), crate::machine::Protection(0), 0).unwrap();
    assert_eq!((at, map.validate()), (Va::from_page(AT), Ok(())));
    change(&map);
    let found = map.validate().unwrap_err();
    (found.rule, found.expected, found.actual)
}

fn record(map: &Map<'_>, change: impl FnOnce(&mut Entry)) {
    assert!(map.records().change(AT, change));
}

#[test]
fn mp2_sizes_that_contradict_each_other_are_found() {
    assert_eq!(broken(|map| record(map, |entry| entry.requested = 0)), ("MP2", 0, 3 * PAGE_SIZE));
    let more = 3 * PAGE_SIZE + 1;
    assert_eq!(broken(|map| record(map, |entry| entry.requested = more)), ("MP2", more, 3 * PAGE_SIZE));
    // The last page holds none of them.
    let less = 2 * PAGE_SIZE;
    assert_eq!(broken(|map| record(map, |entry| entry.requested = less)), ("MP2", less, 3 * PAGE_SIZE));
    // There is no room for the guard page.
    let narrow = broken(|map| {
        map.space().resize_at(Va::from_page(AT), Pages::new(3)).unwrap();
        record(map, |entry| entry.pages = 3);
    });
    assert_eq!(narrow, ("MP2", 9000, 3 * PAGE_SIZE));
}

#[test]
fn mp3_pages_counted_wrong_are_found() {
    assert_eq!(broken(|map| _ = map.allocated_pages.fetch_add(1, Ordering::Relaxed)), ("MP3", 3, 4));
    assert_eq!(broken(|map| _ = map.foreign_pages.fetch_add(1, Ordering::Relaxed)), ("MP3", 1, 2));
    let small = broken(|map| {
        map.vm_map_ram(0, [5, 6].as_slice(), crate::machine::Protection(0)).unwrap();
        assert_eq!(map.validate(), Ok(()));
        map.foreign_pages.fetch_sub(1, Ordering::Relaxed);
    });
    assert_eq!(small, ("MP3", 3, 2));
}

#[test]
fn mp5_an_area_without_a_record_and_a_record_without_an_area_are_found() {
    // Its pages are mapped where nothing should be.
    let lost = broken(|map| _ = map.claim(Va::from_page(AT), crate::record::Kind::Vmalloc, false).unwrap());
    assert_eq!(lost, ("MP1", 0, 1));
    let left = broken(|map| _ = map.space().free_at(Va::from_page(AT)).unwrap());
    assert_eq!(left, ("MP5", 2, 1));
}

#[test]
fn rd2_a_reservation_that_is_left_is_found() {
    assert_eq!(broken(|map| map.reserve().unwrap()), ("RD2", 0, 1));
}
