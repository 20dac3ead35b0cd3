//! A reference count that many take and nobody looks at until the end: the kernel's `percpu_ref`.
//!
//! # Theory
//! While it is live, each unit counts for itself; single units may be below 0, and nobody knows the sum. When it is *killed* it
//! becomes one atomic count, and whoever puts the last reference back knows it. Two things make the change safe:
//!
//! ```text
//!   gate = 1 | end all sections | count += sum of units - BIAS | put the first reference
//!              '-- sections that saw gate = 0 have stored; those that begin now see 1
//! ```
//!
//! The *bias* in the atomic count keeps it from 0 until the units are added. Adding to the atomic
//! count is right in either mode, so a thread without a unit of its own does that. So does every
//! thread where there are no sections, or no method to end them: the counter is in atomic mode from
//! the beginning then.
//!
//! # Invariants
//! - **RF1 sum** count + units is the number of references, plus the bias while the gate is open.
//! - **RF2 last** the release is called once each time the count becomes 0, and never before all that was taken was put.
//!
//! The algorithm works on a small trait ([`Units`]), so that loom can model it.
//!
//! # Source
//! Linux `lib/percpu-refcount.c`, `include/linux/percpu-refcount.h` (6.12); it waits for an RCU grace period where this ends sections
//! by `membarrier`.

use super::locks::{Lock, Shared};
use super::{Error, PerCpu, Space, Word, find};
use core::fmt;
use va_base::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

/// Larger than any number of references, and far from the ends of the range.
const BIAS: i64 = 1 << 62;
/// Units count.
const OPEN: u64 = 0;
/// Only the atomic count does.
const ATOMIC: u64 = 1;
/// Killed.
const DEAD: u64 = 2;

/// References counted by unit.
pub(crate) trait Units {
    /// Adds to this unit while `gate` is 0; `false` if it is not, or there is no unit for the caller.
    fn add(&self, amount: i64, gate: &AtomicU64) -> bool;
    /// Returns once nobody adds who saw the gate open before. `false` if that cannot be known.
    fn end_adds(&self) -> bool;
    /// Takes what all units have. Nobody adds.
    fn take_all(&self) -> i64;
}

/// The reason why a call was refused. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum RefError {
    /// It is dead already.
    Dead,
    /// It is not dead.
    NotDead,
    /// There are references yet.
    NotZero {
        /// As many, a moment ago.
        references: i64,
    },
    /// The system refused the barrier that it granted before; without it nobody can know who is counting.
    NoBarrier,
}

impl fmt::Display for RefError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dead => f.write_str("the reference count was killed before"),
            Self::NotDead => f.write_str("the reference count is not dead"),
            Self::NotZero { references } => write!(f, "{references} references are not put back"),
            Self::NoBarrier => f.write_str("the system refused the barrier that ends sections"),
        }
    }
}

impl core::error::Error for RefError {}

/// The mode in which references are counted at first.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RefMode {
    /// By unit, where that can be.
    #[default]
    PerCpu,
    /// By one atomic count, until [`PerCpuRef::switch_to_percpu`].
    Atomic,
    /// Dead, with no reference: as after a kill whose last reference was put.
    Dead,
}

/// The algorithm.
pub(crate) struct Counted<U, K> {
    units: U,
    count: AtomicI64,
    /// `OPEN`, or bits. Written under the lock.
    gate: AtomicU64,
    /// True if it stays atomic though it is live. Read and written under the lock.
    forced: AtomicBool,
    /// It may be that of others, too: nobody takes two, and nobody who is called back is called under it.
    lock: K,
}

impl<U: Units, K: Lock> Counted<U, K> {
    pub(crate) fn new(units: U, mode: RefMode, lock: K) -> Self {
        let (gate, count) = match mode {
            RefMode::PerCpu => (OPEN, BIAS + 1),
            RefMode::Atomic => (ATOMIC, 1),
            RefMode::Dead => (ATOMIC | DEAD, 0),
        };
        Self {
            units,
            count: AtomicI64::new(count),
            gate: AtomicU64::new(gate),
            forced: AtomicBool::new(mode == RefMode::Atomic),
            lock,
        }
    }

    #[inline(always)]
    pub(crate) fn get(&self, references: i64) {
        if !self.units.add(references, &self.gate) {
            self.count.fetch_add(references, Ordering::Relaxed);
        }
    }

    #[inline(always)]
    pub(crate) fn try_get(&self, references: i64) -> bool {
        self.units.add(references, &self.gate) || self.get_unless_zero(references)
    }

    #[inline(always)]
    pub(crate) fn try_get_live(&self) -> bool {
        // Acquire pairs with the release in `close`.
        self.units.add(1, &self.gate) || (!self.is_dying() && self.get_unless_zero(1))
    }

