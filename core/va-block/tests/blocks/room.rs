//! Room that a request finds: in blocks of its CPU, and in the space.

use crate::points::blocks;
use va_base::Va;
use va_block::config::Standard;
use va_block::{BlockError, Blocks};
use va_sim::machine::SimMachine;
use va_space::SpaceError;

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
