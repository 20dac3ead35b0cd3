//! Tests of decay by the program's own calls, on a clock that the tests advance.

use super::tests::{MIB, PLAN, layout};
use super::tests_cached::resident_pages;
use super::time::SLICE_PAGES;
use super::*;
use crate::arena::HUGE;
use crate::options::HugePages;
use std::time::Duration;
use vmalloc_os::os::Call;
use vmalloc_os::os::shim::Shim;

/// Sixteen turns of a second.
const DECAY: Duration = Duration::from_secs(16);
const SECOND: Duration = Duration::from_secs(1);

fn heap(shim: &Shim, huge_pages: HugePages, background_thread: bool, decay: Option<Duration>) -> Owned<Shim> {
    heap_of(shim, Plan { cache_bytes_max: 512 * MIB, huge_pages, decay, background_thread, ..PLAN })
}

fn heap_of(shim: &Shim, plan: Plan) -> Owned<Shim> {
    let heap = Owned::new(shim.clone(), plan).unwrap();
    // A fork in another test of this process would empty the cache.
    vmalloc_os::fork::unregister(NonNull::from(&*heap));
    heap
}

/// Allocates areas and frees them.
fn burst(heap: &Heap<Shim>, count: usize, bytes: usize) {
    let areas: Vec<_> = (0..count).map(|_| heap.alloc(layout(bytes, 1), Fill::Any).unwrap()).collect();
    // SAFETY: this test's own areas, to which no reference exists.
    areas.iter().for_each(|area| unsafe { heap.free(area.addr().get()) }.unwrap());
}

fn cached(heap: &Heap<Shim>) -> usize {
    let stats = heap.stats();
    stats.cached_bytes + stats.dirty_bytes
}

#[test]
fn idle_pages_are_released_while_one_cpu_only_allocates_and_another_only_frees() {
    let shim = Shim::default();
    shim.on_cpu(0);
    let heap = heap(&shim, HugePages::Never, false, Some(DECAY));
    burst(&heap, 100, 3 * MIB);
    heap.drain_all();
    assert!(cached(&heap) >= 300 * MIB);
    for _ in 0..40 {
        shim.pass(SECOND);
        for _ in 0..1280 {
            shim.on_cpu(0);
            let area = heap.alloc(layout(MIB, 1), Fill::Any).unwrap();
            shim.on_cpu(1);
            // SAFETY: this test's own area, to which no reference exists.
            unsafe { heap.free(area.addr().get()) }.unwrap();
        }
    }
    assert!(cached(&heap) <= 8 * MIB, "{:?}", heap.stats());
    assert_eq!(heap.validate(), Ok(()));
}

#[test]
fn unused_memory_is_released_by_pairs_alone_a_slice_a_call() {
    for huge_pages in [HugePages::Never, HugePages::System] {
        let shim = Shim::default();
        shim.on_cpu(0);
        let heap = heap(&shim, huge_pages, false, Some(DECAY));
        burst(&heap, 100, 3 * MIB);
        let before = cached(&heap);
        assert!(before >= 300 * MIB, "{before}");
        // Without time no decay.
        burst(&heap, 1, MIB);
        (0..1000).for_each(|_| burst(&heap, 1, MIB));
        assert_eq!((cached(&heap) >= before, heap.stats().purged_bytes), (true, 0));
        let mut most = 0;
        for _ in 0..40 {
            shim.pass(SECOND);
            for _ in 0..1280 {
                let purged = heap.stats().purged_bytes;
                burst(&heap, 1, MIB);
                most = most.max(heap.stats().purged_bytes - purged);
            }
        }
        assert!(cached(&heap) <= 8 * MIB, "{:?}", heap.stats());
        // The last block of a slice may exceed the slice.
        assert!((1..=(SLICE_PAGES + 512) * PAGE_BYTES as u64).contains(&most), "{most}");
        assert_eq!((shim.calls(Call::Spawn), heap.validate()), (0, Ok(())));
    }
}

