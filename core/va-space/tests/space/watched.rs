//! A machine that calls a test at its locks, as another CPU may call then, and records the ranges that it flushes.

use crate::{Standard, ask, pages};
use std::mem::take;
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;
use std::time::Duration;
use va_base::{Context, HeapMachine, LockClass, Pages, VaRange, Watch};
use va_space::{Area, Drained, Purge, Purged, VmapSpace};

type Meanwhile = Box<dyn FnOnce() + Send>;

/// A moment at which the space calls the machine.
#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    /// A lock of this class is about to be taken.
    Lock(LockClass),
    /// A table is allocated.
    Table,
}

#[derive(Default)]
struct Watcher {
    at: Mutex<Option<(At, Meanwhile)>>,
    flushed: Mutex<Vec<VaRange>>,
}

impl Watch for Watcher {
    fn admits_table(&self, _bytes: usize) -> bool {
        self.is_at(At::Table);
        true
    }

    fn locking(&self, class: LockClass) {
        self.is_at(At::Lock(class));
    }

    fn flushed(&self, ranges: &[VaRange]) {
        self.flushed.lock().unwrap().extend(ranges);
    }
}

type Machine = HeapMachine<parking_lot::RawMutex, Watcher>;
type Space = VmapSpace<&'static Machine, Standard>;

fn space() -> (&'static Machine, &'static Space) {
    let machine: &'static Machine = Box::leak(Box::new(HeapMachine::watched(1, Watcher::default())));
    let all = pages(0, 1 << 20);
    (machine, Box::leak(Box::new(VmapSpace::new(all, all, machine).unwrap())))
}

impl Watcher {
    /// Calls `meanwhile` at the next such moment.
    fn at(&self, at: At, meanwhile: impl FnOnce() + Send + 'static) {
        *self.at.lock().unwrap() = Some((at, Box::new(meanwhile)));
    }

    fn is_at(&self, now: At) {
        let meanwhile = self.at.lock().unwrap_or_else(PoisonError::into_inner).take_if(|(at, _)| *at == now);
        meanwhile.into_iter().for_each(|(_, meanwhile)| meanwhile());
    }

    fn flushes(&self) -> Vec<VaRange> {
        take(&mut self.flushed.lock().unwrap())
    }
}

#[test]
fn pages_that_are_freed_during_a_count_are_not_busy() {
    let (machine, space) = space();
    let areas: Vec<_> = (0..100).map(|_| space.alloc(0, &ask(300)).unwrap()).collect();
    machine
        .watcher
        .at(At::Lock(LockClass::Pool), || areas.into_iter().for_each(|area| space.free(area).unwrap()));
    assert_eq!(space.stats().busy_pages, Pages::new(0));
}

#[test]
fn sp1_holds_while_the_pages_of_an_area_wait_for_a_table() {
    let (machine, space) = space();
    // With holes below, and at the end of the space.
    for (nth, first) in (0..).zip([10, 100, (1 << 20) - 5]) {
        let seen: &'static Mutex<Vec<_>> = Box::leak(Box::default());
        machine.watcher.at(At::Table, || {
            seen.lock().unwrap().push((space.validate(), space.stats().busy_pages.get()));
        });
        let _area = space.alloc_at(pages(first, first + 5)).unwrap();
        assert!(seen.lock().unwrap().iter().all(|seen| *seen == (Ok(()), 5 * nth)), "{seen:?}");
    }
    assert_eq!(space.stats().areas, 3);
}

#[test]
fn a_drain_ends_while_a_free_is_between_its_count_and_its_list() {
    let (machine, space) = space();
    let area = space.alloc(0, &ask(1 << 16)).unwrap();
    assert!(area.size() > space.lazy_max());
    let purged: &'static Mutex<Vec<_>> = Box::leak(Box::default());
    machine.watcher.at(At::Lock(LockClass::Lazy), move || {
        // By a thread: without an end it would run until the free goes on.
        let (ends, ended) = mpsc::channel();
        thread::spawn(move || ends.send(space.drain()));
        purged.lock().unwrap().extend(ended.recv_timeout(Duration::from_secs(20)));
    });
    space.free(area).unwrap();
    let left = Pages::new(1 << 16);
    assert_eq!(*purged.lock().unwrap(), [Purged { areas: 0, left, waiting: false }]);
    // The free, or the next call, drains what the worker missed.
    assert_eq!((space.drain().left, space.validate()), (Pages::new(0), Ok(())));
}

#[test]
fn a_drain_counts_the_magazine_whose_owner_is_in_a_call() {
    let (machine, space) = space();
    let area = space.alloc(0, &ask(2)).unwrap();
    space.free(area).unwrap();
    space.purge(Purge::Drain);
    let mut magazine = space.magazine(0).unwrap();
    let area = magazine.alloc(&ask(3)).unwrap();
    magazine.free(area).unwrap();
    let drained: &'static Mutex<Vec<Drained>> = Box::leak(Box::default());
    // The magazine is refilled under its lock.
    machine.watcher.at(At::Lock(LockClass::Pool), || {
        drained.lock().unwrap().push(space.drain_magazines());
        // A request tries again: the owner may leave its call.
        let passes = space.stats().purges;
        assert!(space.alloc(0, &ask(1 << 20)).is_err());
        assert_eq!(space.stats().purges, passes + 4);
    });
    let _area = magazine.alloc(&ask(2)).unwrap();
    assert_eq!(*drained.lock().unwrap(), [Drained { busy: 1, ..Drained::default() }]);
}

#[test]
fn a_flush_covers_the_hull_of_what_was_freed_and_no_more() {
    let (machine, space) = space();
    let mut areas: Vec<_> = (0..10).map(|_| space.alloc(0, &ask(3)).unwrap()).collect();
    let hull = VaRange::new(areas[3].start(), areas[7].range().end()).unwrap();
    [7, 5, 3].into_iter().for_each(|at| space.free(areas.remove(at)).unwrap());
    space.purge(Purge::Drain);
    assert_eq!(machine.watcher.flushes(), [hull]);
    // A round that has ended is not covered again.
    let mut magazine = space.magazine(0).unwrap();
    let held: Vec<Area> = (0..4).map(|_| magazine.alloc(&ask(500)).unwrap()).collect();
    for area in held {
        let range = area.range();
        magazine.free(area).unwrap();
        space.purge(Purge::Aliases);
        assert_eq!(machine.watcher.flushes(), [range]);
        magazine.drain();
        space.purge(Purge::Drain);
        assert_eq!(machine.watcher.flushes(), [range]);
        space.purge(Purge::Aliases);
        assert!(machine.watcher.flushes().is_empty(), "the round is empty");
    }
}

#[test]
fn a_failure_beside_a_free_is_not_remembered() {
    let (machine, space) = space();
    let whole = space.alloc(0, &ask(1 << 20)).unwrap();
    // The free has counted its pages, and they are in no list yet. It runs no slice, which would be a return.
    machine.watcher.at(At::Lock(LockClass::Lazy), || assert!(space.alloc(0, &ask(1 << 20)).is_err()));
    space.free_in(Context::Atomic, whole).unwrap();
    assert!(space.alloc(0, &ask(1 << 20)).is_ok());
}