    #[cold]
    fn get_unless_zero(&self, references: i64) -> bool {
        let more = |count: i64| (count != 0).then_some(count + references);
        self.count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// Puts references back; `true` if they were the last ones.
    #[inline(always)]
    pub(crate) fn put(&self, references: i64) -> bool {
        !self.units.add(-references, &self.gate) && self.put_atomic(references)
    }

    /// Checks RF2: of all who put, one sees the count become 0, which it cannot while the bias is in it.
    #[cold]
    fn put_atomic(&self, references: i64) -> bool {
        // Release: what was done with the reference comes before the release; acquire: the last one sees all of that.
        self.count.fetch_sub(references, Ordering::AcqRel) == references
    }

    pub(crate) fn is_dying(&self) -> bool {
        self.gate.load(Ordering::Acquire) & DEAD != 0
    }

    pub(crate) fn is_zero(&self) -> bool {
        self.gate.load(Ordering::Acquire) != OPEN && self.count.load(Ordering::Acquire) == 0
    }

    pub(crate) fn is_percpu(&self) -> bool {
        self.gate.load(Ordering::Acquire) == OPEN
    }

    /// Closes the gate, if it is open, and brings all into the count. The caller holds the lock.
    fn close(&self, bits: u64) -> Result<(), RefError> {
        let before = self.gate.load(Ordering::Relaxed);
        // Sequentially consistent with the barrier: who begins behind it sees the gate closed.
        self.gate.store(before | bits, Ordering::SeqCst);
        if before != OPEN {
            return Ok(());
        }
        if !self.units.end_adds() {
            self.gate.store(before, Ordering::SeqCst);
            return Err(RefError::NoBarrier);
        }
        // Checks RF1: what leaves the units comes to the count, and the bias goes in the same step.
        let sum = self.units.take_all();
        self.count.fetch_add(sum - BIAS, Ordering::AcqRel);
        Ok(())
    }

    /// Opens the gate, if nothing is against it. The caller holds the lock.
    fn open(&self) {
        if self.gate.load(Ordering::Relaxed) != OPEN {
            self.count.fetch_add(BIAS, Ordering::Relaxed);
            // Release: whoever sees it open sees the bias and units of 0.
            self.gate.store(OPEN, Ordering::SeqCst);
        }
    }

    /// Kills it; calls `confirm` when nobody can get by [`try_get_live`](Self::try_get_live) any more. `Ok(true)` if the first
    /// reference was the last one.
    pub(crate) fn kill(&self, confirm: impl FnOnce()) -> Result<bool, RefError> {
        let locked = self.lock.hold();
        if self.gate.load(Ordering::Relaxed) & DEAD != 0 {
            return Err(RefError::Dead);
        }
        self.close(ATOMIC | DEAD)?;
        drop(locked);
        confirm();
        Ok(self.put_atomic(1))
    }

    /// Makes it live again, with a first reference, whether or not there are others.
    pub(crate) fn resurrect(&self, only_zero: bool, can_open: bool) -> Result<(), RefError> {
        let _locked = self.lock.hold();
        if self.gate.load(Ordering::Relaxed) & DEAD == 0 {
            return Err(RefError::NotDead);
        }
        // Acquire pairs with the release of the last put.
        let references = self.count.load(Ordering::Acquire);
        if only_zero && references != 0 {
            return Err(RefError::NotZero { references });
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        if self.forced.load(Ordering::Relaxed) || !can_open {
            self.gate.store(ATOMIC, Ordering::SeqCst);
        } else {
            self.open();
        }
        Ok(())
    }

    pub(crate) fn switch_to_atomic(&self) -> Result<(), RefError> {
        let _locked = self.lock.hold();
        self.close(ATOMIC)?;
        self.forced.store(true, Ordering::Relaxed);
        Ok(())
    }

    pub(crate) fn switch_to_percpu(&self, can_open: bool) {
        let _locked = self.lock.hold();
        self.forced.store(false, Ordering::Relaxed);
        if can_open && self.gate.load(Ordering::Relaxed) & DEAD == 0 {
            self.open();
        }
    }

    pub(crate) fn count(&self) -> i64 {
        self.count.load(Ordering::Relaxed)
    }
}

struct InUnits<'s> {
    words: PerCpu<'s, Word>,
    /// Sections can be ended from outside.
    by_unit: bool,
}

impl Units for InUnits<'_> {
    #[inline(always)]
    fn add(&self, amount: i64, gate: &AtomicU64) -> bool {
        #[cfg(not(loom))]
        {
            self.words.word().add_if_open(amount as u64, gate)
        }
        #[cfg(loom)]
        {
            // The real units are not modelled: loom's gate is no word in memory.
            let _ = (amount, gate);
            false
        }
    }

    fn end_adds(&self) -> bool {
        self.by_unit && find::end_sections()
    }

