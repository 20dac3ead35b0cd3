//! Magazines: the locks that they save, the pages that they hold, and their drains.

use crate::{FIRST, Standard, Whole, ask, lazy};
use std::sync::Mutex;
use va_base::{Align, Context, LockClass, Pages, Request, Va, VaRange};
use va_sim::machine::{Flushing, SimMachine, lockings};
use va_space::config::WithLazyMax;
use va_space::{Area, Drained, Magazine, Purge, SpaceError, State, VmapSpace};

pub(crate) fn space(machine: &SimMachine, size: u64) -> VmapSpace<&SimMachine, Standard> {
    let extent = VaRange::from_pages(FIRST, FIRST + size).unwrap();
    VmapSpace::new(extent, extent, machine).unwrap()
}

/// Returns the locks that this thread took so far, except those of magazines.
fn shared_lockings() -> u64 {
    let taken = lockings();
    taken.iter().sum::<u64>() - taken[LockClass::Owner as usize]
}

#[test]
fn a_hot_pair_takes_a_shared_lock_less_than_once_in_twenty() {
    for size in [1, 2, 64, 256, 257] {
        let machine = SimMachine::new(2);
        let space = space(&machine, 1 << 22);
        let mut magazine = space.magazine(0).unwrap();
        let mut pair = || {
            let area = magazine.alloc(&ask(size)).unwrap();
            magazine.free(area).unwrap();
        };
        // Until the pools are in a steady state.
        let pairs = 3 * space.lazy_max().get() / size + 1000;
        (0..pairs).for_each(|_| pair());
        let before = shared_lockings();
        (0..pairs).for_each(|_| pair());
        let taken = shared_lockings() - before;
        let each = taken as f64 / pairs as f64;
        println!("{size} pages: {each:.4} locks a pair");
        assert!(each <= if size <= 2 { 0.05 } else { 0.4 }, "{size} pages: {each}");
        drop(magazine);
        assert_eq!(space.validate(), Ok(()));
    }
}

#[test]
fn mg1_mg2_its_contents_are_bounded_and_published() {
    let machine = SimMachine::new(2);
    let space = space(&machine, 1 << 22);
    let mut magazine = space.magazine(0).unwrap();
    let mut state = 1u64;
    let (mut out, mut most_cached, mut most_pooled) = (Vec::new(), 0, 0);
    for round in 0..8 {
        // More and more is allocated, so that more is freed than the cache may hold.
        for _ in 0..8000 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            if state >> 61 <= 2 + u64::from(out.len() < 100 * round) {
                out.push(magazine.alloc(&ask(1 + (state >> 40) % 300)).unwrap());
            } else if !out.is_empty() {
                let area = out.swap_remove((state >> 20) as usize % out.len());
                magazine.free(area).unwrap();
            }
            let stats = space.stats();
            most_cached = most_cached.max(stats.cached_pages.get());
            most_pooled = most_pooled.max(stats.pooled_pages.get());
            // The cache, and sealed areas that are completed.
            assert!(stats.cached_pages.get() <= 2 << 16, "MG1: {stats:?}");
            // A round, and the areas freed while it is sealed in steps.
            let open = stats.lazy_pages.get() - space.lazy_pages().get();
            assert!(open <= space.lazy_max().get() + 12 * 300, "MG1: {stats:?}");
        }
        for area in out.drain(..) {
            magazine.free(area).unwrap();
        }
        // SP1 counts words against cells: MG2.
        assert_eq!(space.validate(), Ok(()));
    }
    assert!(most_cached > 1 << 15 && most_pooled > 0, "{most_cached} {most_pooled} {:?}", space.stats());
}

