//! Nodes: which CPUs get one, and that areas, budgets and purges are as with one node.

use super::*;
use crate::arena::{KINDS, NODES, ZONES};
use crate::heap::tests_cached::resident_pages;
use va_base::VaRange;
use va_tree::FreeIndex;
use vmalloc_os::lock::is_awaited;

/// The bytes of an arena that has nodes.
const NODED: usize = 64 << 30;

pub(super) fn heap_of(shim: &Shim, cpus: usize, cached: usize) -> Owned<Shim> {
    shim.set_cpus(cpus);
    shim.on_cpu(0);
    let heap = heap(shim, NODED, cached);
    // Forks of other tests would hold its locks.
    vmalloc_os::fork::unregister(NonNull::from(&*heap));
    heap
}

/// Lets the present CPU allocate from its node.
pub(super) fn leave(heap: &Heap<Shim>) -> usize {
    heap.leave_node_0();
    heap.magazine().node()
}

impl Heap<Shim> {
    pub(super) fn alloc_at(&self, bytes: usize) -> usize {
        self.alloc(layout(bytes, 1), Fill::Any).unwrap().addr().get()
    }

    pub(super) fn free_at(&self, at: usize) {
        // SAFETY: a test's own area, to which no reference exists.
        unsafe { self.free(at) }.unwrap();
    }
}

fn node_of(heap: &Heap<Shim>, at: usize) -> usize {
    heap.arena.zone_of((at / PAGE_BYTES) as u64) / KINDS
}

#[test]
fn zones_of_all_nodes_tile_an_arena_and_a_small_arena_has_one_node() {
    let shim = Shim::default();
    for (bytes, huge_pages) in [
        (NODED, HugePages::Auto),
        (5 * NODED / 2 + (2 << 20), HugePages::System),
        (1 << 40, HugePages::Never),
    ] {
        let heap = heap_on(huge_pages, &shim, bytes, MIB);
        let arena = &heap.arena;
        let mut extents: Vec<(VaRange, usize)> = (0..ZONES).map(|zone| (arena.extent(zone), zone)).collect();
        extents.sort_by_key(|(extent, _)| extent.start());
        let mut at = arena.whole().start();
        for (extent, zone) in extents {
            assert_eq!((extent.start(), extent.start().get() % (2 << 20)), (at, 0));
            let (first, end) = extent.whole_pages();
            assert_eq!([first, end - 1].map(|page| arena.zone_of(page)), [zone; 2], "{zone}");
            at = extent.end();
        }
        assert_eq!(at, arena.whole().end());
    }
    let heap = heap(&shim, NODED - (2 << 20), MIB);
    assert!(!heap.arena.has_nodes() && (KINDS..ZONES).all(|zone| heap.arena.extent(zone).is_empty()));
    shim.on_cpu(1);
    assert_eq!(leave(&heap), 0);
}

#[test]
fn a_cpu_that_waits_often_leaves_node_0_and_one_that_seldom_does_stays() {
    let shim = Shim::default();
    let heap = heap_of(&shim, 4, 64 * MIB);
    let waits = || {
        let held = heap.zone(HUGE);
        std::thread::scope(|scope| {
            scope.spawn(|| drop(heap.zone_for_request(HUGE)));
            while !is_awaited(&heap.zone_at(HUGE).central) {
                std::thread::yield_now();
            }
            drop(held);
        });
        heap.magazine().node()
    };
    shim.on_cpu(2);
    // One wait in forty requests.
    for _ in 0..40 {
        assert_eq!(waits(), 0);
        (0..40).for_each(|_| drop(heap.zone_for_request(HUGE)));
    }
    let count = (1..100).find(|_| waits() == 2).unwrap();
    assert_eq!(count, 16);
    // The others stay where they are.
    shim.on_cpu(1);
    let at = heap.alloc(layout(MIB, 1), Fill::Any).unwrap().addr().get();
    assert_eq!((node_of(&heap, at), heap.zones().collect::<Vec<_>>()), (0, vec![0, 1, 4, 5]));
    // CPU 0 has node 0 in any case.
    shim.on_cpu(0);
    assert_eq!(leave(&heap), 0);
}

