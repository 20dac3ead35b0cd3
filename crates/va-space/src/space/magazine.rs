//! A magazine: areas that one caller keeps for himself, so that its pairs touch no shared lock.
//!
//! # Theory
//! Whoever allocates and frees all the time (a CPU, a thread) owns a magazine and calls it instead of the space. What it
//! gives out was flushed; what it takes back is lazy and goes to the space in batches, so that an address still makes the
//! whole round. Pool and lazy list of the node are visited once in many pairs.
//!
//! ```text
//!   node: pool  == up to 64 ==>  magazine: stock ---- alloc ---> busy
//!         lazy  <= up to 64 ===            lazy  <--- free -----
//! ```
//!
//! A refill brings one area of a size at first, twice as many each time, so that a size in steady use is served from the
//! stock and a hundred sizes in turn do not push each other out. Where the stock is full, other sizes give way: their
//! areas go back to the pool in the same hold of its lock.
//!
//! What it holds is lost to others only for a while: a request that fails moves the recall generation, and every magazine
//! hands back all it has at its owner's next call (the failing caller's own at once). Dropping it does the same.
//!
//! # Invariants
//! - **MG1 bounded** the stock holds at most [`STOCK_AREAS_MAX`] areas and [`STOCK_PAGES_MAX`] pages, the lazy list at most
//!   [`LAZY_AREAS_MAX`] areas, and pages up to [`LAZY_PAGES_MAX`] and one area.
//! - **MG2 told** its cell in the space says what it holds, whenever no call is in it.
//!
//! # Locking
//! None for a pair from the stock: one compare-exchange. A refill takes `pool` of its node, a batch of freed areas `lazy`.
//! # Source
//! Our own, after Bonwick's magazines; Linux takes the pool's lock and the busy lock at each call.

use super::{Alone, VmapSpace};
use crate::area::{Area, range_of};
use crate::config::{Config, Order};
use crate::error::{ReleaseError, SpaceError};
use crate::flight::LazyAreas;
use crate::list::{AreaList, Loose, Unflushed};
use crate::pool::{CLASSES, Pool};
use va_base::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use va_base::{Machine, Request, Table, Va, VaRange};

/// Most magazines of a space at a time.
#[cfg(not(loom))]
pub const MAGAZINES_MAX: usize = 256;
/// Most magazines of a space at a time, in a model.
#[cfg(loom)]
pub const MAGAZINES_MAX: usize = 2;

/// Flushed areas that a magazine holds at most.
const STOCK_AREAS_MAX: u64 = 16384;
/// Pages in them: 16 MiB.
const STOCK_PAGES_MAX: u64 = 16384;
/// Areas that one refill brings at most, and pages.
const REFILL_AREAS_MAX: u64 = 64;
const REFILL_PAGES_MAX: u64 = 2048;
/// Freed areas that a magazine holds at most, and pages.
const LAZY_AREAS_MAX: u64 = 256;
const LAZY_PAGES_MAX: u64 = 8192;
const _: () = assert!(REFILL_AREAS_MAX <= STOCK_AREAS_MAX && REFILL_PAGES_MAX <= STOCK_PAGES_MAX);

/// What one magazine holds; written by its owner alone, with plain stores.
struct Cell {
    taken: AtomicBool,
    cached_areas: AtomicU64,
    cached_pages: AtomicU64,
    lazy_areas: AtomicU64,
    lazy_pages: AtomicU64,
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
    lazy: LazyAreas,
    recall: u64,
    /// What the next refill of each list brings: doubled by each, halved when the list gives way to others.
    batch: [u8; CLASSES],
    /// The list that gives way next.
    victim: usize,
    /// Pages at which it hands the lazy ones over.
    lazy_pages_max: u64,
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
            lazy: LazyAreas::new(),
            recall: self.recall.0.load(Ordering::Relaxed),
            batch: [1; CLASSES],
            victim: 0,
            lazy_pages_max: self.share(),
        })
    }

    /// Lazy pages that each magazine may hold: together they hold at most half of what may be lazy at all.
    fn share(&self) -> u64 {
        let used = self.cells.get().map_or(0, |cells| cells.used.load(Ordering::Relaxed));
        (self.lazy_max().get() / (2 * used.max(1)) as u64).min(LAZY_PAGES_MAX)
    }

    /// What all magazines hold. Cost: four loads for each that there was at a time.
    pub(super) fn held(&self) -> Held {
        let mut held = Held::default();
        let Some(cells) = self.cells.get() else { return held };
        for Alone(cell) in cells.cells.iter().take(cells.used.load(Ordering::Relaxed)) {
            held.cached_areas += cell.cached_areas.load(Ordering::Relaxed);
            held.cached_pages += cell.cached_pages.load(Ordering::Relaxed);
            held.lazy_areas += cell.lazy_areas.load(Ordering::Relaxed);
            held.lazy_pages += cell.lazy_pages.load(Ordering::Relaxed);
        }
        held
    }
}

