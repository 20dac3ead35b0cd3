//! Magazines: what they save, what they hold, and when they give it back.

#![expect(clippy::unwrap_used, reason = "a test may")]

use va_base::{Pages, Request, VaRange};
use va_sim::machine::{Flushing, SimMachine, lockings};
use va_space::config::Default as Ours;
use va_space::{MAGAZINES_MAX, Purge, SpaceError, State, VmapSpace};

const FIRST: u64 = 0xf_ffc9_0000_0000;

fn space(machine: &SimMachine, size: u64) -> VmapSpace<&SimMachine, Ours> {
    let extent = VaRange::from_pages(FIRST, FIRST + size).unwrap();
    VmapSpace::new(extent, extent, machine).unwrap()
}

fn ask(size: u64) -> Request {
    Request::pages(size).unwrap()
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
        // Until pools are what they will be.
        let pairs = 3 * 16_384 / size + 1000;
        (0..pairs).for_each(|_| pair());
        let before = lockings();
        (0..pairs).for_each(|_| pair());
        let taken: u64 = lockings().iter().zip(before).map(|(now, then)| now - then).sum();
        let each = taken as f64 / pairs as f64;
        println!("{size} pages: {each:.4} locks a pair");
        assert!(each <= if size <= 2 { 0.05 } else { 0.4 }, "{size} pages: {each}");
        drop(magazine);
        assert_eq!(space.validate(), Ok(()));
    }
}

