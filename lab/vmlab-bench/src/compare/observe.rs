//! Observes a target: the duration of each call, or the locks it waits for.
//!
//! # Theory
//! Each worker records its own figures and adds them to the total when it ends, so that observation shares nothing.
//! Observation has a cost: two reads of the clock for each call, which `clock_ns` measures, or the counting of locks.
//! So an observed run is not timed as a whole.
//!
//! Latencies are counted in buckets that grow with the value, exact to three digits. So the worst case is preserved,
//! and a billion calls take no more memory than a thousand.

use crate::suite::case::Case;
use crate::suite::target::{Ask, Ram, Target, Unsettled, Worker};
use hdrhistogram::Histogram;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;
use vmlab_machine::{
    ContendedAt, LockStats, NOTHING, merge_contended, take_contended, take_lock_stats, thread_cpu_ns,
};

/// The calls that are distinguished.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Call {
    Vmalloc,
    Vfree,
    /// `vm_map_ram`, a byte, `vm_unmap_ram`.
    MapUnmap,
    Vrealloc,
    PcpuAlloc,
    PcpuFree,
}

impl Call {
    pub(super) const ALL: [Self; 6] =
        [Self::Vmalloc, Self::Vfree, Self::MapUnmap, Self::Vrealloc, Self::PcpuAlloc, Self::PcpuFree];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Vmalloc => "vmalloc",
            Self::Vfree => "vfree",
            Self::MapUnmap => "vm_map_ram + vm_unmap_ram",
            Self::Vrealloc => "vrealloc",
            Self::PcpuAlloc => "alloc_percpu",
            Self::PcpuFree => "free_percpu",
        }
    }
}

/// Durations of calls, in nanoseconds.
#[derive(Clone)]
pub struct Latency(Histogram<u64>);

/// The longest latency that is recorded: an hour.
pub const LONGEST_NS: u64 = 3_600_000_000_000;

impl Latency {
    pub fn none() -> Self {
        // The histogram grows on demand, so that an unused call costs little. Three digits are a legal precision.
        match Histogram::new(3) {
            Ok(none) => Self(none),
            Err(error) => unreachable!("{error}"),
        }
    }

    pub fn record(&mut self, ns: u64) {
        // It can grow to an hour, so recording cannot fail.
        let recorded = self.0.record(ns.min(LONGEST_NS));
        debug_assert!(recorded.is_ok());
    }

    pub fn add(&mut self, other: &Self) {
        // It can grow to hold the values of the other.
        let added = self.0.add(&other.0);
        debug_assert!(added.is_ok());
    }

    pub fn calls(&self) -> u64 {
        self.0.len()
    }

    /// Returns the lowest value that `of_100` of a hundred calls did not exceed.
    pub fn percentile(&self, of_100: f64) -> u64 {
        self.0.value_at_percentile(of_100)
    }

    pub fn worst(&self) -> u64 {
        self.0.max()
    }
}

/// The observations.
pub(super) struct Seen {
    /// The latencies of each call, in the order of [`Call::ALL`].
    pub(super) latency: [Latency; Call::ALL.len()],
    pub(super) locks: LockStats,
    pub(super) contended: Vec<ContendedAt>,
    /// CPU time of the workers, in nanoseconds.
    pub(super) cpu_ns: u64,
}

impl Seen {
    fn nothing() -> Self {
        let latency = std::array::from_fn(|_| Latency::none());
        Self { latency, locks: NOTHING, contended: Vec::new(), cpu_ns: 0 }
    }
}

/// The observed quantity.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Look {
    /// Nothing: workers are the target's own.
    Nothing,
    /// The duration of each call.
    Calls,
    /// The locks that are waited for; the target must have locks that count.
    Locks,
}

/// A target under observation. Each of its workers stands for its own CPU, as long as there are CPUs.
pub(super) struct Observed<'t> {
    target: &'t dyn Target,
    /// CPUs of the target, and workers created so far.
    cpus: u32,
    workers: AtomicU32,
    look: Look,
    seen: Mutex<Seen>,
}

impl<'t> Observed<'t> {
    pub(super) fn new(target: &'t dyn Target, cpus: u32, look: Look) -> Self {
        Self { target, cpus, workers: AtomicU32::new(0), look, seen: Mutex::new(Seen::nothing()) }
    }

    /// Returns the observations of workers that have ended.
    pub(super) fn seen(self) -> Seen {
        self.seen.into_inner().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Target for Observed<'_> {
    fn worker(&self, _: u32) -> Box<dyn Worker + '_> {
        let number = self.workers.fetch_add(1, Ordering::Relaxed);
        let worker = self.target.worker(number % self.cpus.max(1));
        match self.look {
            Look::Nothing => worker,
            Look::Calls => {
                let latency = std::array::from_fn(|_| Latency::none());
                Box::new(Clocked { worker: Some(worker), latency, sum: &self.seen })
            }
            Look::Locks => {
                // Discard the counts of this thread from before.
                take_lock_stats();
                take_contended();
                Box::new(Counted { worker: Some(worker), begun_cpu_ns: thread_cpu_ns(), sum: &self.seen })
            }
        }
    }

    fn supports(&self, case: Case) -> bool {
        self.target.supports(case)
    }

    fn workers_max(&self) -> u32 {
        self.target.workers_max()
    }

    fn settle(&self) -> Result<(), Unsettled> {
        self.target.settle()
    }
}

