//! The search for the lowest chunk with room: a tree over chunks, of what fits in each.
//!
//! For engines whose heads are exact ([`HintEngine::BY_FITS`](crate::engine::HintEngine::BY_FITS)). A chunk that is
//! wholly free, isolated, or the reserved one counts as full here: the first two are tried last, in this order
//! reversed, from their lists.
//!
//! # Invariants
//! - **PF1 forest-exact**  a leaf is what fits in its chunk, or nothing; a node is the better of its halves.

use crate::fits::Fits;
use crate::table::Table;
use va_base::{InvariantViolation, Platform, Va};

/// The tree; the root at 1, leaves in the second half.
pub(crate) struct Forest {
    nodes: Table<Fits>,
    /// A power of two, or 0.
    leaves: usize,
}

impl Forest {
    pub(crate) const fn new() -> Self {
        Self { nodes: Table::new(), leaves: 0 }
    }

    /// Returns the number of records that the tree needs for `rows` chunks, if it has too few.
    pub(crate) fn wanted(&self, rows: u32) -> Option<usize> {
        let leaves = (rows as usize).next_power_of_two();
        (leaves > self.leaves).then_some(2 * leaves)
    }

    /// Moves into `nodes`, and returns the old ones.
    pub(crate) fn move_to(&mut self, nodes: Table<Fits>) -> Table<Fits> {
        let leaves =
            if nodes.len().is_power_of_two() { nodes.len() / 2 } else { nodes.len().next_power_of_two() / 4 };
        let old = core::mem::replace(&mut self.nodes, nodes);
        for row in 0..self.leaves {
            *self.node_mut(leaves + row) = *old.one((self.leaves + row) as u32);
        }
        for node in (1..leaves).rev() {
            *self.node_mut(node) = self.node(2 * node).max(*self.node(2 * node + 1));
        }
        self.leaves = leaves;
        old
    }

    #[inline(always)]
    fn node(&self, node: usize) -> &Fits {
        self.nodes.one(node as u32)
    }

    #[inline(always)]
    fn node_mut(&mut self, node: usize) -> &mut Fits {
        self.nodes.one_mut(node as u32)
    }

    /// Stores what fits in a chunk.
    #[inline]
    pub(crate) fn put(&mut self, row: u32, fits: Fits) {
        let mut node = self.leaves + row as usize;
        if *self.node(node) == fits {
            return;
        }
        *self.node_mut(node) = fits;
        // The value stays in registers: a load of a stored one would stall at each level.
        let mut both = fits;
        while node > 1 {
            both = both.max(*self.node(node ^ 1));
            node /= 2;
            if *self.node(node) == both {
                return;
            }
            *self.node_mut(node) = both;
        }
    }

    /// Returns the lowest row from `from` on where `bits` fit.
    #[inline]
    pub(crate) fn lowest(&self, from: u32, bits: u32, lane: usize) -> Option<u32> {
        let holds = |node: usize| self.node(node).fit(lane) as u32 >= bits;
        let mut node = self.leaves + from as usize;
        if from == 0 {
            node = 1;
        } else if from as usize >= self.leaves {
            return None;
        }
        loop {
            while from > 0 && node.is_multiple_of(2) && node > 1 {
                node /= 2;
            }
            if holds(node) {
                break;
            }
            node += 1;
            if node.is_power_of_two() {
                return None;
            }
        }
        while node < self.leaves {
            node = if holds(2 * node) { 2 * node } else { 2 * node + 1 };
        }
        Some((node - self.leaves) as u32)
    }

    /// Frees the memory.
    pub(crate) fn free<P: Platform>(&mut self, platform: &P) {
        self.leaves = 0;
        self.nodes.free(platform);
    }

    /// Checks PF1, given the fits that each chunk should have.
    pub(crate) fn validate(&self, of: impl Fn(u32) -> Fits) -> Result<(), InvariantViolation> {
        for row in 0..self.leaves {
            let (want, got) = (of(row as u32), *self.node(self.leaves + row));
            InvariantViolation::check(
                want == got,
                "PF1",
                Va::new(row as u64),
                want.fit(0) as u64,
                got.fit(0) as u64,
            )?;
        }
        for node in 1..self.leaves {
            let (want, got) = (self.node(2 * node).max(*self.node(2 * node + 1)), *self.node(node));
            InvariantViolation::check(
                want == got,
                "PF1",
                Va::new(node as u64),
                want.fit(0) as u64,
                got.fit(0) as u64,
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use va_base::LimitedHeap;

    #[test]
    fn the_lowest_row_that_holds_a_request_is_found_from_any_row_on() {
        let (heap, mut forest) = (LimitedHeap::new(), Forest::new());
        assert_eq!(forest.wanted(8), Some(16));
        forest.move_to(Table::alloc(16, &heap).unwrap()).free(&heap);
        // In bits; a multiplier that spreads them.
        for round in 1..40u32 {
            let fits: [u32; 8] = core::array::from_fn(|row| (row as u32 + 3) * round * 37 % 101);
            (0..8).for_each(|row| forest.put(row, Fits::of_run(0, fits[row as usize])));
            for (from, bits) in (0..10).flat_map(|from| (1..102).map(move |bits| (from, bits))) {
                let wanted = (from..8).find(|&row| fits[row as usize] >= bits);
                assert_eq!(forest.lowest(from, bits, 0), wanted, "{fits:?}: {bits} from {from} on");
            }
        }
        forest.free(&heap);
        assert_eq!(heap.slabs(), 0);
    }
}
