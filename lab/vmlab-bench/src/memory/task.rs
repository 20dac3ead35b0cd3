//! The task of a child, and its result. Both are passed as JSON.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// The allocator that a child uses.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub enum How {
    /// Our allocator, which may cache this many bytes; `None` for the default.
    Vmalloc { cache_bytes_max: Option<usize>, ways: Ways },
    /// Ours behind `LargeAlloc<System>`, with default options.
    LargeAlloc,
    /// `malloc` and related functions: the C library's, or those of a library loaded before it.
    Malloc,
    /// A mapping for each allocation.
    Mmap,
}

/// Additional options of our allocator.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ways {
    Default,
    /// No huge pages.
    SmallPages,
    /// A guard page after each area.
    Guards,
}

/// The pages that are written between an allocation and its free.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Touch {
    /// The first byte.
    Byte,
    /// A byte of each page.
    Pages,
    /// A byte of one page in four.
    Sparse,
}

/// The sizes of a growth.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Growth {
    /// Each one and a half times the one before.
    Half,
    /// Each twice the one before.
    Double,
    /// Each a MiB more than the one before, and after each a small allocation, which stays until the end.
    Steps,
}

/// The repeated work.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    /// Allocates, touches and frees one size.
    Pair { bytes: usize },
    /// Frees one of `live` allocations at random, and allocates and touches another, sizes log-uniform.
    Mix { low: usize, high: usize, live: usize },
    /// A thread allocates and touches, another frees.
    Flow { bytes: usize },
    /// Each thread puts an allocation into one of `live` slots at random, and frees the previous one there, of any
    /// thread; sizes log-uniform.
    Exchange { low: usize, high: usize, live: usize },
    /// Allocates and touches `count`, frees all, and idles.
    Burst { count: usize, bytes: usize, idle_ms: u64 },
    /// Allocates zeros, touches and frees.
    Calloc { bytes: usize },
    /// Writes zeros to one resident allocation: the baseline of `Calloc`.
    Memset { bytes: usize },
    /// Grows an allocation until it has `high` bytes, touches the new bytes, and frees it.
    Grow { low: usize, high: usize, growth: Growth },
    /// Allocates and touches `count`, frees every second one, and trims.
    Trim { count: usize, bytes: usize },
    /// As `Pair`, aligned.
    Aligned { bytes: usize, align: usize },
    /// Allocates `count`, touches none, and frees them after the parent has counted the mappings.
    Many { count: usize, bytes: usize },
}

/// One run of one child.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Task {
    pub how: How,
    /// The library that `malloc` must come from.
    pub library: Option<PathBuf>,
    pub work: Work,
    pub touch: Touch,
    pub threads: usize,
    /// Milliseconds to measure; at least one repetition runs.
    pub ms: u64,
    pub seed: u64,
    /// Operations of each thread over which memory is averaged at the end, the same for all contenders; 0 for none.
    pub same_ops: u64,
}

/// The measurements of a child.
#[derive(Serialize, Deserialize, Clone, Copy, PartialEq, Debug)]
pub struct Measured {
    pub ops: u64,
    /// The sum of all threads.
    pub cpu_ns: u64,
    pub wall_ns: u64,
    /// From another stretch of the same work, timed call by call.
    pub p99_ns: u64,
    pub faults: u64,
    /// Mean resident bytes over the operations that are the same for all.
    pub rss_same: Option<f64>,
}

/// The last line of a child that did not fail.
#[derive(Serialize, Deserialize, Clone, PartialEq, Debug)]
pub enum ChildReport {
    Measured(Measured),
    /// The allocator cannot allocate the memory.
    AllocFailed,
}

/// The contenders that run a workload.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scope {
    /// Each allocator at its defaults.
    Defaults,
    /// The same, and plain mappings.
    WithMmap,
    /// The same, and glibc with the two tunables that make it cache large memory.
    WithTuned,
    /// The same, and allocators at other settings.
    WithKnobs,
    /// Ours and plain mappings.
    OursAndMmap,
    /// Ours and glibc, which have a call that trims.
    OursAndGlibc,
    /// Ours with guards.
    Guarded,
    /// The C library alone: no allocator is compared.
    Baseline,
}

