//! The machine of this process: memory for records and tables, a thread that drains, counts in place of flushes.
//!
//! # Theory
//! Nothing is mapped here, so a flush is a number, as in the library of Linux's allocator with which this one is
//! compared. But a drain has a cost: [`Work`] selects the thread that runs it, with the same three choices as there.

use parking_lot::RawMutex;
use std::fmt;
use std::ptr::with_exposed_provenance_mut;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;
use va_base::{Drain, Epoch, InvariantViolation, LockClass, Machine, Meta, Platform, Record, Table, VaRange};

/// The thread that drains when too much is lazy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    /// The call that freed too much.
    Here,
    /// A helper thread.
    Helper,
    /// The caller of [`run_work`](crate::call::run_work) that requests it.
    OnRequest,
}

/// Locks taken so far, by class.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Lockings {
    /// Pools of nodes.
    pub pool: u64,
    /// Lazy areas of nodes.
    pub lazy: u64,
    /// The index of holes.
    pub free: u64,
    /// The purge.
    pub purge: u64,
    /// Open blocks of CPUs.
    pub queue: u64,
    /// Blocks by address.
    pub lookup: u64,
    /// The collection of dead pages of blocks.
    pub collect: u64,
}

/// The process as a machine. Clones are the same one.
#[derive(Clone)]
pub struct Host(Arc<Inner>);

struct Inner {
    // Constant.
    nodes: u32,
    cpus: u32,
    work: Work,
    // Atomic, each alone.
    /// A call freed too much and no drain has begun since.
    due: AtomicBool,
    helper: OnceLock<Thread>,
    /// Blocks are being released in the middle of a call, whose own drain waits for its end.
    holding: AtomicBool,
    /// A drain waits.
    held: AtomicBool,
    flushes: AtomicU64,
    lockings: [AtomicU64; LockClass::COUNT],
    /// Frees memory that the space's clients do not need, and returns the number of pages.
    reclaim: OnceLock<Reclaim>,
}

type Reclaim = Box<dyn Fn() -> u64 + Send + Sync>;

impl Host {
    /// Creates a machine with `nodes` CPUs possible and `cpus` online.
    pub fn new(nodes: u32, cpus: u32, work: Work) -> Self {
        Self(Arc::new(Inner {
            nodes,
            cpus,
            work,
            due: AtomicBool::new(false),
            helper: OnceLock::new(),
            holding: AtomicBool::new(false),
            held: AtomicBool::new(false),
            flushes: AtomicU64::new(0),
            lockings: [const { AtomicU64::new(0) }; LockClass::COUNT],
            reclaim: OnceLock::new(),
        }))
    }

    /// Returns the thread that drains.
    pub fn work(&self) -> Work {
        self.0.work
    }

    /// Sets the thread to wake. Only the first call has an effect.
    pub fn set_helper(&self, thread: Thread) {
        let _already_set = self.0.helper.set(thread);
    }

    /// Runs `body`. A drain that it makes due, and that the caller has to run, waits for
    /// [`take_held`](Self::take_held). Linux queues it, and the thread that queued it runs it when its call ends.
    pub fn holding<T>(&self, body: impl FnOnce() -> T) -> T {
        self.0.holding.store(true, Ordering::Relaxed);
        let done = body();
        self.0.holding.store(false, Ordering::Relaxed);
        done
    }

    /// Returns whether a drain waits, and assigns it to the caller.
    #[inline]
    pub fn take_held(&self) -> bool {
        self.0.held.load(Ordering::Relaxed) && self.0.held.swap(false, Ordering::Relaxed)
    }

    /// Sets the function that frees unneeded memory when a request would fail. Only the first call has an effect. The
    /// function must not own the host.
    pub fn set_reclaim(&self, reclaim: impl Fn() -> u64 + Send + Sync + 'static) {
        let _already_set = self.0.reclaim.set(Box::new(reclaim));
    }

    /// Returns whether a drain is due, and assigns it to the caller.
    pub fn take_due(&self) -> bool {
        // The drain sees everything that was freed before it was requested; `Helper` relies on this order.
        self.0.due.load(Ordering::Relaxed) && self.0.due.swap(false, Ordering::SeqCst)
    }

    /// Returns whether a drain is due that no thread has taken.
    pub fn is_due(&self) -> bool {
        self.0.due.load(Ordering::SeqCst)
    }

    /// Returns the flushes requested.
    pub fn flushes(&self) -> u64 {
        self.0.flushes.load(Ordering::Relaxed)
    }

    /// Returns the locks taken; all 0 without the feature `count`.
    pub fn lockings(&self) -> Lockings {
        let of = |class: LockClass| self.0.lockings[class as usize].load(Ordering::Relaxed);
        Lockings {
            pool: of(LockClass::Pool),
            lazy: of(LockClass::Lazy),
            free: of(LockClass::Free),
            purge: of(LockClass::Purge),
            queue: of(LockClass::Queue),
            lookup: of(LockClass::Lookup),
            collect: of(LockClass::Collect),
        }
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { nodes, cpus, work, .. } = &*self.0;
        f.debug_struct("Host").field("nodes", nodes).field("cpus", cpus).field("work", work).finish()
    }
}

