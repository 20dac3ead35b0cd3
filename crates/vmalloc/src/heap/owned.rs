//! A heap that somebody owns: made in its own records, gone with its owner.

use super::guards::Guards;
use super::relocate::Growth;
use super::{Heap, Zone, carve::Central, worker::Worker};
use crate::PAGE_BYTES;
use crate::arena::{Arena, HUGE, HUGE_PAGES, SMALL, ZONES, room};
use crate::error::CreateError;
use crate::fork;
use crate::lock::Mutex;
use crate::magazine::{BIG_PAGES, Big, Magazine};
use crate::os::Os;
use crate::records::Host;
use crate::vmalloc::HugePages;
use core::ops::Deref;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU64};
use core::time::Duration;

/// Magazines at most: CPUs above that share.
const MAGAZINES_MAX: usize = 1024;
/// Pages of a block of small areas, 64 KiB: given back as one.
const SMALL_BLOCK_PAGES: u64 = 16;

/// What a heap is made with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) arena_bytes_max: usize,
    pub(crate) kept_bytes_max: usize,
    pub(crate) guards: bool,
    pub(crate) huge_pages: HugePages,
    pub(crate) decay: Option<Duration>,
}

/// A heap and the right to end it.
pub(crate) struct Owned<O: Os> {
    heap: NonNull<Heap<O>>,
}

// SAFETY: a heap is shared by its locks and atomics, whoever owns it.
unsafe impl<O: Os> Send for Owned<O> {}
// SAFETY: as before.
unsafe impl<O: Os> Sync for Owned<O> {}

impl<O: Os> Owned<O> {
    /// Makes a heap on a system.
    pub(crate) fn new(os: O, plan: Plan) -> Result<Self, CreateError> {
        // First of all, so that a process without room for an arena is told that, and nothing else.
        let most = room(&os, plan.arena_bytes_max)?;
        fork::ensure_handlers();
        let host = Host::open(os).map_err(|(call, errno)| CreateError::Refused { call, errno, bytes: 0 })?;
        let arena = Arena::reserve(host, most, plan.huge_pages).inspect_err(|_| {
            // SAFETY: nothing lives there yet.
            unsafe { host.close() };
        })?;
        let parts = Parts::new(host, &arena).inspect_err(|_| {
            // SAFETY: nothing was carved from it.
            unsafe { arena.unmap() };
            // SAFETY: nothing lives there any more.
            unsafe { host.close() };
        })?;
        let kept_pages = (plan.kept_bytes_max / PAGE_BYTES) as u64;
        let heap = Heap {
            host,
            arena,
            magazines: parts.magazines,
            kept_max: kept_pages,
            guards: Guards::new(plan.guards, host.os()),
            // Each splits a mapping into three; half of what there may be is others'.
            moved_max: host.os().mappings_max() / 8,
            purge: Mutex::new(()),
            refill: Mutex::new(()),
            zones: parts.zones.map(|central| Zone { central: Mutex::new(central), dirty: AtomicU64::new(0) }),
            // Guards, one of which is in each big item, hold no memory.
            big: Big::new(kept_pages / 2 + u64::from(plan.guards) * (kept_pages / 2 / BIG_PAGES)),
            worker: Worker::new(plan.decay),
            remaps_off: AtomicBool::new(false),
            growth: Growth::default(),
            refill_pause: AtomicU64::new(0),
            freed: AtomicU64::new(0),
        };
        // SAFETY: lent for a heap, and nobody else is given it.
        unsafe { parts.place.write(heap) };
        fork::register(parts.place, parts.link);
        Ok(Self { heap: parts.place })
    }

    /// Takes a place in the heap's own records, for as long as the heap lives.
    pub(crate) fn lend_place<T>(&self) -> Option<NonNull<T>> {
        self.host.lend_place()
    }
}

/// What a heap is made of that may be refused.
struct Parts<O: Os> {
    magazines: &'static [Magazine],
    zones: [Central<O>; ZONES],
    place: NonNull<Heap<O>>,
    link: NonNull<fork::Link>,
}

impl<O: Os> Parts<O> {
    fn new(host: Host<O>, arena: &Arena<O>) -> Result<Self, CreateError> {
        let count = host.os().cpus().clamp(1, MAGAZINES_MAX);
        let magazines = host.lend_zeroed(count).ok_or(CreateError::NoRecords)?;
        let place = host.lend_place().ok_or(CreateError::NoRecords)?;
        let link = host.lend_place().ok_or(CreateError::NoRecords)?;
        let zone = |zone, block| Central::new(host, arena.extent(zone), block);
        let zones = [zone(SMALL, SMALL_BLOCK_PAGES)?, zone(HUGE, HUGE_PAGES)?];
        Ok(Self { magazines, zones, place, link })
    }
}

impl<O: Os> Deref for Owned<O> {
    type Target = Heap<O>;

    #[inline(always)]
    fn deref(&self) -> &Heap<O> {
        // SAFETY: it lives until its owner is dropped.
        unsafe { self.heap.as_ref() }
    }
}

impl<O: Os> Drop for Owned<O> {
    fn drop(&mut self) {
        fork::unregister(self.heap);
        // In no list any more: nobody forks with its locks held. Nobody pokes it either.
        self.stop_worker();
        let host = self.host;
        // SAFETY: whoever refers to an area of it has broken his promise; nobody else refers to the heap.
        unsafe { self.arena.unmap() };
        // SAFETY: the owner goes, and this is the only time.
        unsafe { self.heap.drop_in_place() };
        // SAFETY: the heap was the last that lived there.
        unsafe { host.close() };
    }
}
