//! Records beside their expected contents, on platforms that have small pieces, or none.

use super::*;
use std::cell::Cell;
use std::vec::Vec;
use va_base::{Heap, LimitedHeap, Meta, NoSlabs};

#[derive(Clone, Copy)]
struct Cellule {
    value: u32,
    links: Option<[u32; 2]>,
    _pad: [u64; 4],
}
impl Record for Cellule {
    const EMPTY: Self = Self { value: 0, links: None, _pad: [0; 4] };
}
impl Linked for Cellule {
    fn links(&self) -> [u32; 2] {
        self.links.unwrap()
    }
    fn set_links(&mut self, links: [u32; 2]) {
        self.links = Some(links);
    }
}
impl Movable for Cellule {
    fn is_free(&self) -> bool {
        self.links.is_some()
    }
}

fn heap(limit: usize) -> LimitedHeap {
    let heap = LimitedHeap::new();
    heap.limit(limit);
    heap
}
fn take<const N: usize, const FLAT: usize>(slab: &mut Slab<Cellule, N, FLAT>) -> u32 {
    let id = slab.take().unwrap();
    *slab.get_mut(id) = Cellule { value: id, ..Cellule::EMPTY };
    id
}

#[test]
fn the_inline_records_serve_without_a_platform() {
    let mut slab = Slab::<Cellule, 3>::new();
    let ids: Vec<_> = (0..3).map(|_| take(&mut slab)).collect();
    assert_eq!(ids, [0, 1, 2]);
    assert_eq!(slab.take(), None);
    assert_eq!(slab.reserve(4, &NoSlabs), Err(1));
    slab.put(1);
    assert_eq!(slab.take(), Some(1));
}

#[test]
fn sl1_ids_are_distinct_and_come_back_whatever_the_pieces() {
    for limit in [4096, 1 << 20] {
        let heap = heap(limit);
        let mut slab = Slab::<Cellule, 2>::new();
        slab.reserve(5000, &heap).unwrap();
        let mut ids: Vec<_> = (0..slab.capacity()).map(|_| take(&mut slab)).collect();
        assert_eq!(slab.take(), None);
        assert!(ids.iter().all(|&id| slab.get(id).value == id) && slab.is_conserved());
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), slab.capacity());
        for id in ids {
            slab.put(id);
        }
        assert_eq!((slab.used(), slab.count_freed()), (0, Some(slab.capacity())));
        assert!(slab.is_conserved());
        slab.return_all(&heap);
        assert_eq!(heap.bytes(), 0);
    }
}

#[test]
fn inline_records_move_into_the_first_piece_under_their_ids_and_out_again() {
    let heap = heap(1 << 20);
    let mut slab = Slab::<Cellule, 4>::new();
    (0..4).for_each(|_| _ = take(&mut slab));
    slab.put(2);
    slab.reserve(9, &heap).unwrap();
    assert_eq!([0, 1, 3].map(|id| slab.get(id).value), [0, 1, 3]);
    assert_eq!((take(&mut slab), take(&mut slab)), (2, 4));
    slab.put(0);
    while slab.capacity() > slab.next_lower(4).unwrap_or(usize::MAX) {
        if let Last::Moved { from, to } = slab.move_last(4) {
            assert_eq!((from, to), (4, 0));
        }
    }
    assert!(slab.free_pieces(&mut 1, &heap) > 0);
    assert_eq!(heap.bytes(), 0);
    assert_eq!([0, 1, 2, 3].map(|id| slab.get(id).value), [4, 1, 2, 3]);
    assert!(slab.is_conserved());
}

#[test]
fn sl1_holds_while_records_come_go_and_move() {
    come_go_and_move::<0>();
    // With a flat beginning that grows, is full, and comes before an array.
    come_go_and_move::<128>();
    come_go_and_move::<1024>();
}

fn come_go_and_move<const FLAT: usize>() {
    let heap = heap(4096);
    let (mut slab, mut seed) = (Slab::<Cellule, 2, FLAT>::new(), 7u64);
    // The owner of each record: values name owners.
    let mut owned: Vec<u32> = Vec::new();
    for round in 0..30_000u64 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // Memory in pages alone, and in any pieces, by turns.
        heap.limit(if seed >> 50 & 7 < 4 { 4096 } else { 1 << 20 });
        let want = if round / 5000 % 2 == 0 { 2000 } else { 20 };
        if owned.len() < want {
            slab.reserve(owned.len() + 1, &heap).unwrap();
            let id = slab.take().unwrap();
            assert!(!owned.contains(&id), "{id} is in use");
            *slab.get_mut(id) = Cellule { value: owned.len() as u32, ..Cellule::EMPTY };
            owned.push(id);
        } else if let Some(last) = owned.pop() {
            let at = (seed >> 33) as usize % (owned.len() + 1);
            let gone = if at == owned.len() { last } else { core::mem::replace(&mut owned[at], last) };
            if at < owned.len() {
                slab.get_mut(last).value = at as u32;
            }
            slab.put(gone);
        }
        for _ in 0..seed >> 62 {
            let Some(low) = slab.next_lower(owned.len()).filter(|&low| low < slab.capacity()) else {
                break;
            };
            if let Last::Moved { to, .. } = slab.move_last(low) {
                owned[slab.get(to).value as usize] = to;
            }
        }
        slab.free_pieces(&mut 1, &heap);
        assert!(slab.used() == owned.len());
        if round % 64 == 0 {
            assert!(slab.is_conserved());
            assert!(owned.iter().enumerate().all(|(at, &id)| slab.get(id).value == at as u32));
        }
    }
    assert!(heap.bytes() <= 5 * 4096, "20 records and pieces on the way: {}", heap.bytes());
    slab.return_all(&heap);
    assert_eq!(heap.bytes(), 0);
}

