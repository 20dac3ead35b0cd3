//! Room that a request finds: in blocks of its CPU, and in the space.

use crate::points::blocks;
use va_base::{Context, Pages, Request, Va};
use va_block::config::{Linux64, OneMap63, Standard};
use va_block::{BlockError, Blocks, Config};
use va_sim::machine::SimMachine;
use va_space::{Purge, SpaceError};

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
