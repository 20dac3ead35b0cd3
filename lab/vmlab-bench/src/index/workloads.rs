//! The workloads of the index benchmark.

use crate::stream::workload::{Maker, Spec, alloc, free, spec};

/// All of them.
pub const ALL: [Spec; 23] = [
    spec("empty", 1, true, empty),
    spec("fix-15k", 15_000, true, fix),
    spec("rand-100", 100, true, random),
    spec("rand-1k", 1_000, true, random),
    spec("rand-15k", 15_000, true, random),
    spec("rand-100k", 100_000, false, random),
    spec("rand-1M", 1_000_000, false, random),
    spec("long_busy_list", 15_000, true, long_busy_list),
    spec("frag", 15_000, true, frag),
    spec("window", 15_000, true, window),
    spec("adversary-100", 100, true, adversary),
    spec("adversary-1k", 1_000, true, adversary),
    spec("adversary-10k", 10_000, false, adversary),
    spec("adversary-100k", 100_000, false, adversary),
    spec("aligns-1k", 1_000, true, aligns),
    spec("aligns-15k", 15_000, false, aligns),
    spec("aligns-100k", 100_000, false, aligns),
    spec("rows-1k", 1_000, false, random_with_rows),
    spec("rows-15k", 15_000, false, random_with_rows),
    spec("rows-100k", 100_000, false, random_with_rows),
    spec("rows-1M", 1_000_000, false, random_with_rows),
    spec("old-mix", 15_000, true, old_mix),
    spec("old-mix-50k", 50_000, false, old_mix),
];

/// One size, with nothing else allocated.
fn empty(maker: &mut Maker, _: u64) {
    maker.rounds(20_000, |_, ops| ops.extend([alloc(0, 2, 0), free(0, 2)]));
}

/// Five pages each, replaced at random: one or two holes.
fn fix(maker: &mut Maker, n: u64) {
    maker.replace(n, 20_000, |_| (5, 0));
}

/// 1 to 256 pages each, replaced at random.
fn random(maker: &mut Maker, n: u64) {
    maker.replace(n, 20_000, |rng| (1 + rng.below(256), 0));
}

/// The same, after requests that made an index build its data for alignments.
fn random_with_rows(maker: &mut Maker, n: u64) {
    maker.replace(n, 20_000, |rng| (1 + rng.below(256), 0));
    let mut tickle = Vec::new();
    for slot in n..n + 64 {
        tickle.push(alloc(slot, 1, 10));
    }
    maker.workload.setup.extend(tickle);
}

/// 15,000 areas of two pages, every second one freed. Then larger ones, and two pages again (four operations a "pair").
fn long_busy_list(maker: &mut Maker, n: u64) {
    busy_list(maker, n);
    maker.rounds(10_000, |_, ops| ops.extend([alloc(0, 101, 0), alloc(2, 2, 0), free(0, 101), free(2, 2)]));
}

fn busy_list(maker: &mut Maker, n: u64) {
    maker.workload.setup.extend((0..n).map(|slot| alloc(slot, 2, 0)));
    maker.workload.setup.extend((0..n).step_by(2).map(|slot| free(slot, 2)));
}

/// Sizes that fit no small hole, past 7,500 small holes.
fn frag(maker: &mut Maker, n: u64) {
    maker.workload.setup.extend((0..n).map(|slot| alloc(slot, 1, 0)));
    maker.workload.setup.extend((0..n).step_by(2).map(|slot| free(slot, 1)));
    let mut sizes = [0u64; 100];
    for (at, size) in sizes.iter_mut().enumerate() {
        *size = 2 + maker.rng.below(62);
        maker.workload.setup.push(alloc(n + at as u64, *size, 0));
    }
    maker.rounds(20_000, |rng, ops| {
        let at = rng.below(100);
        let size = 2 + rng.below(62);
        ops.extend([free(n + at, sizes[at as usize]), alloc(n + at, size, 0)]);
        sizes[at as usize] = size;
    });
}

/// Areas of five pages with a hole of one page after every fourth, and a zone of 16,000 pages in their middle. An area
/// of the zone is freed, and five pages are allocated in the zone. Nothing else fits there, and the search must
/// distinguish it from thousands of holes below the zone, in it and above it.
///
/// ```text
///   |AAAAA|BBBBB|CCCCC|DDDDD|.|AAAAA|BBBBB|.....|DDDDD|.|AAAAA|BBBBB|CCCCC|DDDDD|.|
///      below the zone           |        the zone, and the fit         |
/// ```
/// The first of each four is never freed: it would merge with the page before it, and be allocated a page lower.
fn window(maker: &mut Maker, n: u64) {
    const GROUP_PAGES: u64 = 4 * 5 + 1;
    let spacer = |group: u64| n + group;
    for slot in 0..n {
        maker.workload.setup.push(alloc(slot, 5, 0));
        if slot % 4 == 3 {
            maker.workload.setup.push(alloc(spacer(slot / 4), 1, 0));
        }
    }
    // The last spacer is not freed, or it would merge with the free space above.
    maker.workload.setup.extend((0..n / 4 - 1).map(|group| free(spacer(group), 1)));
    let first = (n / 4 * GROUP_PAGES / 2 - 8_000) / GROUP_PAGES;
    let low = first * GROUP_PAGES;
    maker.workload.window = Some((low, low + 16_000));
    let groups = 16_000 / GROUP_PAGES;
    maker.rounds(20_000, |rng, ops| {
        let slot = 4 * (first + rng.below(groups)) + 1 + rng.below(3);
        ops.extend([free(slot, 5), alloc(slot, 5, 0)]);
    });
}

/// Holes of 1023 pages, each one page past a multiple of 1024. All look large enough for 512 pages aligned to 1024, but
/// none is.
fn adversary(maker: &mut Maker, n: u64) {
    for at in 0..n {
        maker.workload.setup.extend([alloc(2 * at, 1, 0), alloc(2 * at + 1, 1023, 0)]);
    }
    maker.workload.setup.push(alloc(2 * n, 1, 0));
    maker.workload.setup.extend((0..n).map(|at| free(2 * at + 1, 1023)));
    // Few pairs for each round: an index that walks all holes must finish.
    let pairs = if n > 1000 { 200 } else { 2_000 };
    maker.rounds(pairs, |_, ops| ops.extend([alloc(2 * n + 1, 512, 10), free(2 * n + 1, 512)]));
}

/// 1 to 256 pages, aligned to 1 to 1024 pages.
fn aligns(maker: &mut Maker, n: u64) {
    let pairs = if n > 10_000 { 2_000 } else { 10_000 };
    maker.replace(n, pairs, |rng| (1 + rng.below(256), rng.below(11) as u8));
}

/// The operations of the kernel's test suite, in turn, over 15,000 or 50,000 live areas (ten operations a "pair"). They
/// are one size, a list of holes to skip, stacks aligned to 16 KiB in between, and random sizes.
fn old_mix(maker: &mut Maker, n: u64) {
    busy_list(maker, n);
    maker.rounds(500, |rng, ops| {
        let size = 1 + rng.below(64);
        ops.extend([alloc(0, 101, 0), alloc(2, 2, 0), free(0, 101), free(2, 2)]);
        ops.extend([alloc(4, 5, 2), free(4, 5)]);
        ops.extend([alloc(6, size, 0), free(6, size), alloc(8, 4, 0), free(8, 4)]);
    });
}
