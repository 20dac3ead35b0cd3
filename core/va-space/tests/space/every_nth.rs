//! Every n-th request for memory fails, in every call that makes some: once, three times, and for ever.
//!
//! A call whose request fails returns the error and changes nothing, or succeeds without that memory. Then the same
//! call succeeds with memory, all areas are freed without any, and the machine gets back all that it supplied.

use crate::{Linux69, OneLock52, Standard, ask, at, pages, space};
use va_base::{AllocError, PAGE_SIZE, Pages, VaRange};
use va_sim::every_nth::{Subject, every_nth};
use va_sim::machine::SimMachine;
use va_space::config::WithTrees;
use va_space::{Area, Config, Purge, ReshapeError, SpaceError, VmapSpace};

const SIZE: u64 = 1 << 16;
/// The page at which the area of [`fresh`] begins that calls change. It has eight pages, and free ones above.
const OWN: u64 = 3 * 97;
/// The page from which on areas of one page have holes of one page between them.
const CROWD: u64 = 20_000;

type Space<'m, C> = VmapSpace<&'m SimMachine, C>;

struct Run<'m, C: Config> {
    machine: &'m SimMachine,
    space: Space<'m, C>,
}

/// Creates a space with as many areas as it has memory for, so that the next hole needs more.
fn fresh<C: Config>(machine: &SimMachine) -> Run<'_, C> {
    machine.fail_after(u64::MAX, u64::MAX);
    let space = space::<C>(machine, SIZE);
    // Holes between areas: most calls make one more.
    for n in 0..97 {
        let _by_its_start = space.alloc_at(pages(3 * n, 3 * n + 2)).unwrap();
    }
    // It touches an area below.
    for pages in [pages(OWN - 1, OWN), pages(OWN, OWN + 8)] {
        let _by_its_start = space.alloc_at(pages).unwrap();
    }
    machine.fail_after(0, u64::MAX);
    (0..).map(|n| space.alloc_at(pages(CROWD + 2 * n, CROWD + 2 * n + 1))).find(Result::is_err);
    machine.fail_after(u64::MAX, u64::MAX);
    Run { machine, space }
}

impl<C: Config> Subject for Run<'_, C> {
    type Seen = (va_space::Stats, Vec<VaRange>);
    type Error = SpaceError;
    const KINDS: &'static [&'static str] = &SimMachine::KINDS;

    fn seen(&self) -> Self::Seen {
        assert_eq!(self.space.validate(), Ok(()));
        let mut areas = Vec::new();
        let mut from = self.space.extent().start();
        while let Some(area) = self.space.find_above(from) {
            areas.push(area.range);
            from = area.range.end();
        }
        // A table that a failed call added to the map remains, without an area, as a slab of the index does.
        (va_space::Stats { tables: 0, ..self.space.stats() }, areas)
    }

    fn is_of_memory(&error: &SpaceError) -> bool {
        matches!(error, SpaceError::NoTable | SpaceError::Index(AllocError::NoMeta { .. }))
    }

    fn machine(&self) -> &SimMachine {
        self.machine
    }

    fn end(self) {
        for range in self.seen().1 {
            self.space.free_at(range.start()).unwrap();
        }
        self.space.purge(Purge::Full);
        let (stats, areas) = self.seen();
        assert_eq!((stats.free_pages.get(), stats.holes, areas.len()), (SIZE, 1, 0));
        drop(self.space);
        assert_eq!(self.machine.allocated(), 0, "memory is lost");
    }
}

fn range(result: Result<Area, SpaceError>) -> Result<VaRange, SpaceError> {
    result.map(|area| area.range())
}

fn reshaped<T>(result: Result<T, ReshapeError>) -> Result<T, SpaceError> {
    result.map_err(|error| match error {
        ReshapeError::NoMeta(error) => error,
        other => panic!("{other}"),
    })
}

fn all<C: Config>() -> u64 {
    let machine = SimMachine::new(2);
    let mut errors = 0;
    let mut try_call = |name: &str, call: &dyn Fn(&Space<'_, C>) -> Result<VaRange, SpaceError>| {
        errors += every_nth(name, || fresh::<C>(&machine), |run| call(&run.space)).iter().sum::<u64>();
    };
    let far = pages(40_000, 50_000);
    // Far from others, so that each needs a table of the map.
    try_call("alloc", &|space| range(space.alloc(1, &ask(5).within(far))));
    try_call("alloc_highest", &|space| range(space.alloc_highest(&ask(5))));
    try_call("alloc_best", &|space| range(space.alloc_best(&ask(5).within(far))));
    try_call("alloc_at", &|space| range(space.alloc_at(pages(30_000, 30_007))));
    try_call("alloc_owned", &|space| {
        range(space.alloc_owned(0, &ask(600)).map(va_space::OwnedArea::into_area))
    });
    try_call("alloc_congruent", &|space| {
        let parts = [(0, PAGE_SIZE), (9000 * PAGE_SIZE, 2 * PAGE_SIZE)];
        let areas = va_tree::Congruent::new(&parts, PAGE_SIZE).unwrap();
        space.alloc_congruent(&areas).map(|base| VaRange::from_size(base, PAGE_SIZE).unwrap())
    });
    try_call("split", &|space| reshaped(space.split(at(OWN + 3))).map(|(low, _)| low));
    try_call("resize_at", &|space| reshaped(space.resize_at(at(OWN), Pages::new(9000))));
    try_call("grow_at", &|space| reshaped(space.grow_at(at(OWN), Pages::new(9000))));
    try_call("resize_at, smaller", &|space| reshaped(space.resize_at(at(OWN), Pages::new(3))));
    try_call("join", &|space| reshaped(space.join(at(OWN))));
    try_call("supply", &|space| space.supply(900).map(|()| VaRange::ALL));
    try_call("magazine", &|space| {
        let mut magazine = space.magazine(1)?;
        let area = magazine.alloc(&ask(2).within(far))?;
        let range = area.range();
        magazine.free(area).unwrap();
        Ok(range)
    });
    try_call("with_busy", &|_| {
        let busy = [pages(7, 9), pages(50_000, 60_000)];
        let other = VmapSpace::<_, C>::with_busy(pages(0, SIZE), far, &machine, &busy)?;
        assert_eq!(other.validate(), Ok(()));
        Ok(other.find(at(7)).unwrap().range)
    });
    try_call("purge, drain, tick, shrink", &|space| {
        let freed = space.free_at(at(3)).unwrap();
        space.purge(Purge::Drain);
        space.drain();
        space.tick();
        space.shrink();
        space.shrink_index(8);
        space.shrink_map(8);
        space.drain_magazines();
        Ok(freed)
    });
    errors
}

#[test]
fn sp3_sp4_every_nth_request_for_memory_may_fail() {
    let errors = [all::<Standard>(), all::<Linux69>(), all::<OneLock52>(), all::<WithTrees<Standard>>()];
    assert!(errors.iter().all(|&errors| errors > 40), "too few calls failed: {errors:?}");
}
