//! Indexes for comparison only: earlier algorithms, and later proposals.
//!
//! | index | description |
//! |---|---|
//! | `treap` | one balanced tree of holes: maxima updated at once, updated lazily, or with the last hole cached |
//! | `splay` | a splay tree of holes |
//! | `first_fit` | a `BTreeMap` of holes searched from the front: the simplest implementation |
//!
//! Splay tree, lazy fix-ups and cached last node are the to-do list of the talk that presented Linux's tree; `results/`
//! has their measurements. All find the exact lowest fit. The list of Linux before 5.2 is in `vmlab_machine`.

pub mod bst;
pub mod first_fit;
pub mod splay;
pub mod treap;

/// Counts of purges and flushes of a space.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Drained {
    /// Passes of the purge.
    pub purges: u64,
    /// Flushes.
    pub flushes: u64,
}

impl Drained {
    /// Returns the counts since `before`.
    pub fn since(self, before: Self) -> Self {
        let Self { purges, flushes } = before;
        Self { purges: self.purges.saturating_sub(purges), flushes: self.flushes.saturating_sub(flushes) }
    }
}

/// A minimal interface of an index of holes, for measurements in page numbers.
pub trait Holes {
    /// Allocates the lowest fit of `size` pages, aligned to `2^align_log2` pages, inside pages `[low, high)`.
    fn alloc(&mut self, size: u64, align_log2: u32, window: (u64, u64)) -> Option<u64>;
    /// Frees pages `[start, start + size)`, which are allocated.
    fn free(&mut self, start: u64, size: u64);
    /// Returns the memory of its records, and the number of holes that they describe, if known.
    fn memory(&self) -> Option<(va_tree::IndexMemory, u64)> {
        None
    }
    /// Returns its counts of purges and flushes, if it is more than an index.
    fn drained(&self) -> Option<Drained> {
        None
    }
}

/// Returns the start of `size` pages aligned to `2^align_log2` in the hole `[start, end)`, within the window.
#[inline]
pub(crate) fn fit(start: u64, end: u64, size: u64, align_log2: u32, window: (u64, u64)) -> Option<u64> {
    let mask = (1u64 << align_log2) - 1;
    let at = (start.max(window.0) + mask) & !mask;
    (at + size <= end.min(window.1)).then_some(at)
}
