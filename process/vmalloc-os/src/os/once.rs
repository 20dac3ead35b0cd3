//! Results that are computed once a process.

use core::sync::atomic::{AtomicU32, Ordering};

/// A result that is computed once. Concurrent first calls compute the same value, so there is no lock that a fork could
/// leave held. Protocol PR-ONCE.
#[derive(Debug)]
pub struct Once(AtomicU32);

impl Once {
    /// No result yet: neither a number of CPUs nor a boolean.
    const UNKNOWN: u32 = u32::MAX;

    /// Creates the value without a result.
    #[expect(clippy::new_without_default, reason = "it is made for statics alone")]
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicU32::new(Self::UNKNOWN))
    }

    /// Returns the result, which the first call computes. It must not be [`u32::MAX`].
    pub fn get(&self, ask: impl FnOnce() -> u32) -> u32 {
        let known = self.0.load(Ordering::Relaxed);
        if known != Self::UNKNOWN {
            return known;
        }
        let answer = ask();
        self.0.store(answer, Ordering::Relaxed);
        answer
    }
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
