//! Each invariant, broken on purpose: the walk must name it. A check that cannot fail proves nothing.

use super::tree::Hole;
use super::{Exact, RbIndex};
use crate::FreeIndex;
use crate::slab::NIL;
use va_base::{Heap, NoSlabs, VaRange};

type Index = RbIndex<Exact, NoSlabs>;

/// Returns ten holes of one page, one page between each, and the rest of the space.
fn index() -> Index {
    let space = VaRange::from_pages(8, 100).unwrap();
    let mut index = Index::new(space, space, NoSlabs).unwrap();
    for page in 0..10 {
        index.take(VaRange::from_pages(9 + 2 * page, 10 + 2 * page).unwrap()).unwrap();
    }
    index.validate().unwrap();
    index
}

/// Returns the rule that the walk names after `spoil`.
fn broken(spoil: impl FnOnce(&mut Index)) -> &'static str {
    let mut index = index();
    spoil(&mut index);
    index.validate().map_err(|broken| broken.rule).err().unwrap_or("nothing")
}

/// Returns a hole in the middle that has two children, with its id.
fn inner(index: &Index) -> u32 {
    let root = index.tree.root;
    index.tree.get(root).left()
}

/// Returns a leaf of the tree.
fn leaf(index: &Index) -> u32 {
    index.tree.first()
}

#[test]
fn ft1_an_overlap_is_named() {
    assert_eq!(
        broken(|index| {
            // The first two holes change their starts with the pages between: sizes, and so maxima, stay.
            let first = leaf(index);
            let shift = |hole: &mut Hole| (hole.start, hole.end) = (hole.start + 0x3000, hole.end + 0x3000);
            shift(index.tree.get_mut(first));
        }),
        "FT1"
    );
}

#[test]
fn ft2_holes_that_touch_are_named() {
    assert_eq!(
        broken(|index| {
            let first = leaf(index);
            let hole = index.tree.get_mut(first);
            (hole.start, hole.end) = (hole.start + 0x1000, hole.end + 0x1000);
        }),
        "FT2"
    );
}

#[test]
fn ft3_a_wrong_maximum_is_named() {
    for by in [-1, 1] {
        assert_eq!(
            broken(|index| {
                let id = inner(index);
                let hole = index.tree.get_mut(id);
                hole.subtree_max_size = hole.subtree_max_size.wrapping_add_signed(by);
            }),
            "FT3"
        );
    }
}

#[test]
fn ft4_a_hole_outside_is_named() {
    assert_eq!(
        broken(|index| {
            let first = leaf(index);
            let hole = index.tree.get_mut(first);
            (hole.start, hole.end) = (hole.start - 0x1000, hole.end - 0x1000);
        }),
        "FT4"
    );
}

#[test]
fn ft5_a_wrong_count_is_named() {
    assert_eq!(broken(|index| index.ledger.holes -= 1), "FT5");
    assert_eq!(broken(|index| index.ledger.free_pages += 1), "FT5");
}

#[cfg(feature = "validate")]
#[test]
#[should_panic(expected = "after an operation on the red-black tree: invariant FT5")]
fn an_operation_stops_at_a_wrong_count() {
    let mut index = index();
    index.ledger.free_pages += 1;
    _ = index.take(VaRange::from_pages(40, 50).unwrap());
}

#[test]
fn rb2_a_chain_of_holes_is_named_on_a_small_stack() {
    const HOLES: u64 = 50_000;
    let named = || {
        let space = VaRange::from_pages(8, 8 + 2 * HOLES).unwrap();
        let mut index = RbIndex::<Exact, _>::new(space, space, Heap).unwrap();
        (0..HOLES - 1).for_each(|nth| {
            index.take(VaRange::from_pages(9 + 2 * nth, 10 + 2 * nth).unwrap()).unwrap();
        });
        // Each hole is the right child of the one below it in address, all of them black.
        let (mut id, mut before) = (index.tree.first(), NIL);
        let mut ids = std::vec::Vec::new();
        while id != NIL {
            ids.push(id);
            id = index.tree.get(id).next;
        }
        index.tree.root = ids[0];
        for (nth, &id) in ids.iter().enumerate() {
            let hole = index.tree.get_mut(id);
            (hole.parent, hole.red) = (before, false);
            hole.child = [NIL, ids.get(nth + 1).copied().unwrap_or(NIL)];
            before = id;
        }
        index.validate().map_err(|broken| broken.rule).err()
    };
    let thread = std::thread::Builder::new().stack_size(256 << 10).spawn(named).unwrap();
    assert_eq!(thread.join().unwrap(), Some("RB2"));
}

#[test]
fn ft6_unreserved_holes_are_reported() {
    assert_eq!(broken(|index| index.ledger.reserved_holes = 10), "FT6");
    assert_eq!(broken(|index| index.ledger.live = 1), "FT6");
}

#[test]
fn rb1_a_red_hole_below_a_red_one_is_named() {
    assert_eq!(broken(|index| index.tree.paint(index.tree.root, true)), "RB1");
    assert_eq!(
        broken(|index| {
            // Red all the way: below it, or above it, is another.
            let id = inner(index);
            index.tree.paint(id, true);
            let left = index.tree.get(id).left();
            index.tree.paint(left, true);
        }),
        "RB1"
    );
}

#[test]
fn rb2_a_lost_black_hole_is_named() {
    // The last hole of the list sits at a bottom; the other colour changes one way down and no other.
    assert_eq!(
        broken(|index| {
            let mut last = index.tree.root;
            while index.tree.get(last).right() != NIL {
                last = index.tree.get(last).right();
            }
            index.tree.paint(last, !index.tree.is_red(last));
        }),
        "RB2"
    );
}

#[test]
fn rb3_a_child_with_another_parent_is_named() {
    assert_eq!(
        broken(|index| {
            let id = inner(index);
            index.tree.get_mut(id).parent = NIL;
        }),
        "RB3"
    );
    // A loop: the root below a leaf.
    assert_eq!(
        broken(|index| {
            let (root, first) = (index.tree.root, leaf(index));
            index.tree.get_mut(first).child[0] = root;
            index.tree.get_mut(root).parent = first;
        }),
        "RB3"
    );
}

#[test]
fn rb4_a_list_in_another_order_is_named() {
    assert_eq!(
        broken(|index| {
            let first = leaf(index);
            let second = index.tree.get(first).next;
            let third = index.tree.get(second).next;
            index.tree.get_mut(first).next = third;
        }),
        "RB4"
    );
    assert_eq!(
        broken(|index| {
            let second = index.tree.get(leaf(index)).next;
            index.tree.get_mut(second).prev = NIL;
        }),
        "RB4"
    );
}

#[test]
fn sl1_a_lost_record_is_named() {
    assert_eq!(broken(|index| assert!(index.tree.slab.take().is_some())), "SL1");
}
