//! Long runs: fuzz targets and property tests for minutes or hours, and a page in `results/` that says what came of it.

use crate::count::Tests;
use crate::machine::{commit, duration, machine};
use crate::sh::Cmd;
use crate::{ci, fuzz};
use anyhow::{Result, bail};
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::time::Instant;

/// Cases asked of each property test; one that fixes its own number keeps it.
const CASES: u64 = 1024;

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// For how long, about: half of it fuzzing, half of it property tests
    #[arg(long, default_value_t = 60)]
    minutes: u64,
}

/// `cargo xtask soak`.
pub(crate) fn main(root: &Path, args: &Args) -> Result<()> {
    let started = Instant::now();
    let (commit, machine) = (commit(root), machine(root));
    let (targets, core) = (fuzz::targets(root)?, crate::core_crates(root)?);
    let seconds = (args.minutes * 30 / targets.len() as u64).max(1);
    fuzz::build(root)?;
    let mut rows = String::new();
    let mut clean = true;
    for target in &targets {
        let fuzzed = fuzz::run(root, target, seconds)?;
        clean &= fuzzed.clean;
        let outcome = if fuzzed.clean { "nothing found" } else { "**FAILED**" };
        let (executed, time) = (fuzzed.executed, duration(fuzzed.seconds));
        writeln!(rows, "| fuzz target `{target}` | {executed} inputs | {time} | {outcome} |")?;
    }
    // Property tests draw fresh cases each round; the long runs have numbered seeds, twice as many each round. So a round
    // takes at most about twice as long as the last: one that would end too late is not begun.
    let tests_started = Instant::now();
    let (mut tests, mut rounds, mut seeds, mut last) = (Tests::default(), 0, 8, 0.0);
    while rounds == 0
        || (tests.failed == 0
            && tests_started.elapsed().as_secs_f64() + 2.0 * last < (args.minutes * 30) as f64)
    {
        let round_started = Instant::now();
        (rounds, seeds) = (rounds + 1, seeds * 2);
        let cmd = Cmd::cargo(root)
            .env("PROPTEST_CASES", CASES.to_string())
            .env("VMALLOC_SOAK_SEEDS", seeds.to_string())
            .args(["test", "--quiet", "--locked", "--no-fail-fast", "--lib", "--tests"])
            .args(core.iter().flat_map(|name| ["-p", name]))
            .args(["--features", "va-tree/validate"]);
        if let Err(error) = ci::counted(cmd, &mut tests) {
            println!("{error:#}");
            tests.failed = tests.failed.max(1);
        }
        last = round_started.elapsed().as_secs_f64();
    }
    clean &= tests.failed == 0 && tests.passed > 0;
    let (time, outcome) = (
        duration(tests_started.elapsed().as_secs_f64()),
        if tests.failed == 0 { "all passed" } else { "**FAILED**" },
    );
    writeln!(
        rows,
        "| tests of the core, invariants walked | {} tests passed, {} failed (rounds: {rounds}), \
         {seeds} seeds in the last, {CASES} cases of each property | {time} | {outcome} |",
        tests.passed, tests.failed
    )?;
    let minutes = args.minutes;
    let page = format!(
        "# Long runs\n\n\
         - command: `cargo xtask soak --minutes {minutes}`\n- commit: {commit}\n- machine: {machine}\n- time: {}\n\n\
         | what | how much | time | outcome |\n|---|---|---|---|\n{rows}",
        duration(started.elapsed().as_secs_f64())
    );
    fs::create_dir_all(root.join("results"))?;
    fs::write(root.join("results/soak.md"), &page)?;
    println!("\n{page}\nwritten to results/soak.md");
    if !clean {
        bail!("something was found: see above");
    }
    Ok(())
}
