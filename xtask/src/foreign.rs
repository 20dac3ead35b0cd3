//! The tests of the core on other processors, under qemu-user: one with weak memory order, one with the other byte order.
//!
//! The tests are those of the host, without the walk of the invariants after each change, which an emulator makes too
//! long. They need cross compilers as linkers, and qemu: on Debian the packages `qemu-user`, `gcc-aarch64-linux-gnu`,
//! `gcc-s390x-linux-gnu`, `libc6-dev-arm64-cross` and `libc6-dev-s390x-cross`. qemu runs threads of one program in
//! parallel, but on this host's memory order. So interleavings stay the task of loom.

use crate::cargo::{cargo, counted, full};
use crate::count::Tests;
use crate::machine::{commit, duration, machine};
use crate::package;
use crate::sh::{Cmd, on_path};
use crate::{not_run, targets};
use anyhow::{Context, Result, bail};
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::time::Instant;

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Only these processors
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    only: Vec<String>,
    /// Write results/foreign.md
    #[arg(long)]
    out: bool,
}

/// A processor: the first word of the target, of the emulator and of the linker.
struct Processor {
    name: &'static str,
    what: &'static str,
}

const PROCESSORS: [Processor; 2] = [
    Processor { name: "aarch64", what: "64 bits" },
    Processor { name: "s390x", what: "64 bits, the other byte order" },
];

impl Processor {
    fn target(&self) -> String {
        format!("{}-unknown-linux-gnu", self.name)
    }

    fn linker(&self) -> String {
        format!("{}-linux-gnu-gcc", self.name)
    }

    fn emulator(&self) -> String {
        format!("qemu-{}", self.name)
    }

    /// Returns the variable of cargo for this target.
    fn variable(&self, key: &str) -> String {
        format!("CARGO_TARGET_{}_{key}", self.target().to_uppercase().replace('-', "_"))
    }

    /// Returns the reason why the tests cannot run, if there is one.
    fn lacks(&self, root: &Path) -> Result<Option<String>> {
        for tool in [self.emulator(), self.linker()] {
            if !on_path(&tool) {
                return Ok(Some(format!("{tool} is not installed")));
            }
        }
        let has = targets::is_installed(root, &self.target(), true)?;
        Ok((!has).then(|| format!("the target {} is not installed", self.target())))
    }

    /// Runs the tests of `crates`.
    fn test(&self, root: &Path, crates: &[String], tests: &mut Tests) -> Result<()> {
        let runner = format!("{} -L /usr/{}-linux-gnu", self.emulator(), self.name);
        let cmd = full(cargo(root))
            .env(&self.variable("LINKER"), self.linker())
            .env(&self.variable("RUNNER"), runner)
            .args(["test", "--quiet", "--locked", "--no-fail-fast", "--lib", "--tests"])
            .args(["--target", &self.target(), "--target-dir", "target/foreign"])
            .args(crates.iter().flat_map(|name| ["-p", name]));
        counted(cmd, tests)
    }
}

/// Runs `cargo xtask foreign`.
pub(crate) fn main(root: &Path, args: &Args) -> Result<()> {
    if let Some(name) = args.only.iter().find(|name| !PROCESSORS.iter().any(|known| known.name == **name)) {
        bail!("no processor {name}; there are: {}", PROCESSORS.map(|known| known.name).join(", "));
    }
    let commit = commit(root);
    let (rows, failed) = run(root, &args.only, &mut Tests::default())?;
    if args.out {
        fs::write(root.join("results/foreign.md"), page(root, &commit, &rows)?)?;
    }
    outcome(&failed)
}

/// Runs the step of CI.
pub(crate) fn step(root: &Path, tests: &mut Tests) -> Result<()> {
    let (_, failed) = run(root, &[], tests)?;
    outcome(&failed)
}

fn outcome(failed: &[String]) -> Result<()> {
    if !failed.is_empty() {
        bail!("{}", failed.join("\n"));
    }
    Ok(())
}

/// Runs the tests on each processor. Returns the rows of the table, and the failures.
fn run(root: &Path, only: &[String], tests: &mut Tests) -> Result<(Vec<String>, Vec<String>)> {
    let crates = core(root)?;
    let (mut rows, mut failed) = (Vec::new(), Vec::new());
    for processor in &PROCESSORS {
        if !only.is_empty() && !only.iter().any(|name| name == processor.name) {
            continue;
        }
        let target = processor.target();
        if let Some(why) = processor.lacks(root)? {
            not_run::add(root, &format!("the core's tests on {target}: {why}"));
            rows.push(format!("| `{target}` | {} | not run: {why} | | |", processor.what));
            continue;
        }
        let (started, before) = (Instant::now(), tests.passed);
        let ended = processor.test(root, &crates, tests);
        let (time, passed) = (duration(started.elapsed().as_secs_f64()), tests.passed - before);
        let word = if ended.is_ok() { "ok" } else { "failed" };
        rows.push(format!("| `{target}` | {} | {word} | {time} | {passed} |", processor.what));
        if let Err(error) = ended {
            failed.push(format!("{target}: {error:#}"));
        } else if passed == 0 {
            failed.push(format!("{target}: no test was run"));
        }
    }
    Ok((rows, failed))
}

/// Returns the names of the crates of the core.
fn core(root: &Path) -> Result<Vec<String>> {
    let folder = root.join("core");
    let packages = package::published(root)?;
    let names: Vec<_> =
        packages.into_iter().filter(|package| package.is_in(&folder)).map(|package| package.name).collect();
    if names.is_empty() { bail!("there are no crates in core") } else { Ok(names) }
}

fn page(root: &Path, commit: &str, rows: &[String]) -> Result<String> {
    let version = Cmd::new(root, PROCESSORS[0].emulator()).arg("--version").read().unwrap_or_default();
    let version = version.lines().next().unwrap_or("no qemu");
    let mut page = format!(
        "# On other processors\n\n\
         - command: `cargo xtask foreign --out`; `cargo xtask ci --full` runs the same tests\n\
         - commit: {commit}\n\
         - machine: {}; {version}\n\n\
         The tests of the core's crates, compiled for another processor and run by qemu-user. They are the tests of the\n\
         host, without the walk of the invariants after each change. A time includes what was left to compile.\n\n\
         | target | processor | outcome | time | tests passed |\n|---|---|---|---:|---:|\n",
        machine(root)
    );
    for row in rows {
        writeln!(page, "{row}").context("a text cannot fail")?;
    }
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_processor_has_its_tools_and_its_variables() {
        let [arm, z] = &PROCESSORS;
        assert_eq!(arm.variable("LINKER"), "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER");
        assert_eq!((z.emulator().as_str(), z.linker().as_str()), ("qemu-s390x", "s390x-linux-gnu-gcc"));
    }

    #[test]
    fn an_unknown_processor_is_an_error_and_no_run_of_others() {
        let args = Args { only: vec!["pdp11".to_string()], out: false };
        let error = main(Path::new("/nowhere"), &args).unwrap_err().to_string();
        assert_eq!(error, "no processor pdp11; there are: aarch64, s390x");
    }

    #[test]
    fn a_processor_without_its_tools_says_which() {
        let none = Processor { name: "pdp11", what: "16 bits" };
        assert_eq!(none.lacks(Path::new(".")).unwrap(), Some("qemu-pdp11 is not installed".to_string()));
    }
}
