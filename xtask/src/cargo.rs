//! Cargo as the steps run it: the selections in which the workspace is tested, and the programs that they build.

use crate::count::Tests;
use crate::sh::{Cmd, Show};
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};

/// Returns cargo for packages that are compiled once: files for a second, incremental build would cost more than the
/// compilation. In one unit a test takes a quarter less CPU time to compile than in the usual 16, and both cores are busy
/// with others. Without lines for a debugger it takes a sixth less: a panic names its line all the same.
pub(crate) fn cargo(root: &Path) -> Cmd {
    let compiled_once = [
        ("CARGO_INCREMENTAL", "0"),
        ("CARGO_PROFILE_TEST_CODEGEN_UNITS", "1"),
        ("CARGO_PROFILE_TEST_DEBUG", "none"),
    ];
    compiled_once.into_iter().fold(Cmd::cargo(root), |cmd, (name, value)| cmd.env(name, value))
}

/// Returns a command whose tests do all of their operations, and are optimised for them. Others do a fifth: see
/// `va_sim::effort`.
pub(crate) fn full(cmd: Cmd) -> Cmd {
    cmd.env("VMALLOC_TESTS", "full").env("CARGO_PROFILE_TEST_OPT_LEVEL", "2")
}

/// The manifests of all workspaces of the tree.
pub(crate) const WORKSPACES: [&str; 6] = [
    "Cargo.toml",
    "fuzz/Cargo.toml",
    "adopt/guest/Cargo.toml",
    "adopt/sizes/Cargo.toml",
    "adopt/faces/Cargo.toml",
    "adopt/linux/Cargo.toml",
];

/// Runs a command that runs tests, and counts them. A failed test is an error whatever status the command returns.
pub(crate) fn counted(cmd: Cmd, tests: &mut Tests) -> Result<()> {
    let mut ran = Tests::default();
    let ended = cmd.lines(Show::All, |line| ran.read(line));
    *tests += ran;
    if ran.failed > 0 {
        bail!("{} tests passed, {} failed", ran.passed, ran.failed);
    }
    ended?.success()
}

/// By its name it would belong to the core. It depends on `vmalloc-os`, which would be compiled once more for it.
pub(crate) const OVER_THE_CORE: &str = "va-peer";

/// The feature of a core that walks its invariants after its changes.
pub(crate) const WALKING: &str = "va-tree/validate";

/// Returns the two selections in which the workspace is tested, as arguments of cargo.
pub(crate) fn selections(core: &[String]) -> [Vec<&str>; 2] {
    let core = || core.iter().filter(|name| *name != OVER_THE_CORE);
    let rest: Vec<_> = core().flat_map(|name| ["--exclude", name]).collect();
    let these: Vec<_> = core().flat_map(|name| ["-p", name]).collect();
    // `--features validate` alone would fail for crates that lack it.
    [
        [&["--workspace"], &rest[..], &["--features", TESTED]].concat(),
        [&these[..], &["--features", WALKING]].concat(),
    ]
}

/// The features that have tests of their own. Documentation is tested with them as well, so that nothing is recompiled.
pub(crate) const TESTED: &str = "vmalloc/metrics,vmalloc-vmap/metrics,vmlab/measure";

/// Returns the folder of the programs that the tests run, built for them. The program alone would be built with the
/// features that it needs and not with those of the tests, and the laboratory a second time.
pub(crate) fn tested_programs(root: &Path) -> Result<PathBuf> {
    let core = crate::core_crates(root)?;
    let [rest, _] = selections(&core);
    let programs = built_programs(root, "test --no-run", &rest, &["--test", "cli"])?;
    let path = programs.into_iter().map(|(_, path)| PathBuf::from(path)).find(|path| path.ends_with("vmlab"));
    let folder = path.and_then(|path| Some(path.parent()?.to_path_buf()));
    folder.context("there is no program vmlab")
}

/// Builds `targets` as for tests by a command of cargo, and returns the source and the program of each.
pub(crate) fn built_programs(
    root: &Path,
    command: &str,
    args: &[&str],
    targets: &[&str],
) -> Result<Vec<(String, String)>> {
    let mut programs = Vec::new();
    let cmd = cargo(root)
        .args(command.split(' '))
        .arg("--locked")
        .args(targets)
        .args(["--message-format", "json-render-diagnostics"]);
    let mut found = |line: &str| programs.extend(program(line));
    let ended = cmd.args(args).lines(Show::Nothing, |line| {
        found(line);
        // Messages of the compiler are not JSON.
        if !line.starts_with('{') && !line.trim_start().starts_with("Compiling ") {
            println!("{line}");
        }
    });
    ended?.success()?;
    Ok(programs)
}

/// Returns the source of the target, and the program, if a line of cargo's names one.
fn program(line: &str) -> Option<(String, String)> {
    let message: serde_json::Value = serde_json::from_str(line).ok()?;
    let target = message.get("target")?;
    let mut kinds = target.get("kind")?.as_array()?.iter();
    let is_one = kinds.any(|kind| kind == "example" || kind == "bin");
    let path = message.get("executable")?.as_str()?;
    is_one.then_some((target.get("src_path")?.as_str()?.to_string(), path.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_is_found_in_the_output_of_cargo() {
        let line = r#"{"reason":"compiler-artifact","target":{"kind":["example"],"src_path":"x/b.rs"},"executable":"x/b"}"#;
        assert_eq!(program(line), Some(("x/b.rs".to_string(), "x/b".to_string())));
        assert_eq!(program(&line.replace("example", "bin")).unwrap().1, "x/b");
        assert_eq!(program(&line.replace("example", "lib")), None);
        assert_eq!(program(&line.replace("\"x/b\"", "null")), None);
        assert_eq!(program("warning: {"), None);
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
