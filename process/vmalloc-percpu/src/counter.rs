//! A counter for frequent changes and rare reads: the kernel's `percpu_counter`.
//!
//! # Theory
//! Each unit has a delta whose absolute value is below the *batch*. An addition that would exceed it is added to the
//! count under a lock, together with the delta. So the count alone is within `batch * units` of the exact sum, which is
//! enough for a comparison with a distant number. A closer number is compared with the sum of all.
//!
//! ```text
//!   add   | abs(delta + amount) < batch? |--yes--> one section
//!                          '--no--> lock: count += delta + amount, delta = 0
//! ```
//!
//! # Invariants
//! - **PK1 sum** count + all deltas is the sum of all additions, while no operation is in progress.
//! - **PK2 limit** if all additions are by [`PerCpuCounter::limited_add`], the sum never exceeds their limit.
//!
//! The algorithm works on a small trait ([`Deltas`]), so that loom can model it.
//!
//! # Source
//! Linux `lib/percpu_counter.c`, `include/linux/percpu_counter.h` (6.12).

use super::locks::{Lock, Shared};
use super::{Error, PerCpu, Space, Word};
use core::cmp::Ordering as Order;
use core::fmt;
use va_base::sync::atomic::{AtomicI64, Ordering};

/// The deltas of a counter, one in each unit.
pub(crate) trait Deltas {
    /// Adds to this unit's delta if its absolute value stays below `batch`. Returns `false` if not.
    fn add_within(&self, amount: i64, batch: i64) -> bool;
    /// Returns this unit's delta, and sets it to 0.
    fn take(&self) -> i64;
    /// Returns the wrapping sum of all deltas.
    fn sum(&self) -> i64;
    /// Returns the number of units.
    fn units(&self) -> i64;
}

/// The algorithm of a counter.
pub(crate) struct Counter<D, K> {
    deltas: D,
    /// Written under the lock; read by any thread.
    count: AtomicI64,
    /// Counters may share a lock: no thread takes two.
    lock: K,
}

impl<D: Deltas, K: Lock> Counter<D, K> {
    pub(crate) fn new(deltas: D, count: i64, lock: K) -> Self {
        Self { deltas, count: AtomicI64::new(count), lock }
    }

    /// Adds an amount and this unit's delta to the count. The caller holds the lock. Checks PK1: the delta that is
    /// removed is added.
    fn fold(&self, amount: i64) {
        let delta = self.deltas.take();
        let count = self.count.load(Ordering::Relaxed);
        // Wrapping, as in the kernel: a sum of more than 63 bits is outside the contract.
        self.count.store(count.wrapping_add(delta).wrapping_add(amount), Ordering::Relaxed);
    }

    #[inline(always)]
    pub(crate) fn add(&self, amount: i64, batch: i64) {
        if !self.deltas.add_within(amount, batch) {
            self.add_slowly(amount);
        }
    }

    #[cold]
    fn add_slowly(&self, amount: i64) {
        let _locked = self.lock.hold();
        self.fold(amount);
    }

    #[inline(always)]
    pub(crate) fn read(&self) -> i64 {
        self.count.load(Ordering::Relaxed)
    }

    pub(crate) fn sync(&self) {
        self.add_slowly(0);
    }

    pub(crate) fn sum(&self) -> i64 {
        let _locked = self.lock.hold();
        self.read().wrapping_add(self.deltas.sum())
    }

    /// Returns the largest distance between the count and the true sum.
    fn unknown(&self, batch: i64) -> i64 {
        batch.saturating_mul(self.deltas.units())
    }

    pub(crate) fn compare(&self, other: i64, batch: i64) -> Order {
        let count = self.read();
        if count.abs_diff(other) > self.unknown(batch).unsigned_abs() {
            return count.cmp(&other);
        }
        self.sum().cmp(&other)
    }

    /// Adds if the sum does not exceed the limit, always under the lock, so that concurrent limited additions see it.
    /// Checks PK2.
    pub(crate) fn limited_add(&self, limit: i64, amount: i64, batch: i64) -> bool {
        if amount == 0 {
            return true;
        }
        // In wide numbers that cannot overflow: a sum that would overflow exceeds every limit.
        let wide = |number: i64| i128::from(number);
        let beyond = |sum: i128| {
            if amount > 0 {
                sum > wide(limit) || sum > wide(i64::MAX)
            } else {
                sum < wide(limit) || sum < wide(i64::MIN)
            }
        };
        let unknown = wide(self.unknown(batch));
        // Linux adds to the delta without the lock if the count is far from the limit. Other CPUs may add between its
        // check and its addition, so that together they exceed the limit. Here all of it is under the lock.
        let _locked = self.lock.hold();
        let count = wide(self.read()) + wide(amount);
        let (near, far) =
            if amount > 0 { (count - unknown, count + unknown) } else { (count + unknown, count - unknown) };
        if beyond(near) || (beyond(far) && beyond(count + wide(self.deltas.sum()))) {
            return false;
        }
        self.fold(amount);
        true
    }
}