/// A workload by name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Spec {
    pub name: String,
    pub work: Work,
    pub touch: Touch,
    pub threads: usize,
    pub scope: Scope,
    /// Factor on `--ms`: longer for workloads whose memory settles slowly.
    pub times_ms: u64,
    /// The most rounds.
    pub rounds_max: usize,
}

impl Spec {
    /// Returns the operations over which memory is averaged: few if they may take milliseconds.
    pub fn same_ops(&self) -> u64 {
        match self.work {
            Work::Mix { .. } if self.scope != Scope::WithKnobs => 0,
            Work::Mix { .. } if self.threads > 2 => 16,
            Work::Mix { live, .. } => 24 * live as u64,
            _ => 0,
        }
    }
}

/// Formats bytes in few characters.
fn size(bytes: usize) -> String {
    if bytes >= MIB { format!("{}M", bytes / MIB) } else { format!("{}K", bytes / KIB) }
}

/// Sizes of pairs.
const PAIRS: [usize; 6] = [64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB, 64 * MIB];
/// Least and most bytes, and the number of live allocations.
pub const MIXES: [(usize, usize, usize); 3] =
    [(64 * KIB, 4 * MIB, 16), (MIB, 16 * MIB, 8), (64 * KIB, 64 * MIB, 4)];
/// Threads of the crowd.
pub const CROWD: usize = 64;
/// Sizes of zeroed allocations.
const CALLOCS: [usize; 3] = [256 * KIB, 4 * MIB, 64 * MIB];
/// Sizes that are passed between threads.
const FLOWS: [usize; 3] = [64 * KIB, MIB, 16 * MIB];
/// The size that is passed between threads and hardly touched.
const HARDLY: usize = 256 * KIB;
/// Least and most bytes that threads exchange, and the number of slots.
const EXCHANGED: (usize, usize, usize) = (64 * KIB, MIB, 128);
/// Sizes that allocations grow to, and how.
const GROWN: [(usize, Growth); 4] = [
    (16 * MIB, Growth::Half),
    (256 * MIB, Growth::Half),
    (1024 * MIB, Growth::Double),
    (256 * MIB, Growth::Steps),
];
/// Least and most bytes that are touched sparsely, and the number of live allocations.
const SPARSE: (usize, usize, usize) = (128 * KIB, 2 * MIB, 4);
/// Number of allocations, and their bytes, of which every second one is freed before a trim.
const TRIMMED: (usize, usize) = (4096, 260 * KIB);
/// The largest size of a pair that is compared with a mapping.
const MAPPED_MAX: usize = 16 * MIB;
/// Number of areas with a guard each.
const GUARDED: usize = 1_000_000;
const ALL_ROUNDS: usize = usize::MAX;

/// Returns a mix's name, without touch and threads.
pub fn mix_name((low, high, _): (usize, usize, usize)) -> String {
    format!("mix-{}-{}", size(low), size(high))
}

/// Returns the workloads of two threads that any number can run, each with these numbers.
pub fn of_threads(counts: &[u32]) -> Vec<Spec> {
    let shared =
        all().into_iter().filter(|spec| spec.threads == 2 && !matches!(spec.work, Work::Flow { .. }));
    let with = |spec: &Spec, threads: u32| {
        let name = format!("{}-{threads}t", spec.name.strip_suffix("-2t").unwrap_or(&spec.name));
        Spec { name, threads: threads as usize, scope: Scope::WithTuned, ..spec.clone() }
    };
    shared
        .flat_map(|spec| counts.iter().map(move |&threads| with(&spec, threads)).collect::<Vec<_>>())
        .collect()
}

