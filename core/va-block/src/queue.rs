//! The open blocks of a CPU: the lists of its blocks that may have free pages.
//!
//! # Theory
//! An open block is in the list of its **class**: the contiguous pages that it can allocate, at most [`CLASSES`]. A
//! word has a bit for each list that is not empty. So one count of zeros finds a block with room for a request, however
//! many blocks are open. The class of a block may be too high after an allocation from it. Such a block is tried once
//! in vain, and then moved to the right list. Where requests begin with the oldest block, as in Linux, all blocks are
//! in one list, the highest, which is walked.
//!
//! The lists are threaded through the records and guarded by the queue's lock, as is the place of
//! every block of that CPU. A block that another CPU empties is unlinked under the lock of the CPU
//! that began it (Linux once took the lock of the hash bucket instead).

use crate::block::{Block, Place};
use crate::config::{ALLOC_PAGES_MAX, Config};
use crate::lookup::Lookup;
use crate::ring::{OPEN, Ring};
use va_base::Table;
use va_base::sync::atomic::AtomicU64;
use va_base::sync::{Mutex, RawMutex};

/// The number of lists: a block with more room than this many pages serves any request.
const CLASSES: usize = ALLOC_PAGES_MAX as usize;
const _: () = assert!(CLASSES == u64::BITS as usize);

/// The blocks and the counts of one CPU. In cache lines of its own.
#[repr(align(128))]
pub(crate) struct Cpu<R> {
    pub(crate) queue: Mutex<R, Queue>,
    /// Present blocks that the lookup hashes to this CPU.
    pub(crate) present: Mutex<R, u64>,
    /// Freed pages of this CPU that are not published yet. Two threads with one CPU id may lose a few, so a hint.
    /// Protocol PR-HINT.
    pub(crate) freed: AtomicU64,
}

impl<R: RawMutex + Send + Sync + 'static> Table for Cpu<R> {
    va_base::empty_table! {
        Self {
            queue: Mutex::new(Queue { current: None, filled: 0, lists: [Ring::EMPTY; CLASSES] }),
            present: Mutex::new(0),
            freed: AtomicU64::new(0),
        }
    }
}

/// The open blocks of one CPU.
pub(crate) struct Queue {
    /// The block used last, if it is in a list.
    pub(crate) current: Option<&'static Block>,
    /// The lists that hold a block.
    filled: u64,
    /// Lists of blocks with room for 1, 2, .. pages.
    lists: [Ring<OPEN>; CLASSES],
}

/// Returns the list for blocks with `room` contiguous pages, at least 1.
fn class_of<C: Config>(room: u32) -> u32 {
    if C::FIRST_FIT { CLASSES as u32 - 1 } else { room.clamp(1, CLASSES as u32) - 1 }
}

impl Queue {
    fn list(&mut self, class: u32) -> &mut Ring<OPEN> {
        &mut self.lists[class as usize % CLASSES]
    }

    /// Puts a block that is in no list at the end of the list of its class.
    pub(crate) fn push<C: Config>(&mut self, lookup: &Lookup, block: &'static Block) {
        let class = class_of::<C>(block.room());
        block.set_class(class);
        self.list(class).push(lookup, block);
        self.filled |= 1 << class;
        block.set_place(Place::Open);
    }

    /// Removes an open block from its list and sets its place to `to`.
    pub(crate) fn unlink(&mut self, lookup: &Lookup, block: &'static Block, to: Place) {
        if self.is_current(block) {
            self.current = None;
        }
        self.remove(lookup, block);
        block.set_place(to);
    }

    fn remove(&mut self, lookup: &Lookup, block: &'static Block) {
        let class = block.class();
        self.list(class).remove(lookup, block);
        if self.list(class).is_empty() {
            self.filled &= !(1 << class);
        }
    }

    /// Moves an open block into the list of its class, or into none if it has no room.
    pub(crate) fn sort<C: Config>(&mut self, lookup: &Lookup, block: &'static Block, pages: u32) {
        block.measure(pages);
        if block.room() == 0 {
            self.unlink(lookup, block, Place::Full);
        } else if class_of::<C>(block.room()) != block.class() {
            self.remove(lookup, block);
            self.push::<C>(lookup, block);
        }
    }

    /// Returns whether a block is the current one.
    pub(crate) fn is_current(&self, block: &Block) -> bool {
        self.current.is_some_and(|current| core::ptr::eq(current, block))
    }

    /// Returns the oldest block of the lowest class that has room for `want` pages, by the class it was sorted into.
    pub(crate) fn fitting(&mut self, lookup: &Lookup, want: u32) -> Option<&'static Block> {
        let above = self.filled & u64::MAX << (want - 1);
        if above == 0 { None } else { self.list(above.trailing_zeros()).first(lookup) }
    }

    /// Returns the largest request that may find room here, 0 if none does. Any may if there is a current block, whose
    /// room changes without this value: so an allocation from it has nothing to show.
    pub(crate) fn largest(&self) -> u32 {
        if self.current.is_some() { CLASSES as u32 } else { u64::BITS - self.filled.leading_zeros() }
    }

    /// Returns the open blocks: by class, in each class the oldest first. The lists must not change meanwhile.
    pub(crate) fn each<'a>(&self, lookup: &'a Lookup) -> impl Iterator<Item = &'static Block> + use<'a> {
        let lists = self.lists;
        lists.into_iter().flat_map(move |list| list.each(lookup))
    }

    /// Returns the open blocks where all are in one list, oldest first. The block that was returned last may be
    /// unlinked.
    pub(crate) fn oldest<'a>(&self, lookup: &'a Lookup) -> impl Iterator<Item = &'static Block> + use<'a> {
        self.lists[CLASSES - 1].each(lookup)
    }
}
