//! Entries of several sizes: how many are written, where areas with them begin, and whether each change leaves the
//! right mappings.
use va_base::{Align, Va, VaRange};
use va_map::{AreaRequest, Fill, Kind, Leaves, MapSpace, PageList, PageTable, Protection, Run};
use va_sim::machine::{Flushing, SimMachine};
use va_sim::map_model::MapModel;
use va_sim::pages::{Arm, Ask, FOREIGN, Ladder, One, SimPages};
use va_space::VmapSpace;

type MapOf<'a, 'm, L> = MapSpace<&'a SimMachine, &'a SimPages<'m, L>>;

const PAGE: u64 = va_base::PAGE_SIZE;

fn new_map<'a, 'm, L: Ladder>(
    machine: &'a SimMachine,
    pages: &'a SimPages<'m, L>,
    end: u64,
) -> MapOf<'a, 'm, L> {
    let window = VaRange::from_pages(0x10, end).unwrap();
    let space = VmapSpace::new(window, window, machine).unwrap();
    MapSpace::new(space, machine, pages).unwrap()
}

fn check<L: Ladder>(map: &MapOf<'_, '_, L>, pages: &SimPages<'_, L>) {
    map.validate().unwrap();
    assert_eq!(pages.faults(), Vec::<String>::new());
}

/// Consecutive pages of a caller.
struct Follow {
    first: u64,
    pages: u64,
}

impl PageList for Follow {
    fn count(&self) -> u64 {
        self.pages
    }

    fn page(&self, place: u64) -> u64 {
        self.first + place
    }

    fn run(&self, place: u64) -> Run {
        Run { first: self.first + place, pages: self.pages - place }
    }
}

/// Maps and unmaps a list; returns entries written, calls that wrote them, flushes, and its address.
fn costs<L: Ladder>(list: &Follow) -> (u64, u64, u64, Va) {
    let machine = SimMachine::new(1);
    let pages = SimPages::<L>::with_ladder(&machine, 0);
    let map = new_map(&machine, &pages, 1 << 22);
    // So that nothing is aligned by chance.
    let below = map.vmap(0, [FOREIGN + 1].as_slice(), Protection(0), 0).unwrap();
    let before = pages.written();
    let at = map.vmap(0, list, Protection(1), 0).unwrap();
    let written = (pages.written().0 - before.0, pages.written().1 - before.1);
    for place in [0, 1, list.pages / 2, list.pages - 1] {
        let leaf = PageTable::leaf(&pages, Va::new(at.get() + place * PAGE)).unwrap();
        let page = leaf.first + ((at.page_floor() + place) & ((1 << leaf.pages_log2) - 1));
        assert_eq!(page, list.first + place);
    }
    check(&map, &pages);
    map.vunmap(at).unwrap();
    map.vunmap(below).unwrap();
    map.purge();
    check(&map, &pages);
    assert_eq!(pages.mapped(), 0);
    (written.0, written.1, machine.flushes(), at)
}

#[test]
fn mp4_a_ladder_of_sizes_writes_fewer_entries_by_as_many_flushes() {
    let giga = 1 << 18;
    // Lists of consecutive pages, and the entries that a ladder of 1, 16, 512 and 2^18 pages needs.
    let cases = [
        (FOREIGN, 3, 3),
        (FOREIGN, 16, 1),
        (FOREIGN + 3, 64, 13 + 3 + 3),
        (FOREIGN, 512 + 16 + 3, 1 + 1 + 3),
        (FOREIGN + 16, 1024, 31 + 1 + 1),
        (FOREIGN, giga + 512 + 16 + 3, 1 + 1 + 1 + 3),
    ];
    for (first, pages, entries) in cases {
        let list = Follow { first, pages };
        let (large, one) = (costs::<Arm>(&list), costs::<One>(&list));
        let by_phase = list.first % 512;
        if by_phase == 0 {
            assert_eq!(large.0, entries, "{pages} pages from {first}");
        }
        assert!(large.0 <= one.0 && large.1 <= 4, "{large:?} and {one:?}");
        assert_eq!((one.0, one.1), (pages, 1));
        assert_eq!(large.2, one.2, "flushes");
        // No larger alignment than that of the largest entry.
        let largest = [giga, 512, 16].into_iter().find(|size| *size <= pages && by_phase == 0);
        let align = Align::from_log2(12 + largest.unwrap_or(1).ilog2()).unwrap();
        assert!(large.3.is_aligned(align), "{:?}", large.3);
    }
}

