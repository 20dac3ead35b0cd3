//! The core inside Linux 6.12: `adopt/linux` in a kernel of Debian's source, booted in QEMU.
//!
//! # Theory
//! The script takes the functions that decide addresses out of `mm/vmalloc.c`, and those that decide offsets out of
//! `mm/percpu.c`, by name (`lists`). It includes the glue of `adopt/linux/glue` in their place. No text of the kernel
//! is in this repository: it is read from Debian's package `linux-source-6.12` when a kernel is built. Where the
//! kernel's text moved, the script stops with the name that it did not find.
//!
//! A run boots one of two kernels that differ in this alone, with four CPUs. The program `init.sh` runs Linux's own
//! `lib/test_vmalloc.c`, or pairs of `get_vm_area` and `free_vm_area`. For the latter QEMU counts instructions
//! (`-icount shift=0`): a nanosecond of the guest is an instruction, whatever the load of this machine.

mod build;
mod cut;
mod dump;
mod events;
mod lists;
mod live;
mod loops;
mod profile;
mod replay;
mod trace;

use crate::count::Tests;
use crate::machine::{commit, machine};
use crate::not_run;
use crate::sh::{Cmd, Show};
use anyhow::{Context, Result, bail};
use build::{Config, Kernel, Kind, Percpu};
use std::fmt::Write;
use std::fs;
use std::path::Path;

#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    task: Task,
    /// The kernel as it comes, without the core
    #[arg(long, global = true)]
    stock: bool,
    /// The code that decides per-CPU offsets in the kernel with the core
    #[arg(long, global = true, value_enum, default_value = "core")]
    percpu: Percpu,
}

#[derive(clap::Subcommand, Debug)]
enum Task {
    /// Build the kernel
    Build,
    /// Build it, boot it, and show what it says
    Boot,
    /// Run lib/test_vmalloc.c in it
    Test {
        /// quick, all, stress, hotplug or load
        #[arg(long, default_value = "quick")]
        suite: String,
        /// Loops of a test, or minutes of load, at most 25: forks, namespaces, mounts, BPF and a module
        #[arg(long, default_value_t = 100)]
        loops: u32,
        /// CPUs of the machine, at most 64
        #[arg(long, default_value_t = 4)]
        cpus: u32,
    },
    /// Count the instructions of pairs on both kernels, and with more than one thread take the time, too; --out writes
    /// results/linux.md, or linux-threads.md
    Bench {
        /// Threads that call at a time
        #[arg(long, default_value_t = 1)]
        threads: u32,
        #[command(flatten)]
        pairs: Pairs,
    },
    /// Count the instructions of pairs by function on both kernels; --out writes results/linux-profile.md
    Profile(Pairs),
    /// Count the instructions of each test of lib/test_vmalloc.c on both kernels; --out writes results/linux-loops.md
    Loops(loops::Args),
    /// Record durations and waits for locks in kernels with probes, under a load; --out writes results/latency.md
    Trace(trace::Args),
    /// Dump a kernel's memory, and show its areas, pools, blocks and per-CPU chunks by drgn; --out writes
    /// results/dump.md
    Dump(dump::Args),
    /// Record the events of kernels that others built, and replay each under the policy of each version; --out writes
    /// data/debian-* and results/policies.md
    Events(events::Args),
    /// Record every call of the core in a kernel that boots, with one CPU and with four, and replay them by vmlab; --out
    /// writes results/linux-replay.md
    Replay(replay::Args),
    /// Run lib/test_vmalloc.c in a kernel with KASAN and lockdep
    Debug {
        /// quick, all, stress, hotplug, faults or leaks
        #[arg(long, default_value = "quick")]
        suite: String,
        /// Loops of a test
        #[arg(long, default_value_t = 1)]
        loops: u32,
        /// CPUs of the machine, at most 64
        #[arg(long, default_value_t = 4)]
        cpus: u32,
        /// Five levels of page tables in place of four
        #[arg(long)]
        five_levels: bool,
    },
}

/// A measurement of pairs.
#[derive(clap::Args, Debug)]
struct Pairs {
    /// Pairs of each pattern
    #[arg(long, default_value_t = 20_000)]
    loops: u32,
    /// Boots of each kernel
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    #[arg(long)]
    out: bool,
}

