//! Interleavings of frees with the worker that they wake.

use super::{Arc, Area, Space, Tight, alloc, ask, model_within, space_on, spawn};
use crate::testing::TestMachine;
use std::vec::Vec;
use va_base::sync::atomic::Ordering;
use va_base::{Context, Pages, VaRange};

/// Returns a space in which more than one lazy page is too much, on a machine whose worker drains.
fn with_worker(pages: u64) -> (Arc<Space<Tight>>, &'static TestMachine) {
    let elsewhere = TestMachine { cpus: 1, elsewhere: true, ..TestMachine::default() };
    let (space, machine) = space_on::<Tight>(pages, elsewhere);
    (Arc::new(space), machine)
}

fn free_in_interrupt(space: &Space<Tight>, area: Area) {
    assert_eq!(space.free_in(Context::Atomic, area), Ok(()));
}

/// Checks, when all threads have ended, that the worker was woken again since `woken`, or has no work.
fn check_wake(space: &Space<Tight>, machine: &TestMachine, woken: u64) {
    let again = machine.drains.load(Ordering::Relaxed) > woken;
    assert!(space.lazy_pages() <= Pages::new(1) || again, "a wake was lost");
    assert_eq!(space.validate(), Ok(()));
}

/// A free in an interrupt beside the worker's drain: the worker finds any excess that it leaves, or is woken for it.
#[test]
fn a_free_in_an_interrupt_beside_a_drain_loses_no_wake() {
    loses_no_wake(|space| _ = space.drain());
}

/// The same beside a worker that ticks until the pass has ended.
#[test]
fn a_free_in_an_interrupt_beside_ticks_loses_no_wake() {
    loses_no_wake(|space| while space.tick().left > space.lazy_max() || space.is_purging() {});
}

fn loses_no_wake(drain: fn(&Space<Tight>)) {
    model_within(2, move || {
        let (space, machine) = with_worker(4);
        let areas: Vec<Area> = (0..4).map(|_| alloc(&space, 0, 1)).collect();
        let begun = machine.drains.load(Ordering::Relaxed);
        let mut late = Vec::new();
        for (n, area) in areas.into_iter().enumerate() {
            if n < 2 {
                free_in_interrupt(&space, area);
            } else {
                late.push(area);
            }
        }
        assert_eq!(machine.drains.load(Ordering::Relaxed), begun + 1, "the worker is woken");
        let theirs = space.clone();
        let worker = spawn(move || drain(&theirs));
        for area in late {
            free_in_interrupt(&space, area);
        }
        assert!(worker.join().is_ok());
        check_wake(&space, machine, begun + 1);
    });
}

/// Two frees, one of more than may be lazy, beside the worker's drain: it ends although that area is in no list yet.
#[test]
fn a_drain_ends_beside_two_frees_and_loses_no_wake() {
    // Two would take minutes.
    model_within(1, || {
        let (space, machine) = with_worker(4);
        let [early, late] = [alloc(&space, 0, 1), alloc(&space, 0, 1)];
        let large = alloc(&space, 0, 2);
        free_in_interrupt(&space, early);
        let woken = machine.drains.load(Ordering::Relaxed);
        let (theirs, others) = (space.clone(), space.clone());
        let free = spawn(move || free_in_interrupt(&theirs, large));
        let worker = spawn(move || others.drain());
        free_in_interrupt(&space, late);
        assert!(free.join().is_ok() && worker.join().is_ok());
        check_wake(&space, machine, woken);
    });
}

/// A pass took the lists before the worker runs, and ends during its drain. It misses the area of a free, which has
/// found by then that the worker was woken.
#[test]
fn a_drain_does_not_end_with_a_pass_that_was_begun_before() {
    model_within(2, || {
        let (space, machine) = with_worker(4);
        // It has no owner, and goes to the index: that ends a slice.
        let low = VaRange::from_pages(1, 4).map(|low| ask(2).within(low));
        let Some(Ok(early)) = low.map(|request| space.alloc(0, &request)) else { panic!("no area") };
        let late = alloc(&space, 0, 2);
        free_in_interrupt(&space, early);
        let woken = machine.drains.load(Ordering::Relaxed);
        while space.lazy_pages() > Pages::new(0) {
            space.tick();
        }
        assert!(space.is_purging(), "all is settled, and the pass has not ended");
        let (theirs, others) = (space.clone(), space.clone());
        let free = spawn(move || free_in_interrupt(&theirs, late));
        let worker = spawn(move || others.drain());
        let purged = space.tick();
        assert!(free.join().is_ok() && worker.join().is_ok(), "{purged:?}");
        check_wake(&space, machine, woken);
    });
}
