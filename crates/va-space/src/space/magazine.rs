//! A magazine: areas that one caller keeps for itself, so that its pairs touch no shared lock.
//!
//! # Theory
//! A caller that allocates and frees all the time (a CPU, a thread) owns a magazine and calls it instead of the space. What it
//! allocates was flushed; what it frees is lazy and counts against the threshold of all. But an area need not leave
//! the magazine to be flushed: a **round** of freed areas is sealed with a ticket for the next flight (`flight`), stays where
//! it is, and when that has landed its lists are the stock again, each moved whole when its size is asked for.
//!
//! ```text
//!          +--- landed ---  away  <--- seal: hull, ticket --- round <--- free ---+        node: lazy (hull, counts), pool
//!          v               (sealed)                                              |
//!        stock ------------------------------ alloc -----------------------> busy
//! ```
//!
//! So a steady load turns in its magazine and takes a shared lock once a round. What the stock lacks comes from the node's pool
//! (one area of a size at first, twice as many each time) or from the index; what it has too much of goes to the pool.
//!
//! The areas are in memory from the machine, under a lock of the magazine alone: a request that fails, a CPU that goes
//! offline and a shrinker drain it, though its owner sleeps (`space::cell`, which has the invariants MG1 and MG2).
//!
//! # Locking
//! The magazine's own ([`Machine::OwnerLock`]), once in an alloc and once in a free, uncontended. A refill takes `pool` of its
//! node under it, the end of a round `lazy`. Nothing else is done under it: the machine is asked for memory, the index
//! searched and a purge run with no lock of the magazine held.
//! # Source
//! Our own, after Bonwick's magazines and epochs; Linux takes the pool's lock and the busy lock at each call.

use super::VmapSpace;
use super::cell::{Cell, Contents, STOCK_PAGES_MAX};
use crate::area::{Area, range_of};
use crate::config::{Config, Order};
use crate::error::{ReleaseError, SpaceError};
use crate::flight::Amount;
use crate::list::{AreaList, Flushed, Loose, Unflushed};
use crate::pool::EXACT_PAGES_MAX;
use va_base::sync::MutexGuard;
use va_base::sync::atomic::Ordering;
use va_base::{Align, Context, LockClass, Machine, Request, Va, VaRange};

/// Areas that one refill brings at most, and pages.
const REFILL_AREAS_MAX: u64 = 64;
const REFILL_PAGES_MAX: u64 = 2048;
/// Pages that a row from the index has at most.
const ROW_PAGES_MAX: u64 = 256;
const _: () = assert!(ROW_PAGES_MAX / 2 <= EXACT_PAGES_MAX);
const _: () = assert!(REFILL_PAGES_MAX <= STOCK_PAGES_MAX);

/// A cache of areas that its owner passes by `&mut`; see the module. A few words: the areas are in memory from the machine.
///
/// ```
/// # use va_base::{Request, VaRange};
/// # use va_sim::machine::SimMachine;
/// # use va_space::VmapSpace;
/// # let window = VaRange::from_pages(0x1000, 0x9000).unwrap();
/// # let machine = SimMachine::new(4);
/// let space = VmapSpace::<_, va_space::config::Default>::new(window, window, &machine)?;
/// let mut magazine = space.magazine(0)?;
/// let area = magazine.alloc(&Request::pages(3).unwrap())?;
/// magazine.free(area).unwrap();
/// // Any thread can drain it.
/// assert_eq!(space.drain_cpu(0).magazines, 1);
/// # Ok::<(), va_space::SpaceError>(())
/// ```
pub struct Magazine<'s, P: Machine + Clone, C: Config> {
    space: &'s VmapSpace<P, C>,
    cell: &'static Cell<P::OwnerLock>,
    node: u32,
}

impl<P: Machine + Clone, C: Config> VmapSpace<P, C> {
    /// Creates a magazine for callers on CPU `cpu`. There is no limit but the machine's memory, of which each takes some
    /// 26 KiB, for one magazine after another until the space ends.
    ///
    /// # Errors
    /// [`SpaceError::NoTable`] if the machine has no memory for it.
    /// # Locks
    /// Those of [`drain_magazines`](Self::drain_magazines), for magazines that hold more than their new share.
    pub fn magazine(&self, cpu: u32) -> Result<Magazine<'_, P, C>, SpaceError> {
        self.ensure_node(cpu % self.nodes.nodes())?;
        let cell = self.take_cell(cpu).ok_or(SpaceError::NoTable)?;
        Ok(Magazine { space: self, cell, node: self.node_of(cell) })
    }
}

