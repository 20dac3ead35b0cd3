//! The magazine whose owner makes no call.
//!
//! # Theory
//! A thread that the scheduler moves to another CPU finds an empty magazine there. What it freed is in the one that it
//! had, and nothing else may ever call that. So each magazine watches the one that holds most of [`LOOKED_AT`] others:
//! of all, if there are no more, else of the next ones in turn. If the counts of that are the same after [`MISSES`]
//! sizes that this one lacked, its owner is idle. From then on each size that is lacking is taken from there, until the
//! owner makes a call or lacks a size, too.
//!
//! A count may be an old one (PR-HINT): then an owner that makes calls loses some areas of its cache.
//!
//! # Locking
//! The own magazine's lock, and under it by `try_lock` that of the idle one. A request that fails meanwhile may miss
//! the areas that move: they are in no count. A drain tries no lock of a magazine that seems empty, and passes others
//! one after the other.

use super::VmapSpace;
use super::cell::{Cell, Contents};
use super::magazine::Magazine;
use crate::area::Area;
use crate::budget::{Budget, Cost};
use crate::config::Config;
use crate::list::{AreaList, Flushed};
use va_base::sync::RawMutex;
use va_base::{LockClass, Machine, Request};

/// Sizes that a magazine lacks from one look at another to the next. In a model it looks each time.
const MISSES: u32 = if cfg!(loom) { 1 } else { 64 };

/// Magazines of which the fullest is found at a look.
const LOOKED_AT: usize = 64;

/// The value of [`Watched::misses`] for an owner that is idle: the next miss looks again.
const IDLE: u32 = MISSES - 1;

/// The magazine that another one watches. A few words, since a magazine with its owner's other data is in a cache line.
pub(super) struct Watched<R: RawMutex + 'static> {
    cell: Option<&'static Cell<R>>,
    /// Its state at the last look.
    state: u64,
    /// Sizes that were lacking since then.
    misses: u32,
}

impl<R: RawMutex + Send + Sync + 'static> Watched<R> {
    pub(super) const fn new() -> Self {
        Self { cell: None, state: 0, misses: 0 }
    }

    /// Notes that `own` lacks a size; returns the cell of an idle owner.
    pub(super) fn look<P: Machine<OwnerLock = R> + Clone, C: Config>(
        &mut self,
        space: &VmapSpace<P, C>,
        own: &Cell<R>,
    ) -> Option<&'static Cell<R>> {
        self.misses += 1;
        if self.misses < MISSES {
            return None;
        }
        self.misses = 0;
        let idle = self.cell.filter(|&cell| state(cell) == self.state);
        if idle.is_none() {
            self.cell = space.fullest_cell(own);
            self.state = self.cell.map_or(0, state);
        }
        idle
    }

    /// Notes whether the idle one had the size.
    pub(super) fn found(&mut self, cell: &Cell<R>, found: bool) {
        self.state = state(cell);
        if found {
            self.misses = IDLE;
        }
    }
}

/// Returns a number that each call of a cell's owner changes.
fn state<R: RawMutex + Send + Sync + 'static>(cell: &Cell<R>) -> u64 {
    let [lazy, sealed, cached] = cell.counts();
    cached ^ lazy.rotate_left(24) ^ sealed.rotate_left(48)
}

