//! Tests of cached pages: their age, moves, the thread, and failures of each.

use super::tests::{MIB, Model, PLAN, heap, heap_on, layout};
use super::*;
use crate::arena::HUGE;
use crate::magazine::Kinds;
use crate::options::HugePages;
use std::time::{Duration, Instant};
use vmalloc_os::os::shim::Shim;
use vmalloc_os::os::{Call, Errno};

fn heap_with_decay(shim: &Shim, cache_bytes_max: usize, decay: Duration) -> Owned<Shim> {
    let plan = Plan { cache_bytes_max, huge_pages: HugePages::Auto, decay: Some(decay), ..PLAN };
    Owned::new(shim.clone(), plan).unwrap()
}

#[test]
fn cd1_a_block_that_is_listed_wrongly_or_not_at_all_is_seen() {
    let shim = Shim::default();
    shim.on_cpu(0);
    let mut model = Model::new(heap(&shim, 1 << 32, 256 * MIB));
    let areas: Vec<_> = (0..6).map(|_| model.alloc(5 * MIB, 1, Fill::Any).unwrap()).collect();
    areas.iter().skip(1).for_each(|&at| model.free(at));
    model.heap.drain_all();
    model.check();
    let coldest = model.heap.zone(HUGE).cold.coldest(u64::MAX).unwrap();
    // Not in the list, though dirty.
    model.heap.zone(HUGE).cold.remove(coldest..coldest + 1);
    assert_eq!(model.heap.validate().unwrap_err().rule, "CD1");
    model.heap.zone(HUGE).cold.add(coldest..coldest + 1);
    model.check();
    // In the list, though live.
    let first = model.heap.arena.extent(HUGE).start().page_floor();
    let live = ((areas[0] / PAGE_BYTES) as u64 - first) / 512;
    model.heap.zone(HUGE).cold.add(live..live + 1);
    assert_eq!(model.heap.validate().unwrap_err().rule, "CD1");
    model.heap.zone(HUGE).cold.remove(live..live + 1);
    model.end();
}

/// Allocates this many areas and frees them all.
fn burst(heap: &Owned<Shim>, count: usize, bytes: usize) {
    let areas: Vec<_> = (0..count).map(|_| heap.alloc(layout(bytes, 1), Fill::Any).unwrap()).collect();
    for area in areas {
        // SAFETY: this test's own area, to which no other reference exists.
        unsafe { area.write_bytes(1, bytes) };
        // SAFETY: no reference to it exists any more.
        unsafe { heap.free(area.addr().get()) }.unwrap();
    }
}

fn cached(heap: &Owned<Shim>) -> usize {
    heap.stats().dirty_bytes + heap.stats().cached_bytes
}

