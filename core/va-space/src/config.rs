//! The policies of a space, as bundles of types and numbers. No mechanism branches on the name of a policy.
//!
//! | | [`OneLock52`] | [`Linux69`] | [`Standard`] |
//! |---|---|---|---|
//! | stands for | Linux 5.2 to 6.8: one lock | Linux 6.9 to 6.12: nodes and pools | ours |
//! | free index | red-black tree, Linux's search | the same | B+tree, exact |
//! | nodes | 1 | a node a CPU, up to 128; with one, no pools | a node a CPU, up to 4,096 |
//! | pools | none | up to 256 pages | up to 256 pages and 8 large sizes, stolen before the index is searched or a request fails |
//! | decay | - | a quarter, all of 1 to 3 | a quarter of the idle |
//! | purge | whole, newest first | whole, node by node, lists by address | in slices |
//! | a request that cannot be met | purges | purges | fails at once |
//! | a busy area is found by | a tree | a tree in each node, searched upward | the page map |
//!
//! [`WithTrees`] is any of them with a tree in each node, to compare with. [`WithLazyMax`] is any of them with a purge
//! threshold of the caller's.

use crate::decay::{Decay, QuarterOfIdle, QuarterOrAllOfFew};
use crate::lazy::lazy_max_pages;
use crate::lookup::{Downward, Lookup, MapLookup, ScanOrder, TreeLookup, Upward};
use crate::node::{HashedZones, RoundRobinZones, Zone};
use core::marker::PhantomData;
use va_base::{AllocError, Machine, Pages, Platform, Request, Va, VaRange};
use va_tree::rb::Linux;
use va_tree::{BTreeIndex, BestFitIndex, FreeIndex, InPlace, RbIndex, Supplied};

/// The order in which flushed areas are freed to the index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// Newest first, one by one.
    Newest,
    /// Node by node: into pools in address order, to the index in the opposite order, one by one. (The shape of Linux's
    /// tree, and with it the answer to aligned requests, depends on it.)
    NodeByAddress,
    /// Each slice of a purge in address order, neighbours as one.
    SliceByAddress,
}

impl Order {
    /// Returns true if areas that leave a pool are sorted by address, and neighbours are freed as one.
    #[inline(always)]
    #[must_use]
    pub const fn sorts_decayed(self) -> bool {
        !matches!(self, Self::Newest)
    }

    /// Returns true if the lazy areas of a node are sorted by address before they are flushed.
    #[inline(always)]
    #[must_use]
    pub const fn sorts_lazy(self) -> bool {
        matches!(self, Self::NodeByAddress)
    }

    /// Returns true if the areas of a slice are sorted by address, and neighbours are freed as one.
    #[inline(always)]
    #[must_use]
    pub const fn sorts_slices(self) -> bool {
        matches!(self, Self::SliceByAddress)
    }

    /// Returns true if the order depends on the node of each address, so that all nodes exist from the beginning.
    #[inline(always)]
    #[must_use]
    pub const fn needs_nodes(self) -> bool {
        !matches!(self, Self::SliceByAddress)
    }

    /// Returns true if areas may reach the index in another order than that of their frees: magazines retain them in
    /// rounds, and take rows of them.
    #[inline(always)]
    #[must_use]
    pub const fn permits_rounds(self) -> bool {
        matches!(self, Self::SliceByAddress)
    }
}

