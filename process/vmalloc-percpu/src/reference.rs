//! A reference count for frequent gets and puts, whose value matters only at the end: the kernel's `percpu_ref`.
//!
//! # Theory
//! While the count is live, each unit counts separately; single units may be below 0, and the sum is not known. When it
//! is *killed* it becomes one atomic count, by which a put detects that its reference was the last. Two things make the
//! change safe:
//!
//! ```text
//!   gate = 1 | end all sections | count += sum of units - BIAS | put the first reference
//!              '-- sections that saw gate = 0 have stored; those that begin now see 1
//! ```
//!
//! The *bias* in the atomic count keeps it from 0 until the units are added. Adding to the atomic count is correct in
//! either mode, so a thread without a unit of its own does that. If the system has no sections, or no method to end
//! them, every thread does so: the count is in atomic mode from the beginning.
//!
//! # Invariants
//! - **RF1 sum** count + units is the number of references, plus the bias while the gate is open.
//! - **RF2 last** the release is called once each time the count becomes 0, and never before every reference was put.
//!
//! The algorithm works on a small trait ([`Units`]), so that loom can model it.
//!
//! # Source
//! Linux `lib/percpu-refcount.c`, `include/linux/percpu-refcount.h` (6.12); Linux waits for an RCU grace period, and
//! this code ends sections by `membarrier`.

use super::locks::{Lock, Shared};
use super::{Error, PerCpu, Space, Word};
use core::fmt;
use va_base::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use vmalloc_os::os::{can_end_sections, end_sections};

/// A number larger than any count of references, and far from the ends of the range.
const BIAS: i64 = 1 << 62;
/// The state in which units count.
const OPEN: u64 = 0;
/// The bit of a reference of which only the atomic count counts.
const ATOMIC: u64 = 1;
/// The bit of a count that was killed.
const DEAD: u64 = 2;

/// The counts of references in units.
pub(crate) trait Units {
    /// Adds to this unit while `gate` is 0. Returns `false` if it is not, or if the caller has no unit.
    fn add(&self, amount: i64, gate: &AtomicU64) -> bool;
    /// Returns once no thread that saw the gate open still adds. Returns `false` if that cannot be ensured.
    fn end_adds(&self) -> bool;
    /// Returns the sum of all units, and sets them to 0. No thread adds meanwhile.
    fn take_all(&self) -> i64;
}

/// The reason why a call failed. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum RefError {
    /// The count is already dead.
    Dead,
    /// The count is not dead.
    NotDead,
    /// References remain.
    NotZero {
        /// Their number at the time of the check.
        references: i64,
    },
    /// The barrier, which worked before, failed; without it threads may still count in units.
    NoBarrier,
}

impl fmt::Display for RefError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dead => f.write_str("the reference count was killed before"),
            Self::NotDead => f.write_str("the reference count is not dead"),
            Self::NotZero { references } => write!(f, "{references} references are not put back"),
            Self::NoBarrier => f.write_str("the system denies the barrier that ends sections"),
        }
    }
}

impl core::error::Error for RefError {}

/// The initial mode of a reference count.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RefMode {
    /// By unit, if the system supports it.
    #[default]
    PerCpu,
    /// By one atomic count, until [`PerCpuRef::switch_to_percpu`].
    Atomic,
    /// Dead, with no reference: as after a kill whose last reference was put.
    Dead,
}

/// The algorithm of a reference count.
pub(crate) struct Counted<U, K> {
    units: U,
    /// References, and a bias while there are units. Protocol PR-REFS.
    count: AtomicI64,
    /// `OPEN`, or the bits `ATOMIC` and `DEAD`. Written under the lock. Protocol PR-REFS.
    gate: AtomicU64,
    /// True if the count stays atomic while it is live. Read and written under the lock. Protocol PR-LOCK.
    forced: AtomicBool,
    /// Counts may share a lock: no thread takes two, and no callback is called under one.
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

    /// Puts references. Returns `true` if they were the last ones.
    #[inline(always)]
    pub(crate) fn put(&self, references: i64) -> bool {
        !self.units.add(-references, &self.gate) && self.put_atomic(references)
    }

    /// Checks RF2: exactly one put sees the count become 0, which cannot happen while it contains the bias.
    #[cold]
    fn put_atomic(&self, references: i64) -> bool {
        // Release: uses of the reference happen before this put; acquire: the last put sees all of them.
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

    /// Closes the gate, if it is open, and moves the units' sums to the count. The caller holds the lock.
    fn close(&self, bits: u64) -> Result<(), RefError> {
        let before = self.gate.load(Ordering::Relaxed);
        // Sequentially consistent with the barrier: a section that begins after it sees the gate closed.
        self.gate.store(before | bits, Ordering::SeqCst);
        if before != OPEN {
            return Ok(());
        }
        if !self.units.end_adds() {
            self.gate.store(before, Ordering::SeqCst);
            return Err(RefError::NoBarrier);
        }
        // Checks RF1: one addition moves the units' sum to the count, and removes the bias.
        let sum = self.units.take_all();
        self.count.fetch_add(sum - BIAS, Ordering::AcqRel);
        Ok(())
    }

    /// Opens the gate, if it is closed. The caller holds the lock.
    fn open(&self) {
        if self.gate.load(Ordering::Relaxed) != OPEN {
            self.count.fetch_add(BIAS, Ordering::Relaxed);
            // Release: a thread that sees it open also sees the bias, and units of 0.
            self.gate.store(OPEN, Ordering::SeqCst);
        }
    }

    /// Kills the count, and calls `confirm` once every [`try_get_live`](Self::try_get_live) fails. Returns `Ok(true)`
    /// if the first reference was the last one.
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

    /// Makes the count live again, with a first reference. With `only_zero` it fails if other references remain.
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
    /// True if this thread can end the sections of others.
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
            // The real units are not modelled: loom's gate is not a word in memory.
            let _ = (amount, gate);
            false
        }
    }

    fn end_adds(&self) -> bool {
        self.by_unit && end_sections()
    }

    fn take_all(&self) -> i64 {
        let mut sum = 0i64;
        // SAFETY: the gate is closed and all sections have ended, so no thread changes the words; the lock of the gate
        // is held.
        unsafe { self.words.word().take_all(|word| sum = sum.wrapping_add(word as i64)) };
        sum
    }
}