#[test]
fn an_area_is_freed_into_its_node_by_any_cpu_and_a_large_one_is_in_node_0() {
    let shim = Shim::default();
    let heap = heap_of(&shim, 40, 1 << 30);
    shim.on_cpu(17);
    assert_eq!(leave(&heap), 1);
    let alloc = |bytes| heap.alloc(layout(bytes, 1), Fill::Zero).unwrap().addr().get();
    let areas = [PAGE_BYTES, MIB, 3 * MIB].map(alloc);
    let zones = areas.map(|at| heap.arena.zone_of((at / PAGE_BYTES) as u64));
    assert_eq!(zones, [KINDS + SMALL, KINDS + HUGE, KINDS + HUGE]);
    let extent = heap.arena.extent(KINDS + HUGE).len_bytes() as usize;
    let large = [extent / 16, extent / 16 + PAGE_BYTES].map(alloc);
    assert_eq!(large.map(|at| node_of(&heap, at)), [1, 0]);
    shim.on_cpu(3);
    assert_eq!(leave(&heap), 3);
    let others = [PAGE_BYTES, MIB].map(alloc);
    let mut text = String::new();
    heap.write_info(&mut text).unwrap();
    let listed: Vec<_> =
        text.lines().filter(|line| line.contains("vmalloc")).map(|line| &line[..18]).collect();
    assert!(listed.len() == 7 && listed.is_sorted(), "{text}");
    for at in areas.into_iter().chain(large).chain(others) {
        // SAFETY: this test's own area, to which no reference exists.
        unsafe { heap.free(at) }.unwrap();
    }
    heap.drain_all();
    assert!(heap.zone(KINDS + SMALL).dirty_pages() > 0 && heap.zone(KINDS + HUGE).dirty_pages() > 0);
    assert_eq!((heap.stats().live_bytes, heap.validate()), (0, Ok(())));
    assert!(heap.trim_is_whole());
}

impl Heap<Shim> {
    /// Releases all, and returns true if nothing is cached then.
    pub(super) fn trim_is_whole(&self) -> bool {
        self.trim();
        let stats = self.stats();
        (stats.cached_bytes, stats.dirty_bytes, self.dirty_hint()) == (0, 0, 0)
    }
}

#[test]
fn vm1_random_calls_of_many_cpus_with_nodes_lose_nothing_and_the_budget_is_for_all() {
    let shim = Shim::default();
    for (huge_pages, cached) in
        [(HugePages::Auto, 32 * MIB), (HugePages::Auto, 128 * MIB), (HugePages::System, 64 * MIB)]
    {
        shim.set_cpus(NODES);
        let heap = heap_on(huge_pages, &shim, NODED, cached);
        // Forks of other tests would hold its locks.
        vmalloc_os::fork::unregister(NonNull::from(&*heap));
        let mut model = Model::new(heap);
        model.cpus = NODES;
        let (mut most, mut nodes) = (0, 0);
        for step in 0..2500 {
            if model.random(20) == 0 {
                // On the CPU of the last call.
                leave(&model.heap);
            }
            model.step(8 * MIB).unwrap();
            if step % 16 == 0 {
                model.check();
                // Each zone may have a part in 256 that is not published. Parts of blocks count while node 0 is alone.
                let whole = |zone| {
                    let central = model.heap.zone(zone);
                    central.cold.len() * central.block_pages
                };
                let cache = || {
                    let pages: u64 = model.heap.zones().map(whole).sum();
                    model.heap.stats().cached_bytes + crate::arena::address(pages)
                };
                if cache() > cached + cached / 8 {
                    // An alloc that empties a magazine may make blocks whole. The next free does this.
                    model.heap.balance();
                }
                let cache = cache();
                assert!(cache <= cached + cached / 8, "{cache}");
                most = most.max(cache);
                nodes = model.areas.keys().fold(nodes, |nodes, &at| nodes | 1 << node_of(&model.heap, at));
            }
        }
        assert_eq!(nodes, (1 << (cached / (16 * MIB))) - 1, "{nodes:#b}");
        // A node that needs pages has them of another, or by a purge.
        let stats = model.heap.stats();
        assert!(most >= cached / 2 && stats.purged_bytes + stats.refilled_bytes > 0, "{most}");
        model.end();
    }
}

