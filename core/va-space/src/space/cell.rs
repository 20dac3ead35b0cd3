//! The memory of magazines, and their drain by any thread.
//!
//! # Theory
//! A magazine's areas are in a **cell**: memory from the machine, behind a lock that its owner takes twice a pair
//! ([`Machine::OwnerLock`]). Any other thread that needs the areas of an idle magazine takes that lock by `try_lock`.
//! It moves all areas to the node: flushed ones to the pool, freed ones to the lazy areas. So no request waits for a
//! sleeping owner. If an owner is in the middle of a call, `try_lock` fails; the other thread continues and tries
//! again.
//!
//! A magazine takes a free cell, or the machine allocates one ([`live`](super::live)). So memory follows the most
//! magazines that there were at a time, without a limit and without a table that fills. The memory of a cell remains
//! until the space ends, since other threads read cells without a lock.
//!
//! # Bounds
//! A magazine has a share of an eighth of the default window three times: for its cache, for sealed areas and for its
//! round. The eighth is divided by the number of magazines, so a share shrinks when a magazine is added. Its owner
//! follows at its next round. For idle ones the adding thread compares sixteen others with the new share, in turn, and
//! drains those that exceed it. So each was compared since there were a sixteenth fewer magazines. All together hold
//! at most two fifths of the window, one area each, and what owners hold that are in a call then.
//!
//! # Invariants
//! - **MG1 bounded** the cache is at most its share and [`CACHE_PAGES_MAX`] pages, or one area. A round is at most its
//!   share, [`ROUND_PAGES_MAX`] and one area. Both may be exceeded while the next free is due to run a step of `round`.
//! - **MG2 published** the counts of a cell equal the pages that it holds, whenever no thread holds its lock.
//!
//! # Locking
//! ```text
//!   purge  >  a cell (Owner)  >  { pool of a node | lazy of a node | free | another cell, by try_lock }
//! ```
//! An owner waits for its cell's lock with no lock held, or with `purge` when it drains; any other thread only tries it.
//! Under it no memory is requested from the machine.

use super::VmapSpace;
use super::covered::Covered;
use super::drain::ELSEWHERE;
use super::live::{COMPARED, Place, Placed};
use super::purge::PurgeState;
use crate::config::Config;
use crate::flush_batch::{Amount, BatchNumber, Hull, Rounds};
use crate::list::AreaList;
use crate::pool::{CLASSES, Pool};
use va_base::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use va_base::sync::{AtomicRef, Mutex, MutexGuard, RawMutex};
use va_base::{InvariantViolation, LockClass, Machine, Pages, Table, Va};

/// Flushed pages that the cache of a magazine holds at most, whatever its share: 256 MiB of addresses.
pub(super) const CACHE_PAGES_MAX: u64 = 1 << 16;
/// Freed pages at which it ends a round, whatever its share.
pub(super) const ROUND_PAGES_MAX: u64 = 1 << 15;
/// The divisor of the default window for the share of all magazines, in cache, sealed areas and round each.
const SHARES: u64 = 8;

/// The areas of one magazine.
#[repr(C)]
pub(super) struct Contents {
    /// Pages at which the round may end.
    pub(super) round_pages_max: u64,
    /// Pages of the round at which a free runs a step (`round`): those at which it ends, or 0 for the next free.
    pub(super) step_pages: u64,
    /// Pages that the cache may hold, and the sealed areas.
    pub(super) cache_pages_max: u64,
    /// The list that makes room next.
    pub(super) victim: usize,
    /// The round is being sealed.
    pub(super) ending: bool,
    pub(super) cache: Pool,
    pub(super) rounds: Rounds,
    /// Areas that the next refill of each list adds: doubled by each, halved when the list makes room for others.
    pub(super) refill_areas: [u8; CLASSES],
    /// Binary logarithm of the pages to which the last request for an area of the index was aligned, for each list. A
    /// row is for alignments that repeat.
    pub(super) row_aligns: [u8; CLASSES],
}

impl Contents {
    /// Returns all zeros, like an empty table; `take_cell` writes the initial values of a magazine.
    const fn new() -> Self {
        Self {
            cache: Pool::new(),
            rounds: Rounds::new(),
            refill_areas: [0; CLASSES],
            row_aligns: [0; CLASSES],
            victim: 0,
            round_pages_max: 0,
            step_pages: 0,
            ending: false,
            cache_pages_max: 0,
        }
    }

