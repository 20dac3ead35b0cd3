//! Growing areas: in place, by moving, by copying.

use super::*;

#[test]
fn an_area_grows_in_place_over_dirty_and_clean_pages_and_moves_where_it_cannot() {
    let shim = Shim::default();
    shim.on_cpu(0);
    let mut model = Model::new(heap(&shim, 1 << 32, 0));
    let at = model.alloc(MIB, 1, Fill::Any).unwrap();
    assert_eq!(model.resize(at, 40 * MIB, Fill::Zero), Ok(at), "clean above");
    assert_eq!(model.resize(at, 8 * MIB, Fill::Any), Ok(at));
    assert_eq!(model.resize(at, 30 * MIB, Fill::Zero), Ok(at), "dirty above");
    let grown = model.heap.stats();
    assert_eq!((grown.grown_in_place, grown.grown_by_move, grown.copies), (2, 0, 0));
    // Pages move where that is allowed, and the mapping elsewhere; alternately, from each state that the last move
    // left.
    let (mut top, mut bytes) = (at, 30 * MIB);
    for (moves, mappings, by_move, copies) in [
        (true, 0, 1, 0),
        (false, 1, 2, 0),
        (false, 0, 2, 1),
        (false, 1, 3, 1),
        (true, 0, 3, 2),
        (true, 0, 4, 2),
    ] {
        shim.allow();
        if !moves {
            shim.fail(Call::Move, 0);
        }
        let to = model.resize(top, bytes + 3 * PAGE_BYTES, Fill::Any).unwrap();
        assert_eq!(to, top, "clean above");
        while model.alloc(MIB, 1, Fill::Any).unwrap() < top {}
        bytes += 10 * MIB;
        let to = model.resize(top, bytes, Fill::Zero).unwrap();
        assert_ne!(to, top);
        let stats = model.heap.stats();
        assert_eq!((stats.moved_areas, stats.copies), (mappings, copies), "{stats:?}");
        assert_eq!(stats.grown_by_move, by_move);
        // Its old addresses are clean: zeros that need not be written.
        let was = model.alloc(20 * MIB, 1, Fill::Zero).unwrap();
        model.free(was);
        model.check();
        top = to;
    }
    shim.allow();
    // Small ones are copied.
    let copies = model.heap.stats().copies;
    let small = model.alloc(PAGE_BYTES, 1, Fill::Any).unwrap();
    let _wall = model.alloc(PAGE_BYTES, 1, Fill::Any).unwrap();
    assert_ne!(model.resize(small, 3 * PAGE_BYTES, Fill::Any).unwrap(), small);
    assert_eq!(model.heap.stats().copies, copies + 1);
    model.free(top);
    model.end();
}

#[test]
fn a_move_that_fails_becomes_a_copy_and_a_hole_is_mended() {
    // The system's answer, and whether it left a hole. Then whether more moves follow, and which pages are retired.
    let cases = [
        (Errno(libc::EINVAL), false, true, 0),
        (Errno::NOMEM, true, false, 0),
        (Errno::NOMEM, false, false, 50 * MIB),
    ];
    for (errno, tears, again, retired) in cases {
        let shim = Shim::default();
        shim.on_cpu(0);
        let mut model = Model::new(heap(&shim, 1 << 32, 64 * MIB));
        let at = model.alloc(40 * MIB, 1, Fill::Any).unwrap();
        let _wall = model.alloc(MIB, 1, Fill::Any).unwrap();
        shim.fail_with(errno);
        shim.fail(Call::Move, 0);
        shim.tear(tears);
        shim.fail_some(Call::Remap, 0, 1);
        let to = model.resize(at, 50 * MIB, Fill::Zero).unwrap();
        let stats = model.heap.stats();
        assert_eq!((stats.moved_areas, stats.copies, stats.retired_bytes), (0, 1, retired), "{errno}");
        model.check();
        // A mapping that is there may be foreign, so it stays unchanged.
        let arena = model.heap.arena();
        let (first, last) = arena.whole_pages();
        let lost: Vec<_> = (first..last).filter(|&page| model.heap.arena.get(page).is_released()).collect();
        assert_eq!(lost.len() * PAGE_BYTES, retired);
        let others = lost.first().map(|&page| page as usize * PAGE_BYTES);
        assert!(others.is_none_or(|at| !model.heap.contains(at)));
        let _wall = model.alloc(MIB, 1, Fill::Any).unwrap();
        let to = model.resize(to, 60 * MIB, Fill::Zero).unwrap();
        assert_eq!(model.heap.remaps_off.load(Ordering::Relaxed), !again, "{errno}");
        // All of it can be written, including the part that was a hole.
        Model::bytes(to, 60 * MIB).fill(0);
        let (bytes, _, byte) = model.areas[&to];
        Model::mark(to, bytes, byte);
        model.end();
        if let Some(at) = others {
            Model::bytes(at, 40 * MIB).fill(9);
        }
    }
}

