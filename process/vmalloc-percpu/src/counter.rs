//! A counter for frequent changes and rare reads: the kernel's `percpu_counter`, in one word until threads contend for
//! it.
//!
//! # Theory
//! A new counter is its *count*, a word that all threads change by compare-exchange. An exchange that fails is
//! contention: another thread added between a load and the next instruction. Then the counter is *promoted*: each unit
//! gets a delta, whose absolute value is below the *batch*. An addition that would exceed it is added to the count
//! under a lock, together with the delta. So the count alone is within `batch * units` of the exact sum, which is
//! enough for a comparison with a distant number. A closer number is compared with the sum of all.
//!
//! ```text
//!   in one word   | count := count + amount, by compare-exchange |--failed--> count += amount, promote
//!   per CPU       | abs(delta + amount) < batch? |--yes--> one section
//!                          '--no--> lock: count += delta + amount, delta = 0
//! ```
//!
//! The count is a part of the sum in both modes. So an addition to it is correct at any time, and a thread that has not
//! seen the promotion loses nothing. Nothing moves at a promotion: it publishes deltas of 0. If the system has no
//! memory for them, the counter stays one word, which all operations accept.
//!
//! A counter is two words: the count, and the address of its space, or that of its deltas. The page before unit 0 of a
//! chunk has the address of the space, so that the deltas lead to it.
//!
//! # Invariants
//! - **PK1 sum** count + all deltas is the sum of all additions, while no operation is in progress.
//! - **PK2 limit** if all additions are by [`PerCpuCounter::limited_add`], the sum never exceeds their limit.
//! - **PK3 once** a counter is promoted at most once, and its deltas are 0 when another thread can see them.
//!
//! The algorithm works on small traits ([`Home`], [`Deltas`]), so that loom can model it.
//!
//! # Source
//! Linux `lib/percpu_counter.c`, `include/linux/percpu_counter.h` (6.12), which allocates the deltas at once. Decision
//! 0068.

use super::local::Local;
use super::state::Core;
use super::{Error, Space, Word};
use core::alloc::Layout;
use core::cmp::Ordering as Order;
use core::fmt;
use core::marker::PhantomData;
use core::ptr::NonNull;
use va_base::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use vmalloc_os::os::Linux;

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
    /// Returns the usual batch.
    fn batch(&self) -> i64;
    /// Takes the lock under which deltas are added to the count. Counters may share one: no thread takes two.
    fn hold(&self) -> impl Sized;
}

/// The address of a counter's space, or of its deltas; a multiple of 4.
#[derive(Clone, Copy, Debug)]
pub(crate) struct At(pub(crate) usize);

/// The memory of deltas.
pub(crate) trait Home {
    type Deltas<'h>: Deltas
    where
        Self: 'h;

    /// Allocates deltas, all 0, in the space at an address.
    fn alloc(&self, space: At) -> Result<At, Error>;
    /// Frees deltas that no thread uses any more.
    fn free(&self, deltas: At);
    /// Returns the deltas at an address that [`alloc`](Self::alloc) returned.
    fn deltas(&self, at: At) -> Self::Deltas<'_>;
}

/// The bit of a counter with deltas, in the word with the address.
const PER_CPU: usize = 1;
/// The bit of a counter in one word for whose deltas there was no memory.
const DENIED: usize = 2;

/// The algorithm of a counter.
pub(crate) struct Counter<H: Home> {
    /// The value, or what the deltas are added to. Protocol PR-COUNT.
    count: AtomicI64,
    /// The address of the space with the bit [`DENIED`] or none, later that of the deltas with [`PER_CPU`].
    /// Protocol PR-COUNT.
    at: AtomicUsize,
    home: H,
}

impl<H: Home> Counter<H> {
    pub(crate) fn new(home: H, space: At, count: i64) -> Self {
        Self { count: AtomicI64::new(count), at: AtomicUsize::new(space.0), home }
    }