    /// Returns the list of the cache for areas of `pages`, whose numbers begin anew if it was of another size.
    pub(super) fn class(&mut self, pages: u64) -> Option<usize> {
        let (class, is_new) = self.cache.class_or_new(pages)?;
        if is_new {
            (self.refill_areas[class], self.row_aligns[class]) = (1, 0);
        }
        Some(class)
    }

    /// Continues a round of which nothing is sealed. The next free ends it if it exceeds a share that became smaller.
    pub(super) fn begin_round(&mut self) {
        let due = self.rounds.open().pages() >= self.round_pages_max;
        (self.ending, self.step_pages) = (false, if due { 0 } else { self.round_pages_max });
    }

    fn is_empty(&self) -> bool {
        self.cache.areas() + self.rounds.open().areas() + self.rounds.sealed().areas() == 0
    }
}

/// The memory of one magazine after another. It remains until the space ends.
// In this order what each call writes is in few cache lines.
#[repr(C, align(64))]
pub(super) struct Cell<R: RawMutex + 'static> {
    /// The CPU that the magazine was created for. Protocol PR-HINT.
    cpu: AtomicU32,
    // Published under the lock, with release after the areas are elsewhere; read without it, with acquire.
    /// Pages of the cache. Protocol PR-FAIL.
    cached_pages: AtomicU64,
    /// Pages of the open round. Protocol PR-FAIL. Protocol PR-HULL.
    pub(super) lazy_pages: AtomicU64,
    /// Sealed pages: cached if their batch is completed, else lazy, and counted in the space. Protocol PR-FAIL.
    sealed_pages: AtomicU64,
    /// The batch that the sealed pages wait for. Protocol PR-FAIL.
    pub(super) batch_number: AtomicU64,
    /// The hull of the open round.
    pub(super) hull: Hull,
    /// The place where the cell is. Under `free`. Protocol PR-LOCK.
    at: AtomicRef<Place<Self>>,
    contents: Mutex<R, Contents>,
    pub(super) covered: Covered,
    /// The place that is in the memory of the cell.
    place: Place<Self>,
    /// The place at which the owner's next look at others begins, or none for the top. Protocol PR-LOCK.
    pub(super) next_looked_at: AtomicRef<Place<Self>>,
}

impl<R: RawMutex + Send + Sync + 'static> Table for Cell<R> {
    va_base::empty_table! {
        Self {
            contents: Mutex::new(Contents::new()),
            cpu: AtomicU32::new(0),
            cached_pages: AtomicU64::new(0),
            lazy_pages: AtomicU64::new(0),
            sealed_pages: AtomicU64::new(0),
            batch_number: AtomicU64::new(0),
            hull: Hull::new(),
            at: AtomicRef::new(),
            covered: Covered::new(),
            place: Place::new(),
            next_looked_at: AtomicRef::new(),
        }
    }
}

impl<R: RawMutex + Send + Sync + 'static> Placed for Cell<R> {
    fn at(&self) -> &AtomicRef<Place<Self>> {
        &self.at
    }

    fn place(&self) -> &Place<Self> {
        &self.place
    }
}

