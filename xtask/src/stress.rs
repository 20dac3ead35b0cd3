//! Random programs of malloc, realloc, threads and forks under the preload, for as long as one likes: `cargo xtask
//! stress`.
//!
//! The program is `crates/vmalloc-preload/tests/c/stress.c`, in C, the language of the preload's users. Every
//! allocation that it holds records its size, and a byte of it on every page. At its end it frees everything, trims,
//! and checks the resident memory. Its rounds use the configurations of users in turn, each with its own seed, which is
//! printed: the same seed runs the same program again.

use crate::count::Tests;
use crate::install;
use crate::machine::{commit, machine};
use crate::sh::{Cmd, Show};
use anyhow::{Context, Result, bail};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Configurations, used in turn.
const CONFS: [&str; 8] = [
    "threshold:128K",
    "threshold:4K",
    "hardened:true",
    "budget:0,threshold:16K",
    "decay:50ms,background_thread:true,budget:32M",
    "decay:50ms,budget:64M",
    "huge:never,threshold:64K",
    "huge:auto,threshold:32K",
];

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Minutes for all rounds together
    #[arg(long, default_value_t = 1.0)]
    minutes: f64,
    /// Seconds of a round
    #[arg(long, default_value_t = 10.0)]
    round: f64,
    /// The seed of the first round; the next have the next
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Write results/stress.md
    #[arg(long)]
    out: bool,
}

/// Bytes that a program which freed everything may have of ours: buffers of stdio, and the like.
const LIVE_BYTES_MAX: u64 = 1 << 20;

/// The sum of the results of rounds with one method.
#[derive(Clone, Copy, Default)]
struct Sum {
    rounds: u64,
    operations: u64,
    threads: u64,
    forks: u64,
    served: u64,
    kib_more: i64,
    /// Bytes of ours that were in hands at the end, which are few: everything was freed.
    live: u64,
}

/// `cargo xtask stress`.
pub(crate) fn main(root: &Path, args: &Args) -> Result<()> {
    let (all, round) = (args.minutes * 60.0, args.round);
    if !(round.is_finite()
        && (0.1..=3600.0).contains(&round)
        && all.is_finite()
        && (0.0..=1e6).contains(&all))
    {
        bail!("a round has 0.1 to 3600 seconds, and all of them a number of minutes");
    }
    let sums = rounds(root, args.seed, Duration::from_secs_f64(all), Duration::from_secs_f64(round))?;
    let page = page(root, args, &sums);
    print!("{page}");
    if args.out {
        fs::write(root.join("results/stress.md"), page)?;
    }
    Ok(())
}

/// The step of CI: every way once, for two seconds. What `install` built is there.
pub(crate) fn step(root: &Path, _: &mut Tests) -> Result<()> {
    let round = Duration::from_secs(2);
    rounds(root, 1, round * CONFS.len() as u32, round).map(|_| ())
}

fn rounds(root: &Path, seed: u64, all: Duration, round: Duration) -> Result<[Sum; CONFS.len()]> {
    let (program, library) = (compile(root)?, install::preload(root)?);
    let (began, mut sums, mut seed) = (Instant::now(), [Sum::default(); CONFS.len()], seed);
    loop {
        for (conf, sum) in CONFS.iter().zip(&mut sums) {
            if sum.rounds > 0 && began.elapsed() >= all {
                return Ok(sums);
            }
            let milliseconds = round.as_millis().to_string();
            let output = Cmd::new(root, &program)
                .args([&seed.to_string(), &milliseconds])
                .env("LD_PRELOAD", &library)
                .env("VMALLOC_CONF", format!("{conf},stats:true"))
                .read()
                .with_context(|| format!("seed {seed} under {conf} fails"))?;
            let one =
                parse_round(&output).with_context(|| format!("seed {seed} under {conf} says {output:?}"))?;
            if one.served == 0 {
                bail!("seed {seed} under {conf}: the preload served nothing");
            }
            if one.live > LIVE_BYTES_MAX {
                bail!("seed {seed} under {conf}: all was freed, and {} bytes are live", one.live);
            }
            println!("stress: seed {seed} {conf}: {}", output.lines().next().unwrap_or_default());
            *sum = sum.and(one);
            seed += 1;
        }
    }
}