#[test]
fn what_is_cached_elsewhere_is_drained_while_its_owner_sleeps() {
    let machine = SimMachine::new(2);
    let space = space(&machine, 64);
    let mut theirs = space.magazine(1).unwrap();
    // One from the index, then rows of 2, 4 and 8.
    let mut held: Vec<_> = (0..8).map(|_| theirs.alloc(&ask(1)).unwrap()).collect();
    let stats = space.stats();
    assert_eq!((stats.cached_pages.get(), stats.cached_areas), (7, 7));
    let failed = space.alloc(0, &ask(60)).unwrap_err();
    assert!(matches!(failed, SpaceError::NoSpace { cached, .. } if cached == Pages::new(0)), "{failed}");
    assert_eq!(space.stats().cached_areas, 0);
    // The failure is recorded, and the areas freed since are in the open round of a magazine.
    held.sort_unstable_by_key(Area::start);
    held.drain(4..).for_each(|area| theirs.free(area).unwrap());
    assert_eq!(space.lazy_pages(), Pages::new(0));
    let most = space.alloc(0, &ask(60)).unwrap();
    space.free(most).unwrap();
    held.into_iter().for_each(|area| theirs.free(area).unwrap());
    assert_eq!(space.alloc(0, &ask(64)).map(|area| area.size()), Ok(Pages::new(64)));
    assert_eq!(space.validate(), Ok(()));
}

#[test]
fn idle_magazines_hold_a_share_and_no_request_waits_for_their_owners() {
    let machine = SimMachine::new(2);
    let size = 1 << 18;
    let space = space(&machine, size);
    let mut magazines: Vec<_> = (0..8).map(|cpu| space.magazine(cpu).unwrap()).collect();
    for magazine in &mut magazines {
        let areas: Vec<_> = (0..size / 8 / 256).map_while(|_| magazine.alloc(&ask(256)).ok()).collect();
        assert!(areas.len() > 100);
        for area in areas {
            magazine.free(area).unwrap();
        }
        space.purge(Purge::Full);
        let stats = space.stats();
        let held = stats.cached_pages.get() + stats.lazy_pages.get();
        assert!(held <= 3 * size / 8 + 8 * 256, "{stats:?}");
    }
    assert!(space.stats().cached_areas > 0, "{:?}", space.stats());
    for pages in [size / 2, size] {
        let area = space.alloc(9, &ask(pages)).unwrap();
        space.free(area).unwrap();
    }
    assert_eq!(space.validate(), Ok(()));
}

#[test]
fn a_cpu_that_goes_offline_is_drained_alone() {
    let machine = SimMachine::new(4);
    let space = space(&machine, 1 << 16);
    let mut magazines: Vec<_> = (0..4).map(|cpu| space.magazine(cpu).unwrap()).collect();
    for magazine in &mut magazines {
        let areas: Vec<_> = (0..4).map(|_| magazine.alloc(&ask(3)).unwrap()).collect();
        areas.into_iter().for_each(|area| magazine.free(area).unwrap());
    }
    // Four were freed; one each was left of rows of 2 and 4.
    let each = Drained { magazines: 1, pages: Pages::new(21), busy: 0 };
    assert_eq!(space.drain_cpu(2), each);
    assert_eq!((space.drain_cpu(2), space.drain_cpu(7)), Default::default());
    let rest = space.drain_magazines();
    assert_eq!((rest.magazines, rest.pages, rest.busy), (3, Pages::new(63), 0));
    assert_eq!(space.validate(), Ok(()));
    assert!(magazines[2].alloc(&ask(3)).is_ok(), "a drained magazine goes on");
}

#[test]
fn sp2_what_is_drained_is_flushed_before_it_is_used_again() {
    // Open, sealed, or sealed and in flight when another thread drains the magazine.
    for (count, in_flight) in [(3, false), (41, false), (41, true)] {
        let machine = SimMachine::new(1);
        machine.drain_elsewhere(true);
        let space = space(&machine, 1 << 22);
        machine.set_flushing(Flushing::OnRequest);
        let mut magazine = space.magazine(0).unwrap();
        let areas: Vec<_> = (0..count).map(|_| magazine.alloc(&ask(200)).unwrap()).collect();
        for area in areas {
            machine.map(area.range()).unwrap();
            machine.unmap(area.range());
            magazine.free(area).unwrap();
        }
        assert!(!in_flight || space.drain().waiting);
        assert_eq!(space.drain_magazines().magazines, 1);
        assert_eq!((space.validate(), space.lazy_pages()), (Ok(()), Pages::new(count * 200)));
        for _ in 0..3 {
            let area = magazine.alloc(&ask(200)).unwrap();
            machine.map(area.range()).unwrap();
            machine.complete_flushes();
            space.purge(Purge::Drain);
        }
        assert_eq!(space.validate(), Ok(()));
    }
}

