//! A word of which each unit has its own, and what can be done to the one of the CPU that the caller is on.

use super::hot::{Beyond, Hot};
use super::rseq::{self, State};
use super::shape::STRIDE;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};

/// A word of 64 bits that is changed by [`Local`] only.
///
/// An atomic operation on the word of a CPU would not be atomic to a section that another thread of that CPU is in. So there is
/// none here: it can be read.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Word(AtomicU64);

impl Word {
    /// Returns the value, which other threads may be changing.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// A [`Word`] in each unit. Operations are on the unit of the CPU, or the concurrency id, that the thread has at that moment:
/// sections where there are any, else atomic operations. Each happens wholly or, where it says so, not at all.
#[derive(Clone, Copy, Debug)]
pub struct Local<'s> {
    /// As in `hot`: kept here, it stays in registers, which what a section writes may not be thought to change.
    at: Option<rseq::Area>,
    hot: &'s Hot,
    /// The word of unit 0.
    first: NonNull<AtomicU64>,
}

// SAFETY: words that any thread may change, by sections and atomic operations.
unsafe impl Send for Local<'_> {}
// SAFETY: as before.
unsafe impl Sync for Local<'_> {}

impl<'s> Local<'s> {
    /// The word at `first` in unit 0.
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
        // SAFETY: aligned, zeros or what was written since, for as long as `'s`.
        unsafe { word.as_ref() }
    }

    #[inline(always)]
    fn base(&self) -> *mut u64 {
        self.first.as_ptr().cast()
    }

    /// Runs a section until it ends, or has a unit for an atomic operation.
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

    /// Adds, wrapping.
    #[inline(always)]
    pub fn add(&self, amount: u64) {
        self.run(
            // SAFETY: as `new` was promised; units below the mark are there, and no atomic operation is made on them.
            |at| (unsafe { rseq::add(at, &self.hot.mark, self.base(), amount) }, ()),
            |word| {
                word.fetch_add(amount, Ordering::Relaxed);
                (State::Done, ())
            },
        );
    }

    /// Puts `new` there; returns what was there.
    #[inline(always)]
    pub fn swap(&self, new: u64) -> u64 {
        self.run(
            // SAFETY: as in `add`.
            |at| unsafe { rseq::swap(at, &self.hot.mark, self.base(), new) },
            |word| (State::Done, word.swap(new, Ordering::AcqRel)),
        )
        .1
    }

    /// Puts `new` there if `old` is there.
    ///
    /// # Errors
    /// What is there instead.
    #[inline(always)]
    pub fn compare_exchange(&self, old: u64, new: u64) -> Result<u64, u64> {
        let (state, found) = self.run(
            // SAFETY: as in `add`.
            |at| unsafe { rseq::compare_exchange(at, &self.hot.mark, self.base(), old, new) },
            |word| match word.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire) {
                Ok(found) => (State::Done, found),
                Err(found) => (State::Refused, found),
            },
        );
        if state == State::Done { Ok(found) } else { Err(found) }
    }

    /// Adds a signed number if the sum stays nearer to 0 than `batch`; `false` if not.
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
                    Err(_) => (State::Refused, ()),
                }
            },
        );
        state == State::Done
    }

    /// Adds if `gate` is 0; `false` if it is not, or the thread has no unit of its own.
    // A gate is loom's under loom, which no section can read.
    #[cfg(not(loom))]
    #[inline(always)]
    pub(super) fn add_if_open(&self, amount: u64, gate: &AtomicU64) -> bool {
        let (state, ()) = self.run(
            // SAFETY: as in `add`.
            |at| (unsafe { rseq::add_if_open(at, &self.hot.mark, self.base(), amount, gate) }, ()),
            |_| (State::Refused, ()),
        );
        state == State::Done
    }

    /// Pushes a node, whose first word is its link.
    ///
    /// # Safety
    /// The node is the caller's, lives until it is popped, at an address that is a multiple of 8; the words are only used as heads
    /// of lists.
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

    /// Pops the node that was pushed last, if there is one.
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
                // SAFETY: a node in a list lives, and whoever holds the lock of its head may read it.
                let next = if head.is_null() { 0 } else { unsafe { head.read() } };
                word.store(next, Ordering::Release);
                (State::Done, head)
            },
        );
        NonNull::new(node)
    }

    /// Takes what all units have, leaving zeros, while nobody is in a section.
    ///
    /// # Safety
    /// No other thread uses the word.
    pub(super) unsafe fn take_all(&self, mut each: impl FnMut(u64)) {
        for unit in self.hot.live_units() {
            each(self.of_unit(unit).swap(0, Ordering::Relaxed));
        }
    }

    /// The sum over all units, wrapping: exact if nobody changes them meanwhile. O(units ever used).
    pub fn sum(&self) -> u64 {
        let words = self.hot.live_units().map(|unit| self.of_unit(unit).load(Ordering::Relaxed));
        words.fold(0, u64::wrapping_add)
    }
}

/// Takes the lock of a list that several CPUs share, its lowest bit, and returns the head.
fn lock_head(word: &AtomicU64) -> u64 {
    let mut tries = 0u32;
    loop {
        let head = word.load(Ordering::Relaxed) & !1;
        // Acquire pairs with the release of whoever held it.
        if word.compare_exchange_weak(head, head | 1, Ordering::Acquire, Ordering::Relaxed).is_ok() {
            return head;
        }
        tries += 1;
        if tries.is_multiple_of(64) {
            crate::os::yield_now();
        } else {
            core::hint::spin_loop();
        }
    }
}