    fn take_all(&self) -> i64 {
        let mut sum = 0i64;
        // SAFETY: the gate is closed and all sections have ended, so nobody changes the words; the lock of the gate is held.
        unsafe { self.words.word().take_all(|word| sum = sum.wrapping_add(word as i64)) };
        sum
    }
}

/// References counted by unit, until somebody kills the count; `release` is called when the last reference was put after that.
pub struct PerCpuRef<'s, R: Fn()> {
    counted: Counted<InUnits<'s>, Shared<'s>>,
    release: R,
}

impl<'s, R: Fn()> PerCpuRef<'s, R> {
    /// A count with a first reference, which the kill puts back.
    ///
    /// # Errors
    /// As [`Space::alloc`].
    pub fn new(space: &'s Space, mode: RefMode, release: R) -> Result<Self, Error> {
        let words = space.zeroed()?;
        let lock = space.lock_of(words.offset());
        let by_unit = space.is_restartable() && find::can_end_sections();
        let mode = if mode == RefMode::PerCpu && !by_unit { RefMode::Atomic } else { mode };
        let counted = Counted::new(InUnits { words, by_unit }, mode, lock);
        Ok(Self { counted, release })
    }

    fn by_unit(&self) -> bool {
        self.counted.units.by_unit
    }

    /// Gets a reference; the caller has one already, or knows that the first one was not put.
    #[inline(always)]
    pub fn get(&self) {
        self.counted.get(1);
    }

    /// Gets several. Numbers are at most 2^32 each.
    #[inline(always)]
    pub fn get_many(&self, references: u32) {
        self.counted.get(i64::from(references));
    }

    /// Gets a reference unless there is none; a dead count may still give one.
    #[inline(always)]
    #[must_use]
    pub fn try_get(&self) -> bool {
        self.counted.try_get(1)
    }

    /// Gets several, or none.
    #[inline(always)]
    #[must_use]
    pub fn try_get_many(&self, references: u32) -> bool {
        self.counted.try_get(i64::from(references))
    }

    /// Gets a reference unless it is dead.
    #[inline(always)]
    #[must_use]
    pub fn try_get_live(&self) -> bool {
        self.counted.try_get_live()
    }

    /// Puts a reference back that the caller has; if it was the last one, calls the release.
    #[inline(always)]
    pub fn put(&self) {
        self.put_many(1);
    }

    /// Puts several back.
    #[inline(always)]
    pub fn put_many(&self, references: u32) {
        if self.counted.put(i64::from(references)) {
            (self.release)();
        }
    }

    /// Kills it and puts the first reference back.
    ///
    /// # Errors
    /// It is dead, or the system refuses the barrier; nothing has changed.
    pub fn kill(&self) -> Result<(), RefError> {
        self.kill_and_confirm(|| {})
    }

    /// The same; calls `confirm` once every [`try_get_live`](Self::try_get_live) fails, before the reference is put.
    ///
    /// # Errors
    /// As [`kill`](Self::kill).
    pub fn kill_and_confirm(&self, confirm: impl FnOnce()) -> Result<(), RefError> {
        if self.counted.kill(confirm)? {
            (self.release)();
        }
        Ok(())
    }

    /// Makes it live again, with a first reference, once all were put.
    ///
    /// # Errors
    /// It is not dead, or there are references; nothing has changed.
    pub fn reinit(&self) -> Result<(), RefError> {
        self.counted.resurrect(true, self.by_unit())
    }

    /// Makes it live again, with a first reference, whatever others there are: the release must not have been called meanwhile, or be
    /// called again.
    ///
    /// # Errors
    /// It is not dead; nothing has changed.
    pub fn resurrect(&self) -> Result<(), RefError> {
        self.counted.resurrect(false, self.by_unit())
    }

    /// Counts by one atomic number from now on; it stays so until the opposite is asked for, through kill and reinit.
    ///
    /// # Errors
    /// The system refuses the barrier; nothing has changed.
    pub fn switch_to_atomic(&self) -> Result<(), RefError> {
        self.counted.switch_to_atomic()
    }

    /// Counts by unit from now on, where that can be, or when it lives again.
    pub fn switch_to_percpu(&self) {
        self.counted.switch_to_percpu(self.by_unit());
    }

    /// Returns true if it was killed.
    pub fn is_dying(&self) -> bool {
        self.counted.is_dying()
    }

    /// Returns true if there is no reference; `false` while units count.
    pub fn is_zero(&self) -> bool {
        self.counted.is_zero()
    }

    /// Returns true if units count.
    pub fn is_percpu(&self) -> bool {
        self.counted.is_percpu()
    }
}

impl<R: Fn()> fmt::Debug for PerCpuRef<'_, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PerCpuRef")
            .field("percpu", &self.is_percpu())
            .field("dying", &self.is_dying())
            .field("count", &self.counted.count())
            .finish()
    }
}