#[test]
fn with_several_nodes_what_is_dirty_in_a_block_in_use_does_not_count() {
    let shim = Shim::default();
    let heap = heap_of(&shim, 4, 64 * MIB);
    let count = |kind| {
        drop(heap.zone(kind));
        heap.dirty_hint()
    };
    // The rest of its last block is dirty.
    let at = heap.alloc(layout(MIB, 1), Fill::Any).unwrap().addr().get();
    assert_eq!(count(HUGE), 256);
    shim.on_cpu(1);
    assert_eq!((leave(&heap), count(HUGE)), (1, 0));
    // Whole blocks count in each node.
    let other = heap.alloc(layout(3 * MIB, 1), Fill::Any).unwrap().addr().get();
    assert_eq!(count(KINDS + HUGE), 0);
    for at in [at, other] {
        // SAFETY: this test's own area, to which no reference exists.
        unsafe { heap.free(at) }.unwrap();
    }
    heap.drain_all();
    assert_eq!(heap.dirty_hint(), 512 + 1024);
}

#[test]
fn what_a_node_lacks_is_in_node_0_and_what_that_lacks_in_the_others() {
    let shim = Shim::default();
    let heap = heap_of(&shim, 4, 64 * MIB);
    shim.on_cpu(1);
    assert_eq!(leave(&heap), 1);
    let bytes = heap.arena.extent(KINDS + HUGE).len_bytes() as usize / 16;
    let alloc = || heap.alloc(layout(bytes, 1), Fill::Any).map(|at| at.addr().get());
    let areas: Vec<_> = (0..17).map(|_| alloc().unwrap()).collect();
    let nodes: Vec<_> = areas.iter().map(|&at| node_of(&heap, at)).collect();
    assert_eq!(nodes, [&[1; 16][..], &[0]].concat());
    // Where the system gives no more, a CPU of node 0 takes what another node has.
    shim.fail(Call::Commit, 0);
    shim.on_cpu(0);
    assert!(alloc().is_err());
    heap.free_at(areas[3]);
    heap.drain_all();
    assert_eq!(alloc(), Ok(areas[3]));
    // A small area takes what another node has of the other kind.
    heap.free_at(areas[5]);
    heap.drain_all();
    let small = heap.alloc_at(1);
    assert_eq!(heap.arena.zone_of((small / PAGE_BYTES) as u64), KINDS + HUGE);
    assert_eq!(heap.validate(), Ok(()));
}

#[test]
fn without_memory_for_a_node_all_stay_in_node_0() {
    let shim = Shim::default();
    let heap = heap_of(&shim, 4, 64 * MIB);
    shim.on_cpu(1);
    // As while a thread purges, or forks.
    let purge = heap.purge.lock();
    assert_eq!(leave(&heap), 0);
    drop(purge);
    shim.fail(Call::Map, 0);
    let mut places = 0;
    while heap.host.alloc_place::<[u8; 8192]>().is_some() {
        places += 1;
    }
    assert!(places > 0);
    assert_eq!(leave(&heap), 0);
    shim.allow();
    assert_eq!(leave(&heap), 0, "the memory of one that was not made is lost, so there is no second");
    let at = heap.alloc(layout(MIB, 1), Fill::Zero).unwrap().addr().get();
    // SAFETY: this test's own area, to which no reference exists.
    unsafe { heap.free(at) }.unwrap();
    assert_eq!(heap.validate(), Ok(()));
}

#[test]
fn ar1_an_arena_whose_addresses_are_counted_has_the_nodes_that_it_had() {
    let shim = Shim::default();
    let heap = heap_of(&shim, 4, 64 * MIB);
    shim.on_cpu(1);
    assert_eq!(leave(&heap), 1);
    let at = heap.alloc(layout(MIB, 1), Fill::Zero).unwrap().addr().get();
    assert!(heap.release_addresses());
    shim.on_cpu(2);
    assert_eq!(leave(&heap), 0);
    shim.on_cpu(1);
    let more = heap.alloc(layout(16 * MIB, 1), Fill::Zero).unwrap().addr().get();
    assert_eq!([at, more].map(|at| node_of(&heap, at)), [1; 2]);
    for at in [at, more] {
        Model::mark(at, MIB, 7);
        heap.free_at(at);
    }
    assert_eq!(heap.validate(), Ok(()));
    drop(heap);
    assert_eq!(shim.mapped(), 0);
}

