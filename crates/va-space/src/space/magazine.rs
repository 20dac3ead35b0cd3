//! A magazine: areas that one caller keeps for himself, so that its pairs touch no shared lock.
//!
//! # Theory
//! Whoever allocates and frees all the time (a CPU, a thread) owns a magazine and calls it instead of the space. What it
//! gives out was flushed; what it takes back is lazy and counts against the threshold of all. But an area need not leave
//! the magazine to be flushed: a **round** of freed areas is sealed with a ticket for the next flight (`flight`), stays where
//! it is, and when that has landed its lists are the stock again, each moved whole when its size is asked for.
//!
//! ```text
//!          +--- landed ---  away  <--- seal: hull, ticket --- round <--- free ---+        node: lazy (hull, counts), pool
//!          v               (sealed)                                              |
//!        stock ------------------------------ alloc -----------------------> busy
//! ```
//!
//! So a steady load turns in its magazine and takes a lock once a round. What the stock lacks comes from the node's pool (one
//! area of a size at first, twice as many each time) or from the index; what it has too much of goes to the pool.
//!
//! What it holds is lost to others only for a while: a request that fails moves the recall generation, and every magazine
//! hands back all it has at its owner's next call (the failing caller's own at once). Dropping it does the same.
//!
//! # Invariants
//! - **MG1 bounded** the stock is at most [`STOCK_PAGES_MAX`] pages, what is away at most [`AWAY_PAGES_MAX`], a round at most
//!   [`ROUND_PAGES_MAX`] and one area.
//! - **MG2 told** its cell in the space says what it holds, whenever no call is in it.
//!
//! # Locking
//! None for a pair from the stock: one compare-exchange. A refill takes `pool` of its node, the end of a round `lazy`.
//! Handing everything back takes `purge` before, if something is away; a recall tries that, and does not wait.
//! # Source
//! Our own, after Bonwick's magazines and epochs; Linux takes the pool's lock and the busy lock at each call.

use super::purge::PurgeState;
use super::{Alone, VmapSpace};
use crate::area::{Area, range_of};
use crate::config::{Config, Order};
use crate::error::{ReleaseError, SpaceError};
use crate::flight::{Amount, Rounds};
use crate::list::{AreaList, Flushed, Loose, Unflushed};
use crate::pool::{CLASSES, EXACT_PAGES_MAX, Pool};
use va_base::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use va_base::{Align, LockClass, Machine, Request, Table, Va, VaRange};

/// Most magazines of a space at a time.
#[cfg(not(loom))]
pub const MAGAZINES_MAX: usize = 256;
/// Most magazines of a space at a time, in a model.
#[cfg(loom)]
pub const MAGAZINES_MAX: usize = 2;

/// Flushed pages that the stock of a magazine holds at most: 256 MiB of addresses.
const STOCK_PAGES_MAX: u64 = 1 << 16;
/// Pages that wait for a flight in it at most, or have landed since.
const AWAY_PAGES_MAX: u64 = 1 << 16;
/// Freed pages at which it ends a round.
const ROUND_PAGES_MAX: u64 = 1 << 15;
/// Areas that one refill brings at most, and pages.
const REFILL_AREAS_MAX: u64 = 64;
const REFILL_PAGES_MAX: u64 = 2048;
/// Pages that a row from the index has at most.
const ROW_PAGES_MAX: u64 = 256;
const _: () = assert!(ROW_PAGES_MAX / 2 <= EXACT_PAGES_MAX);
const _: () = assert!(REFILL_PAGES_MAX <= STOCK_PAGES_MAX && AWAY_PAGES_MAX <= STOCK_PAGES_MAX);
/// With more magazines than this, what others have not sealed is not looked at when a round ends.
const LOOKED_AT_MAX: usize = 16;

/// What one magazine holds; written by its owner alone, with plain stores.
struct Cell {
    taken: AtomicBool,
    cached_areas: AtomicU64,
    cached_pages: AtomicU64,
    lazy_areas: AtomicU64,
    lazy_pages: AtomicU64,
    /// What is away: cached if the flight has landed, else lazy, and counted in the space.
    away_areas: AtomicU64,
    away_pages: AtomicU64,
    ticket: AtomicU64,
}

/// The cells of all magazines that a space can have.
pub(super) struct Cells {
    cells: [Alone<Cell>; MAGAZINES_MAX],
    /// Cells that were ever taken: the lowest free one is taken first, so these are all that may hold something.
    used: AtomicUsize,
}