impl<P: Machine + Clone, C: Config> VmapSpace<P, C> {
    /// Returns the cell that holds most of the next ones at which `own` looks; `None` if all others there are empty. Of
    /// two it is the one in the higher place.
    fn fullest_cell(&self, own: &Cell<P::OwnerLock>) -> Option<&'static Cell<P::OwnerLock>> {
        let mut walk = self.cells.live_from(own.next_looked_at.load());
        let (mut fullest, mut most) = (None, 0);
        for cell in walk.by_ref().take(LOOKED_AT) {
            let pages = cell.pages();
            if pages > most && !core::ptr::eq(cell, own) {
                (fullest, most) = (Some(cell), pages);
            }
        }
        own.next_looked_at.store(walk.place());
        fullest
    }

    /// Takes flushed areas of a size out of a cell: those of its cache, or if there are none completed ones. `most`
    /// returns how many at most of so many. `None` if it has none, or its owner is in a call.
    fn take_of_cell(
        &self,
        cell: &Cell<P::OwnerLock>,
        pages: u64,
        most: impl Fn(u64) -> u64,
    ) -> Option<AreaList<Flushed>> {
        self.machine.locking(LockClass::Owner);
        let mut contents = cell.try_lock()?;
        let Contents { cache, rounds, .. } = &mut *contents;
        let list = match cache.class(pages).filter(|&class| cache.len(class) > 0) {
            Some(class) => cache.take_list(&self.map, class, most(cache.len(class))),
            None if rounds.poll_completed(&self.completed_batches) => {
                let class = rounds.sealed().class(pages)?;
                let most = most(rounds.sealed().len(class));
                rounds.take(&self.map, &self.machine, class, most)
            }
            None => return None,
        };
        cell.publish_cached(&contents);
        cell.publish_sealed(&contents);
        (!list.is_empty()).then_some(list)
    }
}