#[test]
fn after_a_rest_each_free_releases_a_slice_and_what_is_freed_then_stays() {
    let shim = Shim::default();
    shim.on_cpu(0);
    let heap = heap(&shim, HugePages::System, false, Some(DECAY));
    burst(&heap, 100, 5 * MIB);
    // The clock started with the first free.
    let mut before = cached(&heap);
    let dirty = heap.stats().dirty_bytes;
    shim.pass(2 * DECAY);
    for step in 0..10 {
        burst(&heap, 2, 6 * MIB);
        let now = cached(&heap);
        assert!(before >= now + 8 * MIB && before <= now + 24 * MIB, "{step}: {before} {now}");
        before = now;
    }
    (0..100).for_each(|_| burst(&heap, 2, 6 * MIB));
    // Dirty memory is released; the contents of magazines became dirty then, and are no older.
    let purged = heap.stats().purged_bytes as usize;
    assert!(purged + 16 * MIB >= dirty && purged <= dirty + 16 * MIB, "{purged} of {dirty}");
    shim.pass(DECAY);
    (0..100).for_each(|_| burst(&heap, 2, 6 * MIB));
    assert!(cached(&heap) <= 24 * MIB, "{:?}", heap.stats());
    assert_eq!(heap.validate(), Ok(()));
}

#[test]
fn without_a_decay_no_time_passes_and_where_a_thread_is_it_does_it_alone() {
    for (decay, thread) in [(None, false), (None, true), (Some(Duration::from_secs(3600)), true)] {
        let shim = Shim::default();
        shim.on_cpu(0);
        let heap = heap(&shim, HugePages::Never, thread, decay);
        burst(&heap, 100, 3 * MIB);
        let before = cached(&heap);
        for _ in 0..100 {
            shim.pass(Duration::from_secs(3600));
            burst(&heap, 2, 3 * MIB);
        }
        assert!(cached(&heap) >= before, "{decay:?}: {:?}", heap.stats());
        assert_eq!(shim.calls(Call::Spawn), u64::from(decay.is_some()), "{decay:?}");
    }
}

#[test]
fn a_thread_that_holds_a_lock_of_the_heap_passes_no_time() {
    let shim = Shim::default();
    shim.on_cpu(0);
    let heap = heap(&shim, HugePages::Never, false, Some(DECAY));
    burst(&heap, 2, 3 * MIB);
    let turns = || heap.zone(HUGE).cold.epoch();
    let before = turns();
    shim.pass(SECOND);
    let alone = heap.purge.lock();
    heap.pass_time_anywhere();
    assert_eq!(turns(), before);
    drop(alone);
    heap.pass_time_anywhere();
    assert_eq!(turns(), before + 1);
}

#[test]
fn magazines_of_cpus_without_threads_are_emptied_too() {
    let shim = Shim::default();
    shim.set_cpus(64);
    let heap = heap(&shim, HugePages::System, false, Some(DECAY));
    for cpu in 0..64 {
        shim.on_cpu(cpu);
        burst(&heap, 4, 100 << 10);
    }
    shim.on_cpu(0);
    for _ in 0..40 {
        shim.pass(SECOND);
        (0..1280).for_each(|_| burst(&heap, 1, MIB));
    }
    let items = heap.magazines[1..].iter().map(|magazine| magazine.held().items).sum::<u64>();
    assert_eq!((items, heap.validate()), (0, Ok(())));
    assert!(cached(&heap) <= 4 * MIB, "{:?}", heap.stats());
}

