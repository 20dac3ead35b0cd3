//! What each lock guards, and the only places that take one.

use super::overflow::Failed;
use super::purge::PurgeState;
use super::{NODES_LIMIT, VmapSpace};
use crate::config::Config;
use crate::flight::{LazyAreas, OnBoard};
use crate::map::Marker;
use crate::pool::Pool;
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
    pub(super) fn lock_pool<'a>(&self, node: &'a Node<P::Lock>) -> MutexGuard<'a, P::Lock, Pool> {
        self.machine.locking(LockClass::Pool);
        node.pool.lock()
    }

    #[inline(always)]
    pub(super) fn lock_lazy<'a>(&self, node: &'a Node<P::Lock>) -> MutexGuard<'a, P::Lock, LazyAreas> {
        self.machine.locking(LockClass::Lazy);
        node.lazy.lock()
    }

    #[inline(always)]
    pub(super) fn lock_free(&self) -> MutexGuard<'_, P::Lock, Heap<C::Index<P>>> {
        self.machine.locking(LockClass::Free);
        self.free.lock()
    }

    pub(super) fn lock_purge(&self) -> MutexGuard<'_, P::PurgeLock, PurgeState> {
        self.machine.locking(LockClass::Purge);
        self.purge.lock()
    }

    /// Every node in turn.
    pub(super) fn each_node(&self) -> impl Iterator<Item = &'static Node<P::Lock>> + '_ {
        self.table.iter().flatten().copied()
    }
}
