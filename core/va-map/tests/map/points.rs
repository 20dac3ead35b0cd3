//! Single guarantees of the map: sizes, guard pages, huge pages, growth in place, wrong calls, reads across holes.
use va_base::{Align, LockClass, Pages, RequestError, Va, VaRange};
use va_block::UnmapError;
use va_block::config::Linux64;
use va_map::{
    AreaRequest, DirectMap, Fill, FreeError, Guard, Kind, Leaves, MapError, MapSpace, PageTableError, Piece,
    Protection,
};
use va_sim::machine::{Flushing, SimMachine, lockings};
use va_sim::pages::{Ask, FOREIGN, SimPages};
use va_space::VmapSpace;

pub(crate) type Map<'a, 'm> = MapSpace<&'a SimMachine, &'a SimPages<'m>>;

const PAGE: u64 = va_base::PAGE_SIZE;

pub(crate) fn new_map<'a, 'm>(machine: &'a SimMachine, pages: &'a SimPages<'m>, end: u64) -> Map<'a, 'm> {
    let window = VaRange::from_pages(0x10, end).unwrap();
    let space = VmapSpace::new(window, window, machine).unwrap();
    MapSpace::new(space, machine, pages).unwrap()
}

fn check(map: &Map<'_, '_>, pages: &SimPages<'_>) {
    map.validate().unwrap();
    assert_eq!(pages.faults(), Vec::<String>::new());
}

#[test]
fn mp2_the_three_sizes_are_distinct() {
    let machine = SimMachine::new(1);
    let pages = SimPages::new(&machine, 100);
    let map = new_map(&machine, &pages, 0x1010);
    let request = AreaRequest::new(2 * PAGE + 1).range_bytes(10 * PAGE).caller(42);
    let at = map.vmalloc(0, &request).unwrap();
    let info = map.info(at).unwrap();
    assert_eq!((info.requested_bytes, info.usable_bytes), (2 * PAGE + 1, 3 * PAGE));
    assert_eq!((info.range.len_bytes(), info.caller, info.kind), (11 * PAGE, 42, Kind::Vmalloc));
    assert_eq!((pages.allocated(), map.info(Va::new(at.get() + 10 * PAGE))), (3, Some(info)));
    // Within its pages, then within its range, then beyond: never moved, since the addresses above are free.
    for (bytes, usable, range) in
        [(3 * PAGE, 3, 11), (10 * PAGE, 10, 11), (10 * PAGE + 1, 11, 12), (5, 1, 12)]
    {
        assert_eq!(map.vrealloc(0, at, bytes, Fill::Any), Ok(at));
        let info = map.info(at).unwrap();
        let sizes = (info.requested_bytes, info.usable_bytes / PAGE, info.range.len_bytes() / PAGE);
        assert_eq!((sizes, pages.allocated()), ((bytes, usable, range), usable));
        check(&map, &pages);
    }
    map.vfree(at).unwrap();
    assert_eq!((pages.allocated(), map.stats().areas), (0, 0));
}

#[test]
fn mp1_no_guard_where_none_is_wanted() {
    let machine = SimMachine::new(1);
    let pages = SimPages::new(&machine, 100);
    let map = new_map(&machine, &pages, 0x1010);
    let bare = AreaRequest::new(3 * PAGE).guard(Guard::None);
    let (low, high) = (map.vmalloc(0, &bare).unwrap(), map.vmalloc(0, &bare).unwrap());
    assert_eq!(high.get() - low.get(), 3 * PAGE);
    check(&map, &pages);
}

