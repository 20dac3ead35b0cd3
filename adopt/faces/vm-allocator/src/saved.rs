//! The form of snapshots: that of the original, which writes its trees as they are.
//!
//! A snapshot of either crate can be read by both. The tree that is written here is balanced as the original expects.

use crate::error::NodeState;
use crate::id_allocator::IdSet;
use crate::{AddressAllocator, AllocPolicy, Error, IdAllocator, RangeInclusive};
use alloc::boxed::Box;
use alloc::vec::Vec;
use serde::{Deserialize, Serialize};

/// A [`RangeInclusive`] that may be none.
#[derive(Deserialize)]
pub(crate) struct Ends {
    start: u64,
    end: u64,
}

impl TryFrom<Ends> for RangeInclusive {
    type Error = Error;

    fn try_from(Ends { start, end }: Ends) -> Result<Self, Error> {
        Self::new(start, end)
    }
}

/// An [`AddressAllocator`].
#[derive(Serialize, Deserialize)]
pub(crate) struct Allocator {
    address_space: RangeInclusive,
    interval_tree: Tree,
}

#[derive(Serialize, Deserialize)]
struct Tree {
    root: Option<Box<Node>>,
}

#[derive(Serialize, Deserialize)]
struct Node {
    key: RangeInclusive,
    node_state: NodeState,
    left: Option<Box<Node>>,
    right: Option<Box<Node>>,
    height: u64,
}

impl From<AddressAllocator> for Allocator {
    fn from(from: AddressAllocator) -> Self {
        let ends = |state| move |(first, last)| Some((RangeInclusive::new(first, last).ok()?, state));
        let areas = from.units.areas().filter_map(ends(NodeState::Allocated));
        let mut all: Vec<_> = areas.chain(from.units.holes().filter_map(ends(NodeState::Free))).collect();
        all.sort_unstable();
        Self { address_space: from.address_space, interval_tree: Tree { root: tree(&all) } }
    }
}

/// Returns a tree of sorted ranges: halves below halves, so the heights of two subtrees differ by one at most.
fn tree(sorted: &[(RangeInclusive, NodeState)]) -> Option<Box<Node>> {
    let middle = sorted.len() / 2;
    let &(key, node_state) = sorted.get(middle)?;
    let (left, right) = (tree(&sorted[..middle]), tree(&sorted[middle + 1..]));
    let height = |node: &Option<Box<Node>>| node.as_ref().map_or(0, |node| node.height);
    let height = 1 + height(&left).max(height(&right));
    Some(Box::new(Node { key, node_state, left, right, height }))
}

impl TryFrom<Allocator> for AddressAllocator {
    type Error = Error;

    fn try_from(saved: Allocator) -> Result<Self, Error> {
        let mut allocator = Self::new(saved.address_space.start(), saved.address_space.len())?;
        let mut nodes: Vec<_> = saved.interval_tree.root.into_iter().collect();
        while let Some(node) = nodes.pop() {
            if node.node_state == NodeState::Allocated {
                allocator.allocate(node.key.len(), 1, AllocPolicy::ExactMatch(node.key.start()))?;
            }
            nodes.extend(node.left.into_iter().chain(node.right));
        }
        Ok(allocator)
    }
}

/// An [`IdAllocator`].
#[derive(Serialize, Deserialize)]
pub(crate) struct Ids {
    range_base: u32,
    next_id: Option<u32>,
    range_end: u32,
    freed_ids: Vec<u32>,
}

impl From<IdAllocator> for Ids {
    fn from(IdAllocator { range_base, next_id, range_end, freed_ids }: IdAllocator) -> Self {
        Self { range_base, next_id, range_end, freed_ids: freed_ids.iter().collect() }
    }
}

impl TryFrom<Ids> for IdAllocator {
    type Error = Error;

    fn try_from(saved: Ids) -> Result<Self, Error> {
        let Ids { range_base, next_id, range_end, freed_ids } = saved;
        let mut allocator = Self { next_id, freed_ids: IdSet::EMPTY, ..Self::new(range_base, range_end)? };
        for id in freed_ids {
            allocator.free_id(id)?;
        }
        Ok(allocator)
    }
}