#[test]
fn try_alloc_uses_cached_areas_and_drains_nothing() {
    let machine = SimMachine::new(2);
    let space = space(&machine, 64);
    let (mut mine, mut theirs) = (space.magazine(0).unwrap(), space.magazine(1).unwrap());
    let held: Vec<_> = (0..40).map(|_| theirs.try_alloc(&ask(1)).unwrap()).collect();
    held.into_iter().for_each(|area| theirs.free(area).unwrap());
    let before = space.stats();
    assert!(before.cached_areas > 0);
    let failed = mine.try_alloc(&ask(40)).unwrap_err();
    assert!(matches!(failed, SpaceError::NoSpace { cached, .. } if cached > Pages::new(0)), "{failed}");
    assert_eq!(space.stats(), before);
    assert!(mine.alloc(&ask(40)).is_ok());
}

#[test]
fn what_a_drain_of_magazines_brings_meets_a_request_without_a_purge() {
    let machine = SimMachine::new(2);
    let space = space(&machine, 64);
    let mut theirs = space.magazine(1).unwrap();
    // One from the index, and a row of two, of which one is cached.
    let _held = [(); 2].map(|()| theirs.alloc(&ask(4)).unwrap());
    let _rest = space.alloc(0, &ask(52)).unwrap();
    let before = space.stats();
    assert_eq!((before.cached_pages, before.free_pages), (Pages::new(4), Pages::new(0)));
    assert!(space.alloc(0, &ask(4)).is_ok());
    assert_eq!(space.stats().purges, before.purges);
}

#[test]
fn try_alloc_tells_a_full_space_from_an_impossible_request() {
    let machine = SimMachine::new(1);
    let space = space(&machine, 100);
    let mut magazine = space.magazine(0).unwrap();
    assert!(matches!(magazine.try_alloc(&ask(256)), Err(SpaceError::NoSpace { .. })));
    assert!(matches!(magazine.try_alloc(&ask(257)), Err(SpaceError::Impossible { .. })));
    let window = VaRange::from_pages(FIRST + 10, FIRST + 14).unwrap();
    assert!(matches!(magazine.try_alloc(&ask(5).within(window)), Err(SpaceError::Impossible { .. })));
}

