//! The array beside its expected contents, on platforms that have small pieces, or none.

use super::*;
use crate::{LimitedHeap, NoSlabs, PIECE_BYTES};
use core::any::TypeId;

/// A record in pieces of `2^PIECE_LOG2`: of a page, unless stated.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Word<const PIECE_LOG2: u32 = { PIECE_BYTES.ilog2() - 3 }>(u64);
impl<const PIECE_LOG2: u32> Record for Word<PIECE_LOG2> {
    const EMPTY: Self = Self(0);
    const PIECE_LOG2: u32 = PIECE_LOG2;
}

fn heap(limit: usize) -> LimitedHeap {
    let heap = LimitedHeap::new();
    heap.limit(limit);
    heap
}

/// Writes each record's number into it, and reads all of them.
fn fill<const PIECE_LOG2: u32>(array: &mut PagedArray<Word<PIECE_LOG2>>) {
    let len = array.len() as u32;
    (0..len).for_each(|n| *array.get_mut(n).unwrap() = Word(u64::from(n) + 1));
    assert!((0..len).all(|n| *array.get(n).unwrap() == Word(u64::from(n) + 1)));
    array.validate().unwrap();
}

#[test]
fn pa1_each_record_has_its_own_place_at_any_mix_of_pieces() {
    // From pages alone to whole buckets, and changing between the two on the way.
    for limits in [&[PIECE_BYTES][..], &[1 << 30], &[1 << 13, PIECE_BYTES, 1 << 20, PIECE_BYTES]] {
        let heap = heap(0);
        let mut array = PagedArray::<Word>::new();
        for len in (1..9).map(|n| 700usize << n) {
            heap.limit(limits[len.ilog2() as usize % limits.len()]);
            array.reserve(len, &heap).unwrap();
            assert!(array.len() >= len);
            fill(&mut array);
        }
        // Back to nothing: the remaining records are unchanged.
        while let Some(supply) = array.remove_last() {
            supply.free(&heap);
            array.validate().unwrap();
            let last = array.len() as u32;
            assert!((0..last).all(|n| *array.get(n).unwrap() == Word(u64::from(n) + 1)));
            heap.limit(PIECE_BYTES);
        }
        assert_eq!(heap.bytes(), 0, "{limits:?}");
    }
}

#[test]
fn pa1_all_three_levels_of_nodes_are_used_and_freed() {
    let heap = heap(PIECE_BYTES);
    // 70,000 pieces of one record reach the third level.
    let mut array = PagedArray::<Word<0>>::new();
    heap.limit(8);
    assert_eq!(array.reserve(3, &heap), Err(1), "no memory for a node");
    heap.limit(PIECE_BYTES);
    // Whole buckets up to a page; then each piece is a word.
    array.reserve(512, &heap).unwrap();
    array.reserve(70_000, &heap).unwrap();
    assert!(!array.near.is_empty() || !array.middle.is_empty());
    assert!(!array.far.is_empty());
    fill(&mut array);
    array.clear(&heap);
    assert_eq!((heap.bytes(), array.is_empty()), (0, true));
}

/// A platform whose slabs are longer than requested by `more` records. It fails those of more than `limit` words.
struct Surplus<'a> {
    heap: &'a LimitedHeap,
    more: usize,
    limit: usize,
}

impl Platform for Surplus<'_> {
    fn alloc_meta<T: Record>(&self, min: usize) -> Option<&'static mut [T]> {
        let is_node = TypeId::of::<T>() != TypeId::of::<Word<0>>();
        if is_node || min <= self.limit { self.heap.alloc_meta(min + self.more) } else { None }
    }

    fn free_meta<T: Record>(&self, slab: Meta<&'static mut [T]>) {
        self.heap.free_meta(slab);
    }
}

