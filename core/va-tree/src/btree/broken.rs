//! Each invariant, broken on purpose: the walk must name it. A check that cannot fail proves nothing.

use super::BTree;
use super::node::{Inner, Leaf};
use crate::{FreeIndex, Supplied};
use std::vec::Vec;
use va_base::{Heap, NoSlabs, VaRange};

type Tree = BTree<u64, 8, Heap>;

/// Returns a tree of two levels or more with rows: `holes` holes of `1..=5` pages, one in three pages out of nine.
fn tree(holes: u64) -> Tree {
    let space = VaRange::from_pages(0, 1 << 20).unwrap();
    let mut tree = Tree::new(space, space, Heap).unwrap().with_rows().unwrap();
    for n in 0..holes {
        let from = n * 9 + 1 + n % 5;
        tree.take(VaRange::from_pages(n * 9, from).unwrap()).unwrap();
        tree.take(VaRange::from_pages(n * 9 + 6, n * 9 + 9).unwrap()).unwrap();
    }
    tree.validate().unwrap();
    assert!(tree.height >= 2, "the tree must be deep enough to be broken everywhere");
    tree
}

/// Returns the rules that the walk names after `spoil`.
fn broken(spoil: impl FnOnce(&mut Tree)) -> &'static str {
    let mut tree = tree(200);
    spoil(&mut tree);
    let broken = tree.validate().map_err(|broken| broken.rule);
    // Its drop must not fail on the fault.
    broken.err().unwrap_or("nothing")
}

/// Returns the ids of all leaves, leftmost first, and of all inner nodes.
fn nodes(tree: &Tree) -> (Vec<u32>, Vec<u32>) {
    let (mut level, mut inners) = (std::vec![tree.root], Vec::new());
    for _ in 0..tree.height {
        inners.extend(&level);
        level = level
            .iter()
            .flat_map(|&node| {
                let inner = tree.inners.get(node);
                inner.child[..inner.len()].to_vec()
            })
            .collect();
    }
    (level, inners)
}

#[test]
fn ft1_an_overlap_is_named() {
    // The second hole of a leaf starts before the first one ends.
    assert_eq!(
        broken(|tree| {
            let leaf = nodes(tree).0[3];
            let leaf = tree.leaves.get_mut(leaf);
            leaf.size[1] = leaf.end[1] - leaf.end[0] + 1;
        }),
        "FT1"
    );
}

#[test]
fn ft2_holes_that_touch_are_named() {
    assert_eq!(
        broken(|tree| {
            let leaf = nodes(tree).0[3];
            let leaf = tree.leaves.get_mut(leaf);
            leaf.size[1] = leaf.end[1] - leaf.end[0];
        }),
        "FT2"
    );
}

#[test]
fn ft4_a_hole_outside_is_named() {
    let space = VaRange::from_pages(100, 200).unwrap();
    let mut tree = BTree::<u64, 8, _>::new(space, space, NoSlabs).unwrap();
    tree.take(VaRange::from_pages(110, 120).unwrap()).unwrap();
    // [100, 110) becomes [99, 110).
    tree.leaves.get_mut(tree.root).size[0] = 11;
    assert_eq!(tree.validate().unwrap_err().rule, "FT4");
    // A hole without a page.
    assert_eq!(broken(|tree| tree.leaves.get_mut(nodes(tree).0[3]).size[1] = 0), "FT4");
    // One that is longer than all that is below it, and one that ends above all.
    for longer in [true, false] {
        assert_eq!(
            broken(|tree| {
                let top = tree.top_end();
                let leaf = tree.leaves.get_mut(nodes(tree).0[0]);
                let slot = if longer { &mut leaf.size[0] } else { &mut leaf.end[0] };
                *slot = top;
            }),
            "FT4"
        );
    }
}

#[test]
fn ft5_a_wrong_count_is_named() {
    assert_eq!(broken(|tree| tree.ledger.holes -= 1), "FT5");
    assert_eq!(broken(|tree| tree.ledger.free_pages += 1), "FT5");
}