/// Runs `cargo xtask linux`.
pub(crate) fn main(root: &Path, args: &Args) -> Result<()> {
    let missing = build::missing();
    if !missing.is_empty() {
        bail!("to build a kernel, install {}", missing.join(" "));
    }
    let config = match args.task {
        Task::Debug { .. } => Config::Debug,
        Task::Trace(_) => Config::Trace,
        // Its kernel has namespaces, mounts and BPF.
        Task::Test { ref suite, .. } if suite == "load" => Config::Trace,
        Task::Dump(_) => Config::Dump,
        _ => Config::Plain,
    };
    let kind = Kind { percpu: args.percpu, ..Kind::new(!args.stock, config) };
    match &args.task {
        Task::Build => build::kernel(root, kind).map(|kernel| println!("{}", kernel.image.display())),
        Task::Boot => boot(root, kind, &Run::of("boot", 1), &speed(4, false)).map(drop),
        Task::Test { suite, loops, cpus } => {
            boot(root, kind, &Run::of(suite, *loops), &speed(*cpus, false)).map(drop)
        }
        Task::Profile(pairs) => profile::main(root, pairs),
        Task::Loops(args) => loops::main(root, args),
        Task::Trace(args) => trace::main(root, args),
        Task::Dump(args) => dump::main(root, args),
        Task::Events(args) => events::main(root, args),
        Task::Replay(args) => replay::main(root, args),
        Task::Debug { suite, loops, cpus, five_levels } => {
            boot(root, kind, &Run::of(suite, *loops), &speed(*cpus, *five_levels)).map(drop)
        }
        Task::Bench { threads, pairs } => bench(root, *threads, pairs),
    }
}

/// Runs the step of CI: the core builds for a kernel, and links.
pub(crate) fn step(root: &Path) -> Result<()> {
    if crate::targets::is_installed(root, build::TARGET, false)? {
        return build::links(root);
    }
    not_run::add(root, "the core for a Linux kernel: the target x86_64-unknown-none is not installed");
    Ok(())
}

/// Runs clippy on the core for a kernel.
pub(crate) fn lint(root: &Path) -> Result<()> {
    let target = build::work(root).join("rs-plain");
    crate::targets::lint(root, build::TARGET, &root.join("adopt/linux"), &target, &["--all-features"])
}

/// Runs the step in full: a kernel compiles with the core, boots, and passes the quick suite.
pub(crate) fn full(root: &Path, _: &mut Tests) -> Result<()> {
    let missing = build::missing();
    if !missing.is_empty() {
        not_run::add(root, &format!("a Linux kernel with the core: install {}", missing.join(" ")));
        return Ok(());
    }
    boot(root, Kind::new(true, Config::Plain), &Run::of("quick", 10), &speed(4, false)).map(drop)
}

/// The work of a kernel's first program.
struct Run<'a> {
    suite: &'a str,
    loops: u32,
    threads: u32,
    /// A file of this machine that gets what the program writes to its second serial port.
    port: Option<&'a Path>,
}

impl<'a> Run<'a> {
    fn of(suite: &'a str, loops: u32) -> Self {
        Self { suite, loops, threads: 1, port: None }
    }
}

/// All CPUs at once, for tests. More than eight take turns in one thread, where a CPU that waits for a lock passes its
/// turn on. Many threads on few cores would wait for a holder that does not run.
fn speed(cpus: u32, five_levels: bool) -> String {
    let la57 = if five_levels { "on" } else { "off" };
    let (thread, memory) =
        if cpus > 8 { ("single", format!(" -m {MANY_MEMORY}")) } else { ("multi", String::new()) };
    format!("-accel tcg,thread={thread} -smp {cpus} -cpu max,la57={la57}{memory}")
}

/// One after the other, each nanosecond an instruction. QEMU counts each repetition of a string instruction, so the
/// kernel fills pages by words and not by bytes, as it does on a CPU without fast string instructions.
const COUNTED: &str =
    "-accel tcg,thread=single -icount shift=0,sleep=off -smp 4 -cpu max,la57=off,erms=off,fsrm=off";