impl Platform for Host {
    fn alloc_meta<T: Record>(&self, min: usize) -> Option<&'static mut [T]> {
        Some(Box::leak(vec![T::EMPTY; min].into_boxed_slice()))
    }

    fn free_meta<T: Record>(&self, slab: Meta<&'static mut [T]>) {
        let slab: *mut [T] = slab.take();
        // SAFETY: every slab passed here was created from a box by `alloc_meta`, and there is no other reference to it.
        drop(unsafe { Box::from_raw(slab) });
    }

    fn bug(&self, what: fmt::Arguments<'_>, broken: Option<InvariantViolation>) -> ! {
        match broken {
            Some(broken) => eprintln!("va-peer: {what}: {broken}"),
            None => eprintln!("va-peer: {what}"),
        }
        std::process::abort()
    }
}

impl Machine for Host {
    type Lock = RawMutex;
    type PurgeLock = RawMutex;
    #[cfg(not(loom))]
    type OwnerLock = vmalloc_os::OwnerLock;
    // A lock of loom's atomics has no constant.
    #[cfg(loom)]
    type OwnerLock = RawMutex;

    fn cpus_possible(&self) -> u32 {
        self.0.nodes
    }

    #[inline(always)]
    fn cpus_online(&self) -> u32 {
        self.0.cpus
    }

    fn alloc_table<T: Table>(&self) -> Option<&'static T> {
        let table = Box::into_raw(Box::new(T::empty()));
        let _address = table.expose_provenance();
        // SAFETY: it was a box a moment ago, and remains allocated until it is freed, when no reference to it exists.
        Some(unsafe { &*table })
    }

    fn free_table<T: Table>(&self, table: Meta<&'static T>) {
        let table = with_exposed_provenance_mut::<T>((&raw const **table).addr());
        // SAFETY: `alloc_table` created it from a box and exposed it; the space has no reference to a table that it
        // frees.
        drop(unsafe { Box::from_raw(table) });
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
        match self.0.work {
            Work::Here if self.0.holding.load(Ordering::Relaxed) => {
                self.0.held.store(true, Ordering::Relaxed);
                Drain::Elsewhere
            }
            Work::Here => Drain::Here,
            Work::Helper | Work::OnRequest => {
                // Release pairs with `take_due`.
                if !self.0.due.load(Ordering::Relaxed)
                    && !self.0.due.swap(true, Ordering::Release)
                    && let Some(helper) = self.0.helper.get()
                {
                    helper.unpark();
                }
                Drain::Elsewhere
            }
        }
    }

    fn can_reclaim(&self) -> bool {
        self.0.reclaim.get().is_some()
    }

    fn reclaim(&self) -> u64 {
        self.0.reclaim.get().map_or(0, |reclaim| reclaim())
    }

    #[inline(always)]
    fn locking(&self, class: LockClass) {
        if cfg!(feature = "count") {
            self.0.lockings[class as usize].fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use va_base::VaRange;
    use va_space::config::Standard;
    use va_space::{Purge, VmapSpace};

    #[test]
    fn a_space_on_the_host_lives_flushes_and_frees_its_memory() {
        let window = VaRange::from_pages(0x1000, 0x9000).unwrap();
        let host = Host::new(2, 2, Work::Here);
        let space = VmapSpace::<_, Standard>::new(VaRange::ALL, window, host.clone()).unwrap();
        let areas: Vec<_> =
            (1..200).map(|n| space.alloc(0, &va_base::Request::pages(n).unwrap()).unwrap()).collect();
        areas.into_iter().for_each(|area| space.free(area).unwrap());
        space.purge(Purge::Full);
        assert_eq!((space.validate(), host.flushes() > 0), (Ok(()), true));
        // A tool that tracks the heap checks that every box is freed.
        drop(space);
        assert_eq!(Arc::strong_count(&host.0), 1);
    }

    #[test]
    fn a_drain_is_due_once_however_often_it_is_asked_for() {
        let host = Host::new(1, 1, Work::OnRequest);
        assert_eq!([host.drain(), host.drain()], [Drain::Elsewhere; 2]);
        assert_eq!([host.take_due(), host.take_due()], [true, false]);
        assert_eq!(Host::new(1, 1, Work::Here).drain(), Drain::Here);
    }

    #[test]
    fn a_drain_in_the_middle_of_a_call_waits_for_its_end() {
        let host = Host::new(1, 1, Work::Here);
        assert_eq!(host.holding(|| host.drain()), Drain::Elsewhere);
        assert_eq!((host.drain(), host.is_due()), (Drain::Here, false));
        assert_eq!([host.take_held(), host.take_held()], [true, false]);
    }
}
