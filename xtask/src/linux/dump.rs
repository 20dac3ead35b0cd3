//! The address space of a kernel by drgn: QEMU dumps its memory, and `lab/python/vmlab/kernel.py` reads it.
//!
//! # Theory
//! The first program makes a state with areas of every kind, prints the kernel's own tables, and then sleeps. The last
//! table is `/proc/vmallocinfo`, read and written by the shell alone: another program would have a stack, which is an
//! area. So the dump must have exactly the areas of that table. QEMU stops the machine while it writes the dump.

use super::{Config, Kernel, Kind, MEMORY, build, live, page, qemu, speed};
use crate::sh::{Cmd, Show};
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// Rounds of the load before the dump
    #[arg(long, default_value_t = 3)]
    load: u32,
    /// Write results/dump.md
    #[arg(long)]
    out: bool,
    /// Also read the running kernel from within, by /proc/kcore
    #[arg(long)]
    live: bool,
}

/// Memory of a machine with Python and the kernel's symbols in its initial files.
const LIVE_MEMORY: &str = "3G";
/// The version of drgn that is installed if there is none.
const DRGN: &str = "drgn==0.3.0";
/// Said by the first program when nothing more happens.
const READY: &str = "va: dump now";
/// The tables that the first program prints, in this order.
const TABLES: [&str; 4] = ["allocinfo.before", "allocinfo", "percpu_stats", "vmallocinfo"];
/// The output of the reader of the running kernel.
const LIVE: &str = "live";

pub(super) fn main(root: &Path, args: &Args) -> Result<()> {
    let kind = Kind::new(false, Config::Dump);
    let kernel = build::kernel(root, kind)?;
    let python = python(root)?;
    let folder = build::work(root).join(format!("{}.files", kind.name()));
    fs::create_dir_all(&folder)?;
    let symbols = build::folder(root, kind).join("vmlinux");
    let core = folder.join("core");
    let text = booted(root, &kernel, &folder, MEMORY, args.load, Some(&core))?;
    for name in TABLES {
        fs::write(folder.join(name), table(&text, name)?)?;
    }
    let mut running = None;
    if args.live {
        let files = build::work(root).join(format!("{}-live.root", kind.name()));
        let kernel = live::with_python(root, &kernel, &files, &python, &symbols)?;
        let text = booted(root, &kernel, &folder, LIVE_MEMORY, args.load, None)?;
        running = Some(table(&text, LIVE)?);
    }
    let vmlab = vmlab(root)?;
    let mut text = shown(root, &python, &vmlab, &folder, &symbols)?;
    if let Some(running) = running {
        writeln!(text, "\n## The running kernel\n\n{LIVE_HEAD}\n\n```text\n{LIVE_COMMAND}\n{running}```")?;
    }
    println!("{text}");
    if args.out {
        let command = format!("dump --load {}{}", args.load, if args.live { " --live" } else { "" });
        fs::write(
            root.join("results/dump.md"),
            page(root, "The address space of a kernel by drgn", &command, &text),
        )?;
    }
    Ok(())
}

/// Boots a kernel, writes its dump if one is asked for, and returns the tables that it printed.
fn booted(
    root: &Path,
    kernel: &Kernel,
    folder: &Path,
    memory: &str,
    load: u32,
    core: Option<&Path>,
) -> Result<String> {
    let (port, socket) = (folder.join("tables"), folder.join("qmp"));
    let options = format!("no_timer_check va.suite=dump va.loops={load}");
    let (mut dump, mut log) = (None, String::new());
    let ended = qemu(root, kernel, &format!("{} -m {memory}", speed(4, false)), Some(&port), &options)
        .arg("-qmp")
        .arg(format!("unix:{},server=on,wait=off", socket.display()))
        // The kernel tells QEMU its note VMCOREINFO, which goes to the dump, and tells drgn what kernel it is.
        .args(["-device", "vmcoreinfo"])
        .lines(Show::Nothing, |line| {
            log.push_str(line);
            log.push('\n');
            if line == READY {
                dump = Some(finish(&socket, core));
            } else if let Some(line) = line.strip_prefix("va: ") {
                println!("{line}");
            }
        })?;
    fs::write(folder.join("console"), &log)?;
    let console = || format!("the kernel's console is in {}", folder.join("console").display());
    dump.with_context(|| format!("the kernel did not come to its dump: {}", console()))??;
    ended.success().with_context(console)?;
    Ok(fs::read_to_string(port)?)
}

/// Lets QEMU write a dump, if one is asked for, and end.
fn finish(socket: &Path, core: Option<&Path>) -> Result<()> {
    let mut stream = UnixStream::connect(socket).context("no socket of QEMU")?;
    let mut answers = BufReader::new(stream.try_clone()?);
    let dump = core.map(|core| {
        let target = format!("file:{}", core.display());
        json!({"execute": "dump-guest-memory", "arguments": {"paging": false, "protocol": target}})
    });
    let before = json!({"execute": "qmp_capabilities"});
    for command in [before].into_iter().chain(dump).chain([json!({"execute": "quit"})]) {
        writeln!(stream, "{command}")?;
        answer(&mut answers).with_context(|| format!("QEMU: {command}"))?;
    }
    Ok(())
}

/// Waits for the answer to a command. Greetings and events come in between.
fn answer(answers: &mut impl BufRead) -> Result<()> {
    let mut line = String::new();
    while answers.read_line(&mut line)? > 0 {
        let value: Value = serde_json::from_str(&line)?;
        if value.get("return").is_some() {
            return Ok(());
        }
        if let Some(error) = value.get("error") {
            bail!("{error}");
        }
        line.clear();
    }
    bail!("it ended without an answer")
}

