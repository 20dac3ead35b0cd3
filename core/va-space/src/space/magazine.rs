//! A magazine: areas cached by one owner, whose pairs take no shared lock.
//!
//! # Theory
//! A caller that allocates and frees often (a CPU, a thread) owns a magazine and calls it instead of the space. The
//! areas that it allocates were flushed. The areas that it frees are lazy, and count against the threshold of the
//! space.
//!
//! An area need not leave the magazine to be flushed. A **round** of freed areas is sealed with the number of the next
//! flush batch (`flush_batch`), and remains in the magazine. When that batch is completed, its lists become the cache
//! again. Each list moves as a whole when an alloc requests its size.
//!
//! ```text
//!          +-- completed -- sealed <--- seal: hull, number -- round <--- free ---+        node: lazy (hull, counts), pool
//!          v                                                                     |
//!        cache ------------------------------ alloc -----------------------> busy
//! ```
//!
//! So a steady load remains in its magazine, and takes a shared lock once a round. The cache is refilled from the
//! node's pool (one area of a size at first, twice as many each time). What that lacks comes from the pool of one other
//! node, from a magazine whose owner is idle ([`watched`](super::watched)), or from the index. Its excess goes to the
//! pool.
//!
//! The areas are in memory from the machine, under a lock of the magazine. A request that fails, a CPU that goes
//! offline and a shrinker drain it even while its owner sleeps (`space::cell`, which has the invariants MG1 and MG2).
//!
//! # Locking
//! The magazine's own lock ([`Machine::OwnerLock`]), once in an alloc and once in a free, uncontended. Under it a
//! refill takes `pool` of its node, and the end of a round ([`round`](super::round)) takes `lazy`. Metadata memory, a
//! search of the index and a purge happen with no lock of the magazine held.
//!
//! A call for [`Context::Atomic`] takes one lock at a time. An alloc takes the magazine's, and other locks after its
//! release. A free takes `lazy` of the area's node alone: a round could not be sealed there and would grow.
//! # Source
//! Our own, after Bonwick's magazines and epochs; Linux takes the pool's lock and the busy lock at each call.

use super::cell::{CACHE_PAGES_MAX, Cell, Contents};
use super::take::Lowest;
use super::watched::Watched;
use super::{Release, VmapSpace};
use crate::area::{Area, DetachedArea, range_of};
use crate::budget::{Budget, Cost};
use crate::config::{Config, Standard};
use crate::error::{ReleaseError, SpaceError};
use crate::list::{AreaList, Flushed, UnlinkedArea};
use crate::pool::EXACT_PAGES_MAX;
use va_base::sync::MutexGuard;
use va_base::{Align, Context, LockClass, Machine, Request, Va, VaRange};

/// Most areas, and most pages, that one refill adds.
const REFILL_AREAS_MAX: u64 = 64;
const REFILL_PAGES_MAX: u64 = 2048;
/// So many areas of a long list remain where it is cut: they are counted one by one, each some fifty instructions.
const STAY_AREAS_MAX: u64 = 16;
/// A row from the index has at most so many pages and areas, or else so many large ones, of this many pages. More would
/// shorten no pair, and one alloc pays for all.
const ROW_PAGES_MAX: u64 = 128;
const ROW_AREAS_MAX: u64 = 16;
const ROW_OF_LARGE_AREAS: u64 = 4;
const ROW_OF_LARGE_PAGES_MAX: u64 = 1 << 13;
const _: () = assert!(REFILL_PAGES_MAX <= CACHE_PAGES_MAX);
/// The index has rows for alignments up to so many pages: 1 GiB.
const ROW_ALIGN_LOG2_MAX: u32 = 18;

/// The first place in which an alloc looks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Looks {
    FromTheCacheOn,
    /// The caller looked into the cache.
    BehindTheCache,
}

/// The places without an area of a size.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Lacks {
    /// The cache; the pool of the node may have some.
    Cache,
    /// The pool of the node, too.
    Pool,
}

