//! A magazine's round: freed areas are put into it, and it ends in steps.
//!
//! # Theory
//! A round may hold every size that has a list, 264 of them, and so may the sealed areas when their batch is completed.
//! To move them all, and to run a pass of the purge, would delay one free too much. So the free that fills a round runs
//! a **step**, and so does each free after it, until nothing is left to do:
//!
//! 1. Completed areas that no call requested in a whole round join the cache, or the pool if the cache has no room.
//! 2. The round is sealed: at once if nothing is sealed, else list by list into the sealed areas or into the node's
//!    lists. Each sealed fragment is complete, with its hull and its counts.
//! 3. A slice of the purge is run, if one is due, and another by each of the next frees, as in frees without a
//!    magazine.
//! 4. The shares are computed again. They may be smaller: then the cache shrinks.
//!
//! Each step subtracts its cost from a budget, so that a free does no more than a slice and a half, whatever is in the
//! magazine. Frees meanwhile still go into the round: a dozen, if it and the completed batch have all sizes. There may
//! be many more if the machine is notified of each settled area, or if no pool takes the flushed ones. A round of twice
//! its share is sealed meanwhile, list by list, into the node's lists.
//!
//! # Locking
//! The magazine's; under it `pool`, then `free`, then `lazy`, one after the other; none for the slice.

use super::VmapSpace;
use super::cell::Contents;
use super::magazine::Magazine;
use crate::budget::{Budget, Cost};
use crate::config::Config;
use crate::list::{AreaList, Unflushed, UnlinkedArea};
use crate::map::{Slot, Word};
use crate::pool::Pool;
use va_base::sync::MutexGuard;
use va_base::sync::atomic::Ordering;
use va_base::{Context, Machine};