impl Table for Cells {
    fn empty() -> Self {
        let cell = || Cell {
            taken: AtomicBool::new(false),
            cached_areas: AtomicU64::new(0),
            cached_pages: AtomicU64::new(0),
            lazy_areas: AtomicU64::new(0),
            lazy_pages: AtomicU64::new(0),
            away_areas: AtomicU64::new(0),
            away_pages: AtomicU64::new(0),
            ticket: AtomicU64::new(0),
        };
        Self { cells: core::array::from_fn(|_| Alone(cell())), used: AtomicUsize::new(0) }
    }
}

/// What all magazines hold together.
#[derive(Clone, Copy, Default)]
pub(super) struct Held {
    pub(super) cached_areas: u64,
    pub(super) cached_pages: u64,
    pub(super) lazy_areas: u64,
    pub(super) lazy_pages: u64,
    /// What is sealed, and has not landed.
    pub(super) sealed: Amount,
}

/// A cache of areas that its owner passes by `&mut`; see the module.
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
/// # Ok::<(), va_space::SpaceError>(())
/// ```
pub struct Magazine<'s, P: Machine + Clone, C: Config> {
    space: &'s VmapSpace<P, C>,
    cell: &'static Cell,
    node: u32,
    stock: Pool,
    rounds: Rounds,
    recall: u64,
    /// What the next refill of each list brings: doubled by each, halved when the list gives way to others.
    batch: [u8; CLASSES],
    /// The list that gives way next.
    victim: usize,
    /// Pages at which the round may end.
    round_pages_max: u64,
}

impl<P: Machine + Clone, C: Config> VmapSpace<P, C> {
    /// Creates a magazine for whoever calls for CPU `cpu`.
    ///
    /// # Errors
    /// [`SpaceError::NoMagazine`] if [`MAGAZINES_MAX`] are out, [`SpaceError::NoTable`] if the machine refuses the one that
    /// all of them need.
    pub fn magazine(&self, cpu: u32) -> Result<Magazine<'_, P, C>, SpaceError> {
        let cells = match self.cells.get() {
            Some(cells) => cells,
            None => {
                let lent = self.machine.lend_table::<Cells>().ok_or(SpaceError::NoTable)?;
                if self.cells.set(lent).is_err() {
                    self.machine.take_back_table(lent);
                }
                self.cells.get().ok_or(SpaceError::NoTable)?
            }
        };
        // Acquire pairs with the release of whoever gave the cell back: its numbers are all 0.
        let free = |cell: &&Alone<Cell>| {
            cell.0.taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
        };
        let at = cells
            .cells
            .iter()
            .position(|cell| free(&cell))
            .ok_or(SpaceError::NoMagazine { limit: MAGAZINES_MAX })?;
        cells.used.fetch_max(at + 1, Ordering::Relaxed);
        let cell = &cells.cells[at];
        Ok(Magazine {
            space: self,
            cell: &cell.0,
            node: cpu % self.nodes.nodes(),
            stock: Pool::new(),
            rounds: Rounds::new(),
            recall: self.recall.0.load(Ordering::Relaxed),
            batch: [1; CLASSES],
            victim: 0,
            round_pages_max: self.share(),
        })
    }

    /// How many magazines there were at a time.
    fn magazines(&self) -> usize {
        self.cells.get().map_or(0, |cells| cells.used.load(Ordering::Relaxed))
    }

    /// Pages at which a round ends. One magazine alone may hold all that may be lazy; many hold half of it together.
    fn share(&self) -> u64 {
        let max = self.lazy_max().get();
        let share = match self.magazines() {
            0 | 1 => (max + 1).saturating_sub(self.lazy_pages().get()).max(max / 16),
            many => max / (2 * many) as u64,
        };
        share.clamp(1, ROUND_PAGES_MAX)
    }

    /// Pages that few magazines have not sealed; of many nobody looks, they hold at most half of what may be lazy.
    pub(super) fn unsealed(&self) -> u64 {
        if self.magazines() <= LOOKED_AT_MAX { self.held().lazy_pages } else { 0 }
    }

    /// What all magazines hold. Cost: seven loads for each that there was at a time.
    pub(super) fn held(&self) -> Held {
        let mut held = Held::default();
        let Some(cells) = self.cells.get() else { return held };
        for Alone(cell) in cells.cells.iter().take(cells.used.load(Ordering::Relaxed)) {
            held.cached_areas += cell.cached_areas.load(Ordering::Relaxed);
            held.cached_pages += cell.cached_pages.load(Ordering::Relaxed);
            held.lazy_areas += cell.lazy_areas.load(Ordering::Relaxed);
            held.lazy_pages += cell.lazy_pages.load(Ordering::Relaxed);
            let areas = cell.away_areas.load(Ordering::Relaxed);
            let pages = cell.away_pages.load(Ordering::Relaxed);
            if self.landings.have_reached(cell.ticket.load(Ordering::Relaxed)) {
                held.cached_areas += areas;
                held.cached_pages += pages;
            } else {
                held.sealed.add(Amount { areas, pages });
            }
        }
        held
    }
}