/// A bundle of policies. Constant for a space; costs nothing at run time.
///
/// A policy states what it changes, and has every other number from its [`Base`](Config::Base). This one has no pools,
/// purges when more than 64 pages are lazy, and is [`Standard`] otherwise:
///
/// ```
/// use va_base::{HeapMachine, Machine, Pages, Platform, Request, VaRange};
/// use va_space::config::{Config, Standard};
/// use va_space::{VmapSpace, decay, lookup, node};
///
/// struct Eager;
/// impl Config for Eager {
///     type Base = Standard;
///     type Index<P: Platform + Clone + Send> = va_tree::BTreeIndex<P>;
///     type Zone = node::HashedZones;
///     type Decay = decay::QuarterOfIdle;
///     type Lookup<P: Machine> = lookup::MapLookup;
///     const POOL_PAGES_MAX: u64 = 0;
///     fn lazy_max(_cpus: u32) -> Pages {
///         Pages::new(64)
///     }
/// }
///
/// let window = VaRange::from_pages(0x100, 0x10_0000).unwrap();
/// let machine = HeapMachine::<parking_lot::RawMutex>::new(1);
/// let space = VmapSpace::<_, Eager>::new(window, window, &machine)?;
/// space.free(space.alloc(0, &Request::pages(64)?)?)?;
/// assert_eq!(machine.flushes(), 0);
/// space.free(space.alloc(0, &Request::pages(1)?)?)?;
/// assert_eq!(machine.flushes(), 1, "65 pages were lazy");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Config: 'static {
    /// The policy whose numbers this one has where it states none. One that is its own base states them all.
    type Base: Config;
    /// The index of holes.
    type Index<P: Platform + Clone + Send>: Supplied + InPlace<P> + Send;
    /// Chooses the node in which a freed area without an owner waits.
    type Zone: Zone;
    /// Chooses the number of areas that a decay takes out of a pool.
    type Decay: Decay;
    /// Finds a busy area by an address.
    type Lookup<P: Machine>: Lookup<P>;

    /// Most nodes, at least 1 and at most [`NODES_LIMIT`](crate::NODES_LIMIT).
    const NODES_MAX: u32 = Self::Base::NODES_MAX;
    /// True if a space with one node has a pool.
    const POOL_ON_ONE_NODE: bool = Self::Base::POOL_ON_ONE_NODE;
    /// Largest size that is pooled, in pages; 0 for no pools. At most [`EXACT_PAGES_MAX`](crate::pool::EXACT_PAGES_MAX)
    /// sizes have lists of their own; larger sizes share a few.
    const POOL_PAGES_MAX: u64 = Self::Base::POOL_PAGES_MAX;
    /// Pooled areas that an aligned request checks.
    const POOL_TRIES: u32 = Self::Base::POOL_TRIES;
    /// True if an aligned area is taken from the lowest ample hole ([`FreeIndex::alloc_ample`]); false if by
    /// [`FreeIndex::alloc`], which is the lowest fit of an exact index.
    const AMPLE: bool = Self::Base::AMPLE;
    /// True if a request takes from other nodes' pools before it purges everything, and through a magazine from one of
    /// them before the index.
    const STEAL: bool = Self::Base::STEAL;
    /// Order in which areas are freed to the index.
    const ORDER: Order = Self::Base::ORDER;
    /// Areas that one slice of a purge frees in the index, at most; other work is measured by that.
    const SLICE_AREAS: u64 = Self::Base::SLICE_AREAS;
    /// True if impossible requests, and repeats of one that failed, fail without a purge.
    const FAIL_FAST: bool = Self::Base::FAIL_FAST;
    /// True if a failing request asks the machine's clients to free unneeded areas before everything is purged; false
    /// if only after a purge that did not help.
    const RECLAIM_FIRST: bool = Self::Base::RECLAIM_FIRST;

    /// Returns the pages that may be lazy before a purge is due, with `cpus` CPUs online.
    #[inline]
    #[must_use]
    fn lazy_max(cpus: u32) -> Pages {
        Self::Base::lazy_max(cpus)
    }

    /// Takes a range from an index, by [`AMPLE`](Self::AMPLE), or does a step of it ([`FreeIndex::alloc_step`]).
    ///
    /// # Errors
    /// Those of [`FreeIndex::alloc`].
    #[inline(always)]
    fn take_lowest<I: FreeIndex>(index: &mut I, request: &Request) -> Result<Option<Va>, AllocError> {
        if Self::AMPLE
            && let Some(at) = index.take_ample(request)?
        {
            return Ok(Some(at));
        }
        index.alloc_step(request)
    }

    /// Creates the index of the whole pages of `extent`, for use without a space.
    ///
    /// # Errors
    /// [`AllocError::BadRange`] if there is none.
    fn index<P: Platform + Clone + Send>(
        extent: VaRange,
        default_window: VaRange,
        platform: P,
    ) -> Result<Self::Index<P>, AllocError> {
        let mut index = <Self::Index<P> as InPlace<P>>::EMPTY;
        index.init(extent, default_window, platform)?;
        Ok(index)
    }
}

