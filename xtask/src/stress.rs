//! Random programs of malloc, realloc, threads and forks under the preload, for a chosen time: `cargo xtask stress`.
//!
//! The program is `process/vmalloc-preload/tests/c/stress.c`, in C, the language of the preload's users. Every
//! allocation that it holds records its size, and a byte of it on every page. At its end it frees everything, trims,
//! and checks the resident memory. A round has a configuration of the preload and a kind of conditions: none, memory
//! limits, small stacks, a filter of system calls, or many forks at once. Each round has its own seed, which is
//! printed: the same seed runs the same program again.

#[path = "../../process/vmalloc/tests/group/mod.rs"]
mod group;

use crate::count::Tests;
use crate::machine::{commit, machine};
use crate::sh::{Cmd, Show};
use crate::{install, not_run};
use anyhow::{Context, Result, bail};
use group::Group;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The kinds of conditions that `stress.c` names.
const KINDS: [&str; 5] = ["plain", LIMITS, "stacks", SECCOMP, "forks"];
const LIMITS: &str = "limits";
const SECCOMP: &str = "seccomp";
/// The memory limit of the control group of `limits`, in bytes.
const GROUP_BYTES: usize = 640 << 20;

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
    /// The seed of the first round; each later round has the next number
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Write results/stress.md
    #[arg(long)]
    out: bool,
}

/// The most bytes of ours that a program may have after it freed everything: buffers of stdio, and the like.
const LIVE_BYTES_MAX: u64 = 1 << 20;

/// A kind, a configuration, and the sum of their rounds.
struct Pair {
    kind: &'static str,
    conf: &'static str,
    sum: Sum,
}

/// Returns all pairs. The first ones, as many as there are configurations, have each of these and each kind.
fn pairs() -> Vec<Pair> {
    let turns = 0..KINDS.len();
    turns
        .flat_map(|turn| {
            let kinds = KINDS.iter().cycle().skip(turn);
            CONFS.iter().zip(kinds).map(|(conf, kind)| Pair { kind, conf, sum: Sum::default() })
        })
        .collect()
}

/// The sum of the results of rounds.
#[derive(Clone, Copy, Default)]
struct Sum {
    rounds: u64,
    operations: u64,
    threads: u64,
    forks: u64,
    /// Requests of the program that failed because of a limit.
    failed: u64,
    served: u64,
    kib_more: i64,
    /// Bytes of ours that were allocated at the end, which are few: everything was freed. 0 under a filter, where the
    /// preload reports only the requests that it served.
    live: u64,
}

/// Runs `cargo xtask stress`.
pub(crate) fn main(root: &Path, args: &Args) -> Result<()> {
    let (all, round) = (args.minutes * 60.0, args.round);
    if !(round.is_finite()
        && (0.1..=3600.0).contains(&round)
        && all.is_finite()
        && (0.0..=1e6).contains(&all))
    {
        bail!("a round has 0.1 to 3600 seconds, and all of them a number of minutes");
    }
    let group = limited(root);
    let is_grouped = group.is_some();
    let (all, round) = (Duration::from_secs_f64(all), Duration::from_secs_f64(round));
    let pairs = rounds(root, args.seed, all, round, group)?;
    let page = page(root, args, &pairs, is_grouped);
    print!("{page}");
    if args.out {
        fs::write(root.join("results/stress.md"), page)?;
    }
    Ok(())
}

/// Runs the step of CI: every configuration once, and every kind, for two seconds. It uses the output of `install`.
pub(crate) fn step(root: &Path, _: &mut Tests) -> Result<()> {
    rounds(root, 1, Duration::ZERO, Duration::from_secs(2), limited(root)).map(|_| ())
}

