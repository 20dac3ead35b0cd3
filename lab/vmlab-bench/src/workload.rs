//! Workloads: streams of operations, generated once from fixed seeds, so that every contender runs the same.

use va_sim::op::Rng;

/// One operation. It allocates into a slot, or frees from one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Op {
    pub(super) slot: u32,
    pub(super) size: u32,
    /// Binary logarithm, in pages; [`FREE`] for a free of the slot.
    pub(super) align_log2: u8,
}

/// Marks an operation that frees.
pub(super) const FREE: u8 = u8::MAX;

/// A workload, ready to run.
pub(super) struct Workload {
    pub(super) name: String,
    /// Pages of the space.
    pub(super) pages: u64,
    pub(super) slots: usize,
    pub(super) setup: Vec<Op>,
    pub(super) rounds: Vec<Vec<Op>>,
    /// Pairs (or the workload's equivalent) in each round.
    pub(super) pairs: usize,
    /// True if it requests alignments.
    pub(super) aligned: bool,
    /// Window of the allocations of rounds, if there is one.
    pub(super) window: Option<(u64, u64)>,
}

/// A recipe for a workload.
pub(super) struct Spec {
    pub(super) name: &'static str,
    /// Live areas, or holes for the adversary: the x of growth plots.
    pub(super) n: u64,
    /// True if it is part of a quick run.
    pub(super) quick: bool,
    fill: fn(&mut Maker, u64),
}

pub(super) const fn spec(name: &'static str, n: u64, quick: bool, fill: fn(&mut Maker, u64)) -> Spec {
    Spec { name, n, quick, fill }
}

impl Spec {
    /// Generates the stream for `rounds` rounds.
    pub(super) fn make(&self, rounds: usize) -> Workload {
        let workload = Workload {
            name: self.name.to_string(),
            pages: 1 << 30,
            slots: 0,
            setup: Vec::new(),
            rounds: Vec::new(),
            pairs: 1,
            aligned: false,
            window: None,
        };
        let mut maker = Maker { workload, rng: Rng::new(0x5eed ^ self.n), rounds };
        (self.fill)(&mut maker, self.n);
        let mut workload = maker.workload;
        let ops = || workload.setup.iter().chain(workload.rounds.iter().flatten());
        workload.slots = ops().map(|op| op.slot as usize + 1).max().unwrap_or(0);
        workload.aligned = ops().any(|op| op.align_log2 != FREE && op.align_log2 > 0);
        workload
    }
}

/// A workload under construction.
pub(super) struct Maker {
    pub(super) workload: Workload,
    pub(super) rng: Rng,
    rounds: usize,
}

pub(super) fn alloc(slot: u64, size: u64, align_log2: u8) -> Op {
    Op { slot: slot as u32, size: size as u32, align_log2 }
}

pub(super) fn free(slot: u64, size: u64) -> Op {
    Op { slot: slot as u32, size: size as u32, align_log2: FREE }
}

impl Maker {
    /// Generates the rounds: `pairs` pairs each.
    pub(super) fn rounds(&mut self, pairs: usize, mut pair: impl FnMut(&mut Rng, &mut Vec<Op>)) {
        self.workload.pairs = pairs;
        for _ in 0..self.rounds {
            let mut ops = Vec::with_capacity(2 * pairs);
            for _ in 0..pairs {
                pair(&mut self.rng, &mut ops);
            }
            self.workload.rounds.push(ops);
        }
    }

    /// Generates `n` areas, of sizes and alignments from `ask`, each replaced at random.
    pub(super) fn replace(&mut self, n: u64, pairs: usize, mut ask: impl FnMut(&mut Rng) -> (u64, u8)) {
        let mut sizes = Vec::new();
        for slot in 0..n {
            let (size, align) = ask(&mut self.rng);
            sizes.push(size);
            self.workload.setup.push(alloc(slot, size, align));
        }
        // Age the space before the first round: replace every area once.
        for _ in 0..n {
            let slot = self.rng.below(n);
            let (size, align) = ask(&mut self.rng);
            self.workload.setup.push(free(slot, sizes[slot as usize]));
            self.workload.setup.push(alloc(slot, size, align));
            sizes[slot as usize] = size;
        }
        self.rounds(pairs, |rng, ops| {
            let slot = rng.below(n);
            let (size, align) = ask(rng);
            ops.push(free(slot, sizes[slot as usize]));
            ops.push(alloc(slot, size, align));
            sizes[slot as usize] = size;
        });
    }
}
