//! Every check, with times, and a summary of the failures.
//!
//! A full run has two lanes. Steps that build into a folder of their own run beside the others, in a separate process
//! whose output is shown as one block. Linking and long tests use one core, and the other lane uses the other.

use crate::count::Tests;
use crate::machine::{cpu_seconds, duration};
use crate::sh::{Cmd, Show};
use crate::{
    book, browser, clients, counts, faces, faults, foreign, fresh, guest, header, install, licences, linux,
    loom, miri, not_run, peer, sanitize, steps, stress, suites, targets,
};
use anyhow::{Context, Result, anyhow, bail};
use std::path::Path;
use std::time::Instant;

#[derive(clap::Args, Debug, Default)]
pub(crate) struct Args {
    /// Only these steps
    #[arg(long, value_delimiter = ',', value_name = "STEP")]
    only: Vec<String>,
    /// Only the steps that take little time
    #[arg(long, conflicts_with = "only")]
    quick: bool,
    /// Each step in full, and the long steps, too; with --only, these steps in full
    #[arg(long, conflicts_with = "quick")]
    full: bool,
    /// Stop at the first step that fails
    #[arg(long)]
    fail_fast: bool,
    /// One step after the other, where a run of everything would take two lanes
    #[arg(long)]
    one_lane: bool,
    /// Print the steps and do nothing
    #[arg(long)]
    list: bool,
}

/// The function of a step. It adds the tests that it runs, and fails by an error.
type Run = fn(&Path, &mut Tests) -> Result<()>;

/// One step.
struct Step {
    name: &'static str,
    what: &'static str,
    /// Part of `--quick`.
    quick: bool,
    run: Run,
    /// Runs in place of `run` with `--full`, and what it runs beyond that.
    full: Option<(Run, &'static str)>,
}

impl Step {
    const fn new(name: &'static str, what: &'static str, run: Run) -> Self {
        Self { name, what, quick: false, run, full: None }
    }

    const fn quick(self) -> Self {
        Self { quick: true, ..self }
    }