/// Memory of the machine. Shadows, and four threads that each fill 100 MiB in small areas, take more; per-CPU objects
/// for each of many CPUs take most.
const MEMORY: &str = "1G";
const DEBUG_MEMORY: &str = "3G";
const MANY_MEMORY: &str = "10G";
/// Seconds after which a run is ended.
const LIMIT: &str = "1800";

/// Builds and boots a kernel, shows the lines of its program, and returns them.
fn boot(root: &Path, kind: Kind, run: &Run<'_>, how: &str) -> Result<Vec<String>> {
    boot_built(root, kind, &build::kernel(root, kind)?, run, how)
}

/// Does the same with a kernel that is built.
fn boot_built(root: &Path, kind: Kind, kernel: &Kernel, run: &Run<'_>, how: &str) -> Result<Vec<String>> {
    let memory = if kind.config == Config::Debug { DEBUG_MEMORY } else { MEMORY };
    // The last of two sizes counts.
    console(root, &kind.name(), kernel, run, &["-m", memory, how].join(" "), "")
}

/// Boots a kernel with `more` on its command line, shows the lines of its program after a name, and returns them.
fn console(
    root: &Path,
    name: &str,
    kernel: &Kernel,
    Run { suite, loops, threads, port }: &Run<'_>,
    how: &str,
    more: &str,
) -> Result<Vec<String>> {
    let logs = build::work(root).join("logs");
    fs::create_dir_all(&logs)?;
    let log = logs.join(format!("{name}-{suite}.log"));
    let kmemleak = if *suite == "leaks" { "kmemleak=on " } else { "" };
    let options = format!("{more} {kmemleak}va.suite={suite} va.loops={loops} va.threads={threads}");
    let mut text = String::new();
    let mut lines = Vec::new();
    let ended = qemu(root, kernel, how, *port, &options).lines(Show::Nothing, |line| {
        text.push_str(line);
        text.push('\n');
        if let Some(line) = line.strip_prefix("va: ") {
            println!("{name}: {line}");
            lines.push(line.to_string());
        }
    })?;
    fs::write(&log, &text)?;
    ended.success()?;
    verdict(&lines, suite).with_context(|| format!("the kernel's console is in {}", log.display()))?;
    Ok(lines)
}

/// Returns QEMU with a kernel whose console is the output. A second port goes to the file `port`, and `options` to the
/// kernel's command line.
fn qemu(
    root: &Path,
    Kernel { image, initrd, .. }: &Kernel,
    how: &str,
    port: Option<&Path>,
    options: &str,
) -> Cmd {
    let line = format!(
        "console=ttyS0 panic=-1 nokaslr kasan_multi_shot no_hash_pointers quiet tsc=reliable {options}"
    );
    Cmd::new(root, "timeout")
        .args([LIMIT, "qemu-system-x86_64"])
        .args(how.split(' '))
        .args(["-nographic", "-no-reboot", "-serial", "mon:stdio"])
        .args(port.iter().flat_map(|port| ["-serial".to_string(), format!("file:{}", port.display())]))
        .arg("-kernel")
        .arg(image)
        .arg("-initrd")
        .arg(initrd)
        .args(["-append", &line])
}

/// Fails unless a run came to its end, passed its tests and complained of nothing.
fn verdict(lines: &[String], suite: &str) -> Result<()> {
    if lines.last().is_none_or(|line| line != "end") {
        bail!("the kernel did not come to the end of {suite}");
    }
    for line in lines {
        let failed = line.split("failed: ").nth(1).and_then(|rest| rest.split(' ').next());
        if line.starts_with("complaint ")
            || failed.is_some_and(|count| count != "0")
            || line.contains("valid 0")
            || line.starts_with("hotplug of 0 ")
            || line.starts_with("load of 0 ")
            || line.starts_with("faults ") && line.ends_with(": 0")
            || line.starts_with("planted ") && !line.contains("KASAN")
            || line.starts_with("copied ") && line != "copied 5 bytes into a block"
            || line.starts_with("warned ") && line != "warned of 1 wrong free of a block"
            || line.starts_with("unreferenced ") && line != "unreferenced 1, planted 1"
            || block(line).is_some_and(|(bytes, read)| bytes == 0 || read != bytes)
        {
            bail!("the kernel reports: {line}");
        }
    }
    let summaries = lines.iter().filter(|line| line.starts_with("Summary")).count();
    if summaries == 0 && !matches!(suite, "boot" | "bench" | "contended" | "trace" | "events" | "calls") {
        bail!("no test of lib/test_vmalloc.c said anything");
    }
    Ok(())
}

