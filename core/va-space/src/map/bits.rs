//! A row of bits with a summary word: read without a lock, written under one.
//!
//! # Invariants
//! - **PM1 summary** bit `w` of the summary is set exactly when word `w` has a bit.
//!
//! A reader without the lock may see a word of one moment and the summary of another. It never misses a bit that is set
//! throughout its search: that bit's summary is set throughout, too, and a search only skips clear bits.

use va_base::sync::atomic::{AtomicU64, Ordering};

/// Bits in a word.
const WORD_BITS: usize = 64;

/// `W` words, at most 64. Protocol PR-START.
pub(crate) struct Bits<const W: usize> {
    summary: AtomicU64,
    words: [AtomicU64; W],
}

impl<const W: usize> Bits<W> {
    va_base::const_fn! {
        pub(crate) fn new() -> Self {
            const { assert!(W > 0 && W <= WORD_BITS) };
            Self { summary: AtomicU64::new(0), words: va_base::array_of![AtomicU64::new(0); W] }
        }
    }

    /// Sets a bit. The caller holds the lock, so a load and a store are enough; `Release` publishes the data behind the
    /// bit.
    pub(crate) fn set(&self, at: usize) {
        let word = &self.words[at / WORD_BITS];
        word.store(word.load(Ordering::Relaxed) | 1 << (at % WORD_BITS), Ordering::Release);
        let summary = self.summary.load(Ordering::Relaxed) | 1 << (at / WORD_BITS);
        self.summary.store(summary, Ordering::Release);
    }

    /// Clears a bit under the lock and returns whether none is left.
    pub(crate) fn clear(&self, at: usize) -> bool {
        let word = &self.words[at / WORD_BITS];
        let left = word.load(Ordering::Relaxed) & !(1 << (at % WORD_BITS));
        word.store(left, Ordering::Relaxed);
        let mut summary = self.summary.load(Ordering::Relaxed);
        if left == 0 {
            summary &= !(1 << (at / WORD_BITS));
            self.summary.store(summary, Ordering::Relaxed);
        }
        summary == 0
    }

    /// Returns whether any bit is set.
    #[inline(always)]
    pub(crate) fn any(&self) -> bool {
        self.summary.load(Ordering::Relaxed) != 0
    }

    /// Returns whether a bit is set.
    #[cfg(test)]
    #[cfg(not(loom))]
    pub(crate) fn get(&self, at: usize) -> bool {
        self.words[at / WORD_BITS].load(Ordering::Acquire) >> (at % WORD_BITS) & 1 == 1
    }

    /// Returns the lowest bit set at or above `at`. The loads pair with the stores of [`set`](Self::set).
    #[inline]
    pub(crate) fn next(&self, at: usize) -> Option<usize> {
        let first = at / WORD_BITS;
        let here = self.words.get(first)?.load(Ordering::Acquire) & (!0 << (at % WORD_BITS));
        if here != 0 {
            return Some(first * WORD_BITS + here.trailing_zeros() as usize);
        }
        let mut above = self.summary.load(Ordering::Acquire) & (!0 << first) & !(1 << first);
        while above != 0 {
            let word = above.trailing_zeros() as usize;
            let bits = self.words[word].load(Ordering::Acquire);
            if bits != 0 {
                return Some(word * WORD_BITS + bits.trailing_zeros() as usize);
            }
            above &= above - 1;
        }
        None
    }

    /// Returns the highest bit set at or below `at`.
    #[inline(always)]
    pub(crate) fn prev(&self, at: usize) -> Option<usize> {
        let first = at / WORD_BITS;
        let here = self.words.get(first)?.load(Ordering::Acquire) & (!0 >> (WORD_BITS - 1 - at % WORD_BITS));
        if here != 0 {
            return Some(first * WORD_BITS + here.ilog2() as usize);
        }
        self.prev_further(first)
    }

    /// Returns the highest bit set in a word below `first`.
    #[inline]
    fn prev_further(&self, first: usize) -> Option<usize> {
        let mut below = self.summary.load(Ordering::Acquire) & ((1 << first) - 1);
        while below != 0 {
            let word = below.ilog2() as usize;
            let bits = self.words[word].load(Ordering::Acquire);
            if bits != 0 {
                return Some(word * WORD_BITS + bits.ilog2() as usize);
            }
            below &= !(1 << word);
        }
        None
    }

    /// Checks PM1: the first value is `false` if it does not hold. The second is whether any bit is set.
    pub(crate) fn check(&self) -> (bool, bool) {
        let summary = self.summary.load(Ordering::Acquire);
        let mut want = 0;
        for (at, word) in self.words.iter().enumerate() {
            want |= u64::from(word.load(Ordering::Acquire) != 0) << at;
        }
        (summary == want, want != 0)
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;

    #[test]
    fn pm1_a_search_answers_as_a_row_of_booleans() {
        let bits = Bits::<3>::new();
        let mut model = [false; 192];
        let mut state = 1u64;
        for _ in 0..4000 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let at = (state >> 33) as usize % 192;
            model[at] = state >> 60 < 3;
            if model[at] {
                bits.set(at);
            } else {
                assert_eq!(bits.clear(at), !model.contains(&true));
            }
            assert_eq!(bits.get(at), model[at]);
            let from = (state >> 20) as usize % 192;
            assert_eq!(bits.next(from), (from..192).find(|&at| model[at]));
            assert_eq!(bits.prev(from), (0..=from).rev().find(|&at| model[at]));
            assert_eq!(bits.check(), (true, model.contains(&true)));
        }
        assert_eq!(bits.next(192), None);
    }

    #[test]
    fn a_word_whose_last_bit_is_cleared_during_a_search_is_passed() {
        let bits = Bits::<4>::new();
        [0, 255].into_iter().for_each(|at| bits.set(at));
        // The summary, as a reader may see it that read it before the bits were cleared.
        bits.summary.store(0b1111, Ordering::Release);
        assert_eq!((bits.next(1), bits.prev(254)), (Some(255), Some(0)));
    }
}
