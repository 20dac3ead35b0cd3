//! Notes, detached areas, the last byte of every area and the lazy ones, compared with simple maps.

use crate::{FIRST, Linux69, OneLock52, Standard, ask, space};
use std::collections::{BTreeMap, BTreeSet};
use va_base::{Align, Context, PAGE_SIZE, Pages, Request, Va, VaRange};
use va_sim::effort::some;
use va_sim::machine::SimMachine;
use va_space::config::WithTrees;
use va_space::{Config, DetachedArea, Purge, ReleaseError, State, VmapSpace};

fn pages(first: u64, end: u64) -> VaRange {
    VaRange::from_pages(first, end).unwrap()
}

/// Pages and note of each busy area by first page, and the detached areas.
#[derive(Default)]
struct Model {
    busy: BTreeMap<u64, (u64, Option<u64>)>,
    detached: Vec<DetachedArea>,
    lazy: BTreeSet<(u64, u64)>,
}

fn agrees<C: Config>(space: &VmapSpace<&SimMachine, C>, model: &Model, page: u64) {
    if let Some((&start, &(count, note))) = model.busy.range(..=page).next_back() {
        // Any byte, the very last one included.
        for at in [Va::from_page(start), Va::new((start + count) * PAGE_SIZE - 1)] {
            let seen = space.find_enclosing(at).unwrap();
            assert_eq!((seen.range, seen.note), (pages(start, start + count), note));
        }
        let seen = space.find(Va::from_page(start)).unwrap();
        assert_eq!((seen.range, seen.note, seen.state), (pages(start, start + count), note, State::Busy));
        let above =
            space.find_above(Va::new((start + count) * PAGE_SIZE)).map(|seen| (seen.range, seen.note));
        let next = model.busy.range(start + 1..).next();
        assert_eq!(above, next.map(|(&start, &(count, note))| (pages(start, start + count), note)));
    }
    for area in &model.detached {
        let at = area.range().start();
        assert_eq!((space.find(at), space.find_enclosing(at)), (None, None));
        assert!(matches!(space.free_at(at), Err(ReleaseError::NoArea { .. })));
        assert!(matches!(space.detach(at), Err(ReleaseError::NoArea { .. })));
        assert!(matches!(
            space.release_at(Context::Sleeping, Va::new(at.get() + 1)),
            Err(ReleaseError::NoArea { .. })
        ));
        assert!(matches!(space.note(at, 1), Err(ReleaseError::NoArea { .. })));
    }
}