/// A worker whose calls are timed.
struct Clocked<'t> {
    /// `None` when it ends.
    worker: Option<Box<dyn Worker + 't>>,
    latency: [Latency; Call::ALL.len()],
    sum: &'t Mutex<Seen>,
}

impl Drop for Clocked<'_> {
    fn drop(&mut self) {
        self.worker = None;
        let mut sum = self.sum.lock().unwrap_or_else(PoisonError::into_inner);
        for (sum, own) in sum.latency.iter_mut().zip(&self.latency) {
            sum.add(own);
        }
    }
}

fn clocked<T>(latency: &mut Latency, call: impl FnOnce() -> T) -> T {
    let begun = Instant::now();
    let got = call();
    latency.record(begun.elapsed().as_nanos() as u64);
    got
}

/// Returns the nanoseconds that reading the clock adds to a latency.
pub(super) fn clock_ns() -> u64 {
    let mut latency = Latency::none();
    for _ in 0..10_000 {
        clocked(&mut latency, || ());
    }
    latency.percentile(50.0)
}

impl Clocked<'_> {
    fn call<T>(&mut self, call: Call, of: impl FnOnce(&mut dyn Worker) -> Option<T>) -> Option<T> {
        let worker = self.worker.as_deref_mut()?;
        clocked(&mut self.latency[call as usize], || of(worker))
    }
}

impl Worker for Clocked<'_> {
    fn vmalloc(&mut self, ask: &Ask) -> Option<u64> {
        self.call(Call::Vmalloc, |worker| worker.vmalloc(ask))
    }

    fn vfree(&mut self, at: u64) {
        self.call(Call::Vfree, |worker| {
            worker.vfree(at);
            Some(())
        });
    }

    fn write(&mut self, at: u64, byte: u8) {
        if let Some(worker) = &mut self.worker {
            worker.write(at, byte);
        }
    }

    fn holds(&mut self, at: u64, byte: u8) -> bool {
        self.worker.as_mut().is_some_and(|worker| worker.holds(at, byte))
    }

    fn vrealloc(&mut self, at: u64, had: u64, bytes: u64) -> Option<u64> {
        self.call(Call::Vrealloc, |worker| worker.vrealloc(at, had, bytes))
    }

    fn pages(&mut self, count: u64) -> Option<Box<dyn Ram + '_>> {
        let pages = self.worker.as_mut()?.pages(count)?;
        Some(Box::new(ClockedRam { pages, latency: &mut self.latency[Call::MapUnmap as usize] }))
    }

    fn pcpu_alloc(&mut self, bytes: u64, align: u64) -> Option<u64> {
        self.call(Call::PcpuAlloc, |worker| worker.pcpu_alloc(bytes, align))
    }

    fn pcpu_free(&mut self, at: u64) {
        self.call(Call::PcpuFree, |worker| {
            worker.pcpu_free(at);
            Some(())
        });
    }
}

struct ClockedRam<'w> {
    pages: Box<dyn Ram + 'w>,
    latency: &'w mut Latency,
}

impl Ram for ClockedRam<'_> {
    fn map_write_unmap(&mut self, byte: u8) -> bool {
        clocked(self.latency, || self.pages.map_write_unmap(byte))
    }
}

/// A worker whose thread counts locks.
struct Counted<'t> {
    /// `None` when it ends.
    worker: Option<Box<dyn Worker + 't>>,
    begun_cpu_ns: u64,
    sum: &'t Mutex<Seen>,
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        // Dropping the worker flushes its caches, which acquires locks.
        self.worker = None;
        let cpu_ns = thread_cpu_ns() - self.begun_cpu_ns;
        let (locks, contended) = (take_lock_stats(), take_contended());
        let mut sum = self.sum.lock().unwrap_or_else(PoisonError::into_inner);
        for (sum, own) in sum.locks.iter_mut().zip(&locks) {
            sum.add(own);
        }
        let before = std::mem::take(&mut sum.contended);
        sum.contended = merge_contended(before.into_iter().chain(contended));
        sum.cpu_ns += cpu_ns;
    }
}

impl Worker for Counted<'_> {
    fn vmalloc(&mut self, ask: &Ask) -> Option<u64> {
        self.worker.as_mut()?.vmalloc(ask)
    }

    fn vfree(&mut self, at: u64) {
        if let Some(worker) = &mut self.worker {
            worker.vfree(at);
        }
    }

    fn write(&mut self, at: u64, byte: u8) {
        if let Some(worker) = &mut self.worker {
            worker.write(at, byte);
        }
    }

    fn holds(&mut self, at: u64, byte: u8) -> bool {
        self.worker.as_mut().is_some_and(|worker| worker.holds(at, byte))
    }

    fn vrealloc(&mut self, at: u64, had: u64, bytes: u64) -> Option<u64> {
        self.worker.as_mut()?.vrealloc(at, had, bytes)
    }

    fn pages(&mut self, count: u64) -> Option<Box<dyn Ram + '_>> {
        self.worker.as_mut()?.pages(count)
    }

    fn pcpu_alloc(&mut self, bytes: u64, align: u64) -> Option<u64> {
        self.worker.as_mut()?.pcpu_alloc(bytes, align)
    }

    fn pcpu_free(&mut self, at: u64) {
        if let Some(worker) = &mut self.worker {
            worker.pcpu_free(at);
        }
    }
}
