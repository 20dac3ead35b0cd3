//! Nodes: zones for some CPUs alone, where several CPUs wait for those of node 0.
//!
//! # Theory
//! ```text
//!   CPU 0, 1, 2 ...  all ---> node 0                 a program of one thread, or one that seldom misses
//!
//!   CPU 0   CPU 1   CPU 2                            threads that miss at the same time
//!     |       |       |
//!   node 0  node 1  node 2   ... at most 16          each allocates from its own
//! ```
//! A miss of the magazines takes the lock of a zone, and changes its index. Where the threads of many CPUs miss, they
//! wait for each other, and each change moves the index from one CPU's cache to another's. So a CPU that often finds
//! the lock of node 0 held allocates from a node of its own from then on. Its zones have an index, a frontier and a list
//! of cold blocks each, made when the first CPU needs them.
//!
//! An area is freed into the zone that has its address, whichever CPU frees it. The budget, the magazines, purges and
//! time are those of the heap: only addresses and their locks are divided. A program whose threads do not wait has node
//! 0 alone, and its memory is where it was. A request that a node cannot serve goes on in node 0.
//!
//! **The budget.** There is a node for each 16 MiB of it. With less for each, most misses find no run that is long
//! enough, and pages are released in one node while another faults in as many. For the same reason only whole dirty
//! blocks count once there are several nodes. What is dirty in a block that is partly in use cannot be released. With
//! many threads it is as much as the budget, and then each block would be released at once. A decay by demand counts the
//! same. A node that lacks pages has those of another before they are released there (`refill.rs`). And magazines keep
//! only what is requested again (`magazine/worth.rs`), so that the budget is for whole blocks.
//!
//! # Locking
//! A node is made under `purge`, which a fork holds.
//! # Source
//! The nodes of Linux's `mm/vmalloc.c` (6.9), which hash addresses. That a thread changes its place where it waits is
//! as in glibc's arenas.

use super::carve::Central;
use super::{Heap, Held, Zone};
use crate::arena::{Arena, HUGE, HUGE_PAGES, KINDS, NODES, SMALL, ZONES};
use crate::empty::{empty_value, write_empty};
use crate::error::CreateError;
use core::sync::atomic::Ordering;
use vmalloc_os::os::{Os, abort_with};
use vmalloc_os::records::Host;

/// Pages of a block of small areas, 64 KiB: released as a unit.
const SMALL_BLOCK_PAGES: u64 = 16;
/// The part of a node's zone that a request may have, which would otherwise fill it soon.
const REQUEST_SHARE: u64 = 16;
/// A zone of another node publishes its pages once they have changed by this part of the budget. So those of all zones
/// together may differ by an eighth of it from what is known.
const PUBLISHED_SHARE: u64 = 256;
/// Pages of the budget for each node: 16 MiB.
const NODE_PAGES: u64 = 4096;

/// The bits of the zones of node 0.
pub(super) const ZONES_0: u64 = (1 << KINDS) - 1;
const _: () = assert!(ZONES <= u64::BITS as usize);

/// Returns the bits of the zones of a node.
fn zones_of(node: usize) -> u64 {
    ZONES_0 << (node * KINDS)
}

/// A set of zones, from which they are taken in ascending order, or from the end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Zones(pub(super) u64);

impl Iterator for Zones {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let zone = (self.0 != 0).then(|| self.0.trailing_zeros() as usize)?;
        self.0 &= self.0 - 1;
        Some(zone)
    }
}

impl DoubleEndedIterator for Zones {
    fn next_back(&mut self) -> Option<usize> {
        let zone = self.0.checked_ilog2()? as usize;
        self.0 &= !(1 << zone);
        Some(zone)
    }
}

/// The zones of a node.
pub(super) struct Node<O: Os> {
    pub(super) zones: [Zone<O>; KINDS],
}

impl<O: Os> Node<O> {
    empty_value!(Self {
        #[cfg(not(loom))]
        zones: [const { Zone::EMPTY }; KINDS],
        #[cfg(loom)]
        zones: core::array::from_fn(|_| Zone::empty()),
    });
}

impl<O: Os> Node<O> {
    /// Initializes the zones of an empty node at its final address.
    pub(super) fn init(&mut self, host: Host<O>, arena: &Arena<O>, node: usize) -> Result<(), CreateError> {
        for (kind, zone) in self.zones.iter_mut().enumerate() {
            let block = if kind == SMALL { SMALL_BLOCK_PAGES } else { HUGE_PAGES };
            zone.central.get_mut().init(host, arena.extent(node * KINDS + kind), block)?;
        }
        Ok(())
    }
}

impl<O: Os> Heap<O> {
    /// Returns a zone that exists: of node 0, or of a node that was made.
    pub(super) fn zone_at(&self, zone: usize) -> &Zone<O> {
        if zone < KINDS {
            return &self.node_0.zones[zone];
        }
        match self.nodes[zone / KINDS - 1].get() {
            // SAFETY: published once it was initialized, and valid as long as the heap.
            Some(node) => &unsafe { node.as_ref() }.zones[zone % KINDS],
            None => abort_with(format_args!("zone {zone} has pages and no lock")),
        }
    }

