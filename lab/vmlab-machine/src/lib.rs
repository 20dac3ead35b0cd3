//! This process as the machine of a space: records from the heap, flushes that are only counted.
//!
//! # Theory
//! Nothing is mapped, so a flush only increments a number, as in the C libraries that are measured beside spaces. A
//! drain has a real cost; [`Work`] selects the thread that drains. The type of the locks is a parameter: the usual one,
//! or [`WatchedLock`], which counts.
//!
//! A machine allocates tables up to a limit, which a hostile trace reaches before the process runs out of memory.

#![deny(clippy::print_stdout, clippy::print_stderr)]
#![warn(missing_debug_implementations)]

pub mod list;
mod lock;
mod lock_stat;
mod memory;
mod spin;
mod visits;

pub use lock::{
    Watch, Watched, WatchedLock, WatchedSpin, stand_for as stand_for_cpu, take as take_lock_stats,
    take_contended, thread_cpu_ns,
};
pub use lock_stat::{ContendedAt, LockStat, LockStats, NOTHING, merge as merge_contended};
pub use spin::SpinLock;

/// The example of the README compiles and runs.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

use std::fmt;
use std::marker::PhantomData;
use std::panic::Location;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;
use va_base::{
    Drain, Epoch, InvariantViolation, LockClass, Machine, Meta, Platform, Record, Table, Va, VaRange,
};

/// The usual lock.
pub type PlainLock = parking_lot::RawMutex;

/// Bytes of tables that one machine allocates at most. A space of a kernel's trace takes a few MiB.
const TABLES_BYTES_MAX: u64 = 1 << 30;

/// Returns the space of a kernel: everything except the first byte and the last, as in Linux.
pub fn kernel_extent() -> VaRange {
    VaRange::new(Va::new(1), Va::MAX).unwrap_or(VaRange::ALL)
}

/// The thread that drains when too many pages are lazy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    /// The thread whose free exceeded the threshold.
    Here,
    /// A thread that calls [`LabMachine::take_due`], if there is one.
    Elsewhere,
}

/// The machine. Clones share one state.
pub struct LabMachine<L>(Arc<Inner>, PhantomData<fn() -> L>);

struct Inner {
    // Constant.
    nodes: u32,
    cpus: u32,
    work: Work,
    // Atomic, each alone.
    due: AtomicBool,
    helper: OnceLock<Thread>,
    flushes: AtomicU64,
    tables_bytes: AtomicU64,
}

impl<L> LabMachine<L> {
    /// Creates a machine with `nodes` CPUs possible and `cpus` online.
    pub fn new(nodes: u32, cpus: u32, work: Work) -> Self {
        let inner = Inner {
            nodes,
            cpus,
            work,
            due: AtomicBool::new(false),
            helper: OnceLock::new(),
            flushes: AtomicU64::new(0),
            tables_bytes: AtomicU64::new(0),
        };
        Self(Arc::new(inner), PhantomData)
    }

    /// Sets the thread to wake when a drain is due. Only the first call has an effect.
    pub fn set_helper(&self, thread: Thread) {
        let _first = self.0.helper.set(thread);
    }

    /// Returns true if a drain is due, which the caller must then do.
    pub fn take_due(&self) -> bool {
        // Acquire pairs with the release of `drain`: the drain sees all areas freed before the request.
        self.0.due.swap(false, Ordering::Acquire)
    }
}

impl<L> Clone for LabMachine<L> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0), PhantomData)
    }
}

impl<L> fmt::Debug for LabMachine<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { nodes, cpus, work, .. } = &*self.0;
        f.debug_struct("LabMachine").field("nodes", nodes).field("cpus", cpus).field("work", work).finish()
    }
}

impl<L> Platform for LabMachine<L> {
    fn alloc_meta<T: Record>(&self, min: usize) -> Option<&'static mut [T]> {
        Some(memory::alloc_meta(min))
    }

    fn free_meta<T: Record>(&self, slab: Meta<&'static mut [T]>) {
        // SAFETY: `alloc_meta` allocated the slab, and there is no other reference to it, both by the contract.
        unsafe { memory::free_meta(slab.take()) };
    }

    fn bug(&self, what: fmt::Arguments<'_>, broken: Option<InvariantViolation>) -> ! {
        let why = broken.map_or(String::new(), |broken| format!(": {broken}"));
        // The last line before the process ends, so its destination is not left to a caller.
        #[expect(clippy::print_stderr, reason = "a space cannot return from a bug")]
        {
            eprintln!("vmlab: a bug of the space: {what}{why}");
        }
        std::process::abort()
    }
}