/// A cache of areas that its owner passes by `&mut`; see the module. A few words: the areas are in memory from the
/// machine.
///
/// ```
/// # use va_base::{HeapMachine, Request, VaRange};
/// # use va_space::VmapSpace;
/// # let window = VaRange::from_pages(0x1000, 0x9000).unwrap();
/// # let machine = HeapMachine::<parking_lot::RawMutex>::new(4);
/// let space = VmapSpace::<_>::new(window, window, &machine)?;
/// let mut magazine = space.magazine(0)?;
/// let area = magazine.alloc(&Request::pages(3).unwrap())?;
/// magazine.free(area).unwrap();
/// // Any thread can drain it.
/// assert_eq!(space.drain_cpu(0).magazines, 1);
/// # Ok::<(), va_space::SpaceError>(())
/// ```
// What each call reads is first.
#[repr(C)]
pub struct Magazine<'s, P: Machine + Clone, C: Config = Standard> {
    pub(super) space: &'s VmapSpace<P, C>,
    pub(super) cell: &'static Cell<P::OwnerLock>,
    pub(super) node: u32,
    /// The node whose pool is tried when that of the own node lacks a size.
    other: u32,
    pub(super) watched: Watched<P::OwnerLock>,
}

impl<P: Machine + Clone, C: Config> core::fmt::Debug for Magazine<'_, P, C> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Magazine").field("node", &self.node).finish_non_exhaustive()
    }
}

impl<P: Machine + Clone, C: Config> VmapSpace<P, C> {
    /// Creates a magazine for callers on CPU `cpu`. The only limit is the machine's memory: each magazine takes some 26
    /// KiB, used for one magazine after another until the space ends. Cost: O(1), however many there are or were, and
    /// the drain of idle magazines that hold more than their new share, at most sixteen.
    ///
    /// # Errors
    /// [`SpaceError::NoTable`] if the machine has no memory for it.
    /// # Locks
    /// For the first on a node, `purge` and under it `lazy`. Then `free`, once or twice, and those of
    /// [`drain_magazines`](Self::drain_magazines), for magazines that hold more than their new share.
    pub fn magazine(&self, cpu: u32) -> Result<Magazine<'_, P, C>, SpaceError> {
        self.ensure_node(cpu % self.nodes.nodes())?;
        let cell = self.take_cell(cpu).ok_or(SpaceError::NoTable)?;
        let node = self.node_of(cell);
        Ok(Magazine { space: self, cell, node, other: node, watched: Watched::new() })
    }
}

