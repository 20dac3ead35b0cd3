//! The porting contract of a space: the duties of a machine beyond [`Platform`].
//!
//! # Theory
//! A space decides *where* and *until when*; the machine unmaps, flushes and wakes workers. A space makes these calls:
//!
//! | call | locks of the core held | may sleep | may fail |
//! |---|---|---|---|
//! | [`Platform::alloc_meta`] | that of the free index, or of a tree of busy areas ([`Machine::Lock`]) | only if that lock allows it | by `None`; the request fails, nothing has changed |
//! | [`Platform::free_meta`] | the same | as above | no |
//! | [`Machine::alloc_table`] | none | yes | by `None`; the same |
//! | [`Machine::flush`] | the purge lock ([`Machine::PurgeLock`]) | if that lock allows it | no |
//! | [`Machine::completed`] | the purge lock | no | - |
//! | [`Machine::settled`] | any | no | no |
//! | [`Machine::wait`] | none | yes | no |
//! | [`Machine::drain`] | none of the space | no: a free in an interrupt calls it, too | - |
//! | [`Machine::locking`] | any | no | - |
//! | [`Machine::reclaim`] | none | yes | - |
//! | [`Machine::can_reclaim`] | none | no | - |
//!
//! Blocks (`va-block`) free areas and flush under the lock of their collection ([`LockClass::Collect`], a
//! [`Machine::PurgeLock`]). So that may be held in `flush`, `completed`, `settled` and `drain`, too. Per-CPU memory
//! (`va-percpu`) grows by areas of a space under [`LockClass::Grow`], a [`Machine::PurgeLock`] as well. It may be held in
//! every call, and none of them may then allocate or free in that per-CPU memory, or balance it.
//!
//! None of them may call back into the same space, except [`Machine::drain`] and [`Machine::reclaim`], which may free.
//!
//! **Contexts.** A call for [`Context::Atomic`](crate::Context::Atomic) takes locks of type [`Machine::Lock`] alone,
//! one at a time. The lock of a node's tree of busy areas is taken under no other. Such a call makes no call of the
//! machine that may sleep: no table, no flush, no wait, no reclaim. So `Lock` must be safe in every context that frees:
//! a kernel disables interrupts in it. A free through a magazine is no exception. An alloc from one also takes
//! [`Machine::OwnerLock`], since its caller owns the magazine by `&mut`. An alloc of per-CPU memory that would fail
//! tries those of all magazines, and waits for none.
//!
//! **Flush and epoch.** [`Machine::flush`] begins to remove the translations of the ranges from every CPU. It returns
//! an epoch, the moment at which that will be done. [`Machine::completed`] reports whether it has come. A machine whose
//! flush returns when all is done reports `true` at once. One that flushes in the background, or waits for a device,
//! reports `false` until then, and the space keeps the ranges out of use (SP2).

use crate::{Meta, Platform, VaRange};
use lock_api::RawMutex;

/// A moment in the machine's order of flushes. Only the machine defines its meaning.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Epoch(pub u64);

/// A table that many threads share by reference, written empty and filled in place: a section of a page map, a node.
///
/// # Zeros
/// Every byte of an empty table of the core is zero, if every byte of [`RawMutex::INIT`] of the machine's locks is. So
/// a machine writes [`EMPTY`](Table::EMPTY) into its memory, which is a fill with zeros and takes no stack. Or it
/// supplies zeroed pages.
pub trait Table: Send + Sync + 'static {
    /// An empty table.
    #[cfg(not(loom))]
    const EMPTY: Self;

    /// Returns an empty table: loom's types have no constants.
    #[cfg(loom)]
    fn empty() -> Self;

    /// Returns an empty table by value, for a machine that boxes it. Tables are up to 32 KiB: a kernel writes
    /// [`EMPTY`](Table::EMPTY) in place instead.
    #[cfg(not(loom))]
    #[must_use]
    fn empty() -> Self
    where
        Self: Sized,
    {
        Self::EMPTY
    }
}

/// Defines an empty [`Table`] inside its `impl`: the constant, or under loom the function.
#[macro_export]
macro_rules! empty_table {
    ($value:expr) => {
        #[cfg(not(loom))]
        const EMPTY: Self = $value;
        #[cfg(loom)]
        fn empty() -> Self {
            $value
        }
    };
}

/// Returns an array of `$count` values: of a constant, or under loom, whose atomics have none, made one by one.
#[cfg(not(loom))]
#[macro_export]
macro_rules! array_of {
    ($value:expr; $count:expr) => {
        [const { $value }; $count]
    };
}

