//! Workloads: streams of operations, generated once from fixed seeds, so that every contender runs the same.

use va_sim::op::Rng;

/// One operation. It allocates into a slot, or frees from one.
#[derive(Clone, Copy, Debug)]
pub struct Op {
    pub slot: u32,
    pub size: u32,
    /// Binary logarithm, in pages; [`FREE`] for a free of the slot.
    pub align_log2: u8,
}

/// Marks an operation that frees.
pub const FREE: u8 = u8::MAX;

/// A workload, ready to run.
pub struct Workload {
    pub name: String,
    /// Pages of the space.
    pub pages: u64,
    pub slots: usize,
    pub setup: Vec<Op>,
    pub rounds: Vec<Vec<Op>>,
    /// Pairs (or the workload's equivalent) in each round.
    pub pairs: usize,
    /// True if it requests alignments.
    pub aligned: bool,
    /// Window of the allocations of rounds, if there is one.
    pub window: Option<(u64, u64)>,
}

/// A recipe for a workload.
pub struct Spec {
    pub name: &'static str,
    /// Live areas, or holes for the adversary: the x of growth plots.
    pub n: u64,
    /// True if it is part of a quick run.
    pub quick: bool,
    fill: fn(&mut Maker, u64),
}

pub const fn spec(name: &'static str, n: u64, quick: bool, fill: fn(&mut Maker, u64)) -> Spec {
    Spec { name, n, quick, fill }
}

impl Spec {
    /// Generates the stream for `rounds` rounds.
    pub fn make(&self, rounds: usize) -> Workload {
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
pub struct Maker {
    pub workload: Workload,
    pub rng: Rng,
    rounds: usize,
}

pub fn alloc(slot: u64, size: u64, align_log2: u8) -> Op {
    Op { slot: slot as u32, size: size as u32, align_log2 }
}

pub fn free(slot: u64, size: u64) -> Op {
    Op { slot: slot as u32, size: size as u32, align_log2: FREE }
}

impl Maker {
    /// Generates the rounds: `pairs` pairs each.
    pub fn rounds(&mut self, pairs: usize, mut pair: impl FnMut(&mut Rng, &mut Vec<Op>)) {
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
    pub fn replace(&mut self, n: u64, pairs: usize, mut ask: impl FnMut(&mut Rng) -> (u64, u8)) {
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
