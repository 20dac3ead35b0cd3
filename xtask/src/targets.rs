//! Checks that the crates compile for the processors that they promise, and with the compilers that they promise.
//!
//! | crates | processors | compiler |
//! |---|---|---|
//! | the core | 64 and 32 bits, both byte orders, with a system and without | its `rust-version` |
//! | the index, `va-tree` | also those without a system that have few atomics or none | that of the core |
//! | those of a process | Linux on four kinds of machine, glibc and musl | their `rust-version` |
//! | the ports to kernels, `ports` | one without a system | that of the workspace |
//!
//! A target or a compiler that is not installed is reported. The usual run of CI tries the targets of [`SHORT`], and
//! `--full` all of them, for which it asks rustup first.

use crate::count::Tests;
use crate::not_run;
use crate::package;
use crate::sh::{Cmd, Show, on_path};
use anyhow::{Result, bail};
use std::collections::BTreeMap;
use std::path::Path;

/// Processors of the core.
const CORE: [&str; 7] = [
    "x86_64-unknown-none",
    "aarch64-unknown-none",
    "riscv64gc-unknown-none-elf",
    "i686-unknown-linux-gnu",
    "armv7-unknown-linux-gnueabihf",
    "wasm32-unknown-unknown",
    "s390x-unknown-linux-gnu",
];
/// Those of the index as well: the first exchanges 32 bits atomically, the second nothing.
const INDEX: [&str; 2] = ["thumbv7em-none-eabihf", "riscv32imc-unknown-none-elf"];
const INDEX_CRATES: [&str; 2] = ["va-base", "va-tree"];
/// Those of the crates of a process.
const PROCESS: [&str; 3] =
    ["aarch64-unknown-linux-gnu", "riscv64gc-unknown-linux-gnu", "x86_64-unknown-linux-musl"];

/// That of the ports to kernels, in each run.
const PORTS: [&str; 1] = ["x86_64-unknown-none"];
const PORTS_CRATES: [&str; 1] = ["ports"];

/// The crates of a process that are libraries of C.
const FOR_C: [&str; 2] = ["vmalloc-capi", "vmalloc-preload"];
/// Those of the usual run: no system, words of 32 bits, the other byte order, no atomics, the other C library.
const SHORT: [&str; 5] = [
    PORTS[0],
    "i686-unknown-linux-gnu",
    "s390x-unknown-linux-gnu",
    "riscv32imc-unknown-none-elf",
    "x86_64-unknown-linux-musl",
];

/// Runs the step of CI.
pub(crate) fn step(root: &Path, _: &mut Tests) -> Result<()> {
    check(root, false)
}

/// Runs the step in full, and `cargo xtask targets`.
pub(crate) fn full(root: &Path, _: &mut Tests) -> Result<()> {
    check(root, true)
}

fn check(root: &Path, full: bool) -> Result<()> {
    let mut packages = package::published(root)?;
    packages.retain(|package| ["core", "process"].iter().any(|folder| package.is_in(&root.join(folder))));
    let (core, process): (Vec<_>, Vec<_>) =
        packages.iter().map(|package| package.name.as_str()).partition(|name| name.starts_with("va-"));
    // Libraries of C have a panic handler of their own for one system.
    let process: Vec<_> = process.into_iter().filter(|name| !FOR_C.contains(name)).collect();
    if core.is_empty() || process.is_empty() {
        bail!("no published crates in core or in process");
    }
    let sysroot = Cmd::new(root, "rustc").args(["--print", "sysroot"]).read()?;
    let installed = Path::new(sysroot.trim()).join("lib/rustlib");
    let mut checked = 0;
    let groups: [(&[&str], &[&str]); 4] =
        [(&CORE, &core), (&INDEX, &INDEX_CRATES), (&PROCESS, &process), (&PORTS, &PORTS_CRATES)];
    for (targets, crates) in groups {
        for target in targets.iter().filter(|target| full || SHORT.contains(target)) {
            if has_target(root, &installed, target, full)? {
                compile(root, None, Some(target), crates, &[])?;
                if targets == INDEX {
                    compile(root, None, Some(target), crates, &["--all-features"])?;
                }
                checked += 1;
            } else {
                not_run::add(root, &format!("{} for {target}: it is not installed", crates.join(", ")));
            }
        }
    }
    let mut versions: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for package in &packages {
        let version = package.rust_version.as_deref().unwrap_or_default();
        versions.entry(version).or_default().push(&package.name);
    }
    for (version, crates) in versions {
        if let Some(compiler) = compiler(root, version, full)? {
            compile(root, Some(&compiler), None, &crates, &[])?;
            checked += 1;
        } else {
            not_run::add(root, &format!("{} with Rust {version}: it is not installed", crates.join(", ")));
        }
    }
    println!("targets: {checked} targets and compilers");
    Ok(())
}

