//! The search for a busy area by an address: by the page map, or by a tree in each node.
//!
//! # Theory
//! The page map ([`MapLookup`]) has all information that is needed, without further cost. The alternative
//! ([`TreeLookup`]) is what Linux has had since 6.9. Each node has a red-black tree of the busy areas that *start* in
//! its zones, under a lock of its own. A start is found in one tree. An address inside an area may be in another node's
//! zone, so a lookup searches one node after the other. The next area above an address is the lowest of those that the
//! nodes have.
//!
//! ```text
//!   page     0......15 16.....31 32.....47 48.....63      4 nodes, zone 16 pages
//!   node     |   0    |    1    |    2    |    3    |
//!   area          |=============================|         [8, 56) is in the tree of node 0
//!   find 50                                  ^            up: 3, 0     down: 3, 2, 1, 0
//! ```
//!
//! A record in a tree is reserved before its area becomes busy for the first time, and released when the area returns
//! to the index. So an area from a pool needs no memory, and neither does a free (SP3). A caller that may sleep allocates
//! what a tree is missing with the lock released, and adds it under the lock. So a machine may fail all requests under
//! a lock. For a caller that may not, the machine is asked under the lock, as no call outside may sleep either.
//!
//! # Invariants
//! - **LK1 busy** the trees hold the busy areas, no others, each in the tree of the node of its start.
//! - **LK2 promised** a tree has a reserved record for every area that is out of the index and starts in its node.
//!
//! # Locking
//! The lock of one node's tree, `Busy`, with no other lock held.
//! # Source
//! Linux `mm/vmalloc.c` (6.12: `find_vmap_area`, `find_unlink_vmap_area`, `find_vmap_area_exceed_addr_lock`).

use crate::node::{NodeMap, Walk, Zone};
use crate::node_table::NodeTable;
use core::marker::PhantomData;
use va_base::sync::atomic::{AtomicU64, Ordering};
use va_base::sync::{Mutex, MutexGuard, RawMutex};
use va_base::{AllocError, Context, InvariantViolation, LockClass, Machine, Place, Table, Va, VaRange};
use va_tree::rb::AreaTree;

/// Finds busy areas of a space on machine `P`.
pub trait Lookup<P: Machine>: Sized + Send + Sync {
    /// True if the lookup finds areas itself. If not, the page map does, and only [`init`](Self::init) is called.
    const FINDS: bool;

    /// A lookup without areas, of a space without an extent.
    const EMPTY: Self;

    /// Sets the nodes of an empty lookup.
    fn init(&mut self, nodes: NodeMap);

    /// Reserves a record for an area that leaves the index, and inserts the area. For a caller that may sleep, memory is
    /// allocated with no lock held, otherwise under the lock of the lookup.
    ///
    /// # Errors
    /// [`AllocError::NoMeta`] if the machine allocates none. Nothing has changed.
    fn admit(&self, range: VaRange, context: Context, machine: &P) -> Result<(), AllocError>;

    /// Returns whether [`admit`](Self::admit) of an area that starts at `start` allocates no table.
    fn has_table(&self, start: Va) -> bool {
        let _ = start;
        true
    }

    /// Releases the record of an area that returns to the index.
    fn release(&self, start: Va);

    /// Inserts an area that becomes busy again.
    fn insert(&self, range: VaRange, machine: &P);

    /// Removes an area that is no longer busy.
    fn remove(&self, start: Va, machine: &P);

    /// Returns the busy area that starts at `at`.
    fn find(&self, at: Va, machine: &P) -> Option<VaRange>;

    /// Returns the busy area that `at` is inside.
    fn enclosing(&self, at: Va, machine: &P) -> Option<VaRange>;

    /// Returns the lowest busy area that ends above `at`.
    fn above(&self, at: Va, machine: &P) -> Option<VaRange>;

    /// Checks its own rules; returns its number of areas and of reserved records.
    ///
    /// # Errors
    /// [`InvariantViolation`] names the first rule that does not hold.
    fn validate(&self) -> Result<(u64, u64), InvariantViolation>;

    /// Returns its memory to the machine. It is not used afterwards.
    fn release_meta(&mut self, machine: &P);

    /// Returns whether a thread holds one of its locks.
    #[cfg(test)]
    #[cfg(not(loom))]
    fn is_locked(&self) -> bool {
        false
    }
}

/// The lookup by the page map, without memory of its own.
#[derive(Clone, Copy, Debug)]
pub struct MapLookup;

impl<P: Machine> Lookup<P> for MapLookup {
    const FINDS: bool = false;

    const EMPTY: Self = Self;

