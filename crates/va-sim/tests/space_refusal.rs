//! A machine that lends nothing: what needs memory fails and changes nothing, what frees needs none.

#![expect(clippy::unwrap_used, reason = "a test may")]

use va_base::{AllocError, Request, VaRange};
use va_sim::machine::SimMachine;
use va_space::config::{Default as Ours, Linux69, OneLock52};
use va_space::{Config, Purge, SpaceError, VmapSpace};

const FIRST: u64 = 0xf_ffc9_0000_0000;

fn pages(first: u64, end: u64) -> VaRange {
    VaRange::from_pages(FIRST + first, FIRST + end).unwrap()
}

fn space<C: Config>(machine: &SimMachine, size: u64) -> VmapSpace<&SimMachine, C> {
    VmapSpace::new(pages(0, size), pages(0, size), machine).unwrap()
}

fn ask(size: u64) -> Request {
    Request::pages(size).unwrap()
}

#[test]
fn sp3_a_free_and_its_purge_need_nothing_from_the_machine() {
    fn frees<C: Config>() {
        let machine = SimMachine::new(4);
        let space = space::<C>(&machine, 20_000);
        let areas: Vec<_> = (0..5000).map(|n| space.alloc(n, &ask(1 + u64::from(n) % 3)).unwrap()).collect();
        machine.refuse_after(0, 0);
        // Every other one first, so that as many holes as possible come to be.
        let (even, odd): (Vec<_>, Vec<_>) = areas.into_iter().enumerate().partition(|(n, _)| n % 2 == 0);
        for half in [even, odd] {
            for (_, area) in half {
                space.free(area).unwrap();
            }
            space.purge(Purge::Full);
            assert_eq!(space.validate(), Ok(()));
        }
        assert_eq!((space.stats().holes, space.stats().free_pages.get()), (1, 20_000));
    }
    frees::<Ours>();
    frees::<Linux69>();
    frees::<OneLock52>();
}

#[test]
fn sp4_a_refused_table_or_slab_changes_nothing() {
    fn refused<C: Config>(slabs: u64, tables: u64) -> SpaceError {
        let machine = SimMachine::new(2);
        let space = space::<C>(&machine, 1 << 30);
        // Far apart, so that each needs tables and the index many holes.
        let windows = |n: u64| pages(n * 5000, n * 5000 + 2000);
        let fill = |n| space.alloc(0, &ask(7).within(windows(n)));
        let _first: Vec<_> = (0..40).map(|n| fill(n).unwrap()).collect();
        machine.refuse_after(slabs, tables);
        let before = space.stats();
        let error = (40..4000).find_map(|n| fill(n).err());
        machine.refuse_after(u64::MAX, u64::MAX);
        assert_eq!(space.validate(), Ok(()));
        assert!(space.stats().areas >= before.areas);
        let again = fill(3999).map(|area| area.start());
        assert_eq!(again, Ok(windows(3999).start()), "the refusal left the place as it was");
        error.unwrap()
    }
    assert_eq!(refused::<Ours>(u64::MAX, 3), SpaceError::NoTable);
    assert_eq!(refused::<Linux69>(u64::MAX, 0), SpaceError::NoTable);
    assert!(matches!(refused::<Ours>(0, u64::MAX), SpaceError::Index(AllocError::NoMeta { .. })));
    assert!(matches!(refused::<Linux69>(1, u64::MAX), SpaceError::Index(AllocError::NoMeta { .. })));
}

#[test]
fn sp4_a_space_that_cannot_begin_hands_everything_back() {
    for tables in 0..8 {
        let machine = SimMachine::new(4);
        machine.refuse_after(u64::MAX, tables);
        let made = VmapSpace::<_, Ours>::new(pages(0, 10), pages(0, 10), &machine);
        assert_eq!(made.err(), (tables < 7).then_some(SpaceError::NoTable), "3 for the map, 4 nodes");
        assert_eq!(machine.tables(), 0);
    }
}
