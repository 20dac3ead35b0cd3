//! Room that a request finds: in blocks of its CPU, and in the space.

use crate::points::blocks;
use std::cell::Cell;
use std::sync::mpsc::{Receiver, Sender, channel};
use va_base::{
    Context, Drain, Epoch, LockClass, Machine, Meta, Pages, Platform, Record, Request, Table, Va, VaRange,
};
use va_block::config::{Linux64, OneMap63, Standard};
use va_block::{BlockError, Blocks, Config};
use va_sim::machine::SimMachine;
use va_space::{Purge, SpaceError, VmapSpace};

/// Allocates `pages` pages from the only block that there can be; `None` if it has no room.
fn alloc(blocks: &Blocks<&SimMachine, Standard>, pages: u64) -> Option<Va> {
    match blocks.alloc(0, pages) {
        Ok(at) => Some(at),
        Err(BlockError::Space(SpaceError::NoSpace { .. })) => None,
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn pages_that_are_recycled_beside_the_open_run_are_one_run_with_it() {
    let machine = SimMachine::new(1);
    let blocks = blocks::<Standard>(&machine, 1024);
    let all: Vec<_> = (0..15).map(|_| alloc(&blocks, 64).unwrap()).collect();
    let last = alloc(&blocks, 54).unwrap();
    // This request sorts the block by the ten pages of its open run, and leaves no current one.
    assert_eq!(alloc(&blocks, 64), None);
    blocks.free(0, last, 54).unwrap();
    assert_eq!(alloc(&blocks, 64), Some(last), "54 pages and the 10 of the run");
    assert_eq!(blocks.validate(), Ok(()));
    // The same on the other side: the run begins where a mapping ends that dies.
    blocks.free(0, last, 64).unwrap();
    let first = alloc(&blocks, 30).unwrap();
    assert_eq!((first, alloc(&blocks, 64)), (last, None));
    blocks.free(0, all[14], 64).unwrap();
    assert_eq!(alloc(&blocks, 64), Some(all[14]));
    blocks.free(0, first, 30).unwrap();
    assert_eq!((alloc(&blocks, 64), alloc(&blocks, 1)), (Some(first), None));
    assert_eq!(blocks.validate(), Ok(()));
}

fn no_record<C: Config>() {
    let machine = SimMachine::new(1);
    let blocks = blocks::<C>(&machine, 64 * 1024);
    // The space has what it needs to allocate without waiting.
    let space = blocks.space();
    let request = Request::pages(1024).unwrap();
    let areas: Vec<_> = (0..64).map(|_| space.alloc(0, &request).unwrap()).collect();
    areas.into_iter().for_each(|area| space.free(area).unwrap());
    space.purge(Purge::Full);
    let flushes = machine.flushes();
    for _ in 0..100 {
        // No block has begun, so none has a record.
        assert_eq!(blocks.alloc_in(Context::Atomic, 0, 1), Err(BlockError::WouldBlock));
        assert_eq!(space.lazy_pages(), Pages::new(0));
    }
    // One that may sleep, while the machine has no memory for a record.
    let mut granted = 0;
    let first = loop {
        machine.fail_after(u64::MAX, granted);
        match blocks.alloc(0, 1) {
            Ok(at) => break at,
            Err(_) => assert_eq!(space.lazy_pages(), Pages::new(0), "{granted} tables"),
        }
        granted += 1;
        assert!(granted < 20);
    };
    assert_eq!((first, granted > 0), (space.extent().start(), true));
    assert_eq!((blocks.present(), blocks.validate()), (1, Ok(())));
    assert_eq!(machine.flushes(), flushes);
}

#[test]
fn an_area_that_gets_no_record_is_not_lazy() {
    no_record::<Standard>();
    no_record::<Linux64>();
    no_record::<OneMap63>();
}

thread_local! {
    /// The thread that stops at a queue, after it has locked a bucket of the lookup: whether it has.
    static STOPS: Cell<Option<bool>> = const { Cell::new(None) };
    /// The locks that this thread took.
    static LOCKINGS: Cell<u64> = const { Cell::new(0) };
}

/// A machine on which a thread stops before it lists the block that it begins.
#[derive(Clone)]
struct Stopping {
    inner: &'static SimMachine,
    stopped: Sender<()>,
    goes_on: &'static parking_lot::Mutex<Receiver<()>>,
}

impl Platform for Stopping {
    fn alloc_meta<T: Record>(&self, min: usize) -> Option<&'static mut [T]> {
        self.inner.alloc_meta(min)
    }

    fn free_meta<T: Record>(&self, slab: Meta<&'static mut [T]>) {
        self.inner.free_meta(slab);
    }
}

impl Machine for Stopping {
    type Lock = <SimMachine as Machine>::Lock;
    type PurgeLock = <SimMachine as Machine>::PurgeLock;
    type OwnerLock = <SimMachine as Machine>::OwnerLock;

    fn cpus_possible(&self) -> u32 {
        self.inner.cpus_possible()
    }

    fn cpus_online(&self) -> u32 {
        self.inner.cpus_online()
    }

    fn alloc_table<T: Table>(&self) -> Option<&'static T> {
        self.inner.alloc_table()
    }

    fn free_table<T: Table>(&self, table: Meta<&'static T>) {
        self.inner.free_table(table);
    }

    fn flush(&self, ranges: &[VaRange]) -> Epoch {
        self.inner.flush(ranges)
    }

    fn completed(&self, epoch: Epoch) -> bool {
        self.inner.completed(epoch)
    }

    fn drain(&self) -> Drain {
        self.inner.drain()
    }

    fn reclaim(&self) -> u64 {
        self.inner.reclaim()
    }

    fn locking(&self, class: LockClass) {
        LOCKINGS.set(LOCKINGS.get() + 1);
        assert!(LOCKINGS.get() < 100_000, "a request that spins");
        match (STOPS.get(), class) {
            (Some(false), LockClass::Lookup) => STOPS.set(Some(true)),
            (Some(true), LockClass::Queue) => {
                STOPS.set(None);
                self.stopped.send(()).unwrap();
                self.goes_on.lock().recv().unwrap();
            }
            _ => {}
        }
    }
}

