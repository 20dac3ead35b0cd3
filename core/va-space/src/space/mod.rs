//! A space: the state of each range, and the time at which it may be reused.
//!
//! # Theory
//! ```text
//!             alloc                        free                    purge: detach, flush, settle
//!   index ------------> busy (page map) --------> lazy (a node) ------------------------------> pool (a node) --> busy
//!     ^                                                                          |                  |
//!     +--------------------------------------------------------------------------+--- no list ------+--- decay
//! ```
//! **Busy** areas are in the page map alone. **Lazy** ones wait in the node that allocated them (or, without an owner,
//! in that of their address). Once more than `lazy_max_pages` wait, one flush over their hull serves all. Flushed areas
//! go to the **pool** of their owner, by exact size, and those that no pool takes return to the **index**. A request
//! searches the pool of its CPU's node first, the index next.
//!
//! # Invariants
//! - **SP1 conservation** holes of the index, areas with a start bit, and pages that a thread holds while the machine
//!   allocates a table tile the extent at every moment. The lists hold all lazy, pooled and cached areas.
//! - **SP2 flush-before-reuse** no address is allocated again before a flush that covers it (by types, see `list`).
//!
//! SP3, SP4 and SP5 are the workspace's (ARCHITECTURE.md). Here, a free changes a word and a list; the memory that the
//! index may need for it was reserved at alloc. A request that fails may have emptied caches, and has changed nothing
//! else. The same calls with the same CPU ids return the same addresses.
//!
//! # Locking
//! ```text
//!   purge (PurgeLock) > batched of a node > { pool of a node | lazy of a node | free (index and start bits) }   (Lock)
//! ```
//! The inner three never nest. `batched` is taken under `purge`, or under the lock of a magazine that a batch of areas
//! leaves. Lookups take none. A free takes one (lazy), an alloc one (pool) or two (pool, free). The space calls
//! `alloc_meta` under `free`, `flush` and `completed` under `purge`, `settled` and `locking` under any, the others
//! under none.
//! # Source
//! Linux `mm/vmalloc.c` (6.12: `alloc_vmap_area`, `free_vmap_area_noflush`); see [`config`](crate::config).

mod busy;
mod cell;
mod claim;
mod congruent;
mod covered;
mod drain;
mod find;
mod held;
mod leave;
mod live;
mod locks;
mod magazine;
mod memory;
mod note;
mod overflow;
mod owned;
mod purge;
mod reshape;
mod round;
mod row;
mod saved;
mod settle;
mod take;
mod unused;
mod validate;
mod watched;

pub use cell::Drained;
pub use claim::Release;
pub use find::Areas;
pub use magazine::Magazine;
pub use owned::OwnedArea;
pub use purge::{Purge, Purged};
pub use reshape::ReshapeError;
pub use validate::Stats;

#[cfg(all(test, loom))]
pub(crate) use live::{Live as Row, Place, Placed};

use crate::area::Area;
use crate::config::{Config, Order, Standard};
use crate::error::{ReleaseError, SpaceError};
use crate::flush_batch::CompletedBatches;
use crate::list::{Flushed, Unflushed, UnlinkedArea};
use crate::lookup::Lookup;
use crate::map::{COVERED_PAGES, Marker, OWNERS_MAX, PageMap, Word};
use crate::node::NodeMap;
use crate::node_table::{NODES_LIMIT, NodeTable};
use busy::Tables;
use cell::Cell;
use core::marker::PhantomData;
use live::Live;
use locks::{Heap, Node, Pooled};
use purge::PurgeState;
use take::Lowest;
use va_base::sync::Mutex;
use va_base::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use va_base::{AllocError, Context, Late, Machine, Pages, Request, Va, VaRange};
use va_tree::{FreeIndex, InPlace};

const _: () = assert!(NODES_LIMIT <= OWNERS_MAX);
/// Pages in a zone.
const ZONE_PAGES: Pages = Pages::new(16);

/// An atomic in a cache line of its own.
#[repr(align(64))]
struct CachePadded<T>(T);