/// Compiles the program.
fn compile(root: &Path) -> Result<PathBuf> {
    let dir = root.join("target/stress");
    fs::create_dir_all(&dir)?;
    let to = dir.join("stress");
    Cmd::new(root, "cc")
        .args(["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-O2", "-pthread", "-fno-builtin"])
        .args(["-Wno-alloc-size-larger-than", "crates/vmalloc-preload/tests/c/stress.c", "-o"])
        .arg(&to)
        .run(Show::Failure)?;
    Ok(to)
}

impl Sum {
    fn and(self, other: Self) -> Self {
        Self {
            rounds: self.rounds + other.rounds,
            operations: self.operations + other.operations,
            threads: self.threads + other.threads,
            forks: self.forks + other.forks,
            served: self.served + other.served,
            kib_more: self.kib_more.max(other.kib_more),
            live: self.live.max(other.live),
        }
    }
}

/// Parses the output of a round, and that of the preload at its end. Children end by `_exit`, so there is one line of
/// each.
fn parse_round(output: &str) -> Option<Sum> {
    let line = output.lines().find(|line| line.starts_with("operations "))?;
    let number = |line: &str, key: &str| {
        let mut words = line.split_ascii_whitespace().skip_while(|word| *word != key).skip(1);
        words.next()?.parse::<u64>().ok()
    };
    let ours = output.lines().find(|line| line.starts_with("vmalloc: served "))?;
    Some(Sum {
        rounds: 1,
        operations: number(line, "operations")?,
        threads: number(line, "threads")?,
        forks: number(line, "forks")?,
        served: number(ours, "served")?,
        live: number(ours, "live")?,
        kib_more: number(line, "after")? as i64 - number(line, "before")? as i64,
    })
}

fn page(root: &Path, args: &Args, sums: &[Sum]) -> String {
    let mut page = format!(
        "# Stress under the preload\n\nRandom programs of malloc, calloc, realloc, posix_memalign, free, threads that come and go, and forks \
         (`crates/vmalloc-preload/tests/c/stress.c`).\nEvery round ended well: no piece changed in other hands, none was refused, nobody waited for \
         himself, and after all was freed and trimmed what was\nresident was within 16 MiB of what it was (but in the hardened profile, which keeps some \
         20 KiB of tags for each place that it ever drew), and less than a MiB was in anybody's hands.\n\n`cargo xtask stress --minutes {} --round {} \
         --seed {} --out` at {} on {}.\n\n| VMALLOC_CONF | rounds | operations | threads | forks | served by ours | most resident after trim beyond \
         the start, KiB |\n|---|---:|---:|---:|---:|---:|---:|\n",
        args.minutes,
        args.round,
        args.seed,
        commit(root),
        machine(root)
    );
    for (conf, sum) in CONFS.iter().zip(sums) {
        let Sum { rounds, operations, threads, forks, served, kib_more, live: _ } = sum;
        // Writing to a text cannot fail.
        let _ok = writeln!(
            page,
            "| `{conf}` | {rounds} | {operations} | {threads} | {forks} | {served} | {kib_more} |"
        );
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_round_printed_is_read_and_what_lacks_a_number_is_not() {
        let output = "operations 12 threads 3 forks 2 resident before 100 after 90 KiB\nvmalloc: served 7 freed 7; bytes live 4096 kept 0\n";
        let sum = parse_round(output).unwrap();
        assert_eq!((sum.operations, sum.threads, sum.forks, sum.served, sum.kib_more), (12, 3, 2, 7, -10));
        assert_eq!(sum.live, 4096);
        assert!(parse_round(&output.replace("after 90", "after x")).is_none());
        assert!(parse_round(&output.replace("live 4096", "live")).is_none());
        assert!(parse_round("operations 12 threads 3 forks 2 resident before 1 after 2\n").is_none());
        let both = sum.and(Sum { kib_more: 5, ..sum });
        assert_eq!((both.rounds, both.served, both.kib_more), (2, 14, 5));
    }
}
