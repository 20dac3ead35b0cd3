//! The runs that a magazine evicts in one call.

use super::{Item, OUT_MAX, item, pages_of};
use crate::arena::Run;

/// Runs that a magazine evicted.
pub(crate) struct Out {
    runs: [Item; OUT_MAX],
    pub(super) len: usize,
    pub(super) first: u64,
}

impl Out {
    pub(crate) fn new(first: u64) -> Self {
        Self { runs: [0; OUT_MAX], len: 0, first }
    }

    /// Adds a run that is cached in no magazine.
    pub(crate) fn add(&mut self, run: Run) {
        self.push(item(&run, self.first));
    }

    pub(super) fn push(&mut self, item: Item) {
        if item != 0 {
            self.runs[self.len] = item;
            self.len += 1;
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the pages of all runs.
    pub(crate) fn pages(&self) -> u64 {
        self.runs[..self.len].iter().copied().map(pages_of).sum()
    }

    pub(super) fn is_full(&self) -> bool {
        self.len == OUT_MAX
    }
}

impl Iterator for Out {
    type Item = Run;

    fn next(&mut self) -> Option<Run> {
        self.len = self.len.checked_sub(1)?;
        let item = self.runs[self.len];
        // SAFETY: `push` took ownership of the run, and each entry is removed once (AR2).
        Some(unsafe { Run::claim(self.first + (item >> 32), pages_of(item)) })
    }
}
