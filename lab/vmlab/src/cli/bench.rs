//! `vmlab bench`: the options of the benchmarks.

use super::{Terminal, ranged};
use anyhow::Result;
use clap::Subcommand;
use std::path::PathBuf;
use va_space::NODES_LIMIT;
use vmlab_bench::{ROUNDS_MAX, index, memory, percpu, space};

#[derive(Subcommand, Debug, Clone)]
pub(super) enum Command {
    /// The index of holes: workloads from an empty space to a million areas
    #[command(after_help = "Examples:\n  \
        vmlab bench index --quick\n  \
        vmlab bench index --filter rand --indexes btree,rb-linux --out rand")]
    Index(IndexArgs),
    /// Whole spaces: pairs, failing requests, purges, many threads and the locks they wait for
    #[command(after_help = "Examples:\n  \
        vmlab bench space --quick\n  \
        vmlab bench space --kern libkvmalloc.so --kern-count libkvmalloc-count.so\n  \
        vmlab bench space --filter threads --threads 1,2,4,8,16 --out threads")]
    Space(SpaceArgs),
    /// Per-CPU memory: requests of programs, cases in which Linux is slow, and the effect of each patch of its hints
    #[command(after_help = "Examples:\n  \
        vmlab bench percpu --quick\n  \
        vmlab bench percpu --kern libkpercpu.so\n  \
        vmlab bench percpu --filter threads --threads 1,2,4,8,16 --out threads\n  \
        vmlab bench percpu --filter seed --out seed")]
    Percpu(PercpuArgs),
    /// Allocators of a process: ours, the C library's, and other installed ones
    #[command(after_help = "Examples:\n  \
        vmlab bench memory --quick\n  \
        vmlab bench memory --peer mmap --filter pair\n  \
        vmlab bench memory --peer jemalloc --peer mine=libmine.so --filter mix --out mix\n  \
        vmlab bench memory --filter mix-64K-4M --threads 1,2,4,8,16\n  \
        vmlab bench memory --thp")]
    Memory(MemoryArgs),
    /// Runs one task of `bench memory` in this process
    #[command(hide = true)]
    MemoryChild {
        /// The task, as JSON
        task: String,
    },
}

/// Options of `vmlab bench index`.
#[derive(clap::Args, Debug, Clone)]
pub(super) struct IndexArgs {
    /// Only workloads whose name contains this
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Only these contenders (see the first table's head for their names)
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    indexes: Vec<String>,
    /// Rounds, 1 to 1000
    #[arg(long, default_value_t = 15, value_parser = ranged::<usize>(1..=ROUNDS_MAX))]
    rounds: usize,
    /// Fewer and smaller workloads, three rounds
    #[arg(long, conflicts_with = "rounds")]
    quick: bool,
    /// Folder for CSV, tables and SVG: results/, unless the run is a part (--quick, --filter, --indexes), which writes
    /// no files by default
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// A shared library with the C functions ki_init, ki_alloc and ki_free, measured as `kern`
    #[arg(long, value_name = "FILE")]
    kern: Option<PathBuf>,
}

/// Options of `vmlab bench space`.
#[derive(clap::Args, Debug, Clone)]
pub(super) struct SpaceArgs {
    /// Only patterns and cases whose name contains this; those of many threads are called threads-PATTERN
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Only these contenders (see the first table's head for their names)
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    contenders: Vec<String>,
    /// Nodes of the spaces that one thread measures
    #[arg(long, value_delimiter = ',', value_name = "N", default_values_t = space::NODES,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(NODES_LIMIT)))]
    nodes: Vec<u32>,
    /// Numbers of threads
    #[arg(long, value_delimiter = ',', value_name = "N", default_values_t = space::THREADS,
        value_parser = clap::value_parser!(u32).range(1..=space::THREADS_MAX))]
    threads: Vec<u32>,
    /// Rounds, 1 to 1000
    #[arg(long, default_value_t = 15, value_parser = ranged::<usize>(1..=ROUNDS_MAX))]
    rounds: usize,
    /// Two nodes, one and two threads, three rounds
    #[arg(long, conflicts_with_all = ["rounds", "nodes", "threads"])]
    quick: bool,
    /// Folder for CSV, tables and SVG: results/, unless the run is a part (--quick, --filter, --contenders, --nodes,
    /// --threads), which writes no files by default
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// A shared library with the C functions kv_init, kv_alloc, kv_free and so on, measured as `kern`
    #[arg(long, value_name = "FILE")]
    kern: Option<PathBuf>,
    /// The same library, built to count its locks, measured as `kern-count`
    #[arg(long, value_name = "FILE")]
    kern_count: Option<PathBuf>,
}

