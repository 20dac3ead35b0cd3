//! Every n-th request for memory fails, in every call that makes some: once, three times, and for ever.
//!
//! A call whose request fails returns the error and changes nothing, or succeeds without that memory. Then the same
//! call succeeds with memory, all areas are freed without any, and the machine gets back all that it supplied.

use crate::{Linux69, OneLock52, Standard, ask, at, pages, space};
use va_base::{AllocError, PAGE_SIZE, Pages, VaRange};
use va_sim::machine::SimMachine;
use va_space::config::WithTrees;
use va_space::{Config, Purge, ReshapeError, SpaceError, VmapSpace};

type Space<'m, C> = VmapSpace<&'m SimMachine, C>;
type Seen = (va_space::Stats, Vec<VaRange>);

const SIZE: u64 = 1 << 16;
/// The page at which the area of [`setup`] begins that calls change. It has eight pages, and free ones above.
const OWN: u64 = 3 * 97;

fn setup<C: Config>(space: &Space<'_, C>) {
    // Holes between areas: most calls make one more.
    for n in 0..97 {
        let _by_its_start = space.alloc_at(pages(3 * n, 3 * n + 2)).unwrap();
    }
    let _by_its_start = space.alloc_at(pages(OWN, OWN + 8)).unwrap();
}

fn seen<C: Config>(space: &Space<'_, C>) -> Seen {
    assert_eq!(space.validate(), Ok(()));
    let mut areas = Vec::new();
    let mut from = space.extent().start();
    while let Some(area) = space.find_above(from) {
        areas.push(area.range);
        from = area.range.end();
    }
    (space.stats(), areas)
}

fn is_short(error: SpaceError) -> bool {
    matches!(error, SpaceError::NoTable | SpaceError::Index(AllocError::NoMeta { .. }))
}

/// Returns the error if a call failed, which must be one of missing memory.
fn failed<T>(result: Result<T, SpaceError>) -> Option<SpaceError> {
    result.err().inspect(|&error| assert!(is_short(error), "{error}"))
}

fn reshaped<T>(result: Result<T, ReshapeError>) -> Option<SpaceError> {
    match result.err()? {
        ReshapeError::NoMeta(error) => failed::<()>(Err(error)),
        other => panic!("{other}"),
    }
}

/// Calls with every n-th request failing, until none fails. Returns how many calls failed.
fn every_nth<C: Config>(name: &str, call: impl Fn(&Space<'_, C>) -> Option<SpaceError>) -> u64 {
    let mut errors = 0;
    for (of_slabs, count) in
        [true, false].into_iter().flat_map(|of| [1, 3, u64::MAX].map(|count| (of, count)))
    {
        for n in 0.. {
            let machine = SimMachine::new(2);
            let space = space::<C>(&machine, SIZE);
            setup(&space);
            let before = seen(&space);
            let (slabs, tables) = if of_slabs { (n, u64::MAX) } else { (u64::MAX, n) };
            machine.fail_some(slabs, tables, count);
            let denied = machine.denials();
            let error = call(&space);
            let was_denied = machine.denials() > denied;
            machine.fail_after(u64::MAX, u64::MAX);
            if let Some(error) = error {
                assert!(was_denied, "{name}, request {n}: {error}");
                assert_eq!(seen(&space), before, "{name}, request {n}, {count} times: {error}");
                assert_eq!(call(&space), None, "{name}, request {n}: again");
                errors += 1;
            }
            // SP3: a free needs no memory.
            machine.fail_after(0, 0);
            for range in seen(&space).1 {
                space.free_at(range.start()).unwrap_or_else(|error| panic!("{name}, request {n}: {error}"));
            }
            space.purge(Purge::Full);
            let (stats, areas) = seen(&space);
            assert_eq!(
                (stats.free_pages.get(), stats.holes, areas.len()),
                (SIZE, 1, 0),
                "{name}, request {n}"
            );
            drop(space);
            assert_eq!(machine.allocated(), 0, "{name}, request {n}: memory is lost");
            if !was_denied {
                break;
            }
        }
    }
    errors
}

fn all<C: Config>() -> u64 {
    let mut errors = 0;
    // Far from others, so that each needs a table of the map.
    errors += every_nth::<C>("alloc", |space| failed(space.alloc(1, &ask(5).within(pages(40_000, 50_000)))));
    errors += every_nth::<C>("alloc_highest", |space| failed(space.alloc_highest(&ask(5))));
    errors += every_nth::<C>("alloc_at", |space| failed(space.alloc_at(pages(30_000, 30_007))));
    errors += every_nth::<C>("alloc_owned", |space| {
        failed(space.alloc_owned(0, &ask(600)).map(va_space::OwnedArea::into_area))
    });
    errors += every_nth::<C>("alloc_congruent", |space| {
        let parts = [(0, PAGE_SIZE), (9000 * PAGE_SIZE, 2 * PAGE_SIZE)];
        failed(space.alloc_congruent(&va_tree::Congruent::new(&parts, PAGE_SIZE).unwrap()))
    });
    errors += every_nth::<C>("split", |space| reshaped(space.split(at(OWN + 3))));
    errors += every_nth::<C>("resize_at", |space| reshaped(space.resize_at(at(OWN), Pages::new(9000))));
    errors += every_nth::<C>("grow_at", |space| reshaped(space.grow_at(at(OWN), Pages::new(9000))));
    errors += every_nth::<C>("resize_at, smaller", |space| reshaped(space.resize_at(at(OWN), Pages::new(3))));
    errors += every_nth::<C>("join", |space| reshaped(space.join(at(3)).or(Ok(pages(0, 1)))));
    errors += every_nth::<C>("magazine", |space| {
        let mut magazine = match space.magazine(1) {
            Ok(magazine) => magazine,
            Err(error) => return failed::<()>(Err(error)),
        };
        let area = magazine.alloc(&ask(2).within(pages(40_000, 50_000)));
        failed(area.map(|area| magazine.free(area).unwrap()))
    });
    errors += every_nth::<C>("purge, drain, tick, shrink", |space| {
        space.free_at(at(3)).unwrap();
        space.purge(Purge::Drain);
        space.drain();
        space.tick();
        space.shrink();
        space.shrink_index(8);
        space.drain_magazines();
        None
    });
    errors
}

#[test]
fn sp3_sp4_every_nth_request_for_memory_may_fail() {
    let errors = [all::<Standard>(), all::<Linux69>(), all::<OneLock52>(), all::<WithTrees<Standard>>()];
    assert!(errors.iter().all(|&errors| errors > 5), "too few calls failed: {errors:?}");
}
