//! Tables and CSV of per-CPU memory.

use super::process::{self, InProcess};
use super::seed::{self, Asked};
use super::{Measured, Taken};
use crate::harness::{Header, Report, Summary, Table, dash, number};

/// The name of the files.
pub(super) const STEM: &str = "percpu";

/// Returns the tables, CSV and pages: of the allocator, and of a process. What was not measured is left out.
pub(super) fn reports(measured: &Measured, header: &Header, rounds: usize) -> Vec<Report> {
    let mut tables = Vec::new();
    if !measured.rows.is_empty() {
        tables.extend([times(measured), counts(measured)]);
    }
    if !measured.threads.is_empty() {
        tables.push(of_threads(measured));
    }
    if !measured.tail.is_empty() {
        tables.push(of_tail(measured));
    }
    if !measured.seed.is_empty() {
        tables.push(of_seed_003(measured));
    }
    if !measured.zero.is_empty() {
        tables.push(zero(measured));
    }
    let mut reports = Vec::new();
    if !tables.is_empty() {
        let tables = Report::new(STEM, "Per-CPU memory", header.pinned(rounds), tables);
        reports.push(Report { csv: csv(measured), ..tables });
    }
    reports.extend(measured.process.as_ref().map(|process| {
        let tables = vec![costs(process), held(process)];
        Report::new("percpu-process", "Per-CPU data of a process", process.header(header), tables)
    }));
    reports
}

/// Formats a figure, or two with a slash between.
fn pair(of: [Option<Summary>; 2], which: fn(Summary) -> f64) -> String {
    let [first, second] = of.map(|rounds| rounds.map(|rounds| number(which(rounds))));
    let second = second.map_or(String::new(), |second| format!(" / {second}"));
    dash(first) + &second
}

/// Adds a column for each contender, and a row for each workload.
fn grid(
    table: Table,
    measured: &Measured,
    label: impl Fn(usize) -> String,
    cell: impl Fn(&Taken) -> String,
) -> Table {
    let names: Vec<_> =
        measured.rows.first().into_iter().flat_map(|(_, taken)| taken).map(|taken| taken.contender).collect();
    table.grid(
        &names,
        0..measured.rows.len(),
        |&row| vec![label(row)],
        |&row, name| measured.rows[row].1.iter().find(|taken| taken.contender == *name).map(&cell),
    )
}

fn times(measured: &Measured) -> Table {
    let caption = "Nanoseconds of CPU time a call to alloc / to free, or a pair; minimum (median) of rounds, each in a fresh space. Nothing is \
                   zeroed or mapped on any side. `ours` is exact runs with slabs for small objects, `cached` the same through a magazine, \
                   `runs` the same without slabs, `scan` \
                   Linux's hints corrected, `linux612` Linux's offset for offset, all with a spin lock and inside this program; \
                   `kern` is called through its C interface.";
    let label = |row: usize| format!("{}: {}", measured.rows[row].0.name, measured.rows[row].0.about);
    grid(Table::new(caption, 1, ["workload"]), measured, label, |taken| {
        format!("{} ({})", pair(taken.ns, |ns| ns.min), pair(taken.ns, |ns| ns.median))
    })
}

fn counts(measured: &Measured) -> Table {
    let caption = "Chunks / KiB free in them (in slabs, too) when the workload had most: what is fragmented.";
    let label = |row: usize| measured.rows[row].0.name.to_string();
    grid(Table::new(caption, 1, ["workload"]), measured, label, |taken| {
        format!("{} / {}", taken.counts.chunks, taken.counts.free_bytes >> 10)
    })
}

fn asked(asked: Asked) -> String {
    match asked {
        Asked::Actions { align } => format!("16 B aligned to {align} twice, and 20 B"),
        Asked::Packed => "12 B, not aligned, twice, and 20 B".to_string(),
        Asked::Plain => "16 B, not aligned (control)".to_string(),
    }
}

fn of_seed_003(measured: &Measured) -> Table {
    let caption = "What the hints of Linux's engine are worth: a million actions, ours with patches 4, 5 and 7 to 9 of the series of 2019 \
                   switched off together and apart; `kern` as it is. The series reports 69 : 44 : 39 seconds for what the first three rows ask \
                   for, in which all that a kernel does for an action is; 69 and 39 are given here, and the others follow.";
    let head = ["engine", "an action asks for", "ns an action", "as the series' seconds", "chunks"];
    let mut table = Table::new(caption, 2, head);
    for ran in &measured.seed {
        let seconds = match ran.asked {
            Asked::Plain => None,
            Asked::Actions { .. } | Asked::Packed => seed::seconds(&measured.seed, ran.ns),
        };
        let seconds = dash(seconds.map(|seconds| format!("{seconds:.1}")));
        table.row(&[&ran.engine, &asked(ran.asked), &number(ran.ns), &seconds, &ran.chunks]);
    }
    table
}