    fn init(&mut self, _nodes: NodeMap) {}

    #[inline(always)]
    fn admit(&self, _range: VaRange, _context: Context, _machine: &P) -> Result<(), AllocError> {
        Ok(())
    }

    #[inline(always)]
    fn release(&self, _start: Va) {}

    #[inline(always)]
    fn insert(&self, _range: VaRange, _machine: &P) {}

    #[inline(always)]
    fn remove(&self, _start: Va, _machine: &P) {}

    fn find(&self, _at: Va, _machine: &P) -> Option<VaRange> {
        None
    }

    fn enclosing(&self, _at: Va, _machine: &P) -> Option<VaRange> {
        None
    }

    fn above(&self, _at: Va, _machine: &P) -> Option<VaRange> {
        None
    }

    fn validate(&self) -> Result<(u64, u64), InvariantViolation> {
        Ok((0, 0))
    }

    fn release_meta(&mut self, _machine: &P) {}
}

/// The order in which the nodes are searched for an address inside an area.
pub trait ScanOrder: 'static {
    /// The order.
    const WALK: Walk;
}

/// The order of Linux 6.9 to 6.12.
#[derive(Clone, Copy, Debug)]
pub struct Upward;
/// The order of later releases.
#[derive(Clone, Copy, Debug)]
pub struct Downward;

impl ScanOrder for Upward {
    const WALK: Walk = Walk::Up;
}

impl ScanOrder for Downward {
    const WALK: Walk = Walk::Down;
}

/// The busy areas of one node.
struct BusyNode<R> {
    /// Created when the first area is admitted, so that an empty node is all zeros.
    tree: Mutex<R, Place<AreaTree>>,
    /// Reserved records. The count grows under the lock, after the records exist; it shrinks anywhere.
    /// Protocol PR-PROMISE.
    promised: AtomicU64,
}

impl<R: RawMutex + Send + Sync + 'static> Table for BusyNode<R> {
    va_base::empty_table!(Self { tree: Mutex::new(Place::Empty), promised: AtomicU64::new(0) });
}

/// A red-black tree in each node: zones by `Z`, nodes searched in the order of `W`.
pub struct TreeLookup<P: Machine, Z: Zone, W: ScanOrder> {
    nodes: NodeMap,
    table: NodeTable<BusyNode<P::Lock>>,
    policy: PhantomData<fn() -> (Z, W)>,
}

impl<P: Machine, Z: Zone, W: ScanOrder> core::fmt::Debug for TreeLookup<P, Z, W> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("TreeLookup").finish_non_exhaustive()
    }
}

impl<P: Machine, Z: Zone, W: ScanOrder> TreeLookup<P, Z, W> {
    /// Returns the tree of a start; `None` if no area that starts there was ever admitted.
    #[inline]
    fn branch(&self, at: Va) -> Option<&'static BusyNode<P::Lock>> {
        self.table.get(Z::node_of(&self.nodes, at))
    }

    #[inline]
    #[track_caller]
    fn lock<'a>(
        &self,
        branch: &'a BusyNode<P::Lock>,
        machine: &P,
    ) -> MutexGuard<'a, P::Lock, Place<AreaTree>> {
        machine.locking(LockClass::Busy);
        branch.tree.lock()
    }

    fn each(&self) -> impl Iterator<Item = (u32, &'static BusyNode<P::Lock>)> + '_ {
        self.table.each()
    }
}

impl<P: Machine, Z: Zone, W: ScanOrder> Lookup<P> for TreeLookup<P, Z, W> {
    const FINDS: bool = true;

    const EMPTY: Self = Self { nodes: NodeMap::ONE, table: NodeTable::EMPTY, policy: PhantomData };

    fn init(&mut self, nodes: NodeMap) {
        self.nodes = nodes;
    }

    fn admit(&self, range: VaRange, context: Context, machine: &P) -> Result<(), AllocError> {
        let node = Z::node_of(&self.nodes, range.start());
        let branch = self.table.ensure(node, machine).ok_or(AllocError::NoMeta { records: 1 })?;
        let mut supply = None;
        loop {
            let mut guard = self.lock(branch, machine);
            if guard.get().is_none() {
                *guard = va_base::constant!(Place::Full(AreaTree::new()));
            }
            let tree = guard.get_mut().ok_or(AllocError::NoMeta { records: 1 })?;
            let unused = supply.take().and_then(|supply| tree.donate(supply));
            // Keeps LK2: a count that is too high, since another thread is releasing a record, reserves one too many.
            let records = branch.promised.load(Ordering::Relaxed) + 1;
            let wanted = if context == Context::Sleeping { tree.wanted(records) } else { None };
            let done = match wanted {
                Some(_) => Ok(()),
                None => tree.reserve(records, machine).map(|()| {
                    branch.promised.fetch_add(1, Ordering::Relaxed);
                    put(tree, range, machine);
                }),
            };
            drop(guard);
            if let Some(unused) = unused {
                unused.free(machine);
            }
            let Some(wanted) = wanted else { return done };
            supply = Some(wanted.alloc(machine).ok_or(AllocError::NoMeta { records: 1 })?);
        }
    }