/// Returns an array of `$count` values made one by one.
#[cfg(loom)]
#[macro_export]
macro_rules! array_of {
    ($value:expr; $count:expr) => {
        core::array::from_fn::<_, { $count }, _>(|_| $value)
    };
}

/// Evaluates to a constant, which the compiler copies to its place without stack; under loom to a value made there.
#[cfg(not(loom))]
#[macro_export]
macro_rules! constant {
    ($value:expr) => {
        const { $value }
    };
}

/// Evaluates to a value.
#[cfg(loom)]
#[macro_export]
macro_rules! constant {
    ($value:expr) => {
        $value
    };
}

/// Defines a function that is `const` except under loom, whose atomics and locks have no `const` constructors.
#[cfg(not(loom))]
#[macro_export]
macro_rules! const_fn {
    ($(#[$attribute:meta])* $visibility:vis fn $name:ident() -> Self $body:block) => {
        $(#[$attribute])*
        $visibility const fn $name() -> Self $body
    };
}

/// Defines a function; it is `const` but under loom.
#[cfg(loom)]
#[macro_export]
macro_rules! const_fn {
    ($(#[$attribute:meta])* $visibility:vis fn $name:ident() -> Self $body:block) => {
        $(#[$attribute])*
        $visibility fn $name() -> Self $body
    };
}

/// The thread that purges when more pages are lazy than the threshold allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Drain {
    /// The calling thread: each free does a slice of the purge before it returns, unless its caller may not wait.
    Here,
    /// A worker that the machine has woken. It calls the space's `drain`, or `tick` until the pass has ended. No free
    /// does any of that work, however late the worker is, so only the worker's delay bounds the backlog.
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
    /// The count of blocks that share a bucket in the lookup by address.
    Lookup,
    /// The collection of dead pages of blocks.
    Collect,
    /// The tree of busy areas of one node, if the space has such trees.
    Busy,
    /// The areas of one node that are in a flush batch.
    Batched,
    /// A magazine or a lane, taken by its owner or by a caller that drains it.
    Owner,
    /// Small mappings of `va-map` that are being unmapped.
    Closing,
    /// Records of the areas of `va-map`.
    Records,
    /// The growth of per-CPU memory.
    Grow,
    /// The free areas of per-CPU chunks.
    Chunks,
}

impl LockClass {
    /// Number of lock classes.
    pub const COUNT: usize = Self::Chunks as usize + 1;
}

/// A supplier of locks, tables and flushes to a space.
pub trait Machine: Platform + Send + Sync {
    /// Lock of short critical sections: an irq-safe spin lock in a kernel, a lock that parks in a process.
    type Lock: RawMutex + Send + Sync + 'static;
    /// Lock of the purge, which is held across one [`flush`](Self::flush) and one slice of work.
    type PurgeLock: RawMutex + Send + Sync + 'static;
    /// The lock of a cache that has one owner: a magazine of a space, a lane of blocks.
    ///
    /// The core calls `lock` for the owner alone, never from two threads at a time. The owner of a magazine takes it
    /// for each alloc and each free, the owner of a lane for each alloc. Other callers use `try_lock`, and only when
    /// memory or space is short. So a platform may make it asymmetric: a store and a load for the owner, and a barrier
    /// on all CPUs for `try_lock`. A magazine of per-CPU memory is owned by `&mut`, too.
    ///
    /// The owner waits for a thread whose `try_lock` succeeded, and may run on the CPU of that thread. So a lock that
    /// spins turns preemption off from `try_lock` to `unlock`, and interrupts too if a handler uses a magazine or a
    /// lane. Otherwise any lock is correct.
    type OwnerLock: RawMutex + Send + Sync + 'static;

    /// Returns the number of possible CPUs, which bounds the number of nodes. Called once, when a space is created.
    fn cpus_possible(&self) -> u32;

    /// Returns the number of online CPUs, which sets how many pages may wait for a flush. Called at every free that is
    /// not a magazine's, so it must be cheap.
    fn cpus_online(&self) -> u32;

    /// Allocates one empty table for as long as the space lives, or returns `None` if there is no memory.
    fn alloc_table<T: Table>(&self) -> Option<&'static T>;

    /// Frees a table of [`alloc_table`](Self::alloc_table). The space keeps no reference to it; its contents are
    /// unspecified. The reference is a shared one: a machine makes the pointer that it frees from the address.
    fn free_table<T: Table>(&self, table: Meta<&'static T>);

    /// True if [`retire_table`](Self::retire_table) frees. Then a space returns leaves of its page map when it shrinks.
    const RETIRES: bool = false;

    /// Frees a table as [`free_table`](Self::free_table) does, but only once each call to the space has ended that has
    /// begun by now. Such calls take no lock, and may read the table; no later call finds it.
    ///
    /// A kernel frees it by RCU. Then each call that looks an area up by an address is in a section of a reader, or has
    /// preemption off. It must not sleep: a lock of the space is held. Called only if [`RETIRES`](Self::RETIRES) is
    /// true.
    fn retire_table<T: Table>(&self, table: Meta<&'static T>) {
        let _leaked = table;
    }

    /// Begins a flush of `ranges` on every CPU and returns the moment of its end.
    ///
    /// Pages that were unmapped before this call must be unreachable through `ranges` once the epoch is completed.
    fn flush(&self, ranges: &[VaRange]) -> Epoch;

    /// Returns true if every flush up to `epoch` has ended.
    fn completed(&self, epoch: Epoch) -> bool;

    /// Waits until every flush up to `epoch` has ended. Called with no lock held, and only for a request that may
    /// sleep.
    ///
    /// The default polls [`completed`](Self::completed); a platform that can block replaces it.
    fn wait(&self, epoch: Epoch) {
        while !self.completed(epoch) {
            crate::sync::spin_loop();
        }
    }

    /// Returns true if [`settled`](Self::settled) is to be called. It is called often: return a constant, so that a
    /// space of a platform that does not need it has no code for it.
    #[inline(always)]
    fn hears_settled(&self) -> bool {
        false
    }

    /// Notes that these areas were flushed, before any of them can be allocated again.
    ///
    /// Each freed area is in exactly one call, as one range; a call has up to 16. Here a platform resets permissions,
    /// or releases shadow memory of the addresses. It must not sleep: the purge lock or that of a magazine is held, and
    /// the lock of a pool may be. Called only if [`hears_settled`](Self::hears_settled) returns true.
    fn settled(&self, ranges: &[VaRange]) {
        let _ = ranges;
    }

    /// Wakes the thread that drains, now that too many pages are lazy, and returns which thread that is.
    ///
    /// Called after a free, in the context of its caller, with no lock of the space held: it must not sleep. It is
    /// called once a pass: not again until the pass that it starts has ended. The result holds until then.
    fn drain(&self) -> Drain {
        Drain::Here
    }

    /// Notes that a lock is about to be taken, for a machine that counts or traces. It costs nothing if it is empty. A
    /// machine may read [`Location::caller`](core::panic::Location::caller): the code that takes the lock.
    #[inline(always)]
    #[track_caller]
    fn locking(&self, _class: LockClass) {}

    /// Asks clients to free areas that they do not need, since a request is about to fail for lack of space.
    ///
    /// Returns how many pages were freed. The request is tried again as long as that is not 0. It is called for each
    /// request that fails for lack of space, so it must return quickly if nothing can be freed.
    fn reclaim(&self) -> u64 {
        0
    }

    /// Returns true if [`reclaim`](Self::reclaim) might free anything. It is called for a request that may not wait,
    /// whose error shows that a sleeping caller might succeed. A platform with a `reclaim` that frees replaces it. It
    /// must not sleep.
    fn can_reclaim(&self) -> bool {
        false
    }
}

impl<M: Machine + ?Sized> Machine for &M {
    type Lock = M::Lock;
    type PurgeLock = M::PurgeLock;
    type OwnerLock = M::OwnerLock;

    fn cpus_possible(&self) -> u32 {
        (**self).cpus_possible()
    }

    fn cpus_online(&self) -> u32 {
        (**self).cpus_online()
    }

    fn alloc_table<T: Table>(&self) -> Option<&'static T> {
        (**self).alloc_table()
    }

    fn free_table<T: Table>(&self, table: Meta<&'static T>) {
        (**self).free_table(table);
    }

    const RETIRES: bool = M::RETIRES;

    fn retire_table<T: Table>(&self, table: Meta<&'static T>) {
        (**self).retire_table(table);
    }

    fn flush(&self, ranges: &[VaRange]) -> Epoch {
        (**self).flush(ranges)
    }

    fn completed(&self, epoch: Epoch) -> bool {
        (**self).completed(epoch)
    }

    fn wait(&self, epoch: Epoch) {
        (**self).wait(epoch);
    }

    #[inline(always)]
    fn hears_settled(&self) -> bool {
        (**self).hears_settled()
    }

    fn settled(&self, ranges: &[VaRange]) {
        (**self).settled(ranges);
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

    fn can_reclaim(&self) -> bool {
        (**self).can_reclaim()
    }
}