impl<P: Machine + Clone, C: Config> Magazine<'_, P, C> {
    /// Gives out an area, as [`VmapSpace::alloc`] does.
    ///
    /// # Errors
    /// As there; before a failure, all that the magazine holds was handed back to the space.
    /// # Locks
    /// None from the stock; `pool` of the node for a refill; else as there.
    #[inline(always)]
    pub fn alloc(&mut self, request: &Request) -> Result<Area, SpaceError> {
        self.answer_recall();
        // A size above what the stock may hold is in no list of it.
        if self.space.is_tagged(request)
            && let Some(area) = self.take(request)
        {
            return Ok(area);
        }
        // By value, so that the usual path needs no request in memory.
        self.alloc_further(*request)
    }

    /// An area from the stock.
    #[inline(always)]
    fn take(&mut self, request: &Request) -> Option<Area> {
        let map = &self.space.map;
        let area = self.stock.take(map, request.size().get(), request.align(), C::POOL_TRIES)?;
        self.tell_cached();
        Some(self.space.publish(area, Some(self.node)))
    }

    #[inline(never)]
    fn alloc_further(&mut self, request: Request) -> Result<Area, SpaceError> {
        let request = &request;
        self.space.stop_if_lost();
        let pages = request.size().get();
        // Of others the space finds out, when the index has nothing.
        if (pages > EXACT_PAGES_MAX || request.window().is_some())
            && let Some(error) = self.space.impossible(request)
        {
            return Err(error);
        }
        let got = match self.space.owner_for(self.node, request) {
            Some(_) if pages <= C::POOL_PAGES_MAX.min(STOCK_PAGES_MAX) => {
                if (self.bring_landed(pages) || self.refill(pages))
                    && let Some(area) = self.take(request)
                {
                    return Ok(area);
                }
                self.space.stop_if_lost();
                self.take_from_index(request)
            }
            owner => self.space.take_from_index(request, owner),
        };
        match got {
            Err(SpaceError::NoSpace { .. }) => self.alloc_hard(request),
            done => done,
        }
    }

    /// When the index has nothing: what the magazine holds goes to the space, which does what it can.
    #[inline(never)]
    fn alloc_hard(&mut self, request: &Request) -> Result<Area, SpaceError> {
        if let Some(error) = self.space.impossible(request) {
            return Err(error);
        }
        if self.stock.areas() + self.rounds.open().areas() + self.rounds.away().areas() > 0 {
            self.drain();
            return self.space.alloc(self.node, request);
        }
        self.space.overflow(request, self.space.owner_for(self.node, request))
    }

    /// Takes an area back, as [`VmapSpace::free`] does.
    ///
    /// # Errors
    /// As there.
    /// # Locks
    /// None, or `lazy` of one node once in many calls; then as there.
    #[inline]
    pub fn free(&mut self, area: Area) -> Result<(), ReleaseError> {
        let freed = self.space.claim(&area)?;
        self.keep(freed);
        Ok(())
    }

    /// Takes back the area that starts at `at`, as [`VmapSpace::free_at`] does.
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

    /// Hands everything back to the node: flushed areas to its pool, freed ones to its lazy areas.
    ///
    /// # Locks
    /// `pool` and `lazy` of the node, one after the other; `purge` before, if something waits for a flight.
    pub fn drain(&mut self) {
        if !self.rounds.land(&self.space.landings) {
            let mut state = self.space.lock_purge();
            self.unseal(&mut state);
        }
        self.give_all();
    }

    /// Gives what is away to the node, or to its flight if that is in the air. Nothing lands or boards meanwhile.
    fn unseal(&mut self, state: &mut PurgeState) {
        if self.rounds.land(&self.space.landings) {
            return;
        }
        let node = self.space.node(self.node);
        let boarded = self.rounds.unseal(&self.space.map, &mut self.space.lock_lazy(node));
        if boarded && let Some(flight) = state.flight() {
            self.rounds.board(&self.space.map, flight, &mut node.board.lock());
        }
    }

    /// Gives all that does not wait for a flight to the node.
    fn give_all(&mut self) {
        let map = &self.space.map;
        let landed = self.rounds.land(&self.space.landings);
        if self.stock.areas() > 0 || landed && self.rounds.away().areas() > 0 {
            let mut homeless = AreaList::new();
            let mut pool = self.space.lock_pool(self.node);
            let mut give = |size, list| {
                if let Err(list) = pool.put_list(map, size, list) {
                    homeless.append(map, list);
                }
            };
            while landed && let Some(class) = self.rounds.away().next_class(0) {
                give(self.rounds.away().size(class), self.rounds.take(map, class));
            }
            while let Some(class) = self.stock.next_class(0) {
                give(self.stock.size(class), self.stock.take_list(map, class, u64::MAX));
            }
            drop(pool);
            self.space.stop_if_lost();
            let by_address = C::ORDER != Order::Newest;
            self.space.to_index(homeless, by_address, by_address);
            self.space.note_return();
        }
        self.space.stop_if_lost();
        self.tell_cached();
        self.tell_away();
        self.hand_over();
    }

    #[inline(always)]
    fn answer_recall(&mut self) {
        let recall = self.space.recall.0.load(Ordering::Relaxed);
        if recall != self.recall {
            self.recalled(recall);
        }
    }

    /// Hands everything back, but without waiting for a lock that may be held for long: a free comes here, too. What is away
    /// goes with the next call if it cannot go now.
    #[cold]
    fn recalled(&mut self, recall: u64) {
        let mut all = self.rounds.land(&self.space.landings);
        if !all {
            self.space.machine.locking(LockClass::Purge);
            if let Some(mut state) = self.space.purge.try_lock() {
                self.unseal(&mut state);
                all = true;
            }
        }
        self.give_all();
        if all {
            self.recall = recall;
        }
    }

    /// Moves what has landed of one size into the stock, which has none that suits; tells whether there was any.
    fn bring_landed(&mut self, pages: u64) -> bool {
        if self.rounds.away().areas() == 0 || !self.rounds.land(&self.space.landings) {
            return false;
        }
        let Some(class) = self.rounds.away().class(pages).filter(|&class| self.rounds.away().len(class) > 0)
        else {
            return false;
        };
        let list = self.rounds.take(&self.space.map, class);
        let brought = self.stock_or_pool(pages, list);
        self.tell_away();
        brought
    }

    /// Puts areas of one size into the stock, others give way; if it has no list for them, into the pool or the index. Tells whether it had.
    fn stock_or_pool(&mut self, pages: u64, list: AreaList<Flushed>) -> bool {
        let map = &self.space.map;
        self.make_room(list.pages());
        let rest = self.stock.put_list(map, pages, list);
        self.tell_cached();
        let Err(list) = rest else { return true };
        let rest = self.space.lock_pool(self.node).put_list(map, pages, list);
        if let Err(list) = rest {
            self.space.to_index(list, false, false);
        }
        self.space.note_return();
        false
    }

    /// Moves areas of one size from the node's pool into the stock; tells whether there were any.
    fn refill(&mut self, pages: u64) -> bool {
        let map = &self.space.map;
        let Some(mut pool) = self.space.lock_filled_pool(self.node) else { return false };
        let Some(class) = pool.class(pages).filter(|&class| pool.len(class) > 0) else { return false };
        let limit = (REFILL_PAGES_MAX / pages).clamp(1, REFILL_AREAS_MAX);
        let mut want = u64::from(self.batch[class]).min(limit).min(pool.len(class));
        self.batch[class] = (2 * want).min(limit) as u8;
        if want == limit && pool.len(class) * pages <= STOCK_PAGES_MAX / 4 {
            want = pool.len(class);
        }
        let list = pool.take_list(map, class, want);
        drop(pool);
        self.stock_or_pool(pages, list)
    }

    /// An area from the index, and a row of others like it for the stock if this size was asked for before.
    fn take_from_index(&mut self, request: &Request) -> Result<Area, SpaceError> {
        let pages = request.size().get();
        if let Some(class) = Some(pages as usize - 1).filter(|_| pages <= ROW_PAGES_MAX / 2) {
            let count = u64::from(self.batch[class]).min(ROW_PAGES_MAX / pages);
            self.batch[class] = (2 * count).min(REFILL_AREAS_MAX) as u8;
            if count > 1
                && request.align() <= Align::PAGE
                && C::ORDER == Order::SliceByAddress
                && let Some((area, others)) = self.space.take_row(pages, count, self.node)
            {
                self.stock_or_pool(pages, others);
                return Ok(area);
            }
        }
        self.space.take_from_index(request, Some(self.node))
    }

    /// Other sizes give way until there is room for more pages in the stock.
    fn make_room(&mut self, more: u64) {
        let map = &self.space.map;
        // Checks MG1.
        if self.stock.pages() + more <= STOCK_PAGES_MAX {
            return;
        }
        let mut pool = self.space.lock_pool(self.node);
        let mut homeless = AreaList::new();
        while self.stock.pages() + more > STOCK_PAGES_MAX {
            let Some(victim) = self.stock.next_class(self.victim).or_else(|| self.stock.next_class(0)) else {
                break;
            };
            // Half of the list at a time, so that no size loses all it has at once.
            let half = self.stock.len(victim).div_ceil(2);
            let size = self.stock.size(victim);
            if let Err(list) = pool.put_list(map, size, self.stock.take_list(map, victim, half)) {
                homeless.append(map, list);
            }
            self.batch[victim] = (self.batch[victim] / 2).max(1);
            self.victim = victim + 1;
        }
        drop(pool);
        self.tell_cached();
        self.space.to_index(homeless, false, false);
        self.space.note_return();
    }

    /// Keeps a freed area until there are many, if it is of this node.
    #[inline(always)]
    fn keep(&mut self, freed: Loose<Unflushed>) {
        self.answer_recall();
        if freed.word.owner() != Some(self.node) || C::ORDER != Order::SliceByAddress {
            self.send_home(freed);
            return;
        }
        match self.rounds.put(freed) {
            Ok(Amount { areas, pages }) => {
                self.cell.lazy_areas.store(areas, Ordering::Relaxed);
                self.cell.lazy_pages.store(pages, Ordering::Relaxed);
                if pages >= self.round_pages_max {
                    self.end_round();
                }
            }
            Err(freed) => self.send_home(freed),
        }
    }

    /// What is another node's, or of a size that has no list, becomes lazy in its node.
    #[inline(never)]
    fn send_home(&self, freed: Loose<Unflushed>) {
        self.space.make_lazy(freed);
        self.space.after_free();
    }

    /// Seals the round.
    #[cold]
    fn end_round(&mut self) {
        let (space, map) = (self.space, &self.space.map);
        if self.rounds.land(&space.landings) {
            // What nobody asked for in a whole round makes room for this one.
            let mut class = 0;
            while let Some(next) = self.rounds.away().next_class(class) {
                let (size, list) = (self.rounds.away().size(next), self.rounds.take(map, next));
                self.stock_or_pool(size, list);
                class = next + 1;
            }
        }
        space.lazied.0.fetch_add(self.rounds.open().pages(), Ordering::Relaxed);
        self.rounds.seal(map, &mut space.lock_lazy(space.node(self.node)), AWAY_PAGES_MAX);
        self.round_ended();
    }

    /// Puts the round into the lists of the node.
    fn hand_over(&mut self) {
        let (space, map) = (self.space, &self.space.map);
        let pages = self.rounds.open().pages();
        if pages > 0 {
            space.lazied.0.fetch_add(pages, Ordering::Relaxed);
            self.rounds.hand_over(map, &mut space.lock_lazy(space.node(self.node)));
            self.round_ended();
        }
    }

    fn round_ended(&mut self) {
        self.tell_lazy();
        self.tell_away();
        self.space.after_round();
        self.round_pages_max = self.space.share();
    }

    /// Keeps MG2 for the stock.
    #[inline(always)]
    fn tell_cached(&self) {
        self.cell.cached_areas.store(self.stock.areas(), Ordering::Relaxed);
        self.cell.cached_pages.store(self.stock.pages(), Ordering::Relaxed);
    }

    /// Keeps MG2 for the round.
    fn tell_lazy(&self) {
        self.cell.lazy_areas.store(self.rounds.open().areas(), Ordering::Relaxed);
        self.cell.lazy_pages.store(self.rounds.open().pages(), Ordering::Relaxed);
    }

    /// Keeps MG2 for what is away.
    fn tell_away(&self) {
        self.cell.away_areas.store(self.rounds.away().areas(), Ordering::Relaxed);
        self.cell.away_pages.store(self.rounds.away().pages(), Ordering::Relaxed);
        self.cell.ticket.store(self.rounds.ticket().number(), Ordering::Relaxed);
    }
}

impl<P: Machine + Clone, C: Config> Drop for Magazine<'_, P, C> {
    fn drop(&mut self) {
        self.drain();
        // Release: whoever takes the cell next finds zeros.
        self.cell.taken.store(false, Ordering::Release);
    }
}
