//! Purges of aliases: each covers all that was freed before it, and none flushes the same twice.

use crate::ask;
use crate::magazine::space;
use va_base::VaRange;
use va_sim::machine::{Flushing, SimMachine};
use va_space::{Area, Purge};

/// Maps an area and unmaps it, as its user does before it is freed; returns its range.
fn used(machine: &SimMachine, area: &Area) -> VaRange {
    machine.map(area.range()).unwrap();
    machine.unmap(area.range());
    area.range()
}

#[test]
fn sp2_what_a_magazine_holds_is_flushed_once_for_each_free() {
    let machine = SimMachine::new(2);
    let space = space(&machine, 4096);
    let (mut magazine, mut idle) = (space.magazine(0).unwrap(), space.magazine(1).unwrap());
    let [low, inside, high] = [3, 1, 2].map(|pages| magazine.alloc(&ask(pages)).unwrap());
    let other = idle.alloc(&ask(5)).unwrap();
    let mut begun = 0;
    // The last one is inside the bounds of those before.
    for (area, frees) in [(other, &mut idle), (low, &mut magazine)] {
        used(&machine, &area);
        frees.free(area).unwrap();
    }
    for area in [high, inside] {
        let range = used(&machine, &area);
        magazine.free(area).unwrap();
        assert_ne!(machine.unclean(range), 0);
        begun += 1;
        for how in 0..5 {
            match how {
                3 => _ = space.purge(Purge::Aliases),
                4 => _ = space.purge_and_wait(Purge::Aliases),
                _ => _ = space.purge_aliases(&[]),
            }
            assert_eq!((machine.flushes(), machine.unclean(space.extent())), (begun, 0));
        }
        // All of them are lazy, and wait for the end of their round.
        assert_eq!((space.stats().flushes, space.validate()), (begun, Ok(())));
    }
}

#[test]
fn a_range_of_the_caller_is_flushed_by_each_call_alone() {
    let machine = SimMachine::new(1);
    let space = space(&machine, 4096);
    let mut magazine = space.magazine(0).unwrap();
    let [area, mine] = [1, 7].map(|pages| magazine.alloc(&ask(pages)).unwrap());
    let freed = used(&machine, &area);
    magazine.free(area).unwrap();
    space.purge_aliases(&[]);
    machine.map(freed).unwrap();
    machine.unmap(freed);
    for call in 2..4 {
        let dirty = used(&machine, &mine);
        space.purge_aliases(&[dirty]);
        assert_eq!((machine.flushes(), machine.unclean(dirty), machine.unclean(freed)), (call, 0, 1));
    }
}

#[test]
fn sp2_a_round_as_large_as_the_one_before_is_flushed() {
    let machine = SimMachine::new(1);
    let space = space(&machine, 4096);
    let mut magazine = space.magazine(0).unwrap();
    for round in 1..4 {
        // Of the same pages, at the same place.
        let area = magazine.alloc(&ask(3)).unwrap();
        let range = used(&machine, &area);
        magazine.free(area).unwrap();
        (0..2).for_each(|_| _ = space.purge_aliases(&[]));
        // The drain of the magazine makes the area lazy in the node, which flushes it again.
        assert_eq!((machine.flushes(), machine.unclean(range)), (2 * round - 1, 0));
        magazine.drain();
        (0..2).for_each(|_| _ = space.purge_aliases(&[]));
        assert_eq!(machine.flushes(), 2 * round);
    }
}

#[test]
fn sp2_a_purge_of_aliases_waits_for_the_flush_that_covers_a_round_already() {
    let machine = SimMachine::new(1);
    machine.set_flushing(Flushing::OnRequest);
    let space = space(&machine, 4096);
    let mut magazine = space.magazine(0).unwrap();
    let [early, late, mine] = [1, 1, 1].map(|pages| magazine.alloc(&ask(pages)).unwrap());
    let first = used(&machine, &early);
    magazine.free(early).unwrap();
    for _ in 0..3 {
        assert!(space.purge_aliases(&[]).waiting && machine.unclean(first) > 0);
        assert_eq!(machine.flushes(), 1);
    }
    machine.complete_flushes();
    for _ in 0..3 {
        assert!(!space.purge_aliases(&[]).waiting);
        assert_eq!((machine.flushes(), machine.unclean(first)), (1, 0));
    }
    // A free after the next flush has begun is in the one after it.
    assert!(space.purge_aliases(&[used(&machine, &mine)]).waiting);
    let second = used(&machine, &late);
    magazine.free(late).unwrap();
    assert!(space.purge_aliases(&[]).waiting);
    machine.complete_flushes();
    assert!(space.purge_aliases(&[]).waiting && machine.unclean(second) > 0);
    assert_eq!(machine.flushes(), 3);
    machine.complete_flushes();
    assert!(!space.purge_aliases(&[]).waiting);
    assert_eq!((machine.flushes(), machine.unclean(second)), (3, 0));
}