fn notes<C: Config>(seed: u64) {
    let machine = SimMachine::new(3);
    let extent = pages(FIRST, FIRST + 3000);
    let space = VmapSpace::<_, C>::new(extent, extent, &machine).unwrap();
    let (mut model, mut state) = (Model::default(), seed);
    let mut roll = |below: u64| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) % below
    };
    for _ in 0..some(1500) {
        let nth = roll(1 << 20) as usize % model.busy.len().max(1);
        let at = model.busy.iter().nth(nth).map(|(&page, &(count, note))| (page, count, note));
        match (roll(16), at) {
            (0..5, _) | (_, None) => {
                let size = 1 + roll(9);
                let Ok(area) = space.alloc(roll(3) as u32, &Request::pages(size).unwrap()) else { continue };
                machine.map(area.range()).unwrap();
                let seen = space.find(area.start()).unwrap();
                assert_eq!(seen.note, None, "a new area has the note of an old one");
                model.busy.insert(area.start().page_floor(), (size, None));
            }
            (5..9, Some((page, count, _))) => {
                let note = roll(u64::MAX);
                space.note(Va::from_page(page), note).unwrap();
                model.busy.insert(page, (count, Some(note)));
            }
            (9..12, Some((page, count, _))) => {
                machine.unmap(pages(page, page + count));
                space.free_at(Va::from_page(page)).unwrap();
                model.busy.remove(&page);
                model.lazy.insert((page, page + count));
            }
            (12, Some((page, count, note))) => {
                let area = space.detach(Va::from_page(page)).unwrap();
                assert_eq!((area.range(), area.note()), (pages(page, page + count), note));
                model.busy.remove(&page);
                model.detached.push(area);
            }
            (13, _) => {
                if let Some(area) = model.detached.pop() {
                    let (page, end) = area.range().whole_pages();
                    machine.unmap(area.range());
                    let at = area.range().start();
                    if roll(2) == 0 {
                        space.release(Context::Sleeping, area).unwrap();
                    } else {
                        assert_eq!(space.release_at(Context::Sleeping, at), Ok(pages(page, end)));
                    }
                    let again = space.release_at(Context::Sleeping, at);
                    assert!(matches!(again, Err(ReleaseError::NoArea { .. })));
                    model.lazy.insert((page, end));
                }
            }
            (14, Some((page, count, note))) if count > 1 => {
                let cut = page + 1 + roll(count - 1);
                space.split(Va::from_page(cut)).unwrap();
                model.busy.insert(page, (cut - page, note));
                model.busy.insert(cut, (page + count - cut, None));
                if roll(2) == 0 {
                    space.join(Va::from_page(cut)).unwrap();
                    model.busy.remove(&cut);
                    model.busy.insert(page, (count, note));
                }
            }
            _ => {
                space.purge([Purge::Drain, Purge::Full][roll(2) as usize]);
                model.lazy.clear();
            }
        }
        assert_eq!(space.validate(), Ok(()));
        agrees(&space, &model, FIRST + roll(3000));
        if space.stats().purges == 0 || model.lazy.is_empty() {
            let mut lazy = BTreeSet::new();
            space.for_each_lazy(|range| assert!(lazy.insert(range.whole_pages()), "{range} twice"));
            assert_eq!(lazy, model.lazy);
        }
    }
    for area in model.detached {
        machine.unmap(area.range());
        space.release(Context::Atomic, area).unwrap();
    }
    for page in model.busy.into_keys() {
        space.free_at(Va::from_page(page)).unwrap();
    }
    space.purge(Purge::Full);
    assert_eq!((space.stats().areas, space.stats().free_pages), (0, Pages::new(3000)));
}

#[test]
fn notes_and_detached_areas_agree_with_a_map() {
    for seed in 1..5 {
        notes::<Standard>(seed);
        notes::<WithTrees<Standard>>(seed);
        notes::<Linux69>(seed);
        notes::<OneLock52>(seed);
    }
}

#[test]
fn a_magazine_takes_detached_areas_into_its_round() {
    let machine = SimMachine::new(2);
    let extent = pages(FIRST, FIRST + 4096);
    let space = VmapSpace::<_, Standard>::new(extent, extent, &machine).unwrap();
    let mut magazine = space.magazine(1).unwrap();
    let starts: Vec<Va> =
        (0..3).map(|_| magazine.alloc(&Request::pages(2).unwrap()).unwrap().start()).collect();
    let area = space.detach(starts[0]).unwrap();
    magazine.release(area).unwrap();
    let range = space.detach(starts[1]).unwrap().range();
    assert_eq!(magazine.release_at(starts[1]), Ok(range));
    // Neither twice, nor without a detach.
    for at in &starts[..] {
        assert!(matches!(magazine.release_at(*at), Err(ReleaseError::NoArea { .. })));
    }
    assert_eq!(space.lazy_pages(), Pages::new(0), "the areas are in their node, not in the magazine");
    assert_eq!(space.drain_cpu(1).pages, Pages::new(4));
    assert_eq!((space.lazy_pages(), space.validate()), (Pages::new(4), Ok(())));
}

