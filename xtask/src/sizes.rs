//! Code and stack of the core and of the ports, in programs without an operating system (`adopt/sizes`).
//!
//! The programs are built as a kernel that saves space builds them: `opt-level = "s"`, optimised as one, `panic =
//! "abort"`. Each makes the calls of one part alone, so its `.text` is what the linker keeps for them. Built again with
//! the feature `stack`, the programs for x86-64 run on Linux and measure the stack of each call.
//!
//! The goals are those of the issue that asked for this command. A bound is what was reached: `cargo xtask ci --full`
//! fails above it.

use crate::machine::{commit, machine};
use crate::sh::{Cmd, Show};
use crate::{not_run, targets};
use anyhow::{Context, Result, bail};
use std::fmt::Write;
use std::fs;
use std::path::Path;

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Write results/sizes.md
    #[arg(long)]
    out: bool,
}

const DIR: &str = "adopt/sizes";
const KERNEL: &str = "x86_64-unknown-none";
/// A processor with words of 32 bits, for the index alone.
const SMALL: &str = "thumbv7em-none-eabihf";
/// The most stack of a call, in bytes.
const STACK_MAX: usize = 4096;
/// The goal for the value of an index before its first piece of memory, in bytes.
const VALUE_GOAL: usize = 512;

/// A program.
struct Program {
    name: &'static str,
    calls: &'static str,
    /// The goal for its `.text` in KiB, if there is one.
    goal: Option<usize>,
    /// The most `.text` in KiB, without and with the feature `small`.
    bounds: (usize, usize),
    /// Built for the small processor, too.
    small: bool,
}

const fn program(
    name: &'static str,
    calls: &'static str,
    goal: Option<usize>,
    bounds: (usize, usize),
) -> Program {
    Program { name, calls, goal, bounds, small: false }
}

const PROGRAMS: [Program; 10] = [
    Program { small: true, ..program("empty", "no call: what every program has", None, (1, 1)) },
    Program { small: true, ..program("index", "`BTreeIndex`: `init`, `alloc`, `free`", Some(12), (36, 27)) },
    Program { small: true, ..program("index32", "`BTreeIndex32`: the same", Some(12), (36, 27)) },
    Program { small: true, ..program("index_flat", "`FlatIndex<24>`: the same", Some(12), (6, 6)) },
    Program { small: true, ..program("index_rb", "`RbIndex<Exact, _>`: the same", Some(12), (18, 14)) },
    Program {
        small: true,
        ..program("index_all", "`BTreeIndex`: also `alloc_highest`, `take`", None, (42, 32))
    },
    program("space", "`VmapSpace`: `init`, `alloc`, `free_at`, `purge`", Some(32), (80, 70)),
    program("hermit", "the port to Hermit", None, (50, 50)),
    program("asterinas", "the port to Asterinas", None, (40, 40)),
    program("svsm", "the port to COCONUT-SVSM", None, (42, 42)),
];

/// The sections of a program that the tables show.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Sections {
    text: usize,
    rodata: usize,
    data: usize,
}

/// A row of a running program: bytes, and what has them.
type Row = (usize, String);

/// Runs `cargo xtask sizes`.
pub(crate) fn main(root: &Path, args: &Args) -> Result<()> {
    let page = measure(root)?.context("the target x86_64-unknown-none is not installed")?;
    println!("{page}");
    if args.out {
        fs::write(root.join("results/sizes.md"), page)?;
    }
    Ok(())
}

/// Measures, and fails above a bound. For the step of CI.
pub(crate) fn check(root: &Path) -> Result<()> {
    match measure(root)? {
        Some(page) => page.lines().filter(|line| line.starts_with('|')).for_each(|line| println!("{line}")),
        None => not_run::add(root, &format!("sizes: {KERNEL} is not installed")),
    }
    Ok(())
}

fn measure(root: &Path) -> Result<Option<String>> {
    if !targets::is_installed(root, KERNEL, false)? {
        return Ok(None);
    }
    build_both(root, KERNEL)?;
    let mut over = Vec::new();
    let mut text = code_table(root, KERNEL, &mut over)?;
    if targets::is_installed(root, SMALL, false)? {
        build_both(root, SMALL)?;
        text += &format!("\n{SMALL}, of the index alone:\n\n{}", code_table(root, SMALL, &mut over)?);
    } else {
        not_run::add(root, &format!("sizes for {SMALL}: it is not installed"));
    }
    let runs = cfg!(all(target_arch = "x86_64", target_os = "linux"));
    if runs {
        build(root, KERNEL, &["--features", "stack", "--target-dir", "target/stack"])?;
        text += &run_tables(root, &mut over)?;
    } else {
        not_run::add(root, "sizes of stacks: the programs run on Linux on x86-64");
    }
    if !over.is_empty() {
        bail!("{}", over.join("\n"));
    }
    Ok(Some(page(root, &text)))
}

