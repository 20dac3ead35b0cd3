//! The workloads of per-CPU memory: the usual ones, and those on which Linux's allocator is slow.
//!
//! The first nine are those that measured Linux's own code when it was made into a library, with the same numbers. So
//! are the last four, with the hardest size only.

use super::clock::Moment;
use super::subject::{Counts, Shape, Subject, USUAL};
use va_sim::op::Rng;
use va_sim::percpu::netmix;

/// A workload.
pub(super) struct Workload {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    pub(super) shape: Shape,
    what: What,
}

/// The operations.
#[derive(Clone, Copy)]
enum What {
    /// Allocates a million of 16 bytes at an alignment, then frees all in the same order.
    Million {
        align: u32,
    },
    Netmix,
    TcBatches,
    Swiss,
    AllocTest,
    MisalignedHoles,
    DeadChunks,
    Atomic,
    Pair {
        crowded: bool,
    },
    /// Allocates and frees 20,000 of a size; or runs as many pairs of a page.
    Sequence {
        pages: bool,
    },
    OneWordHoles,
    ManyChunks,
}

const fn row(name: &'static str, about: &'static str, shape: Shape, what: What) -> Workload {
    Workload { name, about, shape, what }
}

/// All of them.
pub(super) const ALL: [Workload; 14] = [
    row("16b_1M", "a million of 16 B, all back in order", USUAL, What::Million { align: 4 }),
    row("16b_align16_1M", "the same, aligned to 16", USUAL, What::Million { align: 16 }),
    row("netmix", "100,000 of 8 to 64 B live, one replaced at random: a pair", USUAL, What::Netmix),
    row("tc_batches", "200,000 of 16 and 64 B in and out, four times: a pair", USUAL, What::TcBatches),
    row("swiss_8in4", "8 B where every other 4 B are free", USUAL, What::Swiss),
    row("pcpu_alloc_test", "35,000 of 1 to 1,024 B aligned to 2 to 2,048", USUAL, What::AllocTest),
    row("misaligned_holes", "1,200 B aligned to 2,048 among holes of 2,032 B", USUAL, What::MisalignedHoles),
    row("dead_chunks", "40 B aligned to 64 behind 200 full chunks: a pair", USUAL, What::DeadChunks),
    row("atomic16", "16 B for one who cannot wait", USUAL, What::Atomic),
    row("pair16", "a pair of 16 B and nothing else", USUAL, What::Pair { crowded: false }),
    row("pair16_crowded", "the same among 200,000 objects", USUAL, What::Pair { crowded: true }),
    row("16b_8MiB", "16 B in units of 8 MiB", Shape::of_unit(8 << 20), What::Sequence { pages: false }),
    row(
        "4KiB_8MiB",
        "4 KiB in units of 8 MiB: a pair",
        Shape::of_unit(8 << 20),
        What::Sequence { pages: true },
    ),
    row(
        "400_holes",
        "16 B behind 400 holes of one word: a pair",
        Shape::of_unit(64 << 10),
        What::OneWordHoles,
    ),
];

/// The workload of 2,562 chunks, which takes long to fill.
pub(super) const CHUNKS: Workload = row(
    "2562_chunks",
    "2,048 B aligned to that, 2,560 chunks each with such a hole badly aligned: a pair",
    Shape::of_unit(64 << 10),
    What::ManyChunks,
);

/// The cost of a round, and the counts after it. The cost is in nanoseconds: for a call to alloc or a pair, and for a
/// call to free if it is measured separately.
#[derive(Clone, Copy, Debug)]
pub(super) struct Round {
    pub(super) ns: [Option<f64>; 2],
    pub(super) counts: Counts,
    /// Requests that failed.
    pub(super) failed: u64,
}

/// Returns the mean nanoseconds of `count` calls.
fn timed(count: usize, calls: impl FnOnce()) -> Option<f64> {
    let begun = Moment::now();
    calls();
    Some(begun.elapsed_ns() / count as f64)
}

/// Allocates `count` objects, reads the counts, and frees the objects in order.
fn fill_and_free<S: Subject>(subject: &S, count: usize, mut next: impl FnMut() -> (u32, u32)) -> Round {
    let mut objects = vec![0; count];
    let alloc = timed(count, || {
        for object in &mut objects {
            let (size, align) = next();
            *object = subject.alloc(size, align);
        }
    });
    let counts = subject.counts();
    let failed = objects.iter().filter(|&&object| object == 0).count() as u64;
    let free = timed(count, || objects.iter().for_each(|&object| subject.free(object)));
    Round { ns: [alloc, free], counts, failed }
}

/// Runs pairs of one size.
fn pairs<S: Subject>(subject: &S, count: usize, size: u32, align: u32) -> Round {
    let mut failed = 0;
    let pair = timed(count, || {
        for _ in 0..count {
            let object = subject.alloc(size, align);
            failed += u64::from(object == 0);
            subject.free(object);
        }
    });
    Round { ns: [pair, None], counts: subject.counts(), failed }
}