/// Linux 5.2 to 6.8: one lock, no pools.
#[derive(Clone, Copy, Debug)]
pub struct OneLock52;

impl Config for OneLock52 {
    type Base = Self;
    type Index<P: Platform + Clone + Send> = RbIndex<Linux, P>;
    type Zone = RoundRobinZones;
    type Decay = QuarterOrAllOfFew;
    type Lookup<P: Machine> = TreeLookup<P, RoundRobinZones, Upward>;
    const NODES_MAX: u32 = 1;
    const POOL_ON_ONE_NODE: bool = false;
    const POOL_PAGES_MAX: u64 = 0;
    const POOL_TRIES: u32 = 0;
    const AMPLE: bool = false;
    const STEAL: bool = false;
    const ORDER: Order = Order::Newest;
    const SLICE_AREAS: u64 = u64::MAX;
    const FAIL_FAST: bool = false;
    const RECLAIM_FIRST: bool = true;

    fn lazy_max(cpus: u32) -> Pages {
        lazy_max_pages(cpus)
    }
}

/// Linux 6.9 to 6.12: nodes and pools.
#[derive(Clone, Copy, Debug)]
pub struct Linux69;

impl Config for Linux69 {
    type Base = Self;
    type Index<P: Platform + Clone + Send> = RbIndex<Linux, P>;
    type Zone = RoundRobinZones;
    type Decay = QuarterOrAllOfFew;
    type Lookup<P: Machine> = TreeLookup<P, RoundRobinZones, Upward>;
    const NODES_MAX: u32 = 128;
    const POOL_ON_ONE_NODE: bool = false;
    const POOL_PAGES_MAX: u64 = 256;
    const POOL_TRIES: u32 = 1;
    const AMPLE: bool = false;
    const STEAL: bool = false;
    const ORDER: Order = Order::NodeByAddress;
    const SLICE_AREAS: u64 = u64::MAX;
    const FAIL_FAST: bool = false;
    const RECLAIM_FIRST: bool = true;

    fn lazy_max(cpus: u32) -> Pages {
        lazy_max_pages(cpus)
    }
}

/// The policies of this project: an exact index, pools of all sizes, purges in slices. See the table of the module.
#[derive(Clone, Copy, Debug)]
pub struct Standard;

impl Config for Standard {
    type Base = Self;
    type Index<P: Platform + Clone + Send> = BTreeIndex<P>;
    type Zone = HashedZones;
    type Decay = QuarterOfIdle;
    type Lookup<P: Machine> = MapLookup;
    const NODES_MAX: u32 = crate::NODES_LIMIT;
    const POOL_ON_ONE_NODE: bool = true;
    const POOL_PAGES_MAX: u64 = 1 << 14;
    const POOL_TRIES: u32 = 16;
    const AMPLE: bool = false;
    const STEAL: bool = true;
    const ORDER: Order = Order::SliceByAddress;
    const SLICE_AREAS: u64 = 7;
    const FAIL_FAST: bool = true;
    const RECLAIM_FIRST: bool = false;

    fn lazy_max(cpus: u32) -> Pages {
        lazy_max_pages(cpus)
    }
}

