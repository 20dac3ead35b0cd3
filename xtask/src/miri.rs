//! Tests of the crates with unsafe code under Miri, an interpreter of Rust that reports undefined behaviour: accesses to
//! freed or inaccessible memory, races, wrong references, uninitialized values.
//!
//! Miri makes no system calls. The crates of a process run over a simulated system there
//! (`process/vmalloc-os/src/os/sim.rs`), in which an access to memory that is not accessible is such an error, too. Files of
//! frames are simulated (`process/vmalloc-vmap/src/sim.rs`), and so is the `malloc` behind a preloaded library
//! (`process/vmalloc-preload/src/sim.rs`). The crates run for a processor without restartable sections, since Miri executes
//! no assembly.
//!
//! Threads interleave by a seed, and the tests of [`PARTS`] run with several. Mistakes that are planted in
//! `process/vmalloc/tests/planted.rs` show that Miri reports them: a run that accepts one has failed.

use crate::count::Tests;
use crate::machine::{commit, duration, machine};
use crate::not_run;
use crate::sh::{Cmd, Show, on_path};
use anyhow::{Context, Result, bail};
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::time::Instant;

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Only these crates
    #[arg(value_name = "CRATE")]
    only: Vec<String>,
    /// Seeds of the tests that have threads
    #[arg(long, default_value_t = SEEDS)]
    seeds: u32,
    /// Tree Borrows in place of Stacked Borrows
    #[arg(long)]
    tree: bool,
    /// Write results/miri.md
    #[arg(long)]
    out: bool,
}

/// The seeds of the step of CI: each takes some minutes of a processor.
const SEEDS: u32 = 2;

/// The processor: it has no restartable sections.
const TARGET: &str = "aarch64-unknown-linux-gnu";

/// Addresses become pointers by exposed provenance, as in any allocator whose metadata are numbers. Miri accepts that,
/// and checks that the pointer was exposed and is still valid; it would warn otherwise. Tests read the environment.
const FLAGS: &str = "-Zmiri-permissive-provenance -Zmiri-disable-isolation";

/// The other model of references. Stacked Borrows, the usual one, loses track of a pointer that was made of an address when
/// a reference is made of that. Tree Borrows does not, and takes twice the time.
const TREE: &str = "-Zmiri-tree-borrows";

/// Tests of one crate.
struct Part {
    krate: &'static str,
    /// Arguments of cargo that choose them.
    targets: &'static [&'static str],
    /// True if they have threads.
    threads: bool,
}

