//! Requests that take pages of other CPUs' blocks.

use super::{Reusing, Tiny, Watcher, alloc, blocks, free, map, model, spawn};
use crate::BlockError;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use va_base::{Context, Va};
use va_space::Purge;

/// Room for two blocks, of which CPU 0 has one that is full; CPU 1 has its state.
fn one_is_full() -> (Arc<Tiny<Reusing>>, &'static Watcher) {
    let (blocks, machine) = blocks::<Reusing>();
    let at = map(machine, blocks.alloc(1, 4), 4);
    free(&blocks, machine, at, 4);
    blocks.shrink();
    blocks.space().purge(Purge::Full);
    alloc(&blocks, machine, 4);
    (blocks, machine)
}

/// Allocates a page on a CPU. That may fail only if the last block had not begun when the request was made.
fn page(blocks: &Tiny<Reusing>, machine: &Watcher, cpu: u32, began: u64) -> Option<Va> {
    let begun = blocks.moves() > began;
    match blocks.alloc(cpu, 1) {
        Ok(at) => Some(map(machine, Ok(at), 1)),
        Err(error) => {
            assert!(!begun && matches!(error, BlockError::Space(_)), "CPU {cpu}: {error}");
            None
        }
    }
}

#[test]
fn three_requests_of_two_cpus_where_one_block_may_begin() {
    model(1, || {
        let (blocks, machine) = one_is_full();
        let began = blocks.moves();
        let others = [0, 1].map(|cpu| {
            let theirs = blocks.clone();
            spawn(move || page(&theirs, machine, cpu, began))
        });
        let mine = page(&blocks, machine, 1, began);
        let theirs = others.map(|other| other.join().unwrap_or(None));
        assert!(mine.or(theirs[0]).or(theirs[1]).is_some(), "one of them begins the block");
        assert_eq!((blocks.present(), blocks.validate()), (2, Ok(())));
        // The block has a page for each of them.
        assert_eq!(blocks.moves(), began + 1);
        assert!(page(&blocks, machine, 0, began).is_some());
    });
}

#[test]
fn two_requests_of_another_cpu_beside_a_drain_of_the_lane_that_has_the_only_room() {
    model(1, || {
        let (blocks, machine) = one_is_full();
        let Ok(mut lane) = blocks.lane(0) else { panic!("no lane") };
        map(machine, lane.alloc(1), 1);
        let others = [(); 2].map(|()| {
            let theirs = blocks.clone();
            spawn(move || map(machine, theirs.alloc(1, 1), 1))
        });
        blocks.drain_lanes(None);
        let theirs = others.map(|other| other.join().unwrap_or(Va::ZERO));
        assert_ne!(theirs[0], theirs[1]);
        assert_eq!(machine.mapped.load(Ordering::SeqCst).count_ones(), 7);
        assert_eq!(blocks.validate(), Ok(()));
    });
}

#[test]
fn vb9_a_lane_that_parks_beside_two_requests_leaves_its_room_shown() {
    model(1, || {
        let (blocks, machine) = one_is_full();
        let Ok(mut lane) = blocks.lane(0) else { panic!("no lane") };
        map(machine, lane.alloc(1), 1);
        // Its own CPU's request may find nothing there, just before the block is listed.
        let others = [0, 1].map(|cpu| {
            let theirs = blocks.clone();
            spawn(move || theirs.alloc_in(Context::Atomic, cpu, 1).map(|at| machine.map(at, 1)))
        });
        lane.park();
        assert!(blocks.alloc(1, 1).map(|at| machine.map(at, 1)).is_ok(), "three pages for three requests");
        for other in others {
            assert!(other.join().is_ok());
        }
        assert_eq!(blocks.validate(), Ok(()));
    });
}