/// Runs rounds for a time, but each configuration and each kind at least once. Returns the pairs that had a round.
fn rounds(
    root: &Path,
    mut seed: u64,
    all: Duration,
    round: Duration,
    group: Option<Group>,
) -> Result<Vec<Pair>> {
    let (program, library) = (compile(root)?, install::preload(root)?);
    let (began, mut pairs) = (Instant::now(), pairs());
    let mut index = 0;
    while index < CONFS.len() || began.elapsed() < all {
        let count = pairs.len();
        let Pair { kind, conf, sum } = &mut pairs[index % count];
        let group = group.as_ref().filter(|_| *kind == LIMITS);
        let output = command(root, &program, group)
            .args([&seed.to_string(), &round.as_millis().to_string(), *kind])
            .env("LD_PRELOAD", &library)
            .env("VMALLOC_CONF", format!("{conf},stats:true"))
            .read()
            .with_context(|| format!("seed {seed} of {kind} under {conf} fails"))?;
        let one = parse_round(kind, &output)
            .with_context(|| format!("seed {seed} of {kind} under {conf} says {output:?}"))?;
        if one.served == 0 {
            bail!("seed {seed} of {kind} under {conf}: the preload served nothing");
        }
        if one.live > LIVE_BYTES_MAX {
            bail!("seed {seed} of {kind} under {conf}: all was freed, and {} bytes are live", one.live);
        }
        println!("stress: seed {seed} {kind} {conf}: {}", output.lines().next().unwrap_or_default());
        *sum = sum.and(one);
        (seed, index) = (seed + 1, index + 1);
    }
    pairs.retain(|pair| pair.sum.rounds > 0);
    Ok(pairs)
}

/// Makes a control group with a limit of memory, or reports that this process may not.
fn limited(root: &Path) -> Option<Group> {
    let group = Group::new("stress", GROUP_BYTES);
    if group.is_none() {
        not_run::add(root, "stress in a control group: none with a limit of memory can be made here");
    }
    group
}

/// Returns a command that runs the program, in a group if there is one.
fn command(root: &Path, program: &Path, group: Option<&Group>) -> Cmd {
    let Some(group) = group else { return Cmd::new(root, program) };
    Cmd::new(root, "sh").args(["-c", "echo $$ >\"$0\" && exec \"$@\""]).arg(group.processes()).arg(program)
}

/// Compiles the program.
fn compile(root: &Path) -> Result<PathBuf> {
    let dir = root.join("target/stress");
    fs::create_dir_all(&dir)?;
    let to = dir.join("stress");
    Cmd::new(root, "cc")
        .args(["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-O2", "-pthread", "-fno-builtin"])
        .args(["-Wno-alloc-size-larger-than", "process/vmalloc-preload/tests/c/stress.c", "-o"])
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
            failed: self.failed + other.failed,
            served: self.served + other.served,
            kib_more: self.kib_more.max(other.kib_more),
            live: self.live.max(other.live),
        }
    }
}

/// Parses the output of a round, and that of the preload at its end. Children end by `_exit`, so there is one line of
/// each.
fn parse_round(kind: &str, output: &str) -> Option<Sum> {
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
        failed: number(line, "failed")?,
        served: number(ours, "served")?,
        live: if kind == SECCOMP { 0 } else { number(ours, "live")? },
        kib_more: number(line, "after")? as i64 - number(line, "before")? as i64,
    })
}

