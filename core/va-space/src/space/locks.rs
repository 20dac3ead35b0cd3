//! The locks of a space: the state that each guards, and the only functions that take one.
//!
//! # Invariants
//! - **PO4 noted** a node is in the set of those with areas in their pools exactly when there is an area, whenever no
//!   thread holds the lock of its pool.
//! - **PO5 idle** of no list of a pool are more areas idle than it has.

use super::VmapSpace;
use super::overflow::Failed;
use super::purge::PurgeState;
use crate::config::Config;
use crate::error::SpaceError;
use crate::flush_batch::{Batched, LazyAreas};
use crate::list::{AreaList, Flushed, UnlinkedArea};
use crate::map::{Marker, PageMap};
use crate::node::Zone;
use crate::node_table::NODES_LIMIT;
use crate::pool::{CLASSES, Pool};
use core::ops::{Deref, DerefMut};
use va_base::sync::atomic::{AtomicU64, Ordering};
use va_base::sync::{Mutex, MutexGuard, RawMutex};
use va_base::{Align, InvariantViolation, LockClass, Machine, Table, Va};

/// The state of one node.
pub(super) struct Node<R> {
    pub(super) pool: Mutex<R, NodePool>,
    pub(super) lazy: Mutex<R, LazyAreas>,
    /// The areas that a purge took from the node. Locked by the holder of `purge`, so no thread
    /// ever waits for it.
    pub(super) batched: Mutex<R, Batched>,
}

impl<R: RawMutex + Send + Sync + 'static> Table for Node<R> {
    va_base::empty_table! {
        Self {
            pool: Mutex::new(NodePool { lists: Pool::new(), least: [0; CLASSES] }),
            lazy: Mutex::new(LazyAreas::new()),
            batched: Mutex::new(Batched::new()),
        }
    }
}

/// The pool of a node, and for each of its lists the fewest areas that it had since the last drain: so many were idle.
pub(super) struct NodePool {
    lists: Pool,
    least: [u32; CLASSES],
}

/// The nodes that may have areas in their pools: an empty pool is found empty without its lock.
///
/// A node is added under the lock of its pool when an area is put into the pool, and removed under it when the pool is
/// empty. So a bit changes in the order in which its pool is locked.
///
/// Reading a bit without that lock, relaxed, is right, though it may miss an area. A thread that knows of a put (by
/// whatever orders the two) reads the bit of that put or a later one. An area that it misses was put by a concurrent
/// thread, and a pool locked a moment earlier would have been empty, too. So a miss has no effect but that order of
/// events, where a failure is not remembered.
///
/// Each put is followed by `VmapSpace::note_return`. A pass that missed one may end before that call, which invalidates
/// the remembered failure. Otherwise it counts more returns than its own, and nothing is remembered (`overflow`).
/// Protocol PR-POOLED.
pub(super) struct Pooled([AtomicU64; POOLED_WORDS]);

const POOLED_WORDS: usize = NODES_LIMIT.div_ceil(64) as usize;

impl Pooled {
    va_base::const_fn! {
        pub(super) fn new() -> Self {
            Self(va_base::array_of![AtomicU64::new(0); POOLED_WORDS])
        }
    }

