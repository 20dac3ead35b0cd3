//! Every check, one after the other, with times, and a summary of what failed.

use crate::count::Tests;
use crate::machine::duration;
use crate::sh::{Cmd, Show, on_path};
use crate::{browser, fuzz, header, install, kernel, loom, peer, tidy, tools};
use anyhow::{Result, bail};
use std::fs;
use std::path::Path;
use std::time::Instant;

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Only these steps
    #[arg(long, value_delimiter = ',', value_name = "STEP")]
    only: Vec<String>,
    /// Only the steps that take little time
    #[arg(long, conflicts_with = "only")]
    quick: bool,
    /// Stop at the first step that fails
    #[arg(long)]
    fail_fast: bool,
    /// Print the steps and do nothing
    #[arg(long)]
    list: bool,
}

/// One step. It adds the tests that it runs, and fails by an error.
struct Step {
    name: &'static str,
    what: &'static str,
    /// Part of `--quick`.
    quick: bool,
    run: fn(&Path, &mut Tests) -> Result<()>,
}

/// All steps, what fails fast first.
const STEPS: [Step; 18] = [
    Step { name: "fmt", what: "every file is formatted", quick: true, run: fmt },
    Step { name: "tidy", what: "the rules that no compiler knows", quick: true, run: run_tidy },
    Step { name: "clippy", what: "no warnings, everywhere", quick: true, run: clippy },
    Step { name: "test", what: "tests, the saved fuzz inputs among them", quick: true, run: test },
    Step { name: "doctest", what: "examples in documentation", quick: true, run: doctest },
    Step {
        name: "features",
        what: "tests with every feature, invariants walked all along",
        quick: false,
        run: features,
    },
    Step {
        name: "release",
        what: "the allocator of a process as users build it",
        quick: false,
        run: release,
    },
    Step { name: "doc", what: "documentation without warnings", quick: false, run: doc },
    Step { name: "no_std", what: "the core in a freestanding program", quick: false, run: no_std },
    Step { name: "loom", what: "interleavings, where there are any", quick: false, run: loom::run },
    Step {
        name: "peer",
        what: "addresses equal to Linux's own library's, where it can be built",
        quick: false,
        run: peer::step,
    },
    Step { name: "header", what: "the C header is that of the C functions", quick: false, run: run_header },
    Step {
        name: "install",
        what: "a C program is built and run as users do it",
        quick: false,
        run: install::step,
    },
    Step { name: "deny", what: "licences, banned crates, sources", quick: false, run: deny },
    Step { name: "demo", what: "the program does its main job", quick: false, run: demo },
    Step {
        name: "browser",
        what: "a report in a real browser: no network, no complaint, the slider moves the picture",
        quick: false,
        run: browser::step,
    },
    Step {
        name: "fuzz-build",
        what: "fuzz targets on a stable compiler, no warnings",
        quick: false,
        run: fuzz_build,
    },
    Step { name: "fuzz", what: "every fuzz target for ten seconds", quick: false, run: run_fuzz },
];