impl<R: RawMutex + 'static> Cell<R> {
    /// Waits for the lock. Only the owner calls this.
    #[inline(always)]
    pub(super) fn lock(&self) -> MutexGuard<'_, R, Contents> {
        self.contents.lock()
    }

    /// Takes the lock if it is free, for any other thread.
    pub(super) fn try_lock(&self) -> Option<MutexGuard<'_, R, Contents>> {
        self.contents.try_lock()
    }

    /// Publishes the pages of the cache.
    #[inline(always)]
    pub(super) fn publish_cached(&self, contents: &Contents) {
        self.cached_pages.store(contents.cache.pages(), Ordering::Release);
    }

    /// Publishes the pages of the open round.
    #[inline(always)]
    pub(super) fn publish_lazy(&self, pages: u64) {
        // Release pairs with `uncovered`: a purge that counts a free sees the hull, and what was done before the free.
        self.lazy_pages.store(pages, Ordering::Release);
    }

    /// Publishes the sealed pages, and the batch that they wait for.
    pub(super) fn publish_sealed(&self, contents: &Contents) {
        self.sealed_pages.store(contents.rounds.sealed().pages(), Ordering::Release);
        self.batch_number.store(contents.rounds.batch_number().get(), Ordering::Release);
    }

    /// Publishes all counts, after all or some of a round was sealed. The node covers the hull of what was sealed.
    #[inline(always)]
    pub(super) fn publish_round(&self, contents: &Contents) {
        if contents.rounds.open().areas() == 0 {
            self.hull.reset();
        }
        self.publish_cached(contents);
        self.publish_lazy(contents.rounds.open().pages());
        self.covered.note_seal();
        self.publish_sealed(contents);
    }

    /// Returns the pages that it holds, read as they move on: lazy, sealed, cached. Each call of its owner changes them.
    pub(super) fn counts(&self) -> [u64; 3] {
        [&self.lazy_pages, &self.sealed_pages, &self.cached_pages].map(|pages| pages.load(Ordering::Acquire))
    }

    /// Returns the pages that it holds, in any state.
    pub(super) fn pages(&self) -> u64 {
        self.counts().iter().sum()
    }
}

/// A cell that was free, and others to compare with their share.
type Begun<R> = (&'static Cell<R>, [Option<&'static Cell<R>>; COMPARED]);

/// The result of a call that drains magazines.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Drained {
    /// Magazines that held something and are empty now.
    pub magazines: u64,
    /// Pages that they held.
    pub pages: Pages,
    /// Magazines whose owner was in a call at that moment: they were not drained.
    pub busy: u64,
}

impl<P: Machine + Clone, C: Config> VmapSpace<P, C> {
    /// Drains every magazine of every owner, for a machine that is short of memory or of space.
    ///
    /// Flushed areas go to the pools of the nodes, freed ones to the lazy areas. [`shrink`](Self::shrink) or
    /// [`purge`](Self::purge) moves them on.
    ///
    /// # Locks
    /// `purge` and under it that of a magazine, `pool`, `lazy` and `free`, one magazine after another. Waits for no owner.
    /// Cost: six loads for an empty magazine. Another is drained under one hold of its [`Machine::OwnerLock`], taken by
    /// `try_lock`, for which its owner waits then. Lists move as wholes: 4 us for 256 sizes. Areas above 256
    /// pages go to the index if the pool has no list for them: 500 at most, 0.4 us each, a slice under a hold of `free`.
    /// At the end up to 36 slices of a purge are run, if too much is lazy.
    pub fn drain_magazines(&self) -> Drained {
        let drained = self.drain_cells(|_| true);
        self.after_drain();
        drained
    }

    /// Drains the magazines that were created for `cpu`, which goes offline. The magazine itself stays usable.
    ///
    /// # Locks
    /// Those of [`drain_magazines`](Self::drain_magazines).
    pub fn drain_cpu(&self, cpu: u32) -> Drained {
        let drained = self.drain_cells(|cell| cell.cpu.load(Ordering::Relaxed) == cpu);
        self.after_drain();
        drained
    }

    /// Drains the magazines that are `chosen` and hold an area.
    pub(super) fn drain_cells(&self, chosen: impl Fn(&Cell<P::OwnerLock>) -> bool) -> Drained {
        self.drain_each(self.cells.live().filter(|&cell| chosen(cell)))
    }

    /// Drains those of the cells that hold an area.
    fn drain_each(&self, cells: impl Iterator<Item = &'static Cell<P::OwnerLock>>) -> Drained {
        let mut drained = Drained::default();
        for cell in cells {
            let pages = cell.pages();
            if pages == 0 {
                continue;
            }
            if self.empty_cell(cell, || cell.try_lock()) {
                drained.magazines += 1;
                drained.pages = Pages::new(drained.pages.get() + pages);
            } else {
                drained.busy += 1;
            }
        }
        drained
    }

