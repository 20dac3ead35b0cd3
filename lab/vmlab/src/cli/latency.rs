//! `vmlab latency`: durations of the kernel's functions, and waits for its locks.

use super::input::stem;
use super::selected::Selected;
use super::table::{align, plain};
use super::{choice, lacks, lacks_or, out, print_note};
use crate::reading::open;
use anyhow::{Context, Result, bail};
use comfy_table::Cell;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use vmlab_base::text::{counted, duration, grouped, printable};
use vmlab_trace::call::Call;
use vmlab_trace::jsonl::Probes;
use vmlab_trace::latency::{CallRow, Elsewhere, Figures, Latencies, LockRow, Of, Unpaired, lowest};
use vmlab_trace::{Next, Selection, items};
use vmlab_view::report::latency::{Durations, Row};

/// The version of the objects that `--json` prints.
const VERSION: u32 = 1;
/// Characters of a name in a table that fits 80 columns.
const NAME_CHARS: usize = 18;
const SITE_CHARS: usize = 28;
/// The name of a lock that has none.
const UNNAMED: &str = "(unnamed)";
/// Characters of a line of text.
const LINE_CHARS: usize = 80;

#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// Recordings of vmlab record --latency, or --locks; - is standard input
    #[arg(required = true, value_name = "RECORDING")]
    files: Vec<PathBuf>,
    /// A row for each of these
    #[arg(long, value_parser = choice::<Of>(), value_name = "GROUP", default_value = "function")]
    by: Of,
    /// The most rows of a table; the rest is counted
    #[arg(long, value_name = "N", default_value = "30")]
    top: usize,
    /// Print one JSON object per recording instead of tables
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    selected: Selected,
}

pub(super) fn run(args: &Args) -> Result<()> {
    let selection = args.selected.selection()?;
    for file in &args.files {
        let (latencies, cut_short) = read(file, &selection)?;
        check(file, &latencies, &selection, cut_short.as_deref())?;
        if args.json {
            out(&serde_json::to_string(&Printed::of(&stem(file), &latencies, args.by))?)?;
        } else {
            print(&stem(file), &latencies, args.by, args.top)?;
        }
        if let Some(why) = cut_short {
            bail!("{}: the input ends early, {why}; the figures are of what was read", file.display());
        }
    }
    Ok(())
}

/// Returns the durations of an input, and why it ended early, if it did.
pub(super) fn read(path: &Path, selection: &Selection) -> Result<(Latencies, Option<String>)> {
    let mut latencies = Latencies::within(selection.clone());
    let input = open(path).with_context(|| format!("cannot read {}", path.display()))?;
    let census = items(input, |item| {
        latencies.take(&item);
        Ok(Next::Go)
    })?;
    latencies.finish();
    Ok((latencies, census.cut_short))
}

/// Returns the section of a report.
pub(super) fn section(name: &str, latencies: &Latencies) -> Durations {
    let call = |mut row: CallRow| Row {
        figures: row.durations.figures(),
        histogram: row.durations.histogram(),
        name: row.function,
    };
    let lock = |mut row: LockRow| Row {
        figures: row.durations.figures(),
        histogram: Vec::new(),
        name: format!("{}, {}", row.lock.as_deref().unwrap_or(UNNAMED), row.site),
    };
    let rows = latencies.call_rows(Of::Function);
    let mut notes = vec![head(name, latencies, rows.len())];
    notes.extend(latencies.has_calls().then(|| cost(latencies)));
    notes.extend(latencies.has_locks().then(|| others(latencies.elsewhere())));
    Durations {
        calls: rows.into_iter().map(call).collect(),
        locks: latencies.lock_rows().into_iter().map(lock).collect(),
        notes,
    }
}

/// Fails if there is nothing to show.
fn check(file: &Path, latencies: &Latencies, selection: &Selection, ended: Option<&str>) -> Result<()> {
    let shown = file.display();
    if !latencies.has_calls() && !latencies.has_locks() {
        let advice = "vmlab record --latency records them, and --locks waits for locks";
        return Err(lacks_or(shown, "no duration", ended, advice));
    }
    if latencies.calls() + latencies.waits() == 0 && !selection.is_all() {
        return Err(lacks(shown, &format!("no call and no wait {selection}"), ended));
    }
    if latencies.is_cut() {
        print_note(&format!("{shown}: more events than are counted: give it a part by --from and --to"));
    }
    Ok(())
}

/// A recording's durations, as JSON. Times are nanoseconds.
#[derive(Serialize)]
struct Printed {
    version: u32,
    recording: String,
    kernel: String,
    cpus: u64,
    span_ns: u64,
    lost: u64,
    /// Returns without a call, calls without a return, calls that had not returned, events without a time.
    unpaired: BTreeMap<&'static str, u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    probes: Option<Probes>,
    calls: Vec<PrintedCalls>,
    locks: Vec<PrintedLock>,
    /// Waits that are in no row.
    elsewhere: BTreeMap<&'static str, u64>,
}