/// A virtual address space on machine `P` under the policies `C`.
///
/// ```
/// use va_base::{HeapMachine, Request, VaRange};
/// use va_space::VmapSpace;
///
/// let window = VaRange::from_pages(0x1000, 0x9000).unwrap();
/// let machine = HeapMachine::<parking_lot::RawMutex>::new(4); // feature `alloc`, for tests
/// let space = VmapSpace::<_>::new(window, window, &machine)?;
/// let area = space.alloc(0, &Request::pages(3).unwrap())?;
/// let start = area.start();
/// assert_eq!(space.find_enclosing(start).map(|seen| seen.range), Some(area.range()));
/// space.free(area).unwrap();
/// assert!(space.free_at(start).is_err(), "it was freed already");
/// # Ok::<(), va_space::SpaceError>(())
/// ```
pub struct VmapSpace<P: Machine + Clone, C: Config = Standard> {
    // Constant after `init`.
    machine: Late<P>,
    extent: VaRange,
    default_window: VaRange,
    nodes: NodeMap,
    table: NodeTable<Node<P::Lock>>,
    map: PageMap,
    /// Finds busy areas, unless the page map does.
    lookup: C::Lookup<Late<P>>,
    // Under their locks; see the lock order above.
    purge: Mutex<P::PurgeLock, PurgeState>,
    free: Mutex<P::Lock, Heap<C::Index<P>>>,
    // Atomic, each alone.
    /// Pages that ever became lazy in a node. Protocol PR-FAIL.
    lazied: CachePadded<AtomicU64>,
    /// Pages that ever ceased to be lazy. The difference is the pages that wait. Protocol PR-FAIL.
    settled: CachePadded<AtomicU64>,
    /// A purge was begun and is not finished: a hint, read without the purge lock. Protocol PR-HINT.
    purging: AtomicBool,
    /// The machine's answer to `drain` for the pass that is due or in progress, if it was asked. Protocol PR-DRAIN.
    drainer: AtomicU8,
    /// Changes after areas returned to the index or to pools other than by a free. Protocol PR-FAIL.
    returned: CachePadded<AtomicU64>,
    /// The nodes that have areas in their pools.
    pooled: CachePadded<Pooled>,
    /// The flush batches that are completed.
    completed_batches: CompletedBatches,
    /// The memory of magazines.
    cells: Live<Cell<P::OwnerLock>>,
    config: PhantomData<fn() -> C>,
}

impl<P: Machine + Clone, C: Config> VmapSpace<P, C> {
    /// Creates a space of the whole pages of `extent`, all free.
    ///
    /// Requests without a window, or with exactly this one, are met in `default_window`, and only their areas are
    /// pooled. The machine supplies the number of possible CPUs, and memory for the nodes.
    ///
    /// Stack: up to 24 KiB in release builds, since the value is moved; [`init`](Self::init) takes less than 4 KiB.
    ///
    /// # Errors
    /// [`SpaceError::Index`] if there is no whole page in `extent`, [`SpaceError::TooHigh`] if the page map does not
    /// cover it, [`SpaceError::NoTable`] if the machine allocates none.
    pub fn new(extent: VaRange, default_window: VaRange, machine: P) -> Result<Self, SpaceError> {
        let mut space = va_base::constant!(Self::empty());
        space.init(extent, default_window, machine)?;
        Ok(space)
    }

    va_base::const_fn! {
        /// Creates a space of no pages and no machine: a constant, for a `static` or for memory of the caller.
        /// [`init`](Self::init) supplies both.
        ///
        /// Before that nothing fits in it: requests fail as [`SpaceError::Impossible`] or by the index, frees find no
        /// area, lookups find nothing, a purge does nothing. A caller with little stack writes the value in place as a
        /// constant, `const { VmapSpace::empty() }`.
        ///
        /// ```
        /// use va_base::{HeapMachine, Request, VaRange};
        /// use va_space::{VmapSpace, config};
        ///
        /// type Machine = HeapMachine<parking_lot::RawMutex>;
        /// let machine = Machine::new(2);
        /// let mut space = const { VmapSpace::<&Machine>::empty() };
        /// assert!(space.alloc(0, &Request::pages(1).unwrap()).is_err());
        /// let window = VaRange::from_pages(0x1000, 0x9000).unwrap();
        /// space.init(window, window, &machine)?;
        /// assert!(space.alloc(0, &Request::pages(1).unwrap()).is_ok());
        /// assert!(space.init(window, window, &machine).is_err());
        /// # Ok::<(), va_space::SpaceError>(())
        /// ```
        pub fn empty() -> Self {
            let index = <C::Index<P> as InPlace<P>>::EMPTY;
            Self {
                machine: Late::NONE,
                extent: VaRange::EMPTY,
                default_window: VaRange::EMPTY,
                nodes: NodeMap::ONE,
                table: NodeTable::EMPTY,
                map: PageMap::empty(),
                lookup: <C::Lookup<Late<P>> as Lookup<Late<P>>>::EMPTY,
                purge: Mutex::new(PurgeState::new()),
                free: Mutex::new(Heap { index, marker: Marker::new(), transit_pages: 0, failed: None }),
                lazied: CachePadded(AtomicU64::new(0)),
                settled: CachePadded(AtomicU64::new(0)),
                purging: AtomicBool::new(false),
                drainer: AtomicU8::new(drain::UNASKED),
                returned: CachePadded(AtomicU64::new(0)),
                pooled: CachePadded(Pooled::new()),
                completed_batches: CompletedBatches::new(),
                cells: Live::new(),
                config: PhantomData,
            }
        }
    }

