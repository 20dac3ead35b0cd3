//! The proof that the core needs no operating system: `examples/kernel`, linked without a C library, and run.
//!
//! Compiling for `no_std` proves little: a crate may still want symbols that only an operating system's library has. So
//! the core goes into a static library with a panic handler of its own, is linked with `-nostdlib` to a page of C that
//! starts a program and ends it by a system call, and is run: once to do its work, once to be seen failing.

use crate::sh::{Cmd, Show};
use anyhow::{Context, Result, bail};
use std::fs;
use std::path::Path;

/// What a panic in the freestanding program exits with (see `examples/kernel/start.c`).
const PANICKED: i32 = 101;

/// `cargo xtask kernel`.
pub(crate) fn main(root: &Path) -> Result<()> {
    let dir = root.join("examples/kernel");
    Cmd::cargo(&dir)
        .args(["build", "--quiet", "--locked", "--release", "--target-dir", "target"])
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
    Ok(())
}

/// Links the program: nothing but the core, the panic handler and `start.c`.
fn link(dir: &Path, name: &str, flags: &[&str]) -> Result<std::path::PathBuf> {
    let out = dir.join("target").join(name);
    Cmd::new(dir, "cc")
        .args(["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-ffreestanding", "-fno-builtin"])
        // Else the compiler turns the loop in memcpy into a call of memcpy.
        .args(["-fno-tree-loop-distribute-patterns", "-fno-stack-protector"])
        .args(["-nostdlib", "-static", "-no-pie", "-Wl,--gc-sections,--no-undefined,--build-id=none"])
        .args(flags)
        .args(["start.c", "target/release/libvmalloc_kernel.a", "-o"])
        .arg(&out)
        .run(Show::All)
        .context("the core does not link without a C library")?;
    Ok(out)
}
