//! Rows of the benchmark: one pattern of pairs each, on both libraries in turn.

use super::Peers;
use super::build::counting;
use crate::sh::{Cmd, Show};
use anyhow::{Context, Result};
use std::path::Path;

/// A pattern, and its goal.
#[derive(Clone, Copy)]
pub(super) struct Row {
    pub(super) test: &'static str,
    pub(super) pages: u32,
    /// The least ratio of Linux's time to ours.
    pub(super) aim: f64,
}

const fn row(test: &'static str, pages: u32, aim: f64) -> Row {
    Row { test, pages, aim }
}

/// The goals that are set; otherwise the ratio reached before, on the processor on which it was best.
const ROWS: [Row; 11] = [
    row("fix_size", 1, 5.8),
    row("random_size", 1, 7.0),
    row("full_fit", 1, 9.16),
    row("long_busy_list", 1, 6.33),
    row("suite_mix", 1, 5.47),
    row("churn_mix", 1, 4.9),
    row("churn_fix", 1, 13.91),
    row("random_size_align", 1, 4.5),
    row("align2m_live", 1, 9.38),
    row("pair", 257, 4.0),
    row("map_ram", 1, 2.5),
];

/// Patterns that many threads run, and the numbers of threads.
const SHARED: [&str; 3] = ["fix_size", "random_size", "churn_mix"];
const THREADS: [u32; 3] = [2, 16, 64];

/// One run of one library.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) struct Run {
    pub(super) min_ns: f64,
    pub(super) median_ns: f64,
    /// Time for each pair of all threads together.
    pub(super) wall_ns: f64,
    pub(super) purges: u64,
    pub(super) pairs: f64,
    pub(super) fails: u64,
    /// Counts of the counting library.
    pub(super) counts: Counts,
}

/// Flushes and locks of a run of ours.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Counts {
    pub(super) flushes: u64,
    pub(super) locks: u64,
}

/// A row on both, once for each separate run of all rows; `None` where a library lacks the function.
pub(super) struct Measured {
    pub(super) row: Row,
    pub(super) runs: Vec<Both>,
    /// Our library, counting.
    pub(super) counted: Option<Run>,
}

/// One pattern on both libraries, in turn.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Both {
    pub(super) linux: Run,
    pub(super) ours: Run,
    /// Linux's time to ours: the median of the rounds.
    pub(super) ratio: f64,
}

/// A pattern with many threads, on both.
pub(super) struct Shared {
    pub(super) test: &'static str,
    pub(super) threads: u32,
    pub(super) linux: Run,
    pub(super) ours: Run,
    pub(super) counted: Run,
}

/// Runs each row on both in turn, `rounds` times; and all rows again, `runs` times.
pub(super) fn rows(root: &Path, peers: &Peers, runs: usize, rounds: usize, ms: u32) -> Result<Vec<Measured>> {
    let counting = counting(root)?;
    let mut measured: Vec<_> =
        ROWS.iter().map(|&row| Measured { row, runs: Vec::new(), counted: None }).collect();
    for run in 1..=runs.max(1) {
        for Measured { row, runs, counted } in &mut measured {
            let of =
                |library: &Path| one(root, peers, library, row.test, &[("pages", row.pages), ("ms", ms)]);
            let Some(both) = both(peers, rounds, |run| run.min_ns, of)? else { continue };
            if counted.is_none() {
                *counted = of(&counting)?;
            }
            let Both { linux, ours, ratio } = both;
            println!(
                "run {run}: {}: Linux {:.1} ns, ours {:.1} ns, {ratio:.2}",
                row.test, linux.min_ns, ours.min_ns
            );
            runs.push(both);
        }
    }
    Ok(measured)
}

/// Runs each pattern with each number of threads, drained by a helper.
pub(super) fn threads(root: &Path, peers: &Peers, rounds: usize, ms: u32) -> Result<Vec<Shared>> {
    let (counting, mut measured) = (counting(root)?, Vec::new());
    for test in SHARED {
        for threads in THREADS {
            let options =
                [("threads", threads), ("nodes", threads), ("cpus", threads), ("work", 1), ("ms", ms)];
            let of = |library: &Path| one(root, peers, library, test, &options);
            let Both { linux, ours, .. } =
                both(peers, rounds, |run| run.wall_ns, of)?.context("no answer")?;
            let counted = of(&counting)?.context("no answer")?;
            println!("{test}, {threads} threads: Linux {:.1} ns, ours {:.1} ns", linux.wall_ns, ours.wall_ns);
            measured.push(Shared { test, threads, linux, ours, counted });
        }
    }
    Ok(measured)
}

/// Runs both libraries in turn. Returns the median of each, and of the ratios.
fn both(
    peers: &Peers,
    rounds: usize,
    time: fn(&Run) -> f64,
    of: impl Fn(&Path) -> Result<Option<Run>>,
) -> Result<Option<Both>> {
    let mut pairs = Vec::new();
    for _ in 0..rounds.max(1) {
        pairs.extend(of(&peers.linux)?.zip(of(&peers.ours)?));
    }
    Ok(middle(&pairs, time))
}