#[test]
fn a_child_has_the_areas_of_all_nodes() {
    let shim = Shim::default();
    let heap = heap_of(&shim, 4, 64 * MIB);
    shim.on_cpu(3);
    assert_eq!(leave(&heap), 3);
    let at = heap.alloc(layout(MIB, 1), Fill::Zero).unwrap().addr().get();
    heap.hold(false);
    assert!(heap.zone_at(3 * KINDS + HUGE).central.is_locked());
    // SAFETY: the child calls only a heap that no other thread uses, and exits.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: kills a child that waits for ever.
        unsafe { libc::alarm(20) };
        heap.forget(true);
    }
    // SAFETY: held above, by the thread that called fork; the child has a copy of it.
    unsafe { heap.release() };
    if child == 0 {
        // SAFETY: the child's own area, to which no reference exists.
        let freed = unsafe { heap.free(at) };
        let other = heap.alloc(layout(3 * MIB, 1), Fill::Zero).map(|at| node_of(&heap, at.addr().get()));
        let done = freed.is_ok() && other == Ok(3) && !heap.zone_at(3 * KINDS).central.is_locked();
        // SAFETY: exits the child without handlers of the parent.
        unsafe { libc::_exit(i32::from(!done)) };
    }
    let mut status = -1;
    // SAFETY: waits for the child of above.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!((waited, status), (child, 0));
    assert!(heap.zones().all(|zone| !heap.zone_at(zone).central.is_locked()));
}

/// Threads that the system moves between CPUs at any moment exchange areas, get nodes, purge and hold all locks.
#[test]
fn ar2_threads_on_many_nodes_share_no_page() {
    let (threads, steps) = (4, 1500);
    let shim = Shim::default();
    let heap = heap_of(&shim, NODES, 64 * MIB);
    let slots: [std::sync::Mutex<Option<(usize, usize, u8)>>; 8] = Default::default();
    let free = |(at, bytes, byte): (usize, usize, u8)| {
        assert!(Model::is_marked(at, bytes, byte), "another writer changed the area");
        // SAFETY: taken from the list of its owner, and no reference to it exists.
        unsafe { heap.free(at) }.unwrap();
    };
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (heap, shim, slots, free) = (&heap, &shim, &slots, &free);
            scope.spawn(move || {
                let mut state = 77u64 + thread;
                let mut random = |below: usize| {
                    state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    (state >> 33) as usize % below
                };
                let mut own = Vec::new();
                for step in 0..steps {
                    shim.on_cpu(random(NODES));
                    match random(200) {
                        0 => heap.leave_node_0(),
                        1 => _ = heap.release_all(),
                        2 => {
                            heap.hold(false);
                            // SAFETY: taken by the call before.
                            unsafe { heap.release() };
                        }
                        _ => {}
                    }
                    let largest = if random(4) == 0 { 3 * MIB } else { 30 * PAGE_BYTES };
                    let bytes = 1 + random(largest);
                    let at = heap.alloc(layout(bytes, 1), Fill::Any).unwrap().addr().get();
                    let byte = (step + 1) as u8;
                    Model::mark(at, bytes, byte);
                    let mut area = Some((at, bytes, byte));
                    if random(2) == 0 {
                        core::mem::swap(&mut area, &mut *slots[random(8)].lock().unwrap());
                    }
                    own.extend(area);
                    if own.len() > 8 {
                        free(own.swap_remove(random(8)));
                    }
                }
                own.into_iter().for_each(free);
            });
        }
    });
    slots.iter().filter_map(|slot| slot.lock().unwrap().take()).for_each(free);
    assert_eq!((heap.zones().count(), heap.validate()), (4 * KINDS, Ok(())));
    assert!(heap.trim_is_whole() && heap.stats().live_bytes == 0);
}

