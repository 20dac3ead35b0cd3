//! Counts of an allocator, and when they can be had.

use super::{Part, Vmalloc};
use crate::heap::Stats;

impl Vmalloc {
    /// Counts. Takes every lock, one after the other.
    #[must_use]
    pub fn stats(&self) -> Stats {
        match self.part() {
            Part::Ordinary(heap) => heap.stats(),
            Part::Hardened(hard) => hard.stats(),
        }
    }

    /// Counts as [`stats`](Self::stats) does, or returns `None` if a lock is held. For the child of a fork in a signal
    /// handler: the call that the signal interrupted holds its locks there, too, and to wait for them has no end.
    #[must_use]
    pub fn try_stats(&self) -> Option<Stats> {
        let free = match self.part() {
            Part::Ordinary(heap) => heap.is_free(),
            Part::Hardened(hard) => hard.is_free(),
        };
        free.then(|| self.stats())
    }
}

#[cfg(test)]
mod tests {
    use crate::{Options, Vmalloc};

    #[test]
    fn counts_can_be_tried_while_no_thread_has_a_lock() {
        let memory = Vmalloc::new(Options::default()).unwrap();
        let held = memory.buffer(1 << 20).unwrap();
        assert_eq!(memory.try_stats().unwrap().live_bytes, memory.stats().live_bytes);
        assert_eq!(held.len(), 1 << 20);
    }
}
