//! The calls of the core in a kernel that boots, replayed on the same core in a process.
//!
//! # Theory
//! A kernel of its own (`Config::Record`) holds one mutex for the length of each call of the core. Under it, the call is
//! written as a line of text, then what the core asks for meanwhile, then the result. So the text has every decision in
//! the order in which they were taken, on any number of CPUs, from the creation of the space on. `vmlab replay --calls`
//! makes the same calls, gives the core what the kernel gave it, and compares every line. The object of the core is that
//! of the other kernels: the C functions around it record.

use super::{Run, boot_built, build, page, speed, write_above_sections};
use crate::sh::{Cmd, Show};
use anyhow::{Context, Result, bail};
use build::{Config, Kind};
use serde_json::Value;
use std::fmt::Write;
use std::fs;
use std::path::Path;

#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// Pairs of each pattern of /proc/va_bench
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..))]
    load: u32,
    /// Write results/linux-replay.md
    #[arg(long, conflicts_with = "keep")]
    out: bool,
    /// Record little, and write it to data/linux-calls-*, which the tests of vmlab replay
    #[arg(long, conflicts_with = "load")]
    keep: bool,
}

pub(super) fn main(root: &Path, args: &Args) -> Result<()> {
    let kind = Kind::new(true, Config::Record);
    let kernel = build::kernel(root, kind)?;
    let vmlab = super::dump::vmlab(root)?;
    let folder = build::work(root).join("calls");
    fs::create_dir_all(&folder)?;
    let load = if args.keep { 0 } else { args.load };
    let mut rows = Vec::new();
    for cpus in [1, 4] {
        let name = format!("linux-calls-smp{cpus}.gz");
        let file = folder.join(&name);
        let run = Run { threads: cpus, port: Some(&file), ..Run::of("calls", load) };
        boot_built(root, kind, &kernel, &run, &speed(cpus, false))?;
        let replay = || Cmd::new(root, &vmlab).args(["replay", "--calls"]);
        replay().arg(&file).run(Show::All)?;
        let text = replay().arg("--json").arg(&file).read()?;
        rows.push(serde_json::from_str(&text).with_context(|| format!("vmlab replay of {name}"))?);
        if args.keep {
            fs::copy(&file, root.join("data").join(&name))?;
        }
    }
    let text = text(&rows)?;
    println!("{text}");
    if args.out {
        let command = format!("replay --load {}", args.load);
        let page = page(root, "Calls of the core inside Linux, replayed", &command, &text);
        write_above_sections(root, "linux-replay.md", &page)?;
    }
    Ok(())
}

/// The text above the tables.
const HEAD: &str = "Linux 6.12 with the core inside (`adopt/linux`) boots in QEMU with one CPU and with four. It holds one mutex for each\n\
call of the core, and records the call, what the core asks for, and the result, from the creation of the space on. The\n\
load has `lib/test_vmalloc.c`, programs that begin and end, `/proc/va_bench`, requests that no address meets, CPUs that\n\
go offline and come back, the shrinker, and memory that fails at each third request. `vmlab replay --calls` makes the\n\
same calls of the same core in a process, gives it the same answers, and compares every line.";