    /// Sets extent and machine of an [`empty`](Self::empty) space, in place. Stack: below 4 KiB in release builds.
    ///
    /// # Errors
    /// The errors of [`new`](Self::new), after which the space is empty again and another call may succeed.
    /// [`SpaceError::AlreadyReady`] if the space has an extent.
    pub fn init(&mut self, extent: VaRange, default_window: VaRange, machine: P) -> Result<(), SpaceError> {
        self.init_with_busy(extent, default_window, machine, &[])
    }

    /// Initializes the space as [`init`](Self::init) does, with `busy` areas as in [`with_busy`](Self::with_busy).
    ///
    /// # Errors
    /// The errors of either of them.
    pub fn init_with_busy(
        &mut self,
        extent: VaRange,
        default_window: VaRange,
        machine: P,
        busy: &[VaRange],
    ) -> Result<(), SpaceError> {
        let made = self.init_once(extent, default_window, machine, busy);
        if !matches!(made, Ok(()) | Err(SpaceError::AlreadyReady)) {
            // Dropping the old value frees all that was allocated.
            *self = va_base::constant!(Self::empty());
        }
        made
    }

    /// Initializes the space as [`init_with_busy`](Self::init_with_busy) does, for a caller that stops after an error.
    /// The space is then in any state, and may only be dropped, which frees what was allocated. So a kernel needs
    /// neither the code of that nor a second empty value: 14 KB.
    ///
    /// # Errors
    /// Those of [`init_with_busy`](Self::init_with_busy).
    pub fn init_once(
        &mut self,
        extent: VaRange,
        default_window: VaRange,
        machine: P,
        busy: &[VaRange],
    ) -> Result<(), SpaceError> {
        va_base::assert_pages::<P>();
        if !self.extent.is_empty() {
            return Err(SpaceError::AlreadyReady);
        }
        self.begin_extent(extent, default_window, machine)?;
        self.add_busy(busy)
    }

    fn begin_extent(
        &mut self,
        extent: VaRange,
        default_window: VaRange,
        machine: P,
    ) -> Result<(), SpaceError> {
        let (first, end) = extent.whole_pages();
        let bad = AllocError::BadRange { range: extent, extent: VaRange::ALL };
        let pages = VaRange::from_pages(first, end).filter(|pages| !pages.is_empty()).ok_or(bad)?;
        if end > COVERED_PAGES {
            return Err(SpaceError::TooHigh { extent: pages });
        }
        self.machine = Late::new(machine.clone());
        self.init_tables(pages, default_window)?;
        self.lock_free().index.init(extent, default_window, machine)?;
        (self.extent, self.default_window) = (pages, default_window);
        Ok(())
    }

    fn init_tables(&mut self, extent: VaRange, default_window: VaRange) -> Result<(), SpaceError> {
        let count = self.machine.cpus_possible().clamp(1, C::NODES_MAX.min(NODES_LIMIT));
        self.nodes = NodeMap::new(count, ZONE_PAGES).ok_or(SpaceError::NoTable)?;
        self.lookup.init(self.nodes);
        let near = default_window.start().max(extent.start()).page_floor();
        if !self.map.init(near, &self.machine) {
            return Err(SpaceError::NoTable);
        }
        // Where the order of returned areas depends on the node of their address, all nodes are created now. Otherwise
        // only the first, to which every address may fall back; each other one is created when its CPU first allocates.
        let made = if C::ORDER.needs_nodes() { count } else { 1 };
        (0..made).try_for_each(|node| self.ensure_node(node))
    }

    fn release_meta(&mut self) {
        self.map.release_meta(&self.machine);
        self.lookup.release_meta(&self.machine);
        self.table.release_meta(&self.machine);
        self.cells.release_meta(&self.machine);
    }

