//! Builds and runs the fuzz targets of `fuzz/` on a stable compiler.
//!
//! `cargo fuzz` needs a nightly compiler for the sanitizers. Without them, libFuzzer is guided by a coverage pass of
//! LLVM that a stable compiler has too. Overflow checks and assertions are on, and the core has no `unsafe` code for a
//! sanitizer to check.
//!
//! New inputs go to `fuzz/corpus-live`, which git ignores; a few good ones are saved in `fuzz/corpus` by hand and also
//! run as plain tests.

use crate::machine::duration;
use crate::sh::{Cmd, Show};
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::Path;
use std::time::Instant;

/// The only target on which libFuzzer's instrumentation was tried. Because it is named, build scripts stay without it.
const TRIPLE: &str = "x86_64-unknown-linux-gnu";

const RUSTFLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Ccodegen-units=1";

/// Inputs that one process tries of a target on the simulated machine, which never frees its tables.
const RUNS: [(&str, u32); 1] = [("block_ops", 8000)];

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The target (default: every one)
    target: Option<String>,
    /// Seconds for each
    #[arg(long, default_value_t = 60)]
    seconds: u64,
}

/// The result of fuzzing one target.
#[derive(Debug)]
pub(crate) struct Fuzzed {
    /// Inputs tried.
    pub(crate) executed: u64,
    /// Duration in seconds.
    pub(crate) seconds: f64,
    /// True if nothing was found.
    pub(crate) clean: bool,
}

/// Runs `cargo xtask fuzz`.
pub(crate) fn main(root: &Path, args: &Args) -> Result<()> {
    let all = targets(root)?;
    let chosen = match &args.target {
        None => all,
        Some(target) if all.contains(target) => vec![target.clone()],
        Some(target) => bail!("no fuzz target {target}; there are: {}", all.join(", ")),
    };
    build(root)?;
    run_all(root, &chosen, args.seconds)
}

/// Runs targets that are built, two at a time. Fails if one of them finds something.
pub(crate) fn run_all(root: &Path, targets: &[String], seconds: u64) -> Result<()> {
    let mut bad = Vec::new();
    for pair in targets.chunks(2) {
        let ends: Vec<_> = std::thread::scope(|scope| {
            let runs: Vec<_> = pair.iter().map(|target| scope.spawn(|| run(root, target, seconds))).collect();
            runs.into_iter().map(std::thread::ScopedJoinHandle::join).collect()
        });
        for (target, end) in pair.iter().zip(ends) {
            let Ok(fuzzed) = end else { bail!("the run of {target} panicked") };
            if !fuzzed?.clean {
                bad.push(target.as_str());
            }
        }
    }
    if !bad.is_empty() {
        bail!("fuzzing found something in: {} (inputs in fuzz/artifacts)", bad.join(", "));
    }
    Ok(())
}

/// Returns the targets: every file in `fuzz/fuzz_targets`.
pub(crate) fn targets(root: &Path) -> Result<Vec<String>> {
    let dir = root.join("fuzz/fuzz_targets");
    let mut targets = Vec::new();
    for entry in fs::read_dir(&dir).context("cannot read fuzz/fuzz_targets")? {
        let path = entry?.path();
        if path.extension().is_some_and(|end| end == "rs") {
            targets.extend(path.file_stem().map(|stem| stem.to_string_lossy().into_owned()));
        }
    }
    if targets.is_empty() {
        bail!("no fuzz target in fuzz/fuzz_targets");
    }
    targets.sort();
    Ok(targets)
}

/// Returns a cargo command on `fuzz/`, with the flags of fuzz targets.
fn cargo(root: &Path, command: &str) -> Cmd {
    Cmd::cargo(root)
        .env("RUSTFLAGS", RUSTFLAGS)
        .args([command, "--quiet", "--locked", "--release", "--manifest-path", "fuzz/Cargo.toml"])
        .args(["--target", TRIPLE, "--target-dir", "fuzz/target"])
}

/// Builds every target.
pub(crate) fn build(root: &Path) -> Result<()> {
    cargo(root, "build").run(Show::All)
}

/// Lints every target, without libFuzzer and without instrumentation.
pub(crate) fn lint(root: &Path) -> Result<()> {
    Cmd::cargo(root)
        .args([
            "clippy",
            "--quiet",
            "--locked",
            "--no-default-features",
            "--manifest-path",
            "fuzz/Cargo.toml",
        ])
        // What others have compiled for it already is there.
        .args(["--target-dir", "target", "--", "-D", "warnings"])
        .run(Show::All)
}

/// Runs one target, and shows its findings.
pub(crate) fn run(root: &Path, target: &str, seconds: u64) -> Result<Fuzzed> {
    let binary = root.join("fuzz/target").join(TRIPLE).join("release").join(target);
    let (live, artifacts) = (format!("fuzz/corpus-live/{target}"), format!("fuzz/artifacts/{target}/"));
    let saved = format!("fuzz/corpus/{target}");
    for dir in [&live, &artifacts, &saved] {
        fs::create_dir_all(root.join(dir)).with_context(|| format!("cannot make {dir}"))?;
    }
    let runs = RUNS.iter().find(|&&(name, _)| name == target).map_or(-1, |&(_, runs)| i64::from(runs));
    let started = Instant::now();
    let mut executed = 0;
    let code = loop {
        // 0 would mean no limit.
        let left = seconds.saturating_sub(started.elapsed().as_secs()).max(1);
        let mut here: u64 = 0;
        let ended = Cmd::new(root, &binary)
            .args([
                &format!("-max_total_time={left}"),
                &format!("-runs={runs}"),
                "-rss_limit_mb=2048",
                "-timeout=25",
                "-close_fd_mask=0",
            ])
            .args(["-print_final_stats=1", &format!("-artifact_prefix={artifacts}"), &live, &saved])
            .lines(Show::Failure, |line| {
                if let Some(number) = line.strip_prefix("stat::number_of_executed_units:") {
                    here = number.trim().parse().unwrap_or(0);
                }
            })?;
        executed += here;
        if ended.code != Some(0) || here == 0 || started.elapsed().as_secs() >= seconds {
            break ended.code;
        }
    };
    // A target that tried no input proves nothing.
    let clean = code == Some(0) && executed > 0;
    let fuzzed = Fuzzed { executed, seconds: started.elapsed().as_secs_f64(), clean };
    println!(
        "fuzz {target}: {} inputs in {}, {}",
        fuzzed.executed,
        duration(fuzzed.seconds),
        if clean { "nothing found" } else { "FAILED" }
    );
    Ok(fuzzed)
}