/// Wherever a move stops, the rest is copied.
#[test]
fn a_move_that_fails_half_way_loses_nothing() {
    for errno in [libc::EBUSY, libc::EAGAIN, libc::EINVAL, libc::EPERM] {
        let shim = Shim::default();
        shim.on_cpu(0);
        let mut model = Model::new(heap(&shim, 1 << 32, 64 * MIB));
        let at = model.alloc(7 * MIB, 1, Fill::Any).unwrap();
        let _wall = model.alloc(MIB, 1, Fill::Any).unwrap();
        Model::bytes(at, 7 * MIB).iter_mut().zip(0u32..).for_each(|(byte, n)| *byte = (n % 251) as u8);
        shim.fail_with(Errno(errno));
        shim.halve(true);
        shim.fail_some(Call::Move, 0, 1);
        model.areas.remove(&at);
        // SAFETY: the model's own area, to which no reference exists.
        let to = unsafe { model.heap.resize(at, layout(9 * MIB, 1), Fill::Zero) }.unwrap().addr().get();
        assert_ne!(to, at);
        let bytes = Model::bytes(to, 9 * MIB);
        assert!(bytes[..7 * MIB].iter().zip(0u32..).all(|(&byte, n)| byte == (n % 251) as u8));
        assert!(Model::is_zero(to + 7 * MIB, 2 * MIB));
        let stats = model.heap.stats();
        assert_eq!((stats.grown_by_move, stats.moved_areas), (1, 0), "{stats:?}");
        model.enter(to, 9 * MIB, 1);
        model.end();
    }
}

#[test]
fn moved_areas_are_bounded_and_leave_no_mappings_behind() {
    let shim = Shim::default();
    shim.limit_mappings(8 * 10);
    shim.fail(Call::Move, 0);
    shim.on_cpu(0);
    let mut model = Model::new(heap(&shim, 1 << 34, 64 * MIB));
    let before = mappings(&model.heap);
    let mut areas = Vec::new();
    for _ in 0..30 {
        let at = model.alloc(2 * MIB, 1, Fill::Any).unwrap();
        let _wall = model.alloc(MIB, 1, Fill::Any).unwrap();
        areas.push(model.resize(at, 2 * MIB + 3 * PAGE_BYTES, Fill::Any).unwrap());
    }
    let stats = model.heap.stats();
    assert_eq!((stats.moved_areas, stats.copies >= 20), (10, true), "{stats:?}");
    areas.into_iter().for_each(|at| model.free(at));
    assert_eq!(model.heap.stats().moved_areas, 0);
    // The frontier has advanced, and freshly mapped pages have merged with their neighbours.
    assert!(mappings(&model.heap) <= before + 2, "{} mappings, {before} before", mappings(&model.heap));
    model.end();
}

/// Allocates up to a multiple of 16 MiB. The room of areas of 5 and 6 MiB begins at one, so the places of later areas do
/// not depend on that of the arena.
fn fill_to_a_room(model: &mut Model) {
    let first = model.heap.arena.extent(HUGE).start().get() as usize;
    let below = first.next_multiple_of(16 * MIB) - first;
    if below > 0 {
        model.alloc(below, 1, Fill::Any).unwrap();
    }
}

