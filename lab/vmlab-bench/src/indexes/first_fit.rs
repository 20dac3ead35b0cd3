//! A `BTreeMap` of holes, searched from the window's start: correct, short, and O(n).

use super::{Holes, fit};
use std::collections::BTreeMap;

/// Start of each hole to its end.
pub struct FirstFit {
    holes: BTreeMap<u64, u64>,
}

impl FirstFit {
    /// Creates pages `[0, pages)`, all free.
    pub fn new(pages: u64) -> Self {
        Self { holes: BTreeMap::from([(0, pages)]) }
    }
}

impl Holes for FirstFit {
    fn alloc(&mut self, size: u64, align_log2: u32, window: (u64, u64)) -> Option<u64> {
        let first = self.holes.range(..=window.0).next_back().map_or(window.0, |(&start, _)| start);
        let (start, end, at) = self
            .holes
            .range(first..)
            .find_map(|(&start, &end)| Some((start, end, fit(start, end, size, align_log2, window)?)))?;
        self.holes.remove(&start);
        if start < at {
            self.holes.insert(start, at);
        }
        if at + size < end {
            self.holes.insert(at + size, end);
        }
        Some(at)
    }

    fn free(&mut self, start: u64, size: u64) {
        let (mut start, mut end) = (start, start + size);
        if let Some((&before, &before_end)) = self.holes.range(..start).next_back()
            && before_end == start
        {
            self.holes.remove(&before);
            start = before;
        }
        if let Some(after_end) = self.holes.remove(&end) {
            end = after_end;
        }
        self.holes.insert(start, end);
    }
}
