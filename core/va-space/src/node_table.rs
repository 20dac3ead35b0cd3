//! A table for each node of a space, in groups, allocated when a node is first used.
//!
//! A space may have as many nodes as a kernel has CPUs, most of which may never come online. So it has room for a few
//! groups, each of which is a table of references. The machine allocates a group and a node when they are first needed,
//! and they remain until the space is dropped.
//!
//! # Locking
//! None: a reference is set once. Of two callers that race to set one, one returns its table to the machine.

use va_base::sync::OnceRef;
use va_base::{Machine, Meta, Table};

/// Nodes in a group.
#[cfg(not(loom))]
const GROUP: usize = 256;
/// Nodes in a group, in a model.
#[cfg(loom)]
const GROUP: usize = 2;
/// Groups of a space.
const GROUPS: usize = 16;

/// Most nodes of a space.
pub const NODES_LIMIT: u32 = (GROUP * GROUPS) as u32;

/// References to the tables of consecutive nodes.
struct Group<T: 'static>([OnceRef<'static, T>; GROUP]);

impl<T: Table> Table for Group<T> {
    va_base::empty_table!(Self([const { OnceRef::new() }; GROUP]));
}

/// A `T` for each node that was used.
pub(crate) struct NodeTable<T: 'static> {
    groups: [OnceRef<'static, Group<T>>; GROUPS],
}

/// Returns the table that `cell` refers to, allocated from the machine if there is none.
fn ensure<T: Table, G>(
    cell: &OnceRef<'static, T>,
    machine: &impl Machine,
    prepare: impl FnOnce(&'static T) -> G,
) -> Option<&'static T> {
    if let Some(there) = cell.get() {
        return Some(there);
    }
    let allocated = machine.alloc_table::<T>()?;
    let held = prepare(allocated);
    let set = cell.set(allocated);
    drop(held);
    if set.is_err() {
        machine.free_table(Meta::new(allocated));
    }
    cell.get()
}

impl<T: Table> NodeTable<T> {
    /// A table without nodes.
    #[expect(
        clippy::declare_interior_mutable_const,
        reason = "each use is a new table, as a const function's would be, and a constant is all zeros in a static"
    )]
    pub(crate) const EMPTY: Self = Self { groups: [const { OnceRef::new() }; GROUPS] };

    /// Returns the table of a node, if there is one.
    #[inline(always)]
    pub(crate) fn get(&self, node: u32) -> Option<&'static T> {
        self.groups[node as usize / GROUP % GROUPS].get()?.0[node as usize % GROUP].get()
    }

    /// Returns the table of a node, allocating it if there is none; `None` if the machine has no memory.
    pub(crate) fn ensure(&self, node: u32, machine: &impl Machine) -> Option<&'static T> {
        self.ensure_with(node, machine, |_| ())
    }

    /// Returns the table as [`ensure`](Self::ensure) does. `prepare` is called for a new table before other threads see
    /// it, and its result is dropped after.
    pub(crate) fn ensure_with<G>(
        &self,
        node: u32,
        machine: &impl Machine,
        prepare: impl FnOnce(&'static T) -> G,
    ) -> Option<&'static T> {
        let group = ensure(&self.groups[node as usize / GROUP % GROUPS], machine, |_| ())?;
        ensure(&group.0[node as usize % GROUP], machine, prepare)
    }

    /// Returns every node that was created, with its number, in the order of their numbers.
    pub(crate) fn each(&self) -> impl Iterator<Item = (u32, &'static T)> + '_ {
        let groups = self.groups.iter().zip(0..).filter_map(|(group, at)| Some((group.get()?, at)));
        groups.flat_map(|(group, at)| {
            let nodes = group.0.iter().zip(at * GROUP as u32..);
            nodes.filter_map(|(node, number)| Some((number, node.get()?)))
        })
    }

    /// Returns the first node from `node` up to `end` that was created.
    pub(crate) fn next(&self, mut node: u32, end: u32) -> Option<u32> {
        while node < end {
            let Some(group) = self.groups[node as usize / GROUP % GROUPS].get() else {
                node = (node / GROUP as u32 + 1) * GROUP as u32;
                continue;
            };
            if group.0[node as usize % GROUP].get().is_some() {
                return Some(node);
            }
            node += 1;
        }
        None
    }

    /// Returns all tables to the machine; the value must not be used afterwards.
    pub(crate) fn release_meta(&self, machine: &impl Machine) {
        for group in self.groups.iter().filter_map(OnceRef::get) {
            for node in group.0.iter().filter_map(OnceRef::get) {
                machine.free_table(Meta::new(node));
            }
            machine.free_table(Meta::new(group));
        }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::testing::TestMachine;
    use std::vec::Vec;

    struct Empty;

    impl Table for Empty {
        const EMPTY: Self = Self;
    }

    #[test]
    fn nodes_are_found_by_number_and_in_turn() {
        let (table, machine) = (NodeTable::<Empty>::EMPTY, TestMachine::default());
        let numbers = [3, 255, 256, 700, NODES_LIMIT - 1];
        for _ in 0..2 {
            assert!(numbers.into_iter().all(|node| table.ensure(node, &machine).is_some()));
        }
        assert!(table.each().map(|(node, _)| node).eq(numbers));
        for node in 0..NODES_LIMIT {
            assert_eq!(table.get(node).is_some(), numbers.contains(&node));
            let above: Vec<_> = numbers.into_iter().filter(|&number| number >= node).collect();
            assert_eq!(table.next(node, NODES_LIMIT), above.first().copied(), "{node}");
            assert_eq!(table.next(node, 255), above.first().copied().filter(|&first| first < 255), "{node}");
        }
    }
}
