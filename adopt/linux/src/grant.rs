//! The lock of a magazine: one word, which is 0 while it is free.
//!
//! Its owner has preemption off already, and so takes it without a call: two such calls a pair are a tenth of it. Any
//! other thread only tries it, and must have preemption off while it holds it, since the owner waits for it.
//!
//! The code is generic over the word, so that `check/port-check/src/loom.rs` is a model of it.

use core::sync::atomic::Ordering;

/// The owner has the lock.
const BY_OWNER: u32 = 1;
/// Another thread has it, which was preemptible before.
const BY_OTHER: u32 = 2;

/// The word of a lock, and the CPU of its caller: those of the kernel, or of a model.
pub(crate) trait Word {
    /// Returns the kind of its holder, or 0.
    fn load(&self) -> u32;

    /// Frees it.
    fn store_free(&self, order: Ordering);

    /// Writes the kind of its next holder, if it is free. Returns true if it was.
    fn replace_free(&self, by: u32, success: Ordering) -> bool;

    /// Lets the holder proceed.
    fn pause(&self);

    /// Turns preemption off, once more if it is off.
    fn preempt_off(&self);

    /// Undoes one call of that.
    fn preempt_on(&self);
}

#[inline(always)]
fn take(word: &impl Word, by: u32) -> bool {
    word.replace_free(by, Ordering::Acquire)
}

/// Takes the lock for its owner.
#[inline(always)]
pub(crate) fn lock(word: &impl Word) {
    while !take(word, BY_OWNER) {
        word.pause();
    }
}

/// Takes the lock for another thread, if it is free.
#[inline]
pub(crate) fn try_lock(word: &impl Word) -> bool {
    word.preempt_off();
    let taken = take(word, BY_OTHER);
    if !taken {
        word.preempt_on();
    }
    taken
}

/// Releases the lock, which the caller holds.
#[inline(always)]
pub(crate) fn unlock(word: &impl Word) {
    let by = word.load();
    word.store_free(Ordering::Release);
    if by == BY_OTHER {
        word.preempt_on();
    }
}