/// A magazine puts a flushed area into a pool after a full pass has handled that pool.
#[test]
fn a_failure_is_not_remembered_past_a_return() {
    type Space = VmapSpace<&'static SimMachine, Standard>;
    let machine: &'static SimMachine = Box::leak(Box::new(SimMachine::new(2)));
    let extent = VaRange::from_pages(FIRST, FIRST + 16).unwrap();
    let space: &'static Space = Box::leak(Box::new(VmapSpace::new(extent, extent, machine).unwrap()));
    let mut areas: Vec<_> = (0..16).map(|_| space.alloc(0, &ask(1)).unwrap()).collect();
    areas.sort_by_key(Area::start);
    let mut magazine: Magazine<'static, _, _> = space.magazine(0).unwrap();
    // From the second request on, single pages come in rows of two.
    let freed: Vec<_> = areas.drain(14..).collect();
    freed.into_iter().for_each(|area| space.free(area).unwrap());
    space.purge(Purge::Full);
    let first = magazine.alloc(&ask(1)).unwrap();
    space.free(first).unwrap();
    let refill = space.alloc(0, &ask(2).within(extent));
    assert!(refill.is_ok(), "{refill:?}");
    // Pages 1 and 2 are a hole, and 3 is lazy: 2 and 3 together would meet the request.
    let mut few = areas.drain(1..4);
    let (one, two, three) = (few.next().unwrap(), few.next().unwrap(), few.next().unwrap());
    drop(few);
    space.free(one).unwrap();
    space.free(two).unwrap();
    space.purge(Purge::Full);
    space.free(three).unwrap();
    let meanwhile = Mutex::new((magazine, None));
    let once = std::sync::atomic::AtomicBool::new(false);
    let shared: &'static _ = Box::leak(Box::new(meanwhile));
    machine.on_flush(Some(Box::new(move || {
        if !once.swap(true, std::sync::atomic::Ordering::Relaxed) {
            let (magazine, held) = &mut *shared.lock().unwrap();
            *held = magazine.alloc(&ask(1)).ok();
            magazine.drain();
        }
    })));
    let two_aligned = Request::new(2 << 12, 2 << 12).unwrap();
    assert_eq!(two_aligned.align(), Align::new(2 << 12).unwrap());
    let early = space.alloc(1, &two_aligned);
    assert_eq!(shared.lock().unwrap().1.as_ref().map(Area::start), Some(Va::from_page(FIRST + 1)));
    let late = space.alloc(1, &two_aligned);
    let got = early.or(late).map(|area| area.start());
    assert_eq!(got, Ok(Va::from_page(FIRST + 2)), "{:?}", space.stats());
}

#[test]
fn a_cpu_empties_its_magazines_before_a_request_fails() {
    let machine = SimMachine::new(1);
    let space = space(&machine, 64);
    let mut magazine = space.magazine(0).unwrap();
    for _ in 0..3 {
        let areas: Vec<_> = (0..64).map(|_| magazine.alloc(&ask(1)).unwrap()).collect();
        for area in areas {
            magazine.free(area).unwrap();
        }
        let all = magazine.alloc(&ask(64)).unwrap();
        magazine.free(all).unwrap();
    }
    assert_eq!(space.validate(), Ok(()));
}

#[test]
fn an_impossible_request_leaves_the_magazines_unchanged() {
    let machine = SimMachine::new(1);
    let space = space(&machine, 64);
    let mut magazine = space.magazine(0).unwrap();
    let areas: Vec<_> = (0..20).map(|_| magazine.alloc(&ask(1)).unwrap()).collect();
    for area in areas {
        magazine.free(area).unwrap();
    }
    magazine.drain();
    space.purge(Purge::Drain);
    let _busy: Vec<_> = (0..3).map(|_| magazine.alloc(&ask(1)).unwrap()).collect();
    let _more = magazine.alloc(&ask(1)).unwrap();
    let before = space.stats();
    assert!(before.cached_areas > 0);
    assert!(magazine.alloc(&ask(65)).is_err());
    assert_eq!(space.stats(), before);
}

#[test]
fn a_magazine_that_is_dropped_leaves_nothing_behind() {
    let machine = SimMachine::new(2);
    let space = space(&machine, 4096);
    for round in 0..600 {
        let mut magazine = space.magazine(round).unwrap();
        let area = magazine.alloc(&ask(3)).unwrap();
        let other = magazine.alloc(&ask(5)).unwrap();
        magazine.free(area).unwrap();
        drop(magazine);
        space.free(other).unwrap();
    }
    let stats = space.stats();
    assert_eq!((stats.cached_areas, stats.busy_pages.get()), (0, 0));
    space.purge(Purge::Full);
    assert_eq!((space.validate(), space.stats().holes), (Ok(()), 1));
}

