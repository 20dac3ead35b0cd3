//! A set of CPUs: those whose magazines may have big items. A miss visits these alone, and a few of them at a time.
//!
//! # Theory
//! ```text
//!   bits     0 0 0 1 0 0 1 1 | 0 0 ...      magazines 3, 6 and 7 may have big items, or credit for one
//!   next             ^                      the next visit begins here
//! ```
//! A miss needs memory that is cached on other CPUs, and 64 CPUs are usual. A visit of a magazine takes its lock, and a
//! cache line from its CPU. So a bit records which magazines are worth a visit. A miss visits a few of them, and the
//! next miss continues after them. Only a request that would fail visits all magazines.
//!
//! A push adds to a magazine under its lock, and adds the CPU to the set afterwards. A drain removes the CPU from the
//! set first, and then empties the magazine under its lock. So if a push and a drain run at the same time, either the
//! drain finds the item or the CPU is in the set at the end.
//!
//! # Invariants
//! - **MZ3 recorded** a magazine with big items in its sets, or with credit for one, is in the set once its push is
//!   over.

use va_base::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

const BITS: usize = u64::BITS as usize;
/// Words of the set, for 1,024 CPUs.
const WORDS: usize = 16;
/// CPUs that a set can have.
pub(crate) const CPUS_MAX: usize = WORDS * BITS;

/// The set.
pub(crate) struct CpuSet {
    // Atomic, each alone: the lock of a magazine orders a push and a drain of it.
    /// A bit for each CPU. Protocol PR-CPUS.
    words: [AtomicU64; WORDS],
    /// The CPU at which the next visit begins. Protocol PR-HINT.
    next: AtomicUsize,
}

impl CpuSet {
    crate::empty::empty_value!(Self {
        #[cfg(not(loom))]
        words: [const { AtomicU64::new(0) }; WORDS],
        #[cfg(loom)]
        words: core::array::from_fn(|_| AtomicU64::new(0)),
        next: AtomicUsize::new(0),
    });

    /// Adds a CPU.
    pub(crate) fn add(&self, cpu: usize) {
        // If the CPU is in the set, the cache line is only read, so that it stays shared.
        if !self.has(cpu) {
            self.words[cpu / BITS].fetch_or(1 << (cpu % BITS), Ordering::Relaxed);
        }
    }

    /// Removes a CPU.
    pub(crate) fn remove(&self, cpu: usize) {
        if self.has(cpu) {
            self.words[cpu / BITS].fetch_and(!(1 << (cpu % BITS)), Ordering::Relaxed);
        }
    }

    /// Returns true if the set has a CPU.
    pub(crate) fn has(&self, cpu: usize) -> bool {
        self.words[cpu / BITS].load(Ordering::Relaxed) >> (cpu % BITS) & 1 == 1
    }

    /// Visits up to `most` CPUs of the set, each once, from where the last visit stopped.
    pub(crate) fn visit(&self, most: usize, mut visit: impl FnMut(usize)) {
        let start = self.next.load(Ordering::Relaxed);
        let low = (1 << (start % BITS)) - 1;
        let mut left = most;
        // The first word has two parts: from `start` on it is visited first, and below `start` last.
        for step in 0..=WORDS {
            let index = (start / BITS + step) % WORDS;
            let part = match step {
                0 => !low,
                WORDS => low,
                _ => u64::MAX,
            };
            let mut bits = self.words[index].load(Ordering::Relaxed) & part;
            while bits != 0 {
                let cpu = index * BITS + bits.trailing_zeros() as usize;
                if left == 0 {
                    return self.next.store(cpu, Ordering::Relaxed);
                }
                left -= 1;
                bits &= bits - 1;
                visit(cpu);
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_visit_goes_on_where_the_last_one_stopped_and_comes_to_each_once() {
        let set = CpuSet::EMPTY;
        let cpus = [3, 62, 63, 64, 700, CPUS_MAX - 1];
        cpus.iter().for_each(|&cpu| set.add(cpu));
        let visit = |most| {
            let mut seen = Vec::new();
            set.visit(most, |cpu| seen.push(cpu));
            seen
        };
        assert_eq!((visit(4), visit(4)), (vec![3, 62, 63, 64], vec![700, 1023, 3, 62]));
        assert_eq!(visit(9), [63, 64, 700, 1023, 3, 62], "each once");
        assert_eq!(visit(0), []);
        [63, 700].iter().for_each(|&cpu| set.remove(cpu));
        assert_eq!(visit(usize::MAX), [64, 1023, 3, 62]);
        assert!(set.has(64) && !set.has(63) && !set.has(0));
    }
}