    /// Returns the deltas, if the counter is promoted.
    #[inline(always)]
    fn deltas(&self) -> Option<H::Deltas<'_>> {
        // Acquire pairs with the release in `promote`: the deltas are seen as 0 (PK3).
        let at = self.at.load(Ordering::Acquire);
        (at & PER_CPU != 0).then(|| self.home.deltas(At(at & !PER_CPU)))
    }

    #[inline(always)]
    pub(crate) fn is_percpu(&self) -> bool {
        self.at.load(Ordering::Relaxed) & PER_CPU != 0
    }

    /// Promotes the counter, if it is in one word. Checks PK3: of several threads one publishes its deltas, and the
    /// others free theirs.
    ///
    /// # Errors
    /// There is no memory; the counter stays one word.
    #[cold]
    pub(crate) fn promote(&self) -> Result<(), Error> {
        let at = self.at.load(Ordering::Acquire);
        if at & PER_CPU != 0 {
            return Ok(());
        }
        let space = At(at & !DENIED);
        match self.home.alloc(space) {
            Ok(deltas) => {
                let once = |at: usize| (at & PER_CPU == 0).then_some(deltas.0 | PER_CPU);
                if self.at.fetch_update(Ordering::AcqRel, Ordering::Acquire, once).is_err() {
                    self.home.free(deltas);
                }
                Ok(())
            }
            Err(error) => {
                // Another thread may have had memory.
                let _promoted =
                    self.at.compare_exchange(space.0, space.0 | DENIED, Ordering::Relaxed, Ordering::Relaxed);
                Err(error)
            }
        }
    }

    /// Promotes the counter after contention, unless there was no memory before: a request that fails takes the lock of
    /// the space and calls the system.
    #[cold]
    fn promote_contended(&self) {
        if self.at.load(Ordering::Relaxed) & DENIED == 0 {
            let _stays_one_word = self.promote();
        }
    }

    /// Adds an amount and this unit's delta to the count. The caller holds the lock. Checks PK1: the delta that is
    /// removed is added. The sum wraps, as in the kernel: more than 63 bits are outside the contract.
    fn fold(&self, deltas: &H::Deltas<'_>, amount: i64) {
        let delta = deltas.take();
        // An addition and no store: threads that saw the counter in one word add without the lock.
        self.count.fetch_add(delta.wrapping_add(amount), Ordering::Relaxed);
    }

    /// Adds by the usual batch or by another, if that needs neither the lock nor a promotion. Returns `false` if it
    /// does.
    #[inline(always)]
    pub(crate) fn try_add(&self, amount: i64, batch: Option<i64>) -> bool {
        match self.deltas() {
            Some(deltas) => deltas.add_within(amount, batch.unwrap_or_else(|| deltas.batch())),
            None => {
                let count = self.count.load(Ordering::Relaxed);
                let sum = count.wrapping_add(amount);
                self.count.compare_exchange(count, sum, Ordering::Relaxed, Ordering::Relaxed).is_ok()
            }
        }
    }

    #[inline(always)]
    pub(crate) fn add(&self, amount: i64, batch: Option<i64>) {
        if !self.try_add(amount, batch) {
            self.add_slowly(amount, batch);
        }
    }

    #[cold]
    fn add_slowly(&self, amount: i64, batch: Option<i64>) {
        let Some(deltas) = self.deltas() else {
            self.count.fetch_add(amount, Ordering::Relaxed);
            // With a batch of 1 the deltas stay 0, so they would not help.
            if batch.is_none_or(|batch| batch > 1) {
                self.promote_contended();
            }
            return;
        };
        let batch = batch.unwrap_or_else(|| deltas.batch());
        if amount.unsigned_abs() >= batch.unsigned_abs() {
            // No delta holds it, whatever is in it.
            self.count.fetch_add(amount, Ordering::Relaxed);
            return;
        }
        let _locked = deltas.hold();
        self.fold(&deltas, amount);
    }

    /// Adds without a lock, and without a promotion.
    #[inline(always)]
    pub(crate) fn add_local(&self, amount: i64) {
        if !self.deltas().is_some_and(|deltas| deltas.add_within(amount, i64::MAX)) {
            self.count.fetch_add(amount, Ordering::Relaxed);
        }
    }

    #[inline(always)]
    pub(crate) fn read(&self) -> i64 {
        self.count.load(Ordering::Relaxed)
    }

    pub(crate) fn sync(&self) {
        if let Some(deltas) = self.deltas() {
            let _locked = deltas.hold();
            self.fold(&deltas, 0);
        }
    }

    /// Returns the sum. An earlier addition is in the count, or in a delta whose publication this thread sees. Under
    /// the lock no delta is on its way to the count.
    pub(crate) fn sum(&self) -> i64 {
        let Some(deltas) = self.deltas() else { return self.read() };
        let _locked = deltas.hold();
        self.read().wrapping_add(deltas.sum())
    }

    /// Returns the usual batch of a promoted counter, and the largest distance between its count and the true sum: 0 in
    /// one word.
    fn unknown(deltas: Option<&H::Deltas<'_>>, batch: Option<i64>) -> i64 {
        deltas.map_or(0, |deltas| {
            let batch = batch.unwrap_or_else(|| deltas.batch());
            batch.saturating_mul(deltas.units())
        })
    }

    pub(crate) fn compare(&self, other: i64, batch: Option<i64>) -> Order {
        let unknown = Self::unknown(self.deltas().as_ref(), batch);
        let count = self.read();
        if count.abs_diff(other) > unknown.unsigned_abs() {
            return count.cmp(&other);
        }
        self.sum().cmp(&other)
    }

    /// Adds if the sum does not exceed the limit. Checks PK2: the count is exchanged for that from which the sum was
    /// computed. So of concurrent limited additions one succeeds and the others compute again, in either mode.
    pub(crate) fn limited_add(&self, limit: i64, amount: i64) -> bool {
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
        loop {
            let deltas = self.deltas();
            let unknown = wide(Self::unknown(deltas.as_ref(), None));
            // Linux adds to the delta without the lock if the count is far from the limit. Other CPUs may add between
            // its check and its addition, so that together they exceed the limit.
            let locked = deltas.as_ref().map(Deltas::hold);
            let count = self.read();
            let next = wide(count) + wide(amount);
            let (near, far) =
                if amount > 0 { (next - unknown, next + unknown) } else { (next + unknown, next - unknown) };
            let sum = || next + deltas.as_ref().map_or(0, |deltas| wide(deltas.sum()));
            if beyond(near) || (beyond(far) && beyond(sum())) {
                return false;
            }
            let after = count.wrapping_add(amount);
            if self.count.compare_exchange(count, after, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                return true;
            }
            drop(locked);
            self.promote_contended();
        }
    }
}

