//! The bound of what is cached, and what is released because of it.

use super::*;
use crate::heap::tests_cached::resident_pages;

#[test]
fn a_purge_of_a_few_pages_leaves_small_areas_alone_while_they_have_half_of_the_bound() {
    let shim = Shim::default();
    shim.on_cpu(0);
    let mut model = Model::new(heap(&shim, 1 << 34, 256 * MIB));
    let huge = model.heap.arena.huge_min() as usize * PAGE_BYTES;
    for bytes in [huge / 2, huge] {
        let areas = [0; 256].map(|_| model.alloc(bytes, 1, Fill::Any).unwrap());
        areas.into_iter().for_each(|at| model.free(at));
    }
    model.heap.drain_all();
    let dirty = |zone| model.heap.zone(zone).dirty_pages();
    let before = [SMALL, HUGE].map(dirty);
    let gone = model.heap.purge_some(1024);
    assert!(before[0] > 1024 && (1024..2048).contains(&gone), "{before:?} {gone}");
    assert_eq!([SMALL, HUGE].map(dirty), [before[0], before[1] - gone]);
    model.end();
}

#[test]
fn a_cache_above_its_bound_loses_a_little_more_than_what_is_above() {
    let shim = Shim::default();
    shim.on_cpu(0);
    let mut model = Model::new(heap_on(HugePages::Never, &shim, 1 << 34, 64 * MIB));
    let areas: Vec<_> = (0..200).map(|_| model.alloc(MIB, 1, Fill::Any).unwrap()).collect();
    let mut most = 0;
    for at in areas {
        model.free(at);
        let cached = model.heap.cached_hint() as usize * PAGE_BYTES;
        most = most.max(cached);
        assert!(cached * 4 >= most * 3, "{cached} of {most}");
    }
    assert!((48 * MIB..=72 * MIB).contains(&most), "{most}");
    model.end();
}

#[test]
fn of_what_was_idle_for_long_a_quarter_is_released() {
    let shim = Shim::default();
    shim.on_cpu(0);
    let mut model = Model::new(heap_on(HugePages::Never, &shim, 1 << 34, 256 * MIB));
    let areas = [0; 64].map(|_| model.alloc(MIB, 1, Fill::Any).unwrap());
    areas.into_iter().for_each(|at| model.free(at));
    model.heap.drain_all();
    let dirty = || model.heap.zone(HUGE).dirty_pages();
    // The first time begins a period.
    for part in [1, 4] {
        let before = dirty();
        model.heap.freed.store(u64::MAX / 2, Ordering::Relaxed);
        model.heap.balance();
        let gone = before - dirty();
        let wanted = if part == 1 { 0..=before } else { before / 5..=before / 3 };
        assert!(wanted.contains(&gone) && dirty() > 0, "{gone} of {before}");
    }
    model.end();
}

#[test]
fn without_a_cache_the_tail_of_a_smaller_area_has_no_pages() {
    let shim = Shim::default();
    shim.on_cpu(0);
    let mut model = Model::new(heap_on(HugePages::Never, &shim, 1 << 32, 0));
    let at = model.alloc(8 * PAGE_BYTES, 1, Fill::Any).unwrap();
    let _wall = model.alloc(PAGE_BYTES, 1, Fill::Any).unwrap();
    Model::bytes(at, 8 * PAGE_BYTES).fill(model.areas[&at].2);
    assert_eq!(resident_pages(at, 8 * PAGE_BYTES), 8);
    assert_eq!(model.resize(at, 3 * PAGE_BYTES, Fill::Any), Ok(at));
    assert_eq!(resident_pages(at + 3 * PAGE_BYTES, 5 * PAGE_BYTES), 0);
    model.end();
}