#[test]
fn where_memory_becomes_short_the_next_pairs_release_all_and_later_some_is_cached_again() {
    // A control group that is nearly full or stalled; less available than is cached; enough.
    for (bytes, is_short, want) in [(4 << 30, true, true), (100 << 20, false, true), (4 << 30, false, false)]
    {
        let shim = Shim::default();
        shim.on_cpu(0);
        shim.set_available(64 << 30);
        let heap = heap(&shim, HugePages::Never, false, Some(Duration::from_secs(3600)));
        burst(&heap, 100, 3 * MIB);
        (0..20).for_each(|_| burst(&heap, 1, 100 << 10));
        let before = cached(&heap);
        assert!(before >= 300 * MIB, "{before}");
        // Other processes take the memory, and this one makes only few calls.
        shim.set_available(bytes);
        shim.set_short(is_short);
        shim.pass(Duration::from_secs(300));
        (0..128).for_each(|_| burst(&heap, 1, MIB));
        assert_eq!(cached(&heap) <= 2 * MIB, want, "{bytes}: {:?}", heap.stats());
        assert!(want || cached(&heap) >= before);
        // Nothing stays cached while memory is short.
        burst(&heap, 100, 3 * MIB);
        assert!(!is_short || cached(&heap) <= 40 * MIB, "{:?}", heap.stats());
        shim.set_available(64 << 30);
        shim.set_short(false);
        caches_again(&shim, &heap);
    }
}

#[test]
fn the_available_memory_is_read_once_in_a_tick_unless_much_changed_or_it_bounds_the_cache() {
    let shim = Shim::default();
    shim.on_cpu(0);
    shim.set_available(64 << 30);
    // Without decay the clock is read for this alone.
    let heap = heap(&shim, HugePages::Never, false, None);
    burst(&heap, 20, 3 * MIB);
    assert!(cached(&heap) >= 60 * MIB);
    // A quarter of it and of the cached memory is less than is cached.
    shim.set_available(100 * MIB as u64);
    burst(&heap, 30, 3 * MIB);
    assert!(cached(&heap) >= 90 * MIB, "read twice in a tick: {:?}", heap.stats());
    shim.pass(Duration::from_millis(4));
    burst(&heap, 20, 3 * MIB);
    let bounded = cached(&heap);
    assert!(bounded <= 70 * MIB, "not read in the next tick: {:?}", heap.stats());
    // In one tick, but more than 128 MiB more are cached.
    shim.set_available(64 << 30);
    let heap = self::heap(&shim, HugePages::Never, false, None);
    burst(&heap, 20, 3 * MIB);
    shim.set_available(100 * MIB as u64);
    burst(&heap, 100, 3 * MIB);
    assert!(cached(&heap) <= 250 * MIB, "{:?}", heap.stats());
    assert_eq!(heap.validate(), Ok(()));
}

/// Five minutes later, freed memory is cached again.
fn caches_again(shim: &Shim, heap: &Heap<Shim>) {
    shim.pass(Duration::from_secs(300));
    (0..3).for_each(|_| burst(heap, 100, 3 * MIB));
    assert!(cached(heap) >= 300 * MIB, "{:?}", heap.stats());
    assert_eq!(heap.validate(), Ok(()));
}

#[test]
fn a_system_that_reports_nothing_any_more_bounds_nothing() {
    let shim = Shim::default();
    shim.on_cpu(0);
    shim.set_available(64 << 30);
    shim.set_short(true);
    let heap = heap(&shim, HugePages::Never, false, Some(Duration::from_secs(3600)));
    (0..3).for_each(|_| burst(&heap, 100, 3 * MIB));
    assert!(cached(&heap) <= 40 * MIB, "{:?}", heap.stats());
    // As after a filter was installed.
    shim.set_available(u64::MAX);
    caches_again(&shim, &heap);
}

#[test]
fn the_thread_asks_by_time_whether_memory_is_short() {
    let shim = Shim::default();
    shim.on_cpu(0);
    shim.set_available(64 << 30);
    let heap = heap(&shim, HugePages::Never, false, Some(Duration::from_secs(3600)));
    burst(&heap, 100, 3 * MIB);
    assert!(cached(&heap) >= 290 * MIB, "{:?}", heap.stats());
    shim.set_short(true);
    shim.pass(Duration::from_secs(1));
    // As called by the thread, which this test does not have.
    heap.turn();
    assert!(cached(&heap) <= 2 * MIB, "{:?}", heap.stats());
    assert_eq!(heap.validate(), Ok(()));
}