#[test]
fn mp4_large_entries_where_possible_and_small_ones_where_not() {
    let machine = SimMachine::new(1);
    let huge = AreaRequest::new(20 * PAGE).leaves(Leaves::LargeWherePossible);
    // The failing resource, then the number of entries and of the large ones among them. Entries have 8 pages, 2, and
    // one.
    type Failing = Option<(Ask, u64)>;
    let cases: [(Failing, (usize, usize)); 5] = [
        (None, (2 + 2, 4)),
        (Some((Ask::HugePage, 2)), (2 + 4, 2)),
        (Some((Ask::HugePage, 1)), (1 + 12, 1)),
        (Some((Ask::HugePage, 0)), (20, 0)),
        (Some((Ask::HugeLeaf, 0)), (20, 0)),
    ];
    for (failing, leaves) in cases {
        let pages = SimPages::new(&machine, 100);
        let map = new_map(&machine, &pages, 0x1010);
        if let Some((what, after)) = failing {
            pages.fail_after(what, after);
        }
        let at = map.vmalloc(0, &huge).unwrap();
        assert_eq!((pages.leaves(), pages.allocated()), (leaves, 20), "{failing:?}");
        // Whole leaves are freed; the requested bytes are those of the call.
        map.vrealloc(0, at, 3 * PAGE, Fill::Any).unwrap();
        let usable = if leaves.1 > 0 {
            8
        } else if pages.leaves().1 > 0 {
            4
        } else {
            3
        };
        assert_eq!(map.info(at).unwrap().usable_bytes, usable * PAGE);
        check(&map, &pages);
        map.vfree(at).unwrap();
        map.purge();
        assert_eq!((pages.allocated(), pages.mapped()), (0, 0));
        check(&map, &pages);
    }
    // Without room for the alignment, the area is allocated all the same.
    let pages = SimPages::new(&machine, 100);
    let window = VaRange::from_pages(0x11, 0x11 + 13).unwrap();
    let space = VmapSpace::new(window, window, &machine).unwrap();
    let map: Map<'_, '_> = MapSpace::new(space, &machine, &pages).unwrap();
    let tight = huge.bytes(12 * PAGE);
    assert_eq!(map.vmalloc(0, &tight), Ok(Va::from_page(0x11)));
    assert_eq!(map.info(Va::from_page(0x11)).unwrap().usable_bytes, 12 * PAGE);
    check(&map, &pages);
}

#[test]
fn mp6_what_was_given_up_is_flushed_before_it_is_mapped_again() {
    let machine = SimMachine::new(1);
    let pages = SimPages::new(&machine, 100);
    let map = new_map(&machine, &pages, 0x1010);
    let at = map.vmalloc(0, &AreaRequest::new(9 * PAGE)).unwrap();
    map.vrealloc(0, at, 2 * PAGE, Fill::Any).unwrap();
    let flushes = machine.flushes();
    assert_eq!(map.vrealloc(0, at, 5 * PAGE, Fill::Any), Ok(at));
    assert_eq!(machine.flushes(), flushes + 1);
    check(&map, &pages);
    // The call does not wait for a flush that takes time: the area moves.
    map.vrealloc(0, at, 2 * PAGE, Fill::Any).unwrap();
    machine.set_flushing(Flushing::OnRequest);
    let moved = map.vrealloc(0, at, 5 * PAGE, Fill::Any).unwrap();
    assert_ne!(moved, at);
    check(&map, &pages);
    assert_eq!(map.vfree(at), Err(FreeError::NoArea { at, inside: None }));
    machine.complete_flushes();
}

#[test]
fn an_area_that_cannot_grow_moves_with_its_pages_and_copies_nothing() {
    let machine = SimMachine::new(1);
    let pages = SimPages::new(&machine, 100);
    let map = new_map(&machine, &pages, 0x1010);
    let at = map.vmalloc(0, &AreaRequest::new(4 * PAGE)).unwrap();
    let above = map.vmalloc(0, &AreaRequest::new(PAGE)).unwrap();
    pages.write(Va::new(at.get() + 3 * PAGE), 9).unwrap();
    let frames = |at: Va| {
        let mut frames = Vec::new();
        let range = VaRange::from_size(at, 4 * PAGE).unwrap();
        map.read(range, |piece| {
            if let Piece::Page { frame, .. } = piece {
                frames.push(frame);
            }
        });
        frames
    };
    let before = frames(at);
    let to = map.vrealloc(0, at, 6 * PAGE, Fill::Zeros).unwrap();
    assert!(to > above);
    assert_eq!((frames(to), before.len()), (before.clone(), 4));
    assert_eq!(pages.bytes(before[3])[0], 9);
    check(&map, &pages);
    // With a window it stays in the window.
    let window = VaRange::from_pages(0x800, 0x80c).unwrap();
    let fenced = AreaRequest::new(11 * PAGE).window(window);
    let fenced = map.vmalloc(0, &fenced).unwrap();
    let beyond = map.vrealloc(0, fenced, 12 * PAGE, Fill::Any);
    assert!(matches!(beyond, Err(MapError::Space(_))), "{beyond:?}");
    check(&map, &pages);
}