/// Reads `block of 4194304 bytes, 4194304 read`.
fn block(line: &str) -> Option<(u64, u64)> {
    let (bytes, read) = line.strip_prefix("block of ")?.split_once(" bytes, ")?;
    Some((bytes.parse().ok()?, read.strip_suffix(" read")?.parse().ok()?))
}

/// A row of the bench: its pattern, instructions (or nanoseconds) a pair, the most of one call.
#[derive(Debug, PartialEq, Eq)]
struct Row {
    pattern: String,
    pair: u64,
    alloc: u64,
    free: u64,
}

/// Reads `va_bench one: 1652 ns a pair, most of an alloc 20000, of a free 900, 0 failed, 1 threads`.
fn row(line: &str) -> Option<Row> {
    let (pattern, rest) = line.strip_prefix("va_bench ")?.split_once(": ")?;
    let number = |text: &str| text.trim().split(' ').next()?.parse().ok();
    let mut parts = rest.split(", ");
    let pair = number(parts.next()?)?;
    let alloc = number(parts.next()?.strip_prefix("most of an alloc ")?)?;
    let free = number(parts.next()?.strip_prefix("of a free ")?)?;
    (number(parts.next()?)? == 0).then(|| Row { pattern: pattern.to_string(), pair, alloc, free })
}

/// Boots both kernels in turn, and prints the median of each pattern, in one way and another.
fn bench(root: &Path, threads: u32, &Pairs { loops, rounds, out }: &Pairs) -> Result<()> {
    let measured = |suite, how: &str, read: fn(&str) -> Option<Row>, worst| -> Result<String> {
        let run = &Run { threads, ..Run::of(suite, loops) };
        let runs = in_turn(rounds, |kind| {
            let lines = boot(root, kind, run, how)?;
            Ok(lines.iter().filter_map(|line| read(line)).collect())
        })?;
        table(&runs, worst)
    };
    let counted = measured("bench", COUNTED, row, false)?;
    let (name, title, arguments, text) = if threads == 1 {
        let one = measured("bench", &format!("{COUNTED} -smp 1"), row, true)?;
        let text = format!("{HEAD}\n\n{counted}\n{ONE_CPU}\n\n{one}");
        ("linux.md", "The core inside Linux 6.12", String::new(), text)
    } else {
        let timed = measured("bench", &speed(4, false), row, false)?;
        let waits = measured("contended", &speed(4, false), waits, false)?;
        let text = format!("{AT_ONCE}\n\n{timed}\n{TAKING_TURNS}\n\n{counted}\n{CONTENDED}\n\n{waits}");
        ("linux-threads.md", "Threads at a time inside Linux 6.12", format!("--threads {threads} "), text)
    };
    println!("{text}");
    if out {
        let command = format!("bench {arguments}--loops {loops} --rounds {rounds}");
        write_above_sections(root, name, &page(root, title, &command, &text))?;
    }
    Ok(())
}

/// Reads `contended one: 1234` as a row.
fn waits(line: &str) -> Option<Row> {
    let (pattern, count) = line.strip_prefix("contended ")?.split_once(": ")?;
    Some(Row { pattern: pattern.to_string(), pair: count.parse().ok()?, alloc: 0, free: 0 })
}

/// Runs both kernels in turn. Returns what the runs of stock return, and those of ours.
fn in_turn<T>(rounds: usize, run: impl Fn(Kind) -> Result<T>) -> Result<[Vec<T>; 2]> {
    let mut runs: [Vec<T>; 2] = Default::default();
    for _ in 0..rounds {
        for (ours, runs) in [false, true].into_iter().zip(&mut runs) {
            runs.push(run(Kind::new(ours, Config::Plain))?);
        }
    }
    Ok(runs)
}

