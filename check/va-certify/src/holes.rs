//! The free units of a checker: its own state, which shares nothing with an index.
//!
//! # Theory
//! Holes are maximal runs of free units, in a treap ordered by their starts. That is a binary tree that is also a heap
//! by random ranks, so its depth is O(log n) on average. Each node has the longest hole below it. Two functions do all the work:
//! `split` and `merge`. No balance has cases.

/// The number of no node.
const NONE: u32 = u32::MAX;

/// A run of units, `[start, end)`.
pub type Run = (u64, u64);

#[derive(Clone, Copy, Debug)]
struct Node {
    run: Run,
    /// Units of the longest hole in this subtree.
    longest: u64,
    below: [u32; 2],
    rank: u64,
}

/// Disjoint runs that do not touch.
#[derive(Clone, Debug)]
pub(crate) struct Holes {
    nodes: Vec<Node>,
    spare: Vec<u32>,
    root: u32,
    free: u64,
    seed: u64,
}

/// Returns the units of a run from its first multiple of `2^align_log2` on.
pub(crate) fn usable((start, end): Run, align_log2: u32) -> u64 {
    let pad = start.wrapping_neg() & ((1u64 << align_log2) - 1);
    (end - start).saturating_sub(pad)
}

impl Holes {
    pub(crate) fn new() -> Self {
        Self { nodes: Vec::new(), spare: Vec::new(), root: NONE, free: 0, seed: 1 }
    }

    pub(crate) fn count(&self) -> u64 {
        (self.nodes.len() - self.spare.len()) as u64
    }

    pub(crate) fn free(&self) -> u64 {
        self.free
    }

    pub(crate) fn longest(&self) -> u64 {
        self.node(self.root).map_or(0, |node| node.longest)
    }

    fn node(&self, id: u32) -> Option<&Node> {
        self.nodes.get(id as usize)
    }

    /// Recomputes the longest hole below a node whose children changed.
    fn update(&mut self, id: u32) {
        let Node { run: (start, end), below, .. } = self.nodes[id as usize];
        let below = below.map(|child| self.node(child).map_or(0, |node| node.longest));
        self.nodes[id as usize].longest = (end - start).max(below[0]).max(below[1]);
    }

    /// Divides a subtree into the runs that start below `at`, and the others.
    fn split(&mut self, id: u32, at: u64) -> [u32; 2] {
        let Some(&Node { run, below, .. }) = self.node(id) else { return [NONE; 2] };
        if run.0 < at {
            let [low, high] = self.split(below[1], at);
            self.nodes[id as usize].below[1] = low;
            self.update(id);
            [id, high]
        } else {
            let [low, high] = self.split(below[0], at);
            self.nodes[id as usize].below[0] = high;
            self.update(id);
            [low, id]
        }
    }

    /// Joins two subtrees, the first of which is below the second.
    fn merge(&mut self, low: u32, high: u32) -> u32 {
        let (Some(a), Some(b)) = (self.node(low), self.node(high)) else { return low.min(high) };
        if a.rank < b.rank {
            let joined = self.merge(a.below[1], high);
            self.nodes[low as usize].below[1] = joined;
            self.update(low);
            low
        } else {
            let joined = self.merge(low, b.below[0]);
            self.nodes[high as usize].below[0] = joined;
            self.update(high);
            high
        }
    }

    /// Adds a run that overlaps and touches none.
    pub(crate) fn insert(&mut self, run: Run) {
        // A linear congruential generator (Knuth's MMIX): the ranks need no more.
        self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let node = Node { run, longest: run.1 - run.0, below: [NONE; 2], rank: self.seed >> 16 };
        let id = self.spare.pop().unwrap_or_else(|| {
            self.nodes.push(node);
            self.nodes.len() as u32 - 1
        });
        self.nodes[id as usize] = node;
        let [low, high] = self.split(self.root, run.0);
        let low = self.merge(low, id);
        self.root = self.merge(low, high);
        self.free += run.1 - run.0;
    }

    /// Removes the run that starts at `start`, which there is.
    pub(crate) fn remove(&mut self, start: u64) {
        let [low, rest] = self.split(self.root, start);
        let [gone, high] = self.split(rest, start + 1);
        if let Some(node) = self.node(gone) {
            self.free -= node.run.1 - node.run.0;
            self.spare.push(gone);
        }
        self.root = self.merge(low, high);
    }

    /// Returns the last run that starts at or below `at`.
    pub(crate) fn last_to(&self, at: u64) -> Option<Run> {
        let (mut id, mut found) = (self.root, None);
        while let Some(node) = self.node(id) {
            let is_below = node.run.0 <= at;
            if is_below {
                found = Some(node.run);
            }
            id = node.below[usize::from(is_below)];
        }
        found
    }