#[cfg(feature = "validate")]
#[test]
#[should_panic(expected = "after an operation on the B+tree: invariant FT5")]
fn an_operation_stops_at_a_wrong_count() {
    let space = VaRange::from_pages(0, 100).unwrap();
    let mut tree = Tree::new(space, space, Heap).unwrap();
    tree.ledger.free_pages += 1;
    _ = tree.take(VaRange::from_pages(10, 20).unwrap());
}

#[test]
fn ft6_unreserved_holes_are_reported() {
    assert_eq!(broken(|tree| tree.ledger.reserved_holes = 199), "FT6");
    assert_eq!(broken(|tree| tree.ledger.live = 1), "FT6");
}

#[test]
fn bt1_a_separator_on_the_wrong_side_is_named() {
    assert_eq!(
        broken(|tree| {
            let root = tree.root;
            tree.inners.get_mut(root).sep[0] += 9;
        }),
        "BT1"
    );
    assert_eq!(
        broken(|tree| {
            let inner = *nodes(tree).1.last().unwrap();
            tree.inners.get_mut(inner).sep[0] -= 9;
        }),
        "BT1"
    );
}

#[test]
fn bt2_a_node_with_too_few_entries_is_named() {
    assert_eq!(
        broken(|tree| {
            let leaf = nodes(tree).0[2];
            while tree.leaves.get(leaf).size[1] != 0 {
                tree.leaves.get_mut(leaf).remove(1);
            }
        }),
        "BT2"
    );
}

#[test]
fn ft6_a_tree_has_as_many_holes_as_its_height_allows_in_every_shape() {
    type Low = BTree<u64, 4, Heap>;
    // Two children of the root, and two of each node below: 8,191 leaves are not enough for a thirteenth level.
    let most = super::cost::holes(2 * (1 << 12) - 1, 4);
    let space = VaRange::from_pages(0, 1 << 20).unwrap();
    let mut tree = Low::new(space, space, Heap).unwrap();
    assert!(tree.reserve_holes(most + 1).is_err());
    tree.reserve_holes(most).unwrap();
    assert_eq!(tree.ledger.reserved_holes, most);
}

#[test]
fn the_memory_in_use_is_that_of_the_nodes() {
    let tree = tree(200);
    let (leaves, inners) = nodes(&tree);
    let bytes = leaves.len() * size_of::<Leaf<u64, 8>>() + inners.len() * size_of::<Inner<u64, 8>>();
    // A row of 8 numbers for each of 18 alignments.
    assert_eq!((tree.memory().used_bytes, tree.memory().row_bytes), (bytes, inners.len() * 18 * 64));
}

#[test]
fn a_shrink_moves_the_root_too() {
    for (holes, height) in [(20, 1), (100, 2)] {
        let space = VaRange::from_pages(0, 1 << 20).unwrap();
        let mut tree = Tree::new(space, space, Heap).unwrap();
        (0..holes).for_each(|n| _ = tree.take(VaRange::from_pages(2 * n, 2 * n + 1).unwrap()).unwrap());
        assert_eq!(tree.height, height);
        // The root moves up to a record that is not needed.
        tree.inners.reserve(60, &Heap).unwrap();
        let mut others: Vec<_> = core::iter::from_fn(|| tree.inners.take()).collect();
        let low = core::mem::replace(&mut tree.root, others.pop().unwrap());
        *tree.inners.get_mut(tree.root) = *tree.inners.get(low);
        others.into_iter().chain([low]).for_each(|id| tree.inners.put(id));
        tree.validate().unwrap();
        let root = tree.root;
        (0..9).for_each(|_| _ = tree.shrink(1000));
        tree.validate().unwrap();
        assert_ne!(tree.root, root);
    }
}