    /// Creates a space in which `busy` is allocated already: areas that existed before the allocator. They have no
    /// owner and are freed by their start. Less stack: [`init_with_busy`](Self::init_with_busy).
    ///
    /// # Errors
    /// The errors of [`new`](Self::new). [`SpaceError::Index`] with
    /// [`AllocError::Occupied`](va_base::AllocError::Occupied) if two overlap, with
    /// [`AllocError::BadRange`](va_base::AllocError::BadRange) if one is empty, outside, or not whole pages.
    pub fn with_busy(
        extent: VaRange,
        default_window: VaRange,
        machine: P,
        busy: &[VaRange],
    ) -> Result<Self, SpaceError> {
        let mut space = va_base::constant!(Self::empty());
        space.init_with_busy(extent, default_window, machine, busy)?;
        Ok(space)
    }

    /// Makes ranges busy that were in use before there was a space.
    fn add_busy(&self, busy: &[VaRange]) -> Result<(), SpaceError> {
        for &range in busy {
            let heap = self.twice(1, || {
                let mut heap = self.lock_free();
                heap.index.take(range).map(|_| heap)
            })?;
            let (page, end) = range.whole_pages();
            let _area = self.begin(heap, page, end - page, None, Tables::Missing)?;
        }
        Ok(())
    }

    /// Returns the whole pages that the space manages.
    pub fn extent(&self) -> VaRange {
        self.extent
    }

    /// Returns the window of requests without one.
    pub fn default_window(&self) -> VaRange {
        self.default_window
    }

    /// Returns the number of nodes.
    pub fn nodes(&self) -> u32 {
        self.nodes.nodes()
    }

    /// Allocates an area; `cpu` is the calling CPU, or an id of the caller's choice.
    ///
    /// A request for [`Context::Atomic`] never blocks, flushes or waits, and needs nothing that may sleep.
    ///
    /// # Errors
    /// [`SpaceError::Impossible`] at once for a request that could never fit. [`SpaceError::NoSpace`] if a full purge
    /// and the machine's hooks freed too little. [`SpaceError::WouldBlock`] for a request that may not wait, where one
    /// that may might succeed. [`SpaceError::NoTable`] and [`AllocError::NoMeta`](va_base::AllocError::NoMeta) if the
    /// machine has no memory for records; one that may block tries twice, under `free` and with no lock held.
    /// # Locks
    /// `pool`, and if it has no such area, `free`; all of them one after the other when nothing fits. The first alloc
    /// on a node by a caller that may sleep takes `purge`, and under it `lazy`.
    /// Cost: O(1) from a pool, O(log holes) otherwise; a purge when nothing fits.
    #[inline]
    pub fn alloc(&self, cpu: u32, request: &Request) -> Result<Area, SpaceError> {
        let owner = self.owner_for(cpu, request);
        if let Some(node) = owner
            && request.size().get() <= C::POOL_PAGES_MAX
            && let Some(area) = self.take_pooled(node, request, owner)
        {
            return Ok(area);
        }
        self.alloc_from_index::<Lowest>(request, owner)
    }

    /// Frees an area. Its addresses are allocated again only after a flush that covers them.
    ///
    /// # Errors
    /// [`ReleaseError`] if the area was freed before by its address, or another call changes it at this moment: a note,
    /// a split, a join, a change of its size. After a note, [`free_at`](Self::free_at) frees it.
    /// # Locks
    /// `lazy` of one node, then `purge` and all below it if this call runs a slice of a purge.
    /// Cost: O(1), and at most one slice.
    #[inline]
    pub fn free(&self, area: Area) -> Result<(), ReleaseError> {
        self.free_in(Context::Sleeping, area)
    }

    /// Frees an area for a caller in `context`, as [`free_as`](Self::free_as) does.
    ///
    /// # Errors
    /// The errors of [`free`](Self::free).
    /// # Locks
    /// Those of [`free_as`](Self::free_as). Cost: O(1).
    #[inline]
    pub fn free_in(&self, context: Context, area: Area) -> Result<(), ReleaseError> {
        self.free_as(Release::Handle(area), context).map(|_| ())
    }

    /// Frees the area that starts at `at`, and returns its range.
    ///
    /// # Errors
    /// [`ReleaseError::NoArea`] if no busy area starts there, or another call changes it at this moment. Of two
    /// concurrent frees one succeeds.
    /// # Locks
    /// Those of [`free`](Self::free). Cost: O(1), and at most one slice.
    #[inline]
    pub fn free_at(&self, at: Va) -> Result<VaRange, ReleaseError> {
        self.free_as(Release::At(at), Context::Sleeping)
    }

    /// Frees the area that starts at `at` for a caller in `context`, and returns its addresses.
    ///
    /// # Errors
    /// The errors of [`free_at`](Self::free_at).
    /// # Locks
    /// Those of [`free_as`](Self::free_as). Cost: O(1).
    #[inline]
    pub fn free_at_in(&self, context: Context, at: Va) -> Result<VaRange, ReleaseError> {
        self.free_as(Release::At(at), context)
    }

