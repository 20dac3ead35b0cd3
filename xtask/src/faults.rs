//! Faults of the system under every entry point of the crates of a process: `cargo xtask faults`.
//!
//! The tests are `process/vmalloc-capi/tests/faults`, a tracer and the programs that it traces, and with the same tracer
//! `process/vmalloc-preload/tests/faults`. In CI they try a sample. Here they try all faults, and a page in `results/` for
//! each has what they count.

use crate::count::Tests;
use crate::machine::{commit, duration, machine};
use crate::sh::{Cmd, Show};
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::time::Instant;

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Only the tests whose name contains this
    #[arg(long)]
    only: Option<String>,
    /// Only those of this crate
    #[arg(long = "crate")]
    krate: Option<String>,
    /// Write results/faults.md and results/faults_preload.md
    #[arg(long)]
    out: bool,
}

/// The outcomes of faults of one kind: faults, faults that no caller saw, errors, documented ends of the program.
type Counts = [u64; 4];

/// Tests of one crate.
struct Part {
    krate: &'static str,
    page: &'static str,
    /// The programs.
    intro: &'static str,
    /// There are faults other than those of calls.
    others: bool,
}

const PARTS: [Part; 2] = [
    Part {
        krate: "vmalloc-capi",
        page: "results/faults.md",
        intro: "# Faults of the system\n\n\
                Each program of `process/vmalloc-capi/tests/faults/work.rs` and `c.rs` calls the entry points of one crate or\n\
                profile.\n",
        others: true,
    },
    Part {
        krate: "vmalloc-preload",
        page: "results/faults_preload.md",
        intro: "# Faults of the system under the preload\n\n\
                Each program of `process/vmalloc-preload/tests/faults/work.rs` runs with the library preloaded, and calls all\n\
                of its functions of `malloc`, small sizes and large. So the calls of the C library's malloc fail, too.\n",
        others: false,
    },
];

/// Runs `cargo xtask faults`.
pub(crate) fn main(root: &Path, args: &Args) -> Result<()> {
    let mut tests = Tests::default();
    let wanted: Vec<_> =
        PARTS.iter().filter(|part| args.krate.as_ref().is_none_or(|name| name == part.krate)).collect();
    if wanted.is_empty() {
        bail!("there are faults of: {}", PARTS.map(|part| part.krate).join(", "));
    }
    for part in wanted {
        let page = run(root, part, args.only.as_deref(), &mut tests)?;
        print!("{page}");
        if args.out {
            fs::write(root.join(part.page), page)?;
        }
    }
    Ok(())
}

/// Runs the step of `--full`.
pub(crate) fn step(root: &Path, tests: &mut Tests) -> Result<()> {
    PARTS.iter().try_for_each(|part| run(root, part, None, tests).map(|_| ()))
}

fn run(root: &Path, part: &Part, only: Option<&str>, tests: &mut Tests) -> Result<String> {
    let started = Instant::now();
    let cmd = Cmd::cargo(root)
        .env("VMALLOC_FAULTS", "whole")
        .args(["test", "--quiet", "--locked", "-p", part.krate, "--test", "faults", "--"])
        .args(["--nocapture", "--test-threads=1"])
        .args(only);
    let (mut calls, mut others, mut ran) = (BTreeMap::new(), Vec::new(), Tests::default());
    let ended = cmd.lines(Show::All, |line| {
        ran.read(line);
        if let Some((key, counts)) = parse(line) {
            let sum: &mut Counts = calls.entry(key).or_default();
            sum.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
        } else if let Some((_, said)) = line.split_once("faulted: ") {
            others.push(said.to_string());
        }
    });
    *tests += ran;
    ended?.success()?;
    if ran.failed > 0 || (only.is_none() && (calls.is_empty() || part.others == others.is_empty())) {
        bail!("{} tests failed, {} kinds of faults were tried", ran.failed, calls.len() + others.len());
    }
    let time = duration(started.elapsed().as_secs_f64());
    page(root, part, only, &calls, &others, &time).context("a page cannot be written")
}

/// Reads `faults: PROGRAM CALL ERRNO FAULTS UNSEEN ERRORS STOPS`, which may follow other output on the line.
fn parse(line: &str) -> Option<((String, String), Counts)> {
    let (_, said) = line.split_once("faults: ")?;
    let [_, call, errno, counts @ ..] = &said.split(' ').collect::<Vec<_>>()[..] else { return None };
    let counts: Vec<u64> = counts.iter().map(|count| count.parse().ok()).collect::<Option<_>>()?;
    Some((((*call).to_string(), (*errno).to_string()), counts.try_into().ok()?))
}

fn page(
    root: &Path,
    part: &Part,
    only: Option<&str>,
    calls: &BTreeMap<(String, String), Counts>,
    others: &[String],
    time: &str,
) -> Result<String> {
    let sum = |at: usize| calls.values().map(|counts| counts[at]).sum::<u64>();
    let only = only.map_or_else(String::new, |only| format!(" --only {only}"));
    let mut page = format!(
        "{}It runs once for each of its system calls and each error that the manual names for that call: the call is not\n\
         made, and returns the error. The two most likely errors are also returned four times, and until the\n\
         program asks for an end of the faults. Where a program reads a file as it read two before, each call has its\n\
         likeliest error and one more in turn. The program of threads has one fault in sixteen. After the faults, all\n\
         contents are checked, all memory is freed and allocated anew, and no call may fail. No program crashed, hung,\n\
         lost memory or had wrong contents.\n\n\
         - command: `cargo xtask faults --crate {}{only} --out`\n- commit: {}\n- machine: {}\n- time: {time}\n\
         - programs run with a fault of a system call: {}; in {} of them no caller saw it, in {} a caller got a\n  \
         documented error, and {} ended as documented\n\n",
        part.intro,
        part.krate,
        commit(root),
        machine(root),
        sum(0),
        sum(1),
        sum(2),
        sum(3),
    );
    if !others.is_empty() {
        page.push_str("| other faults | what happened |\n|---|---|\n");
        for said in others {
            let (what, counts) = said.split_once(": ").unwrap_or((said, ""));
            writeln!(page, "| {what} | {counts} |")?;
        }
        page.push('\n');
    }
    page.push_str("| call | errno | programs | unseen | errors | ended |\n|---|---|---:|---:|---:|---:|\n");
    for ((call, errno), [faults, unseen, errors, stops]) in calls {
        writeln!(page, "| `{call}` | {errno} | {faults} | {unseen} | {errors} | {stops} |")?;
    }
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_counts_is_read_and_one_that_lacks_a_number_is_not() {
        let key = ("mmap".to_string(), "ENOMEM".to_string());
        let line = "test a ... faults: plain mmap ENOMEM 12 3 8 1";
        assert_eq!(parse(line), Some((key, [12, 3, 8, 1])));
        assert_eq!(parse("faults: plain mmap ENOMEM 12 3 8"), None);
        assert_eq!(parse("12 faults of 13 were reached"), None);
    }
}
