//! The guest: `adopt/guest` boots in QEMU, once unchanged, and once for each way to break its flush.
//!
//! # Theory
//! QEMU's emulated CPUs keep a translation until a flush, as real ones do. So the guest reads another page's contents
//! if the core reuses an address too early, or if a flush does not reach every CPU. A run that passes proves little by
//! itself: the same program must fail with the flush left out, and with one CPU left out, by such a read.
//!
//! The guest ends by a device that makes QEMU's status odd. A status of 0 means that it fell out of its own code: a
//! triple fault ends QEMU so.

use crate::count::Tests;
use crate::files;
use crate::machine::{commit, machine};
use crate::not_run;
use crate::sh::{Cmd, Show, on_path};
use crate::targets;
use anyhow::{Context, Result, bail};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Write results/guest.md
    #[arg(long)]
    out: bool,
}

/// The target of the program, which has no system.
const TARGET: &str = "x86_64-unknown-none";
const QEMU: &str = "qemu-system-x86_64";
/// Seconds after which a run is ended. It takes one or two.
const LIMIT: &str = "60";
/// CPUs, memory, and no device but the serial port and the one that ends the program.
const MACHINE: &str = "-machine q35 -accel tcg,thread=multi -smp 4 -m 128M -nodefaults -no-user-config \
                       -display none -no-reboot -serial stdio -device isa-debug-exit,iobase=0xf4,iosize=0x04";

/// Most lines of Rust and assembly in the guest: all of them are to be read before they are copied.
const LINES_MAX: usize = 1200;

/// A run: the command line of the guest, QEMU's status, and the beginnings of lines that must be there.
struct Mode {
    name: &'static str,
    command_line: &'static str,
    code: i32,
    lines: &'static [&'static str],
}

/// A read through an old translation in each of the three cases.
const STALE_LINES: &[&str] =
    &["STALE read in an area: CPU ", "STALE read in a block: CPU ", "STALE read in per-CPU memory: CPU "];

const MODES: [Mode; 3] = [
    Mode { name: "the good run", command_line: "", code: 33, lines: &["GOOD "] },
    Mode { name: "without any flush", command_line: "flush=none", code: 35, lines: STALE_LINES },
    Mode { name: "with one CPU too few", command_line: "flush=skip-one", code: 35, lines: STALE_LINES },
];

/// The output of a run, and its end.
struct Ran {
    text: String,
    code: Option<i32>,
    seconds: f64,
}

/// Runs `cargo xtask guest`.
pub(crate) fn main(root: &Path, args: &Args) -> Result<()> {
    let Some(program) = program(root, true)? else { return Ok(()) };
    if !on_path(QEMU) {
        not_run::add(root, &format!("the guest: {QEMU} is not installed (qemu-system-x86)"));
        return Ok(());
    }
    let mut runs = Vec::new();
    for mode in &MODES {
        let ran = run(root, &program, mode)?;
        println!(
            "guest, {}: {}",
            mode.name,
            verdict(mode, &ran).map_or_else(|why| why, |()| "as expected".into())
        );
        runs.push((mode, ran));
    }
    if args.out {
        let version = Cmd::new(root, QEMU).arg("--version").read()?;
        fs::write(root.join("results/guest.md"), page(root, &version, &runs)?)?;
    }
    let wrong: Vec<_> = runs
        .iter()
        .filter_map(|(mode, ran)| verdict(mode, ran).err().map(|why| format!("{}: {why}", mode.name)))
        .collect();
    if !wrong.is_empty() {
        bail!("the guest, {}", wrong.join("; "));
    }
    Ok(())
}

/// Runs the step of `cargo xtask ci --full`.
pub(crate) fn step(root: &Path, _: &mut Tests) -> Result<()> {
    main(root, &Args { out: false })
}

/// Builds the program that boots, and returns its path. `None` where the target is not installed, which is reported.
pub(crate) fn program(root: &Path, asks: bool) -> Result<Option<PathBuf>> {
    if !targets::is_installed(root, TARGET, asks)? {
        not_run::add(root, &format!("the guest: the target {TARGET} is not installed (rustup target add)"));
        return Ok(None);
    }
    let dir = root.join("adopt/guest");
    Cmd::cargo(&dir)
        .args(["build", "--quiet", "--locked", "--release", "--target-dir", "target", "--target", TARGET])
        .args(["--bin", "guest"])
        .run(Show::All)
        .context("the guest does not build")?;
    Ok(Some(dir.join("target").join(TARGET).join("release/guest")))
}

/// Fails if the guest has more lines of Rust and assembly than it may have.
pub(crate) fn is_short(root: &Path) -> Result<()> {
    let is_source = |path: &str| path.ends_with(".rs") || path.ends_with(".s");
    let mut lines = 0;
    for (path, file) in files::walk(root)? {
        if path.starts_with("adopt/guest/") && is_source(&path) {
            lines += fs::read_to_string(file)?.lines().count();
        }
    }
    if lines == 0 || lines >= LINES_MAX {
        bail!("adopt/guest has {lines} lines of Rust and assembly, which is not below {LINES_MAX}");
    }
    println!("no_std: adopt/guest has {lines} lines of Rust and assembly");
    Ok(())
}