/// Returns the tables, or fails if anything differs.
fn text(rows: &[Value]) -> Result<String> {
    let number = |row: &Value, key: &str| row[key].as_u64().with_context(|| format!("no {key} in {row}"));
    let mut text =
        format!("{HEAD}\n\n| CPUs | calls | addresses | equal | requests of the core | differences |\n");
    text.push_str("|---:|---:|---:|---:|---:|---:|\n");
    for row in rows {
        let keys = ["cpus", "calls", "addresses", "equal", "requests", "differences"];
        let [cpus, calls, addresses, equal, requests, differences] = keys.map(|key| number(row, key));
        let (addresses, equal, differences) = (addresses?, equal?, differences?);
        if addresses == 0 || equal != addresses || differences != 0 {
            bail!("not every address is that of the kernel: {row}");
        }
        writeln!(text, "| {} | {} | {addresses} | {equal} | {} | {differences} |", cpus?, calls?, requests?)?;
    }
    text.push_str(
        "\nRequests are for memory, flushes and the worker. The calls by function:\n\n| function |",
    );
    for row in rows {
        write!(text, " CPUs: {} |", number(row, "cpus")?)?;
    }
    write!(text, "\n|---|{}\n", "---:|".repeat(rows.len()))?;
    let counts = |row: &Value| row["by_call"].as_object().cloned().unwrap_or_default();
    let mut names: Vec<_> =
        rows.iter().flat_map(|row| counts(row).into_iter().map(|(name, _)| name)).collect();
    names.sort_unstable();
    names.dedup();
    for name in names {
        write!(text, "| `va_{name}` |")?;
        for row in rows {
            write!(text, " {} |", counts(row).get(&name).and_then(Value::as_u64).unwrap_or(0))?;
        }
        text.push('\n');
    }
    for row in rows {
        let by_cpu: Vec<_> = row["by_cpu"].as_array().into_iter().flatten().map(Value::to_string).collect();
        if by_cpu.len() > 1 {
            write!(text, "\nCalls that name their CPU, by CPU: {}.\n", by_cpu.join(", "))?;
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::collections::BTreeSet;

    #[test]
    fn a_table_is_made_of_runs_without_a_difference_alone() {
        let row = |equal, differences| {
            json!({"cpus": 4, "calls": 9, "addresses": 3, "equal": equal, "requests": 2, "differences": differences,
                "by_call": {"try_alloc": 3, "init": 1}, "by_cpu": [1, 2, 0, 0]})
        };
        let table = text(&[row(3, 0)]).unwrap();
        assert!(table.contains("\n| 4 | 9 | 3 | 3 | 2 | 0 |\n"), "{table}");
        assert!(table.contains("\n| `va_init` | 1 |\n| `va_try_alloc` | 3 |\n"), "{table}");
        assert!(table.contains("by CPU: 1, 2, 0, 0."), "{table}");
        assert!(text(&[row(3, 0), row(2, 0)]).is_err());
        assert!(text(&[row(3, 1)]).is_err());
        assert!(text(&[json!({"cpus": 4})]).is_err());
    }

    /// A function of the core that changes its state and is not recorded would be missing in every recording.
    #[test]
    fn every_function_of_the_core_is_recorded_or_only_reads() {
        let (header, record) =
            (source("adopt/linux/glue/va_linux.h"), source("adopt/linux/glue/va_record.h"));
        let reads = ["va_find", "va_find_above", "va_lazy_pages", "va_lazy_max", "va_plant"];
        let mut functions = 0;
        for line in header.lines().filter(|line| line.ends_with(';') && !line.starts_with('\t')) {
            let Some((head, _)) = line.split_once('(') else { continue };
            let name = head.rsplit([' ', '*']).next().unwrap();
            if name.starts_with("va_os_") {
                continue;
            }
            functions += 1;
            let is_recorded = record.contains(&format!("#define {name}(...) va_recorded_{}", &name[3..]));
            assert!(is_recorded != reads.contains(&name), "{name}");
        }
        assert!(functions > 20, "{functions} functions in va_linux.h");
    }
    /// Reads a file of the workspace.
    fn source(path: &str) -> String {
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)).unwrap()
    }

    /// Returns the methods that a text calls, those of the standard library and of the arguments left out.
    fn methods(text: &str) -> BTreeSet<&str> {
        const OTHERS: &str = "map map_or map_or_else get get_mut expose_provenance range is_ok is_err is_some is_some_and as_mut \
                              ok or_else unwrap_or unwrap_or_default and_then start end write swap sort_unstable settings \
                              request caches enumerate iter_mut add len set space note_of replace";
        let named =
            text.match_indices('(').filter_map(|(at, _)| text[..at].rsplit_once('.')).map(|(_, name)| name);
        named
            .filter(|name| !name.is_empty() && name.chars().all(|one| one.is_ascii_lowercase() || one == '_'))
            .filter(|name| !OTHERS.split_whitespace().any(|other| other == *name))
            .collect()
    }

    /// The replay repeats what the C functions do with the core. If one changes, the other must.
    #[test]
    fn the_replay_calls_the_core_as_the_c_functions_do() {
        let (abi, replay) = (source("adopt/linux/src/abi.rs"), source("lab/vmlab-replay/src/calls/mod.rs"));
        let arms = replay.split("fn make(").nth(1).unwrap().split("\n    fn ").next().unwrap();
        let mut compared = 0;
        for part in arms.split("            Call::").skip(2) {
            let camel = part.split(' ').next().unwrap();
            let mut name = String::from("fn va");
            for one in camel.chars() {
                let under = if one.is_uppercase() { "_" } else { "" };
                write!(name, "{under}{}", one.to_ascii_lowercase()).unwrap();
            }
            let function =
                abi.split(&format!("{name}(")).nth(1).unwrap_or_else(|| panic!("no {name} in abi.rs"));
            let function = function.split("#[unsafe(no_mangle)]").next().unwrap();
            let function = function.split("pub(crate) fn ").next().unwrap();
            assert_eq!(methods(part), methods(function), "{camel} of the replay and {name} of abi.rs");
            compared += 1;
        }
        assert_eq!(compared, 16);
        let machines = ["adopt/linux/src/machine.rs", "lab/vmlab-replay/src/calls/machine.rs"].map(source);
        let number = |text: &str, name: &str| {
            let line = text.lines().find(|line| line.trim_start().starts_with(&format!("const {name}: ")));
            line.unwrap_or_else(|| panic!("no {name}")).trim().to_string()
        };
        for name in ["SLAB_BYTES_MAX", "RETIRES"] {
            assert_eq!(number(&machines[0], name), number(&machines[1], name));
        }
    }
}
