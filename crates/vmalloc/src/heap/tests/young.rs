//! Heaps that start small: `HugePages::Later`.

use super::*;
use crate::arena::YOUNG_PAGES_MAX;
use crate::magazine::Out;

fn zone_of(twin: &Twin, at: usize) -> usize {
    twin.heap.arena.zone_of((at / PAGE_BYTES) as u64)
}

#[test]
fn areas_are_among_the_small_ones_until_these_are_many_and_large_ones_never() {
    let shim = Shim::default();
    shim.on_cpu(0);
    let mut twin = Twin::new(heap_on(HugePages::Later, &shim, 1 << 32, 64 * MIB));
    let large = twin.alloc(8 * MIB + 1, 1, Fill::Any).unwrap();
    assert_eq!(zone_of(&twin, large), HUGE);
    let young: Vec<usize> = (0..4).map(|_| twin.alloc(8 * MIB, 1, Fill::Any).unwrap()).collect();
    assert!(young.iter().all(|&at| zone_of(&twin, at) == SMALL));
    assert_eq!(twin.heap.zone(SMALL).busy, YOUNG_PAGES_MAX);
    // Full: a dirty run there serves still, a clean one does not.
    let old = twin.alloc(MIB, 1, Fill::Any).unwrap();
    assert_eq!(zone_of(&twin, old), HUGE);
    twin.free(young[1]);
    twin.heap
        .magazines
        .iter()
        .for_each(|magazine| _ = twin.heap.drain(magazine, crate::magazine::Kinds::All));
    let again = twin.alloc(3 * MIB, 1, Fill::Zero).unwrap();
    assert_eq!((zone_of(&twin, again), again), (SMALL, young[1]));
    // Small areas are as they always were.
    let small = twin.alloc(PAGE_BYTES, 1, Fill::Any).unwrap();
    assert_eq!(zone_of(&twin, small), SMALL);
    // Whoever asks for huge pages has them, whatever a magazine keeps.
    for bytes in [PAGE_BYTES, MIB, 4 * MIB] {
        let huge = twin.heap.alloc_huge(layout(bytes, 1), Fill::Any).unwrap().addr().get();
        assert_eq!((zone_of(&twin, huge), huge % (2 * MIB)), (HUGE, 0));
        // SAFETY: the test has it.
        unsafe { twin.heap.free(huge) }.unwrap();
    }
    twin.check();
    twin.end();
}

#[test]
fn a_young_area_grows_into_pages_that_were_kept() {
    let shim = Shim::default();
    shim.on_cpu(0);
    for fill in [Fill::Any, Fill::Zero] {
        let mut twin = Twin::new(heap_on(HugePages::Later, &shim, 1 << 32, 64 * MIB));
        let at = twin.alloc(MIB, 1, Fill::Any).unwrap();
        let wall = twin.alloc(PAGE_BYTES, 1, Fill::Any).unwrap();
        // Six pieces that are too short for what comes, with walls between them.
        let pieces: Vec<[usize; 2]> =
            (0..6).map(|_| [MIB, PAGE_BYTES].map(|bytes| twin.alloc(bytes, 1, Fill::Any).unwrap())).collect();
        pieces.iter().for_each(|&[piece, _]| twin.free(piece));
        let before = twin.heap.stats();
        let to = twin.resize(at, 4 * MIB, fill).unwrap();
        let after = twin.heap.stats();
        assert_ne!(to, at);
        assert_eq!(zone_of(&twin, to), SMALL);
        assert_eq!((after.grown_by_move, after.copies), (1, 0), "{after:?}");
        // All that it grew by was kept before.
        assert_eq!((after.refilled_bytes - before.refilled_bytes) as usize, 3 * MIB, "{after:?}");
        // And on it grows where it is.
        assert_eq!(twin.resize(to, 7 * MIB, fill), Ok(to));
        twin.check();
        twin.free(wall);
        twin.end();
    }
}

#[test]
fn what_outgrows_the_small_ones_moves_to_huge_pages() {
    let shim = Shim::default();
    shim.on_cpu(0);
    let mut twin = Twin::new(heap_on(HugePages::Later, &shim, 1 << 32, 64 * MIB));
    let at = twin.alloc(6 * MIB, 1, Fill::Any).unwrap();
    let to = twin.resize(at, 9 * MIB, Fill::Zero).unwrap();
    assert_eq!((zone_of(&twin, at), zone_of(&twin, to)), (SMALL, HUGE));
    let small = twin.heap.zone(SMALL);
    assert_eq!(small.busy, small.dirty_pages(), "nothing is left there");
    drop(small);
    twin.check();
    twin.end();
}

#[test]
fn what_is_large_beside_the_heap_is_not_kept_as_it_was() {
    let shim = Shim::default();
    shim.on_cpu(0);
    let mut twin = Twin::new(heap(&shim, 1 << 36, 512 * MIB));
    let sizes = [900, 800, 700, 600].map(|kib| kib << 10);
    let set = |twin: &mut Twin| {
        let areas = sizes.map(|bytes| twin.alloc(bytes, 1, Fill::Any).unwrap());
        areas.into_iter().for_each(|at| twin.free(at));
        twin.heap.stats().cached_bytes
    };
    // In a heap of some MiB only the place for what was freed last keeps one; in one of 256 MiB the sets do, too.
    assert_eq!(set(&mut twin), sizes[3]);
    let large = twin.alloc(256 * MIB, 1, Fill::Any).unwrap();
    let kept = set(&mut twin);
    assert!(kept > sizes[3] && kept <= 2 * MIB + sizes[3], "{kept}");
    let mut out = Out::new(twin.heap.arena.first());
    twin.heap.magazines[0].drain(crate::magazine::Kinds::Small, &twin.heap.big, &mut out);
    assert!(!out.is_empty());
    twin.heap.make_dirty(out);
    twin.free(large);
    twin.end();
}
