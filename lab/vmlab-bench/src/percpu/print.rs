//! Tables and CSV of per-CPU memory.

use super::process::{self, InProcess};
use super::seed::{self, Asked};
use super::{Measured, Taken};
use crate::print::{Captioned, comments, number, page, right, write_file};
use anyhow::Result;
use comfy_table::Table;
use std::fmt::Write;
use std::path::Path;
use vmlab_base::output::Output;

/// Name of the CSV file.
pub(super) const CSV: &str = "percpu.csv";

/// Returns all tables, in order.
pub(super) fn tables(measured: &Measured) -> Vec<Captioned> {
    let mut tables = of_the_allocator(measured);
    if let Some(process) = &measured.process {
        tables.extend(of_a_process(process));
    }
    tables
}

/// Returns the tables for a separate file.
fn of_a_process(measured: &InProcess) -> [Captioned; 2] {
    [costs(measured), held(measured)]
}

fn of_the_allocator(measured: &Measured) -> Vec<Captioned> {
    let mut tables = Vec::new();
    if !measured.rows.is_empty() {
        tables.extend([times(measured), counts(measured)]);
    }
    if !measured.seed.is_empty() {
        tables.push(of_seed_003(measured));
    }
    if !measured.zero.is_empty() {
        tables.push(zero(measured));
    }
    tables
}

/// Formats one figure, or two with a slash between.
fn pair(of: [Option<f64>; 2]) -> String {
    match of {
        [None, None] => "-".to_string(),
        [first, None] => first.map_or("-".to_string(), number),
        [first, Some(second)] => {
            format!("{} / {}", first.map_or("-".to_string(), number), number(second))
        }
    }
}

fn grid(
    measured: &Measured,
    head: &[&str],
    label: impl Fn(usize) -> Vec<String>,
    cell: impl Fn(&Taken) -> String,
) -> Table {
    let mut table = Table::new();
    let first = measured.rows.first().map_or(&[][..], |(_, taken)| taken);
    table.set_header(head.iter().copied().chain(first.iter().map(|taken| taken.contender)));
    for (at, (_, taken)) in measured.rows.iter().enumerate() {
        table.add_row(label(at).into_iter().chain(taken.iter().map(&cell)));
    }
    right(&mut table, head.len());
    table
}

fn times(measured: &Measured) -> Captioned {
    let label = |at: usize| {
        let workload = measured.rows[at].0;
        vec![format!("{}: {}", workload.name, workload.about)]
    };
    let table =
        grid(measured, &["workload"], label, |taken| format!("{} ({})", pair(taken.min), pair(taken.median)));
    let caption = "Nanoseconds of CPU time a call to alloc / to free, or a pair; minimum (median) of rounds, each in a fresh space. Nothing is \
                   zeroed or mapped on any side. `ours` is exact runs with slabs for small objects, `runs` the same without slabs, `scan` \
                   Linux's hints corrected, `linux612` Linux's offset for offset, all with a spin lock and inside this program; \
                   `kern` is called through its C interface.";
    Captioned { caption: caption.to_string(), table }
}

fn counts(measured: &Measured) -> Captioned {
    let table = grid(
        measured,
        &["workload"],
        |at| vec![measured.rows[at].0.name.to_string()],
        |taken| format!("{} / {}", taken.counts.chunks, taken.counts.free_bytes >> 10),
    );
    let caption = "Chunks / KiB free in them (in slabs, too) when the workload had most: what is fragmented.";
    Captioned { caption: caption.to_string(), table }
}

fn asked(asked: Asked) -> String {
    match asked {
        Asked::Actions { align } => format!("16 B aligned to {align} twice, and 20 B"),
        Asked::Packed => "12 B, not aligned, twice, and 20 B".to_string(),
        Asked::Plain => "16 B, not aligned (control)".to_string(),
    }
}

fn of_seed_003(measured: &Measured) -> Captioned {
    let mut table = Table::new();
    table.set_header(["engine", "an action asks for", "ns an action", "as the series' seconds", "chunks"]);
    for ran in &measured.seed {
        let seconds = match ran.asked {
            Asked::Plain => "-".to_string(),
            Asked::Actions { .. } | Asked::Packed => {
                seed::seconds(&measured.seed, ran.ns).map_or("-".to_string(), |of| format!("{of:.1}"))
            }
        };
        table.add_row([
            ran.engine.to_string(),
            asked(ran.asked),
            number(ran.ns),
            seconds,
            ran.chunks.to_string(),
        ]);
    }
    right(&mut table, 2);
    let caption = "What the hints of Linux's engine are worth: a million actions, ours with patches 4, 5 and 7 to 9 of the series of 2019 \
                   switched off together and apart; `kern` as it is. The series reports 69 : 44 : 39 seconds for what the first three rows ask \
                   for, in which all that a kernel does for an action is; 69 and 39 are given here, and the others follow.";
    Captioned { caption: caption.to_string(), table }
}

