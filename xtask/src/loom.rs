//! Tests of interleavings, under `--cfg loom`.

use crate::cargo::counted;
use crate::count::Tests;
use crate::sh::{Cmd, Show};
use anyhow::{Result, bail};
use std::fs;
use std::path::{Path, PathBuf};

/// Loom's variable that limits the preemptions of all models. Each further one multiplies the interleavings.
const PREEMPTIONS: &str = "LOOM_MAX_PREEMPTIONS";

/// The preemptions of the short form.
pub(crate) const FEW: &str = "2";

/// The models that take minutes otherwise: the most preemptions that the short form has for them, and their names,
/// which no two crates share. Those of `va-space` have one in full. Without any, threads still change where they block.
const LONG: [(&str, &[&str]); 2] = [
    (
        "1",
        &[
            "loom::a_late_second_free_never_hits_another_mapping",
            "loom::a_late_second_free_never_hits_another_mapping_beside_one_that_lives",
            "loom::the_last_free_of_a_block_against_that_of_the_next_block_there",
        ],
    ),
    (
        "0",
        &[
            "loom::a_failure_is_not_remembered_past_a_return",
            "loom::a_magazine_that_refills_against_one_that_is_drained",
            "loom::sp2_a_pair_of_an_owner_against_a_drain_of_its_magazine",
        ],
    ),
];

/// Runs the step of CI: the models with at most two preemptions, which suffice for most faults, and the [`LONG`] ones
/// with fewer.
pub(crate) fn run(root: &Path, tests: &mut Tests) -> Result<()> {
    within(root, tests, true)
}

/// Runs the step in full, and `cargo xtask loom`: with as many preemptions as each model has. And each library compiles
/// against loom, since the flag of a program that has models is also that of all crates below it.
pub(crate) fn full(root: &Path, tests: &mut Tests) -> Result<()> {
    within(root, tests, false)?;
    cargo(root, "check").args(["--workspace", "--lib"]).run(Show::All)
}

/// Runs every crate's loom tests.
fn within(root: &Path, tests: &mut Tests, short: bool) -> Result<()> {
    let modelled = modelled(root)?;
    let before = tests.passed;
    // Of all crates in one command, so that what they share is compiled with the same features, once.
    let packages = modelled.iter().flat_map(|krate| ["-p", krate]);
    let models = || cargo(root, "test").args(["--release", "--no-fail-fast", "--lib"]).args(packages.clone());
    if short {
        short_form(&models, tests)?;
    } else {
        counted(models().arg("loom"), tests)?;
    }
    if tests.passed == before {
        bail!("{} promise loom tests, and none ran", modelled.join(", "));
    }
    Ok(())
}

/// Runs all models but the [`LONG`] ones with at most two preemptions, and those with fewer.
fn short_form(models: &dyn Fn() -> Cmd, tests: &mut Tests) -> Result<()> {
    let long = LONG.iter().flat_map(|(.., long)| long.iter());
    let skipped = long.flat_map(|model| ["--skip", model]);
    counted(within_few(models().args(["loom", "--"]).args(skipped), FEW), tests)?;
    for (preemptions, long) in LONG {
        let before = tests.passed;
        counted(within_few(models().args(["--", "--exact"]).args(long), preemptions), tests)?;
        if tests.passed - before != long.len() as u64 {
            bail!("a model of the list in xtask/src/loom.rs is in no crate");
        }
    }
    Ok(())
}

/// Limits the preemptions of a command that runs models. The time of few interleavings is that of the compiler, so the
/// models are not optimised. Loom is in any case, by its own settings.
pub(crate) fn within_few(cmd: Cmd, preemptions: &str) -> Cmd {
    cmd.env("CARGO_PROFILE_RELEASE_OPT_LEVEL", "0").env(PREEMPTIONS, preemptions)
}

fn cargo(root: &Path, command: &str) -> Cmd {
    // A folder of its own: the flag would otherwise cause a rebuild of everything, here and afterwards.
    Cmd::cargo(root).env("RUSTFLAGS", "--cfg loom").args([
        command,
        "--quiet",
        "--locked",
        "--target-dir",
        "target/loom",
    ])
}

/// Returns the crates with tests under loom.
fn modelled(root: &Path) -> Result<Vec<String>> {
    let mut found = Vec::new();
    for (name, dir) in crate::crates(root)? {
        let in_src = dir.join("src/loom").is_dir() || dir.join("src/loom.rs").is_file();
        if in_src || files(&dir.join("tests")).iter().any(|file| starts_with_loom(file)) {
            found.push(name);
        }
    }
    Ok(found)
}

fn files(dir: &Path) -> Vec<PathBuf> {
    fs::read_dir(dir).map(|entries| entries.flatten().map(|entry| entry.path()).collect()).unwrap_or_default()
}

fn starts_with_loom(file: &Path) -> bool {
    file.file_name().is_some_and(|name| name.to_string_lossy().starts_with("loom"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crates_with_something_under_loom_are_found() {
        let dir = tempfile::tempdir().unwrap();
        for folder in ["core/a/src/loom", "process/b/tests", "core/c/src"] {
            fs::create_dir_all(dir.path().join(folder)).unwrap();
        }
        fs::write(dir.path().join("process/b/tests/loom_stack.rs"), "").unwrap();
        fs::write(dir.path().join("core/c/src/bloom.rs"), "").unwrap();
        assert_eq!(modelled(dir.path()).unwrap(), ["a", "b"]);
    }
}