    /// Makes a bit wrong for a test.
    #[cfg(test)]
    #[cfg(not(loom))]
    pub(super) fn spoil(&self, node: u32) {
        self.word(node).fetch_xor(1 << (node % 64), Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn has(&self, node: u32) -> bool {
        self.word(node).load(Ordering::Relaxed) >> (node % 64) & 1 == 1
    }

    /// Returns the first node after `node` that has areas, in turn; `node` itself comes last. It looks at the 64 nodes
    /// that share a word.
    #[inline]
    pub(super) fn after(&self, node: u32) -> Option<u32> {
        let word = self.word(node).load(Ordering::Relaxed);
        let ahead = word.rotate_right(node + 1).trailing_zeros();
        (word != 0).then_some(node - node % 64 + (node + 1 + ahead) % 64)
    }

    #[inline(always)]
    fn word(&self, node: u32) -> &AtomicU64 {
        &self.0[node as usize / 64 % POOLED_WORDS]
    }

    /// Publishes whether `pool`, which the caller holds, has areas.
    #[inline]
    fn publish(&self, node: u32, pool: &Pool) {
        let any = pool.areas() > 0;
        if any != self.has(node) {
            let word = self.word(node);
            if any {
                word.fetch_or(1 << (node % 64), Ordering::Relaxed);
            } else {
                word.fetch_and(!(1 << (node % 64)), Ordering::Relaxed);
            }
        }
    }
}

/// Holds the lock of a pool, and publishes on release whether it has areas.
pub(super) struct PoolGuard<'a, R: RawMutex> {
    pool: MutexGuard<'a, R, NodePool>,
    pooled: &'a Pooled,
    node: u32,
}

impl<R: RawMutex> Deref for PoolGuard<'_, R> {
    type Target = Pool;

    fn deref(&self) -> &Pool {
        &self.pool.lists
    }
}

impl<R: RawMutex> DerefMut for PoolGuard<'_, R> {
    fn deref_mut(&mut self) -> &mut Pool {
        &mut self.pool.lists
    }
}

impl<R: RawMutex> PoolGuard<'_, R> {
    /// Takes an area as [`Pool::take`] does.
    #[inline(always)]
    pub(super) fn take(
        &mut self,
        map: &PageMap,
        pages: u64,
        align: Align,
        tries: u32,
    ) -> Option<UnlinkedArea<Flushed>> {
        let area = self.pool.lists.take(map, pages, align, tries)?;
        if let Some(class) = self.class(pages) {
            self.note_least(class);
        }
        Some(area)
    }

    /// Takes areas as [`SizeLists::take_list`](crate::pool::SizeLists::take_list) does.
    pub(super) fn take_list(&mut self, map: &PageMap, class: usize, count: u64) -> AreaList<Flushed> {
        let list = self.pool.lists.take_list(map, class, count);
        self.note_least(class);
        list
    }

    /// Takes an area as [`SizeLists::pop`](crate::pool::SizeLists::pop) does.
    pub(super) fn pop(&mut self, map: &PageMap, class: usize) -> Option<UnlinkedArea<Flushed>> {
        let area = self.pool.lists.pop(map, class);
        self.note_least(class);
        area
    }

    /// Returns the areas of a class that no request took since the last [`begin_interval`](Self::begin_interval).
    #[inline(always)]
    pub(super) fn idle(&self, class: usize) -> u64 {
        u64::from(self.pool.least[class])
    }

    /// Checks PO5.
    pub(super) fn check_idle(&self) -> Result<(), InvariantViolation> {
        for class in 0..CLASSES {
            let (idle, len) = (self.idle(class), self.len(class));
            InvariantViolation::check(idle <= len, "PO5", Va::ZERO, len, idle)?;
        }
        Ok(())
    }

    /// Counts idle areas of a class from now on: all that it has.
    pub(super) fn begin_interval(&mut self, class: usize) {
        self.pool.least[class] = u32::try_from(self.len(class)).unwrap_or(u32::MAX);
    }

    #[cfg(test)]
    #[cfg(not(loom))]
    pub(super) fn spoil_idle(&mut self) {
        self.pool.least[7] = 1 + self.len(7) as u32;
    }

    #[inline(always)]
    fn note_least(&mut self, class: usize) {
        let len = self.len(class);
        if len < self.idle(class) {
            self.pool.least[class] = len as u32;
        }
    }
}

impl<R: RawMutex> Drop for PoolGuard<'_, R> {
    fn drop(&mut self) {
        // The lock is released after this.
        self.pooled.publish(self.node, &self.pool.lists);
    }
}

/// The lock of the free index, held.
pub(super) type HeapGuard<'a, P, C> = MutexGuard<'a, <P as Machine>::Lock, Heap<<C as Config>::Index<P>>>;