impl<H: Home> Drop for Counter<H> {
    fn drop(&mut self) {
        let at = self.at.load(Ordering::Relaxed);
        if at & PER_CPU != 0 {
            self.home.free(At(at & !PER_CPU));
        }
    }
}

/// The memory of deltas in a space, which lives as long as `'s`.
struct InSpace<'s>(PhantomData<&'s Space>);

impl<'s> InSpace<'s> {
    fn core(at: At) -> &'s Core<Linux> {
        // SAFETY: the address of the core of a space that is borrowed for `'s`: `PerCpuCounter::new` exposed it.
        unsafe { &*core::ptr::with_exposed_provenance::<Core<Linux>>(at.0) }
    }

    fn first(at: At) -> NonNull<u8> {
        let first = NonNull::new(core::ptr::with_exposed_provenance_mut(at.0));
        // An object is in a chunk, and no chunk is at 0.
        first.unwrap_or(NonNull::dangling())
    }
}

impl<'s> Home for InSpace<'s> {
    type Deltas<'h>
        = InUnits<'s>
    where
        Self: 'h;

    fn alloc(&self, space: At) -> Result<At, Error> {
        let core = Self::core(space);
        let offset = core.alloc(Layout::new::<Word>())?;
        Ok(At(core.first(offset).as_ptr().expose_provenance()))
    }

    fn free(&self, deltas: At) {
        let core = self.deltas(deltas).core;
        // SAFETY: `alloc` allocated it, and no thread uses it.
        unsafe { core.free(core.offset_of(Self::first(deltas))) };
    }

    #[inline(always)]
    fn deltas(&self, at: At) -> InUnits<'s> {
        let first = Self::first(at);
        // SAFETY: `alloc` returned the address, of an object in a chunk of a space that lives for `'s`.
        let core = unsafe { Core::of_object(first) };
        // SAFETY: a word of a live object, zeroed when it was allocated, and used by such values only.
        InUnits { core, local: unsafe { Local::new(core.hot, first) } }
    }
}

/// The deltas of a counter in a space.
struct InUnits<'s> {
    core: &'s Core<Linux>,
    local: Local<'s>,
}

impl Deltas for InUnits<'_> {
    #[inline(always)]
    fn add_within(&self, amount: i64, batch: i64) -> bool {
        self.local.add_within(amount, batch)
    }

    fn take(&self) -> i64 {
        self.local.swap(0) as i64
    }

    fn sum(&self) -> i64 {
        self.local.sum() as i64
    }

    fn units(&self) -> i64 {
        i64::from(self.core.hot.units())
    }

    #[inline(always)]
    fn batch(&self) -> i64 {
        self.core.hot.batch
    }

    fn hold(&self) -> impl Sized {
        self.core.locks.of(self.core.offset_of(self.local.first())).take()
    }
}

