//! `vmlab map`: a picture of the address space at one time.

use super::input::{Input, Tables};
use super::output::{output, same};
use super::selected::{Selected, seconds};
use super::{choice, out, print_note, table};
use crate::reading::open;
use anyhow::{Context, Result, bail, ensure};
use comfy_table::Cell;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use vmlab_base::text::{bytes, counted, grouped};
use vmlab_replay::run_space::{Policy, nodes_of};
use vmlab_trace::{Selection, Trace};
use vmlab_view::map::blocks::{Look, Style, draw};
use vmlab_view::map::fold::Part;
use vmlab_view::map::process::Mappings;
use vmlab_view::map::read::Text;
use vmlab_view::map::replayed::{Ask, replay};
use vmlab_view::map::svg::{self, Titles};
use vmlab_view::map::{Picture, export, html, palette};
use vmlab_view::shape::Shape;

/// The kernel's table of its areas.
const KERNEL: &str = "/proc/vmallocinfo";
/// Columns if the output is not a terminal.
const WIDTH: usize = 100;
/// Lines of the picture in a terminal, about.
const ROWS: usize = 20;

#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// Text in the format of /proc/vmallocinfo, or a dump that vmlab.kernel wrote; plain, gzip or zstd; - is standard
    /// input (default: the running kernel's)
    #[arg(value_name = "FILE", conflicts_with_all = ["trace", "pid"])]
    file: Option<PathBuf>,
    /// Show what a trace leaves instead, with the addresses that it records
    #[arg(long, value_name = "FILE", conflicts_with = "pid")]
    trace: Option<PathBuf>,
    /// The time of the trace's clock to show, seconds (default: its end); the same as --to
    #[arg(long, value_name = "TIME", requires = "trace", value_parser = seconds, conflicts_with = "to")]
    at: Option<u64>,
    /// Policy that decides which purged areas are in pools (default: that of the trace's kernel)
    #[arg(long, value_parser = choice::<Policy>(), value_name = "NAME", requires = "trace")]
    policy: Option<Policy>,
    /// Nodes of the space (default: a node for each CPU of the trace)
    #[arg(long, value_name = "N", requires = "trace",
        value_parser = clap::value_parser!(u32).range(1..=i64::from(va_space::NODES_LIMIT)))]
    nodes: Option<u32>,
    #[command(flatten)]
    selected: Selected,
    #[command(flatten)]
    tables: Tables,
    /// Show the mappings of a process instead
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,
    /// Windows of areas, two addresses in hexadecimal; may be repeated (default: from the first area to the last, the
    /// topmost 2 GiB apart; of a trace, what its allocations name)
    #[arg(long, value_name = "START-END", value_parser = window)]
    window: Vec<Part>,
    /// Write the picture as SVG
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Write a page with the picture and all tables
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Print the numbers as one JSON object instead
    #[arg(long, conflicts_with = "csv")]
    json: bool,
    /// Print the numbers as CSV instead: section, name, measure, value
    #[arg(long)]
    csv: bool,
    /// Draw with ASCII alone
    #[arg(long, conflicts_with_all = ["json", "csv"])]
    ascii: bool,
    /// Columns of the drawing (default: those of the terminal)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(40..=1000),
        conflicts_with_all = ["json", "csv"])]
    width: Option<u16>,
    /// Callers in each table
    #[arg(long, value_name = "N", default_value = "10", conflicts_with_all = ["json", "csv"])]
    top: usize,
}

/// Parses two addresses.
fn window(text: &str) -> Result<Part, String> {
    let hex = |text: &str| u64::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16).ok();
    let part =
        text.split_once('-').and_then(|(start, end)| Some(Part { start: hex(start)?, end: hex(end)? }));
    part.filter(|part| part.start < part.end).ok_or_else(|| {
        "not two addresses such as ffffc90000000000-ffffe90000000000, the lower first".to_string()
    })
}

/// Draws the selected picture.
pub(super) fn run(args: &Args) -> Result<()> {
    // The parser does not see this where there is a FILE, which no trace can be beside.
    if args.trace.is_none() && (args.at.is_some() || args.policy.is_some() || args.nodes.is_some()) {
        bail!("--at, --policy and --nodes are of a trace: name it by --trace");
    }
    if args.trace.is_none() && args.tables.is_some() {
        bail!("--before, --vmallocinfo and --kernel are of a trace: name it by --trace");
    }
    if args.trace.is_none() {
        args.selected.none_if_no_trace("which --trace names")?;
    }
    // Open the files first, so that an error appears before the work.
    let inputs: Vec<PathBuf> = args.file.iter().chain(&args.trace).cloned().collect();
    let inputs = args.tables.inputs(&inputs);
    let svg = output(args.svg.as_deref(), &inputs)?;
    if let (Some(svg), Some(html)) = (&args.svg, &args.html)
        && same(svg, html)
    {
        bail!("--svg and --html name one file, {}", svg.display());
    }
    let html = output(args.html.as_deref(), &inputs)?;
    let (picture, cut_short) = match (&args.trace, args.pid) {
        (Some(trace), _) => of_trace(args, trace)?,
        (None, Some(pid)) => (of_process(args, pid)?, None),
        (None, None) => (of_text(args, args.file.as_deref().unwrap_or(Path::new(KERNEL)))?, None),
    };
    let mut written = Vec::new();
    if let Some(file) = svg {
        written.push(file.write(&svg::draw(&picture, Titles::Without, Shape::Broad))?);
    }
    if let Some(file) = html {
        written.push(file.write(&html::page(&picture))?);
    }
    if args.json {
        out(&export::json(&picture))?;
    } else if args.csv {
        out(export::csv(&picture).trim_end())?;
    } else {
        out(draw(&picture, look(args)).trim_end())?;
        tables(&picture, args.top)?;
        for note in &picture.notes {
            out(note)?;
        }
    }
    for path in written {
        let shown = format!("picture: {}", path.canonicalize().unwrap_or(path).display());
        // With --json and --csv, stdout has the numbers only.
        if args.json || args.csv { print_note(&shown) } else { out(&shown)? }
    }
    cut_short.map_or(Ok(()), |(name, why)| super::early(&name, &why))
}