#[test]
fn a_slab_shorter_than_promised_is_not_used() {
    struct Short(Cell<usize>);
    impl Platform for Short {
        fn alloc_meta<T: Record>(&self, _min: usize) -> Option<&'static mut [T]> {
            Heap.alloc_meta(1)
        }
        fn free_meta<T: Record>(&self, slab: Meta<&'static mut [T]>) {
            self.0.set(self.0.get() + slab.len());
        }
    }
    let platform = Short(Cell::new(0));
    let mut slab = Slab::<Cellule, 1>::new();
    assert_eq!(slab.reserve(9, &platform), Err(8));
    assert_eq!((slab.capacity(), platform.0.get()), (1, 1));
}

#[test]
fn a_platform_without_shorter_memory_retains_its_fragment() {
    /// Allocates three times the request, and each further time more.
    struct Longer(Cell<usize>);
    impl Platform for Longer {
        fn alloc_meta<T: Record>(&self, min: usize) -> Option<&'static mut [T]> {
            self.0.set(self.0.get() + 1);
            Heap.alloc_meta(min * 3 * self.0.get())
        }
        fn free_meta<T: Record>(&self, _slab: Meta<&'static mut [T]>) {}
    }
    let mut slab = Slab::<Cellule, 1, 4096>::new();
    slab.reserve(8, &Longer(Cell::new(0))).unwrap();
    let before = slab.bytes();
    let mut freed = 0;
    while let Some(low) = slab.shrink_step(2, &mut 1000, &mut freed, &Longer(Cell::new(9))) {
        assert!(matches!(slab.move_last(low), Last::Dropped), "no record is in use");
    }
    assert_eq!((freed, slab.bytes()), (0, before));
    assert_eq!(slab.take(), Some(0));
}

#[test]
fn a_slab_that_cannot_be_replaced_is_asked_for_once() {
    let heap = LimitedHeap::new();
    heap.fail_after(1);
    let mut slab = Slab::<Cellule, 1, 4096>::new();
    slab.reserve(600, &heap).unwrap();
    let mut freed = 0;
    while let Some(low) = slab.shrink_step(2, &mut 1000, &mut freed, &heap) {
        assert!(matches!(slab.move_last(low), Last::Dropped), "no record is in use");
    }
    assert_eq!((freed, heap.asked()), (0, 2));
}

#[test]
fn no_piece_is_wanted_for_records_that_there_are() {
    let slab = Slab::<Cellule, 3>::new();
    assert_eq!([3, 4].map(|want| slab.next(want).is_some()), [false, true]);
}

#[test]
fn a_flat_beginning_is_one_piece_up_to_its_last_record_and_grows_to_twice_its_length() {
    let heap = heap(usize::MAX);
    let mut slab = Slab::<Cellule, 1, 1024>::new();
    slab.reserve(1000, &heap).unwrap();
    assert_eq!((slab.capacity(), heap.asked()), (1024, 1));
    slab.return_all(&heap);
    // It cannot be shorter than a piece, and the platform is not asked whether it can.
    let mut slab = Slab::<Cellule, 1, 1024>::new();
    slab.reserve(2, &heap).unwrap();
    assert_eq!((slab.capacity(), heap.asked()), (slab.array.piece_len(), 2));
    assert_eq!((slab.shrink_step(2, &mut 9, &mut 0, &heap), heap.asked()), (None, 2));
    slab.return_all(&heap);

    /// Allocates three times the request, and notes it.
    struct Triple(Cell<usize>);
    impl Platform for Triple {
        fn alloc_meta<T: Record>(&self, min: usize) -> Option<&'static mut [T]> {
            self.0.set(min);
            Heap.alloc_meta(min * 3)
        }
        fn free_meta<T: Record>(&self, _slab: Meta<&'static mut [T]>) {}
    }
    let (platform, mut slab) = (Triple(Cell::new(0)), Slab::<Cellule, 1, 8192>::new());
    let asked = |slab: &mut Slab<_, 1, 8192>, want| slab.reserve(want, &platform).map(|()| platform.0.get());
    assert_eq!(asked(&mut slab, 1000), Ok(1024));
    assert_eq!(asked(&mut slab, 3 * 1024 + 1), Ok(6 * 1024));
    // Twice that would be too long: the array begins, and its pieces are short.
    assert_eq!(asked(&mut slab, 18 * 1024 + 1), Ok(slab.array.piece_len()));
}

