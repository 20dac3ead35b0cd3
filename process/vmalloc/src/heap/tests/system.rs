//! Tests of `HugePages::System`, the policy for unmodified programs.

use super::*;

fn zone_of(model: &Model, at: usize) -> usize {
    model.heap.arena.zone_of((at / PAGE_BYTES) as u64)
}

#[test]
fn areas_below_4_mib_are_among_the_small_ones_and_huge_ones_begin_at_huge_pages() {
    let shim = Shim::default();
    shim.on_cpu(0);
    let mut model = Model::new(heap_on(HugePages::System, &shim, 1 << 32, 64 * MIB));
    for (bytes, zone) in
        [(PAGE_BYTES, SMALL), (4 * MIB - 4 * PAGE_BYTES, SMALL), (4 * MIB - 1, HUGE), (40 * MIB, HUGE)]
    {
        let at = model.alloc(bytes, 1, Fill::Any).unwrap();
        assert_eq!(zone_of(&model, at), zone, "{bytes}");
    }
    // A request for huge pages gets them, whatever a magazine caches.
    let aligned = model.alloc(MIB, 2 * MIB, Fill::Any).unwrap();
    model.free(aligned);
    for bytes in [PAGE_BYTES, MIB, 8 * MIB] {
        let huge = model.heap.alloc_huge(layout(bytes, 1), Fill::Any).unwrap().addr().get();
        assert_eq!((zone_of(&model, huge), huge % (2 * MIB)), (HUGE, 0));
        // SAFETY: live, and the test has no reference to it.
        unsafe { model.heap.free(huge) }.unwrap();
    }
    model.check();
    model.end();
}

#[test]
fn an_area_of_small_pages_grows_into_cached_pages() {
    let shim = Shim::default();
    shim.on_cpu(0);
    for fill in [Fill::Any, Fill::Zero] {
        let mut model = Model::new(heap_on(HugePages::System, &shim, 1 << 32, 64 * MIB));
        let at = model.alloc(MIB / 2, 1, Fill::Any).unwrap();
        let wall = model.alloc(PAGE_BYTES, 1, Fill::Any).unwrap();
        // Six fragments that are too short for the next request, with walls between them.
        let pieces: Vec<[usize; 2]> = (0..6)
            .map(|_| [MIB / 2, PAGE_BYTES].map(|bytes| model.alloc(bytes, 1, Fill::Any).unwrap()))
            .collect();
        pieces.iter().for_each(|&[piece, _]| model.free(piece));
        let before = model.heap.stats();
        let to = model.resize(at, 2 * MIB, fill).unwrap();
        let after = model.heap.stats();
        assert_ne!(to, at);
        assert_eq!(zone_of(&model, to), SMALL);
        assert_eq!((after.grown_by_move, after.copies), (1, 0), "{after:?}");
        // All pages by which it grew were cached before.
        assert_eq!((after.refilled_bytes - before.refilled_bytes) as usize, 3 * MIB / 2, "{after:?}");
        // From there on it grows in place.
        assert_eq!(model.resize(to, 7 * MIB / 2, fill), Ok(to));
        model.check();
        model.free(wall);
        model.end();
    }
}

#[test]
fn what_grows_large_leaves_the_small_ones_with_its_pages() {
    let shim = Shim::default();
    shim.on_cpu(0);
    let mut model = Model::new(heap_on(HugePages::System, &shim, 1 << 32, 64 * MIB));
    let at = model.alloc(3 * MIB, 1, Fill::Any).unwrap();
    let to = model.resize(at, 9 * MIB, Fill::Zero).unwrap();
    assert_eq!((zone_of(&model, at), zone_of(&model, to)), (SMALL, HUGE));
    let stats = model.heap.stats();
    assert_eq!((stats.grown_by_move, stats.copies), (1, 0), "{stats:?}");
    model.check();
    model.end();
}

