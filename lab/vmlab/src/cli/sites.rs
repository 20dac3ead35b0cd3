//! `vmlab sites`: the places of the kernel's source that allocate, by `/proc/allocinfo`.

use super::report::{Kind, opened};
use super::table::{align, plain};
use super::{lacks, out, print_note};
use crate::reading::open;
use anyhow::{Context, Result, bail};
use comfy_table::Cell;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use vmlab_base::text::{bytes, counted, grouped, printable};
use vmlab_trace::allocinfo::{SITES_MAX, Site, Sites, short};
use vmlab_trace::{Begun, each_line, read_line};

/// The kernel's file.
const KERNEL: &str = "/proc/allocinfo";
/// The version of the object that `--json` prints.
const VERSION: u32 = 1;
/// The files of the allocators themselves: their records, tables of pages, and the pages of chunks.
const OWN: [&str; 4] = ["mm/vmalloc.c", "mm/percpu.c", "mm/percpu-vm.c", "mm/percpu-km.c"];

#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// Text of /proc/allocinfo, plain, gzip or zstd; - is standard input (default: the running kernel's)
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// A dump of the same kernel by vmlab.kernel, which knows the memory of each place: vmalloc or per-CPU
    #[arg(long, value_name = "FILE")]
    dump: Option<PathBuf>,
    /// Show all places, also those that allocate neither vmalloc nor per-CPU memory, or are not known to
    #[arg(long)]
    all: bool,
    /// Rows of the table
    #[arg(long, value_name = "N", default_value = "20", conflicts_with = "json")]
    top: usize,
    /// Print one JSON object instead
    #[arg(long)]
    json: bool,
}

/// The memory that a place allocates, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Memory {
    /// Areas of `vmalloc`.
    Vmalloc,
    /// Per-CPU memory.
    Percpu,
    /// For the allocators themselves.
    Own,
}

impl Memory {
    fn name(memory: Option<Self>) -> &'static str {
        match memory {
            Some(Self::Vmalloc) => "vmalloc",
            Some(Self::Percpu) => "percpu",
            Some(Self::Own) => "own",
            None => "-",
        }
    }
}

/// A place, for the table and for `--json`.
#[derive(Debug, Serialize)]
struct Row {
    site: String,
    memory: Option<Memory>,
    calls: u64,
    bytes: i64,
}

/// The object that `--json` prints.
#[derive(Debug, Serialize)]
struct Listed {
    version: u32,
    name: String,
    places: usize,
    bytes: i64,
    bad: u64,
    sites: Vec<Row>,
}

pub(super) fn run(args: &Args) -> Result<()> {
    let path = args.file.as_deref().unwrap_or(Path::new(KERNEL));
    let found = match &args.file {
        Some(path) => {
            let (kind, whole) = opened(path)?;
            if kind != Kind::Sites {
                return Err(no_sites(path, whole));
            }
            checked(path, Sites::read(whole))?
        }
        None => checked(path, Sites::read(kernel()?))?,
    };
    let known = args.dump.as_deref().map(known).transpose()?.unwrap_or_default();
    let all = found.sites.len();
    let sum = total(&found.sites);
    let mut rows: Vec<Row> = found.sites.iter().map(|site| row(site, &known)).collect();
    rows.retain(|row| args.all || row.memory.is_some());
    rows.sort_by_key(|row| std::cmp::Reverse(row.bytes));
    let name = path.display().to_string();
    if args.json {
        let listed = Listed { version: VERSION, name, places: all, bytes: sum, bad: found.bad, sites: rows };
        return out(&serde_json::to_string(&listed)?);
    }
    out(&format!("{name}: {}, {} live", counted(all as u64, "place"), signed(sum)))?;
    let mut table = plain();
    table.set_header(["place", "memory", "calls", "bytes"]);
    for row in rows.iter().take(args.top) {
        table.add_row([
            Cell::new(&row.site),
            Cell::new(Memory::name(row.memory)),
            Cell::new(grouped(row.calls)),
            Cell::new(signed(row.bytes)),
        ]);
    }
    align(&mut table, 2);
    out(&table.to_string())?;
    if rows.len() > args.top {
        out(&format!("and {}", counted((rows.len() - args.top) as u64, "other place")))?;
    }
    if args.dump.is_none() && !args.all {
        out(
            "own: for the allocators themselves. The kernel does not say which other places allocate areas or per-CPU memory: --dump \
             does, and --all shows every place.",
        )?;
    }
    Ok(())
}

/// Returns the error of a file that is no text of the kernel's. It says that the file is damaged, if it is: of a pipe,
/// as far as that was read.
fn no_sites(path: &Path, whole: Begun<impl Read>) -> anyhow::Error {
    let ends = whole.is_ended() || std::fs::metadata(path).is_ok_and(|file| file.is_file());
    let cut_short = if ends { each_line(whole, |_, _| ControlFlow::Continue(())) } else { None };
    lacks(path.display(), &format!("not in the format of {KERNEL}"), cut_short.as_deref())
}

