//! The command line.

use crate::kind::{ALL, IndexKind};
use crate::replay::timing::Budget;
use crate::report::{Chapter, Picture, page};
use crate::run::{Options, Outcome, Row, bytes, run};
use crate::shipped::TRACES;
use crate::trace::vmallocinfo::Table;
use crate::trace::{Trace, decompress, open};
use anyhow::{Context, Result, bail};
use clap::{CommandFactory, Parser, Subcommand};
use comfy_table::{CellAlignment, ContentArrangement, presets};
use indicatif::{ProgressBar, ProgressStyle};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The laboratory of vmalloc: what real kernels did to their address space, replayed, compared, timed, drawn.
#[derive(Parser, Debug)]
#[command(
    name = "vmlab",
    version,
    after_help = "Examples:\n  \
        vmlab                                            replay the traces that come with vmlab, write a report\n  \
        vmlab replay trace.gz --index btree,rb-linux     replay a trace of your own on two indexes\n  \
        vmlab replay trace.zst --json | jq .equal        one JSON object per trace and index\n  \
        vmlab bench index --filter rand                  measure the indexes on random sizes"
)]
pub struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Replay the five traces that come with vmlab on every index, and write a report to look at (the default)
    Demo(DemoArgs),
    /// Replay traces of your own: ftrace, trace-cmd or perf text, plain, gzip or zstd
    #[command(after_help = "Record one as root:\n  \
            echo 1 > /sys/kernel/tracing/events/vmalloc/enable; echo 1 > /sys/kernel/tracing/events/percpu/enable\n  \
            cat /sys/kernel/tracing/trace > trace; cat /proc/vmallocinfo > trace.vmallocinfo\n\n\
            A file NAME.vmallocinfo beside NAME.ftrace[.gz|.zst] or NAME[.gz|.zst] is read by itself.")]
    Replay(ReplayArgs),
    /// Measure indexes side by side
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Print shell completions
    #[command(after_help = "Example:\n  vmlab completions bash > /etc/bash_completion.d/vmlab")]
    Completions {
        /// For which shell
        shell: clap_complete::Shell,
    },
}

#[derive(clap::Args, Debug, Default)]
struct DemoArgs {
    /// Where to write the report
    #[arg(long, value_name = "FILE", default_value = "vmlab-report.html")]
    report: PathBuf,
}

#[derive(clap::Args, Debug)]
struct ReplayArgs {
    /// Traces
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Indexes to replay on (default: all)
    #[arg(long, value_enum, value_delimiter = ',', value_name = "NAME")]
    index: Vec<IndexKind>,
    /// Print one JSON object per trace and index instead of a table
    #[arg(long)]
    json: bool,
    /// Write a report to look at
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// /proc/vmallocinfo of the machine, for the sizes of percpu chunks (for every trace)
    #[arg(long, value_name = "FILE")]
    vmallocinfo: Option<PathBuf>,
}

#[derive(Subcommand, Debug)]
enum BenchCommand {
    /// The index of holes: workloads from an empty space to a million areas
    #[command(
        after_help = "Examples:\n  vmlab bench index --quick\n  vmlab bench index --filter rand --indexes btree,rb-linux --out results"
    )]
    Index(crate::bench::Args),
}

/// Runs the command line.
///
/// # Errors
/// Whatever cannot be done, as one line.
pub fn main(cli: &Cli) -> Result<()> {
    match &cli.command {
        None => demo(Path::new("vmlab-report.html")),
        Some(Command::Demo(args)) => demo(&args.report),
        Some(Command::Replay(args)) => replay(args),
        Some(Command::Bench(BenchCommand::Index(args))) => crate::bench::run(args),
        Some(Command::Completions { shell }) => {
            clap_complete::generate(*shell, &mut Cli::command(), "vmlab", &mut std::io::stdout());
            Ok(())
        }
    }
}

/// A trace, its table, and where both come from.
struct Input {
    name: String,
    trace: Trace,
    table: Table,
}

fn demo(report: &Path) -> Result<()> {
    let mut inputs = Vec::new();
    for shipped in &TRACES {
        inputs.push(Input {
            name: shipped.name.to_string(),
            trace: Trace::read(decompress(shipped.trace)?),
            table: Table::read(shipped.vmallocinfo),
        });
    }
    let (rows, chapters) = run_all(&inputs, &ALL, true)?;
    print_table(&rows)?;
    print_notes(&rows)?;
    write_report(report, "vmalloc: five traces of a real kernel", &chapters)
}