/// Builds the programs, and once more with the feature `small`.
fn build_both(root: &Path, target: &str) -> Result<()> {
    build(root, target, &["--target-dir", "target"])?;
    build(root, target, &["--features", "small", "--target-dir", "target/small"])
}

fn build(root: &Path, target: &str, args: &[&str]) -> Result<()> {
    let bins = PROGRAMS.iter().filter(|program| program.small || target == KERNEL);
    let mut cmd = Cmd::cargo(&root.join(DIR))
        .args(["build", "--quiet", "--locked", "--release", "--target", target])
        .args(bins.flat_map(|program| ["--bin", program.name]));
    if target == KERNEL {
        cmd = cmd.args(["--bin", "values"]);
    }
    // Linux loads the program without changes, so it has no relocations.
    cmd = cmd.env("CARGO_TARGET_X86_64_UNKNOWN_NONE_RUSTFLAGS", "-C relocation-model=static");
    cmd.args(args).run(Show::Failure)
}

/// Returns the table of the code of all programs for a processor. Adds each that exceeds its bound.
fn code_table(root: &Path, target: &str, over: &mut Vec<String>) -> Result<String> {
    let mut table = "| program | calls | `.text` | with `small` | `.rodata` | `.data` | goal for `.text` |\n\
                     |---|---|---:|---:|---:|---:|---|\n"
        .to_string();
    for program in PROGRAMS.iter().filter(|program| program.small || target == KERNEL) {
        let Program { name, calls, goal, bounds, .. } = program;
        let read = |folder: &str| {
            let path = root.join(DIR).join(folder).join(target).join("release").join(name);
            let read = Cmd::new(root, "readelf").args(["--sections", "--wide"]).arg(&path).read()?;
            Ok::<_, anyhow::Error>(sections(&read))
        };
        let (Sections { text, rodata, data }, small) = (read("target")?, read("target/small")?.text);
        let verdict = goal.map_or(String::new(), |goal| {
            let least = text.min(small);
            let with = if least < text && text > goal << 10 { " with `small`" } else { "" };
            format!("{}{with}", verdict(least, goal << 10, &format!("{goal} KiB")))
        });
        // Writing to a text cannot fail.
        let _ok =
            writeln!(table, "| `{name}` | {calls} | {text} | {small} | {rodata} | {data} | {verdict} |");
        for (text, bound, feature) in [(text, bounds.0, ""), (small, bounds.1, " and feature small")] {
            if text == 0 || text > bound << 10 {
                over.push(format!(
                    "{name} for {target}{feature} has {text} bytes of code, not 1 to {bound} KiB"
                ));
            }
        }
    }
    Ok(table)
}

fn verdict(bytes: usize, goal: usize, words: &str) -> String {
    let state = if bytes <= goal {
        "met".to_string()
    } else {
        format!("**missed**: {:.1} times", bytes as f64 / goal as f64)
    };
    format!("{words}, {state}")
}

/// Returns the sizes of sections in the output of `readelf --sections --wide`.
fn sections(text: &str) -> Sections {
    let mut found = Sections::default();
    for line in text.lines() {
        let Some((_, line)) = line.split_once("] ") else { continue };
        let mut words = line.split_whitespace();
        let (name, size) = (words.next().unwrap_or_default(), words.nth(3));
        let size = size.and_then(|size| usize::from_str_radix(size, 16).ok()).unwrap_or(0);
        // What a linker leaves apart is counted with its kind.
        let kind = [(".text", &mut found.text), (".rodata", &mut found.rodata), (".data", &mut found.data)];
        for (kind, sum) in kind {
            if name == kind || name.strip_prefix(kind).is_some_and(|rest| rest.starts_with('.')) {
                *sum += size;
            }
        }
    }
    found
}

