//! Rows of the benchmark: one pattern of pairs each, on both libraries in turn.

use super::Peers;
use crate::sh::{Cmd, Show};
use anyhow::{Context, Result};
use std::path::Path;

/// A pattern, and what is asked of it.
pub(super) struct Row {
    pub(super) test: &'static str,
    pub(super) pages: u32,
    /// Nanoseconds that ours may take, on the machine of the goal.
    pub(super) goal_ns: f64,
    /// What Linux took there: on another machine the ratio counts.
    pub(super) linux_there_ns: f64,
    /// The ratio that is the bar where it is not that of the two.
    pub(super) bar: Option<f64>,
}

const fn row(test: &'static str, pages: u32, goal_ns: f64, linux_there_ns: f64, bar: Option<f64>) -> Row {
    Row { test, pages, goal_ns, linux_there_ns, bar }
}

const ROWS: [Row; 11] = [
    row("fix_size", 1, 15.0, 69.0, None),
    row("random_size", 1, 20.0, 137.0, Some(3.5)),
    row("full_fit", 1, 40.0, 160.0, None),
    row("long_busy_list", 1, 45.0, 196.0, None),
    row("suite_mix", 1, 60.0, 242.0, Some(3.5)),
    row("churn_mix", 1, 80.0, 376.0, Some(3.5)),
    row("churn_fix", 1, 60.0, 291.0, None),
    row("random_size_align", 1, 40.0, 102.0, None),
    row("align2m_live", 1, 60.0, 198.0, None),
    row("pair", 257, 20.0, 62.0, None),
    row("map_ram", 1, 12.0, 22.0, None),
];

/// Patterns that many threads run, and with how many.
const SHARED: [&str; 3] = ["fix_size", "random_size", "churn_mix"];
const THREADS: [u32; 3] = [2, 16, 64];

impl Row {
    /// How many times faster ours has to be.
    pub(super) fn bar(&self) -> f64 {
        self.bar.unwrap_or(self.linux_there_ns / self.goal_ns)
    }
}

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
    /// What the counting library tells of itself.
    pub(super) counts: Counts,
}

/// Flushes and locks of a run of ours.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Counts {
    pub(super) flushes: u64,
    pub(super) locks: u64,
}

/// A row on both; `None` where a library lacks the function.
pub(super) struct Measured {
    pub(super) row: Row,
    pub(super) runs: Option<(Run, Run)>,
    /// Ours, counting.
    pub(super) counted: Option<Run>,
}

/// A pattern with many threads, on both.
pub(super) struct Shared {
    pub(super) test: &'static str,
    pub(super) threads: u32,
    pub(super) linux: Run,
    pub(super) ours: Run,
    pub(super) counted: Run,
}

/// Each row in turn on both, `rounds` times.
pub(super) fn rows(root: &Path, peers: &Peers, rounds: usize, ms: u32) -> Result<Vec<Measured>> {
    let mut measured = Vec::new();
    for row in ROWS {
        let of = |library: &Path| one(root, peers, library, row.test, &[("pages", row.pages), ("ms", ms)]);
        let runs = both(peers, rounds, of)?;
        let counted = if runs.is_some() { of(&peers.counting)? } else { None };
        if let Some((linux, ours)) = runs {
            println!("{}: Linux {:.1} ns, ours {:.1} ns", row.test, linux.min_ns, ours.min_ns);
        }
        measured.push(Measured { row, runs, counted });
    }
    Ok(measured)
}

/// Each pattern with each number of threads, drained by a helper.
pub(super) fn threads(root: &Path, peers: &Peers, rounds: usize, ms: u32) -> Result<Vec<Shared>> {
    let mut measured = Vec::new();
    for test in SHARED {
        for threads in THREADS {
            let options =
                [("threads", threads), ("nodes", threads), ("cpus", threads), ("work", 1), ("ms", ms)];
            let of = |library: &Path| one(root, peers, library, test, &options);
            let (linux, ours) = both(peers, rounds, of)?.context("no answer")?;
            let counted = of(&peers.counting)?.context("no answer")?;
            println!("{test}, {threads} threads: Linux {:.1} ns, ours {:.1} ns", linux.wall_ns, ours.wall_ns);
            measured.push(Shared { test, threads, linux, ours, counted });
        }
    }
    Ok(measured)
}

/// Both libraries in turn; the best of each.
fn both(
    peers: &Peers,
    rounds: usize,
    of: impl Fn(&Path) -> Result<Option<Run>>,
) -> Result<Option<(Run, Run)>> {
    let (mut linux, mut ours) = (Vec::new(), Vec::new());
    for _ in 0..rounds.max(1) {
        linux.extend(of(&peers.linux)?);
        ours.extend(of(&peers.ours)?);
    }
    Ok(best(&linux).zip(best(&ours)))
}

/// The least of each time, the middle of medians, counts of the first.
fn best(runs: &[Run]) -> Option<Run> {
    let least = |of: fn(&Run) -> f64| runs.iter().map(of).min_by(f64::total_cmp);
    let mut medians: Vec<f64> = runs.iter().map(|run| run.median_ns).collect();
    medians.sort_by(f64::total_cmp);
    let first = runs.first()?;
    Some(Run {
        min_ns: least(|run| run.min_ns)?,
        median_ns: medians[medians.len() / 2],
        wall_ns: least(|run| run.wall_ns)?,
        ..*first
    })
}

/// One run, on the last core if it is a single thread; `None` if the program ends without an answer.
fn one(
    root: &Path,
    peers: &Peers,
    library: &Path,
    test: &str,
    options: &[(&str, u32)],
) -> Result<Option<Run>> {
    let given = |name: &str| options.iter().any(|&(option, _)| option == name);
    let program = peers.programs.join("bench_va");
    let mut cmd = if given("threads") {
        Cmd::new(root, program)
    } else {
        let last = std::thread::available_parallelism().map_or(1, usize::from) - 1;
        Cmd::new(root, "taskset").args(["-c", &last.to_string()]).arg(program)
    };
    cmd = cmd.env("VA_PEER_COUNTS", "1").arg("--lib").arg(library).args(["--test", test]);
    if !given("nodes") {
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

/// Reads what the program prints, and what our library says of itself.
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
    fn the_best_of_some_runs_is_the_least_time_and_the_middle_median() {
        let of = |min_ns, median_ns| Run { min_ns, median_ns, wall_ns: median_ns, ..Run::default() };
        let best = best(&[of(3.0, 9.0), of(2.0, 5.0), of(4.0, 6.0)]).unwrap();
        assert_eq!((best.min_ns, best.median_ns, best.wall_ns), (2.0, 6.0, 5.0));
        assert!(super::best(&[]).is_none());
    }

    #[test]
    fn the_bar_is_the_ratio_of_the_goal_unless_it_is_given() {
        assert!((ROWS[0].bar() - 4.6).abs() < 1e-9);
        assert!((ROWS[1].bar() - 3.5).abs() < 1e-9);
    }
}
