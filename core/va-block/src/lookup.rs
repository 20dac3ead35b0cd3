//! The path from an address to the record of its block.
//!
//! # Theory
//! A caller that frees has an address and a count, but not the CPU that allocated. Blocks are aligned to their size. So
//! the address divided by the size, counted from the window's first block, is the **index** of the block. A radix tree
//! of tables, allocated when first needed, leads from the index to the record. Tables and records remain until the
//! blocks are dropped, so a lookup takes no lock, and nothing that it reads is freed.
//!
//! To add and to remove a block needs a lock. Linux had one for the whole map, the second most contended lock of the
//! machine when 64 threads map and unmap a page. Later versions hash over the possible CPUs ([`Spread`]). Here the lock
//! guards the number of present blocks of a bucket, changed together with the place of the block. It is taken twice in
//! the life of a block.
//!
//! # Invariants
//! - **VB5 present** each bucket counts the blocks that are present in it.
//! # Locking
//! `Lookup`, one for each bucket, under which no lock is taken.
//! # Source
//! Linux `mm/vmalloc.c` (`vmap_blocks`; 6.4 and later: `addr_to_vb_xa`).

use crate::block::{Block, NIL};
use va_base::sync::OnceRef;
use va_base::{Machine, Meta, Table};

#[cfg(not(loom))]
mod shape {
    pub(super) const LEAF_LOG2: u32 = 10;
    pub(super) const BRANCH_LOG2: u32 = 11;
}
#[cfg(loom)]
mod shape {
    pub(super) const LEAF_LOG2: u32 = 2;
    pub(super) const BRANCH_LOG2: u32 = 1;
}
use shape::{BRANCH_LOG2, LEAF_LOG2};

const LEAF: usize = 1 << LEAF_LOG2;
const BRANCH: usize = 1 << BRANCH_LOG2;

/// Blocks that the lookup covers; below [`NIL`].
pub(crate) const COVERED: u64 = (1 << (LEAF_LOG2 + 2 * BRANCH_LOG2)) - 1;
const _: () = assert!(COVERED <= NIL as u64);

/// Records of consecutive blocks.
struct Leaf([OnceRef<'static, Block>; LEAF]);

impl Table for Leaf {
    va_base::empty_table!(Self([const { OnceRef::new() }; LEAF]));
}

/// Tables of consecutive sections of the window.
struct Branch<T: 'static>([OnceRef<'static, T>; BRANCH]);

impl<T: Send + Sync + 'static> Table for Branch<T> {
    va_base::empty_table!(Self([const { OnceRef::new() }; BRANCH]));
}

/// The tree.
pub(crate) struct Lookup {
    /// The leaf of the lowest blocks, which are used first and most.
    near: OnceRef<'static, Leaf>,
    far: OnceRef<'static, Branch<Branch<Leaf>>>,
}

/// Returns the table that the cell refers to, allocated from the machine if there is none.
pub(crate) fn ensure<T: Table>(
    cell: &OnceRef<'static, T>,
    machine: &impl Machine,
    prepare: impl FnOnce(&T),
) -> Option<&'static T> {
    if let Some(there) = cell.get() {
        return Some(there);
    }
    let allocated = machine.alloc_table::<T>()?;
    prepare(allocated);
    if cell.set(allocated).is_err() {
        machine.free_table(Meta::new(allocated));
    }
    cell.get()
}

impl Lookup {
    pub(crate) const fn new() -> Self {
        Self { near: OnceRef::new(), far: OnceRef::new() }
    }

    /// Returns the record of block `index`, if one was created.
    #[inline(always)]
    pub(crate) fn find(&self, index: u32) -> Option<&'static Block> {
        #[cfg(test)]
        #[cfg(not(loom))]
        crate::testing::look();
        if (index as usize) < LEAF {
            return self.near.get()?.0.get(index as usize)?.get();
        }
        self.find_far(index)
    }

    #[inline]
    fn find_far(&self, index: u32) -> Option<&'static Block> {
        let (high, middle, low) = split(index);
        self.far.get()?.0.get(high)?.get()?.0.get(middle)?.get()?.0.get(low)?.get()
    }

    /// Returns the record of block `index`, creating it if there is none; `None` if the machine allocates no table.
    /// Tables that were allocated before a failure remain.
    pub(crate) fn ensure(&self, index: u32, machine: &impl Machine) -> Option<&'static Block> {
        let (high, middle, low) = split(index);
        let leaf = if (index as usize) < LEAF {
            ensure(&self.near, machine, |_| ())?
        } else {
            let far = ensure(&self.far, machine, |_| ())?;
            let branch = ensure(far.0.get(high)?, machine, |_| ())?;
            ensure(branch.0.get(middle)?, machine, |_| ())?
        };
        ensure(leaf.0.get(low)?, machine, |block| block.set_index(index))
    }

    /// Returns every record, in address order.
    pub(crate) fn each(&self) -> impl Iterator<Item = &'static Block> + '_ {
        self.leaves().flat_map(|leaf| leaf.0.iter().filter_map(OnceRef::get))
    }

    fn leaves(&self) -> impl Iterator<Item = &'static Leaf> + '_ {
        let branches = self.far.get().into_iter().flat_map(|far| far.0.iter().filter_map(OnceRef::get));
        let leaves = branches.flat_map(|branch| branch.0.iter().filter_map(OnceRef::get));
        self.near.get().into_iter().chain(leaves)
    }

    /// Returns every table to the machine; the lookup must not be used afterwards.
    pub(crate) fn release_meta(&self, machine: &impl Machine) {
        for leaf in self.leaves() {
            for block in leaf.0.iter().filter_map(OnceRef::get) {
                machine.free_table(Meta::new(block));
            }
            machine.free_table(Meta::new(leaf));
        }
        if let Some(far) = self.far.get() {
            for branch in far.0.iter().filter_map(OnceRef::get) {
                machine.free_table(Meta::new(branch));
            }
            machine.free_table(Meta::new(far));
        }
    }
}

fn split(index: u32) -> (usize, usize, usize) {
    let (leaf, branch) = (LEAF as u32 - 1, BRANCH as u32 - 1);
    let high = index >> (LEAF_LOG2 + BRANCH_LOG2);
    (high as usize, (index >> LEAF_LOG2 & branch) as usize, (index & leaf) as usize)
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use std::vec::Vec;
    use va_sim::machine::SimMachine;

    #[test]
    fn blocks_far_apart_have_records_of_their_own() {
        let (machine, lookup) = (SimMachine::new(1), Lookup::new());
        // One in each half of the tree's levels, and the last.
        let indexes = [3, 1 << 10 | 3, 1 << 20 | 3, 1 << 21 | 3, 1 << 31 | 3, COVERED as u32 - 1];
        for index in indexes {
            assert!(lookup.find(index).is_none(), "{index}");
            lookup.ensure(index, &machine).unwrap();
        }
        let found: Vec<_> = indexes.iter().map(|&index| lookup.find(index).unwrap().index()).collect();
        assert_eq!(found, indexes);
        assert_eq!(lookup.each().map(Block::index).collect::<Vec<_>>(), indexes, "in address order");
        lookup.release_meta(&machine);
        assert_eq!(machine.tables(), 0);
    }
}
