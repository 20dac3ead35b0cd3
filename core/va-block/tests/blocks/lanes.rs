//! Lanes beside other callers: their blocks are found, and end, in time.

use crate::points::{blocks, counted};
use va_base::{LockClass, Va};
use va_block::config::{Linux64, Standard};
use va_block::{Config, Lane};
use va_sim::machine::SimMachine;

#[test]
fn a_lane_releases_a_block_whose_last_page_died_in_it() {
    let machine = SimMachine::new(1);
    let blocks = blocks::<Linux64>(&machine, 1 << 16);
    let mut lane = blocks.lane(0).unwrap();
    let all: Vec<Va> = (0..16).map(|_| lane.alloc(64).unwrap()).collect();
    all.into_iter().for_each(|at| lane.free(at, 64).unwrap());
    assert_eq!((blocks.present(), blocks.validate()), (1, Ok(())));
    drop(lane);
    assert_eq!((blocks.present(), blocks.validate()), (0, Ok(())));
}

#[test]
fn a_block_begins_although_lanes_have_all_that_are_dead() {
    let machine = SimMachine::new(1);
    let blocks = blocks::<Standard>(&machine, 1 << 16);
    let mut lanes = [blocks.lane(0).unwrap(), blocks.lane(0).unwrap()];
    for lane in &mut lanes {
        let at = lane.alloc(64).unwrap();
        lane.free(at, 64).unwrap();
    }
    // Two for the CPU, and none holds a live page (VB8).
    assert_eq!((blocks.present(), lanes.each_ref().map(Lane::holds)), (2, [true; 2]));
    blocks.alloc(0, 1).unwrap();
    assert_eq!(lanes.each_ref().map(Lane::holds), [false; 2]);
    assert!(blocks.present() <= 2);
}

#[test]
fn a_drain_visits_the_lanes_that_there_are() {
    let machine = SimMachine::new(1);
    let blocks = blocks::<Standard>(&machine, 4096);
    let visited = || counted(|| _ = blocks.drain_lanes(None))[LockClass::Owner as usize];
    let [first, middle, last] = [0; 3].map(|cpu| Some(blocks.lane(cpu).unwrap()));
    assert_eq!(visited(), 3);
    for (lane, left) in [(middle, 2), (first, 1), (last, 0)] {
        drop(lane);
        assert_eq!(visited(), left);
    }
}

#[test]
fn a_large_request_of_a_lane_gets_the_space_of_its_own_dead_block() {
    fn gets<C: Config>() {
        let machine = SimMachine::new(1);
        let blocks = blocks::<C>(&machine, 4096);
        let mut lane = blocks.lane(0).unwrap();
        let at = lane.alloc(7).unwrap();
        assert!(lane.alloc(4096).is_err() && lane.holds(), "seven pages live");
        lane.free(at, 7).unwrap();
        lane.alloc(4096).unwrap();
        assert_eq!((lane.holds(), blocks.present()), (false, 0));
    }
    gets::<Standard>();
    gets::<Linux64>();
}