impl Workload {
    /// Runs one round on an empty subject. Objects may remain allocated.
    pub(super) fn round<S: Subject>(&self, subject: &S) -> Round {
        match self.what {
            What::Million { align } => fill_and_free(subject, 1_000_000, || (16, align)),
            What::Netmix => replace(subject),
            What::TcBatches => batches(subject),
            What::Swiss => {
                let words: Vec<u64> = (0..200_000).map(|_| subject.alloc(4, 4)).collect();
                words.iter().step_by(2).for_each(|&word| subject.free(word));
                fill_and_free(subject, 200_000, || (8, 4))
            }
            What::AllocTest => {
                let mut rng = Rng::new(99);
                fill_and_free(subject, 35_000, || (1 + rng.below(1024) as u32, 2 << rng.below(11)))
            }
            What::MisalignedHoles => {
                let holes: Vec<u64> = (0..129 * 60).map(|_| subject.alloc(2032, 16)).collect();
                holes.iter().step_by(2).for_each(|&hole| subject.free(hole));
                fill_and_free(subject, 4000, || (1200, 2048))
            }
            What::DeadChunks => {
                let full: Vec<u64> = (0..200 * 64 * 64 + 64).map(|_| subject.alloc(64, 4)).collect();
                // The rest of each hole is large enough, but misaligned.
                full.iter().skip(5).step_by(64).for_each(|&hole| subject.free(hole));
                for _ in full.iter().skip(5).step_by(64) {
                    subject.alloc(20, 4);
                }
                pairs(subject, 20_000, 40, 64)
            }
            What::Atomic => {
                let mut failed = 0;
                let alloc = timed(200_000, || {
                    for _ in 0..200_000 {
                        failed += u64::from(subject.alloc_atomic(16, 16) == 0);
                    }
                });
                Round { ns: [alloc, None], counts: subject.counts(), failed }
            }
            What::Pair { crowded } => {
                if crowded {
                    let mut rng = Rng::new(5);
                    let all: Vec<u64> = (0..300_000)
                        .map(|_| {
                            let (size, align) = netmix(&mut rng);
                            subject.alloc(size, align)
                        })
                        .collect();
                    all.iter().filter(|_| rng.below(3) == 0).for_each(|&object| subject.free(object));
                }
                pairs(subject, 1_000_000, 16, 16)
            }
            What::Sequence { pages } => {
                for _ in 0..2000 {
                    subject.alloc(16, 16);
                }
                if pages {
                    pairs(subject, 2000, 4096, 4096)
                } else {
                    fill_and_free(subject, 20_000, || (16, 16))
                }
            }
            What::OneWordHoles => {
                let words: Vec<u64> = (0..808).map(|_| subject.alloc(4, 4)).collect();
                words.iter().take(800).step_by(2).for_each(|&word| subject.free(word));
                words[801..805].iter().for_each(|&word| subject.free(word));
                pairs(subject, 5000, 16, 16)
            }
            What::ManyChunks => {
                for _ in 0..20 {
                    subject.alloc(1024, 1024);
                }
                let mut holes = Vec::new();
                for _ in 0..2560 {
                    subject.alloc(1024, 1024);
                    let chunk: Vec<u64> = (0..31).map(|_| subject.alloc(2048, 1024)).collect();
                    holes.push(chunk[5]);
                    subject.alloc(1024, 1024);
                }
                holes.iter().for_each(|&hole| subject.free(hole));
                pairs(subject, 1000, 2048, 2048)
            }
        }
    }
}

/// Keeps 100,000 live, and replaces one at random, 400,000 times.
fn replace<S: Subject>(subject: &S) -> Round {
    const PAIRS: usize = 400_000;
    let mut rng = Rng::new(42);
    let ask = |rng: &mut Rng| {
        let (size, align) = netmix(rng);
        subject.alloc(size, align)
    };
    let mut live: Vec<u64> = (0..100_000).map(|_| ask(&mut rng)).collect();
    let mut failed = 0;
    let pair = timed(PAIRS, || {
        for _ in 0..PAIRS {
            let which = rng.below(100_000) as usize;
            subject.free(live[which]);
            live[which] = ask(&mut rng);
            failed += u64::from(live[which] == 0);
        }
    });
    Round { ns: [pair, None], counts: subject.counts(), failed }
}

/// Allocates and frees two counters for each of 100,000 rules; every second time larger ones, freed in random order.
fn batches<S: Subject>(subject: &S) -> Round {
    const RULES: usize = 100_000;
    let (mut rng, mut counts, mut failed) = (Rng::new(7), Counts::default(), 0);
    let mut objects = vec![[0; 2]; RULES];
    let pair = timed(8 * RULES, || {
        for round in 0..4 {
            for rule in &mut objects {
                *rule = [subject.alloc(16, 8), subject.alloc(if round % 2 == 1 { 64 } else { 16 }, 16)];
                failed += u64::from(rule.contains(&0));
            }
            if round == 3 {
                counts = subject.counts();
            }
            if round % 2 == 1 {
                for at in (1..RULES).rev() {
                    objects.swap(at, rng.below(at as u64 + 1) as usize);
                }
            }
            for rule in &objects {
                subject.free(rule[0]);
                subject.free(rule[1]);
            }
        }
    });
    Round { ns: [pair, None], counts, failed }
}