#[test]
fn a_page_that_was_taken_from_the_last_hole_of_a_full_leaf_is_in_none() {
    let space = VaRange::from_pages(0, 1 << 20).unwrap();
    let mut tree = Tree::new(space, space, Heap).unwrap();
    (0..50).for_each(|n| _ = tree.take(VaRange::from_pages(64 * n, 64 * n + 1).unwrap()).unwrap());
    let leaf = nodes(&tree).0[1];
    let page = |at| VaRange::from_pages(at, at + 1).unwrap();
    while tree.leaves.get(leaf).len() < 8 {
        let first = tree.leaves.get(leaf).end[0];
        tree.take(page(first - 2)).unwrap();
    }
    let last = page(tree.leaves.get(leaf).end[7] - 1);
    tree.take(last).unwrap();
    assert_eq!((tree.leaves.get(leaf).len(), tree.take(last).is_err()), (8, true));
    tree.validate().unwrap();
}

#[test]
fn bt3_a_wrong_gap_is_named() {
    for (below, above) in [(true, false), (false, true)] {
        assert_eq!(
            broken(|tree| {
                let inner = *nodes(tree).1.last().unwrap();
                let gap = &mut tree.inners.get_mut(inner).gap[0];
                *gap = *gap + u64::from(above) - u64::from(below);
            }),
            "BT3"
        );
    }
    assert_eq!(broken(|tree| tree.longest += 1), "BT3");
}

#[test]
fn bt4_a_wrong_row_is_named() {
    for class in [0, 1, 2] {
        assert_eq!(
            broken(|tree| {
                let inner = *nodes(tree).1.last().unwrap();
                tree.row_mut(inner, class)[0] += 1;
            }),
            "BT4"
        );
    }
    assert_eq!(
        broken(|tree| {
            tree.row_mut(tree.root, 3)[7] = 1;
        }),
        "BT4"
    );
}

#[test]
fn bt7_a_row_above_a_node_without_it_is_named() {
    // A class of a node near the leaves is gone, and one above claims it.
    let lacking = |tree: &mut Tree| {
        let inner = *nodes(tree).1.last().unwrap();
        tree.drop_rows_of(inner, super::Classes::only(2));
    };
    assert_eq!(broken(lacking), "BT7");
    // A class that is whole is none to the searches, and the other way round.
    assert_eq!(broken(|tree| tree.whole_classes = super::Classes::NONE), "BT7");
    assert_eq!(broken(|tree| tree.drop_rows_of(tree.root, super::Classes::only(2))), "BT7");
    // A row of a class for which no record is reserved.
    assert_eq!(broken(|tree| tree.row_classes = super::Classes::only(2)), "BT7");
}

#[test]
fn bt4_rows_stay_as_long_as_there_are_two_inner_levels() {
    let space = VaRange::from_pages(0, 1 << 20).unwrap();
    let mut tree = BTree::<u64, 4, Heap>::new(space, space, Heap).unwrap();
    let hole = |n: u64| VaRange::from_pages(2 * n, 2 * n + 1).unwrap();
    (0..64).for_each(|n| _ = tree.take(VaRange::from_pages(2 * n + 1, 2 * n + 2).unwrap()).unwrap());
    assert!(tree.height > 2 && !tree.has_rows());
    tree.reserve_holes(100).unwrap();
    tree.begin_rows(super::Classes::only(3), 100).unwrap();
    tree.build_all();
    for n in 0..64 {
        tree.take(hole(n)).unwrap();
        assert_eq!(tree.has_rows(), tree.height > 1, "{n}");
    }
    assert!(!tree.has_rows());
}

#[test]
fn bt5_a_hole_at_the_top_inside_the_tree_is_named() {
    // Below the end of the last hole, and right at its end.
    for start in [1794, 1797] {
        assert_eq!(
            broken(|tree| {
                let gone = tree.top_start - start;
                tree.top_start = start;
                tree.ledger.free_pages += gone;
            }),
            "BT5"
        );
    }
}

#[test]
fn bt6_a_last_end_too_low_is_named() {
    assert_eq!(broken(|tree| tree.last_end -= 1), "BT6");
}

#[test]
fn sl1_a_lost_record_is_named() {
    assert_eq!(broken(|tree| assert!(tree.leaves.take().is_some())), "SL1");
    assert_eq!(broken(|tree| assert!(tree.inners.take().is_some())), "SL1");
    assert_eq!(broken(|tree| assert!(tree.rows.take().is_some())), "SL1");
}