#[derive(Serialize)]
struct PrintedCalls {
    call: &'static str,
    function: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    caller: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    task: Option<String>,
    #[serde(flatten)]
    figures: PrintedFigures,
    /// The lower end of each range of durations, up to twice that, and how many are in it.
    histogram: Vec<(u64, u64)>,
}

#[derive(Serialize)]
struct PrintedLock {
    #[serde(skip_serializing_if = "Option::is_none")]
    lock: Option<String>,
    site: String,
    #[serde(flatten)]
    figures: PrintedFigures,
}

#[derive(Serialize)]
struct PrintedFigures {
    count: u64,
    median_ns: u64,
    p90_ns: u64,
    p99_ns: u64,
    p999_ns: u64,
    max_ns: u64,
    total_ns: u64,
}

impl From<Figures> for PrintedFigures {
    fn from(figures: Figures) -> Self {
        let Figures { count, median, p90, p99, p999, max, total } = figures;
        Self {
            count,
            median_ns: median,
            p90_ns: p90,
            p99_ns: p99,
            p999_ns: p999,
            max_ns: max,
            total_ns: total,
        }
    }
}

impl Printed {
    fn of(name: &str, latencies: &Latencies, by: Of) -> Self {
        let Unpaired { returns, calls, open, untimed } = latencies.unpaired();
        let Elsewhere { other_locks, unknown, unpaired } = latencies.elsewhere();
        let call = |mut row: CallRow| PrintedCalls {
            call: row.call.name(),
            function: row.function,
            caller: row.origin.clone().filter(|_| by == Of::Caller),
            task: row.origin.filter(|_| by == Of::Task),
            figures: row.durations.figures().into(),
            histogram: row.durations.histogram().into_iter().map(|(k, count)| (lowest(k), count)).collect(),
        };
        let lock = |mut row: LockRow| PrintedLock {
            lock: row.lock,
            site: row.site,
            figures: row.durations.figures().into(),
        };
        let header = latencies.header();
        Self {
            version: VERSION,
            recording: name.to_string(),
            kernel: header.kernel.clone(),
            cpus: header.cpus.0,
            span_ns: latencies.span_ns(),
            lost: latencies.lost(),
            unpaired: BTreeMap::from([
                ("returns", returns),
                ("calls", calls),
                ("open", open),
                ("untimed", untimed),
            ]),
            probes: header.probes.clone(),
            calls: latencies.call_rows(by).into_iter().map(call).collect(),
            locks: latencies.lock_rows().into_iter().map(lock).collect(),
            elsewhere: BTreeMap::from([
                ("other_locks", other_locks),
                ("unknown", unknown),
                ("unpaired", unpaired),
            ]),
        }
    }
}

/// Prints the tables, and what their figures are of.
fn print(name: &str, latencies: &Latencies, by: Of, top: usize) -> Result<()> {
    let by_function = latencies.call_rows(Of::Function);
    out(&folded(&head(name, latencies, by_function.len())))?;
    if latencies.has_calls() {
        let rows = if by == Of::Function { by_function.clone() } else { latencies.call_rows(by) };
        let left = rows.len().saturating_sub(top);
        calls(rows.into_iter().take(top).collect(), by)?;
        rest(left)?;
        histogram(&by_function)?;
        out(&folded(&functions(&by_function)))?;
        out(&folded(&cost(latencies)))?;
    }
    if latencies.has_locks() {
        let rows = latencies.lock_rows();
        let left = rows.len().saturating_sub(top);
        if !rows.is_empty() {
            locks(rows.into_iter().take(top).collect())?;
        }
        rest(left)?;
        out(&folded(&others(latencies.elsewhere())))?;
    }
    Ok(())
}

fn rest(left: usize) -> Result<()> {
    if left > 0 { out(&format!("and {} more", grouped(left as u64))) } else { Ok(()) }
}

fn head(name: &str, latencies: &Latencies, functions: usize) -> String {
    let Unpaired { returns, calls, open, untimed } = latencies.unpaired();
    let header = latencies.header();
    let kernel = if header.kernel.is_empty() { String::new() } else { format!(" Linux {},", header.kernel) };
    let cpus =
        if header.cpus.0 == 0 { String::new() } else { format!(" {},", counted(header.cpus.0, "CPU")) };
    format!(
        "{name}:{}{cpus} {}: {} in {}, {} without a beginning, {} without a return, {} not ended, {} without a time; \
         {} lost",
        printable(&kernel),
        duration(latencies.span_ns()),
        counted(latencies.calls(), "call"),
        counted(functions as u64, "function"),
        grouped(returns),
        grouped(calls),
        grouped(open),
        grouped(untimed),
        counted(latencies.lost(), "event"),
    )
}

fn cut(name: &str, chars: usize) -> String {
    let name = if name.is_empty() { "(unknown)" } else { name };
    let shown = printable(name);
    if shown.chars().count() <= chars {
        return shown.into_owned();
    }
    shown.chars().take(chars - 1).chain(['~']).collect()
}