    fn has_table(&self, start: Va) -> bool {
        self.branch(start).is_some()
    }

    fn release(&self, start: Va) {
        if let Some(branch) = self.branch(start) {
            branch.promised.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn insert(&self, range: VaRange, machine: &P) {
        if let Some(branch) = self.branch(range.start())
            && let Some(tree) = self.lock(branch, machine).get_mut()
        {
            put(tree, range, machine);
        }
    }

    fn remove(&self, start: Va, machine: &P) {
        if let Some(branch) = self.branch(start)
            && self.lock(branch, machine).get_mut().is_none_or(|tree| tree.remove(start).is_none())
        {
            machine.bug(format_args!("LK1: the area freed at {start} is in no tree"), None);
        }
    }

    fn find(&self, at: Va, machine: &P) -> Option<VaRange> {
        self.lock(self.branch(at)?, machine).get()?.find(at)
    }

    fn enclosing(&self, at: Va, machine: &P) -> Option<VaRange> {
        let (first, nodes) = (Z::node_of(&self.nodes, at), self.nodes.nodes());
        (0..nodes).find_map(|step| {
            let node = match W::WALK {
                Walk::Up => (first + step) % nodes,
                Walk::Down => (first + nodes - step) % nodes,
            };
            self.lock(self.table.get(node)?, machine).get()?.enclosing(at)
        })
    }

    fn above(&self, at: Va, machine: &P) -> Option<VaRange> {
        loop {
            let above = |(_, branch)| self.lock(branch, machine).get()?.above(at);
            let lowest = self.each().filter_map(above).min_by_key(|range| range.start())?;
            // It was the lowest when its node was searched; if it was freed before the last node was, search again.
            if self.find(lowest.start(), machine) == Some(lowest) {
                return Some(lowest);
            }
        }
    }

    fn validate(&self) -> Result<(u64, u64), InvariantViolation> {
        let (mut areas, mut promised) = (0, 0);
        for (node, branch) in self.each() {
            let records = branch.promised.load(Ordering::Relaxed);
            promised += records;
            let tree = branch.tree.lock();
            let Some(tree) = tree.get() else { continue };
            tree.validate()?;
            for range in tree.areas() {
                let home = Z::node_of(&self.nodes, range.start());
                let at = range.start();
                InvariantViolation::check(home == node, "LK1", at, u64::from(home), u64::from(node))?;
            }
            InvariantViolation::check(tree.len() <= records, "LK2", Va::ZERO, tree.len(), records)?;
            areas += tree.len();
        }
        Ok((areas, promised))
    }

    fn release_meta(&mut self, machine: &P) {
        for (_, branch) in self.table.each() {
            let mut tree = branch.tree.lock();
            if let Some(tree) = tree.get_mut() {
                tree.clear(machine);
            }
            *tree = Place::Empty;
        }
        self.table.release_meta(machine);
    }

    #[cfg(test)]
    #[cfg(not(loom))]
    fn is_locked(&self) -> bool {
        self.each().any(|(_, branch)| branch.tree.try_lock().is_none())
    }
}

/// Puts a range into a tree that has a record for it, and no overlapping range.
fn put(tree: &mut AreaTree, range: VaRange, machine: &impl Machine) {
    if let Err(error) = tree.insert(range) {
        machine.bug(format_args!("LK1: {range} becomes busy, and its tree says: {error}"), None);
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::testing::TestMachine;

    #[test]
    fn the_lookup_by_the_page_map_has_no_areas() {
        let (lookup, machine) = (<MapLookup as Lookup<TestMachine>>::EMPTY, TestMachine::default());
        let range = VaRange::from_pages(16, 20).unwrap();
        assert_eq!(lookup.admit(range, Context::Sleeping, &machine), Ok(()));
        lookup.insert(range, &machine);
        let (at, machine) = (range.start(), &machine);
        let found = [lookup.find(at, machine), lookup.enclosing(at, machine), lookup.above(at, machine)];
        let counts = <MapLookup as Lookup<TestMachine>>::validate(&lookup);
        assert_eq!((found, counts), ([None; 3], Ok((0, 0))));
    }
}