/// Returns all workloads, in the order of the tables.
pub fn all() -> Vec<Spec> {
    let mut all = Vec::new();
    let mut add = |name: String, work, touch, threads, scope, times_ms, rounds_max| {
        all.push(Spec { name, work, touch, threads, scope, times_ms, rounds_max });
    };
    for bytes in PAIRS {
        let work = Work::Pair { bytes };
        let name = format!("pair-{}", size(bytes));
        add(format!("{name}-byte-1t"), work, Touch::Byte, 1, Scope::Defaults, 1, ALL_ROUNDS);
        let scope = if bytes <= MAPPED_MAX { Scope::WithMmap } else { Scope::Defaults };
        add(format!("{name}-pages-1t"), work, Touch::Pages, 1, scope, 1, ALL_ROUNDS);
        if bytes <= MAPPED_MAX {
            add(format!("{name}-pages-2t"), work, Touch::Pages, 2, Scope::OursAndMmap, 1, ALL_ROUNDS);
        }
    }
    for mix in MIXES {
        let (low, high, live) = mix;
        let work = Work::Mix { low, high, live };
        for threads in [1, 2] {
            let name = mix_name(mix);
            add(format!("{name}-pages-{threads}t"), work, Touch::Pages, threads, Scope::WithKnobs, 3, 3);
            add(
                format!("{name}-byte-{threads}t"),
                work,
                Touch::Byte,
                threads,
                Scope::Defaults,
                1,
                ALL_ROUNDS,
            );
        }
    }
    for bytes in FLOWS {
        let work = Work::Flow { bytes };
        add(format!("flow-{}", size(bytes)), work, Touch::Pages, 2, Scope::Defaults, 1, ALL_ROUNDS);
    }
    let work = Work::Flow { bytes: HARDLY };
    add(format!("flow-{}-byte", size(HARDLY)), work, Touch::Byte, 2, Scope::WithTuned, 2, ALL_ROUNDS);
    let (low, high, live) = EXCHANGED;
    let work = Work::Exchange { low, high, live };
    let name = format!("exchange-{}-{}-byte", size(low), size(high));
    add(name, work, Touch::Byte, 2, Scope::WithTuned, 4, ALL_ROUNDS);
    let (low, high, live) = SPARSE;
    let work = Work::Mix { low, high, live };
    let name = format!("sparse-{}-{}", size(low), size(high));
    add(name, work, Touch::Sparse, 1, Scope::WithTuned, 4, ALL_ROUNDS);
    let work = Work::Mix { low: 64 * KIB, high: 4 * MIB, live: 4 };
    add(format!("crowd-{CROWD}t"), work, Touch::Pages, CROWD, Scope::WithKnobs, 3, 3);
    let work = Work::Burst { count: 256, bytes: MIB, idle_ms: 1500 };
    add("burst-256x1M".to_string(), work, Touch::Pages, 1, Scope::Defaults, 1, 2);
    for bytes in CALLOCS {
        let name = size(bytes);
        add(format!("memset-{name}"), Work::Memset { bytes }, Touch::Byte, 1, Scope::Baseline, 1, ALL_ROUNDS);
        add(format!("calloc-{name}"), Work::Calloc { bytes }, Touch::Byte, 1, Scope::Defaults, 1, ALL_ROUNDS);
    }
    for (high, growth) in GROWN {
        let work = Work::Grow { low: 64 * KIB, high, growth };
        let name = match growth {
            Growth::Half => "grow",
            Growth::Double => "double",
            Growth::Steps => "steps",
        };
        add(format!("{name}-{}", size(high)), work, Touch::Pages, 1, Scope::WithTuned, 1, ALL_ROUNDS);
    }
    let (count, bytes) = TRIMMED;
    let name = format!("trim-{count}x{}", size(bytes));
    add(name, Work::Trim { count, bytes }, Touch::Pages, 1, Scope::OursAndGlibc, 1, 3);
    let work = Work::Aligned { bytes: 2 * MIB, align: 2 * MIB };
    add("aligned-2M".to_string(), work, Touch::Byte, 1, Scope::Defaults, 1, ALL_ROUNDS);
    let work = Work::Many { count: GUARDED, bytes: 4 * KIB };
    add("guarded-1000000".to_string(), work, Touch::Byte, 1, Scope::Guarded, 1, 2);
    all
}