fn replay(args: &ReplayArgs) -> Result<()> {
    let mut inputs = Vec::new();
    for file in &args.files {
        inputs.push(read(file, args.vmallocinfo.as_deref())?);
    }
    let kinds = if args.index.is_empty() { &ALL[..] } else { &args.index[..] };
    let (rows, chapters) = run_all(&inputs, kinds, args.report.is_some())?;
    if args.json {
        for row in &rows {
            out(&serde_json::to_string(row)?)?;
        }
    } else {
        print_table(&rows)?;
        print_notes(&rows)?;
        print_differences(&rows)?;
    }
    match &args.report {
        Some(report) => write_report(report, "vmalloc: replay", &chapters),
        None => Ok(()),
    }
}

/// Reads a trace and what lies beside it, and says what could not be read.
fn read(file: &Path, vmallocinfo: Option<&Path>) -> Result<Input> {
    let shown = file.display();
    let trace = Trace::read(open(file).with_context(|| format!("cannot read {shown}"))?);
    if trace.events.is_empty() {
        let why = match &trace.cut_short {
            Some(why) => format!(" (reading ended {why})"),
            None => String::new(),
        };
        let (lines, bad) = (trace.lines, trace.bad);
        bail!("no vmalloc event in {shown}: {lines} lines, {bad} of them events that cannot be read{why}");
    }
    if let Some(why) = &trace.cut_short {
        eprintln!("vmlab: {shown}: the input ends early, {why}; going on with what was read");
    }
    if trace.bad > 0 {
        eprintln!("vmlab: {shown}: {} event lines cannot be read, first of all:", trace.bad);
        for (number, text) in &trace.bad_lines {
            eprintln!("  line {number}: {text}");
        }
    }
    let beside = beside(file);
    let table = match (vmallocinfo, &beside) {
        (Some(given), _) => {
            Some(Table::read(open(given).with_context(|| format!("cannot read {}", given.display()))?))
        }
        (None, Some(beside)) => {
            Some(Table::read(open(beside).with_context(|| format!("cannot read {}", beside.display()))?))
        }
        (None, None) => None,
    };
    let table = table.unwrap_or_default();
    if table.bad > 0 {
        eprintln!("vmlab: {shown}: {} lines of vmallocinfo cannot be read", table.bad);
    }
    Ok(Input { name: stem(file), trace, table })
}

/// The file's name without `.gz`, `.zst`, `.ftrace`, `.txt`.
fn stem(file: &Path) -> String {
    let mut name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    for end in [".gz", ".zst", ".ftrace", ".txt"] {
        if let Some(short) = name.strip_suffix(end).filter(|short| !short.is_empty()) {
            name = short.to_string();
        }
    }
    name
}

fn beside(file: &Path) -> Option<PathBuf> {
    let beside = file.with_file_name(format!("{}.vmallocinfo", stem(file)));
    beside.is_file().then_some(beside)
}