/// The deltas of a space.
struct InUnits<'s>(PerCpu<'s, Word>);

impl Deltas for InUnits<'_> {
    #[inline(always)]
    fn add_within(&self, amount: i64, batch: i64) -> bool {
        self.0.word().add_within(amount, batch)
    }

    fn take(&self) -> i64 {
        self.0.word().swap(0) as i64
    }

    fn sum(&self) -> i64 {
        self.0.word().sum() as i64
    }

    fn units(&self) -> i64 {
        i64::from(self.0.units())
    }
}

/// A signed counter with a delta in each unit. A sum is exact, and costs a load for each unit that was ever used. A
/// read is one load, and differs from the sum by at most the batch times the units.
pub struct PerCpuCounter<'s>(Counter<InUnits<'s>, Shared<'s>>, i64);

impl<'s> PerCpuCounter<'s> {
    /// Creates a counter with an initial `count`, and the kernel's batch: 32, or twice the possible CPUs if that is
    /// more.
    ///
    /// # Errors
    /// As [`Space::alloc`].
    pub fn new(space: &'s Space, count: i64) -> Result<Self, Error> {
        let deltas = InUnits(space.zeroed()?);
        let lock = space.lock_of(deltas.0.offset());
        let batch = (2 * i64::from(space.units() - 1)).max(32);
        Ok(Self(Counter::new(deltas, count, lock), batch))
    }

    /// Returns the batch: the bound of deltas, unless a call passes another.
    pub fn batch(&self) -> i64 {
        self.1
    }

    /// Adds an amount; the sum wraps.
    #[inline(always)]
    pub fn add(&self, amount: i64) {
        self.0.add(amount, self.1);
    }

    /// Adds with another batch: [`i64::MAX`] for a counter that is always read by sum, 1 for one that is always exact.
    #[inline(always)]
    pub fn add_batch(&self, amount: i64, batch: i64) {
        self.0.add(amount, batch);
    }

    /// Adds to this unit's delta without a batch, as long as the delta stays a number of 63 bits.
    #[inline(always)]
    pub fn add_local(&self, amount: i64) {
        self.0.add(amount, i64::MAX);
    }

    /// Returns the count without the deltas.
    #[inline(always)]
    pub fn read(&self) -> i64 {
        self.0.read()
    }

    /// Returns the count without the deltas, or 0 if it is negative: for quantities that cannot be negative.
    pub fn read_positive(&self) -> i64 {
        self.read().max(0)
    }

    /// Returns the exact sum of all earlier additions.
    pub fn sum(&self) -> i64 {
        self.0.sum()
    }

    /// Returns the exact sum, or 0 if it is negative.
    pub fn sum_positive(&self) -> i64 {
        self.sum().max(0)
    }

    /// Compares the sum with a number: by the count if the number is distant, else by the sum. Exact unless a caller
    /// used a larger batch.
    pub fn compare(&self, other: i64) -> Order {
        self.0.compare(other, self.1)
    }

    /// Compares as [`compare`](Self::compare) does, for a counter with additions by another batch.
    pub fn compare_batch(&self, other: i64, batch: i64) -> Order {
        self.0.compare(other, batch.max(1))
    }

    /// Adds unless the sum would exceed the limit: rise above it by a positive amount, or fall below it by a negative
    /// one. Returns `false` if it would.
    pub fn limited_add(&self, limit: i64, amount: i64) -> bool {
        self.0.limited_add(limit, amount, self.1)
    }

    /// Adds this unit's delta to the count.
    pub fn sync(&self) {
        self.0.sync();
    }

    /// Sets the counter to a number.
    pub fn set(&mut self, count: i64) {
        // SAFETY: exclusive, so no other thread uses the deltas.
        unsafe { self.0.deltas.0.word().take_all(|_| {}) };
        self.0.count.store(count, Ordering::Relaxed);
    }
}

impl fmt::Debug for PerCpuCounter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PerCpuCounter").field("count", &self.read()).field("batch", &self.1).finish()
    }
}