#[test]
fn a_detached_area_of_another_space_or_released_before_is_an_error() {
    let machine = SimMachine::new(1);
    let [here, there] = [(); 2].map(|()| space::<Standard>(&machine, 64));
    // At one address, of different sizes.
    let [two, three] = [(&here, 2), (&there, 3)].map(|(space, size)| {
        let area = space.alloc(0, &ask(size)).unwrap();
        space.detach(area.start()).unwrap()
    });
    let wrong = here.release(Context::Sleeping, three);
    assert!(matches!(wrong, Err(ReleaseError::Reused { .. })), "{wrong:?}");
    // Another caller releases it by its address, and a third gets the address and detaches it, too: it is of the third.
    let first = here.find_enclosing(pages(FIRST, FIRST + 1).start());
    assert_eq!(first, None, "detached");
    let at = two.range().start();
    here.release_at(Context::Sleeping, at).unwrap();
    here.purge(Purge::Full);
    let again = here.alloc(0, &ask(2)).unwrap();
    assert_eq!(again.start(), at);
    let thirds = here.detach(at).unwrap();
    let late = here.release(Context::Sleeping, two);
    assert!(matches!(late, Err(ReleaseError::Reused { .. })), "{late:?}");
    assert_eq!(here.release(Context::Sleeping, thirds), Ok(()));
    assert_eq!(here.validate(), Ok(()));
}

#[test]
fn an_area_of_the_cache_is_taken_with_a_note_that_is_asked_for_once() {
    fn by_policy<C: Config>() {
        let machine = SimMachine::new(1);
        let extent = pages(FIRST, FIRST + 64);
        let space = VmapSpace::<_, C>::new(extent, extent, &machine).unwrap();
        let mut magazine = space.magazine(0).unwrap();
        let three = Request::pages(3).unwrap();
        // The cache is empty, and no call of the note.
        assert_eq!(magazine.take_noted(&three, |_| panic!("there is no area")), None);
        let _busy = [(); 2].map(|()| magazine.try_alloc(&three).unwrap());
        // From the row that came with the second, then from the areas that were freed and flushed.
        let mut taken = 0;
        for round in 0..40 {
            let mut asked = None;
            let area = magazine.take_noted(&three, |range| {
                assert_eq!(asked.replace(range), None);
                // Not busy yet.
                assert_eq!(space.find(range.start()), None);
                round
            });
            assert_eq!(asked, area.as_ref().map(va_space::Area::range));
            let (at, note) = match area {
                Some(area) => (area.start(), Some(round)),
                None => (magazine.try_alloc(&three).unwrap().start(), None),
            };
            taken += u64::from(note.is_some());
            assert_eq!(space.find(at).unwrap().note, note);
            // One without a note stays, and is found as before.
            let noted = space.try_detach_noted(at);
            assert_eq!(noted.as_ref().and_then(DetachedArea::note), note);
            assert_eq!(noted.or_else(|| space.detach(at).ok()).unwrap().note(), note);
            assert_eq!((space.detach(at).is_err(), space.try_detach_noted(at)), (true, None));
            assert_eq!(magazine.release_at(at).unwrap().start(), at);
            assert!(magazine.release_at(at).is_err());
            space.purge(Purge::Drain);
            assert_eq!(space.validate(), Ok(()));
        }
        assert!(taken > 15, "{taken}");
        // Areas that are not aligned stay where they are.
        let space = VmapSpace::<_, C>::new(extent, extent, &machine).unwrap();
        let mut magazine = space.magazine(0).unwrap();
        let _odd = space.alloc(0, &Request::pages(1).unwrap()).unwrap();
        let _busy = [(); 2].map(|()| magazine.try_alloc(&three).unwrap());
        let cached = space.stats().cached_areas;
        let aligned = three.aligned(Align::from_log2(17).unwrap());
        assert_eq!(magazine.take_noted(&aligned, |range| panic!("{range} is not aligned")), None);
        assert!(cached > 0 && space.stats().cached_areas == cached);
        // Nor is one taken for another window.
        let narrow = three.within(pages(FIRST, FIRST + 32));
        assert_eq!(magazine.take_noted(&narrow, |_| panic!("there is no area")), None);
    }
    by_policy::<Standard>();
    by_policy::<WithTrees<Standard>>();
}