impl<P: Machine + Clone, C: Config> Magazine<'_, P, C> {
    #[inline(always)]
    #[track_caller]
    pub(super) fn lock(&self) -> MutexGuard<'static, P::OwnerLock, Contents> {
        self.space.machine.locking(LockClass::Owner);
        self.cell.lock()
    }

    /// Allocates an area, as [`VmapSpace::alloc`] does.
    ///
    /// # Errors
    /// The errors of [`VmapSpace::alloc`]. Before [`SpaceError::NoSpace`] for a request that may sleep, all magazines
    /// were drained, including this one, except those whose owner was in a call.
    /// # Locks
    /// `purge`, by `try_lock` and if too much is lazy, for up to eight slices; then those of
    /// [`try_alloc`](Self::try_alloc); then those of [`VmapSpace::alloc`]. For [`Context::Atomic`] one at a time, and
    /// never `purge`.
    #[inline(always)]
    pub fn alloc(&mut self, request: &Request) -> Result<Area, SpaceError> {
        // The cache has no list for a size above its share.
        if self.space.is_tagged(request)
            && let Some(area) = self.take(request)
        {
            return Ok(area);
        }
        // By value, so that the usual path needs no request in memory.
        self.alloc_further(*request)
    }

    /// Allocates an area from what is available at once: this magazine, the pools of its node and of another, a magazine
    /// whose owner is idle, the index. Nothing is purged, drained or waited for, so a kernel that owns the magazine while
    /// preemption is off can leave that section first, and then call [`VmapSpace::alloc`]. Call
    /// [`take_noted`](Self::take_noted) first: it is the quick way to an area of the cache.
    ///
    /// The machine may be called for memory of records, with no lock of the magazine held, except for a request with
    /// [`Context::Atomic`].
    ///
    /// # Errors
    /// [`SpaceError::NoSpace`], [`SpaceError::WouldBlock`] or [`AllocError::NoMeta`](va_base::AllocError::NoMeta) where
    /// [`alloc`](Self::alloc) would do more, or report that a request is impossible. Else those of it.
    /// # Locks
    /// The magazine's. Under it, one after the other: `pool` of the node, an idle magazine's by `try_lock`, and `free`
    /// for areas that neither cache nor pool takes. Then `pool` of the node or of another, and `free`. For
    /// [`Context::Atomic`] one at a time.
    pub fn try_alloc(&mut self, request: &Request) -> Result<Area, SpaceError> {
        // As a rule `take_noted` has found no area, so there is no quick path here.
        match self.alloc_available(request, Looks::FromTheCacheOn) {
            Err(SpaceError::NoSpace { largest, .. }) => Err(self.space.no_space(request, largest)),
            done => done,
        }
    }

    /// Allocates the first area of the cache that is of the right size, with a note: `note` is called once with the
    /// range of the area, and returns the note. So a kernel completes its record of the area before a lookup returns it.
    /// `None` if there is no such area, or if it is not aligned: [`try_alloc`](Self::try_alloc) looks further. It is a
    /// function of its own, since one without calls needs few registers, and nearly every alloc ends here.
    ///
    /// `note` must not call the space or the magazine, and must not panic: the area would be lost.
    ///
    /// # Locks
    /// The magazine's. `note` is called with none held. Cost: O(1).
    #[inline(always)]
    pub fn take_noted(&mut self, request: &Request, note: impl FnOnce(VaRange) -> u64) -> Option<Area> {
        if C::POOL_TRIES == 0 || !self.space.is_tagged(request) {
            return None;
        }
        let (space, cell) = (self.space, self.cell);
        let mut contents = self.lock();
        let area = contents.cache.take_first(&space.map, request.size().get(), request.align())?;
        cell.publish_cached(&contents);
        drop(contents);
        let noted = note(range_of(area.page, area.pages));
        Some(space.publish_noted(area, Some(self.node), noted))
    }

    /// Takes an area from the cache.
    #[inline(always)]
    fn take(&self, request: &Request) -> Option<Area> {
        let mut contents = self.lock();
        let (size, align) = (request.size().get(), request.align());
        let area = contents.cache.take(&self.space.map, size, align, C::POOL_TRIES)?;
        self.cell.publish_cached(&contents);
        drop(contents);
        Some(self.space.publish(area, Some(self.node)))
    }

    #[inline(never)]
    fn alloc_further(&mut self, request: Request) -> Result<Area, SpaceError> {
        let owner = self.space.owner_for(self.node, &request);
        if request.waits() {
            self.space.catch_up();
        }
        let available = self.alloc_available(&request, Looks::BehindTheCache);
        match self.space.or_supplied::<Lowest>(&request, owner, available) {
            Err(SpaceError::NoSpace { .. } | SpaceError::WouldBlock { .. }) => self.alloc_hard(&request),
            done => done,
        }
    }

    /// Allocates an area from the cache if `looks` says so, from the pool of the node or of another, from an idle
    /// magazine, or from the index.
    fn alloc_available(&mut self, request: &Request, looks: Looks) -> Result<Area, SpaceError> {
        self.space.stop_if_lost();
        let pages = request.size().get();
        let owner = self.space.owner_for(self.node, request);
        // A small request of the default window is checked when the index has no hole. One with an alignment for which
        // the index has no row would search long for nothing.
        if (pages > EXACT_PAGES_MAX || owner.is_none() || request.align().page_log2() > ROW_ALIGN_LOG2_MAX)
            && let Some(error) = self.space.impossible(request)
        {
            return Err(error);
        }
        // The cache may have areas of any size, and the pools have not.
        let pooled = looks == Looks::FromTheCacheOn || pages <= C::POOL_PAGES_MAX.min(CACHE_PAGES_MAX);
        if owner.is_none() || !pooled {
            return self.space.take_from_index::<Lowest>(request, owner);
        }
        let lacks = match self.take_refilled(request, looks) {
            Ok(area) => return Ok(area),
            Err(lacks) => lacks,
        };
        self.space.stop_if_lost();
        // There may be areas for which the cache had no room, or an aligned one behind those that it got.
        if lacks == Lacks::Cache
            && let Some(area) = self.space.take_pooled(self.node, request, owner)
        {
            return Ok(area);
        }
        if C::STEAL
            && let Some(area) = self.take_elsewhere(request, owner).or_else(|| self.take_from_idle(request))
        {
            return Ok(area);
        }
        self.take_from_index(request)
    }

    /// Takes an area from the pool of one other node, if it has the size. After the threads of a CPU moved to others,
    /// the areas that they freed settle there, and would go to the index and come back.
    fn take_elsewhere(&mut self, request: &Request, owner: Option<u32>) -> Option<Area> {
        let pooled = &self.space.pooled.0;
        if !pooled.has(self.other) {
            self.other = pooled.after(self.other)?;
        }
        if self.other == self.node {
            self.other = pooled.after(self.node).filter(|&other| other != self.node)?;
        }
        let area = self.space.take_pooled(self.other, request, owner);
        if area.is_none() {
            self.other = pooled.after(self.other)?;
        }
        area
    }

    /// Allocates an area when the index has no hole: the space drains every magazine, and tries all other steps.
    #[inline(never)]
    fn alloc_hard(&self, request: &Request) -> Result<Area, SpaceError> {
        if let Some(error) = self.space.impossible(request) {
            return Err(error);
        }
        self.space.overflow::<Lowest>(request, self.space.owner_for(self.node, request))
    }

    /// Frees an area, and returns its addresses, as [`VmapSpace::free_as`] does: into the magazine, except for
    /// [`Context::Atomic`] and [`Release::Unused`].
    ///
    /// # Errors
    /// The errors of [`VmapSpace::free_as`].
    /// # Locks
    /// [`Context::Sleeping`]: the magazine's; `pool`, `free` and `lazy` of the node once in many calls; then those of
    /// [`VmapSpace::free`]. [`Context::Atomic`]: those of [`VmapSpace::free_as`].
    /// Cost: O(1), and at most one and a half slices of a purge.
    #[inline(always)]
    pub fn free_as(&mut self, release: Release, context: Context) -> Result<VaRange, ReleaseError> {
        if context == Context::Atomic || matches!(release, Release::Unused(_)) {
            return self.space.free_as(release, context);
        }
        let freed = self.space.claim_as(release)?;
        let range = range_of(freed.page, freed.pages);
        self.put_freed(freed);
        Ok(range)
    }

    /// Frees an area, as [`VmapSpace::free`] does.
    ///
    /// # Errors
    /// The errors of [`VmapSpace::free`].
    /// # Locks
    /// Those of [`free_as`](Self::free_as). Cost: the same.
    #[inline]
    pub fn free(&mut self, area: Area) -> Result<(), ReleaseError> {
        self.free_in(Context::Sleeping, area)
    }

    /// Frees an area for a caller in `context`. For [`Context::Atomic`] it is [`VmapSpace::free_in`]: the area goes to
    /// its node, not into the magazine.
    ///
    /// # Errors
    /// The errors of [`free`](Self::free).
    /// # Locks
    /// Those of [`free_as`](Self::free_as). Cost: O(1).
    #[inline]
    pub fn free_in(&mut self, context: Context, area: Area) -> Result<(), ReleaseError> {
        self.free_as(Release::Handle(area), context).map(|_| ())
    }

    /// Frees the area that starts at `at`, as [`VmapSpace::free_at`] does.
    ///
    /// # Errors
    /// The errors of [`VmapSpace::free_at`].
    /// # Locks
    /// Those of [`free_as`](Self::free_as). Cost: the same.
    #[inline(always)]
    pub fn free_at(&mut self, at: Va) -> Result<VaRange, ReleaseError> {
        self.free_as(Release::At(at), Context::Sleeping)
    }

    /// Frees the area that starts at `at` for a caller in `context`, and returns its addresses.
    ///
    /// # Errors
    /// The errors of [`free_at`](Self::free_at).
    /// # Locks
    /// Those of [`free_as`](Self::free_as). Cost: O(1).
    #[inline]
    pub fn free_at_in(&mut self, context: Context, at: Va) -> Result<VaRange, ReleaseError> {
        self.free_as(Release::At(at), context)
    }

    /// Frees a detached area, as [`VmapSpace::release`] does.
    ///
    /// # Errors
    /// The errors of [`VmapSpace::release`].
    /// # Locks
    /// Those of [`free_as`](Self::free_as). Cost: the same.
    #[inline]
    pub fn release(&mut self, area: DetachedArea) -> Result<(), ReleaseError> {
        self.free_as(Release::Detached(area), Context::Sleeping).map(|_| ())
    }

    /// Frees the detached area that starts at `at`, as [`VmapSpace::release_at`] does.
    ///
    /// # Errors
    /// The errors of [`VmapSpace::release_at`].
    /// # Locks
    /// Those of [`free_as`](Self::free_as). Cost: the same.
    #[inline(always)]
    pub fn release_at(&mut self, at: Va) -> Result<VaRange, ReleaseError> {
        self.free_as(Release::DetachedAt(at), Context::Sleeping)
    }

    /// Moves all areas to the node: flushed ones to its pool, freed ones to its lazy areas.
    ///
    /// # Locks
    /// The magazine's, and under it `pool` and `lazy` of the node and `free`, one after the other; `purge` before, if an area
    /// waits for a batch.
    pub fn drain(&mut self) {
        self.space.empty_cell(self.cell, || Some(self.cell.lock()));
        self.space.after_drain();
    }

    /// Takes an area from the cache if `looks` says so. Else it does so after completed areas, or some of the node's pool,
    /// were moved there, under one hold of the lock. A caller that may not wait takes a completed area, and no other lock.
    fn take_refilled(&self, request: &Request, looks: Looks) -> Result<Area, Lacks> {
        let mut contents = self.lock();
        let (pages, align) = (request.size().get(), request.align());
        let look =
            |contents: &mut Contents| contents.cache.take_apart(&self.space.map, pages, align, C::POOL_TRIES);
        let mut area = None;
        if looks == Looks::FromTheCacheOn {
            area = look(&mut contents);
            self.space.stop_if_lost();
        }
        if area.is_none() && !request.waits() {
            area = self.take_completed(&mut contents, request);
        } else if area.is_none() {
            if !self.cache_completed_size(&mut contents, pages) {
                self.refill(&mut contents, pages)?;
            }
            area = look(&mut contents);
        }
        let area = area.ok_or(Lacks::Cache)?;
        self.cell.publish_cached(&contents);
        drop(contents);
        Ok(self.space.publish(area, Some(self.node)))
    }

    /// Takes one area of a completed batch without moving the others.
    fn take_completed(&self, contents: &mut Contents, request: &Request) -> Option<UnlinkedArea<Flushed>> {
        let (rounds, pages) = (&mut contents.rounds, request.size().get());
        if request.align() > Align::PAGE || !rounds.poll_completed(&self.space.completed_batches) {
            return None;
        }
        let class = rounds.sealed().class(pages)?;
        let area =
            rounds.take(&self.space.map, &self.space.machine, class, 1).pop_front(&self.space.map, pages);
        self.cell.publish_sealed(contents);
        area
    }

    /// Puts areas of one size into the cache, which moves others out. Areas without room or a list go to the pool or
    /// the index. Returns whether the cache has some of them now.
    pub(super) fn cache_or_pool(
        &self,
        contents: &mut Contents,
        pages: u64,
        mut list: AreaList<Flushed>,
    ) -> bool {
        let map = &self.space.map;
        let max = contents.cache_pages_max;
        let mut rest = AreaList::new();
        if list.pages() > max {
            // The share has become smaller than the list.
            let most = (max / pages).clamp(1, STAY_AREAS_MAX);
            let front = list.split_front(map, most, pages);
            rest = core::mem::replace(&mut list, front);
        }
        // An alloc may do this and take a row, too.
        let room = self.make_room(contents, list.pages(), &mut Budget::of_quarter::<C>());
        let list = if room { contents.cache.put_list(map, pages, list) } else { Err(list) };
        let cached = match list {
            Ok(()) => true,
            Err(mut list) => {
                list.append(map, rest);
                rest = list;
                false
            }
        };
        self.cell.publish_cached(contents);
        if !rest.is_empty() {
            let rest = self.space.pool_list(&mut self.space.lock_pool(self.node), pages, rest);
            if let Err(list) = rest {
                self.space.to_index_by_slices(list, false);
            }
            self.space.note_return();
        }
        cached
    }

    /// Moves areas of one size from the node's pool into the cache.
    fn refill(&self, contents: &mut Contents, pages: u64) -> Result<(), Lacks> {
        let map = &self.space.map;
        let mut pool = self.space.lock_filled_pool(self.node).ok_or(Lacks::Pool)?;
        let pooled = pool.class(pages).filter(|&class| pool.len(class) > 0).ok_or(Lacks::Pool)?;
        let class = contents.class(pages).ok_or(Lacks::Cache)?;
        let max = contents.cache_pages_max;
        let limit = (REFILL_PAGES_MAX.min(max) / pages).clamp(1, REFILL_AREAS_MAX);
        let mut want = u64::from(contents.refill_areas[class]).min(limit).min(pool.len(pooled));
        contents.refill_areas[class] = (2 * want).min(limit) as u8;
        if want == limit && pool.len(pooled) * pages <= max / 4 {
            want = pool.len(pooled);
        }
        let list = pool.take_list(map, pooled, want);
        drop(pool);
        if self.cache_or_pool(contents, pages, list) { Ok(()) } else { Err(Lacks::Cache) }
    }

    /// Takes an area from the index, and a row of equal ones for the cache if this size was requested before.
    fn take_from_index(&self, request: &Request) -> Result<Area, SpaceError> {
        let pages = request.size().get();
        let count = self.row_areas(request);
        if count > 1
            && let Some((area, others)) = self.space.take_row(pages, request.align(), count, self.node)
        {
            self.cache_or_pool(&mut self.lock(), pages, others);
            return Ok(area);
        }
        self.space.take_from_index::<Lowest>(request, Some(self.node))
    }

    /// Returns the areas that a request takes from the index, and notes it. One where areas side by side would not all
    /// be aligned.
    fn row_areas(&self, request: &Request) -> u64 {
        let pages = request.size().get();
        if pages > ROW_OF_LARGE_PAGES_MAX / 2 || !C::ORDER.permits_rounds() {
            return 1;
        }
        let mut contents = self.lock();
        let Some(class) = contents.class(pages) else { return 1 };
        let align = request.align().page_log2() as u8;
        if contents.refill_areas[class] == 1 {
            (contents.row_aligns[class], contents.refill_areas[class]) = (align, 2);
            return 1;
        }
        let repeats = core::mem::replace(&mut contents.row_aligns[class], align) == align;
        let limit = (ROW_PAGES_MAX / pages).max(ROW_OF_LARGE_AREAS.min(ROW_OF_LARGE_PAGES_MAX / pages));
        let limit = limit.min(ROW_AREAS_MAX).min(1 + contents.cache_pages_max / pages);
        let count = u64::from(contents.refill_areas[class]).min(limit);
        contents.refill_areas[class] = (2 * count).min(REFILL_AREAS_MAX) as u8;
        let side_by_side = pages.trailing_zeros() >= u32::from(align);
        if repeats && side_by_side && request.waits() { count } else { 1 }
    }

    /// Moves other sizes to the pool until the cache has room for `more` pages, or the budget ends; returns whether it
    /// has.
    pub(super) fn make_room(&self, contents: &mut Contents, more: u64, budget: &mut Budget) -> bool {
        let map = &self.space.map;
        let (cache, max) = (&mut contents.cache, contents.cache_pages_max);
        // Checks MG1.
        if cache.pages() + more <= max {
            return true;
        }
        let mut pool = self.space.lock_pool(self.node);
        let mut homeless = AreaList::new();
        while cache.pages() + more > max
            && budget.is_left()
            && let Some(victim) = cache.next_class(contents.victim).or_else(|| cache.next_class(0))
        {
            budget.spend(Cost::LIST);
            // No size loses all its areas at once: half of a list remains, those freed last, and fewer of a long one.
            let half = cache.len(victim) / 2;
            let size = cache.size(victim);
            let list = if VmapSpace::<P, C>::always_pools(size) {
                let stay = half.min(REFILL_AREAS_MAX);
                budget.spend_each(Cost::LINK, stay);
                cache.take_behind(map, victim, stay)
            } else {
                // The pool may have no list for them, and the index costs more.
                cache.take_list(map, victim, (half + 1).min(budget.steps(Cost::AREA)))
            };
            if let Err(list) = self.space.pool_list(&mut pool, size, list) {
                budget.spend_each(Cost::AREA, list.areas());
                homeless.append(map, list);
            }
            contents.refill_areas[victim] = (contents.refill_areas[victim] / 2).max(1);
            contents.victim = victim + 1;
        }
        drop(pool);
        let room = contents.cache.pages() + more <= max || contents.cache.areas() == 0;
        self.cell.publish_cached(contents);
        self.space.to_index(homeless, false);
        self.space.note_return();
        room
    }
}

impl<P: Machine + Clone, C: Config> Drop for Magazine<'_, P, C> {
    fn drop(&mut self) {
        self.drain();
        self.space.release_cell(self.cell);
    }
}
