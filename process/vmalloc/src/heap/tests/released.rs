//! Addresses that are released for other mappings.

use super::{MIB, Model, Shim, heap, layout};
use crate::PAGE_BYTES;
use crate::arena::HUGE;
use crate::heap::Fill;
use vmalloc_os::os::Call;

/// Maps pages at an unmapped address, as another part of the process. Returns false if something is mapped there.
fn map(at: usize, bytes: usize) -> bool {
    let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let place = core::ptr::with_exposed_provenance_mut(at);
    // SAFETY: fails if something is mapped there.
    let mapped = unsafe { libc::mmap(place, bytes, access, flags | libc::MAP_FIXED_NOREPLACE, -1, 0) };
    mapped == place
}

/// Unmaps the pages that [`map`] mapped.
fn unmap(at: usize, bytes: usize) {
    // SAFETY: mapped by `map`, and no reference to the pages exists.
    assert_eq!(unsafe { libc::munmap(core::ptr::with_exposed_provenance_mut(at), bytes) }, 0);
}

#[test]
fn vm1_ar1_what_is_released_is_others_and_areas_stay_as_they_are() {
    let shim = Shim::default();
    let mut model = Model::new(heap(&shim, 1 << 30, 64 * MIB));
    let arena = model.heap.arena();
    let (first, last) = (arena.start().get() as usize, arena.end().get() as usize);
    for round in 0..6 {
        for _ in 0..120 {
            let (size, align) = ([9000, 100_000, 3 * MIB][model.random(3)], [1, 1 << 16][model.random(2)]);
            let bytes = 1 + model.random(size);
            // Releases may use up the addresses.
            let _full = model.alloc(bytes, align, Fill::Any);
            if let Some(at) = model.nth().filter(|_| model.random(2) == 0) {
                model.free(at);
            }
        }
        let live: usize = model.areas.values().map(|&(bytes, ..)| bytes.next_multiple_of(PAGE_BYTES)).sum();
        assert!(model.heap.release_addresses());
        assert!(!model.heap.release_addresses(), "nothing is left");
        // Beside the areas, there are words and records.
        assert!(shim.mapped() < live + 4 * MIB, "{} for {live}", shim.mapped());
        assert_eq!(model.heap.validate(), Ok(()));
        let mut list = String::new();
        model.heap.write_info(&mut list).unwrap();
        assert_eq!(list.lines().count(), model.areas.len(), "{list}");
        // Other mappings enter the released addresses, and the allocator does not take them for its own.
        let holes = (first..last).step_by(64 << 10).skip(round * 4).step_by(24);
        let others: Vec<_> = holes.filter(|&at| !model.heap.contains(at) && map(at, PAGE_BYTES)).collect();
        assert!(others.len() > 100, "{}", others.len());
        for &at in &others {
            Model::bytes(at, PAGE_BYTES).fill(9);
            // SAFETY: the free fails.
            assert!(!model.heap.contains(at + 16) && unsafe { model.heap.free(at) }.is_err());
        }
        // A change that begins in released addresses reaches the area behind them.
        for at in model.areas.keys() {
            model.heap.renew_at_free(at - PAGE_BYTES, 2 * PAGE_BYTES);
        }
        assert_eq!(model.heap.stats().moved_areas, model.areas.len() as u64);
        let areas: Vec<_> = model.areas.iter().map(|(&at, &(bytes, _, byte))| (at, bytes, byte)).collect();
        assert!(areas.iter().all(|&(at, bytes, byte)| Model::is_marked(at, bytes, byte)));
        model.heap.shut();
        assert!(others.iter().all(|&at| Model::bytes(at, PAGE_BYTES).iter().all(|&byte| byte == 9)));
        others.into_iter().for_each(|at| unmap(at, PAGE_BYTES));
    }
    model.end();
}

#[test]
fn vm1_all_is_released_without_memory_for_records() {
    for (budget, granted) in [(0, 0), (0, 1), (0, 2), (64 * MIB, 1), (64 * MIB, 2)] {
        let shim = Shim::default();
        let mut model = Model::new(heap(&shim, 1 << 30, budget));
        // As under a limit that is exceeded: at some time no more records can be mapped.
        shim.fail(Call::Map, granted);
        for _ in 0..6000 {
            let size = [9000, 60_000, 200_000, 2 * MIB][model.random(4)];
            let bytes = 1 + model.random(size);
            if model.alloc(bytes, 1, Fill::Any).is_err() {
                model.heap.release_addresses();
            }
            let at = model.nth().filter(|_| model.random(100) < 48);
            at.into_iter().for_each(|at| model.free(at));
        }
        while let Some(at) = model.nth() {
            model.free(at);
        }
        model.heap.release_addresses();
        assert_eq!(model.heap.validate(), Ok(()));
        let stats = model.heap.stats();
        assert_eq!(stats.retired_bytes, stats.committed_bytes, "budget {budget}, {granted} granted");
        shim.allow();
        model.end();
    }
}