#[test]
fn pieces_behind_a_flat_beginning_are_freed_as_far_as_none_is_needed() {
    let heap = heap(usize::MAX);
    let mut slab = Slab::<Cellule, 1, 128>::new();
    slab.reserve(257, &heap).unwrap();
    // 128 in one piece, and pieces of 64, 64 and 128.
    assert_eq!((slab.capacity(), slab.flat.len()), (384, 128));
    while let Some(low) = slab.shrink_step(150, &mut 1000, &mut 0, &heap) {
        slab.move_last(low);
    }
    assert_eq!(slab.capacity(), 128 + 64);
    slab.return_all(&heap);
}

#[test]
fn a_flat_beginning_for_which_there_is_no_shorter_piece_takes_no_step() {
    let heap = heap(usize::MAX);
    let mut slab = Slab::<Cellule, 1, 8192>::new();
    slab.reserve(4000, &heap).unwrap();
    (0..600).for_each(|_| _ = take(&mut slab));
    heap.limit(0);
    let mut shrunk = |steps| {
        let mut left = steps;
        while let Some(low) = slab.shrink_step(600, &mut left, &mut 0, &heap) {
            slab.move_last(low);
        }
        left
    };
    assert!(shrunk(9000) > 0, "the capacity is as low as it can be");
    assert_eq!(shrunk(9000), 9000, "a failure is none");
    heap.limit(usize::MAX);
    assert_eq!((shrunk(9000), shrunk(9000)), (8999, 9000), "one, for the shorter piece");
    slab.return_all(&heap);
}

#[test]
fn a_shrink_takes_no_more_steps_than_it_has() {
    let heap = heap(4096);
    let mut slab = Slab::<Cellule, 2>::new();
    slab.reserve(2000, &heap).unwrap();
    let ids: Vec<_> = (0..slab.capacity()).map(|_| take(&mut slab)).collect();
    ids.iter().for_each(|&id| slab.put(id));
    // A step for each record, and one for the piece.
    let (piece, bytes) = (slab.array.piece_len(), heap.bytes());
    let piece_bytes = piece * size_of::<Cellule>();
    let (mut steps, mut freed, mut lowered) = (2 * piece, 0, 0);
    while let Some(low) = slab.shrink_step(2, &mut steps, &mut freed, &heap) {
        slab.move_last(low);
        lowered += 1;
    }
    assert_eq!((steps, freed, lowered), (0, piece_bytes, 2 * piece - 1));
    assert_eq!(heap.bytes(), bytes - piece_bytes);
    // Without records a step is a piece.
    slab.forget_all(0);
    assert_eq!((slab.free_pieces(&mut 3, &heap), slab.free_pieces(&mut 0, &heap)), (3 * piece_bytes, 0));
    assert_eq!(heap.bytes(), bytes - 4 * piece_bytes);
    slab.return_all(&heap);
}

#[test]
fn records_that_a_shrink_left_out_serve_again_without_the_platform() {
    let heap = heap(4096);
    let mut slab = Slab::<Cellule, 2>::new();
    slab.reserve(200, &heap).unwrap();
    let (all, asked) = (slab.capacity(), heap.asked());
    let low = slab.shrink_step(2, &mut 1, &mut 0, &heap).unwrap();
    assert!(matches!(slab.move_last(low), Last::Dropped));
    assert!(slab.capacity() < all);
    slab.reserve(all, &heap).unwrap();
    assert_eq!((slab.capacity(), heap.asked()), (all, asked));
    slab.return_all(&heap);
}

#[test]
fn sl1_a_lost_record_and_records_without_memory_are_found() {
    let heap = heap(4096);
    let broken = |spoil: fn(&mut Slab<Cellule, 2>)| {
        let mut slab = Slab::<Cellule, 2>::new();
        slab.reserve(100, &heap).unwrap();
        (0..50).for_each(|_| _ = take(&mut slab));
        [7, 8, 9].into_iter().for_each(|id| slab.put(id));
        assert!(slab.is_conserved());
        spoil(&mut slab);
        let conserved = slab.is_conserved();
        slab.forget_all(0);
        slab.return_all(&heap);
        !conserved
    };
    assert!(!broken(|_| ()));
    assert!(broken(|slab| slab.used -= 1), "a record in use is not counted");
    assert!(broken(|slab| slab.freed = NIL), "a free one is not in the list");
    assert!(broken(|slab| slab.relink(8, [Some(7), None])), "the two directions differ");
    assert!(broken(|slab| slab.relink(7, [None, Some(9)])), "the list is a loop");
    assert!(broken(|slab| slab.capacity = 49), "less than was ever used");
    assert!(broken(|slab| slab.capacity = slab.held() + 1), "there is no memory for so many");
    assert_eq!(heap.bytes(), 0);
}
