//! A word in each unit, and the operations on that of the caller's CPU.

use super::hot::{Beyond, Hot};
use super::rseq::{self, State};
use super::shape::STRIDE;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};

/// A word of 64 bits that only [`Local`] changes.
///
/// An atomic operation on the word of a CPU would not be atomic to a section of another thread on that CPU. So the type
/// has no such operations, only a read. Protocol PR-SECTION.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Word(AtomicU64);

impl Word {
    /// Returns the value, which other threads may be changing.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A [`Word`] in each unit. Operations use the unit of the thread's current CPU or concurrency id. They are sections if
/// available, else atomic operations. Each one happens completely or, if it reports so, not at all.
#[derive(Clone, Copy, Debug)]
pub struct Local<'s> {
    /// A copy of the field in `hot`, so that the compiler can keep it in registers across the stores of a section.
    at: Option<rseq::Area>,
    hot: &'s Hot,
    /// The word of unit 0. Protocol PR-SECTION.
    first: NonNull<AtomicU64>,
}

// SAFETY: words that any thread may change, by sections and atomic operations.
unsafe impl Send for Local<'_> {}
// SAFETY: as before.
unsafe impl Sync for Local<'_> {}

impl<'s> Local<'s> {
    /// Creates the operations on the word at `first` in unit 0.
    ///
    /// # Safety
    /// It is a word of an object of the space of `hot` that lives for `'s`, aligned to 8, and
    /// zeroed when it was allocated. While the object lives, the word is changed only by values
    /// made by this function.
    #[inline(always)]
    pub(super) const unsafe fn new(hot: &'s Hot, first: NonNull<u8>) -> Self {
        Self { at: hot.at, hot, first: first.cast() }
    }