/// Runs the programs, and returns the tables of stacks and values. Adds each stack that exceeds the bound.
fn run_tables(root: &Path, over: &mut Vec<String>) -> Result<String> {
    let mut table = format!(
        "\nStack of each call in bytes, the deepest of 20,000, with up to 4,000 areas. Each is below {STACK_MAX}:\n\n\
         | program | call | stack |\n|---|---|---:|\n"
    );
    for program in PROGRAMS.iter().filter(|program| program.name != "empty") {
        let rows = run(root, program.name)?;
        for (bytes, call) in &rows {
            let _ok = writeln!(table, "| `{}` | {call} | {bytes} |", program.name);
            if *bytes > STACK_MAX {
                over.push(format!("{call} of {} uses {bytes} bytes of stack", program.name));
            }
        }
    }
    table += "\nValues before their first piece of memory, in bytes:\n\n| value | bytes | goal |\n|---|---:|---|\n";
    for (bytes, name) in run(root, "values")? {
        let of_index = name.contains("Index") || name.contains("BTree");
        let goal = if of_index { verdict(bytes, VALUE_GOAL, &VALUE_GOAL.to_string()) } else { String::new() };
        let _ok = writeln!(table, "| {name} | {bytes} | {goal} |");
    }
    Ok(table)
}

fn run(root: &Path, name: &str) -> Result<Vec<Row>> {
    let path = root.join(DIR).join("target/stack").join(KERNEL).join("release").join(name);
    let text = Cmd::new(root, path).read()?;
    let rows = rows(&text);
    if rows.iter().all(|(bytes, _)| *bytes == 0) {
        bail!("{name} measured nothing: {text:?}");
    }
    Ok(rows)
}

/// Returns the rows that a program printed: a number and a name.
fn rows(text: &str) -> Vec<Row> {
    let row = |line: &str| {
        let (number, name) = line.split_once(' ')?;
        Some((number.parse().ok()?, name.trim().to_string()))
    };
    text.lines().filter_map(row).collect()
}

fn page(root: &Path, tables: &str) -> String {
    format!(
        "# Code and stack without an operating system\n\n\
         - command: `cargo xtask sizes --out`\n\
         - commit: {}\n\
         - machine: {}\n\n\
         Programs of `adopt/sizes`: `opt-level = \"s\"`, optimised as one, `panic = \"abort\"`, linked by rust-lld. A program\n\
         makes the calls of its row and no others, on input that the compiler does not know. Its own code, and the platform\n\
         over a static piece of memory, are included. Figures are bytes. The stack is that of a call with all that it\n\
         calls: it was filled with a pattern, and the deepest word that changed was found.\n\n\
         The feature `small` of `va-tree` compiles the lookup of a record once instead of at each use (decision 0076).\n\
         What is missed, and why:\n\n\
         - `BTreeIndex`, code: it has three kinds of records, and the code that allocates, adds and frees pieces of memory\n\
           is compiled for each. Splits, shares and rows of two kinds of nodes are the rest. A kernel that lacks the room\n\
           takes `RbIndex` with `small`, or `FlatIndex` where some dozens of holes are enough.\n\
         - The space: its index is a `BTreeIndex`. The states of areas and their purge are the rest.\n\
         - Values: the first records are inside a value, so that an index begins without memory. The tables of pieces of\n\
           each kind are, too. `FlatIndex` has neither.\n\n\
         {KERNEL}:\n\n{tables}",
        commit(root),
        machine(root)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sections_of_readelf_are_summed_by_kind() {
        let text = "  [Nr] Name              Type            Address          Off    Size   ES Flg Lk Inf Al\n  \
                    [ 0]                   NULL            0000000000000000 000000 000000 00      0   0  0\n  \
                    [ 1] .rodata           PROGBITS        0000000000200200 000200 000340 00  AM  0   0 64\n  \
                    [ 2] .text             PROGBITS        0000000000201540 000540 00883f 00  AX  0   0 16\n  \
                    [ 3] .text.cold        PROGBITS        0000000000201540 000540 000001 00  AX  0   0 16\n  \
                    [ 4] .textile          PROGBITS        0000000000201540 000540 000001 00  AX  0   0 16\n  \
                    [10] .data             PROGBITS        000000000020bdc0 008dc0 002718 00  WA  0   0 64\n";
        assert_eq!(sections(text), Sections { text: 0x8840, rodata: 0x340, data: 0x2718 });
        assert_eq!(sections(""), Sections::default());
    }

    #[test]
    fn the_rows_of_a_program_are_read() {
        let expected = vec![(128, "init".to_string()), (1424, "alloc, aligned".to_string())];
        assert_eq!(rows("00000128 init\nnoise\n00001424 alloc, aligned\n"), expected);
    }

    #[test]
    fn a_goal_is_met_or_missed() {
        assert_eq!(verdict(512, 512, "512"), "512, met");
        assert_eq!(verdict(1024, 512, "512"), "512, **missed**: 2.0 times");
    }
}
