//! What a CPU has: the list of its blocks that may have free pages.
//!
//! The list is threaded through the records and guarded by the queue's lock, as is the place of every block of that CPU: a
//! block that another CPU empties is unlinked under the lock of the CPU that began it (Linux once took the lock of the
//! hash bucket instead).

use crate::block::{Block, NIL, Place};
use crate::lookup::Lookup;
use va_base::Table;
use va_base::sync::atomic::AtomicU64;
use va_base::sync::atomic::Ordering;
use va_base::sync::{Mutex, RawMutex};

/// What one CPU has. In cache lines of its own.
#[repr(align(128))]
pub(crate) struct Cpu<R> {
    pub(crate) queue: Mutex<R, Queue>,
    /// Present blocks that the lookup hashes to this CPU.
    pub(crate) present: Mutex<R, u64>,
    /// Pages given back by this CPU and not told yet; two threads with one CPU id may lose a few, so a hint.
    pub(crate) freed: AtomicU64,
}

impl<R: RawMutex + Send + Sync + 'static> Table for Cpu<R> {
    fn empty() -> Self {
        let queue = Queue { current: None, head: NIL, tail: NIL };
        Self { queue: Mutex::new(queue), present: Mutex::new(0), freed: AtomicU64::new(0) }
    }
}

/// The open blocks of one CPU, the oldest first.
pub(crate) struct Queue {
    /// The one used last, if it is in the list.
    pub(crate) current: Option<&'static Block>,
    head: u32,
    tail: u32,
}

impl Queue {
    /// Puts a block that is in no list at the end.
    pub(crate) fn push(&mut self, lookup: &Lookup, block: &'static Block) {
        block.next.store(NIL, Ordering::Relaxed);
        block.prev.store(self.tail, Ordering::Relaxed);
        match lookup.find(self.tail) {
            Some(last) => last.next.store(block.index(), Ordering::Relaxed),
            None => self.head = block.index(),
        }
        self.tail = block.index();
        block.set_place(Place::Open);
    }

    /// Takes an open block out of the list; it is `to` from now on.
    pub(crate) fn unlink(&mut self, lookup: &Lookup, block: &'static Block, to: Place) {
        let (prev, next) = (block.prev.load(Ordering::Relaxed), block.next.load(Ordering::Relaxed));
        match lookup.find(prev) {
            Some(prev) => prev.next.store(next, Ordering::Relaxed),
            None => self.head = next,
        }
        match lookup.find(next) {
            Some(next) => next.prev.store(prev, Ordering::Relaxed),
            None => self.tail = prev,
        }
        if self.current.is_some_and(|current| core::ptr::eq(current, block)) {
            self.current = None;
        }
        block.set_place(to);
    }

    /// The open blocks, the oldest first. The next is looked up before a block is told, so it may be unlinked.
    pub(crate) fn each<'a>(&self, lookup: &'a Lookup) -> impl Iterator<Item = &'static Block> + use<'a> {
        let mut at = self.head;
        core::iter::from_fn(move || {
            let block = lookup.find(at)?;
            at = block.next.load(Ordering::Relaxed);
            Some(block)
        })
    }
}