#[test]
fn mz1_the_budget_includes_small_items_of_all_cpus() {
    let shim = Shim::default();
    shim.set_cpus(64);
    // No byte is touched, and all pages are to count.
    shim.fail(Call::Resident, 0);
    for (budget, least) in [(0, 0), (8 * MIB, MIB), (64 * MIB, 8 * MIB)] {
        let plan =
            Plan { cache_bytes_max: budget, huge_pages: HugePages::System, background_thread: false, ..PLAN };
        let heap = heap_of(&shim, plan);
        // A large heap, so that magazines have small items in sets.
        let large = heap.alloc(layout(1 << 30, 1), Fill::Any).unwrap();
        for cpu in 0..64 {
            shim.on_cpu(cpu);
            let areas: Vec<_> = (0..48)
                .map(|n| heap.alloc(layout((1 + n % 6) * 60_000, 1), Fill::Any).unwrap().addr().get())
                .collect();
            // SAFETY: this test's own areas, to which no reference exists.
            areas.iter().for_each(|&at| unsafe { heap.free(at) }.unwrap());
            assert!(cached(&heap) <= budget, "{budget}: {:?}", heap.stats());
        }
        let cached = heap.stats().cached_bytes;
        assert!((least..=budget / 4).contains(&cached), "{cached} of {budget}");
        if budget == 64 * MIB {
            // Less than half of the budget may be cached now, and they are more than a quarter of that.
            shim.set_available(budget as u64);
            heap.look_again();
            assert_eq!(heap.stats().cached_bytes, 0);
        }
        heap.release_all();
        assert_eq!((heap.stats().cached_bytes, heap.big.small_pages(), heap.validate()), (0, 0, Ok(())));
        // SAFETY: as before.
        unsafe { heap.free(large.addr().get()) }.unwrap();
    }
}

#[test]
fn cd3_what_is_absent_does_not_count_in_the_budget_where_residence_is_known() {
    for known in [true, false] {
        let shim = Shim::default();
        shim.on_cpu(0);
        if !known {
            shim.fail(Call::Resident, 0);
        }
        let plan = Plan { background_thread: false, ..PLAN };
        let heap = Owned::new(shim.clone(), plan).unwrap();
        vmalloc_os::fork::unregister(NonNull::from(&*heap));
        // One byte of each is touched.
        let areas: Vec<_> =
            (0..100).map(|_| heap.alloc(layout(4 * MIB, 1), Fill::Any).unwrap().addr().get()).collect();
        let touch = |at: usize, bytes: usize| {
            let place = core::ptr::with_exposed_provenance_mut::<u8>(at);
            // SAFETY: this test's own area.
            unsafe { place.write_bytes(1, bytes) };
        };
        areas.iter().for_each(|&at| touch(at, 1));
        let free = |&at: &usize| {
            // SAFETY: this test's own area, to which no reference exists.
            unsafe { heap.free(at) }.unwrap();
        };
        areas.iter().for_each(free);
        let cached_bytes = cached(&heap);
        if known {
            assert!(cached_bytes >= 380 * MIB, "{:?}", heap.stats());
        } else {
            assert!(cached_bytes <= 64 * MIB, "{:?}", heap.stats());
        }
        assert_eq!(heap.validate(), Ok(()));
        // Resident pages count.
        let dense: Vec<_> =
            (0..100).map(|_| heap.alloc(layout(4 * MIB, 1), Fill::Any).unwrap().addr().get()).collect();
        dense.iter().for_each(|&at| touch(at, 4 * MIB));
        dense.iter().for_each(free);
        let resident: usize = dense.iter().map(|&at| resident_pages(at, 4 * MIB) * PAGE_BYTES).sum();
        assert!((24 * MIB..=64 * MIB).contains(&resident), "{resident}");
        assert_eq!(heap.validate(), Ok(()));
        heap.release_all();
        assert_eq!((cached(&heap), heap.zone(HUGE).cold.absent(), heap.cached_hint()), (0, 0, 0));
    }
}
