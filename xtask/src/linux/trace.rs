//! Durations and waits for locks of both kernels under one load, as `vmlab record` has them.
//!
//! # Theory
//! Times of an emulator are not those of a machine, and depend on the machine's other work. So QEMU counts instructions
//! (`-icount shift=0`): a nanosecond of the guest is an instruction of its four CPUs, which take turns. Durations of
//! the two kernels can then be compared. They include what an interrupt or another CPU does in between. Both kernels
//! boot from one configuration, and differ in `mm/vmalloc.c` alone.

use super::{COUNTED, Config, Kernel, Kind, Run, boot_built, build, page};
use crate::sh::{Cmd, Show};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// Rounds of the load
    #[arg(long, default_value_t = 10)]
    load: u32,
    /// Times that each way to record is measured, in turn
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// Write results/latency.md, and results/load.md with its flame graph
    #[arg(long)]
    out: bool,
}

/// The ways to record, in the order of the table, and their names in the output of `init.sh`.
const WAYS: [(&str, &str); 4] = [
    ("none", "not recorded"),
    ("record", "`vmlab record`"),
    ("latency", "`vmlab record --latency`"),
    ("locks", "`vmlab record --latency --locks`"),
];

/// A run of one kernel.
struct Recorded {
    lines: Vec<String>,
    /// `vmlab latency --json` of the recording with probes, and of the one with locks, too.
    latency: Value,
    locks: Value,
    /// The recording that also has call stacks.
    stacks: PathBuf,
}

pub(super) fn main(root: &Path, args: &Args) -> Result<()> {
    let run = |ours| recorded(root, Kind::new(ours, Config::Trace), args);
    let runs = [run(false)?, run(true)?];
    let text = text(&runs)?;
    println!("{text}");
    if args.out {
        let command = format!("trace --load {} --rounds {}", args.load, args.rounds);
        let page = page(root, "Durations and locks of two kernels", &command, &text);
        fs::write(root.join("results/latency.md"), page)?;
        let vmlab = build::vmlab(root);
        let text = load(root, &vmlab, &runs)?;
        let page = self::page(root, "A recording of a kernel under a load", &command, &text);
        fs::write(root.join("results/load.md"), page)?;
        let [stock, _] = &runs;
        let flame = Cmd::new(root, &vmlab).arg("flame").arg(&stock.stacks).args(["--by", "bytes"]).read()?;
        fs::write(root.join(FLAME), flame)?;
    }
    Ok(())
}

/// The flame graph of `results/load.md`.
const FLAME: &str = "results/load-flame.svg";

/// The commands whose output the page of the load shows.
const SHOWN: [&[&str]; 3] = [&["whatif"], &["latency"], &["latency", "--by", "caller", "--top", "12"]];

/// Returns the page of the load: each kernel's recording by the commands of `vmlab`.
fn load(root: &Path, vmlab: &Path, runs: &[Recorded; 2]) -> Result<String> {
    let mut text = String::from(
        "The load of `results/latency.md`, once, recorded by `vmlab record --latency --locks --stacks`. A nanosecond is an\n\
         instruction of four CPUs that take turns. To write a call stack takes several microseconds, which are in the durations:\n\
         `results/latency.md` has them without. CPUs that take turns hardly wait for each other: `results/waits.md` has a\n\
         kernel whose CPUs run side by side.\n\n\
         ![bytes by call stack](load-flame.svg)\n\n\
         The picture is `vmlab flame stock.jsonl.gz --by bytes`: what was allocated, by call stack.\n",
    );
    for (run, title) in runs.iter().zip(["Linux as it comes", "With the core"]) {
        let name = run.stacks.file_name().unwrap_or_default().to_string_lossy();
        write!(text, "\n## {title}\n\n```text\n")?;
        for args in SHOWN {
            let printed = Cmd::new(root, vmlab).args(args).arg(&run.stacks).read()?;
            writeln!(text, "$ vmlab {} {name}\n{}", args.join(" "), printed.trim_end())?;
        }
        text += "```\n";
    }
    Ok(text)
}

/// Boots a kernel, and returns what it said and recorded.
fn recorded(root: &Path, kind: Kind, args: &Args) -> Result<Recorded> {
    let kernel: Kernel = build::kernel(root, kind)?;
    let folder = build::work(root).join(format!("{}.trace", kind.name()));
    fs::create_dir_all(&folder)?;
    let port = folder.join("files.tar");
    let run = Run { threads: args.rounds, port: Some(&port), ..Run::of("trace", args.load) };
    let lines = boot_built(root, kind, &kernel, &run, COUNTED)?;
    check(&lines)?;
    Cmd::new(&folder, "tar").args(["--extract", "--file", "files.tar"]).run(Show::Failure)?;
    let file = |name: &str| folder.join(format!("{name}.jsonl.gz"));
    let [latency, locks] = ["latency", "locks"].map(|name| durations(root, &build::vmlab(root), &file(name)));
    // The tables name a recording by its file.
    let stacks = file(if kind.ours { "ours" } else { "stock" });
    fs::rename(file("stacks"), &stacks)?;
    Ok(Recorded { lines, latency: latency?, locks: locks?, stacks })
}