#[test]
fn lazy_areas_are_met_until_their_flush_has_ended() {
    let machine = SimMachine::new(2);
    machine.set_flushing(va_sim::machine::Flushing::OnRequest);
    let extent = pages(FIRST, FIRST + 4096);
    let space = VmapSpace::<_, Standard>::new(extent, extent, &machine).unwrap();
    let window = pages(FIRST + 2000, FIRST + 2100);
    // From a node, from none, and of a size that many share.
    let asks = [(0, 3, None), (1, 300, None), (0, 7, Some(window)), (1, 3, None)];
    let mut out = BTreeSet::new();
    for (cpu, size, within) in asks {
        let request = Request::pages(size).unwrap();
        let area = space.alloc(cpu, &within.map_or(request, |window| request.within(window))).unwrap();
        out.insert(area.range().whole_pages());
        space.free(area).unwrap();
    }
    let lazy = || {
        let mut lazy = BTreeSet::new();
        space.for_each_lazy(|range| _ = lazy.insert(range.whole_pages()));
        lazy
    };
    assert_eq!(lazy(), out);
    assert!(space.purge(Purge::Drain).waiting);
    assert_eq!(lazy(), out, "in flight");
    machine.complete_flushes();
    space.purge(Purge::Drain);
    assert_eq!(lazy(), BTreeSet::new());
}

#[test]
fn a_restored_space_has_the_same_busy_areas_and_notes() {
    fn saved<C: Config>(space: &VmapSpace<&SimMachine, C>) -> Vec<(VaRange, Option<u64>)> {
        let from = space.extent().start();
        let busy = std::iter::successors(space.find_above(from), |area| space.find_above(area.range.end()));
        busy.map(|area| (area.range, area.note)).collect()
    }
    let machine = SimMachine::new(3);
    let extent = pages(FIRST, FIRST + 2000);
    let before = VmapSpace::<_, Standard>::new(extent, extent, &machine).unwrap();
    let mut areas = Vec::new();
    for nth in 0..300u64 {
        let area = before.alloc((nth % 3) as u32, &Request::pages(1 + nth % 7).unwrap()).unwrap();
        if nth % 2 == 0 {
            before.note(area.start(), nth).unwrap();
        }
        areas.push(area);
    }
    // Lazy, pooled and cached areas are not saved.
    for nth in (0..200).rev().step_by(3) {
        before.free(areas.swap_remove(nth)).unwrap();
    }
    let state = saved(&before);
    assert_eq!(state.len(), areas.len());
    assert!(areas.iter().all(|area| state.iter().any(|(range, _)| *range == area.range())));
    assert!(state.iter().filter(|(_, note)| note.is_some()).count() > 90);

    let other = SimMachine::new(2);
    let after = VmapSpace::<_, WithTrees<Linux69>>::new(extent, extent, &other).unwrap();
    after.restore(&state).unwrap();
    assert_eq!(saved(&after), state);
    after.validate().unwrap();
    // A state with an area twice changes nothing.
    let wrong = [&state[..], &[(pages(FIRST, FIRST + 2000), None)]].concat();
    let third = VmapSpace::<_, OneLock52>::new(extent, extent, &other).unwrap();
    assert!(third.restore(&wrong).is_err());
    assert_eq!(saved(&third), []);
    third.restore(&state).unwrap();
    assert_eq!(saved(&third), state);
    for area in areas {
        assert_eq!(after.free_at(area.start()).unwrap(), area.range());
        assert_eq!(third.free_at(area.start()).unwrap(), area.range());
    }
    after.purge(Purge::Drain);
    let all = after.alloc_at(extent).unwrap();
    assert_eq!(all.range(), extent);
    after.validate().unwrap();
}

#[test]
fn an_owned_area_is_freed_when_it_is_dropped() {
    let machine = SimMachine::new(1);
    let space = crate::space::<Standard>(&machine, 64);
    let owned = space.alloc_owned(0, &ask(3)).unwrap();
    let range = owned.range();
    assert_eq!(space.find(range.start()).map(|seen| seen.range), Some(range));
    drop(owned);
    assert_eq!((space.find(range.start()), space.lazy_pages().get()), (None, 3));
    let area = space.alloc_owned(0, &ask(3)).unwrap().into_area();
    assert_eq!((space.lazy_pages().get(), space.free(area)), (3, Ok(())));
}
