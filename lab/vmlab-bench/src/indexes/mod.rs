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

#[cfg(test)]
mod tests {
    use super::*;
    use va_base::{Align, PAGE_SHIFT, Request, Va, VaRange};
    use va_sim::model::ModelIndex;
    use va_sim::op::Rng;
    use va_tree::FreeIndex;

    fn agrees_with_the_model(mut index: impl Holes, seed: u64) {
        let space = VaRange::from_pages(0, 3000).unwrap();
        let mut model = ModelIndex::new(space, space).unwrap();
        let mut rng = Rng::new(seed);
        let mut out: Vec<(u64, u64)> = Vec::new();
        for _ in 0..6000 {
            if out.is_empty() || rng.below(100) < 52 {
                let (size, align) = (1 + rng.below(40), rng.below(5) as u32 * u32::from(rng.below(3) == 0));
                let low = if rng.below(4) == 0 { rng.below(3000) } else { 0 };
                let high = (low + rng.below(3001 - low)).max(low + 1).min(3000);
                let high = if rng.below(3) == 0 { high } else { 3000 };
                let window = VaRange::from_pages(low, high).unwrap();
                let align_bytes = Align::from_log2(align + PAGE_SHIFT).unwrap();
                let request = Request::pages(size).unwrap().aligned(align_bytes).within(window);
                let want = model.alloc(&request).ok().map(Va::page_floor);
                assert_eq!(index.alloc(size, align, (low, high)), want);
                out.extend(want.map(|at| (at, size)));
            } else {
                let at = rng.below(out.len() as u64) as usize;
                let (start, size) = out.swap_remove(at);
                index.free(start, size);
                model.free(VaRange::from_pages(start, start + size).unwrap()).unwrap();
            }
        }
    }

    #[test]
    fn every_exact_index_finds_the_lowest_fit() {
        for seed in 0..4 {
            agrees_with_the_model(first_fit::FirstFit::new(3000), seed);
            agrees_with_the_model(splay::Splay::new(3000), seed);
            agrees_with_the_model(treap::Treap::<treap::Eager>::new(3000), seed);
            agrees_with_the_model(treap::Treap::<treap::Lazy>::new(3000), seed);
            agrees_with_the_model(treap::Treap::<treap::Cached>::new(3000), seed);
        }
    }
}