#[test]
fn pa1_slabs_longer_than_requested_hold_every_record_once() {
    let heap = LimitedHeap::new();
    for more in [0, 1, 85, 256, 512] {
        // Each piece is a word. 66,000 reach the third level of nodes, and with 256 more 512 are near.
        let platform = |limit| Surplus { heap: &heap, more, limit };
        let mut array = PagedArray::<Word<0>>::new();
        // Pieces begin in the first node, in the second or in the third; then whole buckets, and pieces again.
        for (limit, len) in [(1, 700), (1 << 10, 4000), (1, 5000), (1, 66_000)] {
            array.reserve(len, &platform(limit)).unwrap();
            fill(&mut array);
        }
        for len in [4096, 600, 512, 300, 256, 200, 0] {
            while array.len() > len {
                array.remove_last().unwrap().free(&heap);
            }
            array.validate().unwrap();
            let all = 0..array.len() as u32;
            assert!(all.clone().all(|n| *array.get(n).unwrap() == Word(u64::from(n) + 1)), "{more} {len}");
            let near = |n| array.at_near(array.id(n)).filter(|_| array.at_whole(array.id(n)).is_none());
            assert!(all.clone().all(|n| near(n).is_none_or(|record| *record == Word(u64::from(n) + 1))));
            // Longer by pieces, or by a whole bucket if one begins here, and back.
            for limit in [1, 1 << 17] {
                let before = array.len();
                array.reserve(before + 300, &platform(limit)).unwrap();
                fill(&mut array);
                while array.len() > before {
                    array.remove_last().unwrap().free(&heap);
                }
            }
        }
        assert_eq!((heap.bytes(), array.is_empty()), (0, true), "{more}");
    }
}

#[test]
fn pa1_a_lost_piece_is_named() {
    let heap = heap(PIECE_BYTES);
    let mut array = PagedArray::<Word>::new();
    array.reserve(5000, &heap).unwrap();
    array.validate().unwrap();
    array.near[3].0 = nothing();
    assert_eq!(array.validate().unwrap_err().rule, "PA1");
}

#[test]
fn ids_and_numbers_are_two_names_of_one_record() {
    let array = PagedArray::<Word>::new();
    let mut id = array.id(0);
    for number in 0..100_000 {
        assert_eq!((array.id(number), array.number(id)), (id, number));
        let after = array.id_after(id);
        assert!(after > id && array.id_before(after) == id);
        id = after;
    }
}

#[test]
fn a_failure_changes_nothing_and_the_next_bucket_is_whole_again() {
    let heap = heap(1 << 30);
    let mut array = PagedArray::<Word>::new();
    array.reserve(2048, &heap).unwrap();
    let len = array.len();
    for left in 0..2 {
        heap.fail_after(left);
        heap.limit(PIECE_BYTES);
        let out = heap.bytes();
        assert_eq!(array.reserve(len + 1, &heap), Err(1), "a piece and its node, or neither");
        assert_eq!((array.len(), heap.bytes()), (len, out));
    }
    heap.fail_after(2);
    array.reserve(len + 1, &heap).unwrap();
    assert_eq!(array.len(), len + 512);
    heap.fail_after(u64::MAX);
    heap.limit(1 << 30);
    array.reserve(3 * len, &heap).unwrap();
    assert_eq!(array.len(), 4 * len);
    fill(&mut array);
    assert!(array.at_whole(array.id(4 * len as u32 - 1)).is_some());
    array.clear(&heap);
    assert_eq!(heap.bytes(), 0);
}

#[test]
fn records_longer_than_a_page_have_a_piece_each() {
    #[derive(Clone, PartialEq, Debug)]
    struct Long([u64; 1025]);
    impl Record for Long {
        const EMPTY: Self = Self([0; 1025]);
    }
    let heap = heap(9000);
    let mut array = PagedArray::<Long>::new();
    assert_eq!(array.piece_len(), 1);
    array.reserve(40, &heap).unwrap();
    (0..40).for_each(|number| array.get_mut(number).unwrap().0.fill(u64::from(number)));
    assert!((0..40).all(|number| array.get(number).unwrap().0 == [u64::from(number); 1025]));
    array.validate().unwrap();
    array.clear(&heap);
    assert_eq!(heap.bytes(), 0);
}

#[test]
fn memory_supplied_from_outside_is_used_once_and_stale_memory_comes_back() {
    let heap = heap(PIECE_BYTES);
    let mut array = PagedArray::<Word>::new();
    assert_eq!(array.reserve(1, &NoSlabs), Err(1));
    let next = array.next().unwrap();
    assert_eq!(next.bytes::<Word>(), PIECE_BYTES);
    let (one, two) = (next.alloc::<Word>(&heap).unwrap(), next.alloc::<Word>(&heap).unwrap());
    assert!(array.add(one).is_ok());
    array.add(two).err().unwrap().free(&heap);
    fill(&mut array);
    array.clear(&heap);
    assert_eq!(heap.bytes(), 0);
}