#[test]
fn wrong_calls_are_errors_and_change_nothing() {
    let machine = SimMachine::new(2);
    let pages = SimPages::new(&machine, 10);
    let map = new_map(&machine, &pages, 0x1010);
    let zero = MapError::BadRequest(RequestError::BadSize { size_bytes: 0 });
    assert_eq!(map.vmalloc(0, &AreaRequest::new(0)), Err(zero));
    assert!(matches!(map.vmalloc(0, &AreaRequest::new(u64::MAX)), Err(MapError::BadRequest(_))));
    assert_eq!(map.vmap(0, [].as_slice(), Protection(0), 0), Err(zero));
    assert_eq!(map.vm_map_ram(0, [].as_slice(), Protection(0)), Err(zero));
    let many = map.vmalloc(0, &AreaRequest::new(11 * PAGE));
    assert_eq!(many, Err(MapError::NoPages { wanted: Pages::new(11), got: Pages::new(10) }));
    pages.drop_tables();
    pages.fail_after(Ask::TablePage, 0);
    let failed = map.vmap(0, [FOREIGN].as_slice(), Protection(0), 0);
    let none = Pages::new(0);
    assert_eq!(
        failed,
        Err(MapError::PageTable { wanted: Pages::new(1), mapped: none, why: PageTableError::NoMemory })
    );
    pages.fail_after(Ask::TablePage, u64::MAX);

    let own = map.vmalloc(0, &AreaRequest::new(2 * PAGE)).unwrap();
    let foreign = map.vmap(0, [FOREIGN; 2].as_slice(), Protection(0), 0).unwrap();
    let large = map.vm_map_ram(0, [FOREIGN; 65].as_slice(), Protection(0)).unwrap();
    let small = map.vm_map_ram(0, [FOREIGN; 3].as_slice(), Protection(0)).unwrap();
    let of = |at: Va| map.info(at).unwrap().range;
    let wrong = |at, kind| FreeError::WrongKind { area: of(at), kind };
    assert_eq!(map.vunmap(own), Err(wrong(own, Kind::Vmalloc)));
    assert_eq!(map.vfree(foreign), Err(wrong(foreign, Kind::Vmap)));
    assert_eq!(map.vfree(large), Err(wrong(large, Kind::Ram)));
    assert_eq!(map.vm_unmap_ram(0, foreign, 2), Err(wrong(foreign, Kind::Vmap)));
    let inside = Va::new(own.get() + PAGE);
    assert_eq!(map.vfree(inside), Err(FreeError::NoArea { at: inside, inside: Some(of(own)) }));
    let count = |pages| FreeError::WrongCount { at: large, pages: Pages::new(pages), mapped: Pages::new(65) };
    assert_eq!(map.vm_unmap_ram(0, large, 66), Err(count(66)));
    assert_eq!(map.vm_unmap_ram(0, large, 64), Err(count(64)));
    let range = VaRange::from_size(small, 3 * PAGE).unwrap();
    let count = |pages| FreeError::Block(UnmapError::WrongCount { range, pages: Pages::new(pages) });
    assert_eq!(map.vm_unmap_ram(1, small, 2), Err(count(2)));
    assert_eq!(map.vm_unmap_ram(1, small, 4), Err(count(4)));
    let at = Va::new(small.get() + PAGE);
    let not = UnmapError::NotMapped { at, inside: Some(range) };
    assert_eq!(map.vm_unmap_ram(1, at, 2), Err(FreeError::Block(not)));
    for (at, pages) in [(Va::ZERO, 1), (Va::MAX, 1), (small, 0)] {
        assert!(map.vm_unmap_ram(1, at, pages).is_err(), "{pages} pages at {at}");
    }
    assert!(map.vfree(small).is_err());
    check(&map, &pages);
    map.vm_unmap_ram(1, small, 3).unwrap();
    assert!(map.vm_unmap_ram(1, small, 3).is_err());
    map.vm_unmap_ram(0, large, 65).unwrap();
    map.vunmap(foreign).unwrap();
    map.vfree(own).unwrap();
    check(&map, &pages);
    assert_eq!((pages.mapped(), map.stats().foreign_pages), (0, Pages::new(0)));
}

