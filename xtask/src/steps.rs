//! The steps of CI that are a command or two of cargo. Longer ones have a module each.

use crate::cargo::{OVER_THE_CORE, WALKING, WORKSPACES, cargo, counted, full, selections};
use crate::count::Tests;
use crate::sh::{Cmd, Show, on_path};
use crate::{guest, kernel, linux, not_run, semver, sizes};
use anyhow::{Result, bail};
use std::fs;
use std::path::Path;

pub(crate) fn fmt(root: &Path, _: &mut Tests) -> Result<()> {
    Cmd::cargo(root).args(["fmt", "--all", "--check"]).run(Show::All)?;
    for manifest in &WORKSPACES[1..] {
        // With `--all` what a workspace depends on is read as well.
        let one_package = ![WORKSPACES[2], WORKSPACES[4]].contains(manifest);
        let only = Cmd::cargo(root).args(["fmt", "--check", "--manifest-path", manifest]);
        only.args((!one_package).then_some("--all")).run(Show::All)?;
    }
    Ok(())
}

pub(crate) fn clippy(root: &Path, _: &mut Tests) -> Result<()> {
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
    crate::fuzz::lint(root)?;
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

pub(crate) fn tidy(root: &Path, _: &mut Tests) -> Result<()> {
    crate::tidy::run(root)?;
    Ok(())
}

pub(crate) fn examples(root: &Path, _: &mut Tests) -> Result<()> {
    crate::package::examples(root, &selections(&crate::core_crates(root)?))
}

pub(crate) fn package(root: &Path, _: &mut Tests) -> Result<()> {
    crate::package::check(root, crate::package::CORE)
}

pub(crate) fn package_full(root: &Path, _: &mut Tests) -> Result<()> {
    crate::package::check(root, crate::package::LIBRARIES)?;
    semver::step(root)
}

/// The seed of property tests and stress.
const SEED: &str = "20250101";

/// The file of tests that share one replay of all traces, so that they run in one process.
const SHARING: &str = "cli";

/// The targets with tests. Not the examples: `clippy` reads them, and those that a README names are run.
const TARGETS: [&str; 3] = ["--lib", "--bins", "--tests"];

/// Says how much the tests of a command do.
type Effort = fn(Cmd) -> Cmd;

/// Runs tests by cargo-nextest where it is installed: each in a process of its own, so that none is disturbed by the
/// forks and the limits of another. The tests of [`SHARING`] run in one.
fn run_tests(root: &Path, args: &[&str], effort: Effort, tests: &mut Tests) -> Result<()> {
    let before = tests.passed;
    let usual = || effort(cargo(root)).args(["test", "--locked", "--no-fail-fast"]).args(args);
    let ended = if on_path("cargo-nextest") {
        let mut apart = effort(cargo(root))
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

/// Tests the core with its invariants walked after its changes. That includes va-sim, whose tests drive the other
/// crates. The rest, with as many areas as programs have, runs without. Walking changes no result, so no test runs
/// twice.
pub(crate) fn test(root: &Path, tests: &mut Tests) -> Result<()> {
    run_selections(root, |cmd| cmd, tests)
}

/// Runs the tests with all of their operations, and the C functions over a core that walks its invariants, too.
pub(crate) fn test_full(root: &Path, tests: &mut Tests) -> Result<()> {
    let usual = run_selections(root, full, tests);
    run_tests(root, &["-p", OVER_THE_CORE, "--features", WALKING], full, tests).and(usual)
}

fn run_selections(root: &Path, effort: Effort, tests: &mut Tests) -> Result<()> {
    let core = crate::core_crates(root)?;
    // The second selection runs even if the first has failed.
    let ended = selections(&core).map(|selection| run_tests(root, &selection, effort, tests));
    ended.into_iter().collect()
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
/// by itself, and the step `test` runs all of them, optimised as well, with assertions.
pub(crate) fn release(root: &Path, tests: &mut Tests) -> Result<()> {
    run_release(root, tests, &format!("{NEAR_THE_MACHINE} --lib"))
}

/// The stack depth of a call of the core is a property of optimised code, too. A million areas are too many for code that
/// walks its invariants.
pub(crate) fn release_full(root: &Path, tests: &mut Tests) -> Result<()> {
    run_release(root, tests, &format!("{OF_A_PROCESS} --lib --tests"))?;
    run_release(root, tests, "-p va-tree -p va-space -p va-percpu -p va-sim --test memory --test footprint")
}

fn run_release(root: &Path, tests: &mut Tests, selection: &str) -> Result<()> {
    let cmd = Cmd::cargo(root).args(["test", "--quiet", "--locked", "--release"]);
    counted(cmd.args(selection.split(' ')), tests)
}

/// Tests documentation in the selections of the tests, whose libraries are there.
pub(crate) fn doctest(root: &Path, tests: &mut Tests) -> Result<()> {
    let core = crate::core_crates(root)?;
    let of =
        |selection: Vec<&str>| cargo(root).args(["test", "--quiet", "--locked", "--doc"]).args(selection);
    selections(&core).into_iter().try_for_each(|selection| counted(of(selection), tests))
}

pub(crate) fn doc(root: &Path, _: &mut Tests) -> Result<()> {
    cargo(root)
        .env("RUSTDOCFLAGS", "-D warnings")
        .args(["doc", "--quiet", "--locked", "--workspace", "--no-deps"])
        .run(Show::All)?;
    Ok(())
}

pub(crate) fn no_std(root: &Path, tests: &mut Tests) -> Result<()> {
    kernel::main(root, tests)?;
    linux::step(root)
}

/// Also measures code and stack.
pub(crate) fn no_std_full(root: &Path, tests: &mut Tests) -> Result<()> {
    no_std(root, tests)?;
    sizes::check(root)
}

/// Checks that the program compiles without what measures, which the tests compile. They run the demo as well.
pub(crate) fn demo(root: &Path, _: &mut Tests) -> Result<()> {
    cargo(root).args(["check", "--quiet", "--locked", "--package", "vmlab"]).run(Show::All)
}

/// Runs the demo as the README does.
pub(crate) fn demo_full(root: &Path, _: &mut Tests) -> Result<()> {
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
pub(crate) fn states(root: &Path, tests: &mut Tests) -> Result<()> {
    let args = "test --quiet --locked --release -p va-certify --test states --test space --test tracked -- --ignored";
    counted(Cmd::cargo(root).args(args.split(' ')), tests)
}

/// Builds the targets and runs each.
pub(crate) fn fuzz(root: &Path, _: &mut Tests) -> Result<()> {
    crate::fuzz::build(root)?;
    crate::fuzz::run_all(root, &crate::fuzz::targets(root)?, 10)
}