/// The state that the lock of the free index guards.
pub(super) struct Heap<I> {
    pub(super) index: I,
    pub(super) marker: Marker,
    /// Pages taken from the index whose slots are being allocated.
    pub(super) transit_pages: u64,
    /// The last request that failed after everything was purged.
    pub(super) failed: Option<Failed>,
}

impl<P: Machine + Clone, C: Config> VmapSpace<P, C> {
    #[inline(always)]
    pub(super) fn node(&self, node: u32) -> &'static Node<P::Lock> {
        match self.table.get(node) {
            Some(node) => node,
            None => self.machine.bug(format_args!("node {node} of {} is missing", self.nodes.nodes()), None),
        }
    }

    /// Ensures that a node exists, before it becomes the owner of an area.
    ///
    /// # Errors
    /// [`SpaceError::NoTable`] if the machine has no memory for it.
    #[inline]
    pub(super) fn ensure_node(&self, node: u32) -> Result<(), SpaceError> {
        if self.table.get(node).is_some() {
            return Ok(());
        }
        self.make_node(node)
    }

    #[cold]
    fn make_node(&self, node: u32) -> Result<(), SpaceError> {
        let made = self.table.ensure_with(node, &self.machine, |made| {
            // Sealed areas wait for a batch by number: it must be of a batch that takes the areas here. Held until the
            // node is published.
            let state = self.lock_purge();
            self.lock_lazy(made).begin_after(state.last_batch_before(node));
            state
        });
        made.map(|_| ()).ok_or(SpaceError::NoTable)
    }

    /// Returns the node in which an area without an owner waits when it is freed: that of its address, or, if that was
    /// never used, the first.
    pub(super) fn zone_of(&self, page: u64) -> u32 {
        let node = C::Zone::node_of(&self.nodes, Va::from_page(page));
        if self.table.get(node).is_some() { node } else { 0 }
    }

    #[inline(always)]
    #[track_caller]
    pub(super) fn lock_pool(&self, node: u32) -> PoolGuard<'_, P::Lock> {
        self.machine.locking(LockClass::Pool);
        PoolGuard { pool: self.node(node).pool.lock(), pooled: &self.pooled.0, node }
    }

    /// Returns the pool of a node, unless it is empty. Without pools there is none.
    #[inline]
    #[track_caller]
    pub(super) fn lock_filled_pool(&self, node: u32) -> Option<PoolGuard<'_, P::Lock>> {
        // No `then`: a closure would lose the caller's location.
        if C::POOL_PAGES_MAX > 0 && self.pooled.0.has(node) { Some(self.lock_pool(node)) } else { None }
    }

    #[inline(always)]
    #[track_caller]
    pub(super) fn lock_lazy<'a>(&self, node: &'a Node<P::Lock>) -> MutexGuard<'a, P::Lock, LazyAreas> {
        self.machine.locking(LockClass::Lazy);
        node.lazy.lock()
    }

    #[inline(always)]
    #[track_caller]
    pub(super) fn lock_free(&self) -> HeapGuard<'_, P, C> {
        self.machine.locking(LockClass::Free);
        self.free.lock()
    }

    #[track_caller]
    pub(super) fn lock_purge(&self) -> MutexGuard<'_, P::PurgeLock, PurgeState> {
        self.machine.locking(LockClass::Purge);
        self.purge.lock()
    }

    #[inline(always)]
    #[track_caller]
    pub(super) fn lock_batched<'a>(&self, node: &'a Node<P::Lock>) -> MutexGuard<'a, P::Lock, Batched> {
        self.machine.locking(LockClass::Batched);
        node.batched.lock()
    }

    /// Returns the first node at or above `node` that was created, or the maximum number of nodes.
    pub(super) fn next_node(&self, node: u32) -> u32 {
        let end = self.nodes.nodes();
        self.table.next(node, end).unwrap_or(end)
    }

    /// Returns every node that was created, with its number, in turn.
    pub(super) fn each_node(&self) -> impl Iterator<Item = (u32, &'static Node<P::Lock>)> + '_ {
        self.table.each()
    }
}