fn page(root: &Path, args: &Args, pairs: &[Pair], is_grouped: bool) -> String {
    let group = if is_grouped {
        format!("A control group limits its memory to {} MiB throughout.", GROUP_BYTES >> 20)
    } else {
        "No control group could be made here.".to_string()
    };
    let mut page = format!(
        "# Stress under the preload\n\n\
         Random programs of malloc, calloc, realloc, posix_memalign, free, threads that come and go, and forks\n\
         (`process/vmalloc-preload/tests/c/stress.c`). Every round passed these checks:\n\n\
         - No process crashed, stopped making progress or found changed contents in its allocations.\n\
         - A request failed only after the program had limited its addresses. The column `failed` counts these.\n\
         - After everything was freed and trimmed, the resident memory was within 16 MiB of that at the start. The\n  \
         limit of `limits` is 48 MiB: addresses that are released for a limit keep a word for each page. The hardened\n  \
         profile is not checked for this: it has some 20 KiB of tags for each area that it ever placed.\n\
         - Less than 1 MiB of the preload's memory was still allocated at the end. Under a filter of system calls the\n  \
         preload does not report this number.\n\n\
         The kinds of conditions:\n\n\
         - `plain`: none.\n\
         - `limits`: `RLIMIT_AS` is set to 400 MiB while threads run. Later it is lowered to about half of the resident\n  \
         memory. After everything was freed, 8 MiB are available under this limit, and 64 MiB under the first.\n  \
         {group}\n\
         - `stacks`: each thread has the smallest stack that glibc accepts, 16 KiB on x86-64, and forks on it. A timer\n  \
         interrupts it, and the handler runs on an alternate stack.\n\
         - `seccomp`: a filter kills the process at each system call that neither glibc's malloc nor the program needs.\n  \
         In half of the rounds it is installed for all threads at once while they run. In the others the first thread\n  \
         installs it after some allocations, and the other threads inherit it.\n\
         - `forks`: three threads fork while four allocate, and children fork for two more generations, with at most 16\n  \
         processes besides the first. Some start a program by `vfork` or `posix_spawn`, whose signal handler forks.\n\n\
         Operations, threads and forks of `forks` do not include those of the started programs.\n\n\
         `cargo xtask stress --minutes {} --round {} --seed {} --out` at {} on {}.\n\n\
         | kind | VMALLOC_CONF | rounds | operations | threads | forks | failed | served by the preload | most resident \
         after trim beyond the start, KiB |\n|---|---|---:|---:|---:|---:|---:|---:|---:|\n",
        args.minutes,
        args.round,
        args.seed,
        commit(root),
        machine(root)
    );
    for kind in KINDS {
        for Pair { kind, conf, sum } in pairs.iter().filter(|pair| pair.kind == kind) {
            let Sum { rounds, operations, threads, forks, failed, served, kib_more, live: _ } = sum;
            // Writing to a text cannot fail.
            let _ok = writeln!(
                page,
                "| {kind} | `{conf}` | {rounds} | {operations} | {threads} | {forks} | {failed} | {served} | {kib_more} |"
            );
        }
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_output_of_a_round_is_parsed_and_one_that_lacks_a_number_is_not() {
        let output = "operations 12 threads 3 forks 2 failed 1 resident before 100 after 90 KiB\n\
                      vmalloc: served 7 freed 7; bytes live 4096 kept 0\n";
        let sum = parse_round("plain", output).unwrap();
        assert_eq!((sum.operations, sum.threads, sum.forks, sum.served, sum.kib_more), (12, 3, 2, 7, -10));
        assert_eq!((sum.live, sum.failed), (4096, 1));
        assert!(parse_round("plain", &output.replace("after 90", "after x")).is_none());
        assert!(parse_round("plain", &output.replace("failed 1", "")).is_none());
        let short = output.replace(" freed 7; bytes live 4096 kept 0", "");
        assert!(parse_round("plain", &short).is_none());
        assert_eq!(parse_round(SECCOMP, &short).unwrap().live, 0);
        assert!(parse_round("plain", output.lines().next().unwrap()).is_none());
        let both = sum.and(Sum { kib_more: 5, ..sum });
        assert_eq!((both.rounds, both.served, both.kib_more, both.failed), (2, 14, 5, 2));
    }

    #[test]
    fn pairs_are_distinct_and_the_first_have_every_kind() {
        let pairs = pairs();
        for (index, pair) in pairs.iter().enumerate() {
            assert!(pairs[..index].iter().all(|other| (other.kind, other.conf) != (pair.kind, pair.conf)));
        }
        assert_eq!(pairs.len(), KINDS.len() * CONFS.len());
        assert!(KINDS.iter().all(|kind| pairs[..CONFS.len()].iter().any(|pair| pair.kind == *kind)));
    }
}