/// `cargo xtask ci`.
pub(crate) fn main(root: &Path, args: &Args) -> Result<()> {
    if args.list {
        for step in &STEPS {
            println!("{:<12}{}{}", step.name, step.what, if step.quick { " (quick)" } else { "" });
        }
        return Ok(());
    }
    let steps = chosen(args)?;
    let started = Instant::now();
    let (mut tests, mut table, mut failed) = (Tests::default(), Vec::new(), Vec::new());
    for (at, step) in steps.iter().enumerate() {
        println!("\n==== {} ({}/{}): {}", step.name, at + 1, steps.len(), step.what);
        let (step_started, before) = (Instant::now(), tests);
        let outcome = (step.run)(root, &mut tests);
        let time = duration(step_started.elapsed().as_secs_f64());
        let verdict = if outcome.is_ok() { "ok" } else { "FAILED" };
        println!("==== {}: {verdict}, {time}", step.name);
        let ran = tests.passed - before.passed;
        table.push(format!("{:<12}{verdict:<8}{time:>14}{:>14}", step.name, tests_ran(ran)));
        if let Err(error) = outcome {
            println!("{error:#}");
            failed.push((step.name, format!("{error:#}")));
            if args.fail_fast {
                break;
            }
        }
    }
    println!("\n{}", table.join("\n"));
    println!("{:<12}{:<8}{:>14}", "all", "", duration(started.elapsed().as_secs_f64()));
    if !failed.is_empty() {
        println!("\nfailed:");
        for (name, why) in &failed {
            println!("  {name}: {}", why.lines().next().unwrap_or_default());
            println!("      again alone: cargo xtask ci --only {name}");
        }
        bail!("{} of {} steps failed", failed.len(), steps.len());
    }
    // Only a run in which every step held ends so.
    if tests.passed > 0 {
        println!("\n{} passed, {} failed", tests.passed, tests.failed);
    }
    Ok(())
}

fn chosen(args: &Args) -> Result<Vec<&'static Step>> {
    for name in &args.only {
        if !STEPS.iter().any(|step| step.name == name) {
            let names: Vec<_> = STEPS.iter().map(|step| step.name).collect();
            bail!("no step {name}; there are: {}", names.join(", "));
        }
    }
    let wanted = |step: &&Step| match (args.only.is_empty(), args.quick) {
        (false, _) => args.only.iter().any(|name| name == step.name),
        (true, quick) => step.quick || !quick,
    };
    Ok(STEPS.iter().filter(wanted).collect())
}

fn tests_ran(count: u64) -> String {
    if count == 0 { String::new() } else { format!("{count} tests") }
}

/// The folders with a workspace of their own.
const OWN_WORKSPACES: [&str; 2] = ["fuzz/Cargo.toml", "examples/kernel/Cargo.toml"];

fn fmt(root: &Path, _: &mut Tests) -> Result<()> {
    Cmd::cargo(root).args(["fmt", "--all", "--check"]).run(Show::All)?;
    for manifest in OWN_WORKSPACES {
        Cmd::cargo(root).args(["fmt", "--manifest-path", manifest, "--check"]).run(Show::All)?;
    }
    Ok(())
}

fn clippy(root: &Path, _: &mut Tests) -> Result<()> {
    Cmd::cargo(root)
        .args(["clippy", "--quiet", "--locked", "--workspace", "--all-targets", "--all-features"])
        .args(["--", "-D", "warnings"])
        .run(Show::All)?;
    Cmd::cargo(root)
        .args(["clippy", "--quiet", "--locked", "--release", "--manifest-path", OWN_WORKSPACES[1]])
        .args(["--target-dir", "examples/kernel/target", "--", "-D", "warnings"])
        .run(Show::All)?;
    Ok(())
}

fn run_tidy(root: &Path, _: &mut Tests) -> Result<()> {
    tidy::run(root)?;
    Ok(())
}

fn run_header(root: &Path, _: &mut Tests) -> Result<()> {
    header::check(root)
}

/// Runs tests by cargo-nextest where it is installed, which runs them side by side.
fn run_tests(root: &Path, args: &[&str], tests: &mut Tests) -> Result<()> {
    let before = tests.passed;
    let cmd = if on_path("cargo-nextest") {
        Cmd::cargo(root)
            .args(["nextest", "run", "--locked", "--no-fail-fast", "--status-level", "slow"])
            .args(args)
    } else {
        Cmd::cargo(root).args(["test", "--locked", "--no-fail-fast", "--lib", "--bins", "--tests"]).args(args)
    };
    counted(cmd.env("CARGO_TERM_COLOR", "never"), tests)?;
    if tests.passed == before {
        bail!("no test was run");
    }
    Ok(())
}