/// Returns a page of results: its title, the command, which writes it, the commit and the machine, and a text.
fn page(root: &Path, title: &str, command: &str, text: &str) -> String {
    format!(
        "# {title}\n\n```text\ncommand: cargo xtask linux {command} --out\ncommit: {}\nmachine: {}\n```\n\n{text}",
        commit(root),
        machine(root)
    )
}

/// Writes a page of results. The sections below are of other commands or written by hand, and stay.
fn write_above_sections(root: &Path, name: &str, page: &str) -> Result<()> {
    let path = root.join("results").join(name);
    let old = fs::read_to_string(&path).unwrap_or_default();
    let rest = old.find("\n## ").map_or("", |at| &old[at..]);
    Ok(fs::write(path, format!("{page}{rest}"))?)
}

/// The text above the table of one thread.
const HEAD: &str = "Instructions of `get_vm_area` and `free_vm_area`, counted by QEMU (`-icount shift=0`): median \
(least to most) of the\nruns, which boot both kernels in turn. One thread calls. All four CPUs share the count, so the \
worker that purges is\nin it, and a page of zeros is 512 instructions.";

/// The text above the table of one CPU.
const ONE_CPU: &str = "**With one CPU** in the same way. The last four columns have the most of one call in any run. \
A call in which another\nthread or an interrupt ran is left out there.";

/// The texts above the tables of more threads.
const AT_ONCE: &str = "Nanoseconds of `get_vm_area` and `free_vm_area`: median (least to most) of the runs, which boot \
both kernels in turn.\nFour CPUs of QEMU share this machine's, so the time in which a CPU waits for one is in these \
figures.";
const TAKING_TURNS: &str = "**With CPUs that take turns:** instructions of all CPUs while a thread makes a pair, \
counted by QEMU (`-icount shift=0`),\nwhatever the load of this machine.";
const CONTENDED: &str = "**Locks:** takings that waited for another CPU, of any lock of the kernel, in all pairs of a \
pattern: events of\n`lock:contention_begin`. A spin lock that one CPU alone waits for has no event.";