fn windows(args: &Args) -> Option<Vec<Part>> {
    (!args.window.is_empty()).then(|| args.window.clone())
}

/// Advice if the kernel hides its addresses.
const HIDDEN: &str =
    "set kernel.kptr_restrict=1 and read it as root, or boot with no_hash_pointers, to have them";

fn of_text(args: &Args, path: &Path) -> Result<Picture> {
    let shown = if path == Path::new("-") { "stdin".to_string() } else { path.display().to_string() };
    let hint = if path == Path::new(KERNEL) { " (run as root, or give a FILE)" } else { "" };
    let input = open(path).with_context(|| format!("cannot read {shown}{hint}"))?;
    let text = Text::read(input, windows(args));
    let lines = text.lines + text.hidden + text.bad;
    if text.lines == 0 && text.hidden > 0 {
        bail!(
            "{shown}: the kernel hid the addresses of {} (hashed pointers, or zeros): {HIDDEN}",
            counted(text.hidden, "area")
        );
    }
    complain(&text, &shown);
    if let Some(why) = &text.cut_short {
        bail!("{shown}: cannot be read to its end, {why}");
    }
    ensure!(text.lines > 0, "{shown}: no area in {}: not in the format of {KERNEL}", counted(lines, "line"));
    let mut notes = Vec::new();
    if args.window.is_empty() && text.dump_windows().is_none() {
        notes.push(
            "Windows are not in the table: holes are counted from the first area to the last, the topmost 2 GiB (modules) apart; \
             --window shows more."
                .to_string(),
        );
    }
    if text.bad + text.hidden > 0 {
        notes.push(format!(
            "{} of {} could not be read.",
            grouped(text.bad + text.hidden),
            counted(lines, "line")
        ));
    }
    let title = match &text.dump {
        Some(dump) => format!("Linux {}: {shown}, read by {}", dump.kernel, dump.dump),
        None if path == Path::new(KERNEL) => kernel_title(),
        None => shown,
    };
    Ok(Picture::of(&title, text.listing, notes))
}

/// Returns the running kernel's name.
fn kernel_title() -> String {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("Linux {}: {KERNEL}", release.trim())
}

/// Prints on stderr which lines of a table could not be read.
pub(super) fn complain(text: &Text, shown: &str) {
    if let Some((number, line)) = text.bad_lines.first() {
        print_note(&format!(
            "{shown}: {} cannot be read, the first: line {number}: {line}",
            counted(text.bad, "line")
        ));
    }
    if text.hidden > 0 {
        let hidden = counted(text.hidden, "area");
        print_note(&format!("{shown}: the kernel hid the addresses of {hidden}: {HIDDEN}"));
    }
}

/// Returns the picture of a trace; its name, and why it ended early, if it did.
fn of_trace(args: &Args, path: &Path) -> Result<(Picture, Option<(String, String)>)> {
    let mut input = Input::read(path, &args.tables)?;
    let text = end_text(&args.tables, path, &input.trace)?;
    let shown = path.display();
    let selected = Selected { to: args.at.or(args.selected.to), ..args.selected.clone() };
    let selection = selected.selection()?;
    let events = input.trace.select(&selection).with_context(|| shown.to_string())?;
    let trace = &input.trace;
    let times = trace.times_ns.iter().copied().filter(|&time| time > 0);
    if let (0, true, Some(first), Some(last)) =
        (events, trace.standing.is_empty(), times.clone().min(), times.max())
    {
        let seconds = |ns: u64| format!("{:.6}", ns as f64 / 1e9);
        bail!(
            "{shown}: nothing happened up to then: its events are from {} to {}",
            seconds(first),
            seconds(last)
        );
    }
    let nodes = args.nodes.unwrap_or_else(|| nodes_of(trace));
    let policy = args.policy.unwrap_or_else(|| Policy::of(trace));
    let ask = Ask { trace, table: &input.table, text: &text, events, policy, nodes };
    let mut done = replay(ask)?;
    if !args.window.is_empty() {
        done.listing.set_windows(args.window.clone());
    }
    ensure!(!done.listing.areas.is_empty(), "{shown}: no area is out then");
    let columns = &done.columns;
    let answers = columns.same() + columns.differ();
    let mut notes = vec![format!(
        "{} of {} replayed, policy {} on {}: {} of {} are the kernel's.",
        grouped(events as u64),
        counted(trace.events.len() as u64, "event"),
        policy.name(),
        counted(u64::from(nodes), "node"),
        grouped(columns.same()),
        counted(answers, "answer")
    )];
    let part = Selection { to_ns: None, ..selection };
    if !part.is_all() {
        notes.push(format!(
            "Callers are shown of areas allocated {part}; all others are {}.",
            palette::UNCOUNTED
        ));
    }
    if let Some(why) = &trace.cut_short {
        notes.push(format!("The trace ends early, {why}."));
    }
    let when = selected.to.map_or("at its end".to_string(), |ns| format!("at {:.6} s", ns as f64 / 1e9));
    let picture = Picture::of(&format!("{} {when}", input.name), done.listing, notes);
    let why = input.trace.cut_short.take();
    Ok((picture, why.map(|why| (input.name, why))))
}