fn compile(
    root: &Path,
    compiler: Option<&str>,
    target: Option<&str>,
    crates: &[&str],
    more: &[&str],
) -> Result<()> {
    let mut cmd = match compiler {
        Some(name) => Cmd::new(root, "rustup").args(["run", name, "cargo"]),
        None => Cmd::cargo(root),
    };
    cmd = cmd.args(["check", "--quiet", "--locked", "--target-dir", "target/targets"]).args(more);
    if let Some(target) = target {
        cmd = cmd.args(["--target", target]);
    }
    cmd.args(crates.iter().flat_map(|&name| ["-p", name])).run(Show::Failure)
}

/// Returns true if a target is installed. With `asks`, asks rustup for one that is not.
pub(crate) fn is_installed(root: &Path, target: &str, asks: bool) -> Result<bool> {
    let sysroot = Cmd::new(root, "rustc").args(["--print", "sysroot"]).read()?;
    has_target(root, &Path::new(sysroot.trim()).join("lib/rustlib"), target, asks)
}

/// Runs clippy on `what` of the workspace in `dir`, for a target without a system, where that is installed.
pub(crate) fn lint(root: &Path, target: &str, dir: &Path, built: &Path, what: &[&str]) -> Result<()> {
    if !is_installed(root, target, false)? {
        return Ok(());
    }
    Cmd::cargo(dir)
        .args(["clippy", "--quiet", "--locked", "--release", "--target", target, "--target-dir"])
        .arg(built)
        .args(what)
        .args(["--", "-D", "warnings"])
        .run(Show::All)
}

/// Returns true if the standard library of a target, or the part that it has, is installed: in a folder of `installed`.
fn has_target(root: &Path, installed: &Path, target: &str, asks: bool) -> Result<bool> {
    let libraries = installed.join(target).join("lib");
    if !libraries.exists() && asks && on_path("rustup") {
        let added = Cmd::new(root, "rustup").args(["target", "add", target]).lines(Show::Failure, |_| {})?;
        return Ok(added.code == Some(0));
    }
    Ok(libraries.exists())
}

/// Returns rustup's name of a compiler of this version, if there is one.
fn compiler(root: &Path, version: &str, asks: bool) -> Result<Option<String>> {
    if !on_path("rustup") {
        return Ok(None);
    }
    let named = || -> Result<Option<String>> {
        let list = Cmd::new(root, "rustup").args(["toolchain", "list"]).read()?;
        let name = list.lines().find(|line| is_version(line, version));
        Ok(name.and_then(|line| Some(line.split_whitespace().next()?.to_string())))
    };
    if asks && named()?.is_none() {
        let install = ["toolchain", "install", version, "--profile", "minimal"];
        Cmd::new(root, "rustup").args(install).lines(Show::Failure, |_| {})?;
    }
    named()
}

/// Returns true if a line of rustup's list is a compiler of this version: `1.88.0-x86_64-unknown-linux-gnu`.
fn is_version(line: &str, version: &str) -> bool {
    line.strip_prefix(version).is_some_and(|rest| rest.starts_with(['.', '-']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_of_the_list_is_recognised() {
        assert!(is_version("1.88.0-x86_64-unknown-linux-gnu", "1.88"));
        assert!(is_version("1.88-x86_64-unknown-linux-gnu", "1.88"));
        assert!(!is_version("1.8-x86_64-unknown-linux-gnu", "1.88"));
        assert!(!is_version("1.880.0-x86_64-unknown-linux-gnu", "1.88"));
        assert!(!is_version("stable-x86_64-unknown-linux-gnu (active, default)", "1.95"));
    }

    #[test]
    fn a_target_that_does_not_exist_is_not_installed() {
        let installed = tempfile::tempdir().unwrap();
        let has = || has_target(Path::new("."), installed.path(), "pdp11-unknown-none", false).unwrap();
        assert!(!has());
        std::fs::create_dir_all(installed.path().join("pdp11-unknown-none/lib")).unwrap();
        assert!(has());
    }
}