    const fn full(self, run: Run, more: &'static str) -> Self {
        Self { full: Some((run, more)), ..self }
    }
}

/// All steps, those that fail fast first.
const STEPS: [Step; 20] = [
    Step::new("fmt", "every file is formatted", steps::fmt).quick(),
    Step::new("tidy", "the rules that no compiler knows", steps::tidy).quick(),
    Step::new("clippy", "no warnings, everywhere", steps::clippy).quick(),
    Step::new("test", "tests, the core walking its invariants all along", steps::test).quick().full(
        steps::test_full,
        "all of their operations, and the C functions over a core that walks its invariants",
    ),
    Step::new("doctest", "examples in documentation", steps::doctest).quick(),
    Step::new("examples", "the example that each crate's README names", steps::examples),
    Step::new(
        "release",
        "system calls, and sections that the kernel restarts, where they are optimised",
        steps::release,
    )
    .full(steps::release_full, "all tests of the crates of a process, and stacks and memory of the core"),
    Step::new("doc", "documentation without warnings", steps::doc),
    Step::new("no_std", "the core in a freestanding program, and kernels over it that link", steps::no_std)
        .full(steps::no_std_full, "code and stack of the core"),
    Step::new(
        "targets",
        "the crates compile for other processors, and with the compilers that they promise",
        targets::step,
    )
    .full(targets::full, "seven more targets"),
    Step::new("loom", "interleavings, where there are any", loom::run)
        .full(loom::full, "each model with all its preemptions, up to four, and each library against loom"),
    Step::new("header", "the C header is that of the C functions", header::step)
        .full(header::check, "the header, made again by cbindgen"),
    Step::new(
        "counts",
        "instructions, locked operations and cache lines of hot paths are those of results/counts.csv",
        counts::step,
    )
    .full(counts::full, "every row"),
    Step::new("faces", "packages with the names of others answer as the originals do", faces::step)
        .full(faces::full, "the originals' own tests, and packages that depend on them"),
    Step::new("deny", "licences, banned crates, sources", licences::step)
        .full(licences::deny, "cargo deny, which reads the texts"),
    Step::new(
        "package",
        "the published crates are complete, and the core's build from their packages",
        steps::package,
    )
    .full(steps::package_full, "the crates of a process, too, and the interfaces beside those of a release"),
    // Late, when the laboratory of the tests is there.
    Step::new("install", "a C program is built and run as users do it", install::step)
        .full(install::full, "the laboratory of `dist`"),
    Step::new("demo", "the program of the README's first command compiles", steps::demo)
        .full(steps::demo_full, "it does its main job, optimised"),
    Step::new("book", "every command in the book prints the output shown there", book::step),
    Step::new(
        "browser",
        "a report in a real browser: no network, no complaint, and tabs, films and zoom work",
        browser::step,
    ),
];

/// The steps of `--full`, after the others: they take long, or need packages.
const LONG: [Step; 13] = [
    Step::new(
        "clients",
        "real programs answer the same under the preload, those that are there",
        clients::step,
    ),
    Step::new(
        "stress",
        "random programs under the preload, each configuration for two seconds",
        stress::step,
    ),
    Step::new("peer", "addresses equal to Linux's own library's, where it can be built", peer::step),
    Step::new("foreign", "the core's tests on other processors, where qemu and compilers are", foreign::step),
    Step::new(
        "states",
        "every state of small spaces, through every index, each answer certified",
        steps::states,
    ),
    Step::new(
        "miri",
        "crates with unsafe code in an interpreter that reports undefined behaviour",
        miri::step,
    ),
    Step::new("sanitize", "crates of a process under sanitizers of threads and addresses", sanitize::step),
    Step::new("faults", "every system call of the crates of a process fails, in every way", faults::step),
    Step::new("fuzz", "every fuzz target for ten seconds, on a stable compiler", steps::fuzz),
    Step::new("guest", "a kernel over the core boots in QEMU, and fails with a broken flush", guest::step),
    Step::new("linux", "Linux with the core compiles, boots in QEMU and passes its own test", linux::full),
    Step::new(
        "suites",
        "test suites of others end alike with the preload and without, or the cause is known",
        suites::step,
    ),
    Step::new(
        "fresh",
        "the two commands of the README on a minimal Debian that has nothing else",
        fresh::step,
    ),
];

/// The second lane of a run of everything. Cargo locks a folder for each profile, and the first lane builds with that of
/// tests. None of these steps does so for long. The steps that optimise a program as one are here: they use one core.
const BESIDE: [&str; 10] =
    ["release", "no_std", "targets", "loom", "header", "counts", "faces", "deny", "package", "install"];

/// The results of steps.
#[derive(Default)]
struct Outcome {
    tests: Tests,
    table: Vec<String>,
    failed: Vec<(String, String)>,
}

/// Runs `cargo xtask ci`.
pub(crate) fn main(root: &Path, args: &Args) -> Result<()> {
    if args.list {
        for step in STEPS.iter().chain(&LONG) {
            let long = LONG.iter().any(|long| long.name == step.name);
            let when = match step {
                _ if long => " (full)",
                Step { quick: true, .. } => " (quick)",
                _ => "",
            };
            println!("{:<12}{}{when}", step.name, step.what);
            if let Some((_, more)) = step.full {
                println!("{:<12}  in full alone: {more}", "");
            }
        }
        return Ok(());
    }
    let steps = chosen(args)?;
    not_run::begin(root);
    let started = Instant::now();
    let everything = args.only.is_empty() && !args.quick && !args.fail_fast && !args.one_lane;
    let outcome =
        if everything { two_lanes(root, &steps, args.full)? } else { run_steps(root, &steps, args) };
    conclude(root, &outcome, steps.len(), started)
}

/// Runs the steps of `BESIDE` in a process of their own while the others run here.
fn two_lanes(root: &Path, steps: &[&Step], full: bool) -> Result<Outcome> {
    let here: Vec<&Step> = steps.iter().copied().filter(|step| !BESIDE.contains(&step.name)).collect();
    println!("in a second lane, shown at the end: {}", BESIDE.join(", "));
    let program = std::env::current_exe().context("which program this is")?;
    let lane = ["ci", "--only", &BESIDE.join(",")];
    let beside = Cmd::new(root, program).args(lane).args(full.then_some("--full"));
    let beside = not_run::with_list(root, beside);
    let args = Args { full, ..Args::default() };
    let mut other = String::new();
    let (mut outcome, ended) = std::thread::scope(|scope| {
        let lane = scope.spawn(|| {
            beside.lines(Show::Nothing, |line| {
                other.push_str(line);
                other.push('\n');
            })
        });
        (run_steps(root, &here, &args), lane.join())
    });
    println!("\n==== the second lane\n{other}");
    let ended = ended.map_err(|_| anyhow!("the second lane was not waited for"))?;
    take_in(&mut outcome, &other, ended?.success());
    Ok(outcome)
}

/// Adds the results that the second lane reports. A step that it does not report has failed.
fn take_in(outcome: &mut Outcome, text: &str, ended: Result<()>) {
    let mut reported = 0;
    for line in text.lines().filter_map(|line| line.strip_prefix("==== ")) {
        for name in BESIDE {
            let Some(verdict) = line.strip_prefix(name).and_then(|rest| rest.strip_prefix(": ")) else {
                continue;
            };
            reported += 1;
            if !verdict.starts_with("ok") {
                outcome.failed.push((name.to_string(), "see the second lane".to_string()));
            }
        }
    }
    outcome.table.extend(text.lines().filter(|line| is_row(line)).map(str::to_string));
    text.lines().for_each(|line| outcome.tests.read(line));
    if reported != BESIDE.len() || (ended.is_err() && outcome.failed.is_empty()) {
        let why = ended.err().map_or("it reported too little".to_string(), |error| format!("{error:#}"));
        outcome.failed.push((BESIDE.join(","), format!("the second lane: {why}")));
    }
}

/// Returns true if a line is a row of the table at the end for one of `BESIDE`.
fn is_row(line: &str) -> bool {
    let mut words = line.split_whitespace();
    let (name, verdict) = (words.next(), words.next());
    name.is_some_and(|name| BESIDE.contains(&name)) && matches!(verdict, Some("ok" | "FAILED"))
}

fn run_steps(root: &Path, steps: &[&Step], args: &Args) -> Outcome {
    let Outcome { mut tests, mut table, mut failed } = Outcome::default();
    for (at, step) in steps.iter().enumerate() {
        println!("\n==== {} ({}/{}): {}", step.name, at + 1, steps.len(), step.what);
        let (step_started, cpu_before, before) = (Instant::now(), cpu_seconds(), tests);
        let run = step.full.filter(|_| args.full).map_or(step.run, |(run, _)| run);
        let outcome = run(root, &mut tests);
        let time = duration(step_started.elapsed().as_secs_f64());
        let verdict = if outcome.is_ok() { "ok" } else { "FAILED" };
        println!("==== {}: {verdict}, {time}", step.name);
        let ran = Some(tests.passed - before.passed).filter(|&ran| ran > 0);
        let ran = ran.map_or_else(String::new, |ran| format!("{ran} tests"));
        let cpu = format!("{:.0} s of CPU", cpu_seconds() - cpu_before);
        table.push(format!("{:<12}{verdict:<8}{time:>14}{cpu:>16}{ran:>14}", step.name));
        if let Err(error) = outcome {
            println!("{error:#}");
            failed.push((step.name.to_string(), format!("{error:#}")));
            if args.fail_fast {
                break;
            }
        }
    }
    Outcome { tests, table, failed }
}

fn conclude(
    root: &Path,
    Outcome { tests, table, failed }: &Outcome,
    steps: usize,
    started: Instant,
) -> Result<()> {
    println!("\n{}", table.join("\n"));
    println!("{:<12}{:<8}{:>14}", "all", "", duration(started.elapsed().as_secs_f64()));
    let not_run = not_run::all(root);
    if !not_run.is_empty() {
        println!("\nnot run here:\n  {}", not_run.join("\n  "));
    }
    if !failed.is_empty() {
        println!("\nfailed:");
        for (name, why) in failed {
            println!("  {name}: {}", why.lines().next().unwrap_or_default());
            println!("      again alone: cargo xtask ci --only {name}");
        }
        bail!("{} of {steps} steps failed", failed.len());
    }
    // Only a run in which every step passed ends so.
    if tests.passed > 0 {
        println!("\n{} passed, {} failed", tests.passed, tests.failed);
    }
    Ok(())
}

fn chosen(args: &Args) -> Result<Vec<&'static Step>> {
    let all = || STEPS.iter().chain(&LONG);
    if args.only.is_empty() {
        let usual = STEPS.iter().filter(|step| step.quick || !args.quick);
        return Ok(usual.chain(LONG.iter().filter(|_| args.full)).collect());
    }
    for name in &args.only {
        if !all().any(|step| step.name == name) {
            let names: Vec<_> = all().map(|step| step.name).collect();
            bail!("no step {name}; there are: {}", names.join(", "));
        }
    }
    Ok(all().filter(|step| args.only.iter().any(|name| name == step.name)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(only: &[&str], quick: bool) -> Args {
        let only = only.iter().map(ToString::to_string).collect();
        Args { only, quick, ..Args::default() }
    }

    fn names(args: &Args) -> Vec<&'static str> {
        chosen(args).unwrap().iter().map(|step| step.name).collect()
    }

    #[test]
    fn steps_are_chosen_by_name_and_an_unknown_one_is_an_error() {
        assert_eq!(names(&args(&["test", "fmt"], false)), ["fmt", "test"]);
        assert_eq!(names(&args(&[], false)).len(), STEPS.len());
        assert!(names(&args(&[], true)).len() < STEPS.len());
        assert!(chosen(&args(&["tests"], false)).is_err());
        assert_eq!(names(&args(&["fresh"], false)), ["fresh"]);
        assert_eq!(names(&Args { full: true, ..args(&["loom"], false) }), ["loom"]);
        let full = names(&Args { full: true, ..args(&[], false) });
        assert_eq!((full.len(), full.last()), (STEPS.len() + LONG.len(), Some(&"fresh")));
    }

    /// Returns the output of a second lane whose step `bad` fails, if there is one, and that ends before it reports
    /// `missing`.
    fn lane(bad: &str, missing: &str) -> String {
        let mut text = String::from("test result: ok. 7 passed; 0 failed;\n");
        for name in BESIDE.into_iter().filter(|&name| name != missing) {
            let verdict = if name == bad { "FAILED" } else { "ok" };
            text += &format!(
                "==== {name} (1/12): what\n==== {name}: {verdict}, 1.0 s\n{name:<12}{verdict:<8}1.0 s\n"
            );
        }
        text
    }

    #[test]
    fn the_second_lane_counts_and_a_missing_step_has_failed() {
        let taken = |bad: &str, missing: &str, ended: Result<()>| {
            let mut outcome = Outcome::default();
            take_in(&mut outcome, &lane(bad, missing), ended);
            let failed: Vec<_> = outcome.failed.iter().map(|(name, _)| name.clone()).collect();
            (outcome.tests.passed, outcome.table.len(), failed)
        };
        assert_eq!(taken("", "", Ok(())), (7, BESIDE.len(), vec![]));
        assert_eq!(taken("loom", "", Err(anyhow!("1"))), (7, BESIDE.len(), vec!["loom".to_string()]));
        let lane = BESIDE.join(",");
        assert_eq!(taken("", "faces", Ok(())), (7, BESIDE.len() - 1, vec![lane.clone()]));
        assert_eq!(taken("", "", Err(anyhow!("1"))), (7, BESIDE.len(), vec![lane]));
        assert!(BESIDE.iter().all(|name| STEPS.iter().any(|step| step.name == *name)));
    }
}