/// Returns a table that the first program printed: it begins behind a line `== NAME`.
fn table(text: &str, name: &str) -> Result<String> {
    let head = format!("== {name}\n");
    let (_, rest) = text.split_once(&head).with_context(|| format!("the kernel printed no {name}"))?;
    let table = rest.split_once("\n==").map_or(rest, |(table, _)| table).trim_end();
    if table.is_empty() || table.starts_with("==") {
        bail!("{name} is empty");
    }
    Ok(format!("{table}\n"))
}

/// Returns a Python that has drgn: the system's, or one with drgn installed from PyPI.
fn python(root: &Path) -> Result<PathBuf> {
    let has = |python: &Path| Cmd::new(root, python).args(["-c", "import drgn"]).lines(Show::Nothing, |_| {});
    let system = PathBuf::from("python3");
    if has(&system)?.success().is_ok() {
        return Ok(system);
    }
    let folder = build::work(root).join("venv");
    let python = folder.join("bin/python3");
    if !python.exists() {
        Cmd::new(root, &system).args(["-m", "venv"]).arg(&folder).run(Show::Failure)?;
    }
    if has(&python)?.success().is_err() {
        Cmd::new(root, &python)
            .args(["-m", "pip", "install", "--quiet", "--only-binary", ":all:", DRGN])
            .run(Show::Failure)?;
    }
    Ok(python)
}

/// Builds the laboratory, without optimisation: nothing here takes long.
pub(super) fn vmlab(root: &Path) -> Result<PathBuf> {
    Cmd::cargo(root).args(["build", "--quiet", "--locked", "--package", "vmlab"]).run(Show::All)?;
    Ok(root.join("target/debug/vmlab"))
}

/// The text above the output.
const HEAD: &str = "Linux 6.12 as it comes, with four CPUs in QEMU, after the load of `adopt/linux/load.sh`, \
`lib/test_vmalloc.c`, and fifty\nprograms. QEMU wrote the dump (`dump-guest-memory`), and drgn read it with the \
kernel's own DWARF. `vmallocinfo` is the\nkernel's table, which it printed just before the dump. `allocinfo.before` \
is `/proc/allocinfo` before the load, and\n`allocinfo` the one after.";

/// The text above what the running kernel's reader said, and its command.
const LIVE_HEAD: &str = "The same kernel and load, read from within by `/proc/kcore` while it ran. Python, drgn and the kernel's symbols are in\n\
its initial files.";
const LIVE_COMMAND: &str = "# python3 -m vmlab.kernel --vmlinux vmlinux";

/// Runs the commands that show the dump, and returns what they print. Fails if a check of the dump does not hold.
fn shown(root: &Path, python: &Path, vmlab: &Path, folder: &Path, symbols: &Path) -> Result<String> {
    let symbols = symbols.display().to_string();
    let mut text = format!("{HEAD}\n");
    let mut show = |title: &str, program: &Path, name: &str, args: &[&str]| -> Result<()> {
        let printed = Cmd::new(folder, program)
            .args(args)
            .env("PYTHONPATH", root.join("lab/python"))
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .read()?;
        // The result names files as the reader of the page has them.
        let args = args.join(" ").replace(&symbols, "vmlinux");
        let printed = printed.replace(&format!("{}/", folder.display()), "");
        write!(text, "\n## {title}\n\n```text\n$ {name} {args}\n{}\n```\n", printed.trim_end())?;
        Ok(())
    };
    let read = [
        "-m",
        "vmlab.kernel",
        "core",
        "--vmlinux",
        &symbols,
        "--vmallocinfo",
        "vmallocinfo",
        "-o",
        "dump.jsonl.gz",
    ];
    show("The dump", python, "python3", &read)?;
    show("Its map", vmlab, "vmlab", &["map", "dump.jsonl.gz"])?;
    let sites = ["sites", "allocinfo", "--dump", "dump.jsonl.gz"];
    show("Where its areas and its per-CPU memory were allocated", vmlab, "vmlab", &sites)?;
    let growth = ["compare", "allocinfo.before", "allocinfo", "--top", "12"];
    show("The growth of the kernel's memory by the load", vmlab, "vmlab", &growth)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_table_is_split_off_and_a_missing_one_is_named() {
        let text: String = TABLES.iter().map(|name| format!("== {name}\n{name} 1\n{name} 2\n")).collect();
        for name in TABLES {
            assert_eq!(table(&text, name).unwrap(), format!("{name} 1\n{name} 2\n"));
            let empty = text.replace(&format!("{name} 1\n{name} 2\n"), "");
            assert!(table(&empty, name).is_err(), "{name}");
        }
        let error = table(&text, LIVE).unwrap_err().to_string();
        assert!(error.contains("no live"), "{error}");
    }

    #[test]
    fn an_answer_of_qemu_is_awaited_and_an_error_is_one() {
        let talk =
            "{\"QMP\": {}}\n{\"event\": \"STOP\"}\n{\"return\": {}}\n{\"error\": {\"desc\": \"no\"}}\n";
        let mut answers = talk.as_bytes();
        assert!(answer(&mut answers).is_ok());
        assert!(answer(&mut answers).unwrap_err().to_string().contains("no"));
        assert!(answer(&mut answers).is_err());
    }
}
