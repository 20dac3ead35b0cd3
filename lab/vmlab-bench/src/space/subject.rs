//! The interface of a measured space: the calls of its threads.

use crate::indexes::{Drained, Holes};
use va_base::{Align, PAGE_SHIFT, Request, Va};
use va_tree::Congruent;
use vmlab_machine::LockStats;

/// The set-up of a row.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub nodes: u32,
    /// CPUs online, which determine the lazy threshold.
    pub cpus: u32,
    /// True if a helper thread drains; otherwise the call that exceeds the threshold.
    pub helper: bool,
}

impl Setup {
    /// A node for each CPU, and no helper.
    pub const fn alone(nodes: u32) -> Self {
        Self { nodes, cpus: nodes, helper: false }
    }
}

/// A space that threads share.
pub trait Subject: Sync + 'static {
    /// One thread's handle.
    type Driver<'a>: Driver
    where
        Self: 'a;
    /// Returns the driver of a thread that stands for a CPU.
    fn driver(&self, cpu: u32) -> Self::Driver<'_>;
    /// Purges and flushes so far.
    fn drained(&self) -> Drained;
    /// Drains repeatedly until `done` returns true; returns this thread's statistics of locks.
    fn help(&self, done: &dyn Fn() -> bool) -> LockStats;
    /// Returns locks by the kernel's names, if the space itself counts them, and not its machine.
    fn own_locks(&self) -> Option<Vec<OwnLock>> {
        None
    }
}

/// The report of a C library about the locks of one class.
#[derive(Clone, Copy, Debug)]
pub struct OwnLock {
    pub name: &'static str,
    pub contentions: u64,
    /// `None` if it does not count them.
    pub acquisitions: Option<u64>,
}

/// One thread's handle to a space. Addresses are bytes.
pub trait Driver {
    /// Makes the thread stand for another CPU from now on.
    fn move_to(&mut self, cpu: u32);
    fn alloc(&mut self, request: &Request) -> Option<Va>;
    fn free(&mut self, at: Va);
    /// Purges everything, including pools and this thread's magazines.
    fn purge(&mut self);
    /// Returns the start of the busy area around an address.
    fn find(&self, at: Va) -> Option<Va>;
    /// Allocates areas at fixed distances; `None` also if this is not supported.
    fn congruent(&mut self, areas: &Congruent<'_>) -> Option<Va>;
}

/// An operation that is generic over the type of the space.
pub trait Visitor {
    type Out;
    fn visit<S: Subject>(self, subject: S) -> Self::Out;
}

/// A driver as the target of a stream of operations.
pub struct Stream<'a, S: Subject> {
    subject: &'a S,
    driver: S::Driver<'a>,
}

impl<'a, S: Subject> Stream<'a, S> {
    pub fn new(subject: &'a S, cpu: u32) -> Self {
        Self { subject, driver: subject.driver(cpu) }
    }
}

impl<S: Subject> Holes for Stream<'_, S> {
    #[inline(always)]
    fn alloc(&mut self, size: u64, align_log2: u32, _: (u64, u64)) -> Option<u64> {
        let align = Align::from_log2(align_log2 + PAGE_SHIFT)?;
        self.driver.alloc(&Request::pages(size).ok()?.aligned(align)).map(Va::page_floor)
    }

    #[inline(always)]
    fn free(&mut self, start: u64, _: u64) {
        self.driver.free(Va::from_page(start));
    }

    fn drained(&self) -> Option<Drained> {
        Some(self.subject.drained())
    }
}
