//! Every check, with times, and a summary of the failures.
//!
//! A full run has two lanes. Steps that build into a folder of their own run beside the others, in a separate process
//! whose output is shown as one block. Linking and long tests use one core, and the other lane uses the other.

use crate::cargo::{OVER_THE_CORE, TESTED, WALKING, WORKSPACES, cargo, counted, selections};
use crate::count::Tests;
use crate::machine::{cpu_seconds, duration};
use crate::sh::{Cmd, Show, on_path};
use crate::{
    book, browser, clients, counts, faces, foreign, fresh, fuzz, guest, header, install, kernel, licences,
    linux, loom, not_run, package, peer, semver, sizes, stress, suites, targets, tidy,
};
use anyhow::{Context, Result, anyhow, bail};
use std::fs;
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
const STEPS: [Step; 23] = [
    Step::new("fmt", "every file is formatted", fmt).quick(),
    Step::new("tidy", "the rules that no compiler knows", run_tidy).quick(),
    Step::new("clippy", "no warnings, everywhere", clippy).quick(),
    Step::new("test", "tests, the core walking its invariants all along", test)
        .quick()
        .full(test_full, "the C functions over a core that walks its invariants"),
    Step::new("doctest", "examples in documentation", doctest).quick(),
    Step::new("examples", "the example that each crate's README names", examples),
    Step::new("release", "what depends on the optimiser: sections, stacks and memory", release)
        .full(release_full, "all tests of the crates of a process"),
    Step::new("doc", "documentation without warnings", doc),
    Step::new("no_std", "the core in a freestanding program, and kernels over it that link", no_std)
        .full(no_std_full, "code and stack of the core"),
    Step::new(
        "targets",
        "the crates compile for other processors, and with the compilers that they promise",
        targets::step,
    )
    .full(targets::full, "seven more targets"),
    Step::new("loom", "interleavings, where there are any", loom::run)
        .full(loom::full, "each model with all its preemptions, up to four"),
    Step::new("peer", "addresses equal to Linux's own library's, where it can be built", peer::step),
    Step::new("header", "the C header is that of the C functions", header::step)
        .full(header::check, "the header, made again by cbindgen"),
    Step::new(
        "counts",
        "instructions, locked operations and cache lines of hot paths are those of results/counts.csv",
        counts::step,
    )
    .full(counts::full, "every row"),
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
    Step::new("faces", "packages with the names of others answer as the originals do", faces::step)
        .full(faces::full, "the originals' own tests, and packages that depend on them"),
    Step::new("deny", "licences, banned crates, sources", licences::step)
        .full(licences::deny, "cargo deny, which reads the texts"),
    Step::new(
        "package",
        "the published crates are complete, and the core's build from their packages",
        run_package,
    )
    .full(package_full, "the crates of a process, too, and the interfaces beside those of a release"),
    // Late, when the laboratory of the tests is there.
    Step::new("install", "a C program is built and run as users do it", install::step)
        .full(install::full, "the laboratory of `dist`"),
    Step::new("demo", "the program of the README's first command compiles", demo)
        .full(demo_full, "it does its main job, optimised"),
    Step::new("book", "every command in the book prints the output shown there", book::step),
    Step::new(
        "browser",
        "a report in a real browser: no network, no complaint, the slider moves the picture",
        browser::step,
    ),
];