#[test]
fn mg1_mg2_what_it_holds_is_bounded_and_told() {
    let machine = SimMachine::new(2);
    let space = space(&machine, 1 << 22);
    let mut magazine = space.magazine(0).unwrap();
    let mut state = 1u64;
    let (mut out, mut most_cached, mut most_pooled) = (Vec::new(), 0, 0);
    for round in 0..8 {
        // Ever more is out, so that more comes back than the stock may hold.
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
            assert!(stats.cached_pages.get() <= (1 << 16) + 16_384 + 300, "MG1: {stats:?}");
            assert!(stats.lazy_pages.get() - space.lazy_pages().get() <= 16_384 + 300, "MG1: {stats:?}");
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
fn what_is_cached_elsewhere_is_told_and_recalled() {
    let machine = SimMachine::new(2);
    let space = space(&machine, 64);
    let mut theirs = space.magazine(1).unwrap();
    // One from the index, then rows of 2, 4 and 8.
    let mut kept: Vec<_> = (0..8).map(|_| theirs.alloc(&ask(1)).unwrap()).collect();
    let stats = space.stats();
    assert_eq!((stats.cached_pages.get(), stats.cached_areas), (7, 7));
    let refused = space.alloc(0, &ask(60)).unwrap_err();
    assert!(matches!(refused, SpaceError::NoSpace { cached, .. } if cached == Pages::new(7)), "{refused}");
    assert_eq!(space.stats().cached_areas, 7, "nobody has handed anything back yet");
    theirs.free(kept.pop().unwrap()).unwrap();
    assert_eq!(space.stats().cached_areas, 0, "their next call did");
    for area in kept {
        theirs.free(area).unwrap();
    }
    theirs.drain();
    assert_eq!(space.alloc(0, &ask(64)).map(|area| area.size()), Ok(Pages::new(64)));
}

#[test]
fn its_own_stock_goes_back_before_its_request_fails() {
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
fn an_impossible_request_leaves_the_stock_alone() {
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
    for round in 0..2 * MAGAZINES_MAX as u32 {
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
fn there_are_so_many_magazines_and_no_more() {
    let machine = SimMachine::new(2);
    let space = space(&machine, 4096);
    let held: Vec<_> = (0..MAGAZINES_MAX as u32).map(|cpu| space.magazine(cpu).unwrap()).collect();
    assert_eq!(space.magazine(0).err(), Some(SpaceError::NoMagazine { limit: MAGAZINES_MAX }));
    drop(held);
    assert!(space.magazine(0).is_ok());
    machine.refuse_after(u64::MAX, 0);
    let extent = space.extent();
    drop(space);
    machine.refuse_after(u64::MAX, 5);
    let young = VmapSpace::<_, Ours>::new(extent, extent, &machine).unwrap();
    assert_eq!(young.magazine(0).err(), Some(SpaceError::NoTable));
}

#[test]
fn sp2_aliases_in_magazines_are_flushed_though_they_stay_lazy() {
    let machine = SimMachine::new(2);
    let space = space(&machine, 4096);
    let mut magazine = space.magazine(0).unwrap();
    let area = magazine.alloc(&ask(3)).unwrap();
    let range = area.range();
    machine.map(range).unwrap();
    machine.unmap(range);
    magazine.free(area).unwrap();
    assert_eq!(machine.unclean(range), 3);
    space.purge(Purge::Aliases);
    assert_eq!(machine.unclean(range), 0);
    let seen: Vec<_> = space.areas().map(|seen| seen.state).collect();
    assert_eq!(seen, [State::Idle]);
}

#[test]
fn an_area_of_another_node_goes_home() {
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
fn a_row_from_the_index_lies_side_by_side_and_is_paid_for() {
    let machine = SimMachine::new(1);
    let space = space(&machine, 4096);
    let mut magazine = space.magazine(0).unwrap();
    let areas: Vec<_> = (0..16).map(|_| magazine.alloc(&ask(3)).unwrap()).collect();
    let starts: Vec<u64> = areas.iter().map(|area| area.start().page_floor() - FIRST).collect();
    assert_eq!(starts, (0..16).map(|n| 3 * n).collect::<Vec<_>>());
    assert_eq!((space.validate(), space.stats().holes), (Ok(()), 1));
    // Every other goes back, for which no slab is lent any more.
    machine.refuse_after(0, 0);
    for (n, area) in areas.into_iter().enumerate() {
        if n % 2 == 0 {
            magazine.free(area).unwrap();
        }
    }
    magazine.drain();
    space.purge(Purge::Full);
    assert_eq!((space.validate(), space.stats().holes), (Ok(()), 9));
}

#[test]
fn a_row_that_lacks_a_table_leaves_nothing_taken() {
    let machine = SimMachine::new(1);
    let space = space(&machine, 1 << 22);
    let mut magazine = space.magazine(0).unwrap();
    let taken: Vec<_> = (0..63).map(|_| magazine.alloc(&ask(16)).unwrap()).collect();
    machine.refuse_after(u64::MAX, 0);
    // The next 4 MiB have no slots: the row is given up, then the single area.
    let before = space.stats();
    let more: Vec<_> = (0..20).map_while(|_| magazine.alloc(&ask(16)).ok()).collect();
    assert!(more.len() < 20, "{before:?}");
    assert_eq!(space.validate(), Ok(()));
    machine.refuse_after(u64::MAX, u64::MAX);
    assert!(magazine.alloc(&ask(16)).is_ok());
    for area in taken.into_iter().chain(more) {
        magazine.free(area).unwrap();
    }
    drop(magazine);
    assert_eq!(space.validate(), Ok(()));
}

#[test]
fn sp2_what_is_away_waits_for_its_flush_wherever_its_magazine_goes() {
    // Whether the round has boarded when its magazine is dropped, or not yet.
    for boarded in [false, true] {
        let machine = SimMachine::new(1);
        machine.drain_elsewhere(true);
        let space = space(&machine, 1 << 22);
        machine.set_flushing(Flushing::WhenTold);
        let mut magazine = space.magazine(0).unwrap();
        let areas: Vec<_> = (0..41).map(|_| magazine.alloc(&ask(200)).unwrap()).collect();
        let ranges: Vec<_> = areas.iter().map(va_space::Area::range).collect();
        for area in areas {
            machine.map(area.range()).unwrap();
            machine.unmap(area.range());
            magazine.free(area).unwrap();
        }
        // 8200 pages are more than one CPU may leave lazy: the round is sealed.
        assert_eq!(space.lazy_pages(), Pages::new(8200));
        assert_eq!(space.validate(), Ok(()));
        if boarded {
            assert!(space.drain().waiting);
        }
        drop(magazine);
        assert_eq!((space.validate(), space.lazy_pages()), (Ok(()), Pages::new(8200)), "boarded: {boarded}");
        let mut other = space.magazine(0).unwrap();
        let early = other.alloc(&ask(200)).unwrap();
        machine.map(early.range()).unwrap();
        space.purge(Purge::Drain);
        machine.complete_flushes();
        space.purge(Purge::Drain);
        machine.complete_flushes();
        space.purge(Purge::Drain);
        assert_eq!((space.validate(), space.lazy_pages()), (Ok(()), Pages::new(0)), "boarded: {boarded}");
        let late = other.alloc(&ask(200)).unwrap();
        machine.map(late.range()).unwrap();
        assert!(ranges.contains(&late.range()) && !ranges.contains(&early.range()));
    }
}

#[test]
fn what_landed_is_the_stock_again_without_a_lock() {
    let machine = SimMachine::new(1);
    machine.drain_elsewhere(true);
    let space = space(&machine, 1 << 22);
    let mut magazine = space.magazine(0).unwrap();
    let areas: Vec<_> = (0..41).map(|_| magazine.alloc(&ask(200)).unwrap()).collect();
    for area in areas {
        magazine.free(area).unwrap();
    }
    assert_eq!((space.stats().cached_areas, space.lazy_pages()), (0, Pages::new(8200)));
    assert_eq!((space.drain().waiting, space.stats().flushes), (false, 1));
    assert_eq!((space.stats().cached_areas, space.lazy_pages()), (41, Pages::new(0)));
    let before = lockings();
    let again: Vec<_> = (0..41).map(|_| magazine.alloc(&ask(200)).unwrap()).collect();
    assert_eq!(lockings(), before);
    // Nothing is due: a worker that is woken too late does nothing.
    assert_eq!((space.drain().waiting, space.stats().flushes), (false, 1));
    assert_eq!(space.validate(), Ok(()));
    drop(again);
}