/// Opens the running kernel's file.
fn kernel() -> Result<impl Read> {
    let missing = !Path::new(KERNEL).exists();
    open(Path::new(KERNEL)).with_context(|| {
        if missing {
            format!(
                "cannot read {KERNEL}: the kernel is older than 6.10, or has no CONFIG_MEM_ALLOC_PROFILING"
            )
        } else {
            format!("cannot read {KERNEL}: run this command by sudo")
        }
    })
}

/// Fails if nothing was read, or not all of it.
pub(super) fn checked(path: &Path, found: Sites) -> Result<Sites> {
    let shown = path.display();
    if let Some((number, line)) = found.bad_lines.first() {
        let line = printable(line);
        print_note(&format!(
            "{shown}: {} cannot be read, the first: line {number}: {line}",
            counted(found.bad, "line")
        ));
    }
    if found.beyond > 0 {
        print_note(&format!("{shown}: {} are left out", counted(found.beyond, "place")));
    }
    if let Some(why) = &found.cut_short {
        bail!("{shown}: cannot be read to its end, {why}");
    }
    if found.sites.is_empty() {
        bail!("{shown}: no place in it: the kernel does not count, see sysctl vm.mem_profiling");
    }
    Ok(found)
}

/// Returns the live bytes of all places.
pub(super) fn total(sites: &[Site]) -> i64 {
    sites.iter().fold(0_i64, |sum, site| sum.saturating_add(site.bytes))
}

/// Formats bytes that may be negative.
fn signed(count: i64) -> String {
    let text = bytes(count.unsigned_abs());
    if count < 0 { format!("-{text}") } else { text }
}

fn row(site: &Site, known: &HashMap<(String, u32), Memory>) -> Row {
    let own = OWN.contains(&site.file.as_str()).then_some(Memory::Own);
    let memory = known.get(&(site.file.clone(), site.line)).copied().or(own);
    Row { site: printable(&site.name()).into_owned(), memory, calls: site.calls, bytes: site.bytes }
}

/// A line of a dump that names a place.
#[derive(Deserialize)]
struct Line {
    site: Option<Known>,
}

#[derive(Deserialize)]
struct Known {
    memory: Memory,
    file: String,
    line: u32,
}

/// Reads the places of a dump.
fn known(path: &Path) -> Result<HashMap<(String, u32), Memory>> {
    let shown = path.display();
    let mut input = BufReader::new(open(path).with_context(|| format!("cannot read {shown}"))?);
    let known = known_of(&mut input).with_context(|| format!("cannot read {shown}"))?;
    if known.is_empty() {
        bail!("{shown}: no dump of a kernel that records where memory was allocated");
    }
    Ok(known)
}

fn known_of(input: &mut impl BufRead) -> std::io::Result<HashMap<(String, u32), Memory>> {
    let (mut known, mut line) = (HashMap::new(), Vec::new());
    while read_line(input, &mut line)? {
        let parsed = serde_json::from_slice::<Line>(&line).ok().and_then(|line| line.site);
        if let Some(Known { memory, file, line }) = parsed.filter(|_| known.len() < SITES_MAX) {
            known.insert((short(&file), line), memory);
        }
    }
    Ok(known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_has_the_memory_that_a_dump_names_or_is_the_allocators_own() {
        let lines = "{\"site\":{\"memory\":\"percpu\",\"file\":\"a.c\",\"line\":3,\"bytes\":1}}\n\
            {\"site\":{\"memory\":\"vmalloc\",\"file\":\"mm/vmalloc.c\",\"line\":4}}\n\
            {\"site\":{\"memory\":\"other\",\"file\":\"b.c\",\"line\":3}}\n{\"hole\":{}}\nnonsense\n";
        let known = known_of(&mut lines.as_bytes()).unwrap();
        assert_eq!(known.len(), 2);
        let long =
            format!("{{\"site\":{{\"memory\":\"own\",\"file\":\"{}\",\"line\":3}}}}", "a".repeat(4000));
        let cut = known_of(&mut long.as_bytes()).unwrap();
        assert!(cut.keys().all(|(file, _)| file.len() == 200), "as the names of places are cut");
        let memory = |file: &str, line| {
            let site = Site {
                bytes: 1,
                calls: 1,
                file: file.to_string(),
                line,
                module: String::new(),
                function: "f".to_string(),
            };
            row(&site, &known).memory
        };
        assert_eq!(memory("a.c", 3), Some(Memory::Percpu));
        assert_eq!(memory("a.c", 4), None);
        assert_eq!(memory("mm/vmalloc.c", 4), Some(Memory::Vmalloc));
        assert_eq!(memory("mm/vmalloc.c", 5), Some(Memory::Own));
        assert_eq!(["-2 KiB", "0 B"], [-2048, 0].map(signed));
    }
}