#[test]
fn reading_distinguishes_pages_and_holes_to_the_byte() {
    let machine = SimMachine::new(1);
    let pages = SimPages::new(&machine, 10);
    let map = new_map(&machine, &pages, 0x1010);
    let at = map.vmap(0, [FOREIGN + 5, FOREIGN + 2].as_slice(), Protection(0), 0).unwrap();
    assert_eq!(at, Va::from_page(0x10));
    let mut output = Vec::new();
    let range = VaRange::new(Va::new(at.get() - 100), Va::new(at.get() + 2 * PAGE + 50)).unwrap();
    assert_eq!(map.read(range, |piece| output.push(piece)), 2 * PAGE);
    let page = |frame, from, bytes| Piece::Page { frame: FOREIGN + frame, from, bytes };
    let (low, high) = (Piece::Hole { bytes: 100 }, Piece::Hole { bytes: 50 });
    assert_eq!(output, [low, page(5, 0, PAGE), page(2, 0, PAGE), high]);
    output.clear();
    let part = VaRange::from_size(Va::new(at.get() + 4000), 200).unwrap();
    assert_eq!(map.read(part, |piece| output.push(piece)), 200);
    assert_eq!(output, [page(5, 4000, 96), page(2, 0, 104)]);
    // Small mappings in a block, with holes between.
    let small = map.vm_map_ram(0, [FOREIGN].as_slice(), Protection(0)).unwrap();
    let next = map.vm_map_ram(0, [FOREIGN + 1].as_slice(), Protection(0)).unwrap();
    map.vm_unmap_ram(0, small, 1).unwrap();
    let (low, high) = (small.min(next), small.max(next));
    output.clear();
    let both = VaRange::new(low, Va::new(high.get() + PAGE)).unwrap();
    assert_eq!(map.read(both, |piece| output.push(piece)), PAGE);
    assert!(output.contains(&page(1, 0, PAGE)) && output.contains(&Piece::Hole { bytes: PAGE }));
    // All of it, though it is a hole.
    let bytes = |pieces: &[Piece]| {
        pieces
            .iter()
            .map(|piece| match piece {
                Piece::Page { bytes, .. } | Piece::Hole { bytes } => *bytes,
            })
            .sum::<u64>()
    };
    output.clear();
    map.read(VaRange::ALL, |piece| output.push(piece));
    assert_eq!(bytes(&output), VaRange::ALL.len_bytes());
    check(&map, &pages);
}