impl<L: Watch> Machine for LabMachine<L> {
    type Lock = L;
    type PurgeLock = L;
    #[cfg(not(loom))]
    type OwnerLock = vmalloc_os::OwnerLock;
    // A lock of loom's atomics has no constant.
    #[cfg(loom)]
    type OwnerLock = L;

    fn cpus_possible(&self) -> u32 {
        self.0.nodes
    }

    #[inline(always)]
    fn cpus_online(&self) -> u32 {
        self.0.cpus
    }

    fn alloc_table<T: Table>(&self) -> Option<&'static T> {
        let bytes = size_of::<T>() as u64;
        let before = self.0.tables_bytes.fetch_add(bytes, Ordering::Relaxed);
        (before + bytes <= TABLES_BYTES_MAX).then(memory::alloc_table)
    }

    fn free_table<T: Table>(&self, table: Meta<&'static T>) {
        self.0.tables_bytes.fetch_sub(size_of::<T>() as u64, Ordering::Relaxed);
        // SAFETY: `alloc_table` allocated the table, and the space has no other reference to it, both by the contract.
        unsafe { memory::free_table(table.take()) };
    }

    #[inline]
    fn flush(&self, _ranges: &[VaRange]) -> Epoch {
        Epoch(self.0.flushes.fetch_add(1, Ordering::Relaxed))
    }

    #[inline(always)]
    fn completed(&self, _epoch: Epoch) -> bool {
        true
    }

    #[inline]
    fn drain(&self) -> Drain {
        if self.0.work == Work::Here {
            return Drain::Here;
        }
        // Release pairs with `take_due`.
        if !self.0.due.load(Ordering::Relaxed)
            && !self.0.due.swap(true, Ordering::Release)
            && let Some(helper) = self.0.helper.get()
        {
            helper.unpark();
        }
        Drain::Elsewhere
    }

    #[inline(always)]
    #[track_caller]
    fn locking(&self, class: LockClass) {
        L::announce(class, Location::caller());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use va_base::Request;
    use va_space::config::Standard;
    use va_space::{Purge, VmapSpace};

    #[test]
    fn a_space_distinguishes_its_locks_and_every_area_comes_back() {
        let window = VaRange::from_pages(0x1000, 0x9000).unwrap();
        let machine = LabMachine::<WatchedLock>::new(2, 2, Work::Here);
        let space = VmapSpace::<_, Standard>::new(window, window, machine.clone()).unwrap();
        // The first area allocates a table and leaves.
        let area = space.alloc(0, &Request::pages(3).unwrap()).unwrap();
        space.free(area).unwrap();
        space.purge(Purge::Full);
        take_lock_stats();
        let area = space.alloc(0, &Request::pages(3).unwrap()).unwrap();
        space.free(area).unwrap();
        let seen = take_lock_stats().map(|seen| seen.acquisitions);
        let of = |class: LockClass| seen[class as usize];
        assert_eq!(
            [LockClass::Pool, LockClass::Free, LockClass::Lazy, LockClass::Purge].map(of)[1..],
            [1, 1, 0],
            "{seen:?}"
        );
        space.purge(Purge::Full);
        assert!(take_lock_stats()[LockClass::Purge as usize].acquisitions > 0);
        assert_eq!((space.validate(), space.stats().holes, space.stats().flushes), (Ok(()), 1, 2));
    }

    #[test]
    fn a_drain_is_due_once_however_often_it_is_asked_for() {
        let machine = LabMachine::<PlainLock>::new(1, 1, Work::Elsewhere);
        assert_eq!([machine.drain(), machine.drain()], [Drain::Elsewhere; 2]);
        assert_eq!([machine.take_due(), machine.take_due()], [true, false]);
        assert_eq!(LabMachine::<PlainLock>::new(1, 1, Work::Here).drain(), Drain::Here);
    }
}
