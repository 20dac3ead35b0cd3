//! Tests of the crates of a process under ThreadSanitizer and AddressSanitizer, with a standard library that is built for
//! each.
//!
//! No report is suppressed. Tests are left out whose program a sanitizer does not understand, by the names in [`PARTS`]:
//!
//! | left out | cause |
//! |---|---|
//! | `percpu.rs`, `machine.rs` of `vmalloc-percpu` | restartable sections are assembly. ThreadSanitizer does not see their stores, and so reports what they order. The space of `small.rs` has none. |
//! | tests of `vmalloc-preload` and `vmalloc-capi` | they run programs of C, which have no sanitizer to load the library into |
//! | `fork*.rs`, `signals.rs`, `limits.rs` of `vmalloc` | a child of a fork of threads has no thread of the sanitizer; limits of addresses exclude its own memory |
//!
//! AddressSanitizer sees heap, stack and statics, not what is mapped by a system call. In areas the page protection does
//! so, and Miri. It does not look for leaks: what lives as long as the process is freed by nothing.
//!
//! Mistakes that are planted in `process/vmalloc/tests/planted.rs` show that each sanitizer reports them.

use crate::cargo::{counted, full};
use crate::count::Tests;
use crate::machine::{commit, duration, machine};
use crate::miri::{must_report, nightly, nightly_cargo};
use crate::not_run;
use crate::sh::Cmd;
use anyhow::{Context, Result, bail};
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::time::Instant;

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Write results/sanitizers.md
    #[arg(long)]
    out: bool,
}

/// A sanitizer, a mistake that it must report, and a part of its report.
struct Sanitizer {
    name: &'static str,
    mistake: &'static str,
    report: &'static str,
}

const SANITIZERS: [Sanitizer; 2] = [
    Sanitizer {
        name: "thread",
        mistake: "two_threads_write_to_an_area",
        report: "WARNING: ThreadSanitizer: data race",
    },
    Sanitizer {
        name: "address",
        mistake: "a_write_behind_a_box",
        report: "ERROR: AddressSanitizer: heap-buffer-overflow",
    },
];

const TARGET: &str = "x86_64-unknown-linux-gnu";

/// Arguments of cargo, and the names of the tests among those; all if there are none.
const PARTS: [(&str, &[&str]); 2] = [
    ("-p vmalloc-os -p vmalloc-percpu -p vmlab-machine --lib --test small", &[]),
    (
        "-p vmalloc --lib --test small --test tags",
        &["thread", "small", "concurrent", "areas", "buffer", "tg1", "tg2"],
    ),
];

/// Runs `cargo xtask sanitize`.
pub(crate) fn main(root: &Path, args: &Args) -> Result<()> {
    let commit = commit(root);
    let rows = run(root, &mut Tests::default())?;
    // Without a nightly compiler nothing was run, and the page stays.
    if args.out && !rows.is_empty() {
        fs::write(root.join("results/sanitizers.md"), page(root, &commit, &rows)?)?;
    }
    Ok(())
}

/// Runs the step of CI.
pub(crate) fn step(root: &Path, tests: &mut Tests) -> Result<()> {
    run(root, tests).map(|_| ())
}

/// Runs the tests under each sanitizer. Returns the rows of the table.
fn run(root: &Path, tests: &mut Tests) -> Result<Vec<String>> {
    if let Err(why) = nightly(root, "rust-src")? {
        not_run::add(root, &format!("tests under sanitizers: {why}"));
        return Ok(Vec::new());
    }
    let mut rows = Vec::new();
    for Sanitizer { name, mistake, report } in SANITIZERS {
        println!("building for the sanitizer `{name}`");
        let planted = cargo(root, name, "-p vmalloc --test planted");
        must_report(planted, &format!("the sanitizer `{name}`"), mistake, report)?;
        for (targets, names) in PARTS {
            let (started, before) = (Instant::now(), tests.passed);
            counted(cargo(root, name, targets).arg("--").args(names), tests)?;
            let (passed, time) = (tests.passed - before, duration(started.elapsed().as_secs_f64()));
            if passed == 0 {
                bail!("no test was run: {targets}");
            }
            let names = if names.is_empty() { "all".to_string() } else { names.join(", ") };
            rows.push(format!("| {name} | `{targets}` | {names} | {passed} | {time} |"));
        }
    }
    Ok(rows)
}

/// Returns cargo for tests under a sanitizer, a report of which ends them with an error.
fn cargo(root: &Path, sanitizer: &str, targets: &str) -> Cmd {
    full(nightly_cargo(root))
        .env("RUSTFLAGS", format!("-Zsanitizer={sanitizer}"))
        .env("TSAN_OPTIONS", "halt_on_error=1")
        .env("ASAN_OPTIONS", "detect_leaks=0")
        .args(["test", "--quiet", "--locked", "--no-fail-fast", "-Zbuild-std", "--target", TARGET])
        .arg("--target-dir")
        .arg(format!("target/sanitize/{sanitizer}"))
        .args(targets.split(' '))
}

fn page(root: &Path, commit: &str, rows: &[String]) -> Result<String> {
    let version =
        Cmd::new(root, "rustup").args(["run", "nightly", "rustc", "--version"]).read().unwrap_or_default();
    let mut page = format!(
        "# Under sanitizers\n\n\
         - command: `cargo xtask sanitize --out`; `cargo xtask ci --full` runs the same tests\n\
         - commit: {commit}\n\
         - machine: {}; {}\n\n\
         Tests of the crates of a process, with a standard library built for the sanitizer. No report is suppressed; the\n\
         head of `xtask/src/sanitize.rs` names the tests that are left out, and why. A time includes what was left to compile.\n\n",
        machine(root),
        version.trim()
    );
    for Sanitizer { name, mistake, report } in SANITIZERS {
        writeln!(page, "- reported, as it must be in each run: `{mistake}` by `{name}` (\"{report}\")")
            .context("a text cannot fail")?;
    }
    page.push_str("\n| sanitizer | tests | names | passed | time |\n|---|---|---|---:|---:|\n");
    for row in rows {
        writeln!(page, "{row}").context("a text cannot fail")?;
    }
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mistake_is_a_test_that_exists() {
        let planted = fs::read_to_string(crate::root().join("process/vmalloc/tests/planted.rs")).unwrap();
        for Sanitizer { mistake, .. } in SANITIZERS {
            assert!(planted.contains(&format!("fn {mistake}()")), "{mistake}");
        }
    }
}
