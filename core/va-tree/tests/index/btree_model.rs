//! The B+tree and its reference models give the same results for all requests, and each answer has its certificate.

use proptest::prelude::*;
use va_base::{Va, VaRange};
use va_certify::Certified;
use va_sim::effort::some;
use va_sim::model::{ModelIndex, PageIndex};
use va_sim::op::{Op, Space};
use va_sim::platform::HeapPlatform;
use va_sim::run::{Walk, assert_same, compare};
use va_sim::soak::seeds;
use va_tree::btree::{BTree, Key};

fn pages(first: u64, end: u64) -> Space {
    Space::whole(VaRange::from_pages(first, end).unwrap())
}

fn bytes(start: u64, end: u64) -> VaRange {
    VaRange::new(Va::new(start), Va::new(end)).unwrap()
}

fn model(space: &Space) -> ModelIndex {
    ModelIndex::new(space.extent, space.default_window).unwrap()
}

fn tree<K: Key, const F: usize>(space: &Space, rows: bool) -> Certified<BTree<K, F, HeapPlatform>> {
    let tree = BTree::new(space.extent, space.default_window, HeapPlatform::default()).unwrap();
    Certified::new(if rows { tree.with_rows().unwrap() } else { tree })
}

fn run<K: Key, const F: usize>(space: &Space, ops: usize, walk: Walk) {
    for seed in 0..seeds(2) {
        let ops = || Op::from_seed(space, seed).take(some(ops));
        assert_same(space, tree::<K, F>(space, seed % 2 == 1), model(space), ops(), walk);
    }
}

#[test]
fn in_tiny_spaces() {
    for size in [1, 2, 16, 40, 300] {
        run::<u64, 4>(&pages(0, size), 1500, Walk::Always);
        run::<u64, 8>(&pages(0, size), 1500, Walk::Always);
        run::<u32, 8>(&pages(77, 77 + size), 1500, Walk::Always);
    }
}

#[test]
fn in_a_space_of_a_few_thousand_pages() {
    // The smallest nodes: the deepest trees.
    run::<u32, 4>(&pages(5, 2000), 5_000, Walk::Every(50));
    run::<u64, 8>(&pages(5, 5000), 8000, Walk::Every(50));
    run::<u64, 16>(&pages(5, 5000), 8000, Walk::Every(50));
    run::<u32, 32>(&pages(5, 9000), 8000, Walk::Every(50));
}

#[test]
fn in_a_space_of_2_to_the_64_bytes() {
    run::<u64, 8>(&Space::whole(VaRange::ALL), 10_000, Walk::Every(50));
    run::<u64, 16>(&Space::whole(bytes(1, u64::MAX)), 10_000, Walk::Every(50));
}

#[test]
fn in_linuxs_window() {
    let space = Space {
        extent: bytes(1, u64::MAX),
        default_window: bytes(0xffff_c900_0000_0000, 0xffff_e8ff_ffff_ffff),
    };
    run::<u64, 8>(&space, 10_000, Walk::Every(50));
    run::<u64, 16>(&space, 10_000, Walk::Every(50));
}

#[test]
fn in_a_32_bit_space_of_exactly_16_tib() {
    let first = 0xffff_c900_0000_0000 >> 12;
    run::<u32, 8>(&pages(first, first + (1 << 32)), 10_000, Walk::Every(50));
    run::<u32, 32>(&pages(first, first + (1 << 32)), 10_000, Walk::Every(50));
}

#[test]
fn a_32_bit_space_rejects_a_page_more() {
    let first = 0xffff_c900_0000_0000 >> 12;
    let space = pages(first, first + (1 << 32) + 1);
    assert!(BTree::<u32, 32, _>::new(space.extent, space.extent, HeapPlatform::default()).is_err());
    // Its base is rounded down to 1 GiB, and the pages in between count.
    let space = pages(first + 1, first + 1 + (1 << 32));
    assert!(BTree::<u32, 32, _>::new(space.extent, space.extent, HeapPlatform::default()).is_err());
}

#[test]
fn in_a_space_with_ragged_ends() {
    run::<u64, 8>(&Space::whole(bytes(0x7fff_0123, 0x8060_0fff)), 10_000, Walk::Every(20));
}

#[test]
fn the_model_equals_a_slower_one() {
    for seed in 0..seeds(2) {
        for space in [pages(0, 50), pages(9, 300)] {
            let slower = PageIndex::new(space.extent, space.default_window).unwrap();
            assert_same(&space, slower, model(&space), Op::from_seed(&space, seed).take(1000), Walk::Always);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: some(256), max_shrink_iters: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn whatever_the_ops(codes in prop::collection::vec(any::<[u16; 6]>(), 1..300), size in 1u64..200) {
        let space = pages(size % 7, size % 7 + size);
        let ops = || codes.iter().map(|&code| Op::decode(&space, code));
        let same = compare(tree::<u64, 8>(&space, false), model(&space), ops(), Walk::Always);
        prop_assert!(same.is_ok(), "{}", same.unwrap_err());
    }
}