/// Runs clippy on the program that boots, where its target is installed: `no_std` reports it where it is not.
pub(crate) fn lint(root: &Path) -> Result<()> {
    let dir = root.join("adopt/guest");
    targets::lint(root, TARGET, &dir, &dir.join("target"), &["--bin", "guest"])
}

fn run(root: &Path, program: &Path, mode: &Mode) -> Result<Ran> {
    let started = Instant::now();
    let mut text = String::new();
    let ended = Cmd::new(root, "timeout")
        .args(["--kill-after", "5", LIMIT, QEMU])
        .args(MACHINE.split_whitespace())
        .arg("-kernel")
        .arg(program)
        .args(["-append", mode.command_line])
        .lines(Show::All, |line| {
            text.push_str(line);
            text.push('\n');
        })?;
    Ok(Ran { text, code: ended.code, seconds: started.elapsed().as_secs_f64() })
}

/// Compares a run with what its mode expects.
fn verdict(mode: &Mode, ran: &Ran) -> Result<(), String> {
    if ran.code != Some(mode.code) {
        let code = ran.code.map_or("no status".to_string(), |code| format!("status {code}"));
        return Err(format!("ends with {code}, not {}", mode.code));
    }
    let missing = mode.lines.iter().find(|&&begin| !ran.text.lines().any(|line| line.starts_with(begin)));
    missing.map_or(Ok(()), |begin| Err(format!("prints no line that begins with {:?}", begin.trim_end())))
}

fn page(root: &Path, version: &str, runs: &[(&Mode, Ran)]) -> Result<String> {
    let version = version.lines().next().unwrap_or_default();
    let mut page = format!(
        "# The guest\n\n- command: `cargo xtask guest --out`\n- commit: {}\n- machine: {}\n- QEMU: {version}, \
         `{}`\n\n`adopt/guest` runs areas, blocks and per-CPU memory on four CPUs over its own page tables. QEMU's \
         emulated CPUs\nkeep translations until a flush. So both broken runs must fail, by a read through an old one.\n",
        commit(root),
        machine(root),
        MACHINE.split_whitespace().collect::<Vec<_>>().join(" "),
    );
    for (mode, ran) in runs {
        let outcome =
            verdict(mode, ran).map_or_else(|why| format!("**wrong**: {why}"), |()| "as expected".into());
        let line = match mode.command_line {
            "" => String::new(),
            line => format!(", by `-append {line}`"),
        };
        let code = ran.code.map_or("none".to_string(), |code| code.to_string());
        writeln!(page, "\n## {}{}\n", mode.name[..1].to_uppercase(), &mode.name[1..])?;
        writeln!(
            page,
            "Status {code}{line}, after {:.1} s: {outcome}.\n\n```text\n{}```",
            ran.seconds, ran.text
        )?;
    }
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ran(code: i32, text: &str) -> Ran {
        Ran { text: text.to_string(), code: Some(code), seconds: 1.0 }
    }

    #[test]
    fn a_guest_that_is_too_long_is_found_and_what_it_builds_is_not_counted() {
        let dir = tempfile::tempdir().unwrap();
        let src = dir.path().join("adopt/guest/src");
        fs::create_dir_all(&src).unwrap();
        assert!(is_short(dir.path()).is_err(), "there is none");
        fs::write(src.join("main.rs"), "\n".repeat(LINES_MAX - 2)).unwrap();
        fs::write(src.join("boot.s"), "\n").unwrap();
        fs::write(src.join("page.md"), "\n\n").unwrap();
        is_short(dir.path()).unwrap();
        fs::write(src.join("boot.s"), "\n\n").unwrap();
        assert!(is_short(dir.path()).unwrap_err().to_string().contains("1200 lines"));
    }

    #[test]
    fn a_run_passes_by_its_status_and_its_lines_alone() {
        let [good, none, _] = &MODES;
        assert_eq!(verdict(good, &ran(33, "guest: 4\nGOOD 1 flush\n")), Ok(()));
        assert_eq!(verdict(good, &ran(0, "GOOD\n")), Err("ends with status 0, not 33".to_string()));
        assert!(verdict(good, &ran(33, "guest: 4\n")).is_err());
        let all = STALE_LINES.iter().map(|line| format!("{line}1\n")).collect::<String>();
        assert_eq!(verdict(none, &ran(35, &all)), Ok(()));
        assert!(verdict(none, &ran(33, "GOOD\n")).is_err(), "a broken guest that passes");
        assert!(verdict(none, &ran(37, &all)).is_err(), "one that fails otherwise");
        let two = STALE_LINES[..2].iter().map(|line| format!("{line}1\n")).collect::<String>();
        assert!(verdict(none, &ran(35, &two)).unwrap_err().contains("per-CPU memory"));
        assert!(verdict(none, &Ran { code: None, ..ran(0, "") }).unwrap_err().contains("no status"));
    }
}