impl<P: Machine + Clone, C: Config> Magazine<'_, P, C> {
    /// Gives out an area, as [`VmapSpace::alloc`] does.
    ///
    /// # Errors
    /// As there; before a failure, all that the magazine holds was handed back.
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
        self.alloc_further(request)
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
    fn alloc_further(&mut self, request: &Request) -> Result<Area, SpaceError> {
        self.space.stop_if_lost();
        let pages = request.size().get();
        if self.space.is_tagged(request) && pages <= C::POOL_PAGES_MAX.min(STOCK_PAGES_MAX) {
            let brought = self.refill(pages);
            self.tell_cached();
            if brought > 0
                && let Some(area) = self.take(request)
            {
                return Ok(area);
            }
        }
        self.alloc_shared(request)
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

    /// Hands everything back: flushed areas to the index, so that they merge, freed ones to the node.
    ///
    /// # Locks
    /// `free`, `lazy` of the node, one after the other.
    pub fn drain(&mut self) {
        let map = &self.space.map;
        let mut batch = AreaList::new();
        while let Some(class) = self.stock.next_class(0)
            && let Some(area) = self.stock.pop(map, class)
        {
            batch.push_back(map, area);
        }
        self.space.stop_if_lost();
        self.tell_cached();
        if !batch.is_empty() {
            let by_address = C::ORDER != Order::Newest;
            self.space.to_index(batch, by_address, by_address);
            self.space.note_return();
        }
        self.hand_over();
    }

    #[cold]
    fn alloc_shared(&mut self, request: &Request) -> Result<Area, SpaceError> {
        match self.space.alloc(self.node, request) {
            Err(SpaceError::NoSpace { .. })
                if (self.stock.areas() > 0 || !self.lazy.is_empty())
                    && !(C::FAIL_FAST && self.space.is_impossible(request)) =>
            {
                self.drain();
                self.space.alloc(self.node, request)
            }
            done => done,
        }
    }

    #[inline(always)]
    fn answer_recall(&mut self) {
        let recall = self.space.recall.0.load(Ordering::Relaxed);
        if recall != self.recall {
            self.recall = recall;
            self.recalled();
        }
    }

    #[cold]
    fn recalled(&mut self) {
        self.drain();
    }

    /// Moves areas of one size from the node's pool into the stock; returns how many.
    fn refill(&mut self, pages: u64) -> u64 {
        let map = &self.space.map;
        let node = self.space.node(self.node);
        let mut pool = self.space.lock_pool(node);
        let Some(class) = pool.class(pages).filter(|&class| pool.len(class) > 0) else { return 0 };
        let limit = (REFILL_PAGES_MAX / pages).clamp(1, REFILL_AREAS_MAX);
        let mut want = u64::from(self.batch[class]).min(limit).min(pool.len(class));
        self.batch[class] = (2 * want).min(limit) as u8;
        if want == limit && pool.len(class) * pages <= STOCK_PAGES_MAX {
            want = pool.len(class);
        }
        let (mut homeless, mut evicted) = (AreaList::new(), false);
        // Checks MG1.
        while self.stock.areas() + want > STOCK_AREAS_MAX
            || self.stock.pages() + want * pages > STOCK_PAGES_MAX
        {
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
            evicted = true;
        }
        let list = pool.take_list(map, class, want);
        let mut got = list.areas();
        if let Err(list) = self.stock.put_list(map, pages, list) {
            got = 0;
            // No list for one more large size: it stays where it was.
            if let Err(list) = pool.put_list(map, pages, list) {
                homeless.append(map, list);
            }
        }
        drop(pool);
        if evicted || !homeless.is_empty() {
            self.space.to_index(homeless, false, false);
            self.space.note_return();
        }
        got
    }

    /// Keeps a freed area until there are many, if it is of this node.
    #[inline(always)]
    fn keep(&mut self, freed: Loose<Unflushed>) {
        self.answer_recall();
        if freed.word.owner() != Some(self.node) {
            self.send_home(freed);
            return;
        }
        self.lazy.cover(freed.page, freed.end());
        let rest = if C::ORDER == Order::SliceByAddress { self.lazy.sized.put(freed) } else { Err(freed) };
        if let Err(freed) = rest {
            self.lazy.mixed.push_back(&self.space.map, freed);
        }
        if self.lazy.areas() >= LAZY_AREAS_MAX || self.lazy.pages() >= self.lazy_pages_max {
            self.hand_over();
        } else {
            self.tell_lazy();
        }
    }

    /// What is another node's becomes lazy there.
    #[inline(never)]
    fn send_home(&self, freed: Loose<Unflushed>) {
        self.space.make_lazy(freed);
        self.space.after_free();
    }

    #[cold]
    fn hand_over(&mut self) {
        if self.lazy.is_empty() {
            return;
        }
        self.space.lazied.0.fetch_add(self.lazy.pages(), Ordering::Relaxed);
        let node = self.space.node(self.node);
        self.space.lock_lazy(node).absorb(&self.space.map, &mut self.lazy);
        self.tell_lazy();
        self.lazy_pages_max = self.space.share();
        self.space.after_batch();
    }

    /// Keeps MG2 for the stock.
    #[inline(always)]
    fn tell_cached(&self) {
        self.cell.cached_areas.store(self.stock.areas(), Ordering::Relaxed);
        self.cell.cached_pages.store(self.stock.pages(), Ordering::Relaxed);
    }

    /// Keeps MG2 for the lazy list.
    #[inline(always)]
    fn tell_lazy(&self) {
        self.cell.lazy_areas.store(self.lazy.areas(), Ordering::Relaxed);
        self.cell.lazy_pages.store(self.lazy.pages(), Ordering::Relaxed);
    }
}

impl<P: Machine + Clone, C: Config> Drop for Magazine<'_, P, C> {
    fn drop(&mut self) {
        self.drain();
        // Release: whoever takes the cell next finds zeros.
        self.cell.taken.store(false, Ordering::Release);
    }
}
