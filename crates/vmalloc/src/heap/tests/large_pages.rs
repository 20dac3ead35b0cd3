//! What a program as it is has: `HugePages::System`, and magazines that are little beside the heap.

use super::*;
use crate::magazine::Out;

fn zone_of(twin: &Twin, at: usize) -> usize {
    twin.heap.arena.zone_of((at / PAGE_BYTES) as u64)
}

#[test]
fn areas_below_4_mib_are_among_the_small_ones_and_huge_ones_begin_at_huge_pages() {
    let shim = Shim::default();
    shim.on_cpu(0);
    let mut twin = Twin::new(heap_on(HugePages::System, &shim, 1 << 32, 64 * MIB));
    for (bytes, zone) in
        [(PAGE_BYTES, SMALL), (4 * MIB - PAGE_BYTES, SMALL), (4 * MIB - 1, HUGE), (40 * MIB, HUGE)]
    {
        let at = twin.alloc(bytes, 1, Fill::Any).unwrap();
        assert_eq!(zone_of(&twin, at), zone, "{bytes}");
    }
    // Whoever asks for huge pages has them, whatever a magazine keeps.
    let aligned = twin.alloc(MIB, 2 * MIB, Fill::Any).unwrap();
    twin.free(aligned);
    for bytes in [PAGE_BYTES, MIB, 8 * MIB] {
        let huge = twin.heap.alloc_huge(layout(bytes, 1), Fill::Any).unwrap().addr().get();
        assert_eq!((zone_of(&twin, huge), huge % (2 * MIB)), (HUGE, 0));
        // SAFETY: the test has it.
        unsafe { twin.heap.free(huge) }.unwrap();
    }
    twin.check();
    twin.end();
}

#[test]
fn an_area_of_small_pages_grows_into_pages_that_were_kept() {
    let shim = Shim::default();
    shim.on_cpu(0);
    for fill in [Fill::Any, Fill::Zero] {
        let mut twin = Twin::new(heap_on(HugePages::System, &shim, 1 << 32, 64 * MIB));
        let at = twin.alloc(MIB / 2, 1, Fill::Any).unwrap();
        let wall = twin.alloc(PAGE_BYTES, 1, Fill::Any).unwrap();
        // Six pieces that are too short for what comes, with walls between them.
        let pieces: Vec<[usize; 2]> = (0..6)
            .map(|_| [MIB / 2, PAGE_BYTES].map(|bytes| twin.alloc(bytes, 1, Fill::Any).unwrap()))
            .collect();
        pieces.iter().for_each(|&[piece, _]| twin.free(piece));
        let before = twin.heap.stats();
        let to = twin.resize(at, 2 * MIB, fill).unwrap();
        let after = twin.heap.stats();
        assert_ne!(to, at);
        assert_eq!(zone_of(&twin, to), SMALL);
        assert_eq!((after.grown_by_move, after.copies), (1, 0), "{after:?}");
        // All that it grew by was kept before.
        assert_eq!((after.refilled_bytes - before.refilled_bytes) as usize, 3 * MIB / 2, "{after:?}");
        // And on it grows where it is.
        assert_eq!(twin.resize(to, 7 * MIB / 2, fill), Ok(to));
        twin.check();
        twin.free(wall);
        twin.end();
    }
}

#[test]
fn what_grows_large_leaves_the_small_ones_with_its_pages() {
    let shim = Shim::default();
    shim.on_cpu(0);
    let mut twin = Twin::new(heap_on(HugePages::System, &shim, 1 << 32, 64 * MIB));
    let at = twin.alloc(3 * MIB, 1, Fill::Any).unwrap();
    let to = twin.resize(at, 9 * MIB, Fill::Zero).unwrap();
    assert_eq!((zone_of(&twin, at), zone_of(&twin, to)), (SMALL, HUGE));
    let stats = twin.heap.stats();
    assert_eq!((stats.grown_by_move, stats.copies), (1, 0), "{stats:?}");
    twin.check();
    twin.end();
}

#[test]
fn pages_that_cannot_move_are_given_back_for_those_that_come() {
    for moves in [true, false] {
        let shim = Shim::default();
        shim.on_cpu(0);
        if !moves {
            shim.refuse(Call::Move, 0);
        }
        let mut twin = Twin::new(heap(&shim, 1 << 32, 512 * MIB));
        // Pieces that are too short for what comes, with walls between them.
        let pieces: Vec<[usize; 2]> =
            (0..8).map(|_| [8 * MIB, MIB].map(|bytes| twin.alloc(bytes, 1, Fill::Any).unwrap())).collect();
        pieces.iter().for_each(|&[piece, _]| twin.free(piece));
        let at = twin.alloc(40 * MIB, 1, Fill::Any).unwrap();
        let stats = twin.heap.stats();
        let (moved, gone) = (stats.refilled_bytes as usize, stats.purged_bytes as usize);
        let (way, other) = if moves { (moved, gone) } else { (gone, moved) };
        assert!(way >= 32 * MIB && other == 0, "{stats:?}");
        twin.free(at);
        pieces.iter().for_each(|&[_, wall]| twin.free(wall));
        twin.check();
        twin.end();
    }
}

#[test]
fn zeros_are_written_where_something_was_and_nowhere_else() {
    let shim = Shim::default();
    shim.on_cpu(0);
    let mut twin = Twin::new(heap(&shim, 1 << 32, 64 * MIB));
    // What is left of a block is dirty; the next area reaches down over it.
    let wall = twin.alloc(3 * MIB, 1, Fill::Any).unwrap();
    let at = twin.alloc(64 * MIB, 1, Fill::Zero).unwrap();
    assert_eq!(at, wall + 3 * MIB);
    let mut seen = vec![0u8; 64 * MIB / PAGE_BYTES];
    let fresh = twin.heap.alloc(layout(64 * MIB, 1), Fill::Zero).unwrap().addr().get();
    let base = fresh.next_multiple_of(2 * MIB);
    // SAFETY: asks which pages are resident.
    let told =
        unsafe { libc::mincore(core::ptr::with_exposed_provenance_mut(base), 60 * MIB, seen.as_mut_ptr()) };
    assert_eq!(told, 0);
    assert!(seen.iter().all(|&page| page & 1 == 0), "somebody touched them");
    // SAFETY: the test has it.
    unsafe { twin.heap.free(fresh) }.unwrap();
    twin.free(at);
    twin.free(wall);
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