/// Returns the table at the end of a trace.
pub(super) fn end_text(tables: &Tables, path: &Path, trace: &Trace) -> Result<Text> {
    Ok(match tables.after(path) {
        Some(table) => {
            Text::read(open(&table).with_context(|| format!("cannot read {}", table.display()))?, None)
        }
        None => trace
            .recording
            .as_ref()
            .map_or_else(Text::default, |recording| Text::read(recording.table().as_bytes(), None)),
    })
}

fn of_process(args: &Args, pid: u32) -> Result<Picture> {
    let path = PathBuf::from(format!("/proc/{pid}/maps"));
    let file = std::fs::File::open(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let mappings = Mappings::read(file, windows(args));
    // A process that has exited, a kernel thread, or another user's process has an empty table.
    ensure!(
        mappings.lines > 0,
        "process {pid}: no mapping can be seen: it has ended, or is another user's or the kernel's"
    );
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let mut notes = vec![format!(
        "Areas are mappings that can be accessed; {} without access ({}) count as free. Areas of our allocator inside its arena: write \
         what vmallocinfo shows to a file, and pass that.",
        counted(mappings.reserved, "mapping"),
        bytes(mappings.reserved_bytes)
    )];
    if mappings.bad > 0 {
        notes.push(format!("{} could not be read.", counted(mappings.bad, "line")));
    }
    Ok(Picture::of(&format!("process {pid} ({})", name.trim()), mappings.listing, notes))
}

/// Returns the style for this terminal, or for output without one.
fn look(args: &Args) -> Look {
    let terminal = std::io::stdout().is_terminal();
    let columns = || console::Term::stdout().size_checked().map(|(_, columns)| usize::from(columns));
    let width = args.width.map(usize::from).or_else(|| terminal.then(columns).flatten()).unwrap_or(WIDTH);
    let colourless = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let style = match (args.ascii, terminal && !colourless) {
        (true, _) => Style::Ascii,
        (false, true) => Style::Colour,
        (false, false) => Style::Unicode,
    };
    Look { style, width, rows: ROWS }
}

fn tables(picture: &Picture, top: usize) -> Result<()> {
    let numbers = &picture.numbers;
    let mut holes = table::plain();
    holes.set_header(["aligned to", "largest hole", "at", "holes with\nroom for one"]);
    for row in &numbers.aligned {
        holes.add_row([
            Cell::new(bytes(row.align)),
            Cell::new(bytes(row.bytes)),
            Cell::new(row.at.map_or("none".to_string(), |at| format!("{at:016x}"))),
            Cell::new(grouped(row.holes)),
        ]);
    }
    table::align(&mut holes, 0);
    out(&format!("\n{holes}\n"))?;
    let mut callers = table::plain();
    callers.set_header(["caller", "bytes", "areas", "largest", "keeps apart"]);
    let mut rows: Vec<_> = numbers.callers.iter().take(top).collect();
    // Callers that keep the most holes apart are always in the table.
    for row in numbers.by_keeps_apart().into_iter().take(top) {
        if !rows.iter().any(|known| known.number == row.number) {
            rows.push(row);
        }
    }
    for row in &rows {
        callers.add_row([
            Cell::new(&row.name),
            Cell::new(bytes(row.bytes)),
            Cell::new(grouped(row.areas)),
            Cell::new(bytes(row.largest)),
            Cell::new(bytes(row.keeps_apart)),
        ]);
    }
    table::align(&mut callers, 1);
    out(&callers.to_string())?;
    let more = numbers.callers.len() - rows.len();
    if more > 0 {
        out(&format!("and {}", counted(more as u64, "other caller")))?;
    }
    out(
        "keeps apart: bytes of holes that would be one with a larger hole if none of the caller's areas were there.",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_are_read_or_reported_in_a_line() {
        assert_eq!(window("0x1000-ff000"), Ok(Part { start: 0x1000, end: 0xf_f000 }));
        for bad in ["", "1000", "2000-1000", "1000-1000", "x-y", "-"] {
            assert!(window(bad).is_err(), "{bad}");
        }
    }
}