/// Fails unless recorders left nothing, one that ^C ended by itself, and both kinds of probes had calls.
fn check(lines: &[String]) -> Result<()> {
    for wanted in ["INT: 0 left", "left 0", "said latency: ", "said kprobe: "] {
        if !lines.iter().any(|line| line.starts_with(wanted)) {
            bail!("the kernel's program did not say: {wanted}");
        }
    }
    let kinds = [("latency", "(fprobe)"), ("kprobe", "(kprobe)")];
    for (way, kind) in kinds {
        let said = format!("said {way}: ");
        if !lines.iter().any(|line| line.starts_with(&said) && line.contains(kind)) {
            bail!("no recording by {kind}");
        }
    }
    Ok(())
}

fn durations(root: &Path, vmlab: &Path, file: &PathBuf) -> Result<Value> {
    let text = Cmd::new(root, vmlab).args(["latency", "--json"]).arg(file).read()?;
    serde_json::from_str(&text).with_context(|| format!("vmlab latency of {}", file.display()))
}

/// The text above the tables.
const HEAD: &str = "Linux 6.12 as it comes, and with the core in place of its own areas (`adopt/linux`), each with four CPUs in QEMU. The\n\
load (`adopt/linux/load.sh`) has forks, namespaces of networks and mounts, BPF filters, and a module with four threads\n\
that allocate. QEMU counts instructions (`-icount shift=0`): a nanosecond is an instruction of four CPUs that take turns,\n\
whatever this machine does besides. A call includes what other CPUs and interrupts do before it returns. These recordings\n\
are by fprobe. A recorder by kprobe and one that ^C ended left no probe in either kernel, and the next recorder removed\n\
those of one that was killed.";

fn text(runs: &[Recorded; 2]) -> Result<String> {
    let [stock, ours] = runs;
    Ok(format!(
        "{HEAD}\n\n## What recording costs\n\n{}\n## Durations\n\n{}\n## Waits for locks\n\n{}",
        costs(runs)?,
        calls(&stock.latency, &ours.latency),
        locks(runs)
    ))
}

/// Returns the hundredths of a second of each run of the load, by the way it was recorded.
fn times(lines: &[String]) -> BTreeMap<&str, Vec<u64>> {
    let mut times: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for line in lines {
        let mut words = line.strip_prefix("took ").into_iter().flat_map(str::split_whitespace);
        if let (Some(way), Some(Ok(time))) = (words.next(), words.next().map(str::parse)) {
            times.entry(way).or_default().push(time);
        }
    }
    times
}

/// Returns the table of the load's times.
fn costs(runs: &[Recorded; 2]) -> Result<String> {
    let mut table =
        String::from("| the load | stock, s | times | ours, s | times |\n|---|---:|---:|---:|---:|\n");
    let all = [times(&runs[0].lines), times(&runs[1].lines)];
    for (way, name) in WAYS {
        write!(table, "| {name} |")?;
        for times in &all {
            let median = |way: &str| -> Result<u64> {
                let mut times = times.get(way).cloned().with_context(|| format!("no time of {way}"))?;
                times.sort_unstable();
                Ok(times[times.len() / 2])
            };
            let (time, plain) = (median(way)? as f64, median("none")?.max(1) as f64);
            write!(table, " {:.2} | {:.2} |", time / 100.0, time / plain)?;
        }
        table.push('\n');
    }
    table.push_str(
        "\nMedians of the load alone; the recorder, which compresses, shares the CPUs with it. Said at the end of a \
         recording:\n\n```text\n",
    );
    for (run, name) in runs.iter().zip(["stock", "ours"]) {
        for way in ["latency", "kprobe"] {
            let said = format!("said {way}: ");
            let line =
                run.lines.iter().rev().find(|line| line.starts_with(&said) && line.contains("probes each"));
            writeln!(table, "{name}: {}", line.map_or("", |line| &line[said.len()..]))?;
        }
    }
    table.push_str("```\n");
    Ok(table)
}

/// Formats a duration.
fn us(value: &Value) -> String {
    value.as_u64().map_or_else(|| "-".to_string(), |ns| format!("{:.1}", ns as f64 / 1000.0))
}