impl<P: Machine + Clone, C: Config> Magazine<'_, P, C> {
    #[inline(always)]
    #[track_caller]
    fn lock(&self) -> MutexGuard<'static, P::OwnerLock, Contents> {
        self.space.machine.locking(LockClass::Owner);
        self.cell.lock()
    }

    /// Allocates an area, as [`VmapSpace::alloc`] does.
    ///
    /// # Errors
    /// As there; before a failure, all magazines were drained, this one among them.
    /// # Locks
    /// The magazine's; `pool` of the node for a refill; else as there.
    #[inline(always)]
    pub fn alloc(&mut self, request: &Request) -> Result<Area, SpaceError> {
        // A size above what the stock may hold is in no list of it.
        if self.space.is_tagged(request)
            && let Some(area) = self.take(request)
        {
            return Ok(area);
        }
        // By value, so that the usual path needs no request in memory.
        self.alloc_further(*request)
    }

    /// Allocates an area from what is at hand: this magazine, the pool of its node, the index. Nothing is purged, drained
    /// or waited for, so a kernel that owns the magazine while preemption is off can leave that section first, and then call
    /// [`VmapSpace::alloc`].
    ///
    /// The machine may be asked for memory of records, with no lock of the magazine held; for a request for
    /// [`Context::Atomic`] it is not.
    ///
    /// # Errors
    /// [`SpaceError::NoSpace`] or [`SpaceError::WouldBlock`] where [`alloc`](Self::alloc) would do more; else as there.
    /// # Locks
    /// The magazine's; `pool` of the node; `free`. One after the other, but for `pool` under the magazine's.
    pub fn try_alloc(&mut self, request: &Request) -> Result<Area, SpaceError> {
        if self.space.is_tagged(request)
            && let Some(area) = self.take(request)
        {
            return Ok(area);
        }
        match self.alloc_at_hand(request) {
            Err(SpaceError::NoSpace { largest, .. }) => Err(self.space.no_space(request, largest)),
            done => done,
        }
    }

    /// Takes an area from the stock.
    #[inline(always)]
    fn take(&self, request: &Request) -> Option<Area> {
        let mut contents = self.lock();
        let (size, align) = (request.size().get(), request.align());
        let area = contents.stock.take(&self.space.map, size, align, C::POOL_TRIES)?;
        self.cell.tell_cached(&contents);
        drop(contents);
        Some(self.space.publish(area, Some(self.node)))
    }

    #[inline(never)]
    fn alloc_further(&mut self, request: Request) -> Result<Area, SpaceError> {
        let owner = self.space.owner_for(self.node, &request);
        match self.space.or_supplied(&request, owner, self.alloc_at_hand(&request)) {
            Err(SpaceError::NoSpace { .. } | SpaceError::WouldBlock { .. }) => self.alloc_hard(&request),
            done => done,
        }
    }

    /// Allocates what the stock does not have from the pool of the node or from the index.
    fn alloc_at_hand(&self, request: &Request) -> Result<Area, SpaceError> {
        self.space.stop_if_lost();
        let pages = request.size().get();
        // Of others the space finds out, when the index has nothing.
        if (pages > EXACT_PAGES_MAX || request.window().is_some())
            && let Some(error) = self.space.impossible(request)
        {
            return Err(error);
        }
        match self.space.owner_for(self.node, request) {
            Some(_) if pages <= C::POOL_PAGES_MAX.min(STOCK_PAGES_MAX) => {
                if let Some(area) = self.take_brought(request) {
                    return Ok(area);
                }
                self.space.stop_if_lost();
                self.take_from_index(request)
            }
            owner => self.space.take_from_index(request, owner),
        }
    }

    /// When the index has nothing: the space drains every magazine, and does what else it can.
    #[inline(never)]
    fn alloc_hard(&self, request: &Request) -> Result<Area, SpaceError> {
        if let Some(error) = self.space.impossible(request) {
            return Err(error);
        }
        self.space.overflow(request, self.space.owner_for(self.node, request))
    }

    /// Frees an area, as [`VmapSpace::free`] does.
    ///
    /// # Errors
    /// As there.
    /// # Locks
    /// The magazine's; `lazy` of one node once in many calls; then as there.
    #[inline]
    pub fn free(&mut self, area: Area) -> Result<(), ReleaseError> {
        let freed = self.space.claim(&area)?;
        self.keep(freed);
        Ok(())
    }

    /// Frees the area that starts at `at`, as [`VmapSpace::free_at`] does.
    ///
    /// # Errors
    /// As there.
    /// # Locks
    /// As [`free`](Self::free).
    #[inline(always)]
    pub fn free_at(&mut self, at: Va) -> Result<VaRange, ReleaseError> {
        let freed = self.space.claim_at(at)?;
        let range = range_of(freed.page, freed.pages);
        self.keep(freed);
        Ok(range)
    }

    /// Moves everything to the node: flushed areas to its pool, freed ones to its lazy areas.
    ///
    /// # Locks
    /// The magazine's, and under it `pool` and `lazy` of the node, one after the other; `purge` before, if something waits
    /// for a flight.
    pub fn drain(&mut self) {
        self.space.empty_cell(self.cell, || Some(self.cell.lock()));
        self.space.after_round();
    }

    /// Takes an area of a size that the stock does not have, after what has landed of it, or some of the node's pool, is in
    /// the stock. All under one hold of the lock.
    fn take_brought(&self, request: &Request) -> Option<Area> {
        let mut contents = self.lock();
        let pages = request.size().get();
        if !self.bring_landed(&mut contents, pages) && !self.refill(&mut contents, pages) {
            return None;
        }
        let area = contents.stock.take(&self.space.map, pages, request.align(), C::POOL_TRIES)?;
        self.cell.tell_cached(&contents);
        drop(contents);
        Some(self.space.publish(area, Some(self.node)))
    }

    /// Moves what has landed of one size into the stock, which has none that suits; returns whether there was any.
    fn bring_landed(&self, contents: &mut Contents, pages: u64) -> bool {
        let rounds = &mut contents.rounds;
        if rounds.away().areas() == 0 || !rounds.land(&self.space.landings) {
            return false;
        }
        let Some(class) = rounds.away().class(pages).filter(|&class| rounds.away().len(class) > 0) else {
            return false;
        };
        let list = rounds.take(&self.space.map, &self.space.machine, class);
        let brought = self.stock_or_pool(contents, pages, list);
        self.cell.tell_away(contents);
        brought
    }

    /// Puts areas of one size into the stock, others give way; what it has no room or no list for goes into the pool or the
    /// index. Returns whether it has some of them now.
    fn stock_or_pool(&self, contents: &mut Contents, pages: u64, mut list: AreaList<Flushed>) -> bool {
        let map = &self.space.map;
        let max = contents.stock_pages_max;
        let mut rest = AreaList::new();
        if list.pages() > max {
            let most = (max / pages).max(1);
            let front = list.split_front(map, most, pages);
            rest = core::mem::replace(&mut list, front);
        }
        self.make_room(contents, list.pages());
        let stocked = match contents.stock.put_list(map, pages, list) {
            Ok(()) => true,
            Err(mut list) => {
                list.append(map, rest);
                rest = list;
                false
            }
        };
        self.cell.tell_cached(contents);
        if !rest.is_empty() {
            let rest = self.space.lock_pool(self.node).put_list(map, pages, rest);
            if let Err(list) = rest {
                self.space.to_index(list, false, false);
            }
            self.space.note_return();
        }
        stocked
    }

    /// Moves areas of one size from the node's pool into the stock; returns whether there were any.
    fn refill(&self, contents: &mut Contents, pages: u64) -> bool {
        let map = &self.space.map;
        let Some(mut pool) = self.space.lock_filled_pool(self.node) else { return false };
        let Some(class) = pool.class(pages).filter(|&class| pool.len(class) > 0) else { return false };
        let max = contents.stock_pages_max;
        let limit = (REFILL_PAGES_MAX.min(max) / pages).clamp(1, REFILL_AREAS_MAX);
        let mut want = u64::from(contents.batch[class]).min(limit).min(pool.len(class));
        contents.batch[class] = (2 * want).min(limit) as u8;
        if want == limit && pool.len(class) * pages <= max / 4 {
            want = pool.len(class);
        }
        let list = pool.take_list(map, class, want);
        drop(pool);
        self.stock_or_pool(contents, pages, list)
    }

    /// Takes an area from the index, and a row of others like it for the stock if this size was asked for before.
    fn take_from_index(&self, request: &Request) -> Result<Area, SpaceError> {
        let pages = request.size().get();
        if let Some(class) = Some(pages as usize - 1).filter(|_| pages <= ROW_PAGES_MAX / 2) {
            let mut contents = self.lock();
            let limit = (ROW_PAGES_MAX / pages).min(1 + contents.stock_pages_max / pages);
            let count = u64::from(contents.batch[class]).min(limit);
            contents.batch[class] = (2 * count).min(REFILL_AREAS_MAX) as u8;
            drop(contents);
            if count > 1
                && request.waits()
                && request.align() <= Align::PAGE
                && C::ORDER == Order::SliceByAddress
                && let Some((area, others)) = self.space.take_row(pages, count, self.node)
            {
                self.stock_or_pool(&mut self.lock(), pages, others);
                return Ok(area);
            }
        }
        self.space.take_from_index(request, Some(self.node))
    }

    /// Moves other sizes to the pool until there is room for more pages in the stock.
    fn make_room(&self, contents: &mut Contents, more: u64) {
        let map = &self.space.map;
        let (stock, max) = (&mut contents.stock, contents.stock_pages_max);
        // Checks MG1.
        if stock.pages() + more <= max {
            return;
        }
        let mut pool = self.space.lock_pool(self.node);
        let mut homeless = AreaList::new();
        while stock.pages() + more > max {
            let Some(victim) = stock.next_class(contents.victim).or_else(|| stock.next_class(0)) else {
                break;
            };
            // Half of the list at a time, so that no size loses all it has at once.
            let half = stock.len(victim).div_ceil(2);
            let size = stock.size(victim);
            if let Err(list) = pool.put_list(map, size, stock.take_list(map, victim, half)) {
                homeless.append(map, list);
            }
            contents.batch[victim] = (contents.batch[victim] / 2).max(1);
            contents.victim = victim + 1;
        }
        drop(pool);
        self.cell.tell_cached(contents);
        self.space.to_index(homeless, false, false);
        self.space.note_return();
    }

    /// Puts a freed area into the round, if it is of this node.
    #[inline(always)]
    fn keep(&mut self, freed: Loose<Unflushed>) {
        if freed.word.owner() != Some(self.node) || C::ORDER != Order::SliceByAddress {
            self.send_home(freed);
            return;
        }
        let mut contents = self.lock();
        match contents.rounds.put(freed, &self.cell.hull) {
            Ok(Amount { pages, .. }) => {
                self.cell.tell_lazy(pages);
                if pages >= contents.round_pages_max {
                    self.end_round(contents);
                }
            }
            Err(freed) => {
                drop(contents);
                self.send_home(freed);
            }
        }
    }

    /// Makes an area lazy in its node that is another node's, or of a size that has no list.
    #[inline(never)]
    fn send_home(&self, freed: Loose<Unflushed>) {
        self.space.make_lazy(freed);
        self.space.after_free(Context::Sleeping);
    }

    /// Seals the round.
    #[cold]
    fn end_round(&self, mut guard: MutexGuard<'_, P::OwnerLock, Contents>) {
        let (space, map) = (self.space, &self.space.map);
        let contents = &mut *guard;
        if contents.rounds.land(&space.landings) {
            // What was asked for by no call in a whole round makes room for this one. A list comes in parts if the machine
            // is told of each area.
            while let Some(next) = contents.rounds.away().next_class(0) {
                let size = contents.rounds.away().size(next);
                let list = contents.rounds.take(map, &space.machine, next);
                self.stock_or_pool(contents, size, list);
            }
        }
        space.lazied.0.fetch_add(contents.rounds.open().pages(), Ordering::Relaxed);
        contents.rounds.seal(map, &mut space.lock_lazy(space.node(self.node)), contents.stock_pages_max);
        self.cell.tell_round(contents);
        drop(guard);
        space.after_round();
        let stock = space.stock_share();
        let mut contents = self.lock();
        contents.round_pages_max = space.round_share(stock);
        contents.stock_pages_max = stock;
        // The share may be smaller than it was.
        self.make_room(&mut contents, 0);
    }
}

impl<P: Machine + Clone, C: Config> Drop for Magazine<'_, P, C> {
    fn drop(&mut self) {
        self.drain();
        self.space.give_up_cell(self.cell);
    }
}