#[test]
fn there_are_as_many_magazines_as_the_machine_has_memory_for() {
    let machine = SimMachine::new(2);
    let space = space(&machine, 4096);
    // The nodes of both CPUs, and the first cell.
    drop((space.magazine(0).unwrap(), space.alloc(1, &ask(1)).unwrap()));
    let tables = machine.tables();
    let held: Vec<_> = (0..600).map(|cpu| space.magazine(cpu).unwrap()).collect();
    assert_eq!(machine.tables() - tables, 599);
    drop(held);
    // The memory of magazines that ended serves others.
    machine.fail_after(u64::MAX, 0);
    let held: Vec<_> = (0..600).map(|cpu| space.magazine(cpu).unwrap()).collect();
    assert_eq!(space.magazine(0).err(), Some(SpaceError::NoTable));
    drop(held);
    drop(space);
    assert_eq!(machine.tables(), 0);
}

#[test]
fn sp2_aliases_in_magazines_are_flushed_though_they_stay_lazy() {
    let machine = SimMachine::new(2);
    let space = space(&machine, 4096);
    let mut magazine = space.magazine(0).unwrap();
    for waits in [false, true] {
        let area = magazine.alloc(&ask(3)).unwrap();
        let range = area.range();
        machine.map(range).unwrap();
        machine.unmap(range);
        magazine.free(area).unwrap();
        assert_eq!(machine.unclean(range), 3);
        if waits {
            space.purge_and_wait(Purge::Aliases);
        } else {
            space.purge(Purge::Aliases);
        }
        assert_eq!(machine.unclean(range), 0);
        assert!(space.areas().all(|seen| seen.state == State::Idle));
    }
}

#[test]
fn an_area_of_another_node_returns_to_it() {
    let machine = SimMachine::new(2);
    let space = space(&machine, 4096);
    let (mut mine, mut theirs) = (space.magazine(0).unwrap(), space.magazine(1).unwrap());
    let area = mine.alloc(&ask(3)).unwrap();
    let start = area.start();
    assert_eq!(theirs.free_at(start), Ok(area.range()));
    space.purge(Purge::Drain);
    assert_eq!(mine.alloc(&ask(3)).map(|area| area.start()), Ok(start), "from the pool of its owner");
    assert!(mine.free(area).is_err(), "the handle is of the area before");
}

#[test]
fn what_settled_on_another_cpu_is_used_before_the_index() {
    // Node 70 is in another word of the set of nodes with pooled areas, so its areas are left alone.
    let machine = SimMachine::new(72);
    let space = space(&machine, 1 << 22);
    // Too large for rows.
    let size = ask(4100);
    let mut known = Vec::new();
    for cpu in [3, 9, 70] {
        let mut magazine = space.magazine(cpu).unwrap();
        let areas: Vec<Area> = (0..6).map(|_| magazine.alloc(&size).unwrap()).collect();
        if cpu != 70 {
            known.extend(areas.iter().map(Area::start));
        }
        areas.into_iter().for_each(|area| magazine.free(area).unwrap());
    }
    space.drain_magazines();
    space.purge(Purge::Drain);
    assert_eq!((space.stats().pooled_areas, space.lazy_pages()), (18, Pages::new(0)));
    let holes = space.stats().holes;
    // The threads of these CPUs run on another now.
    let mut magazine = space.magazine(1).unwrap();
    let mut misses = 0;
    while !known.is_empty() {
        let area = magazine.alloc(&size).unwrap();
        // The index meets the request that finds a pool empty; the next one tries the next node.
        match known.iter().position(|&start| start == area.start()) {
            Some(at) => _ = known.swap_remove(at),
            None => misses += 1,
        }
        assert!(misses <= 2, "{known:?}");
    }
    assert_eq!((space.stats().pooled_areas, space.stats().holes), (6, holes));
    assert_eq!(space.validate(), Ok(()));
}