/// A signed counter: one word until threads contend for it, then a delta in each unit.
///
/// A sum is exact. It is one load of a counter in one word, and else costs a load for each unit that was ever used. A
/// read is one load, and differs from the sum by at most the batch times the units; in one word it is the sum. The
/// value has 16 bytes, and no memory elsewhere until the counter is promoted: then 8 bytes in each unit.
pub struct PerCpuCounter<'s>(Counter<InSpace<'s>>);

const _: () = assert!(size_of::<PerCpuCounter<'_>>() == 16, "two words");

impl<'s> PerCpuCounter<'s> {
    /// Creates a counter with an initial `count`, in one word. It allocates nothing.
    #[must_use]
    pub fn new(space: &'s Space, count: i64) -> Self {
        let core = core::ptr::from_ref(space.core()).expose_provenance();
        Self(Counter::new(InSpace(PhantomData), At(core), count))
    }

    /// Gives each unit a delta, if the counter is in one word: for a counter that is known to be busy. Additions do so
    /// after contention.
    ///
    /// # Errors
    /// As [`Space::alloc`]; the counter stays one word, and additions do not try again.
    /// # Locks
    /// The lock of the space.
    pub fn promote(&self) -> Result<(), Error> {
        self.0.promote()
    }

    /// Returns true if each unit has a delta, and false if the counter is one word.
    pub fn is_percpu(&self) -> bool {
        self.0.is_percpu()
    }

    /// Returns the batch, the bound of deltas unless a call passes another: the kernel's, 32, or twice the possible
    /// CPUs if that is more.
    pub fn batch(&self) -> i64 {
        let at = self.0.at.load(Ordering::Acquire);
        let home = InSpace(PhantomData);
        let core = if at & PER_CPU == 0 {
            InSpace::core(At(at & !DENIED))
        } else {
            home.deltas(At(at & !PER_CPU)).core
        };
        core.hot.batch
    }

    /// Adds an amount; the sum wraps. Contention promotes the counter, under the lock of the space.
    #[inline(always)]
    pub fn add(&self, amount: i64) {
        self.0.add(amount, None);
    }

    /// Adds as [`add`](Self::add) does, if that needs neither a lock nor a promotion. Returns `false`, and adds
    /// nothing, if it does.
    #[inline(always)]
    #[must_use]
    pub fn try_add(&self, amount: i64) -> bool {
        self.0.try_add(amount, None)
    }

    /// Adds with another batch: [`i64::MAX`] for a counter that is always read by sum, 1 for one that is always exact.
    /// Additions with a batch of 1 do not promote the counter.
    #[inline(always)]
    pub fn add_batch(&self, amount: i64, batch: i64) {
        self.0.add(amount, Some(batch));
    }

    /// Adds without a batch, a lock or a promotion.
    #[inline(always)]
    pub fn add_local(&self, amount: i64) {
        self.0.add_local(amount);
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
        self.0.compare(other, None)
    }

    /// Compares as [`compare`](Self::compare) does, for a counter with additions by another batch.
    pub fn compare_batch(&self, other: i64, batch: i64) -> Order {
        self.0.compare(other, Some(batch.max(1)))
    }

    /// Adds unless the sum would exceed the limit: rise above it by a positive amount, or fall below it by a negative
    /// one. Returns `false` if it would.
    pub fn limited_add(&self, limit: i64, amount: i64) -> bool {
        self.0.limited_add(limit, amount)
    }

    /// Adds this unit's delta to the count.
    pub fn sync(&self) {
        self.0.sync();
    }

    /// Sets the counter to a number.
    pub fn set(&mut self, count: i64) {
        if let Some(deltas) = self.0.deltas() {
            // SAFETY: exclusive, so no other thread uses the deltas.
            unsafe { deltas.local.take_all(|_| {}) };
        }
        self.0.count.store(count, Ordering::Relaxed);
    }
}

impl fmt::Debug for PerCpuCounter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PerCpuCounter")
            .field("count", &self.read())
            .field("percpu", &self.is_percpu())
            .finish_non_exhaustive()
    }
}
