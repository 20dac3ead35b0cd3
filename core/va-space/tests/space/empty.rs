//! An empty space, before `init` and after one that failed: requests fail, nothing is found, a purge does nothing, and
//! then a space begins there.

use crate::{Linux69, OneLock52, Standard, ask, at, pages};
use va_base::{Context, PAGE_SIZE, Pages};
use va_sim::machine::SimMachine;
use va_space::config::{WithBestFit, WithTrees};
use va_space::{Config, Drained, Magazine, Purge, Purged, SpaceError, Stats, VmapSpace};
use va_tree::Congruent;

/// Makes every call of a space, of which none has an effect.
fn does_nothing<C: Config>(space: &VmapSpace<&SimMachine, C>) {
    let parts = [(0, PAGE_SIZE), (2 * PAGE_SIZE, PAGE_SIZE)];
    let congruent = Congruent::new(&parts, PAGE_SIZE).unwrap();
    let start = at(0);
    for request in [ask(1), ask(1).context(Context::Atomic), ask(1).within(pages(0, 4))] {
        for got in [space.alloc(0, &request), space.alloc_highest(&request), space.alloc_best(&request)] {
            let failed = got.unwrap_err();
            assert!(
                matches!(failed, SpaceError::Impossible { .. } | SpaceError::NoSpace { .. }),
                "{failed:?}"
            );
        }
    }
    assert!(matches!(space.alloc_at(pages(0, 1)), Err(SpaceError::Index(_))));
    assert!(space.alloc_congruent(&congruent).is_err());
    for how in [Purge::Drain, Purge::Full, Purge::Aliases] {
        assert_eq!((space.purge(how), space.purge_and_wait(how)), (Purged::default(), Purged::default()));
    }
    assert_eq!(space.purge_aliases(&[pages(0, 1)]), Purged::default());
    assert_eq!((space.tick(), space.drain()), (Purged::default(), Purged::default()));
    assert_eq!((space.shrink(), space.shrink_map(usize::MAX), space.shrink_index(100)), (0, 0, 0));
    assert_eq!(space.magazine(0).map(|_: Magazine<'_, _, C>| ()), Err(SpaceError::NoTable));
    assert_eq!((space.drain_magazines(), space.drain_cpu(0)), (Drained::default(), Drained::default()));
    assert!(space.free_at(start).is_err() && space.free_at_in(Context::Atomic, start).is_err());
    assert!(space.note(start, 7).is_err() && space.detach(start).is_err());
    assert!(space.release_at(Context::Sleeping, start).is_err());
    assert!(space.split(at(1)).is_err() && space.join(start).is_err());
    assert!(space.grow_at(start, Pages::new(2)).is_err() && space.resize_at(start, Pages::new(2)).is_err());
    assert!(space.find(start).is_none() && space.find_enclosing(start).is_none());
    assert!(space.find_above(start).is_none() && space.areas().next().is_none());
    space.for_each_lazy(|area| panic!("{area}"));
    let stats = space.stats();
    assert_eq!(Stats { purges: 0, flushes: 0, ..stats }, Stats::default());
    assert_eq!(
        (space.idle_pages(), space.lazy_pages(), space.validate()),
        (stats.free_pages, Pages::new(0), Ok(()))
    );
}

fn begins_late<C: Config>() {
    let machine = SimMachine::new(2);
    let mut space = VmapSpace::<_, C>::empty();
    does_nothing(&space);
    machine.fail_after(u64::MAX, 2);
    assert_eq!(space.init(pages(0, 64), pages(0, 64), &machine), Err(SpaceError::NoTable));
    machine.fail_after(u64::MAX, u64::MAX);
    does_nothing(&space);
    assert_eq!((machine.tables(), machine.flushes()), (0, 0));
    space.init(pages(0, 64), pages(0, 64), &machine).unwrap();
    let area = space.alloc(1, &ask(64)).unwrap();
    space.free(area).unwrap();
    assert_eq!(space.alloc(1, &ask(63)).map(|area| area.range()), Ok(pages(0, 63)));
    assert_eq!((machine.flushes(), space.validate()), (1, Ok(())));
}

#[test]
fn an_empty_space_does_nothing_and_can_begin() {
    begins_late::<Standard>();
    begins_late::<Linux69>();
    begins_late::<OneLock52>();
    begins_late::<WithTrees<Standard>>();
    begins_late::<WithBestFit<Standard>>();
}
