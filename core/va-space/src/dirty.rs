//! The ranges that the next flush covers besides the areas in its batch.

use va_base::VaRange;

/// Ranges of one flush at most.
const RANGES_MAX: usize = 16;

/// A small set of ranges that the next flush covers; more than [`RANGES_MAX`] are joined with their neighbours.
pub(crate) struct Dirty {
    ranges: [VaRange; RANGES_MAX],
    len: usize,
}

impl Dirty {
    pub(crate) const fn new() -> Self {
        Self { ranges: [VaRange::ALL; RANGES_MAX], len: 0 }
    }

    pub(crate) fn ranges(&self) -> &[VaRange] {
        &self.ranges[..self.len]
    }

    /// Removes all ranges.
    pub(crate) fn clear(&mut self) {
        self.len = 0;
    }

    /// Adds a range: joins it with one that it touches, or, if the set is full, with the one that grows the least.
    pub(crate) fn add(&mut self, more: VaRange) {
        if more.is_empty() {
            return;
        }
        let hull = |one: VaRange| VaRange::new(one.start().min(more.start()), one.end().max(more.end()));
        let growth = |one: &VaRange| hull(*one).map_or(u64::MAX, |hull| hull.len_bytes() - one.len_bytes());
        let touches = |one: &VaRange| one.start() <= more.end() && more.start() <= one.end();
        let known = &mut self.ranges[..self.len];
        let joined = match known.iter().position(touches) {
            None if self.len == RANGES_MAX => (0..self.len).min_by_key(|&at| growth(&known[at])),
            touching => touching,
        };
        match joined {
            Some(at) => known[at] = hull(known[at]).unwrap_or(VaRange::ALL),
            None => {
                self.ranges[self.len] = more;
                self.len += 1;
            }
        }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn range(first: u64, end: u64) -> VaRange {
        VaRange::from_pages(first, end).unwrap()
    }

    #[test]
    fn a_set_of_ranges_covers_what_was_added_and_stays_small() {
        let mut dirty = Dirty::new();
        dirty.add(VaRange::default());
        assert!(dirty.ranges().is_empty());
        [range(10, 20), range(30, 40), range(20, 25)].iter().for_each(|&more| dirty.add(more));
        assert_eq!(dirty.ranges(), [range(10, 25), range(30, 40)]);
        let mut state = 7u64;
        let mut added = Vec::new();
        for _ in 0..100 {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let first = state >> 44;
            added.push(range(first, first + 1 + (state >> 20) % 9));
            dirty.add(added[added.len() - 1]);
            assert!(dirty.ranges().len() <= RANGES_MAX);
            for one in &added {
                assert!(dirty.ranges().iter().any(|range| range.encloses(*one)), "{one}");
            }
        }
        // Joined where that adds the least.
        let mut dirty = Dirty::new();
        (0..RANGES_MAX as u64).for_each(|n| dirty.add(range(1000 * n, 1000 * n + 1 + n % 2 * 900)));
        dirty.add(range(3910, 3920));
        assert!(dirty.ranges().contains(&range(3000, 3920)), "{:?}", dirty.ranges());
        // A small range three times as large, and not a large one a little larger.
        let mut dirty = Dirty::new();
        (0..14).for_each(|n| dirty.add(range(100_000 + 1000 * n, 100_001 + 1000 * n)));
        [range(1000, 1010), range(1500, 3500), range(1020, 1030)].iter().for_each(|&more| dirty.add(more));
        assert!(dirty.ranges().contains(&range(1000, 1030)), "{:?}", dirty.ranges());
    }
}