#[test]
fn mp5_one_of_two_concurrent_unmaps_fails() {
    let machine = SimMachine::new(2);
    let pages = SimPages::new(&machine, 100);
    let map = new_map(&machine, &pages, 0x1010);
    for round in 0..200u64 {
        let (own, align) = (map.vmalloc(0, &AreaRequest::new(PAGE)).unwrap(), Align::PAGE);
        let small = map.vm_map_ram(0, [FOREIGN + round].as_slice(), Protection(0)).unwrap();
        assert!(own.is_aligned(align));
        let freed: u32 = std::thread::scope(|scope| {
            let both = [0, 1].map(|cpu| {
                let map = &map;
                scope.spawn(move || {
                    u32::from(map.vfree(own).is_ok())
                        + 16 * u32::from(map.vm_unmap_ram(cpu, small, 1).is_ok())
                })
            });
            both.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(freed, 17);
    }
    check(&map, &pages);
}

#[test]
fn small_mappings_are_freed_to_the_space_under_no_lock_of_the_map() {
    let (done, ended) = std::sync::mpsc::channel();
    // Without an end if a free waits for itself.
    std::thread::spawn(move || {
        let machine: &'static SimMachine = Box::leak(Box::new(SimMachine::new(1)));
        let pages: &'static SimPages<'_> = Box::leak(Box::new(SimPages::new(machine, 0)));
        let window = VaRange::from_pages(0x10, 0x1_0010).unwrap();
        let space = VmapSpace::new(window, window, machine).unwrap();
        let map: &'static MapSpace<_, _, Linux64> =
            Box::leak(Box::new(MapSpace::new(space, machine, pages).unwrap()));
        let small = |_| map.vm_map_ram(0, [FOREIGN; 64].as_slice(), Protection(0)).unwrap();
        // One for each lock, which another caller unmaps during a flush.
        let mut others: Vec<Va> = (0..16).map(small).collect();
        let own: Vec<Va> = (0..900).map(small).collect();
        machine.on_flush(Some(Box::new(move || {
            others.drain(..).for_each(|at| map.vm_unmap_ram(0, at, 64).unwrap());
        })));
        own.into_iter().for_each(|at| map.vm_unmap_ram(0, at, 64).unwrap());
        assert_eq!((machine.flushes() > 0, map.stats().foreign_pages), (true, Pages::new(0)));
        assert_eq!(pages.faults(), Vec::<String>::new());
        done.send(()).unwrap();
    });
    assert!(ended.recv_timeout(std::time::Duration::from_secs(60)).is_ok());
}

fn frames_of(map: &Map<'_, '_>, at: Va, count: u64) -> Vec<u64> {
    let mut frames = Vec::new();
    map.read(VaRange::from_size(at, count * PAGE).unwrap(), |piece| {
        if let Piece::Page { frame, .. } = piece {
            frames.push(frame);
        }
    });
    frames
}

#[test]
fn mp7_permissions_are_reset_by_one_flush_before_pages_are_used_again() {
    let machine = SimMachine::new(1);
    let pages = SimPages::new(&machine, 100);
    let map = new_map(&machine, &pages, 0x1010);
    let text =
        AreaRequest::new(13 * PAGE).direct_map(DirectMap::ResetOnFree).leaves(Leaves::LargeWherePossible);
    for flushing in [Flushing::AtOnce, Flushing::OnRequest] {
        machine.set_flushing(flushing);
        let at = map.vmalloc(0, &text).unwrap();
        frames_of(&map, at, 13).into_iter().for_each(|frame| pages.protect(frame));
        let flushes = machine.flushes();
        // Pages that are freed when it shrinks are reset too.
        map.vrealloc(0, at, 9 * PAGE, Fill::Any).unwrap();
        assert_eq!(machine.flushes(), flushes + 1);
        check(&map, &pages);
        map.vfree(at).unwrap();
        assert_eq!((machine.flushes(), pages.allocated()), (flushes + 2, 0));
        check(&map, &pages);
    }
    machine.set_flushing(Flushing::AtOnce);
    map.purge();
    // Requested after the area was created: all addresses that it has before and after a move are covered.
    let at = map.vmalloc(0, &text.direct_map(DirectMap::Unchanged)).unwrap();
    map.reset_on_free(at).unwrap();
    frames_of(&map, at, 13).into_iter().for_each(|frame| pages.protect(frame));
    let wall = map.vmap(0, [FOREIGN].as_slice(), Protection(0), 0).unwrap();
    let flushes = machine.flushes();
    let to = map.vrealloc(0, at, 40 * PAGE, Fill::Any).unwrap();
    assert_eq!((to == at, machine.flushes()), (false, flushes));
    assert_eq!(map.vfree_atomic(to), Ok(1));
    assert_eq!(machine.flushes(), flushes);
    assert_eq!((map.run_deferred(), machine.flushes()), (1, flushes + 1));
    check(&map, &pages);
    // Only areas with pages of their own have permissions to reset.
    let no = |at| FreeError::NoArea { at, inside: None };
    assert_eq!(map.reset_on_free(to), Err(MapError::NoArea(no(to))));
    assert!(matches!(map.reset_on_free(wall), Err(MapError::NoArea(FreeError::WrongKind { .. }))));
    // A free that resets nothing flushes nothing.
    let plain = map.vmalloc(0, &AreaRequest::new(13 * PAGE)).unwrap();
    let flushes = machine.flushes();
    map.vfree(plain).unwrap();
    assert_eq!(machine.flushes(), flushes);
    check(&map, &pages);
}

#[test]
fn mp7_pages_are_flushed_at_all_addresses_of_moves_and_of_failed_moves() {
    let machine = SimMachine::new(1);
    // When a reset is requested, and what the move lacks.
    let cases = [
        (DirectMap::Unchanged, None),
        (DirectMap::ResetOnFree, None),
        (DirectMap::ResetOnFree, Some(Ask::Pages)),
        (DirectMap::ResetOnFree, Some(Ask::TablePage)),
        (DirectMap::Unchanged, Some(Ask::TablePage)),
    ];
    for (direct_map, lacking) in cases {
        let pages = SimPages::new(&machine, 100);
        let map = new_map(&machine, &pages, 0x1010);
        let at = map.vmalloc(0, &AreaRequest::new(20 * PAGE).direct_map(direct_map)).unwrap();
        let wall = map.vmalloc(0, &AreaRequest::new(PAGE)).unwrap();
        lacking.into_iter().for_each(|what| pages.fail_after(what, 0));
        let moved = map.vrealloc(0, at, 40 * PAGE, Fill::Any);
        assert_eq!(moved.is_err(), lacking.is_some());
        let at = moved.unwrap_or(at);
        map.reset_on_free(at).unwrap();
        let flushes = machine.flushes();
        // The pages that are freed when it shrinks, and all others.
        map.vrealloc(0, at, 9 * PAGE, Fill::Any).unwrap();
        map.vfree(at).unwrap();
        assert_eq!(machine.flushes(), flushes + 2);
        check(&map, &pages);
        map.vfree(wall).unwrap();
        map.purge();
    }
}

#[test]
fn mp7_pages_of_a_call_that_lacks_more_are_flushed_where_they_were_mapped() {
    let machine = SimMachine::new(1);
    let pages = SimPages::new(&machine, 4);
    let map = new_map(&machine, &pages, 0x1010);
    let text = AreaRequest::new(9 * PAGE).direct_map(DirectMap::ResetOnFree);
    let none = |wanted, got| MapError::NoPages { wanted: Pages::new(wanted), got: Pages::new(got) };
    assert_eq!(map.vmalloc(0, &text), Err(none(9, 4)));
    assert_eq!((machine.flushes(), machine.unclean(map.extent())), (1, 0));
    // In place.
    let at = map.vmalloc(0, &text.bytes(PAGE)).unwrap();
    assert_eq!(map.vrealloc(0, at, 9 * PAGE, Fill::Any), Err(none(8, 3)));
    assert_eq!((machine.flushes(), machine.unclean(map.extent())), (2, 1));
    check(&map, &pages);
}

#[test]
fn pages_are_wanted_from_the_node_of_the_request() {
    let machine = SimMachine::new(1);
    let pages = SimPages::new(&machine, 200);
    let map = new_map(&machine, &pages, 0x1010);
    for numa_id in [None, Some(0), Some(3)] {
        let mut request = AreaRequest::new(11 * PAGE).leaves(Leaves::LargeWherePossible);
        request.numa_id = numa_id;
        let at = map.vmalloc(0, &request).unwrap();
        let at = map.vrealloc(0, at, 70 * PAGE, Fill::Any).unwrap();
        let wanted = pages.nodes_wanted();
        assert!(wanted.len() > 4 && wanted.iter().all(|node| *node == numa_id), "{wanted:?}");
        map.vfree(at).unwrap();
    }
}

#[test]
fn rd3_a_deferred_free_takes_one_lock_and_no_memory_and_is_ended_once() {
    let machine = SimMachine::new(1);
    let pages = SimPages::new(&machine, 100);
    let map = new_map(&machine, &pages, 0x1010);
    let areas: Vec<Va> = (1..5).map(|n| map.vmalloc(0, &AreaRequest::new(n * PAGE)).unwrap()).collect();
    let foreign = map.vmap(0, [FOREIGN].as_slice(), Protection(0), 0).unwrap();
    machine.fail_after(0, 0);
    pages.fail_after(Ask::Pages, 0);
    let (before, flushes) = (lockings(), machine.flushes());
    assert_eq!((map.vfree_atomic(areas[0]), map.vfree_atomic(areas[2])), (Ok(1), Ok(2)));
    let mut want = before;
    want[LockClass::Records as usize] += 2;
    assert_eq!((lockings(), machine.flushes()), (want, flushes));
    let range = map.info(areas[2]).unwrap().range;
    assert_eq!(map.vfree_atomic(areas[2]), Err(FreeError::Deferred { area: range }));
    assert_eq!(map.vfree(areas[2]), Err(FreeError::Deferred { area: range }));
    let resized = map.vrealloc(0, areas[2], PAGE, Fill::Any);
    assert_eq!(resized, Err(MapError::NoArea(FreeError::Deferred { area: range })));
    assert!(matches!(map.vfree_atomic(foreign), Err(FreeError::WrongKind { .. })));
    for at in [Va::new(areas[1].get() + 1), Va::new(areas[1].get() + PAGE), Va::ZERO] {
        assert!(matches!(map.vfree_atomic(at), Err(FreeError::NoArea { .. })));
    }
    // It exists until then.
    assert_eq!((map.stats().areas, map.stats().deferred_areas, pages.allocated()), (5, 2, 10));
    check(&map, &pages);
    assert_eq!((map.run_deferred(), map.run_deferred()), (2, 0));
    assert_eq!((map.stats().areas, map.stats().deferred_areas, pages.allocated()), (3, 0, 6));
    check(&map, &pages);
    map.vunmap(foreign).unwrap();
    map.vfree(areas[1]).unwrap();
    // Dropping a map with a deferred free frees its records; the pages remain mapped.
    assert_eq!(map.vfree_atomic(areas[3]), Ok(1));
    check(&map, &pages);
}

#[test]
fn rd3_deferred_frees_and_workers_at_a_time_lose_nothing() {
    let machine = SimMachine::new(4);
    let pages = SimPages::new(&machine, 3000);
    let map = new_map(&machine, &pages, 0x8010);
    let ended: u64 = std::thread::scope(|scope| {
        let map = &map;
        let frees = |cpu: u32| {
            move || {
                for n in 0..400 {
                    let at = map.vmalloc(cpu, &AreaRequest::new((1 + n % 3) * PAGE)).unwrap();
                    map.vfree_atomic(at).unwrap();
                }
                0
            }
        };
        let works = || (0..800).map(|_| map.run_deferred()).sum::<u64>();
        let threads = [scope.spawn(frees(0)), scope.spawn(frees(1)), scope.spawn(works), scope.spawn(works)];
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!(ended + map.run_deferred(), 800);
    check(&map, &pages);
    assert_eq!((pages.allocated(), map.stats().areas), (0, 0));
    // No record is left, and one slab of each array.
    assert_eq!(map.shrink(), 2);
    assert_eq!(map.shrink(), 0);
    check(&map, &pages);
}

#[test]
fn every_lock_is_reported_by_its_class() {
    let machine = SimMachine::new(1);
    let pages = SimPages::new(&machine, 9);
    let map = new_map(&machine, &pages, 0x1010);
    let taken = |class: LockClass, call: &dyn Fn()| {
        let before = lockings()[class as usize];
        call();
        lockings()[class as usize] - before
    };
    let small = map.vm_map_ram(0, [FOREIGN].as_slice(), Protection(0)).unwrap();
    assert_eq!(taken(LockClass::Closing, &|| map.vm_unmap_ram(0, small, 1).unwrap()), 1);
    let pair = || map.vfree(map.vmalloc(0, &AreaRequest::new(PAGE)).unwrap()).unwrap();
    pair();
    // Reserved, added, taken.
    assert_eq!(taken(LockClass::Records, &pair), 3);
}