/// A reference count in units, until it is killed. After that, `release` is called when the last reference is put.
pub struct PerCpuRef<'s, R: Fn()> {
    counted: Counted<InUnits<'s>, Shared<'s>>,
    release: R,
}

impl<'s, R: Fn()> PerCpuRef<'s, R> {
    /// Creates a count with a first reference, which the kill puts.
    ///
    /// # Errors
    /// As [`Space::alloc`].
    pub fn new(space: &'s Space, mode: RefMode, release: R) -> Result<Self, Error> {
        let words = space.zeroed()?;
        let lock = space.lock_of(words.offset());
        let by_unit = space.is_restartable() && can_end_sections();
        let mode = if mode == RefMode::PerCpu && !by_unit { RefMode::Atomic } else { mode };
        let counted = Counted::new(InUnits { words, by_unit }, mode, lock);
        Ok(Self { counted, release })
    }

    fn by_unit(&self) -> bool {
        self.counted.units.by_unit
    }

    /// Returns the algorithm.
    #[inline(always)]
    pub(super) fn counted(&self) -> &Counted<impl Units, impl Lock> {
        &self.counted
    }

    /// Gets a reference. The caller must hold one already, or ensure that the first one is not put yet.
    #[inline(always)]
    pub fn get(&self) {
        self.counted.get(1);
    }

    /// Gets several references, at most 2^32 at once.
    #[inline(always)]
    pub fn get_many(&self, references: u32) {
        self.counted.get(i64::from(references));
    }

    /// Gets a reference unless the count is 0. It may succeed with a dead count.
    #[inline(always)]
    #[must_use]
    pub fn try_get(&self) -> bool {
        self.counted.try_get(1)
    }

    /// Gets several references, unless the count is 0.
    #[inline(always)]
    #[must_use]
    pub fn try_get_many(&self, references: u32) -> bool {
        self.counted.try_get(i64::from(references))
    }

    /// Gets a reference unless the count is dead.
    #[inline(always)]
    #[must_use]
    pub fn try_get_live(&self) -> bool {
        self.counted.try_get_live()
    }

    /// Puts a reference that the caller holds. If it was the last one, calls the release.
    #[inline(always)]
    pub fn put(&self) {
        self.put_many(1);
    }

    /// Puts several references.
    #[inline(always)]
    pub fn put_many(&self, references: u32) {
        if self.counted.put(i64::from(references)) {
            (self.release)();
        }
    }

    /// Kills the count and puts the first reference.
    ///
    /// # Errors
    /// The count is dead, or the barrier fails; nothing has changed.
    pub fn kill(&self) -> Result<(), RefError> {
        self.kill_and_confirm(|| {})
    }

    /// Kills the count as [`kill`](Self::kill) does, and calls `confirm` once every
    /// [`try_get_live`](Self::try_get_live) fails, before the first reference is put.
    ///
    /// # Errors
    /// As [`kill`](Self::kill).
    pub fn kill_and_confirm(&self, confirm: impl FnOnce()) -> Result<(), RefError> {
        if self.counted.kill(confirm)? {
            (self.release)();
        }
        Ok(())
    }

    /// Makes the count live again, with a first reference, after all references were put.
    ///
    /// # Errors
    /// The count is not dead, or references remain; nothing has changed.
    pub fn reinit(&self) -> Result<(), RefError> {
        self.counted.resurrect(true, self.by_unit())
    }

    /// Makes the count live again, with a first reference, even if others remain. If the release was called meanwhile,
    /// it will be called again.
    ///
    /// # Errors
    /// The count is not dead; nothing has changed.
    pub fn resurrect(&self) -> Result<(), RefError> {
        self.counted.resurrect(false, self.by_unit())
    }

    /// Switches to one atomic count, until [`switch_to_percpu`](Self::switch_to_percpu), also across a kill and reinit.
    ///
    /// # Errors
    /// The barrier fails; nothing has changed.
    pub fn switch_to_atomic(&self) -> Result<(), RefError> {
        self.counted.switch_to_atomic()
    }

    /// Switches to counts in units, if the system supports it. A dead count does so when it is live again.
    pub fn switch_to_percpu(&self) {
        self.counted.switch_to_percpu(self.by_unit());
    }

    /// Returns true if the count was killed.
    pub fn is_dying(&self) -> bool {
        self.counted.is_dying()
    }

    /// Returns true if the count is 0. Returns `false` while units count.
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