fn of_threads(measured: &Measured) -> Table {
    let caption = "Many threads on one space, each with a magazine in `cached`: nanoseconds of CPU time a pair, minimum (median) of rounds, \
                   the mean of all threads. Locks are those of chunks and of their growth, counted in a second run by the type of the lock, \
                   after a quarter of the pairs. Zeroed bytes are of one unit, wherever they are zeroed; nothing is written here. tc-flower is a recording of \
                   15,000 filters added and deleted, in each thread: 30,000 objects that live together.";
    let head = ["load", "threads", "contender", "ns a pair", "shared locks a pair", "zeroed bytes a pair"];
    let mut table = Table::new(caption, 3, head);
    for of in &measured.threads {
        let ns = format!("{} ({})", number(of.ns.min), number(of.ns.median));
        let (locks, zeroed) = (of.locks.map(|locks| format!("{locks:.4}")), of.zeroed.map(number));
        table.row(&[&of.load, &of.threads, &of.contender, &ns, &dash(locks), &dash(zeroed)]);
    }
    table
}

fn of_tail(measured: &Measured) -> Table {
    let caption = "Instructions of each pair, counted one by one, while another caller allocates and frees 1 to 9 KiB four times between two \
                   pairs, and the balance runs a step there. A wait for a lock is not in it. The column before the last is how many times \
                   the median the longest of a thousand takes; the last, how often the balance had work. 3,000 pairs of `cached`, 300 of the \
                   others.";
    let head = [
        "load",
        "contender",
        "median",
        "p99",
        "p99.9",
        "most",
        "p99.9 / median",
        "steps of the balance a pair",
    ];
    let mut table = Table::new(caption, 2, head);
    for of in &measured.tail {
        let ratio = format!("{:.1}", of.p999 as f64 / of.median.max(1) as f64);
        let balance = format!("{:.2}", of.balance);
        table.row(&[&of.load, &of.contender, &of.median, &of.p99, &of.p999, &of.most, &ratio, &balance]);
    }
    table
}

fn zero(measured: &Measured) -> Table {
    let caption = "Zeroing of an object in every unit, which no figure above holds.";
    let mut table = Table::new(caption, 0, ["bytes", "units", "ns an object"]);
    for zeroed in &measured.zero {
        table.row(&[&zeroed.size, &zeroed.units, &number(zeroed.ns)]);
    }
    table
}

fn costs(measured: &InProcess) -> Table {
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
    let ones = measured.costs.iter().filter(|cost| cost.threads == 1).map(|cost| cost.what);
    let cell = |what: &&str, threads: usize| {
        let ns = measured.costs.iter().find(|cost| cost.what == *what && cost.threads == threads)?.ns;
        Some(format!("{:.2} ({:.2})", ns.min, ns.median))
    };
    let mut table = Table::new(caption, 1, ["increment, or pair of calls", "1 thread", "2 threads"]);
    for what in ones {
        table.row(&[&what, &dash(cell(&what, 1)), &dash(cell(&what, 2))]);
    }
    table
}

fn held(measured: &InProcess) -> Table {
    let caption = "What lies unused in the chunks of a space, of one unit; a chunk has 256 KiB of each. The longest run is listed up to the largest \
                   object, 32 KiB.";
    let head = ["when", "objects", "chunks", "KiB free in chunks", "KiB free in slabs", "longest run"];
    let mut table = Table::new(caption, 1, head);
    for held in &measured.held {
        let stats = &held.stats;
        let longest = format!("{} B", stats.longest_bytes);
        let (chunks, slabs) = (stats.free_bytes >> 10, stats.slab_free_bytes >> 10);
        table.row(&[&held.when, &stats.live, &stats.chunks, &chunks, &slabs, &longest]);
    }
    table
}

fn csv(measured: &Measured) -> Vec<String> {
    let head =
        "kind,name,contender,first_ns_min,first_ns_median,free_ns_min,free_ns_median,chunks,free_bytes,pages";
    let figures =
        |ns: Option<Summary>| ns.map_or(",".to_string(), |ns| format!("{:.2},{:.2}", ns.min, ns.median));
    let mut lines = vec![head.to_string()];
    for (workload, taken) in &measured.rows {
        for Taken { contender, ns: [first, free], counts } in taken {
            let (name, first, free) = (workload.name, figures(*first), figures(*free));
            let counts = format!("{},{},{}", counts.chunks, counts.free_bytes, counts.pages);
            lines.push(format!("workload,{name},{contender},{first},{free},{counts}"));
        }
    }
    for ran in &measured.seed {
        let name = match ran.asked {
            Asked::Actions { align } => format!("align{align}"),
            Asked::Packed => "packed".to_string(),
            Asked::Plain => "plain".to_string(),
        };
        lines.push(format!("seed,{name},{},{:.2},,,,{},,", ran.engine, ran.ns, ran.chunks));
    }
    for of in &measured.threads {
        let extra = |value: Option<f64>| value.map_or(String::new(), |value| format!("{value:.4}"));
        let (load, threads, ns) = (of.load, of.threads, of.ns);
        let (locks, zeroed) = (extra(of.locks), extra(of.zeroed));
        lines.push(format!(
            "threads,{load} by {threads},{},{:.2},{:.2},{locks},{zeroed},,,",
            of.contender, ns.min, ns.median
        ));
    }
    for of in &measured.tail {
        lines.push(format!("tail,{},{},{},{},{},,,,", of.load, of.contender, of.median, of.p999, of.most));
    }
    for zeroed in &measured.zero {
        let name = format!("{} bytes in {} units", zeroed.size, zeroed.units);
        lines.push(format!("zero,{name},,{:.2},,,,,,", zeroed.ns));
    }
    lines
}