fn run_all(inputs: &[Input], kinds: &[IndexKind], report: bool) -> Result<(Vec<Row>, Vec<Chapter>)> {
    let bar = ProgressBar::new((inputs.len() * kinds.len()) as u64);
    let style = ProgressStyle::with_template("{bar:32} {pos}/{len} {msg}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.enable_steady_tick(Duration::from_millis(120));
    let options = Options { budget: Budget::default(), latency: report };
    let (mut rows, mut chapters) = (Vec::new(), Vec::new());
    for input in inputs {
        let (mut chapter_rows, mut latency, mut notes) = (Vec::new(), Vec::new(), Vec::new());
        for &kind in kinds {
            bar.set_message(format!("{} on {}", input.name, kind.name()));
            let outcome = run(&input.name, &input.trace, &input.table, kind, options)?;
            if notes.is_empty() {
                notes = notes_of(input, &outcome);
            }
            latency.push((kind.name().to_string(), outcome.latency));
            chapter_rows.push(outcome.row);
            bar.inc(1);
        }
        rows.extend(chapter_rows.iter().cloned());
        if report {
            let picture = Picture::of(&input.trace, &input.table)?;
            chapters.push(Chapter { name: input.name.clone(), picture, rows: chapter_rows, latency, notes });
        }
    }
    bar.finish_and_clear();
    Ok((rows, chapters))
}

/// What was read, and what had to be inferred.
fn notes_of(input: &Input, outcome: &Outcome) -> Vec<String> {
    let (trace, tally) = (&input.trace, &outcome.tally);
    let mut notes = vec![format!(
        "{} lines: {} events of the address space, {} percpu events that do not change it, {} others, {} unreadable.",
        trace.lines,
        trace.events.len(),
        trace.percpu,
        trace.others + trace.comments,
        trace.bad
    )];
    if tally.chunks > 0 {
        notes.push(format!(
            "{} percpu chunks, placed where the trace shows them; {} of them where the top-down search finds them too{}.",
            tally.chunks,
            tally.chunks_equal,
            if tally.chunks_guessed > 0 { "; their size is not known and taken to be 2 MiB" } else { "" }
        ));
    }
    notes
}

fn print_table(rows: &[Row]) -> Result<()> {
    let mut table = comfy_table::Table::new();
    table.load_preset(presets::UTF8_HORIZONTAL_ONLY).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header([
        "trace",
        "index",
        "events",
        "allocs",
        "equal",
        "lower",
        "higher",
        "failed\nboth",
        "failed\ndiffers",
        "inferred",
        "ns/op\nmedian",
        "ns/op\nmin",
        "holes\nat end",
        "largest\nhole",
    ]);
    let mut last = "";
    for row in rows {
        let name = if row.trace == last { "" } else { &row.trace };
        last = &row.trace;
        table.add_row([
            name.to_string(),
            row.index.clone(),
            row.events.to_string(),
            row.allocs.to_string(),
            row.equal.to_string(),
            row.lower.to_string(),
            row.higher.to_string(),
            row.failed_both.to_string(),
            row.failed_differs.to_string(),
            row.inferred.to_string(),
            format!("{:.1}", row.ns_median),
            format!("{:.1}", row.ns_min),
            row.holes.to_string(),
            bytes(row.largest_hole),
        ]);
    }
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    out(&table.to_string())
}

/// What the table cannot say in numbers.
fn print_notes(rows: &[Row]) -> Result<()> {
    let mut notes = Vec::new();
    let mut seen = Vec::new();
    for row in rows {
        if !seen.contains(&&row.trace) {
            seen.push(&row.trace);
            if row.chunks > 0 {
                notes.push(format!(
                    "{}: {} percpu chunk(s) inferred, {} at the base that the top-down search finds too",
                    row.trace, row.chunks, row.chunks_equal
                ));
            }
            if row.absurd > 0 {
                notes.push(format!(
                    "{}: {} events have numbers that no allocator accepts",
                    row.trace, row.absurd
                ));
            }
        }
    }
    for note in notes {
        out(&note)?;
    }
    Ok(())
}

/// The first answers of each index that differ from the kernel's.
fn print_differences(rows: &[Row]) -> Result<()> {
    const SHOWN: usize = 4;
    let address = |at: Option<u64>| at.map_or("nothing".to_string(), |at| format!("{at:#x}"));
    for row in rows.iter().filter(|row| !row.first_differences.is_empty()) {
        out(&format!("{} on {}, first differences:", row.trace, row.index))?;
        for differs in row.first_differences.iter().take(SHOWN) {
            let (number, size, align) = (differs.number, differs.size, differs.align);
            let (kernel, ours) = (address(differs.kernel), address(differs.ours));
            out(&format!(
                "  allocation {number}: size {size} align {align}: kernel {kernel}, {} {ours}",
                row.index
            ))?;
        }
    }
    Ok(())
}

fn write_report(path: &Path, title: &str, chapters: &[Chapter]) -> Result<()> {
    std::fs::write(path, page(title, chapters))
        .with_context(|| format!("cannot write {}", path.display()))?;
    let shown = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    out(&format!("report: {}", shown.display()))
}

/// Prints a line; a reader that went away is not an error of ours.
pub(crate) fn out(line: &str) -> Result<()> {
    match writeln!(std::io::stdout(), "{line}") {
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => std::process::exit(0),
        other => Ok(other?),
    }
}
