//! A heap with an owner: allocated in its own records, and dropped with its owner.

use super::guards::Guards;
use super::hidden::Hidden;
use super::nodes::{Node, ZONES_0};
use super::relocate::Growth;
use super::{Heap, REFILLS, Refill, Zone, carve::Central, time::Time, worker::Worker};
use crate::PAGE_BYTES;
use crate::arena::{Arena, NODES, room};
use crate::empty::{empty_value, write_empty};
use crate::error::CreateError;
use crate::magazine::{BIG_PAGES, Big, CPUS_MAX, CpuSet};
use crate::options::{HugePages, Options};
use crate::page_word::{ROUNDED_MIN, Word};
use core::ops::Deref;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicU64};
use core::time::Duration;
use vmalloc_os::Published;
use vmalloc_os::fork;
use vmalloc_os::lock::Mutex;
use vmalloc_os::os::Os;
use vmalloc_os::records::Host;

/// The parameters of a heap.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) arena_bytes_max: usize,
    pub(crate) cache_bytes_max: usize,
    pub(crate) guards: bool,
    pub(crate) huge_pages: HugePages,
    pub(crate) decay: Option<Duration>,
    pub(crate) background_thread: bool,
    pub(crate) zero_on_free: bool,
}

impl Plan {
    /// Returns the plan for some options, without the profile and the tags.
    pub(crate) fn new(options: &Options) -> Self {
        let &Options { arena_bytes_max, cache_bytes_max, guards, huge_pages, .. } = options;
        let &Options { decay, background_thread, zero_on_free, .. } = options;
        Self { arena_bytes_max, cache_bytes_max, guards, huge_pages, decay, background_thread, zero_on_free }
    }
}

/// A heap and the right to drop it.
pub(crate) struct Owned<O: Os> {
    heap: NonNull<Heap<O>>,
}

// SAFETY: a heap is shared by its locks and atomics, and any thread may own it.
unsafe impl<O: Os> Send for Owned<O> {}
// SAFETY: as before.
unsafe impl<O: Os> Sync for Owned<O> {}

impl<O: Os> Owned<O> {
    /// Makes a heap on a system.
    pub(crate) fn new(os: O, plan: Plan) -> Result<Self, CreateError> {
        // First, so that a process without room for an arena gets exactly that error.
        let most = room(&os, plan.arena_bytes_max)?;
        fork::prepare_for_forks();
        let host =
            Host::open(os).map_err(|(call, errno)| CreateError::CallFailed { call, errno, bytes: 0 })?;
        let made = Self::make(host, most, plan);
        if made.is_err() {
            // SAFETY: the heap was not made, so nothing lives in the records.
            unsafe { host.close() };
        }
        made
    }

    /// Makes the heap in place, in the records: no part of it is ever on a stack, which may be as small as 16 KiB.
    fn make(host: Host<O>, most: usize, plan: Plan) -> Result<Self, CreateError> {
        let place = host.alloc_place::<Heap<O>>().ok_or(CreateError::NoRecords)?;
        let link = host.alloc_place().ok_or(CreateError::NoRecords)?;
        write_empty!(Heap<O>, place);
        // SAFETY: written just above, and no other reference to it exists.
        let heap = unsafe { &mut *place.as_ptr() };
        heap.arena = Arena::reserve(host, most, plan.huge_pages)?;
        if host.os().address_limit().is_some() {
            heap.arena.close();
        }
        heap.init(host, plan).inspect_err(|_| {
            // SAFETY: nothing was carved from it.
            unsafe { heap.arena.unmap() };
        })?;
        // SAFETY: the link was allocated for this. The heap stays valid until `drop` unregisters it.
        unsafe { fork::register(place, link) };
        Ok(Self { heap: place })
    }

    /// Allocates memory in the heap's own records, which lives as long as the heap.
    pub(crate) fn alloc_place<T>(&self) -> Option<NonNull<T>> {
        self.host.alloc_place()
    }
}

