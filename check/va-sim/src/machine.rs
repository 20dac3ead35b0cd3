//! A simulated machine: it records stale translations, to detect reuse without a flush, and fails on request.
//!
//! # Theory
//! A client of a space maps an area that it allocated, and unmaps one before it frees it. The machine implements both
//! ([`SimMachine::map`], [`SimMachine::unmap`]) and records, page by page, which translations its CPUs may have:
//!
//! ```text
//!   clean --map--> mapped --unmap--> stale --a flush that began later, completed--> clean
//!                                      \--map--> SP2 is broken
//! ```
//!
//! A page that was unmapped after a flush began remains stale, whatever that flush covers. A [`Flushing`] is the effect
//! of a flush, and its end.

mod translations;

use crate::platform::HeapPlatform;
use parking_lot::{Mutex, RawMutex};
use std::cell::RefCell;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use translations::Translations;
use va_base::{Drain, Epoch, LockClass, Machine, Meta, Platform, Record, Table, Va, VaRange};

/// The behaviour of a flush.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flushing {
    /// All of it, before the call returns.
    AtOnce,
    /// Nothing until [`SimMachine::complete_flushes`].
    OnRequest,
    /// Never, although it reports an end: a fault, to check that the machine detects it.
    Never,
}

/// SP2 was broken: an address was mapped that a CPU may still translate by an earlier mapping, or that is mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Violation {
    /// The first page concerned.
    pub at: Va,
    /// It was unmapped and not flushed (otherwise it is mapped at this moment: allocated twice).
    pub stale: bool,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.stale {
            true => write!(f, "SP2: {} was allocated again before a flush that covers it", self.at),
            false => write!(f, "SP1: {} was allocated twice", self.at),
        }
    }
}

impl std::error::Error for Violation {}

struct Beliefs {
    translations: Translations,
    /// Counts unmaps and flushes.
    clock: u64,
    /// Epoch, time of beginning, ranges.
    pending: Vec<(u64, u64, Vec<VaRange>)>,
    flushing: Flushing,
}

/// Called by `reclaim`; returns pages freed.
pub type Reclaim = Box<dyn FnMut() -> u64 + Send>;

/// The action of another CPU right after a flush began.
pub type Meanwhile = Box<dyn FnMut() + Send>;

/// The machine. Share it by reference.
pub struct SimMachine {
    cpus_possible: u32,
    cpus_online: AtomicU32,
    beliefs: Mutex<Beliefs>,
    slabs: HeapPlatform,
    slabs_left: AtomicU64,
    slab_bytes_max: AtomicUsize,
    slabs_out: AtomicU64,
    tables_left: AtomicU64,
    /// Requests that are denied before all are granted again; `u64::MAX` if that never ends.
    denials_left: AtomicU64,
    denials: AtomicU64,
    tables: AtomicU64,
    flushes: AtomicU64,
    drains: AtomicU64,
    waits: AtomicU64,
    drains_elsewhere: AtomicBool,
    reclaim: Mutex<Option<Reclaim>>,
    meanwhile: Mutex<Option<Meanwhile>>,
    hears_settled: AtomicBool,
    settled: Mutex<Vec<VaRange>>,
}

impl core::fmt::Debug for SimMachine {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("SimMachine").field("cpus_possible", &self.cpus_possible).finish_non_exhaustive()
    }
}

thread_local! {
    static LOCKINGS: RefCell<[u64; LockClass::COUNT]> = const { RefCell::new([0; LockClass::COUNT]) };
}

/// Returns the locks that this thread took of all spaces on simulated machines, in the order of [`LockClass`].
#[must_use]
pub fn lockings() -> [u64; LockClass::COUNT] {
    LOCKINGS.with(|counts| *counts.borrow())
}