impl<P: Machine + Clone, C: Config> Magazine<'_, P, C> {
    /// Puts a freed area into the round, if it is of this node.
    #[inline(always)]
    pub(super) fn put_freed(&mut self, freed: UnlinkedArea<Unflushed>) {
        if freed.word.owner() != Some(self.node) || !C::ORDER.permits_rounds() {
            return self.send_home(freed.parts());
        }
        let contents = self.lock();
        match contents.rounds.class_for(freed.pages) {
            Some(class) => self.put_in_round(contents, class, freed),
            None => self.put_new_size(contents, freed.parts()),
        }
    }

    /// Puts a freed area into its list of the round, and runs a step of the round's end if one is due.
    #[inline(always)]
    fn put_in_round(
        &self,
        mut contents: MutexGuard<'_, P::OwnerLock, Contents>,
        class: usize,
        freed: UnlinkedArea<Unflushed>,
    ) {
        let cell = self.cell;
        let pages = contents.rounds.put_in(class, freed, &cell.hull);
        cell.publish_lazy(pages);
        if pages >= contents.step_pages {
            self.step(contents);
        }
    }

    /// Puts an area of a size that the round has no list for yet.
    #[cold]
    fn put_new_size(
        &self,
        mut contents: MutexGuard<'_, P::OwnerLock, Contents>,
        parts: (u64, u64, Word, &'static Slot),
    ) {
        let (page, pages, word, slot) = parts;
        match contents.rounds.new_class_for(pages) {
            Some(class) => self.put_in_round(contents, class, UnlinkedArea::won(page, pages, word, slot)),
            None => {
                drop(contents);
                self.send_home(parts);
            }
        }
    }

    /// Makes an area of another node, or of a size without a list, lazy in its node.
    #[inline(never)]
    fn send_home(&self, (page, pages, word, slot): (u64, u64, Word, &'static Slot)) {
        self.space.make_lazy(UnlinkedArea::won(page, pages, word, slot));
        self.space.after_free(Context::Sleeping);
    }

    /// Runs the next step, after a free that found one due.
    #[cold]
    fn step(&self, mut guard: MutexGuard<'_, P::OwnerLock, Contents>) {
        let space = self.space;
        let contents = &mut *guard;
        // Unless set otherwise below, the next free continues.
        contents.step_pages = 0;
        contents.ending |= contents.rounds.open().pages() >= contents.round_pages_max;
        if contents.ending {
            let mut budget = Budget::of_slice::<C>();
            // A round that grew to twice its share is sealed list by list beside the completed areas.
            let full = contents.rounds.open().pages() / 2 >= contents.round_pages_max;
            let cached = self.cache_completed(contents, &mut budget);
            if full {
                budget = Budget::of_quarter::<C>();
            }
            let sealed = (cached || full) && self.seal(contents, &mut budget);
            contents.ending = !(cached && sealed);
            if contents.ending || !budget.spares_a_slice::<C>() {
                return;
            }
        }
        drop(guard);
        if space.after_round() {
            return;
        }
        let share = space.cache_share();
        let mut contents = self.lock();
        contents.round_pages_max = space.round_share(share);
        contents.cache_pages_max = share;
        if self.make_room(&mut contents, 0, &mut Budget::of_quarter::<C>()) {
            contents.begin_round();
        }
    }

    /// Moves completed areas of one size into the cache, which has none that fits; returns whether there were any.
    pub(super) fn cache_completed_size(&self, contents: &mut Contents, pages: u64) -> bool {
        let rounds = &mut contents.rounds;
        if rounds.sealed().areas() == 0 || !rounds.poll_completed(&self.space.completed_batches) {
            return false;
        }
        let Some(class) = rounds.sealed().class(pages).filter(|&class| rounds.sealed().len(class) > 0) else {
            return false;
        };
        let count = rounds.sealed().len(class);
        let takes_all = Self::takes_all(&contents.cache, contents.cache_pages_max, pages, count)
            || pages <= C::POOL_PAGES_MAX
                && self.space.lock_pool(self.node).class_for(pages, count * pages).is_some();
        let most = if takes_all { u64::MAX } else { Budget::of_slice::<C>().steps(Cost::AREA) };
        let list = rounds.take(&self.space.map, &self.space.machine, class, most);
        let brought = self.cache_or_pool(contents, pages, list);
        self.cell.publish_sealed(contents);
        brought
    }

    /// Returns whether all of `count` completed areas of a size find a place at once: in the cache, or in a list that each
    /// pool has. Large ones may find none and go to the index, which costs more: then some are taken at a time.
    pub(super) fn takes_all(cache: &Pool, cache_pages_max: u64, size: u64, count: u64) -> bool {
        let whole = count * size;
        VmapSpace::<P, C>::always_pools(size)
            || cache.pages() + whole <= cache_pages_max && cache.present_class_for(size, whole).is_some()
    }

    /// Moves completed areas that were not requested since into the cache, or where that has no room into the pool;
    /// returns whether none is left.
    fn cache_completed(&self, contents: &mut Contents, budget: &mut Budget) -> bool {
        let (space, map) = (self.space, &self.space.map);
        let Contents { cache, rounds, cache_pages_max, .. } = contents;
        if !rounds.poll_completed(&space.completed_batches) || rounds.sealed().areas() == 0 {
            return true;
        }
        let (mut pool, mut homeless) = (None, AreaList::new());
        while budget.is_left()
            && let Some(class) = rounds.sealed().next_class(0)
        {
            budget.spend(Cost::LIST);
            let size = rounds.sealed().size(class);
            // A list is also taken in several steps if the machine is notified of each area.
            let is_cheap = Self::takes_all(cache, *cache_pages_max, size, rounds.sealed().len(class));
            let most = if is_cheap { u64::MAX } else { budget.steps(Cost::AREA) };
            let list = rounds.take(map, &space.machine, class, most);
            if space.machine.hears_settled() {
                budget.spend_each(Cost::SETTLED, list.areas());
            }
            let fits = cache.pages() + list.pages() <= *cache_pages_max;
            let rest = if fits { cache.put_class(map, class, size, list) } else { Err(list) };
            let Err(rest) = rest else { continue };
            let pool = pool.get_or_insert_with(|| space.lock_pool(self.node));
            if let Err(rest) = space.pool_list(pool, size, rest) {
                budget.spend_each(Cost::AREA, rest.areas());
                homeless.append(map, rest);
            }
        }
        let returned = pool.is_some();
        drop(pool);
        let done = rounds.sealed().areas() == 0;
        self.cell.publish_cached(contents);
        self.cell.publish_sealed(contents);
        space.to_index(homeless, false);
        if returned {
            space.note_return();
        }
        done
    }

    /// Seals the round, or some of its lists; returns whether nothing of it is open.
    fn seal(&self, contents: &mut Contents, budget: &mut Budget) -> bool {
        let space = self.space;
        let mut lazy = space.lock_lazy(space.node(self.node));
        let sealed = contents.rounds.seal(&space.map, &mut lazy, contents.cache_pages_max, budget);
        // Counted before a batch takes them, so that `settled` never includes uncounted pages.
        space.lazied.0.fetch_add(sealed, Ordering::Relaxed);
        drop(lazy);
        self.cell.publish_round(contents);
        contents.rounds.open().areas() == 0
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use crate::budget::Budget;
    use crate::config::{Config, Standard};
    use crate::testing::TestMachine;
    use crate::{Purge, VmapSpace};
    use std::vec::Vec;
    use va_base::{Request, VaRange};

    /// The sizes that two rounds hold together.
    const SIZES: u64 = 240;
    /// Lists that one free may move.
    const LISTS: u64 = Standard::SLICE_AREAS * 40 / 6 + 1;

    /// Returns a space with room for all that a test takes. On a machine that drains elsewhere no free runs a slice.
    fn large(machine: &TestMachine) -> VmapSpace<&TestMachine, Standard> {
        let all = VaRange::from_pages(16, 1 << 24).unwrap();
        VmapSpace::new(all, all, machine).unwrap()
    }

    #[test]
    fn a_free_seals_and_refills_a_few_lists_at_a_time() {
        let machine = TestMachine { elsewhere: true, ..TestMachine::default() };
        let space = large(&machine);
        let mut magazine = space.magazine(0).unwrap();
        let cell = space.cells.live().next().unwrap();
        let take = |count: u64| -> Vec<_> {
            (0..count).map(|n| space.alloc(0, &Request::pages(1 + n % SIZES).unwrap()).unwrap()).collect()
        };
        let (first, second, third, mut more) = (take(SIZES), take(SIZES), take(SIZES), take(4 * SIZES));
        let lists = || {
            let contents = cell.lock();
            [contents.rounds.open().areas(), contents.rounds.sealed().areas()]
        };
        // A round of all sizes ends with the next free, however long it may be.
        let end_next = || cell.lock().step_pages = u64::MAX;
        let due = || {
            let mut contents = cell.lock();
            (contents.step_pages, contents.ending) = (0, true);
        };
        let free_all = |magazine: &mut super::Magazine<'_, _, _>, areas: Vec<_>| {
            end_next();
            areas.into_iter().for_each(|area| magazine.free(area).unwrap());
            due();
        };
        // Nothing is sealed: the round is sealed at once.
        free_all(&mut magazine, first);
        magazine.free(more.pop().unwrap()).unwrap();
        assert_eq!((lists(), cell.lock().ending), ([0, SIZES + 1], false));
        // No batch has taken the sealed areas: this round joins them, and then the completed batch becomes cache, in
        // steps.
        free_all(&mut magazine, second);
        let mut steps = 0;
        while cell.lock().ending {
            let before = lists()[0];
            magazine.free(more.pop().unwrap()).unwrap();
            // A few lists have an area more, freed meanwhile.
            assert!(before < lists()[0] + 2 * LISTS, "{before} lists, then {:?}", lists());
            assert_eq!(space.validate(), Ok(()));
            steps += 1;
        }
        assert!(steps >= SIZES / LISTS && lists()[0] == 0, "{steps} {:?}", lists());
        free_all(&mut magazine, third);
        space.purge(Purge::Drain);
        let mut steps = 0;
        while cell.lock().ending {
            let before = lists()[1];
            magazine.free(more.pop().unwrap()).unwrap();
            // Each list has two areas, and a few have more.
            assert!(before < lists()[1] + 4 * LISTS || !cell.lock().ending, "{before}, then {:?}", lists());
            assert_eq!(space.validate(), Ok(()));
            steps += 1;
        }
        assert!(steps >= SIZES / LISTS, "{steps}");
        more.into_iter().for_each(|area| magazine.free(area).unwrap());
        drop(magazine);
        assert_eq!(space.validate(), Ok(()));
    }

    #[test]
    fn a_free_moves_few_areas_of_a_large_size_that_no_pool_takes() {
        let machine = TestMachine { elsewhere: true, ..TestMachine::default() };
        let space = large(&machine);
        let mut magazine = space.magazine(0).unwrap();
        let take = |size: u64| space.alloc(0, &Request::pages(size).unwrap()).unwrap();
        let (large, more) = ([(); 40].map(|()| take(300)), [(); 2].map(|()| take(1)));
        // The pool has other large sizes in all its lists.
        (301..309).map(take).collect::<Vec<_>>().into_iter().for_each(|area| space.free(area).unwrap());
        space.purge(Purge::Drain);
        let cell = space.cells.live().next().unwrap();
        let due = |due: bool| {
            let mut contents = cell.lock();
            (contents.step_pages, contents.ending) = (if due { 0 } else { u64::MAX }, due);
        };
        due(false);
        large.into_iter().for_each(|area| magazine.free(area).unwrap());
        let [seals, moves] = more;
        due(true);
        magazine.free(seals).unwrap();
        space.purge(Purge::Drain);
        cell.lock().cache_pages_max = 1000;
        due(true);
        magazine.free(moves).unwrap();
        // A slice and a half of areas that go to the index by themselves.
        let left = cell.lock().rounds.sealed().areas();
        assert!((40 - 11..40).contains(&left), "{left}");
        cell.lock().cache_pages_max = 1 << 16;
        drop(magazine);
        assert_eq!(space.validate(), Ok(()));
    }

    #[test]
    fn no_size_above_the_largest_that_is_pooled_enters_the_pool() {
        const SIZE: u64 = 20_000;
        const { assert!(SIZE > Standard::POOL_PAGES_MAX) };
        let machine = TestMachine { elsewhere: true, ..TestMachine::default() };
        let space = large(&machine);
        let take = |size: u64| space.alloc(0, &Request::pages(size).unwrap()).unwrap();
        for (max, calls) in [(SIZE, "an alloc"), (3 * SIZE, "a drain"), (4 * SIZE, "a share"), (1, "a round")]
        {
            let mut magazine = space.magazine(0).unwrap();
            let cell = space.cells.live().next().unwrap();
            let due = |due: bool| {
                let mut contents = cell.lock();
                (contents.step_pages, contents.ending) = (if due { 0 } else { u64::MAX }, due);
            };
            due(false);
            [(); 3].map(|()| take(SIZE)).into_iter().for_each(|area| magazine.free(area).unwrap());
            due(true);
            magazine.free(take(1)).unwrap();
            space.purge(Purge::Drain);
            assert_eq!(cell.lock().rounds.sealed().areas(), 4);
            cell.lock().cache_pages_max = max;
            match calls {
                // The cache has room for one of three.
                "an alloc" => {
                    space.free(magazine.try_alloc(&Request::pages(SIZE).unwrap()).unwrap()).unwrap();
                }
                "a drain" => magazine.drain(),
                round => {
                    due(true);
                    magazine.free(take(1)).unwrap();
                    // The cache has all three, and then too little room.
                    if round == "a share" {
                        assert!(cell.lock().cache.areas() > 2);
                        cell.lock().cache_pages_max = SIZE;
                        let _room =
                            magazine.make_room(&mut cell.lock(), 0, &mut Budget::of_slice::<Standard>());
                    }
                }
            }
            let stats = space.stats();
            assert_eq!(
                (stats.pooled_pages.get() / SIZE, space.validate()),
                (0, Ok(())),
                "{calls}: {stats:?}"
            );
            cell.lock().cache_pages_max = 3 * SIZE;
            drop(magazine);
            space.purge(Purge::Full);
        }
    }

    #[test]
    fn mg1_holds_when_a_share_shrinks_below_the_open_round() {
        let machine = TestMachine { elsewhere: true, ..TestMachine::default() };
        let space = large(&machine);
        let mut magazine = space.magazine(0).unwrap();
        let mut free_one = || {
            let area = space.alloc(0, &Request::pages(100).unwrap()).unwrap();
            magazine.free(area).unwrap();
        };
        (0..5).for_each(|_| free_one());
        let cell = space.cells.live().next().unwrap();
        {
            let mut contents = cell.lock();
            contents.round_pages_max = 500;
            contents.begin_round();
        }
        assert_eq!(space.validate(), Ok(()));
        // The next free ends it.
        free_one();
        assert_eq!(cell.lock().rounds.open().areas(), 0);
        assert_eq!(space.validate(), Ok(()));
    }

    #[test]
    fn mg1_one_area_may_be_larger_than_the_share() {
        for (areas, due, holds) in [(1, false, true), (2, false, false), (2, true, true)] {
            let machine = TestMachine::default();
            let all = VaRange::from_pages(16, 1 << 16).unwrap();
            let space = VmapSpace::<_, Standard>::new(all, all, &machine).unwrap();
            let mut magazine = space.magazine(0).unwrap();
            // The second of each size is one of a row of two.
            for size in 2..2 + areas {
                let _busy = [(); 2].map(|()| magazine.alloc(&Request::pages(size).unwrap()).unwrap());
            }
            let cell = space.cells.live().next().unwrap();
            {
                let mut contents = cell.lock();
                assert_eq!(contents.cache.areas(), areas);
                contents.cache_pages_max = 1;
                contents.step_pages *= u64::from(!due);
            }
            assert_eq!(
                space.validate().map_err(|broken| broken.rule),
                if holds { Ok(()) } else { Err("MG1") }
            );
            std::mem::forget(magazine);
        }
    }
}