/// Runs a command that runs tests, and adds them; a test that fails is an error whatever the command says.
pub(crate) fn counted(cmd: Cmd, tests: &mut Tests) -> Result<()> {
    let mut ran = Tests::default();
    let ended = cmd.lines(Show::All, |line| ran.read(line));
    *tests += ran;
    if ran.failed > 0 {
        bail!("{} tests passed, {} failed", ran.passed, ran.failed);
    }
    ended?.success()
}

fn test(root: &Path, tests: &mut Tests) -> Result<()> {
    run_tests(root, &["--workspace"], tests)
}

fn features(root: &Path, tests: &mut Tests) -> Result<()> {
    // The core, va-sim included, whose tests drive the others. `--features validate` alone would refuse crates that lack it.
    let core = crate::core_crates(root)?;
    let mut args: Vec<_> = core.iter().flat_map(|name| ["-p", name]).collect();
    args.extend(["--features", "va-tree/validate"]);
    run_tests(root, &args, tests)?;
    run_tests(root, &["-p", "vmalloc", "--features", "metrics", "--test", "metrics"], tests)
}

/// Its fast paths are the compiler's to arrange, and the test profile is not what users build.
fn release(root: &Path, tests: &mut Tests) -> Result<()> {
    counted(
        Cmd::cargo(root).args([
            "test",
            "--quiet",
            "--locked",
            "--release",
            "-p",
            "vmalloc",
            "--lib",
            "--tests",
        ]),
        tests,
    )
}

fn doctest(root: &Path, tests: &mut Tests) -> Result<()> {
    counted(Cmd::cargo(root).args(["test", "--quiet", "--locked", "--workspace", "--doc"]), tests)
}

fn doc(root: &Path, _: &mut Tests) -> Result<()> {
    Cmd::cargo(root)
        .env("RUSTDOCFLAGS", "-D warnings")
        .args(["doc", "--quiet", "--locked", "--workspace", "--no-deps"])
        .run(Show::All)?;
    Ok(())
}

fn no_std(root: &Path, _: &mut Tests) -> Result<()> {
    kernel::main(root)?;
    Ok(())
}

fn deny(root: &Path, _: &mut Tests) -> Result<()> {
    let deny = tools::cargo_deny(root)?;
    for manifest in ["Cargo.toml", OWN_WORKSPACES[0], OWN_WORKSPACES[1]] {
        Cmd::new(root, &deny)
            .args(["--manifest-path", manifest, "--locked", "--config", "deny.toml"])
            .args(["check", "--hide-inclusion-graph", "licenses", "bans", "sources"])
            .run(Show::All)?;
    }
    Ok(())
}

fn demo(root: &Path, _: &mut Tests) -> Result<()> {
    let report = root.join("target/ci/report.html");
    fs::create_dir_all(root.join("target/ci"))?;
    // What an earlier run wrote must not pass for this one's.
    if report.exists() {
        fs::remove_file(&report)?;
    }
    Cmd::cargo(root)
        .args(["run", "--quiet", "--locked", "--release", "--", "demo", "--report"])
        .arg(&report)
        .run(Show::All)?;
    let page = fs::read_to_string(&report)?;
    if !page.contains("<html") || page.len() < 10_000 {
        bail!("the report has {} bytes and is no page to look at", page.len());
    }
    println!("report: {} bytes", page.len());
    Ok(())
}

fn fuzz_build(root: &Path, _: &mut Tests) -> Result<()> {
    fuzz::build(root)?;
    // With the same flags, so that libFuzzer itself is compiled once.
    fuzz::cargo(root, "clippy").args(["--", "-D", "warnings"]).run(Show::All)?;
    Ok(())
}

fn run_fuzz(root: &Path, _: &mut Tests) -> Result<()> {
    fuzz::run_all(root, &fuzz::targets(root)?, 10)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(only: &[&str], quick: bool) -> Args {
        let only = only.iter().map(ToString::to_string).collect();
        Args { only, quick, fail_fast: false, list: false }
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