impl Part {
    const fn new(krate: &'static str, targets: &'static [&'static str], threads: bool) -> Self {
        Self { krate, targets, threads }
    }
}

/// The core on a machine that frees its memory at once, and the crates whose memory is the simulated system's.
const PARTS: [Part; 7] = [
    Part::new("va-peer", &["--test", "freed"], false),
    Part::new("vmalloc-os", &["--lib"], true),
    Part::new("vmalloc", &["--test", "small"], true),
    Part::new("vmalloc-percpu", &["--test", "small"], true),
    Part::new("vmalloc-vmap", &["--test", "small"], true),
    Part::new("vmalloc-capi", &["--test", "small"], true),
    Part::new("vmalloc-preload", &["--lib"], true),
];

/// Mistakes that Miri must report, a part of its report, and the model. By Tree Borrows a pointer to one page may be used
/// for any other page of its mapping that was never accessible, by Stacked Borrows not.
const PLANTED: [(&str, &str, &str); 3] = [
    ("a_write_to_an_area_that_was_freed", "Undefined Behavior", TREE),
    ("a_read_above_the_frontier", "Undefined Behavior", ""),
    ("two_threads_write_to_an_area", "Data race", TREE),
];

/// Runs `cargo xtask miri`.
pub(crate) fn main(root: &Path, args: &Args) -> Result<()> {
    if let Some(name) = args.only.iter().find(|name| !PARTS.iter().any(|part| part.krate == **name)) {
        bail!("no tests of {name}; there are those of: {}", PARTS.map(|part| part.krate).join(", "));
    }
    let commit = commit(root);
    let rows = run(root, args, &mut Tests::default())?;
    // Without a nightly compiler nothing was run, and the page stays.
    if args.out && !rows.is_empty() {
        fs::write(root.join("results/miri.md"), page(root, &commit, args.seeds, &rows)?)?;
    }
    Ok(())
}

/// Runs the step of CI.
pub(crate) fn step(root: &Path, tests: &mut Tests) -> Result<()> {
    run(root, &Args { only: Vec::new(), seeds: SEEDS, tree: false, out: false }, tests).map(|_| ())
}

/// Returns the nightly cargo with a component, or the reason why there is none.
pub(crate) fn nightly(root: &Path, component: &str) -> Result<std::result::Result<(), String>> {
    if !on_path("rustup") {
        return Ok(Err("rustup is not installed".to_string()));
    }
    let list = ["component", "list", "--installed", "--toolchain", "nightly"];
    let mut has = false;
    let ended = Cmd::new(root, "rustup").args(list).lines(Show::Nothing, |line| {
        has |= line == component || line.starts_with(&format!("{component}-"));
    })?;
    Ok(if ended.code != Some(0) {
        Err("there is no nightly compiler".to_string())
    } else if has {
        Ok(())
    } else {
        Err(format!("the nightly compiler has no {component}"))
    })
}

/// Returns the cargo of the nightly compiler. The path of this program has another cargo before that of rustup.
pub(crate) fn nightly_cargo(root: &Path) -> Cmd {
    Cmd::new(root, "rustup").args(["run", "nightly", "cargo"])
}

/// Runs the tests of the crates, all if none is named. Returns the rows of the table.
fn run(root: &Path, args: &Args, tests: &mut Tests) -> Result<Vec<String>> {
    let (only, seeds, model) = (&args.only, args.seeds, if args.tree { TREE } else { "" });
    for component in ["miri", "rust-src"] {
        if let Err(why) = nightly(root, component)? {
            not_run::add(root, &format!("tests under Miri: {why}"));
            return Ok(Vec::new());
        }
    }
    let mut rows = Vec::new();
    for part in PARTS.iter().filter(|part| only.is_empty() || only.iter().any(|name| name == part.krate)) {
        let seeds = if part.threads { seeds } else { 1 };
        let started = Instant::now();
        let (mut ran, mut ignored) = (Tests::default(), 0);
        let cmd = miri(root, part.krate, part.targets, &format!("{model} -Zmiri-many-seeds=0..{seeds}"));
        let ended = cmd.lines(Show::All, |line| {
            ran.read(line);
            ignored += ignored_in(line);
        })?;
        *tests += ran;
        ended.success()?;
        if ran.failed > 0 || ran.passed == 0 {
            bail!("{}: {} tests passed, {} failed", part.krate, ran.passed, ran.failed);
        }
        let time = duration(started.elapsed().as_secs_f64());
        let each = u64::from(seeds);
        let (targets, passed) = (part.targets.join(" "), ran.passed / each);
        rows.push(format!(
            "| `{}` | `{targets}` | {passed} | {} | {seeds} | {time} |",
            part.krate,
            ignored / each
        ));
    }
    if only.is_empty() || only.iter().any(|name| name == "vmalloc") {
        for (mistake, report, model) in PLANTED {
            must_report(miri(root, "vmalloc", &["--test", "planted"], model), "Miri", mistake, report)?;
        }
    }
    Ok(rows)
}

/// Runs a mistake that is planted, and fails unless the checker ends it with a report that has a text.
pub(crate) fn must_report(cmd: Cmd, checker: &str, mistake: &str, report: &str) -> Result<()> {
    let mut reported = false;
    let cmd = cmd.args(["--", "--ignored", "--exact", mistake]);
    let ended = cmd.lines(Show::Nothing, |line| reported |= line.contains(report))?;
    if ended.code == Some(0) || !reported {
        bail!("{checker} does not report the mistake {mistake}: {report}");
    }
    println!("reported, as it must be: {mistake}");
    Ok(())
}

fn miri(root: &Path, krate: &str, targets: &[&str], flags: &str) -> Cmd {
    nightly_cargo(root)
        .env("MIRIFLAGS", format!("{FLAGS} {flags}"))
        .args(["miri", "test", "--quiet", "--locked", "--target", TARGET])
        .args(["--target-dir", "target/miri", "-p", krate])
        .args(targets)
}

/// Returns the number of ignored tests in a line that closes a run.
fn ignored_in(line: &str) -> u64 {
    let Some(rest) = line.strip_prefix("test result: ") else { return 0 };
    let ignored = rest.split("; ").find_map(|part| part.strip_suffix(" ignored"));
    ignored.and_then(|number| number.parse().ok()).unwrap_or(0)
}

fn page(root: &Path, commit: &str, seeds: u32, rows: &[String]) -> Result<String> {
    let version = nightly_cargo(root).args(["miri", "--version"]).read().unwrap_or_default();
    let planted = PLANTED.map(|(mistake, report, _)| format!("`{mistake}` ({report})")).join(", ");
    let mut page = format!(
        "# Under Miri\n\n\
         - command: `cargo xtask miri --seeds {seeds} --out`; `cargo xtask ci --full` runs the same with {SEEDS} seeds\n\
         - commit: {commit}\n\
         - machine: {}; {}\n\
         - flags: `{FLAGS} -Zmiri-many-seeds=0..N`, target `{TARGET}`\n\n\
         Tests of the crates with unsafe code, interpreted by Miri. The crates of a process run over the simulated system of\n\
         `process/vmalloc-os/src/os/sim.rs`, whose head says what it can see and what it cannot. Each seed has other\n\
         interleavings. A time includes what was left to compile.\n\n\
         Reported by Miri, as it must be in each run: {planted}.\n\n\
         | crate | tests | passed | ignored | seeds | time |\n|---|---|---:|---:|---:|---:|\n",
        machine(root),
        version.trim()
    );
    for row in rows {
        writeln!(page, "{row}").context("a text cannot fail")?;
    }
    page.push_str(NOTES);
    Ok(page)
}

/// Text below the table.
const NOTES: &str = include_str!("miri_notes.md");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_tests_are_counted() {
        let line =
            "test result: ok. 12 passed; 0 failed; 3 ignored; 0 measured; 0 filtered out; finished in 0.00s";
        assert_eq!((ignored_in(line), ignored_in("3 ignored; 4 ignored")), (3, 0));
    }

    #[test]
    fn an_unknown_crate_is_an_error_and_no_run_of_others() {
        let args = Args { only: vec!["vmalloc2".to_string()], seeds: 1, tree: false, out: false };
        let error = main(Path::new("/nowhere"), &args).unwrap_err().to_string();
        assert!(
            error.starts_with("no tests of vmalloc2; there are those of: va-peer, vmalloc-os"),
            "{error}"
        );
    }

    #[test]
    fn each_part_is_a_crate_of_the_tree() {
        let crates = crate::crates(&crate::root()).unwrap();
        assert!(PARTS.iter().all(|part| crates.contains_key(part.krate)));
    }
}