/// Returns blocks in `pages` pages on one CPU, what tells that a thread has stopped, and what lets one go on.
fn stopping(pages: u64) -> (&'static SimMachine, &'static Blocks<Stopping>, Receiver<()>, Sender<()>) {
    let inner: &'static SimMachine = Box::leak(Box::new(SimMachine::new(1)));
    let ((stopped, stops), (go_on, goes_on)) = (channel(), channel());
    let goes_on = Box::leak(Box::new(parking_lot::Mutex::new(goes_on)));
    let machine = Stopping { inner, stopped, goes_on };
    let window = VaRange::from_pages(1 << 20, (1 << 20) + pages).unwrap();
    let space = VmapSpace::new(window, window, machine.clone()).unwrap();
    let blocks: &'static Blocks<Stopping> = Box::leak(Box::new(Blocks::new(space, machine).unwrap()));
    (inner, blocks, stops, go_on)
}

/// Blocks in `pages` pages, on a CPU of which another thread is about to list a block, with a page for itself. `then`
/// gets them, and a call that lets that thread list its block and returns when it has.
fn beside_a_block_that_begins(
    pages: u64,
    then: impl FnOnce(&'static SimMachine, &'static Blocks<Stopping>, Box<dyn FnOnce() + Send>),
) {
    let (inner, blocks, stops, go_on) = stopping(pages);
    let other = std::thread::spawn(|| {
        STOPS.set(Some(false));
        blocks.alloc(0, 1).unwrap()
    });
    stops.recv().unwrap();
    then(
        inner,
        blocks,
        Box::new(move || {
            go_on.send(()).unwrap();
            other.join().unwrap();
        }),
    );
    assert_eq!(blocks.validate(), Ok(()));
}

#[test]
fn a_request_gets_room_while_threads_stand_between_taking_a_block_out_of_their_lane_and_listing_it() {
    const LANES: usize = 2;
    let (_, blocks, stops, go_on) = stopping(1 << 16);
    let others = [(); LANES].map(|()| {
        let other = std::thread::spawn(|| {
            let mut lane = blocks.lane(0).unwrap();
            let all: Vec<Va> = (0..16).map(|_| lane.alloc(64).unwrap()).collect();
            all.into_iter().for_each(|at| lane.free(at, 64).unwrap());
            STOPS.set(Some(true));
            lane.alloc(1).unwrap();
        });
        stops.recv().unwrap();
        other
    });
    // No other thread can release their blocks, which are dead.
    assert_eq!((blocks.present(), blocks.stats().live_pages), (LANES as u64, Pages::new(0)));
    assert!(blocks.alloc(0, 1).is_ok());
    (0..LANES).for_each(|_| go_on.send(()).unwrap());
    others.into_iter().for_each(|other| other.join().unwrap());
    assert_eq!(blocks.validate(), Ok(()));
}

#[test]
fn a_request_that_was_about_to_fail_finds_a_block_that_began_meanwhile() {
    beside_a_block_that_begins(1024, |machine, blocks, lists| {
        let (mut calls, mut lists) = (0, Some(lists));
        machine.on_reclaim(Some(Box::new(move || {
            calls += 1;
            // The second attempt in vain: the block begins before the request gives up.
            if calls == 2
                && let Some(lists) = lists.take()
            {
                lists();
            }
            0
        })));
        assert_eq!(blocks.alloc(0, 1), Ok(Va::from_page((1 << 20) + 1)));
    });
}

#[test]
fn a_block_that_a_new_one_replaces_is_found_by_the_room_that_it_has() {
    beside_a_block_that_begins(2048, |_, blocks, lists| {
        let alloc = |pages| blocks.alloc(0, pages).unwrap();
        // Of the other block ten pages are left, by which it is sorted when a request for more finds none.
        let _lives: Vec<_> = (0..15).map(|_| alloc(64)).collect();
        let last = alloc(54);
        assert!(blocks.alloc(0, 11).is_err());
        // It is used again for less, and has more room once the last mapping was flushed.
        let ten = alloc(10);
        blocks.free(0, ten, 10).unwrap();
        blocks.free(0, last, 54).unwrap();
        assert!(!blocks.unmap_aliases().waiting);
        lists();
        // The new block has a page less than sixteen mappings.
        for _ in 0..16 {
            assert!(blocks.alloc(0, 64).is_ok());
        }
        assert!(blocks.alloc(0, 64).is_err());
    });
}
