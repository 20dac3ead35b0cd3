//! The proof that the core needs no operating system: `check/freestanding`, linked without a C library, and run.
//! It also runs the port of `adopt/guest`, whose program that boots is linked here, and booted by [`crate::guest`].
//!
//! A `no_std` build proves little: a crate may still need symbols that only an operating system's library has. So the
//! core is built into a static library with a panic handler of its own. It is linked with `-nostdlib` to a page of C
//! that starts a program and ends it by a system call. The program runs twice: once to do its work, and once to show
//! that it can fail.

use crate::cargo::counted;
use crate::count::Tests;
use crate::guest;
use crate::sh::{Cmd, Show};
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::Path;

/// Exit status of a panic in the freestanding program (see `check/freestanding/start.c`).
const PANICKED: i32 = 101;

/// Runs `cargo xtask kernel`.
pub(crate) fn main(root: &Path, tests: &mut Tests) -> Result<()> {
    let dir = root.join("check/freestanding");
    every_crate_takes_part(root, &dir.join("Cargo.toml"))?;
    // A member of the guest's workspace, whose port it runs.
    Cmd::cargo(&root.join("adopt/guest"))
        .args(["build", "--quiet", "--locked", "--release", "--target-dir", "target", "-p", "freestanding"])
        .run(Show::All)?;
    let works = link(&dir, "selftest", &[])?;
    let ended = Cmd::new(&dir, &works).lines(Show::All, |_| {})?;
    match ended.code {
        Some(0) => {}
        Some(PANICKED) => bail!("the freestanding self test panicked"),
        Some(code) => bail!("the freestanding self test failed at check {code}"),
        None => return ended.success(),
    }
    let panics = link(&dir, "panic", &["-DPANIC"])?;
    let ended = Cmd::new(&dir, panics).lines(Show::All, |_| {})?;
    if ended.code != Some(PANICKED) {
        bail!("a panic in the freestanding program goes unnoticed: it exits with {:?}", ended.code);
    }
    let size = fs::metadata(works)?.len();
    println!(
        "no_std: a freestanding program of {size} bytes passes its self test, and is seen to fail when it panics"
    );
    // The parts of the port, with threads as CPUs.
    let port =
        Cmd::cargo(&root.join("adopt/guest")).args(["test", "--quiet", "--locked", "--target-dir", "target"]);
    counted(port.args(["-p", "freestanding", "--test", "port"]), tests)?;
    guest::is_short(root)?;
    if guest::program(root, false)?.is_some() {
        println!("no_std: adopt/guest links; cargo xtask guest boots it");
    }
    Ok(())
}

/// Fails if a crate that claims to need no system is not in the program, which would not prove it.
fn every_crate_takes_part(root: &Path, manifest: &Path) -> Result<()> {
    let manifest: toml::Table = toml::from_str(&fs::read_to_string(manifest)?)?;
    let dependencies = manifest.get("dependencies").and_then(toml::Value::as_table);
    for (name, dir) in crate::crates(root)?.into_iter().filter(|(name, _)| name.starts_with("va-")) {
        let head = fs::read_to_string(dir.join("src/lib.rs"))?;
        let promises = head.lines().any(|line| line.trim() == "#![no_std]");
        if promises && !dependencies.is_some_and(|table| table.contains_key(&name)) {
            bail!("{name} is #![no_std], but check/freestanding does not link it");
        }
    }
    Ok(())
}

/// Links the program: nothing but the core, the panic handler and `start.c`.
fn link(dir: &Path, name: &str, flags: &[&str]) -> Result<std::path::PathBuf> {
    let out = dir.join("../../adopt/guest/target").join(name);
    Cmd::new(dir, "cc")
        .args(["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-ffreestanding", "-fno-builtin"])
        // Otherwise the compiler turns the loop in memcpy into a call of memcpy.
        .args(["-fno-tree-loop-distribute-patterns", "-fno-stack-protector"])
        .args(["-nostdlib", "-static", "-no-pie", "-Wl,--gc-sections,--no-undefined,--build-id=none"])
        .args(flags)
        .args(["start.c", "../../adopt/guest/target/release/libfreestanding.a", "-o"])
        .arg(&out)
        .run(Show::All)
        .context("the core does not link without a C library")?;
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crate_that_the_program_leaves_out_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["va-a", "va-b", "other"] {
            let src = dir.path().join("core").join(name).join("src");
            fs::create_dir_all(&src).unwrap();
            fs::write(src.join("lib.rs"), if name == "va-b" { "#![no_std]\n" } else { "" }).unwrap();
        }
        let manifest = dir.path().join("Cargo.toml");
        fs::write(&manifest, "[dependencies]\nva-b = \"1\"\n").unwrap();
        every_crate_takes_part(dir.path(), &manifest).unwrap();
        fs::write(&manifest, "[dependencies]\n").unwrap();
        let error = every_crate_takes_part(dir.path(), &manifest).unwrap_err().to_string();
        assert!(error.starts_with("va-b is #![no_std]"), "{error}");
    }
}
