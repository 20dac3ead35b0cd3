//! The porting contract of a space: what a machine supplies beyond [`Platform`].
//!
//! # Theory
//! A space says *where* and *until when*; the machine unmaps, flushes, wakes workers. It is asked for:
//!
//! | call | locks of the core held | may sleep | may fail |
//! |---|---|---|---|
//! | [`Platform::lend_slab`] | the lock of the free index ([`Machine::Lock`]) | only if that lock lets it | by `None`; the request fails, nothing has changed |
//! | [`Machine::lend_table`] | none | yes | by `None`; the same |
//! | [`Machine::flush`] | the purge lock ([`Machine::PurgeLock`]) | if that lock lets it | no |
//! | [`Machine::completed`] | the purge lock | no | - |
//! | [`Machine::drain`] | none | yes | - |
//! | [`Machine::locking`] | any | no | - |
//! | [`Machine::reclaim`] | none | yes | - |
//!
//! None of them may call back into the same space, except [`Machine::drain`] and [`Machine::reclaim`], which may free.
//!
//! **Flush and epoch.** [`Machine::flush`] begins to make every CPU forget its translations of the ranges and names
//! the moment at which that will be done; [`Machine::completed`] tells whether it has come. A machine whose flush
//! returns when all is done answers `true` at once; one that flushes in the background, or waits for a device,
//! answers `false` until then, and the space keeps the ranges out of use (SP2).

use crate::{Platform, VaRange};
use lock_api::RawMutex;

/// A moment in the machine's order of flushes. Only the machine gives it a meaning.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Epoch(pub u64);

/// A table that many threads share by reference, made empty and filled in place: a piece of a page map, a node.
pub trait Table: Send + Sync + 'static {
    /// Returns an empty table.
    fn empty() -> Self;
}

/// Who does the work when more pages are lazy than the threshold allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Drain {
    /// The caller, before its call returns.
    Here,
    /// Somebody else, whom the machine has woken and who will call the space's `tick` or `purge`.
    Elsewhere,
}

/// The locks of a space, by what they guard.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LockClass {
    /// The pool of one node.
    Pool,
    /// The lazy areas of one node.
    Lazy,
    /// The free index and the start bits.
    Free,
    /// The purge.
    Purge,
    /// The blocks of one CPU.
    Queue,
    /// The count of blocks that share a place in the lookup by address.
    Lookup,
    /// The collection of dead pages of blocks.
    Collect,
    /// The tree of busy areas of one node, where a space has such trees.
    Busy,
}

impl LockClass {
    /// How many there are.
    pub const COUNT: usize = Self::Busy as usize + 1;
}

/// What a machine supplies to a space.
pub trait Machine: Platform {
    /// What short critical sections are made of: an irq-safe spin lock in a kernel, a lock that parks in a process.
    type Lock: RawMutex + Send + Sync + 'static;
    /// What the purge is made of, which is held across one [`flush`](Self::flush) and one slice of work.
    type PurgeLock: RawMutex + Send + Sync + 'static;

    /// CPUs that can ever be: how many nodes there may be. Asked once, when a space is created.
    fn cpus_possible(&self) -> u32;

    /// CPUs that run now: how many pages may wait for a flush. Asked at every free that is shared, so it must be cheap.
    fn cpus_online(&self) -> u32;

    /// Lends one empty table for as long as the space lives, or refuses with `None`.
    fn lend_table<T: Table>(&self) -> Option<&'static T>;

    /// Takes back a table that [`lend_table`](Self::lend_table) lent. The space keeps no reference to it; its contents
    /// are unspecified.
    fn take_back_table<T: Table>(&self, table: &'static T);

    /// Begins a flush of `ranges` on every CPU and returns the moment of its end.
    ///
    /// Whatever was unmapped before this call must be unreachable through `ranges` once the epoch is completed.
    fn flush(&self, ranges: &[VaRange]) -> Epoch;

    /// Tells whether every flush up to `epoch` has ended.
    fn completed(&self, epoch: Epoch) -> bool;

    /// Says who drains, now that too many pages are lazy. Called after a free, with no lock held.
    fn drain(&self) -> Drain {
        Drain::Here
    }

    /// Tells that a lock is about to be taken, for a machine that counts or traces. Costs nothing where it is empty. A
    /// machine may ask for [`Location::caller`](core::panic::Location::caller): the place that takes the lock.
    #[inline(always)]
    #[track_caller]
    fn locking(&self, _class: LockClass) {}

    /// Asks whoever holds areas that it could do without to free them, since a request is about to fail for want of
    /// space. Returns how many pages were freed; the request is tried again as long as that is not 0. Asked at each
    /// request that fails for want of space, so it must be quick to say that there is nothing new.
    fn reclaim(&self) -> u64 {
        0
    }
}

impl<M: Machine + ?Sized> Machine for &M {
    type Lock = M::Lock;
    type PurgeLock = M::PurgeLock;

    fn cpus_possible(&self) -> u32 {
        (**self).cpus_possible()
    }

    fn cpus_online(&self) -> u32 {
        (**self).cpus_online()
    }

    fn lend_table<T: Table>(&self) -> Option<&'static T> {
        (**self).lend_table()
    }

    fn take_back_table<T: Table>(&self, table: &'static T) {
        (**self).take_back_table(table);
    }

    fn flush(&self, ranges: &[VaRange]) -> Epoch {
        (**self).flush(ranges)
    }

    fn completed(&self, epoch: Epoch) -> bool {
        (**self).completed(epoch)
    }

    fn drain(&self) -> Drain {
        (**self).drain()
    }

    #[inline(always)]
    #[track_caller]
    fn locking(&self, class: LockClass) {
        (**self).locking(class);
    }

    fn reclaim(&self) -> u64 {
        (**self).reclaim()
    }
}