#[test]
fn a_request_fits_in_the_small_zone_where_that_is_the_larger_one() {
    let heap = heap_on(HugePages::System, &Shim::default(), NODED, MIB);
    let [small, huge] = [SMALL, HUGE].map(|zone| heap.arena.extent(zone).len_bytes() as usize);
    assert!(small > huge + (1 << 30), "{small} {huge}");
    let [fits, above] = [huge + PAGE_BYTES, small + PAGE_BYTES].map(|bytes| {
        let made = heap
            .alloc(layout(bytes, 1), Fill::Any)
            .map(|at| heap.arena.zone_of((at.addr().get() / PAGE_BYTES) as u64));
        // A machine with less memory than that denies the mapping.
        if matches!(made, Err(AllocError::CallFailed { call: Call::Map, .. })) { Ok(SMALL) } else { made }
    });
    assert_eq!(fits, Ok(SMALL));
    assert!(
        matches!(above, Err(AllocError::NoSpace { largest_bytes, .. }) if largest_bytes == small),
        "{above:?}"
    );
}

#[test]
fn a_node_that_another_thread_was_about_to_count_is_counted() {
    let shim = Shim::default();
    let heap = heap_of(&shim, 4, 64 * MIB);
    shim.on_cpu(1);
    assert_eq!(leave(&heap), 1);
    // As in a child that a handler of a signal forked then: the other thread published the node, and is gone.
    heap.made.store(crate::heap::nodes::ZONES_0, Ordering::Relaxed);
    heap.magazine().set_node(0);
    assert_eq!(leave(&heap), 1);
    assert_eq!(heap.zones().collect::<Vec<_>>(), [0, 1, 2, 3]);
}

#[test]
fn holes_of_all_nodes_leave_half_of_the_mappings_to_the_program() {
    let shim = Shim::default();
    shim.limit_mappings(400);
    let heap = heap_of(&shim, 8, 128 * MIB);
    for cpu in 0..8 {
        shim.on_cpu(cpu);
        assert_eq!(leave(&heap), cpu);
        for bytes in [PAGE_BYTES, 2 * MIB] {
            let areas: Vec<_> = (0..120).map(|_| heap.alloc_at(bytes)).collect();
            areas.iter().step_by(2).for_each(|&at| heap.free_at(at));
        }
    }
    let before = mappings(&heap);
    assert!(heap.release_addresses());
    let more = mappings(&heap) - before;
    assert!((100..=200 + KINDS * NODES).contains(&more), "{more}");
    assert_eq!(heap.validate(), Ok(()));
}

#[test]
fn a_fork_hides_the_longest_runs_of_all_nodes_first_and_parts_of_blocks() {
    let shim = Shim::default();
    let heap = heap_of(&shim, 4, 64 * MIB);
    let alloc = |bytes| heap.alloc_at(bytes);
    // More runs of 256 KiB than are hidden at a time.
    let small: Vec<_> = (0..BATCH * 2 + 2).map(|_| alloc(256 << 10)).collect();
    shim.on_cpu(1);
    assert_eq!(leave(&heap), 1);
    let [long, _wall] = [16 * MIB, PAGE_BYTES].map(alloc);
    small.iter().step_by(2).for_each(|&at| heap.free_at(at));
    heap.free_at(long);
    heap.drain_all();
    heap.hide();
    let dirty = |at: usize| {
        let page = (at / PAGE_BYTES) as u64;
        let central = heap.zone_of(page);
        let at = va_base::Va::from_page(page);
        central.dirty.hole_below(at).is_some_and(|hole| hole.contains(at))
    };
    assert!(!dirty(long), "the longest run is shared with the child");
    heap.show();
    assert!(dirty(long));
    // Parts of blocks that are in use do not count to the budget, and are hidden, too.
    let heap = heap_of(&shim, 4, 64 * MIB);
    shim.on_cpu(1);
    assert_eq!(leave(&heap), 1);
    (0..2).for_each(|_| _ = heap.alloc(layout(3 * MIB, 2 * MIB), Fill::Any).unwrap());
    let dirty = || heap.zone(KINDS + HUGE).dirty_pages();
    assert_eq!((heap.dirty_hint(), dirty()), (0, 512));
    heap.hide();
    assert_eq!(dirty(), 0);
    heap.show();
    assert_eq!(heap.validate(), Ok(()));
}

