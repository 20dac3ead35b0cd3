//! Patterns of pairs, from Linux's own test module and from typical use. Sizes include a guard page.

use crate::stream::workload::{Maker, Spec, Workload, alloc, free, spec};
use va_sim::op::Rng;
use va_space::lazy::lazy_max_pages;

/// Live areas of the long list.
const BUSY_LIST: u64 = 15_000;
/// Live areas of the churns.
const LIVE: u64 = 4096;
/// Pairs of a round.
const PAIRS: usize = 20_000;

/// Returns all patterns, for a space of `cpus` CPUs.
pub fn all(cpus: u64) -> [Spec; 10] {
    [
        spec("fix_size", cpus, true, fix_size),
        spec("random_size", cpus, true, random_size),
        spec("full_fit", cpus, true, full_fit),
        spec("long_busy_list", cpus, true, long_busy_list),
        spec("suite_mix", cpus, true, suite_mix),
        spec("churn_mix", cpus, true, churn_mix),
        spec("churn_fix", cpus, true, churn_fix),
        spec("random_size_align", cpus, true, random_size_align),
        spec("align2m_live", cpus, true, align2m_live),
        spec("pair257", cpus, true, pair257),
    ]
}

/// Returns the patterns that threads run together; `n` is the number of a thread.
pub fn shared(n: u64) -> [Spec; 3] {
    [
        spec("fix_size", n, true, fix_size),
        spec("random_size", n, true, random_size),
        spec("churn_mix", n, true, churn_mix),
    ]
}

/// Rounds before the first timed one, so that pools and magazines are filled as the pattern needs.
pub(crate) const WARM_UP: usize = 8;

/// Generates the stream for `rounds` rounds, after `warm_up` more in the setup.
pub fn make(spec: &Spec, warm_up: usize, rounds: usize) -> Workload {
    let mut workload = spec.make(warm_up + rounds);
    let warm_up = workload.rounds.drain(..warm_up).flatten();
    workload.setup.extend(warm_up);
    workload
}

/// Generates pairs of sizes from `ask`, each freed at once.
fn pairs(maker: &mut Maker, slot: u64, mut ask: impl FnMut(&mut Rng) -> (u64, u8)) {
    maker.rounds(PAIRS, |rng, ops| {
        let (size, align) = ask(rng);
        ops.extend([alloc(slot, size, align), free(slot, size)]);
    });
}

/// A page.
fn fix_size(maker: &mut Maker, _: u64) {
    pairs(maker, 0, |_| (2, 0));
}

/// 1 to 100 pages.
fn random_size(maker: &mut Maker, _: u64) {
    pairs(maker, 0, |rng| (2 + rng.below(100), 0));
}

/// A page, among the maximal lazy number of holes of exactly that size.
fn full_fit(maker: &mut Maker, cpus: u64) {
    let n = lazy_max_pages(cpus as u32).get();
    maker.workload.setup.extend((0..2 * n).map(|slot| alloc(slot, 2, 0)));
    maker.workload.setup.extend((0..n).map(|at| free(2 * at + 1, 2)));
    pairs(maker, 2 * n, |_| (2, 0));
}

fn fill_list(maker: &mut Maker) {
    maker.workload.setup.extend((0..BUSY_LIST).map(|slot| alloc(slot, 2, 0)));
}

/// 100 pages and one in turn above 15,000 areas of a page.
fn long_busy_list(maker: &mut Maker, _: u64) {
    fill_list(maker);
    let (large, small) = (BUSY_LIST, BUSY_LIST + 1);
    maker.rounds(PAIRS, |_, ops| {
        // Each step generates two pairs.
        if ops.len() < 2 * PAIRS {
            ops.extend([alloc(large, 101, 0), alloc(small, 2, 0), free(large, 101), free(small, 2)]);
        }
    });
}

/// The bodies of Linux's test module in random order, and occasionally a thread's stack, above 15,000 areas.
fn suite_mix(maker: &mut Maker, _: u64) {
    fill_list(maker);
    pairs(maker, BUSY_LIST, |rng| {
        let r = rng.below(256);
        match rng.below(6) {
            0 => (2, 0),
            1 => (101, 0),
            2 => (r % 100 + 2, 0),
            3 => (6, 3),
            4 => (r % 10 + 2, align_of_byte_log2(r % 23)),
            _ => (5, 2),
        }
    });
}

/// Converts the binary logarithm of bytes to that of pages.
fn align_of_byte_log2(log2: u64) -> u8 {
    log2.saturating_sub(12) as u8
}

/// Returns a typical size: half of them up to 5 pages, one in 20 up to 2049.
fn mixed(rng: &mut Rng) -> u64 {
    2 + match rng.below(100) {
        0..50 => rng.below(4),
        50..80 => rng.below(32),
        80..95 => rng.below(256),
        _ => rng.below(2048),
    }
}

/// 4096 areas of typical sizes, each replaced at random.
fn churn_mix(maker: &mut Maker, _: u64) {
    maker.replace(LIVE, PAIRS, |rng| (mixed(rng), 0));
}

/// 4096 areas of a page, each replaced at random.
fn churn_fix(maker: &mut Maker, _: u64) {
    maker.replace(LIVE, PAIRS, |_| (2, 0));
}

/// 1 to 10 pages, aligned to 1 to 1024.
fn random_size_align(maker: &mut Maker, _: u64) {
    pairs(maker, 0, |rng| {
        let r = rng.below(256);
        (r % 10 + 2, align_of_byte_log2(r % 23))
    });
}

/// 256 areas of 256 KiB aligned to 2 MiB, each replaced at random.
fn align2m_live(maker: &mut Maker, _: u64) {
    maker.replace(256, PAIRS, |_| (65, 9));
}

/// One page more than the limit of Linux's pools.
fn pair257(maker: &mut Maker, _: u64) {
    pairs(maker, 0, |_| (257, 0));
}