impl SimMachine {
    /// The kinds of requests that it fails on request, for [`every_nth`](crate::every_nth).
    pub const KINDS: [&'static str; 2] = ["slab", "table"];

    /// Creates a machine of `cpus` CPUs, all online, that flushes at once and fails nothing.
    #[must_use]
    pub fn new(cpus: u32) -> Self {
        let (translations, pending) = (Translations::default(), Vec::new());
        let beliefs = Beliefs { translations, clock: 0, pending, flushing: Flushing::AtOnce };
        Self {
            cpus_possible: cpus,
            cpus_online: AtomicU32::new(cpus),
            beliefs: Mutex::new(beliefs),
            slabs: HeapPlatform::default(),
            slabs_left: AtomicU64::new(u64::MAX),
            slab_bytes_max: AtomicUsize::new(usize::MAX),
            slabs_out: AtomicU64::new(0),
            tables_left: AtomicU64::new(u64::MAX),
            denials_left: AtomicU64::new(u64::MAX),
            denials: AtomicU64::new(0),
            tables: AtomicU64::new(0),
            flushes: AtomicU64::new(0),
            drains: AtomicU64::new(0),
            waits: AtomicU64::new(0),
            drains_elsewhere: AtomicBool::new(false),
            reclaim: Mutex::default(),
            meanwhile: Mutex::default(),
            hears_settled: AtomicBool::new(false),
            settled: Mutex::default(),
        }
    }

    /// Sets the behaviour of flushes from now on.
    pub fn set_flushing(&self, flushing: Flushing) {
        self.beliefs.lock().flushing = flushing;
    }

    /// Grants `slabs` slabs and `tables` tables more, and fails the rest; `u64::MAX` fails none.
    pub fn fail_after(&self, slabs: u64, tables: u64) {
        self.fail_some(slabs, tables, u64::MAX);
    }

    /// Grants `slabs` slabs and `tables` tables more, fails the next `count` requests beyond those, and grants all
    /// later ones.
    pub fn fail_some(&self, slabs: u64, tables: u64, count: u64) {
        self.denials_left.store(count, Ordering::Relaxed);
        self.slabs_left.store(slabs, Ordering::Relaxed);
        self.tables_left.store(tables, Ordering::Relaxed);
    }

    /// Fails requests of one of the [`KINDS`](Self::KINDS) as [`fail_some`](Self::fail_some) does.
    pub fn fail_kind(&self, kind: usize, granted: u64, count: u64) {
        let (slabs, tables) = if kind == 0 { (granted, u64::MAX) } else { (u64::MAX, granted) };
        self.fail_some(slabs, tables, count);
    }

    /// Returns the requests for slabs and tables that failed so far.
    pub fn denials(&self) -> u64 {
        self.denials.load(Ordering::Relaxed)
    }

    /// Returns the slabs that are granted before the rest fail; `u64::MAX` if none fails.
    pub fn slabs_left(&self) -> u64 {
        self.slabs_left.load(Ordering::Relaxed)
    }

    /// Denies slabs of more than `bytes` bytes from now on; `usize::MAX` denies none.
    pub fn limit_slabs(&self, bytes: usize) {
        self.slab_bytes_max.store(bytes, Ordering::Relaxed);
    }

    /// Returns the number of slabs and tables that are allocated at the moment.
    pub fn allocated(&self) -> u64 {
        self.slabs_out.load(Ordering::Relaxed) + self.tables()
    }

    /// Sets whether a worker drains; otherwise the freeing thread does.
    pub fn drain_elsewhere(&self, elsewhere: bool) {
        self.drains_elsewhere.store(elsewhere, Ordering::Relaxed);
    }

    /// Sets what `reclaim` calls.
    pub fn on_reclaim(&self, reclaim: Option<Reclaim>) {
        *self.reclaim.lock() = reclaim;
    }

    /// Sets what another CPU does right after each flush began, from now on. That flush does not cover what it unmaps
    /// and frees. It runs on the same stack, so it must not wait for a lock that a purge holds; a free does not.
    pub fn on_flush(&self, meanwhile: Option<Meanwhile>) {
        *self.meanwhile.lock() = meanwhile;
    }

    /// Sets how many CPUs are online.
    pub fn set_online(&self, cpus: u32) {
        self.cpus_online.store(cpus, Ordering::Relaxed);
    }

    /// Returns the flushes requested.
    pub fn flushes(&self) -> u64 {
        self.flushes.load(Ordering::Relaxed)
    }

    /// Returns the times that a space had too many lazy pages.
    pub fn drains(&self) -> u64 {
        self.drains.load(Ordering::Relaxed)
    }

    /// Requests a report of each flushed area from spaces, from now on.
    pub fn hear_settled(&self) {
        self.hears_settled.store(true, Ordering::Relaxed);
    }

    /// Returns the areas reported as flushed since the last call.
    pub fn take_settled(&self) -> Vec<VaRange> {
        core::mem::take(&mut *self.settled.lock())
    }

    /// Returns the times that a space waited for a flush.
    pub fn waits(&self) -> u64 {
        self.waits.load(Ordering::Relaxed)
    }

    /// Returns the tables allocated and not freed.
    pub fn tables(&self) -> u64 {
        self.tables.load(Ordering::Relaxed)
    }

    /// Maps an area that was allocated.
    ///
    /// # Errors
    /// [`Violation`] if SP1 or SP2 is broken.
    pub fn map(&self, range: VaRange) -> Result<(), Violation> {
        self.beliefs.lock().translations.map(range)
    }

    /// Unmaps an area that is about to be freed: its translations are stale from here on.
    pub fn unmap(&self, range: VaRange) {
        let mut beliefs = self.beliefs.lock();
        beliefs.clock += 1;
        let now = beliefs.clock;
        beliefs.translations.unmap(range, now);
    }

    /// Ends every flush that has begun.
    pub fn complete_flushes(&self) {
        let mut beliefs = self.beliefs.lock();
        for (_, begun, ranges) in core::mem::take(&mut beliefs.pending) {
            beliefs.clear(begun, &ranges);
        }
    }

    /// Returns the pages in `range` that are mapped or stale.
    pub fn unclean(&self, range: VaRange) -> u64 {
        self.beliefs.lock().translations.unclean(range)
    }

    fn granted(&self, left: &AtomicU64) -> bool {
        let less = |left: u64| if left == u64::MAX { Some(left) } else { left.checked_sub(1) };
        let take = |left: &AtomicU64| left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok();
        if take(left) || !take(&self.denials_left) {
            return true;
        }
        self.denials.fetch_add(1, Ordering::Relaxed);
        false
    }
}

impl Beliefs {
    fn clear(&mut self, begun: u64, ranges: &[VaRange]) {
        ranges.iter().for_each(|&range| self.translations.flush(range, begun));
    }
}

impl Platform for SimMachine {
    fn alloc_meta<T: Record>(&self, min: usize) -> Option<&'static mut [T]> {
        let is_long = size_of::<T>().saturating_mul(min) > self.slab_bytes_max.load(Ordering::Relaxed);
        if is_long || !self.granted(&self.slabs_left) {
            return None;
        }
        self.slabs_out.fetch_add(1, Ordering::Relaxed);
        self.slabs.alloc_meta(min)
    }