/// Makes a heap whose pages are all in node 1, where this thread is.
fn in_node_1(shim: &Shim, cached: usize) -> Owned<Shim> {
    shim.set_cpus(2);
    let decay = Some(core::time::Duration::from_secs(16));
    let plan =
        Plan { arena_bytes_max: NODED, cache_bytes_max: cached, decay, background_thread: false, ..PLAN };
    let heap = Owned::new(shim.clone(), plan).unwrap();
    vmalloc_os::fork::unregister(NonNull::from(&*heap));
    shim.on_cpu(1);
    assert_eq!(leave(&heap), 1);
    heap
}

#[test]
fn what_is_cached_in_a_node_is_released_by_each_kind_of_decay() {
    type Decay = fn(&Heap<Shim>);
    let kinds: [Decay; 3] = [
        |heap| (0..20).for_each(|_| _ = heap.turn()),
        |heap| {
            for _ in 0..40 {
                heap.host.os().pass(core::time::Duration::from_secs(1));
                heap.pass_time();
            }
        },
        |heap| {
            for _ in 0..2 {
                heap.freed.store(u64::MAX / 2, Ordering::Relaxed);
                heap.balance();
            }
        },
    ];
    for (nth, decay) in kinds.into_iter().enumerate() {
        let shim = Shim::default();
        let heap = in_node_1(&shim, 256 * MIB);
        heap.free_at(heap.alloc_at(32 * MIB));
        heap.drain_all();
        let dirty = || heap.zone(KINDS + HUGE).dirty_pages();
        assert_eq!((dirty(), heap.has_cached()), (8192, true));
        decay(&heap);
        // By demand a quarter is released.
        assert_eq!((dirty(), heap.has_cached()), if nth == 2 { (6144, true) } else { (0, false) }, "{nth}");
        assert_eq!(heap.validate(), Ok(()));
    }
}

#[test]
fn what_is_asked_of_a_heap_is_done_in_its_nodes() {
    let shim = Shim::default();
    let heap = in_node_1(&shim, 256 * MIB);
    let alloc = |bytes| heap.alloc_at(bytes);
    // SAFETY: this test's own area, to which no other reference exists.
    let resize = |at, bytes| unsafe { heap.resize(at, layout(bytes, 1), Fill::Any) }.unwrap().addr().get();
    // Pages that no one touched are absent.
    heap.free_at(alloc(32 * MIB));
    heap.drain_all();
    heap.measure();
    assert_eq!(heap.zone(KINDS + HUGE).whole_pages(), 0);
    // The freed part of a block in use has no pages after a trim.
    let at = alloc(4 * MIB);
    Model::bytes(at, 4 * MIB).fill(1);
    assert_eq!(resize(at, 3 * MIB), at);
    heap.trim();
    assert_eq!(resident_pages(at + 3 * MIB, MIB), 0);
    // An area that moves to grow stays in the node.
    let wall = alloc(MIB);
    let grown = resize(at, 8 * MIB);
    assert!(grown != at && node_of(&heap, grown) == 1);
    heap.renew_at_free(grown, 1);
    assert_eq!(heap.stats().moved_areas, 1);
    [wall, grown].into_iter().for_each(|at| heap.free_at(at));
    assert_eq!(heap.stats().moved_areas, 0);
    assert!(heap.shut() > 0);
    assert!(heap.release_addresses());
    let stats = heap.stats();
    assert_eq!((stats.retired_bytes, heap.validate()), (stats.committed_bytes, Ok(())));
}

#[test]
fn a_node_publishes_large_changes_and_that_it_has_nothing() {
    let shim = Shim::default();
    // A 256th is two blocks.
    let heap = in_node_1(&shim, 1 << 30);
    let alloc = |bytes| heap.alloc_at(bytes);
    let areas = [2, 2, 8].map(|blocks| alloc(blocks * MIB));
    for (at, known) in areas.into_iter().zip([0, 0, 6 * 512]) {
        heap.free_at(at);
        heap.drain_all();
        assert_eq!((heap.dirty_hint(), heap.freed.load(Ordering::Relaxed)), (known, known));
    }
    for (bytes, known) in [(2 * MIB, 6 * 512), (8 * MIB, 512), (2 * MIB, 0)] {
        alloc(bytes);
        assert_eq!(heap.dirty_hint(), known);
    }
    assert_eq!(heap.validate(), Ok(()));
}