#[test]
fn ar1_under_a_limit_nothing_is_mapped_above_the_frontier_and_it_moves_where_nothing_is() {
    let shim = Shim::default();
    shim.limit_addresses(Some(2 << 30));
    let mut model = Model::new(heap(&shim, 1 << 40, 64 * MIB));
    assert!(model.heap.arena().len_bytes() == 1 << 30 && shim.mapped() < MIB, "{}", shim.mapped());
    let small = model.alloc(5000, 1, Fill::Zero).unwrap();
    let large = model.alloc(40 * MIB, 1, Fill::Zero).unwrap();
    assert!(shim.mapped() < 44 * MIB, "{}", shim.mapped());
    // Another mapping is at the frontier: no area is placed there, and that mapping stays.
    let (first, _) = model.heap.arena.extent(HUGE).whole_pages();
    let frontier = (first + model.heap.arena.committed_pages(HUGE)) as usize * PAGE_BYTES;
    assert!(map(frontier + MIB, PAGE_BYTES));
    Model::bytes(frontier + MIB, PAGE_BYTES).fill(9);
    let mapped = shim.mapped();
    assert!(model.heap.alloc(layout(50 * MIB, 1), Fill::Any).is_err());
    assert_eq!(shim.mapped(), mapped, "words without pages");
    assert!(!model.heap.contains(frontier + MIB));
    assert!(Model::bytes(frontier + MIB, PAGE_BYTES).iter().all(|&byte| byte == 9));
    unmap(frontier + MIB, PAGE_BYTES);
    let larger = model.alloc(50 * MIB, 1, Fill::Zero).unwrap();
    for at in [small, large, larger] {
        model.free(at);
    }
    // The tail is released, too.
    assert!(model.heap.release_addresses() && shim.mapped() < MIB, "{}", shim.mapped());
    model.end();
}

#[test]
fn ar1_addresses_that_the_system_does_not_unmap_are_allocated_again() {
    for granted in 0..8 {
        let shim = Shim::default();
        let mut model = Model::new(heap(&shim, 1 << 30, 64 * MIB));
        let areas = [5000, 3 * MIB, 5000, 3 * MIB].map(|bytes| model.alloc(bytes, 1, Fill::Zero).unwrap());
        model.free(areas[0]);
        model.free(areas[1]);
        // As at the limit of mappings: a hole would make two of one.
        shim.fail(Call::Unmap, granted);
        model.heap.release_addresses();
        shim.allow();
        let more = [9000, 40 * MIB].map(|bytes| model.alloc(bytes, 1, Fill::Zero).unwrap());
        for at in areas[2..].iter().chain(&more) {
            model.free(*at);
        }
        // What lies below a frontier may stay mapped, without pages; it is never used again.
        assert_eq!((model.heap.validate(), model.heap.stats().live_bytes), (Ok(()), 0));
    }
}

#[test]
fn a_frontier_that_others_block_empties_the_caches_once() {
    let shim = Shim::default();
    shim.on_cpu(0);
    shim.limit_addresses(Some(2 << 30));
    let mut model = Model::new(heap(&shim, 1 << 40, 64 * MIB));
    let cached = |model: &Model| model.heap.stats().dirty_bytes + model.heap.stats().cached_bytes;
    // Areas between the freed ones, so that no run of free pages is long enough.
    let areas: Vec<_> = (0..16).map(|_| model.alloc(2 * MIB, 2 * MIB, Fill::Any).unwrap()).collect();
    let (first, _) = model.heap.arena.extent(HUGE).whole_pages();
    let frontier = (first + model.heap.arena.committed_pages(HUGE)) as usize * PAGE_BYTES;
    assert!(map(frontier + MIB, PAGE_BYTES));
    [1, 3, 5].iter().for_each(|&nth| model.free(areas[nth]));
    let fails = |model: &Model| model.heap.alloc(layout(20 * MIB, 1), Fill::Any).is_err();
    assert!(fails(&model) && cached(&model) == 0);
    [7, 9].iter().for_each(|&nth| model.free(areas[nth]));
    for _ in 0..3 {
        assert!(fails(&model) && cached(&model) == 4 * MIB, "{}", cached(&model));
    }
    // Once as much as a request needs is cached, another release is tried: clean pages are between the fragments.
    [0, 2, 4, 6, 8, 11, 12, 13, 14, 15].iter().for_each(|&nth| model.free(areas[nth]));
    model.alloc(20 * MIB, 1, Fill::Any).unwrap();
    unmap(frontier + MIB, PAGE_BYTES);
    model.alloc(50 * MIB, 1, Fill::Any).unwrap();
    model.end();
}