    fn free_meta<T: Record>(&self, slab: Meta<&'static mut [T]>) {
        self.slabs_out.fetch_sub(1, Ordering::Relaxed);
        self.slabs.free_meta(slab);
    }
}

impl Machine for SimMachine {
    type Lock = RawMutex;
    type PurgeLock = RawMutex;
    type OwnerLock = Self::Lock;

    fn cpus_possible(&self) -> u32 {
        self.cpus_possible
    }

    fn cpus_online(&self) -> u32 {
        self.cpus_online.load(Ordering::Relaxed)
    }

    /// Tables are leaked: without `unsafe`, a shared reference cannot become owned again.
    fn alloc_table<T: Table>(&self) -> Option<&'static T> {
        if !self.granted(&self.tables_left) {
            return None;
        }
        self.tables.fetch_add(1, Ordering::Relaxed);
        Some(Box::leak(Box::new(T::empty())))
    }

    fn free_table<T: Table>(&self, _table: Meta<&'static T>) {
        self.tables.fetch_sub(1, Ordering::Relaxed);
    }

    const RETIRES: bool = true;

    fn retire_table<T: Table>(&self, table: Meta<&'static T>) {
        self.free_table(table);
    }

    fn flush(&self, ranges: &[VaRange]) -> Epoch {
        let epoch = self.flushes.fetch_add(1, Ordering::Relaxed) + 1;
        let mut beliefs = self.beliefs.lock();
        let begun = beliefs.clock;
        match beliefs.flushing {
            Flushing::AtOnce => beliefs.clear(begun, ranges),
            Flushing::OnRequest => beliefs.pending.push((epoch, begun, ranges.to_vec())),
            Flushing::Never => {}
        }
        drop(beliefs);
        let taken = self.meanwhile.lock().take();
        if let Some(mut meanwhile) = taken {
            meanwhile();
            self.meanwhile.lock().get_or_insert(meanwhile);
        }
        Epoch(epoch)
    }

    fn completed(&self, epoch: Epoch) -> bool {
        self.beliefs.lock().pending.iter().all(|&(pending, ..)| pending > epoch.0)
    }

    fn hears_settled(&self) -> bool {
        self.hears_settled.load(Ordering::Relaxed)
    }

    fn settled(&self, ranges: &[VaRange]) {
        assert!(ranges.len() <= 16, "{} ranges at a time", ranges.len());
        self.settled.lock().extend_from_slice(ranges);
    }

    /// Ends the flushes up to `epoch`, as happens while a thread sleeps.
    fn wait(&self, epoch: Epoch) {
        self.waits.fetch_add(1, Ordering::Relaxed);
        let mut beliefs = self.beliefs.lock();
        let pending = core::mem::take(&mut beliefs.pending);
        let (ended, left) = pending.into_iter().partition(|&(pending, ..)| pending <= epoch.0);
        beliefs.pending = left;
        let ended: Vec<(u64, u64, Vec<VaRange>)> = ended;
        for (_, begun, ranges) in ended {
            beliefs.clear(begun, &ranges);
        }
    }

    fn drain(&self) -> Drain {
        self.drains.fetch_add(1, Ordering::Relaxed);
        if self.drains_elsewhere.load(Ordering::Relaxed) { Drain::Elsewhere } else { Drain::Here }
    }

    fn locking(&self, class: LockClass) {
        LOCKINGS.with(|counts| counts.borrow_mut()[class as usize] += 1);
    }

    fn can_reclaim(&self) -> bool {
        self.reclaim.lock().is_some()
    }

    fn reclaim(&self) -> u64 {
        // Out of the cell while it runs: it may free, and so enter this call again.
        let taken = self.reclaim.lock().take();
        match taken {
            Some(mut reclaim) => {
                let freed = reclaim();
                self.reclaim.lock().get_or_insert(reclaim);
                freed
            }
            None => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(first: u64, end: u64) -> VaRange {
        VaRange::from_pages(first, end).unwrap()
    }

    #[test]
    fn sp2_reuse_before_a_flush_is_seen() {
        let machine = SimMachine::new(1);
        machine.map(pages(10, 14)).unwrap();
        assert_eq!(machine.map(pages(13, 15)), Err(Violation { at: Va::from_page(13), stale: false }));
        machine.unmap(pages(10, 14));
        let stale = Err(Violation { at: Va::from_page(12), stale: true });
        assert_eq!(machine.map(pages(12, 13)), stale);
        machine.flush(&[pages(10, 12)]);
        assert_eq!(machine.map(pages(12, 13)), stale, "the flush did not cover it");
        machine.map(pages(10, 12)).unwrap();
    }

    #[test]
    fn sp2_a_flush_that_began_before_the_unmap_does_not_count() {
        let machine = SimMachine::new(1);
        machine.set_flushing(Flushing::OnRequest);
        machine.map(pages(1, 2)).unwrap();
        let epoch = machine.flush(&[pages(0, 9)]);
        machine.unmap(pages(1, 2));
        assert!(!machine.completed(epoch));
        machine.complete_flushes();
        assert!(machine.completed(epoch));
        assert!(machine.map(pages(1, 2)).is_err());
        let _later = machine.flush(&[pages(0, 9)]);
        machine.complete_flushes();
        assert!(machine.map(pages(1, 2)).is_ok());
    }
}