/// Returns the table of durations, both kernels in a row.
fn calls(stock: &Value, ours: &Value) -> String {
    let mut table = String::from(
        "| us | function | calls | median | p99 | p99.9 | max | calls | median | p99 | p99.9 | max |\n\
         |---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|\n",
    );
    let rows = |value: &Value| value["calls"].as_array().cloned().unwrap_or_default();
    for row in rows(stock) {
        let other = rows(ours).into_iter().find(|other| other["call"] == row["call"]).unwrap_or_default();
        let name = |key: &str| row[key].as_str().unwrap_or_default().to_string();
        let _ = write!(table, "| {} | `{}` |", name("call"), name("function"));
        for row in [&row, &other] {
            let count = row["count"].as_u64().map_or_else(|| "-".to_string(), |count| count.to_string());
            let _ = write!(table, " {count} |");
            for key in ["median_ns", "p99_ns", "p999_ns", "max_ns"] {
                let _ = write!(table, " {} |", us(&row[key]));
            }
        }
        table.push('\n');
    }
    table.push_str("\nThe first five columns of figures are of stock, the others of ours.\n");
    for (name, value) in [("stock", stock), ("ours", ours)] {
        let probes = &value["probes"];
        let _ = writeln!(
            table,
            "Of {name}: {} us is the floor, what the probes show for a function that does nothing; unpaired {}, lost {}.",
            us(&probes["floor_ns"]),
            value["unpaired"],
            value["lost"]
        );
    }
    table
}

/// Returns the table of the waits of both kernels.
fn locks(runs: &[Recorded; 2]) -> String {
    let mut table = String::from(
        "| kernel | lock | who waits | waits | median, us | p99 | max | total |\n|---|---|---|---:|---:|---:|---:|---:|\n",
    );
    for (run, kernel) in runs.iter().zip(["stock", "ours"]) {
        for row in run.locks["locks"].as_array().into_iter().flatten().take(12) {
            let name = |key: &str| row[key].as_str().unwrap_or("(unnamed)").to_string();
            let _ = write!(table, "| {kernel} | {} | `{}` | {} |", name("lock"), name("site"), row["count"]);
            for key in ["median_ns", "p99_ns", "max_ns", "total_ns"] {
                let _ = write!(table, " {} |", us(&row[key]));
            }
            table.push('\n');
        }
        let _ = writeln!(
            table,
            "| {kernel} | of others, or not known | | {} | | | | |",
            run.locks["elsewhere"]["other_locks"]
        );
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(list: &[&str]) -> Vec<String> {
        list.iter().map(|line| (*line).to_string()).collect()
    }

    #[test]
    fn a_run_is_good_if_both_kinds_of_probes_recorded_and_nothing_is_left() {
        let good = lines(&[
            "said latency: 9 calls (fprobe)",
            "said kprobe: 9 calls (kprobe)",
            "INT: 0 left, said x",
            "left 0",
        ]);
        assert!(check(&good).is_ok());
        for bad in 0..good.len() {
            let mut some = good.clone();
            some.remove(bad);
            assert!(check(&some).is_err(), "{bad}");
        }
        let mut swapped = good.clone();
        swapped[0] = "said latency: 9 calls (kprobe)".to_string();
        assert!(check(&swapped).is_err());
    }

    #[test]
    fn the_cost_is_the_ratio_of_medians() {
        let said = [
            "took none 100",
            "took none 300",
            "took none 120",
            "took record 240",
            "took latency 300",
            "took locks 360",
        ];
        let run = || Recorded {
            lines: lines(&said),
            latency: Value::Null,
            locks: Value::Null,
            stacks: PathBuf::new(),
        };
        let table = costs(&[run(), run()]).unwrap();
        assert!(table.contains("| `vmlab record` | 2.40 | 2.00 | 2.40 | 2.00 |"), "{table}");
        let less = Recorded {
            lines: lines(&said[..3]),
            latency: Value::Null,
            locks: Value::Null,
            stacks: PathBuf::new(),
        };
        assert!(costs(&[run(), less]).is_err());
    }

    #[test]
    fn a_row_has_both_kernels_and_dashes_for_what_one_lacks() {
        let value = |call: &str| serde_json::json!({"calls": [{"call": call, "function": "f", "count": 3, "median_ns": 1500, "p99_ns": 2000, "p999_ns": 2000, "max_ns": 2500}]});
        let table = calls(&value("alloc"), &value("alloc"));
        assert!(table.contains("| alloc | `f` | 3 | 1.5 | 2.0 | 2.0 | 2.5 | 3 | 1.5 |"), "{table}");
        assert!(calls(&value("alloc"), &value("free")).contains("| - | - | - | - | - |"));
    }
}