/// Options of `vmlab bench percpu`.
#[derive(clap::Args, Debug, Clone)]
pub(super) struct PercpuArgs {
    /// Only workloads whose name contains this; what the hints are worth is called seed, zeroing zero, many threads
    /// threads, the longest pairs tail, per-CPU data of a process process
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Numbers of threads
    #[arg(long, value_delimiter = ',', value_name = "N", default_values_t = percpu::THREADS,
        value_parser = clap::value_parser!(u32).range(1..=space::THREADS_MAX))]
    threads: Vec<u32>,
    /// Rounds, 1 to 1000
    #[arg(long, default_value_t = 5, value_parser = ranged::<usize>(1..=ROUNDS_MAX))]
    rounds: usize,
    /// One round, without the workloads that take longest
    #[arg(long, conflicts_with = "rounds")]
    quick: bool,
    /// Folder for tables and CSV: results/, unless the run is a part (--quick, --filter, --threads), which
    /// writes no files by default
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// A shared library with the C functions kp_init, kp_alloc_fast, kp_free and so on, measured as `kern`
    #[arg(long, value_name = "FILE")]
    kern: Option<PathBuf>,
}

/// Options of `vmlab bench memory`.
#[derive(clap::Args, Debug, Clone)]
pub(super) struct MemoryArgs {
    /// Only workloads whose name contains this
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Rounds, 1 to 100 (some workloads take no more than two or three)
    #[arg(long, default_value_t = memory::ROUNDS, value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,
    /// Milliseconds that each is measured in a round, 1 to 10000 (mixes four times that)
    #[arg(long, default_value_t = memory::MS, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    ms: u64,
    /// The workloads of several threads alone, each with these numbers of threads
    #[arg(long, value_delimiter = ',', value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=space::THREADS_MAX))]
    threads: Vec<u32>,
    /// Only this peer beside ours (glibc, mmap, jemalloc, ...), or any library with a malloc; may be repeated
    #[arg(long, value_name = "NAME[=PATH]")]
    peer: Vec<memory::Named>,
    /// Transparent huge pages on, for peers that have an option for it
    #[arg(long)]
    thp: bool,
    /// One short round, without the peers' other settings
    #[arg(long, conflicts_with_all = ["rounds", "ms"])]
    quick: bool,
    /// Folder for CSV, tables and SVG: results/, unless the run is a part (--quick, --filter, --threads, --peer), which
    /// writes no files by default
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// Runs the benchmark.
pub(super) fn run(command: &Command) -> Result<()> {
    match command.clone() {
        Command::Index(IndexArgs { filter, indexes, rounds, quick, out, kern }) => {
            index::run(&index::Options { filter, indexes, rounds, quick, out, kern }, &mut Terminal)
        }
        Command::Space(args) => {
            let SpaceArgs { filter, contenders, nodes, threads, rounds, quick, out, kern, kern_count } = args;
            let options =
                space::Options { filter, contenders, nodes, threads, rounds, quick, out, kern, kern_count };
            space::run(&options, &mut Terminal)
        }
        Command::Percpu(PercpuArgs { filter, threads, rounds, quick, out, kern }) => {
            percpu::run(&percpu::Options { filter, threads, rounds, quick, out, kern }, &mut Terminal)
        }
        Command::Memory(args) => {
            let MemoryArgs { filter, rounds, ms, threads, peer, thp, quick, out } = args;
            let options = memory::Options { filter, rounds, ms, threads, peer, thp, quick, out };
            memory::run(&options, &mut Terminal)
        }
        Command::MemoryChild { task } => memory::child::main(&task),
    }
}
