//! The cost of holes in nodes, at the worst fill (FT6, SP3).
//!
//! # Theory
//! Every node but the root has at least `m = 3F/8` entries (BT2). A node that falls below joins a sibling if both
//! together fill at most `2m` slots. Otherwise it takes entries from the sibling until both have half, which is then at
//! least `m`. So `h` holes need at most `h / m` leaves, these at most `/ m` parents, and so on. A split happens only if
//! the entry that fills the node has reserved records, and leaves both halves with `F/2 >= m`. So the nodes in use
//! never exceed the cost of the current holes.
//!
//! `2m = 3F/4` leaves a quarter of a node between a join and the next split, and an eighth between a split and the next
//! join. So a hole that is made and filled again at a boundary does not join and split each time.

/// Fewest entries of a node that is not the root.
///
/// The smallest fanout is 4, where `3F/8` would be one, and a node of one child is no node. So `m` is 2 there. All of the
/// theory holds with `2m = F`, except for the distance between a join and a split.
pub(super) const fn min_fill(fanout: usize) -> usize {
    if fanout < 8 { fanout / 2 } else { fanout * 3 / 8 }
}

/// Most leaves that `holes` holes can need.
pub(super) fn leaves(holes: u64, fanout: usize) -> u64 {
    (holes / min_fill(fanout) as u64).max(1)
}

/// Most holes for which `leaves` leaves are always enough.
pub(super) fn holes(leaves: u64, fanout: usize) -> u64 {
    let m = min_fill(fanout) as u64;
    leaves.saturating_mul(m).saturating_add(m - 1)
}

/// Most inner nodes that `leaves` leaves can need.
pub(super) fn inners(leaves: u64, fanout: usize) -> u64 {
    let (mut level, mut total) = (leaves, 0);
    while level > 1 {
        level = (level / min_fill(fanout) as u64).max(1);
        total += level;
    }
    total
}

/// Most leaves, up to `at_most`, for which `inners` inner nodes are always enough.
pub(super) fn leaves_under(inner_count: u64, at_most: u64, fanout: usize) -> u64 {
    let (mut low, mut high) = (1, at_most.max(1));
    // The usual case.
    if inners(high, fanout) <= inner_count {
        return high;
    }
    // `inners` does not fall as leaves grow: search for the last value that `inners` nodes still cover.
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if inners(middle, fanout) <= inner_count {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    low
}

/// Most leaves that a tree of `height` inner levels can always hold, in every shape.
pub(super) fn leaves_within_height(height: usize, fanout: usize) -> u64 {
    // A tree one level higher has at least two children below its root and m below each of them: fewer leaves than
    // that cannot make it grow.
    2 * (min_fill(fanout) as u64).saturating_pow(height as u32).min(u64::MAX / 4) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ft6_costs_invert() {
        for fanout in [4, 8, 16, 32] {
            for count in 1..200 {
                assert!(leaves(holes(count, fanout), fanout) <= count);
                assert!(leaves(holes(count, fanout) + 1, fanout) > count);
                let enough = leaves_under(count, 1 << 40, fanout);
                assert!(inners(enough, fanout) <= count && inners(enough + 1, fanout) > count);
            }
        }
    }

    #[test]
    fn one_leaf_needs_no_inner_node_and_two_need_one() {
        assert_eq!(
            [inners(1, 16), inners(2, 16), inners(6, 16), inners(12, 16), inners(72, 16)],
            [0, 1, 1, 3, 15]
        );
    }

    #[test]
    fn two_halves_and_two_donors_are_never_underfull() {
        for fanout in [4, 8, 16, 32, 64] {
            let m = min_fill(fanout);
            assert!(m >= 2 && fanout / 2 >= m && 2 * m <= fanout);
            assert!((2 * m + 1).div_euclid(2) >= m, "a node that could not join leaves both with at least m");
        }
    }
}