/// The steps of `--full`, after the others: they take long, or need packages.
const LONG: [Step; 7] = [
    Step::new("foreign", "the core's tests on other processors, where qemu and compilers are", foreign::step),
    Step::new("states", "every state of small spaces, through every index, each answer certified", states),
    Step::new("fuzz", "every fuzz target for ten seconds, on a stable compiler", run_fuzz),
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
const BESIDE: [&str; 13] = [
    "release", "no_std", "targets", "loom", "peer", "header", "counts", "clients", "stress", "faces", "deny",
    "package", "install",
];

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

fn fmt(root: &Path, _: &mut Tests) -> Result<()> {
    Cmd::cargo(root).args(["fmt", "--all", "--check"]).run(Show::All)?;
    for manifest in &WORKSPACES[1..] {
        Cmd::cargo(root).args(["fmt", "--all", "--manifest-path", manifest, "--check"]).run(Show::All)?;
    }
    Ok(())
}

fn clippy(root: &Path, _: &mut Tests) -> Result<()> {
    cargo(root)
        // All targets, and the test that no test profile compiles.
        .args(["clippy", "--quiet", "--locked", "--workspace", "--all-features"])
        .args(["--lib", "--bins", "--tests", "--benches", "--examples", "--test", "footprint"])
        .args(["--", "-D", "warnings"])
        .run(Show::All)?;
    cargo(root)
        .args(["clippy", "--quiet", "--locked", "--release", "--manifest-path", WORKSPACES[2]])
        .args(["-p", "freestanding", "-p", "vmalloc-guest", "--lib", "--test", "port"])
        .args(["--target-dir", "adopt/guest/target", "--", "-D", "warnings"])
        .run(Show::All)?;
    guest::lint(root)?;
    linux::lint(root)?;
    fuzz::lint(root)?;
    for manifest in &WORKSPACES[3..4] {
        let folder = Path::new(manifest).parent().unwrap_or(root);
        cargo(root)
            .args([
                "clippy",
                "--quiet",
                "--locked",
                "--release",
                "--all-features",
                "--manifest-path",
                manifest,
            ])
            .arg("--target-dir")
            .arg(folder.join("target"))
            .args(["--", "-D", "warnings"])
            .run(Show::All)?;
    }
    cargo(root)
        .args(["clippy", "--quiet", "--locked", "--workspace", "--all-targets", "--all-features"])
        .args(["--manifest-path", WORKSPACES[4], "--target-dir", "target/faces/own", "--", "-D", "warnings"])
        .run(Show::All)?;
    Ok(())
}

fn run_tidy(root: &Path, _: &mut Tests) -> Result<()> {
    tidy::run(root)?;
    Ok(())
}

fn examples(root: &Path, _: &mut Tests) -> Result<()> {
    package::examples(root, &selections(&crate::core_crates(root)?))
}

fn run_package(root: &Path, _: &mut Tests) -> Result<()> {
    package::check(root, package::CORE)
}

fn package_full(root: &Path, _: &mut Tests) -> Result<()> {
    package::check(root, package::LIBRARIES)?;
    semver::step(root)
}

/// The seed of property tests and stress.
const SEED: &str = "20250101";

/// The file of tests that share one replay of all traces, so that they run in one process.
const SHARING: &str = "cli";

/// The targets with tests. Not the examples: `clippy` reads them, and those that a README names are run.
const TARGETS: [&str; 3] = ["--lib", "--bins", "--tests"];

/// Runs tests by cargo-nextest where it is installed: each in a process of its own, so that none is disturbed by the
/// forks and the limits of another. The tests of [`SHARING`] run in one.
fn run_tests(root: &Path, args: &[&str], tests: &mut Tests) -> Result<()> {
    let before = tests.passed;
    let usual = || cargo(root).args(["test", "--locked", "--no-fail-fast"]).args(args);
    let ended = if on_path("cargo-nextest") {
        let mut apart = cargo(root)
            .args(["nextest", "run", "--locked", "--no-fail-fast", "--status-level", "slow"])
            .args(TARGETS)
            .args(args);
        // The core alone has no such file.
        let shares = args.contains(&"--workspace");
        if shares {
            apart = apart.args(["-E".to_string(), format!("not binary({SHARING})")]);
        }
        let ended = with_seeds(root, apart, tests);
        if shares { with_seeds(root, usual().args(["--test", SHARING]), tests).and(ended) } else { ended }
    } else {
        with_seeds(root, usual().args(TARGETS), tests)
    };
    if tests.passed == before {
        bail!("no test was run");
    }
    ended
}

/// Runs a command that runs tests, with the same cases for the same code, so that results do not depend on the machine.
/// `soak` uses others.
fn with_seeds(root: &Path, cmd: Cmd, tests: &mut Tests) -> Result<()> {
    let cmd = cmd.env("PROPTEST_RNG_SEED", SEED).env("VA_STRESS_SEED", SEED);
    counted(not_run::with_list(root, cmd.env("CARGO_TERM_COLOR", "never")), tests)
}

/// Tests the core with its invariants walked after every change. That includes va-sim, whose tests drive the other
/// crates. The rest, with as many areas as programs have, runs without. Walking changes no result, so no test runs
/// twice.
fn test(root: &Path, tests: &mut Tests) -> Result<()> {
    let core = crate::core_crates(root)?;
    // The second selection runs even if the first has failed.
    let ended = selections(&core).map(|selection| run_tests(root, &selection, tests));
    ended.into_iter().collect()
}

/// Tests also the C functions over the core with a core that walks its invariants.
fn test_full(root: &Path, tests: &mut Tests) -> Result<()> {
    let usual = test(root, tests);
    run_tests(root, &["-p", OVER_THE_CORE, "--features", WALKING], tests).and(usual)
}

/// The crates of a process whose code is not what the source says where it is optimised: system calls, locks, and
/// sections that the kernel restarts.
const NEAR_THE_MACHINE: &str = "-p vmalloc-os -p vmalloc-percpu";

/// All crates of a process that the step `release` tests.
const OF_A_PROCESS: &str = "-p vmalloc-os -p vmalloc-percpu -p vmalloc-vmap -p vmalloc";

/// Tests release builds: fast paths depend on the optimiser, and the test profile is not the one that users build. So a
/// program that depends on these crates is built with a release profile. Programs that are optimised as one are tested by
/// `install`, `clients` and `stress`.
///
/// The other crates of a process, and the programs that test them from outside, are left to `--full`. Each is optimised
/// by itself, and the step `test` runs all of them, optimised as well.
fn release(root: &Path, tests: &mut Tests) -> Result<()> {
    run_release(root, tests, &format!("{NEAR_THE_MACHINE} --lib"))
}

fn release_full(root: &Path, tests: &mut Tests) -> Result<()> {
    run_release(root, tests, &format!("{OF_A_PROCESS} --lib --tests"))
}

fn run_release(root: &Path, tests: &mut Tests, of_process: &str) -> Result<()> {
    // The stack depth of a call of the core is a property of optimised code. A million areas are too many for code that
    // walks its invariants after each operation.
    let core = "-p va-tree -p va-space -p va-percpu -p va-sim --test memory --test footprint";
    [of_process, core].into_iter().try_for_each(|selection| {
        let cmd = Cmd::cargo(root).args(["test", "--quiet", "--locked", "--release"]);
        counted(cmd.args(selection.split(' ')), tests)
    })
}

fn doctest(root: &Path, tests: &mut Tests) -> Result<()> {
    let args = ["test", "--quiet", "--locked", "--workspace", "--doc", "--features", TESTED];
    counted(cargo(root).args(args), tests)
}

fn doc(root: &Path, _: &mut Tests) -> Result<()> {
    cargo(root)
        .env("RUSTDOCFLAGS", "-D warnings")
        .args(["doc", "--quiet", "--locked", "--workspace", "--no-deps"])
        .run(Show::All)?;
    Ok(())
}

fn no_std(root: &Path, tests: &mut Tests) -> Result<()> {
    kernel::main(root, tests)?;
    linux::step(root)
}

/// Also measures code and stack.
fn no_std_full(root: &Path, tests: &mut Tests) -> Result<()> {
    no_std(root, tests)?;
    sizes::check(root)
}

/// Checks that the program compiles without what measures, which the tests compile. They run the demo as well.
fn demo(root: &Path, _: &mut Tests) -> Result<()> {
    cargo(root).args(["check", "--quiet", "--locked", "--package", "vmlab"]).run(Show::All)
}

/// Runs the demo as the README does.
fn demo_full(root: &Path, _: &mut Tests) -> Result<()> {
    let run = || Cmd::cargo(root).args(["run", "--quiet", "--locked", "--release", "--"]);
    let report = root.join("target/ci/report.html");
    fs::create_dir_all(root.join("target/ci"))?;
    // The report of an earlier run must not pass for this one's.
    if report.exists() {
        fs::remove_file(&report)?;
    }
    run().args(["demo", "--report"]).arg(&report).run(Show::All)?;
    let page = fs::read_to_string(&report)?;
    if !page.contains("<html") || page.len() < 10_000 {
        bail!("the report has {} bytes and is no page to look at", page.len());
    }
    println!("report: {} bytes", page.len());
    // This build measures nothing, and names the build that does.
    let mut named = false;
    let ended = run()
        .args(["bench", "index", "--quick"])
        .lines(Show::Nothing, |line| named |= line.contains("--features measure"))?;
    if ended.code == Some(0) || !named {
        bail!("vmlab bench, in a build without it, does not name the feature measure");
    }
    Ok(())
}

/// Tries every state of small spaces.
fn states(root: &Path, tests: &mut Tests) -> Result<()> {
    let args = "test --quiet --locked --release -p va-certify --test states --test space -- --ignored";
    counted(Cmd::cargo(root).args(args.split(' ')), tests)
}

/// Builds the targets and runs each.
fn run_fuzz(root: &Path, _: &mut Tests) -> Result<()> {
    fuzz::build(root)?;
    fuzz::run_all(root, &fuzz::targets(root)?, 10)
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

    #[test]
    fn a_failed_test_fails_its_step_even_if_the_command_does_not() {
        let mut tests = Tests::default();
        let cmd = Cmd::new(Path::new("."), "echo").arg("test result: FAILED. 3 passed; 2 failed; 0 ignored");
        assert_eq!(counted(cmd, &mut tests).unwrap_err().to_string(), "3 tests passed, 2 failed");
        assert_eq!(tests, Tests { passed: 3, failed: 2 });
        let cmd = Cmd::new(Path::new("."), "false");
        assert!(counted(cmd, &mut tests).is_err());
    }
}
