//! Checks that an empty table is all zeros, and so is empty storage for a static.

use crate::arena::{Arena, ask, fine, pages};
use crate::map::Nothing;
use va_block::{Blocks, EarlyBlocks};
use va_map::EarlyMap;
use va_percpu::EarlyPercpu;
use va_percpu::config::Standard as SmallFirst;
use va_sim::percpu::SimChunks;
use va_space::config::{Linux69, OneLock52, Standard, WithTrees};
use va_space::{Config, EarlySpace, VmapSpace};

/// Returns the tables that are not zeros, in a space with areas far apart, in magazines and in blocks.
fn used<C: Config>() -> Vec<&'static str> {
    let arena = Arena::leaked();
    let all = pages(16, 1 << 45);
    let space = fine(VmapSpace::<_, C>::new(all, all, arena));
    for at in [16, 1 << 20, 1 << 34, 1 << 44] {
        let _area = fine(space.alloc_at(pages(at, at + 3)));
    }
    for cpu in 0..4 {
        let area = fine(space.alloc(cpu, &ask(7)));
        fine(space.free(area));
        let mut magazine = fine(space.magazine(cpu));
        let area = fine(magazine.alloc(&ask(2)));
        fine(magazine.free(area));
    }
    arena.not_zero()
}

/// Returns the tables that are not zeros, of blocks and lanes.
fn used_by_blocks<C: va_block::Config>() -> Vec<&'static str> {
    let arena = Arena::leaked();
    let mut blocks = Blocks::<_, C>::empty();
    fine(blocks.init(pages(16, 1 << 40), arena, &[]));
    for cpu in [0, 1, 3] {
        let mapped: Vec<_> = (1..64).map(|count| (fine(blocks.alloc(cpu, count)), count)).collect();
        let mut lane = fine(blocks.lane(cpu));
        let at = fine(lane.alloc(2));
        fine(lane.free(at, 2));
        mapped.into_iter().for_each(|(at, count)| fine(blocks.free(cpu, at, count)));
    }
    let _ = blocks.unmap_aliases();
    arena.not_zero()
}

#[test]
fn an_empty_table_is_all_zeros() {
    assert_eq!(used::<Standard>(), [""; 0]);
    assert_eq!(used::<WithTrees<Standard>>(), [""; 0]);
    assert_eq!(used::<Linux69>(), [""; 0]);
    assert_eq!(used::<OneLock52>(), [""; 0]);
    assert_eq!(used_by_blocks::<va_block::config::Standard>(), [""; 0]);
    assert_eq!(used_by_blocks::<va_block::config::Linux64>(), [""; 0]);
}

/// Returns true if each byte of a static is zero.
fn is_zeros<T>(place: &'static T) -> bool {
    // SAFETY: the static is written by no other thread, and is read byte by byte.
    let bytes = unsafe { std::slice::from_raw_parts((&raw const *place).cast::<u8>(), size_of::<T>()) };
    bytes.iter().all(|&byte| byte == 0)
}

#[test]
fn a_place_for_a_space_is_all_zeros() {
    static PLACE: EarlySpace<&Arena, Standard> = EarlySpace::new();
    assert!(is_zeros(&PLACE));
    assert!(PLACE.get().is_err());
}

#[test]
fn a_place_for_blocks_is_all_zeros() {
    static PLACE: EarlyBlocks<&Arena> = EarlyBlocks::new();
    assert!(is_zeros(&PLACE));
    assert!(PLACE.get().is_err());
}

#[test]
fn a_place_for_percpu_memory_is_all_zeros() {
    static PLACE: EarlyPercpu<&Arena, SimChunks, SmallFirst> = EarlyPercpu::new();
    assert!(is_zeros(&PLACE));
    assert!(PLACE.get().is_err());
}

#[test]
fn a_place_for_a_map_is_all_zeros() {
    static PLACE: EarlyMap<&Arena, Nothing> = EarlyMap::new();
    assert!(is_zeros(&PLACE));
    assert!(PLACE.get().is_err());
}