fn zero(measured: &Measured) -> Captioned {
    let mut table = Table::new();
    table.set_header(["bytes", "units", "ns an object"]);
    for zeroed in &measured.zero {
        table.add_row([zeroed.size.to_string(), zeroed.units.to_string(), number(zeroed.ns)]);
    }
    right(&mut table, 0);
    let caption = "Zeroing of an object in every unit, which no figure above holds.";
    Captioned { caption: caption.to_string(), table }
}

fn costs(measured: &InProcess) -> Captioned {
    let mut table = Table::new();
    table.set_header(["increment, or pair of calls", "1 thread", "2 threads"]);
    let of = |what: &str, threads: usize| {
        let cost = measured.costs.iter().find(|cost| cost.what == what && cost.threads == threads);
        cost.map_or("-".to_string(), |cost| format!("{:.2} ({:.2})", cost.min, cost.median))
    };
    for cost in measured.costs.iter().filter(|cost| cost.threads == 1) {
        table.add_row([cost.what.to_string(), of(cost.what, 1), of(cost.what, 2)]);
    }
    right(&mut table, 1);
    let least = |what| measured.least(what).unwrap_or(f64::NAN);
    let caption = format!(
        "Nanoseconds of CPU time, minimum (median) of the rounds of all threads, the loop with them. Of one thread, a section takes {:.1} \
         times what a thread-local takes where the word is the same in each round, {:.1} times where it is another of 64; an \
         atomic increment takes {:.1} times what a section takes; a zeroed counter {:.0} ns. {}",
        least(process::SECTION_ONE) / least(process::OWN_ONE),
        least(process::SECTION_TURN) / least(process::OWN_TURN),
        least(process::ATOMIC_ONE) / least(process::SECTION_ONE),
        least(process::ZEROED),
        measured.about
    );
    Captioned { caption, table }
}

fn held(measured: &InProcess) -> Captioned {
    let mut table = Table::new();
    table.set_header(["when", "objects", "chunks", "KiB free in chunks", "KiB free in slabs", "longest run"]);
    for held in &measured.held {
        let stats = &held.stats;
        table.add_row([
            held.when.to_string(),
            stats.live.to_string(),
            stats.chunks.to_string(),
            (stats.free_bytes >> 10).to_string(),
            (stats.slab_free_bytes >> 10).to_string(),
            format!("{} B", stats.longest_bytes),
        ]);
    }
    right(&mut table, 1);
    let caption = "What lies unused in the chunks of a space, of one unit; a chunk has 256 KiB of each. The longest run is listed up to the largest \
                   object, 32 KiB.";
    Captioned { caption: caption.to_string(), table }
}

/// Writes CSV and tables of the measurements.
pub(super) fn files(measured: &Measured, dir: &Path, header: &str, out: &mut dyn Output) -> Result<()> {
    let tables = of_the_allocator(measured);
    if !tables.is_empty() {
        write_file(dir, CSV, &(comments(header) + &csv(measured)), out)?;
        write_file(dir, "percpu.md", &page("Per-CPU memory", tables, header), out)?;
    }
    match &measured.process {
        Some(process) => {
            let page = page("Per-CPU data of a process", of_a_process(process), &process.header(header));
            write_file(dir, "percpu-process.md", &page, out)
        }
        None => Ok(()),
    }
}

fn csv(measured: &Measured) -> String {
    let mut csv = String::from(
        "kind,name,contender,first_ns_min,first_ns_median,free_ns_min,free_ns_median,chunks,free_bytes,pages\n",
    );
    let shown = |ns: Option<f64>| ns.map_or(String::new(), |ns| format!("{ns:.2}"));
    // Writing to a String cannot fail.
    for (workload, taken) in &measured.rows {
        for Taken { contender, min, median, counts } in taken {
            let _ = writeln!(
                csv,
                "workload,{},{contender},{},{},{},{},{},{},{}",
                workload.name,
                shown(min[0]),
                shown(median[0]),
                shown(min[1]),
                shown(median[1]),
                counts.chunks,
                counts.free_bytes,
                counts.pages
            );
        }
    }
    for ran in &measured.seed {
        let name = match ran.asked {
            Asked::Actions { align } => format!("align{align}"),
            Asked::Packed => "packed".to_string(),
            Asked::Plain => "plain".to_string(),
        };
        let _ = writeln!(csv, "seed,{name},{},{:.2},,,,{},,", ran.engine, ran.ns, ran.chunks);
    }
    for zeroed in &measured.zero {
        let _ = writeln!(csv, "zero,{} bytes in {} units,,{:.2},,,,,,", zeroed.size, zeroed.units, zeroed.ns);
    }
    csv
}
