//! A machine that allocates nothing: calls that need memory fail and change nothing; a free needs none.

use crate::{Linux69, OneLock52, Standard, ask, pages, space};
use va_base::AllocError;
use va_sim::machine::SimMachine;
use va_space::config::WithTrees;
use va_space::{Config, Purge, SpaceError, VmapSpace};

#[test]
fn sp3_a_free_and_its_purge_need_nothing_from_the_machine() {
    fn frees<C: Config>() {
        let machine = SimMachine::new(4);
        let space = space::<C>(&machine, 20_000);
        let areas: Vec<_> = (0..5000).map(|n| space.alloc(n, &ask(1 + u64::from(n) % 3)).unwrap()).collect();
        machine.fail_after(0, 0);
        // Every other one first, to create as many holes as possible.
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
    frees::<Standard>();
    frees::<Linux69>();
    frees::<OneLock52>();
    frees::<WithTrees<Standard>>();
}

#[test]
fn sp4_a_failed_table_or_slab_changes_nothing() {
    fn failed<C: Config>(slabs: u64, tables: u64) -> SpaceError {
        let machine = SimMachine::new(2);
        let space = space::<C>(&machine, 1 << 30);
        // Far apart, so that each needs tables and the index many holes.
        let windows = |n: u64| pages(n * 5000, n * 5000 + 2000);
        let fill = |n| space.alloc(0, &ask(7).within(windows(n)));
        let _first: Vec<_> = (0..40).map(|n| fill(n).unwrap()).collect();
        machine.fail_after(slabs, tables);
        let before = space.stats();
        let error = (40..4000).find_map(|n| fill(n).err());
        machine.fail_after(u64::MAX, u64::MAX);
        assert_eq!(space.validate(), Ok(()));
        assert!(space.stats().areas >= before.areas);
        let again = fill(3999).map(|area| area.start());
        assert_eq!(again, Ok(windows(3999).start()), "the failure left the place as it was");
        error.unwrap()
    }
    assert_eq!(failed::<Standard>(u64::MAX, 3), SpaceError::NoTable);
    assert_eq!(failed::<Linux69>(u64::MAX, 0), SpaceError::NoTable);
    assert!(matches!(failed::<Standard>(0, u64::MAX), SpaceError::Index(AllocError::NoMeta { .. })));
    assert!(matches!(
        failed::<WithTrees<Standard>>(0, u64::MAX),
        SpaceError::Index(AllocError::NoMeta { .. })
    ));
    assert!(matches!(failed::<Linux69>(1, u64::MAX), SpaceError::Index(AllocError::NoMeta { .. })));
}

#[test]
fn sp4_a_failed_creation_of_a_space_frees_everything() {
    for tables in 0..8 {
        let machine = SimMachine::new(4);
        machine.fail_after(u64::MAX, tables);
        let made = VmapSpace::<_, Standard>::new(pages(0, 10), pages(0, 10), &machine);
        assert_eq!(made.err(), (tables < 6).then_some(SpaceError::NoTable), "4 for the map, a group, a node");
        assert_eq!(machine.tables(), 0);
        machine.fail_after(u64::MAX, tables);
        let made = VmapSpace::<_, Linux69>::new(pages(0, 10), pages(0, 10), &machine);
        assert!(made.is_err(), "3 more nodes");
        assert_eq!(machine.tables(), 0);
    }
}

#[test]
fn sp4_a_space_that_begins_once_and_fails_frees_everything_when_it_is_dropped() {
    let (mut failed, mut begun) = (0, 0);
    for tables in 0..16 {
        let machine = SimMachine::new(4);
        let busy = [pages(2, 4)];
        machine.fail_after(u64::MAX, tables);
        let twice = VmapSpace::<_, Standard>::with_busy(pages(0, 10), pages(0, 10), &machine, &busy).err();
        machine.fail_after(u64::MAX, tables);
        let mut space = VmapSpace::<_, Standard>::empty();
        let made = space.init_once(pages(0, 10), pages(0, 10), &machine, &busy);
        assert_eq!(made.err(), twice);
        machine.fail_after(u64::MAX, u64::MAX);
        if made.is_err() {
            failed += 1;
        } else {
            begun += 1;
            let again = space.init_once(pages(0, 10), pages(0, 10), &machine, &[]);
            assert_eq!(again.err(), Some(SpaceError::AlreadyReady));
            assert!(space.alloc_at(pages(3, 5)).is_err() && space.alloc_at(pages(4, 5)).is_ok());
        }
        drop(space);
        assert_eq!(machine.tables(), 0);
    }
    assert!(failed > 5 && begun > 5, "{failed} failed, {begun} began");
}

#[test]
fn sp4_a_node_that_cannot_be_made_leaves_the_space_as_it_was_and_is_made_later() {
    let machine = SimMachine::new(4096);
    let space = space::<Standard>(&machine, 1 << 20);
    assert_eq!(space.nodes(), 4096);
    let first = space.alloc(0, &ask(3)).unwrap();
    let (before, tables) = (space.stats(), machine.tables());
    machine.fail_after(u64::MAX, 0);
    assert_eq!(space.alloc(4095, &ask(3)), Err(SpaceError::NoTable));
    assert_eq!(space.magazine(9).err(), Some(SpaceError::NoTable));
    // A caller that may not wait allocates no node: the area has no owner.
    let atomic = ask(3).context(va_base::Context::Atomic);
    let area = space.alloc(4095, &atomic).unwrap();
    assert_eq!(space.find(area.start()).unwrap().owner, None);
    space.free(area).unwrap();
    space.purge(Purge::Full);
    assert_eq!((space.stats().free_pages, machine.tables()), (before.free_pages, tables));
    machine.fail_after(u64::MAX, u64::MAX);
    let area = space.alloc(4095, &ask(3)).unwrap();
    assert_eq!(space.find(area.start()).unwrap().owner, Some(4095));
    assert_eq!(machine.tables(), tables + 2, "a group and a node");
    space.free(area).unwrap();
    space.free(first).unwrap();
    assert_eq!(space.purge(Purge::Drain).left.get(), 0);
    assert_eq!(space.validate(), Ok(()));
    drop(space);
    assert_eq!(machine.tables(), 0);
}

#[test]
fn sp4_a_lookup_without_a_record_leaves_nothing_behind() {
    // Room for 16 areas in each node's tree without a slab; the index itself has all it needs for adjacent areas.
    let machine = SimMachine::new(1);
    let space = space::<WithTrees<Standard>>(&machine, 1 << 20);
    machine.fail_after(0, u64::MAX);
    let areas: Vec<_> = (0..16).map(|_| space.alloc(0, &ask(3)).unwrap()).collect();
    let before = space.stats();
    assert!(matches!(space.alloc(0, &ask(3)), Err(SpaceError::Index(AllocError::NoMeta { .. }))));
    // The second of the congruent areas finds no record: the first is released.
    let parts = [(0, va_base::PAGE_SIZE), (16 * va_base::PAGE_SIZE, va_base::PAGE_SIZE)];
    space.free(areas.into_iter().next_back().unwrap()).unwrap();
    space.purge(Purge::Full);
    assert_eq!(space.stats().areas, 15);
    let failed = space.alloc_congruent(&va_tree::Congruent::new(&parts, va_base::PAGE_SIZE).unwrap());
    assert!(matches!(failed, Err(SpaceError::Index(AllocError::NoMeta { .. }))), "{failed:?}");
    assert_eq!(space.validate(), Ok(()));
    assert_eq!((space.stats().areas, space.stats().holes), (15, before.holes));
    let _again = space.alloc(0, &ask(3)).unwrap();
    assert_eq!(space.stats().free_pages, before.free_pages);
    drop(space);
    assert_eq!(machine.tables(), 0);
}