    /// Returns the freed pages that still wait in nodes or in a purge.
    #[inline]
    pub fn lazy_pages(&self) -> Pages {
        // Settled first: it never exceeds what became lazy before it.
        let settled = self.settled.0.load(Ordering::Acquire);
        // Pages that never were lazy may be unsettled on their way from a pool to the index, so `settled` may wrap.
        let waiting = self.lazied.0.load(Ordering::Relaxed).wrapping_sub(settled);
        Pages::new(waiting.cast_signed().max(0).cast_unsigned())
    }

    /// Returns the owner that an area for this request gets.
    #[inline(always)]
    fn owner_for(&self, cpu: u32, request: &Request) -> Option<u32> {
        self.is_tagged(request).then(|| cpu % self.nodes.nodes())
    }

    /// Returns whether an area for this request gets an owner.
    #[inline(always)]
    fn is_tagged(&self, request: &Request) -> bool {
        let tags = C::POOL_PAGES_MAX > 0 && (C::POOL_ON_ONE_NODE || self.nodes.nodes() > 1);
        tags && request.window().is_none_or(|window| window == self.default_window)
    }

    /// Returns an area of the exact size from the pool of `node`, for `owner`.
    #[inline]
    fn take_pooled(&self, node: u32, request: &Request, owner: Option<u32>) -> Option<Area> {
        let mut pool = self.lock_filled_pool(node)?;
        let area = pool.take(&self.map, request.size().get(), request.align(), C::POOL_TRIES);
        drop(pool);
        let Some(area) = area else {
            self.stop_if_lost();
            return None;
        };
        // From another node's pool, for a CPU whose node was never needed: the area gets no owner.
        let owner = owner.filter(|&own| own == node || self.table.get(own).is_some());
        Some(self.publish(area, owner))
    }

    /// Makes a flushed area busy.
    #[inline(always)]
    fn publish(&self, area: UnlinkedArea<Flushed>, owner: Option<u32>) -> Area {
        let word = area.word.again(owner);
        let handle = self.handle_of(&area, word);
        area.become_busy(word);
        handle
    }

    /// Makes a flushed area busy, with a note.
    #[inline(always)]
    fn publish_noted(&self, area: UnlinkedArea<Flushed>, owner: Option<u32>, note: u64) -> Area {
        let word = area.word.again(owner).with_note();
        let handle = self.handle_of(&area, word);
        area.become_noted(word, note);
        handle
    }

    /// Returns the handle of an area that is about to have `word`, and adds the area to the lookup.
    #[inline(always)]
    fn handle_of(&self, area: &UnlinkedArea<Flushed>, word: Word) -> Area {
        let handle = Area { page: area.page, pages: area.pages, generation: word.generation() };
        self.lookup.insert(handle.range(), &self.machine);
        handle
    }

    /// Returns the node in which an area waits when it is freed.
    #[inline]
    fn home<S>(&self, area: &UnlinkedArea<S>) -> u32 {
        area.word.owner().unwrap_or_else(|| self.zone_of(area.page))
    }

    /// Puts a freed area into the node in which it waits.
    #[inline]
    fn make_lazy(&self, area: UnlinkedArea<Unflushed>) {
        let (page, end) = (area.page, area.end());
        let node = self.home(&area);
        // Counted before it can be found, so that `settled` never includes uncounted pages.
        self.lazied.0.fetch_add(area.pages, Ordering::Relaxed);
        let mut lazy = self.lock_lazy(self.node(node));
        lazy.cover(page, end);
        match C::ORDER {
            Order::Newest => lazy.mixed.push_front(area),
            // So the area of a size that was freed last is at the front of its pool.
            Order::NodeByAddress => lazy.mixed.push_back(&self.map, area),
            Order::SliceByAddress => {
                let rest = if area.word.owner().is_some() { lazy.sized.put(area) } else { Err(area) };
                if let Err(area) = rest {
                    lazy.mixed.push_back(&self.map, area);
                }
            }
        }
    }

    #[cold]
    fn no_area_at(&self, at: Va) -> ReleaseError {
        let inside = self.find_enclosing_apart(at).map(|seen| seen.range).filter(|range| range.start() != at);
        ReleaseError::NoArea { at, inside }
    }
}

impl<P: Machine + Clone, C: Config> Drop for VmapSpace<P, C> {
    fn drop(&mut self) {
        self.release_meta();
    }
}