/// A figure: the head of its column, and its value.
type Column = (&'static str, fn(&Figures) -> u64);

fn times(figures: &Figures, of: &[fn(&Figures) -> u64]) -> Vec<Cell> {
    of.iter().map(|of| Cell::new(duration(of(figures)))).collect()
}

fn calls(rows: Vec<CallRow>, by: Of) -> Result<()> {
    let mut table = plain();
    let mut head = vec!["call"];
    let origin = match by {
        Of::Function => None,
        Of::Caller => Some("caller"),
        Of::Task => Some("task"),
    };
    head.extend(origin);
    // Six times beside a name of a caller are wider than 80 columns.
    let wide: &[Column] = &[
        ("median", |figures| figures.median),
        ("p90", |figures| figures.p90),
        ("p99", |figures| figures.p99),
        ("p99.9", |figures| figures.p999),
        ("max", |figures| figures.max),
        ("total", |figures| figures.total),
    ];
    let narrow = [wide[0], wide[2], wide[4], wide[5]];
    let columns = if origin.is_some() { &narrow[..] } else { wide };
    head.push("calls");
    head.extend(columns.iter().map(|(name, _)| *name));
    table.set_header(head);
    for mut row in rows {
        let figures = row.durations.figures();
        let mut cells = vec![Cell::new(row.call.name())];
        cells.extend(row.origin.map(|origin| Cell::new(cut(&origin, NAME_CHARS))));
        cells.push(Cell::new(grouped(figures.count)));
        cells.extend(times(&figures, &columns.iter().map(|(_, of)| *of).collect::<Vec<_>>()));
        table.add_row(cells);
    }
    align(&mut table, if origin.is_some() { 2 } else { 1 });
    out(&table.to_string())
}

/// Prints how many calls of each kind took from so long up to twice that.
fn histogram(rows: &[CallRow]) -> Result<()> {
    let mut kinds: BTreeMap<Call, BTreeMap<u32, u64>> = BTreeMap::new();
    for row in rows {
        let of = kinds.entry(row.call).or_default();
        row.durations.histogram().into_iter().for_each(|(k, count)| *of.entry(k).or_default() += count);
    }
    let all = || kinds.values().flat_map(BTreeMap::keys).copied();
    let (Some(first), Some(last)) = (all().min(), all().max()) else { return Ok(()) };
    let mut table = plain();
    let name = |call: &Call| call.name().replace(' ', "\n");
    table.set_header(std::iter::once("from".to_string()).chain(kinds.keys().map(name)));
    for k in first..=last {
        let count = |of: &BTreeMap<u32, u64>| of.get(&k).map_or(String::new(), |&count| grouped(count));
        table.add_row(std::iter::once(duration(lowest(k))).chain(kinds.values().map(count)));
    }
    align(&mut table, 0);
    out(&table.to_string())
}

/// Says which function each kind is.
fn functions(rows: &[CallRow]) -> String {
    let names: Vec<_> =
        rows.iter().map(|row| format!("{} is {}", row.call.name(), printable(&row.function))).collect();
    names.join(", ")
}

/// Says what the probes cost.
fn cost(latencies: &Latencies) -> String {
    let Some(probes) = &latencies.header().probes else {
        return "The recording does not say what its probes cost.".to_string();
    };
    let step = format!("Times are of steps of {}.", duration(probes.resolution_ns.0));
    if probes.measured_calls.0 == 0 {
        return format!("What the probes cost was not measured. {step}");
    }
    let (all, share) = probes.cost(latencies.calls(), latencies.span_ns(), latencies.header().cpus.0);
    format!(
        "A call costs {} more with its two probes ({}, measured by {} of getppid): {} in all, {:.2} % of the CPUs' time. \
         The probes show {} for a function that does nothing: each duration is too long by about that. {step}",
        duration(probes.pair_ps.0 / 1000),
        printable(&probes.kind),
        grouped(probes.measured_calls.0) + " calls",
        duration(all),
        share,
        duration(probes.floor_ns.0),
    )
}

fn locks(rows: Vec<LockRow>) -> Result<()> {
    let mut table = plain();
    table.set_header(["lock\n  who waits", "waits", "median", "p99", "max", "total"]);
    for mut row in rows {
        let figures = row.durations.figures();
        let lock = row.lock.as_deref().unwrap_or(UNNAMED);
        let mut cells = vec![
            Cell::new(format!("{}\n  {}", cut(lock, SITE_CHARS), cut(&row.site, SITE_CHARS))),
            Cell::new(grouped(figures.count)),
        ];
        let of: [fn(&Figures) -> u64; 4] =
            [|figures| figures.median, |figures| figures.p99, |figures| figures.max, |figures| figures.total];
        cells.extend(times(&figures, &of));
        table.add_row(cells);
    }
    align(&mut table, 1);
    out(&table.to_string())
}

fn others(elsewhere: Elsewhere) -> String {
    let Elsewhere { other_locks, unknown, unpaired } = elsewhere;
    format!(
        "Waits for the locks of others: {}; without a call stack, so that the lock is not known: {}; without both \
         ends: {}.",
        grouped(other_locks),
        grouped(unknown),
        grouped(unpaired)
    )
}

/// Breaks a text into lines.
fn folded(text: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= LINE_CHARS => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_string()),
        }
    }
    lines.join("\n")
}
