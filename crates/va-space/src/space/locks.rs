//! What each lock guards, and the only places that take one.
//!
//! # Invariants
//! - **PO4 noted** a node is in the set of those with something in their pools exactly when there is something, whenever
//!   nobody holds the lock of its pool.

use super::overflow::Failed;
use super::purge::PurgeState;
use super::{NODES_LIMIT, VmapSpace};
use crate::config::Config;
use crate::flight::{LazyAreas, OnBoard};
use crate::map::Marker;
use crate::pool::Pool;
use core::ops::{Deref, DerefMut};
use va_base::sync::atomic::{AtomicU64, Ordering};
use va_base::sync::{Mutex, MutexGuard, RawMutex};
use va_base::{LockClass, Machine, Table};

/// What a node keeps.
pub(super) struct Node<R> {
    pub(super) pool: Mutex<R, Pool>,
    pub(super) lazy: Mutex<R, LazyAreas>,
    /// What of it is in the hands of the purge. Taken by whoever holds `purge`, so nobody ever waits for it.
    pub(super) board: Mutex<R, OnBoard>,
}

impl<R: RawMutex + Send + Sync + 'static> Table for Node<R> {
    fn empty() -> Self {
        Self {
            pool: Mutex::new(Pool::new()),
            lazy: Mutex::new(LazyAreas::new()),
            board: Mutex::new(OnBoard::new()),
        }
    }
}

/// Which nodes may have something in their pools: an empty pool need not be locked to be found empty.
///
/// A node is put in under the lock of its pool when something comes into that, and taken out under it when nothing is there. So
/// whoever comes after a put finds it; one that runs meanwhile may have come before.
pub(super) struct Pooled([AtomicU64; NODES_LIMIT as usize / 64]);

impl Pooled {
    pub(super) fn new() -> Self {
        Self(core::array::from_fn(|_| AtomicU64::new(0)))
    }

    /// Makes it wrong for a test.
    #[cfg(all(test, not(loom)))]
    pub(super) fn spoil(&self, node: u32) {
        self.0[node as usize / 64 % 2].fetch_xor(1 << (node % 64), Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn has(&self, node: u32) -> bool {
        self.0[node as usize / 64 % 2].load(Ordering::Relaxed) >> (node % 64) & 1 == 1
    }

    /// Notes what `pool`, which the caller holds, is now.
    #[inline]
    fn tell(&self, node: u32, pool: &Pool) {
        let any = pool.areas() > 0;
        if any != self.has(node) {
            let word = &self.0[node as usize / 64 % 2];
            if any {
                word.fetch_or(1 << (node % 64), Ordering::Relaxed);
            } else {
                word.fetch_and(!(1 << (node % 64)), Ordering::Relaxed);
            }
        }
    }
}

/// Holds the lock of a pool, and notes when it lets go whether anything is in it.
pub(super) struct PoolGuard<'a, R: RawMutex> {
    pool: MutexGuard<'a, R, Pool>,
    pooled: &'a Pooled,
    node: u32,
}

impl<R: RawMutex> Deref for PoolGuard<'_, R> {
    type Target = Pool;

    fn deref(&self) -> &Pool {
        &self.pool
    }
}

impl<R: RawMutex> DerefMut for PoolGuard<'_, R> {
    fn deref_mut(&mut self) -> &mut Pool {
        &mut self.pool
    }
}

impl<R: RawMutex> Drop for PoolGuard<'_, R> {
    fn drop(&mut self) {
        // The lock is let go after this.
        self.pooled.tell(self.node, &self.pool);
    }
}

/// What the lock of the free index guards.
pub(super) struct Heap<I> {
    pub(super) index: I,
    pub(super) marker: Marker,
    /// Pages taken from the index whose slots are being lent.
    pub(super) transit_pages: u64,
    /// The last request that failed after everything was purged.
    pub(super) failed: Option<Failed>,
}

impl<P: Machine + Clone, C: Config> VmapSpace<P, C> {
    #[inline(always)]
    pub(super) fn node(&self, node: u32) -> &'static Node<P::Lock> {
        match self.table[node as usize % NODES_LIMIT as usize] {
            Some(node) => node,
            None => self.machine.bug(format_args!("node {node} of {} is missing", self.nodes.nodes()), None),
        }
    }

    #[inline(always)]
    #[track_caller]
    pub(super) fn lock_pool(&self, node: u32) -> PoolGuard<'_, P::Lock> {
        self.machine.locking(LockClass::Pool);
        PoolGuard { pool: self.node(node).pool.lock(), pooled: &self.pooled.0, node }
    }

    /// The pool of a node, unless it is empty.
    #[inline]
    #[track_caller]
    pub(super) fn lock_filled_pool(&self, node: u32) -> Option<PoolGuard<'_, P::Lock>> {
        // No `then`: a closure does not know who called.
        if self.pooled.0.has(node) { Some(self.lock_pool(node)) } else { None }
    }

    #[inline(always)]
    #[track_caller]
    pub(super) fn lock_lazy<'a>(&self, node: &'a Node<P::Lock>) -> MutexGuard<'a, P::Lock, LazyAreas> {
        self.machine.locking(LockClass::Lazy);
        node.lazy.lock()
    }

    #[inline(always)]
    #[track_caller]
    pub(super) fn lock_free(&self) -> MutexGuard<'_, P::Lock, Heap<C::Index<P>>> {
        self.machine.locking(LockClass::Free);
        self.free.lock()
    }

    #[track_caller]
    pub(super) fn lock_purge(&self) -> MutexGuard<'_, P::PurgeLock, PurgeState> {
        self.machine.locking(LockClass::Purge);
        self.purge.lock()
    }

    /// Every node in turn.
    pub(super) fn each_node(&self) -> impl Iterator<Item = &'static Node<P::Lock>> + '_ {
        self.table.iter().flatten().copied()
    }
}