/// Returns the table of all runs of both kernels, with the most of one call if `worst`.
fn table(runs: &[Vec<Vec<Row>>; 2], worst: bool) -> Result<String> {
    let [stock, ours] = runs;
    let Some(first) = stock.first().filter(|rows| !rows.is_empty()) else { bail!("no run said anything") };
    if stock.iter().chain(ours).any(|rows| rows.len() != first.len()) {
        bail!("a run lacks a pattern");
    }
    let mut table = String::from("| pattern | stock, a pair | ours, a pair | ratio |");
    table.push_str(if worst { " stock, one alloc | ours | stock, one free | ours |\n" } else { "\n" });
    table.push_str("|---|---:|---:|---:|");
    table.push_str(if worst { "---:|---:|---:|---:|\n" } else { "\n" });
    for (nth, Row { pattern, .. }) in first.iter().enumerate() {
        let sorted = |runs: &[Vec<Row>]| {
            let mut pairs: Vec<_> = runs.iter().map(|rows| rows[nth].pair).collect();
            pairs.sort_unstable();
            (pairs[pairs.len() / 2], pairs[0], pairs[pairs.len() - 1])
        };
        let most = |runs: &[Vec<Row>], of: fn(&Row) -> u64| {
            runs.iter().map(|rows| of(&rows[nth])).max().unwrap_or(0)
        };
        let (of_stock, of_ours) = (sorted(stock), sorted(ours));
        let ratio = match of_stock.0 {
            0 => "-".to_string(),
            median => format!("{:.2}", of_ours.0 as f64 / median as f64),
        };
        let shown = |(median, least, most)| format!("{median} ({least} to {most})");
        write!(table, "| {pattern} | {} | {} | {ratio} |", shown(of_stock), shown(of_ours))?;
        if worst {
            let [allocs, frees] = [|row: &Row| row.alloc, |row: &Row| row.free];
            let most = [most(stock, allocs), most(ours, allocs), most(stock, frees), most(ours, frees)];
            most.iter().try_for_each(|most| write!(table, " {most} |"))?;
        }
        table.push('\n');
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_read_and_a_failed_request_is_none() {
        let line =
            "va_bench live-mixed: 2035 ns a pair, most of an alloc 44120, of a free 7, 0 failed, 1 threads";
        let expected = Row { pattern: "live-mixed".into(), pair: 2035, alloc: 44120, free: 7 };
        assert_eq!(row(line), Some(expected));
        assert_eq!(row(&line.replace("0 failed", "1 failed")), None);
        assert_eq!(row("something else"), None);
        let waited = Row { pattern: "one".into(), pair: 12, alloc: 0, free: 0 };
        assert_eq!(waits("contended one: 12"), Some(waited));
        assert_eq!(waits("contended one: "), None);
    }

    #[test]
    fn a_table_has_the_median_of_the_runs_and_a_missing_pattern_is_an_error() {
        let run = |pair| vec![Row { pattern: "one".into(), pair, alloc: pair * 10, free: pair * 2 }];
        let runs = [vec![run(90), run(100), run(400)], vec![run(70), run(50), run(60)]];
        let line = "| one | 100 (90 to 400) | 60 (50 to 70) | 0.60 |";
        assert_eq!(table(&runs, false).unwrap().lines().last(), Some(line));
        assert_eq!(
            table(&runs, true).unwrap().lines().last(),
            Some(&*format!("{line} 4000 | 700 | 800 | 140 |"))
        );
        let none = table(&[vec![run(0)], vec![run(60)]], false).unwrap();
        assert_eq!(none.lines().last(), Some("| one | 0 (0 to 0) | 60 (60 to 60) | - |"));
        assert!(table(&[vec![run(90)], vec![vec![]]], false).is_err());
        assert!(table(&[vec![], vec![]], false).is_err());
    }

    #[test]
    fn a_run_passes_only_with_its_end_its_summaries_and_no_complaint() {
        let summary = "Summary: fix_size_alloc_test passed: 1 failed: 0 xfailed: 0 repeat: 1 loops: 10";
        let lines = |list: &[&str]| list.iter().map(|line| (*line).to_string()).collect::<Vec<_>>();
        assert!(verdict(&lines(&[summary, "end"]), "quick").is_ok());
        assert!(verdict(&lines(&[summary]), "quick").is_err());
        assert!(verdict(&lines(&["end"]), "quick").is_err());
        assert!(verdict(&lines(&["end"]), "boot").is_ok());
        assert!(verdict(&lines(&[&summary.replace("failed: 0", "failed: 1"), "end"]), "quick").is_err());
        assert!(verdict(&lines(&[summary, "complaint BUG: x", "end"]), "quick").is_err());
        assert!(verdict(&lines(&[summary, "state areas 1 valid 0", "end"]), "quick").is_err());
        assert!(verdict(&lines(&[summary, "block of 4096 bytes, 4096 read", "end"]), "quick").is_ok());
        assert!(verdict(&lines(&[summary, "block of 4096 bytes, 0 read", "end"]), "quick").is_err());
        assert!(verdict(&lines(&[summary, "block of 0 bytes, 0 read", "end"]), "quick").is_err());
        assert!(verdict(&lines(&[summary, "planted freed: KASAN: x in va_plant", "end"]), "quick").is_ok());
        assert!(verdict(&lines(&[summary, "planted freed: ", "end"]), "quick").is_err());
        assert!(verdict(&lines(&[summary, "hotplug of 0 CPUs", "end"]), "hotplug").is_err());
        assert!(verdict(&lines(&[summary, "copied 5 bytes into a block", "end"]), "quick").is_ok());
        assert!(verdict(&lines(&[summary, "copied  bytes into a block", "end"]), "quick").is_err());
        assert!(verdict(&lines(&[summary, "warned of 1 wrong free of a block", "end"]), "quick").is_ok());
        assert!(verdict(&lines(&[summary, "warned of 0 wrong free of a block", "end"]), "quick").is_err());
        assert!(verdict(&lines(&[summary, "unreferenced 1, planted 1", "end"]), "leaks").is_ok());
        assert!(verdict(&lines(&[summary, "unreferenced 2, planted 1", "end"]), "leaks").is_err());
        assert!(verdict(&lines(&[summary, "faults without sleep: 7", "end"]), "faults").is_ok());
        assert!(verdict(&lines(&[summary, "faults without sleep: 0", "end"]), "faults").is_err());
    }
}