#[test]
fn a_moved_area_that_cannot_be_mapped_anew_is_zeroed_where_that_is_wanted() {
    let shim = Shim::default();
    shim.on_cpu(0);
    shim.fail(Call::Move, 0);
    let plan = Plan { arena_bytes_max: 1 << 32, zero_on_free: true, ..PLAN };
    let mut model = Model::new(Owned::new(shim.clone(), plan).unwrap());
    fill_to_a_room(&mut model);
    let at = model.alloc(4 * MIB, 1, Fill::Any).unwrap();
    let _wall = model.alloc(MIB, 1, Fill::Any).unwrap();
    let to = model.resize(at, 6 * MIB, Fill::Zero).unwrap();
    assert_eq!(model.heap.stats().moved_areas, 1);
    shim.fail(Call::Renew, 0);
    model.free(to);
    shim.allow();
    let again = model.heap.alloc(layout(6 * MIB, 1), Fill::Any).unwrap().addr().get();
    assert!(again == to && Model::is_zero(again, 6 * MIB));
    model.enter(again, 6 * MIB, 1);
    model.end();
}

#[test]
fn the_rest_of_an_area_whose_pages_moved_in_part_is_zeroed_where_that_is_wanted() {
    let shim = Shim::default();
    shim.on_cpu(0);
    let plan = Plan { arena_bytes_max: 1 << 32, zero_on_free: true, ..PLAN };
    let mut model = Model::new(Owned::new(shim.clone(), plan).unwrap());
    let at = model.alloc(4 * MIB, 1, Fill::Any).unwrap();
    let _wall = model.alloc(MIB, 1, Fill::Any).unwrap();
    Model::bytes(at, 4 * MIB).fill(7);
    shim.halve(true);
    shim.fail_some(Call::Move, 0, 1);
    model.areas.remove(&at);
    // SAFETY: the model's own area, to which no reference exists.
    let to = unsafe { model.heap.resize(at, layout(6 * MIB, 1), Fill::Any) }.unwrap().addr().get();
    assert!(to != at && Model::bytes(to, 4 * MIB).iter().all(|&byte| byte == 7));
    assert_eq!(model.heap.stats().grown_by_move, 1);
    assert!(Model::is_zero(at, 4 * MIB));
    model.enter(to, 6 * MIB, 1);
    model.end();
}

#[test]
fn an_area_that_has_grown_has_room_to_grow_again() {
    let shim = Shim::default();
    shim.on_cpu(0);
    let mut model = Model::new(heap(&shim, 1 << 36, 64 * MIB));
    fill_to_a_room(&mut model);
    let [at, _wall] = [0; 2].map(|_| model.alloc(3 * MIB, 1, Fill::Any).unwrap());
    let to = model.resize(at, 5 * MIB, Fill::Any).unwrap();
    assert_ne!(to, at);
    let other = model.alloc(3 * MIB, 1, Fill::Any).unwrap();
    let other = model.resize(other, 5 * MIB, Fill::Any).unwrap();
    assert_eq!(model.resize(to, 9 * MIB, Fill::Any), Ok(to));
    assert_eq!(model.resize(other, 9 * MIB, Fill::Any), Ok(other));
    model.end();
}

#[test]
fn cd1_an_area_that_grew_over_many_blocks_is_in_the_list_of_cold_ones_once_it_is_free() {
    let shim = Shim::default();
    shim.on_cpu(0);
    let mut model = Model::new(heap_on(HugePages::Never, &shim, 1 << 34, 8 << 30));
    let at = model.alloc(MIB, 1, Fill::Any).unwrap();
    model.areas.remove(&at);
    // SAFETY: the model's own area, to which no reference exists.
    let to = unsafe { model.heap.resize(at, layout(4 << 30, 1), Fill::Any) }.unwrap().addr().get();
    assert_eq!(to, at);
    // SAFETY: as before.
    unsafe { model.heap.free(at) }.unwrap();
    model.heap.drain_all();
    model.check();
    model.end();
}