#[test]
fn sp2_what_is_away_waits_for_its_flush_wherever_its_magazine_goes() {
    // The round is in flight when its magazine is dropped, or not yet.
    for in_flight in [false, true] {
        let machine = SimMachine::new(1);
        machine.drain_elsewhere(true);
        let space = space(&machine, 1 << 22);
        machine.set_flushing(Flushing::OnRequest);
        let mut magazine = space.magazine(0).unwrap();
        let areas: Vec<_> = (0..41).map(|_| magazine.alloc(&ask(200)).unwrap()).collect();
        let ranges: Vec<_> = areas.iter().map(Area::range).collect();
        for area in areas {
            machine.map(area.range()).unwrap();
            machine.unmap(area.range());
            magazine.free(area).unwrap();
        }
        // 8200 pages are more than one CPU may leave lazy: the round is sealed.
        assert_eq!(space.lazy_pages(), Pages::new(8200));
        assert_eq!(space.validate(), Ok(()));
        if in_flight {
            assert!(space.drain().waiting);
        }
        drop(magazine);
        assert_eq!(
            (space.validate(), space.lazy_pages()),
            (Ok(()), Pages::new(8200)),
            "in flight: {in_flight}"
        );
        let mut other = space.magazine(0).unwrap();
        let early = other.alloc(&ask(200)).unwrap();
        machine.map(early.range()).unwrap();
        space.purge(Purge::Drain);
        machine.complete_flushes();
        space.purge(Purge::Drain);
        machine.complete_flushes();
        space.purge(Purge::Drain);
        assert_eq!((space.validate(), space.lazy_pages()), (Ok(()), Pages::new(0)), "in flight: {in_flight}");
        let late = other.alloc(&ask(200)).unwrap();
        machine.map(late.range()).unwrap();
        assert!(ranges.contains(&late.range()) && !ranges.contains(&early.range()));
    }
}

#[test]
fn completed_areas_refill_a_magazine_without_a_lock() {
    let machine = SimMachine::new(1);
    machine.drain_elsewhere(true);
    let space = space(&machine, 1 << 22);
    let mut magazine = space.magazine(0).unwrap();
    // In whole rows, of 1, 2, 4 and five times 8, so that nothing of the last is in the cache.
    let mut areas: Vec<_> = (0..47).map(|_| magazine.alloc(&ask(200)).unwrap()).collect();
    // One round: what is freed after it waits for the next.
    for area in areas.drain(..41) {
        magazine.free(area).unwrap();
    }
    assert_eq!((space.stats().cached_areas, space.lazy_pages()), (0, Pages::new(8200)));
    assert_eq!((space.drain().waiting, space.stats().flushes), (false, 1));
    assert_eq!((space.stats().cached_areas, space.lazy_pages()), (41, Pages::new(0)));
    let before = shared_lockings();
    let again: Vec<_> = (0..41).map(|_| magazine.alloc(&ask(200)).unwrap()).collect();
    assert_eq!(shared_lockings(), before);
    // Nothing is due: a worker that is woken too late has no effect.
    assert_eq!((space.drain().waiting, space.stats().flushes), (false, 1));
    assert_eq!(space.validate(), Ok(()));
    drop((areas, again));
}

#[test]
fn an_alloc_that_may_sleep_catches_up_with_a_worker_that_does_not_run() {
    let machine = SimMachine::new(1);
    machine.drain_elsewhere(true);
    let space = space(&machine, 1 << 22);
    let mut magazine = space.magazine(0).unwrap();
    let mut free_8200_pages = || {
        let areas: Vec<_> = (0..41).map(|_| space.alloc(0, &ask(200)).unwrap()).collect();
        areas.into_iter().for_each(|area| magazine.free(area).unwrap());
        assert_eq!(space.lazy_pages(), Pages::new(8200), "no free helps");
    };
    free_8200_pages();
    // A caller that may not sleep, or that requests only available areas, does not change it. Their sizes differ, since
    // a second request for one takes a row for the cache.
    let held = [magazine.alloc(&ask(201).context(Context::Atomic)), magazine.try_alloc(&ask(202))];
    assert_eq!((machine.flushes(), space.lazy_pages()), (0, Pages::new(8200)));
    let completed = magazine.alloc(&ask(200)).unwrap();
    assert_eq!((machine.flushes(), space.lazy_pages()), (1, Pages::new(0)));
    assert_eq!(space.validate(), Ok(()));
    // It is one of the freed areas, and not a new one of the index.
    assert!(held.into_iter().all(|area| area.unwrap().range().start() > completed.range().start()));
}