#[test]
fn clean_pages_of_a_heap_that_was_shut_have_no_access_until_they_are_allocated() {
    let shim = Shim::default();
    let mut model = Model::new(heap_on(HugePages::System, &shim, 1 << 32, 64 * MIB));
    let [low, middle, high] = [8 * MIB; 3].map(|bytes| model.alloc(bytes, 1, Fill::Any).unwrap());
    model.free(middle);
    let shut = model.heap.shut() as usize * PAGE_BYTES;
    assert!(shut >= 8 * MIB);
    assert_eq!(model.heap.shut(), 0, "a second time there is nothing");
    assert_eq!([low, middle, high].map(is_writable), [true, false, true]);
    // Where the system has no pages then, the request fails.
    shim.fail(Call::Commit, 0);
    assert!(matches!(model.alloc(8 * MIB, 1, Fill::Any), Err(AllocError::CallFailed { .. })));
    shim.allow();
    for step in 0..400 {
        model.step(16 * MIB).unwrap();
        if step % 20 == 0 {
            model.check();
            model.heap.shut();
        }
    }
    model.check();
    model.end();
}

/// Returns true if a byte can be written, by the mapping's flags: the byte is not touched.
fn is_writable(at: usize) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().any(|line| {
        let (range, rest) = line.split_once(' ').unwrap();
        let (from, to) = range.split_once('-').unwrap();
        let [from, to] = [from, to].map(|text| usize::from_str_radix(text, 16).unwrap());
        (from..to).contains(&at) && rest.starts_with("rw")
    })
}

#[test]
fn a_trim_counts_nothing_where_residence_is_unknown() {
    let shim = Shim::default();
    let mut model = Model::new(heap_on(HugePages::Never, &shim, 1 << 32, 64 * MIB));
    let ats = [0; 9].map(|_| model.alloc(5000, 1, Fill::Any).unwrap());
    ats.iter().step_by(2).for_each(|&at| model.free(at));
    model.heap.trim();
    shim.fail(Call::Resident, 0);
    let before = model.heap.stats().purged_bytes;
    model.heap.trim();
    model.heap.trim();
    assert_eq!(model.heap.stats().purged_bytes, before);
    shim.allow();
    model.check();
    model.end();
}

#[test]
fn hidden_runs_are_in_no_index_until_the_fork_is_over() {
    for failed in [false, true] {
        let shim = Shim::default();
        shim.on_cpu(0);
        let mut model = Model::new(heap_on(HugePages::System, &shim, 1 << 34, 512 * MIB));
        let areas: Vec<_> = (0..40).map(|_| model.alloc(MIB, 1, Fill::Any).unwrap()).collect();
        areas[4..36].iter().for_each(|&at| model.free(at));
        if failed {
            shim.fail(Call::Advise, 0);
        }
        let before = model.heap.stats();
        model.heap.hide();
        // A handler of another library allocates elsewhere meanwhile, and may free beside a hidden run.
        let meanwhile = [MIB, 3 * MIB, 64 * 1024].map(|bytes| model.alloc(bytes, 1, Fill::Zero).unwrap());
        let inside = |at: usize| (areas[4]..areas[36]).contains(&at);
        assert_eq!(meanwhile.iter().any(|&at| inside(at)), failed);
        model.free(areas[3]);
        model.free(areas[36]);
        model.heap.hide();
        model.heap.show();
        assert!(failed || model.heap.stats().dirty_bytes > before.dirty_bytes, "{:?}", model.heap.stats());
        model.check();
        // The hidden runs serve again.
        let again = model.alloc(3 * MIB, 1, Fill::Any).unwrap();
        assert!(failed || inside(again));
        model.free(again);
        areas[..3].iter().chain(&areas[37..]).chain(&meanwhile).for_each(|&at| model.free(at));
        model.check();
        model.end();
    }
}

/// Counts the bytes of an area that a child of a fork reads as zeros, by the mappings' flags.
fn wiped_bytes(start: usize, end: usize) -> usize {
    let (mut inside, mut bytes) = (0, 0);
    for line in std::fs::read_to_string("/proc/self/smaps").unwrap().lines() {
        let range = line.split_once(' ').and_then(|(range, _)| range.split_once('-'));
        if let Some((from, to)) = range
            && let [Ok(from), Ok(to)] = [from, to].map(|text| usize::from_str_radix(text, 16))
        {
            inside = to.min(end).saturating_sub(from.max(start));
        } else if line.starts_with("VmFlags:") && line.contains(" wf") {
            bytes += inside;
        }
    }
    bytes
}