/// The policies `C`, except that busy areas are found by a tree in each node; nodes are searched in the order of `W`.
#[derive(Clone, Copy, Debug)]
pub struct WithTrees<C, W = Downward>(PhantomData<fn() -> (C, W)>);

impl<C: Config, W: ScanOrder> Config for WithTrees<C, W> {
    type Base = C;
    type Index<P: Platform + Clone + Send> = C::Index<P>;
    type Zone = C::Zone;
    type Decay = C::Decay;
    type Lookup<P: Machine> = TreeLookup<P, C::Zone, W>;
}

/// The policies `C`, with holes in order of size as well: [`alloc_best`](crate::VmapSpace::alloc_best) is O(log n).
/// Each other change of the index takes longer for it.
#[derive(Clone, Copy, Debug)]
pub struct WithBestFit<C>(PhantomData<fn() -> C>);

impl<C: Config> Config for WithBestFit<C> {
    type Base = C;
    type Index<P: Platform + Clone + Send> = BestFitIndex<C::Index<P>, P>;
    type Zone = C::Zone;
    type Decay = C::Decay;
    type Lookup<P: Machine> = C::Lookup<P>;
}

/// The policies `C`, except that aligned areas are taken from ample holes, as in Linux: faster, and packed less tightly
/// than by the lowest fit.
///
/// ```
/// use va_base::{HeapMachine, Request, VaRange};
/// use va_space::VmapSpace;
/// use va_space::config::{Standard, WithAmple};
///
/// let window = VaRange::from_pages(0x100, 0x10_0000).unwrap();
/// let machine = HeapMachine::<parking_lot::RawMutex>::new(1);
/// let space = VmapSpace::<_, WithAmple<Standard>>::new(window, window, &machine)?;
/// // Pages, the pages to which they are aligned, and where they are; the lowest fit of the last ones is 0x102.
/// for (pages, align, at) in [(1, 1, 0x100), (2, 4, 0x104), (1, 1, 0x101), (2, 2, 0x106)] {
///     let area = space.alloc(0, &Request::new(pages << 12, align << 12)?)?;
///     assert_eq!(area.start().page_floor(), at);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct WithAmple<C>(PhantomData<fn() -> C>);

impl<C: Config> Config for WithAmple<C> {
    type Base = C;
    type Index<P: Platform + Clone + Send> = C::Index<P>;
    type Zone = C::Zone;
    type Decay = C::Decay;
    type Lookup<P: Machine> = C::Lookup<P>;
    const AMPLE: bool = true;
}

/// The policies `C`, except for the purge threshold: a purge is due once more than `PAGES` pages are lazy.
///
/// Blocks use it as their `Space`, and have a threshold of their own for dead pages (`va_block::Config::dead_max`).
///
/// ```
/// use va_base::{HeapMachine, Request, VaRange};
/// use va_space::VmapSpace;
/// use va_space::config::{Standard, WithLazyMax};
///
/// let window = VaRange::from_pages(0x100, 0x10_0000).unwrap();
/// let machine = HeapMachine::<parking_lot::RawMutex>::new(4);
/// let space = VmapSpace::<_, WithLazyMax<Standard, 64>>::new(window, window, &machine)?;
/// let request = Request::pages(16)?;
/// let areas = [(); 5].map(|()| space.alloc(0, &request).unwrap());
/// for (freed, area) in (1..).zip(areas) {
///     space.free(area)?;
///     assert_eq!(machine.flushes(), u64::from(16 * freed > 64));
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct WithLazyMax<C, const PAGES: u64>(PhantomData<fn() -> C>);

impl<C: Config, const PAGES: u64> Config for WithLazyMax<C, PAGES> {
    type Base = C;
    type Index<P: Platform + Clone + Send> = C::Index<P>;
    type Zone = C::Zone;
    type Decay = C::Decay;
    type Lookup<P: Machine> = C::Lookup<P>;

    fn lazy_max(_cpus: u32) -> Pages {
        Pages::new(PAGES)
    }
}