    /// Returns the zones that exist.
    pub(super) fn zones(&self) -> Zones {
        // Acquire pairs with the release of `make_node`.
        Zones(self.made.load(Ordering::Acquire))
    }

    /// Returns true if there are other nodes than node 0.
    #[inline]
    pub(super) fn is_noded(&self) -> bool {
        self.made.load(Ordering::Relaxed) != ZONES_0
    }

    /// Returns true if three quarters of the budget are cached.
    pub(super) fn is_nearly_full(&self) -> bool {
        self.cached_hint() > self.allowed.load(Ordering::Relaxed) / 4 * 3
    }

    /// Returns the zones of nodes other than node 0 that exist.
    pub(super) fn noded_zones(&self) -> Zones {
        Zones(self.zones().0 & !ZONES_0)
    }

    /// Returns the zones whose locks the fork in progress takes.
    pub(super) fn forked(&self) -> impl Iterator<Item = &Zone<O>> {
        Zones(self.forked_zones.load(Ordering::Relaxed)).map(|zone| self.zone_at(zone))
    }

    /// Returns the zone in which a request of this CPU is tried first: of its node, or of node 0 if the request is large
    /// for a node.
    pub(super) fn home(&self, kind: usize, pages: u64) -> usize {
        let zone = self.magazine().node() * KINDS + kind;
        let is_large =
            || pages > self.arena.extent(zone).len_bytes() / crate::PAGE_BYTES as u64 / REQUEST_SHARE;
        if zone >= KINDS && is_large() { kind } else { zone }
    }

    /// Returns the zones that exist, in the order of their addresses.
    pub(super) fn zones_in_order(&self) -> impl Iterator<Item = usize> {
        let zones = self.zones();
        let kinds = [SMALL, HUGE].map(|kind| zones.filter(move |zone| zone % KINDS == kind));
        let [small, mut huge] = kinds;
        let last = huge.next();
        small.chain(huge).chain(last)
    }

    /// Takes the lock of a zone for a request. Each wait for one of node 0 counts: a CPU that waits often gets a node.
    pub(super) fn zone_for_request(&self, zone: usize) -> Held<'_, O> {
        if zone >= KINDS || !self.arena.has_nodes() {
            return self.zone(zone);
        }
        match self.zone_at(zone).central.try_lock() {
            Some(central) => {
                self.magazine().did_not_wait();
                Held { central, heap: self, zone }
            }
            None => {
                if self.magazine().waits_often() {
                    self.leave_node_0();
                }
                self.zone(zone)
            }
        }
    }

    /// Lets this CPU allocate from another node from now on, if there is memory for one. Called under no lock.
    #[cold]
    pub(super) fn leave_node_0(&self) {
        let node = self.cpu() % (self.cached_max / NODE_PAGES).clamp(1, NODES as u64) as usize;
        if node > 0 && (self.zones().0 & zones_of(node) != 0 || self.make_node(node)) {
            self.magazine().set_node(node);
        }
    }

    /// Makes a node, unless a thread purges or forks now. Returns false if there is none afterwards.
    fn make_node(&self, node: usize) -> bool {
        let Some(_alone) = self.purge.try_lock() else { return false };
        let published = &self.nodes[node - 1];
        if published.get().is_none() {
            // Where addresses are counted, only those in use are mapped.
            if self.arena.is_closed() || self.nodes_off.load(Ordering::Relaxed) {
                return false;
            }
            let made = self.host.alloc_place::<Node<O>>().is_some_and(|place| {
                write_empty!(Node<O>, place);
                // SAFETY: written just above, and no other reference to it exists.
                let fresh = unsafe { &mut *place.as_ptr() };
                fresh.init(self.host, &self.arena, node).is_ok() && published.publish(place).is_ok()
            });
            // The memory of a node that was not made stays, so no other is tried.
            self.nodes_off.store(!made, Ordering::Relaxed);
            if !made {
                return false;
            }
        }
        // Also for a child of a fork between these two steps of another thread.
        self.made.fetch_or(zones_of(node), Ordering::Release);
        true
    }

    /// Publishes the pages of a zone that is about to be unlocked, for those who read them without its lock.
    #[inline(never)]
    pub(super) fn publish(&self, zone: usize, central: &mut Central<O>) {
        // Rarely for other nodes, since all CPUs write these words.
        let least = if zone < KINDS { 0 } else { self.cached_max / PUBLISHED_SHARE };
        if central.freed > least {
            self.freed.fetch_add(core::mem::take(&mut central.freed), Ordering::Relaxed);
        }
        let noded = self.is_noded();
        let pages = if noded { central.whole_pages() } else { central.resident_pages() };
        if noded {
            // Otherwise a decay would count what it cannot release, and release most of the rest.
            central.low = central.low.min(pages);
        }
        self.zone_at(zone).dirty.store(pages, Ordering::Relaxed);
        if zone >= KINDS && (pages.abs_diff(central.published) > least || pages == 0 && central.published > 0)
        {
            self.noded_dirty.fetch_add(pages.wrapping_sub(central.published), Ordering::Relaxed);
            central.published = pages;
        }
    }
}