impl<P: Machine + Clone, C: Config> Magazine<'_, P, C> {
    /// Takes an area of a magazine whose owner makes no call, and moves others of its size to this cache. All move, or
    /// if some may go to the index, as many as in a slice. For example, of 240 areas of 257 pages seven move at a time.
    pub(super) fn take_from_idle(&mut self, request: &Request) -> Option<Area> {
        // A caller that may not wait takes one lock at a time.
        if !request.waits() {
            return None;
        }
        let idle = self.watched.look(self.space, self.cell)?;
        let mut contents = self.lock();
        let pages = request.size().get();
        let takes_all = |count| Self::takes_all(&contents.cache, contents.cache_pages_max, pages, count);
        let slice = Budget::of_slice::<C>().steps(Cost::AREA);
        let list = self.space.take_of_cell(idle, pages, |count| if takes_all(count) { count } else { slice });
        self.watched.found(idle, list.is_some());
        if !self.cache_or_pool(&mut contents, pages, list?) {
            return None;
        }
        let area = contents.cache.take_apart(&self.space.map, pages, request.align(), C::POOL_TRIES)?;
        self.cell.publish_cached(&contents);
        drop(contents);
        Some(self.space.publish(area, Some(self.node)))
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::{LOOKED_AT, MISSES};
    use crate::Purge;
    use crate::config::Standard;
    use crate::space::VmapSpace;
    use crate::space::magazine::Magazine;
    use crate::testing::TestMachine;
    use std::vec::Vec;
    use va_base::{Context, Request, VaRange};

    type Space<'m> = VmapSpace<&'m TestMachine, Standard>;

    fn pages(pages: u64) -> Request {
        Request::pages(pages).unwrap()
    }

    /// Calls `test` with a space and two magazines. The first has 30 areas of each of `sizes`, all flushed.
    fn after_a_move(
        sizes: &[u64],
        test: impl FnOnce(&Space<'_>, &mut Magazine<'_, &TestMachine>, &mut Magazine<'_, &TestMachine>),
    ) {
        let machine = TestMachine::default();
        let all = VaRange::from_pages(16, 1 << 24).unwrap();
        let space = Space::new(all, all, &machine).unwrap();
        let (mut here, mut there) = (space.magazine(0).unwrap(), space.magazine(1).unwrap());
        let requests = (0..30).flat_map(|_| sizes);
        let areas: Vec<_> = requests.map(|&size| there.alloc(&pages(size)).unwrap()).collect();
        areas.into_iter().for_each(|area| there.free(area).unwrap());
        // The next free seals the round.
        let last = there.alloc(&pages(1)).unwrap();
        {
            let mut contents = there.cell.lock();
            (contents.step_pages, contents.ending) = (0, true);
        }
        there.free(last).unwrap();
        space.purge(Purge::Drain);
        test(&space, &mut here, &mut there);
        assert_eq!(space.validate(), Ok(()));
    }

    /// Allocates an area, which stays busy.
    fn take(magazine: &mut Magazine<'_, &TestMachine>, request: &Request) {
        let _busy = magazine.alloc(request).unwrap();
    }

    /// Has a magazine lack `count` sizes, from `from` on, which no other has.
    fn miss(magazine: &mut Magazine<'_, &TestMachine>, from: u64, count: u32) {
        (from..from + u64::from(count)).for_each(|size| take(magazine, &pages(size)));
    }

    /// Returns the pages in a magazine's cache and among its sealed areas.
    fn held(magazine: &Magazine<'_, &TestMachine>) -> u64 {
        let [_, sealed, cached] = magazine.cell.counts();
        cached + sealed
    }

    #[test]
    fn what_an_idle_owner_freed_is_found_after_some_misses() {
        after_a_move(&[2, 3], |space, here, there| {
            let before = held(there);
            // It holds more itself.
            let own = here.alloc(&pages(1000)).unwrap();
            here.free(own).unwrap();
            miss(here, 10, 2 * MISSES - 2);
            assert_eq!(held(there), before);
            // The areas of a size move at once. Those of the next one follow without a wait, and none is new.
            let outside = space.stats().areas;
            for (size, most) in [(2, before - 60), (3, before - 150)] {
                (0..30).for_each(|_| take(here, &pages(size)));
                assert!(held(there) <= most && space.stats().areas == outside, "{size}: {}", held(there));
            }
        });
    }

    #[test]
    fn a_size_that_an_idle_owner_lacks_ends_that_for_a_while() {
        after_a_move(&[2, 3], |_, here, there| {
            miss(here, 10, 2 * MISSES - 1);
            take(here, &pages(2));
            miss(here, 200, 1);
            let before = held(there);
            take(here, &pages(3));
            miss(here, 201, MISSES - 2);
            assert_eq!(held(there), before);
            take(here, &pages(3));
            assert!(held(there) < before);
        });
    }

    #[test]
    fn an_idle_owner_is_found_among_more_than_one_look_takes() {
        after_a_move(&[2, 3], |space, here, there| {
            let others: Vec<_> = (0..2 * LOOKED_AT + 10).map(|_| space.magazine(2).unwrap()).collect();
            let before = held(there);
            // Two looks at the others alone, which hold nothing.
            miss(here, 10, 3 * MISSES);
            take(here, &pages(2));
            assert_eq!(held(there), before);
            miss(here, 10 + 3 * u64::from(MISSES), MISSES - 2);
            take(here, &pages(3));
            assert!(held(there) < before);
            drop(others);
        });
    }

    #[test]
    fn few_areas_move_at_a_time_where_the_index_takes_them() {
        // The pool has lists for all sizes up to 256 pages.
        for (size, moved) in [(300, 7), (200, 30)] {
            after_a_move(&[size], |space, here, there| {
                miss(here, 1000, 2 * MISSES - 1);
                // What is left of a row in the other's cache comes first.
                take(here, &pages(size));
                while here.cell.lock().cache.areas() > 0 {
                    take(here, &pages(size));
                }
                here.cell.lock().cache_pages_max = 2 * size;
                let (before, outside) = (held(there), space.stats().areas);
                take(here, &pages(size));
                assert_eq!(before - held(there), moved * size, "{size}");
                let stats = space.stats();
                assert!(stats.areas > outside - 7 && here.cell.lock().cache.areas() < 3, "{size}: {stats:?}");
                here.cell.lock().cache_pages_max = 1 << 16;
            });
        }
    }

    #[test]
    fn an_owner_that_makes_calls_loses_nothing() {
        after_a_move(&[2], |_, here, there| {
            for from in [10, 100] {
                miss(here, from, MISSES - 1);
                let area = there.alloc(&pages(2)).unwrap();
                let before = held(there);
                take(here, &pages(2));
                assert_eq!(held(there), before);
                there.free(area).unwrap();
            }
        });
    }

    #[test]
    fn a_caller_that_may_not_wait_takes_nothing_from_others() {
        after_a_move(&[2], |_, here, there| {
            let before = held(there);
            miss(here, 10, 2 * MISSES - 1);
            take(here, &pages(2).context(Context::Atomic));
            assert_eq!(held(there), before);
            take(here, &pages(2));
            assert!(held(there) < before);
        });
    }
}