    #[inline(always)]
    pub(super) fn of_unit(&self, unit: u32) -> &'s AtomicU64 {
        // SAFETY: a unit of the chunk.
        let word = unsafe { self.first.byte_add(unit as usize * STRIDE) };
        // SAFETY: aligned, initialized (zeros at first), and valid for `'s`.
        unsafe { word.as_ref() }
    }

    /// Returns the address of the word in unit 0.
    #[inline(always)]
    pub(super) fn first(&self) -> NonNull<u8> {
        self.first.cast()
    }

    #[inline(always)]
    fn base(&self) -> *mut u64 {
        self.first.as_ptr().cast()
    }

    /// Runs a section until it completes, or else an atomic operation on the unit that replaces it.
    #[inline(always)]
    fn run<R>(
        &self,
        mut section: impl FnMut(rseq::Area) -> (State, R),
        atomic: impl FnOnce(&AtomicU64) -> (State, R),
    ) -> (State, R) {
        loop {
            if let Some(at) = self.at {
                let ended = section(at);
                if ended.0 != State::Beyond {
                    return ended;
                }
            }
            if let Beyond::Unit(unit) = self.hot.beyond() {
                return atomic(self.of_unit(unit));
            }
        }
    }

    /// Adds an amount, wrapping.
    #[inline(always)]
    pub fn add(&self, amount: u64) {
        self.run(
            // SAFETY: by the contract of `new`; units below the mark exist, and no atomic operations are executed on
            // them.
            |at| (unsafe { rseq::add(at, &self.hot.mark, self.base(), amount) }, ()),
            |word| {
                word.fetch_add(amount, Ordering::Relaxed);
                (State::Done, ())
            },
        );
    }

    /// Stores `new`, and returns the previous value.
    #[inline(always)]
    pub fn swap(&self, new: u64) -> u64 {
        self.run(
            // SAFETY: as in `add`.
            |at| unsafe { rseq::swap(at, &self.hot.mark, self.base(), new) },
            |word| (State::Done, word.swap(new, Ordering::AcqRel)),
        )
        .1
    }

    /// Stores `new` if the value is `old`.
    ///
    /// # Errors
    /// The current value, if it is not `old`.
    #[inline(always)]
    pub fn compare_exchange(&self, old: u64, new: u64) -> Result<u64, u64> {
        let (state, found) = self.run(
            // SAFETY: as in `add`.
            |at| unsafe { rseq::compare_exchange(at, &self.hot.mark, self.base(), old, new) },
            |word| match word.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(found) => (State::Done, found),
                Err(found) => (State::Rejected, found),
            },
        );
        if state == State::Done { Ok(found) } else { Err(found) }
    }

    /// Adds a signed number if the absolute value of the sum stays below `batch`. Returns `false` if not.
    #[inline(always)]
    pub fn add_within(&self, amount: i64, batch: i64) -> bool {
        let batch = batch.clamp(1, i64::MAX / 2);
        let (state, ()) = self.run(
            // SAFETY: as in `add`; the batch is in its bounds.
            |at| (unsafe { rseq::add_within(at, &self.hot.mark, self.base(), amount, batch) }, ()),
            |word| {
                let within = |now: u64| {
                    let sum = (now as i64).checked_add(amount)?;
                    (sum > -batch && sum < batch).then_some(sum as u64)
                };
                match word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, within) {
                    Ok(_) => (State::Done, ()),
                    Err(_) => (State::Rejected, ()),
                }
            },
        );
        state == State::Done
    }

    /// Adds if `gate` is 0. Returns `false` if it is not, or if the thread has no unit of its own.
    // Under loom a gate is loom's atomic, which no section can read.
    #[cfg(not(loom))]
    #[inline(always)]
    pub(super) fn add_if_open(&self, amount: u64, gate: &AtomicU64) -> bool {
        let (state, ()) = self.run(
            // SAFETY: as in `add`.
            |at| (unsafe { rseq::add_if_open(at, &self.hot.mark, self.base(), amount, gate) }, ()),
            |_| (State::Rejected, ()),
        );
        state == State::Done
    }

    /// Pushes a node with the link in its first word.
    ///
    /// # Safety
    /// The caller owns the node, which lives until it is popped, at an address that is a multiple of 8. The words are
    /// only used as heads of lists.
    #[inline(always)]
    pub(super) unsafe fn push(&self, node: NonNull<u64>) {
        let node = node.as_ptr();
        self.run(
            // SAFETY: as in `add`, and by this function's contract.
            |at| (unsafe { rseq::push(at, &self.hot.mark, self.base(), node) }, ()),
            |word| {
                let head = lock_head(word);
                // SAFETY: the caller's node.
                unsafe { node.write(head) };
                // Release pairs with the acquire of `lock_head`.
                word.store(node.expose_provenance() as u64, Ordering::Release);
                (State::Done, ())
            },
        );
    }

    /// Pops the last pushed node, if there is one.
    ///
    /// # Safety
    /// The words are only used as heads of lists.
    #[inline(always)]
    pub(super) unsafe fn pop(&self) -> Option<NonNull<u64>> {
        let (_, node) = self.run(
            // SAFETY: as in `push`.
            |at| unsafe { rseq::pop(at, &self.hot.mark, self.base()) },
            |word| {
                let head: *mut u64 = core::ptr::with_exposed_provenance_mut(lock_head(word) as usize);
                // SAFETY: a node in a list is alive, and the holder of its head's lock may read it.
                let next = if head.is_null() { 0 } else { unsafe { head.read() } };
                word.store(next, Ordering::Release);
                (State::Done, head)
            },
        );
        NonNull::new(node)
    }

    /// Calls `each` with the words of all used units, and sets them to 0.
    ///
    /// # Safety
    /// No other thread uses the word.
    pub(super) unsafe fn take_all(&self, mut each: impl FnMut(u64)) {
        for unit in self.hot.live_units() {
            each(self.of_unit(unit).swap(0, Ordering::Relaxed));
        }
    }

    /// Returns the wrapping sum over all units. It is exact if no other thread changes them meanwhile. O(units ever
    /// used).
    pub fn sum(&self) -> u64 {
        let words = self.hot.live_units().map(|unit| self.of_unit(unit).load(Ordering::Relaxed));
        words.fold(0, u64::wrapping_add)
    }
}

/// Takes the lock of a list that several CPUs share, the lowest bit of its head, and returns the head.
fn lock_head(word: &AtomicU64) -> u64 {
    let mut tries = 0u32;
    loop {
        let head = word.load(Ordering::Relaxed) & !1;
        // Acquire pairs with the release of the previous holder.
        if word.compare_exchange_weak(head, head | 1, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            return head;
        }
        tries += 1;
        if tries.is_multiple_of(64) {
            vmalloc_os::os::yield_now();
        } else {
            core::hint::spin_loop();
        }
    }
}