/// Waits until a condition holds, for as long as a machine under load may need at most.
pub(super) fn wait_until(mut holds: impl FnMut() -> bool) -> bool {
    let started = Instant::now();
    while !holds() {
        if started.elapsed() > Duration::from_secs(120) {
            return false;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    true
}

#[test]
fn wk1_unused_memory_is_released_again_and_again() {
    let shim = Shim::default();
    shim.on_cpu(0);
    let heap = heap_with_decay(&shim, 256 * MIB, Duration::from_millis(20));
    // Too little for the thread to start.
    burst(&heap, 4, MIB);
    assert_eq!(shim.calls(Call::Spawn), 0);
    for round in 0..20 {
        // Of both zones, in magazines and not. At the end a single area, which must wake the thread as well.
        burst(&heap, 40, if round % 2 == 0 { 3 * MIB } else { 700 << 10 });
        if round % 3 == 0 {
            burst(&heap, 1, 9 * MIB);
        }
        assert!(wait_until(|| cached(&heap) == 0), "{round}: {:?}", heap.stats());
    }
    assert_eq!((shim.calls(Call::Spawn), heap.validate()), (1, Ok(())));
    drop(heap);
    assert_eq!(shim.mapped(), 0, "the thread's stack is unmapped");
}

/// Resizes an area, and returns its address.
fn resize(heap: &Owned<Shim>, at: usize, bytes: usize) -> usize {
    // SAFETY: this test's own area, to which no reference exists.
    unsafe { heap.resize(at, layout(bytes, 1), Fill::Any) }.unwrap().addr().get()
}

#[test]
fn what_an_area_loses_counts_as_freed_and_no_more_of_it_is_cached() {
    let shim = Shim::default();
    shim.on_cpu(0);
    // No byte is touched, and all pages are to count.
    shim.fail(Call::Resident, 0);
    let heap = heap(&shim, 1 << 34, 64 * MIB);
    let area = heap.alloc(layout(256 * MIB, 1), Fill::Any).unwrap().addr().get();
    let freed = heap.freed.load(Ordering::Relaxed);
    assert_eq!(resize(&heap, area, PAGE_BYTES), area);
    assert!(cached(&heap) <= 64 * MIB, "{:?}", heap.stats());
    assert_eq!(heap.freed.load(Ordering::Relaxed) - freed, (256 * MIB / PAGE_BYTES) as u64 - 1);
    assert_eq!(heap.validate(), Ok(()));
}

#[test]
fn what_a_moved_area_leaves_behind_is_bounded_as_well() {
    // By moving pages, and by moving mappings: then the old range cannot be renewed, so all of it stays cached.
    for remaps in [false, true] {
        let shim = Shim::default();
        shim.on_cpu(0);
        let heap = heap(&shim, 1 << 34, 0);
        if remaps {
            shim.stand_still();
            shim.fail(Call::Move, 0);
            shim.fail(Call::Renew, 0);
        }
        // No multiple of a block, so that the last pages remain.
        let areas = [0; 2].map(|_| heap.alloc(layout(41 * MIB, 1), Fill::Any).unwrap().addr().get());
        // SAFETY: this test's own area, to which no other reference exists.
        unsafe { core::ptr::with_exposed_provenance_mut::<u8>(areas[0]).write_bytes(1, 41 * MIB) };
        let to = resize(&heap, areas[0], 90 * MIB);
        assert_ne!(to, areas[0]);
        // Parts of blocks in use stay.
        assert!(cached(&heap) <= 6 * MIB, "{remaps}: {:?}", heap.stats());
        // SAFETY: this test's own area, to which no reference exists.
        unsafe { heap.free(to) }.unwrap();
        assert!(cached(&heap) <= 6 * MIB, "{remaps}: {:?}", heap.stats());
        assert_eq!(heap.validate(), Ok(()));
    }
}

#[test]
fn wk1_what_an_area_gives_up_wakes_and_starts_the_thread() {
    let shim = Shim::default();
    shim.on_cpu(0);
    let heap = heap_with_decay(&shim, 256 * MIB, Duration::from_millis(20));
    let area = heap.alloc(layout(100 * MIB, 1), Fill::Any).unwrap().addr().get();
    assert_eq!(resize(&heap, area, 50 * MIB), area);
    assert_eq!(shim.calls(Call::Spawn), 1);
    for mib in [30, 10] {
        assert!(wait_until(|| cached(&heap) == 0 && heap.worker_state() == "asleep"), "{:?}", heap.stats());
        assert_eq!(resize(&heap, area, mib * MIB), area);
    }
    assert!(wait_until(|| cached(&heap) == 0), "{:?}", heap.stats());
    assert_eq!(heap.validate(), Ok(()));
}

#[test]
fn what_is_in_use_stays_while_time_passes() {
    let shim = Shim::default();
    shim.on_cpu(0);
    let heap = heap(&shim, 1 << 34, 256 * MIB);
    burst(&heap, 20, 3 * MIB);
    for turn in 0..40 {
        // An area in steady use, and a block that becomes dirty again.
        burst(&heap, 1, MIB);
        heap.turn();
        assert!(turn < 3 || heap.stats().cached_bytes >= MIB, "{turn}: {:?}", heap.stats());
        let want = if turn < 10 { 50 * MIB } else { 0 };
        assert!(cached(&heap) >= want, "{turn}: {:?}", heap.stats());
    }
    assert!(cached(&heap) <= 4 * MIB, "{:?}", heap.stats());
    assert_eq!(heap.validate(), Ok(()));
}

#[test]
fn without_a_thread_or_a_stack_for_it_all_else_goes_on() {
    for call in [Call::Spawn, Call::Map] {
        let shim = Shim::default();
        shim.on_cpu(0);
        let heap = heap_with_decay(&shim, 256 * MIB, Duration::from_millis(1));
        let areas: Vec<_> =
            (0..40).map(|_| heap.alloc(layout(2 * MIB, 1), Fill::Any).unwrap().addr().get()).collect();
        shim.fail_with(Errno(libc::EPERM));
        shim.fail(call, 0);
        for at in areas {
            // SAFETY: this test's own area, to which no reference exists.
            unsafe { heap.free(at) }.unwrap();
        }
        assert!(cached(&heap) > 16 * MIB, "{:?}", heap.stats());
        assert_eq!(heap.worker_state(), "off", "{call:?}");
        shim.allow();
        burst(&heap, 40, 2 * MIB);
        assert_eq!(heap.validate(), Ok(()));
        heap.release_all();
        assert_eq!(cached(&heap), 0);
        drop(heap);
        assert_eq!(shim.mapped(), 0);
    }
}

#[test]
fn a_thread_that_could_not_be_made_is_made_later() {
    for call in [Call::Spawn, Call::Map] {
        let shim = Shim::default();
        shim.on_cpu(0);
        let heap = heap_with_decay(&shim, 256 * MIB, Duration::from_millis(1));
        let areas: Vec<_> =
            (0..60).map(|_| heap.alloc(layout(2 * MIB, 1), Fill::Any).unwrap().addr().get()).collect();
        let before = shim.calls(call);
        shim.fail_with(Errno(libc::EAGAIN));
        shim.fail_some(call, 0, 1);
        for at in areas {
            // SAFETY: this test's own area, to which no reference exists.
            unsafe { heap.free(at) }.unwrap();
        }
        // One attempt: the other frees skip theirs for a while.
        assert_eq!((heap.worker_state(), shim.calls(call) - before), ("none", 1), "{call:?}");
        burst(&heap, 80, 2 * MIB);
        assert_eq!(shim.calls(Call::Spawn), if call == Call::Spawn { 2 } else { 1 });
        assert_eq!(shim.calls(Call::Forbid), 1, "the page below its stack");
        assert!(wait_until(|| cached(&heap) == 0), "{:?}", heap.stats());
        assert_eq!(heap.validate(), Ok(()));
        drop(heap);
        assert_eq!(shim.mapped(), 0);
    }
}

#[test]
fn moved_cold_pages_count_no_page_as_zero() {
    let shim = Shim::default();
    shim.on_cpu(0);
    let mut model = Model::new(heap(&shim, 1 << 34, 256 * MIB));
    // Every other one, so that no two merge.
    let areas: Vec<_> = (0..40).map(|_| model.alloc(2 * MIB, 1, Fill::Any).unwrap()).collect();
    areas.iter().step_by(2).for_each(|&at| model.free(at));
    let before = model.heap.stats();
    // Its bytes are marked, and the check fails if they are taken for zeros.
    let at = model.alloc(30 * MIB, 1, Fill::Zero).unwrap();
    let stats = model.heap.stats();
    if stats.refilled_bytes == 0 {
        // The kernel moves no page: pages are faulted in, and as many are released.
        assert!(!shim.can_move() && stats.purged_bytes - before.purged_bytes >= 30 << 20);
        return;
    }
    assert_eq!(stats.refilled_bytes, 30 << 20, "{stats:?}");
    model.check();
    model.free(at);
    model.end();
}

#[test]
fn a_refill_that_fails_releases_and_is_tried_again_or_not() {
    let passing = [libc::EBUSY, libc::EBADF, libc::EINVAL, libc::EPERM].map(|errno| (errno, true));
    for (errno, again) in passing.into_iter().chain([(libc::ENOSYS, false)]) {
        let shim = Shim::default();
        shim.on_cpu(0);
        let mut model = Model::new(heap(&shim, 1 << 34, 1 << 30));
        if !shim.can_move() {
            return;
        }
        if !again {
            shim.stand_still();
        }
        shim.fail_with(Errno(errno));
        shim.fail_some(Call::Move, 0, 1);
        let mut before = 0;
        for round in 0..80 {
            // A hole of a block, and an area that needs more.
            let hole = model.alloc(2 * MIB, 2 * MIB, Fill::Any).unwrap();
            let _wall = model.alloc(2 * MIB, 2 * MIB, Fill::Any).unwrap();
            model.free(hole);
            let _longer = model.alloc(3 * MIB, 1, Fill::Zero).unwrap();
            if round == 0 {
                before = shim.calls(Call::Move);
                let stats = model.heap.stats();
                assert_eq!((before, stats.refilled_bytes, stats.purged_bytes), (1, 0, 2 << 20));
            }
            if round % 20 == 0 {
                model.check();
            }
        }
        let more = shim.calls(Call::Move) > before;
        assert_eq!((more, model.heap.stats().refilled_bytes > 0), (again, again), "{errno}");
        // A child tries again.
        model.heap.forget(true);
        assert_eq!(model.heap.refill_pause.load(Ordering::Relaxed), 0);
        model.end();
    }
}

#[test]
fn pages_that_cannot_move_are_released_for_those_that_come() {
    for moves in [true, false] {
        let shim = Shim::default();
        shim.on_cpu(0);
        if !moves {
            shim.fail(Call::Move, 0);
        }
        let mut model = Model::new(heap(&shim, 1 << 32, 512 * MIB));
        // Fragments that are too short for the next request, with walls between them.
        let pieces: Vec<[usize; 2]> =
            (0..8).map(|_| [8 * MIB, MIB].map(|bytes| model.alloc(bytes, 1, Fill::Any).unwrap())).collect();
        pieces.iter().for_each(|&[piece, _]| model.free(piece));
        let at = model.alloc(40 * MIB, 1, Fill::Any).unwrap();
        let stats = model.heap.stats();
        let (moved, gone) = (stats.refilled_bytes as usize, stats.purged_bytes as usize);
        let (way, other) = if moves { (moved, gone) } else { (gone, moved) };
        assert!(way >= 32 * MIB && other == 0, "{stats:?}");
        model.free(at);
        pieces.iter().for_each(|&[_, wall]| model.free(wall));
        model.check();
        model.end();
    }
}

/// Returns the pages of a span that are resident, whatever the shim reports.
pub(super) fn resident_pages(at: usize, bytes: usize) -> usize {
    let mut seen = vec![0u8; bytes / PAGE_BYTES];
    // SAFETY: asks which pages are resident.
    let failed =
        unsafe { libc::mincore(core::ptr::with_exposed_provenance_mut(at), bytes, seen.as_mut_ptr()) };
    assert_eq!(failed, 0);
    seen.iter().filter(|&&page| page & 1 == 1).count()
}

#[test]
fn zeros_are_written_where_something_was_and_nowhere_else() {
    let shim = Shim::default();
    shim.on_cpu(0);
    let mut model = Model::new(heap(&shim, 1 << 32, 64 * MIB));
    // The rest of a block is dirty; the next area extends down over it.
    let wall = model.alloc(3 * MIB, 1, Fill::Any).unwrap();
    let at = model.alloc(64 * MIB, 1, Fill::Zero).unwrap();
    assert_eq!(at, wall + 3 * MIB);
    let fresh = model.heap.alloc(layout(64 * MIB, 1), Fill::Zero).unwrap().addr().get();
    let base = fresh.next_multiple_of(2 * MIB);
    assert_eq!(resident_pages(base, 60 * MIB), 0, "no page was touched");
    // SAFETY: live, and the test has no reference to it.
    unsafe { model.heap.free(fresh) }.unwrap();
    model.free(at);
    model.free(wall);
    model.end();
}

#[test]
fn what_is_large_beside_the_heap_is_not_cached_unchanged() {
    let shim = Shim::default();
    shim.on_cpu(0);
    let mut model = Model::new(heap(&shim, 1 << 36, 512 * MIB));
    let sizes = [900, 800, 700, 600].map(|kib| kib << 10);
    let set = |model: &mut Model| {
        let areas = sizes.map(|bytes| model.alloc(bytes, 1, Fill::Any).unwrap());
        areas.into_iter().for_each(|at| model.free(at));
        model.heap.stats().cached_bytes
    };
    // In a heap of some MiB only the front slot caches a run; in one of 256 MiB the sets do, too.
    assert_eq!(set(&mut model), sizes[3]);
    let large = model.alloc(256 * MIB, 1, Fill::Any).unwrap();
    let cached = set(&mut model);
    assert!(cached > sizes[3] && cached <= 4 * MIB + sizes[3], "{cached}");
    let mut out = Out::new(model.heap.arena.first());
    model.heap.magazines[0].drain(Kinds::Small, &model.heap.big, &mut out);
    assert!(!out.is_empty());
    model.heap.add_dirty(out);
    model.free(large);
    model.end();
}

#[test]
fn small_areas_that_miss_leave_what_was_hardly_touched_dirty_and_ask_once() {
    let shim = Shim::default();
    shim.on_cpu(0);
    let heap = heap_on(HugePages::Never, &shim, 1 << 32, 512 * MIB);
    let alloc = |bytes: usize, touched: usize| {
        let at = heap.alloc(layout(bytes, 2 * MIB), Fill::Any).unwrap();
        Model::bytes(at.addr().get(), touched)[0] = 7;
        at
    };
    // Holes of 2 MiB between live areas, too many for a magazine; one page of each was touched.
    let areas: Vec<_> = (0..32).map(|_| alloc(2 * MIB, 1)).collect();
    let (live, holes): (Vec<_>, Vec<_>) =
        areas.iter().partition(|at| at.addr().get().is_multiple_of(4 * MIB));
    // SAFETY: live, and the test has no reference to them.
    let free = |at: &NonNull<u8>| unsafe { heap.free(at.addr().get()) }.unwrap();
    holes.iter().for_each(free);
    let mut out = Out::new(heap.arena.first());
    heap.magazines[0].drain(Kinds::All, &heap.big, &mut out);
    heap.add_dirty(out);
    let before = (heap.stats().purged_bytes, shim.calls(Call::Resident));
    // At an alignment that no hole has: each is a miss.
    let missing: Vec<_> = (0..5).map(|_| heap.alloc(layout(MIB, 4 * MIB), Fill::Any).unwrap()).collect();
    let after = (heap.stats().purged_bytes, shim.calls(Call::Resident));
    assert_eq!((after.0 - before.0, heap.stats().refilled_bytes), (0, 0));
    assert_eq!(after.1 - before.1, 1, "the next ones do not ask");
    missing.iter().chain(&live).for_each(free);
    assert_eq!(heap.validate(), Ok(()));
}

#[test]
fn what_was_hardly_touched_is_released_and_not_written_or_moved() {
    for known in [true, false] {
        let shim = Shim::default();
        shim.on_cpu(0);
        if !known {
            shim.fail(Call::Resident, 0);
        }
        let mut model = Model::new(heap_on(HugePages::Never, &shim, 1 << 32, 512 * MIB));
        // One byte of each is touched; the model would touch all pages.
        let holes: Vec<NonNull<u8>> = (0..6)
            .map(|_| {
                let hole = model.heap.alloc(layout(8 * MIB, 2 * MIB), Fill::Any).unwrap();
                Model::bytes(hole.addr().get(), 1)[0] = 7;
                model.alloc(2 * MIB, 2 * MIB, Fill::Any).unwrap();
                hole
            })
            .collect();
        for hole in &holes[1..] {
            // SAFETY: live, and the test has no reference to it.
            unsafe { model.heap.free(hole.addr().get()) }.unwrap();
        }
        // A magazine has the last hole.
        let again = model.heap.alloc(layout(8 * MIB, 1), Fill::Zero).unwrap();
        assert_eq!(again, holes[5]);
        let resident = resident_pages(again.addr().get(), 8 * MIB);
        assert_eq!(resident, if known { 0 } else { 2048 });
        assert!(Model::is_zero(again.addr().get(), 8 * MIB));
        let before = model.heap.stats();
        let longer = model.alloc(30 * MIB, 1, Fill::Zero).unwrap();
        let after = model.heap.stats();
        let released = after.purged_bytes - before.purged_bytes;
        if known {
            assert_eq!((released, after.refilled_bytes), (30 << 20, 0), "{after:?}");
        } else if shim.can_move() {
            assert_eq!((released, after.refilled_bytes), (0, 30 << 20), "{after:?}");
        }
        model.free(longer);
        for at in [holes[0], again] {
            // SAFETY: live, and the test has no reference to them.
            unsafe { model.heap.free(at.addr().get()) }.unwrap();
        }
        model.check();
        model.end();
    }
}

#[test]
fn what_is_freed_is_zeros_at_once_where_that_is_wanted() {
    for (guards, moves, remaps) in
        [(false, true, true), (false, false, true), (false, false, false), (true, true, true)]
    {
        let shim = Shim::default();
        let calls = [(Call::Move, moves), (Call::Remap, remaps)];
        calls.iter().filter(|(_, granted)| !granted).for_each(|&(call, _)| shim.fail(call, 0));
        let plan = Plan {
            arena_bytes_max: 1 << 32,
            guards,
            huge_pages: HugePages::System,
            zero_on_free: true,
            ..PLAN
        };
        let mut model = Model::new(Owned::new(shim.clone(), plan).unwrap());
        for step in 0..200 {
            model.step(8 * MIB).unwrap();
            // Memory from a magazine or a dirty run was not marked, whatever its size.
            let bytes = [5000, 70_000, MIB, 6 * MIB][step % 4];
            let area = model.heap.alloc(layout(bytes, 1), Fill::Any).unwrap().addr().get();
            let usable = model.heap.live(area).unwrap().usable_bytes();
            assert!(Model::is_zero(area, usable), "step {step}");
            Model::mark(area, usable, 7);
            // SAFETY: live, and the test has no reference to it.
            unsafe { model.heap.free(area) }.unwrap();
        }
        assert!(model.heap.stats().cache_hits > 0);
        model.check();
        model.end();
    }
}

#[test]
fn a_trim_and_a_budget_of_nothing_leave_no_page_of_what_every_other_free_left() {
    for (huge_pages, bytes, budget) in [
        (HugePages::System, 40_000, 64 * MIB),
        (HugePages::System, 200_000, 64 * MIB),
        (HugePages::Never, 700_000, 64 * MIB),
        (HugePages::Never, 200_000, 0),
    ] {
        let shim = Shim::default();
        shim.on_cpu(0);
        let mut model = Model::new(heap_on(huge_pages, &shim, 1 << 32, budget));
        let areas: Vec<_> = (0..200).map(|_| model.alloc(bytes, 1, Fill::Any).unwrap()).collect();
        areas.iter().for_each(|&at| Model::bytes(at, bytes).fill(7));
        model.areas.values_mut().for_each(|(_, _, byte)| *byte = 7);
        areas.iter().step_by(2).for_each(|&at| model.free(at));
        let resident = |at: &usize| resident_pages(*at, bytes.next_multiple_of(PAGE_BYTES));
        let left = |areas: &[usize]| areas.iter().step_by(2).map(resident).sum::<usize>();
        if budget == 0 {
            // The contents of magazines are apart from the budget.
            assert!(left(&areas) * PAGE_BYTES <= 2 * MIB, "{} pages", left(&areas));
        }
        let before = model.heap.stats();
        model.heap.trim();
        assert_eq!(left(&areas), 0, "{bytes}");
        assert!(budget == 0 || model.heap.stats().purged_bytes > before.purged_bytes);
        model.check();
        // A second trim finds nothing.
        let before = model.heap.stats().purged_bytes;
        model.heap.trim();
        assert_eq!(model.heap.stats().purged_bytes, before);
        // Live areas stay, and released addresses are allocated again.
        assert_eq!(left(&areas[1..]), 100 * bytes.div_ceil(PAGE_BYTES));
        for _ in 0..100 {
            model.alloc(bytes, 1, Fill::Zero).unwrap();
        }
        model.check();
        model.end();
    }
}

#[test]
fn where_memory_is_short_a_quarter_of_it_stays_cached() {
    let cached = |model: &Model| {
        let stats = model.heap.stats();
        stats.cached_bytes + stats.dirty_bytes
    };
    for huge_pages in [HugePages::Never, HugePages::System] {
        let shim = Shim::default();
        shim.on_cpu(0);
        shim.fail(Call::Resident, 0);
        let mut model = Model::new(heap_on(huge_pages, &shim, 1 << 32, 512 * MIB));
        let burst = |model: &mut Model| {
            let areas = [4 * MIB; 64].map(|bytes| model.heap.alloc(layout(bytes, 1), Fill::Any).unwrap());
            // SAFETY: live, and the test has no reference to them.
            areas.iter().for_each(|area| unsafe { model.heap.free(area.addr().get()) }.unwrap());
            cached(model)
        };
        assert_eq!(burst(&mut model), 256 * MIB);
        // A quarter of 100 MiB and of the cached memory, plus the amount that may be cached until the next reading.
        shim.set_available(100 << 20);
        let pressed = burst(&mut model);
        assert!((25 * MIB..130 * MIB).contains(&pressed), "{pressed}");
        shim.set_available(10 << 30);
        // The heap finds that out as it releases some of it.
        burst(&mut model);
        assert_eq!(burst(&mut model), 256 * MIB);
        model.check();
        model.end();
    }
}
