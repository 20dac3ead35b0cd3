//! Many CPUs: a miss visits few of them, and a request that would fail visits all.

use super::*;

const CPUS: usize = 64;
/// Other CPUs that a miss visits at most.
const FEW: usize = 8;

/// A heap for 64 CPUs, on CPU 0, that no fork of another test empties.
fn heap_of_many(shim: &Shim, arena_bytes_max: usize) -> Owned<Shim> {
    shim.set_cpus(CPUS);
    shim.on_cpu(0);
    let heap = heap(shim, arena_bytes_max, 1 << 30);
    vmalloc_os::fork::unregister(NonNull::from(&*heap));
    heap
}

fn alloc(heap: &Heap<Shim>, bytes: usize) -> usize {
    heap.alloc(layout(bytes, 1), Fill::Any).unwrap().addr().get()
}

/// Frees each area on a CPU of its own.
fn free_on_all(shim: &Shim, heap: &Heap<Shim>, areas: &[usize]) {
    for (cpu, &at) in areas.iter().enumerate() {
        shim.on_cpu(cpu);
        // SAFETY: this test's own area, to which no reference exists.
        unsafe { heap.free(at) }.unwrap();
    }
    shim.on_cpu(0);
}

#[test]
fn mz3_a_miss_visits_few_of_the_cpus_that_have_big_areas_and_the_next_ones_visit_the_others() {
    let shim = Shim::default();
    let heap = heap_of_many(&shim, 1 << 34);
    let areas: Vec<_> = (0..CPUS).map(|_| alloc(&heap, 2 * MIB)).collect();
    free_on_all(&shim, &heap, &areas);
    assert_eq!(heap.stats().cached_bytes, CPUS * 2 * MIB);
    let mut left = CPUS - 1;
    while left > 0 {
        let before = heap.stats().cached_bytes;
        // Until one misses: the memory that a miss drained serves the next ones.
        while heap.stats().cached_bytes == before {
            alloc(&heap, 3 * MIB);
        }
        left = left.saturating_sub(FEW);
        assert_eq!((heap.stats().cached_bytes, heap.validate()), (left * 2 * MIB, Ok(())));
    }
}

#[test]
fn mz3_a_miss_finds_the_only_cpu_that_has_a_big_area() {
    let shim = Shim::default();
    let heap = heap_of_many(&shim, 1 << 34);
    for cpu in [63, 1, 40] {
        let at = alloc(&heap, 4 * MIB);
        shim.on_cpu(cpu);
        // SAFETY: this test's own area, to which no reference exists.
        unsafe { heap.free(at) }.unwrap();
        shim.on_cpu(0);
        assert_eq!((alloc(&heap, 3 * MIB), heap.validate()), (at, Ok(())));
    }
    // A CPU that is not in the set, and has big items.
    let at = alloc(&heap, 2 * MIB);
    // SAFETY: as before.
    unsafe { heap.free(at) }.unwrap();
    heap.with_big.remove(0);
    assert_eq!(heap.validate().unwrap_err().rule, "MZ3");
}

#[test]
fn a_free_takes_the_credit_of_a_few_empty_places() {
    let shim = Shim::default();
    let heap = heap_of_many(&shim, 1 << 34);
    let (at, most) = (alloc(&heap, 20 * MIB), heap.cached_max / 2);
    let areas: Vec<_> = (0..CPUS).map(|_| alloc(&heap, address_of(most / CPUS as u64))).collect();
    free_on_all(&shim, &heap, &areas);
    // All items have come and gone: their slots are empty, and hold all of the budget.
    for cpu in 0..CPUS {
        shim.on_cpu(cpu);
        alloc(&heap, address_of(most / CPUS as u64));
    }
    assert_eq!(heap.big.pages(), most);
    shim.on_cpu(5);
    // SAFETY: this test's own area, to which no reference exists.
    unsafe { heap.free(at) }.unwrap();
    let share = most / CPUS as u64;
    assert_eq!(heap.big.pages(), most - FEW as u64 * share + (20 * MIB / PAGE_BYTES) as u64);
    assert_eq!((heap.stats().cached_bytes, heap.validate()), (20 * MIB, Ok(())));
}

fn address_of(pages: u64) -> usize {
    crate::arena::address(pages)
}

#[test]
fn a_request_that_would_fail_takes_what_every_cpu_has() {
    let shim = Shim::default();
    let heap = heap_of_many(&shim, 1 << 29);
    let whole = heap.arena.extent(HUGE).len_bytes() as usize;
    let areas: Vec<_> = (0..CPUS).map(|_| alloc(&heap, whole / CPUS / MIB * MIB)).collect();
    free_on_all(&shim, &heap, &areas);
    assert_eq!(heap.stats().cached_bytes, CPUS * (whole / CPUS / MIB * MIB));
    // SAFETY: this test's own area, to which no reference exists.
    unsafe { heap.free(alloc(&heap, whole)) }.unwrap();
    assert_eq!(heap.validate(), Ok(()));
}

#[test]
fn what_one_cpu_frees_another_that_only_allocates_takes_from_its_front_slot() {
    let shim = Shim::default();
    let heap = heap_of_many(&shim, 1 << 34);
    for bytes in [256 << 10, 3 * MIB] {
        let (mut freed, other) = (alloc(&heap, bytes), alloc(&heap, bytes + PAGE_BYTES));
        for round in 0..2 * CPUS {
            let hits = heap.magazines[40].held().hits;
            shim.on_cpu(40);
            // SAFETY: this test's own area, to which no reference exists.
            unsafe { heap.free(freed) }.unwrap();
            shim.on_cpu(0);
            let at = alloc(&heap, bytes);
            // Each miss visits the next CPU, until one has such an area.
            if round >= CPUS {
                assert_eq!((at, heap.magazines[40].held().hits), (freed, hits + 1), "{round}");
            }
            freed = at;
        }
        // With an item in its own slot, a CPU leaves that area alone.
        shim.on_cpu(40);
        // SAFETY: as before.
        unsafe { heap.free(freed) }.unwrap();
        shim.on_cpu(0);
        // SAFETY: as before.
        unsafe { heap.free(other) }.unwrap();
        // (A miss for a big one drains other CPUs, so it may get this one from its zone.)
        let hits = heap.magazines[40].held().hits;
        alloc(&heap, bytes);
        assert_eq!(heap.magazines[40].held().hits, hits);
        assert_eq!(heap.validate(), Ok(()));
    }
}