    /// Returns the run that contains the unit `at`.
    pub(crate) fn around(&self, at: u64) -> Option<Run> {
        self.last_to(at).filter(|&(_, end)| at < end)
    }

    /// Returns the first run that ends above `at`.
    pub(crate) fn first_above(&self, at: u64) -> Option<Run> {
        let (mut id, mut found) = (self.root, None);
        while let Some(node) = self.node(id) {
            let is_above = node.run.1 > at;
            if is_above {
                found = Some(node.run);
            }
            id = node.below[usize::from(!is_above)];
        }
        found
    }

    /// Returns a free run inside `[low, high)` that begins at a multiple of `2^align_log2` and is longer than `longest`.
    ///
    /// O(log n) without an alignment: at most two holes are clipped. With one, a step for each hole that is longer than
    /// `longest` and not so aligned.
    pub(crate) fn longer(&self, (low, high): Run, longest: u64, align_log2: u32) -> Option<Run> {
        self.longer_in(self.root, (low, high), longest, align_log2)
    }

    fn longer_in(&self, id: u32, within: Run, longest: u64, align_log2: u32) -> Option<Run> {
        let node = self.node(id).filter(|node| node.longest > longest)?;
        let (start, end) = (node.run.0.max(within.0), node.run.1.min(within.1));
        let here = (start < end && usable((start, end), align_log2) > longest).then_some((start, end));
        // What is on the left ends below this start, and on the right starts above this end.
        let left = (node.run.0 > within.0).then_some(node.below[0]);
        let right = (node.run.1 < within.1).then_some(node.below[1]);
        here.or_else(|| left.and_then(|id| self.longer_in(id, within, longest, align_log2)))
            .or_else(|| right.and_then(|id| self.longer_in(id, within, longest, align_log2)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The holes of a set of bits.
    fn runs(bits: u32, units: u64) -> Vec<Run> {
        let is_free = |unit: u64| unit < units && bits & (1 << unit) != 0;
        let starts = (0..units).filter(|&unit| is_free(unit) && (unit == 0 || !is_free(unit - 1)));
        starts.map(|start| (start, (start..).find(|&unit| !is_free(unit)).unwrap_or(units))).collect()
    }

    #[test]
    fn holes_answer_as_a_list_of_booleans_does() {
        const UNITS: u64 = 9;
        for bits in 0..1u32 << UNITS {
            let is_free = |unit: u64| bits & (1 << unit) != 0;
            let mut holes = Holes::new();
            // In an order that is not that of the addresses, and with others that go away again.
            for &run in runs(!bits & 0x1ff, UNITS).iter().rev() {
                holes.insert(run);
            }
            for &run in &runs(!bits & 0x1ff, UNITS) {
                holes.remove(run.0);
            }
            for &run in runs(bits, UNITS).iter().rev() {
                holes.insert(run);
            }
            assert_eq!(holes.count(), runs(bits, UNITS).len() as u64);
            assert_eq!(holes.free(), u64::from(bits.count_ones()));
            for at in 0..UNITS {
                let around = runs(bits, UNITS).into_iter().find(|&(start, end)| start <= at && at < end);
                assert_eq!(holes.around(at), around, "{bits:b} {at}");
                let above = runs(bits, UNITS).into_iter().find(|&(_, end)| end > at);
                assert_eq!(holes.first_above(at), above, "{bits:b} {at}");
            }
            for low in 0..UNITS {
                for high in low..=UNITS {
                    for align_log2 in 0..4 {
                        // By trying every start and every length.
                        let longest = (low..high)
                            .filter(|start| start % (1 << align_log2) == 0)
                            .map(|start| (start..high).take_while(|&unit| is_free(unit)).count() as u64)
                            .max()
                            .unwrap_or(0);
                        assert_eq!(holes.longer((low, high), longest, align_log2), None);
                        if let Some(less) = longest.checked_sub(1) {
                            assert!(holes.longer((low, high), less, align_log2).is_some());
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn many_holes_are_found_in_few_steps() {
        let mut holes = Holes::new();
        (0..50_000).for_each(|n| holes.insert((3 * n, 3 * n + 1 + n % 2)));
        fn depth(holes: &Holes, id: u32) -> u32 {
            holes
                .node(id)
                .map_or(0, |node| 1 + node.below.map(|id| depth(holes, id)).into_iter().max().unwrap_or(0))
        }
        assert!(depth(&holes, holes.root) < 64);
        (0..50_000).step_by(2).for_each(|n| holes.remove(3 * n));
        assert_eq!((holes.count(), holes.free(), holes.longest()), (25_000, 50_000, 2));
        assert!(depth(&holes, holes.root) < 64);
    }
}