impl<O: Os> Zone<O> {
    empty_value!(Self { central: Mutex::new(Central::EMPTY), dirty: AtomicU64::new(0) });
}

impl<O: Os> Heap<O> {
    empty_value!(Self {
        host: Host::NOWHERE,
        arena: Arena::nothing(),
        magazines: &[],
        cached_max: 0,
        closer: Word::closer(false),
        guards: Guards::none(),
        rounded: 0,
        moved_max: 0,
        moved: AtomicU64::new(0),
        changed: AtomicU64::new(0),
        purge: Mutex::new(()),
        refills: [const { Refill(Mutex::new(())) }; REFILLS],
        refills_closed: AtomicBool::new(false),
        hidden: Mutex::new(Hidden::NOTHING),
        #[cfg(not(loom))]
        node_0: Node::EMPTY,
        #[cfg(loom)]
        node_0: Node::empty(),
        nodes: [const { Published::new() }; NODES - 1],
        noded_dirty: AtomicU64::new(0),
        made: AtomicU64::new(ZONES_0),
        nodes_off: AtomicBool::new(false),
        forked_zones: AtomicU64::new(0),
        worker: Worker::off(),
        time: Time::off(),
        big: Big::nothing(),
        #[cfg(not(loom))]
        with_big: CpuSet::EMPTY,
        #[cfg(loom)]
        with_big: CpuSet::empty(),
        remaps_off: AtomicBool::new(false),
        growth: Growth::new(),
        refill_pause: AtomicU64::new(0),
        asked: AtomicU64::new(0),
        asked_at: AtomicU64::new(u64::MAX),
        released: AtomicU64::new(0),
        allowed: AtomicU64::new(0),
        freed: AtomicU64::new(0),
        blocked_at: AtomicU64::new(u64::MAX),
        blocked_cached: AtomicU64::new(0),
    });

    /// Initializes an empty heap that has an arena, at its final address.
    fn init(&mut self, host: Host<O>, plan: Plan) -> Result<(), CreateError> {
        let count = host.os().cpus().clamp(1, CPUS_MAX);
        self.magazines = host.alloc_zeroed(count).ok_or(CreateError::NoRecords)?;
        self.node_0.init(host, &self.arena, 0)?;
        let cached_pages = (plan.cache_bytes_max / PAGE_BYTES) as u64;
        self.host = host;
        self.cached_max = cached_pages;
        self.allowed = AtomicU64::new(cached_pages);
        self.closer = Word::closer(plan.zero_on_free);
        let mappings_max = host.os().mappings_max();
        self.guards = Guards::new(plan.guards, mappings_max);
        let small_end = if plan.huge_pages == HugePages::Never { u64::MAX } else { self.arena.huge_min() };
        self.rounded = if plan.guards { 0 } else { small_end.saturating_sub(ROUNDED_MIN) };
        // Each splits a mapping into three; half of the possible mappings are left to the program.
        self.moved_max = mappings_max / 8;
        // Guards, one of which is in each big item, use no memory.
        let guards = u64::from(plan.guards) * (cached_pages / 2 / BIG_PAGES);
        self.big = Big::new(cached_pages / 2 + guards, cached_pages / 4);
        if plan.background_thread && plan.decay.is_some() {
            self.worker = Worker::new();
        }
        self.time = Time::new(plan.decay);
        Ok(())
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
        // In no list of heaps any more: no fork takes its locks. No thread wakes its worker, either.
        self.stop_worker();
        let host = self.host;
        // SAFETY: by the contracts of alloc and free no reference to an area is left, nor any to the heap.
        unsafe { self.arena.unmap() };
        // All other memory of the heap is in the records.
        const { assert!(!core::mem::needs_drop::<Heap<O>>()) };
        // SAFETY: the heap was the last object in the records.
        unsafe { host.close() };
    }
}