/// A node that is created after batches are completed continues their numbers: no earlier batch covers its sealed
/// areas.
#[test]
fn sp2_a_magazine_of_a_node_that_is_made_late_waits_for_a_flush_of_its_own() {
    let machine = SimMachine::new(8);
    machine.set_online(lazy(400));
    let extent = VaRange::from_pages(FIRST, FIRST + 4096).unwrap();
    let space = VmapSpace::<_, Whole>::new(extent, extent, &machine).unwrap();
    for _ in 0..3 {
        let area = space.alloc(0, &ask(4)).unwrap();
        space.free(area).unwrap();
        space.purge(Purge::Drain);
    }
    // With two magazines each seals a round before a purge is due.
    let _other = space.magazine(0).unwrap();
    let mut magazine = space.magazine(5).unwrap();
    for _ in 0..200 {
        let area = magazine.alloc(&ask(8)).unwrap();
        machine.map(area.range()).unwrap();
        machine.unmap(area.range());
        magazine.free(area).unwrap();
    }
    drop(magazine);
    assert_eq!(space.validate(), Ok(()));
}

/// A batch that is half collected has passed some nodes: what is sealed in one that is created now waits for the next.
#[test]
fn sp2_a_node_that_is_made_while_a_batch_is_collected_joins_it_or_the_next() {
    for cpu in [3, 6] {
        let machine = SimMachine::new(8);
        machine.drain_elsewhere(true);
        let extent = VaRange::from_pages(FIRST, FIRST + (1 << 20)).unwrap();
        let space = VmapSpace::<_, WithLazyMax<Standard, 0>>::new(extent, extent, &machine).unwrap();
        // More lists than a slice moves.
        let lazy: Vec<_> = (1..100).map(|size| space.alloc(5, &ask(size)).unwrap()).collect();
        let above = space.alloc(5, &ask(1000)).unwrap();
        lazy.into_iter().for_each(|area| space.free(area).unwrap());
        space.tick();
        let mut magazine = space.magazine(cpu).unwrap();
        let area = magazine.alloc(&ask(7).within(extent).context(Context::Atomic)).unwrap();
        let range = area.range();
        assert!(range.start() > above.start());
        machine.map(range).unwrap();
        machine.unmap(range);
        magazine.free(area).unwrap();
        while machine.flushes() == 0 {
            assert_eq!(space.validate(), Ok(()));
            space.tick();
        }
        assert_eq!(space.validate(), Ok(()));
        let again = magazine.alloc(&ask(7).context(Context::Atomic)).unwrap();
        assert_eq!((again.range() == range, machine.map(again.range())), (cpu > 5, Ok(())));
    }
}

#[test]
fn a_size_comes_from_the_pool_of_the_node_behind_the_own_one() {
    let machine = SimMachine::new(3);
    let space = space(&machine, 1 << 20);
    let fill = |node: u32, size: u64| {
        let areas: Vec<_> = (0..2).map(|_| space.alloc(node, &ask(size)).unwrap()).collect();
        areas.into_iter().for_each(|area| space.free(area).unwrap());
        space.purge(Purge::Drain);
    };
    let mut magazine = space.magazine(0).unwrap();
    let mut adds = |size: u64| {
        let before = space.stats().areas;
        let _area = magazine.alloc(&ask(size)).unwrap();
        space.stats().areas - before
    };
    fill(0, 5);
    fill(2, 7);
    // Until that has no more.
    assert_eq!([adds(7), adds(7)], [0, 0]);
    fill(1, 9);
    assert_eq!(space.stats().pooled_areas, 4);
    assert_eq!([adds(9), adds(9)], [0, 0]);
    // The own one alone.
    assert_eq!([adds(9), adds(5), adds(11)], [1, 0, 1]);
    drop(magazine);
    assert_eq!(space.validate(), Ok(()));
}