#[test]
fn mp4_an_area_of_several_sizes_is_right_when_it_is_cut_grows_moves_and_fails() {
    let machine = SimMachine::new(2);
    let pages = SimPages::<Arm>::with_ladder(&machine, 4096);
    let map = new_map(&machine, &pages, 0x4010);
    let mut model = MapModel::default();
    let large =
        AreaRequest::new((512 + 2 * 16 + 3) * PAGE).leaves(Leaves::LargeWherePossible).fill(Fill::Zeros);
    let at = map.vmalloc(0, &large).unwrap();
    model.vmalloc(at, &large).unwrap();
    let sizes = |at: Va| -> Vec<u32> {
        let inside = |&(page, _): &(u64, va_map::Leaf)| page >= at.page_floor();
        pages.entries().into_iter().filter(inside).map(|(_, leaf)| leaf.pages_log2).collect()
    };
    assert_eq!(sizes(at), [9, 4, 4, 0, 0, 0]);
    for page in [0, 511, 512, 543, 546] {
        pages.write(Va::new(at.get() + page * PAGE + 7), page as u8).unwrap();
        model.write(at, page * PAGE + 7, page as u8);
    }
    model.compare(&map, &pages).unwrap();
    // A cut inside an entry of 16: that entry remains whole.
    let mut now = at;
    for (bytes, usable) in [(530 * PAGE, 544), (700 * PAGE, 700), (513 * PAGE, 528)] {
        let to = map.vrealloc(0, now, bytes, Fill::Any).unwrap();
        assert_eq!(map.info(to).unwrap().usable_bytes, usable * PAGE);
        model.vrealloc(now, to, bytes, Fill::Any, usable * PAGE).unwrap();
        model.compare(&map, &pages).unwrap();
        now = to;
    }
    // It cannot grow there, so it moves, to an address where its entries can be as large.
    let wall = map.vmap(0, [FOREIGN].as_slice(), Protection(0), 0).unwrap();
    model.vmap(wall, Kind::Vmap, &[FOREIGN]).unwrap();
    machine.set_flushing(Flushing::OnRequest);
    let to = map.vrealloc(0, now, 1100 * PAGE, Fill::Any).unwrap();
    assert_ne!(to, now);
    model.vrealloc(now, to, 1100 * PAGE, Fill::Any, 1100 * PAGE).unwrap();
    model.compare(&map, &pages).unwrap();
    assert_eq!(sizes(to)[..2], [9, 4]);
    machine.set_flushing(Flushing::AtOnce);
    machine.complete_flushes();
    // A size that the table does not map, at every call: smaller ones are mapped, and the pages are the same.
    for granted in 0..6 {
        pages.fail_after(Ask::HugeLeaf, granted);
        let next = map.vmalloc(0, &large).unwrap();
        model.vmalloc(next, &large).unwrap();
        model.compare(&map, &pages).unwrap();
        assert!(sizes(next).len() > 6 || granted > 2, "{granted}");
        map.vfree(next).unwrap();
        model.free(next);
        map.purge();
    }
    pages.fail_after(Ask::HugeLeaf, u64::MAX);
    map.vfree(to).unwrap();
    model.free(to);
    model.compare(&map, &pages).unwrap();
}

#[test]
fn mp4_an_area_is_aligned_to_what_the_source_has_and_no_further() {
    let request = AreaRequest::new(1024 * PAGE).leaves(Leaves::LargeWherePossible);
    // 4096 pages have runs of 512; 1030, some of them allocated, have runs of 16 alone.
    for (frames, out, align) in [(4096, 0, 21), (1030, 1, 16)] {
        let machine = SimMachine::new(1);
        let pages = SimPages::<Arm>::with_ladder(&machine, frames);
        let map = new_map(&machine, &pages, 0x4010);
        let held: Vec<Va> = (0..out * 3).map(|_| map.vmalloc(0, &AreaRequest::new(PAGE)).unwrap()).collect();
        // Pages 0, 1 and 2 are allocated, so no run of 512 begins at 0, and there is one at 512.
        if out > 0 {
            pages.fail_after(Ask::HugePage, 0);
            let most = map.vmalloc(0, &AreaRequest::new(1000 * PAGE)).unwrap();
            pages.fail_after(Ask::HugePage, u64::MAX);
            map.vrealloc(0, most, PAGE, Fill::Any).unwrap();
        }
        let bytes = if out > 0 { 900 * PAGE } else { 1024 * PAGE };
        let at = map.vmalloc(0, &request.bytes(bytes)).unwrap();
        assert!(at.is_aligned(Align::from_log2(align).unwrap()), "{at}");
        check(&map, &pages);
        map.vfree(at).unwrap();
        held.into_iter().for_each(|at| map.vfree(at).unwrap());
        check(&map, &pages);
    }
}