    /// Moves all areas of a cell to its node; `false` if `lock` does not get the lock.
    pub(super) fn empty_cell<'c>(
        &self,
        cell: &'c Cell<P::OwnerLock>,
        lock: impl Fn() -> Option<MutexGuard<'c, P::OwnerLock, Contents>>,
    ) -> bool {
        let locked = || {
            self.machine.locking(LockClass::Owner);
            lock()
        };
        let Some(mut contents) = locked() else { return false };
        if !contents.rounds.poll_completed(&self.completed_batches) {
            // The lock order is the reverse.
            drop(contents);
            let mut state = self.lock_purge();
            let Some(retaken) = locked() else { return false };
            contents = retaken;
            self.unseal(cell, &mut contents, &mut state);
        }
        self.drain_all(cell, &mut contents);
        true
    }

    /// Returns the node whose areas a cell holds.
    pub(super) fn node_of(&self, cell: &Cell<P::OwnerLock>) -> u32 {
        cell.cpu.load(Ordering::Relaxed) % self.nodes.nodes()
    }

    /// Moves the sealed areas to the node, or to their batch if that has taken them. No batch is opened or completed
    /// meanwhile.
    fn unseal(&self, cell: &Cell<P::OwnerLock>, contents: &mut Contents, state: &mut PurgeState) {
        let rounds = &mut contents.rounds;
        if rounds.poll_completed(&self.completed_batches) {
            return;
        }
        let node = self.node(self.node_of(cell));
        let taken = rounds.unseal(&self.map, &mut self.lock_lazy(node));
        if taken && let Some(areas) = state.batch_areas_mut() {
            rounds.join_batch(&self.map, areas, &mut self.lock_batched(node));
        }
    }

    /// Moves all areas that do not wait for a batch to the node.
    fn drain_all(&self, cell: &Cell<P::OwnerLock>, contents: &mut Contents) {
        let (map, node) = (&self.map, self.node_of(cell));
        let Contents { cache, rounds, .. } = contents;
        let completed = rounds.poll_completed(&self.completed_batches);
        if cache.areas() > 0 || completed && rounds.sealed().areas() > 0 {
            let mut homeless = AreaList::new();
            let mut pool = self.lock_pool(node);
            let mut to_pool = |size, list| {
                if let Err(list) = self.pool_list(&mut pool, size, list) {
                    homeless.append(map, list);
                }
            };
            while completed && let Some(class) = rounds.sealed().next_class(0) {
                to_pool(rounds.sealed().size(class), rounds.take(map, &self.machine, class, u64::MAX));
            }
            while let Some(class) = cache.next_class(0) {
                to_pool(cache.size(class), cache.take_all(class));
            }
            drop(pool);
            self.stop_if_lost();
            self.to_index_by_slices(homeless, C::ORDER.sorts_decayed());
            self.note_return();
        }
        self.stop_if_lost();
        let pages = rounds.open().pages();
        if pages > 0 {
            self.lazied.0.fetch_add(pages, Ordering::Relaxed);
            rounds.move_open(map, &mut self.lock_lazy(self.node(node)));
        }
        contents.begin_round();
        cell.publish_round(contents);
    }

    /// Takes a cell for a magazine of `cpu`.
    pub(super) fn take_cell(&self, cpu: u32) -> Option<&'static Cell<P::OwnerLock>> {
        let (cell, others) = self.begin_cell()?;
        cell.cpu.store(cpu, Ordering::Relaxed);
        cell.next_looked_at.store(None);
        let share = self.cache_share();
        // The shares of all others are smaller now: an idle magazine that exceeds its share is drained.
        let others = others.into_iter().flatten();
        if self.drain_each(others.filter(|other| other.pages() > 3 * share)).magazines > 0 {
            self.after_drain();
        }
        let mut contents = cell.lock();
        contents.rounds.begin();
        contents.refill_areas.fill(1);
        contents.row_aligns.fill(0);
        contents.victim = 0;
        (contents.cache_pages_max, contents.round_pages_max) = (share, self.round_share(share));
        contents.begin_round();
        drop(contents);
        Some(cell)
    }

    /// Returns a cell that was free, and others to compare with their share; `None` if the machine has no memory.
    fn begin_cell(&self) -> Option<Begun<P::OwnerLock>> {
        let begin = || Some((self.cells.begin()?, self.cells.next_compared()));
        let heap = self.lock_free();
        let begun = begin();
        drop(heap);
        if begun.is_some() {
            return begun;
        }
        let new = self.machine.alloc_table::<Cell<P::OwnerLock>>()?;
        let _heap = self.lock_free();
        self.cells.add(new);
        begin()
    }

    /// Releases the empty cell of a magazine that ends.
    pub(super) fn release_cell(&self, cell: &'static Cell<P::OwnerLock>) {
        let heap = self.lock_free();
        let ended = self.cells.end(cell);
        drop(heap);
        if !ended {
            self.machine.bug(format_args!("MG3: the cell of a magazine that ends is free"), None);
        }
    }

    /// Returns the number of cells of magazines that a walk meets, for a model.
    #[cfg(all(test, loom))]
    pub(crate) fn live_cells(&self) -> usize {
        self.cells.live().count()
    }

    /// Returns the pages that the cache of a magazine may hold: a share of the default window.
    #[inline(always)]
    pub(super) fn cache_share(&self) -> u64 {
        let start = self.default_window.start().max(self.extent.start());
        let end = self.default_window.end().min(self.extent.end());
        let pages = end.page_floor().saturating_sub(start.page_ceil());
        (pages / (SHARES * self.cells.magazines().max(1) as u64)).clamp(1, CACHE_PAGES_MAX)
    }

    /// Returns the pages at which a round ends, for a share of the window. One magazine alone may hold what may still be
    /// lazy, or, until a worker has purged, all that may be lazy; many hold half of that together.
    #[inline(always)]
    pub(super) fn round_share(&self, cache_share: u64) -> u64 {
        let max = self.lazy_max().get();
        let share = match self.cells.magazines() {
            // Shorter rounds would be sealed more often, and the worker takes all that are sealed by then.
            0 | 1 if self.drainer.load(Ordering::Relaxed) == ELSEWHERE => max.saturating_add(1),
            0 | 1 => max.saturating_add(1).saturating_sub(self.lazy_pages().get()).max(max / 16),
            many => max / (2 * many) as u64,
        };
        share.clamp(1, ROUND_PAGES_MAX.min(cache_share))
    }

    /// Checks MG1 to MG3, and returns the amounts: cached, lazy and sealed. No owner is in a call.
    pub(super) fn check_cells(&self) -> Result<[Amount; 3], InvariantViolation> {
        let [mut cached, mut lazy, mut sealed] = [Amount::NONE; 3];
        self.cells.check_places()?;
        for (cell, lives) in self.cells.each() {
            let Some(contents) = cell.try_lock() else { continue };
            let Contents { cache, rounds, cache_pages_max, round_pages_max, .. } = &*contents;
            cache.validate(&self.map)?;
            let broken =
                |rule, want, got| Err(InvariantViolation { rule, at: Va::ZERO, expected: want, actual: got });
            let due = contents.step_pages == 0;
            if cache.pages() > *cache_pages_max && cache.areas() > 1 && !due {
                return broken("MG1", *cache_pages_max, cache.pages());
            }
            if rounds.open().pages() >= *round_pages_max && !contents.is_empty() && !due {
                return broken("MG1", *round_pages_max, rounds.open().pages());
            }
            let exact = [rounds.open().pages(), rounds.sealed().pages(), cache.pages()];
            let published = cell.counts();
            if exact != published || !(lives || contents.is_empty()) {
                return broken("MG2", exact.iter().sum(), published.iter().sum());
            }
            cached.add(Amount { areas: cache.areas(), pages: cache.pages() });
            lazy.add(Amount { areas: rounds.open().areas(), pages: rounds.open().pages() });
            let earlier = Amount { areas: rounds.sealed().areas(), pages: rounds.sealed().pages() };
            let completed = rounds.batch_number() == BatchNumber::NONE
                || self.completed_batches.have_reached(rounds.batch_number().get());
            if completed { cached.add(earlier) } else { sealed.add(earlier) }
        }
        Ok([cached, lazy, sealed])
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::config::Standard;
    use crate::testing::TestMachine;
    use va_base::{Request, VaRange};

    type Space = VmapSpace<&'static TestMachine, Standard>;

    /// Returns the rule that is named after `spoil`, in a space with one magazine, which has areas of two sizes in its
    /// cache and its round.
    fn broken(spoil: impl FnOnce(&Cell<parking_lot::RawMutex>)) -> &'static str {
        broken_in(|_, cell| spoil(cell))
    }

    fn broken_in(spoil: impl FnOnce(&Space, &'static Cell<parking_lot::RawMutex>)) -> &'static str {
        let machine: &'static TestMachine = std::boxed::Box::leak(std::boxed::Box::default());
        let all = VaRange::from_pages(16, 1 << 16).unwrap();
        let space = Space::new(all, all, machine).unwrap();
        let mut magazine = space.magazine(0).unwrap();
        for pages in [2, 3] {
            let areas: std::vec::Vec<_> =
                (0..5).map(|_| magazine.alloc(&Request::pages(pages).unwrap()).unwrap()).collect();
            areas.into_iter().for_each(|area| magazine.free(area).unwrap());
        }
        let held = space.held();
        assert!(held.cached_pages > 2 && held.lazy_pages == 25);
        assert_eq!(space.validate(), Ok(()));
        let cell = space.cells.live().next().unwrap();
        spoil(&space, cell);
        let rule = space.validate().map_err(|broken| broken.rule).err().unwrap_or("nothing");
        std::mem::forget(magazine);
        rule
    }

    #[test]
    fn mg1_a_magazine_above_its_share_is_named() {
        assert_eq!(broken(|cell| cell.lock().cache_pages_max = 2), "MG1");
        assert_eq!(broken(|cell| cell.lock().round_pages_max = 25), "MG1");
        assert_eq!(broken(|cell| cell.lock().round_pages_max = 26), "nothing");
    }

    #[test]
    fn mg2_counts_that_are_not_what_a_magazine_holds_are_named() {
        assert_eq!(broken(|cell| cell.publish_lazy(24)), "MG2");
        assert_eq!(broken(|cell| _ = cell.cached_pages.fetch_add(1, Ordering::Relaxed)), "MG2");
        assert_eq!(broken(|cell| _ = cell.sealed_pages.fetch_add(1, Ordering::Relaxed)), "MG2");
        // Its magazine has ended, and the cell is not empty.
        assert_eq!(broken_in(|space, cell| assert!(space.cells.end(cell))), "MG2");
    }

    #[test]
    fn mg3_a_cell_that_is_in_no_place_or_in_two_is_named() {
        assert_eq!(broken_in(|_, cell| cell.at.store(None)), "MG3");
        let second = |space: &Space, cell: &Cell<_>| {
            let other = space.magazine(1).unwrap();
            other.cell.at.store(cell.at.load());
            std::mem::forget(other);
        };
        assert_eq!(broken_in(second), "MG3");
    }

    #[test]
    fn mg2_a_cell_that_holds_anything_without_a_magazine_is_named() {
        for cached_open_sealed in [[1, 0, 0], [0, 1, 0], [0, 0, 1]] {
            let machine: &'static TestMachine = std::boxed::Box::leak(std::boxed::Box::default());
            let all = VaRange::from_pages(16, 1 << 16).unwrap();
            let space = Space::new(all, all, machine).unwrap();
            let mut magazine = space.magazine(0).unwrap();
            let cell = space.cells.live().next().unwrap();
            let request = Request::pages(2).unwrap();
            if cached_open_sealed[0] > 0 {
                // The second is one of a row of two.
                let _busy = [(); 2].map(|()| magazine.alloc(&request).unwrap());
            } else {
                cell.lock().step_pages = if cached_open_sealed[1] > 0 { 9 } else { 0 };
                cell.lock().ending = cached_open_sealed[2] > 0;
                magazine.free(space.alloc(0, &request).unwrap()).unwrap();
            }
            let holds = {
                let Contents { cache, rounds, .. } = &*cell.lock();
                [cache.areas(), rounds.open().areas(), rounds.sealed().areas()]
            };
            assert_eq!((holds, space.validate()), (cached_open_sealed, Ok(())));
            assert!(space.cells.end(cell));
            assert_eq!(space.validate().map_err(|broken| broken.rule), Err("MG2"), "{holds:?}");
            std::mem::forget(magazine);
        }
    }
}