/// Returns the median of each time and of the ratios of rounds; counts of the first.
fn middle(pairs: &[(Run, Run)], time: fn(&Run) -> f64) -> Option<Both> {
    let of_one = |side: fn(&(Run, Run)) -> Run| {
        let of = |time: fn(&Run) -> f64| median(pairs.iter().map(|pair| time(&side(pair))));
        Some(Run {
            min_ns: of(|run| run.min_ns)?,
            median_ns: of(|run| run.median_ns)?,
            wall_ns: of(|run| run.wall_ns)?,
            ..side(pairs.first()?)
        })
    };
    let ratio = median(pairs.iter().map(|(linux, ours)| time(linux) / time(ours)))?;
    Some(Both { linux: of_one(|pair| pair.0)?, ours: of_one(|pair| pair.1)?, ratio })
}

/// Returns the median of some numbers, the upper one of an even count.
pub(super) fn median(numbers: impl Iterator<Item = f64>) -> Option<f64> {
    let mut numbers: Vec<f64> = numbers.collect();
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied()
}

/// Runs a library once, on the last core if it is a single thread. Returns `None` if the program ends without a result.
fn one(
    root: &Path,
    peers: &Peers,
    library: &Path,
    test: &str,
    options: &[(&str, u32)],
) -> Result<Option<Run>> {
    let has_option = |name: &str| options.iter().any(|&(option, _)| option == name);
    let program = peers.programs.join("bench_va");
    let mut cmd = if has_option("threads") {
        Cmd::new(root, program)
    } else {
        let last = std::thread::available_parallelism().map_or(1, usize::from) - 1;
        Cmd::new(root, "taskset").args(["-c", &last.to_string()]).arg(program)
    };
    cmd = cmd.env("VA_PEER_COUNTS", "1").arg("--lib").arg(library).args(["--test", test]);
    if !has_option("nodes") {
        cmd = cmd.args(["--nodes", "2", "--cpus", "2"]);
    }
    for (name, value) in options {
        cmd = cmd.arg(format!("--{name}")).arg(value.to_string());
    }
    let mut text = String::new();
    let _ended = cmd.lines(Show::Nothing, |line| {
        text.push_str(line);
        text.push('\n');
    })?;
    Ok(parse(&text))
}

/// Parses the output of the program, and the counters of our library.
fn parse(text: &str) -> Option<Run> {
    let line = text.lines().find(|line| line.contains(",med="))?;
    let number = |name: &str| -> Option<f64> {
        line.split(',').find_map(|field| field.strip_prefix(name)?.strip_prefix('=')?.parse().ok())
    };
    let count = |name: &str| -> u64 {
        let counts = text.lines().find_map(|line| line.strip_prefix("va-peer counts: ")).unwrap_or("");
        counts
            .split(' ')
            .find_map(|word| word.strip_prefix(name)?.strip_prefix('=')?.parse().ok())
            .unwrap_or(0)
    };
    Some(Run {
        min_ns: number("min")?,
        median_ns: number("med")?,
        wall_ns: number("thr_ns")?,
        purges: number("purges")? as u64,
        pairs: count("frees") as f64,
        fails: number("fails")? as u64,
        counts: Counts {
            flushes: count("flushes"),
            locks: ["pool", "lazy", "free", "purge", "queue", "lookup", "collect"]
                .into_iter()
                .map(count)
                .sum(),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = "l.so,fix_size,t=1,nodes=2,cpus=2,pages=1,med=72.3,min=70.5,max=76.3,thr_ns=72.4,batches=127,\
                        fails=0,purges=515,free_areas=2,lock[free=0 busy=0 lazy=0]\n";

    #[test]
    fn a_line_of_the_program_is_read() {
        let run = parse(LINE).unwrap();
        assert_eq!((run.min_ns, run.median_ns, run.wall_ns, run.purges), (70.5, 72.3, 72.4, 515));
        assert_eq!((run.counts, parse("kv_init failed\n")), (Counts::default(), None));
        let counts = "frees=900 flushes=2 pool=3 lazy=4 free=5 purge=6 queue=7 lookup=8 collect=9";
        let run = parse(&format!("va-peer counts: {counts}\n{LINE}")).unwrap();
        assert_eq!((run.pairs, run.counts), (900.0, Counts { flushes: 2, locks: 42 }));
    }

    #[test]
    fn the_middle_of_rounds_is_that_of_each_time_and_of_their_ratios() {
        let of = |min_ns, median_ns| Run { min_ns, median_ns, wall_ns: 1.0, ..Run::default() };
        let pairs =
            [(of(30.0, 9.0), of(3.0, 9.0)), (of(20.0, 5.0), of(4.0, 5.0)), (of(24.0, 6.0), of(2.0, 7.0))];
        let both = middle(&pairs, |run| run.min_ns).unwrap();
        assert_eq!((both.linux.min_ns, both.linux.median_ns, both.ours.min_ns), (24.0, 6.0, 3.0));
        assert_eq!((both.ours.median_ns, both.ratio), (7.0, 10.0));
        assert_eq!(middle(&[], |run| run.min_ns), None);
    }
}