#[test]
fn no_page_that_a_child_reads_as_zeros_serves_again() {
    for renews in [true, false] {
        let shim = Shim::default();
        shim.on_cpu(0);
        let mut model = Model::new(heap_on(HugePages::System, &shim, 1 << 34, 512 * MIB));
        let areas: Vec<_> = (0..40).map(|_| model.alloc(MIB, 1, Fill::Any).unwrap()).collect();
        areas[4..36].iter().for_each(|&at| model.free(at));
        model.heap.hide();
        let wiped = || wiped_bytes(areas[0], areas[39]);
        assert!(wiped() > 30 * MIB);
        // A filter was installed that forbids the advice.
        shim.fail(Call::Advise, 0);
        if !renews {
            shim.fail(Call::Renew, 0);
        }
        model.heap.show();
        shim.allow();
        model.check();
        let retired = model.heap.stats().retired_bytes;
        assert_eq!(wiped(), retired);
        assert_eq!(retired > 0, !renews);
        let again = model.alloc(3 * MIB, 1, Fill::Zero).unwrap();
        assert_eq!((areas[4]..areas[36]).contains(&again), renews);
        model.free(again);
        areas[..4].iter().chain(&areas[36..]).for_each(|&at| model.free(at));
        model.check();
        model.end();
    }
}

#[test]
fn what_a_magazine_holds_is_hidden_too_and_its_size_is_known_meanwhile() {
    let shim = Shim::default();
    shim.on_cpu(0);
    let mut model = Model::new(heap_on(HugePages::System, &shim, 1 << 34, 512 * MIB));
    let [at, wall] = [0; 2].map(|_| model.alloc(4 * MIB, 2 * MIB, Fill::Any).unwrap());
    model.free(at);
    assert_eq!((model.heap.dirty_hint(), model.heap.big.pages()), (0, 1024));
    model.heap.hide();
    let other = model.alloc(4 * MIB, 2 * MIB, Fill::Any).unwrap();
    assert_ne!(other, at);
    assert_eq!(model.heap.arena.get((at / PAGE_BYTES) as u64).pages(), 1024);
    model.heap.show();
    assert_eq!(model.alloc(4 * MIB, 2 * MIB, Fill::Any), Ok(at));
    [at, wall, other].into_iter().for_each(|at| model.free(at));
    model.end();
}

#[test]
fn small_misses_move_pages_now_and_then_and_the_cache_grows_meanwhile() {
    let shim = Shim::default();
    shim.on_cpu(0);
    let mut model = Model::new(heap_on(HugePages::Never, &shim, 1 << 34, 512 * MIB));
    // Holes of 2 MiB between live areas; all pages of them were touched.
    let areas: Vec<_> = (0..80).map(|_| model.alloc(2 * MIB, 2 * MIB, Fill::Any).unwrap()).collect();
    let (live, holes): (Vec<usize>, Vec<_>) = areas.into_iter().partition(|at| at.is_multiple_of(4 * MIB));
    holes.into_iter().for_each(|at| model.free(at));
    // At an alignment that no hole has: each is a miss.
    let mut moved = 0;
    let missing = (0..20).map(|_| {
        let before = shim.calls(Call::Move);
        let at = model.alloc(MIB, 4 * MIB, Fill::Any).unwrap();
        moved += u32::from(shim.calls(Call::Move) > before);
        at
    });
    let missing: Vec<_> = missing.collect();
    // After a failed move, no other is tried for a while.
    assert!(if shim.can_move() { (1..=4).contains(&moved) } else { moved <= 1 }, "{moved}");
    missing.iter().chain(&live).for_each(|&at| model.free(at));
    model.check();
    model.end();
}
