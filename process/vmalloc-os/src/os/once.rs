//! Results that are computed once a process.

use super::word::Word;
use core::sync::atomic::{AtomicU32, Ordering};

/// No result yet: neither a number of CPUs nor a boolean.
pub(crate) const UNKNOWN: u32 = u32::MAX;

/// A result that is computed once. Concurrent first calls compute the same value, so there is no lock that a fork could
/// leave held. Protocol PR-ONCE.
#[derive(Debug)]
pub struct Once(AtomicU32);

impl Once {
    /// Creates the value without a result.
    #[expect(clippy::new_without_default, reason = "it is made for statics alone")]
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU32::new(UNKNOWN))
    }

    /// Returns the result, which the first call computes. It must not be [`u32::MAX`].
    pub fn get(&self, ask: impl FnOnce() -> u32) -> u32 {
        known_or(&self.0, ask)
    }
}

/// Returns a result, which is computed if no thread has stored it yet.
pub(crate) fn known_or(word: &impl Word, ask: impl FnOnce() -> u32) -> u32 {
    let known = word.load(Ordering::Relaxed);
    if known != UNKNOWN {
        return known;
    }
    let answer = ask();
    word.store(answer, Ordering::Relaxed);
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_asked_for_once() {
        let (once, mut asked) = (Once::new(), 0);
        for _ in 0..3 {
            let answer = once.get(|| {
                asked += 1;
                7
            });
            assert_eq!(answer, 7);
        }
        assert_eq!(asked, 1);
    }
}
